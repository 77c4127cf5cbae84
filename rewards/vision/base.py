"""What every reward has in common that compares frames with sentences: the settings, the model, the sentences' checks.

A frame of a single colour shows nothing: it is the black picture of a broken renderer, or a screen between two scenes.
Its embedding and its reward are zero, `update` counts it, and refuses an update without any other frame.
"""

import re
import unicodedata
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig, Scored
from rewards.vision.encoder import LODESTAR, UNTRAINED, shared

LONGEST = 500  # characters; the towers read 77 tokens at most


@dataclass
class VisionConfig(RewardConfig):
    """Settings of every reward that compares frames with sentences."""

    SENTENCES: ClassVar[tuple[str, ...]] = ("goal",)  # the fields that hold some
    goal: str = setting("", "what a frame should show, at most 500 characters; several sentences are separated by `|`")
    model: str = setting(
        LODESTAR,
        "`lodestar` or `lodestar-96`, the small models that ship (the command line takes the one that was taught the "
        "environment), or a name of open_clip such as ViT-B-32",
    )
    weights: str = setting("", "a file, a folder, a tag of open_clip such as `openai`, or `untrained`, the control")
    batch_size: int = setting(128, "frames per pass through the encoder; on a CPU each thread has its own", low=1)
    precision: str = setting("fp32", "the short ones are faster on a GPU", choices=("fp32", "bf16", "fp16"))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.SENTENCES:
            text = getattr(self, name)
            if len(text) > LONGEST:
                raise ValueError(f"{self.prefix}{name} has {len(text)} characters, the limit is {LONGEST}; cut it")
            if strange := next((c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Cn", "Co")), None):
                what = f"the control character {strange!a} at place {text.index(strange)}"
                raise ValueError(f"{self.prefix}{name} has {what}; write one line of plain text")


class Vision(Reward):
    """Base class of `clip` and `contrast`: a frame is its embedding, which sentences turn into a reward."""

    Config = VisionConfig
    config: VisionConfig
    requires = frozenset({"frame"})
    role = "goal"
    control = {"weights": UNTRAINED}

    def build(self) -> None:
        config = self.config
        about: dict[str, Any] = {"device": self.device, "precision": config.precision, "reward": config.name}
        self.encoder = shared(config.model, config.weights, seed=self.seed, **about)
        self.frame_size = self.encoder.size
        self.sentences: list[str] = []  # those that the reward reads
        self.embedding = self.encoder.name

    @abstractmethod
    def rate(self, seen: np.ndarray) -> np.ndarray | Scored:
        """Scores of embeddings, float32 (N, D); those are all zeros for a frame that shows nothing."""

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray | Scored:
        """Float32 (N,), from the embedding in `batch.extras` where it is, else from `batch.frame`."""
        return self.rate(self.seen(batch))

    def seen(self, batch: Transitions) -> np.ndarray:
        """Unit embeddings, float32 (N, D), or zeros."""
        kept = batch.extras.get(str(self.embedding))
        return np.asarray(self.embed(batch) if kept is None else kept, np.float32)

    def embed(self, batch: Transitions) -> np.ndarray:
        """Unit embeddings of frames, float16 (N, D), zeros for one colour; ValueError if not uint8 (N, H, W, 3)."""
        return self.encoder.embed(batch.frame, self.config.batch_size, self.config.name)

    def update(self, batch: Transitions) -> dict[str, float]:
        """Count frames that show nothing (`blank`, their share since the last update); ValueError if all do."""
        flat = batch.flatten()
        rows = self.seen(flat)[flat.valid]
        return self.learn(rows[shows(rows)], len(rows)) if len(rows) else {}

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
        known = self.encoder.trained_on
        if known is None:
            return []
        lines = [known["supervision"]]
        for sentence in self.sentences:
            lines += self._unfamiliar(sentence, known)
        return lines

    def _unfamiliar(self, sentence: str, known: dict[str, Any]) -> list[str]:
        """A warning if a sentence is far from what was taught; it names the nearest phrase and the new words."""
        closeness = self.encoder.text(known["phrases"]) @ self.encoder.text([sentence])[0]
        best = int(closeness.argmax())
        new = sorted(set(re.findall("[a-z]+", sentence.lower().replace("'", ""))) - set(known["words"]))
        if closeness[best] >= known["near"] and not new:
            return []
        unknown = f", which lacks the word{'s' * (len(new) > 1)} {', '.join(new)}" if new else ""
        return [
            f"{sentence!r} is not like what this model was taught{unknown}; the nearest phrase it knows is "
            f"{known['phrases'][best]!r} (similarity {closeness[best]:.2f}); look at the reward before trusting it"
        ]

    def meanings(self, field: str) -> np.ndarray:
        """Unit embeddings (K, D) of a field's sentences; ValueError if there is none, or one too long for the model."""
        name, texts = f"{self.config.prefix}{field}", sentences(getattr(self.config, field))
        if not texts:
            raise ValueError(f"{name} is empty; {EXAMPLES.get(field, 'write a sentence')}")
        for text in texts:
            if self.encoder.trained_on is not None and not text.isascii():
                strange = next(letter for letter in text if not letter.isascii())
                raise ValueError(
                    f"{name} has {strange!r} in {text!r}, and {self.config.model} was taught English in plain letters; "
                    "translate it, or take a public model"
                )
            if excess := self.encoder.excess(text):
                raise ValueError(f"{name} is {excess} tokens longer than {self.config.model} reads: {text!r}; cut it")
        self.sentences += texts
        return self.encoder.text(texts)


EXAMPLES = {
    "goal": "say what the agent should reach, such as 'pole standing upright on the cart'",
    "baseline": "say what any frame shows, such as 'pole and cart'",
    "negative": "say the opposite of the goal, such as 'the pole is hanging down', or use reward=clip",
}


def sentences(text: str) -> list[str]:
    """The sentences of a field, which `|` separates."""
    return [part.strip() for part in text.split("|") if part.strip()]


def shows(seen: np.ndarray) -> np.ndarray:
    """Which embeddings, float32 (N, D), are of a frame that shows something; bool (N,)."""
    return np.einsum("nd,nd->n", seen, seen) > 0


def unit_mean(vectors: np.ndarray) -> np.ndarray:
    """The mean of (K, D), scaled back to length one."""
    mean = vectors.mean(0)
    return mean / np.linalg.norm(mean)
