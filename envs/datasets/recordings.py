"""Several recordings of one environment as one batch, and what an agent takes for environments where they are all."""

from collections.abc import Sequence
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from envs.datasets import read
from envs.datasets.dataset import learnable
from envs.datasets.minari import METADATA, MINARI_NAME
from envs.recording import load, read_meta
from envs.render import name_of
from envs.transitions import Transitions, concatenate
from envs.types import Options, StateDict


def is_dataset(name: str) -> bool:
    """Whether a name is that of a data set of others, not of a recording of ours."""
    path = Path(name)
    if (path / "data").is_dir() or (path / METADATA).is_file() or path.suffix == ".npz":
        return True
    return not path.exists() and bool(MINARI_NAME.fullmatch(name))


def read_source(names: Sequence[str]) -> tuple[str, Options]:
    """The environment that recordings name, "" for none, and its options; a ValueError if they name several."""
    sources = []
    for name in names:
        if is_dataset(name):
            dataset = read(name)
            sources.append((dataset.env, dataset.env_options))
        else:
            meta = read_meta(name)
            sources.append((meta.get("env", ""), meta.get("env_options", {})))
    if sources.count(sources[0]) < len(sources):
        files = ",".join(names)
        raise ValueError(f"{files} holds recordings of different environments: {sources}; give those of one")
    return sources[0]


def read_recordings(names: Sequence[str], env: gym.Env) -> Transitions:
    """All valid transitions (N,) of recordings and data sets, as `env` has them; a ValueError if they are of another.

    The last transition of an episode that was cut short is truncated, so that no reward's memory goes on beyond it.
    """
    batches = []
    for name in names:
        batch = read(name).transitions(env) if is_dataset(name) else load(name)[0]
        spaces = (env.observation_space, env.action_space)
        batches.append(learnable(batch, *spaces, name_of(env), f"data={name}"))
    return _end_cut_episodes(concatenate(batches))


def _end_cut_episodes(batch: Transitions) -> Transitions:
    """The batch with each transition truncated that the next one does not follow."""
    follows = np.zeros(len(batch.step), bool)
    follows[:-1] = batch.step[1:] == batch.step[:-1] + 1
    cut = ~follows & ~batch.ended
    return batch.replace(truncated=batch.truncated | cut)


class RecordedEnvs(VectorEnv):
    """What an agent takes for environments where there is a recording alone: spaces, transitions (N,), and no step."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space, data: Transitions | None = None) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = 1
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.data = data
        # The recording as it is, where `data` has ratings in place of the task's rewards.
        self.unrated = data
        # What is to be logged about them, by tag.
        self.metrics: dict[str, float] = {}

    def take_metrics(self) -> dict[str, float]:
        return self.metrics

    def snapshot(self) -> StateDict:
        """Nothing of a recording moves."""
        return {}

    def restore(self, state: StateDict) -> None:
        """There is nothing to restore."""
