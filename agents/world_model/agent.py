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

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agents.base import BaseAgent, Means, OnStep, Steps
from agents.dynamics.cells import State
from agents.networks.actor_critic import SpaceEncoding
from agents.replay.demonstrations import MixedReplay, demonstrations
from agents.replay.replay import FrozenReward, Replay, Sequences
from agents.world_model.config import WorldModelConfig
from agents.world_model.imag_ac import Behaviour, ImagActorCritic, descend, one_hot_argmax
from agents.world_model.model import LatentModel, Pixels, Replayed
from agents.world_model.mpc import LatentMPC
from agents.world_model.td3 import LatentTD3
from envs.transitions import Transitions, stack
from envs.types import Obs, Options, ReplayScorer, StateDict
from lodestar.mappings import map_values, take_rows
from lodestar.numerics.descent import Flat, draw_uniform

# The reward counts as changed where the head's error is this many times the usual one, and at least this large.
HEAD_GAP_JUMP = 2.0
MIN_HEAD_GAP = 0.5
# Share of a new error in the running mean of the head's errors.
HEAD_GAP_RATE = 0.2
# Replayed rewards that the rewards' deviation is estimated from, beside those of the rollout.
N_DEVIATION_ROWS = 256

BEHAVIOURS: dict[str, type[Behaviour]] = {"imag_ac": ImagActorCritic, "mppi": LatentMPC, "td3": LatentTD3}


class WorldModel(BaseAgent):
    """A latent model and a behaviour, over a Gymnasium vector environment."""

    Config = WorldModelConfig
    recovers = True
    # Its policy learns in the model alone.
    rate_setting = "model_learning_rate"
    n_envs = 4
    scorer_type = ReplayScorer
    scorer: ReplayScorer
    config: WorldModelConfig
    saved = {
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
        "log": "learner.means",
        "generator": "learner.generator",
        "state": "state",
        "steps": "steps",
        "replay": "replay",
    }
    # The running episodes end where the reward is exchanged, so their latent states are not taken over.
    lasting = {
        **{key: name for key, name in saved.items() if key not in ("modules.policy", "state", "steps", "replay")},
        "episodes": "episodes",
    }
    recoverable = {"weights": "learner", "optimizer": "learner.flats"}

    def _set_up(self) -> None:
        config = self.config
        envs = self.envs
        self.encoding = SpaceEncoding(self.observation_space, self.action_space)
        self.notes = reward_notes(self.scorer)
        self._frozen = None
        if not config.relabel:
            self._frozen = FrozenReward(self.scorer)
        self.learner = WorldLearner(config, self.encoding, seed=self.seed, device=self.device)
        self.policy = self.learner
        self.steps = Steps(envs, self.seed, self.scorer)
        self.episodes = self.steps.episodes
        self.replay = self._make_replay()
        self.state = self.learner.initial(envs.num_envs)
        # Updates that are due, a fraction of one included.
        self._pending = 0.0
        # The running mean of the reward head's error; 0 before its first measurement.
        self._usual = 0.0
        self.refits = 0
        self._learned_from = self.replay.metrics
        # The steps of this rollout, with their encoded actions.
        self._recent: list[tuple[Transitions, Tensor]] = []
        self.keep_finite()

    def _make_replay(self) -> Replay:
        config = self.config
        place = (config.buffer_size, self.envs.num_envs, self.encoding, self._frozen or self.scorer)
        options: Options = {
            "gamma": config.gamma,
            "sampling": config.sampling,
            "device": self.device,
            "seed": self.seed,
        }
        if not config.demos:
            return Replay(*place, **options)
        demos = demonstrations(self)
        if len(demos.step) <= self.learner.longest:
            raise ValueError(
                f"agent.demos={config.demos} holds {len(demos.step)} transitions, and a sequence of this model "
                f"{self.learner.longest + 1}; record more, or give a smaller agent.batch_length"
            )
        return MixedReplay(*place, demos=demos, demo_share=config.demo_share, **options)

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        SpaceEncoding(observation_space, action_space)

    def collect(self, on_step: OnStep) -> bool:
        for _ in range(self.config.rollout):
            action = self._act()
            batch = self.steps.step(action, self.encoding)
            self._recent.append((batch, action))
            if self._frozen is not None:
                self._frozen.timesteps = self.num_timesteps
            self.replay.add(batch)
            self.num_timesteps += self.steps.n
            if not on_step(batch.reward, batch.ended, self.steps.obs):
                return False
            reward_learned = self.replay.metrics is not self._learned_from
            self._learned_from = self.replay.metrics
            if len(self.replay) < self.config.learning_starts or not self._is_filled:
                continue
            # The reward has learned, so earlier steps may have other rewards now.
            if reward_learned:
                self._watch_head()
            self._run_due_updates()
        return True

    def _run_due_updates(self) -> None:
        """Replay `train_ratio` steps for each environment step, in updates of batch_size * batch_length."""
        config = self.config
        replayed_steps = self.steps.n * config.train_ratio
        self._pending += replayed_steps / (config.batch_size * config.batch_length)
        while self._pending >= 1:
            self._pending -= 1
            self.learner.update(self.replay)
            self._n_updates += 1

    @property
    def _is_filled(self) -> bool:
        return self.replay.added >= (self.learner.longest + 1) * self.steps.n

    @classmethod
    def samples(cls, config: WorldModelConfig, action_space: gym.Space) -> bool:
        return config.behaviour == "imag_ac" and not isinstance(action_space, gym.spaces.Box)

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        self.learner.generator.manual_seed(seed)

    def _act(self) -> Tensor:
        observed = self._read(self.steps.obs)
        began = self.tensor(self.steps.began)
        action, self.state = self.learner.think(*observed, began, self.state, seek=self.config.alpha_real > 0)
        if self._n_updates or len(self.replay) >= self.config.learning_starts:
            return action
        # Before the first update actions are uniform: in [-1, 1], or one-hot at the largest of A random numbers.
        uniform = draw_uniform(self.learner.generator, *action.shape)
        if not self.encoding.discrete:
            return 2 * uniform - 1
        return one_hot_argmax(uniform)

    def _read(self, obs: Obs, leading: int = 1) -> tuple[Tensor, Pixels]:
        """Numbers (*leading axes, D) and images of observations."""
        images = self.encoding.pixels(obs)
        pixels = map_values(self.tensor, images)
        return self.tensor(self.encoding.vector(obs, leading)), pixels

    def head_gap(self) -> float:
        """Error of the reward head on this rollout, in the replay's deviations; 0 if all rewards are equal."""
        valid_steps = sum(int(batch.valid.sum()) for batch, _ in self._recent)
        count = min(valid_steps, len(self.replay))
        if not count:
            return 0.0
        reward = self.replay.newest(count).reward
        rewards = torch.cat([reward, self.replay.sample(N_DEVIATION_ROWS).reward])
        deviation = float(rewards.std(correction=0))
        if not deviation > 0:
            return 0.0
        error = self._predicted_rewards()[-count:] - reward
        return float(error.square().mean().sqrt()) / deviation

    @torch.no_grad()
    def _predicted_rewards(self) -> Tensor:
        """The reward head's predictions for the valid steps of this rollout, in time order."""
        batches, actions = zip(*self._recent)
        action = torch.stack(actions)
        rollout = stack(list(batches))
        vector, pixels = self._read(rollout.obs, leading=2)
        world = self.learner.world
        embed = world.encoder(vector, pixels)
        first = self.tensor((rollout.step == 0) & rollout.valid)
        states, _ = world.cell.observe(embed, action, first)
        features = world.cell.features(states)
        rewards = world.reward(features, action)
        return rewards[self.tensor(rollout.valid)]

    def _watch_head(self) -> float:
        """Measure the gap; a jump means that the reward has changed, and the head is refitted first."""
        gap = self.head_gap()
        if self._usual and gap > max(MIN_HEAD_GAP, HEAD_GAP_JUMP * self._usual):
            self.learner.refit(self.replay)
            self.refits += 1
        rate = HEAD_GAP_RATE if self._usual else 1.0
        self._usual += rate * (gap - self._usual)
        return gap

    def update(self) -> dict[str, Any]:
        """After a rollout: is the reward head still right, and is every number finite?"""
        if isinstance(self.replay, MixedReplay):
            self.replay.rescore_episodes()
        if self._n_updates and self._is_filled:
            self.logger.record("train/head_gap", self._watch_head())
        if self.steps.on_nan.what == "zero":
            self.logger.record("reward/nan", self.steps.on_nan.zeroed)
        self._recent.clear()
        if not self.keep_or_restore(self.learner.finite()):
            # Metrics and latent states are those of the diverged weights.
            self.learner.means.read()
            self.state = self.learner.initial(self.steps.n)
            self.logger.record("train/restored", self._restored)
        return {}

    def dump_logs(self, iteration: int = 0) -> None:
        self.record_replay(self.learner.means)
        self.logger.record("train/refits", self.refits)
        super().dump_logs(iteration)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        """The state is the cell's and the behaviour's, float32 (B, ...) each."""
        parts = self.learner.initial(len(starts))
        if state is not None:
            parts = map_values(self.tensor, state)
        action, next_state = self.learner.think(*self._read(obs), self.tensor(starts), parts, deterministic)
        memory = {name: part.cpu().numpy() for name, part in next_state.items()}
        return self.encoding.decode(action.cpu().numpy()), memory

    def set_state(self, state: StateDict) -> None:
        super().set_state(state)
        self._learned_from = self.replay.metrics
        self.keep_finite()

    def _succeed(self, old: "WorldModel") -> None:
        super()._succeed(old)
        self.replay.take(old.replay)
        self.keep_finite()


def reward_notes(scorer: ReplayScorer) -> list[str]:
    """What the user has to know of a reward that reads more than observations and actions; empty for others."""
    modalities = sorted({"frame", "text", "signals"} & set(scorer.requires))
    if modalities:
        inputs = f"reads {', '.join(modalities)}"
    elif not scorer.relabelable:
        inputs = "depends on the episode before"
    else:
        return []
    return [f"the reward {inputs}, which is not imagined: imagined rewards are its head's; see train/head_gap"]


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
        # Draws latents and actions.
        self.generator = torch.Generator(device).manual_seed(seed)
        # Layers draw their first weights from torch's global generator, which is left as it was.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.world = LatentModel(encoding, config, self.generator)
            behaviour = BEHAVIOURS[config.behaviour]
            size = self.world.cell.size
            self.behaviour: Any = behaviour(config, encoding, size, self.generator, seed)
        self.to(device)
        self.flats: dict[str, Flat] = {**self.world.flats(), **self.behaviour.flats()}
        # Steps of a sampled sequence, and steps that the replay must hold before the first update.
        self.length = config.batch_length + config.unroll
        self.longest = max(self.length, config.n_step + 1)
        self.means = Means()

    def initial(self, n: int) -> State:
        """The states of N environments before their episodes: parts (N, ...)."""
        with torch.no_grad():
            latent = self.world.cell.initial(n)
            return {**latent, **self.behaviour.initial(n)}

    @torch.no_grad()
    def think(
        self,
        vector: Tensor,
        pixels: Pixels,
        first: Tensor,
        state: State,
        deterministic: bool = False,
        seek: bool = False,
    ) -> tuple[Tensor, State]:
        """Update the state by observations, choose actions, and predict the next state; deterministic: the likeliest.

        To `seek` is to choose actions that lead to what the model does not know.

        `vector` (N, D) and `pixels` (N, C, H, W) are observed, `first` bool (N,) where an episode begins, and `state`
        has parts (N, ...). Returns actions (N, A) in [-1, 1] or one-hot, and the next state.
        """
        cell = self.world.cell
        embed = self.world.encoder(vector, pixels)[None]
        # A sequence of one step: the action taken in its last step is not read.
        no_action = embed.new_zeros(1, len(first), self.world.encoding.action_size)
        expected = {name: state[name] for name in cell.sizes}
        states, _ = cell.observe(embed, no_action, first[None], expected, sample=not deterministic)
        now = take_rows(states, 0)
        memory = self._reset_memory(state, first)
        if seek:
            action = self.behaviour.seek(self.world, now)
        else:
            action, memory = self.behaviour.act(self.world, now, memory, deterministic)
        action = action.clamp(-1, 1)
        # Only a cell with a memory "h" reads what it expected of the next step.
        expected = now
        if "h" in now:
            expected = cell.step(now, action, sample=False)
        return action, {**expected, **memory}

    def _reset_memory(self, state: State, first: Tensor) -> State:
        """The behaviour's parts of the state (N, ...), as before an episode where `first` (N,)."""
        memory = {}
        for name, initial in self.behaviour.initial(len(first)).items():
            entry_axes = [1] * (initial.dim() - 1)
            begins = first.view(-1, *entry_axes)
            memory[name] = torch.where(begins, initial, state[name])
        return memory

    def update(self, replay: Replay) -> None:
        """One update of the behaviour, and of the model unless that learns in bursts."""
        if self.config.behaviour == "td3":
            self._update_in_bursts(replay)
            return
        size = self.config.batch_size
        sequences = replay.sequences(size, self.length)
        replayed = self._fit(sequences)
        if self.config.sampling == "dfs":
            sequences = replay.sequences(size, self.length, imagine=True)
            replayed = self.world.replay_states(sequences)
        self.means.add(self.behaviour.update(self.world, sequences, replayed))

    def _update_in_bursts(self, replay: Replay) -> None:
        """The model learns `burst` times in a row; between two bursts the inputs of the values stay."""
        config = self.config
        behaviour = self.behaviour
        size = config.batch_size
        if behaviour.updates % config.burst == 0:
            behaviour.begin_burst(self.world, replay.sequences(size, self.length).reward)
            for _ in range(config.burst):
                self._fit(replay.sequences(size, self.length))
        sequences = replay.sequences(size, config.n_step + 1)
        self.means.add(behaviour.update(self.world, sequences))
        if config.sampling == "lap":
            replay.set_priority(*behaviour.errors)

    def _fit(self, sequences: Sequences) -> Replayed:
        value_loss = None
        trained = ["model", "reward"]
        # The value's loss shapes the latent too, so that the critic takes its step with the model.
        if self.behaviour.joint:
            value_loss = self.behaviour.value_loss
            trained.append("critic")
        losses, replayed = self.world.losses(sequences, value_loss)
        loss = torch.stack(list(losses.values())).sum()
        descend(self.flats, self.config, loss, *trained)
        self.means.add({f"{name}_loss": value for name, value in losses.items()})
        return replayed

    def refit(self, replay: Replay) -> None:
        """Train the reward head alone, on the model's states as they are."""
        for _ in range(self.config.refit):
            sequences = replay.sequences(self.config.batch_size, self.length)
            replayed = self.world.replay_states(sequences)
            loss = self.world.reward_loss(replayed.features, replayed.action, replayed.reward)
            descend(self.flats, self.config, loss[replayed.valid].mean(), "reward")

    def finite(self) -> bool:
        numbers = [flat.value.sum() for flat in self.flats.values()]
        numbers += self.means.sums.values()
        return bool(torch.isfinite(torch.stack(numbers)).all())
