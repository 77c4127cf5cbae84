"""Recordings as rewards and agents read them: refused, with their option's name, if not of this environment."""

import gymnasium as gym

from envs.datasets.dataset import learnable
from envs.recording import load
from envs.transitions import Transitions

LEAST = 10  # transitions that something can be learned from


def recorded(path: str, key: str, observation_space: gym.Space, action_space: gym.Space) -> Transitions:
    """The valid transitions (N,), at least 10, of the recording that the option `key` names; a ValueError if not."""
    if not path:
        raise ValueError(
            f"{key} is empty; name a recording (python -m runners.record writes one), as in {key}=demos.safetensors"
        )
    try:
        batch = load(path)[0]
    except FileNotFoundError as error:
        raise ValueError(f"{key}={error}; python -m runners.record writes one") from None
    batch = batch[batch.valid]
    if len(batch.step) < LEAST:
        raise ValueError(f"{key}={path} holds {len(batch.step)} transitions; record at least {LEAST}")
    return learnable(batch, observation_space, action_space, "this run", f"{key}={path}")
