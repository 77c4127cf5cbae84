"""What the rewards share that compare states as rows of numbers: observations as they are, or embeddings of frames."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from envs.datasets.dataset import recorded_transitions
from envs.transitions import Transitions
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig, RunningMeanStd
from rewards.exploration.learned import ALL_COLUMNS, Layout, refuse_rows
from rewards.vision.encoder import ClipEncoder, shared_encoder
from rewards.vision.load import LODESTAR

EVERY_PIXEL = 1 << 30  # no image counts as one: it is a row of numbers like the rest
MIN_DEVIATION = 1e-6
CHUNK_ROWS = 65_536  # rows that are copied to float64 at once


@dataclass
class LatentConfig(RewardConfig):
    """Settings of every reward that compares states."""

    shape: str = "potential"
    of: str = setting("obs", "what states are compared by: obs or CLIP's embeddings", "obs | frame")
    model: str = setting(LODESTAR, "of CLIP, as in reward.clip")
    weights: str = setting("", "of CLIP, as in reward.clip")
    views: int = setting(1, "pictures side by side in a frame, as of two cameras, each embedded by itself", "[1, 4]")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.views > 1 and self.of != "frame":
            raise ValueError(f"{self.prefix}views={self.views} are parts of a frame; give {self.prefix}of=frame")


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
            self.encoder = shared_encoder(self)
            self.requires, self.size = frozenset({"frame"}), self.encoder.width * config.views
            self.frame_size, self.embedding = self.encoder.size * config.views, self.encoder.name
            if config.views > 1:
                self.embedding += f" {config.views} views"

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
        if self.encoder is None:
            return super().embed(batch)
        name = self.config.name
        instead = f", or set reward.{name}.of=obs"
        pictures = [None] if batch.frame is None else np.array_split(batch.frame, self.config.views, axis=2)
        return np.concatenate([self.encoder.embed(picture, 256, name, instead) for picture in pictures], axis=1)

    def load_recording(self, option: str) -> Transitions:
        """The recording (N,) that an option names; ValueError if it does not show what states are compared by."""
        path, key = getattr(self.config, option), self.config.prefix + option
        batch = recorded_transitions(path, key, self.observation_space, self.action_space)
        if self.encoder is not None and batch.frame is None:
            raise ValueError(f"{key}={path} has no frames; record with frames={self.frame_size}, or take of=obs")
        return batch


class Whitened(nn.Module):
    """Base class of networks that see states less the mean of some, over their deviation, clipped at 5."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def measure(self, states: np.ndarray) -> None:
        """Take mean and deviation of these states (M, D), summed in float64: float32 loses a million rows' mean."""
        statistics = RunningMeanStd((states.shape[1],))
        for start in range(0, len(states), CHUNK_ROWS):
            statistics.update(states[start : start + CHUNK_ROWS])
        deviation = np.sqrt(statistics.var)
        self.mean.copy_(torch.from_numpy(statistics.mean))
        self.scale.copy_(torch.from_numpy(np.where(deviation > MIN_DEVIATION, deviation, 1)))

    def whiten(self, states: np.ndarray, used: np.ndarray | slice = ALL_COLUMNS) -> torch.Tensor:
        """States (..., D) as the network sees them, (M, D); of those columns alone."""
        states = states.reshape(-1, states.shape[-1])
        states = states if isinstance(used, slice) else states.take(used, axis=1)
        x = torch.from_numpy(np.ascontiguousarray(states)).to(self.mean.device)
        return ((x - self.mean[used]) / self.scale[used]).clamp(-5, 5)
