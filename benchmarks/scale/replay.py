"""SAC on the actors of a local Ray cluster, beside the same run in one process, on HalfCheetah.

    cluster_sac_over_best       frames a second of two actors, lag=1, over those of one process or its workers, the
                                faster of them, an update a frame; needs two free cores
    cluster_sac_over_best_few   the same with an update for twenty frames
    cluster_sac_bitwise         environment steps after which a run on one actor, lag=0, has the weights of the local
                                run, to the last bit; an error if it has not
    replay_act_us               CPU microseconds of an actor for a frame, messages included
    replay_store_us             of its learner for storing a frame, messages included
    replay_update_us            of its learner for an update
    replay_frame_bytes          bytes of a frame from an actor to the learner
    replay_100_frames           frames a second that one learner takes from a hundred actors, an update a frame
    replay_100_updates          updates for a frame at which a hundred actors are all busy; 0 if none are left

Ratios are medians by the wall's clock. The times of `service` are CPU time, so one core does.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.scale.cluster import finish_flights, local_cluster, made, require_equal_weights
from benchmarks.speed.measure import interleave, ratio
from runners.run.build import Parts

TASK = ["env=HalfCheetah-v5", "agent=dyna", "agent.preset=sac", "agent.learning_starts=1000", "agent.path=numba"]
TASK += ["backend=gym", "n_envs=2"]
TWO = ["cluster=auto", "workers=2", "lag=1"]
FEW_UPDATES = 0.05
FRAMES = 2_000
# What service times are measured over, after the learner has begun to learn.
SERVICE_FRAMES = 4_000
ACTORS_ON_PAPER = 100


def run(folder: Path, rounds: int = 5) -> dict[str, float]:
    """On two free cores about five minutes."""
    path = folder / "cluster_sac.csv"
    path.unlink(missing_ok=True)
    require_equal_weights(TASK, FRAMES)
    figures = {"cluster_sac_bitwise": float(FRAMES)}
    for suffix, updates in (("", 1.0), ("_few", FEW_UPDATES)):
        task = [*TASK, f"agent.updates_per_step={updates}"]
        runs = {"local": task, "workers": [*task, "backend=workers"], "two": [*task, *TWO]}
        with ExitStack() as stack:
            stack.enter_context(local_cluster())
            variants = {name: _learns(stack.enter_context(made(*words))) for name, words in runs.items()}
            rates = interleave(path, f"replay{suffix}", rounds, variants)["wall"]
        over_local = ratio(rates, "two", "local")
        over_workers = ratio(rates, "two", "workers")
        figures[f"cluster_sac_over_best{suffix}"] = min(over_local, over_workers)
    return figures


def _learns(parts: Parts) -> Callable[[], tuple[int, Callable[[], Any]]]:
    model: Any = parts.model
    model.learn(2 * FRAMES)

    def measure() -> tuple[int, Callable[[], Any]]:
        finish_flights(parts)
        # What is in flight is forgotten.
        model.steps.obs = None
        return FRAMES, lambda: model.learn(FRAMES)

    return measure


def service(folder: Path) -> dict[str, float]:
    """CPU time of actor and learner, and what it lets a hundred actors do; about two minutes."""
    act, learn, frame_bytes = _service_times(1.0)
    _, learn_few, _ = _service_times(FEW_UPDATES)
    update = (learn - learn_few) / (1.0 - FEW_UPDATES)
    store = learn - update
    seconds_left = act / ACTORS_ON_PAPER - store
    return {
        "replay_act_us": 1e6 * act,
        "replay_store_us": 1e6 * store,
        "replay_update_us": 1e6 * update,
        "replay_frame_bytes": frame_bytes,
        "replay_100_frames": min(ACTORS_ON_PAPER / act, 1 / learn),
        "replay_100_updates": max(seconds_left / update, 0.0),
    }


def _service_times(updates: float) -> tuple[float, float, float]:
    """CPU seconds of an actor and of the learner for a frame, and the frame's bytes."""
    with local_cluster(), made(*TASK, f"agent.updates_per_step={updates}", "cluster=auto", "lag=1") as parts:
        model: Any = parts.model
        fleet: Any = parts.venv
        # As in `benchmarks.speed.measure`.
        clocks = [~pid << 3 | 2 for pid in (fleet.members[0].pid, os.getpid())]
        model.learn(FRAMES)
        finish_flights(parts)
        before = [time.clock_gettime(clock) for clock in clocks]
        model.learn(SERVICE_FRAMES, reset_num_timesteps=False)
        finish_flights(parts)
        seconds = [time.clock_gettime(clock) - start for clock, start in zip(clocks, before)]
        fleet.snapshot()
        part = fleet.members[0].flight[0].part
        frame_bytes = len(pickle.dumps(part)) / part["batch"]["valid"].size
    return seconds[0] / SERVICE_FRAMES, seconds[1] / SERVICE_FRAMES, frame_bytes
