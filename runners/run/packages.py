"""What this distribution is made of: its packages, what it requires, and what installs a missing package.

Standard library only, so that it works where everything else is missing.
"""

import base64
import hashlib
import itertools
import re
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
PACKAGES = ("agents", "envs", "lodestar", "rewards", "runners")
DISTRIBUTION = "lodestar-rl"
# Distribution -> module, where they differ by more than a dash.
MODULE_NAMES = {
    "pygame-ce": "pygame",
    "box2d": "Box2D",
    "open_clip_torch": "open_clip",
    "hydra-core": "hydra",
    "scikit-learn": "sklearn",
}


def name_collision() -> str | None:
    """One sentence if one of our package names belongs to another project (`openai-agents` installs an `agents`)."""
    for name in PACKAGES:
        place = _place_of(name)
        if place is None:
            return f"the package {name!r} is missing beside {HOME}; install {DISTRIBUTION} again"
        # Either the package's __init__.py, or the folder of one that has none.
        home = place.parent.parent if place.suffix else place.parent
        if home != HOME:
            return (
                f"the package {name!r} is {place.parent}, which is not part of {DISTRIBUTION} in {HOME}; "
                "use a separate environment for the other one"
            )
    return _overwritten()


def _place_of(package: str) -> Path | None:
    """The file of a package, or its folder if it has no `__init__.py`; None if there is none."""
    spec = util.find_spec(package)
    if spec is None:
        return None
    origin = spec.origin or next(iter(spec.submodule_search_locations or []), None)
    return None if origin is None else Path(origin).resolve()


def _overwritten() -> str | None:
    """The same where the other project was installed over ours, so that its `__init__.py` lies in our folder."""
    with suppress(metadata.PackageNotFoundError):
        ours = metadata.distribution(DISTRIBUTION)
        # Of a checkout there is no list of files.
        if Path(str(ours.locate_file(""))).resolve() != HOME:
            return None
        record = ours.read_text("RECORD") or ""
        for name in PACKAGES:
            file = f"{name}/__init__.py"
            listed = re.search(rf"^{file},sha256=([\w-]+)", record, re.MULTILINE)
            if listed and listed[1] != _record_digest(HOME / file):
                return (
                    f"the package {name!r} of {DISTRIBUTION} in {HOME} was overwritten by {_other_owners(file)}; "
                    f"install {DISTRIBUTION} in an environment without it"
                )
    return None


def _record_digest(path: Path) -> str:
    """A file's SHA-256 as it stands in a wheel's RECORD."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _other_owners(file: str) -> str:
    """The other distributions that list a file as theirs."""
    owners = set()
    for other in metadata.distributions():
        if f"\n{file}," in f"\n{other.read_text('RECORD')}":
            owners.add(other.name)
    return " and ".join(sorted(owners - {DISTRIBUTION})) or "something else"


def read_requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Requirements, and those of each extra, as they were installed; nothing where nothing was."""
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    if version(DISTRIBUTION) is None:
        return core, extras
    for line in metadata.requires(DISTRIBUTION) or []:
        marker = re.search(r"""(;| and )\s*extra\s*==\s*['"]([\w-]+)['"]""", line)
        if marker is None:
            core.append(line)
        else:
            extras.setdefault(marker[2], []).append(line.replace(marker[0], ""))
    return core, extras


def distribution(requirement: str) -> str:
    """Its name: of `gymnasium[mujoco]>=1.2,<2` it is `gymnasium`."""
    return re.split(r"[^\w.-]", requirement)[0]


def module_of(name: str) -> str:
    """The module that a distribution installs."""
    return MODULE_NAMES.get(name, name.replace("-", "_"))


def install(requirement: str) -> str:
    """The command that installs a requirement."""
    return f"pip install '{requirement.partition(';')[0].strip()}'"


def install_module(module: str) -> str:
    """The command that installs a module: one of our requirements, one that an extra brings, or another."""
    core, extras = read_requirements()
    names = map(distribution, itertools.chain(core, *extras.values()))
    ours = {module_of(name): name for name in names}
    package = ours.get(module, module.replace("_", "-"))
    for line in core:
        if distribution(line) == package:
            return install(line)
    for extra, lines in extras.items():
        if package in map(distribution, lines):
            return install(f"{DISTRIBUTION}[{extra}]")
    return install(package)


def version(name: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
