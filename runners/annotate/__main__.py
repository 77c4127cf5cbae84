"""Let a judge label the captions of a recording, or find out how far a judge can be trusted.

    python -m runners.record env=NetHackScore-v0 policy=random steps=20000 text=true out=play.safetensors
    python -m runners.annotate record=play.safetensors judge=openai judge.model=qwen3-4b out=labels.jsonl dry_run=true
    python -m runners.annotate record=play.safetensors judge=openai judge.model=qwen3-4b out=labels.jsonl
    python -m runners.annotate audit=labels.jsonl judge=openai judge.model=qwen3-4b against=rules out=audit.json

Each different caption is asked about once. Stopped at any moment, the same command continues. Rewards read the file as
judge=recorded judge_options={path:labels.jsonl}. An audit asks about n= texts again:

    asked twice     the same texts once more
    reworded        the second wording of the question, for judges that have one
    order swapped   pairs in the other order; a judge that prefers a place answers the same number twice
    another judge   `against=`, and the labels of the file itself where it has some

Agreement is the share of equal answers among the texts that both answered, and Cohen's kappa, which subtracts what
chance would give: where one text in a hundred is good, "no" to all agrees in 99 % and has a kappa of 0.
When it fails: judges that agree may be wrong together.

A line of labels.jsonl is an answer as it comes: text, other (the second caption of a pair), value (null where the judge
was unsure), judge. A last line that was cut off by a kill is left out.
"""

import inspect
import io
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from envs import recording
from envs.family import family_of
from envs.make import spec_of
from lodestar.files import LARGE, make_parent, open_to_append, read_bytes
from lodestar.settings import setting
from rewards.llm.annotation.annotator import Annotator, AnswerLimits
from rewards.llm.judges import prompts
from rewards.llm.judges.base import TextJudge, make_judge
from rewards.llm.store import AnswerStore, Item, label_in, read_rows, row_of
from runners.cli.command import Command
from runners.run.checkpoint import write_atomically
from runners.run.config import UsageError
from runners.run.trust import require, saved_keys

# Seconds between two lines of progress.
PROGRESS_EVERY_S = 5.0
# Tokens and seconds of a model's answer, estimated for a dry run.
ESTIMATED_ANSWER_TOKENS = 60
ESTIMATED_ANSWER_S = 1.0


@dataclass
class AnnotateConfig(AnswerLimits):
    """One annotation or audit."""

    record: str = setting("", "a recording with texts; labels them")
    audit: str = setting("", "a recording with texts, or a file of labels; reports how often the judge's answers agree")
    judge: str = setting("rules", "rules, recorded, local, offline, openai, embedding or simulated")
    judge_options: dict[str, Any] = setting({}, "options of the judge, as in judge.url=http://localhost:8000/v1")
    out: str = setting("", "the file to write: labels *.jsonl, or the findings of an audit *.json")
    goal: str = setting("", "what counts as progress, a sentence; the environment's own")
    family: str = setting("", "family of environments, such as nethack; the recording's")
    pairs: int = setting(0, "ask which of two captions is better, so many random pairs; 0: about single ones", ">= 0")
    cache: str = "labels.sqlite"
    dry_run: bool = setting(False, "only estimate how much would be asked")
    concurrency: int = setting(8, "questions at the same time", ">= 1")
    patience: float = setting(600.0, "seconds without any answer after which it gives up", "> 0")
    n: int = setting(100, "audit: texts, and pairs, to ask about", ">= 1")
    against: str = setting("", "audit: another judge to compare with")
    against_options: dict[str, Any] = setting({}, "options of that judge, as in against.path=labels.jsonl")
    seed: int = setting(0, "of what is drawn", ">= 0")
    trust: bool = setting(False, "whether the recording may name an environment's code, as in module:Id")

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.record) == bool(self.audit):
            raise UsageError("give either record=, a recording to label, or audit=, a file to try a judge on")
        if not self.out and not self.dry_run:
            raise UsageError("out= is missing; name the file to write, as in out=labels.jsonl")

    def options(self, source: "Texts") -> dict[str, Any]:
        """Options of the judge: the goal and the family that were given, or those of the file."""
        return {"goal": self.goal or source.goal, "family": self.family or source.family, **self.judge_options}


class Texts(NamedTuple):
    """Different captions, in their order, and the goal and the family of environments that the file names."""

    texts: list[str]
    goal: str
    family: str


def read(path: str, trust: bool = False) -> Texts:
    """The different texts of a recording or of a file of labels; a ValueError if the file is neither."""
    if not Path(path).is_file():
        raise UsageError(f"{path} is no file; give a recording (runners.record text=true) or a file of labels")
    goal = ""
    family = ""
    if path.endswith(".jsonl"):
        texts = []
        for row in labels(path):
            texts += [row["text"], row.get("other")]
    else:
        batch, meta = recording.load(path)
        if batch.text is None:
            raise UsageError(f"{path} holds no texts; record it again with text=true")
        texts = batch.text.tolist()
        if meta.get("env"):
            require(trust, path, saved_keys(meta))
            spec = spec_of(meta["env"])
            goal = family_of(spec).aim(spec)
            family = family_of(spec).name
    texts = list(dict.fromkeys(filter(None, texts)))
    if not texts:
        raise UsageError(f"{path} holds no text but empty ones; there is nothing to ask about")
    return Texts(texts, goal, family)


def labels(path: str) -> list[dict[str, Any]]:
    """The lines of a file of labels, a last one that was cut off left out; a ValueError for one that is no label."""
    return list(read_rows(path, lambda row: row if label_in(row) else {}, "no label; give text and value"))


def annotate(config: AnnotateConfig) -> dict[str, Any]:
    """Label a recording; returns the counters."""
    source = read(config.record, config.trust)
    options = config.options(source)
    with closing(make_judge(config.judge, **options)) as judge:
        identity = judge.identity
        items: list[Item] = list(source.texts)
        if config.pairs:
            items = draw_pairs(source.texts, config.pairs, config.seed)
        items = without_labels(config.out, items, identity)
        if config.dry_run:
            return estimate(config, options, judge, source, items)
        if items and not judge.local:
            preflight(config.judge, options, items[0])
    if not items:
        print(f"{config.out} holds all labels already")
        return {"labels": 0}
    annotator = Annotator(
        config.judge,
        options,
        pairs=bool(config.pairs),
        clock="wall",
        queue=len(items),
        order="oldest",
        cache=config.cache,
        budget=config.budget,
        token_budget=config.token_budget,
        concurrency=config.concurrency,
        seed=config.seed,
    )
    with closing(annotator):
        return label(annotator, items, config, identity)


def draw_pairs(texts: Sequence[str], count: int, seed: int) -> list[Item]:
    """`count` different pairs of different texts, in random order; all of them if there are fewer."""
    rng = np.random.default_rng(seed)
    pairs = len(texts) * (len(texts) - 1) // 2
    if pairs == 0:
        raise UsageError(f"pairs={count} cannot be drawn from one text; record more")
    number = rng.choice(pairs, min(count, pairs), replace=False)
    # Pair number k is (later, earlier), counted along the rows of a triangle.
    later = ((1 + np.sqrt(1 + 8 * number)) // 2).astype(np.int64)
    earlier = number - later * (later - 1) // 2
    swapped = rng.random(len(number)) < 0.5
    first = np.where(swapped, later, earlier)
    second = np.where(swapped, earlier, later)
    drawn: list[Item] = []
    for i, j in zip(first.tolist(), second.tolist()):
        drawn.append((texts[i], texts[j]))
    return drawn


def without_labels(out: str, items: list[Item], identity: str) -> list[Item]:
    """The items that a file of this judge's labels does not have yet; a line that was cut off is taken out of it."""
    path = Path(out)
    if not out or not path.is_file():
        return items
    rows = labels(out)
    others = {row.get("judge") for row in rows} - {identity}
    if others:
        raise UsageError(f"{out} holds labels of {others.pop()!r}, this judge is {identity!r}; give another out=")
    data = read_bytes(path.resolve(), LARGE)
    if not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
    labelled = dict(map(label_in, rows))
    unlabelled = []
    for item in items:
        if item not in labelled:
            unlabelled.append(item)
    return unlabelled


def preflight(name: str, options: dict[str, Any], item: Item) -> None:
    """One question before all others, which must get a usable answer."""
    if name == "openai":
        options = {**options, "attempts": 1}
    with closing(make_judge(name, **options)) as judge:
        if isinstance(item, str):
            answers = judge.label([item])
        else:
            first, second = item
            answers = judge.compare([first], [second])
    if answers.failed.any():
        raise UsageError(
            f"the judge {name} gave no usable answer to a first question: {answers.failure}; start the server, or "
            "correct judge.url and judge.model"
        )


def estimate(
    config: AnnotateConfig, options: dict[str, Any], judge: TextJudge, source: Texts, items: list[Item]
) -> dict[str, Any]:
    """Print what would be asked, and what it would cost."""
    cached = 0
    if config.cache and Path(config.cache).is_file():
        with closing(AnswerStore(config.cache)) as cache:
            cached = len(cache.get(judge.identity, items))
    asked = len(items) - cached
    tokens = 0
    cost = "no tokens: the judge answers on this machine"
    if config.judge == "openai" and items:
        mean_question = int(np.mean([characters(options, item) for item in items]))
        # Four letters make a token.
        tokens = asked * (mean_question // 4 + ESTIMATED_ANSWER_TOKENS)
    if tokens:
        seconds = asked * ESTIMATED_ANSWER_S / config.concurrency
        rate = f"{ESTIMATED_ANSWER_S:g} s an answer, {config.concurrency} at once"
        cost = f"about {tokens:,} tokens and {seconds:,.0f} s (at {rate})"
    kind = "pairs" if config.pairs else "texts"
    counts = f"{len(source.texts):,} different texts; {len(items):,} {kind}"
    print(f"{config.record}: {counts} without a label in {config.out}")
    print(f"in {config.cache or 'no cache'}: {cached:,}; to be asked: {asked:,}")
    print(f"that takes {cost}")
    return {"texts": len(source.texts), "items": len(items), "cached": cached, "asked": asked, "tokens": tokens}


def characters(options: dict[str, Any], item: Item) -> int:
    """Length of the question that a language model gets about an item."""
    family = prompts.background(options["family"])
    texts = [item] if isinstance(item, str) else item
    wording = "label" if isinstance(item, str) else "compare"
    if options.get("reworded"):
        wording += "_reworded"
    template = prompts.sections("captions")[wording]
    return sum(map(len, [template, options["goal"] or family.goal, family.knowledge, *texts]))


def label(annotator: Annotator, items: list[Item], config: AnnotateConfig, identity: str) -> dict[str, Any]:
    """Hand everything to the annotator and write what comes back, as it comes."""
    offered = annotator.offer(items, 0)
    begin = answered_at = printed_at = time.monotonic()
    written = 0
    path = Path(config.out)
    make_parent(path)
    with io.TextIOWrapper(open_to_append(path), encoding="utf-8") as file:
        while True:
            answers = annotator.take(0)
            for item, value in answers:
                file.write(json.dumps({"now": 0, **row_of(item, value), "judge": identity}) + "\n")
            file.flush()
            written += len(answers)
            counts = annotator.metrics()
            now = time.monotonic()
            # Before the first question the judge may be slow to start.
            if answers or not counts["asked"]:
                answered_at = now
            budget_is_spent = 0 < config.budget <= counts["answered"] or 0 < config.token_budget <= counts["tokens"]
            waits = bool(answers) or counts["asked"] > counts["answered"] + counts["failed"]
            if written + counts["dropped"] >= offered or (budget_is_spent and not waits):
                break
            if now - answered_at > config.patience:
                raise UsageError(f"no answer came for {config.patience:g} s; {summary(config, counts, written, begin)}")
            if now - printed_at > PROGRESS_EVERY_S:
                printed_at = now
                progress = f"{written:,} of {offered:,} labelled, {counts['failed']:.0f} failed"
                print(progress, file=sys.stderr, flush=True)
            time.sleep(0.02)
    print(summary(config, counts, written, begin))
    return {**counts, "labels": written}


def summary(config: AnnotateConfig, counts: dict[str, float], written: int, begin: float) -> str:
    """What was labelled, and what it cost."""
    return (
        f"{config.out}: {written:,} labels, {counts['unsure']:,.0f} of them unsure; {counts['cached']:,.0f} from "
        f"{config.cache or 'no cache'}, {counts['failed']:,.0f} failed questions, {counts['dropped']:,.0f} without a "
        f"label; {counts['tokens']:,.0f} tokens, {time.monotonic() - begin:.0f} s"
    )


def audit(config: AnnotateConfig) -> dict[str, Any]:
    """Try a judge on texts and pairs; writes the findings to `config.out` and returns them."""
    source = read(config.audit, config.trust)
    options = config.options(source)
    rng = np.random.default_rng(config.seed)
    chosen = np.sort(rng.choice(len(source.texts), min(config.n, len(source.texts)), replace=False))
    texts = [source.texts[i] for i in chosen.tolist()]
    with closing(make_judge(config.judge, **options)) as judge:
        if config.dry_run:
            raise UsageError(f"dry_run is for record=; an audit asks about {len(texts)} texts two to four times")
        if not judge.local:
            preflight(config.judge, options, texts[0])
        first, findings = try_judge(judge, texts, config.seed, config.n)
        findings = {"judge": judge.identity, "file": config.audit, **findings}
    if "reworded" in inspect.signature(type(judge)).parameters:
        other_wording = {**options, "reworded": not options.get("reworded", False)}
        findings |= agreement("reworded", first, labels_of(config.judge, other_wording, texts))
    if config.against:
        against = {"goal": options["goal"], "family": options["family"], **config.against_options}
        findings |= agreement("against", first, labels_of(config.against, against, texts))
        findings["against"] = config.against
    if config.audit.endswith(".jsonl"):
        recorded = dict(map(label_in, labels(config.audit)))
        # None becomes NaN.
        values = np.array(list(map(recorded.get, texts)), np.float32)
        findings |= agreement("file", first, values)
    path = Path(config.out)
    make_parent(path)
    # JSON knows no NaN, the only value that differs from itself.
    for name, value in findings.items():
        if value != value:
            findings[name] = None
    write_atomically(path, json.dumps(findings, indent=1) + "\n")
    return findings


def try_judge(judge: TextJudge, texts: Sequence[str], seed: int, count: int) -> tuple[np.ndarray, dict[str, Any]]:
    """A judge's labels of texts; and what they, the same texts once more, and pairs in both orders show."""
    begin = time.monotonic()
    answers = judge.label(texts)
    seconds = time.monotonic() - begin
    value = answers.value
    findings: dict[str, Any] = {
        "texts": len(texts),
        "failed": float(answers.failed.mean()),
        "unsure": float((np.isnan(value) & ~answers.failed).mean()),
        "positive": mean(value[~np.isnan(value)] > 0.5),
        "tokens an answer": answers.tokens / len(texts),
        "seconds an answer": seconds / len(texts),
        **agreement("asked twice", value, judge.label(texts).value),
    }
    if answers.failure:
        findings["first failure"] = answers.failure
    if len(texts) > 1:
        first, second = zip(*draw_pairs(texts, count, seed))
        in_order = judge.compare(first, second).value
        swapped = 1 - judge.compare(second, first).value
        both = ~(np.isnan(in_order) | np.isnan(swapped))
        findings |= {
            "pairs": len(first),
            "pairs unanswered": mean(np.isnan(in_order)),
            "pairs equal": mean(in_order == 0.5),
            "order swapped: same": mean(in_order[both] == swapped[both]),
            "order swapped: compared": int(both.sum()),
        }
    return value, findings


def labels_of(name: str, options: dict[str, Any], texts: Sequence[str]) -> np.ndarray:
    """The labels of another judge."""
    with closing(make_judge(name, **options)) as judge:
        values: np.ndarray = judge.label(texts).value
        return values


def agreement(name: str, one: np.ndarray, two: np.ndarray) -> dict[str, Any]:
    """Share of equal labels among what both answered, Cohen's kappa, and how many that were; NaN where undefined."""
    both = ~(np.isnan(one) | np.isnan(two))
    first = one[both] > 0.5
    second = two[both] > 0.5
    same = mean(first == second)
    # The agreement of two judges that answer at random as often with yes.
    chance = mean(first) * mean(second) + (1 - mean(first)) * (1 - mean(second))
    kappa = (same - chance) / (1 - chance) if chance < 1 else math.nan
    return {f"{name}: same": same, f"{name}: kappa": kappa, f"{name}: compared": int(both.sum())}


def mean(values: np.ndarray) -> float:
    """Mean, NaN of nothing."""
    return float(values.mean()) if len(values) else math.nan


def table(findings: dict[str, Any]) -> str:
    """The findings, one a line."""
    width = max(map(len, findings))
    lines = []
    for name, value in findings.items():
        if value is None:
            value = "-"
        elif isinstance(value, float):
            value = f"{value:.3f}"
        lines.append(f"{name:<{width}}  {value}")
    return "\n".join(lines)


def run(config: AnnotateConfig) -> None:
    """Annotate or audit."""
    if config.audit:
        print(table(audit(config)))
    else:
        annotate(config)


main = Command(AnnotateConfig, run, __doc__, stopped="stopped; the same command continues from here", busy="")

if __name__ == "__main__":
    sys.exit(main())
