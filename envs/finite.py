"""Numbers that are none: found where they come in, named, and kept for whoever looks into it.

    refuse({"reward": reward, "observation": obs}, steps, kept={...})      raises NotFinite; nothing has been learnt yet
    reward = on_nan(reward)                                                with `on_nan=zero`, 0 in its place

A sum is finite unless one of its terms is not, or it overflows: one number tells of a whole batch, so looking costs
next to nothing; only where it does not, every number is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class NotFinite(FloatingPointError):
    """A number that is none; the sentence says whose.

    Attributes:
        kept: arrays by name, to be written down: the observations, the action and the reward of that step.
    """

    def __init__(self, sentence: str, kept: Mapping[str, Any] | None = None) -> None:
        super().__init__(sentence)
        self.kept = dict(kept or {})


class OnNan:
    """What becomes of a reward that is no number: `stop` leaves it to be refused, `zero` pays 0 and counts it.

    Attributes:
        zeroed: how many have been replaced so far; one that is drawn from a replay twice counts twice.
    """

    def __init__(self, what: str = "stop") -> None:
        self.what, self.zeroed = what, 0

    def __call__(self, reward: Any) -> Any:
        """The rewards, an array or a tensor: the very same where all are numbers."""
        if self.what == "stop" or _place(reward) is None:
            return reward
        if isinstance(reward, np.ndarray):
            sound: Any = np.isfinite(reward)
            self.zeroed += int((~sound).sum())
            return np.where(sound, reward, reward.dtype.type(0))
        sound = reward.isfinite()
        self.zeroed += int((~sound).sum())
        return reward.where(sound, reward.new_zeros(()))


def is_finite(value: Any) -> bool:
    """Whether every number of an array, a tensor or a dict of them is one."""
    return all(_place(part) is None for _, part in _parts("", value))


def refuse(given: Mapping[str, Any], steps: Any, kept: Mapping[str, Any] | None = None) -> None:
    """Raise if a number is none.

    Args:
        given: what is looked at, by its name in the sentence: arrays, tensors or dicts of them, leading shape (N,) or
            (T, N); what has a row more than `steps` along time is the observations before and after each step.
        steps: step within the episode, (N,) or (T, N); or a function that returns it, asked only in need.
        kept: what is written down of the step, by name, in the same shapes.

    Raises:
        NotFinite: naming the environment, the step of its episode and the number.
    """
    found = []
    for name, value in given.items():
        for key, part in _parts(name, value):
            place = _place(part)
            if place is not None:
                found.append((key, _array(part), place))
    if found:
        _raise(found, np.asarray(steps() if callable(steps) else steps), kept or {})


def _raise(found: list[tuple[str, np.ndarray, tuple[int, ...]]], steps: np.ndarray, kept: Mapping[str, Any]) -> None:
    """Name the first: an action comes before the reward and the observation that it leads to."""

    def row(part: np.ndarray, place: tuple[int, ...]) -> int:
        return place[0] - (len(part) > len(steps)) if steps.ndim == 2 else 0

    name, part, place = min(found, key=lambda one: (row(*one[1:]), one[0] != "action"))
    at = (max(row(part, place), 0), place[1]) if steps.ndim == 2 else place[:1]
    column, step, bad = at[-1], int(steps[at]), part[place]
    sentence = f"environment {column} gave the {name} {bad} at step {step} of its episode (stream task)"
    if name == "action":
        sentence = f"the policy gave environment {column} the action {bad} at step {step} of its episode: it diverged"
    arrays = {key: _array(value)[at] for words, held in kept.items() for key, value in _parts(words, held)}
    arrays |= {"environment": np.array(column), "step": np.array(step)}
    raise NotFinite(f"{sentence}; nothing has been learnt from it", arrays)


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Arrays of numbers, those of a dict each under a name that says its key."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f"{name} {key!r}", part
    elif value is not None:
        yield name, value


def _place(value: Any) -> tuple[int, ...] | None:
    """Where the first number lies that is none."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f" or math.isfinite(value.sum()):
            return None
    elif math.isfinite(float(value.sum())):
        return None
    found = np.argwhere(~np.isfinite(_array(value)))
    return tuple(int(i) for i in found[0]) if len(found) else None


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
