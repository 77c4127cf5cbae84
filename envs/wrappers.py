"""The wrappers that `make` puts around every environment: episode statistics, a journal, and an observer."""

from __future__ import annotations

import base64
import copy
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs import render
from envs.family import family_of
from envs.observations import Recorded
from envs.types import EnvReset, EnvStep

_NUMBERS = (int, np.generic)  # immutable


class EpisodeStatistics(Recorded):
    """Writes the episode's statistics into `info` at its last step, in the form Stable-Baselines3 reads.

    info["episode"] = {"r": return of the task's own reward, "l": steps, "t": seconds since construction}, and
    info["is_success"] where the family defines it. It counts inside the environment because Gymnasium's vector wrappers
    report wrong lengths in two of the three auto-reset modes.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._success = family_of(env.spec).success
        self._start = time.perf_counter()
        self._return, self._length = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        self._return, self._length = 0.0, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        self._length += 1
        if terminated or truncated:
            elapsed = round(time.perf_counter() - self._start, 6)
            info["episode"] = {"r": self._return, "l": self._length, "t": elapsed}
            success = self._success(self.env, self._return, bool(terminated), info)
            if success is not None:
                info["is_success"] = bool(info.get("is_success", success))
        return obs, reward, terminated, truncated, info


class Journal(Recorded):
    """Records the running episode, so that a fresh copy can be brought to the same state.

    Works for every environment whose randomness comes from Gymnasium's `np_random`: the journal holds the seed
    given to `reset`, or the state of `np_random` before it, and the actions since. `restore` resets and replays
    them, which costs as many steps as the episode is old; afterwards this episode and all later ones continue as
    they would have.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._origin: dict[str, Any] | None = None
        self._actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        rng = None if seed is not None else copy.deepcopy(self.unwrapped.np_random.bit_generator.state)
        self._origin = {"seed": seed, "rng": rng, "options": copy.deepcopy(options)}
        self._actions = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> EnvStep:
        if not isinstance(action, _NUMBERS):  # a copy: agents may pass a view of a buffer they overwrite
            action = action.copy() if isinstance(action, np.ndarray) else copy.deepcopy(action)
        self._actions.append(action)
        return self.env.step(action)

    def snapshot(self) -> dict[str, Any]:
        """Everything `restore` needs, ready for JSON as long as reset options are.

        Raises:
            RuntimeError: before the first reset.
        """
        if self._origin is None:
            raise RuntimeError("there is no episode to take a snapshot of; call reset() first")
        return {**copy.deepcopy(self._origin), "actions": _pack(self.action_space, self._actions)}

    def restore(self, state: dict[str, Any]) -> EnvReset:
        """Come to the state in which `snapshot` was taken; returns that state's observation and info.

        Raises:
            ValueError: if the episode ends earlier than the one recorded, which means another environment or version.
        """
        actions = _unpack(self.action_space, state["actions"])
        if state["seed"] is None:
            self.unwrapped.np_random.bit_generator.state = copy.deepcopy(state["rng"])
        obs, info = self.env.reset(seed=state["seed"], options=copy.deepcopy(state["options"]))
        for number, action in enumerate(actions, start=1):
            obs, _, terminated, truncated, info = self.env.step(action)
            if (terminated or truncated) and number < len(actions):
                raise ValueError(
                    f"the recorded episode has {len(actions)} steps but ended after {number} when played again; "
                    "it was recorded in another environment, or in another version of it"
                )
        self._origin = {key: copy.deepcopy(state[key]) for key in ("seed", "rng", "options")}
        self._actions = list(actions)
        return obs, info


def _pack(space: spaces.Space, actions: list[Any]) -> dict[str, Any]:
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return {"json": space.to_jsonable(actions)}
    array = np.array(actions)  # raw bytes: exact, and a tenth of the size of printed floats
    data = base64.b64encode(array.tobytes()).decode("ascii")
    return {"shape": list(array.shape), "dtype": array.dtype.str, "data": data}


def _unpack(space: spaces.Space, packed: dict[str, Any]) -> list[Any]:
    if "json" in packed:
        return list(space.from_jsonable(packed["json"]))
    raw = base64.b64decode(packed["data"])
    return list(np.frombuffer(raw, dtype=np.dtype(packed["dtype"])).reshape(packed["shape"]).copy())


class Observer(Recorded):
    """Writes `info["frame"]`, `info["text"]`, `info["signals"]` about the observation just returned.

    Frames are uint8 (frame_size, frame_size, 3), of an environment that renders arrays; see `envs.make.make`.

    Raises:
        ValueError: for signals of an environment whose family has none.
    """

    def __init__(self, env: gym.Env, frame_size: int | None = None, text: bool = False, signals: bool = False) -> None:
        super().__init__(env, frame_size=frame_size, text=text, signals=signals)
        self.frame_size = frame_size
        family = family_of(env.spec)
        self.caption = family.caption if text else None
        self.signals = family.signals(env.spec) if signals and env.spec is not None else ()
        self.sense = family.sense
        if signals and not self.signals:
            name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
            raise ValueError(f"{name} has no signals; leave signals out, and use a reward that reads none")
        self._memory: dict[str, Any] = {}
        self._text: str | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        obs, info = self.env.reset(seed=seed, options=options)
        self._memory.clear()
        return obs, self._show(info)

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._show(info)

    def snapshot(self) -> dict[str, Any]:
        """The journal's snapshot, and the last text."""
        return {**self.env.get_wrapper_attr("snapshot")(), "text": self._text}

    def restore(self, state: dict[str, Any]) -> EnvReset:
        """As the journal's, with frame and text in `info`."""
        obs, info = self.env.get_wrapper_attr("restore")(state)
        self._memory.clear()
        self._show(info)
        if self.caption is not None and state.get("text") is not None:
            # The event of that step does not follow from the state alone.
            self._text = info["text"] = state["text"]
        return obs, info

    def _show(self, info: dict[str, Any]) -> dict[str, Any]:
        if self.frame_size is not None:
            info["frame"] = render.frame(self.env, self.frame_size)
        if self.caption is not None:
            self._text = info["text"] = self.caption(self.env, self._memory)
        if self.signals:
            info["signals"] = self.sense(self.env)
        return info
