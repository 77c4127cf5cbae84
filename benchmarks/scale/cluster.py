"""One run on the actors of a local Ray cluster, beside the same run in one process.

    bitwise_equal_local     environment steps after which a run on one actor, lag=0, has the weights of the local run,
                            to the last bit; an error if it has not
    ray_ratio_1             frames a second of one actor, lag=0, over those of one process
    ray_ratio_2             of two actors, lag=1, over those of one process; needs two free cores
    ray_over_best           of two actors, lag=1, over those of one process, or its workers, each at its best: with
                            Gymnasium's robots or the array program, which may have a second thread and overlap
    ray_kills, ray_lost     SIGKILLs of random actors and reward servers; transitions that the learner then used twice,
                            left out or rewarded with another one's reward (`benchmarks.scale.tickets`)
    reward_server_ratio     frames a second that a server embeds, over those of the encoder alone

Frames are counted by the wall's clock: a run on actors is several processes. Ratios are medians over rounds.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks import results
from benchmarks.scale.tickets import LENGTH, worth
from benchmarks.speed.measure import interleave, ratio
from runners.cli.compose import compose
from runners.run.build import Parts, build

PLAIN = ["preset=none", "control=none", "video=false", "eval_episodes=0", "logger=[]"]
TASK = ["env=HalfCheetah-v5", "backend=gym", "n_envs=8", "agent.n_steps=128", "agent.batch_size=256"]
TASK += ["agent.path=numba"]
BATCHED = [*TASK, "backend=batched"]
TICKETS = ["env=benchmarks.scale.tickets:LodestarTickets-v0", "reward=benchmarks.scale.tickets:Ticket", "backend=gym"]
TICKETS += ["n_envs=4", "agent.n_steps=32", "agent.batch_size=128"]
ACTORS = ["cluster=local", "servers=1", "lag=1"]
ROLLOUTS, ROUNDS, KILLS = 16, 5, 50
LOCAL = {"local", "workers", "batched", "both"}  # runs that need no cluster, of `ray`


@contextmanager
def made(*arguments: str) -> Iterator[Parts]:
    """A run that is ready to learn, as the command line would make it."""
    from runners.train import cluster_envs

    config = compose([*PLAIN, *arguments])[0]
    with cluster_envs(config) as make_vector:
        parts = build(config, make_vector=make_vector)
        try:
            yield parts
        finally:
            parts.mix.close()
            parts.venv.close()


@contextmanager
def local_cluster() -> Iterator[Any]:
    """One cluster for several runs."""
    from runners.cluster.connect import connect, load

    ray = load()
    connect(ray, "local", "cluster", "try later")
    try:
        yield ray
    finally:
        ray.shutdown()


def bitwise(folder: Path, rollouts: int = 8) -> dict[str, float]:
    """Of PPO with statistics of observations, on HalfCheetah."""
    steps = rollouts * 1024
    require_equal_weights([*TASK, "agent.normalize_obs=true", "reward=rnd"], steps)
    return {"bitwise_equal_local": steps}


def require_equal_weights(task: Sequence[str], steps: int) -> None:
    """An AssertionError unless a run of so many steps on one actor ends with the weights of the local run."""
    weights = []
    for more in ((), ("cluster=local",)):
        with made(*task, *more) as parts:
            model: Any = parts.model
            model.learn(steps)
            weights.append(model.policy.state_dict())
    local, cluster = weights
    for name, value in local.items():
        if not np.array_equal(value.numpy(), cluster[name].numpy()):
            raise AssertionError(f"the weights {name} of a run on one actor are not those of the local run")


def ray(folder: Path, rounds: int = ROUNDS) -> dict[str, float]:
    """On two free cores about six minutes."""
    path = folder / "scale-ray.csv"
    path.unlink(missing_ok=True)
    two = ["cluster=auto", "workers=2", "lag=1"]  # a cluster of two processors has room for no third actor
    groups: dict[str, dict[str, list[str]]] = {
        "ray": {"local": TASK, "workers": [*TASK, "backend=workers"], "one": [*TASK, "cluster=auto"]},
        "ray2": {"local": TASK, "two": [*TASK, *two]},
        "ray3": {
            "local": TASK,
            "batched": BATCHED,
            "both": [*BATCHED, "num_threads=2", "agent.overlap=true"],
            "two batched": [*BATCHED, *two],
        },
    }
    over: dict[str, float] = {}  # frames a second over those of one process
    for group, runs in groups.items():
        with ExitStack() as stack:
            stack.enter_context(local_cluster())
            variants = {name: _learns(stack.enter_context(made(*run))) for name, run in runs.items()}
            rates = interleave(path, group, rounds, variants)["wall"]
        over |= {name: ratio(rates, name, "local") for name in runs}
    best, clusters = (max(over[name] for name in names) for names in (LOCAL, over.keys() - LOCAL - {"one"}))
    return {"ray_ratio_1": over["one"], "ray_ratio_2": over["two"], "ray_over_best": clusters / best}


def _learns(parts: Parts) -> Callable[[], tuple[int, Callable[[], Any]]]:
    model: Any = parts.model
    size = model.collector.rollout.valid.size

    def measure() -> tuple[int, Callable[[], Any]]:
        finish_flights(parts)
        model.collector.began = False  # what is in flight is forgotten
        return ROLLOUTS * size, lambda: model.learn(ROLLOUTS * size)

    return measure


def finish_flights(parts: Parts) -> None:
    """Wait for what actors collect, so that nothing is made while another's clock runs."""
    import ray as engine

    for member in getattr(parts.venv, "members", ()):
        for flight in member.flight:
            if not isinstance(flight.part, dict):
                engine.wait([flight.part])


def kills(folder: Path, count: int = KILLS) -> dict[str, float]:
    """About ten minutes; one actor and one reward server on a cluster of two processors, lag=1."""
    with made(*TICKETS, *ACTORS) as parts:
        check = Inspector(parts.venv, count)
        parts.venv.say = print  # type: ignore[union-attr]
        parts.model.learn(10**9, check)
        check.stop()
        fleet: Any = parts.venv
        unused = abs(fleet.delivered * 128 - check.rows)
        row = {"kills": check.kills, "actors": fleet.restarts - fleet.servers.restarts, "rows": check.rows}
        row |= {"servers": fleet.servers.restarts, "dropped": fleet.dropped, "wrong": check.wrong, "unused": unused}
        results.append_rows(folder / "scale-kills.csv", [row])
    return {"ray_kills": check.kills, "ray_lost": check.wrong + unused}


class Inspector(BaseCallback):
    """Looks at every transition that is learnt from, and kills a process now and then, `count` times."""

    def __init__(self, fleet: Any, count: int) -> None:
        super().__init__()
        self.fleet, self.count = fleet, count
        self.kills = self.rows = self.wrong = 0
        self.due: dict[int, int] = {}  # episode -> the step that comes next
        self._rng = np.random.default_rng(0)
        self._killed, self._timer = 0, threading.Thread()
        self._left = 4  # rollouts after the last kill

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        batch, raw = self.locals["batch"], self.locals["raw"]
        before, after = np.asarray(batch.obs, np.int64), np.asarray(batch.next_obs, np.int64)
        self.rows += batch.valid.size
        for t in range(len(batch.valid)):
            for row in np.flatnonzero(batch.valid[t]).tolist():
                episode, step = before[t, row].tolist()
                fine = self.due.get(episode, 0) == step and after[t, row].tolist() == [episode, step + 1]
                self.due[episode] = step + 1
                self.wrong += not fine
        expected = np.where(batch.valid, worth(np.asarray(batch.next_obs)), 0)
        self.wrong += int((np.abs(raw["ticket"] - expected) > 1e-6).sum())
        finished = [episode for episode, step in self.due.items() if step == LENGTH]
        for episode in finished:
            del self.due[episode]
        self._kill()

    def _kill(self) -> None:
        """Within a second from now, a process that was not the last one killed, or has a successor."""
        pids = [member.pid for member in self.fleet.members] + list(self.fleet.servers.pids)
        self._left = self._left - 1 if self.kills == self.count else 4
        if self.count and not self._left:
            self.model._total_timesteps = 0  # type: ignore[attr-defined]
        if self.kills >= self.count or self._timer.is_alive() or self._killed in pids:
            return
        self._killed = int(self._rng.choice(pids))
        self.kills += 1
        self._timer = threading.Timer(self._rng.uniform(0, 0.3), os.kill, (self._killed, signal.SIGKILL))
        self._timer.start()

    def stop(self) -> None:
        """No kill is left behind."""
        if self._timer.ident is not None:
            self._timer.join()


def server(folder: Path, rounds: int = ROUNDS, rows: int = 2048) -> dict[str, float]:
    """Of the small CLIP that ships, on one core each; eight rollouts of 256 frames that are there at once."""
    from rewards.vision.clip import Clip

    path = folder / "scale-server.csv"
    path.unlink(missing_ok=True)
    config = compose([*PLAIN, "env=CartPole-v1", "reward=clip", "reward.clip.goal=pole upright", "cluster=local"])[0]
    rng = np.random.default_rng(0)
    with made("env=CartPole-v1", "reward=clip", "reward.clip.goal=pole upright") as parts:
        spaces = parts.model.observation_space, parts.model.action_space
        reward: Any = parts.mix.streams["clip"].reward
        assert isinstance(reward, Clip)
        size = reward.encoder.size
        with local_cluster() as ray:
            from runners.cluster.servers import Servers

            config.servers = 1
            servers = Servers(ray, config, spaces, "cpu")

            def frames() -> list[np.ndarray]:
                return [rng.integers(0, 255, (256, size, size, 3)).astype(np.uint8) for _ in range(rows // 256)]

            def alone() -> tuple[int, Callable[[], Any]]:
                some = np.concatenate(frames())
                return rows, lambda: reward.encoder.image(some, reward.config.batch_size)

            def served() -> tuple[int, Callable[[], Any]]:
                refs = [ray.put(one) for one in frames()]
                return rows, lambda: [servers.answer(one) for one in [servers.ask(ref) for ref in refs]]

            rates = interleave(path, "server", rounds, {"alone": alone, "served": served})["wall"]
            servers.close()
    return {"reward_server_ratio": ratio(rates, "served", "alone")}
