"""Cells: how a latent world model remembers, reads observations, and imagines.

    state = cell.initial(B)                                     before an episode
    states, stats = cell.observe(embed, action, first, state)   (L, B, ...): the state at each step
    state = cell.step({k: v[-1] for k, v in states.items()}, action[-1])    one step on, imagined
    cell.features(states)                                       (L, B, F), what every other network reads

A state is a dict of tensors: "z", the latent (..., Z), and for cells that remember "h", the memory (..., H).
The state given to `observe` is what the cell expected of the first step: `initial` at an episode's start, otherwise
`step` of the state before and the action taken in it. So a sequence in two parts equals the whole.
"""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.networks.actor_critic import linear
from lodestar.numerics.descent import draw_uniform

State = dict[str, Tensor]
# The states of a sequence, and what `kl` reads of it.
Observed = tuple[State, dict[str, Any]]
# c of Griffin's equation 3.
SHARPNESS = 8.0


def layer(inputs: int, outputs: int) -> nn.Sequential:
    """Linear, LayerNorm, SiLU: the layer of all world-model networks."""
    return nn.Sequential(linear(inputs, outputs, 1.0), *norm_and_silu(outputs))


def norm_and_silu(units: int) -> nn.Sequential:
    """What follows a linear layer of so many units."""
    norm = nn.LayerNorm(units, eps=1e-3)
    return nn.Sequential(norm, nn.SiLU())


def mlp(inputs: int, hidden: int, outputs: int, gain: float = 1.0, layers: int = 1) -> nn.Sequential:
    """Hidden `layers`, then a linear one."""
    widths = [inputs, *[hidden] * layers]
    hidden_layers = map(layer, widths, widths[1:])
    return nn.Sequential(*hidden_layers, linear(hidden, outputs, gain))


class Cell(nn.Module):
    """Base class: a memory and a latent of categoricals, which `SimNorm` replaces; `generator` draws the samples."""

    # From the memory to the logits of the next latent.
    prior: nn.Module

    def __init__(self, generator: torch.Generator, memory: int = 128, groups: int = 16, classes: int = 8) -> None:
        super().__init__()
        self.generator = generator
        self.latent = Categoricals(groups, classes)
        # The length of each part of a state, and F, the length of the features.
        latent = self.latent.size
        self.sizes = {"h": memory, "z": latent}
        self.size = memory + latent

    def initial(self, batch: int) -> State:
        """The state before an episode: zeros, each part (batch, length)."""
        like = next(self.parameters())
        return {name: like.new_zeros(batch, length) for name, length in self.sizes.items()}

    def observe(
        self, embed: Tensor, action: Tensor, first: Tensor, state: State | None = None, *, sample: bool = True
    ) -> Observed:
        """The states (L, B, ...) at each step of a sequence, and what `kl` reads.

        `embed` (L, B, E) is the encoded observation at t, `action` (L, B, A) taken in it, the last one not read; at
        `first`, bool (L, B), the state is reset; `state` (B, ...) is expected at t = 0, None for `initial`.
        """
        raise NotImplementedError

    def step(self, state: State, action: Tensor, *, sample: bool = True) -> State:
        """One imagined step: (B, ...), (B, A) -> (B, ...)."""
        raise NotImplementedError

    def features(self, state: State) -> Tensor:
        """(..., F)."""
        return torch.cat([state["h"], state["z"]], -1)

    def kl(self, stats: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """KL of posterior and prior in nats, (L, B), to train the prior (dyn) and the posterior (rep)."""
        return self.latent.kl(stats["posterior"], stats["prior"])

    def _expected_latent(self, h: Tensor, sample: bool) -> Tensor:
        """The latent that the memory (B, H) predicts: a sample of the prior, or its likeliest value."""
        uniforms = None
        if sample:
            uniforms = self.latent.uniforms(self.generator, len(h))
        logits = self.prior(h)
        chances = self.latent.probabilities(logits)
        return self.latent.sample(chances, uniforms)

    def _begin(self, first: Tensor, state: State | None) -> State:
        """The state at the start of a sequence, reset where an episode begins; `first` (B,)."""
        initial = self.initial(len(first))
        if state is None:
            return initial
        for name, empty in initial.items():
            initial[name] = torch.where(first[:, None], empty, state[name])
        return initial


class Categoricals:
    """A latent of G categoricals over C classes, partly uniform (DreamerV3); gradients pass a sample through."""

    def __init__(self, groups: int, classes: int, uniform: float = 0.01) -> None:
        self.groups = groups
        self.classes = classes
        self.uniform = uniform
        self.size = groups * classes

    def probabilities(self, logits: Tensor) -> Tensor:
        """(..., G * C) -> (..., G, C)."""
        grouped = logits.unflatten(-1, (self.groups, self.classes))
        chances = torch.softmax(grouped, -1)
        floor = self.uniform / self.classes
        return torch.add(floor, chances, alpha=1 - self.uniform)

    def uniforms(self, generator: torch.Generator, *leading: int) -> Tensor:
        """Random numbers for `sample`, (*leading, G, 1)."""
        return draw_uniform(generator, *leading, self.groups, 1)

    def sample(self, chances: Tensor, uniforms: Tensor | None) -> Tensor:
        """One-hot (..., G * C): the class into whose share of [0, 1) the number falls, the likeliest without one."""
        if uniforms is None:
            index = chances.argmax(-1, keepdim=True)
        else:
            # One number a group finds its class: an eighth of the time that Gumbel noise takes.
            thresholds = chances.detach().cumsum(-1)[..., :-1]
            is_passed = thresholds <= uniforms
            index = is_passed.sum(-1, keepdim=True)
        one_hot = torch.zeros_like(chances).scatter_(-1, index, 1.0)
        if chances.requires_grad:
            # The straight-through gradient: that of the probabilities, at the value of the sample.
            gradient_path = chances - chances.detach()
            one_hot = one_hot + gradient_path
        return one_hot.flatten(-2)

    def kl(self, posterior: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """KL(posterior || prior) of (..., G, C) summed over groups, twice, by gradient; DreamerV3, equation 5."""
        log_posterior = posterior.log()
        log_prior = prior.log()
        dyn = posterior.detach() * (log_posterior.detach() - log_prior)
        rep = posterior * (log_posterior - log_prior.detach())
        latent_axes = (-2, -1)
        return dyn.sum(latent_axes), rep.sum(latent_axes)


class RSSM(Cell):
    """Recurrent memory "h" (..., memory) and stochastic latent "z" (..., groups * classes); the cell of Dreamer.

        h_t = GRU(h_{t-1}, z_{t-1}, a_{t-1})      prior: z_t ~ p(. | h_t)      posterior: z_t ~ q(. | h_t, embed_t)

    Source: Hafner et al. 2019, arXiv 1811.04551; 2023, arXiv 2301.04104, equation 3. Differences: a plain GRU with
    LayerNorm, as in DreamerV2; one hidden layer in front of each distribution; at an episode's start h is zero.
    When it fails: what must be remembered for hundreds of steps (slow: `SSM`).
    """

    def __init__(self, embed_size: int, action_size: int, *, hidden: int = 128, **rest: Any) -> None:
        super().__init__(**rest)
        self.hidden = hidden
        memory = self.sizes["h"]
        latent = self.sizes["z"]
        self.from_latent = linear(latent, hidden, 1.0)
        self.from_action = nn.Linear(action_size, hidden, bias=False)
        self.norm = norm_and_silu(hidden)
        # One product gives the memory's part of the posterior's hidden layer, and of the gates.
        self.from_memory = linear(memory, hidden + 3 * memory, 1.0)
        self.gates = nn.Linear(hidden, 3 * memory, bias=False)
        self.gates_norm = nn.LayerNorm(3 * memory, eps=1e-3)
        self.prior = mlp(memory, hidden, latent)
        self.from_embed = nn.Linear(embed_size, hidden, bias=False)
        logits = linear(hidden, latent, 1.0)
        self.seen = nn.Sequential(*norm_and_silu(hidden), logits)

    def observe(
        self, embed: Tensor, action: Tensor, first: Tensor, state: State | None = None, *, sample: bool = True
    ) -> Observed:
        length, batch = first.shape
        h = self._begin(first[0], state)["h"]
        continues = (~first)[..., None].to(embed.dtype)
        uniforms: Any = [None] * length
        if sample:
            uniforms = self.latent.uniforms(self.generator, length, batch)
        # These products do not wait for the loop. `unbind`, since the gradient of an index is as long as the sequence.
        embed_parts = self.from_embed(embed).unbind()
        action_parts = self.from_action(action[:-1]).unbind()
        memories = []
        latents = []
        posteriors = []
        for t in range(length):
            memories.append(h)
            from_memory = self.from_memory(h)
            widths = [self.hidden, 3 * h.shape[-1]]
            memory_part, gates = from_memory.split(widths, -1)
            logits = self.seen(memory_part + embed_parts[t])
            posterior = self.latent.probabilities(logits)
            z = self.latent.sample(posterior, uniforms[t])
            posteriors.append(posterior)
            latents.append(z)
            if t + 1 < length:
                h = self._remember(h, gates, z, action_parts[t])
                h = h * continues[t + 1]
        memory = torch.stack(memories)
        prior = self.latent.probabilities(self.prior(memory))
        posterior = torch.stack(posteriors)
        states = {"h": memory, "z": torch.stack(latents)}
        return states, {"posterior": posterior, "prior": prior}

    def step(self, state: State, action: Tensor, *, sample: bool = True) -> State:
        h = state["h"]
        # Imagination has no posterior, and computes the rows of the gates alone.
        weight = self.from_memory.weight[self.hidden :]
        bias = self.from_memory.bias[self.hidden :]
        gates = F.linear(h, weight, bias)
        action_part = self.from_action(action)
        h = self._remember(h, gates, state["z"], action_part)
        latent = self._expected_latent(h, sample)
        return {"h": h, "z": latent}

    def _remember(self, h: Tensor, gates: Tensor, z: Tensor, action_part: Tensor) -> Tensor:
        """The GRU; `gates` is the memory's part of them, `action_part` the action's part of the input."""
        inputs = self.norm(self.from_latent(z) + action_part)
        gates = gates + self.gates(inputs)
        gates = self.gates_norm(gates)
        reset, candidate, update = gates.chunk(3, -1)
        reset = torch.sigmoid(reset)
        candidate = torch.tanh(reset * candidate)
        # With -1 an untrained memory changes slowly.
        rate = torch.sigmoid(update - 1)
        return torch.lerp(h, candidate, rate)


class _SelectiveScan(nn.Module):
    """(L, B, W) -> (L, B, W), and its sums (L, B, W * states)."""

    def __init__(self, width: int, states: int = 8) -> None:
        super().__init__()
        self.states = states
        self.n_sums = width * states
        self.norm = nn.LayerNorm(width, eps=1e-3)
        self.enter = linear(width, 2 * width, 1.0)
        self.select = linear(width, width + 2 * states, 1.0)
        self.leave = linear(width, width, 1.0)
        # The decay rates -1 to -states of each channel, and steps between 0.001 and 0.1 at first, as in Mamba.
        rates = torch.arange(1.0, states + 1).expand(width, states)
        self.log_rate = nn.Parameter(rates.log().clone())
        first_steps = torch.logspace(-3, -1, width)
        step_bias = torch.log(torch.expm1(first_steps))
        self.step_bias = nn.Parameter(step_bias)
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, s: Tensor, continues: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        projected = self.enter(self.norm(x))
        value, output_gate = projected.chunk(2, -1)
        value = F.silu(value)
        selected = self.select(value)
        widths = [x.shape[-1], self.states, self.states]
        step, write, read = selected.split(widths, -1)
        step = F.softplus(step + self.step_bias)
        # All (L, B, W, states).
        rate = self.log_rate.exp()
        decay = torch.exp(-step[..., None] * rate)
        step_value = (step * value)[..., None]
        inputs = step_value * write[..., None, :]
        kept_shares = decay.flatten(-2) * continues
        sums = scan(kept_shares, inputs.flatten(-2), s)
        states = sums.unflatten(-1, (-1, self.states))
        outputs = (states * read[..., None, :]).sum(-1)
        outputs = outputs + self.skip * value
        outputs = self.leave(outputs * F.silu(output_gate))
        return x + outputs, sums


class _Recurrence(nn.Module):
    """(L, B, W) -> (L, B, W), and its sums (L, B, W)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n_sums = width
        self.norm = nn.LayerNorm(width, eps=1e-3)
        self.enter = linear(width, 4 * width, 1.0)
        self.leave = linear(width, width, 1.0)
        # Decays from 0.9 to 0.999 where the gate is open, as in Griffin; `rate` is before softplus.
        decay = torch.linspace(0.9, 0.999, width)
        rate = -decay.log() / SHARPNESS
        self.rate = nn.Parameter(torch.log(torch.expm1(rate)))

    def forward(self, x: Tensor, s: Tensor, continues: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        projected = self.enter(self.norm(x))
        value, gate, decay, output_gate = projected.chunk(4, -1)
        rate = F.softplus(self.rate)
        log_a = -SHARPNESS * rate * torch.sigmoid(decay)
        # sqrt(1 - a^2) keeps the variance of the sum; the root is steep near 0, where it is cut.
        variance = -torch.expm1(2 * log_a)
        input_scale = variance.clamp(min=1e-6).sqrt()
        gate = torch.sigmoid(gate)
        inputs = input_scale * gate * value
        a = log_a.exp() * continues
        sums = scan(a, inputs, s)
        outputs = self.leave(sums * F.silu(output_gate))
        return x + outputs, sums


def scan(a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    """s_t = a_t s_{t-1} + b_t for all t, from `s` (B, W): (L, B, W), in 2 sqrt(L) steps; differentiable once."""
    if len(a) == 1:
        return torch.addcmul(b, a, s[None])
    return _Scan.apply(a, b, s)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, s: Tensor) -> Tensor:
        sums = _in_chunks(a, b, s)
        ctx.save_for_backward(a, s, sums)
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, s, sums = ctx.saved_tensors
        if not len(a):
            return a, a, torch.zeros_like(s)
        # What a sum does to the loss it does now, or through the next one: the same recurrence, backwards.
        no_decay = torch.zeros_like(a[:1])
        next_decay = torch.cat([no_decay, a[1:].flip(0)])
        no_sum = torch.zeros_like(s)
        reversed_grad = _in_chunks(next_decay, grads[0].flip(0), no_sum)
        grad = reversed_grad.flip(0)
        previous = torch.cat([s[None], sums[:-1]])
        first_grad = grad[0] * a[0]
        return grad * previous, grad, first_grad


def _in_chunks(a: Tensor, b: Tensor, s: Tensor) -> Tensor:
    """The recurrence: inside all chunks at once as if nothing came before, then from chunk to chunk what did."""
    length = len(a)
    size = max(1, math.isqrt(length))
    missing = -length % size
    if missing:
        padding = (0, 0, 0, 0, 0, missing)
        a = F.pad(a, padding)
        b = F.pad(b, padding)
    # Both (chunks, size, B, W): sums within a chunk, and the share of the sum before it that is left.
    sums = b.clone().unflatten(0, (-1, size))
    carried = a.clone().unflatten(0, (-1, size))
    for t in range(1, size):
        share = carried[:, t]
        sums[:, t].addcmul_(share, sums[:, t - 1])
        share.mul_(carried[:, t - 1])
    for chunk, share in zip(sums, carried):
        chunk.addcmul_(share, s)
        s = chunk[-1]
    return sums.flatten(0, 1)[:length]


class SSM(Cell):
    """Memory "h" (..., memory), latent "z" (..., groups * classes), sums "s" (..., layers * memory); the cell of Drama.

    Each frame has its latent, whatever came before; linear recurrences over latents and actions predict the next one:
    training needs no loop over time, and imagination one cheap step.

        z_t ~ q(. | embed_t)        s_t = a_t s_{t-1} + sqrt(1 - a_t^2) i_t x_t        h_{t+1} = layers(z_t, a_t, s)
        expected: z_{t+1} ~ p(. | h_{t+1})        decay a_t and gate i_t are functions of the layer's input x_t

    Source: Wang et al. 2025 (Drama), arXiv 2410.08893, with the diagonal gated recurrence of De et al. 2024 (Griffin),
    arXiv 2402.19427, equations 1 to 4, in place of Mamba (`Mamba`). When it fails: frames that only the past explains.
    """

    # Of one layer, which has `n_sums`.
    block: ClassVar[type[nn.Module]] = _Recurrence

    def __init__(self, embed_size: int, action_size: int, *, layers: int = 2, hidden: int = 128, **rest: Any) -> None:
        super().__init__(**rest)
        memory = self.sizes["h"]
        latent = self.sizes["z"]
        self.seen = mlp(embed_size, hidden, latent)
        self.prior = mlp(memory, hidden, latent)
        self.enter = layer(latent + action_size, memory)
        self.layers = nn.ModuleList(self.block(memory) for _ in range(layers))
        self.sizes["s"] = sum(recurrence.n_sums for recurrence in self.layers)  # type: ignore[misc]

    def observe(
        self, embed: Tensor, action: Tensor, first: Tensor, state: State | None = None, *, sample: bool = True
    ) -> Observed:
        initial = self._begin(first[0], state)
        continues = (~first)[..., None].to(embed.dtype)
        logits = self.seen(embed)
        posterior = self.latent.probabilities(logits)
        uniforms = None
        if sample:
            uniforms = self.latent.uniforms(self.generator, *first.shape)
        z = self.latent.sample(posterior, uniforms)
        latent_action = torch.cat([z[:-1], action[:-1]], -1)
        x = self.enter(latent_action)
        sums = []
        initial_sums = self._layer_sums(initial)
        for recurrence, before in zip(self.layers, initial_sums):
            x, after = recurrence(x, before, continues[:-1])
            layer_sums = torch.cat([before[None], after])
            sums.append(layer_sums)
        memories = torch.cat([initial["h"][None], x])
        h = memories * continues
        s = torch.cat(sums, -1) * continues
        prior = self.latent.probabilities(self.prior(h))
        states = {"h": h, "z": z, "s": s}
        return states, {"posterior": posterior, "prior": prior}

    def step(self, state: State, action: Tensor, *, sample: bool = True) -> State:
        inputs = torch.cat([state["z"], action], -1)
        x = self.enter(inputs)[None]
        sums = []
        for recurrence, before in zip(self.layers, self._layer_sums(state)):
            x, after = recurrence(x, before)
            sums.append(after[0])
        h = x[0]
        latent = self._expected_latent(h, sample)
        return {"h": h, "z": latent, "s": torch.cat(sums, -1)}

    def _layer_sums(self, state: State) -> tuple[Tensor, ...]:
        """The sums (B, memory) of each layer."""
        return state["s"].chunk(len(self.layers), -1)


class Mamba(SSM):
    """`SSM` with Mamba's selective state space as its layers: `states` sums for each of the memory's numbers.

    What is written into a sum, how fast it decays and what is read from it depend on the input.

        s_t = exp(D_t A) s_{t-1} + D_t B_t x_t        y_t = C_t s_t + d x_t        D_t, B_t, C_t are functions of x_t

    Source: Gu & Dao 2023, arXiv 2312.00752, algorithm 2 (S6), with its discretisation, initial values and output gate;
    Wang et al. 2025 (Drama), arXiv 2410.08893, as a world model. Differences: no short convolution in front, as it
    needs the last three inputs in the state; the inner width is the memory's, not twice that; D_t has full rank.
    When it fails: as `SSM`.
    """

    block = _SelectiveScan


class SimNorm(Cell):
    """Latent "z" (..., latent), which is also the features; the cell of TD-MPC2.

    No memory and no randomness: the latent at t is a function of the observation at t, and a network predicts the
    latent that an action leads to. A softmax in groups of `simplex` numbers keeps latents bounded and sparse.

        z_t = SimNorm(LayerNorm(W embed_t))        expected: z_{t+1} = SimNorm(LayerNorm(f(z_t, a_t)))

    Source: Hansen et al. 2024, arXiv 2310.16828, section 3.1 and equation 5; here LayerNorm and SiLU, not Mish.
    When it fails: partial observation (give a stack of frames, or `RSSM`); stochastic environments.
    """

    def __init__(
        self, embed_size: int, action_size: int, *, latent: int = 128, simplex: int = 8, hidden: int = 128, **rest: Any
    ) -> None:
        super().__init__(**rest)
        if simplex < 2 or latent < simplex or latent % simplex:
            raise ValueError(f"a latent of {latent} numbers is not made of groups of {simplex}, at least 2")
        self.simplex = simplex
        self.sizes = {"z": latent}
        self.size = latent
        # Without the norm the first softmaxes are nearly even, and the latent says little for hundreds of steps.
        self.seen = layer(embed_size, latent)[:2]
        enter = layer(latent + action_size, hidden)
        middle = layer(hidden, hidden)
        leave = layer(hidden, latent)[:2]
        self.next = nn.Sequential(enter, middle, leave)

    def observe(
        self, embed: Tensor, action: Tensor, first: Tensor, state: State | None = None, *, sample: bool = True
    ) -> Observed:
        return {"z": self.encode(embed)}, {}

    def encode(self, embed: Tensor) -> Tensor:
        """Latents (..., Z) of encoded observations (..., E)."""
        return self.normalized(self.seen(embed))

    def step(self, state: State, action: Tensor, *, sample: bool = True) -> State:
        latent_action = torch.cat([state["z"], action], -1)
        logits = self.next(latent_action)
        return {"z": self.normalized(logits)}

    def features(self, state: State) -> Tensor:
        return state["z"]

    def normalized(self, x: Tensor) -> Tensor:
        """A softmax in every group: (..., Z) -> (..., Z)."""
        grouped = x.unflatten(-1, (-1, self.simplex))
        return torch.softmax(grouped, -1).flatten(-2)
