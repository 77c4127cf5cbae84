"""Train a small CLIP for an environment of your own, from sentences about its states.

    python -m runners.clip env=my_file:World-v0 captions=my_file:caption
    python -m runners.clip env=my_file:World-v0 captions=my_file:caption policy=my_file:script out=clips/world
    python -m runners.train env=my_file:World-v0 reward=clip reward.clip.weights=clips/my_file-World-v0

`caption(env)` says what is true of the state that your environment is in: a sentence, several, or a dict from sentences
to truths in [0, 1]. Goals that the environment declares are taught without it. The states come from random play, from
`policy` in every other episode, and from the family's `scatter`. It takes some minutes on one core.

The folder gets the weights and a card, README.md, with what the model is worth on new states, in other phrasings, and
with synonyms that training never used. Its supervision is your simulator: it is in-domain, not zero-shot.
"""

import sys
from typing import Any

from gymnasium.envs.registration import load_env_creator

from rewards.vision.training.lexicon import SYNONYMS
from rewards.vision.training.sentences import Synonyms, make_lexicon
from runners.cli.command import Command
from runners.clip.config import ClipTraining
from runners.run.config import UsageError


def train_clip(config: ClipTraining) -> dict[str, float]:
    """Collect states, train, write the model and its card; returns the card's figures."""
    # What is wrong with the sentences is said before torch is loaded.
    synonyms = read_synonyms(config.synonyms)
    from runners.clip.states import Sentences, StateSource

    source = StateSource(config)
    print(f"drawing {config.frames:,} states", flush=True)
    seen = source.collect(config.frames, config.seed)
    sentences = Sentences(source, seen)
    held_out = source.collect(max(config.frames // 5, 100), config.seed + 1_000_000)
    from runners.clip.card import write_card
    from runners.clip.train import train

    baselines = [*sentences.describer.baselines, *sentences.constant]
    lexicon = make_lexicon(config.env, sentences.taught, sentences.opposites, baselines, synonyms)
    seconds = train(config, sentences, seen, lexicon)
    return write_card(config, sentences, seen, held_out, lexicon, synonyms, seconds)


def read_synonyms(source: str) -> Synonyms:
    """Word -> others for it: the common ones, and those of the user's dict at module:name."""
    synonyms = dict(SYNONYMS)
    if not source:
        return synonyms
    # A user's file may raise anything.
    try:
        table: Any = load_env_creator(source)
        synonyms |= {str(word).lower(): tuple(others) for word, others in table.items()}
    except Exception as error:
        raise UsageError(
            f"synonyms={source} is no dict from words to lists of others ({type(error).__name__}: {error}); write "
            "SYNONYMS = {'ball': ['sphere', 'orb']}"
        ) from None
    return synonyms


def train_and_print(config: ClipTraining) -> None:
    """Train, and print what the model is worth and how it is used."""
    figures = train_clip(config)
    for name, value in figures.items():
        print(f"{name:<32}{value:8.2f}")
    print(f"card: {config.out}/README.md")
    print(f"use it: python -m runners.train env={config.env} reward=clip reward.clip.weights={config.out}")


main = Command(ClipTraining, train_and_print, __doc__, busy="drawing states and training")

if __name__ == "__main__":
    sys.exit(main())
