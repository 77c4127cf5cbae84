"""What is installed: every package that this one asks for, imported for real; what does not go together."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from importlib import metadata, util

from runners.doctor import Finding, ask
from runners.run.packages import (
    DISTRIBUTION,
    HOME,
    PACKAGES,
    distribution,
    install,
    module_of,
    name_collision,
    version,
)


def imports(requirements: list[str], timeout: float) -> list[Finding]:
    """Import all of them, in one process as training does; one that kills it is named and the rest go on in another."""
    findings: list[Finding] = []
    while len(findings) < len(requirements):
        rest = requirements[len(findings) :]
        name = distribution(rest[0])
        found = ask(name, f"{__name__}:each", *rest, fix=install(rest[0]), timeout=timeout)
        if found[-1].name == name and len(found) > 1:  # the last line is about the one after those that answered
            found[-1] = found[-1]._replace(name=distribution(rest[len(found) - 1]), fix=install(rest[len(found) - 1]))
        findings += found[: len(rest)]
    return findings


def each(*requirements: str) -> Iterator[Finding]:
    """One finding for each requirement."""
    from packaging.requirements import Requirement

    for line in requirements:
        wish, name = Requirement(line), distribution(line)
        if wish.marker is not None and not wish.marker.evaluate():
            yield Finding(name, "ok", f"not needed here ({wish.marker})")
            continue
        begin = time.perf_counter()
        try:
            importlib.import_module(module_of(name))
            have = metadata.version(name)
        except Exception as error:
            words = " ".join(str(error).split())[:200]
            yield Finding(name, "missing", f"{type(error).__name__}: {words}", install(line))
            continue
        found = f"{have}, {time.perf_counter() - begin:.1f} s"
        if wish.specifier.contains(have, prereleases=True):
            yield Finding.of(name, found)
        else:
            yield Finding.of(name, f"{found}, but {wish.specifier} is asked for", install(line))


def extra(name: str, *requirements: str) -> Iterator[Finding]:
    """Whether what an extra brings is installed; it is not imported."""
    found = {package: version(package) for package in map(distribution, requirements)}
    lacking = ", ".join(package for package, have in found.items() if have is None)
    if lacking:
        yield _optional(f"[{name}]", f"without {lacking}", f"pip install '{DISTRIBUTION}[{name}]'")
    else:
        yield Finding.of(f"[{name}]", ", ".join(f"{p} {have}" for p, have in found.items()), required=False)


def ours() -> Iterator[Finding]:
    """Where the four packages are, and whether they are ours."""
    collision = name_collision()
    if collision:
        yield Finding("packages", "missing", collision, "make a virtual environment without the other one")
    else:
        yield Finding.of("packages", f"{', '.join(PACKAGES)} in {HOME}")


def pygames() -> Iterator[Finding]:
    """pygame and pygame-ce share a folder: the one installed last has overwritten the other's files."""
    there = [name for name in ("pygame", "pygame-ce") if version(name)]
    if len(there) == 2:
        fix = "pip uninstall -y pygame pygame-ce && pip install pygame-ce"
        yield Finding.of("pygame", "pygame and pygame-ce are both installed, in one folder", fix)
    else:
        yield Finding.of("pygame", f"{there[0]} alone" if there else "neither pygame nor pygame-ce is installed")


def pin() -> Iterator[Finding]:
    """nle pins one version of Gymnasium; a resolver may have been made to ignore that."""
    from packaging.requirements import Requirement

    gymnasium, nle = version("gymnasium"), version("nle")
    if not nle or not gymnasium:
        return
    wishes = [Requirement(line) for line in metadata.requires("nle") or []]
    wish = next((w.specifier for w in wishes if w.name == "gymnasium"), None)
    if wish is None or wish.contains(gymnasium):
        yield Finding.of("nle's pin", f"gymnasium {gymnasium} is what nle {nle} asks for")
    else:
        found = f"gymnasium {gymnasium}, but nle {nle} asks for gymnasium{wish}"
        yield Finding.of("nle's pin", found, f"if NetHack misbehaves: pip install 'gymnasium{wish}'")


def launchers() -> Iterator[Finding]:
    """What `runners.sweep` can hand its jobs to, beside this machine."""
    import shutil

    fix = f"pip install '{DISTRIBUTION}[cluster]'"
    ray, submitit, sbatch = version("ray"), version("submitit"), shutil.which("sbatch")
    if ray and util.find_spec("ray"):
        yield Finding.of("launcher ray", f"ray {ray}", required=False)
    else:
        yield _optional("launcher ray", "ray is not installed", fix)
    if submitit and sbatch:
        yield Finding.of("launcher slurm", f"submitit {submitit}, {sbatch}", required=False)
    else:
        lacks = ["submitit is not installed"] * (not submitit) + ["there is no sbatch"] * (not sbatch)
        yield _optional("launcher slurm", " and ".join(lacks), "run it where Slurm is" if submitit else fix)


def _optional(name: str, lacks: str, fix: str) -> Finding:
    return Finding(name, "missing", f"optional; {lacks}", fix, required=False)
