"""Normalised observations for Stable-Baselines3's agents: VecNormalize's statistics, but within the policy.

The environment's observations stay as they are, so rewards, replay and recordings see them. Statistics are buffers of
the policy, so a checkpoint, `predict` and an evaluation have them without more. On-policy they move after an update, so
that a rollout has one meaning, off-policy with each step.
"""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import Tensor

# Standard deviations at which an observation is cut, and what is added to a variance: VecNormalize's.
CLIP_OBS = 10.0
VARIANCE_EPSILON = 1e-8


class NormalizedObs(FlattenExtractor):
    """The flattened observation, normalised by statistics of all that were seen."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space)
        self.register_buffer("mean", torch.zeros(self.features_dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(self.features_dim, dtype=torch.float64))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))

    @property
    def scale(self) -> Tensor:
        """What multiplies a centred observation."""
        return (self.var + VARIANCE_EPSILON).rsqrt()

    def forward(self, observations: Tensor) -> Tensor:
        centred = super().forward(observations) - self.mean.float()
        return (centred * self.scale.float()).clamp(-CLIP_OBS, CLIP_OBS)

    def watch(self, obs: np.ndarray) -> None:
        """Take in observations (B, D)."""
        statistics = RunningMeanStd(shape=self.mean.shape)
        statistics.mean = self.mean.cpu().numpy()
        statistics.var = self.var.cpu().numpy()
        statistics.count = float(self.count)
        statistics.update(obs.astype(np.float64))
        self.mean.copy_(torch.as_tensor(statistics.mean))
        self.var.copy_(torch.as_tensor(statistics.var))
        self.count.fill_(statistics.count)


def extractor_for(space: spaces.Space) -> type[NormalizedObs]:
    """The features extractor of these observations; a ValueError for those that are no numbers."""
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return NormalizedObs
    raise ValueError(f"agent.normalize_obs=true is for a Box of floats, and observations are {space}; leave it out")


def normalizing(algorithm: type[Any]) -> type[Any]:
    """The algorithm, which lets the statistics of its policy take in what it observes."""
    if issubclass(algorithm, OnPolicyAlgorithm):
        return type(algorithm.__name__, (_WatchesRollouts, algorithm), {})
    return type(algorithm.__name__, (_WatchesSteps, algorithm), {})


def _watch(policy: Any, obs: np.ndarray) -> None:
    # Actor, critics and targets may have an extractor each.
    for module in policy.modules():
        if isinstance(module, NormalizedObs):
            module.watch(obs.reshape(-1, module.features_dim))


class _WatchesRollouts:
    def train(self: Any) -> None:
        super().train()  # type: ignore[misc]
        _watch(self.policy, self.rollout_buffer.observations)


class _WatchesSteps:
    def collect_rollouts(self: Any, env: Any, *arguments: Any, **options: Any) -> Any:
        begin = self.replay_buffer.pos
        collected = super().collect_rollouts(env, *arguments, **options)  # type: ignore[misc]
        buffer = self.replay_buffer
        rows = np.arange(begin, begin + collected.episode_timesteps // self.n_envs) % buffer.buffer_size
        if len(rows):
            _watch(self.policy, buffer.observations[rows])
        return collected
