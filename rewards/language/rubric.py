r"""Rubric: yes/no principles are judged of each caption; the score is the weighted mean of those that hold.

    value(c) = max(sum over k of w_k a_k(c), 0) / sum of the positive w_k,     a_k(c) = 1[principle k holds of c]
    r(s') = value(caption of s') / N_ep(caption)^beta

A judge answers once for each caption and principle (`rewards.llm.judges.principles`). Weights are no part of the
question: with the same file of answers (`cache`) other weights ask nothing. `lodestar rubric` finds principles and
weights in recorded comparisons.

Sources: Huang et al. 2025, "Reinforcement Learning with Rubric Anchors", arXiv 2508.12790 (weighted criteria); Liu et
al. 2025, "OpenRubrics", arXiv 2510.07743 (criteria from a better and a worse answer, kept if they predict which is
better); Wang and Xiong 2025, "AutoRule", arXiv 2506.15651 (the share of rules that hold is the reward); Wang et al.
2025, "RLBFF", arXiv 2509.21319 (each answer is yes or no, by the probability of a token).
Differences: what is judged is one caption of an episode, and not a model's whole answer; answers come beside training;
a principle of which the judge is unsure does not hold; no vetoes, saturation and tiers of scores (Rubric Anchors), but
a negative weight takes away from what else holds; the decay of repeated captions is ONI's.
When it fails: principles that need more than one caption ("the door was opened before the key was found"); a model too
small for questions about a statement, such as the one of `lodestar fetch`; captions that never repeat, as each costs
as many questions as there are principles.

Example:
    lodestar train env=MiniGrid-DoorKey-8x8-v0 env.captions=full reward=rubric \
        'reward.rubric.principles=The player picked up a key. | ^picked up; 2: The player opened a door. | ^opened'
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs.transitions import Transitions
from lodestar.settings import setting
from rewards.language.judged import JudgedCaptions, JudgedCaptionsConfig
from rewards.language.principles import read_principles
from rewards.llm.annotation.annotator import Annotator
from rewards.llm.judges.principles import item_of
from rewards.llm.store import Item


@dataclass
class RubricConfig(JudgedCaptionsConfig):
    """Settings of rubric."""

    principles: str = setting(
        "", 'a file *.txt, or *.json of OpenEnv; or themselves, as in "2: The player opened a door.; ..."'
    )
    judge: str = setting(
        "auto",
        "of principles: openai, local, rules, recorded or simulated; auto is rules where each "
        "principle has a pattern, else openai",
    )


class Rubric(JudgedCaptions):
    """r(s') = the weighted mean of the principles that hold of the caption / N_ep(caption)^beta."""

    Config = RubricConfig
    config: RubricConfig
    annotator: Annotator
    control = {"judge": "simulated", "judge_options": {"shuffle": True}}

    def build(self) -> None:
        super().build()
        config = self.config
        try:
            principles = read_principles(config.principles)
        except ValueError as error:
            raise ValueError(f"reward.rubric.principles: {error}") from None
        texts, weights, patterns = zip(*principles)
        self.principles: tuple[str, ...] = texts
        self.weights = np.array(weights)
        without = [text for text, pattern in zip(texts, patterns) if not pattern]
        judge = config.judge
        if judge == "auto":
            judge = "openai" if without else "rules"
        options = dict(config.judge_options)
        if judge == "rules":
            if without and "patterns" not in options:
                raise ValueError(
                    f"reward.rubric.judge=rules finds no pattern of {without[0]!r}; write one behind a bar, as in "
                    '"The player opened a door. | ^opened", or choose judge=openai'
                )
            options.setdefault("patterns", dict(zip(texts, patterns)))
        self.annotator = Annotator(judge, options, kind="principles", seed=self.seed, **config.times())

    def value(self, texts: Sequence[str]) -> np.ndarray:
        if self.config.ask == "at_once":
            self.ask_at_once(texts)
        total = self.answers(texts) @ self.weights
        best = self.weights[self.weights > 0].sum()
        return (np.maximum(total, 0) / best).astype(np.float32)

    def answers(self, texts: Sequence[str]) -> np.ndarray:
        """How far each of K principles holds of B captions, float64 (B, K); 0 where unsure, NaN before an answer."""
        answers = np.full((len(texts), len(self.principles)), np.nan)
        for row, text in enumerate(texts):
            for column, principle in enumerate(self.principles):
                value = self.labels.values.get(item_of(principle, text))
                # A label of NaN is that of an unsure judge, and counts like no.
                if value is not None:
                    answers[row, column] = np.nan_to_num(value)
        return answers

    def questions(self, caption: str) -> list[Item]:
        items = [item_of(principle, caption) for principle in self.principles]
        return [item for item in items if item not in self.labels.values]

    def choose_questions(self, captions: list[str]) -> tuple[list[Item], list[float] | None]:
        items: list[Item] = []
        priority: list[float] = []
        for caption in captions:
            questions = self.questions(caption)
            items += questions
            # What was met most is asked about first.
            priority += [self.met.counts.get(caption, 0)] * len(questions)
        return items, priority

    def reasons(self, batch: Transitions, names: Sequence[str]) -> list[str]:
        """The principles that hold of each caption, with their weights."""
        assert batch.text is not None
        texts = batch.text.tolist()
        reasons = []
        for row in self.answers(texts):
            holding = [f"{self.principles[k]} ({self.weights[k]:g})" for k in np.flatnonzero(row > 0)]
            reasons.append(" ".join(holding) or "no principle holds")
        return reasons

    def notes(self) -> list[str]:
        return [f"{len(self.principles)} principles are weighed", *self.annotator.notes()]
