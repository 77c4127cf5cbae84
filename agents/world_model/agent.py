"""An agent with a world of its own: for pixels, grids, dicts, and for what must be remembered.

    act -> step -> replay -> the world learns from sequences, paid as the reward is now -> the behaviour learns in it

A world model is a latent that is shaped by what it must say: the next latents, the reward, the end, at times the
observation. Everything that is imagined is paid by its reward head, and the head is distilled from replayed sequences
that are paid anew each time, so that any reward serves, however it is made: from images, texts, a memory, a language
model. When the reward itself has learnt, the head's error on the newest steps jumps; then it is refitted alone before
the policy dreams on. `train/head_gap` says how far it is off.

Source: the presets', see `agents.world_model.config`; relabelled rewards are ours.
Differences: sizes are for one CPU core. Each file of `latent/` and `dynamics/` says what differs in its part.
When it fails: few steps on a small state vector, which `agents.dyna.agent` models more cheaply; a reward that is a surprise
each time (the head pays its mean).
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agents.base import BaseAgent, OnStep
from agents.dynamics.cells import State
from agents.env_stepper import Steps
from agents.networks.space_encoding import SpaceEncoding
from agents.replay.frozen_reward import FrozenReward
from agents.replay.replay import Replay
from agents.world_model.config import WorldModelConfig
from agents.world_model.learner import Observed, WorldLearner
from envs.types import Obs, ReplayScorer, Transitions

JUMP, LARGE = 2.0, 0.5  # a head's error that is this many times the usual, and this large, belongs to another reward
FOLLOW = 0.2  # how fast the usual error follows
SPREAD = 256  # rows that say how much rewards differ


class WorldModel(BaseAgent):
    """A latent world model and what learns to act in it, over a Gymnasium vector environment.

    Raises:
        ValueError: for spaces it cannot take.
    """

    Config: ClassVar[type[WorldModelConfig]] = WorldModelConfig
    recovers: ClassVar[bool] = True
    n_envs: ClassVar[int] = 4
    scorer_type: ClassVar[type[Any]] = ReplayScorer
    saved: ClassVar[dict[str, str]] = {
        "modules.policy": "policy",
        "optimizer": "learner.flats",
        "counters.timesteps": "num_timesteps",
        "counters.updates": "_n_updates",
        "counters.refits": "refits",
        "counters.restored": "_restored",
        "counters.restored_in_row": "_restored_in_row",
        "counters.behaviour": "learner.behaviour.updates",
        "numbers.pending": "_pending",
        "numbers.usual": "_usual",
        "log.sums": "learner.sums",
        "log.counts": "learner.counts",
        "generator": "learner.generator",
        "state": "state",
        "steps": "steps",
        "replay": "replay",
    }
    recoverable: ClassVar[dict[str, str]] = {"weights": "learner", "optimizer": "learner.flats"}

    def _set_up(self) -> None:
        config, envs, seed = self.config, self.envs, self.seed
        self.encoding = encoding = SpaceEncoding(self.observation_space, self.action_space)
        self.notes = _notes(self.scorer)
        self._stale = None if config.relabel else FrozenReward(self.scorer)
        self.policy = self.learner = WorldLearner(config, encoding, seed=seed, device=self.device)
        self.steps = Steps(envs, seed, self.scorer)
        self.episodes = self.steps.episodes
        self.replay = Replay(
            config.buffer_size,
            envs.num_envs,
            encoding,
            self._stale or self.scorer,
            gamma=config.gamma,
            device=self.device,
            seed=seed,
            sampling=config.sampling,
        )
        self.state = self.learner.initial(envs.num_envs)
        self._pending, self._usual, self.refits = 0.0, 0.0, 0  # _usual: 0 before it is known
        self._learned_from = self.replay.metrics
        self._recent: list[tuple[Transitions, Tensor]] = []  # this rollout, with the actions as the world has them
        self.keep_finite()

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        """Refuse spaces the agent cannot handle.

        Raises:
            ValueError: naming the space.
        """
        SpaceEncoding(observation_space, action_space)

    # ------------------------------------------------------------------ learning

    def begin_rollout(self) -> None:
        self.steps.begin()

    def collect(self, on_step: OnStep) -> bool:
        """Some steps with the updates that are due after each."""
        config, n = self.config, self.steps.n
        for _ in range(config.rollout):
            action = self._act()
            batch = self.steps.step(action, self.encoding)
            self._recent.append((batch, action))
            if self._stale is not None:
                self._stale.timesteps = self.num_timesteps
            self.replay.add(batch)
            self.num_timesteps += n
            if not on_step(batch.reward, batch.terminated | batch.truncated):
                return False
            learnt, self._learned_from = self.replay.metrics is not self._learned_from, self.replay.metrics
            if len(self.replay) < config.learning_starts or self.replay.added < (self.learner.longest + 1) * n:
                continue
            if learnt:  # what was paid for the steps before may be worth something else now
                self._watch_head()
            self._pending += n * config.train_ratio / (config.batch_size * config.batch_length)
            while self._pending >= 1:
                self._pending -= 1
                self.learner.update(self.replay)
                self._n_updates += 1
        return True

    def _act(self) -> Tensor:
        """Actions (N, A), at random before learning starts."""
        action, self.state = self._think(self.steps.obs, self.steps.began, self.state)
        if len(self.replay) >= self.config.learning_starts:
            return action
        uniform = torch.rand(action.shape, generator=self.learner.generator, device=self.device)
        if self.encoding.discrete:
            uniform = torch.zeros_like(uniform).scatter_(-1, uniform.argmax(-1, keepdim=True), 1.0)
        else:
            uniform = 2 * uniform - 1
        return uniform

    def _think(self, obs: Obs, began: np.ndarray, state: State, deterministic: bool = False) -> Any:
        to = functools.partial(torch.as_tensor, device=self.device)
        pixels = {key: to(image) for key, image in self.encoding.pixels(obs).items()}
        return self.learner.think(to(self.encoding.vector(obs)), pixels, to(began), state, deterministic)

    # ------------------------------------------------------------------ the reward's head

    def head_gap(self) -> float:
        """How far the reward head is off on this rollout, in the replay's deviations; 0 if all is paid alike."""
        if not self._recent:
            return 0.0
        to, batches = functools.partial(torch.as_tensor, device=self.device), [batch for batch, _ in self._recent]
        images = [self.encoding.pixels(batch.obs) for batch in batches]
        valid = np.stack([batch.valid for batch in batches])
        seen = Observed(
            to(np.stack([self.encoding.vector(batch.obs) for batch in batches])),
            {key: to(np.stack([image[key] for image in images])) for key in images[0]},
            torch.stack([action for _, action in self._recent]),
            to(np.stack([(batch.step == 0) & batch.valid for batch in batches])),
            to(valid),
        )
        count = min(int(valid.sum()), len(self.replay))
        if not count:
            return 0.0
        paid = self.replay.newest(count).reward
        spread = float(torch.cat([paid, self.replay.sample(SPREAD).reward]).std(correction=0))
        return self.learner.head_error(seen, paid) / spread if spread > 0 else 0.0

    def _watch_head(self) -> float:
        """Measure it; a jump means that the reward is another, and the head is refitted before the policy dreams on."""
        gap = self.head_gap()
        if self._usual and gap > max(LARGE, JUMP * self._usual):
            self.learner.refit(self.replay)
            self.refits += 1
        self._usual += (FOLLOW if self._usual else 1.0) * (gap - self._usual)
        return gap

    def update(self) -> dict[str, Any]:
        """After a rollout: is the reward head still right, and is every number finite?"""
        if self._n_updates:
            self.logger.record("train/head_gap", self._watch_head())
        if self.steps.on_nan.what == "zero":
            self.logger.record("reward/nan", self.steps.on_nan.zeroed)
        self._recent.clear()
        if not self.keep_or_restore(self.learner.finite()):
            self.learner.metrics()  # of the diverged weights
            self.state = self.learner.initial(self.steps.n)
            self.logger.record("train/restored", self._restored)
        return {}

    def dump_logs(self, iteration: int = 0) -> None:
        """Write a row of the log: means since the last one."""
        for name, value in self.learner.metrics().items():
            self.logger.record(f"train/{name}", value)
        self.record(self.replay.metrics)
        self.logger.record("train/refits", self.refits)
        self.logger.record("train/updates_per_step", self._n_updates / max(self.num_timesteps, 1))
        super().dump_logs(iteration)

    # ------------------------------------------------------------------ acting and files

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, np.ndarray]:
        """The state is what the world model remembers, float32 (B, S)."""
        n = len(starts)
        parts = self.learner.initial(n)
        if state is not None:
            pieces = torch.as_tensor(state, device=self.device).split([x[0].numel() for x in parts.values()], -1)
            parts = {name: x.reshape(parts[name].shape) for name, x in zip(parts, pieces)}
        action, after = self._think(obs, starts, parts, deterministic)
        memory = torch.cat([after[name].reshape(n, -1) for name in parts], -1).cpu().numpy()
        return self.encoding.decode(action.cpu().numpy()), memory

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._learned_from = self.replay.metrics
        self.keep_finite()


def _notes(scorer: Any) -> list[str]:
    """What is worth saying of a reward that is paid in dreams."""
    shown = sorted({"frame", "text", "signals"} & set(scorer.requires))
    if not shown and scorer.relabelable:
        return []
    reads = f"reads {', '.join(shown)}" if shown else "remembers the episode"
    return [f"the reward {reads}, which is not imagined: dreams are paid by its head; see train/head_gap"]
