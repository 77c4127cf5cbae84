"""`lodestar VERB ...` is `python -m runners.VERB ...`: the same code, loaded when its verb is given."""

import sys
from importlib import import_module
from pathlib import Path

from runners.cli.output import lasting_output
from runners.run.packages import DISTRIBUTION, name_collision, version

HOME = Path(__file__).resolve().parents[1]


def main(argv: list[str] | None = None) -> int:
    """Run a command line, that of this process by default; returns the exit code."""
    verb, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if collision := name_collision():
        return _refused(collision)
    known = verbs()
    if verb in known:
        sys.argv[1:] = rest
        return import_module(known[verb]).main()
    with lasting_output():
        if verb == "__complete":  # what the scripts of `lodestar completion` call
            from runners.cli.complete import complete

            print("\n".join(complete(" ".join(rest), known)))
            return 0
        if verb == "completion":
            from runners.cli.complete import SCRIPTS

            if len(rest) != 1 or rest[0] not in SCRIPTS:
                return _refused("give a shell: lodestar completion bash, or lodestar completion zsh")
            print(SCRIPTS[rest[0]].read_text().strip())
            return 0
        if verb == "--version":
            print(f"lodestar {version(DISTRIBUTION) or 'of a checkout'}")
            return 0
        if verb in ("", "-h", "--help", "help"):
            print(text())
            return 0 if verb else 2
        from runners.run.config import nearest

        near = nearest(verb, known)
        hint = f"did you mean lodestar {near}?" if near else f"give one of {', '.join(known)}"
        return _refused(f"lodestar {verb} is unknown; {hint}")


def _refused(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


def verbs() -> dict[str, str]:
    """Verb -> the module that it runs: every file and package here that `python -m` runs."""
    files = {path.stem: f"runners.{path.stem}" for path in HOME.glob("[a-z]*.py")}
    packages = {path.parent.name: f"runners.{path.parent.name}.__main__" for path in HOME.glob("*/__main__.py")}
    return dict(sorted({**files, **packages}.items()))


def text() -> str:
    """What `lodestar --help` prints: a line for each verb, the first of its file."""
    lines = []
    for verb, module in verbs().items():
        path = HOME.parent / (module.replace(".", "/") + ".py")
        lines.append(f"  {verb:<12}{path.read_text().split(chr(34) * 3)[1].splitlines()[0].rstrip('.')}")
    return "\n".join(
        [
            "usage: lodestar VERB [key=value ...]",
            "",
            *lines,
            "",
            "lodestar VERB --help    the keys of a verb",
            "lodestar list           environments, rewards, agents and presets",
            "lodestar completion bash|zsh    prints what completes verbs, keys, names and values on TAB",
        ]
    )
