"""What an imagined transition is worth: the model's own word, the reward itself, or a network that has learnt it.

    model   the task's own reward is paid and nothing else: what the model of the world expects it to be
    call    the reward reads nothing that imagination lacks: it is asked, the same that pays real transitions
    head    everything else (frames, texts, a memory of the episode; or gradients are wanted): a network r(s, a, s')
            learns what the reward pays for real transitions, and how far it is off is logged

The gap is measured on transitions the head has not seen, before it learns from them: the root of the mean square error
over the rewards' standard deviation. A reward that changes shows as a jump, and is answered by more steps at once.

Differences from common practice (a reward network fitted to stored rewards, as in MBPO, Janner et al. 2019, arXiv
1906.08253): the targets are paid anew for every fit, so it never learns from what an older reward paid; inputs and
targets are standardised by the rows it learns from.

When it fails: a reward that depends on what happened earlier in the episode, or on something no observation shows, is
learnt as its mean; the gap then stays near 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agents.networks.actor_critic import CLIP, Flat
from agents.networks.space_encoding import SpaceEncoding
from envs.types import Transitions

IMAGINED = frozenset({"obs", "action", "next_obs", "reward", "terminated", "truncated", "step"})
FRESH = 1024  # newest transitions that a gap is measured on, at most
TABLE = 16384  # transitions that are paid for a fit, at most
JUMP, LARGE = 3.0, 0.5  # times its running value, and at least: a gap that asks for more steps


class Head:
    """A network from features to a reward, in the reward's own units.

    Args:
        inputs: I, features.
        net_arch: units of the hidden layers.
        learning_rate: of Adam, above 0.
        batch_size: rows a step, 1 or more.
        seed: of weights and minibatches.
        device: as torch writes it.

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(
        self,
        inputs: int,
        *,
        net_arch: tuple[int, ...] = (128, 128),
        learning_rate: float = 1e-3,
        batch_size: int = 256,
        seed: int = 0,
        device: Any = "cpu",
    ) -> None:
        if inputs < 1 or batch_size < 1 or not learning_rate > 0:
            raise ValueError(
                f"a head with inputs={inputs}, batch_size={batch_size}, learning_rate={learning_rate} cannot learn; "
                "give numbers above 0"
            )
        self.device, self.learning_rate, self.batch_size = torch.device(device), learning_rate, batch_size
        layers: list[nn.Module] = []
        with torch.random.fork_rng(devices=[]):  # torch draws initial weights from its global generator
            torch.default_generator.manual_seed(seed)
            width = inputs
            for units in net_arch:
                layers += [nn.Linear(width, units), nn.SiLU()]
                width = units
            self.net = nn.Sequential(*layers, nn.Linear(width, 1)).to(self.device)
        self._flat = Flat.over(list(self.net.parameters()))
        self.mean, self.std = torch.zeros(inputs, device=self.device), torch.ones(inputs, device=self.device)
        self.center, self.scale = torch.zeros((), device=self.device), torch.ones((), device=self.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def predict(self, x: Tensor) -> Tensor:
        """Rewards (...,) of features (..., I), differentiable."""
        x = ((x - self.mean) / self.std).clamp(-CLIP, CLIP)
        return self.center + self.scale * self.net(x).squeeze(-1)

    def fit(self, x: Tensor, y: Tensor, steps: int) -> Tensor:
        """Take `steps` minibatches of features (M, I) and rewards (M,); the last loss, in standard deviations (0-d)."""
        x, y = x.detach(), y.detach()
        std, self.mean = torch.std_mean(x, 0, correction=0)
        self.std = torch.where(std > 1e-6, std, 1.0)
        self.center, self.scale = y.mean(), spread(y)
        x, y = ((x - self.mean) / self.std).clamp_(-CLIP, CLIP), (y - self.center) / self.scale
        size = min(self.batch_size, len(x))
        draws = torch.randint(len(x), (steps, size), generator=self._generator, device=self.device)
        loss = x.new_zeros(())
        with torch.enable_grad():
            for rows in draws:
                loss = (self.net(x[rows]).squeeze(-1) - y[rows]).square().mean()
                self._flat.grad.zero_()
                loss.backward()
                self._flat.step(self.learning_rate, 10.0)
        return loss.detach()

    @torch.no_grad()
    def gap(self, x: Tensor, y: Tensor) -> Tensor:
        """How far off it is: root mean square error on (M, I), (M,) over the rewards' standard deviation; 0-d."""
        return (self.predict(x) - y).square().mean().sqrt() / spread(y)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, statistics and random numbers."""
        return {
            "net": {key: value.clone() for key, value in self.net.state_dict().items()},
            "flat": {key: value.clone() for key, value in self._flat.state_dict().items()},
            "statistics": [self.mean, self.std, self.center, self.scale],
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.net.load_state_dict({key: torch.as_tensor(value) for key, value in state["net"].items()})
        self._flat.load_state_dict(state["flat"])
        statistics = (torch.as_tensor(value).to(self.device) for value in state["statistics"])
        self.mean, self.std, self.center, self.scale = statistics
        self._generator.set_state(torch.as_tensor(state["generator"]).cpu())


def spread(y: Tensor) -> Tensor:
    """Standard deviation of rewards; of rewards that are all alike, a millionth of their size."""
    return torch.maximum(y.std(correction=0), 1e-6 * y.abs().max().clamp(min=1.0))


class Payer:
    """Pays imagined transitions.

    Args:
        scorer: what pays real ones.
        encoding: the spaces.
        differentiable: whether gradients of the reward are wanted.
        refit: steps that the head takes at once, beside those it is given, when the gap has jumped.
        seed: of the head.
        device: as torch writes it.

    Attributes:
        how: `model`, `call` or `head`; see the top of the file.
        reason: why, a sentence.
        timesteps: environment steps so far, for schedules of weights; whoever drives it sets them.
        head: the network, or None.
    """

    def __init__(
        self,
        scorer: Any,
        encoding: SpaceEncoding,
        *,
        differentiable: bool = False,
        refit: int = 200,
        seed: int = 0,
        device: Any = "cpu",
    ) -> None:
        self.scorer, self.encoding, self.refit, self.device = scorer, encoding, refit, torch.device(device)
        self.how, self.reason = _how(scorer, encoding, differentiable)
        self.timesteps = 0
        self.head: Head | None = None
        if self.how == "head":
            self.head = Head(2 * encoding.obs_size + encoding.action_size + 1, seed=seed, device=device)
        self._seen = 0  # rows the replay had when the head was fitted
        self._usual: float | None = None  # running gap: falls at once, rises slowly

    def __call__(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor, terminated: Tensor, step: Tensor
    ) -> Tensor:
        """Rewards float32 (B,) of transitions; the head's and the model's can be differentiated.

        Args:
            obs: (B, D).
            action: (B, A).
            next_obs: (B, D).
            task: (B,), what the model of the world expects the task to pay.
            terminated: bool (B,).
            step: int64 (B,), within the episode.
        """
        if self.how == "model":
            return task
        if self.head is not None:
            return self.head.predict(_features(obs, action, next_obs, terminated))
        arrays = [x.detach().cpu().numpy() for x in (obs, action, next_obs, task, terminated, step)]
        batch = Transitions(
            obs=self.encoding.obs(arrays[0]),
            action=self.encoding.decode(arrays[1]),
            reward=arrays[3],
            next_obs=self.encoding.obs(arrays[2]),
            terminated=arrays[4],
            truncated=np.zeros(len(obs), bool),
            valid=np.ones(len(obs), bool),
            step=arrays[5],
        )
        paid = self.scorer.combine(self.scorer.again(batch), self.timesteps)
        return torch.from_numpy(paid).to(self.device)

    def fit(self, replay: Any, steps: int) -> dict[str, Any]:
        """Let the head learn what real transitions are paid now, in `steps` minibatches, more if the gap has jumped.

        Returns:
            Metrics: `head_gap` before, `head_loss` after, `head_refits` 0 or 1; nothing without a head.

        Raises:
            ValueError: if the replay is empty.
        """
        if self.head is None:
            return {}
        rows = replay.sample(min(max(len(replay), 1), TABLE))
        x, y = _features(rows.obs, rows.action, rows.next_obs, rows.discount == 0), rows.reward
        fresh = replay.newest(min(max(replay.added - self._seen, 64), FRESH))
        self._seen = replay.added
        guess = self.head.predict(_features(fresh.obs, fresh.action, fresh.next_obs, fresh.discount == 0)).detach()
        gap = float((guess - fresh.reward).square().mean().sqrt() / spread(y))
        jumped = self._usual is None or (gap > JUMP * self._usual and gap > LARGE)
        self._usual = gap if self._usual is None else min(gap, 0.9 * self._usual + 0.1 * gap)
        loss = self.head.fit(x, y, steps + self.refit * jumped)
        return {"head_gap": gap, "head_loss": loss, "head_refits": float(jumped)}

    def state_dict(self) -> dict[str, Any]:
        """The head and its running gap."""
        head = None if self.head is None else self.head.state_dict()
        return {"head": head, "seen": self._seen, "usual": self._usual, "timesteps": self.timesteps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        if self.head is not None:
            self.head.load_state_dict(state["head"])
        self._seen, self._usual, self.timesteps = int(state["seen"]), state["usual"], int(state["timesteps"])


def _features(obs: Tensor, action: Tensor, next_obs: Tensor, terminated: Tensor) -> Tensor:
    return torch.cat([obs, action, next_obs, terminated.to(obs.dtype).unsqueeze(-1)], -1)


def _how(scorer: Any, encoding: SpaceEncoding, differentiable: bool) -> tuple[str, str]:
    """How imagined transitions are paid, and why."""
    if scorer.is_task:
        return "model", "the task's own reward is paid: the model of the world predicts it"
    why = ""
    foreign = sorted(scorer.requires - IMAGINED)
    if foreign:
        why = f"the reward reads {', '.join(foreign)}, which no model imagines"
    elif encoding.images and {"obs", "next_obs"} & scorer.requires:
        why = "the reward reads images, which no model imagines"
    elif not scorer.relabelable or scorer.initial_memory(1):
        why = "the reward remembers the episode, which an imagined transition lacks"
    elif differentiable:
        why = "gradients of the reward are wanted, and it has none"
    if why:
        return "head", f"imagined transitions are paid by a network that learns the reward from real ones: {why}"
    return "call", "imagined transitions are paid by the reward itself"
