"""A kill at every phase of a run: the same command continues it to the same end.

The process of a run kills itself, for good or by SIGTERM, in the middle of a phase; where that is stands in `PHASES`.
The same command follows in a process of its own, with nothing wrapped. Then the run is laid beside one that nothing
happened to: its checkpoint, its log and its scores, number by number; pictures and the control's score must be there.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from filelock import Timeout

from runners.run.folder import LOG, lock_of
from runners.train import main
from tests.faults import Fault, Found
from tests.faults.child import run, train, until, warm
from tests.faults.resume import AGENTS, difference

# phase -> the function that is struck at the start of its n-th call, and n
PHASES: dict[str, tuple[str, str, int]] = {
    "set-up": ("runners.train", "build", 1),
    "first step": ("runners.run.progress", "Saver._on_step", 1),
    "save": ("runners.run.checkpoint", "_fingerprint", 3),  # of the second save: two files are written, nothing renamed
    "last step": ("runners.run.progress", "Saver.finish", 1),
    "evaluation": ("runners.evaluation.play", "policy", 5),  # the fifth action that the policy is asked for
    "video": ("runners.run.video", "draw", 5),  # the fifth picture, so that there is half a file
    "control": ("runners.run.child", "Control.result", 1),  # the run waits for its control
    "report": ("runners.train", "Work.end", 1),  # everything is written but that the run is finished
}
SIGNALS = {"SIGTERM": (signal.SIGTERM, 143), "SIGKILL": (signal.SIGKILL, -9)}
WORLD = ("env=Pendulum-v1", "max_episode_steps=30", "eval_episodes=2", "video=true", "seed=7", "device=cpu")
CONTROLLED = ("reward=oni", "reward.oni.judge=rules", "reward.oni.clock=steps", "reward.oni.delay=40", "control=auto")
PLAIN = ("reward=[task,rnd]", "control=none")


def command(agent: str, phase: str) -> list[str]:
    """A short run of an agent, beside a control if that is what the phase is about."""
    options, _, half = AGENTS[agent]
    steps = [f"total_timesteps={2 * half}", f"checkpoint_every={half // 2}", f"log_every={half // 2}"]
    return [*WORLD, f"agent={agent}", *options, *(CONTROLLED if phase == "control" else PLAIN), *steps]


def struck(phase: str, number: int, argv: list[str]) -> int:
    """The run, whose own process gets a signal in the middle of a phase."""

    def wait(waiting: Any) -> None:
        # The control is in the middle of its own run.
        until((waiting.run / "status.json").exists)

    strike(*PHASES[phase], number, in_result=phase == "evaluation", wait=wait if phase == "control" else None)
    return main(argv)


def strike(
    module: str,
    path: str,
    nth: int,
    number: int,
    *,
    in_result: bool = False,
    wait: Callable[[Any], Any] | None = None,
) -> None:
    """Let this process signal itself at the start of the n-th call of a function.

    With `in_result` the calls counted are those of what the function returns; `wait` gets the call's first argument.
    """
    *owners, name = path.split(".")
    owner: Any = import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    calls = itertools.count(1)

    def striking(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if next(calls) == nth:
                if wait is not None:
                    wait(arguments[0])
                os.kill(os.getpid(), number)
            return original(*arguments, **options)

        return wrapped

    original = getattr(owner, name)
    if in_result:
        setattr(owner, name, lambda *given, **options: striking(original(*given, **options)))
    else:
        setattr(owner, name, striking(original))


def trial(agent: str, phase: str, name: str, whole: Path, folder: Path) -> str:
    """Strike a run, continue it, compare it with the one that was left alone; what differs, empty if nothing does."""
    number, expected = SIGNALS[name]
    argv = [*command(agent, phase), f"run_dir={folder}"]
    code, printed = run(lambda: struck(phase, number, argv), folder.with_suffix(".txt"))
    if code != expected:
        return f"it ended with code {code} instead of {expected}: {last(printed)}"
    code, printed = run(lambda: main(argv), folder.with_suffix(".txt"))
    if code != 0:
        return f"the second command ended with code {code}: {last(printed)}"
    if (state := json.loads((folder / "status.json").read_text())["state"]) != "finished":
        return f"its status is {state}"
    gap, where = difference(whole, folder)
    if gap > 0:
        return f"{where} differs by {gap:g}"
    scores = [json.loads((place / "result.json").read_text()) for place in (whole, folder)]
    if scores[0] != scores[1]:
        return f"its scores of {', '.join(scores[1])} are not those of {', '.join(scores[0])}"
    names = [{path.name for path in place.iterdir()} for place in (whole, folder)]
    names[1] |= {path.name for path in (folder / "checkpoints").glob("tmp-*")}  # of a save that was cut short
    return f"files differ: {', '.join(names[0] ^ names[1])}" if names[0] != names[1] else ""


def last(printed: str) -> str:
    """The last line."""
    return (printed.strip().splitlines() or ["nothing"])[-1]


def phases(folder: Path, quick: bool) -> Found:
    """Every phase, both signals, three agents."""
    warm()
    agents = ("ppo",) if quick else ("ppo", "sac", "dyna")
    tried, wrong, wholes = 0, [], dict[tuple[str, bool], Path]()
    for agent, phase, name in itertools.product(agents, PHASES, SIGNALS):
        key = (agent, phase == "control")
        if key not in wholes:
            wholes[key] = folder / f"{agent}-{'controlled' if key[1] else 'whole'}"
            argv = [*command(agent, phase), f"run_dir={wholes[key]}"]
            code, printed = run(lambda argv=argv: main(argv), folder / "whole.txt")  # type: ignore[misc]
            assert code == 0, last(printed)
        place = folder / f"{agent}-{phase}-{name}".replace(" ", "-")
        told = trial(agent, phase, name, wholes[key], place)
        print(f"{agent:<5} {phase:<11} {name}: {told or 'the same end'}", flush=True)
        tried += 1
        wrong += [f"{agent}, {name} in the phase {phase}: {told}"] if told else []
        shutil.rmtree(place, ignore_errors=True)
    words = "; ".join(wrong) or "not one number, file or score differs from the run that was left alone"
    return Found(tried, len(wrong), {"phases_tried": tried, "phases_resumed": tried - len(wrong)}, words)


def workers_set_up(folder: Path, quick: bool) -> Found:
    """A run whose workers have made their environments is killed before it begins; alone, and as a sweep's job."""
    warm()
    failed = []
    for kind in ("alone", "job of a sweep"):
        place = folder / kind.replace(" ", "-")
        place.mkdir()
        if kind != "alone":
            (place / LOG).touch()
        options = {"run_dir": place, "backend": "workers", "total_timesteps": 128}

        def killed(options: dict[str, Any] = options) -> int:
            strike("runners.train", "Work.begin", 1, signal.SIGKILL)
            return train(**options)

        code, _ = run(killed, folder / "first.txt")
        # The lock is free once the last of its workers, which share it, has ended as well.
        until(lambda place=place: is_unlocked(place))  # type: ignore[misc]
        again, printed = run(lambda options=options: train(**options), folder / "second.txt")  # type: ignore[misc]
        if (code, again) != (-signal.SIGKILL, 0):
            failed.append(f"{kind}: codes {code} and {again}, {last(printed)}")
    return Found(2, len(failed), {}, "; ".join(failed) or "the same command began them")


def is_unlocked(folder: Path) -> bool:
    """Whether no process holds the lock of a run's folder."""
    try:
        with lock_of(folder).acquire(timeout=0):
            return True
    except Timeout:
        return False


FAULTS = [
    Fault(
        "killed-with-workers",
        "a run with run_dir= and backend=workers is killed in its set-up, alone and as a job of a sweep",
        "The same command begins it.",
        workers_set_up,
    ),
    Fault(
        "phases",
        "a run is killed in its set-up, first step, save, last step, evaluation, video, control or report",
        "The same command continues it to the same end, 48 of 48 (8 phases, SIGTERM and SIGKILL, PPO, SAC, dyna).",
        phases,
    ),
]
