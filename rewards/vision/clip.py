"""A sentence as the reward: how much the frame looks like the goal, as CLIP sees both.

Source: Rocamonde et al. 2023, "Vision-Language Models are Zero-Shot Reward Models for Reinforcement Learning" (VLM-RM),
arXiv 2310.12921, sections 3 and 3.2 (goal-baseline regularisation). `threshold` is the two-valued reward of Baumli et
al. 2023, "Vision-Language Models as a Source of Rewards" (VLM-SR), arXiv 2312.09187, as VLM-RL compares with it.
Differences:
  - several sentences, separated by `|`, are averaged and the mean is scaled back to length one, so that alpha=0 stays a
    cosine; the projection is computed from two scalars a frame instead of a D x D matrix;
  - the reward rates the frame of next_obs, also at an episode's end, where the source rates the next episode's first;
    that of a frame of a single colour is 0;
  - the default model is our own small one. It is in-domain: taught with captions made from simulator state. Only with
    public weights (`model=ViT-B-32 weights=...`) is this the source's zero-shot reward.
When it fails: a sentence far from anything the model was taught (`notes` says so); a goal that one frame cannot show,
such as a speed; a terminating task, since a reward per step grows with the episode's length (take shape=potential or
delta).
"""

from dataclasses import dataclass

import numpy as np

from lodestar.settings import setting
from rewards.vision.base import Vision, VisionConfig, is_nonzero, sentences, unit_mean


@dataclass
class ClipConfig(VisionConfig):
    """Settings of `clip` beside those of `VisionConfig`; VLM-RM's value in brackets, its model is ViT-bigG-14."""

    baseline: str = setting("", "what any frame shows, in the form of `goal`; needed where alpha > 0")
    alpha: float = setting(
        0.0, "0 is the plain cosine, 1 only along the line from baseline to goal [0 to 1]", "[0, 1]", tune=(0.0, 1.0)
    )
    threshold: float | None = setting(None, "+1 above it, else -1; null keeps the reward [VLM-SR: 0.32]", "finite")


class Clip(Vision):
    """R = 1 - |alpha * proj_L(s) + (1 - alpha) * s - g|^2 / 2, of unit embeddings s of the frame, g of the goal, b of
    the baseline, L the line through both. Cosines of `lodestar` spread over [-0.3, 0.8], of others over hundredths.
    """

    Config = ClipConfig
    config: ClipConfig

    def build(self) -> None:
        super().build()
        config = self.config
        if config.alpha > 0 and not sentences(config.baseline):
            raise ValueError(f"{config.prefix}alpha={config.alpha} needs baseline, such as 'pole and cart'; or alpha=0")
        self.goal = unit_mean(self.meanings("goal"))
        self.baseline: np.ndarray | None = None
        if config.alpha > 0:
            self.baseline = unit_mean(self.meanings("baseline"))
        if self.baseline is not None and np.allclose(self.goal, self.baseline, atol=1e-4):
            raise ValueError(f"goal and baseline mean the same ({config.goal!r}, {config.baseline!r}); change one")

    def rate(self, seen: np.ndarray) -> np.ndarray:
        reward = goal_reward(seen, self.goal, self.baseline, self.config.alpha)
        threshold = self.config.threshold
        if threshold is not None:
            reward = np.where(reward > threshold, np.float32(1), np.float32(-1))
        reward[~is_nonzero(seen)] = 0
        return reward


def goal_reward(s: np.ndarray, g: np.ndarray, b: np.ndarray | None, alpha: float) -> np.ndarray:
    """VLM-RM's reward (definition 1 and its regularisation) from unit embeddings, float32 (N,), at most 1.

    With frames s (N, D), goal g (D,), baseline b (D,; unused where alpha is 0), d the direction from b to g, u = (s -
    g).d and q = |s - g|^2: R = 1 - (u^2 + (1 - alpha)^2 (q - u^2)) / 2, which shrinks only what lies off the line.
    """
    # q, expanded so that no other array of s's size is made.
    q = np.einsum("nd,nd->n", s, s) + g @ g - 2 * (s @ g)
    if alpha == 0 or b is None:
        distance = q
    else:
        d = (g - b) / np.linalg.norm(g - b)
        u = s @ d - g @ d
        # What lies along the line counts in full, what lies off it by (1 - alpha)^2.
        off_line = q - u**2
        distance = u**2 + (1 - alpha) ** 2 * off_line
    reward = 1 - distance / 2
    return reward.astype(np.float32)
