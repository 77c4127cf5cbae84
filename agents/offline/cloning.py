"""Cloning: a policy that imitates recorded actions, the next H of them at once, in each of the ways they were done.

The next H actions together (a chunk) are a mixture of Gaussians, or what a diffusion model makes of noise, since one
mean of two ways around a wall leads into it; a chunk is then carried out without looking.

    mixture     minimises -log sum_k w_k(s) N(a; mu_k(s), sigma_k(s))
    diffusion   minimises |a - f(s, sqrt(abar_n) a + sqrt(1 - abar_n) noise, n)|^2, and goes from noise to a in N steps

Sources: Bishop 1994, "Mixture Density Networks"; Ho et al. 2020, arXiv 2006.11239, equation 4, and Song et al. 2020,
2010.02502, equation 12 (diffusion); Nichol & Dhariwal 2021, arXiv 2102.09672, equation 17 (its noise); Chi et al.
2023, "Diffusion Policy", arXiv 2303.04137 (chunks). Differences from them:
  - the network predicts clean actions, not the noise, and the way back from noise (DDIM's) draws nothing;
  - asked for its mode, the mixture gives the mean of the likeliest Gaussian, and diffusion begins from one noise that
    is kept with the weights, so that the same observation leads to the same chunk;
  - actions after the end of an episode do not count; discrete ones are imitated as one-hot vectors;
  - the learning rate falls to 0 over all steps.
When it fails: states that the recording never reached; a chunk longer than the world stays predictable.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.policy_layers import PolicyLayers, layers_of
from agents.networks.stacked import ACTIVATIONS, Stacked
from agents.offline.iql import IQL, NormalizedInputs
from agents.predictor import Predictor
from envs.recording import episodes
from envs.transitions import Transitions
from envs.types import Obs
from lodestar.settings import Settings, setting

# Of a Gaussian of the mixture, actions being in [-1, 1].
MIN_MIXTURE_LOG_STD = -5.0
MAX_MIXTURE_LOG_STD = 1.0
# A narrow Gaussian far from its actions has steep gradients.
MAX_CLONING_GRAD_NORM = 10.0


@dataclass
class CloningConfig(Settings):
    """Settings of `Cloning`."""

    prefix = "agent."
    head: str = setting("mixture", "what a chunk is drawn from", "mixture | diffusion")
    chunk: int = setting(8, "actions H that are predicted together and carried out without looking", "[1, 1000]")
    components: int = setting(5, "mixture: Gaussians", ">= 1")
    noise_steps: int = setting(16, "diffusion: steps N from noise to actions", "[2, 1000]")
    learning_rate: float = setting(1e-3, "of Adam, at first", "(0, 1]", tune=(1e-4, 3e-3, "log"))
    batch_size: int = setting(256, "chunks a step", ">= 1")
    gamma: float = setting(0.99, "discount of shaped rewards, as shape=potential; cloning reads none", "(0, 1]")
    net_arch: list[int] = setting([256, 256, 256], "units of the hidden layers", ">= 1")
    activation: str = setting("silu", "of the hidden layers", choices=tuple(ACTIVATIONS))
    squash: bool = setting(False, "mixture: whether a tanh bounds the means of actions, as in SAC; PPO has none")


class Cloning(IQL):
    """Imitates recorded actions; its state between calls is each row's chunk, and how many actions of it were taken."""

    Config = CloningConfig

    def learn(self, steps: int, begin: int = 0, total: int = 0) -> dict[str, float]:
        self._steps = total or steps
        self._steps_left = self._steps - begin
        return super().learn(steps)

    def policy_layers(self) -> PolicyLayers:
        config = self.config
        if type(self) is not Cloning or config.head != "mixture":
            # Returns are inputs, too, or noise is.
            return Predictor.policy_layers(self)
        if self.encoding.discrete:
            raise ValueError("its clone has no logits of actions; imitate discrete ones by agent=iql agent.beta=0")
        if config.chunk > 1 or config.components > 1:
            raise ValueError(
                f"its clone draws {config.chunk} actions at once from {config.components} Gaussians, and other agents "
                "draw one from one; train it with agent.chunk=1 agent.components=1"
            )
        mixture = self.net
        layers = layers_of(mixture.net.weights())
        last = layers.pop()
        # Outputs are the log-weight of the only component, its means, and its log-deviations.
        size = self.encoding.action_size
        means = slice(1, 1 + size)
        layers.append(last.select(means))
        # Its deviations differ by state, other agents' do so in another form: those of the mean observation are taken.
        mean_obs = mixture.mean.new_zeros(1, len(mixture.mean))
        _, _, log_std = mixture.gaussians(mean_obs)
        return PolicyLayers(
            self.encoding,
            layers,
            config.activation,
            mixture.mean,
            mixture.std,
            squashed=config.squash,
            log_std=log_std[0, 0],
        )

    def _networks(self) -> Any:
        return self._make_head(self.encoding.obs_size)

    def _make_head(self, inputs: int) -> Any:
        kind = _Mixture if self.config.head == "mixture" else _Diffusion
        return kind(inputs, self.encoding.action_size, self.config, self.seed)

    def _copy_target(self) -> list[Any]:
        # Without values there is no target network.
        return []

    def _loss(self, rows: Tensor) -> Tensor:
        width = self.encoding.obs_size
        obs = rows[:, :width]
        chunk, counts = rows[:, width:].chunk(2, -1)
        return self.net.loss(obs, chunk, counts, self._generator)

    def _step(self, rows: Tensor) -> dict[str, Tensor]:
        rate = self.config.learning_rate * self._steps_left / self._steps
        self._steps_left -= 1
        loss = self._flat.descend(self._loss(rows), rate, MAX_CLONING_GRAD_NORM)
        return {"loss": loss}

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        vector = self.tensor(self.encoding.vector(obs))
        whitened = self.net.whiten(vector)
        count = len(vector)
        length = self.config.chunk
        if state is None:
            chunk = np.zeros((count, length, self.encoding.action_size), np.float32)
            at = np.full(count, length)
        else:
            # Copies, since the caller may come back with the same state.
            chunk = np.array(state["chunk"], np.float32)
            at = np.array(state["at"])
        finished = np.flatnonzero(starts | (at >= length))
        if len(finished):
            generator = None if deterministic else self._generator
            places = torch.as_tensor(finished)
            chunks = self.net.draw(whitened[places], generator)
            drawn = chunks.cpu().numpy()
            chunk[finished] = drawn.reshape(len(finished), length, -1)
            at[finished] = 0
        action = self.encoding.decode(chunk[np.arange(count), at])
        return action, {"chunk": chunk, "at": at + 1}

    def _table(self, data: Transitions, signal: Any) -> Tensor:
        """Whitened observations (M, D), the chunks that followed (M, H * A), and 1 for actions of the same episode."""
        data = data[data.valid]
        if not data.shape[0]:
            raise ValueError("the data has no valid transition; give a recording")
        obs = torch.tensor(self.encoding.vector(data.obs))
        action = self.encoding.encode(data.action)
        largest = np.abs(action).max()
        # NaN is refused, too.
        if not largest < 1.001:
            raise ValueError(f"the data has actions at {largest:.3g} times the bounds of {self.action_space}")
        last = last_rows(data)[:, None]
        offsets = np.arange(self.config.chunk)
        rows = np.arange(len(obs))[:, None] + offsets
        counts = np.repeat(rows <= last, action.shape[1], axis=1)
        following = action[np.minimum(rows, last)]
        chunks = following.reshape(len(obs), -1)
        # What is learned from later keeps the units of the first data.
        if self._rows is None:
            self.net.fit(obs)
        whitened = self.net.whiten(obs.to(self.device))
        targets = np.concatenate([chunks, counts], -1, dtype=np.float32)
        columns = self.tensor(targets)
        return torch.cat([whitened, columns], -1)


class StretchLoss:
    """How a `Cloning` learns from stretches: rows are the first and the last of each one, of a table of all steps."""

    config: Any
    net: Any
    device: torch.device
    _generator: torch.Generator
    # What is read of each step (N, W), and the action taken in it (N, A).
    _tokens: Tensor
    _actions: Tensor

    def _loss(self, rows: Tensor) -> Tensor:
        last = rows[:, 1:]
        offsets = torch.arange(self.config.context, device=self.device)
        index = rows[:, :1] + offsets
        counts = (index <= last).flatten()
        index = index.minimum(last)
        features = self.net(self._tokens[index]).flatten(0, 1)
        action = self._actions[index].flatten(0, 1)
        counts = counts[:, None].expand_as(action)
        return self.net.head.loss(features, action, counts, self._generator)


def last_rows(data: Transitions) -> np.ndarray:
    """The last row of each row's episode, int64 (N,)."""
    parts = []
    for rows in episodes(data):
        length = rows.stop - rows.start
        parts.append(np.full(length, rows.stop - 1))
    return np.concatenate(parts)


class _Mixture(NormalizedInputs):
    """A network of whitened observations (B, D) that gives Gaussians of a chunk (B, W); W = H * A."""

    def __init__(self, inputs: int, actions: int, config: CloningConfig, seed: int) -> None:
        # Components K, means and log deviations, entries W of a chunk.
        self.shape = (config.components, 2, config.chunk * actions)
        super().__init__(inputs)
        outputs = config.components + math.prod(self.shape)
        self.squash = config.squash
        self.net = Stacked(1, inputs, config.net_arch, outputs, activation=config.activation, seed=seed)

    def gaussians(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights (B, K), means and log-deviations (B, K, W)."""
        components = self.shape[0]
        out = self.net(obs)[0]
        log_weights = torch.log_softmax(out[:, :components], -1)
        moments = out[:, components:].unflatten(1, self.shape)
        means, log_std = moments.unbind(2)
        if self.squash:
            means = torch.tanh(means)
        log_std = log_std.clamp(MIN_MIXTURE_LOG_STD, MAX_MIXTURE_LOG_STD)
        return log_weights, means, log_std

    def loss(self, obs: Tensor, chunk: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
        log_weights, means, log_std = self.gaussians(obs)
        scaled = (chunk[:, None] - means) * torch.exp(-log_std)
        energy = 0.5 * scaled.square() + log_std
        energy = (energy * counts[:, None]).sum(-1)
        log_prob = torch.logsumexp(log_weights - energy, -1)
        return -log_prob.mean()

    def draw(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Chunks (B, W); without a generator the mode."""
        log_weights, means, log_std = self.gaussians(obs)
        rows = torch.arange(len(obs), device=obs.device)
        if generator is None:
            return means[rows, log_weights.argmax(-1)]
        component = torch.multinomial(log_weights.exp(), 1, generator=generator)[:, 0]
        noise = torch.empty_like(means[:, 0]).normal_(generator=generator)
        deviation = log_std[rows, component].exp()
        return means[rows, component] + deviation * noise


class _Diffusion(NormalizedInputs):
    """A network of whitened observations, noisy chunks and shares of noise that gives clean chunks."""

    kept: Tensor
    first: Tensor

    def __init__(self, inputs: int, actions: int, config: CloningConfig, seed: int) -> None:
        width = config.chunk * actions
        super().__init__(inputs)
        sizes = (inputs + width + 3, config.net_arch, width)
        self.net = Stacked(1, *sizes, activation=config.activation, seed=seed)
        # Nichol & Dhariwal's cosine: abar_n, the share of the signal's variance after n steps.
        time = torch.linspace(0, 1, config.noise_steps + 1)
        angle = (time + 0.008) / 1.008 * (math.pi / 2)
        kept = (angle.cos() / angle[0].cos()).square()
        self.register_buffer("kept", kept.clamp(min=1e-4), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        first = torch.randn(1, width, generator=generator)
        self.register_buffer("first", first)

    def clean(self, obs: Tensor, noisy: Tensor, abar: Tensor) -> Tensor:
        """The network's guess of chunks (B, W) with so much of their variance left, (B, 1)."""
        shares = [abar.sqrt(), (1 - abar).sqrt(), abar]
        inputs = torch.cat([obs, noisy, *shares], -1)
        return self.net(inputs)[0]

    def loss(self, obs: Tensor, chunk: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
        shape = (len(obs), 1)
        n = torch.randint(1, len(self.kept), shape, generator=generator, device=obs.device)
        noise = torch.empty_like(chunk).normal_(generator=generator)
        abar = self.kept[n]
        noisy = abar.sqrt() * chunk + (1 - abar).sqrt() * noise
        guess = self.clean(obs, noisy, abar)
        error = (guess - chunk).square()
        return (error * counts).mean()

    def draw(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Chunks (B, W); without a generator those that `first` leads to."""
        x = self.first.repeat(len(obs), 1)
        if generator is not None:
            x.normal_(generator=generator)
        for n in range(len(self.kept) - 1, 0, -1):
            abar = self.kept[n]
            next_abar = self.kept[n - 1]
            guess = self.clean(obs, x, abar.expand(len(obs), 1))
            guess = guess.clamp(-1, 1)
            # Song et al.'s equation 12 without its random part.
            noise_scale = ((1 - next_abar) / (1 - abar)).sqrt()
            noise = x - abar.sqrt() * guess
            x = next_abar.sqrt() * guess + noise_scale * noise
        return x
