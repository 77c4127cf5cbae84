"""Data sets of Minari, by Farama: HDF5 or Arrow with an observation more than actions in every episode."""

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import EnvSpec, registry

from envs.datasets.dataset import Dataset, StoredEpisode
from lodestar.files import read_json

METADATA = "metadata.json"
NAME = re.compile(r"[\w-]+(/[\w-]+)*-v\d+")


def find(source: str | Path) -> Any:
    """The `minari.MinariDataset` in a folder, or of a name on this machine; raises as `envs.datasets.read`."""
    folder = Path(source)
    data = next((at for at in (folder, folder / "data") if (at / METADATA).is_file()), None)
    if data is None and (folder.exists() or not NAME.fullmatch(str(source))):
        what = "holds no data set" if folder.is_dir() else "is no data set" if folder.exists() else "does not exist"
        raise (ValueError if folder.exists() else FileNotFoundError)(
            f"{source} {what}; give a folder of Minari (data/metadata.json) or LeRobot (meta/info.json), a name of "
            "Minari's such as D4RL/door/human-v2, a replay buffer's *.pkl, or a run's folder"
        )
    try:
        import minari
        from minari.storage.datasets_root_dir import get_dataset_path
    except ImportError:
        raise ImportError(f"{source} is read with minari; pip install 'lodestar-rl[minari]'") from None
    data = data or get_dataset_path(str(source)) / "data"
    if not data.is_dir():
        raise FileNotFoundError(f"Minari has no {source} on this machine; fetch it with minari download {source}")
    if not {"observation_space", "action_space"} <= set(read_json(data / METADATA)):
        raise ValueError(f"{source} does not say its spaces, for which Minari would run its environment's code")
    with _sentence(source):
        return minari.MinariDataset(data)


def from_minari(dataset: Any) -> Dataset:
    """A `minari.MinariDataset`, with the environment that it names."""
    spec, env, options = dataset.env_spec, "", {}
    if spec is not None:
        env, options = spec.id, _options(spec)
    about = {"dataset": dataset.spec.dataset_id}
    episodes = functools.partial(_episodes, dataset)
    return Dataset(episodes, dataset.observation_space, dataset.action_space, env, options, about)


def _episodes(dataset: Any) -> Iterator[StoredEpisode]:
    with _sentence(dataset.spec.dataset_id):
        for one in dataset.iterate_episodes():
            yield StoredEpisode(one.observations, one.actions, one.rewards, one.terminations, one.truncations)


@contextmanager
def _sentence(source: Any) -> Iterator[None]:
    """What Minari raises for files that are torn, or of another version, as a ValueError."""
    try:
        yield
    except (OSError, LookupError, TypeError, AssertionError) as error:
        words = " ".join(str(error).split())
        raise ValueError(f"{source} cannot be read ({type(error).__name__}: {words}); fetch it again") from None


def _options(spec: EnvSpec) -> dict[str, Any]:
    """What it is made with otherwise than it is registered, as far as that is plain data."""
    known = registry.get(spec.id)
    usual = dict(known.kwargs) if known is not None else {}
    given = {key: value for key, value in spec.kwargs.items() if usual.get(key) != value and key != "render_mode"}
    if spec.max_episode_steps is not None and (known is None or spec.max_episode_steps != known.max_episode_steps):
        given["max_episode_steps"] = spec.max_episode_steps
    return given
