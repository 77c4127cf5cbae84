"""What the frame should show against what it must not: a contrasting language goal.

One sentence carries little about how bad a frame is; the difference of two is zero where neither applies, and cancels
what both share, the style of the picture.

Source: Huang, Sheng et al. 2024, "VLM-RL: A Unified Vision Language Models and Reinforcement Learning Framework for
Safe Autonomous Driving", arXiv 2412.15544, section 4.2 (contrasting language goal); Ye et al. 2024, "LORD: Large Models
Based Opposite Reward Design for Autonomous Driving", arXiv 2403.18965, is `positive_weight=0 negative_weight=1`.
Differences:
  - the source's code subtracts the good sentence from the bad one, clips to (0, 0.03) and turns round; here good minus
    bad is calibrated by percentiles of the first transitions, or by `low` and `high`: its numbers are
    `positive_weight=1 negative_weight=1 low=-0.03 high=0 bounded=true`;
  - several sentences a side, with a weight each or one for all;
  - until the reference is complete the reward is 0: an agent that starts on one scale must unlearn it on the next. The
    order of raw contrasts is right from the start, so `score` returns them, marked as not ready;
  - see `clip` for the model, the frame it reads, and single-coloured frames, whose reward is 0.
When it fails: sentences that the model cannot tell apart (their contrast is noise, which calibration makes as large as
a signal: look at the reward before training); a reference that lacks good or bad states; speed (see `synthesis`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.base import Scored
from rewards.vision.base import Vision, VisionConfig, is_nonzero

# Embeddings are float16, which keeps a cosine to half of this: percentiles that are closer are noise.
MIN_SCALE_WIDTH = 1e-3
# A direction shorter than this is that of two sides which mean the same.
MIN_DIRECTION_LENGTH = 1e-3


@dataclass
class ContrastConfig(VisionConfig):
    """Settings of `contrast` beside those of `VisionConfig`; VLM-RL's value in brackets, its model is ViT-bigG-14."""

    negative: str = setting("", "what a frame must not show, in the form of `goal`: sentences separated by `|`")
    positive_weight: list[float] = setting([0.5], "of the goal's sentences: one, shared out, or each [0.5]", ">= 0")
    negative_weight: list[float] = setting([0.5], "of the negative sentences, in that form, positive [0.5]", ">= 0")
    low: float | None = setting(None, "contrast that becomes 0; null takes a percentile [-0.015]", "finite")
    high: float | None = setting(None, "contrast that becomes 1 [0]", "finite")
    low_percentile: float = setting(5.0, "of the reference, in percent", "[0, 100)")
    high_percentile: float = setting(95.0, "of the reference, in percent", "(0, 100]")
    reference: int = setting(4096, "transitions that make the reference, their reward 0; 0 gives raw contrasts", ">= 0")
    reference_file: str = setting("", "a recording with frames to take the reference from instead")
    bounded: bool = setting(False, "cuts the reward off at 0 and 1 [true]")

    def __post_init__(self) -> None:
        for side in ("positive_weight", "negative_weight"):
            weights = np.atleast_1d(getattr(self, side))
            setattr(self, side, weights.astype(float).tolist())
        super().__post_init__()
        if not sum(self.negative_weight) > 0:
            raise ValueError(
                f"{self.prefix}negative_weight={self.negative_weight} subtracts nothing; make it positive, or use clip"
            )
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{self.prefix}low={self.low} and high={self.high} go together; give both, or neither")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"{self.prefix}low={self.low} must be below high={self.high}; they become 0 and 1")
        if not self.low_percentile < self.high_percentile:
            ends = f"low_percentile={self.low_percentile} and high_percentile={self.high_percentile}"
            raise ValueError(f"{self.prefix}{ends} must rise within [0, 100]; try 5 and 95")


class Contrast(Vision):
    """Good minus bad, on a scale of its own.

    z = sum_i w_i cos(s, p_i) - sum_j v_j cos(s, n_j), with the embeddings s of the frame, p_i of what it should show,
    n_j of what it must not; R = (z - low) / (high - low). Metrics: `low`, `high`, once they are known.
    """

    Config = ContrastConfig
    config: ContrastConfig

    def build(self) -> None:
        super().build()
        config = self.config
        # Both sums are linear in s, so that z = s . direction.
        self.direction = -self._weigh_side("negative", "negative_weight")
        if any(config.positive_weight):
            self.direction = self.direction + self._weigh_side("goal", "positive_weight")
        if np.linalg.norm(self.direction) < MIN_DIRECTION_LENGTH:
            raise ValueError(f"goal and negative mean the same ({config.goal!r}, {config.negative!r}); write opposites")
        self.calibration = Calibration(config)
        if config.reference_file and not self.calibration.ready:
            self.calibrate(self._embed_recording(config.reference_file))

    def rate(self, seen: np.ndarray) -> np.ndarray | Scored:
        """Float32 (N,); contrasts that are not ready until there is a scale."""
        z = seen @ self.direction
        if self.calibration.ready:
            reward = self.calibration(z, self.config.bounded)
            reward[~is_nonzero(seen)] = 0
            return reward
        if self.config.reference:
            return Scored(z, ready=np.zeros(len(z), bool))
        return z

    def calibrate(self, seen: np.ndarray) -> None:
        """Take these embeddings (N, D), at least one, as the whole reference."""
        self.calibration.values = (seen @ self.direction).astype(np.float32)
        self.calibration.freeze()

    def learn(self, seen: np.ndarray, count: int) -> dict[str, float]:
        metrics = super().learn(seen, count)
        if self.config.reference:
            self.calibration.update(seen @ self.direction)
        if self.calibration.ready:
            metrics["low"] = self.calibration.low
            metrics["high"] = self.calibration.high
        return metrics

    def _weigh_side(self, sentences: str, weights: str) -> np.ndarray:
        """The weighted sum (D,) of one side's sentences."""
        meanings = self.meanings(sentences)
        count = len(meanings)
        numbers = getattr(self.config, weights)
        if len(numbers) not in (1, count):
            problem = f"has {len(numbers)} numbers for {count} sentences in {sentences}"
            raise ValueError(f"{self.config.prefix}{weights} {problem}; give one number, or one for each")
        shares = np.asarray(numbers, np.float32)
        if len(numbers) != count:
            # One number is shared out among the sentences.
            shares = np.broadcast_to(shares / count, count)
        return shares @ meanings

    def _embed_recording(self, path: str) -> np.ndarray:
        """Embeddings (N, D) of the frames in a recording that show something."""
        from envs.recording import load

        batch, _ = load(path)
        embeddings = np.zeros((0, 1), np.float32)
        if batch.frame is not None:
            embeddings = self.encoder.embed(batch.frame, self.config.batch_size).astype(np.float32)
        embeddings = embeddings[is_nonzero(embeddings)]
        if not len(embeddings):
            name = f"{self.config.prefix}reference_file={path!r}"
            raise ValueError(f"{name} has no frame that shows anything; record with frames={self.frame_size}")
        return embeddings


class Calibration(Stateful):
    """(raw - low) / (high - low), two percentiles of the first `reference` values, unless they are known.

    Contrasts of a public CLIP live within a few hundredths, those of a small one within a few tenths. When it fails: a
    reference without a good state leaves the goal beyond 1, one without a bad state leaves danger below 0.
    """

    saved = ("low", "high", "values")

    def __init__(self, config: ContrastConfig) -> None:
        self.config = config
        # None, both of them, until they are known.
        self.low: Any = config.low
        self.high: Any = config.high
        self.values = np.zeros(0, np.float32)

    @property
    def ready(self) -> bool:
        return self.low is not None

    def update(self, raw: np.ndarray) -> None:
        """Take in values (N,); once the scale is fixed nothing moves any more."""
        if self.ready:
            return
        missing = self.config.reference - len(self.values)
        self.values = np.concatenate([self.values, raw[:missing]])
        if len(self.values) >= self.config.reference:
            self.freeze()

    def freeze(self) -> None:
        """Fix the scale on what has been seen; at least one value."""
        low, high = np.percentile(self.values, [self.config.low_percentile, self.config.high_percentile])
        self.low = float(low)
        self.high = float(max(high, low + MIN_SCALE_WIDTH))
        self.values = self.values[:0]

    def __call__(self, raw: np.ndarray, bounded: bool) -> np.ndarray:
        """Values on the scale, float32 (N,); within [0, 1] if `bounded`. Only once it is `ready`."""
        scaled = (raw - np.float32(self.low)) / np.float32(self.high - self.low)
        return np.clip(scaled, 0, 1) if bounded else scaled
