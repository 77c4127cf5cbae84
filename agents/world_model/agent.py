"""A world model: a latent model of the environment, and a behaviour learned in it; for pixels, grids, dicts and memory.

    act -> step -> replay -> the model learns from relabelled sequences -> the behaviour learns in the model

The latent is shaped by what it must predict: the next latents, the reward, the end, at times the observation. Imagined
rewards are those of the reward head, which is fitted to relabelled sequences, so that any reward serves. When the
reward itself has learned, the head's error (`train/head_gap`) jumps; then it is refitted alone first.

Source: the presets', see `agents.world_model.config`; relabelled rewards are ours.
Differences: sizes are for one CPU core; `agents.dynamics.cells`, `model`, `imag_ac`, `td3` and `mpc` name their own.
When it fails: few steps on a small state vector, which `agents.dyna.agent` models more cheaply; a reward that is random
(the head predicts its mean).
"""

import functools
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agents.base import BaseAgent, Means, OnStep, Steps
from agents.dynamics.cells import State
from agents.networks.actor_critic import SpaceEncoding
from agents.replay.replay import FrozenReward, Replay, Sequences
from agents.world_model.config import WorldModelConfig
from agents.world_model.imag_ac import ImagActorCritic, descend
from agents.world_model.model import LatentModel, Replayed
from agents.world_model.mpc import LatentMPC
from agents.world_model.td3 import LatentTD3
from envs.transitions import Transitions
from envs.types import Obs, ReplayScorer
from lodestar.numerics.flat import Flat

JUMP, LARGE = 2.0, 0.5  # a head's error this many times the usual, and this large, means that the reward has changed
FOLLOW = 0.2  # how fast the usual error follows
SPREAD = 256  # rows to estimate the rewards' deviation from


class WorldModel(BaseAgent):
    """A latent model and a behaviour, over a Gymnasium vector environment."""

    Config: ClassVar[type[WorldModelConfig]] = WorldModelConfig
    recovers: ClassVar[bool] = True
    n_envs: ClassVar[int] = 4
    scorer_type: ClassVar[type[Any]] = ReplayScorer
    scorer: ReplayScorer
    config: WorldModelConfig
    saved: ClassVar[dict[str, str]] = {
        **{"modules.policy": "policy", "optimizer": "learner.flats", "counters.timesteps": "num_timesteps"},
        **{"counters.updates": "_n_updates", "counters.refits": "refits", "counters.restored": "_restored"},
        **{"counters.restored_in_row": "_restored_in_row", "counters.behaviour": "learner.behaviour.updates"},
        **{"numbers.pending": "_pending", "numbers.usual": "_usual", "log": "learner.means"},
        **{"generator": "learner.generator", "state": "state", "steps": "steps", "replay": "replay"},
    }
    lasting: ClassVar[dict[str, str]] = {  # the running episodes do not
        **{key: name for key, name in saved.items() if key not in ("modules.policy", "state", "steps", "replay")},
        "episodes": "episodes",
    }
    recoverable: ClassVar[dict[str, str]] = {"weights": "learner", "optimizer": "learner.flats"}

    def _set_up(self) -> None:
        config, envs, seed = self.config, self.envs, self.seed
        self.encoding = encoding = SpaceEncoding(self.observation_space, self.action_space)
        self.notes = _notes(self.scorer)
        self._frozen = None if config.relabel else FrozenReward(self.scorer)
        self.policy = self.learner = WorldLearner(config, encoding, seed=seed, device=self.device)
        self.steps = Steps(envs, seed, self.scorer)
        self.episodes = self.steps.episodes
        options: Any = {"gamma": config.gamma, "sampling": config.sampling, "device": self.device, "seed": seed}
        self.replay = Replay(config.buffer_size, envs.num_envs, encoding, self._frozen or self.scorer, **options)
        self.state = self.learner.initial(envs.num_envs)
        self._pending, self._usual, self.refits = 0.0, 0.0, 0  # _usual: 0 before it is known
        self._learned_from = self.replay.metrics
        self._recent: list[tuple[Transitions, Tensor]] = []  # this rollout, with encoded actions
        self.keep_finite()

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        SpaceEncoding(observation_space, action_space)

    def collect(self, on_step: OnStep) -> bool:
        config, n = self.config, self.steps.n
        for _ in range(config.rollout):
            action = self._act()
            batch = self.steps.step(action, self.encoding)
            self._recent.append((batch, action))
            if self._frozen is not None:
                self._frozen.timesteps = self.num_timesteps
            self.replay.add(batch)
            self.num_timesteps += n
            if not on_step(batch.reward, batch.ended, self.steps.obs):
                return False
            changed, self._learned_from = self.replay.metrics is not self._learned_from, self.replay.metrics
            if len(self.replay) < config.learning_starts or not self._filled:
                continue
            if changed:  # the reward has learned: earlier steps may have other rewards now
                self._watch_head()
            self._pending += n * config.train_ratio / (config.batch_size * config.batch_length)
            while self._pending >= 1:
                self._pending -= 1
                self.learner.update(self.replay)
                self._n_updates += 1
        return True

    @property
    def _filled(self) -> bool:
        return self.replay.added >= (self.learner.longest + 1) * self.steps.n

    @classmethod
    def samples(cls, config: WorldModelConfig, action_space: gym.Space) -> bool:
        return config.behaviour == "imag_ac" and not isinstance(action_space, gym.spaces.Box)

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        self.learner.generator.manual_seed(seed)

    def _act(self) -> Tensor:
        action, self.state = self._think(self.steps.obs, self.steps.began, self.state)
        if self._n_updates or len(self.replay) >= self.config.learning_starts:
            return action
        uniform = torch.rand(action.shape, generator=self.learner.generator, device=self.device)
        if not self.encoding.discrete:
            return 2 * uniform - 1
        return torch.zeros_like(uniform).scatter_(-1, uniform.argmax(-1, keepdim=True), 1.0)

    def _think(self, obs: Obs, began: np.ndarray, state: State, deterministic: bool = False) -> Any:
        to = functools.partial(torch.as_tensor, device=self.device)
        pixels = {key: to(image) for key, image in self.encoding.pixels(obs).items()}
        return self.learner.think(to(self.encoding.vector(obs)), pixels, to(began), state, deterministic)

    def head_gap(self) -> float:
        """Error of the reward head on this rollout, in the replay's deviations; 0 if all rewards are equal."""
        if not self._recent:
            return 0.0
        to, batches = functools.partial(torch.as_tensor, device=self.device), [batch for batch, _ in self._recent]
        images = [self.encoding.pixels(batch.obs) for batch in batches]
        valid = np.stack([batch.valid for batch in batches])
        count = min(int(valid.sum()), len(self.replay))
        if not count:
            return 0.0
        reward = self.replay.newest(count).reward
        spread = float(torch.cat([reward, self.replay.sample(SPREAD).reward]).std(correction=0))
        if not spread > 0:
            return 0.0
        vector = to(np.stack([self.encoding.vector(batch.obs) for batch in batches]))
        pixels = {key: to(np.stack([image[key] for image in images])) for key in images[0]}
        action = torch.stack([action for _, action in self._recent])
        first = to(np.stack([(batch.step == 0) & batch.valid for batch in batches]))
        world = self.learner.world
        with torch.no_grad():
            states, _ = world.cell.observe(world.encoder(vector, pixels), action, first)
            predicted = world.reward(world.cell.features(states), action)[to(valid)][-count:]
        return float((predicted - reward).square().mean().sqrt()) / spread

    def _watch_head(self) -> float:
        """Measure the gap; a jump means that the reward has changed, and the head is refitted first."""
        gap = self.head_gap()
        if self._usual and gap > max(LARGE, JUMP * self._usual):
            self.learner.refit(self.replay)
            self.refits += 1
        self._usual += (FOLLOW if self._usual else 1.0) * (gap - self._usual)
        return gap

    def update(self) -> dict[str, Any]:
        """After a rollout: is the reward head still right, and is every number finite?"""
        if self._n_updates and self._filled:
            self.logger.record("train/head_gap", self._watch_head())
        if self.steps.on_nan.what == "zero":
            self.logger.record("reward/nan", self.steps.on_nan.zeroed)
        self._recent.clear()
        if not self.keep_or_restore(self.learner.finite()):
            self.learner.means.read()  # of the diverged weights
            self.state = self.learner.initial(self.steps.n)
            self.logger.record("train/restored", self._restored)
        return {}

    def dump_logs(self, iteration: int = 0) -> None:
        self.record({f"train/{name}": value for name, value in self.learner.means.read().items()})
        self.record(self.replay.measure())
        self.logger.record("train/refits", self.refits)
        self.logger.record("train/updates_per_step", self._n_updates / max(self.num_timesteps, 1))
        super().dump_logs(iteration)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, np.ndarray]:
        """The state is the cell's and the behaviour's, float32 (B, S)."""
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

    def _succeed(self, old: "WorldModel") -> None:
        super()._succeed(old)
        self.replay.take(old.replay)
        self.keep_finite()


def _notes(scorer: ReplayScorer) -> list[str]:
    modalities = sorted({"frame", "text", "signals"} & set(scorer.requires))
    if not modalities and scorer.relabelable:
        return []
    reads = f"reads {', '.join(modalities)}" if modalities else "depends on the episode before"
    return [f"the reward {reads}, which is not imagined: imagined rewards are its head's; see train/head_gap"]


class WorldLearner(nn.Module):
    """A `LatentModel` and a behaviour: `ImagActorCritic`, `LatentMPC` or `LatentTD3`."""

    def __init__(self, config: WorldModelConfig, encoding: SpaceEncoding, *, seed: int, device: torch.device) -> None:
        super().__init__()
        if config.behaviour == "mppi" and encoding.discrete:
            raise ValueError(
                f'agent.behaviour="mppi" plans continuous actions, not {encoding.action_space}; give '
                "agent.preset=mrq or agent.preset=r2dreamer"
            )
        self.config = config
        self.generator = torch.Generator(device).manual_seed(seed)  # draws latents and actions
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.world = LatentModel(encoding, config, self.generator)
            behaviour = {"imag_ac": ImagActorCritic, "mppi": LatentMPC, "td3": LatentTD3}[config.behaviour]
            self.behaviour: Any = behaviour(config, encoding, self.world.cell.size, self.generator, seed)
        self.to(device)
        self.flats: dict[str, Flat] = {**self.world.flats(), **self.behaviour.flats()}  # parameters as vectors
        self.length = config.batch_length + config.unroll  # steps of sampled sequences
        self.longest = max(self.length, config.n_step + 1)  # steps that must be in the replay
        self.means = Means()

    def initial(self, n: int) -> State:
        """The states of N environments before their episodes: parts (N, ...)."""
        with torch.no_grad():
            return {**self.world.cell.initial(n), **self.behaviour.initial(n)}

    @torch.no_grad()
    def think(
        self, vector: Tensor, pixels: dict[str, Tensor], first: Tensor, state: State, deterministic: bool = False
    ) -> tuple[Tensor, State]:
        """Update the state by observations, choose actions, and predict the next state; deterministic: the likeliest.

        `vector` (N, D) and `pixels` (N, C, H, W) are observed, `first` bool (N,) where an episode begins, and `state`
        has parts (N, ...). Returns actions (N, A) in [-1, 1] or one-hot, and the next state.
        """
        cell = self.world.cell
        embed = self.world.encoder(vector, pixels)[None]
        unread = embed.new_zeros(1, len(first), self.world.encoding.action_size)
        expected = {name: state[name] for name in cell.sizes}
        states, _ = cell.observe(embed, unread, first[None], expected, sample=not deterministic)
        now = {name: part[0] for name, part in states.items()}
        memory = {
            name: torch.where(first.view(-1, *[1] * (empty.dim() - 1)), empty, state[name])
            for name, empty in self.behaviour.initial(len(first)).items()
        }
        action, memory = self.behaviour.act(self.world, now, memory, deterministic)
        action = action.clamp(-1, 1)
        expected = cell.step(now, action, sample=False) if "h" in now else now
        return action, {**expected, **memory}

    def update(self, replay: Replay) -> None:
        config, behaviour, size = self.config, self.behaviour, self.config.batch_size
        replayed = None
        if config.behaviour == "td3":
            if behaviour.updates % config.burst == 0:  # bursts, between which the values' inputs stay
                behaviour.begin_burst(self.world, replay.sequences(size, self.length).reward)
                for _ in range(config.burst):
                    self._fit(replay.sequences(size, self.length))
            sequences = replay.sequences(size, config.n_step + 1)
        else:
            sequences = replay.sequences(size, self.length)
            replayed = self._fit(sequences)
            if config.sampling == "dfs":
                sequences = replay.sequences(size, self.length, imagine=True)
                replayed = self.world.replayed(sequences)
        self.means.add(behaviour.update(self.world, sequences, replayed))
        if config.sampling == "lap":
            replay.sampler.set_priority(*behaviour.errors)

    def _fit(self, sequences: Sequences) -> Replayed:
        joint = self.behaviour.joint
        loss, replayed = self.world.loss(sequences, self.behaviour.value_loss if joint else None)
        descend(self.flats, self.config, loss, "model", "reward", *(["critic"] if joint else []))
        self.means.add({f"{name}_loss": value for name, value in self.world.metrics.items()})
        return replayed

    def refit(self, replay: Replay) -> None:
        for _ in range(self.config.refit):
            replayed = self.world.replayed(replay.sequences(self.config.batch_size, self.length))
            loss = self.world.reward_loss(replayed.features, replayed.action, replayed.reward)[replayed.valid].mean()
            descend(self.flats, self.config, loss, "reward")

    def finite(self) -> bool:
        numbers = [*(flat.value.sum() for flat in self.flats.values()), *self.means.sums.values()]
        return bool(torch.isfinite(torch.stack(numbers)).all())
