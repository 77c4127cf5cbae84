"""Let a judge label the captions of a recording, or find out how far a judge can be trusted.

    python -m runners.record env=NetHackScore-v0 policy=random steps=20000 text=true out=play.safetensors
    python -m runners.annotate record=play.safetensors judge=openai judge.model=qwen3-8b out=labels.jsonl dry_run=true
    python -m runners.annotate record=play.safetensors judge=openai judge.model=qwen3-8b out=labels.jsonl
    python -m runners.annotate audit=labels.jsonl judge=openai judge.model=qwen3-8b against=rules out=audit.json

Each different caption is asked about once. A line of labels.jsonl is an answer as it comes; stopped at any moment, the
same command goes on where it was. Rewards read the file as judge=recorded judge_options={path:labels.jsonl}. keys:
    record=     a recording with texts; labels them
    audit=      a recording with texts, or a file of labels: asks about n= of its texts, twice, in other words and in
                the other order, and says how often the answers agree
    judge=      rules, recorded, openai, embedding, simulated (rules). Options as in judge.url=http://localhost:8000/v1
    out=        the file to write: labels *.jsonl, or the findings of an audit *.json
    goal=       what counts as progress, a sentence (the environment's own)
    world=      family of environments, such as nethack (the recording's)
    pairs=      ask which of two captions is better, this many pairs, drawn at random (0: ask about single captions)
    cache=      file of answers that runs share ("" for none) (labels.sqlite)
    dry_run=    only say how much would be asked (false)
    budget=, token_budget=     answers and tokens after which nothing more is asked; 0 for no limit (0)
    concurrency=  questions at the same time (8)
    patience=   seconds without any answer after which it gives up (600)
    n=          audit: texts, and pairs, to ask about (100)
    against=    audit: another judge to compare with, options as in against.path=labels.jsonl
    seed=       of what is drawn (0)
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rewards.llm.judges.base import Judge, make_judge
from runners.record import command, parsed
from runners.run.config import UsageError
from runners.run.exits import INTERRUPTED

Item = str | tuple[str, str]
NESTED = {"judge": "judge_options", "against": "against_options"}
EVERY = 5.0  # seconds between two lines of progress
ANSWER, SECONDS = 60, 1.0  # tokens and seconds that a model's answer is guessed to take, for a dry run


@dataclass
class AnnotateConfig:
    """One annotation or audit; the module's docstring explains the keys."""

    record: str = ""
    audit: str = ""
    judge: str = "rules"
    out: str = ""
    goal: str = ""
    world: str = ""
    pairs: int = 0
    cache: str = "labels.sqlite"
    dry_run: bool = False
    budget: int = 0
    token_budget: int = 0
    concurrency: int = 8
    patience: float = 600.0
    n: int = 100
    against: str = ""
    seed: int = 0
    judge_options: dict[str, Any] = field(default_factory=dict)
    against_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.record) == bool(self.audit):
            raise UsageError("give either record=, a recording to label, or audit=, a file to try a judge on")
        if not self.out and not self.dry_run:
            raise UsageError("out= is missing; name the file to write, as in out=labels.jsonl")
        for name, least in (("pairs", 0), ("budget", 0), ("token_budget", 0), ("concurrency", 1), ("n", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name}={getattr(self, name)} is out of range; give at least {least}")
        if not self.patience > 0:
            raise UsageError(f"patience={self.patience} is out of range; give seconds above 0")


@dataclass
class Texts:
    """Different captions, in the order in which they were met, and what the file knows of where they come from."""

    texts: list[str]
    goal: str = ""
    world: str = ""


def read(path: str) -> Texts:
    """The different texts of a recording or of a file of labels.

    Raises:
        UsageError: if there are none.
        ValueError: if the file is neither.
    """
    if not Path(path).is_file():
        raise UsageError(f"{path} is no file; give a recording (runners.record text=true) or a file of labels")
    known = Texts([])
    if path.endswith(".jsonl"):
        rows = labels(path)
        found = [text for row in rows for text in (row["text"], row.get("other")) if text]
    else:
        from envs import recording
        from envs.family import family_of
        from envs.make import spec_of

        batch, meta = recording.load(path)
        if batch.text is None:
            raise UsageError(f"{path} holds no texts; record it again with text=true")
        found = [text for text in batch.text.tolist() if text]
        if meta.get("env"):
            spec = spec_of(meta["env"])
            known.goal, known.world = family_of(spec).aim(spec), family_of(spec).name
    known.texts = list(dict.fromkeys(found))
    if not known.texts:
        raise UsageError(f"{path} holds no text but empty ones; there is nothing to ask about")
    return known


def labels(path: str) -> list[dict[str, Any]]:
    """The lines of a file of labels; a last one that was cut off is left out.

    Raises:
        ValueError: for a line that is no label.
    """
    rows = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        try:
            row = json.loads(line)
            if not isinstance(row["text"], str) or "value" not in row:
                raise KeyError("text")
        except (ValueError, KeyError, TypeError):
            if not line.endswith("\n"):
                break
            raise ValueError(f"{path}, line {number} is {line.strip()[:80]!r}; give text and value") from None
        rows.append(row)
    return rows


def annotate(config: AnnotateConfig) -> dict[str, Any]:
    """Label a recording; returns the counters."""
    from rewards.llm.annotation.annotator import Annotator

    known = read(config.record)
    options = asked_for(config, known)
    judge = make_judge(config.judge, **options)
    try:
        identity, local = judge.identity, judge.local
        items: list[Item] = drawn(known.texts, config.pairs, config.seed) if config.pairs else list(known.texts)
        items = missing(config.out, items, identity)
        if config.dry_run:
            return estimate(config, options, judge, known, items)
        if items and not local:
            preflight(config.judge, options, items[0])
    finally:
        judge.close()
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
    try:
        return ask(annotator, items, config, identity)
    finally:
        annotator.close()


def asked_for(config: AnnotateConfig, known: Texts) -> dict[str, Any]:
    """Options of the judge: the goal and the world that were given, or those of the file."""
    return {"goal": config.goal or known.goal, "world": config.world or known.world, **config.judge_options}


def drawn(texts: Sequence[str], count: int, seed: int) -> list[Item]:
    """`count` different pairs of different texts, in an order that chance decides; all of them if there are fewer."""
    rng = np.random.default_rng(seed)
    every = len(texts) * (len(texts) - 1) // 2
    if not every:
        raise UsageError(f"pairs={count} cannot be drawn from one text; record more")
    number = rng.choice(every, min(count, every), replace=False)
    later = ((1 + np.sqrt(1 + 8 * number)) // 2).astype(
        np.int64
    )  # pair number k is (later, earlier): a triangle's rows
    earlier = number - later * (later - 1) // 2
    swapped = rng.random(len(number)) < 0.5
    first, second = np.where(swapped, later, earlier).tolist(), np.where(swapped, earlier, later).tolist()
    return [(texts[i], texts[j]) for i, j in zip(first, second)]


def missing(out: str, items: list[Item], identity: str) -> list[Item]:
    """The items that a file of labels does not have yet; a line that was cut off is taken out of it.

    Raises:
        UsageError: if the labels there are somebody else's.
    """
    path = Path(out)
    if not out or not path.is_file():
        return items
    rows = labels(out)
    others = {row.get("judge") for row in rows} - {identity}
    if others:
        raise UsageError(f"{out} holds labels of {others.pop()!r}, this judge is {identity!r}; give another out=")
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
    have = {row["text"] if row.get("other") is None else (row["text"], row["other"]) for row in rows}
    return [item for item in items if item not in have]


def preflight(name: str, options: dict[str, Any], item: Item) -> None:
    """One question before all others.

    Raises:
        UsageError: if there is no usable answer.
    """
    judge = make_judge(name, **{**options, **({"attempts": 1} if name == "openai" else {})})
    try:
        answers = judge.label([item]) if isinstance(item, str) else judge.compare([item[0]], [item[1]])
    finally:
        judge.close()
    if answers.failed.any():
        raise UsageError(
            f"the judge {name} gave no usable answer to a first question: {answers.failure}; start the server, or "
            "correct judge.url and judge.model"
        )


def estimate(
    config: AnnotateConfig, options: dict[str, Any], judge: Judge, known: Texts, items: list[Item]
) -> dict[str, Any]:
    """Say what would be asked, and what it would cost."""
    from rewards.llm.store import LabelCache

    cached = 0
    if config.cache and Path(config.cache).is_file():
        cache = LabelCache(config.cache)
        cached = len(cache.get(judge.identity, items))
        cache.close()
    asked = len(items) - cached
    tokens, seconds = 0, 0.0
    if config.judge == "openai":
        tokens = asked * (int(np.mean([characters(options, item) for item in items])) // 4 + ANSWER) if items else 0
        seconds = asked * SECONDS / config.concurrency
    what = "pairs" if config.pairs else "texts"
    print(
        f"{config.record}: {len(known.texts):,} different texts; {len(items):,} {what} without a label in {config.out}"
    )
    print(f"in {config.cache or 'no cache'}: {cached:,}; to be asked: {asked:,}")
    guess = f"about {tokens:,} tokens and {seconds:,.0f} s (at {SECONDS:g} s an answer, {config.concurrency} at once)"
    print(f"that takes {guess if tokens else 'no tokens: the judge answers on this machine'}")
    return {"texts": len(known.texts), "items": len(items), "cached": cached, "asked": asked, "tokens": tokens}


def characters(options: dict[str, Any], item: Item) -> int:
    """Length of the question that a language model gets about an item."""
    from rewards.llm.judges import prompts

    world = prompts.world(options["world"])
    wording = "_reworded" if options.get("reworded") else ""
    template = prompts.question(("label" if isinstance(item, str) else "compare") + wording)[1]
    told = [options["goal"] or world.goal, world.knowledge, *([item] if isinstance(item, str) else item)]
    return len(template) + sum(map(len, told))


def ask(annotator: Any, items: list[Item], config: AnnotateConfig, identity: str) -> dict[str, Any]:
    """Hand everything to the annotator and write what comes back, as it comes."""
    left = annotator.offer(items, 0)
    begun = heard = said = time.monotonic()
    written = 0
    path = Path(config.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        while True:
            taken = annotator.take(0)
            for item, value in taken:
                text, other = (item, None) if isinstance(item, str) else item
                row = {"now": 0, "text": text, "other": other, "value": None if math.isnan(value) else value}
                file.write(json.dumps({**row, "judge": identity}) + "\n")
            file.flush()
            written += len(taken)
            counts, now = annotator.metrics(), time.monotonic()
            heard = now if taken or not counts["asked"] else heard  # a judge may take its time to start
            if written + counts["dropped"] >= left or (not taken and is_spent(config, counts)):
                break
            if now - heard > config.patience:
                raise UsageError(f"no answer came for {config.patience:g} s; {summary(config, counts, written, begun)}")
            if now - said > EVERY:
                said = now
                print(f"{written:,} of {left:,} labelled, {counts['failed']:.0f} failed", file=sys.stderr, flush=True)
            time.sleep(0.02)
    print(summary(config, counts, written, begun))
    return {**counts, "labels": written}


def is_spent(config: AnnotateConfig, counts: dict[str, float]) -> bool:
    """Whether a budget is used up and nothing is in the air."""
    in_the_air = counts["asked"] - counts["answered"] - counts["failed"]
    labels_spent = config.budget and counts["answered"] >= config.budget
    return bool(labels_spent or (config.token_budget and counts["tokens"] >= config.token_budget)) and in_the_air <= 0


def summary(config: AnnotateConfig, counts: dict[str, float], written: int, begun: float) -> str:
    """What was labelled, and what it cost."""
    return (
        f"{config.out}: {written:,} labels, {counts['unsure']:,.0f} of them unsure; {counts['cached']:,.0f} from "
        f"{config.cache or 'no cache'}, {counts['failed']:,.0f} failed questions, {counts['dropped']:,.0f} without a "
        f"label; {counts['tokens']:,.0f} tokens, {time.monotonic() - begun:.0f} s"
    )


def main(argv: list[str] | None = None) -> int:
    """Annotate or audit from the command line; returns the exit code."""

    def run(arguments: list[str]) -> None:
        config = parsed(AnnotateConfig, arguments, NESTED)
        if config.audit:
            from runners.annotate.audit import audit, table

            print(table(audit(config)))
        else:
            annotate(config)

    try:
        return command(__doc__, run, argv)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
