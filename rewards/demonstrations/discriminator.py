"""Imitate a recording: a network learns to tell its transitions from the agent's, whose likeness to them is rewarded.

    gail   r = -log(1 - D)                 above 0; D(s, a) is the chance that a transition is a demonstrator's
    airl   r = log D - log(1 - D) = g(s, a) + gamma h(s') - h(s)         either sign; h(s') counts 0 at a terminal state
    sqil   r = 1 for the transitions of the recording, 0 for all others; nothing is learned. With `of=action` a
           transition is (s, a, s'), with `of=next_obs` it is (s, s'), whatever the action

Sources: Ho, Ermon 2016, "Generative Adversarial Imitation Learning", arXiv 1606.03476, algorithm 1; Fu, Luo, Levine
2018, "Learning Robust Rewards with Adversarial Inverse RL", arXiv 1710.11248, equation 4 (the shaping term); Reddy,
Dragan, Levine 2020, "SQIL", arXiv 1905.11108; `of=next_obs`: Torabi, Warnell, Stone 2018, arXiv 1807.06158. The penalty
of the slope: Mescheder, Geiger, Nowozin 2018, arXiv 1801.04406.
Differences:
  - a reward does not know the policy, so AIRL's D has no pi(a | s) in it: its logit is the ratio of densities itself;
  - negatives are the transitions since the last update alone (with a replay's agent raise `epochs`);
  - the slope is penalised towards 0, at points drawn evenly between a transition of each kind, where GAIL rewards the
    entropy of the policy;
  - SQIL's rewards follow the transition, not the buffer it came from: an agent that does exactly what was recorded
    earns 1, too; elsewhere than in small discrete worlds a replay has to hold the demonstrations.
Fails when: the end of an episode says more than the way (gail, above 0 everywhere, wants to live on, so in tasks that
succeed by ending take airl, or shape=potential); the demonstrations are few and the observations many; the recording is
of a bad policy, which it imitates as faithfully. airl costs PPO two fifths of its frames a second on MiniGrid.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from envs.datasets.dataset import recorded_transitions
from envs.transitions import Transitions
from envs.types import Memory
from lodestar.mappings import map_values
from lodestar.settings import setting
from rewards.exploration.learned import Columns, Learned, LearnedConfig, Losses

# One row of so many is asked for its slope, which costs three times a row's cross-entropy.
ROWS_A_SLOPE = 4
# Two actions are equal if no number differs by more, where actions span [-1, 1].
MAX_ACTION_GAP = 1e-3
# Logits are clipped here, so that one sure answer does not outweigh an episode.
MAX_LOGIT = 20.0


@dataclass
class DemosDiscriminatorConfig(LearnedConfig):
    """Settings of the discriminator."""

    scale: str = "none"
    gamma: float | None = None
    learning_rate: float = 2e-3
    batch_size: int = 512
    demos: str = setting("", "a recording of what is to be imitated, or the name of one that ships")
    form: str = setting("gail", "what D is turned into; see above", "gail | airl | sqil")
    of: str = setting("action", "read beside an observation: the action, or the change", "action | next_obs")
    penalty: float = setting(0.1, "of the squared slope of the logit, between both kinds of transitions", ">= 0")


class DemosDiscriminator(Learned):
    """logit D(s, a) = f(s, a), or f(s, s'); for airl g + gamma h(s') - h(s)."""

    Config = DemosDiscriminatorConfig
    config: DemosDiscriminatorConfig
    role = "goal"
    requires = frozenset({"obs", "action", "next_obs", "terminated"})

    def build(self) -> None:
        super().build()
        config = self.config
        demos = recorded_transitions(config.demos, f"{config.prefix}demos", self.observation_space, self.action_space)
        self.demos = demos.replace(frame=None, obs_frame=None, text=None, obs_text=None, extras={})
        if config.form == "sqil":
            self.learns = False
            actions: dict[bytes, list[np.ndarray]] = defaultdict(list)
            for pair, action in self._pairs(self.demos):
                actions[pair].append(action)
            self.recorded_actions = map_values(np.stack, actions)
            return
        self.watch(self.demos)
        step = self.rows(self.demos.next_obs) - self.rows(self.demos.obs)
        # What a number changes by in a step, root mean square; where it never does, its deviation.
        change = np.sqrt(np.square(step).mean(0))
        self.change = np.where(change > 1e-6, change, self.statistics.std).astype(np.float32)
        self.demo_columns = self.read(self.demos)
        # The numbers that are not 0 in some demonstration, as a row (1, size) for `set_used_columns`.
        states = self.demo_columns[::2]
        self.shown_states = np.any([x.any(axis=0) for x in states], axis=0, keepdims=True)
        self.encoder = self.net(config.features)
        if config.of == "action":
            self.beside: torch.nn.Module = torch.nn.Identity()
            beside_size = self.actions.size
        else:
            self.beside = self.net(config.features)
            beside_size = config.features
        self.judge = self.head(config.features + beside_size, config.hidden, 1, gain=0.1)
        trained = [self.encoder, self.beside, self.judge]
        if config.form == "airl":
            self.potential = self.net(config.hidden, 1)
            trained.append(self.potential)
        self.train_on(*trained)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        if self.config.form == "sqil":
            return self._is_recorded(batch)
        return self.in_pieces(self.reward, *self.columns(batch)).cpu().numpy()

    def reward(self, *columns: Tensor) -> Tensor:
        """What the logits of rows (N, ...) earn, (N,)."""
        logit = self.logit(*columns).clamp(-MAX_LOGIT, MAX_LOGIT)
        if self.config.form == "airl":
            return logit
        # -log(1 - D), as D is the logit's sigmoid.
        return softplus(logit)

    def read(self, batch: Transitions) -> list[np.ndarray]:
        """Columns as they are: s and what stands beside it; for airl also s' and whether the episode continues."""
        obs = self.rows(batch.obs)
        if self.config.of == "action":
            beside = self.actions(batch.action).cpu().numpy()
        else:
            # A step is small beside the states that it lies between.
            beside = ((self.rows(batch.next_obs) - obs) / self.change).clip(-5, 5)
        if self.config.form != "airl":
            return [obs, beside]
        continues = ~batch.terminated[:, None]
        return [obs, beside, self.rows(batch.next_obs), continues.astype(np.float32)]

    def whiten_states(self, columns: list[np.ndarray]) -> Columns:
        """Columns of `read` as tensors; every other one, from the first on, holds states."""
        tensors = [self.tensor(column) for column in columns]
        tensors[::2] = [self.whiten(states, self.layout.used) for states in columns[::2]]
        return tuple(tensors)

    def columns(self, batch: Transitions) -> Columns:
        columns = self.read(batch)
        self.set_used_columns(*columns[::2], self.shown_states)
        return self.whiten_states(columns)

    def logit(self, obs: Tensor, beside: Tensor, *after: Tensor) -> Tensor:
        """Log-odds (N,) of a demonstration."""
        logit = self.judge(torch.relu(torch.cat([self.encoder(obs), self.beside(beside)], dim=1)))
        if after:
            next_obs, continues = after
            logit = logit + self.discount * continues * self.potential(next_obs) - self.potential(obs)
        return logit.squeeze(1)

    def loss(self, *columns: Tensor) -> Losses:
        """Cross-entropy of a minibatch against as many demonstrations, and the penalty of the slope between them."""
        n = len(columns[0])
        drawn = self.rng.integers(len(self.demos.step), size=n)
        demos = self.whiten_states([x[drawn] for x in self.demo_columns])
        logits = self.logit(*map(torch.cat, zip(demos, columns)))
        labels = torch.zeros_like(logits)
        labels[:n] = 1
        losses = {"loss": binary_cross_entropy_with_logits(logits, labels)}
        if self.config.penalty:
            losses["penalty_loss"] = self.config.penalty * self.squared_slope(columns, demos)
        return losses

    def squared_slope(self, columns: Columns, demos: Columns) -> Tensor:
        """The logit's mean squared slope at points drawn evenly between transitions of both kinds."""
        count = math.ceil(len(columns[0]) / ROWS_A_SLOPE)
        share = self.tensor(self.rng.random((count, 1), np.float32))
        points = [one[:count].lerp(two[:count], share) for one, two in zip(columns, demos)]
        points[::2] = list(map(self.with_unused_columns, points[::2]))
        for point in points:
            point.requires_grad_()
        slopes = torch.autograd.grad(self.logit(*points).sum(), points, create_graph=True)
        square = sum(slope.square().sum(1) for slope in slopes)
        return torch.as_tensor(square).mean()

    def with_unused_columns(self, x: Tensor) -> Tensor:
        """Whitened rows with the columns that were left out, which are 0 but have a slope."""
        rows = x.new_zeros(len(x), self.layout.size)
        rows[:, self.layout.used] = x
        return rows

    def _is_recorded(self, batch: Transitions) -> np.ndarray:
        """1 where a transition is one of the recording, else 0: float32 (N,)."""
        score = np.zeros(batch.shape, np.float32)
        for place, (pair, action) in enumerate(self._pairs(batch)):
            if pair in self.recorded_actions:
                # A replay that stores actions scaled gives them back rounded, so that none is equal to the last bit.
                distance = np.abs(self.recorded_actions[pair] - action).max(axis=1)
                score[place] = distance.min() <= MAX_ACTION_GAP
        return score

    def _pairs(self, batch: Transitions) -> Iterator[tuple[bytes, np.ndarray]]:
        """Both observations of each transition, as replays keep them, and the action that led from one to the other.

        Actions (A,) are one-hot or scaled to [-1, 1], 0 where the action does not count.
        """
        pairs = np.concatenate([self.rows(batch.obs), self.rows(batch.next_obs)], axis=1)
        actions = np.zeros((len(pairs), 1), np.float32)
        if self.config.of == "action":
            actions = self.actions(batch.action).cpu().numpy()
        for pair, action in zip(pairs, actions):
            yield pair.tobytes(), action

    def notes(self) -> list[str]:
        lines = [f"{len(self.demos.step):,} transitions are imitated, whatever they were worth"]
        if self.config.form == "sqil":
            lines.append("sqil gives 0 to all but the recorded transitions, so the agent's replay must hold them")
        return lines
