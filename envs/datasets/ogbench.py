"""Files of OGBench (Park et al. 2024, arXiv 2410.20092), *.npz: trajectories one after the other.

`observations`, `actions` and `terminals` (N, ...): where a terminal is 1 a trajectory's last observation stands, whose
action led nowhere. All of them were cut by time. The files have no rewards; `rewards` (N,) are read if a file does.
"""

import functools
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gymnasium import spaces

from envs.datasets.dataset import Dataset, StoredEpisode
from lodestar.files import regular
from lodestar.mappings import map_values

NEEDED_ARRAYS = ("observations", "actions", "terminals")


def from_ogbench(path: Path) -> Dataset:
    """The trajectories in a file; a ValueError if it is torn, or of another format."""
    try:
        with np.load(regular(path.resolve()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in (*NEEDED_ARRAYS, "rewards") if name in file}
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({' '.join(str(error).split())}); fetch it again") from None
    lengths = map_values(len, arrays)
    is_complete = set(NEEDED_ARRAYS) <= set(arrays)
    if not is_complete or len(set(lengths.values())) > 1 or lengths["actions"] < 2:
        raise ValueError(f"{path} has rows of {lengths}; OGBench has as many of {', '.join(NEEDED_ARRAYS)}, at least 2")
    notes = []
    if "rewards" not in arrays:
        notes.append(f"{path} has no rewards: they are 0; learn from a judge, or imitate")
    obs = arrays["observations"]
    observation_space = spaces.Box(-np.inf, np.inf, obs.shape[1:], np.float32)
    if obs.dtype == np.uint8:
        observation_space = spaces.Box(0, 255, obs.shape[1:], np.uint8)
    action = arrays["actions"]
    action_space: spaces.Space = spaces.Box(-np.inf, np.inf, action.shape[1:])
    if action.dtype.kind in "iu":
        action_space = spaces.Discrete(int(action.max()) + 1)
    return Dataset(
        functools.partial(_episodes, arrays),
        observation_space,
        action_space,
        about={"dataset": path.stem},
        notes=notes,
    )


def _episodes(arrays: dict[str, np.ndarray]) -> Iterator[StoredEpisode]:
    terminals = arrays["terminals"]
    count = len(terminals)
    # The last trajectory may be unfinished.
    ends = np.unique([*np.flatnonzero(terminals > 0), count - 1])
    begins = [0, *(ends[:-1] + 1)]
    rewards = arrays.get("rewards", np.zeros(count, np.float32))
    for begin, end in zip(begins, ends):
        if end == begin:
            continue
        obs = arrays["observations"][begin : end + 1]
        action = arrays["actions"][begin:end]
        truncated = np.arange(begin + 1, end + 1) == end
        terminated = np.zeros_like(truncated)
        yield StoredEpisode(obs, action, rewards[begin:end], terminated, truncated)
