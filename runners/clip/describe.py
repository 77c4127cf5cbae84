"""What is true of a state in sentences: by a user's function, by declared goals, or by the environment's captions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator

from envs.family import Goal, families, family_of
from lodestar.tables import MODULE_AND_CLASS, module_name
from rewards.vision.base import MAX_TEXT_CHARACTERS
from runners.run.config import UsageError

# A truth that is graded grows over the way to the goal, and rises once more where the goal is met.
SLOPE_SHARE = 0.6
# The ends of a goal's degree are these quantiles of what was seen.
DEGREE_QUANTILES = (0.02, 0.98)
Truths = dict[str, float]


class Describer:
    """Sentences and their truths of the states of one environment.

    `degrees` are those of goals, in units of their own, which `grade` turns into truths once all states are known.
    """

    def __init__(self, env: gym.Env, captions: str) -> None:
        self.source = captions
        family = family_of(env.spec)
        self.goals: list[Goal] = []
        self.caption: Callable[[gym.Env], Any] | None = None
        if env.spec is not None:
            self.goals = family.goals(env.spec)
        if captions:
            self._read(captions)
        elif family.name not in families():
            memory: dict[str, Any] = {}
            self.caption = lambda env: family.caption(env, memory)
        if not self.goals and self.caption is None:
            raise UsageError(
                "captions= is missing, and the environment declares neither goals nor captions; give a function that "
                "says what is true of a state, as in captions=my_file:caption"
            )

    def _read(self, source: str) -> None:
        """The function or the list of goals at module:name."""
        place, _, name = source.rpartition(":")
        if not MODULE_AND_CLASS.fullmatch(source) or place.endswith(".py"):
            raise UsageError(f"captions={source} is no module:name; give {module_name(place)}:{name or 'caption'}")
        # A user's file may raise anything.
        try:
            value: Any = load_env_creator(source)
        except Exception as error:
            raise UsageError(f"captions={source} cannot be had: {type(error).__name__}: {error}") from None
        if callable(value):
            self.caption = value
        elif isinstance(value, Sequence) and value and all(isinstance(goal, Goal) for goal in value):
            self.goals = list(value)
        else:
            kind = type(value).__name__
            fix = "give a function of a state, or a list of envs.family.Goal"
            raise UsageError(f"captions={source} is of type {kind}; {fix}")

    def __call__(self, env: gym.Env) -> tuple[Truths, dict[str, float]]:
        """Sentence -> truth in [0, 1] of the state that an environment is in, and prompt -> degree of its goals."""
        truths: Truths = {}
        degrees = {}
        for goal in self.goals:
            truths[goal.prompt] = float(goal.truth(env))
            if goal.degree is not None:
                degrees[goal.prompt] = float(goal.degree(env))
        if self.caption is not None:
            # A user's function knows its own class, not Gymnasium's wrappers.
            truths |= self._truths_of(self.caption(env.unwrapped if self.source else env))
        return truths, degrees

    def _truths_of(self, said: Any) -> Truths:
        if isinstance(said, str):
            said = [said] if said else []
        if isinstance(said, list | tuple | set):
            said = dict.fromkeys(said, 1.0)
        if not isinstance(said, Mapping) or not all(isinstance(text, str) for text in said):
            raise UsageError(
                f"{self._name} returned {said!r:.80} for a state; return a sentence, a list of sentences, or a dict "
                "from sentences to their truths in [0, 1]"
            )
        for text, truth in said.items():
            if not text.isascii() or not text.strip() or len(text) > MAX_TEXT_CHARACTERS:
                limit = f"1 to {MAX_TEXT_CHARACTERS} plain letters"
                raise UsageError(f"{self._name} returned the sentence {text!r:.80}; write {limit} in English")
            if not 0 <= float(truth) <= 1:
                raise UsageError(f"{self._name} says that {text!r} is {truth} true; give a truth in [0, 1]")
        return {text.strip(): float(truth) for text, truth in said.items()}

    @property
    def _name(self) -> str:
        return f"captions={self.source}" if self.source else "the environment's caption"

    @property
    def opposites(self) -> list[tuple[str, str]]:
        """Prompts of goals, and the sentences for their opposites."""
        pairs = []
        for goal in self.goals:
            if goal.negative:
                pairs.append((goal.prompt, goal.negative))
        return pairs

    @property
    def baselines(self) -> list[str]:
        """Sentences that are true of every state."""
        baselines = []
        for goal in self.goals:
            if goal.baseline:
                baselines.append(goal.baseline)
        return list(dict.fromkeys(baselines))


def grade(met: np.ndarray, degree: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    """Truths in [0, 1] from whether a goal is met and how near it is, (N,): a slope between `ends`, and a step."""
    low, high = ends
    slope = np.clip((degree - low) / max(high - low, 1e-9), 0, 1)
    return SLOPE_SHARE * slope + (1 - SLOPE_SHARE) * met


def degree_ends(degree: np.ndarray) -> tuple[float, float]:
    """Between which values a goal's degree (N,) lies."""
    low, high = np.quantile(degree, DEGREE_QUANTILES)
    return float(low), float(high)
