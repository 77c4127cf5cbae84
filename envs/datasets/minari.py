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
MINARI_NAME = re.compile(r"[\w-]+(/[\w-]+)*-v\d+")


def find(source: str | Path) -> Any:
    """The `minari.MinariDataset` in a folder, or of a name on this machine; raises as `envs.datasets.read`."""
    folder = Path(source)
    data = next((path for path in (folder, folder / "data") if (path / METADATA).is_file()), None)
    if data is None and (folder.exists() or not MINARI_NAME.fullmatch(str(source))):
        _refuse_source(folder, source)
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
    with _one_sentence(source):
        return minari.MinariDataset(data)


def _refuse_source(folder: Path, source: str | Path) -> None:
    error: type[Exception] = ValueError
    if folder.is_dir():
        problem = "holds no data set"
    elif folder.exists():
        problem = "is no data set"
    else:
        problem = "does not exist"
        error = FileNotFoundError
    raise error(
        f"{source} {problem}; give a folder of Minari (data/metadata.json) or LeRobot (meta/info.json), a name of "
        "Minari's such as D4RL/door/human-v2, a replay buffer's *.pkl, or a run's folder"
    )


def from_minari(dataset: Any) -> Dataset:
    """A `minari.MinariDataset`, with the environment that it names."""
    spec = dataset.env_spec
    return Dataset(
        functools.partial(_episodes, dataset),
        dataset.observation_space,
        dataset.action_space,
        env="" if spec is None else spec.id,
        env_options={} if spec is None else _options(spec),
        about={"dataset": dataset.spec.dataset_id},
    )


def _episodes(dataset: Any) -> Iterator[StoredEpisode]:
    with _one_sentence(dataset.spec.dataset_id):
        for episode in dataset.iterate_episodes():
            yield StoredEpisode(
                episode.observations,
                episode.actions,
                episode.rewards,
                episode.terminations,
                episode.truncations,
            )


@contextmanager
def _one_sentence(source: Any) -> Iterator[None]:
    """What Minari raises for files that are torn, or of another version, as a ValueError."""
    try:
        yield
    except (OSError, LookupError, TypeError, AssertionError) as error:
        words = " ".join(str(error).split())
        raise ValueError(f"{source} cannot be read ({type(error).__name__}: {words}); fetch it again") from None


def _options(spec: EnvSpec) -> dict[str, Any]:
    """What it is made with otherwise than it is registered, as far as that is plain data."""
    registered = registry.get(spec.id)
    defaults = {} if registered is None else registered.kwargs
    options = {}
    for key, value in spec.kwargs.items():
        if key != "render_mode" and defaults.get(key) != value:
            options[key] = value
    limit = spec.max_episode_steps
    if limit is not None and (registered is None or limit != registered.max_episode_steps):
        options["max_episode_steps"] = limit
    return options
