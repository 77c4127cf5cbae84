"""Transitions in a file: what an agent, a script or a person did, kept for learning without the environment.

    batch = record(make("Pendulum-v1"), act, steps=20_000, seed=0)      policy -> transitions
    save(path, batch, {"env": "Pendulum-v1"});  batch, meta = load(path)
    for rows in episodes(batch): ...                                     each episode is a slice

The file is safetensors: one array for each field of `Transitions` (`obs/KEY` for a dict, `extras/NAME`), texts as codes
into a JSON list of the different ones. Nothing in it is ever executed. Fields of `obs` repeat those of the `next_obs`
before, so they are stored for the first step of an episode only.
"""

import functools
import itertools
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from envs.masks import sample
from envs.transitions import Rollout, Transitions, map_obs
from envs.types import MASK, MODALITIES, Array
from lodestar.files import regular, replacing, save_arrays

Act = Callable[..., Array]  # (observations (N, ...), bool (N,): an episode begins) -> actions (N, ...)
FORMAT = "lodestar recording 1"
TEXTS = ("text", "obs_text")
SHIPPED = Path(str(files(__package__) / "recordings"))


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
    same = AutoresetMode.SAME_STEP
    envs: Any = env if isinstance(env, VectorEnv) else SyncVectorEnv([lambda: env], autoreset_mode=same)
    envs.action_space.seed(seed)
    obs, infos = envs.reset(seed=seed)
    modality_names = frozenset(MODALITIES) & set(infos)
    if MASK in modality_names:
        envs.single_action_space.seed(seed)
    rollout = Rollout(-(-steps // envs.num_envs), envs, modality_names)
    rollout.begin(obs, infos)
    begins = np.ones(envs.num_envs, bool)
    for t in range(rollout.length):
        masks = rollout.modalities[MASK][t] if MASK in modality_names else None
        if act is not None:
            rollout.action[t] = act(map_obs(np.array, obs), begins, *([] if masks is None else [masks]))
        elif masks is None:
            rollout.action[t] = envs.action_space.sample()
        else:
            rollout.action[t] = [sample(envs.single_action_space, mask) for mask in masks]
        step = envs.step(rollout.action[t])
        rollout.write(t, slice(0, envs.num_envs), *step)
        obs = step[0]
        begins = rollout.restarted[t]
    return by_environment(rollout.transitions(frozenset({"next_obs", *(f"obs_{name}" for name in modality_names)})))


def by_environment(batch: Transitions) -> Transitions:
    """A rollout (T, N) -> its valid transitions, flat, one environment after the other, so that episodes stay whole."""
    count = batch.shape[0] * batch.shape[1]
    return batch.map(lambda x: x.swapaxes(0, 1).reshape(count, *x.shape[2:]))[batch.valid.T.ravel()]


def episodes(batch: Transitions) -> list[slice]:
    """The rows of each episode of a flat batch in time order; the last may be cut short, the first begun earlier."""
    starts = [*map(int, _starts(batch.step, batch.ended)), batch.shape[0]]
    return [slice(first, last) for first, last in itertools.pairwise(starts)]


def save(path: str | Path, batch: Transitions, meta: dict[str, Any]) -> None:
    """Write a recording, a flat batch (N,) with episodes in time order, atomically; `meta` is what JSON can hold."""
    if len(batch.shape) != 1 or not batch.shape[0]:
        raise ValueError(f"a batch of shape {batch.shape} is no recording; give a flat one (by_environment makes it)")
    arrays: dict[str, np.ndarray] = {}
    for name, value in vars(batch).items():
        _spread(name, value, arrays)
    kinds = list(dict.fromkeys(str(text) for name in TEXTS for text in arrays.get(name, ())))
    codes = {text: code for code, text in enumerate(kinds)}
    for name in TEXTS:
        if name in arrays:
            arrays[name] = np.array([codes[str(text)] for text in arrays[name]], np.int32)
    starts = _starts(arrays["step"], arrays["terminated"] | arrays["truncated"])
    continues = np.setdiff1d(np.arange(batch.shape[0]), starts)
    for name in list(arrays):
        before = arrays.get(_before(name))
        if before is not None and np.array_equal(before[continues], arrays[name][continues - 1]):
            arrays[_before(name)] = before[starts]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    about = {"format": FORMAT, "meta": json.dumps(meta), "texts": json.dumps(kinds)}
    ordered = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    with replacing(path) as temporary:
        save_arrays(temporary, ordered, about)


def load(path: str | Path) -> tuple[Transitions, dict[str, Any]]:
    """Read a recording, a file or the name of one that ships: a flat batch (N,), and its `meta`."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).exists():
        ours = {file.stem: file for file in sorted(SHIPPED.glob("*.safetensors"))}
        if str(path) not in ours:
            raise FileNotFoundError(f"{str(path)!r} is no file, nor a recording that ships ({', '.join(ours)})")
        path = ours[str(path)]
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder; give the recordings in it, as in {path}/random.safetensors")
    try:
        with safe_open(regular(Path(path).resolve()), "np") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is no recording ({error}); give a file written by envs.recording.save") from None
    if about.get("format") != FORMAT:
        raise ValueError(f"{path} is no recording of this format ({about.get('format')!r}); {FORMAT!r} is read")
    starts = _starts(arrays["step"], arrays["terminated"] | arrays["truncated"])
    for name in list(arrays):
        before = arrays.get(_before(name))
        if before is not None and len(before) < len(arrays[name]):
            whole = np.empty_like(arrays[name])
            whole[1:] = arrays[name][:-1]
            whole[starts] = before
            arrays[_before(name)] = whole
    kinds = np.array(json.loads(about["texts"]), object)
    arrays.update({name: kinds[arrays[name]] for name in TEXTS if name in arrays})
    tree: dict[str, Any] = {"extras": {}}
    for name, value in arrays.items():
        *above, last = name.split("/")
        functools.reduce(lambda place, key: place.setdefault(key, {}), above, tree)[last] = value
    return Transitions(**tree), json.loads(about["meta"])


def _starts(step: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """The rows at which an episode begins, or the rest of one that was cut."""
    begins = np.ones(len(step), bool)
    begins[1:] = (step[1:] != step[:-1] + 1) | ended[:-1]
    return np.flatnonzero(begins)


def _before(name: str) -> str:
    """The field about `obs` that corresponds to a field about `next_obs`."""
    field, slash, rest = name.partition("/")
    return ("obs" if field == "next_obs" else f"obs_{field}") + slash + rest


def _spread(name: str, value: Any, arrays: dict[str, np.ndarray]) -> None:
    """Write a field's arrays into a flat dict, keys of nested ones joined by slashes."""
    if isinstance(value, dict):
        for key, part in value.items():
            if "/" in str(key):
                raise ValueError(f"the key {key!r} of {name} has a slash, which separates keys here; rename it")
            _spread(f"{name}/{key}", part, arrays)
    elif value is not None:
        arrays[name] = np.asarray(value)
