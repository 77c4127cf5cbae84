"""What every reward has in common that compares frames with sentences: the settings, the model, the sentences' checks.

A frame of a single colour shows nothing: it is the black picture of a broken renderer, or a screen between two scenes.
Its embedding and its reward are zero, `update` counts it, and refuses an update without any other frame.
"""

import re
import unicodedata
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig, Scored, valid_rows
from rewards.vision.encoder import shared_encoder
from rewards.vision.load import LODESTAR, TIMM, UNTRAINED, no_words
from rewards.vision.pictures import goal_frames, is_picture_goal

# The towers read 77 tokens at most.
MAX_TEXT_CHARACTERS = 500
# Unicode categories: control, format, surrogate, unassigned, private use.
UNREADABLE_CATEGORIES = ("Cc", "Cf", "Cs", "Cn", "Co")
# The fields that hold sentences, and what to write there.
EXAMPLES = {
    "goal": "say what the agent should reach, such as 'pole standing upright on the cart'",
    "baseline": "say what any frame shows, such as 'pole and cart'",
    "negative": "say the opposite of the goal, such as 'the pole is hanging down', or use reward=clip",
}


@dataclass
class VisionConfig(RewardConfig):
    """Settings of every reward that compares frames with sentences."""

    goal: str = setting(
        "",
        "what a frame should show, at most 500 characters; several sentences are separated by `|`; or a picture's file,"
        " a folder of pictures, or a recording, whose last steps show it",
    )
    shape: str = setting(None, "as of any reward; null: potential where a picture is the goal, else none")
    model: str = setting(
        LODESTAR,
        "`lodestar` or `lodestar-96`, the small models that ship (the command line takes the one that was taught the "
        "environment); a name of open_clip such as ViT-B-32; a folder; hf-hub:ORG/NAME; timm:NAME (pictures only)",
    )
    weights: str = setting("", "a file, a folder, a tag of open_clip such as `openai`, or `untrained`, the control")
    batch_size: int = setting(128, "frames per pass through the encoder; on a CPU each thread has its own", ">= 1")
    precision: str = setting("fp32", "the short ones are faster on a GPU", "fp32 | bf16 | fp16")

    def __post_init__(self) -> None:
        if self.shape is None:
            shown = any(map(is_picture_goal, sentences(self.goal)))
            self.shape = "potential" if shown else "none"
        super().__post_init__()
        for name, text in vars(self).items():
            if name not in EXAMPLES:
                continue
            label = f"{self.prefix}{name}"
            if len(text) > MAX_TEXT_CHARACTERS:
                problem = f"has {len(text)} characters, the limit is {MAX_TEXT_CHARACTERS}"
                raise ValueError(f"{label} {problem}; cut it")
            for place, character in enumerate(text):
                if unicodedata.category(character) in UNREADABLE_CATEGORIES:
                    problem = f"has the control character {character!a} at place {place}"
                    raise ValueError(f"{label} {problem}; write one line of plain text")


class Vision(Reward):
    """Base class of `clip` and `contrast`: a frame is its embedding, which sentences turn into a reward."""

    Config = VisionConfig
    config: VisionConfig
    requires = frozenset({"frame"})
    role = "goal"
    control = {"weights": UNTRAINED}
    embedding: str

    def build(self) -> None:
        config = self.config
        # Said before anything is downloaded.
        words = [part for part in sentences(config.goal) if not is_picture_goal(part)]
        if words and config.model.startswith(TIMM):
            raise no_words(config.model, words[0])
        self.encoder = shared_encoder(self, config.precision)
        self.frame_size = self.encoder.size
        # Those that the reward reads, for `notes`.
        self.sentences: list[str] = []
        self.embedding = self.encoder.name

    @abstractmethod
    def rate(self, seen: np.ndarray) -> np.ndarray | Scored:
        """Scores of embeddings, float32 (N, D); those are all zeros for a frame that shows nothing."""

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray | Scored:
        """Float32 (N,), from the embedding in `batch.extras` where it is, else from `batch.frame`."""
        return self.rate(self.frame_embeddings(batch))

    def frame_embeddings(self, batch: Transitions) -> np.ndarray:
        """Unit embeddings, float32 (N, D), or zeros."""
        embeddings = batch.extras.get(self.embedding)
        if embeddings is None:
            embeddings = self.embed(batch)
        return np.asarray(embeddings, np.float32)

    def embed(self, batch: Transitions) -> np.ndarray:
        """Unit embeddings of frames, float16 (N, D), zeros for one colour; ValueError if not uint8 (N, H, W, 3)."""
        return self.encoder.embed(batch.frame, self.config.batch_size, self.config.name)

    def update(self, batch: Transitions) -> dict[str, float]:
        """Count frames that show nothing (`blank`, their share since the last update); ValueError if all do."""
        rows = self.frame_embeddings(valid_rows(batch))
        if not len(rows):
            return {}
        return self.learn(rows[is_nonzero(rows)], len(rows))

    def learn(self, seen: np.ndarray, count: int) -> dict[str, float]:
        """Take in the n of `count` embeddings (n, D) that show something; returns metrics, ValueError if n is 0."""
        if not len(seen):
            raise ValueError(
                f"all {count} frames since the last update have a single colour, so there is nothing to see; MuJoCo on "
                "EGL draws black once another environment of the process was closed: keep all open, or one a process"
            )
        return {"blank": 1 - len(seen) / count}

    def notes(self) -> list[str]:
        if self.config.weights == UNTRAINED:
            return ["untrained weights, a control whose reward means nothing"]
        training = self.encoder.trained_on
        if training is None:
            return []
        lines = [training["supervision"]]
        for sentence in self.sentences:
            lines += self._warn_if_unfamiliar(sentence, training)
        return lines

    def _warn_if_unfamiliar(self, sentence: str, training: dict[str, Any]) -> list[str]:
        """A warning if a sentence is far from what was taught; it names the nearest phrase and the new words."""
        similarity = self.encoder.text(training["phrases"]) @ self.encoder.text([sentence])[0]
        nearest = int(similarity.argmax())
        words = re.findall("[a-z]+", sentence.lower().replace("'", ""))
        new_words = sorted(set(words) - set(training["words"]))
        if similarity[nearest] >= training["near"] and not new_words:
            return []
        lacks = ""
        if new_words:
            plural = "s" if len(new_words) > 1 else ""
            lacks = f", which lacks the word{plural} {', '.join(new_words)}"
        return [
            f"{sentence!r} is not like what this model was taught{lacks}; the nearest phrase it knows is "
            f"{training['phrases'][nearest]!r} (similarity {similarity[nearest]:.2f}); "
            "look at the reward before trusting it"
        ]

    def meanings(self, field: str) -> np.ndarray:
        """Unit embeddings (K, D) of a field's sentences, or of the pictures that show it.

        A ValueError if there is none, one that is too long for the model, or a picture that cannot be used.
        """
        name = f"{self.config.prefix}{field}"
        parts = sentences(getattr(self.config, field))
        if not parts:
            raise ValueError(f"{name} is empty; {EXAMPLES.get(field, 'write a sentence')}")
        embeddings = []
        for part in parts:
            if is_picture_goal(part):
                frames = goal_frames(part, self.encoder.size, name)
                embeddings.append(self.encoder.image(frames, self.config.batch_size).astype(np.float32))
            else:
                embeddings.append(self._read_sentence(part, name))
        return np.concatenate(embeddings)

    def _read_sentence(self, text: str, name: str) -> np.ndarray:
        """The unit embedding (1, D) of a sentence of an option."""
        if self.encoder.trained_on is not None and not text.isascii():
            letter = next(letter for letter in text if not letter.isascii())
            raise ValueError(
                f"{name} has {letter!r} in {text!r}, and {self.config.model} was taught English in plain letters; "
                "translate it, or take a public model"
            )
        excess = self.encoder.excess(text)
        if excess:
            raise ValueError(f"{name} is {excess} tokens longer than {self.config.model} reads: {text!r}; cut it")
        self.sentences.append(text)
        return self.encoder.text([text])


def sentences(text: str) -> list[str]:
    """The sentences of a field, which `|` separates."""
    return list(filter(None, map(str.strip, text.split("|"))))


def is_nonzero(seen: np.ndarray) -> np.ndarray:
    """Which embeddings, float32 (N, D), are of a frame that shows something; bool (N,)."""
    return np.einsum("nd,nd->n", seen, seen) > 0


def unit_mean(vectors: np.ndarray) -> np.ndarray:
    """The mean of (K, D), scaled back to length one."""
    mean = vectors.mean(0)
    return mean / np.linalg.norm(mean)
