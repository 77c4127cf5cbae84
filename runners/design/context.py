"""What a model reads about an environment with `describe=auto`: its numbers, its signals and its source.

Source: Ma et al. 2023, "Eureka" (arXiv 2310.12931), section 3: the environment's code is the context of the question.
Differences: the source is that of the simulator's class as it is installed, which may hold the task's own reward, where
Eureka takes that out; it is cut at a length; what the numbers are comes from the family, where it has names.
When it fails: a class that is a few lines around a compiled simulator.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.family import family_of

# Characters of the source that are shown, and numbers that are named.
MAX_SOURCE_CHARACTERS = 12_000
MAX_NAMED_NUMBERS = 64


def describe_environment(env: gym.Env) -> str:
    """Its spaces, number by number where they are flat, the names of its signals, and its class."""
    spec: Any = env.spec
    family = family_of(spec)
    lines = [f"The environment is {spec.id if spec else type(env.unwrapped).__name__}."]
    lines += _describe_space("obs", env.observation_space, family.observed(spec))
    lines += _describe_space("action", env.action_space, ())
    names = family.signals(spec)
    if names:
        lines.append("signals are numbers of the simulator after the step:")
        lines += _number_lines("signals", [name.replace("_", " ") for name in names])
    try:
        source = inspect.getsource(type(env.unwrapped))
    except (OSError, TypeError):
        return "\n".join(lines)
    if len(source) > MAX_SOURCE_CHARACTERS:
        source = source[:MAX_SOURCE_CHARACTERS] + "\n# ... cut here"
    # Backquotes would end the block in which the code stands.
    return "\n".join([*lines, "The source of its class:", "```", source.replace("```", "'''").rstrip(), "```"])


def _describe_space(name: str, space: spaces.Space, names: Sequence[str]) -> list[str]:
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        return [f"{name} is of the space {space}."]
    texts = []
    lows = np.ravel(space.low).tolist()
    highs = np.ravel(space.high).tolist()
    for index, (low, high) in enumerate(zip(lows, highs)):
        word = names[index] if index < len(names) else "a number"
        texts.append(f"{word}, from {low:.4g} to {high:.4g}")
    return _number_lines(name, texts)


def _number_lines(name: str, texts: Sequence[str]) -> list[str]:
    lines = [f"{name}[:, {index}]: {text}" for index, text in enumerate(texts[:MAX_NAMED_NUMBERS])]
    if len(texts) > MAX_NAMED_NUMBERS:
        lines.append(f"and {len(texts) - MAX_NAMED_NUMBERS} more, up to {name}[:, {len(texts) - 1}]: {texts[-1]}")
    return lines
