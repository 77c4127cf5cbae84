"""What the frame should show against what it must not: a contrasting language goal.

One sentence says little about how bad a frame is; the difference of two is zero where neither applies. A good and a bad
sentence about the same things also cancel what both share, the style of the picture.

Source: Huang, Sheng et al. 2024, "VLM-RL: A Unified Vision Language Models and Reinforcement Learning Framework for
Safe Autonomous Driving", arXiv 2412.15544, section 4.2 (contrasting language goal); Ye et al. 2024, "LORD: Large Models
Based Opposite Reward Design for Autonomous Driving", arXiv 2403.18965, is `positive_weight=0 negative_weight=1`.

Differences from the source:
  - the source's code subtracts the good sentence from the bad one, clips to (0, 0.03) and turns round; here good minus
    bad is calibrated by percentiles of the first transitions, or by `low` and `high`: its numbers are
    `positive_weight=1 negative_weight=1 low=-0.03 high=0 bounded=true`;
  - several sentences a side, with a weight each or one for all;
  - until the reference is seen the reward pays nothing: raw contrasts are ten times smaller or larger, and an agent
    that starts on one scale must unlearn it on the next. Their order is right from the start, so `score` gives them,
    marked as not ready;
  - see `clip` for the model, the frame it looks at, and single-coloured frames, which pay 0.

When it fails: sentences that the model cannot tell apart (their contrast is noise, which calibration makes as large as
a signal: look at the reward before training); a reference that lacks good or bad states; speed, which no frame shows
(see `synthesis`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from rewards.base import Scored
from rewards.vision.base import Vision, VisionConfig, shows
from rewards.vision.calibration import Calibration


@dataclass
class ContrastConfig(VisionConfig):
    """Settings of `contrast` beside those of `VisionConfig`; VLM-RL's value in brackets, its model is ViT-bigG-14.

    Attributes:
        negative: what a frame must not show, in the form of `goal`: sentences separated by `|`.
        positive_weight: of the goal's sentences: one number, shared out evenly, or one for each; 0 leaves the goal out
            [0.5].
        negative_weight: of the negative sentences, in the same form, positive [0.5].
        low: contrast that pays 0; None takes a percentile of the reference [-0.015 with these weights].
        high: contrast that pays 1 [0].
        low_percentile: of the reference, in percent.
        high_percentile: of the reference, in percent.
        reference: transitions seen by `update` that make the reference; nothing is paid before. 0 pays raw contrasts,
            unless `low` and `high` say otherwise.
        reference_file: a recording with frames to take the reference from instead (see `envs.recording`).
        bounded: cuts the reward off at 0 and 1 [true].
    """

    NAME: ClassVar[str] = "contrast"
    SENTENCES: ClassVar[tuple[str, ...]] = ("goal", "negative")

    negative: str = ""
    positive_weight: list[float] = field(default_factory=lambda: [0.5])
    negative_weight: list[float] = field(default_factory=lambda: [0.5])
    low: float | None = None
    high: float | None = None
    low_percentile: float = 5.0
    high_percentile: float = 95.0
    reference: int = 4096
    reference_file: str = ""
    bounded: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        name = f"reward.{self.NAME}"
        for side in ("positive_weight", "negative_weight"):
            value: Any = getattr(self, side)
            weights = [float(w) for w in (value if isinstance(value, (list, tuple)) else [value])]
            if not weights or not all(math.isfinite(w) and w >= 0 for w in weights):
                raise ValueError(f"{name}.{side}={value} must be positive; the sign is the formula's own")
            setattr(self, side, weights)
        if not sum(self.negative_weight) > 0:
            raise ValueError(
                f"{name}.negative_weight={self.negative_weight} leaves nothing to subtract and must be positive; "
                "use reward=clip for a goal alone"
            )
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{name}.low={self.low} and high={self.high} go together; give both, or neither")
        if self.low is not None and self.high is not None and not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"{name}.low={self.low} must be below high={self.high}; they pay 0 and 1")
        if not 0 <= self.low_percentile < self.high_percentile <= 100:
            raise ValueError(
                f"{name}.low_percentile={self.low_percentile} and high_percentile={self.high_percentile} must rise "
                "within [0, 100]; try 5 and 95"
            )
        if self.reference < 0:
            raise ValueError(f"{name}.reference={self.reference} is no number of transitions; 0 pays raw contrasts")


class Contrast(Vision):
    """Good minus bad, on a scale of its own.

    z = sum_i w_i cos(s, p_i) - sum_j v_j cos(s, n_j), with the embeddings s of the frame, p_i of what it should show,
    n_j of what it must not; R = (z - low) / (high - low). Metrics: `low`, `high`, once they are known.
    """

    Config = ContrastConfig
    config: ContrastConfig

    def __init__(
        self,
        config: ContrastConfig,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, observation_space, action_space, seed=seed, device=device)
        self.direction = -self._side("negative", "negative_weight")  # z = s . direction
        if any(config.positive_weight):
            self.direction = self.direction + self._side("goal", "positive_weight")
        if np.linalg.norm(self.direction) < 1e-3:
            raise ValueError(f"goal and negative mean the same ({config.goal!r}, {config.negative!r}); write opposites")
        percentiles = (config.low_percentile, config.high_percentile)
        self.calibration = Calibration(percentiles, config.reference, config.low, config.high)
        if config.reference_file and not self.calibration.ready:
            self.calibrate(self._recorded(config.reference_file))

    def rate(self, seen: np.ndarray) -> np.ndarray | Scored:
        """Float32 (N,); contrasts that are not ready until there is a scale."""
        z = seen @ self.direction
        if self.calibration.ready:
            z = self.calibration(z, self.config.bounded)
            z[~shows(seen)] = 0
            return z
        return Scored(z, np.zeros(len(z), bool)) if self.config.reference else z

    def calibrate(self, seen: np.ndarray) -> None:
        """Take these embeddings (N, D), at least one, as the whole reference."""
        self.calibration.values = (seen @ self.direction).astype(np.float32)
        self.calibration.freeze()

    def learn(self, seen: np.ndarray, count: int) -> dict[str, float]:
        metrics = super().learn(seen, count)
        if self.config.reference:
            self.calibration.update(seen @ self.direction)
        if self.calibration.low is not None and self.calibration.high is not None:
            metrics |= {"low": self.calibration.low, "high": self.calibration.high}
        return metrics

    def _side(self, sentences: str, weights: str) -> np.ndarray:
        """The weighted sum (D,) of one side's sentences."""
        meanings, given = self.meanings(sentences), getattr(self.config, weights)
        if len(given) not in (1, len(meanings)):
            raise ValueError(
                f"reward.{self.config.NAME}.{weights} has {len(given)} numbers for {len(meanings)} sentences in "
                f"{sentences}; give one number for all, or one for each"
            )
        shares = np.asarray(given, np.float32) / (1 if len(given) == len(meanings) else len(meanings))
        return np.broadcast_to(shares, len(meanings)) @ meanings

    def _recorded(self, path: str) -> np.ndarray:
        """Embeddings (N, D) of the frames in a recording that show something."""
        from envs.recording import load

        frames = load(path)[0].frame
        seen = self.encoder.embed(frames, self.config.batch_size) if frames is not None else np.zeros((0, 1))
        seen = seen.astype(np.float32)
        seen = seen[shows(seen)]
        if not len(seen):
            raise ValueError(
                f"reward.{self.config.NAME}.reference_file={path!r} has no frame that shows anything; record with "
                f"frame_size={self.frame_size}"
            )
        return seen
