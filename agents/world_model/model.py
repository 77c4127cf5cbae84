"""The latent model of `agents.world_model.agent`: an encoder, a cell, heads for reward and end, and its losses.

A cell with a memory is trained on its state at each step (`_recurrent_losses`), a cell without one on its predictions
from each sequence's first step (`_unrolled_losses`). Weights select what else shapes the latent, from (sources of the
combinations: `agents.world_model.config`; the encoder is DreamerV3's, Hafner et al. 2023, arXiv 2301.04104):

    recon         squared error of a decoder: numbers in symlog's space, pixels in [0, 1]
    barlow        the latent agrees with the embedding entry by entry, decorrelated (2103.03230; as in R2-Dreamer)
    infonce       the latent identifies its own embedding among those of the batch (1807.03748), here by cosines
    consistency   the predicted latent is the one that is then encoded (TD-MPC2, 2310.16828, equation 3)
    kl            divergence of posterior and prior with free nats (DreamerV3), or under a budget (RePo, 2309.00082)
    empowerment   the action can be inferred from the two latents around it (2204.08585, equation 4)

The heads of `agents.world_model.uncertainty` are trained beside it, and shape nothing.

Differences from the sources: from 32 pixels on the first stride is 4, with 32 and 64 channels; no gradient reaches the
encoder through `barlow`; the logarithm of the budget's multiplier moves by at most its rate a step, and begins at 1e-3
at a rate of 1e-2, not 1e-5 and 1e-4; a continuous action is inferred as one Gaussian with a deviation for each entry.

When it fails: a budget too small for a sparse reward empties the latent before the first reward; InfoNCE keeps whatever
distinguishes rows, a noisy background too; images of several hundred pixels a side (resize them).
"""

import copy
import itertools
import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.dynamics import Predicted
from agents.dynamics.cells import RSSM, SSM, Cell, Mamba, SimNorm, State, layer, mlp
from agents.networks.actor_critic import Glyphs, SpaceEncoding, linear, set_orthogonal
from agents.networks.heads import TwoHot, symlog
from agents.replay.replay import Sequences
from agents.world_model.config import WorldModelConfig
from agents.world_model.uncertainty import Uncertainty
from envs.transitions import index_obs, map_obs
from lodestar.numerics.descent import Flat

# Channels after the first convolution, and after the others.
FIRST_CHANNELS = 32
NEXT_CHANNELS = 64
# The shorter side, in pixels, from which the first stride is 4, and from which another convolution halves it.
MIN_SIDE_STRIDE_4 = 32
MIN_SIDE_STRIDE_2 = 8
# Rows that InfoNCE compares: its matrix of cosines is as large as their square.
MAX_INFONCE_ROWS = 256
# The loss of each further unrolled step weighs this many times that of the step before.
DECAY = {"mppi": 0.5, "td3": 1.0, "imag_ac": 1.0}

# Key -> uint8 (..., C, H, W).
Pixels = dict[str, Tensor]
# Name -> a number, (): what is learned from, and what else is logged.
Losses = dict[str, Tensor]


class Replayed(NamedTuple):
    """A minibatch of sequences with its states in the model, detached."""

    # Parts (L, B, ...).
    states: State
    # (L, B, F) and (L, B, A).
    features: Tensor
    action: Tensor
    # (L, B), of that action and by it.
    reward: Tensor
    terminated: Tensor
    # Bool (L, B), as in `agents.replay.replay.Sequences`.
    first: Tensor
    valid: Tensor


def weighted_mean(value: Tensor, weight: Tensor) -> Tensor:
    """Mean of values by weights; 0 where all weights are."""
    return (value * weight).sum() / weight.sum().clamp(min=1e-6)


def value_net(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden layers; its initial output is the same for all inputs."""
    net = mlp(inputs, hidden, outputs, layers=2)
    nn.init.zeros_(net[-1].weight)  # type: ignore[arg-type]
    return net


class LatentModel(nn.Module):
    """See the file; `generator` draws latents, on the weights' device."""

    def __init__(self, encoding: SpaceEncoding, config: WorldModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoding = encoding
        self.config = config
        self.encoder = ObservationEncoder(encoding, config.embed, config.hidden, config.net)
        self.cell = make_cell(encoding, config, generator)
        size = self.cell.size
        action_size = encoding.action_size
        self.head = TwoHot(low=-10.0, high=10.0)
        self.reward_net = value_net(size + action_size, config.hidden, self.head.outputs)
        self.end_net = mlp(size + action_size, config.hidden, 1, 0.01)
        self.decoder = None
        if config.recon:
            inputs = size
            # Drama's decoder reads the latent alone.
            if isinstance(self.cell, SSM):
                inputs = self.cell.sizes["z"]
            self.decoder = ObservationDecoder(encoding, inputs, config.hidden)
        self.project = None
        if config.barlow or config.infonce:
            self.project = nn.Linear(size, config.embed)
        self.empowerment = None
        if config.empowerment:
            self.empowerment = Empowerment(size, action_size, encoding.discrete, config.hidden)
        self.uncertainty = None
        if config.measures_uncertainty:
            latent = self.cell.sizes["z"]
            self.uncertainty = Uncertainty(size, action_size, latent, config, generator.initial_seed())
        self.budget = None
        if config.kl == "repo":
            self.budget = KLBudget(config.kl_budget, config.dual_lr, config.kl_balance)
        # Target copies, which `catch_up` sets.
        self.slow = None
        if config.behaviour == "td3":
            self.slow = copy.deepcopy(self._encoding_networks())

    def flats(self) -> dict[str, Flat]:
        """Parameters as vectors by name, once on their device; the reward head is separate, to be refitted alone."""
        model = []
        for name, parameter in self.named_parameters():
            # Target copies do not learn.
            if not name.startswith(("reward_net.", "slow.")):
                model.append(parameter)
        reward = list(self.reward_net.parameters())
        return {"model": Flat.of_parameters(model), "reward": Flat.of_parameters(reward)}

    def _encoding_networks(self) -> nn.ModuleDict:
        return nn.ModuleDict({"encoder": self.encoder, "cell": self.cell})

    def catch_up(self) -> None:
        """Copy the weights to the target copies."""
        assert self.slow is not None
        self.slow.load_state_dict(self._encoding_networks().state_dict())

    def encode(self, vector: Tensor, pixels: Pixels, slow: bool = False) -> Tensor:
        """Latents (..., Z) of observations (..., D), for a cell without memory."""
        networks: Any = {"encoder": self.encoder, "cell": self.cell}
        if slow and self.slow is not None:
            networks = self.slow
        embed = networks["encoder"](vector, pixels)
        return networks["cell"].encode(embed)

    def reward(self, features: Tensor, action: Tensor) -> Tensor:
        """The reward of a step, as it is now: (..., F), (..., A) -> (...,)."""
        both = torch.cat([features, action], -1)
        return self.head.value(self.reward_net(both))

    def continues(self, features: Tensor, action: Tensor) -> Tensor:
        """The probability that the episode continues: (..., F), (..., A) -> (...,)."""
        both = torch.cat([features, action], -1)
        return torch.sigmoid(self.end_net(both).squeeze(-1))

    def step(self, obs: Tensor, action: Tensor, *, sample: bool = True, member_predictions: bool = False) -> Predicted:
        """One step as `agents.dynamics.OneStepModel`, for a cell without memory: `obs` is the latent (B, Z)."""
        next_obs = self.cell.step({"z": obs}, action)["z"]
        ends = 1 - self.continues(obs, action)
        return Predicted(next_obs, self.reward(obs, action), ends)

    @torch.no_grad()
    def replay_states(self, seq: Sequences) -> Replayed:
        """The sequences with their states, without gradients."""
        embed = self.encoder(seq.vector, seq.pixels)
        states, _ = self.cell.observe(embed, seq.action, seq.first)
        return self._replayed_states(seq, states)

    def reward_loss(self, features: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        """(..., F), (..., A), (...,) -> (...,)."""
        both = torch.cat([features, action], -1)
        return self.head.loss(self.reward_net(both), reward)

    def losses(self, seq: Sequences, joint: Any = None) -> tuple[Losses, Replayed]:
        """Losses of sequences (L, B), with that of a behaviour that shapes the latent (`joint`), and their states."""
        # Without a memory only the first step is encoded with gradients; the others are targets.
        shaped = seq
        if self.config.unroll:
            shaped = slice_steps(seq, 0, 1)
        embed = self.encoder(shaped.vector, shaped.pixels)
        states, stats = self.cell.observe(embed, shaped.action, shaped.first)
        losses = self._latent_losses(shaped, states, embed)
        if self.config.unroll:
            unrolled, states = self._unrolled_losses(seq, states["z"], joint)
            losses |= unrolled
        else:
            losses |= self._recurrent_losses(seq, states, stats)
        return losses, self._replayed_states(seq, states)

    def _replayed_states(self, seq: Sequences, states: State) -> Replayed:
        states = map_obs(torch.detach, states)
        features = self.cell.features(states)
        return Replayed(states, features, seq.action, seq.reward, seq.terminated, seq.first, seq.valid)

    def _recurrent_losses(self, seq: Sequences, states: State, stats: dict[str, Any]) -> Losses:
        config = self.config
        weight = seq.valid
        features = self.cell.features(states)
        losses = self._heads(features, seq, weight)
        dyn, rep = self.cell.kl(stats)
        if self.budget is not None:
            losses["kl"] = self.budget(weighted_mean(dyn, weight), weighted_mean(rep, weight))
        elif config.kl != "none":
            nats = divergence(dyn, rep, config.kl_dyn, config.kl_rep, config.free_nats)
            losses["kl"] = weighted_mean(nats, weight)
        return losses

    def _unrolled_losses(self, seq: Sequences, z: Tensor, joint: Any) -> tuple[Losses, State]:
        """Losses of the latents, rewards and ends that are predicted from each first step, z (1, B, Z)."""
        config = self.config
        steps = config.unroll
        now = slice_steps(seq, 0, steps)
        later = slice_steps(seq, 1, None)
        with torch.no_grad():
            # By the target copies where there are such.
            later_z = self.encode(later.vector, later.pixels, slow=True)
        next_z = later_z[:steps]
        latents = [z[0]]
        for step_action in now.action:
            predicted = self.cell.step({"z": latents[-1]}, step_action)
            latents.append(predicted["z"])
        ahead = torch.stack(latents)
        # The next observation follows this step's action.
        linked = now.valid & ~later.first[:steps]
        # A prediction counts while all steps before it are linked.
        later_lives = linked[:-1] & now.valid[1:]
        lives = torch.cat([now.valid[:1], later_lives]).cumprod(0)
        powers = torch.arange(steps, device=z.device, dtype=z.dtype)
        decay = DECAY[config.behaviour] ** powers
        weight = lives * decay[:, None]
        losses = self._heads(ahead[:-1], now, weight)
        difference = ahead[1:] - next_z
        error = difference.square().mean(-1)
        consistency = weighted_mean(error, weight * linked)
        losses["consistency"] = config.consistency * consistency
        if joint is not None and config.value_weight:
            value_loss = joint(now, ahead, next_z, weight, linked)
            losses["value"] = config.value_weight * value_loss
        return losses, {"z": torch.cat([z, later_z])}

    def _heads(self, features: Tensor, seq: Sequences, weight: Tensor) -> Losses:
        """Losses of the reward head and of the head that predicts the end."""
        both = torch.cat([features, seq.action], -1)
        rewards = self.head.loss(self.reward_net(both), seq.reward)
        continues = self.end_net(both).squeeze(-1)
        ends = F.binary_cross_entropy_with_logits(continues, 1 - seq.terminated, reduction="none")
        return {
            "reward": self.config.reward_weight * weighted_mean(rewards, weight),
            "continue": self.config.continue_weight * weighted_mean(ends, weight),
        }

    def _latent_losses(self, seq: Sequences, states: State, embed: Tensor) -> Losses:
        """Losses that shape the latent by what the file's table names, each where its weight is not 0."""
        config = self.config
        losses: Losses = {}
        features = self.cell.features(states)
        if self.decoder is not None:
            inputs = features
            if isinstance(self.cell, SSM):
                inputs = states["z"]
            error = self.decoder.loss(inputs, seq.vector, seq.pixels)
            losses["recon"] = config.recon * weighted_mean(error, seq.valid)
        if self.project is not None:
            rows = torch.nonzero(seq.valid.flatten()).flatten()
            projected = self.project(features).flatten(0, 1)[rows]
            target = embed.flatten(0, 1)[rows]
            if config.barlow:
                losses["barlow"] = config.barlow * barlow(projected, target)
            if config.infonce:
                agreement = infonce(projected[:MAX_INFONCE_ROWS], target[:MAX_INFONCE_ROWS])
                losses["infonce"] = config.infonce * agreement
        linked = seq.valid[:-1] & ~seq.first[1:]
        action = seq.action[:-1]
        if self.uncertainty is not None:
            error = self.uncertainty.loss(features[:-1], action, states["z"][1:])
            losses["uncertainty"] = weighted_mean(error, linked)
        if self.empowerment is not None:
            log_prob = self.empowerment.log_prob(features[:-1], features[1:], action)
            losses["empowerment"] = -config.empowerment * weighted_mean(log_prob, linked)
        return losses


def slice_steps(seq: Sequences, begin: int, end: int | None) -> Sequences:
    """Steps `begin` to `end` of all sequences."""
    parts = index_obs(seq._asdict(), slice(begin, end))
    return Sequences(**parts)


def make_cell(encoding: SpaceEncoding, config: WorldModelConfig, generator: torch.Generator) -> Cell:
    """The cell that the settings name, with their sizes."""
    action_size = encoding.action_size
    sizes: dict[str, Any] = {"hidden": config.hidden, "generator": generator}
    if config.cell == "simnorm":
        return SimNorm(config.embed, action_size, latent=config.latent, **sizes)
    sizes |= {"memory": config.latent, "groups": config.groups, "classes": config.classes}
    memories = {"rssm": RSSM, "ssm": SSM, "mamba": Mamba}
    return memories[config.cell](config.embed, action_size, **sizes)


class ObservationEncoder(nn.Module):
    """(..., D) numbers, by symlog and a layer or `Glyphs`, and {key: (..., C, H, W)} images, convolved -> (..., E)."""

    def __init__(self, encoding: SpaceEncoding, size: int, hidden: int = 128, net: str = "mlp") -> None:
        super().__init__()
        self.size = size
        self.numbers = encoding.obs_size
        self.trunk = None
        width = 0
        if net == "glyphs":
            self.trunk = Glyphs(encoding.observation_space)
            width = self.trunk.width
        elif encoding.obs_size:
            self.mlp = nn.Sequential(layer(encoding.obs_size, hidden))
            width = hidden
        self.convolutions = nn.ModuleDict()
        for key, shape in encoding.images.items():
            self.convolutions[f"image_{key}"] = _convolutions(shape)
            width += math.prod(_sizes(shape)[-1])
        self.join = layer(width, size)

    def forward(self, vector: Tensor, pixels: Pixels) -> Tensor:
        leading = vector.shape[:-1]
        flat = vector.reshape(math.prod(leading), self.numbers)
        parts = []
        if self.trunk is not None:
            parts.append(self.trunk(flat))
        elif self.numbers:
            parts.append(self.mlp(symlog(flat)))
        for key, image in pixels.items():
            images = image.reshape(-1, *image.shape[-3:])
            centred = images.to(flat.dtype) / 255 - 0.5
            convolve = self.convolutions[f"image_{key}"]
            parts.append(convolve(centred))
        embed = self.join(torch.cat(parts, -1))
        return embed.view(*leading, self.size)


class ObservationDecoder(nn.Module):
    """(..., F) -> (..., D) in symlog's space, and {key: (..., C, H, W)} in [0, 1]: the encoder reversed."""

    def __init__(self, encoding: SpaceEncoding, features: int, hidden: int = 128) -> None:
        super().__init__()
        self.numbers = encoding.obs_size
        if encoding.obs_size:
            self.mlp = mlp(features, hidden, encoding.obs_size)
        self.images = nn.ModuleDict()
        for key, shape in encoding.images.items():
            self.images[f"image_{key}"] = _deconvolutions(features, shape)

    def forward(self, features: Tensor) -> tuple[Tensor, Pixels]:
        leading = features.shape[:-1]
        flat = features.reshape(-1, features.shape[-1])
        if self.numbers:
            vector = self.mlp(flat).view(*leading, -1)
        else:
            vector = features.new_zeros(*leading, 0)
        pixels = {}
        for key, network in self.images.items():
            image = network(flat)
            shape = image.shape[1:]
            pixels[key.removeprefix("image_")] = image.view(*leading, *shape)
        return vector, pixels

    def loss(self, features: Tensor, vector: Tensor, pixels: Pixels) -> Tensor:
        """Squared error of all numbers and pixels, summed: (..., F), the observation -> (...,)."""
        decoded, images = self(features)
        error = (decoded - symlog(vector)).square().sum(-1)
        for key, image in pixels.items():
            target = image.to(decoded.dtype) / 255
            pixel_error = (images[key] - target).square()
            error = error + pixel_error.sum((-3, -2, -1))
        return error


def _sizes(shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(C, H, W) of an image and of what each convolution makes of it."""
    channels, height, width = shape
    sizes = [(channels, height, width)]
    if min(height, width) < MIN_SIDE_STRIDE_2:
        return [*sizes, (FIRST_CHANNELS, height, width), (FIRST_CHANNELS, height, width)]
    while min(height, width) >= MIN_SIDE_STRIDE_2:
        stride = 2
        channels = NEXT_CHANNELS
        if len(sizes) == 1:
            channels = FIRST_CHANNELS
            if min(height, width) >= MIN_SIDE_STRIDE_4:
                stride = 4
        height //= stride
        width //= stride
        sizes.append((channels, height, width))
    return sizes


def _convolutions(shape: tuple[int, ...]) -> nn.Sequential:
    """(B, C, H, W) -> (B, features)."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(_sizes(shape)):
        stride = before[1] // after[1]
        if stride == 1:
            convolution = nn.Conv2d(before[0], after[0], 3, 1, 1)
        else:
            kernel = 2 * stride
            convolution = nn.Conv2d(before[0], after[0], kernel, stride, stride // 2)
        layers += [set_orthogonal(convolution), nn.SiLU()]
    return nn.Sequential(*layers, nn.Flatten())


def _deconvolutions(features: int, shape: tuple[int, ...]) -> nn.Sequential:
    """(B, F) -> (B, C, H, W) in [0, 1]: the convolutions of an image of that shape, reversed."""
    sizes = _sizes(shape)[::-1]
    smallest = sizes[0]
    layers: list[nn.Module] = [layer(features, math.prod(smallest)), nn.Unflatten(1, smallest)]
    for (before, low, _), (after, height, width) in itertools.pairwise(sizes):
        stride = height // low
        if stride == 1:
            convolution: Any = nn.Conv2d(before, after, 3, 1, 1)
        else:
            # Pixels that the stride left over when the side was divided.
            remainder = (height % stride, width % stride)
            convolution = nn.ConvTranspose2d(before, after, 2 * stride, stride, stride // 2, remainder)
        layers += [set_orthogonal(convolution), nn.SiLU()]
    return nn.Sequential(*layers[:-1], nn.Sigmoid())


def barlow(projected: Tensor, target: Tensor, off_diagonal: float = 5e-4) -> Tensor:
    """sum_i (C_ii - 1)^2 + off_diagonal * sum_{i != j} C_ij^2, C the correlations of columns, `target` fixed."""
    x = _standardize(projected)
    y = _standardize(target.detach())
    correlations = x.T @ y / len(x)
    identity = torch.eye(x.shape[-1], device=x.device)
    square = (correlations - identity).square()
    diagonal = square.diagonal().sum()
    return diagonal + off_diagonal * (square.sum() - diagonal)


def _standardize(x: Tensor) -> Tensor:
    x = x - x.mean(0)
    variance = x.square().mean(0)
    return x * torch.rsqrt(variance + 1e-8)


def infonce(projected: Tensor, target: Tensor, temperature: float = 0.1) -> Tensor:
    """Mean cross-entropy, 0 to log N, of finding each row's target among all by the cosines of rows (N, E)."""
    x = F.normalize(projected, dim=-1)
    y = F.normalize(target, dim=-1)
    cosines = x @ y.T
    # Each row's own target stands on the diagonal.
    labels = torch.arange(len(x), device=x.device)
    return F.cross_entropy(cosines / temperature, labels)


def divergence(dyn: Tensor, rep: Tensor, dyn_weight: float = 1.0, rep_weight: float = 0.1, free: float = 1.0) -> Tensor:
    """Both sides of a cell's `kl` (...,), neither below `free` nats: (...,)."""
    return dyn_weight * dyn.clamp(min=free) + rep_weight * rep.clamp(min=free)


class KLBudget(nn.Module):
    """beta * (balance * dyn + (1 - balance) * rep - budget); log beta rises by <= `learning_rate` while that is > 0."""

    log_beta: Tensor

    def __init__(
        self, budget: float = 3.0, learning_rate: float = 1e-2, balance: float = 5 / 6, beta: float = 1e-3
    ) -> None:
        super().__init__()
        self.budget = budget
        self.learning_rate = learning_rate
        self.balance = balance
        self.register_buffer("log_beta", torch.tensor(math.log(beta)))

    def forward(self, dyn: Tensor, rep: Tensor) -> Tensor:
        """The loss of mean divergences (0-d), and one step of the dual: call it once for each step of the model."""
        nats_over_budget = self.balance * dyn + (1 - self.balance) * rep - self.budget
        loss = self.log_beta.exp() * nats_over_budget
        with torch.no_grad():
            step = torch.nan_to_num(nats_over_budget).clamp(-1, 1)
            self.log_beta += self.learning_rate * step
        return loss


class Empowerment(nn.Module):
    """The inverse model q(a | s, s'); the mean of log q - log pi(a | s) is a lower bound of I(a; s' | s)."""

    def __init__(self, features: int, action_size: int, discrete: bool, hidden: int = 128) -> None:
        super().__init__()
        self.discrete = discrete
        outputs = action_size if discrete else 2 * action_size
        enter = layer(2 * features, hidden)
        self.net = nn.Sequential(*enter, linear(hidden, outputs, 0.01))

    def log_prob(self, features: Tensor, next_features: Tensor, action: Tensor) -> Tensor:
        """log q of actions (..., A) between one latent (..., F) and the next: (...,). Maximise it to learn q."""
        both = torch.cat([features, next_features], -1)
        out = self.net(both)
        if self.discrete:
            log_probs = torch.log_softmax(out, -1)
            return (log_probs * action).sum(-1)
        mean, log_std = out.chunk(2, -1)
        log_std = log_std.clamp(-4.0, 1.0)
        error = action - torch.tanh(mean)
        scaled = error * torch.exp(-log_std)
        half_log_2pi = 0.5 * math.log(2 * math.pi)
        nats = 0.5 * scaled.square() + log_std + half_log_2pi
        return -nats.sum(-1)
