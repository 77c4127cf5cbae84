"""Our rewards by default, and with networks as large as rllte's: score and update, without the mix around them.

Both are compiled from the first update (`path=numba`), as they are in long runs.

An image of 7 x 7 is too small for convolutions: its pixels pass dense layers, as those of the peer do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

DISTRIBUTION = "lodestar-rl"
VARIANTS = ("default", "equal")
# rllte's sizes; and what else is not ours by default.
SIZES: dict[str, Any] = {"features": 128, "hidden": 256, "batch_size": 256, "learning_rate": 1e-3}
OPTIONS: dict[str, dict[str, Any]] = {
    "rnd": {"depth": 1},
    "disagreement": {"members": 4},
    "ngu": {"features": 32},
    "pseudocount": {"features": 32},
    "re3": {"k": 5},
}


def make(method: str, shape: tuple[int, ...], envs: int, variant: str) -> tuple[Callable[..., Any], ...]:
    """See `drive_reward`."""
    import gymnasium as gym

    import rewards
    from envs.transitions import Transitions
    from rewards.base import values_of

    image = len(shape) == 3
    space = gym.spaces.Box(0, 255, shape, np.uint8) if image else gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
    cls: Any = rewards.get(method)
    options = SIZES | OPTIONS.get(method, {}) if variant == "equal" else {}
    reward = cls(cls.Config(**options, path="numba"), space, gym.spaces.Discrete(5), seed=0)
    memory = reward.initial_memory(envs)

    def prepare(rollout: dict[str, Any]) -> Transitions:
        return Transitions(**rollout, valid=np.ones(rollout["reward"].shape, bool))

    def learn(rollout: Transitions) -> np.ndarray:
        nonlocal memory
        if memory is None:
            scores = values_of(reward.score(rollout.flatten())).reshape(rollout.shape)
        else:
            scores, memory = reward.scan(rollout, memory)
        reward.update(rollout)
        return scores

    optimizer = getattr(reward, "optimizer", None)
    return prepare, learn, lambda: int(optimizer.steps) if optimizer else 0
