"""ONI: captions are judged beside training, and the reward is learnt from the labels while the agent learns from it.

A judge (a language model, sentence embeddings, rules, recorded labels) says which captions describe progress. Three
models make a reward of its labels; a fourth asks no judge and is the control that each of them has to beat.

    retrieval        value = the caption's label; 0 until it is there
    classification   value = 1[p(caption) > eta]; p is learnt from all labels, so it covers captions without a label
    ranking          value = z 1[z > its quantile, z > 0]; f is learnt from pairs, z = (f - mean) / std
    count            value = 1 of every caption

    r(s') = value(caption of s') / N_ep(caption)^beta

Source: Zheng et al. 2024, "Online Intrinsic Rewards for Decision Making Agents from Large Language Model Feedback",
arXiv 2410.23022, sections 2 and 3, and its code; pairs and quantile from Klissarov et al. 2023, arXiv 2310.00166.
Differences:
  - labels come beside training, or the reward waits for them (`ask=at_once`);
  - the caption of s' is rewarded, not that of s; replay relabels old transitions with the newest labels, too;
  - ranking is normalised by the captions met last (the code logs z and rewards f) and never negative;
  - an unsure judge gives no label; a failed question is asked again (the code caches it as "bad" for good);
  - first are asked frequent captions, new ones (the code's way, which drowns in captions that never repeat), or those
    that the model is least sure of; pairs are drawn from a bounded table of distinct captions;
  - gradient steps are taken only when labels came; some labels are held out to measure with.
When it fails: a task whose captions carry no progress; with few clean captions `model=count` is as good. Fitted models
reward captions that only look like good ones; an agent then seeks those.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np

from lodestar.settings import setting
from rewards.base import JudgeUse
from rewards.language.judged import JudgedCaptions, JudgedCaptionsConfig
from rewards.language.label_models import ENCODERS, LabelModel, Normaliser, crc, fewest_of_a_kind
from rewards.llm.annotation.annotator import Annotator
from rewards.llm.judges.gguf import small_model
from rewards.llm.judges.local import has_book
from rewards.llm.judges.prompts import background
from rewards.llm.store import Item, texts_in

# From so many labels on, one gradient step is taken at a time.
LABELS_FOR_SINGLE_STEPS = 25_000
# How many of the captions met last normalise a ranking.
NORMALISER_CAPTIONS = 2048


@dataclass
class ONIConfig(JudgedCaptionsConfig):
    """Settings of oni; the source's value in brackets where it differs."""

    model: str = setting("retrieval", "what makes rewards of labels", "retrieval | classification | ranking | count")
    judge: str = setting(
        "auto",
        "of texts; auto is the family's `rules`, if it has any and no goal is given, else "
        "`embedding`, or `offline` where the family has no phrases and a local model is there "
        "[a model]",
    )
    goal: str = setting("", "what is good, a sentence for the judge; runners fill in the family's, unless judge=auto")
    family: str = setting("", "the family that captions come from, such as nethack; runners fill it in")
    encoder: str = setting("ngrams", "what reads texts, for classification and ranking [charcnn]", choices=ENCODERS)
    eta: float = setting(0.5, "classification rewards above this probability", "(0, 1)")
    quantile: float = setting(0.5, "ranking rewards above this quantile of z [z > -0.5]", "(0, 1)")
    select: str = setting(
        "frequency", "asked first: the most met, newest or least sure [novelty]", "frequency | novelty | uncertainty"
    )
    absent: str = setting(
        "stop", "without the judge's server: stop, wait, or take the family's rules", "stop | wait | rules"
    )
    pairs: int = setting(10, "pairs put to the judge in one update, for ranking", ">= 1")
    min_labels: int = setting(2, "labels of either kind, or pairs with a winner, before a model gives rewards", ">= 1")
    steps: int = setting(32, "gradient steps when labels came; 1 from 25,000 labels on", ">= 1")
    learning_rate: float = setting(0.003, "Adam's step size [1e-4]", "> 0")
    batch_size: int = setting(256, "labels in a gradient step, at most", ">= 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        never = self.select == "uncertainty" and self.model == "retrieval"
        self.refuse_if(never, "reward.oni.select=uncertainty: model={model} is never unsure; use ranking")
        self.refuse_if(
            self.ask == "at_once" and self.model != "retrieval",
            "reward.oni.ask=at_once waits for labels, of which model={model} is learnt later; use model=retrieval",
        )


class ONI(JudgedCaptions):
    """r(s') = value(caption) / N_ep(caption)^beta, where the value is learnt from a judge's labels."""

    Config = ONIConfig
    config: ONIConfig
    control = {"model": "count"}

    def build(self) -> None:
        super().build()
        config = self.config
        self.annotator = None if config.model == "count" else _make_annotator(config, self.seed)
        if config.model in ("classification", "ranking"):
            self.model = LabelModel(
                config.encoder,
                learning_rate=config.learning_rate,
                batch_size=config.batch_size,
                seed=self.seed,
                device=self.device,
            )
        if config.model == "ranking":
            self.normaliser = Normaliser()
            # It draws the pairs.
            self.rng = np.random.default_rng(self.seed)

    def value(self, texts: Sequence[str]) -> np.ndarray:
        match self.config.model:
            case "count":
                return np.ones(len(texts), np.float32)
            case "retrieval":
                labels = self.labels.values
                if self.config.ask == "at_once":
                    self.ask_at_once(texts)
                values = np.array([labels.get(text, -1.0) for text in texts], np.float32)
                # NaN is a label of a judge that was unsure; without a label the value is unknown.
                values[np.isnan(values)] = 0
                values[values < 0] = np.nan
                return values
        if self.model.steps == 0:
            return np.full(len(texts), np.nan, np.float32)
        f = self.model.predict(texts)
        if self.config.model == "ranking":
            return self.normaliser(f)
        return (chance(f) > self.config.eta).astype(np.float32)

    def questions(self, caption: str) -> list[Item]:
        return [] if caption in self.labels.values else [caption]

    def is_labelled(self, caption: str) -> bool:
        return caption in self.labels.texts

    def judge_use(self) -> JudgeUse | None:
        use = super().judge_use()
        if use is None or self.config.model == "count":
            return None
        return replace(use, late=self.met.late)

    def notes(self) -> list[str]:
        if self.config.model == "count":
            return ["every caption has the value 1 without a judge: the control of rewards from language"]
        if self.annotator is None:
            return ["no judge labels the captions, so the reward is 0: give reward.oni.goal or reward.oni.judge"]
        return self.annotator.notes()

    def preflight(self) -> str:
        missing = super().preflight()
        if not missing or self.annotator is None:
            return ""
        if self.config.absent == "stop":
            return f"{missing}; or give reward.oni.absent=wait, or absent=rules"
        if self.config.absent == "wait":
            self.annotator.events.append(f"{missing}; the run waits for it")
            return ""
        self.annotator.close()
        self.annotator = _make_annotator(replace(self.config, judge="rules", judge_options={}), self.seed)
        assert self.annotator is not None
        self.annotator.events.append(f"{missing}; the labels of this run are those of rules")
        return ""

    def choose_questions(self, captions: list[str]) -> tuple[list[Item], list[float] | None]:
        if self.config.model != "ranking":
            texts: list[Item] = [text for text in captions if text not in self.labels.values]
            return texts, self._priority(texts)
        # Priorities choose the best of ten times as many.
        count = self.config.pairs
        pairs = self._draw_pairs(captions, count if self.config.select == "novelty" else 10 * count)
        priority = self._priority(pairs)
        if priority is None:
            return pairs[:count], None
        best = np.argsort(-np.array(priority), kind="stable")[:count].tolist()
        return [pairs[row] for row in best], [priority[row] for row in best]

    def _draw_pairs(self, captions: list[str], count: int) -> list[Item]:
        """Pairs without a label of a caption of this update and one ever met, each in the order that its hash says."""
        all_captions = list(self.met.counts)
        if not captions or len(all_captions) < 2:
            return []
        ones = self.rng.integers(len(captions), size=count)
        others = self.rng.integers(len(all_captions), size=count)
        # As an ordered set: each pair once, where it was drawn first.
        pairs: dict[Item, None] = {}
        for one, other in zip(ones, others):
            first, second = sorted((captions[one], all_captions[other]))
            if first == second:
                continue
            # Turned by their hash, so that a judge's preference for a position cannot add up.
            pair = (first, second)
            if crc(pair) & 1:
                pair = (second, first)
            if pair not in self.labels.values:
                pairs[pair] = None
        return list(pairs)

    def _priority(self, items: list[Item]) -> list[float] | None:
        """What is asked first, the higher the sooner; None for the order of the items."""
        if self.config.select == "frequency":
            counts = self.met.counts
            frequencies: list[float] = []
            for item in items:
                frequencies.append(sum(counts.get(text, 0) for text in texts_in(item)))
            return frequencies
        if self.config.select == "novelty" or self.model.steps == 0 or not items:
            return None
        # The model is least sure where the chance is a half.
        doubt = 0.5 - np.abs(chance(self.model.predict(items)) - 0.5)
        return doubt.tolist()

    def learn(self, counts: Counter[str], transitions: int) -> dict[str, float]:
        """Fit the model to the labels so far; what is logged as rewarded is what they reward from now on."""
        metrics = self._fit()
        return {**metrics, "rewarded": self.count_rewarded(counts) / transitions}

    def _fit(self) -> dict[str, float]:
        """Without enough labels of each kind nothing happens."""
        kind = self.config.model
        items, labels = self.labels.labelled_items()
        if kind == "retrieval" or not items:
            return {}
        if not self.met.counts or fewest_of_a_kind(labels, kind == "ranking") < self.config.min_labels:
            return {}
        steps = self.config.steps if len(items) < LABELS_FOR_SINGLE_STEPS else 1
        metrics = {"loss": self.model.fit(items, labels, steps)}
        if kind == "ranking":
            scores = self.model.predict(self.met.newest(NORMALISER_CAPTIONS))
            self.normaliser.set(scores, self.config.quantile)
        accuracy = self.model.accuracy(*self.labels.labelled_items(held=True))
        if accuracy is not None:
            metrics["accuracy"] = accuracy
        return metrics


def chance(f: np.ndarray) -> np.ndarray:
    """sigmoid(f), without overflow."""
    return 1 / (1 + np.exp(-np.clip(f, -50, 50)))


def _make_annotator(config: ONIConfig, seed: int) -> Annotator | None:
    """The annotator with its judge; None where nothing says what is good."""
    judge = config.judge
    if judge == "auto":
        if not (config.goal or config.family or config.judge_options) and config.clock != "transcript":
            return None
        judge = _choose_judge(config)
    options = {"goal": config.goal, "family": config.family, **config.judge_options}
    return Annotator(judge, options, pairs=config.model == "ranking", seed=seed, **config.times())


def _choose_judge(config: ONIConfig) -> str:
    # The rules of a family know nothing of a goal.
    if has_book(config.family) and not (config.goal or config.judge_options):
        return "rules"
    has_phrases = bool(background(config.family).good or config.judge_options)
    if has_phrases or not (small_model().is_file() and find_spec("xllamacpp")):
        return "embedding"
    return "offline"
