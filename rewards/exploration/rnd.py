"""Random network distillation: pay for what a network cannot yet predict about a random, fixed one.

A predictor is trained on visited states to imitate a random target network; where it fails, it has seldom been.
Source: Burda, Edwards, Storkey, Klimov 2018, arXiv 1810.12894, sections 2.2 to 2.4.
Differences:
    an optimiser and a gradient clip of its own (the paper shares them with the policy);
    until the first update the bounds of the observation space stand in for the running statistics, where the paper
    steps the environment at random beforehand;
    vectors pass dense layers instead of convolutions, one hidden layer in the target and two in the predictor;
    the stream ends with the episode unless `episodic=false` asks for the paper's value that crosses resets.
Fails when: observations contain noise that no network can predict; or the world is so small that the predictor
learns everything before the agent has found the task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn.utils import skip_init

from envs.types import Memory, Transitions
from rewards.base import Reward, RewardConfig
from rewards.exploration.spaces import Layout
from rewards.scale import RunningMeanStd

CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # filters, width, stride: Mnih et al. 2015
IMAGE = 36  # pixels; the smallest image that they take
ROWS = 512  # images scored at a time, to bound memory


@dataclass
class RNDConfig(RewardConfig):
    """Settings of RND; the paper's value in brackets where it differs.

    Attributes:
        scale: the paper's `return` never drowns the task, and fades as the bonus does. `ema` keeps a vanishing bonus
            alive: it finds what is far away sooner, and needs a weight that ends, as in `linear:1:0:200000`. On
            MountainCar-v0 with PPO the mean return passed -150 after 128,000 steps with `ema` faded out (five seeds),
            188,000 with these defaults (one seed), and in one seed of five within 300,000 without a bonus; `ema` with a
            weight of 1 throughout fell back from -115 to -139 by 500,000 (three seeds).
        gamma: discount of the bonus.
        learning_rate: Adam step size.
        features: outputs of both networks, D [512].
        hidden: width of the hidden layers [512].
        update_proportion: share of each minibatch that is learnt from, in (0, 1] [1 with 32 environments, 0.25
            with 128].
        epochs: passes over the transitions of one update [4].
        batch_size: transitions in a minibatch.
        max_grad_norm: the gradient is shortened to this length.
        keys: entries of a Dict observation to look at; empty looks at all.
        channels: channels of an image to look at, counted from the last; 0 looks at all. A stack of grey frames wants 1
            [1]: the bonus is for what the step showed.
    """

    scale: str = "return"
    gamma: float | None = 0.99
    learning_rate: float = 1e-4
    features: int = 64
    hidden: int = 64
    update_proportion: float = 1.0
    epochs: int = 1
    batch_size: int = 256
    max_grad_norm: float = 0.5
    keys: list[str] = field(default_factory=list)
    channels: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.update_proportion <= 1:
            raise ValueError(
                f"reward rnd: update_proportion={self.update_proportion} is no share; give a number in (0, 1]"
            )
        for name in ("learning_rate", "max_grad_norm"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"reward rnd: {name}={getattr(self, name)} must be above 0 and finite")
        for name in ("features", "hidden", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"reward rnd: {name}={getattr(self, name)} must be at least 1")
        if self.channels < 0:
            raise ValueError(f"reward rnd: channels={self.channels} must be at least 0; 0 looks at all")


class RND(Reward):
    """r(s') = mean over D of (predictor(x) - target(x))**2, x = clip((s' - mean) / std, -5, 5)."""

    Config = RNDConfig

    def __init__(
        self,
        config: RNDConfig,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, observation_space, action_space, seed=seed, device=device)
        self.settings = config
        self.layout = Layout(observation_space, config.keys, "rnd", channels=config.channels, smallest_image=IMAGE)
        generator = torch.Generator().manual_seed(seed)
        width = config.hidden
        self.target = _Net(self.layout, [width, config.features], generator).to(device)
        self.predictor = _Net(self.layout, [width, width, config.features], generator).to(device)
        self.target.requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.predictor.parameters(), lr=config.learning_rate, fused=True)
        self.statistics = RunningMeanStd((self.layout.size,))
        self.statistics.mean, self.statistics.var = self.layout.prior()
        self.rng = np.random.default_rng(seed)  # of the minibatches; the global generators stay untouched

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        x = self._whiten(self.layout.flatten(batch.next_obs))
        rows = ROWS if self.layout.images else max(len(x), 1)
        with torch.no_grad():
            return np.concatenate([self._error(x[i : i + rows]).cpu().numpy() for i in range(0, len(x), rows)])

    def update(self, batch: Transitions) -> dict[str, float]:
        batch = batch.flatten()
        x = self.layout.flatten(batch.next_obs)[np.asarray(batch.valid)]
        if len(x) == 0:
            return {}
        for i in range(0, len(x), ROWS):  # in float64, hence in pieces
            self.statistics.update(x[i : i + ROWS])
        x = self._whiten(x)
        inputs = torch.from_numpy(x).to(self.device)
        with torch.no_grad():
            targets = torch.cat([self.target(inputs[i : i + ROWS]) for i in range(0, len(x), ROWS)])
        size, share = self.settings.batch_size, self.settings.update_proportion
        losses = []
        for _ in range(self.settings.epochs):
            order = self.rng.permutation(len(x))
            for i in range(0, len(x), size):
                rows = order[i : i + size]
                rows = rows if share == 1 else rows[self.rng.random(len(rows)) < share]
                if len(rows):
                    index = torch.from_numpy(rows).to(self.device)
                    losses.append(self._learn(inputs[index], targets[index]))
        return {"loss": float(torch.stack(losses).mean())} if losses else {}

    def _learn(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = (self.predictor(inputs) - targets).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.predictor.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        return loss.detach()

    def _error(self, x: np.ndarray) -> torch.Tensor:
        """Whitened observations (N, size) -> mean squared error over the features (N,)."""
        inputs = torch.from_numpy(x).to(self.device)
        return (self.predictor(inputs) - self.target(inputs)).square().mean(dim=1)

    def _whiten(self, x: np.ndarray) -> np.ndarray:
        mean = self.statistics.mean.astype(np.float32)
        std = self.statistics.std.astype(np.float32)
        return np.clip((x - mean) / std, -5, 5)


class _Net(nn.Module):
    """Rows of a `Layout` -> features: convolutions on its images, dense layers on everything."""

    def __init__(self, layout: Layout, widths: list[int], generator: torch.Generator) -> None:
        super().__init__()
        self.split = [layout.vector, *(int(np.prod(shape)) for shape in layout.images.values())]
        self.shapes = list(layout.images.values())
        self.trunks = nn.ModuleList(_trunk(channels) for channels, _, _ in self.shapes)
        inputs = layout.vector + sum(_outputs(shape) for shape in self.shapes)
        dense: list[nn.Module] = []  # `skip_init`: torch's own initialisation would draw from the global generator
        for width in widths:
            dense += [skip_init(nn.Linear, inputs, width), nn.ReLU()]
            inputs = width
        self.dense = nn.Sequential(*dense[:-1])
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.orthogonal_(module.weight, math.sqrt(2), generator=generator)
                nn.init.zeros_(cast(torch.Tensor, module.bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.shapes:
            return self.dense(x)
        vector, *images = x.split(self.split, dim=1)
        seen = [trunk(image.unflatten(1, shape)) for trunk, image, shape in zip(self.trunks, images, self.shapes)]
        return self.dense(torch.cat([vector, *seen], dim=1))


def _trunk(channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for filters, width, stride in CONVOLUTIONS:
        layers += [skip_init(nn.Conv2d, channels, filters, width, stride), nn.LeakyReLU()]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten())


def _outputs(shape: tuple[int, int, int]) -> int:
    """Numbers that leave a trunk for an image (C, H, W)."""
    filters, height, width = shape
    for filters, size, stride in CONVOLUTIONS:  # noqa: B007
        height, width = (height - size) // stride + 1, (width - size) // stride + 1
    return filters * height * width
