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
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils import skip_init

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.mappings import map_values
from lodestar.settings import setting
from rewards.base import Metrics, RewardConfig, Walk, valid_rows
from rewards.exploration.learned import Columns, Learned, LearnedConfig, Losses
from rewards.exploration.memories import Episodic

MemoryTensors = dict[str, Tensor]  # a memory, on the device


@dataclass
class BYOLConfig(LearnedConfig):
    """Settings of BYOL-Explore; the paper's value in brackets where it differs."""

    scale: str = "ema"  # the paper divides by a moving deviation, too
    features: int = setting(64, "size of the code of an observation and of the belief [512]")
    horizon: int = setting(4, "K, steps that a prediction looks ahead [8]", ">= 1", tune=(1, 8))
    decay: float = setting(0.99, "of the slow encoder, at each gradient step", "[0, 1]", tune=(0.9, 0.999))
    sequence: int = setting(16, "rows that gradients reach back in time", ">= 1")
    batch_size: int = setting(16, "sequences in a minibatch; update_proportion is a share of sequences, too")


class BYOL(Episodic, Learned):
    """r(s') = mean over k of |w_k / |w_k| - w' / |w'||**2, w_k the prediction from k steps before, w' the slow code."""

    Config: ClassVar[type[RewardConfig]] = BYOLConfig
    requires = frozenset({"obs", "action", "next_obs"})

    def build(self) -> None:
        # By name, since a subclass may inherit other networks as well, which `super` would build.
        Learned.build(self)
        config = self.config
        self.width = config.features
        self.encoder = self.net(config.hidden, self.width)
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)
        loops = Loops(self.width, self.actions.size, config.horizon, self.generator)
        self.loops = loops.to(self.device)
        self.build_networks()

    def build_networks(self) -> None:
        self.predictor = self.head(self.width, self.config.hidden, self.width)
        self.train_on(self.encoder, self.loops, self.predictor)

    def initial_memory(self, n: int) -> Memory:
        # The belief of the observation before and the action that followed it; open loops that are 1 to K - 1 steps
        # long, and how many of these there are.
        return {
            "belief": np.zeros((n, self.width), np.float32),
            "action": np.zeros((n, self.actions.size), np.float32),
            "open": np.zeros((n, self.config.horizon - 1, self.width), np.float32),
            "held": np.zeros(n, np.int64),
        }

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        flat = batch.flatten()
        code = self.in_pieces(self.encoder, self.inputs(flat.obs))
        target = self.in_pieces(self.target, self.inputs(flat.next_obs))
        action = self.actions(flat.action)
        links = Links(batch.valid, batch.ended)
        with torch.no_grad():
            paths, after = self.loops(code, action, links, map_values(self.tensor, memory))
        errors = np.zeros(paths.exist.shape, np.float32)
        predictions = paths.predictions(action, target)
        errors[paths.exist] = self.in_pieces(self.error, *predictions).cpu().numpy()
        count = np.maximum(paths.exist.sum(axis=0), 1, dtype=np.float32)
        mean = errors.sum(axis=0) / count
        memory = {name: value.cpu().numpy() for name, value in after.items()}
        return mean.reshape(batch.shape), memory

    def error(self, before: Tensor, action: Tensor, ahead: Tensor, target: Tensor) -> Tensor:
        """Reward (R,) of predictions from the states `before` and `ahead` of an action, against the slow code."""
        return distance(self.predictor(ahead), target)

    def costs(self, *predictions: Tensor) -> Losses:
        """Losses of predictions, which are the arguments of `error`."""
        return {"loss": self.error(*predictions).mean()}

    def update(self, batch: Transitions) -> Metrics:
        if len(batch.shape) == 1:
            batch = batch[None]
        if not np.any(batch.valid):
            return {}
        self.watch(valid_rows(batch))
        return self.fit(self.columns(batch))

    def columns(self, batch: Transitions) -> Columns:
        """A rollout (T, N) as M sequences of L rows, without those that hold no transition.

        Whitened obs (M, L, size), actions (M, L, A), whitened next_obs, valid, ended; belief and action before (M,
        ...).
        """
        steps, envs = batch.shape
        length = min(self.config.sequence, steps)
        time = np.arange(math.ceil(steps / length) * length)
        # The last sequence is filled up with rows that are no transitions.
        if len(time) > steps:
            batch = batch[np.minimum(time, steps - 1)]
            batch = batch.replace(valid=batch.valid & (time < steps)[:, None])
        flat = batch.flatten()
        x = self.inputs(flat.obs)
        action = self.actions(flat.action)
        after = self.inputs(flat.next_obs)
        code = self.in_pieces(self.encoder, x)
        links = Links(batch.valid, batch.ended)
        with torch.no_grad():
            empty = map_values(self.tensor, self.initial_memory(envs))
            _, entering_belief, entering_action = self.loops.beliefs(code, action, links, empty)

        def cut(value: Tensor) -> Tensor:
            """(C * L * N, ...) -> (C * N, L, ...), C sequences along time."""
            sequences = value.unflatten(0, (-1, length, envs))
            return sequences.transpose(1, 2).flatten(0, 1)

        valid = cut(self.tensor(links.valid.ravel()))
        ended = cut(self.tensor(links.ended.ravel()))
        first_belief = entering_belief[:-1:length].flatten(0, 1)
        first_action = entering_action[:-1:length].flatten(0, 1)
        columns = (cut(x), cut(action), cut(after), valid, ended, first_belief, first_action)
        has_transition = valid.any(dim=1)
        return tuple(column[has_transition] for column in columns)

    def loss(self, *columns: Tensor) -> Losses:
        *sequences, valid_columns, ended_columns, first_belief, first_action = columns
        # Loops walk along time, so time becomes the leading axis.
        x, action, after = (column.transpose(0, 1).flatten(0, 1) for column in sequences)
        valid = valid_columns.T.cpu().numpy()
        ended = ended_columns.T.cpu().numpy()
        links = Links(valid, ended)
        memory = map_values(self.tensor, self.initial_memory(len(first_belief)))
        memory["belief"] = first_belief
        memory["action"] = first_action
        with torch.no_grad():
            target = self.target(after)
        paths, _ = self.loops(self.encoder(x), action, links, memory)
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
        self.valid = valid
        self.ended = ended
        steps, envs = self.valid.shape
        # The newest row up to each that is a transition or ends an episode; others are skipped.
        number = np.arange(1, steps + 1)[:, None]
        row = np.zeros((steps + 1, envs), np.int64)
        is_linked = self.valid | self.ended
        row[1:] = np.maximum.accumulate(np.where(is_linked, number, 0))
        self.flat = (row * envs + np.arange(envs)).ravel()
        self.on = ~self.previous_values(np.zeros(envs, bool), self.ended)

    def previous_values(self, start: np.ndarray, values: np.ndarray) -> np.ndarray:
        """`values` (T, N) at the row before each, `start` (N,) before the rollout: (T + 1, N)."""
        rows = np.concatenate([start[None], values]).ravel()
        return rows[self.flat].reshape(-1, len(start))

    def carry(self, start: Tensor, values: Tensor, mask: np.ndarray) -> Tensor:
        """As `before`, of rows (T * N, D) after `start` (N, D), 0 outside of `mask` (T + 1, N): (T + 1, N, D)."""
        device = values.device
        index = torch.from_numpy(self.flat).to(device)
        rows = torch.cat([start, values]).index_select(0, index)
        rows = rows.unflatten(0, mask.shape)
        if mask.all():
            return rows
        return rows * torch.from_numpy(mask).to(device)[..., None]


class Paths(NamedTuple):
    """Open loops, by steps k = 1..K and by the row, of T * N = R, that they land on the `next_obs` of."""

    before: list[Tensor]  # K times (R, D), the state before the row's action
    ahead: list[Tensor]  # K times (R, D), the state after it
    exist: np.ndarray  # bool (K, R); not where the loop would begin before the episode, or the row is no transition

    def predictions(self, action: Tensor, target: Tensor) -> Columns:
        """One row for each loop that exists: states before and after an action, action (R, A) and slow code (R, D)."""
        places = torch.from_numpy(np.flatnonzero(self.exist)).to(action.device)
        before = torch.cat(self.before)[places]
        ahead = torch.cat(self.ahead)[places]
        row = places % len(action)
        return before, action[row], ahead, target[row]


class Loops(nn.Module):
    """The two GRUs, and the walk of a rollout through them."""

    def __init__(self, width: int, action: int, horizon: int, generator: torch.Generator) -> None:
        super().__init__()
        self.horizon = horizon
        self.closed = _orthogonal_gru(width + action, width, generator)
        self.open = _orthogonal_gru(action, width, generator)

    def forward(self, code: Tensor, action: Tensor, links: Links, memory: MemoryTensors) -> tuple[Paths, MemoryTensors]:
        """Every open loop of a rollout with codes of `obs` (T * N, D) and actions (T * N, A), and its last memory."""
        # The closed loop gives the belief that each open loop begins with.
        belief, entering_belief, entering_action = self.beliefs(code, action, links, memory)
        held = memory["held"].cpu().numpy()
        before = [belief]
        ahead = [self.open(action, belief)]
        exist = [links.valid]
        last_states = []
        count = np.zeros_like(held)
        for k in range(1, self.horizon):
            # Loops of k steps that landed on the row before continue by one step.
            continues = links.previous_values(held >= k, exist[-1]) & links.on
            states = links.carry(memory["open"][:, k - 1], ahead[-1], continues)
            last_states.append(states[-1])
            count += continues[-1]
            before.append(states[:-1].flatten(0, 1))
            ahead.append(self.open(action, before[-1]))
            exist.append(continues[:-1] & links.valid)
        after = dict(memory)
        after["belief"] = entering_belief[-1]
        after["action"] = entering_action[-1]
        after["held"] = torch.from_numpy(count)
        if last_states:
            after["open"] = torch.stack(last_states, dim=1)
        paths = Paths(before, ahead, np.stack(exist).reshape(self.horizon, -1))
        return paths, after

    def beliefs(
        self, code: Tensor, action: Tensor, links: Links, memory: MemoryTensors
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The closed loop: beliefs (T * N, D), with each row's `obs`; and beliefs and actions that rows start from."""
        previous_action = links.carry(memory["action"], action, links.on)
        code = code.unflatten(0, links.valid.shape)
        inputs = torch.cat([code, previous_action[:-1]], dim=2)
        valid = torch.from_numpy(links.valid).to(code.device)[..., None]
        continues = torch.from_numpy(~links.ended).to(code.device)[..., None]
        all_continue = (links.valid & ~links.ended).all(axis=1).tolist()
        entering = [memory["belief"]]
        beliefs = []
        for t, rows in enumerate(inputs):
            belief = self.closed(rows, entering[-1])
            beliefs.append(belief)
            if not all_continue[t]:
                belief = torch.where(valid[t], belief, entering[-1]) * continues[t]
            entering.append(belief)
        return torch.cat(beliefs), torch.stack(entering), previous_action


def distance(prediction: Tensor, target: Tensor) -> Tensor:
    """Squared distance (R,) of directions (R, D), in [0, 4]."""
    prediction = normalize(prediction, eps=1e-6)
    target = normalize(target, eps=1e-6)
    return (prediction - target).square().sum(dim=1)


def _orthogonal_gru(inputs: int, size: int, generator: torch.Generator) -> nn.GRUCell:
    """A GRU whose gates are orthogonal, without a draw from torch's global generator."""
    cell = skip_init(nn.GRUCell, inputs, size)
    for parameter in cell.parameters():
        for gate in parameter.detach().chunk(3):
            if gate.dim() == 1:
                nn.init.zeros_(gate)
            else:
                nn.init.orthogonal_(gate, generator=generator)
    return cell
