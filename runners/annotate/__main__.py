"""Let a judge label the captions of a recording, or find out how far a judge can be trusted.

    python -m runners.record env=NetHackScore-v0 policy=random steps=20000 text=true out=play.safetensors
    python -m runners.annotate record=play.safetensors judge=openai judge.model=qwen3-8b out=labels.jsonl dry_run=true
    python -m runners.annotate record=play.safetensors judge=openai judge.model=qwen3-8b out=labels.jsonl
    python -m runners.annotate audit=labels.jsonl judge=openai judge.model=qwen3-8b against=rules out=audit.json

Each different caption is asked about once. Stopped at any moment, the same command continues. Rewards read the file as
judge=recorded judge_options={path:labels.jsonl}. An audit asks about n= texts again:

    asked twice     the same texts once more
    reworded        the second wording of the question, for judges that have one
    order swapped   pairs in the other order; a judge that prefers a place answers the same number twice
    another judge   `against=`, and the labels of the file itself where it has some

Agreement is the share of equal answers among the texts that both answered, and Cohen's kappa, which subtracts what
chance would give: where one text in a hundred is good, "no" to all agrees in 99 % and has a kappa of 0.
When it fails: judges that agree may be wrong together.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from rewards.llm.judges.base import Answers, TextJudge, make_judge
from runners.annotate.labels import AnnotateConfig, annotate, drawn, labels, preflight, read
from runners.cli.command import Command
from runners.run.config import UsageError


def audit(config: AnnotateConfig) -> dict[str, Any]:
    """Try a judge on texts and pairs; writes the findings to `config.out` and returns them."""
    known = read(config.audit)
    options = config.options(known)
    rng = np.random.default_rng(config.seed)
    chosen = np.sort(rng.choice(len(known.texts), min(config.n, len(known.texts)), replace=False))
    texts = [known.texts[i] for i in chosen.tolist()]
    with closing(make_judge(config.judge, **options)) as judge:
        if config.dry_run:
            raise UsageError(f"dry_run is for record=; an audit asks about {len(texts)} texts two to four times")
        if not judge.local:
            preflight(config.judge, options, texts[0])
        findings = tried(judge, texts, config.seed, config.n)
        findings = {"judge": judge.identity, "file": config.audit, **findings}
        first = findings.pop("_first")
    if "reworded" in inspect.signature(type(judge)).parameters:
        other = asked(config.judge, {**options, "reworded": not options.get("reworded", False)}, texts)
        findings |= agreement("reworded", first, other)
    if config.against:
        family = {key: options[key] for key in ("goal", "family")}
        other = asked(config.against, {**family, **config.against_options}, texts)
        findings |= agreement("against", first, other) | {"against": config.against}
    if config.audit.endswith(".jsonl"):
        recorded = {row["text"]: row["value"] for row in labels(config.audit) if row.get("other") is None}
        value = np.array([math.nan if recorded.get(text) is None else recorded[text] for text in texts], np.float32)
        findings |= agreement("file", first, value)
    path = Path(config.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    findings = {name: None if value != value else value for name, value in findings.items()}  # JSON knows no NaN
    path.write_text(json.dumps(findings, indent=1) + "\n", encoding="utf-8")
    return findings


def tried(judge: TextJudge, texts: Sequence[str], seed: int, count: int) -> dict[str, Any]:
    """A judge's labels of texts, of the same texts again, and of pairs in both orders; `_first` holds its labels."""
    begun = time.monotonic()
    first = judge.label(texts)
    seconds = time.monotonic() - begun
    again = judge.label(texts)
    value = usable(first)
    found: dict[str, Any] = {
        "texts": len(texts),
        "failed": float(first.failed.mean()),
        "unsure": float((np.isnan(first.value) & ~first.failed).mean()),
        "positive": mean(value[~np.isnan(value)] > 0.5),
        "tokens an answer": first.tokens / len(texts),
        "seconds an answer": seconds / len(texts),
        "_first": value,
        **agreement("asked twice", value, usable(again)),
    }
    if first.failure:
        found["first failure"] = first.failure
    if len(texts) > 1:
        one, two = zip(*drawn(texts, count, seed))
        there, back = usable(judge.compare(one, two)), 1 - usable(judge.compare(two, one))
        both = ~(np.isnan(there) | np.isnan(back))
        found |= {"pairs": len(one), "pairs unanswered": mean(np.isnan(there)), "pairs equal": mean(there == 0.5)}
        found |= {"order swapped: same": mean(there[both] == back[both]), "order swapped: compared": int(both.sum())}
    return found


def asked(name: str, options: dict[str, Any], texts: Sequence[str]) -> np.ndarray:
    """The labels of another judge."""
    with closing(make_judge(name, **options)) as judge:
        return usable(judge.label(texts))


def usable(answers: Answers) -> np.ndarray:
    """The values, NaN also where an answer failed."""
    return np.where(answers.failed, np.nan, answers.value)


def agreement(name: str, one: np.ndarray, two: np.ndarray) -> dict[str, Any]:
    """Share of equal labels among what both answered, Cohen's kappa, and how many that were; NaN where undefined."""
    both = ~(np.isnan(one) | np.isnan(two))
    a, b = one[both] > 0.5, two[both] > 0.5
    same, chance = mean(a == b), mean(a) * mean(b) + (1 - mean(a)) * (1 - mean(b))
    kappa = (same - chance) / (1 - chance) if chance < 1 else math.nan
    return {f"{name}: same": same, f"{name}: kappa": kappa, f"{name}: compared": int(both.sum())}


def mean(values: np.ndarray) -> float:
    """Mean, NaN of nothing."""
    return float(values.mean()) if len(values) else math.nan


def table(findings: dict[str, Any]) -> str:
    """The findings, one a line."""
    width = max(map(len, findings))
    cells = {k: "-" if v is None else f"{v:.3f}" if isinstance(v, float) else v for k, v in findings.items()}
    return "\n".join(f"{name:<{width}}  {cell}" for name, cell in cells.items())


def run(config: AnnotateConfig) -> None:
    """Annotate or audit."""
    if config.audit:
        print(table(audit(config)))
    else:
        annotate(config)


main = Command(AnnotateConfig, run, __doc__, stopped="stopped; the same command continues from here")

if __name__ == "__main__":
    sys.exit(main())
