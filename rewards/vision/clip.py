"""A sentence as the reward: how much the frame looks like the goal, as CLIP sees both.

Source: Rocamonde et al. 2023, "Vision-Language Models are Zero-Shot Reward Models for Reinforcement Learning" (VLM-RM),
arXiv 2310.12921, sections 3 and 3.2 (goal-baseline regularisation).

Differences from the source:
  - several sentences, separated by `|`, are averaged and the mean is scaled back to length one, so that alpha=0 stays a
    cosine;
  - the reward speaks of the frame of next_obs, also at an episode's end, where the source pays for the next episode's
    first;
  - the projection is computed from two scalars a frame instead of a D x D matrix;
  - embeddings are kept in half precision and can be scored again with another sentence, without the frames;
  - the default model is our own small one. It is in-domain: taught with captions made from simulator state. Only with
    public weights (`model=ViT-B-32 weights=...`) is this the source's zero-shot reward.

When it fails: a sentence far from anything the model was taught (`notes` says so); a goal that one frame cannot show,
such as a speed; a terminating task, since a reward per step is paid the longer the episode lasts (take shape=potential
or delta).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from envs.types import Memory, Transitions
from rewards.base import Reward, RewardConfig
from rewards.vision.encoder import LODESTAR, UNTRAINED, Encoder

LONGEST = 500  # characters; the towers read 77 tokens at most
PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass
class ClipConfig(RewardConfig):
    """Settings of `clip`; VLM-RM's value in brackets.

    Attributes:
        goal: what a frame should show, at most 500 characters; several sentences separated by `|` are averaged.
        baseline: what any frame shows, in the same form; needed where alpha > 0.
        alpha: goal-baseline regularisation, in [0, 1]: 0 is the plain cosine, 1 looks only along the line from baseline
            to goal [tuned per task, 0 to 1].
        model: `lodestar` for the small model that ships, or a name of open_clip such as ViT-B-32 [ViT-bigG-14].
        weights: a file, a folder (`local-dir:<folder>`), a tag of open_clip such as `openai`, or `untrained` for the
            control; empty for the shipped ones.
        batch_size: frames per pass through the encoder.
        precision: `fp32`, `bf16` or `fp16`; the short ones pay on a GPU.
    """

    goal: str = ""
    baseline: str = ""
    alpha: float = 0.0
    model: str = LODESTAR
    weights: str = ""
    batch_size: int = 256
    precision: str = "fp32"

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"reward.clip.alpha={self.alpha} is outside [0, 1]; 0 is the plain cosine")
        if self.batch_size < 1:
            raise ValueError(f"reward.clip.batch_size={self.batch_size} is not a number of frames; give 1 or more")
        if self.precision not in PRECISIONS:
            raise ValueError(f"reward.clip.precision={self.precision!r} is none of {', '.join(PRECISIONS)}")
        for name in ("goal", "baseline"):
            text = getattr(self, name)
            if len(text) > LONGEST:
                raise ValueError(
                    f"reward.clip.{name} has {len(text)} characters, the limit is {LONGEST}; CLIP reads sentences"
                )


class Clip(Reward):
    """Goal reward in the eyes of CLIP.

    R = 1 - |alpha * proj_L(s) + (1 - alpha) * s - g|^2 / 2, with the unit embeddings s of the frame, g of the goal and
    b of the baseline, and L the line through b and g. Cosines of `lodestar` spread over about [-0.3, 0.8], those of
    public models over a few hundredths: scale or shape the latter.
    """

    Config = ClipConfig
    config: ClipConfig
    requires = frozenset({"frame"})
    role = "goal"
    embedding = "clip"
    control = {"weights": UNTRAINED}

    def __init__(
        self,
        config: ClipConfig,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, observation_space, action_space, seed=seed, device=device)
        if not _sentences(config.goal):
            raise ValueError(
                "reward.clip.goal is empty; say what the agent should reach, such as "
                'reward.clip.goal="pole standing upright on the cart"'
            )
        if config.alpha > 0 and not _sentences(config.baseline):
            raise ValueError(
                f"reward.clip.alpha={config.alpha} needs reward.clip.baseline, what any frame shows ('pole and cart'); "
                "or set alpha=0"
            )
        self.encoder = Encoder(config.model, config.weights, seed=seed, device=device, precision=config.precision)
        self.frame_size = self.encoder.size
        self.goal = self._mean(config.goal, "goal")
        self.baseline = self._mean(config.baseline, "baseline") if _sentences(config.baseline) else None
        if config.alpha > 0 and self.baseline is not None and np.allclose(self.goal, self.baseline, atol=1e-4):
            raise ValueError(
                f"goal and baseline mean the same ({config.goal!r}, {config.baseline!r}); change one or set alpha=0"
            )

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        """Float32 (N,), from `batch.extras["clip"]` where it is, else from `batch.frame`."""
        seen = batch.extras.get("clip")
        if seen is None:
            seen = self.embed(batch)
        return goal_reward(np.asarray(seen, np.float32), self.goal, self.baseline, self.config.alpha)

    def embed(self, batch: Transitions) -> np.ndarray:
        """Unit embeddings of `batch.frame`, float16 (N, D)."""
        if batch.frame is None:
            raise ValueError(
                f"clip reads frames, and this batch has none; make the environment with frame_size={self.frame_size}"
            )
        return self.encoder.image(batch.frame, self.config.batch_size)

    def notes(self) -> list[str]:
        """What supervised the model, and which sentence lies far from anything it was taught."""
        if self.config.weights == UNTRAINED:
            return ["untrained weights, a control whose reward means nothing"]
        known = self.encoder.trained_on
        if known is None:
            return []
        lines = [known["supervision"]]
        for sentence in _sentences(self.config.goal):
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

    def _mean(self, sentences: str, name: str) -> np.ndarray:
        texts = _sentences(sentences)
        for text in texts:
            if excess := self.encoder.excess(text):
                raise ValueError(
                    f"reward.clip.{name} is {excess} tokens longer than {self.config.model} reads: {text!r}; shorten it"
                )
        mean = self.encoder.text(texts).mean(0)
        return mean / np.linalg.norm(mean)


def _sentences(text: str) -> list[str]:
    return [part.strip() for part in text.split("|") if part.strip()]


def goal_reward(s: np.ndarray, g: np.ndarray, b: np.ndarray | None, alpha: float) -> np.ndarray:
    """VLM-RM's reward (definition 1 and its regularisation) from unit embeddings.

    With d the direction from b to g, u = (s - g).d and q = |s - g|^2, the part of s - g along the line is u and the
    rest has square q - u^2; the regularisation shrinks only the rest: R = 1 - (u^2 + (1 - alpha)^2 (q - u^2)) / 2.

    Args:
        s: frames, float32 (N, D).
        g: goal (D,).
        b: baseline (D,); unused where alpha is 0.
        alpha: in [0, 1].

    Returns:
        float32 (N,), at most 1.
    """
    gap = s - g
    square = np.einsum("nd,nd->n", gap, gap)
    if alpha == 0 or b is None:
        return (1 - square / 2).astype(np.float32)
    along = gap @ ((g - b) / np.linalg.norm(g - b))
    return (1 - (along**2 + (1 - alpha) ** 2 * (square - along**2)) / 2).astype(np.float32)
