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
  - the learning rate falls to 0 over the steps of a `learn`.
When it fails: states that the recording never reached; a chunk longer than the world stays predictable.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.stacked import Stacked
from agents.offline.iql import IQL, NormalizedInputs
from envs.recording import episodes
from envs.transitions import Transitions
from envs.types import Obs
from lodestar.settings import Settings, setting

LOG_STD = (-5.0, 1.0)  # of a Gaussian of the mixture, actions being in [-1, 1]
LONGEST = 10.0  # norm of a gradient: a narrow Gaussian far from its actions has steep ones


@dataclass
class CloningConfig(Settings):
    """Settings of `Cloning`."""

    prefix = "agent."
    head: str = setting("mixture", "what a chunk is drawn from", choices=("mixture", "diffusion"))
    chunk: int = setting(8, "actions H that are predicted together and carried out without looking", low=1, high=1000)
    components: int = setting(5, "mixture: Gaussians", low=1)
    noise_steps: int = setting(16, "diffusion: steps N from noise to actions", low=2, high=1000)
    learning_rate: float = setting(1e-3, "of Adam, at first", above=0, high=1)
    batch_size: int = setting(256, "chunks a step", low=1)
    net_arch: list[int] = setting([256, 256, 256], "units of the hidden layers", low=1)


class Cloning(IQL):
    """Imitates recorded actions; its state between calls is each row's chunk, and how many actions of it were taken."""

    Config = CloningConfig

    def learn(self, steps: int) -> dict[str, float]:
        self._step_size = steps, steps  # left, of
        return super().learn(steps)

    def _networks(self, seed: int) -> Any:
        return self._head(self.encoding.obs_size, seed)

    def _head(self, inputs: int, seed: int) -> Any:
        kind = _Mixture if self.config.head == "mixture" else _Diffusion
        return kind(inputs, self.encoding.action_size, self.config, seed)

    def _copied(self) -> list[Any]:
        return []  # there is no target

    def _loss(self, rows: Tensor) -> Tensor:
        width = self.encoding.obs_size
        return self.net.loss(rows[:, :width], *rows[:, width:].chunk(2, -1), self._generator)

    def _step(self, rows: Tensor) -> dict[str, Tensor]:
        left, steps = self._step_size
        self._step_size = left - 1, steps
        return {"loss": self._flat.descend(self._loss(rows), self.config.learning_rate * left / steps, LONGEST)}

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        vector = self.net.whitened(torch.as_tensor(self.encoding.vector(obs), device=self.device))
        count, length = len(vector), self.config.chunk
        chunk, at = np.zeros((count, length, self.encoding.action_size), np.float32), np.full(count, length)
        if state is not None:
            chunk[:], at[:] = state["chunk"], state["at"]
        over = np.flatnonzero(starts | (at >= length))
        if len(over):
            drawn = self.net.draw(vector[torch.as_tensor(over)], None if deterministic else self._generator)
            chunk[over], at[over] = drawn.cpu().numpy().reshape(len(over), length, -1), 0
        return self.encoding.decode(chunk[np.arange(count), at]), {"chunk": chunk, "at": at + 1}

    def _table(self, data: Transitions, signal: Any) -> Tensor:
        """Whitened observations (M, D), the chunks that followed (M, H * A), and 1 for actions of the same episode."""
        data = data[np.asarray(data.valid, bool)]
        if not data.shape[0]:
            raise ValueError("the data has no valid transition; give a recording")
        obs, action = torch.tensor(self.encoding.vector(data.obs)), self.encoding.encode(data.action)
        if not (most := np.abs(action).max()) < 1.001:
            raise ValueError(f"the data has actions at {most:.3g} times the bounds of {self.action_space}")
        last = last_rows(data)[:, None]
        rows = np.arange(len(obs))[:, None] + np.arange(self.config.chunk)
        counts = np.repeat(rows <= last, action.shape[1], axis=1)
        chunks = action[np.minimum(rows, last)].reshape(len(obs), -1)
        if self._rows is None:  # what is learned from later keeps the units
            self.net.mean.copy_(obs.mean(0))
            self.net.std.copy_(obs.std(0, correction=0).clamp(min=1e-3))
        both = torch.as_tensor(np.concatenate([chunks, counts], -1, dtype=np.float32), device=self.device)
        return torch.cat([self.net.whitened(obs.to(self.device)), both], -1)


def last_rows(data: Transitions) -> np.ndarray:
    """The last row of each row's episode, int64 (N,)."""
    return np.concatenate([np.full(rows.stop - rows.start, rows.stop - 1) for rows in episodes(data)])


class _Head(NormalizedInputs):
    """A network of whitened observations (B, D), and more, that gives what a chunk (B, W) is drawn from; W = H * A."""

    def __init__(self, inputs: int, config: CloningConfig, seed: int, more: int, outputs: int) -> None:
        super().__init__(inputs)
        self.net = Stacked(1, inputs + more, config.net_arch, outputs, activation="silu", seed=seed)


class _Mixture(_Head):
    def __init__(self, inputs: int, actions: int, config: CloningConfig, seed: int) -> None:
        self.shape = (config.components, 2, config.chunk * actions)
        super().__init__(inputs, config, seed, 0, config.components + math.prod(self.shape))

    def gaussians(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights (B, K), means and log-deviations (B, K, W)."""
        out = self.net(obs)[0]
        means, log_std = out[:, self.shape[0] :].unflatten(1, self.shape).unbind(2)
        return torch.log_softmax(out[:, : self.shape[0]], -1), means, log_std.clamp(*LOG_STD)

    def loss(self, obs: Tensor, chunk: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
        weights, means, log_std = self.gaussians(obs)
        each = 0.5 * ((chunk[:, None] - means) * torch.exp(-log_std)).square() + log_std
        return -torch.logsumexp(weights - (each * counts[:, None]).sum(-1), -1).mean()

    def draw(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Chunks (B, W); without a generator the mode."""
        weights, means, log_std = self.gaussians(obs)
        rows = torch.arange(len(obs), device=obs.device)
        if generator is None:
            return means[rows, weights.argmax(-1)]
        which = torch.multinomial(weights.exp(), 1, generator=generator)[:, 0]
        noise = torch.empty_like(means[:, 0]).normal_(generator=generator)
        return means[rows, which] + log_std[rows, which].exp() * noise


class _Diffusion(_Head):
    kept: Tensor
    first: Tensor

    def __init__(self, inputs: int, actions: int, config: CloningConfig, seed: int) -> None:
        width = config.chunk * actions
        super().__init__(inputs, config, seed, width + 3, width)
        angle = (torch.linspace(0, 1, config.noise_steps + 1) + 0.008) / 1.008 * (math.pi / 2)
        kept = (angle.cos() / angle[0].cos()).square().clamp(min=1e-4)
        self.register_buffer("kept", kept, persistent=False)  # abar_n: share of the signal's variance after n steps
        self.register_buffer("first", torch.randn(1, width, generator=torch.Generator().manual_seed(seed)))

    def clean(self, obs: Tensor, noisy: Tensor, kept: Tensor) -> Tensor:
        """The network's guess of chunks (B, W) with so much of their variance left, (B, 1)."""
        return self.net(torch.cat([obs, noisy, kept.sqrt(), (1 - kept).sqrt(), kept], -1))[0]

    def loss(self, obs: Tensor, chunk: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
        n = torch.randint(1, len(self.kept), (len(obs), 1), generator=generator, device=obs.device)
        noise, kept = torch.empty_like(chunk).normal_(generator=generator), self.kept[n]
        guess = self.clean(obs, kept.sqrt() * chunk + (1 - kept).sqrt() * noise, kept)
        return ((guess - chunk).square() * counts).mean()

    def draw(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Chunks (B, W); without a generator those that `first` leads to."""
        x = self.first.repeat(len(obs), 1)
        x = x if generator is None else x.normal_(generator=generator)
        for n in range(len(self.kept) - 1, 0, -1):
            kept, less = self.kept[n], self.kept[n - 1]
            guess = self.clean(obs, x, kept.expand(len(obs), 1)).clamp(-1, 1)
            x = less.sqrt() * guess + ((1 - less) / (1 - kept)).sqrt() * (x - kept.sqrt() * guess)
        return x
