"""What every adapter does: follow episodes, keep the rewards' memories of them, score steps, update the rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from envs.observations import fits
from envs.state import Stateful
from envs.steps import Chunk, Cursor
from envs.transitions import Transitions
from envs.types import MODALITIES, Memory
from rewards.base import Reward, merge_memory
from rewards.mix.mix import Mix, Stream


class EpisodeTracker(Stateful):
    """Where N environments are in their episodes, and what rewards remember of these: `memory`, by name."""

    saved: ClassVar[tuple[str, ...]] = ("memory", "cursor")

    def __init__(self, sources: Mapping[str, Stream | Reward], n: int, frame_size: int | None = None) -> None:
        self.sources, self.n, self.frame_size = sources, n, frame_size
        self.cursor = Cursor(n)
        self.memory: dict[str, Memory] = self._fresh()

    def _fresh(self) -> dict[str, Memory]:
        memories = {name: source.initial_memory(self.n) for name, source in self.sources.items()}
        return {name: memory for name, memory in memories.items() if memory is not None}

    def begin(self, modalities: Mapping[str, np.ndarray], mask: np.ndarray | None = None) -> None:
        """Episodes begin, in all environments or those of `mask`; `modalities` come with their first observations."""
        self.require(modalities)
        mask = np.ones(self.n, bool) if mask is None else np.asarray(mask, bool)
        self.cursor.begin(modalities, mask)
        fresh = self._fresh()
        self.memory = {name: merge_memory(memory, fresh[name], mask) for name, memory in self.memory.items()}

    def require(self, modalities: Mapping[str, Any]) -> None:
        """Refuse missing frames, texts or signals (ValueError) at the first reset, not an hour later."""
        for name, source in self.sources.items():
            for field in MODALITIES:
                if field in source.requires and field not in modalities:
                    option = f"frame_size={self.frame_size}" if field == "frame" else f"{field}=True"
                    more = ' with render_mode="rgb_array", or' if field == "frame" else ""
                    raise ValueError(
                        f'the reward {name!r} reads {field}, but info["{field}"] is missing; make it{more} '
                        f"with envs.make.make(..., {option}); in other processes, or in a vector that resets in the "
                        "same step, wrap each in envs.wrappers.Observer where it is made"
                    )


def legible(mix: Mix, observation_space: spaces.Space, action_space: spaces.Space) -> tuple[bool, bool]:
    """Whether observations and actions fit into arrays, which those of Text, Tuple, Graph, Sequence and OneOf do not.

    Raises:
        ValueError: if some do not, and a reward reads them.
    """
    fit = fits(observation_space), fits(action_space, nested=False)
    for name, space, good in zip(("obs", "action"), (observation_space, action_space), fit):
        readers = [stream for stream, source in mix.streams.items() if {name, f"next_{name}"} & source.requires]
        if readers and not good:
            raise ValueError(
                f"the reward {readers[0]!r} reads {name}, but the values of {space} fit into no array; flatten them "
                "(gymnasium.wrappers.FlattenObservation), or leave that reward out"
            )
    return fit


class Driver(EpisodeTracker):
    """Feeds a mix step by step: embed, score, combine, remember, and every `update_every` transitions learn."""

    saved = ("memory", "cursor", "chunk", "timesteps")  # the chunk holds the rows still to be learnt from

    def __init__(self, mix: Mix, n: int, update_every: int) -> None:
        if update_every < 1:
            raise ValueError(f"update_every={update_every} transitions must be at least 1")
        super().__init__(mix.streams, n, mix.frame_size)
        mix.only_sums("a wrapper")
        self.mix = mix
        self.chunk = Chunk(max(update_every // n, 1))
        self.raw: dict[str, np.ndarray] = {}  # the streams' scores of the last step
        self.metrics: dict[str, float] = {}  # of the last update
        self.timesteps = 0  # over all environments

    def __call__(self, batch: Transitions) -> np.ndarray:
        """The reward of a step, float32 (N,)."""
        batch = self.mix.embed(batch)
        self.raw, self.memory = self.mix.score(batch, self.memory)
        total = self.mix.combine(self.raw, self.timesteps)
        self.timesteps += self.n if batch.valid.all() else int(batch.valid.sum())
        self.chunk.add(batch, self.raw)
        if self.chunk.full:
            fresh, raw = self.chunk.take()
            self.metrics = self.mix.update(fresh, raw, self.timesteps)
        return total
