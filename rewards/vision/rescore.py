"""Rewards of the same frames for another sentence: embeddings are kept, so nothing is rendered or encoded again.

    again = Rescorer(embeddings)                                     float16 (N, D), from `Encoder.embed`
    again(ClipConfig(goal="the pole is upright", alpha=0.5))         float32 (N,)
    again(ContrastConfig(goal="...", negative="..."))                calibrated on these embeddings, unless it says how

The first sentence waits for the model to load; each further one takes some milliseconds per 100,000 frames.
"""

from __future__ import annotations

import numpy as np

from rewards.base import values_of
from rewards.vision.base import shows
from rewards.vision.clip import Clip, ClipConfig
from rewards.vision.contrast import Contrast, ContrastConfig
from rewards.vision.encoder import LODESTAR, shared


class Rescorer:
    """Scores the same frames for many sentences, regularisations and weights.

    Embeddings are (N, D) in any float type, all zeros for a frame that shows nothing; model, weights (as in
    `VisionConfig`) and seed say whose they are. Raises ValueError if they are not of this model's length.
    """

    def __init__(self, embeddings: np.ndarray, model: str = LODESTAR, weights: str = "", *, seed: int = 0) -> None:
        self.encoder = shared(model, weights, seed=seed)  # held, so that no sentence loads it again
        self.model, self.weights, self.seed = model, weights, seed
        if embeddings.ndim != 2 or embeddings.shape[1] != self.encoder.width:
            raise ValueError(
                f"embeddings have shape {embeddings.shape}, those of {model} (N, {self.encoder.width}); "
                "name the model that made them"
            )
        self.seen = np.asarray(embeddings, np.float32)
        self.visible = shows(self.seen)

    def __call__(self, config: ClipConfig | ContrastConfig) -> np.ndarray:
        """Scores float32 (N,) by a `clip` or a `contrast` with settings; ValueError if these ask for another model."""
        if (config.model, config.weights) != (self.model, self.weights):
            raise ValueError(
                f"these embeddings are {self.model}'s ({self.weights or 'as it ships'}), and the settings ask for "
                f"{config.model} ({config.weights or 'as it ships'}); embed the frames again for another model"
            )
        if not isinstance(config, ContrastConfig):
            return Clip(config, None, None, seed=self.seed).rate(self.seen)  # type: ignore[arg-type]
        contrast = Contrast(config, None, None, seed=self.seed)  # type: ignore[arg-type]
        if config.reference and not contrast.calibration.ready and self.visible.any():
            contrast.calibrate(self.seen if self.visible.all() else self.seen[self.visible])
        return values_of(contrast.rate(self.seen))
