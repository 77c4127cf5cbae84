"""What this distribution requires, by extra, and the command that installs what is missing.

Standard library only, so that it works where everything else is missing.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

DISTRIBUTION = "lodestar-rl"
# Distribution -> module, where they differ by more than a dash.
MODULE_NAMES = {
    "pygame-ce": "pygame",
    "box2d": "Box2D",
    "open_clip_torch": "open_clip",
    "hydra-core": "hydra",
    "scikit-learn": "sklearn",
    "pyyaml": "yaml",
}


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


def _commands() -> dict[str, str]:
    """The command for each distribution that we require, or that an extra brings."""
    core, extras = read_requirements()
    commands = {}
    for line in core:
        commands[distribution(line)] = install(line)
    for extra, lines in extras.items():
        for name in map(distribution, lines):
            commands.setdefault(name, install(f"{DISTRIBUTION}[{extra}]"))
    return commands


def package_of(module: str) -> str:
    """The distribution that a module comes from, as far as our requirements tell."""
    for name in _commands():
        if module_of(name) == module:
            return name
    return module.replace("_", "-")


def install_module(module: str) -> str:
    """The command that installs a module: one of our requirements, one that an extra brings, or another."""
    package = package_of(module)
    return _commands().get(package, install(package))


def version(name: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def install_extra(extra: str) -> str:
    """The command that installs an extra; "" where all that it brings is installed."""
    _, extras = read_requirements()
    packages = map(distribution, extras.get(extra, []))
    if extra in extras and all(map(version, packages)):
        return ""
    return install(f"{DISTRIBUTION}[{extra}]")


@contextmanager
def explain_missing(what: str) -> Iterator[None]:
    """Turn a missing module, or what Gymnasium says of one, into one sentence: what needs it, and its command."""
    try:
        yield
    except Exception as error:
        missing = error.__cause__ if type(error).__name__ == "DependencyNotInstalled" else error
        # Any other error says itself what is wrong.
        if not isinstance(missing, ModuleNotFoundError) or missing.name is None:
            raise
        module = missing.name.partition(".")[0]
        sentence = f"{what} needs the package {package_of(module)} ({missing}); {install_module(module)}"
        raise ImportError(sentence) from None
