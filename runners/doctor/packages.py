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
            yield Finding(name, "ok", found)
        else:
            yield Finding(name, "warning", f"{found}, but {wish.specifier} is asked for", install(line))


def extra(name: str, *requirements: str) -> Iterator[Finding]:
    """Whether what an extra brings is installed; it is not imported."""
    found, lacking = [], []
    for line in requirements:
        package = distribution(line)
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            lacking.append(package)
    fix = f"pip install '{DISTRIBUTION}[{name}]'"
    if lacking:
        yield Finding(f"[{name}]", "missing", f"optional; without {', '.join(lacking)}", fix, required=False)
    else:
        yield Finding(f"[{name}]", "ok", ", ".join(found), required=False)


def house() -> Iterator[Finding]:
    """Where the four packages are, and whether they are ours."""
    collision = name_collision()
    if collision:
        yield Finding("packages", "missing", collision, "make a virtual environment without the other one")
    else:
        yield Finding("packages", "ok", f"{', '.join(PACKAGES)} in {HOME}")


def pygames() -> Iterator[Finding]:
    """pygame and pygame-ce share a folder: whoever was installed last has overwritten the other's files."""
    there = [name for name in ("pygame", "pygame-ce") if version(name)]
    if len(there) == 2:
        fix = "pip uninstall -y pygame pygame-ce && pip install pygame-ce"
        yield Finding("pygame", "warning", "pygame and pygame-ce are both installed, in one folder", fix)
    else:
        yield Finding("pygame", "ok", f"{there[0]} alone" if there else "neither pygame nor pygame-ce is installed")


def pin() -> Iterator[Finding]:
    """nle pins one version of Gymnasium, which a resolver that was told otherwise ignores."""
    from packaging.requirements import Requirement

    gymnasium = version("gymnasium")
    if not version("nle") or not gymnasium:
        return
    wishes = [Requirement(line) for line in metadata.requires("nle") or []]
    wish = next((w.specifier for w in wishes if w.name == "gymnasium"), None)
    if wish is None or wish.contains(gymnasium):
        yield Finding("nle's pin", "ok", f"gymnasium {gymnasium} is what nle {version('nle')} asks for")
    else:
        found = f"gymnasium {gymnasium}, but nle {version('nle')} asks for gymnasium{wish}"
        yield Finding("nle's pin", "warning", found, f"if NetHack misbehaves: pip install 'gymnasium{wish}'")


def launchers() -> Iterator[Finding]:
    """What `runners.sweep` can hand its jobs to, beside this machine."""
    import shutil

    ray, submitit, sbatch = version("ray"), version("submitit"), shutil.which("sbatch")
    if ray and util.find_spec("ray"):
        yield Finding("launcher ray", "ok", f"ray {ray}", required=False)
    else:
        fix = f"pip install '{DISTRIBUTION}[cluster]'"
        yield Finding("launcher ray", "missing", "optional; ray is not installed", fix, required=False)
    if submitit and sbatch:
        yield Finding("launcher slurm", "ok", f"submitit {submitit}, {sbatch}", required=False)
    else:
        lacks = [
            n for n, there in (("submitit is not installed", submitit), ("there is no sbatch", sbatch)) if not there
        ]
        fix = "run it where Slurm is" if submitit else f"pip install '{DISTRIBUTION}[cluster]'"
        yield Finding("launcher slurm", "missing", f"optional; {' and '.join(lacks)}", fix, required=False)
