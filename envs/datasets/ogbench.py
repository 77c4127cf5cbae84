"""Files of OGBench (Park et al. 2024, arXiv 2410.20092), *.npz: trajectories one after the other.

`observations`, `actions` and `terminals` (N, ...): where a terminal is 1 a trajectory's last observation stands, whose
action led nowhere. All of them were cut by time. The files have no rewards; `rewards` (N,) are read if a file does.
"""

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gymnasium import spaces

from envs.datasets.dataset import Dataset, StoredEpisode
from lodestar.files import regular

NEEDED = ("observations", "actions", "terminals")


def from_ogbench(path: Path) -> Dataset:
    """The trajectories in a file; a ValueError if it is torn, or of another format."""
    try:
        with np.load(regular(path.resolve()), allow_pickle=False) as file:
            found = {name: file[name] for name in (*NEEDED, "rewards") if name in file}
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read ({' '.join(str(error).split())}); fetch it again") from None
    lengths = {name: len(array) for name, array in found.items()}
    if not {*NEEDED} <= {*found} or len({*lengths.values()}) > 1 or lengths["actions"] < 2:
        raise ValueError(f"{path} has rows of {lengths}; OGBench has as many of {', '.join(NEEDED)}, at least 2")
    notes = [] if "rewards" in found else [f"{path} has no rewards: they are 0; learn from a judge, or imitate"]
    obs, action = found["observations"], found["actions"]
    low, high = (0, 255) if obs.dtype == np.uint8 else (-np.inf, np.inf)
    seen = spaces.Box(low, high, obs.shape[1:], np.uint8 if obs.dtype == np.uint8 else np.float32)
    taken: spaces.Space = spaces.Box(-np.inf, np.inf, action.shape[1:])
    if action.dtype.kind in "iu":
        taken = spaces.Discrete(int(action.max()) + 1)
    return Dataset(lambda: _episodes(found), seen, taken, about={"dataset": path.stem}, notes=notes)


def _episodes(found: dict[str, np.ndarray]) -> Iterator[StoredEpisode]:
    count = len(found["terminals"])
    ends = np.unique([*np.flatnonzero(found["terminals"] > 0), count - 1])  # the last one may be unfinished
    rewards = found.get("rewards", np.zeros(count, np.float32))
    for begin, end in zip([0, *(ends[:-1] + 1)], ends):
        truncated = np.arange(begin + 1, end + 1) == end
        if end > begin:
            obs, action = found["observations"][begin : end + 1], found["actions"][begin:end]
            yield StoredEpisode(obs, action, rewards[begin:end], np.zeros_like(truncated), truncated)
