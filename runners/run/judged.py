"""What a run had of its judges: sentences for its end, entries of result.json, and a mark on comparisons.

Training never waits for a judge. A run whose judge answered nothing therefore ends like any other, and its scores are
those of a run without that reward.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewards.mix.mix import Mix

# The entry of a policy's scores: reward -> a `JudgeUse` and two shares.
JUDGES_ENTRY = "judges"


def judge_results(mix: "Mix") -> dict[str, Any]:
    """What result.json holds of a run's judges, to be added to its scores; nothing for a run without any."""
    results = {}
    for name, use in mix.judge_use().items():
        result = asdict(use)
        result["answered_share"] = use.answered / use.asked if use.asked else None
        result["captions_labelled_share"] = use.captions_labelled / use.captions if use.captions else None
        results[name] = result
    return {JUDGES_ENTRY: results} if results else {}


def judge_sentences(scores: Mapping[str, Any]) -> list[str]:
    """A sentence about each judge: what was asked, and what came of it."""
    return [_sentence(name, use) for name, use in scores.get(JUDGES_ENTRY, {}).items()]


def no_label_sentences(scores: Mapping[str, Any]) -> list[str]:
    """A sentence about each reward that was trained without a single label; the scores may be a stranger's file."""
    uses = scores.get(JUDGES_ENTRY)
    if not isinstance(uses, Mapping):
        return []
    consequence = "these scores are those of a run without that reward, and a comparison says nothing about it"
    sentences = []
    for name, use in uses.items():
        if isinstance(use, Mapping) and use.get("labels") == 0:
            sentences.append(f"{name} had no label of its judge: {consequence}")
    return sentences


def _sentence(name: str, use: Mapping[str, Any]) -> str:
    parts = [f"{use['answered']:,} of {use['asked']:,} questions were answered"]
    if use["cached"]:
        parts.append(f"{use['cached']:,} labels were there before")
    if use["captions"] is not None:
        parts.append(f"{use['captions_labelled']:,} of {use['captions']:,} captions met have a label")
    if use["rewarded"] is not None:
        parts.append(f"{use['rewarded']:.1%} of the steps were rewarded")
    if use["late"]:
        parts.append(f"the labels of {use['late']:,} steps came after them")
    if use["failure"] and use["answered"] < use["asked"]:
        parts.append(f"the latest failure: {use['failure']}")
    return f"{name}: {', '.join(parts)}"
