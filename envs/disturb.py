"""Disturbances that separate methods, for any environment: sticky actions, a noisy television, and late rewards.

Source: Machado, Bellemare, Talvitie, Veness, Hausknecht, Bowling 2018, "Revisiting the Arcade Learning Environment"
    (arXiv 1709.06009, section 5): with probability p the environment repeats the action before instead of the one
    given, so that no memorised sequence of actions works. The first action of an episode is never replaced.
    Gymnasium's own `StickyAction` does exactly that and is what `disturb` uses.
    Burda, Edwards, Pathak, Storkey, Darrell, Efros 2018, "Large-Scale Study of Curiosity-Driven Learning" (arXiv
    1808.04355, section 5): a part of the observation is noise, which a curious agent may watch for ever.
    Jarrett et al. 2023, "Curiosity in Hindsight" (arXiv 2211.10515): noise that depends on the action or does not.
    Ren et al. 2022, "Learning Long-Term Reward Redistribution via Randomized Return Decomposition" (arXiv 2111.13485):
    an episode's reward comes in one sum at its end (`EpisodicReward`).

Differences: the sources' televisions show pictures; ours shows uniform noise, in every kind of observation.

The first two draw from the environment's own `np_random`, so a seed fixes them and the `Journal` replays them.
Frames and captions in `info` are of the environment without the television.

When it fails: `StickyAction` keeps a reference to the action it is given; outside of `make`, whose `Journal` passes
copies on, do not overwrite an array that was passed to `step`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import StickyAction

from envs.observations import Recorded, is_channels_last
from envs.types import EnvReset, EnvStep

MODES = ("always", "on_demand")


def disturb(
    env: gym.Env, *, sticky: float | None = None, noisy_tv: str | None = None, episodic_reward: bool = False
) -> gym.Env:
    """Wrap an environment into these disturbances; the television is outside, its button never sticks.

    Args:
        env: with adapted observations, if there is a television.
        sticky: probability in [0, 1) that the previous action is repeated, usually 0.25.
        noisy_tv: mode of a `NoisyTV`.
        episodic_reward: whether there is an `EpisodicReward`.

    Raises:
        ValueError: if a value is out of range, or the environment's spaces do not suit the television.
    """
    if sticky is not None:
        if not 0 <= sticky < 1:
            raise ValueError(f"sticky={sticky} is out of range; give a probability of 0 or more and less than 1")
        env = StickyAction(env, sticky)
    env = env if noisy_tv is None else NoisyTV(env, mode=noisy_tv)
    return EpisodicReward(env) if episodic_reward else env


class NoisyTV(Recorded):
    """A part of the observation is unpredictable noise that is independent of the task.

        flat float Box (D,)    becomes (D + size,): `size` numbers, uniform in [0, 1), are appended
        uint8 image            the `size` x `size` pixels in the lower right corner are replaced, all channels
        Dict                   gets an entry "tv": float32 (size,), uniform in [0, 1)

    With mode "always" every observation has fresh noise. With "on_demand" only the observation after the action that
    watches has; all others, the first included, show zeros.

    Watching never helps and never costs more than a step: without `action`, a Discrete space gets one further action,
    the last, which has the effect of the environment's first action and switches the television on. So every state can
    still be reached, the best return stays as it was, and only an agent that is drawn to noise prefers the new action.
    With `action`, that existing action watches; give one that does little.

    Raises:
        ValueError: if an argument is out of range or the spaces do not suit.
    """

    def __init__(self, env: gym.Env, *, mode: str = "always", action: int | None = None, size: int = 16) -> None:
        super().__init__(env, mode=mode, action=action, size=size)
        if mode not in MODES:
            raise ValueError(f'noisy_tv={mode!r} is unknown; give "always" or "on_demand"')
        if size < 1:
            raise ValueError(f"size={size} is too small for a television; give at least 1")
        self.observation_space, self.screen = _furnish(env.observation_space, size)
        corner = (slice(-size, None), slice(-size, None))
        self._corner = corner if is_channels_last(env.observation_space) else (slice(None), *corner)
        self._inner = env.unwrapped  # found once: it draws at every step
        self._always = mode == "always"
        self._watch, self._extra = self._button(action)

    def _button(self, action: int | None) -> tuple[int | None, bool]:
        """The action that watches, and whether it is a new one."""
        if self._always:
            if action is not None:
                raise ValueError(f'action={action} is for mode "on_demand", not for "always"; leave it out')
            return None, False
        space = self.env.action_space
        if not isinstance(space, spaces.Discrete):
            raise ValueError(f'mode "on_demand" needs Discrete actions, not {space}; use "always"')
        first, n = int(space.start), int(space.n)
        if action is None:
            self.action_space = spaces.Discrete(n + 1, start=first)
            return first + n, True
        if not first <= action < first + n:
            raise ValueError(f"action={action} is out of range; give one of {first} to {first + n - 1}, or None")
        return action, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        obs, info = self.env.reset(seed=seed, options=options)
        self._show(self._always)
        return self.observation(obs), info

    def step(self, action: Any) -> EnvStep:
        watching = self._always or int(action) == self._watch
        if self._extra and watching:
            action = self.env.action_space.start  # type: ignore[attr-defined]
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._show(watching)
        return self.observation(obs), reward, terminated, truncated, info

    def _show(self, noise: bool) -> None:
        if not noise:
            self.screen.fill(0)
        elif self.screen.dtype == np.uint8:
            self.screen[...] = self._inner.np_random.integers(256, size=self.screen.shape, dtype=np.uint8)
        else:
            self._inner.np_random.random(out=self.screen, dtype=self.screen.dtype)

    def observation(self, obs: Any) -> Any:
        """An observation of the wrapped environment with what the screen shows now."""
        if isinstance(obs, dict):
            return {**obs, "tv": self.screen.copy()}
        if self.screen.ndim == 1:
            return np.concatenate([obs, self.screen])
        obs = obs.copy()
        obs[self._corner] = self.screen
        return obs


class EpisodicReward(Recorded):
    """Returns the sum of an episode's rewards at its last step, and 0 before; what `make` counts stays as it was.

    An episode that a wrapper further out truncates gets no reward: put this around that one.
    """

    _pending = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        self._pending = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._pending += float(reward)
        return obs, self._pending if terminated or truncated else 0.0, terminated, truncated, info


def _furnish(space: spaces.Space, size: int) -> tuple[spaces.Space, np.ndarray]:
    """The space with a television in it, and the screen."""
    if isinstance(space, spaces.Dict) and "tv" not in space.spaces:
        tv = spaces.Box(0.0, 1.0, (size,), np.float32)
        return spaces.Dict({**space.spaces, "tv": tv}), np.zeros(size, np.float32)
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.dtype in (np.float32, np.float64):
        dtype: Any = space.dtype
        low, high = (np.append(edge, np.full(size, end, dtype)) for edge, end in ((space.low, 0), (space.high, 1)))
        return spaces.Box(low, high, dtype=dtype), np.zeros(size, dtype)
    if isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
        last = is_channels_last(space)
        height, width = space.shape[:2] if last else space.shape[1:]
        if size > min(height, width):
            raise ValueError(f"size={size} does not fit into pictures of {height} x {width}; give {min(height, width)}")
        return space, np.zeros((size, size, space.shape[2]) if last else (space.shape[0], size, size), np.uint8)
    raise ValueError(f"a television does not suit {space}; it needs flat float, uint8 image or Dict observations")
