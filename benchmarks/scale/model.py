"""What a run on a cluster can reach: service times measured here, and a model of its queues and its network.

service_collect_us      CPU microseconds for a frame of HalfCheetah: physics, policy, bookkeeping
service_update_us       for learning from it: score, ten epochs of 64 units
service_embed_us        for its embedding by the small CLIP that ships
ray_call_ms             a call of an actor and back, at best
ray_gib_s               GiB a second of arrays from one process to another of this machine, at best
scale_<C>_<S>           frames a second that the model gives C collectors with S reward servers
scale_<C>_0             the same without a reward that sees
model_error             how far the model is from one (lag=0) and from two local actors (lag=1), the larger of the two:
                        by its share of what `scale:ray` measured, both over the local run in one process
"""

from __future__ import annotations

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
    figures |= {"ray_call_ms": 1e3 * call, "ray_gib_s": bandwidth / 2**30}
    for collectors in (1, 2, 100, 10_000):
        for servers in (0, 1, 8):
            figures[f"scale_{collectors}_{servers}"] = min(capacity(service, collectors, servers).values())
    if measured := results.read_rows(folder / "scale-ray.csv"):
        figures["model_error"] = error(service, measured)
    return figures


def error(service: Service, measured: list[dict[str, str]], frames: int = 1024, cores: int = 2) -> float:
    """The larger error of the model for one and two actors, by the rows of `scale:ray`, of so many frames each."""
    local, errors = frames * (service.collect + service.update), []
    for group, variant, actors, lag in (("ray", "one", 1, 0), ("ray2", "two", 2, 1)):
        rates: dict[str, list[float]] = {"local": [], variant: []}
        for row in measured:
            if row["group"] == group and row["variant"] in rates:
                rates[row["variant"]].append(int(row["frames"]) / float(row["seconds"]))
        expected = local / seconds_an_update(service, frames, actors, lag, cores)
        errors.append(abs(expected / ratio(rates, variant, "local") - 1))
    return max(errors)


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
        engine.get(actor.echo.remote(value)).sum()
        return time.perf_counter() - began

    with local_cluster() as engine:
        actor = engine.remote(num_cpus=1)(Echo).remote()
        small, large = np.zeros(1), np.zeros(2**22)
        call, there_and_back = (min(once(value) for _ in range(rounds)) for value in (small, large))
    return call, 2 * large.nbytes / (there_and_back - call)
