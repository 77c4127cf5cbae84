"""What others recorded, and what a run has in its replay, as transitions for a recording: `runners.record from=`."""

from __future__ import annotations

import copy
import pickle
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.run.config import UsageError
from runners.run.trust import require, saved_keys

if TYPE_CHECKING:
    from envs.transitions import Transitions


def imported(
    source: str, env_id: str, options: dict[str, Any], *, most: int | None, frame_size: int, camera: str, trust: bool
) -> tuple[Transitions, dict[str, Any]]:
    """The transitions in `source`, the first `most` or all, and a recording's metadata.

    They are compared with the environment `env_id`, made with `options`, or with the one that a data set names.

    Raises:
        UsageError: if `source` is to be trusted first, or holds no transitions.
        ValueError, FileNotFoundError, ImportError: as `envs.datasets.read`.
    """
    from envs.datasets import Dataset, read
    from envs.datasets.dataset import fitted
    from envs.make import make

    path, named = Path(source), env_id
    env: Any = None
    dataset: Dataset | None = None
    theirs: dict[str, Any] = {}
    notes: list[str] = []
    if (path / "config.yaml").is_file():
        batch, named, theirs = _replay(path, trust)
    elif path.suffix == ".pkl":
        batch = _unpickled(path, trust)
    else:
        dataset = read(source, frame_size, camera)
        named, theirs, notes = dataset.env, dataset.env_options, [*dataset.notes]
    if dataset is None and frame_size:
        raise UsageError(f"frames={frame_size} cannot be made of a replay, which has what was kept; leave it out")
    if env_id:
        named, theirs = env_id, {}
        env = make(env_id, **options)
    elif named and dataset is not None:
        require(trust, f"from={source}", saved_keys({"env": named, "env_options": theirs}))
        try:
            env = make(named, **{**theirs, **options})
        except Exception as error:  # whatever the code of an environment raises that need not be here
            words = " ".join(str(error).split())
            notes.append(f"{named}, which it names, cannot be made here ({words}), so nothing was compared with it")
    with nullcontext() if env is None else closing(env):
        if dataset is not None:
            batch = dataset.transitions(env, most)
        elif env is not None:
            batch = fitted(batch, env)
    about = {"env": named, "env_options": {**theirs, **options}, "from": source, "signals": []}
    return batch[:most], {**about, **(dataset.about if dataset is not None else {}), "notes": notes}


def _unpickled(path: Path, trust: bool) -> Transitions:
    """What `model.save_replay_buffer` of Stable-Baselines3 wrote."""
    from envs.datasets import from_sb3

    if not trust:
        raise UsageError(
            f"from={path} is a pickle, which runs whatever code is in it; add trust=true if it is yours, or from a "
            "source you trust, or hand the buffer over in Python: envs.datasets.from_sb3(model.replay_buffer)"
        )
    from stable_baselines3.common.save_util import load_from_pkl

    try:
        buffer = load_from_pkl(path)
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError) as error:
        raise UsageError(f"from={path} cannot be read ({type(error).__name__}: {error})") from None
    if not hasattr(buffer, "observations") or not hasattr(buffer, "next_observations"):
        raise UsageError(f"from={path} holds a {type(buffer).__name__}, not a replay buffer of Stable-Baselines3")
    return from_sb3(buffer)


def _replay(run: Path, trust: bool) -> tuple[Transitions, str, dict[str, Any]]:
    """What the replay holds at a run's newest checkpoint, with its environment."""
    from envs.datasets import from_sb3
    from runners.run.build import build, config_of, load_checkpoint

    config = copy.copy(config_of(run, trust))
    state, _ = load_checkpoint(run)
    if "replay" not in state["agent"]:
        raise UsageError(
            f"from={run} is a run of agent={config.agent_name}, which keeps no replay; record what its policy does, "
            f"with policy={run}"
        )
    config.backend, config.device = "gym", "cpu"
    parts = build(config)
    model: Any = parts.model
    with closing(parts.venv):
        parts.mix.load_state_dict(state["mix"])
        if hasattr(model, "replay"):
            replay = model.replay
            replay.load_state_dict(state["agent"]["replay"])
            if replay.encoding.images and not replay.images.follows:
                raise UsageError(f"from={run} keeps images without the last ones of episodes; give policy={run}")
            rows = replay.sampler.in_order()
            by_environment = (rows % replay.n_envs).argsort(stable=True)
            batch = replay.transitions(rows[by_environment]).replace(extras={})
        else:
            from agents.sb3.agent import load_buffer

            load_buffer(model.replay_buffer, state["agent"]["replay"])
            batch = from_sb3(model.replay_buffer)
    return batch, config.env, {"max_episode_steps": config.max_episode_steps, **config.env_options}
