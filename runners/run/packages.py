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
# distribution -> module, where they differ by more than a dash
IMPORTS = {"pygame-ce": "pygame", "box2d": "Box2D", "open_clip_torch": "open_clip"}
IMPORTS |= {"hydra-core": "hydra", "scikit-learn": "sklearn"}


def name_collision() -> str | None:
    """One sentence if one of our package names belongs to another project (`openai-agents` installs an `agents`)."""
    for name in PACKAGES:
        spec = util.find_spec(name)
        origin = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or []), None)
        if origin is None:
            return f"the package {name!r} is missing beside {HOME}; install {DISTRIBUTION} again"
        place = Path(origin).resolve()
        if (place.parent.parent if place.suffix else place.parent) != HOME:
            return (
                f"the package {name!r} is {place.parent}, which is not part of {DISTRIBUTION} in {HOME}; "
                "use a separate environment for the other one"
            )
    return _overwritten()


def _overwritten() -> str | None:
    """The same where the other project was installed over ours, so that its `__init__.py` lies in our folder."""
    with suppress(metadata.PackageNotFoundError):
        mine = metadata.distribution(DISTRIBUTION)
        wheel = Path(str(mine.locate_file(""))).resolve() == HOME
        for name in PACKAGES if wheel else ():  # a checkout has no list of files
            file = f"{name}/__init__.py"
            listed = re.search(rf"^{file},sha256=([\w-]+)", mine.read_text("RECORD") or "", re.MULTILINE)
            digest = base64.urlsafe_b64encode(hashlib.sha256((HOME / file).read_bytes()).digest()).decode().rstrip("=")
            if listed and listed[1] != digest:
                others = [d.name for d in metadata.distributions() if f"\n{file}," in f"\n{d.read_text('RECORD')}"]
                by = " and ".join(sorted({*others} - {DISTRIBUTION})) or "something else"
                return (
                    f"the package {name!r} of {DISTRIBUTION} in {HOME} was overwritten by {by}; "
                    f"install {DISTRIBUTION} in an environment without it"
                )
    return None


def required() -> tuple[list[str], dict[str, list[str]]]:
    """Requirements, and those of each extra, as they were installed; nothing where nothing was."""
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in (metadata.requires(DISTRIBUTION) or []) if version(DISTRIBUTION) else []:
        found = re.search(r"""(;| and )\s*extra\s*==\s*['"]([\w-]+)['"]""", line)
        if found is None:
            core.append(line)
        else:
            extras.setdefault(found[2], []).append(line.replace(found[0], ""))
    return core, extras


def distribution(requirement: str) -> str:
    """Its name: of `gymnasium[mujoco]>=1.2,<2` it is `gymnasium`."""
    return re.split(r"[^\w.-]", requirement)[0]


def module_of(name: str) -> str:
    """The module that a distribution installs."""
    return IMPORTS.get(name, name.replace("-", "_"))


def install(requirement: str) -> str:
    """The command that installs a requirement."""
    return f"pip install '{requirement.partition(';')[0].strip()}'"


def install_module(module: str) -> str:
    """The command that installs a module: one of our requirements, one that an extra brings, or another."""
    core, extras = required()
    lines = itertools.chain(core, *extras.values())
    mine = {module_of(name): name for name in map(distribution, lines)}
    package = mine.get(module, module.replace("_", "-"))
    wishes = [line for line in core if distribution(line) == package]
    wishes += [f"{DISTRIBUTION}[{name}]" for name, lines in extras.items() if package in map(distribution, lines)]
    return install(wishes[0] if wishes else package)


def version(name: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
