"""The next rollout is collected while the last one is learnt from: what a second core is for (`agent.overlap=true`).

    this thread      collect rollout k by the weights W_k              wait, W_k+1 takes over, then the callbacks
    a second one     score rollout k - 1, learn W_k+1 from it, then let the rewards learn

The policy that collects is one rollout behind, never more or less, so a run repeats to the last bit. Rewards score and
learn from one rollout after the other, as without overlap: nothing of them is late. Between two rollouts, where
callbacks and checkpoints come, nothing runs; a checkpoint holds the rollout that waits. `learn` ends with the last
rollout learnt from, so a run that is extended does not end to the last bit as the longer one.

A rollout of the policy mu is learnt from by pi, an update later, as `Collector.catch_up` says; the study `overlap` asks
what is lost. A recurrent policy keeps mu's ratio and values, as they go with its states.

Sources: Stooke & Abbeel 2018, arXiv 1803.02811, section 3: sampling and optimisation alternate over two buffers; Hilton
et al. 2021, arXiv 2110.00641, section 3: the policy of the ratio is not the one that acted. Difference: weights are at
most 2, and apply to advantages less their mean.
Fails when: rollouts are large and few, so that one is much; both sides are Python, of which one thread runs at a time:
then `backend=workers` helps, and `agent.path=numba`; other processes keep all cores busy, as the thread that learns
then gets a tenth of one.
"""

import contextlib
import copy
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from agents.networks.actor_critic import ActorCritic
from agents.ppo.collector import Collector
from agents.ppo.seams import RolloutSchedule
from envs.vector.workers import cores
from lodestar.state import get_state, set_state

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

# More than the niceness of the thread that collects.
LEARNER_NICENESS = 10
# Python's own 5 ms would hold up a thread that has left a library for as long, each time.
SWITCH_INTERVAL_S = 1e-4
# What of a collector, and of its rollout, a rollout that waits is.
COLLECTOR_ARRAYS = ("chosen", "values", "log_prob", "last_values", "starts", "hidden", "masked")
ROLLOUT_ARRAYS = (
    "obs",
    "action",
    "reward",
    "terminated",
    "truncated",
    "valid",
    "success",
    "first_step",
    "finals",
    "modalities",
    "final_modalities",
    "modality_names",
)
WAITING_PLACES = {name: name for name in COLLECTOR_ARRAYS} | {name: f"rollout.{name}" for name in ROLLOUT_ARRAYS}


class Overlap(RolloutSchedule):
    """The thread of an agent that learns, and the rollout it will learn from; a ValueError where that cannot be."""

    def __init__(self, agent: "PPO") -> None:
        for name, stream in agent.scorer.streams.items():
            # Only rewards that take part in the environments' steps have these attributes.
            reward: Any = getattr(stream, "reward", None)
            config = getattr(reward, "config", None)
            if getattr(reward, "guides", 0) or getattr(config, "ends", False):
                raise ValueError(
                    f"agent.overlap=true lets {name} learn while environments are stepped, and {name} takes part in "
                    "their steps; give agent.overlap=false"
                )
        # A rollout that has not been learnt from, and the environment steps at its end.
        self.waiting: Collector | None = None
        self.timesteps = 0
        # What `PPO.learn_from` gave for the one before.
        self.callback_locals: dict[str, Any] = {}
        self._thread = ThreadPoolExecutor(1, "learner", initializer=_step_back)

    def network_to_train(self, policy: ActorCritic) -> ActorCritic:
        return copy.deepcopy(policy)

    def set_up(self, agent: "PPO") -> None:
        if type(agent.collector) is not Collector:
            raise ValueError(
                'agent.overlap=true is for environments that this process or its workers step, with array="numpy"; '
                "a cluster has lag=1 of its own; give agent.overlap=false"
            )
        self.spare = twin(agent.collector)
        agent.seconds["waiting"] = 0.0

    def collect(self, agent: "PPO", after_row: Callable[[int], bool]) -> bool:
        with self.learning(agent):
            return super().collect(agent, after_row)

    @contextlib.contextmanager
    def learning(self, agent: "PPO") -> Iterator[None]:
        """Learn from the rollout that waits, if any, while the block runs; then the new weights take over."""
        if self.waiting is None:
            yield
            return
        # The policy may come from a file since.
        agent.learnt.load_state_dict(agent.policy.state_dict())
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        leave_cores(agent, 1)
        learning = self._thread.submit(self._learn, agent, self.waiting)
        try:
            yield
        finally:
            started = time.perf_counter()
            wait([learning])
            sys.setswitchinterval(interval)
            agent.seconds["waiting"] += time.perf_counter() - started
        self.waiting = None
        self.callback_locals = learning.result()
        agent.policy.load_state_dict(agent.learnt.state_dict())

    def _learn(self, agent: "PPO", collector: Collector) -> dict[str, Any]:
        if not collector.recurrent:
            collector.catch_up(agent.learner)
        callback_locals = agent.learn_from(collector, self.timesteps)
        agent.metrics |= agent.teach(collector)
        leave_cores(agent, 0)
        return callback_locals

    def learn(self, agent: "PPO") -> dict[str, Any]:
        """The rollout just collected waits; the last one of `learn` does not. Returns what is known of the newest."""
        self.waiting = agent.collector
        self.timesteps = agent.num_timesteps
        if agent.num_timesteps >= agent._total_timesteps:
            self.finish(agent)
        return self.callback_locals

    def finish(self, agent: "PPO") -> None:
        """Learn from the rollout that waits."""
        with self.learning(agent):
            pass

    def end_rollout(self, agent: "PPO") -> None:
        """The next rollout goes where none waits."""
        agent.collector, self.spare = self.spare, agent.collector
        agent.collector.follow(self.spare)

    def state_dict(self) -> dict[str, Any]:
        if self.waiting is None:
            return {"waiting": None}
        return {
            "waiting": get_state(self.waiting, WAITING_PLACES, copy=True),
            "timesteps": self.timesteps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = None
        if state["waiting"] is not None:
            set_state(self.spare, WAITING_PLACES, state["waiting"])
            _view_observations(self.spare)
            self.waiting = self.spare
            self.timesteps = state["timesteps"]


def _step_back() -> None:
    """Who collects comes first: its threads and processes wait for each other at every step."""
    # Elsewhere niceness is of the whole process.
    if sys.platform == "linux":
        os.nice(LEARNER_NICENESS)


def leave_cores(agent: "PPO", count: int) -> None:
    """Have the threads of the environments leave so many cores to others."""
    envs = agent.collector.envs
    if hasattr(envs, "use_threads"):
        envs.use_threads(cores() - count)


def twin(collector: Collector) -> Collector:
    """One that writes its rollouts elsewhere, and shares environments, learner, noise, episodes and clocks."""
    other = copy.copy(collector)
    for name in ("rollout", *COLLECTOR_ARRAYS):
        setattr(other, name, copy.deepcopy(getattr(other, name)))
    _view_observations(other)
    return other


def _view_observations(collector: Collector) -> None:
    """See observations where they lie now."""
    collector.observed = collector.rollout.obs
    collector.vector = collector.inputs.vector(collector.rollout.obs, 2)
