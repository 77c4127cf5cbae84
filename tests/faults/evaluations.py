"""A signal at every phase of a run that is evaluated while it trains: no evaluation is lost or doubled.

    python -m tests.faults evaluations

The run's own process is struck at the n-th call of a function, as in `phases`. Then the same command continues it,
is struck in turn at its first row of the log, and continued once more. Rows, best policy, videos and the last
checkpoint are laid beside those of a run that was left alone.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from lodestar.state import pack
from runners.run import checkpoint, progress
from runners.train import main
from tests.faults import Fault, Found
from tests.faults.child import run, warm
from tests.faults.phases import SIGNALS, last, strike
from tests.faults.resume import difference

# Four rollouts of 64 steps. After each an evaluation of 2 episodes of 15 steps, after the second and the last a film.
RUN = ["env=Pendulum-v1", "max_episode_steps=15", "n_envs=2", "agent.n_steps=32", "agent.batch_size=32"]
RUN += ["agent.n_epochs=1", "total_timesteps=256", "checkpoint_every=64", "log_every=64", "device=cpu", "seed=7"]
RUN += ["eval_every=64", "eval_episodes=2", "video_every=128", "video=false", "control=none", "reward=task"]
RUN += ["logger=[]"]
# Once for all processes: they take longer to import than such a run takes.
SLOW_IMPORTS = ("scipy.stats", "runners.evaluation.evaluator", "runners.run.video", "runners.run.curve")


class Place(NamedTuple):
    """The n-th call of a function, at whose start a signal comes; `in_result`: of what the function returns."""

    module: str
    function: str
    nth: int
    in_result: bool = False


STEP = ("runners.run.progress", "Saver._on_step")
UPDATE = ("agents.ppo.agent", "PPO.update")
ROW = ("runners.run.progress", "CSVLog.write")
SAVE = ("runners.run.checkpoint", "_fingerprint")
PICTURE = ("runners.run.video", "draw")
ACTION = ("runners.evaluation.evaluator", "policy")
# Actions 1-30, 31-60, 76-105 and 106-135 belong to the four evaluations, 61-75 and 136-150 to the two films.
ACTIONS = (1, 17, 30, 31, 60, 62, 76, 105, 106, 120, 135, 140)
PLACES = [
    *(Place(*STEP, nth) for nth in (1, 32, 33, 64, 97, 128)),
    *(Place(*UPDATE, nth) for nth in (1, 4)),
    *(Place(*ACTION, nth, in_result=True) for nth in ACTIONS),
    *(Place(*PICTURE, nth) for nth in (3, 18)),
    *(Place(*ROW, nth) for nth in (1, 4)),
    *(Place(*SAVE, nth) for nth in (1, 3)),
]
# The last rollout, and the middle of an evaluation.
QUICK = [Place(*STEP, 128), Place(*ACTION, 17, in_result=True)]


def command(place: Place, number: int, argv: list[str], hold: bool) -> int:
    """The run, struck by a signal; with `hold` every rollout counts as slow, so that the signal cuts it short."""
    if hold:
        progress.SLOW_ROLLOUT_S = 0.0
    strike(place.module, place.function, place.nth, number, in_result=place.in_result)
    return main(argv)


def trial(place: Place, name: str, hold: bool, whole: Path, folder: Path) -> str:
    """Strike a run, continue it to its end, compare it with the whole one; what differs, empty if nothing does."""
    number, expected = SIGNALS[name]
    argv = [*RUN, f"run_dir={folder}"]
    code, printed = run(lambda: command(place, number, argv, hold), folder.with_suffix(".txt"))
    if code != expected:
        return f"it ended with code {code} instead of {expected}: {last(printed)}"
    # Between the first row that it writes and the next save.
    code, printed = run(lambda: command(Place(*ROW, 1), number, argv, hold), folder.with_suffix(".txt"))
    if code not in (expected, 0):
        return f"the second command ended with code {code}: {last(printed)}"
    if code != 0:
        code, printed = run(lambda: main(argv), folder.with_suffix(".txt"))
        if code != 0:
            return f"the third command ended with code {code}: {last(printed)}"
    return compare(whole, folder)


def compare(whole: Path, folder: Path) -> str:
    """What differs between two finished runs; empty if nothing does."""
    gap, where = difference(whole, folder)
    if gap > 0:
        return f"{where} differs by {gap:g}"
    results = [json.loads((place / "result.json").read_text()) for place in (whole, folder)]
    if results[0] != results[1]:
        return "its scores differ"
    if best_policy(whole) != best_policy(folder):
        return f"its best policy is of step {best_policy(folder)[0]}, not {best_policy(whole)[0]}"
    names = [file_names(place) for place in (whole, folder)]
    return f"files differ: {', '.join(sorted(names[0] ^ names[1]))}" if names[0] != names[1] else ""


def best_policy(folder: Path) -> tuple[int, str]:
    """Step and SHA-256 of the weights that evaluated best."""
    found = checkpoint.load(folder / checkpoint.BEST)
    assert found is not None, f"{folder} holds no best policy"
    state, step = found
    digest = hashlib.sha256()
    for key, array in sorted(pack(state)[1].items()):
        digest.update(key.encode())
        digest.update(array.tobytes())
    return step, digest.hexdigest()


def file_names(folder: Path) -> set[str]:
    """Files of a run, but for those whose number depends on how often it was continued."""
    places = (folder, folder / "videos", folder / "checkpoints", folder / checkpoint.BEST)
    children = itertools.chain.from_iterable(place.iterdir() for place in places)
    # A checkpoint that was written twice has a number behind its step.
    return {re.sub(r"(/step_\d{12})_\d+$", r"\1", str(child.relative_to(folder))) for child in children}


def evaluations(folder: Path, quick: bool) -> Found:
    """Every place, by SIGTERM and by SIGKILL, and by SIGTERM with rollouts that a signal cuts short."""
    warm()
    for module in SLOW_IMPORTS:
        import_module(module)
    whole = folder / "whole"
    code, printed = run(lambda: main([*RUN, f"run_dir={whole}"]), folder / "whole.txt")
    assert code == 0, last(printed)
    if quick:
        trials = [(place, "SIGTERM", False) for place in QUICK]
    else:
        trials = [(place, name, False) for place, name in itertools.product(PLACES, SIGNALS)]
        trials += [(place, "SIGTERM", True) for place in PLACES if place.function == STEP[1]]
    wrong = []
    for place, name, hold in trials:
        told = trial(place, name, hold, whole, folder / "struck")
        title = f"{name} at call {place.nth} of {place.function}{' of a slow rollout' if hold else ''}"
        print(f"{title}: {told or 'the same end'}", flush=True)
        if told:
            wrong.append(f"{title}: {told}")
        shutil.rmtree(folder / "struck", ignore_errors=True)
    words = "; ".join(wrong) or "no row, best policy or video differs from the run that was left alone"
    figures = {"evaluations_struck": float(len(trials)), "evaluations_lost": float(len(wrong))}
    return Found(len(trials), len(wrong), figures, words)


FAULTS = [
    Fault(
        "evaluations",
        "a signal at any phase of a run that is evaluated and filmed while it trains, and again after the next row",
        "No evaluation, row, video or best policy is lost or doubled (26 places, SIGTERM and SIGKILL).",
        evaluations,
    ),
]
