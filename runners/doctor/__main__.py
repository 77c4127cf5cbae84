"""Look at this machine and say what works, what does not, and what to do about it.

    python -m runners.doctor
    python -m runners.doctor env=Humanoid-v5 root=/scratch/runs judge=http://localhost:8000/v1

Each line: ok, warning or missing; what was found; the fix. Nothing is installed, changed or sent anywhere, but one
question to the judge you name. Exit code 0 if nothing that training needs is missing, else 3.
keys:
    env=      an environment to be made, stepped and drawn as well
    judge=    the API's root of a judge, to be asked one question; model= its model (the first one it names)
    root=     where runs are kept (runs)
    only=     some of the checks, as in only=disk,judge
    timeout=  seconds for a check, after which it is a line that says so (60)
    json=     true for JSON
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata

from runners.doctor import Finding, ask, packages, worlds
from runners.run.config import UsageError, unknown

KEYS = {"env": "", "judge": "", "model": "", "root": "runs", "only": "", "timeout": "60", "json": "false"}
COLOURS = {"ok": "green", "warning": "yellow", "missing": "red"}
WORLDS = (  # name, id, whether it is drawn
    ("classic control", "CartPole-v1", True),
    ("box2d", "LunarLander-v3", True),
    ("minigrid", "MiniGrid-Empty-5x5-v0", True),
    ("highway", "highway-fast-v0", True),
    ("mujoco", "HalfCheetah-v5", False),
    ("nethack", "NetHackScore-v0", False),
)
OPTIONAL_WORLDS = (("crafter", "lodestar/Crafter-v0"), ("minihack", "minihack:MiniHack-Room-5x5-v0"))
Check = Callable[[], list[Finding]]


def main(argv: list[str] | None = None) -> int:
    """Print what was found; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if any(argument in ("-h", "--help") for argument in arguments):
        print(__doc__)
        return 0
    try:
        options = parsed(arguments)
        chosen = choose(checks(options), options["only"])
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    findings = []
    for found in examine(list(chosen.values())):
        findings += found
        if options["json"] != "true":
            show(found)
    lacking = [finding for finding in findings if finding.state == "missing" and finding.required]
    if options["json"] == "true":
        print(json.dumps({"ready": not lacking, "findings": [f._asdict() for f in findings]}, indent=1))
    else:
        names = ", ".join(finding.name for finding in lacking)
        print(f"\nnot ready: {names}" if lacking else "\nready: nothing that training needs is missing")
    return 3 if lacking else 0


def parsed(arguments: list[str]) -> dict[str, str]:
    """The options.

    Raises:
        UsageError: for an unknown key, or a time that is none.
    """
    options = dict(KEYS)
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in options:
            raise UsageError(unknown("key", key, options))
        options[key] = value
    try:
        sensible = float(options["timeout"]) > 0
    except ValueError:
        sensible = False
    if not sensible:
        raise UsageError(f"timeout={options['timeout']} is no time; give seconds, more than 0")
    if options["json"] not in ("true", "false"):
        raise UsageError(f"json={options['json']} is neither true nor false")
    return options


def checks(options: dict[str, str]) -> dict[str, Check]:
    """Everything that is looked at, in the order of the lines."""
    timeout = float(options["timeout"])

    def alone(name: str, target: str, *given: object, fix: str = "", required: bool = True) -> Check:
        return partial(ask, name, f"runners.doctor.{target}", *given, fix=fix, required=required, timeout=timeout)

    try:
        core, extras = packages.wanted()
    except metadata.PackageNotFoundError:
        core, extras = ["lodestar-rl"], {}
    made: dict[str, Check] = {
        "python": alone("python", "machine:python"),
        "packages": alone("packages", "packages:house", fix="pip install lodestar-rl"),
        "imports": partial(packages.imports, core, 3 * timeout),
        "pygame": alone("pygame", "packages:pygames"),
        "pin": alone("nle's pin", "packages:pin", required=False),
        "torch": alone("torch", "machine:torch", fix="pip install 'torch>=2.10'"),
        "cores": alone("cores", "machine:cores", required=False),
        "disk": alone("disk", "machine:disk", options["root"], fix="root=<a folder that you may write to>"),
    }
    for name, env_id, drawn in WORLDS:
        if name != "nethack" or sys.platform != "win32":
            fix = worlds.BUILD if name == "nethack" else "see the line of its package"
            made[name] = alone(name, "worlds:world", name, env_id, drawn, fix=fix)
    made["mujoco drawn"] = partial(worlds.mujoco, timeout)
    for name, env_id in OPTIONAL_WORLDS:
        fix = f"optional: pip install 'lodestar-rl[{name}]'"
        made[name] = alone(name, "worlds:world", name, env_id, None, False, fix=fix, required=False)
    if options["env"]:
        made["env"] = alone("env", "worlds:world", "env", options["env"], None, fix="python -m runners.list")
    made |= {
        "video": alone("video", "worlds:video", fix="pip install imageio-ffmpeg", required=False),
        "clip": alone("CLIP", "models:shipped", required=False),
        "cache": alone("CLIP's cache", "models:cached", required=False),
        "judge": alone("judge", "models:judge", options["judge"], options["model"], required=False),
        "launchers": alone("launchers", "packages:launchers", required=False),
    }
    names = [name for name in extras if name != "dev"]
    return made | {f"[{n}]": alone(f"[{n}]", "packages:extra", n, *extras[n], required=False) for n in names}


def choose(made: dict[str, Check], only: str) -> dict[str, Check]:
    """Those that `only` names, separated by commas; all for "".

    Raises:
        UsageError: for a name that is none.
    """
    for name in only.split(",") if only else []:
        if name not in made:
            raise UsageError(unknown("only", name, made))
    return {name: check for name, check in made.items() if not only or name in only.split(",")}


def examine(made: list[Check]) -> Iterator[list[Finding]]:
    """Run checks side by side, as many as there are cores; what they found, in their order."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = ThreadPoolExecutor(min(usable, 8))
    try:
        for future in [pool.submit(check) for check in made]:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def show(findings: list[Finding]) -> None:
    """Print lines; coloured on a terminal, what is missing and not required faintly."""
    for finding in findings:
        lines = f"{finding.name:<20} {finding.found}" + (f"\n{'':<29} {finding.fix}" if finding.fix else "")
        colour = COLOURS[finding.state] if finding.required or finding.state != "missing" else "dim"
        if sys.stdout.isatty():
            try:
                from rich.console import Console
                from rich.text import Text

                Console().print(Text.assemble((f"{finding.state:<8}", colour), " ", lines), soft_wrap=True)
                continue
            except ImportError:
                pass
        print(f"{finding.state:<8} {lines}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
