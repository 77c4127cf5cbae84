"""Policy and value networks of our own agents: any observation in, a distribution over actions and K values out.

Sources: layer sizes, orthogonal initialisation and activations are those of Stable-Baselines3's PPO, the convolutions
Mnih et al. 2015's. Differences: a value head of K outputs; small images get small convolutions.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from envs import masks
from envs.types import Obs

# Standard deviations at which a normalised observation is cut.
CLIP = 10.0
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
# Logit or value of an action that is not allowed: exp is 0, and 0 times it is 0, as of -inf it is not.
MASKED = -1e8


def mask_outputs(outputs: Tensor, mask: Any) -> Tensor:
    """Logits or values (..., n) with `MASKED` where the mask, bool (..., n), is False; as they are without one."""
    if mask is None:
        return outputs
    allowed = torch.as_tensor(mask, device=outputs.device)
    return outputs.masked_fill(~allowed, MASKED)


def is_float_box(space: spaces.Space) -> bool:
    """Whether a space's values are arrays of floats."""
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


class FlatPart(NamedTuple):
    """An entry of the flat part of an observation: `length` numbers, or a one-hot for each of `sizes`."""

    length: int
    # How many values each Discrete number has; empty for numbers that are read as they are.
    sizes: list[int]
    # The least value of each Discrete number.
    start: np.ndarray


class Inputs:
    """What a network reads of an observation space; a ValueError for one without an array form.

    `size` is D, the length of the flat part: boxes ravelled, Discrete and MultiDiscrete one-hot. `images` are key ->
    (C, H, W) of the uint8 entries with three axes; the key of a bare image is "".
    """

    def __init__(self, space: spaces.Space) -> None:
        self.bare = not isinstance(space, spaces.Dict)
        parts: Any = {"": space} if self.bare else space
        self.images: dict[str, tuple[int, ...]] = {}
        self.flat: dict[str, FlatPart] = {}
        for key, part in parts.items():
            is_bytes = isinstance(part, spaces.Box) and part.dtype == np.uint8
            if is_bytes and len(part.shape) == 3:
                self.images[key] = tuple(part.shape)
            elif isinstance(part, spaces.Box | spaces.MultiBinary):
                length = int(np.prod(part.shape))
                self.flat[key] = FlatPart(length, [], np.zeros(0, int))
            elif isinstance(part, spaces.Discrete | spaces.MultiDiscrete):
                sizes = masks.sizes(part)
                first_choices = np.ravel(part.start)
                self.flat[key] = FlatPart(sum(sizes), sizes, first_choices)
            else:
                raise ValueError(
                    f"PPO cannot read observations from {part}; wrap the environment so that it gives numbers "
                    "(gymnasium.wrappers.FlattenObservation, FilterObservation)"
                )
        self.size = sum(part.length for part in self.flat.values())

    def vector(self, obs: Obs, leading: int = 1) -> np.ndarray:
        """The flat part, float32 (*leading axes, D); a view where the observation is that already."""
        columns = []
        for key, part in self.flat.items():
            value = self._entry(obs, key)
            shape = value.shape[:leading]
            if not part.sizes:
                numbers = value.reshape(*shape, part.length)
                columns.append(numbers.astype(np.float32, copy=False))
                continue
            # Each number chooses one column of its own one-hot, which begins where the last one ends.
            offsets = np.cumsum(part.sizes) - part.sizes
            index = value.reshape(*shape, -1) - part.start + offsets
            one_hot = np.zeros((*shape, part.length), np.float32)
            np.put_along_axis(one_hot, index.astype(np.int64), 1.0, axis=-1)
            columns.append(one_hot)
        if not columns:
            image = next(iter(self.pixels(obs).values()))
            no_columns = (*image.shape[:leading], 0)
            columns = [np.zeros(no_columns, np.float32)]
        if len(columns) == 1:
            return columns[0]
        return np.concatenate(columns, axis=-1)

    def pixels(self, obs: Obs) -> dict[str, np.ndarray]:
        """The images by key, as observed."""
        return {key: self._entry(obs, key) for key in self.images}

    def _entry(self, obs: Obs, key: str) -> np.ndarray:
        if not self.bare:
            obs = obs[key]
        return np.asarray(obs)


class SpaceEncoding(Inputs):
    """Spaces as flat vectors for networks that predict them: `Inputs` and actions, in both directions.

    `obs_size` is D, `action_size` A; `discrete` says whether one of A actions is chosen. A ValueError refuses
    observations without an array form, and actions other than Discrete and a bounded Box of floats.
    """

    def __init__(self, observation_space: gym.Space, action_space: gym.Space) -> None:
        super().__init__(observation_space)
        self.obs_size = self.size
        space: Any = action_space
        self.observation_space: Any = observation_space
        self.action_space: Any = space
        self.discrete = isinstance(space, spaces.Discrete)
        if self.discrete:
            self.action_size = int(space.n)
            return
        if not is_float_box(space) or not space.is_bounded():
            raise ValueError(
                f"actions from {space} cannot be predicted from; give Discrete, or a Box of floats with finite "
                "bounds (gymnasium.wrappers.RescaleAction, FlattenObservation), or use agent=ppo"
            )
        self.action_size = int(np.prod(space.shape))
        self._low = np.asarray(space.low, np.float32).ravel()
        self._high = np.asarray(space.high, np.float32).ravel()

    def obs(self, vector: np.ndarray, pixels: dict[str, np.ndarray] | None = None) -> Obs:
        """The observation of a `vector` (*leading axes, D) and `pixels`; whole numbers are rounded, and cut."""
        leading = vector.shape[:-1]
        parts: dict[str, np.ndarray] = dict(pixels or {})
        begin = 0
        for key, part in self.flat.items():
            space = self.observation_space
            if not self.bare:
                space = space[key]
            value = vector[..., begin : begin + part.length]
            begin += part.length
            if part.sizes:
                ends = np.cumsum(part.sizes)
                one_hots = np.split(value, ends[:-1], axis=-1)
                choices = [one_hot.argmax(-1) for one_hot in one_hots]
                value = np.stack(choices, -1) + part.start
            elif isinstance(space, spaces.MultiBinary):
                value = np.clip(np.rint(value), 0, 1)
            elif np.issubdtype(space.dtype, np.integer):
                # A model's prediction lies between whole numbers, and outside.
                rounded = np.rint(value)
                value = np.clip(rounded, space.low.ravel(), space.high.ravel())
            shaped = value.reshape(*leading, *space.shape)
            parts[key] = shaped.astype(space.dtype, copy=False)
        if self.bare:
            return parts[""]
        return {key: parts[key] for key in self.observation_space}

    def encode(self, action: Any) -> np.ndarray:
        """Actions (*leading axes, *shape) as float32 (*leading axes, A): a Box scaled to [-1, 1], Discrete one-hot."""
        action = np.asarray(action)
        if self.discrete:
            one_hots = np.eye(self.action_size, dtype=np.float32)
            return one_hots[action - self.action_space.start]
        leading = action.shape[: action.ndim - len(self.action_space.shape)]
        value = action.reshape(*leading, self.action_size)
        value = value.astype(np.float32, copy=False)
        return 2 * (value - self._low) / (self._high - self._low) - 1

    def decode(self, vector: np.ndarray) -> np.ndarray:
        """The inverse of `encode`; numbers outside [-1, 1] are cut."""
        space = self.action_space
        if self.discrete:
            return vector.argmax(-1) + space.start
        share = (np.clip(vector, -1, 1) + 1) / 2
        value = self._low + share * (self._high - self._low)
        shaped = value.reshape(*vector.shape[:-1], *space.shape)
        return shaped.astype(space.dtype, copy=False)


class Actions:
    """A distribution for an action space: one categorical for each number to choose, or a diagonal Gaussian.

    `outputs` numbers the network gives, and as many random ones are drawn; an action is made of `choices`. A ValueError
    refuses what is neither discrete nor a Box of floats.
    """

    def __init__(self, space: spaces.Space) -> None:
        self.space = space
        self.gaussian = is_float_box(space)
        self.sizes = masks.sizes(space)
        self.start = np.asarray(getattr(space, "start", 0)).ravel()
        if not (self.sizes or self.gaussian):
            raise ValueError(f"PPO cannot choose actions from {space}; give Discrete, MultiDiscrete or a Box of floats")
        self.shape = tuple(space.shape or ())
        self.dtype = space.dtype
        self.choices = len(self.sizes) or int(np.prod(self.shape))
        self.outputs = sum(self.sizes) or self.choices
        ends = [0, *itertools.accumulate(self.sizes)]
        self.columns = [slice(begin, end) for begin, end in itertools.pairwise(ends)]
        if self.gaussian:
            assert isinstance(space, spaces.Box)
            self.low = space.low.ravel()
            self.high = space.high.ravel()
            has_limit = np.isfinite([self.low, self.high])
            self.bounded = bool(has_limit.any())

    def draw(self, rng: np.random.Generator, *leading: int) -> np.ndarray:
        """Random numbers for `sample`, float32 (*leading, outputs)."""
        shape = (*leading, self.outputs)
        if self.gaussian:
            return rng.standard_normal(shape, np.float32)
        # Gumbel noise: the largest of logits + noise is a sample.
        exponential = rng.standard_exponential(shape, np.float32)
        return -np.log(np.maximum(exponential, np.float32(1e-30)))

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """Chosen numbers (B, choices) -> what the environment takes, (B, *shape); a Gaussian is clipped to the Box."""
        if not self.gaussian:
            action = action + self.start
        elif self.bounded:
            action = np.clip(action, self.low, self.high)
        shaped = action.reshape(len(action), *self.shape)
        return shaped.astype(self.dtype, copy=False)

    def draw_on(self, generator: torch.Generator, *leading: int) -> Tensor:
        """`draw` on the generator's device."""
        empty = torch.empty((*leading, self.outputs), device=generator.device)
        if self.gaussian:
            return empty.normal_(generator=generator)
        return -empty.exponential_(generator=generator).clamp_(min=1e-30).log_()

    def to_env_on(self, action: Tensor) -> Tensor:
        """`to_env` on the action's device, of the policy's type."""
        if self.gaussian:
            low = torch.as_tensor(self.low, device=action.device)
            high = torch.as_tensor(self.high, device=action.device)
            action = action.clamp(low, high)
        else:
            action = action + torch.as_tensor(self.start, device=action.device)
        return action.reshape(len(action), *self.shape)

    def sample(self, outputs: Tensor, log_std: Tensor | None, noise: Tensor) -> Tensor:
        """Actions (B, choices), a function of the noise drawn for them."""
        if log_std is None:
            return self.mode(outputs + noise)
        return outputs + log_std.exp() * noise

    def mode(self, outputs: Tensor) -> Tensor:
        """The likeliest actions (B, choices)."""
        if self.gaussian:
            return outputs
        logits = outputs.split(self.sizes, dim=-1)
        return torch.stack([part.argmax(-1) for part in logits], -1)

    def log_prob(self, outputs: Tensor, log_std: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of `action` (B, choices), and the distribution's entropy; both (B,)."""
        if log_std is not None:
            scaled = (action - outputs) * torch.exp(-log_std)
            constant = 0.5 * math.log(2 * math.pi)
            log_density = -0.5 * scaled.square() - log_std - constant
            log_prob = log_density.sum(-1)
            entropy = log_std.sum() + self.choices * (0.5 + constant)
            return log_prob, entropy.expand_as(log_prob)
        log_probs = []
        negative_entropies = []
        for i, logits in enumerate(outputs.split(self.sizes, dim=-1)):
            log = torch.log_softmax(logits, -1)
            index = action[..., i : i + 1].long()
            log_prob = log.gather(-1, index).squeeze(-1)
            negative_entropy = (log.exp() * log).sum(-1)
            log_probs.append(log_prob)
            negative_entropies.append(negative_entropy)
        total_log_prob = torch.stack(log_probs).sum(0)
        return total_log_prob, -torch.stack(negative_entropies).sum(0)

    def surprise(self, outputs: Tensor, log_std: Tensor | None, action: Tensor) -> Tensor:
        """How unlikely actions (B, choices) are, a number: -log p, of a Gaussian less that of its mode: z^2 / 2; (B,).

        The density of a Gaussian has no upper bound that -log p could be compared with: it grows with the number of
        dimensions and with their deviations, whatever the action.
        """
        if log_std is not None:
            scaled = (action - outputs) * torch.exp(-log_std)
            return 0.5 * scaled.square().mean(-1)
        log_prob, _ = self.log_prob(outputs, log_std, action)
        return -log_prob / self.choices


class ActorCritic(nn.Module):
    """Policy outputs and K values from an observation, through `gru` recurrent units where that is not 0.

    `trunk`: what the flat part goes through first, with a `width`. `zero_last`: whether outputs begin at exactly 0.
    `is_orthogonal`: whether weights begin so, and biases at 0, or fully connected layers as torch makes them.
    """

    obs_mean: Tensor
    obs_scale: Tensor

    def __init__(
        self,
        inputs: Inputs,
        actions: Actions,
        net_arch: list[int],
        streams: int,
        gru: int = 0,
        normalize_obs: bool = False,
        trunk: Any = None,
        zero_last: bool = False,
        log_std: float = 0.0,
        activation: str = "tanh",
        is_orthogonal: bool = True,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.actions = actions
        self.normalize_obs = normalize_obs
        self.trunk = trunk
        self.convolutions = nn.ModuleDict()
        for key, shape in inputs.images.items():
            self.convolutions[f"image_{key}"] = _convolutions(shape)
        # F, the length of the features: the flat part's, and 512 an image.
        width = inputs.size if trunk is None else trunk.width
        width += 512 * len(inputs.images)
        self.gru = None
        if gru:
            self.before = nn.Sequential(linear(width, gru), nn.Tanh())
            self.gru = nn.GRU(gru, gru)
            width = gru
        self.pi = _hidden_layers(width, net_arch, ACTIVATIONS[activation])
        self.vf = _hidden_layers(width, net_arch, ACTIVATIONS[activation])
        last_width = net_arch[-1] if net_arch else width
        self.pi_head = linear(last_width, actions.outputs, 0.01)
        self.vf_head = linear(last_width, streams, 1.0)
        if not is_orthogonal:
            for layer in (*self.pi, *self.vf, self.pi_head, self.vf_head):
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        if zero_last:
            nn.init.zeros_(self.pi_head.weight)
            nn.init.zeros_(self.pi_head.bias)
        self.log_std = None
        if actions.gaussian:
            first_log_std = torch.full((actions.outputs,), float(log_std))
            self.log_std = nn.Parameter(first_log_std)
        self.register_buffer("obs_mean", torch.zeros(inputs.size))
        # Multiplies: 1 / standard deviation.
        self.register_buffer("obs_scale", torch.ones(inputs.size))

    @property
    def is_mlp(self) -> bool:
        if self.gru is not None or self.trunk is not None:
            return False
        return not self.inputs.images and len(self.pi) > 0

    def ordered(self) -> list[nn.Parameter]:
        """All parameters; those of the two stacks alternate, so that a layer of both lies in one piece of memory."""
        stacks = []
        for pi_parameter, vf_parameter in zip(self.pi.parameters(), self.vf.parameters()):
            stacks += [pi_parameter, vf_parameter]
        in_stacks = {id(x) for x in stacks}
        others = [x for x in self.parameters() if id(x) not in in_stacks]
        return [*stacks, *others]

    def policy_parameters(self) -> list[nn.Parameter]:
        """Those that an action depends on: all but the values' own."""
        return [x for name, x in self.named_parameters() if not name.startswith("vf")]

    def values_from(self, weights: Mapping[str, Tensor], places: Sequence[int | None]) -> dict[str, Tensor]:
        """Weights of the K values out of another policy's `weights`: of its value in places[k], or those of now."""
        state = self.state_dict()
        heads = {key: x.clone() for key, x in state.items() if key.startswith("vf_head.")}
        for key, rows in heads.items():
            for row, place in enumerate(places):
                if place is not None:
                    rows[row] = weights[key][place]
        return heads

    def features(self, vector: Tensor, pixels: dict[str, Tensor]) -> Tensor:
        """Normalised flat part and convolved images, (B, F)."""
        if self.normalize_obs:
            centred = vector - self.obs_mean
            vector = (centred * self.obs_scale).clamp(-CLIP, CLIP)
        if self.trunk is not None:
            vector = self.trunk(vector)
        parts = []
        if self.inputs.size:
            parts.append(vector)
        for key, image in pixels.items():
            convolve = self.convolutions[f"image_{key}"]
            scaled = image.float() / 255.0
            parts.append(convolve(scaled))
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, -1)

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Policy outputs (B, outputs) and values (B, K)."""
        policy_outputs = self.pi_head(self.pi(features))
        return policy_outputs, self.vf_head(self.vf(features))

    def forward(self, vector: Tensor, pixels: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.heads(self.features(vector, pixels))

    def unroll(self, features: Tensor, hidden: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Features (T, B, F), a state (B, units), bool (T, B) where to empty it -> (T, B, units), the last state."""
        assert self.gru is not None
        x = self.before(features)
        # Between two cuts no episode begins, so that one call of the GRU serves.
        begins = 1 + torch.nonzero(starts[1:].any(1)).flatten()
        cuts = [0, *begins.tolist(), len(x)]
        outputs = []
        for begin, end in itertools.pairwise(cuts):
            hidden = torch.where(starts[begin][:, None], 0.0, hidden)
            out, last = self.gru(x[begin:end], hidden[None])
            outputs.append(out)
            hidden = last[0]
        return torch.cat(outputs), hidden


def correlate(noise: Any, correlation: float) -> None:
    """Standard normal numbers (T, ...) become AR(1) noise, in place: neighbours in time have this correlation.

    Each is a standard normal number still, so the policy's probabilities hold. (Hollenstein et al. 2024, arXiv
    2312.11091, explore with coloured noise in PPO; AR(1) is Ornstein and Uhlenbeck's process.)

    Example:
        >>> noise = np.array([1.0, 0.0, 0.0])
        >>> correlate(noise, 0.5)
        >>> noise.tolist()
        [1.0, 0.5, 0.25]
    """
    if correlation == 0:
        return
    fresh_share = math.sqrt(1 - correlation**2)
    for t in range(1, len(noise)):
        noise[t] = correlation * noise[t - 1] + fresh_share * noise[t]


def linear(inputs: int, outputs: int, gain: float = math.sqrt(2)) -> nn.Linear:
    """A fully connected layer, `set_orthogonal`."""
    return set_orthogonal(nn.Linear(inputs, outputs), gain)


def set_orthogonal(layer: Any, gain: float = math.sqrt(2)) -> Any:
    """The layer, with orthogonal weights and biases of zero."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _hidden_layers(width: int, net_arch: list[int], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([width, *net_arch]):
        layers += [linear(before, after), activation()]
    return nn.Sequential(*layers)


def _convolutions(shape: tuple[int, ...]) -> nn.Module:
    """(C, H, W) -> 512 features: three convolutions from 36 pixels on, two small ones below."""
    channels = shape[0]
    side = min(shape[1:])
    # Units, kernel and stride of each.
    convolutions = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
    if side < 36:
        second_kernel = min(3, max(side - 2, 1))
        first_kernel = min(3, side)
        convolutions = [(32, first_kernel, 1), (64, second_kernel, 1)]
    layers: list[nn.Module] = []
    for units, kernel, stride in convolutions:
        layers += [nn.Conv2d(channels, units, kernel, stride), nn.ReLU()]
        channels = units
    layers.append(nn.Flatten())
    with torch.no_grad():
        features = nn.Sequential(*layers)(torch.zeros(1, *shape))
    width = features.shape[1]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            set_orthogonal(layer)
    return nn.Sequential(*layers, linear(width, 512), nn.ReLU())


class Glyphs(nn.Module):
    """A trunk for observations that declare their parts, such as NetHack's: float32 (B, D) -> (B, 256).

        cells, (side, side, kinds) one-hot   two convolutions of 3 x 3, 32 channels, then 128 units
        every other part                     64 units

    Source: the shape of the baseline of the NetHack challenge of 2021 (Hambro et al. 2022, arXiv 2203.11889), smaller.
    `space` has `parts`, name -> its place among the D numbers, and `shape_of_cells` = (side, side, kinds), else a
    ValueError, as where a wrapper made a new space.
    """

    width = 256

    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        parts: Any = getattr(space, "parts", None)
        if parts is None:
            raise ValueError(f'agent.net="glyphs" needs observations in parts, as in NetHack, not {space}; give "mlp"')
        self.parts = {name: part for name, part in parts.items() if part.stop > part.start}
        self.side, _, kinds = space.shape_of_cells  # type: ignore[attr-defined]
        # What two convolutions of 3 x 3 leave of the side; smaller grids get smaller ones.
        side_left = max(self.side - 4, 1)
        second_kernel = min(3, max(self.side - 2, 1))
        first_kernel = min(3, self.side)
        first = set_orthogonal(nn.Conv2d(kinds, 32, first_kernel))
        second = set_orthogonal(nn.Conv2d(32, 32, second_kernel))
        enter = linear(side_left**2 * 32, 128)
        self.cells = nn.Sequential(
            first,
            nn.ReLU(),
            second,
            nn.ReLU(),
            nn.Flatten(),
            enter,
            nn.ReLU(),
        )
        self.others = nn.ModuleDict()
        for name, part in self.parts.items():
            if name != "cells":
                enter = linear(part.stop - part.start, 64)
                self.others[name] = nn.Sequential(enter, nn.ReLU())
        width = 128 + 64 * len(self.others)
        self.join = nn.Sequential(linear(width, self.width), nn.ReLU())

    def forward(self, vector: Tensor) -> Tensor:
        cells = vector[:, self.parts["cells"]]
        grid = cells.view(len(vector), self.side, self.side, -1)
        image = grid.permute(0, 3, 1, 2)
        features = [self.cells(image)]
        for name, layer in self.others.items():
            entries = vector[:, self.parts[name]]
            features.append(layer(entries))
        return self.join(torch.cat(features, -1))


def stream_gradients(
    log_prob: Tensor, advantages: Mapping[str, Tensor], parameters: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Stream -> its policy gradient (P,), the mean over rows of A_k * grad log pi (Sutton et al. 2000).

    `log_prob` (M,) of the actions taken is a function of the parameters; `advantages` are stream -> (M,).

    Example:
        >>> logit = torch.zeros(1, requires_grad=True)  # two actions, both with probability 1/2
        >>> log_prob = torch.log_softmax(torch.cat([logit, torch.zeros(1)]), -1)
        >>> {k: g.tolist() for k, g in stream_gradients(log_prob, {"task": torch.tensor([4.0, 0])}, [logit]).items()}
        {'task': [1.0]}
    """
    gradients: dict[str, Tensor] = {}
    for name, advantage in advantages.items():
        objective = (log_prob * advantage).mean()
        parts = torch.autograd.grad(objective, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        gradients[name] = torch.cat([part.reshape(-1) for part in parts])
    return gradients


def cosines(gradients: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """Stream -> stream -> cosine of their gradients, in [-1, 1], as in PCGrad; NaN where one is 0.

    Example:
        >>> cosines({"task": torch.tensor([2.0, 0.0]), "bonus": torch.tensor([-3.0, 0.0])})["task"]["bonus"]
        -1.0
    """
    rows = torch.stack(list(gradients.values())).double()
    # A gradient of 0 has no direction: 0 / 0 is NaN.
    units = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    table = (units @ units.T).clamp(-1, 1).tolist()
    return {name: dict(zip(gradients, row)) for name, row in zip(gradients, table)}
