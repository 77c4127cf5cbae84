"""Transitions in a file: what an agent, a script or a person did, kept for learning without the environment.

    batch = record(make("Pendulum-v1"), act, steps=20_000, seed=0)      policy -> transitions
    save(path, batch, {"env": "Pendulum-v1"});  batch, meta = load(path)
    for rows in episodes(batch): ...                                     each episode is a slice

The file is safetensors: one array for each field of `Transitions` (`obs/KEY` for a dict, `extras/NAME`), texts as codes
into a JSON list of the different ones. Nothing in it is ever executed. Fields of `obs` repeat those of the `next_obs`
before, so they are stored for the first step of an episode only.
"""

import itertools
import json
import math
from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from envs.masks import sample
from envs.transitions import Rollout, Transitions, map_obs
from envs.types import MASK, MODALITIES, Array, Info
from lodestar.files import make_parent, regular, replacing, save_arrays
from lodestar.mappings import map_values

# (observations (N, ...), bool (N,): an episode begins) -> actions (N, ...).
Act = Callable[..., Array]
RECORDING_FORMAT = "lodestar recording 1"
TEXTS = ("text", "obs_text")
SHIPPED_RECORDINGS = Path(str(files(__package__) / "recordings"))


def record(env: gym.Env | VectorEnv, act: Act | None, steps: int, seed: int = 0) -> Transitions:
    """Run a policy and keep its transitions, with the frames, texts and signals of the environment, which stays open.

    Args:
        env: one environment, or a vector that resets its environments itself.
        act: the policy, of batches also where there is one environment; None for random actions. Where the environment
            masks its actions, the masks (N, n) are its third argument.
        steps: transitions, summed over environments and rounded up to a whole number for each, at least 1.
        seed: of the first reset, and of random actions.

    Returns a flat batch (N,): the episodes of the first environment in order, then those of the next.
    """
    if steps < 1:
        raise ValueError(f"steps={steps} record nothing; give at least 1")
    envs: Any = env
    if not isinstance(env, VectorEnv):
        envs = SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)
    envs.action_space.seed(seed)
    obs, infos = envs.reset(seed=seed)
    modality_names = frozenset(MODALITIES) & set(infos)
    has_masks = MASK in modality_names
    if has_masks:
        # Masked actions are drawn for one environment at a time, by the generator of that space.
        envs.single_action_space.seed(seed)
    rollout = Rollout(math.ceil(steps / envs.num_envs), envs, modality_names)
    rollout.begin(obs, infos)
    begins = np.ones(envs.num_envs, bool)
    for t in range(rollout.length):
        masks = [rollout.modalities[MASK][t]] if has_masks else []
        if act is not None:
            rollout.action[t] = act(map_obs(np.array, obs), begins, *masks)
        elif has_masks:
            rollout.action[t] = [sample(envs.single_action_space, mask) for mask in masks[0]]
        else:
            rollout.action[t] = envs.action_space.sample()
        # obs, rewards, terminations, truncations, infos.
        step = envs.step(rollout.action[t])
        rollout.write(t, slice(0, envs.num_envs), *step)
        obs = step[0]
        begins = rollout.restarts[t]
    fields = frozenset({"next_obs", *(f"obs_{name}" for name in modality_names)})
    return by_environment(rollout.transitions(fields))


def by_environment(batch: Transitions) -> Transitions:
    """A rollout (T, N) -> its valid transitions, flat, one environment after the other, so that episodes stay whole."""
    return batch.map(lambda x: x.swapaxes(0, 1)).flatten()[batch.valid.T.ravel()]


def episodes(batch: Transitions) -> list[slice]:
    """The rows of each episode of a flat batch in time order; the last may be cut short, the first begun earlier."""
    starts = _episode_starts(vars(batch)).tolist()
    return [slice(*ends) for ends in itertools.pairwise([*starts, batch.shape[0]])]


def save(path: str | Path, batch: Transitions, meta: Info) -> None:
    """Write a recording, a flat batch (N,) with episodes in time order, atomically; `meta` is what JSON can hold."""
    if len(batch.shape) != 1 or not batch.shape[0]:
        raise ValueError(f"a batch of shape {batch.shape} is no recording; give a flat one (by_environment makes it)")
    arrays: dict[str, np.ndarray] = {}
    for name, value in vars(batch).items():
        _flatten_field(name, value, arrays)

    texts = _encode_texts(arrays)
    _drop_repeated_obs(arrays)

    make_parent(path)
    about = {"format": RECORDING_FORMAT, "meta": json.dumps(meta), "texts": json.dumps(texts)}
    contiguous = map_values(np.ascontiguousarray, arrays)
    # A crash leaves no half of a recording.
    with replacing(path) as temporary:
        save_arrays(temporary, contiguous, about)


def _encode_texts(arrays: dict[str, np.ndarray]) -> list[str]:
    """Replace texts by codes, int32; returns the different texts, in the order of their codes."""
    codes: dict[str, int] = {}
    for name in TEXTS:
        if name in arrays:
            texts = map(str, arrays[name])
            arrays[name] = np.array([codes.setdefault(text, len(codes)) for text in texts], np.int32)
    return list(codes)


def _drop_repeated_obs(arrays: dict[str, np.ndarray]) -> None:
    """Keep only an episode's first row of fields of `obs` that otherwise repeat those of the `next_obs` before."""
    starts = _episode_starts(arrays)
    continues = np.setdiff1d(np.arange(len(arrays["step"])), starts)
    for name in list(arrays):
        before = arrays.get(_obs_name(name))
        if before is not None and np.array_equal(before[continues], arrays[name][continues - 1]):
            arrays[_obs_name(name)] = before[starts]


def _restore_repeated_obs(arrays: dict[str, np.ndarray]) -> None:
    """The reverse of `_drop_repeated_obs`."""
    starts = _episode_starts(arrays)
    for name in list(arrays):
        first_rows = arrays.get(_obs_name(name))
        if first_rows is not None and len(first_rows) < len(arrays[name]):
            before = np.empty_like(arrays[name])
            before[1:] = arrays[name][:-1]
            before[starts] = first_rows
            arrays[_obs_name(name)] = before


def load(path: str | Path) -> tuple[Transitions, Info]:
    """Read a recording, a file or the name of one that ships: a flat batch (N,), and its `meta`."""
    about, arrays = _read_arrays(path)
    _restore_repeated_obs(arrays)
    # The different texts, in the order of their codes.
    texts = np.array(json.loads(about["texts"]), object)
    for name in TEXTS:
        if name in arrays:
            arrays[name] = texts[arrays[name]]
    # "obs/KEY" and "extras/NAME" become entries of nested dicts.
    fields: dict[str, Any] = {"extras": {}}
    for name, array in arrays.items():
        *parents, key = name.split("/")
        branch = fields
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[key] = array
    return Transitions(**fields), json.loads(about["meta"])


def read_meta(path: str | Path) -> Info:
    """The `meta` of a recording, a file or the name of one that ships, without its arrays."""
    about, _ = _read_arrays(path, ())
    return json.loads(about["meta"])


def _read_arrays(
    path: str | Path, names: Collection[str] | None = None
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """What a file, or the recording of that name that ships, says about itself, and its arrays by name.

    Only arrays of these `names`, if any are given.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).exists():
        shipped = {file.stem: file for file in sorted(SHIPPED_RECORDINGS.glob("*.safetensors"))}
        if str(path) not in shipped:
            raise FileNotFoundError(f"{str(path)!r} is no file, nor a recording that ships ({', '.join(shipped)})")
        path = shipped[str(path)]
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder; give the recordings in it, as in {path}/random.safetensors")
    try:
        with safe_open(regular(Path(path).resolve()), "np") as file:
            about = file.metadata() or {}
            wanted = file.keys() if names is None else names
            arrays = {name: file.get_tensor(name) for name in wanted}
    except SafetensorError as error:
        raise ValueError(f"{path} is no recording ({error}); give a file written by envs.recording.save") from None
    if about.get("format") != RECORDING_FORMAT:
        raise ValueError(
            f"{path} is no recording of this format ({about.get('format')!r}); {RECORDING_FORMAT!r} is read"
        )
    return about, arrays


def _episode_starts(fields: Mapping[str, np.ndarray]) -> np.ndarray:
    """The rows at which an episode begins, or the rest of one that was cut."""
    step = fields["step"]
    ended = fields["terminated"] | fields["truncated"]
    begins = np.ones(len(step), bool)
    begins[1:] = (step[1:] != step[:-1] + 1) | ended[:-1]
    return np.flatnonzero(begins)


def _obs_name(name: str) -> str:
    """The field about `obs` that corresponds to a field about `next_obs`."""
    field, slash, key = name.partition("/")
    obs_field = "obs" if field == "next_obs" else f"obs_{field}"
    return obs_field + slash + key


def _flatten_field(name: str, value: Any, arrays: dict[str, np.ndarray]) -> None:
    """Write a field's arrays into a flat dict, keys of nested ones joined by slashes."""
    if isinstance(value, dict):
        for key, part in value.items():
            if "/" in str(key):
                raise ValueError(f"the key {key!r} of {name} has a slash, which separates keys here; rename it")
            _flatten_field(f"{name}/{key}", part, arrays)
    elif value is not None:
        arrays[name] = np.asarray(value)
