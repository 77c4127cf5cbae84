"""What bonuses that learn have in common: inputs, networks, an optimiser and passes over minibatches.

A bonus of this kind makes its networks in `build` with `self.net(...)`, passes them once to `self.train_on(...)`, and
returns the losses of one minibatch from `loss`. `update` does the rest.

    x = self.inputs(obs)                 whitened rows, float32 tensor (N, size), on the device
    a = self.actions(action)             float32 tensor (N, A): one-hot, or scaled to [-1, 1]
    self.columns(batch)                  the tensors that a minibatch is cut from, in the order that `loss` takes them
    tape(self, tape, *columns)           may write `loss` down a second time, so that it is compiled (`.compiled.tape`)

Differences from the papers: an optimiser and a gradient clip of their own; until the first update the bounds of the
observation space stand in for the running statistics, where papers step the environment at random beforehand.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils import skip_init

from envs.transitions import Transitions
from envs.types import Array, Obs
from lodestar.numerics.flat import Flat
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig, RunningMeanStd, valid_rows
from rewards.exploration.compiled.tape import Compiled, Tape, Units
from rewards.sharing import once

CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # filters, width, stride: Mnih et al. 2015
IMAGE = 36  # pixels; the smallest image that they take
ROWS = 512  # images looked at a time, to bound memory
WIDE = 64  # inputs from which on it is faster to leave out those that are 0 in every row
ALL = slice(None)
PLAIN = ""  # the name of the only part of an observation that is no dict


@dataclass
class LearnedConfig(RewardConfig):
    """Settings of every bonus that learns."""

    scale: str = "return"
    gamma: float | None = 0.99
    episodic: bool | None = None
    normalize_obs: str = setting(
        "running",
        "running whitens by mean and deviation of the observations so far, clipped at 5; bounds by those of the space;"
        " none leaves numbers as they are (one-hot codes)",
        choices=("running", "bounds", "none"),
    )
    learning_rate: float = setting(1e-3, "Adam step size", above=0, tune=(1e-5, 1e-2, "log"))
    features: int = setting(64, "size of the embedding, or of the networks' outputs, D", low=1)
    hidden: int = setting(64, "width of the hidden layers", low=1)
    update_proportion: float = setting(
        1.0,
        "share of each minibatch learnt from; lower it for more environments",
        above=0,
        high=1,
        tune=(0.1, 1.0, "log"),
    )
    epochs: int = setting(1, "passes over the transitions of one update", low=1)
    batch_size: int = setting(256, "transitions in a minibatch", low=1)
    max_grad_norm: float = setting(0.5, "gradients are clipped to this norm", above=0)
    path: str = setting(
        "auto",
        "where dense layers learn and score: torch, or compiled by numba (extra `fast`), three times as fast; auto: "
        "compiled after about five seconds of learning, counted in minibatches",
        choices=("auto", "numba", "torch"),
    )
    keys: list[str] = setting([], "entries of a Dict observation to look at; empty looks at all")
    channels: int = setting(0, "channels of an image to look at, the last; 0 for all; stacked frames want 1", low=0)


class Learned(Reward):
    """Base class of bonuses that learn from transitions, one by one."""

    Config: ClassVar[type[RewardConfig]] = LearnedConfig
    learns = True  # False where only the whitening moves
    tape: Any = None  # a method (tape, *columns) that writes down `loss`, see `rewards.exploration.compiled`

    def build(self) -> None:
        config, name, seed = self.config, self.config.name, self.seed
        self.layout = Layout(self.observation_space, config.keys, name, channels=config.channels, smallest_image=IMAGE)
        self.statistics = RunningMeanStd((self.layout.size,))
        self.statistics.mean, self.statistics.var = self.layout.prior()
        self.rng = np.random.default_rng(seed)  # of the minibatches; the global generators stay untouched
        self.generator = torch.Generator().manual_seed(seed)  # of the weights, when they are built
        self.compiled = Compiled(self)
        if "action" in self.requires:
            self.actions = ActionCode(self.action_space, name, self.device)

    @property
    def learnt(self) -> int:
        """How much was learnt so far, a measure of time: minibatches times weights, or else numbers embedded."""
        optimizer: Flat | None = getattr(self, "optimizer", None)
        if optimizer is None:
            return self.statistics.count * self.config.features
        return int(optimizer.steps) * len(optimizer.value)

    def net(self, *widths: int) -> "Net":
        """A fresh network from whitened rows through layers of `widths`."""
        return Net(self.layout, widths, self.generator).to(self.device)

    def head(self, inputs: int, *widths: int, gain: float = math.sqrt(2)) -> nn.Sequential:
        """Fresh dense layers from `inputs` numbers through `widths`, ReLU between; `gain` is the last one's."""
        layers = dense(inputs, widths, self.generator)
        with torch.no_grad():
            cast(nn.Linear, layers[-1]).weight.mul_(gain / math.sqrt(2))
        return layers.to(self.device)

    def train_on(self, *modules: nn.Module) -> None:
        self.trained = [parameter for module in modules for parameter in module.parameters()]
        self.optimizer = Flat.over(self.trained, epsilon=1e-8)

    def loss(self, *columns: Tensor) -> dict[str, Tensor]:
        """Losses of one minibatch by name: their sum is minimised, each is logged."""
        raise NotImplementedError(f"{type(self).__name__} must define loss()")

    def columns(self, batch: Transitions) -> tuple[Tensor, ...]:
        """What `loss` takes for the rows of a flat batch: tensors with leading axis N."""
        return (self.inputs(batch.next_obs),)

    def update(self, batch: Transitions) -> dict[str, float]:
        batch = valid_rows(batch)
        if len(batch.step) == 0:
            return {}
        self.watch(batch)
        return self.fit(self.columns(batch)) if self.learns else {}

    def watch(self, batch: Transitions) -> None:
        """Let the statistics move, once for each transition."""
        if self.config.normalize_obs == "running":
            if "obs" in self.requires and self.layout.vector:  # bytes are always finite
                self.rows(batch.obs)  # raises before anything has moved, and so does the next
            if "action" in self.requires:
                self.actions(batch.action)
            statistics = self.statistics
            key = lambda: ("watch", self.layout.key, statistics.count, statistics.key)  # noqa: E731
            after = once(batch.next_obs, key, lambda: self.watched(self.rows(batch.next_obs)))
            statistics.mean, statistics.var, statistics.count = after

    def watched(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Mean, variance and count of the statistics after rows (N, size), which leave them where they are."""
        after = copy.copy(self.statistics)
        for i in range(0, len(rows), ROWS):  # in float64, hence in pieces
            after.update(rows[i : i + ROWS])
        return after.mean, after.var, after.count

    def fit(self, columns: tuple[Tensor, ...]) -> dict[str, float]:
        compiled = self.compiled.kernel("loss", "descend", "fit")
        sums: dict[str, Any] = {}
        count = 0
        for _ in range(self.config.epochs):
            taken = self.epoch(columns)
            if compiled:
                parts = [self.parts(rows) for rows in self.minibatches(len(taken[0]))]
                _add(sums, self.compiled.epoch(compiled, taken, parts) if parts else {})
                count += len(parts)
                continue
            for rows in self.minibatches(len(taken[0])):
                index = torch.from_numpy(rows).to(self.device)
                losses = self.loss(*(column.index_select(0, index) for column in taken))
                self.descend(sum(losses.values()))
                _add(sums, {name: value.detach() for name, value in losses.items()})
                count += 1
        return {name: float(value) / count for name, value in sums.items()}

    def minibatches(self, n: int) -> Iterator[np.ndarray]:
        """The rows of each minibatch of one pass over n, drawn as they are asked for."""
        size, share = self.config.batch_size, self.config.update_proportion
        order = self.rng.permutation(n)
        for i in range(0, n, size):
            rows = order[i : i + size]
            rows = rows if share == 1 else rows[self.rng.random(len(rows)) < share]
            if len(rows):
                yield rows

    def parts(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows of a minibatch that each part of the loss is about, where `tape` writes down several."""
        return [rows]

    def epoch(self, columns: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What one pass learns from, given the columns of the new transitions."""
        return columns

    def descend(self, loss: Any) -> None:
        """One step of the optimiser; none on a loss that is NaN or infinite, which would spoil every weight."""
        self.optimizer.grad.zero_()
        loss.backward()
        if math.isfinite(self.optimizer.clip(self.config.max_grad_norm)):
            self.optimizer.adam(self.config.learning_rate)

    def rows(self, obs: Obs) -> np.ndarray:
        """Observations (N, ...) -> float32 (N, size), as they are; raises FloatingPointError if one is not finite."""

        def read() -> np.ndarray:
            x = self.layout.flatten(obs)
            refuse_rows(x, self.config.name)
            return x

        return once(obs, lambda: ("rows", self.layout.key), read)

    def inputs(self, obs: Obs) -> Tensor:
        """Observations (N, ...) -> whitened rows (N, size), float32, in [-5, 5]."""
        rows = self.rows(obs)
        how = self.config.normalize_obs, self.device
        return once(rows, lambda: ("whitened", self.layout.key, *how, self.statistics.key), lambda: self.whiten(rows))

    def whiten(self, rows: np.ndarray, used: np.ndarray | slice = ALL) -> Tensor:
        """Rows (N, size) -> what networks see of them; of those columns alone."""
        rows = rows[:, ALL] if isinstance(used, slice) else rows.take(used, axis=1)
        if self.config.normalize_obs == "none":
            return torch.from_numpy(rows).to(self.device)
        x = rows - self.statistics.mean[used].astype(np.float32)
        x *= (1 / self.statistics.std[used]).astype(np.float32)
        return torch.from_numpy(np.clip(x, -5, 5, out=x)).to(self.device)

    def use(self, *rows: np.ndarray) -> None:
        """Let networks leave out columns that whiten to 0 in these rows (M, size), as one-hot ones do."""
        self.layout.used = ALL if self.layout.images else used_columns(self.statistics.mean, *rows)

    def values(self, function: Callable[[Tensor], Tensor], obs: Obs) -> np.ndarray:
        """`function` of whitened observations (N, ...) without gradients, as an array (N, ...)."""
        return self.in_pieces(function, self.inputs(obs)).cpu().numpy()

    def in_pieces(self, function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
        """`function` of whole columns without gradients; images go in pieces, to bound memory."""
        if (rated := self.compiled.rates(function, columns)) is not None:
            return rated
        if not len(columns[0]):  # a row of zeros gives the shape of an empty result
            return self.in_pieces(function, *(c.new_zeros(1, *c.shape[1:]) for c in columns))[:0]
        rows = ROWS if self.layout.images else len(columns[0])
        with torch.no_grad():
            pieces = [function(*(c[i : i + rows] for c in columns)) for i in range(0, len(columns[0]), rows)]
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


class InverseDynamics(Learned):
    """Base class of bonuses in an inverse-dynamics embedding, which keeps what the agent's actions change.

    Two observations in a row pass one encoder; from both embeddings a head predicts the action between them.
    Source: Pathak, Agrawal, Efros, Darrell 2017, arXiv 1705.05363, section 2.2; Badia et al. 2020, arXiv 2002.06038.
    Fails when what matters does not follow from the last action (a key that is carried), or noise follows the action.
    """

    requires = frozenset({"obs", "action", "next_obs"})

    def build(self) -> None:
        super().build()
        config = self.config
        hidden, features = config.hidden, config.features
        self.encoder = self.net(hidden, features)
        self.prediction = self.head(2 * features, hidden, self.actions.size)

    def columns(self, batch: Transitions) -> tuple[Tensor, ...]:
        return self.inputs(batch.obs), self.actions(batch.action), self.inputs(batch.next_obs)

    def loss(self, *columns: Tensor) -> dict[str, Tensor]:
        x, action, after = columns
        one, two = self.encode(x, after)
        return {"inverse_loss": self.inverse_loss(one, two, action)}

    def tape(self, tape: Tape, x: Units, action: Units, after: Units) -> None:
        one, two = tape.each(self.encoder.dense, x, after)
        self.tape_inverse(tape, one, two, action)

    def tape_inverse(self, tape: Tape, one: Units, two: Units, action: Units, share: float = 1.0) -> None:
        self.actions.tape(tape, "inverse_loss", tape.net(self.prediction, one, two), action, share)

    def encode(self, x: Tensor, after: Tensor) -> tuple[Tensor, ...]:
        """Embeddings (N, D) of two columns, in one pass."""
        return self.encoder(torch.cat([x, after])).chunk(2)

    def phi(self, obs: Obs) -> np.ndarray:
        """Embeddings (N, D) of observations, as an array."""
        return self.values(self.encoder, obs)

    def inverse_loss(self, one: Tensor, two: Tensor, action: Tensor) -> Tensor:
        return self.actions.loss(self.prediction(torch.cat([one, two], dim=1)), action)


class Net(nn.Module):
    """Rows of a `Layout`, or their columns `used` -> features: convolutions on its images, dense layers on all."""

    def __init__(self, layout: "Layout", widths: Any, generator: torch.Generator) -> None:
        super().__init__()
        self.layout = layout
        self.split = [layout.vector, *(int(np.prod(shape)) for shape in layout.images.values())]
        self.shapes = list(layout.images.values())
        self.trunks = nn.ModuleList(_trunk(channels, generator) for channels, _, _ in self.shapes)
        self.dense = dense(layout.vector + sum(map(_outputs, self.shapes)), widths, generator)

    def forward(self, x: Tensor) -> Tensor:
        if self.shapes:
            vector, *images = x.split(self.split, dim=1)
            seen = [trunk(image.unflatten(1, shape)) for trunk, image, shape in zip(self.trunks, images, self.shapes)]
            x = torch.cat([vector, *seen], dim=1)
        if self.shapes or x.shape[1] == self.layout.size:
            return self.dense(x)
        return self.dense[1:](narrow_linear(self.dense[0], x, self.layout.used))


def _add(sums: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        sums[name] = value + sums[name] if name in sums else value


def dense(inputs: int, widths: Any, generator: torch.Generator) -> nn.Sequential:
    """Dense layers of `widths` with ReLU between, orthogonal, without a draw from torch's global generator."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [skip_init(nn.Linear, inputs, width), nn.ReLU()]
        inputs = width
    return _initialise(nn.Sequential(*layers[:-1]), generator)


def used_columns(mean: np.ndarray, *rows: np.ndarray) -> np.ndarray | slice:
    """Columns that are not 0 throughout rows (N, D) once they are whitened by that mean (D,); all if most are not."""
    used = np.any([mean != 0, *(part.any(axis=0) for part in rows)], axis=0)
    return np.flatnonzero(used) if len(mean) >= WIDE and used.mean() < 0.75 else ALL


def narrow_linear(layer: Any, x: Tensor, used: np.ndarray | slice) -> Tensor:
    """What a linear layer makes of rows (N, D) that are 0 outside of their columns `used`, which x holds."""
    if isinstance(used, slice):
        return layer(x)
    return linear(x, layer.weight.index_select(1, torch.from_numpy(used).to(x.device)), layer.bias)


def _trunk(channels: int, generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for filters, width, stride in CONVOLUTIONS:
        layers += [skip_init(nn.Conv2d, channels, filters, width, stride), nn.LeakyReLU()]
        channels = filters
    return _initialise(nn.Sequential(*layers, nn.Flatten()), generator)


def _initialise(layers: nn.Sequential, generator: torch.Generator) -> nn.Sequential:
    for module in layers:
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(module.weight, math.sqrt(2), generator=generator)
            nn.init.zeros_(cast(Tensor, module.bias))
    return layers


def _outputs(shape: tuple[int, int, int]) -> int:
    """Numbers that leave a trunk for an image (C, H, W)."""
    filters, height, width = shape
    for filters, size, stride in CONVOLUTIONS:  # noqa: B007
        height, width = (height - size) // stride + 1, (width - size) // stride + 1
    return filters * height * width


class ActionCode:
    """Actions as numbers for a network, and the loss of a network that predicts them.

    Discrete spaces become one-hot blocks, predicted with cross-entropy; a Box is scaled from its bounds to [-1, 1], or
    taken as it is where it has none, and predicted with squared error.
    """

    def __init__(self, space: gym.Space, reward: str, device: str = "cpu") -> None:
        self.reward, self.device, self.key = reward, device, id(space)
        self.blocks: list[int] = []
        match space:
            case gym.spaces.Discrete():
                self.blocks, self.start = [int(space.n)], np.array([int(space.start)])
            case gym.spaces.MultiDiscrete():
                self.blocks, self.start = space.nvec.ravel().tolist(), np.asarray(space.start).ravel()
            case gym.spaces.MultiBinary():
                self.blocks = [2] * int(np.prod(space.shape))
                self.start = np.zeros(len(self.blocks), np.int64)
            case gym.spaces.Box():
                low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
                bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
                low, high = np.where(bounded, low, -1), np.where(bounded, high, 1)
                self.middle, self.half = ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)
            case _:
                known = "Discrete, MultiDiscrete, MultiBinary or Box"
                raise ValueError(f"reward {reward} cannot read the action space {space}; it takes {known}")
        self.size = sum(self.blocks) if self.blocks else len(self.middle)
        self._offsets = np.cumsum([0, *self.blocks[:-1]])

    def __call__(self, action: Array) -> Tensor:
        """Actions (N, ...) -> float32 (N, size); FloatingPointError if one is not finite, ValueError if outside."""
        return once(action, lambda: ("code", self.key, self.device), lambda: self._code(action))

    def _code(self, action: Array) -> Tensor:
        action = np.asarray(action)
        action = action.reshape(len(action), int(np.prod(action.shape[1:])))
        if not self.blocks:
            code = (action.astype(np.float32) - self.middle) / self.half
            if not np.isfinite(code).all():
                row, column = np.argwhere(~np.isfinite(code))[0]
                raise FloatingPointError(
                    f"reward {self.reward} was given an action with {action[row, column]} at place {column} (row {row} "
                    "of the batch); nothing has been learnt from it, fix the agent"
                )
        else:
            choice = action.astype(np.int64) - self.start
            outside = (choice < 0) | (choice >= self.blocks)
            if outside.any():  # it would be read as an action of another block
                row, column = np.argwhere(outside)[0]
                low = int(self.start[column])
                raise ValueError(
                    f"reward {self.reward} was given the action {action[row, column]} at place {column} (row {row} of "
                    f"the batch); give {low} to {low + self.blocks[column] - 1}, as its action space says"
                )
            code = np.zeros((len(action), self.size), np.float32)
            np.put_along_axis(code, choice + self._offsets, 1.0, axis=1)
        return torch.from_numpy(code).to(self.device)

    def loss(self, prediction: Tensor, code: Tensor) -> Tensor:
        """Predictions (N, size) against codes (N, size): mean over rows, sum over blocks."""
        if not self.blocks:
            return (prediction - code).square().mean()
        predictions, codes = prediction.split(self.blocks, dim=1), code.split(self.blocks, dim=1)
        return cast(Tensor, sum(cross_entropy(g, c.argmax(dim=1)) for g, c in zip(predictions, codes)))

    def tape(self, tape: Tape, name: str, prediction: Units, code: Units, share: float) -> None:
        """`share` of `loss`, written down."""
        if not self.blocks:
            tape.squares(name, prediction, code, 1 / self.size, share)
        for begin, n in zip(self._offsets.tolist(), self.blocks):
            tape.entropy(name, prediction.part(begin, n), code.part(begin, n), share)


def parts(space: gym.Space, keys: Sequence[str], reward: str) -> dict[str, gym.Space]:
    """The numeric spaces (Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these) in `space`, in a fixed order.

    `keys` are the entries of a Dict to look at, all if empty. ValueError, about that reward, for another space or key.
    """
    numeric = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)
    if isinstance(space, gym.spaces.Dict):
        unknown = [key for key in keys if key not in space.spaces]
        if unknown:
            known = f"which the observation does not have; choose among {sorted(space.spaces)}"
            raise ValueError(f"reward.{reward}.keys={list(keys)} names {unknown[0]!r}, {known}")
        found = {key: space.spaces[key] for key in sorted(keys or space.spaces)}
    elif keys:
        raise ValueError(f"reward.{reward}.keys={list(keys)} needs a Dict observation, not {space}; leave keys empty")
    else:
        found = {PLAIN: space}
    for key, part in found.items():
        if not isinstance(part, numeric):
            where = f" (entry {key!r})" if key else ""
            takes = "it takes Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these"
            raise ValueError(f"reward {reward} cannot read the observation space {part}{where}; {takes}")
    return found


def part(obs: Obs, key: str) -> Array:
    """One part of a batch of observations."""
    return obs if key == PLAIN else obs[key]


def refuse_rows(x: np.ndarray, reward: str) -> None:
    """Raise FloatingPointError, naming the reward, if an observation among rows (N, D) is not finite."""
    if not math.isfinite(x.sum()) and not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise FloatingPointError(
            f"reward {reward} was given an observation with {x[row, column]} at place {column} "
            f"(row {row} of the batch); nothing has been learnt from it, fix the environment"
        )


class Layout:
    """An observation as one row of `size` float32 numbers: the vectors first, then each image that is large enough."""

    used: np.ndarray | slice = ALL  # columns of the rows that networks read

    def __init__(
        self, space: gym.Space, keys: Sequence[str], reward: str, *, channels: int, smallest_image: int
    ) -> None:
        """Lay out `space`, for the reward of that name; an image has at least `smallest_image` pixels a side.

        `channels` keeps that many of each image's channels, counted from the last; 0 keeps all.
        """
        self.spaces = parts(space, keys, reward)
        self.key = id(space), tuple(keys), channels, smallest_image  # equal for layouts that flatten alike
        self.channels = channels
        self.images: dict[str, tuple[int, int, int]] = {}  # name -> (C, H, W), in their order in the row
        self.vector = 0  # numbers of the vectors, one-hot for Discrete; smaller images count among them
        vectors: list[str] = []
        for key, box in self.spaces.items():
            shape = _image_shape(box)
            if shape and channels > shape[0]:
                raise ValueError(
                    f"reward.{reward}.channels={channels}, but the image has {shape[0]}; give at most that"
                )
            if shape and min(shape[1:]) >= smallest_image:
                self.images[key] = (channels or shape[0], shape[1], shape[2])
            else:
                vectors.append(key)
                self.vector += len(self._bounds(key)[0])
        self.order = [*vectors, *self.images]
        self.size = self.vector + sum(int(np.prod(shape)) for shape in self.images.values())

    def flatten(self, obs: Obs) -> np.ndarray:
        """Observations (N, ...) -> float32 (N, size)."""
        rows = [self._rows(part(obs, key), self.spaces[key]) for key in self.order]
        return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)

    def prior(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance (size,) of a uniform draw from the space; 0 and 1 where it has no bounds worth the name."""
        bounds = [self._bounds(key) for key in self.order]
        low, high = (np.concatenate(side).astype(np.float64) for side in zip(*bounds))
        bounded = (np.abs(low) < 1e6) & (np.abs(high) < 1e6)
        low, high = np.where(bounded, low, -np.sqrt(3)), np.where(bounded, high, np.sqrt(3))
        return (low + high) / 2, (high - low) ** 2 / 12

    def _bounds(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        box = self.spaces[key]
        match box:
            case gym.spaces.Discrete():
                return np.zeros(int(box.n)), np.ones(int(box.n))
            case gym.spaces.MultiDiscrete():
                low, high = box.start, box.start + box.nvec - 1
            case gym.spaces.MultiBinary():
                low, high = np.zeros(box.shape), np.ones(box.shape)
            case gym.spaces.Box():
                low, high = box.low, box.high
        return self._rows(low[None], box)[0], self._rows(high[None], box)[0]

    def _rows(self, values: Array, box: gym.Space) -> np.ndarray:
        values = np.asarray(values)
        if isinstance(box, gym.spaces.Discrete):
            return np.eye(int(box.n), dtype=np.float32)[values.reshape(len(values)).astype(np.int64) - int(box.start)]
        if self.channels and _image_shape(box):
            values = values[:, -self.channels :]
        return values.reshape(len(values), int(np.prod(values.shape[1:]))).astype(np.float32, copy=False)


def _image_shape(space: gym.Space) -> tuple[int, int, int] | None:
    """(C, H, W) of a channel-first image of bytes, None for anything else."""
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return None
    channels, height, width = space.shape
    return channels, height, width
