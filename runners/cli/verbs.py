"""`lodestar VERB ...` is `python -m runners.VERB ...`: the same code, loaded when its verb is given."""

import sys
from importlib import import_module
from pathlib import Path

from lodestar.packages import DISTRIBUTION, version
from runners.run.output import lasting_output
from runners.run.packages import name_collision

RUNNERS_FOLDER = Path(__file__).resolve().parents[1]
HELP_END = """
lodestar VERB --help    the keys of a verb
lodestar list           environments, rewards, agents and presets
lodestar completion bash|zsh    prints what completes verbs, keys, names and values on TAB"""


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    verb, *arguments = sys.argv[1:] or [""]
    collision = name_collision()
    if collision:
        return _refuse(collision)
    modules = verbs()
    if verb in modules:
        sys.argv[1:] = arguments
        return import_module(modules[verb]).main()
    with lasting_output():
        # The scripts of `lodestar completion` call this verb.
        if verb == "__complete":
            from runners.cli.complete import complete

            print("\n".join(complete(" ".join(arguments), modules)))
            return 0
        if verb == "completion":
            from runners.cli.complete import SCRIPTS

            if len(arguments) != 1 or arguments[0] not in SCRIPTS:
                return _refuse("give a shell: lodestar completion bash, or lodestar completion zsh")
            print(SCRIPTS[arguments[0]].read_text().strip())
            return 0
        if verb == "--version":
            print(f"lodestar {version(DISTRIBUTION) or 'of a checkout'}")
            return 0
        if verb in ("", "-h", "--help", "help"):
            print(text())
            return 0 if verb else 2
        from runners.run.config import nearest_name

        near = nearest_name(verb, modules)
        hint = f"did you mean lodestar {near}?" if near else f"give one of {', '.join(modules)}"
        return _refuse(f"lodestar {verb} is unknown; {hint}")


def _refuse(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def verbs() -> dict[str, str]:
    """Verb -> the module that it runs: every file and package here that `python -m` runs."""
    modules = {}
    for path in RUNNERS_FOLDER.glob("[a-z]*.py"):
        modules[path.stem] = f"runners.{path.stem}"
    for path in RUNNERS_FOLDER.glob("*/__main__.py"):
        modules[path.parent.name] = f"runners.{path.parent.name}.__main__"
    return dict(sorted(modules.items()))


def text() -> str:
    """What `lodestar --help` prints: a line for each verb, the first of its file."""
    lines = ["usage: lodestar VERB [key=value ...]", ""]
    for verb, module in verbs().items():
        path = RUNNERS_FOLDER.parent / (module.replace(".", "/") + ".py")
        docstring = path.read_text().split('"""')[1]
        lines.append(f"  {verb:<12}{docstring.splitlines()[0].rstrip('.')}")
    return "\n".join([*lines, HELP_END])
