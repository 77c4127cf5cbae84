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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils import skip_init

from envs.transitions import Transitions
from envs.types import Array, Memory, Obs
from lodestar.numerics.descent import Flat
from lodestar.settings import setting
from rewards.base import Metrics, Reward, RewardConfig, RunningMeanStd, compute_once, valid_rows
from rewards.exploration.compiled.tape import Compiled, Tape, Units

# Filters, width and stride of each layer, from Mnih et al. 2015.
CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
IMAGE = 36  # pixels; the smallest image that they take
# In units of `Learned.work_done`: five seconds in torch, which compiling takes, too. For RND a million transitions.
COMPILE_AFTER_WORK = 40_000_000
MAX_PIECE_ROWS = 512  # images looked at a time, to bound memory
MIN_NARROWED_INPUTS = 64  # from which on it is faster to leave out inputs that are 0 in every row
UNBOUNDED = 1e6  # a bound of a space that lies farther from 0 says nothing about its values
ALL_COLUMNS = slice(None)
# What minibatches are cut from, tensors with leading axis N; and the losses of one, by name.
Columns = tuple[Tensor, ...]
Losses = dict[str, Tensor]
WHOLE_OBS = ""  # the name of the only part of an observation that is no dict


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
        "running | bounds | none",
    )
    learning_rate: float = setting(1e-3, "Adam step size", "> 0", tune=(1e-5, 1e-2, "log"))
    features: int = setting(64, "size of the embedding, or of the networks' outputs, D", ">= 1")
    hidden: int = setting(64, "width of the hidden layers", ">= 1")
    update_proportion: float = setting(
        1.0, "share of each minibatch learnt from; lower it for more environments", "(0, 1]", tune=(0.1, 1.0, "log")
    )
    epochs: int = setting(1, "passes over the transitions of one update", ">= 1")
    batch_size: int = setting(256, "transitions in a minibatch", ">= 1")
    max_grad_norm: float = setting(0.5, "gradients are clipped to this norm", "> 0")
    path: str = setting(
        "auto",
        "where dense layers learn and score: torch, or compiled by numba (extra `fast`), three times as fast; auto: "
        "compiled after about five seconds of learning, counted in minibatches",
        "auto | numba | torch",
    )
    keys: list[str] = setting([], "entries of a Dict observation to look at; empty looks at all")
    channels: int = setting(0, "channels of an image to look at, the last; 0 for all; stacked frames want 1", ">= 0")


class Learned(Reward):
    """Base class of bonuses that learn from transitions, one by one."""

    Config: ClassVar[type[RewardConfig]] = LearnedConfig
    learns = True  # False where only the whitening moves
    tape: Any = None  # a method (tape, *columns) that writes down `loss`, see `rewards.exploration.compiled`
    error: Any = None  # a method (*columns) that gives the rewards (N,) of rows, where `score` is not overridden
    optimizer: Any = None  # a `Flat` of the parameters `trained`, once there is something to train
    trained: Sequence[nn.Parameter] = ()

    def build(self) -> None:
        config = self.config
        name = config.name
        self.layout = Layout(self.observation_space, config.keys, name, channels=config.channels, smallest_image=IMAGE)
        self.statistics = RunningMeanStd((self.layout.size,))
        self.statistics.mean, self.statistics.var = self.layout.prior()
        # One generator draws minibatches, one initial weights; the global generators stay untouched.
        self.rng = np.random.default_rng(self.seed)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.compiled = Compiled(self)
        if "action" in self.requires:
            self.actions = ActionCode(self.action_space, name, self.device)

    @property
    def work_done(self) -> int:
        """A measure of the time spent on learning: minibatches times weights, or numbers embedded without optimiser."""
        if self.optimizer is None:
            return self.statistics.count * self.config.features
        return int(self.optimizer.steps) * len(self.optimizer.value)

    @property
    def compiles(self) -> bool:
        """Whether compiled calls are wanted, and no longer the plain ones of torch."""
        path = self.config.path
        return path == "numba" or (path == "auto" and self.work_done >= COMPILE_AFTER_WORK)

    def tensor(self, array: np.ndarray) -> Tensor:
        """The same numbers, on the device."""
        return torch.from_numpy(array).to(self.device)

    def net(self, *widths: int) -> "Net":
        """A fresh network from whitened rows through layers of `widths`."""
        return Net(self.layout, widths, self.generator).to(self.device)

    def head(self, inputs: int, *widths: int, gain: float = math.sqrt(2)) -> nn.Sequential:
        """Fresh dense layers from `inputs` numbers through `widths`, ReLU between; `gain` is the last one's."""
        layers: Any = dense_layers(inputs, widths, self.generator)
        with torch.no_grad():
            layers[-1].weight.mul_(gain / math.sqrt(2))
        return layers.to(self.device)

    def train_on(self, *modules: nn.Module) -> None:
        self.trained = list(nn.ModuleList(modules).parameters())
        self.optimizer = Flat.of_parameters(self.trained, epsilon=1e-8)

    def score(self, batch: Transitions, memory: Memory = None) -> Any:
        return self.in_pieces(self.error, *self.columns(batch)).cpu().numpy()

    def loss(self, *columns: Tensor) -> Losses:
        """Losses of one minibatch by name: their sum is minimised, each is logged."""
        raise NotImplementedError(f"{type(self).__name__} must define loss()")

    def columns(self, batch: Transitions) -> Columns:
        """What `loss` takes for the rows of a flat batch: tensors with leading axis N."""
        return (self.inputs(batch.next_obs),)

    def update(self, batch: Transitions) -> Metrics:
        batch = valid_rows(batch)
        if len(batch.step) == 0:
            return {}
        self.watch(batch)
        if not self.learns:
            return {}
        return self.fit(self.columns(batch))

    def watch(self, batch: Transitions) -> None:
        """Let the statistics move, once for each transition."""
        if self.config.normalize_obs != "running":
            return
        # Reading them raises on what is not finite before any statistics have moved; bytes are always finite.
        if "obs" in self.requires and self.layout.vector:
            self.rows(batch.obs)
        if "action" in self.requires:
            self.actions(batch.action)
        statistics = self.statistics

        def updated() -> RunningMeanStd:
            after = copy.copy(statistics)
            rows = self.rows(batch.next_obs)
            # The update computes in float64, which pieces keep small.
            for start in range(0, len(rows), MAX_PIECE_ROWS):
                after.update(rows[start : start + MAX_PIECE_ROWS])
            return after

        after = compute_once(
            batch.next_obs, lambda: ("watch", self.layout.key, statistics.count, statistics.key), updated
        )
        # What is shared is only read, so each reward keeps a copy.
        self.statistics = copy.copy(after)

    def fit(self, columns: Columns) -> Metrics:
        """Learn from the columns of new transitions, `epochs` times; the mean of each loss over minibatches."""
        compiled = None
        if self.compiles:
            compiled = self.compiled.kernel("loss", "descend", "fit")
        sums: Any = Counter()
        count = 0
        for _ in range(self.config.epochs):
            epoch_columns = self.epoch(columns)
            minibatches = self.minibatches(len(epoch_columns[0]))
            if compiled:
                parts = list(map(self.split_rows, minibatches))
                if parts:
                    sums.update(self.compiled.epoch(compiled, epoch_columns, parts))
                count += len(parts)
                continue
            # Minibatches are drawn one by one, as a loss may draw from the same generator between them.
            for rows in minibatches:
                index = self.tensor(rows)
                losses = self.loss(*(column.index_select(0, index) for column in epoch_columns))
                self.descend(sum(losses.values()))
                sums.update({name: value.detach() for name, value in losses.items()})
                count += 1
        return {name: float(value) / count for name, value in sums.items()}

    def minibatches(self, n: int) -> Iterator[np.ndarray]:
        """The rows of each minibatch of one pass over n, drawn as they are asked for."""
        size = self.config.batch_size
        share = self.config.update_proportion
        order = self.rng.permutation(n)
        for start in range(0, n, size):
            rows = order[start : start + size]
            if share < 1:
                rows = rows[self.rng.random(len(rows)) < share]
            if len(rows):
                yield rows

    def split_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """The rows of a minibatch that each part of a compiled loss is about; a loss may have several parts."""
        return [rows]

    def epoch(self, columns: Columns) -> Columns:
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

        return compute_once(obs, lambda: ("rows", self.layout.key), read)

    def inputs(self, obs: Obs) -> Tensor:
        """Observations (N, ...) -> whitened rows (N, size), float32, in [-5, 5]."""
        rows = self.rows(obs)
        return compute_once(
            rows,
            lambda: ("whitened", self.layout.key, self.config.normalize_obs, self.device, self.statistics.key),
            lambda: self.whiten(rows),
        )

    def whiten(self, rows: np.ndarray, used: np.ndarray | slice = ALL_COLUMNS) -> Tensor:
        """Rows (N, size) -> what networks see of them; of those columns alone."""
        rows = rows[:, used] if isinstance(used, slice) else rows.take(used, axis=1)
        if self.config.normalize_obs == "none":
            return self.tensor(rows)
        x = rows - self.statistics.mean[used].astype(np.float32)
        x *= (1 / self.statistics.std[used]).astype(np.float32)
        np.clip(x, -5, 5, out=x)
        return self.tensor(x)

    def set_used_columns(self, *rows: np.ndarray) -> None:
        """Let networks leave out columns that whiten to 0 in these rows (M, size), as one-hot ones do."""
        if self.layout.images:
            self.layout.used = ALL_COLUMNS
        else:
            self.layout.used = used_columns(self.statistics.mean, *rows)

    def values(self, function: Callable[[Tensor], Tensor], obs: Obs) -> np.ndarray:
        """`function` of whitened observations (N, ...) without gradients, as an array (N, ...)."""
        return self.in_pieces(function, self.inputs(obs)).cpu().numpy()

    def in_pieces(self, function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
        """`function` of whole columns without gradients; images go in pieces, to bound memory."""
        if self.compiles:
            compiled_values = self.compiled.rates(function, columns)
            if compiled_values is not None:
                return compiled_values
        piece_rows = MAX_PIECE_ROWS if self.layout.images else len(columns[0])
        split_columns = zip(*(column.split(piece_rows) for column in columns))
        with torch.no_grad():
            pieces = [function(*piece) for piece in split_columns]
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat(pieces)


class InverseDynamics(Learned):
    """Base class of bonuses in an inverse-dynamics embedding, which keeps what the agent's actions change.

    Two observations in a row pass one encoder; from both embeddings a head predicts the action between them.
    Source: Pathak, Agrawal, Efros, Darrell 2017, arXiv 1705.05363, section 2.2; Badia et al. 2020, arXiv 2002.06038.
    Fails when what matters does not follow from the last action (a key that is carried), or noise follows the action.
    """

    requires = frozenset({"obs", "action", "next_obs"})

    def build(self) -> None:
        super().build()
        hidden = self.config.hidden
        features = self.config.features
        self.encoder = self.net(hidden, features)
        self.prediction = self.head(2 * features, hidden, self.actions.size)

    def columns(self, batch: Transitions) -> Columns:
        return self.inputs(batch.obs), self.actions(batch.action), self.inputs(batch.next_obs)

    def loss(self, *columns: Tensor) -> Losses:
        x, action, after = columns
        one, two = self.encode(x, after)
        return {"inverse_loss": self.inverse_loss(one, two, action)}

    def tape(self, tape: Tape, x: Units, action: Units, after: Units) -> None:
        one, two = tape.apply_to_each(self.encoder.dense, x, after)
        self.tape_inverse(tape, one, two, action)

    def tape_inverse(self, tape: Tape, one: Units, two: Units, action: Units, share: float = 1.0) -> None:
        prediction = tape.net(self.prediction, one, two)
        self.actions.tape(tape, "inverse_loss", prediction, action, share)

    def encode(self, x: Tensor, after: Tensor) -> Columns:
        """Embeddings (N, D) of two columns, in one pass."""
        return self.encoder(torch.cat([x, after])).chunk(2)

    def phi(self, obs: Obs) -> np.ndarray:
        """Embeddings (N, D) of observations, as an array."""
        return self.values(self.encoder, obs)

    def inverse_loss(self, one: Tensor, two: Tensor, action: Tensor) -> Tensor:
        prediction = self.prediction(torch.cat([one, two], dim=1))
        return self.actions.loss(prediction, action)


class Net(nn.Module):
    """Rows of a `Layout`, or their columns `used` -> features: convolutions on its images, dense layers on all."""

    def __init__(self, layout: "Layout", widths: Any, generator: torch.Generator) -> None:
        super().__init__()
        self.layout = layout
        self.shapes = list(layout.images.values())
        # How many columns of a row are its vectors, and how many each of its images.
        self.split = [layout.vector, *map(math.prod, self.shapes)]
        self.trunks = nn.ModuleList()
        inputs = layout.vector
        for shape in self.shapes:
            trunk = _convolutions(shape[0], generator)
            # Numbers that leave the convolutions for an image.
            inputs += trunk(torch.zeros(1, *shape)).numel()
            self.trunks.append(trunk)
        self.dense = dense_layers(inputs, widths, generator)

    def forward(self, x: Tensor) -> Tensor:
        if self.shapes:
            vector, *images = x.split(self.split, dim=1)
            features = [vector]
            for trunk, image, shape in zip(self.trunks, images, self.shapes):
                features.append(trunk(image.unflatten(1, shape)))
            return self.dense(torch.cat(features, dim=1))
        if x.shape[1] == self.layout.size:
            return self.dense(x)
        first = narrow_linear(self.dense[0], x, self.layout.used)
        return self.dense[1:](first)


def dense_layers(inputs: int, widths: Any, generator: torch.Generator) -> nn.Sequential:
    """Dense layers of `widths` with ReLU between, orthogonal, without a draw from torch's global generator."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [skip_init(nn.Linear, inputs, width), nn.ReLU()]
        inputs = width
    return _initialise(nn.Sequential(*layers[:-1]), generator)


def used_columns(mean: np.ndarray, *rows: np.ndarray) -> np.ndarray | slice:
    """Columns that are not 0 throughout rows (N, D) once they are whitened by that mean (D,); all if most are not."""
    if len(mean) < MIN_NARROWED_INPUTS:
        return ALL_COLUMNS
    used = mean != 0
    for part in rows:
        used |= part.any(axis=0)
    if used.mean() >= 0.75:
        return ALL_COLUMNS
    return np.flatnonzero(used)


def narrow_linear(layer: Any, x: Tensor, used: np.ndarray | slice) -> Tensor:
    """What a linear layer makes of rows (N, D) that are 0 outside of their columns `used`, which x holds."""
    if isinstance(used, slice):
        return layer(x)
    columns = torch.from_numpy(used).to(x.device)
    return linear(x, layer.weight.index_select(1, columns), layer.bias)


def _convolutions(channels: int, generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for filters, width, stride in CONVOLUTIONS:
        layers += [skip_init(nn.Conv2d, channels, filters, width, stride), nn.LeakyReLU()]
        channels = filters
    return _initialise(nn.Sequential(*layers, nn.Flatten()), generator)


def _initialise(layers: nn.Sequential, generator: torch.Generator) -> nn.Sequential:
    for parameter in layers.parameters():
        # Weights have at least two axes, biases one.
        if parameter.dim() > 1:
            nn.init.orthogonal_(parameter, math.sqrt(2), generator=generator)
        else:
            nn.init.zeros_(parameter)
    return layers


class ActionCode:
    """Actions as numbers for a network, and the loss of a network that predicts them.

    Discrete spaces become one-hot blocks, predicted with cross-entropy; a Box is scaled from its bounds to [-1, 1], or
    taken as it is where it has none, and predicted with squared error.
    """

    def __init__(self, space: Space, reward: str, device: str = "cpu") -> None:
        self.reward = reward
        self.device = device
        self.key = id(space)
        self.blocks: list[int] = []  # choices of each discrete action
        match space:
            case spaces.Discrete():
                self.blocks = [int(space.n)]
                self.start = np.array([int(space.start)])
            case spaces.MultiDiscrete():
                self.blocks = space.nvec.ravel().tolist()
                self.start = np.asarray(space.start).ravel()
            case spaces.MultiBinary():
                self.blocks = [2] * math.prod(space.shape)
                self.start = np.zeros(len(self.blocks), np.int64)
            case spaces.Box():
                low = space.low.ravel().astype(np.float64)
                high = space.high.ravel().astype(np.float64)
                bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
                low = np.where(bounded, low, -1)
                high = np.where(bounded, high, 1)
                self.middle = ((low + high) / 2).astype(np.float32)
                self.half = ((high - low) / 2).astype(np.float32)
            case _:
                supported = "Discrete, MultiDiscrete, MultiBinary or Box"
                raise ValueError(f"reward {reward} cannot read the action space {space}; it takes {supported}")
        self.size = sum(self.blocks) if self.blocks else len(self.middle)
        # Where the one-hot code of each discrete action begins.
        self._offsets = np.cumsum([0, *self.blocks[:-1]])

    def __call__(self, action: Array) -> Tensor:
        """Actions (N, ...) -> float32 (N, size); FloatingPointError if one is not finite, ValueError if outside."""
        return compute_once(action, lambda: ("code", self.key, self.device), lambda: self._code(action))

    def _code(self, action: Array) -> Tensor:
        action = np.asarray(action)
        action = action.reshape(len(action), math.prod(action.shape[1:]))
        code = self._one_hot(action) if self.blocks else self._scale(action)
        return torch.from_numpy(code).to(self.device)

    def _scale(self, action: np.ndarray) -> np.ndarray:
        """Actions (N, A) of a Box, from its bounds to [-1, 1]."""
        code = (action.astype(np.float32) - self.middle) / self.half
        refuse_rows(code, self.reward, "an action", "the agent")
        return code

    def _one_hot(self, action: np.ndarray) -> np.ndarray:
        """Discrete actions (N, blocks) as one-hot blocks side by side."""
        choice = action.astype(np.int64) - self.start
        outside = (choice < 0) | (choice >= self.blocks)
        # Without this check such an action would be read as one of another block.
        if outside.any():
            row, column = np.argwhere(outside)[0]
            low = int(self.start[column])
            raise ValueError(
                f"reward {self.reward} was given the action {action[row, column]} at place {column} (row {row} of "
                f"the batch); give {low} to {low + self.blocks[column] - 1}, as its action space says"
            )
        code = np.zeros((len(action), self.size), np.float32)
        np.put_along_axis(code, choice + self._offsets, 1.0, axis=1)
        return code

    def loss(self, prediction: Tensor, code: Tensor) -> Tensor:
        """Predictions (N, size) against codes (N, size): mean over rows, sum over blocks."""
        if not self.blocks:
            return (prediction - code).square().mean()
        logits = prediction.split(self.blocks, dim=1)
        codes = code.split(self.blocks, dim=1)
        choices = [one_hot.argmax(dim=1) for one_hot in codes]
        total: Any = sum(map(cross_entropy, logits, choices))
        return total

    def tape(self, tape: Tape, name: str, prediction: Units, code: Units, share: float) -> None:
        """`share` of `loss`, written down."""
        if not self.blocks:
            tape.squares(name, prediction, code, 1 / self.size, share)
        for begin, n in zip(self._offsets.tolist(), self.blocks):
            tape.entropy(name, prediction.select(begin, n), code.select(begin, n), share)


def numeric_spaces(space: Space, keys: Sequence[str], reward: str) -> dict[str, Space]:
    """The numeric spaces (Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these) in `space`, in a fixed order.

    `keys` are the entries of a Dict to look at, all if empty. ValueError, about that reward, for another space or key.
    """
    numeric = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if isinstance(space, spaces.Dict):
        unknown = [key for key in keys if key not in space.spaces]
        if unknown:
            fix = f"which the observation does not have; choose among {sorted(space.spaces)}"
            raise ValueError(f"reward.{reward}.keys={list(keys)} names {unknown[0]!r}, {fix}")
        chosen = {key: space.spaces[key] for key in sorted(keys or space.spaces)}
    elif keys:
        raise ValueError(f"reward.{reward}.keys={list(keys)} needs a Dict observation, not {space}; leave keys empty")
    else:
        chosen = {WHOLE_OBS: space}
    for key, part in chosen.items():
        if not isinstance(part, numeric):
            where = f" (entry {key!r})" if key else ""
            supported = "it takes Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these"
            raise ValueError(f"reward {reward} cannot read the observation space {part}{where}; {supported}")
    return chosen


def obs_entry(obs: Obs, key: str) -> Array:
    """The entry `key` of a batch of observations; all of it, if it is no Dict."""
    return obs if key == WHOLE_OBS else obs[key]


def refuse_rows(x: np.ndarray, reward: str, what: str = "an observation", source: str = "the environment") -> None:
    """Raise FloatingPointError, naming the reward, if one of these rows (N, D) is not finite."""
    # The sum is the cheaper test; it is not finite either where finite numbers overflow it.
    if not math.isfinite(x.sum()) and not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise FloatingPointError(
            f"reward {reward} was given {what} with {x[row, column]} at place {column} "
            f"(row {row} of the batch); nothing has been learnt from it, fix {source}"
        )


class Layout:
    """An observation as one row of `size` float32 numbers: the vectors first, then each image that is large enough."""

    used: np.ndarray | slice = ALL_COLUMNS  # columns of the rows that networks read

    def __init__(self, space: Space, keys: Sequence[str], reward: str, *, channels: int, smallest_image: int) -> None:
        """Lay out `space`, for the reward of that name; an image has at least `smallest_image` pixels a side.

        `channels` keeps that many of each image's channels, counted from the last; 0 keeps all.
        """
        self.spaces = numeric_spaces(space, keys, reward)
        # Layouts that flatten observations to the same rows have equal keys.
        self.key = (id(space), tuple(keys), channels, smallest_image)
        self.channels = channels
        self.images: dict[str, tuple[int, ...]] = {}  # name -> (C, H, W), in their order in the row
        # How many numbers of a row are vectors, one-hot for Discrete; smaller images count among them.
        self.vector = 0
        vectors: list[str] = []
        for key, box in self.spaces.items():
            shape = _image_shape(box)
            if shape and channels > shape[0]:
                raise ValueError(
                    f"reward.{reward}.channels={channels}, but the image has {shape[0]}; give at most that"
                )
            if shape and min(shape[1:]) >= smallest_image:
                self.images[key] = (channels or shape[0], *shape[1:])
            else:
                vectors.append(key)
                low, _ = self._bounds(key)
                self.vector += len(low)
        self.order = [*vectors, *self.images]
        image_sizes = map(math.prod, self.images.values())
        self.size = self.vector + sum(image_sizes)

    def flatten(self, obs: Obs) -> np.ndarray:
        """Observations (N, ...) -> float32 (N, size)."""
        rows = [self._rows(obs_entry(obs, key), self.spaces[key]) for key in self.order]
        if len(rows) == 1:
            return rows[0]
        return np.concatenate(rows, axis=1)

    def prior(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance (size,) of a uniform draw from the space; 0 and 1 where it has no bounds worth the name."""
        lows, highs = zip(*map(self._bounds, self.order))
        low = np.concatenate(lows).astype(np.float64)
        high = np.concatenate(highs).astype(np.float64)
        bounded = (np.abs(low) < UNBOUNDED) & (np.abs(high) < UNBOUNDED)
        # Uniform between -sqrt(3) and sqrt(3) has mean 0 and variance 1.
        low = np.where(bounded, low, -np.sqrt(3))
        high = np.where(bounded, high, np.sqrt(3))
        return (low + high) / 2, (high - low) ** 2 / 12

    def _bounds(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        box = self.spaces[key]
        match box:
            case spaces.Discrete():
                # A Discrete one is one-hot in a row.
                size = int(box.n)
                return np.zeros(size), np.ones(size)
            case spaces.MultiDiscrete():
                low = box.start
                high = box.start + box.nvec - 1
            case spaces.MultiBinary():
                low = np.zeros(box.shape)
                high = np.ones(box.shape)
            case spaces.Box():
                low = box.low
                high = box.high
        low_row, high_row = self._rows(np.stack([low, high]), box)
        return low_row, high_row

    def _rows(self, values: Array, box: Space) -> np.ndarray:
        values = np.asarray(values)
        if isinstance(box, spaces.Discrete):
            choice = values.reshape(len(values)).astype(np.int64) - box.start
            return np.eye(int(box.n), dtype=np.float32)[choice]
        if self.channels and _image_shape(box):
            values = values[:, -self.channels :]
        width = math.prod(values.shape[1:])
        return values.reshape(len(values), width).astype(np.float32, copy=False)


def _image_shape(space: Space) -> tuple[int, ...] | None:
    """(C, H, W) of a channel-first image of bytes, None for anything else."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) != 3:
        return None
    return space.shape
