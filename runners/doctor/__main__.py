"""Check what works on this machine, what does not, and how to fix it.

    python -m runners.doctor
    python -m runners.doctor env=Humanoid-v5 root=/scratch/runs judge=http://localhost:8000/v1

Each line: ok, warning, optional or missing; what was found; the fix. Nothing is installed, changed or sent anywhere,
but a few questions to the judge you name. Exit code 0 if nothing that training needs is missing, else 3.
"""

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from lodestar.packages import DISTRIBUTION, read_requirements, version
from lodestar.settings import Settings, setting
from runners.cli.command import Command
from runners.doctor import Finding, ask, checks
from runners.run.config import UsageError, describe_unknown
from runners.run.output import style_stream

# As terminals number them.
STATE_COLOURS = {"ok": 32, "warning": 33, "optional": 2, "missing": 31}
# Of a plain install: name, id, whether it is drawn.
ENVIRONMENTS = (
    ("classic control", "CartPole-v1", True),
    ("minigrid", "MiniGrid-Empty-5x5-v0", True),
)
# Extra -> an environment that it brings, whether it is drawn.
ENVIRONMENT_OF_EXTRA = {
    "robots": ("HalfCheetah-v5", False),
    "driving": ("highway-fast-v0", True),
    "box2d": ("LunarLander-v3", True),
    "nethack": ("NetHackScore-v0", False),
    "crafter": ("lodestar/Crafter-v0", True),
    "minihack": ("minihack:MiniHack-Room-5x5-v0", True),
}
MAX_CHECKS_AT_ONCE = 8
Check = Callable[[], list[Finding]]


@dataclass
class DoctorConfig(Settings):
    """What to look at."""

    env: str = setting("", "an environment to make, step and draw as well")
    judge: str = setting("", "root of a judge's API, to be asked what runs ask: captions, pictures, tokens")
    model: str = setting("", "the judge's model; the first that it names")
    root: str = setting("runs", "where runs are kept")
    only: list[str] = setting([], "some of the checks, as in only=disk,judge")
    timeout: float = setting(60.0, "seconds for a check, after which it is reported as hung", "> 0")
    json: bool = setting(False, "whether to print JSON")


def examine(config: DoctorConfig) -> int:
    """Print what was found; returns the exit code."""
    findings = []
    for found in answers(list(choose(all_checks(config), config.only).values())):
        findings += found
        if not config.json:
            show(found)
    lacking = []
    for finding in findings:
        if finding.state == "missing":
            lacking.append(finding.name)
    if config.json:
        print(json.dumps({"ready": not lacking, "findings": [f._asdict() for f in findings]}, indent=1))
    else:
        print(f"\nnot ready: {', '.join(lacking)}" if lacking else "\nready")
    return 3 if lacking else 0


def all_checks(config: DoctorConfig) -> dict[str, Check]:
    """Everything that is looked at, in the order of the lines."""
    timeout = config.timeout
    by_name: dict[str, Check] = {}

    def add(name: str, target: str, *given: object, **line: Any) -> None:
        by_name[name] = partial(ask, name, f"runners.doctor.{target}", *given, **{"timeout": timeout, **line})

    core, extras = read_requirements()
    add("python", "checks:python")
    add("packages", "checks:own_packages", fix="pip install lodestar-rl")
    by_name["imports"] = partial(checks.imports, core or [DISTRIBUTION], 3 * timeout)
    add("pygame", "checks:pygames")
    add("torch", "checks:torch", fix="pip install 'torch>=2.10'")
    add("cores", "checks:cores", required=False)
    add("disk", "checks:disk", config.root, fix="root=<a folder that you may write to>")
    for name, env_id, drawn in ENVIRONMENTS:
        add(name, "checks:environment", name, env_id, drawn, fix="see the line of its package")
    for name, world in ENVIRONMENT_OF_EXTRA.items():
        fix = f"pip install --force-reinstall 'lodestar-rl[{name}]'"
        if name == "nethack":
            fix = checks.BUILD_NETHACK
        add(name, "checks:extra", name, extras.get(name, []), *world, fix=fix, required=False)
    if version("mujoco"):
        by_name["robots drawn"] = partial(checks.mujoco, timeout)
    if config.env:
        add("env", "checks:environment", "env", config.env, None, fix="python -m runners.list")
    add("video", "checks:video", fix="pip install --force-reinstall imageio-ffmpeg", required=False)
    # Several questions, for which it gets three times as long.
    add("judge", "judge:judge", config.judge, config.model, required=False, timeout=3 * timeout)
    for name, requirements in extras.items():
        if name not in (*ENVIRONMENT_OF_EXTRA, "video", "all", "docs", "test", "dev"):
            add(f"[{name}]", "checks:extra", name, requirements, required=False)
    return by_name


def choose(by_name: dict[str, Check], only: list[str]) -> dict[str, Check]:
    """Those that `only` names; all if it names none."""
    for name in only:
        if name not in by_name:
            raise UsageError(describe_unknown("only", name, by_name))
    chosen = {}
    for name in by_name:
        if not only or name in only:
            chosen[name] = by_name[name]
    return chosen


def answers(selected: list[Check]) -> Iterator[list[Finding]]:
    """Run checks side by side, as many as there are cores; what they found, in their order."""
    with ThreadPoolExecutor(min(checks.usable_cores(), MAX_CHECKS_AT_ONCE)) as pool:
        yield from pool.map(lambda check: check(), selected)


def show(findings: list[Finding]) -> None:
    """Print lines; coloured on a terminal."""
    for finding in findings:
        state = f"{finding.state:<8}"
        if sys.stdout.isatty():
            state = f"\x1b[{STATE_COLOURS[finding.state]}m{state}\x1b[0m"
        print(state, end=" ", file=style_stream(sys.stdout))
        print(f"{finding.name:<20} {finding.found}", flush=True)
        if finding.fix:
            print(f"{'':<29} {finding.fix}", flush=True)


main = Command(DoctorConfig, examine, __doc__, bare=True)

if __name__ == "__main__":
    sys.exit(main())
