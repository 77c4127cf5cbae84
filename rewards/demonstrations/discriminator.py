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

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from envs.datasets.dataset import recorded
from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.exploration.learned import Learned, LearnedConfig

KNOWN_BY = ("action", "next_obs")
TINY = 1e-6
SHARE = 4  # one row of so many is asked for its slope, which costs three times a row's cross-entropy
SAME_ACTION = 1e-3  # two actions are equal if no number differs by more, where actions span [-1, 1]
EXTREME = 20.0  # largest logit, so that one sure answer does not outweigh an episode


@dataclass
class DemosDiscriminatorConfig(LearnedConfig):
    """Settings of the discriminator."""

    scale: str = "none"
    gamma: float | None = None
    learning_rate: float = 2e-3
    batch_size: int = 512
    demos: str = setting("", "a recording of what is to be imitated, or the name of one that ships")
    form: str = setting("gail", "what D is turned into; see above", choices=("gail", "airl", "sqil"))
    of: str = setting("action", "read beside an observation: the action, or the change", choices=KNOWN_BY)
    penalty: float = setting(0.1, "of the squared slope of the logit, between both kinds of transitions", low=0)


class DemosDiscriminator(Learned):
    """logit D(s, a) = f(s, a), or f(s, s'); for airl g + gamma h(s') - h(s)."""

    Config = DemosDiscriminatorConfig
    config: DemosDiscriminatorConfig
    role = "goal"
    requires = frozenset({"obs", "action", "next_obs", "terminated"})

    def build(self) -> None:
        super().build()
        config = self.config
        self.demos = recorded(config.demos, f"{config.prefix}demos", self.observation_space, self.action_space)
        self.demos = self.demos.replace(**dict.fromkeys(("frame", "obs_frame", "text", "obs_text")), extras={})
        if config.form == "sqil":
            self.learns = False
            self.known = self._known()
            return
        self.watch(self.demos)
        change = np.sqrt(np.square(self.rows(self.demos.next_obs) - self.rows(self.demos.obs)).mean(0))
        self.change = np.where(change > TINY, change, self.statistics.std).astype(np.float32)  # of a step
        self.shown = self.read(self.demos)
        self.shown_states = np.any([x.any(axis=0) for x in self.shown[::2]], axis=0, keepdims=True)
        self.encoder = self.net(config.features)
        self.beside: torch.nn.Module = torch.nn.Identity() if config.of == "action" else self.net(config.features)
        more = self.actions.size if config.of == "action" else config.features
        self.judge = self.head(config.features + more, config.hidden, 1, gain=0.1)
        trained = [self.encoder, self.beside, self.judge]
        if config.form == "airl":
            self.potential = self.net(config.hidden, 1)
            trained.append(self.potential)
        self.train_on(*trained)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        if self.config.form == "sqil":
            return self._recorded(batch)
        return self.in_pieces(self.reward, *self.columns(batch)).cpu().numpy()

    def reward(self, *columns: Tensor) -> Tensor:
        """What the logits of rows (N, ...) earn, (N,)."""
        logit = self.logit(*columns).clamp(-EXTREME, EXTREME)
        return logit if self.config.form == "airl" else softplus(logit)

    def read(self, batch: Transitions) -> list[np.ndarray]:
        """Columns as they are: s and what stands beside it; for airl also s' and whether the episode continues."""
        obs, airl, of = self.rows(batch.obs), self.config.form == "airl", self.config.of
        next_obs = self.rows(batch.next_obs) if airl or of == "next_obs" else obs
        # a step is small beside the states that it lies between
        change = ((next_obs - obs) / self.change).clip(-5, 5) if of == "next_obs" else None
        beside = self.actions(batch.action).cpu().numpy() if change is None else change
        continues = ~np.asarray(batch.terminated)[:, None]
        return [obs, beside, *([next_obs, continues.astype(np.float32)] if airl else [])]

    def prepared(self, read: list[np.ndarray]) -> tuple[Tensor, ...]:
        used = self.layout.used
        return tuple(torch.from_numpy(x).to(self.device) if i % 2 else self.whiten(x, used) for i, x in enumerate(read))

    def columns(self, batch: Transitions) -> tuple[Tensor, ...]:
        read = self.read(batch)
        self.use(*read[::2], self.shown_states)
        return self.prepared(read)

    def logit(self, obs: Tensor, beside: Tensor, *after: Tensor) -> Tensor:
        """Log-odds (N,) of a demonstration."""
        logit = self.judge(torch.relu(torch.cat([self.encoder(obs), self.beside(beside)], dim=1)))
        if after:
            next_obs, continues = after
            logit = logit + self.discount * continues * self.potential(next_obs) - self.potential(obs)
        return logit.squeeze(1)

    def loss(self, *columns: Tensor) -> dict[str, Tensor]:
        """Cross-entropy of a minibatch against as many demonstrations, and the penalty of the slope between them."""
        n = len(columns[0])
        drawn = self.rng.integers(len(self.demos.step), size=n)
        demos = self.prepared([x[drawn] for x in self.shown])
        logits = self.logit(*(torch.cat(pair) for pair in zip(demos, columns)))
        labels = torch.zeros_like(logits)
        labels[:n] = 1
        losses = {"loss": binary_cross_entropy_with_logits(logits, labels)}
        if self.config.penalty:
            some = -(-n // SHARE)
            share = torch.from_numpy(self.rng.random((some, 1), np.float32)).to(self.device)
            between = [one[:some].lerp(two[:some], share) for one, two in zip(columns, demos)]
            leaves = [(x if i % 2 else self.whole(x)).requires_grad_() for i, x in enumerate(between)]
            slopes = torch.autograd.grad(self.logit(*leaves).sum(), leaves, create_graph=True)
            square = sum(slope.square().sum(1) for slope in slopes)
            losses["penalty_loss"] = self.config.penalty * torch.as_tensor(square).mean()
        return losses

    def whole(self, x: Tensor) -> Tensor:
        """Whitened rows with the columns that were left out, which are 0 but have a slope."""
        rows = x.new_zeros(len(x), self.layout.size)
        rows[:, self.layout.used] = x
        return rows

    def _known(self) -> dict[bytes, np.ndarray]:
        """Both observations of each recorded transition -> the actions that led from one to the other, (K, A)."""
        actions = self._action_rows(self.demos)
        places: dict[bytes, list[int]] = {}
        for place, pair in enumerate(self._pairs(self.demos)):
            places.setdefault(pair, []).append(place)
        return {pair: actions[rows] for pair, rows in places.items()}

    def _recorded(self, batch: Transitions) -> np.ndarray:
        """1 where a transition is one of the recording, else 0: float32 (N,)."""
        score = np.zeros(batch.shape, np.float32)
        actions = self._action_rows(batch)
        for place, pair in enumerate(self._pairs(batch)):
            if pair in self.known:
                # A replay that stores actions scaled gives them back rounded, so that none is equal to the last bit.
                distance = np.abs(self.known[pair] - actions[place]).max(axis=1)
                score[place] = distance.min() <= SAME_ACTION
        return score

    def _action_rows(self, batch: Transitions) -> np.ndarray:
        """Actions (N, A), one-hot or scaled to [-1, 1]; zeros where the action does not count."""
        if self.config.of == "next_obs":
            return np.zeros((len(batch.step), 1), np.float32)
        return self.actions(batch.action).cpu().numpy()

    def _pairs(self, batch: Transitions) -> list[bytes]:
        """Both observations of each transition, as replays keep them."""
        return [row.tobytes() for row in np.concatenate([self.rows(batch.obs), self.rows(batch.next_obs)], axis=1)]

    def notes(self) -> list[str]:
        lines = [f"{len(self.demos.step):,} transitions are imitated, whatever they were worth"]
        if self.config.form == "sqil":
            lines.append("sqil gives 0 to all but the recorded transitions, so the agent's replay must hold them")
        return lines
