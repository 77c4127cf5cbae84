"""Find principles for `reward=rubric` in recorded comparisons, weigh some by them, or write them in another form.

    lodestar rubric comparisons=pairs.jsonl judge=openai judge.model=qwen3-4b-instruct out=rubric.txt
    lodestar rubric comparisons=pairs.jsonl principles=mine.txt judge=rules out=rubric.txt
    lodestar rubric principles=rubric.txt out=rubric.json          the form of OpenEnv's rubrics, or back

A comparison is a line of JSON: {"text": ..., "other": ..., "value": 1 where the other is better, 0 where the first is}.
A text is one caption, or several with line breaks between; `lodestar annotate pairs=200` and people write such files.
A language model proposes principles from a part of the pairs. Of all, also those that were given, the ones are kept
that predict the held-out pairs better than chance, with the log-odds as their weights.
"""

import random
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lodestar.settings import Settings, setting
from rewards.language.principles import Principle, read_principles, write_principles
from rewards.language.proposals import JudgedPair, keep, measure, propose, read_comparisons
from rewards.llm.client import JudgeError
from rewards.llm.judges.base import make_judge
from rewards.llm.judges.principles import PrincipleModel
from rewards.llm.store import AnswerStore
from runners.cli.command import Command
from runners.run.checkpoint import write_atomically
from runners.run.config import UsageError, Values


@dataclass
class RubricFileConfig(Settings):
    """What is read, who is asked, and what is written."""

    out: str = setting(help="the file to write: *.txt, or *.json in the form of OpenEnv's rubrics")
    comparisons: str = setting("", "pairs of pieces of behaviour and which is better, *.jsonl")
    principles: str = setting("", "principles to weigh, a file or themselves; without, a model proposes some")
    judge: str = setting("openai", "who answers which principle holds: openai, local, rules or recorded")
    judge_options: Values = setting({}, "its options, as in judge.model=qwen3-4b-instruct")
    held_out: float = setting(0.5, "share of the pairs that proposals are tried on", "(0, 1)")
    at_once: int = setting(10, "pairs in one question that asks for principles", ">= 1")
    most: int = setting(5, "principles of one such question", ">= 1")
    level: float = setting(0.05, "greatest probability that chance predicts the held-out pairs as well", "(0, 1)")
    cache: str = setting("labels.sqlite", "SQLite file of answers: none is asked for twice")
    seed: int = setting(0, "of which pairs are held out", ">= 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.comparisons or self.principles):
            raise UsageError("there is nothing to read; give comparisons=, principles= or both")
        if self.comparisons and not Path(self.comparisons).is_file():
            raise UsageError(f"comparisons={self.comparisons} is no file; give JSON lines of text, other and value")


def make_rubric(config: RubricFileConfig) -> None:
    """Write the file."""
    given = read_principles(config.principles) if config.principles else []
    principles = given
    if config.comparisons:
        principles = _find(config, given)
    write_atomically(Path(config.out), write_principles(config.out, principles))
    print(f"{config.out}: {len(principles)} principles")


def _find(config: RubricFileConfig, given: list[Principle]) -> list[Principle]:
    """The principles that were given or proposed and predict better than chance."""
    comparisons = read_comparisons(config.comparisons)
    patterns = {}
    for principle in given:
        if principle.pattern:
            patterns[principle.text] = principle.pattern
    options = dict(config.judge_options)
    if config.judge == "rules":
        options.setdefault("patterns", patterns)
    texts = [principle.text for principle in given]
    with (
        closing(make_judge(config.judge, "principles", **options)) as judge,
        closing(AnswerStore(config.cache)) as store,
    ):
        try:
            if not texts:
                proposals, comparisons = _split(config, comparisons)
                if not isinstance(judge, PrincipleModel):
                    raise UsageError(f"judge={config.judge} proposes nothing; give principles=, or judge=openai")
                texts = propose(judge, proposals, config.at_once, config.most)
            findings = measure(judge, texts, comparisons, store)
        except JudgeError as error:
            raise UsageError(f"judge={config.judge} gave no answer: {error}") from None
    for finding in findings:
        print(f"{finding.right:4} right {finding.wrong:4} wrong  p={finding.chance:.3f}  {finding.text}")
    kept = keep(findings, config.level)
    if not kept:
        raise UsageError(
            f"none of {len(findings)} principles predicts {len(comparisons)} held-out pairs better than chance at "
            f"level={config.level:g}; give more comparisons, or other principles"
        )
    with_patterns = []
    for principle in kept:
        with_patterns.append(principle._replace(pattern=patterns.get(principle.text, "")))
    return with_patterns


def _split(config: RubricFileConfig, comparisons: list[JudgedPair]) -> tuple[list[JudgedPair], list[JudgedPair]]:
    """The comparisons that proposals come from, and those that are held out."""
    shuffled = random.Random(config.seed).sample(comparisons, len(comparisons))
    held_out = round(config.held_out * len(shuffled))
    if not 0 < held_out < len(shuffled):
        raise UsageError(
            f"held_out={config.held_out:g} of {len(shuffled)} comparisons leaves none on one side; give more of them"
        )
    return shuffled[held_out:], shuffled[:held_out]


main = Command(RubricFileConfig, make_rubric, __doc__)

if __name__ == "__main__":
    sys.exit(main())
