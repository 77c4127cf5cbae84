"""A lexicon from a user's own sentences: each is split into a subject and what is said of it.

    the red ball is on the green circle        "red ball", "on the green circle"
    a car at the flag                          "car", "at the flag"
    everything burns                           "", "everything burns"

The subject and the predicate then pass through the same sentence frames, denials, pairs and meaningless sentences as
the worlds of the models that ship. Synonyms are put in word by word.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from operator import methodcaller

from rewards.vision.training.lexicon import QUALITIES, THINGS, Attribute, Lexicon, Scene, SubjectNames, World
from rewards.vision.training.words import letters

# Where the predicate of a sentence without a verb begins.
PREPOSITIONS = (
    "above|at|behind|below|beside|between|in|inside|left|near|next|on|outside|"
    "over|right|touching|under|far|close|holding|carrying|standing|lying|hanging"
)
ARTICLE = re.compile(r"^(?:the|an?) ")
WITH_VERB = re.compile(r"(.+?) (?:is|are) (.+)")
WITHOUT_VERB = re.compile(rf"(.+?) ((?:{PREPOSITIONS})\b.*)")
# Ways to say one thing with synonyms, at most.
MAX_VARIANTS = 24
Synonyms = Mapping[str, Sequence[str]]


def split_sentence(sentence: str) -> tuple[str, str]:
    """The subject, without its article and empty where there is none to be found, and the predicate."""
    text = sentence.strip().rstrip(".!").lower()
    match = WITH_VERB.fullmatch(text) or WITHOUT_VERB.fullmatch(text)
    if match is None:
        return "", text
    return ARTICLE.sub("", match[1]), match[2]


def with_synonyms(text: str, synonyms: Synonyms) -> list[str]:
    """The text, and each of its variants with words exchanged, at most MAX_VARIANTS in all."""
    choices = [(word, *synonyms.get(word, ())) for word in text.split()]
    variants = []
    for words in product(*choices):
        variants.append(" ".join(words))
        if len(variants) == MAX_VARIANTS:
            break
    return variants


def taught_and_held_out(synonyms: Synonyms) -> tuple[Synonyms, Synonyms]:
    """The synonyms that training may use, and those for the test: the last one of each word."""
    taught = {}
    held_out = {}
    for word, others in synonyms.items():
        taught[word] = tuple(others[:-1])
        held_out[word] = tuple(others[-1:])
    return taught, held_out


def make_lexicon(
    env: str,
    sentences: Sequence[str],
    opposites: Sequence[tuple[str, str]],
    baselines: Sequence[str],
    synonyms: Synonyms,
) -> Lexicon:
    """The lexicon of one environment.

    Args:
        env: its id.
        sentences: each has a fact of `States` of that name, which says how true it is.
        opposites: pairs of these sentences.
        baselines: sentences that are true of every frame.
        synonyms: word -> other words for it.
    """
    taught, held_out = taught_and_held_out(synonyms)
    attributes = {}
    subjects = {}

    def wordings(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The wordings for training, and those for the test, which are the same where there are no others."""
        said = tuple(with_synonyms(text, taught))
        unseen = tuple(other for other in with_synonyms(text, held_out) if other not in said)
        return said, unseen or said

    for sentence in sentences:
        about, predicate = split_sentence(sentence)
        attributes[sentence] = Attribute(
            about, methodcaller("fact", sentence), *wordings(predicate), alone=not about, worlds=(env,)
        )
        subjects[about] = SubjectNames(lambda text: (env,), *wordings(about))
    pictures = {}
    for about, subject in subjects.items():
        own = [f"a {name}" for name in subject.said if name]
        # The empty subject is in every text.
        own += [text for text in baselines if about in text.lower()]
        pictures[about] = tuple(own or ("a picture",))
    names = tuple(attributes)
    half = len(names) // 2
    known = set(letters(" ".join([*sentences, *baselines])))
    return Lexicon(
        worlds=(World(env, (env,), _no_scenes, _no_scenes),),
        attributes=attributes,
        opposites=tuple(opposites),
        subjects=subjects,
        baselines=pictures,
        pairs=((names[:half], names[half:]),) if half else (),
        things=_without_words(THINGS, known),
        qualities=_without_words(QUALITIES, known),
    )


def _without_words(phrases: Sequence[str], words: set[str]) -> tuple[str, ...]:
    """The phrases none of whose words is among these."""
    return tuple(phrase for phrase in phrases if not words & {*letters(phrase)})


def _no_scenes(*_: object) -> Iterator[Scene]:
    """The states of a user's environment are collected before its lexicon is known."""
    return iter(())
