"""Action masks: which actions an environment allows, read and checked in one place.

    info["action_mask"]     from `reset` and `step`: bool or 0 and 1 (n,), about the observation returned with it
    env.action_masks()      the same as a method, sb3-contrib's convention; `info` counts where there are both

n is that of a Discrete space; of MultiDiscrete and MultiBinary each number has its own entries, one after the other,
and needs one valid value. `ActionMask` goes around an environment when its first reset offers a mask, one more of
`envs.types.MODALITIES`. A terminal mask may be absent or empty.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.observations import Recorded
from envs.types import MASK, EnvReset, EnvStep, Info, MaskFault

METHOD = "action_masks"


def sizes(space: spaces.Space) -> list[int]:
    """How many values each number of an action has, which a mask has entries for; none for a Box."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.ravel().tolist()
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    return []


def has_mask(env: gym.Env, info: Info) -> bool:
    """Whether an environment masks actions, by the info of a reset."""
    return bool(sizes(env.action_space)) and (MASK in info or env.has_wrapper_attr(METHOD))


def with_method(env: gym.Env, info: Info) -> tuple[gym.Env, Info]:
    """An environment that has just been reset, in an `ActionMask` if it masks actions but has no method to ask."""
    if not has_mask(env, info) or env.has_wrapper_attr(METHOD):
        return env, info
    masked = ActionMask(env)
    return masked, masked.begin(info)


def has_allowed_action(mask: np.ndarray, groups: Sequence[int]) -> Any:
    """Whether masks (..., n), n the sum of `groups`, allow an action, bool (...)."""
    # Each number of an action needs one allowed value among its own entries.
    starts = np.cumsum([0, *groups[:-1]])
    return np.logical_or.reduceat(mask, starts, axis=-1).all(-1)


def check_mask(mask: Any, groups: Sequence[int], place: str) -> np.ndarray:
    """A mask as bool (n,), n the sum of `groups`; a `MaskFault` with `place` in its sentence."""
    n = sum(groups)
    fix = f'give bool ({n},), one entry an action, in info["{MASK}"] of every reset and step, or by {METHOD}()'
    if mask is None:
        raise MaskFault(f"there is no action mask {place}, though earlier there was; {fix}")
    mask = np.asarray(mask)
    if mask.shape != (n,) or mask.dtype.kind not in "biu":
        raise MaskFault(f"the action mask {place} is {mask.dtype} {mask.shape}; {fix}")
    mask = mask != 0
    if not has_allowed_action(mask, groups):
        raise MaskFault(f"the action mask {place} allows no action; allow one, or end the episode with terminated=True")
    return mask


def require_mask(mask: Any, space: spaces.Space, rows: int) -> np.ndarray:
    """The mask given to a policy that was trained with masks, of one observation or of `rows`, as bool (rows, n)."""
    if mask is None:
        raise ValueError(f'this policy was trained with action masks; give one: predict(obs, mask=info["{MASK}"])')
    mask = np.atleast_2d(mask)
    if len(mask) != rows:
        raise ValueError(f"a mask of {len(mask)} rows does not fit {rows} observations; give one row for each")
    groups = sizes(space)
    if mask.shape[1:] == (sum(groups),) and mask.dtype.kind in "biu":
        allowed = mask != 0
        if has_allowed_action(allowed, groups).all():
            return allowed
    # One row at a time, slower, for a sentence that names the row that is wrong.
    return np.stack([check_mask(row, groups, f"given to predict (row {i})") for i, row in enumerate(mask)])


def sample(space: spaces.Space, mask: np.ndarray | None = None) -> Any:
    """A random action, one that the mask allows."""
    if mask is None or not sizes(space):
        return space.sample()
    parts = np.split(mask, np.cumsum(sizes(space))[:-1])
    choices = np.array([space.np_random.choice(np.flatnonzero(part)) for part in parts])
    # Discrete and MultiDiscrete may start elsewhere than at 0; MultiBinary has no `start`.
    start = np.ravel(getattr(space, "start", 0))
    # The empty index makes a scalar of an array without axes.
    return (choices + start).reshape(space.shape or ()).astype(space.dtype)[()]


class ActionMask(Recorded):
    """Writes each observation's checked mask into `info["action_mask"]`; a `MaskFault` names the step."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._groups = sizes(env.action_space)
        self._has_method = env.has_wrapper_attr(METHOD)
        self._mask: Any = None
        self._step = 0

    def action_masks(self) -> np.ndarray:
        """The mask of the observation last returned, bool (n,)."""
        return self._mask

    def reset(self, **kwargs: Any) -> EnvReset:
        obs, info = self.env.reset(**kwargs)
        return obs, self.begin(info)

    def begin(self, info: Info) -> Info:
        self._step = 0
        return self._write(info, False)

    def step(self, action: Any) -> EnvStep:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._step += 1
        info = self._write(info, bool(terminated))
        return obs, reward, terminated, truncated, info

    def _write(self, info: Info, terminated: bool) -> Info:
        mask = info.get(MASK)
        if mask is None and self._has_method:
            mask = self.env.get_wrapper_attr(METHOD)()
        if terminated and (mask is None or not np.any(mask)):
            # No action follows, so a terminal mask may be absent or empty.
            self._mask = np.ones(sum(self._groups), bool)
        else:
            self._mask = check_mask(mask, self._groups, f"at step {self._step} of the episode")
        # A new dict: the environment may return its own again and again.
        return {**info, MASK: self._mask}
