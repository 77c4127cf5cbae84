"""Rewards learnt from a judge's labels of captions: it is asked beside training, or before a reward is given."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envs.transitions import Transitions
from lodestar.settings import setting
from rewards.base import JudgeUse
from rewards.language.captioned import Captioned, CaptionedConfig
from rewards.language.label_models import CaptionTable, LabelTable
from rewards.llm.annotation.annotator import Annotator, AnswerTimes
from rewards.llm.store import Item


@dataclass
class JudgedCaptionsConfig(CaptionedConfig, AnswerTimes):
    """Settings of a reward from labels of captions."""

    # ONI has 0.4 or 0.1, beside a task reward of weight 0.1 or 10.
    weight: Any = 0.1
    judge_options: dict[str, Any] = setting(
        {}, 'its options, as in {model: qwen3-4b-instruct, url: "http://localhost:8000/v1"}'
    )
    ask: str = setting("beside", "beside training, or at_once, before the reward is given", "beside | at_once")
    capacity: int = setting(10000, "distinct captions remembered; the least recently met are forgotten", ">= 2")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ask == "at_once":
            refusal = f"{self.prefix}ask=at_once cannot wait for "
            self.refuse_if(self.rate, refusal + "rate={rate:g}; leave rate at 0")
            self.refuse_if(self.delay, refusal + "delay={delay}; leave delay at 0")


class JudgedCaptions(Captioned):
    """Base class: a subclass makes the annotator, which is None where no judge is asked, and says what to ask."""

    config: JudgedCaptionsConfig
    annotator: Annotator | None

    def build(self) -> None:
        super().build()
        self.met = CaptionTable(self.config.capacity)
        self.labels = LabelTable()

    def questions(self, caption: str) -> list[Item]:
        """What there is to ask about a caption and has no label yet."""
        raise NotImplementedError

    def choose_questions(self, captions: list[str]) -> tuple[list[Item], list[float] | None]:
        """What to ask after an update that met these captions, and its priorities, the higher the sooner."""
        raise NotImplementedError

    def learn(self, counts: Counter[str], transitions: int) -> dict[str, float]:
        """Learn from new labels, after so many transitions that met these captions; returns metrics."""
        return {}

    def update(self, batch: Transitions) -> dict[str, float]:
        assert batch.text is not None
        texts = batch.text[np.asarray(batch.valid)].tolist()
        if not texts:
            return {}
        counts = Counter(texts)
        del counts[""]
        self.met.count_captions(counts, len(texts))
        # Counted before this update learns: later labels did not reward these steps when they were taken.
        rewarded = self.count_rewarded(counts)
        self.met.rewarded += rewarded
        metrics = {"met": float(len(self.met.counts)), "rewarded": rewarded / len(texts)}
        if self.annotator is None:
            return metrics
        items, priority = self.choose_questions(list(counts))
        self.annotator.offer(items, self.met.now, priority)
        answers = self.annotator.take(self.met.now)
        for item, value in answers:
            if isinstance(item, str) and item not in self.labels.values:
                self.met.late += self.met.counts.get(item, 0)
            self.labels.add(item, value)
        if answers:
            self.forget()
            metrics |= self.learn(counts, len(texts))
        labelled = sum(count for caption, count in counts.items() if self.is_labelled(caption))
        metrics["coverage"] = labelled / max(counts.total(), 1)
        return {**metrics, **self.annotator.metrics(), **self.labels.metrics()}

    def is_labelled(self, caption: str) -> bool:
        return not self.questions(caption)

    def ask_at_once(self, captions: Sequence[str]) -> None:
        """Wait for labels of captions; one that does not come is asked for again when the caption is met again."""
        items = list(itertools.chain.from_iterable(map(self.questions, captions)))
        if self.annotator is None or not items:
            return
        self.annotator.offer(items, self.met.now)
        self.annotator.wait(items)
        for item, value in self.annotator.take(self.met.now):
            self.labels.add(item, value)

    def judge_use(self) -> JudgeUse | None:
        use = JudgeUse(0, 0) if self.annotator is None else self.annotator.judge_use()
        return replace(
            use,
            labels=int(self.labels.metrics()["labels"]),
            captions=len(self.met.counts),
            captions_labelled=sum(map(self.is_labelled, self.met.counts)),
            rewarded=self.met.rewarded / max(self.met.now, 1),
        )

    def preflight(self) -> str:
        return "" if self.annotator is None else self.annotator.preflight()
