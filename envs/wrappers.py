"""The wrappers that `make` puts around environments: episode statistics, a journal, an observer, and disturbances.

Disturbances separate methods: sticky actions, a noisy television, late rewards, and other physics (`envs.physics`).

Sources: sticky actions, Machado et al. 2018 (arXiv 1709.06009, section 5), by Gymnasium's `StickyAction`; the noisy
television, Burda et al. 2018 (arXiv 1808.04355, section 5), and noise that depends on the action, Jarrett et al. 2023
(arXiv 2211.10515); rewards in one sum at the end, Ren et al. 2022 (arXiv 2111.13485).

Differences: the sources' televisions show pictures; ours shows uniform noise, in every kind of observation, but not in
the frames and captions of `info`. The first two draw from the environment's `np_random`, and the `Journal` replays
them. Outside of `make`, whose `Journal` copies actions, do not overwrite an array that was passed to `StickyAction`.
"""

import base64
import copy
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers import StickyAction

from envs import masks, render
from envs.family import family_of
from envs.observations import Recorded, is_channels_last, refuse_result, refuse_shape
from envs.physics import RandomPhysics
from envs.types import EnvReset, EnvStep, Info, Notes, Options, StateDict, VectorStep

_IMMUTABLE = (int, np.generic)


class EpisodeStatistics(Recorded):
    """Writes `info["episode"]`, {"r", "l", "t"} as SB3 reads it, and `info["is_success"]` at the last step."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._success = family_of(env.spec).success
        self._start = time.perf_counter()
        self._return = 0.0
        self._length = 0
        # Whether the first reset was searched for action masks.
        self._is_mask_known = False

    def reset(self, **kwargs: Any) -> EnvReset:
        self._return = 0.0
        self._length = 0
        obs, info = self.env.reset(**kwargs)
        if not self._is_mask_known:
            self._is_mask_known = True
            if masks.has_mask(self.env, info):
                masked = masks.ActionMask(self.env)
                self.env = masked
                info = masked.begin(info)
        refuse_shape(self.observation_space, obs)
        return obs, info

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._length == 0:
            # Once an episode, as it costs more than the rest of this function.
            refuse_result(reward, terminated, truncated)
            refuse_shape(self.observation_space, obs)
        try:
            self._return += float(reward)
        except TypeError:
            raise TypeError(f"the environment's reward is {reward!r}; return a number, as in float(reward)") from None
        self._length += 1
        if terminated or truncated:
            self.conclude(info, bool(terminated))
        return obs, reward, terminated, truncated, info

    def conclude(self, info: Info, terminated: bool) -> None:
        """Write the statistics of the episode that ends here, by its own rules or (not `terminated`) by others."""
        elapsed = round(time.perf_counter() - self._start, 6)
        info["episode"] = {"r": self._return, "l": self._length, "t": elapsed}
        success = self._success(self.env, self._return, terminated, info)
        if success is not None:
            info["is_success"] = bool(info.get("is_success", success))


class Journal(Recorded):
    """Records the running episode, so that a fresh copy can be brought to the same state.

    It holds the reset's seed, or the state of `np_random` before it, and the actions since, which `restore` replays.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._origin: StateDict | None = None
        self._actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        rng = None
        if seed is None:
            rng = self.unwrapped.np_random.bit_generator.state
        self._origin = copy.deepcopy({"seed": seed, "rng": rng, "options": options})
        self._actions = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> EnvStep:
        # A copy, as agents may pass a view of a buffer that they overwrite.
        if isinstance(action, np.ndarray):
            action = action.copy()
        elif not isinstance(action, _IMMUTABLE):
            action = copy.deepcopy(action)
        self._actions.append(action)
        return self.env.step(action)

    def snapshot(self) -> StateDict:
        """Everything `restore` needs, ready for JSON if reset options are; a RuntimeError before the first reset."""
        if self._origin is None:
            raise RuntimeError("there is no episode to take a snapshot of; call reset() first")
        return {**copy.deepcopy(self._origin), "actions": _pack(self.action_space, self._actions)}

    def restore(self, state: StateDict) -> EnvReset:
        """Come to the state in which `snapshot` was taken, else a ValueError; returns its observation and info."""
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
        self._actions = actions
        return obs, info


def layers(env: gym.Env, kind: type[gym.Wrapper] = gym.Wrapper) -> list[Any]:
    """The wrappers, of that class, around an environment, the outermost first."""
    wrappers = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, kind):
            wrappers.append(env)
        env = env.env
    return wrappers


def _pack(space: spaces.Space, actions: list[Any]) -> StateDict:
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return {"json": space.to_jsonable(actions)}
    # Raw bytes are exact, and a tenth of the size of printed floats.
    array = np.array(actions)
    data = base64.b64encode(array.tobytes()).decode("ascii")
    return {"shape": list(array.shape), "dtype": array.dtype.str, "data": data}


def _unpack(space: spaces.Space, packed: StateDict) -> list[Any]:
    if "json" in packed:
        return list(space.from_jsonable(packed["json"]))
    array = np.frombuffer(base64.b64decode(packed["data"]), dtype=np.dtype(packed["dtype"]))
    return list(array.reshape(packed["shape"]).copy())


class Observer(Recorded):
    """Writes `info["frame"]`, uint8 (frame_size, frame_size, 3), `info["text"]` and `info["signals"]`."""

    def __init__(self, env: gym.Env, frame_size: int | None = None, text: bool = False, signals: bool = False) -> None:
        super().__init__(env, frame_size=frame_size, text=text, signals=signals)
        self.frame_size = frame_size
        spec: Any = env.spec
        family = family_of(spec)
        self.caption = family.caption if text else None
        self.signals = family.signals(spec) if signals else ()
        self.sense = family.sense
        if signals and not self.signals:
            raise ValueError(f"{render.name_of(env)} has no signals; leave them out, and use a reward that reads none")
        self._memory: Notes = {}
        self._written: Info = {}

    def enabled_modalities(self) -> dict[str, bool]:
        return {
            "frame": self.frame_size is not None,
            "text": self.caption is not None,
            "signals": bool(self.signals),
        }

    def reset(self, **kwargs: Any) -> EnvReset:
        obs, info = self.env.reset(**kwargs)
        self._memory.clear()
        return obs, self._show(info)

    def step(self, action: Any) -> EnvStep:
        *outcome, info = self.env.step(action)
        return *outcome, self._show(info)

    def snapshot(self) -> StateDict:
        return {**self.env.get_wrapper_attr("snapshot")(), "text": self._written.get("text")}

    def restore(self, state: StateDict) -> EnvReset:
        obs, info = self.env.get_wrapper_attr("restore")(state)
        self._memory.clear()
        self._show(info)
        if self.caption is not None and state.get("text") is not None:
            # The event of that step does not follow from the state alone.
            self._write(info, "text", state["text"])
        return obs, info

    def _is_ours(self, info: Info, name: str) -> bool:
        return name not in info or info[name] is self._written.get(name)

    def _write(self, info: Info, name: str, value: Any) -> None:
        self._written[name] = value
        info[name] = value

    def _show(self, info: Info) -> Info:
        if self.frame_size is not None and self._is_ours(info, "frame"):
            self._write(info, "frame", render.frame(self.env, self.frame_size))
        if self.caption is not None and self._is_ours(info, "text"):
            self._write(info, "text", self.caption(self.env, self._memory))
        if self.signals and self._is_ours(info, "signals"):
            self._write(info, "signals", self.sense(self.env))
        return info


class VectorObserver(VectorWrapper, RecordConstructorArgs):
    """Writes `infos["frame"]`, uint8 (N, frame_size, frame_size, 3), of the states after a step."""

    def __init__(self, env: VectorEnv, frame_size: int) -> None:
        RecordConstructorArgs.__init__(self, frame_size=frame_size)
        super().__init__(env)
        self.frame_size = frame_size
        self._everywhere = np.ones(env.num_envs, bool)

    def reset(self, **kwargs: Any) -> EnvReset:
        obs, infos = self.env.reset(**kwargs)
        return obs, self._show(infos)

    def step(self, actions: Any) -> VectorStep:
        *outcome, infos = self.env.step(actions)
        return *outcome, self._show(infos)

    def _show(self, infos: Info) -> Info:
        if "frame" not in infos:
            pictures: Any = self.env.render()
            frames = [render.resize(np.asarray(picture), self.frame_size) for picture in pictures]
            infos["frame"] = np.stack(frames)
            infos["_frame"] = self._everywhere
        return infos


def disturb(
    env: gym.Env,
    *,
    physics: float | None = None,
    sticky: float | None = None,
    noisy_tv: str | None = None,
    episodic_reward: bool = False,
) -> gym.Env:
    """Wrap an environment with adapted observations into these disturbances; `noisy_tv`, a mode, is outermost."""
    if physics is not None:
        env = RandomPhysics(env, physics=physics)
    if sticky is not None:
        if not 0 <= sticky < 1:
            raise ValueError(f"sticky={sticky} is out of range; give a probability of 0 or more and less than 1")
        env = StickyAction(env, sticky)
    if noisy_tv is not None:
        env = NoisyTV(env, mode=noisy_tv)
    if episodic_reward:
        env = EpisodicReward(env)
    return env


class NoisyTV(Recorded):
    """A part of the observation is unpredictable noise that is independent of the task.

        flat float Box (D,)    becomes (D + size,): `size` numbers, uniform in [0, 1), are appended
        uint8 image            the `size` x `size` pixels in the lower right corner are replaced, all channels
        Dict                   gets an entry "tv": float32 (size,), uniform in [0, 1)

    With mode "always" every observation has fresh noise; with "on_demand" only that after the watching action, the last
    one of a Discrete space with one more, which has the effect of the first; all others show zeros.
    """

    def __init__(self, env: gym.Env, *, mode: str = "always", size: int = 16) -> None:
        super().__init__(env, mode=mode, size=size)
        if mode not in ("always", "on_demand"):
            raise ValueError(f'noisy_tv={mode!r} is unknown; give "always" or "on_demand"')
        if size < 1:
            raise ValueError(f"size={size} is too small for a television; give at least 1")
        edge = slice(-size, None)
        self._corner: tuple[slice, ...] = (slice(None), edge, edge)
        if is_channels_last(env.observation_space):
            self._corner = (edge, edge)
        self.observation_space, self.screen = _add_screen(env.observation_space, size, self._corner)
        # Looked up once, as it draws at every step.
        self._inner = env.unwrapped
        self._always = mode == "always"
        if not self._always:
            space = env.action_space
            if not isinstance(space, spaces.Discrete):
                raise ValueError(f'mode "on_demand" needs Discrete actions, not {space}; use "always"')
            self._first = int(space.start)
            self._watch = int(space.start + space.n)
            self.action_space = spaces.Discrete(space.n + 1, start=space.start)

    def reset(self, **kwargs: Any) -> EnvReset:
        obs, info = self.env.reset(**kwargs)
        self._show(self._always)
        return self.observation(obs), info

    def step(self, action: Any) -> EnvStep:
        watching = self._always or int(action) == self._watch
        if watching and not self._always:
            action = self._first
        obs, *outcome = self.env.step(action)
        self._show(watching)
        return self.observation(obs), *outcome

    def _show(self, noise: bool) -> None:
        if not noise:
            self.screen.fill(0)
        elif self.screen.dtype == np.uint8:
            self.screen[...] = self._inner.np_random.integers(256, size=self.screen.shape, dtype=np.uint8)
        else:
            self._inner.np_random.random(out=self.screen, dtype=self.screen.dtype)

    def observation(self, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {**obs, "tv": self.screen.copy()}
        if self.screen.ndim == 1:
            return np.concatenate([obs, self.screen])
        obs = obs.copy()
        obs[self._corner] = self.screen
        return obs


class EpisodicReward(Recorded):
    """Returns the sum of an episode's rewards at its last step, and 0 before; put it around what truncates episodes."""

    _pending = 0.0

    def reset(self, **kwargs: Any) -> EnvReset:
        self._pending = 0.0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._pending += float(reward)
        reward = self._pending if terminated or truncated else 0.0
        return obs, reward, terminated, truncated, info


def _add_screen(space: spaces.Space, size: int, corner: tuple[slice, ...]) -> tuple[spaces.Space, np.ndarray]:
    if isinstance(space, spaces.Dict) and "tv" not in space.spaces:
        tv = spaces.Box(0.0, 1.0, (size,), np.float32)
        return spaces.Dict({**space.spaces, "tv": tv}), np.zeros(size, np.float32)
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype in (np.float32, np.float64):
        dtype: Any = space.dtype
        screen = np.zeros(size, dtype)
        low = np.append(space.low, screen)
        high = np.append(space.high, screen + 1)
        return spaces.Box(low, high, dtype=dtype), screen
    if isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
        height, width = space.shape[:2] if is_channels_last(space) else space.shape[1:]
        side = min(height, width)
        if size > side:
            raise ValueError(f"size={size} does not fit into pictures of {height} x {width}; give {side}")
        return space, np.zeros_like(space.low[corner])
    raise ValueError(f"a television does not suit {space}; it needs flat float, uint8 image or Dict observations")
