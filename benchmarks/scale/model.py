"""What a run on a cluster can reach: service times measured here, and a model of its queues and its network.

service_collect_us      CPU microseconds for a frame of HalfCheetah: physics, policy, bookkeeping
service_update_us       for learning from it: score, ten epochs of 64 units
service_embed_us        for its embedding by the small CLIP that ships
ray_call_ms             a call of an actor with arrays of a rollout there and back
ray_gib_s               GiB a second of arrays from one process to another of this machine, at best
service_actor_us        as service_collect_us, of an actor with half the environments and a lag, messages included
service_learner_us      as service_update_us, of its learner, messages included
scale_<C>_<S>           frames a second that the model gives C collectors with S reward servers
scale_<C>_0             the same without a reward that sees
model_error_1, _2       how far the model is from what `scale:ray` measured of one actor (lag=0), by the times of a
                        local run, and of two (lag=1), by those of one actor; model_error: the larger
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import results
from benchmarks.scale.cluster import TASK, local_cluster, made
from benchmarks.speed.measure import ratio

ENVS, STEPS = 32, 128  # of a collector's rollout
FRAME, VECTOR = 96 * 96 * 3, 4 * (17 + 6 + 8)  # bytes of a picture, and of what else a frame is on its way
NETWORK = 1.25e9  # bytes a second into one machine, 10 Gbit/s


class Service(NamedTuple):
    """Seconds of one core for a frame, seconds of a call."""

    collect: float
    update: float
    embed: float
    call: float


def seconds_an_update(service: Service, frames: int, actors: int, lag: int, cores: float) -> float:
    """What a rollout of so many frames takes actors on one machine with free cores, and its learner."""
    collect, update = frames * service.collect / actors, frames * service.update
    if not lag:
        return collect * max(actors / cores, 1.0) + service.call + update
    return max(collect + service.call, update + service.call, (actors * collect + update) / cores)


def capacity(service: Service, collectors: int, servers: int) -> dict[str, float]:
    """Frames a second that each part of a cluster can do alone, a core for each process; the least is the run's."""
    rollout = ENVS * STEPS
    parts = {
        "collectors": collectors * rollout / (rollout * service.collect + service.call),
        "learner": 1 / service.update,
        "network of the learner": NETWORK / VECTOR,
    }
    if servers:
        parts["reward servers"] = servers / service.embed
        parts["network of the servers"] = servers * NETWORK / FRAME
    return parts


def run(folder: Path, rollouts: int = 6) -> dict[str, float]:
    """Measure service times by CPU seconds, which a busy neighbour changes little; and apply the model."""
    collect, update = _local(rollouts)
    call, bandwidth = _ray()
    service = Service(collect, update, _embedding(), call)
    figures = {f"service_{name}_us": 1e6 * getattr(service, name) for name in ("collect", "update", "embed")}
    shared = Service(*_on_actors(), 0.0, 0.0)
    figures |= {"service_actor_us": 1e6 * shared.collect, "service_learner_us": 1e6 * shared.update}
    figures |= {"ray_call_ms": 1e3 * call, "ray_gib_s": bandwidth / 2**30}
    for collectors in (1, 2, 100, 10_000):
        for servers in (0, 1, 8):
            figures[f"scale_{collectors}_{servers}"] = min(capacity(service, collectors, servers).values())
    if measured := results.read_rows(folder / "scale-ray.csv"):
        figures |= errors(service, shared, measured)
    return figures


def errors(service: Service, shared: Service, measured: list[dict[str, str]], frames: int = 1024) -> dict[str, float]:
    """How far the model is from the rows of `scale:ray`, rollouts of so many frames on two cores: the file's head."""
    local, found = frames * (service.collect + service.update), []
    for group, variant, times, actors, lag in (("ray", "one", service, 1, 0), ("ray2", "two", shared, 2, 1)):
        rates: dict[str, list[float]] = {"local": [], variant: []}
        for row in measured:
            if row["group"] == group and row["variant"] in rates:
                rates[row["variant"]].append(int(row["frames"]) / float(row["seconds"]))
        expected = local / seconds_an_update(times, frames, actors, lag, 2)
        found.append(abs(expected / ratio(rates, variant, "local") - 1))
    return {"model_error_1": found[0], "model_error_2": found[1], "model_error": max(found)}


def _local(rollouts: int) -> tuple[float, float]:
    times = []
    with made(*TASK) as parts:
        model: Any = parts.model
        model.learn(1024)  # the first one warms up
        for _ in range(rollouts):
            model.begin_rollout()
            began = time.process_time()
            model.collect(lambda *_: True)
            middle = time.process_time()
            model.update()
            model.end_rollout()
            times.append((middle - began, time.process_time() - middle))
    collect, update = np.median(times, axis=0) / 1024
    return float(collect), float(update)


def _on_actors(rollouts: int = 40) -> tuple[float, float]:
    """CPU seconds of an actor and of the learner for a frame, messages included; it has four environments."""
    with local_cluster(), made(*TASK, "n_envs=4", "cluster=auto", "lag=1") as parts:
        model: Any = parts.model
        fleet: Any = parts.venv
        clocks = [~pid << 3 | 2 for pid in (fleet.members[0].pid, os.getpid())]  # as in `benchmarks.speed.measure`
        model.learn(4 * 512)
        before = [time.clock_gettime(clock) for clock in clocks]
        model.learn(rollouts * 512)
        actor, learner = ((time.clock_gettime(clock) - was) / (rollouts * 512) for clock, was in zip(clocks, before))
    return actor, learner


def _embedding(rows: int = 256) -> float:
    times = []
    with made("env=CartPole-v1", "reward=clip", "reward.clip.goal=pole upright") as parts:
        encoder: Any = parts.mix.streams["clip"].reward.encoder  # type: ignore[attr-defined]
        frames = np.random.default_rng(0).integers(0, 255, (rows, encoder.size, encoder.size, 3)).astype(np.uint8)
        for _ in range(4):
            began = time.process_time()
            encoder.image(frames, rows)
            times.append((time.process_time() - began) / rows)
    return min(times)


class Echo:
    """Gives back what it is given."""

    def echo(self, value: Any) -> Any:
        return value


def _ray(rounds: int = 30) -> tuple[float, float]:
    def once(value: Any) -> float:
        began = time.perf_counter()
        for array in engine.get(actor.echo.remote(engine.put(value))):
            array.sum()
        return time.perf_counter() - began

    with local_cluster() as engine:
        actor = engine.remote(num_cpus=1)(Echo).remote()
        small, large = [np.zeros(3_500, np.float32)] * 10, [np.zeros(2**22)]  # small: a rollout of 1,024 frames
        call = float(np.median([once(small) for _ in range(rounds)]))
        there_and_back = min(once(large) for _ in range(rounds))
    return call, 2 * large[0].nbytes / (there_and_back - call)
