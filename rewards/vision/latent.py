"""What the rewards share that compare states as rows of numbers: observations as they are, or embeddings of frames."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.settings import setting
from envs.transitions import Transitions
from rewards.base import Reward, RewardConfig
from rewards.exploration.learned import Layout, refuse_rows
from rewards.vision.encoder import LODESTAR, ClipEncoder, shared

EVERY_PIXEL = 1 << 30  # no image counts as one: it is a row of numbers like the rest


@dataclass
class LatentConfig(RewardConfig):
    """Settings of every reward that compares states."""

    shape: str = "potential"
    of: str = setting(
        "obs", "what states are compared by: `obs` or `frame` (CLIP's embeddings)", choices=("obs", "frame")
    )
    model: str = setting(LODESTAR, "of CLIP, as in reward.clip")
    weights: str = setting("", "of CLIP, as in reward.clip")


class Latent(Reward):
    """Base class: states as float32 rows; raises ValueError for a space of observations that has no numbers."""

    config: LatentConfig
    layout: Layout | None = None
    encoder: ClipEncoder | None = None

    def build(self) -> None:
        config, name = self.config, self.config.name
        if config.of == "obs":
            self.layout = Layout(self.observation_space, (), name, channels=0, smallest_image=EVERY_PIXEL)
            self.requires, self.size = frozenset({"next_obs"}), self.layout.size
        else:
            self.encoder = shared(config.model, config.weights, seed=self.seed, device=self.device, reward=name)
            self.requires, self.size = frozenset({"frame"}), self.encoder.width
            self.frame_size, self.embedding = self.encoder.size, self.encoder.name

    def states(self, batch: Transitions) -> np.ndarray:
        """What the actions led to: leading shape of the batch, then (D,)."""
        flat = batch.flatten()
        rows = self.layout.flatten(flat.next_obs) if self.layout else flat.extras.get(str(self.embedding))
        rows = self.embed(flat) if rows is None else rows
        refuse_rows(rows, self.config.name)
        if rows.shape[1:] != (self.size,):
            name = self.config.name
            raise ValueError(f"reward {name} was given states of {rows.shape[1:]} numbers, not ({self.size},)")
        return np.asarray(rows, np.float32).reshape(*batch.shape, self.size)

    def embed(self, batch: Transitions) -> np.ndarray:
        """Embeddings of `batch.frame`, float16 (N, D); zeros where a frame shows nothing."""
        if self.encoder is None:
            return super().embed(batch)
        name = self.config.name
        return self.encoder.embed(batch.frame, 256, name, f", or set reward.{name}.of=obs")
