"""BYOL-Explore: a bonus where a recurrent world model mispredicts, in a latent space that it learns itself.

An encoder and a GRU turn observations into a belief state. From each belief a second GRU continues through the actions
alone (open loop), and a head predicts what a slow copy of the encoder will output for the observations that follow. The
bonus of a transition compares all predictions of its `next_obs` with that output.
Source: Guo, Thakoor, Pislar, Avila Pires, Altche et al. 2022, BYOL-Explore: Exploration by Bootstrapped Prediction,
arXiv 2206.08332, section 2.
Differences: the mean of an observation's predictions, where the paper sums them, so that the first steps of an episode,
which fewer reach, are rewarded alike; 4 steps ahead instead of 8, vectors of 64 instead of 512, dense layers, an
optimiser of its own; no clipping of rewards below their mean; the policy does not share the belief.
Learning: a rollout (T, N) is cut into sequences of `sequence` rows. The first begins with an empty belief, or where an
episode begins; the others with the belief that the weights before this update arrive with, without its gradient. Open
loops stay within their sequence, ends of episodes cut both loops, rows that are no transitions are skipped.
Fails when: something is unpredictable and the encoder keeps it: its error lasts (`byol_hindsight` addresses that).
White noise beside a cycle it does learn to leave out, slowly; noise that determines what comes next it cannot.
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils import skip_init

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import RewardConfig, valid_rows
from rewards.exploration.learned import Learned, LearnedConfig
from rewards.exploration.memories import Episodic

Tensors = dict[str, Tensor]  # a memory


@dataclass
class BYOLConfig(LearnedConfig):
    """Settings of BYOL-Explore; the paper's value in brackets where it differs."""

    scale: str = "ema"  # the paper divides by a moving deviation, too
    features: int = setting(64, "size of the code of an observation and of the belief [512]")
    horizon: int = setting(4, "K, steps that a prediction looks ahead [8]", low=1, tune=(1, 8))
    decay: float = setting(0.99, "of the slow encoder, at each gradient step", low=0, high=1, tune=(0.9, 0.999))
    sequence: int = setting(16, "rows that gradients reach back in time", low=1)
    batch_size: int = setting(16, "sequences in a minibatch; update_proportion is a share of sequences, too")


class BYOL(Episodic, Learned):
    """r(s') = mean over k of |w_k / |w_k| - w' / |w'||**2, w_k the prediction from k steps before, w' the slow code."""

    Config: ClassVar[type[RewardConfig]] = BYOLConfig
    requires = frozenset({"obs", "action", "next_obs"})

    def build(self) -> None:
        Learned.build(self)  # by name: a subclass may inherit other networks as well
        config = self.config
        self.width = config.features
        self.encoder = self.net(config.hidden, self.width)
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)
        self.loops = Loops(self.width, self.actions.size, config.horizon, self.generator).to(self.device)
        self.build_networks()

    def build_networks(self) -> None:
        self.predictor = self.head(self.width, self.config.hidden, self.width)
        self.train_on(self.encoder, self.loops, self.predictor)

    def initial_memory(self, n: int) -> Memory:
        return {
            "belief": np.zeros((n, self.width), np.float32),  # of the observation before
            "action": np.zeros((n, self.actions.size), np.float32),  # that followed it
            "open": np.zeros((n, self.config.horizon - 1, self.width), np.float32),  # loops 1..K-1 steps long
            "held": np.zeros(n, np.int64),  # how many of these there are
        }

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        flat = batch.flatten()
        seen = self.in_pieces(self.encoder, self.inputs(flat.obs))
        target = self.in_pieces(self.target, self.inputs(flat.next_obs))
        action = self.actions(flat.action)
        with torch.no_grad():
            paths, after = self.loops(seen, action, Links(batch.valid, batch.ended), self.tensors(memory))
        errors = np.zeros(paths.exist.shape, np.float32)
        if paths.exist.any():  # a step may be nothing but resets
            errors[paths.exist] = self.in_pieces(self.error, *paths.predictions(action, target)).cpu().numpy()
        mean = errors.sum(axis=0) / np.maximum(paths.exist.sum(axis=0), 1, dtype=np.float32)
        return mean.reshape(batch.shape), {name: value.cpu().numpy() for name, value in after.items()}

    def tensors(self, memory: Memory) -> Tensors:
        return {name: torch.from_numpy(value).to(self.device) for name, value in memory.items()}

    def error(self, before: Tensor, action: Tensor, ahead: Tensor, target: Tensor) -> Tensor:
        """Reward (R,) of predictions from the states `before` and `ahead` of an action, against the slow code."""
        return distance(self.predictor(ahead), target)

    def costs(self, *predictions: Tensor) -> Tensors:
        """Losses of predictions, which are the arguments of `error`."""
        return {"loss": self.error(*predictions).mean()}

    def update(self, batch: Transitions) -> dict[str, float]:
        if len(batch.shape) == 1:
            batch = batch.map(lambda x: x[None])
        if not np.any(batch.valid):
            return {}
        self.watch(valid_rows(batch))
        return self.fit(self.columns(batch))

    def columns(self, batch: Transitions) -> tuple[Tensor, ...]:
        """A rollout (T, N) as M sequences of L rows, without those that hold no transition.

        Whitened obs (M, L, size), actions (M, L, A), whitened next_obs, valid, ended; belief and action before (M,
        ...).
        """
        length = min(self.config.sequence, batch.shape[0])
        steps = batch.shape[0]
        time = np.arange(steps + -steps % length)
        if len(time) > steps:  # filled up with rows that are no transitions
            batch = batch[np.minimum(time, steps - 1)]
            batch = batch.replace(valid=batch.valid & (time < steps)[:, None])
        flat = batch.flatten()
        x, action, after = self.inputs(flat.obs), self.actions(flat.action), self.inputs(flat.next_obs)
        seen = self.in_pieces(self.encoder, x)
        with torch.no_grad():
            start = self.tensors(self.initial_memory(batch.shape[1]))
            _, *entering = self.loops.beliefs(seen, action, Links(batch.valid, batch.ended), start)
        masks = (torch.from_numpy(np.asarray(mask).ravel()).to(self.device) for mask in (batch.valid, batch.ended))
        # (C * L * N, ...) -> (C * N, L, ...), C sequences along time
        rows = [
            value.unflatten(0, (-1, length, batch.shape[1])).transpose(1, 2).flatten(0, 1)
            for value in (x, action, after, *masks)
        ]
        first = [value[:-1:length].flatten(0, 1) for value in entering]
        keep = rows[3].any(dim=1)
        return tuple(value[keep] for value in (*rows, *first))

    def loss(self, *columns: Tensor) -> Tensors:
        x, action, after = (column.transpose(0, 1).flatten(0, 1) for column in columns[:3])  # time first
        valid, ended = (column.T.cpu().numpy() for column in columns[3:5])
        memory = self.tensors(self.initial_memory(valid.shape[1])) | {"belief": columns[5], "action": columns[6]}
        with torch.no_grad():
            target = self.target(after)
        paths, _ = self.loops(self.encoder(x), action, Links(valid, ended), memory)
        return self.costs(*paths.predictions(action, target))

    def descend(self, loss: Any) -> None:
        super().descend(loss)
        with torch.no_grad():
            for slow, quick in zip(self.target.parameters(), self.encoder.parameters()):
                slow.lerp_(quick, 1 - self.config.decay)


class Links:
    """Which row of a rollout (T, N) each row follows; row 0 stands for what came before the rollout.

    `valid` and `ended` are as in `Transitions`; `on`, bool (T + 1, N), says whether the episode of the row before
    continues, at the end for the row that follows the rollout.
    """

    def __init__(self, valid: np.ndarray, ended: np.ndarray) -> None:
        self.valid, self.ended = np.asarray(valid), np.asarray(ended)
        steps, envs = self.valid.shape
        row = np.zeros((steps + 1, envs), np.int64)
        row[1:] = np.maximum.accumulate(np.where(self.valid | self.ended, np.arange(1, steps + 1)[:, None], 0))
        self.flat = (row * envs + np.arange(envs)).ravel()
        self.on = ~self.before(np.zeros(envs, bool), self.ended)

    def before(self, start: np.ndarray, values: np.ndarray) -> np.ndarray:
        """`values` (T, N) at the row before each, `start` (N,) before the rollout: (T + 1, N)."""
        return np.concatenate([start[None], values]).ravel()[self.flat].reshape(-1, len(start))

    def carry(self, start: Tensor, values: Tensor, mask: np.ndarray) -> Tensor:
        """As `before`, of rows (T * N, D) after `start` (N, D), 0 outside of `mask` (T + 1, N): (T + 1, N, D)."""
        every, device = torch.cat([start, values]), values.device
        rows = every.index_select(0, torch.from_numpy(self.flat).to(device)).unflatten(0, mask.shape)
        return rows if mask.all() else rows * torch.from_numpy(mask).to(device)[..., None]


class Paths(NamedTuple):
    """Open loops, by steps k = 1..K and by the row, of T * N = R, that they land on the `next_obs` of."""

    before: list[Tensor]  # K times (R, D), the state before the row's action
    ahead: list[Tensor]  # K times (R, D), the state after it
    exist: np.ndarray  # bool (K, R); not where the loop would begin before the episode, or the row is no transition

    def predictions(self, action: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """One row for each loop that exists: states before and after an action, action (R, A) and slow code (R, D)."""
        places = torch.from_numpy(np.flatnonzero(self.exist)).to(action.device)
        before, ahead = torch.cat(self.before)[places], torch.cat(self.ahead)[places]
        row = places % len(action)
        return before, action[row], ahead, target[row]


class Loops(nn.Module):
    """The two GRUs, and the walk of a rollout through them."""

    def __init__(self, width: int, action: int, horizon: int, generator: torch.Generator) -> None:
        super().__init__()
        self.horizon = horizon
        self.closed, self.open = _cell(width + action, width, generator), _cell(action, width, generator)

    def forward(self, seen: Tensor, action: Tensor, links: Links, memory: Tensors) -> tuple[Paths, Tensors]:
        """Every open loop of a rollout with codes of `obs` (T * N, D) and actions (T * N, A), and its last memory."""
        before, entering, actions = self.beliefs(seen, action, links, memory)
        there, held = links.valid, memory["held"].cpu().numpy()
        befores, aheads, exist = [before], [self.open(action, before)], [there]
        carried, count = [], np.zeros_like(held)
        for k in range(1, self.horizon):
            # loops of k steps that landed on the row before continue by one step
            stands = links.before(held >= k, there) & links.on
            states = links.carry(memory["open"][:, k - 1], aheads[-1], stands)
            carried.append(states[-1])
            count += stands[-1]
            there = stands[:-1] & links.valid
            befores.append(states[:-1].flatten(0, 1))
            aheads.append(self.open(action, befores[-1]))
            exist.append(there)
        after = {
            "belief": entering[-1],
            "action": actions[-1],
            "open": torch.stack(carried, dim=1) if carried else memory["open"],
            "held": torch.from_numpy(count),
        }
        return Paths(befores, aheads, np.stack(exist).reshape(self.horizon, -1)), after

    def beliefs(self, seen: Tensor, action: Tensor, links: Links, memory: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """The closed loop: beliefs (T * N, D), with each row's `obs`; and beliefs and actions that rows start from."""
        actions = links.carry(memory["action"], action, links.on)
        given = torch.cat([seen.unflatten(0, links.valid.shape), actions[:-1]], dim=2)
        valid, continues = (torch.from_numpy(m).to(seen.device)[..., None] for m in (links.valid, ~links.ended))
        plain = (links.valid & ~links.ended).all(axis=1).tolist()
        belief = memory["belief"]
        beliefs, entering = [], [belief]
        for t, rows in enumerate(given):
            new = self.closed(rows, belief)
            belief = new if plain[t] else torch.where(valid[t], new, belief) * continues[t]
            beliefs.append(new)
            entering.append(belief)
        return torch.cat(beliefs), torch.stack(entering), actions


def distance(prediction: Tensor, target: Tensor) -> Tensor:
    """Squared distance (R,) of directions (R, D), in [0, 4]."""
    return (normalize(prediction, eps=1e-6) - normalize(target, eps=1e-6)).square().sum(dim=1)


def _cell(inputs: int, size: int, generator: torch.Generator) -> nn.GRUCell:
    """A GRU whose gates are orthogonal, without a draw from torch's global generator."""
    cell = skip_init(nn.GRUCell, inputs, size)
    for parameter in cell.parameters():
        for gate in parameter.detach().chunk(3):
            if gate.dim() == 1:
                nn.init.zeros_(gate)
            else:
                nn.init.orthogonal_(gate, generator=generator)
    return cell
