"""A part of a run's environments with a copy of its policy, in a process that Ray brings to a node.

    make -> begin, or restore -> collect(weights), which gives a whole rollout, again and again

Calls are answered one after the other. What an actor returns is a copy, and what it is given it may only read: Ray
keeps arrays in memory that the processes of a node share.
"""

import copy
import dataclasses
import os
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from agents.base import TaskScorer
from agents.ppo.agent import PPO
from envs.transitions import map_obs
from envs.types import MASK, Obs
from runners.cluster.server import frames_of
from runners.run.build import make_envs
from runners.run.config import TrainConfig

NUMBERS = ("values", "log_prob", "last_values")  # what acting computes, if it does


class Outline(TaskScorer):
    """What actors know of the learner's reward: its streams, and what they read; it scores nothing."""

    def __init__(self, mix: Any, embeds: bool) -> None:
        self.embeds = embeds  # whether servers look at frames, not the learner
        unknown = SimpleNamespace(config=None)
        self.streams = {
            name: SimpleNamespace(gamma=stream.gamma, episodic=stream.episodic, reward=unknown)
            for name, stream in mix.streams.items()
        }
        self.requires, self.frame_size = mix.requires, mix.frame_size


class LostFirst:
    """Steps environments; the first step says that the episodes before it were lost, and begins these."""

    def __init__(self, stepper: Any, obs: Obs, shown: dict[str, Any]) -> None:
        self.groups, self._stepper, self._obs, self._shown = stepper.groups, stepper, obs, shown
        self._waiting = set(range(len(stepper.groups)))

    def send(self, actions: Any, group: int) -> None:
        if group not in self._waiting:
            self._stepper.send(actions, group)

    def recv(self, group: int) -> Any:
        if group not in self._waiting:
            return self._stepper.recv(group)
        self._waiting.remove(group)
        rows = self.groups[group]
        obs, shown = (map_obs(lambda x: x[rows], x) for x in (self._obs, self._shown))
        lost = np.ones(rows.stop - rows.start, bool)
        return obs, np.zeros(len(lost), np.float32), ~lost, lost, {**shown, "final_obs": obs, "lost": lost}


class Actor:
    """The environments of some columns of a run's rollouts."""

    def make(self, config: TrainConfig, columns: slice, outline: Outline, generation: int = 0) -> int:
        """Make environments and policy; returns the process's number."""
        from stable_baselines3.common.utils import set_random_seed

        torch.set_num_threads(1)
        small, count = copy.copy(config), columns.stop - columns.start
        small.seed += columns.start  # number i of all environments is seeded with seed + i
        set_random_seed(small.seed)
        learners: dict[str, Any] = {"balance": "none", "balance_only": [], "blend": "none", "imitate": 0.0}
        options = dataclasses.replace(config.agent, batch_size=count * config.agent.n_steps, **learners)
        self.envs: Any = make_envs(small, "scorer", count, cast(Any, outline))
        agent = PPO(cast(Any, self.envs), options, scorer=outline, seed=config.seed)
        self.policy, self.collector, self.embeds = agent.policy, agent.collector, outline.embeds
        self.collector._refuse = lambda: None  # type: ignore[method-assign]  # the learner does, who knows all columns
        if columns.start or generation:  # the first draws what a local run draws
            self.collector.rng = np.random.default_rng([config.seed, 1, columns.start, generation])
        self._stepper, self._rolls = self.collector.stepper, False
        return os.getpid()

    def begin(self, seed: int, lost: bool = False) -> tuple[Obs, dict[str, Any]]:
        """Begin episodes, after `lost` ones if the next rollout is to say so; returns what comes with their start."""
        collector, rollout = self.collector, self.collector.rollout
        collector.seed, collector.began = seed, False
        collector.begin()
        shown = {name: value[0] for name, value in rollout.modalities.items()}
        obs = map_obs(lambda x: x[0].copy(), rollout.obs)
        collector.stepper = LostFirst(self._stepper, obs, map_obs(np.copy, shown)) if lost else self._stepper
        self._rolls = False
        return obs, shown

    def restore(self, state: dict[str, Any], envs: dict[str, Any]) -> None:
        """Continue where an actor of these columns stood between two rollouts; `envs` is a snapshot of them."""
        collector = self.collector
        if MASK in state["rollout"]["shown"] and collector.uses_masks:
            collector._read_masks()
        rollout = collector.rollout
        names, rollout.modality_names = rollout.modality_names, tuple(sorted(state["rollout"]["shown"]))
        rollout.load_state_dict(state["rollout"])
        rollout.modality_names = names  # frames, which a server has seen, may be missing
        collector.rng.bit_generator.state = state["rng"]
        collector.starts[0] = state["starts"]
        if collector.recurrent:
            collector.learner.hidden = torch.tensor(state["hidden"])
        self.envs.restore(envs)
        collector.began = collector._known = True
        collector.stepper, self._rolls = self._stepper, False

    def snapshot(self) -> dict[str, Any]:
        """The environments between two rollouts, and what `restore` continues with."""
        collector = self.collector
        if self._rolls:
            collector.roll()
            self._rolls = False
        state = {"rollout": collector.rollout.state_dict(), "rng": collector.rng.bit_generator.state}
        hidden = collector.learner.hidden.numpy() if collector.recurrent else None
        return {"envs": self.envs.snapshot(), "standing": {**state, "starts": collector.starts[0], "hidden": hidden}}

    def collect(self, number: int, weights: dict[str, Any], whole: bool) -> Any:
        """A rollout by the policy with these weights; `whole`: with its values and log-probabilities.

        Where servers look at frames, the rollout without them, and the frames.
        """
        collector, rollout, before = self.collector, self.collector.rollout, dict(self.collector.seconds)
        self.policy.load_state_dict({name: torch.from_numpy(np.array(x)) for name, x in weights["policy"].items()})
        if self._rolls:
            collector.roll()
        self._rolls = True
        collector.collect(lambda t: True)
        collector.stepper = self._stepper
        if whole:
            collector.evaluate()
        part = {name: getattr(rollout, name) for name in ("action", "reward", "terminated", "truncated")}
        part |= {name: getattr(rollout, name) for name in ("valid", "success", "finals", "final_modalities")}
        part |= {name: getattr(collector, name) for name in (*NUMBERS, "chosen") if whole or name == "chosen"}
        part["obs"] = map_obs(lambda x: x[1:], rollout.obs)  # the learner has the first row
        part["modalities"] = {name: value[1:] for name, value in rollout.modalities.items()}
        if collector.recurrent:
            part["hidden"] = np.stack([x.numpy() for x in collector.hidden])
            part["starts"], part["hidden_after"] = collector.starts[1:], collector.learner.hidden.numpy()
        part["seconds"] = {name: collector.seconds[name] - before[name] for name in ("environment", "inference")}
        part |= {"number": number, "version": weights["version"], "rng": collector.rng.bit_generator.state}
        if not self.embeds:
            return part
        frames, part["embedded_at"] = frames_of(part)
        return part, frames
