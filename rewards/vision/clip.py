"""A sentence as the reward: how much the frame looks like the goal, as CLIP sees both.

Source: Rocamonde et al. 2023, "Vision-Language Models are Zero-Shot Reward Models for Reinforcement Learning" (VLM-RM),
arXiv 2310.12921, sections 3 and 3.2 (goal-baseline regularisation). `threshold` is the two-valued reward of Baumli et
al. 2023, "Vision-Language Models as a Source of Rewards" (VLM-SR), arXiv 2312.09187, as VLM-RL compares with it.

Differences from the source:
  - several sentences, separated by `|`, are averaged and the mean is scaled back to length one, so that alpha=0 stays a
    cosine;
  - the reward rates the frame of next_obs, also at an episode's end, where the source rates the next episode's first;
  - the projection is computed from two scalars a frame instead of a D x D matrix;
  - embeddings are kept in half precision and can be scored again with another sentence, without the frames;
  - the reward of a frame of a single colour is 0;
  - the default model is our own small one. It is in-domain: taught with captions made from simulator state. Only with
    public weights (`model=ViT-B-32 weights=...`) is this the source's zero-shot reward.

When it fails: a sentence far from anything the model was taught (`notes` says so); a goal that one frame cannot show,
such as a speed; a terminating task, since a reward per step grows with the episode's length (take shape=potential
or delta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from envs.settings import setting
from rewards.vision.base import Vision, VisionConfig, sentences, shows, unit_mean


@dataclass
class ClipConfig(VisionConfig):
    """Settings of `clip` beside those of `VisionConfig`; VLM-RM's value in brackets, its model is ViT-bigG-14."""

    SENTENCES: ClassVar[tuple[str, ...]] = ("goal", "baseline")
    baseline: str = setting("", "what any frame shows, in the form of `goal`; needed where alpha > 0")
    alpha: float = setting(
        0.0,
        "goal-baseline regularisation: 0 is the plain cosine, 1 looks only along the line from baseline to "
        "goal [tuned per task, 0 to 1]",
        low=0,
        high=1,
        tune=(0.0, 1.0),
    )
    threshold: float | None = setting(
        None,
        "+1 above it and -1 at or below, in units of the reward without it; null keeps the reward itself [VLM-SR "
        "on a ViT-bigG-14, as VLM-RL compares with it: 0.32]",
        low=-math.inf,
    )


class Clip(Vision):
    """Goal reward in the eyes of CLIP.

    R = 1 - |alpha * proj_L(s) + (1 - alpha) * s - g|^2 / 2, with the unit embeddings s of the frame, g of the goal and
    b of the baseline, and L the line through b and g. Cosines of `lodestar` spread over about [-0.3, 0.8], those of
    public models over a few hundredths: scale or shape the latter.
    """

    Config = ClipConfig
    config: ClipConfig

    def build(self) -> None:
        super().build()
        config = self.config
        if config.alpha > 0 and not sentences(config.baseline):
            raise ValueError(
                f"{config.prefix}alpha={config.alpha} needs {config.prefix}baseline, what any frame shows "
                "('pole and cart'); or set alpha=0"
            )
        self.goal = unit_mean(self.meanings("goal"))
        self.baseline = unit_mean(self.meanings("baseline")) if config.alpha > 0 else None
        if self.baseline is not None and np.allclose(self.goal, self.baseline, atol=1e-4):
            raise ValueError(
                f"goal and baseline mean the same ({config.goal!r}, {config.baseline!r}); change one or set alpha=0"
            )

    def rate(self, seen: np.ndarray) -> np.ndarray:
        reward = goal_reward(seen, self.goal, self.baseline, self.config.alpha)
        if self.config.threshold is not None:
            reward = np.where(reward > self.config.threshold, np.float32(1), np.float32(-1))
        reward[~shows(seen)] = 0
        return reward


def goal_reward(s: np.ndarray, g: np.ndarray, b: np.ndarray | None, alpha: float) -> np.ndarray:
    """VLM-RM's reward (definition 1 and its regularisation) from unit embeddings.

    With frames s (N, D), goal g (D,), baseline b (D,; unused where alpha is 0), d the direction from b to g,
    u = (s - g).d and q = |s - g|^2, the part of s - g along the line is u and the rest has square q - u^2; the
    regularisation shrinks only the rest: R = 1 - (u^2 + (1 - alpha)^2 (q - u^2)) / 2, float32 (N,), at most 1.
    """
    square = np.einsum("nd,nd->n", s, s) + g @ g - 2 * (s @ g)  # |s - g|^2, without another array of s's size
    if alpha == 0 or b is None:
        return (1 - square / 2).astype(np.float32)
    d = (g - b) / np.linalg.norm(g - b)
    along = s @ d - g @ d
    return (1 - (along**2 + (1 - alpha) ** 2 * (square - along**2)) / 2).astype(np.float32)
