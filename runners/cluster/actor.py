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
from envs.transitions import OnNan, index_obs, map_obs
from envs.types import MASK, Obs
from lodestar.mappings import take_rows
from runners.cluster.server import frames_of
from runners.run.build import make_envs
from runners.run.config import TrainConfig

# Arrays, numbers and nested states by name.
State = dict[str, Any]
# What the environments and the policy made of a rollout, an array (T, N) or more each.
ROLLOUT_FIELDS = ("action", "reward", "terminated", "truncated", "valid", "success")
# What a collector computes of the actions that it took, if the learner does not.
ACTING_FIELDS = ("values", "log_prob", "last_values")


class Outline(TaskScorer):
    """What actors know of the learner's reward: its streams, and what they read; it scores nothing."""

    def __init__(self, mix: Any, embeds: bool) -> None:
        # What becomes of a task's reward that is NaN.
        self.on_nan = OnNan(mix.on_nan.what)
        # Whether servers look at frames, not the learner.
        self.embeds = embeds
        self.requires = mix.requires
        self.frame_size = mix.frame_size
        self.streams = {}
        for name, stream in mix.streams.items():
            reward = SimpleNamespace(config=None, guides=0)
            self.streams[name] = SimpleNamespace(gamma=stream.gamma, episodic=stream.episodic, reward=reward)


class LostFirst:
    """Steps environments; the first step says that the episodes before it were lost, and begins these."""

    def __init__(self, stepper: Any, obs: Obs, modalities: State) -> None:
        self.groups = stepper.groups
        self._stepper = stepper
        self._obs = obs
        self._modalities = modalities
        # Groups that have not made their first step.
        self._waiting = set(range(len(stepper.groups)))

    def send(self, actions: Any, group: int) -> None:
        if group not in self._waiting:
            self._stepper.send(actions, group)

    def recv(self, group: int) -> Any:
        if group not in self._waiting:
            return self._stepper.recv(group)
        self._waiting.remove(group)
        rows = self.groups[group]
        obs = index_obs(self._obs, rows)
        infos = index_obs(self._modalities, rows)
        count = rows.stop - rows.start
        reward = np.zeros(count, np.float32)
        terminated = np.zeros(count, bool)
        truncated = np.ones(count, bool)
        return obs, reward, terminated, truncated, {**infos, "final_obs": obs, "lost": truncated}


class Actor:
    """The environments of some columns of a run's rollouts, and PPO's policy."""

    def make(self, config: TrainConfig, columns: slice, outline: Outline, generation: int = 0) -> int:
        """Make environments and policy; returns the process's number."""
        from stable_baselines3.common.utils import set_random_seed

        torch.set_num_threads(1)
        count = columns.stop - columns.start
        # Environment number i of the run is seeded with seed + i.
        own_config = copy.copy(config)
        own_config.seed += columns.start
        set_random_seed(own_config.seed)
        self.envs: Any = make_envs(own_config, "scorer", count, cast(Any, outline))
        self.embeds = outline.embeds
        self._make_agent(config, columns, outline, generation)
        return os.getpid()

    def _make_agent(self, config: TrainConfig, columns: slice, outline: Outline, generation: int) -> None:
        # Options of the learner have no place in a process that only acts.
        options = dataclasses.replace(
            config.agent,
            batch_size=self.envs.num_envs * config.agent.n_steps,
            balance="none",
            balance_only=[],
            blend="none",
            imitate=0.0,
        )
        agent = PPO(self.envs, options, scorer=outline, seed=config.seed)
        self.policy = agent.policy
        self.collector = agent.collector
        # The learner, who knows all columns, refuses NaN and infinity, and counts episodes.
        self.collector._finish = lambda: None  # type: ignore[method-assign]
        # The first actor draws what a local run draws.
        if columns.start or generation:
            self.collector.rng = np.random.default_rng([config.seed, 1, columns.start, generation])
        self._stepper = self.collector.stepper
        # Whether the last row becomes the first one before the next rollout.
        self._must_roll = False

    def begin(self, seed: int, lost: bool = False) -> tuple[Obs, State]:
        """Begin episodes, after `lost` ones if the next rollout is to say so; returns what comes with their start."""
        collector = self.collector
        collector.seed = seed
        collector.began = False
        collector.begin()
        rollout = collector.rollout
        modalities = take_rows(rollout.modalities, 0)
        obs = map_obs(lambda x: x[0].copy(), rollout.obs)
        collector.stepper = self._stepper
        if lost:
            collector.stepper = LostFirst(self._stepper, obs, map_obs(np.copy, modalities))
        self._must_roll = False
        return obs, modalities

    def restore(self, state: State, envs: State) -> None:
        """Continue where an actor of these columns stood between two rollouts; `envs` is a snapshot of them."""
        collector = self.collector
        shown = state["rollout"]["shown"]
        if MASK in shown and collector.uses_masks:
            collector._read_masks()
        rollout = collector.rollout
        # Frames, which a server has seen, may be missing in the state.
        names = rollout.modality_names
        rollout.modality_names = tuple(sorted(shown))
        rollout.load_state_dict(state["rollout"])
        rollout.modality_names = names
        collector.rng.bit_generator.state = state["rng"]
        collector.starts[0] = state["starts"]
        if collector.recurrent:
            collector.learner.hidden = torch.tensor(state["hidden"])
        self.envs.restore(envs)
        collector.began = True
        collector._known = True
        collector.stepper = self._stepper
        self._must_roll = False

    def snapshot(self) -> State:
        """The environments between two rollouts, and what `restore` continues with."""
        collector = self.collector
        self._roll()
        standing = {
            "rollout": collector.rollout.state_dict(),
            "rng": collector.rng.bit_generator.state,
            "starts": collector.starts[0],
            "hidden": collector.learner.hidden.numpy() if collector.recurrent else None,
        }
        return {"envs": self.envs.snapshot(), "standing": standing}

    def _roll(self) -> None:
        if self._must_roll:
            self.collector.roll()
            self._must_roll = False

    def collect(self, number: int, weights: State, evaluate: bool) -> Any:
        """A rollout by the policy with these weights; `evaluate`: with its values and log-probabilities.

        Where servers look at frames, the rollout without them, and the frames.
        """
        collector = self.collector
        seconds_before = dict(collector.seconds)
        # What Ray gives may only be read, so weights are copied.
        tensors = {}
        for name, x in weights["policy"].items():
            tensors[name] = torch.from_numpy(np.array(x))
        self.policy.load_state_dict(tensors)
        self._roll()
        self._must_roll = True
        collector.collect(lambda t: True)
        collector.stepper = self._stepper
        if evaluate:
            collector.evaluate()
        part = self._read_part(evaluate)
        part["number"] = number
        part["version"] = weights["version"]
        seconds = {}
        for name in ("environment", "inference"):
            seconds[name] = collector.seconds[name] - seconds_before[name]
        part["seconds"] = seconds
        if not self.embeds:
            return part
        frames, part["embedded_at"] = frames_of(part)
        return part, frames

    def _read_part(self, evaluate: bool) -> State:
        """What the learner needs of the rollout; it has the first row of observations."""
        collector = self.collector
        rollout = collector.rollout
        part = {"chosen": collector.chosen, "rng": collector.rng.bit_generator.state}
        for name in (*ROLLOUT_FIELDS, "finals", "final_modalities"):
            part[name] = getattr(rollout, name)
        if evaluate:
            for name in ACTING_FIELDS:
                part[name] = getattr(collector, name)
        part["obs"] = map_obs(lambda x: x[1:], rollout.obs)
        part["modalities"] = take_rows(rollout.modalities, slice(1, None))
        if collector.recurrent:
            part["hidden"] = np.stack([hidden.numpy() for hidden in collector.hidden])
            part["hidden_after"] = collector.learner.hidden.numpy()
            part["starts"] = collector.starts[1:]
        return part
