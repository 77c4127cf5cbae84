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

from agents.base import OwnAgent, is_single
from agents.dynamics.cells import State
from agents.env_stepper import Steps
from agents.networks.space_encoding import SpaceEncoding
from agents.replay.frozen_reward import FrozenReward
from agents.replay.replay import Replay
from agents.task_reward import TaskScorer, checked
from agents.world_model.config import WorldModelConfig
from agents.world_model.learner import Observed, WorldLearner
from envs.types import Obs, ReplayScorer, Transitions, map_obs

JUMP, LARGE = 2.0, 0.5  # a head's error that is this many times the usual, and this large, belongs to another reward
FOLLOW = 0.2  # how fast the usual error follows
SPREAD = 256  # rows that say how much rewards differ
PATIENCE = 3  # restored snapshots in a row before it is given up


class WorldModel(OwnAgent):
    """A latent world model and what learns to act in it, over a Gymnasium vector environment.

    Args:
        envs: a `gymnasium.vector.VectorEnv` that resets by itself.
        config: a `WorldModelConfig`.
        scorer: what pays: a `rewards.mix.mix.Mix`, or None for the task's own reward.
        seed: of the weights, the actions and the minibatches.
        device: as torch writes it.

    Attributes:
        notes: sentences about how this reward is used.

    Raises:
        ValueError: for spaces it cannot take.
    """

    Config: ClassVar[type[WorldModelConfig]] = WorldModelConfig
    driver: ClassVar[str] = "scorer"
    recovers: ClassVar[bool] = True
    n_envs: ClassVar[int] = 4

    def __init__(
        self,
        envs: Any,
        config: WorldModelConfig | None = None,
        *,
        scorer: Any = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__()
        self.config = config = WorldModelConfig() if config is None else config
        self.envs, self.seed, self.device = envs, seed, torch.device("cpu" if device == "auto" else device)
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        self.encoding = encoding = SpaceEncoding(self.observation_space, self.action_space)
        self.scorer = TaskScorer(config.gamma) if scorer is None else checked(scorer, ReplayScorer)  # type: ignore[arg-type]
        self.notes = _notes(self.scorer)
        self._stale = None if config.relabel else FrozenReward(self.scorer)
        self.policy = self.learner = WorldLearner(config, encoding, seed=seed, device=self.device)
        self.steps = Steps(envs, seed, self.scorer)
        self.ep_info_buffer, self.ep_success_buffer = self.steps.episodes, self.steps.successes
        self.replay = Replay(
            config.buffer_size,
            envs.num_envs,
            encoding,
            self._stale or self.scorer,
            gamma=config.gamma,  # type: ignore[arg-type]
            device=self.device,
            seed=seed,
            sampling=config.sampling,  # type: ignore[arg-type]
        )
        self.state = self.learner.initial(envs.num_envs)
        self._owed, self._usual, self._restored, self.refits = 0.0, 0.0, 0, 0  # _usual: 0 before it is known
        self._learned_from = self.replay.metrics
        self._recent: list[tuple[Transitions, Tensor]] = []  # this rollout, with the actions as the world has them

    @classmethod
    def build(
        cls, config: WorldModelConfig, envs: Any, *, seed: int, device: str = "cpu", scorer: Any = None
    ) -> WorldModel:
        """The agent of a run."""
        return cls(envs, config, scorer=scorer, seed=seed, device=device)

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        """Refuse spaces the agent cannot handle.

        Raises:
            ValueError: naming the space.
        """
        SpaceEncoding(observation_space, action_space)

    # ------------------------------------------------------------------ learning

    def learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        log_interval: int | None = 1,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        tb_log_name: str = "WorldModel",
    ) -> WorldModel:
        """Act and learn for `total_timesteps` environment steps, summed over environments, in whole rollouts.

        Raises:
            FloatingPointError: if the environment gives a number that is none, or learning does, again and again.
        """
        callback = self._begin(int(total_timesteps), callback, reset_num_timesteps, progress_bar)
        iteration, going = 0, True
        while going and self.num_timesteps < self._total_timesteps:
            self.steps.begin()
            callback.on_rollout_start()
            going = self._rollout(callback)
            if not going:
                break
            self._settle()
            callback.on_rollout_end()
            iteration += 1
            if log_interval is not None and iteration % log_interval == 0:
                self._record()
                self.dump_logs(iteration)
        callback.on_training_end()
        return self

    def _rollout(self, callback: Any) -> bool:
        """Some steps with the updates they are owed; False where the callback wants no more."""
        config, n = self.config, self.steps.n
        for _ in range(config.rollout):
            action = self._act()
            batch = self.steps.step(action, self.encoding)
            self._recent.append((batch, action))
            if self._stale is not None:
                self._stale.timesteps = self.num_timesteps
            self.replay.add(batch)
            self.num_timesteps += n
            callback.update_locals({"rewards": batch.reward, "dones": batch.terminated | batch.truncated})
            if not callback.on_step():
                return False
            learnt, self._learned_from = self.replay.metrics is not self._learned_from, self.replay.metrics
            if len(self.replay) < config.learning_starts or self.replay.added < (self.learner.longest + 1) * n:
                continue
            if learnt:  # what was paid for the steps before may be worth something else now
                self._watch_head()
            self._owed += n * config.train_ratio / (config.batch_size * config.batch_length)  # type: ignore[operator]
            while self._owed >= 1:
                self._owed -= 1
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

    def _settle(self) -> None:
        """After a rollout: does the head still say what is paid, and is everything still a number?"""
        if self._n_updates:
            self.logger.record("train/head_gap", self._watch_head())
        if self.steps.on_nan.what == "zero":
            self.logger.record("reward/nan", self.steps.on_nan.zeroed)
        self._recent.clear()
        if self.learner.sound():
            self._restored = 0
            return
        self._restored += 1
        self.state = self.learner.initial(self.steps.n)
        self.logger.record("train/restored", self._restored)
        if self._restored >= PATIENCE:
            raise FloatingPointError(
                f"learning gave numbers that are none {PATIENCE} times in a row, last after {self.num_timesteps:,} "
                f"steps; lower agent.model_learning_rate={self.config.model_learning_rate}, or look at the reward"
            )

    def _record(self) -> None:
        """Hand the logger what was added up."""
        for name, value in self.learner.metrics().items():
            self.logger.record(f"train/{name}", value)
        for tag, value in self.replay.metrics.items():
            self.logger.record(tag, value)
        self.logger.record("train/refits", self.refits)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/updates_per_step", self._n_updates / max(self.num_timesteps, 1))

    # ------------------------------------------------------------------ verbs

    def predict(
        self, observation: Obs, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """Actions for one observation or a batch (B, ...), and what is remembered, float32 (B, S).

        `episode_start`, bool (B,), empties that memory.
        """
        single = is_single(observation, self.observation_space)
        rows = map_obs(lambda x: np.asarray(x)[None], observation) if single else observation
        n = len(next(iter(rows.values())) if isinstance(rows, dict) else rows)
        state_parts = self.learner.initial(n)
        starts = np.zeros(n, bool) if episode_start is None else np.asarray(episode_start, bool).reshape(n)
        if state is not None:
            pieces = torch.as_tensor(state, device=self.device).split([x[0].numel() for x in state_parts.values()], -1)
            state_parts = {name: x.reshape(state_parts[name].shape) for name, x in zip(state_parts, pieces)}
        action, after = self._think(rows, starts, state_parts, deterministic)
        memory = torch.cat([after[name].reshape(n, -1) for name in state_parts], -1).cpu().numpy()
        taken = self.encoding.decode(action.cpu().numpy())
        return (taken[0] if single else taken), memory

    def get_state(self) -> dict[str, Any]:
        """All that it takes to go on exactly here, between two rollouts; no pickle."""
        return {
            "modules": {"policy": self.policy.state_dict()},
            "optimizer": {name: flat.state_dict() for name, flat in self.learner.flats.items()},
            "counters": {
                "timesteps": self.num_timesteps,
                "updates": self._n_updates,
                "refits": self.refits,
                "restored": self._restored,
                "behaviour": self.learner.behaviour.updates,
            },
            "numbers": {"owed": self._owed, "usual": self._usual},
            "generator": self.learner.generator.get_state(),
            "state": self.state,
            "steps": self.steps.state_dict(),
            "replay": self.replay.state_dict(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned into an agent built with the same configuration."""
        self.policy.load_state_dict(state["modules"]["policy"])
        for name, flat in self.learner.flats.items():
            flat.load_state_dict(state["optimizer"][name])
        counters = state["counters"]
        self.num_timesteps, self._n_updates = counters["timesteps"], counters["updates"]
        self.refits, self._restored = counters["refits"], counters["restored"]
        self.learner.behaviour.updates = counters["behaviour"]
        self._owed, self._usual = state["numbers"]["owed"], state["numbers"]["usual"]
        self.learner.generator.set_state(torch.as_tensor(state["generator"], dtype=torch.uint8).cpu())
        self.state = {name: torch.as_tensor(part, device=self.device) for name, part in state["state"].items()}
        self.steps.load_state_dict(state["steps"])
        self.replay.load_state_dict(state["replay"])
        self._learned_from = self.replay.metrics
        self.learner.keep()


def _notes(scorer: Any) -> list[str]:
    """What is worth saying of a reward that is paid in dreams."""
    shown = sorted({"frame", "text", "signals"} & set(scorer.requires))
    if not shown and scorer.relabelable:
        return []
    reads = f"reads {', '.join(shown)}" if shown else "remembers the episode"
    return [f"the reward {reads}, which is not imagined: dreams are paid by its head; see train/head_gap"]
