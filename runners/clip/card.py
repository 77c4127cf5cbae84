"""What a model is worth where training did not look: new states, other phrasings, synonyms, beside its controls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rewards.compare import auroc
from rewards.vision.encoder import ClipEncoder
from rewards.vision.load import LOCAL, UNTRAINED
from rewards.vision.training.captions import Caption, Grammar, truth
from rewards.vision.training.lexicon import Lexicon, States
from rewards.vision.training.sentences import Synonyms, taught_and_held_out
from rewards.vision.training.words import letters
from runners.clip.config import ClipTraining
from runners.clip.states import Seen, Sentences, states_where_true

# Captions of every attribute in a split.
CAPTIONS_A_SPLIT = 5
# Held-out states of which a sentence has to be true, and false, before it is measured.
MIN_STATES = 3
FRAMES_A_PASS = 128
GIBBERISH_SENTENCE = "qwv zzxk blorp"


@dataclass
class SentenceRow:
    """A sentence, the share of the training states of which it is true, and its AUROC on held-out states."""

    sentence: str
    share: float
    auroc: float = math.nan
    # The same of the untrained model, and of a sentence without meaning.
    untrained: float = math.nan
    gibberish: float = math.nan


class HeldOutScores:
    """Cosines of sentences and the frames of held-out states."""

    def __init__(self, folder: str, weights: str, frames: np.ndarray) -> None:
        self.encoder = ClipEncoder(f"{LOCAL}{folder}", weights)
        self.seen = self.encoder.image(frames, FRAMES_A_PASS).astype(np.float32)

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """Float32 (sentences, N)."""
        return self.encoder.text(list(sentences)) @ self.seen.T


def write_card(
    config: ClipTraining,
    sentences: Sentences,
    seen: list[Seen],
    held_out: list[Seen],
    lexicon: Lexicon,
    synonyms: Synonyms,
    seconds: float,
) -> dict[str, float]:
    """Measure the model on held-out states and write README.md beside it; returns the figures."""
    frames = np.stack([state.frame for state in held_out])
    trained = HeldOutScores(config.out, "", frames)
    untrained = HeldOutScores(config.out, UNTRAINED, frames)
    nonsense = trained([GIBBERISH_SENTENCE])[0]
    rows = []
    for text in sentences.sentences:
        row = SentenceRow(text, float(states_where_true(text, seen).mean()))
        holds = states_where_true(text, held_out)
        if MIN_STATES <= holds.sum() <= len(holds) - MIN_STATES:
            row.auroc = auroc(trained([text])[0], holds)
            row.untrained = auroc(untrained([text])[0], holds)
            row.gibberish = auroc(nonsense, holds)
        rows.append(row)
    # Of the first goal, or of the sentence that was said first.
    figures = {"goal": rows[0].auroc}
    for name in ("auroc", "untrained", "gibberish"):
        figures[name] = _mean([getattr(row, name) for row in rows])
    states = sentences.states(held_out)
    for split, captions in split_captions(lexicon, synonyms).items():
        figures[split] = _mean(measure(lexicon, trained, captions, states))
    figures["cpu_s"] = seconds
    text = card_text(config, rows, figures, len(frames), sentences.constant)
    (Path(config.out) / "README.md").write_text(text, encoding="utf-8")
    return figures


def split_captions(lexicon: Lexicon, synonyms: Synonyms) -> dict[str, list[Caption]]:
    """Split -> captions: phrasings, denials and synonyms that training never used."""
    phrasings = Grammar(lexicon, np.random.default_rng(1), held_out="phrasings")
    others = Grammar(lexicon, np.random.default_rng(1), held_out="synonyms")
    _, held_out = taught_and_held_out(synonyms)
    new_words = set()
    for texts in held_out.values():
        for text in texts:
            new_words.update(letters(text))
    splits: dict[str, list[Caption]] = {"phrasings": [], "denials": [], "synonyms": []}
    for name in lexicon.attributes:
        for _ in range(CAPTIONS_A_SPLIT):
            splits["phrasings"].append(phrasings.clause(name))
            splits["denials"].append(phrasings.clause(name, denied=True))
            caption = others.clause(name)
            if new_words & {*letters(caption.text)} - {*letters(name)}:
                splits["synonyms"].append(caption)
    return splits


def measure(lexicon: Lexicon, scores: HeldOutScores, captions: list[Caption], states: States) -> list[float]:
    """The AUROC of each caption whose truth is above and below one half in some of the states."""
    areas = []
    truths, _ = truth(lexicon, captions, states)
    for caption, holds in zip(captions, truths >= 0.5):
        if MIN_STATES <= holds.sum() <= len(holds) - MIN_STATES:
            areas.append(auroc(scores([caption.text])[0], holds))
    return areas


def _mean(values: list[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")


def card_text(
    config: ClipTraining, rows: list[SentenceRow], figures: dict[str, float], states: int, constant: list[str]
) -> str:
    """The card in Markdown."""
    splits = {
        "as taught, in new states": "auroc",
        "in phrasings that training never used": "phrasings",
        "denied, in such phrasings": "denials",
        "with synonyms that training never used": "synonyms",
        "control: the same model untrained": "untrained",
        f"control: {GIBBERISH_SENTENCE!r} in place of each sentence": "gibberish",
    }
    split_rows = "\n".join(f"| {split} | {figures[name]:.2f} |" for split, name in splits.items())
    sentence_lines = []
    for row in rows:
        sentence_lines.append(f"| {row.sentence} | {row.share:.1%} | {row.auroc:.2f} | {row.untrained:.2f} |")
    sentence_rows = "\n".join(sentence_lines)
    text = f"""# A small CLIP of {config.env}

It reads a sentence, looks at a frame, and says how well they fit. **It is in-domain, not zero-shot**: its
captions were made from the simulator's state. It knows nothing of other environments.

    lodestar train env={config.env} reward=clip reward.clip.weights={config.out}

Trained on {config.frames:,} states for {figures["cpu_s"]:.0f} CPU-seconds (seed {config.seed}). An AUROC is
the chance that a state of which the sentence is true scores higher than another. It is measured on
{states:,} states of other episodes. `nan`: these states, or the synonyms, have nothing to measure it with.

| sentences | AUROC, mean |
| --- | --- |
{split_rows}

| sentence | true of | AUROC | untrained |
| --- | --- | --- | --- |
{sentence_rows}
"""
    if constant:
        text += f"\nNever seen to change, so not learnt: {', '.join(constant)}.\n"
    return text
