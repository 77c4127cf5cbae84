"""rllte's rewards with their defaults, driven as its on-policy agents drive them: `watch` each step, then `compute`.

Its networks for images do not take one of 7 x 7, or are convolutions where ours are dense: it is given the pixels of
the image as a vector in [0, 1], float32 as its storage keeps them, so that both sides have dense layers. The
2,560 steps in which its constructor watches the environments are not measured. Its NGU forgets the cap of its product
(1.0.1: no attribute `mrs`), which is set to its own default of 5.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

DISTRIBUTION = "rllte-core"
VARIANTS = ("default",)
CLASSES = {
    "rnd": "RND",
    "icm": "ICM",
    "disagreement": "Disagreement",
    "ride": "RIDE",
    "ngu": "NGU",
    "pseudocount": "PseudoCounts",
    "e3b": "E3B",
    "re3": "RE3",
}
KEYS = {
    "observations": "obs",
    "actions": "action",
    "rewards": "reward",
    "terminateds": "terminated",
    "truncateds": "truncated",
    "next_observations": "next_obs",
}


def make(method: str, shape: tuple[int, ...], envs: int, variant: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """See `drive_reward`."""
    import gymnasium as gym
    import torch
    from rllte.xplore import reward as theirs

    size = int(np.prod(shape))
    steps = SimpleNamespace(
        unwrapped=SimpleNamespace(num_envs=envs),
        observation_space=gym.spaces.Box(-np.inf, np.inf, (size,), np.float32),
        action_space=gym.spaces.Discrete(5),
        reset=lambda: (None, {}),
        step=lambda actions: (torch.rand(envs, size), None, None, None, {}),
    )
    reward = getattr(theirs, CLASSES[method])(steps, device="cpu")
    if method == "ngu":
        reward.mrs = 5.0

    def prepare(rollout: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        samples = {}
        for key, name in KEYS.items():
            value = torch.from_numpy(rollout[name]).float()
            if name.endswith("obs"):
                value = value.flatten(2) / (255 if len(shape) == 3 else 1)
            samples[key] = value.unsqueeze(2) if name == "action" else value
        return samples

    def learn(samples: dict[str, torch.Tensor]) -> torch.Tensor:
        for t in range(len(samples["rewards"])):
            reward.watch(*(samples[key][t] for key in KEYS))
        return reward.compute(samples, sync=True)

    return prepare, learn
