"""Rows of numbers that stand for states, to compare states by: observations as they are, or embeddings of frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.transitions import Transitions
from rewards.base import Reward
from rewards.exploration.learned import Layout
from rewards.vision.encoder import ClipEncoder, shared

SOURCES = ("obs", "frame")
EVERY_PIXEL = 1 << 30  # no image counts as one: it is a row of numbers like the rest


class Latent:
    """States as float32 rows; raises ValueError for a space of observations that has no numbers.

    The config of the reward says `of` (`obs`, or `frame` for CLIP's unit embeddings of frames), `model` and `weights`.
    """

    def __init__(self, reward: Reward) -> None:
        config: Any = reward.config
        self.reward = config.name
        self.layout: Layout | None = None
        self.encoder: ClipEncoder | None = None
        if config.of == "obs":
            self.layout = Layout(reward.observation_space, (), self.reward, channels=0, smallest_image=EVERY_PIXEL)
            self.fields, self.size = frozenset({"next_obs"}), self.layout.size
        else:
            self.encoder = shared(
                config.model, config.weights, seed=reward.seed, device=reward.device, reward=self.reward
            )
            self.fields, self.size = frozenset({"frame"}), self.encoder.width
        self.frame_size = self.encoder.size if self.encoder else None
        self.embedding = self.encoder.name if self.encoder else None  # of the extra that stands for the frame

    def __call__(self, batch: Transitions) -> np.ndarray:
        """What the actions led to: leading shape of the batch, then (D,)."""
        flat = batch.flatten()
        rows = self.layout.flatten(flat.next_obs) if self.layout else flat.extras.get(str(self.embedding))
        rows = self.embed(flat) if rows is None else rows
        if rows.shape[1:] != (self.size,):
            raise ValueError(f"reward {self.reward} was given states of {rows.shape[1:]} numbers, not ({self.size},)")
        return np.asarray(rows, np.float32).reshape(*batch.shape, self.size)

    def before(self, batch: Transitions) -> np.ndarray:
        """What the actions left: leading shape of the batch, then (D,)."""
        return self(batch.at_obs())

    def embed(self, batch: Transitions) -> np.ndarray:
        """Embeddings of `batch.frame`, float16 (N, D); zeros where a frame shows nothing."""
        if batch.frame is None:
            raise ValueError(
                f"{self.reward} reads frames, and this batch has none; make the environment with "
                f"frame_size={self.frame_size}, or set reward.{self.reward}.of=obs"
            )
        assert self.encoder is not None
        return self.encoder.embed(batch.frame, 256)
