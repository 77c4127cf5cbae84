"""Rewards from captions: the value of a text, less each time the episode meets it again.

    r(s') = value(caption of s') / N_ep(caption)^beta

N_ep counts the visits of this episode, this one too, so repeating a caption cannot be farmed: with beta = 3 it yields
at most zeta(3) = 1.202 times its value in one episode. A state without a caption ("") is worth 0 and not counted.

Source: Zheng et al. 2024, "Online Intrinsic Rewards for Decision Making Agents from Large Language Model Feedback",
arXiv 2410.23022, section 2; the decay stems from Klissarov et al. 2023, "Motif", arXiv 2310.00166, section 3.
Differences: the caption of the state an action led to, where both sources reward a step too late; a replay keeps N_ep
beside a transition (`recalls`), so old transitions are relabelled with the newest value; an episode remembers its
newest `EPISODE_CAPTIONS`; `alike=numbers` counts captions that differ in their numbers alone as one.
When it fails: captions that never repeat (clocks, counters) are never decayed, unless `alike` takes them for one.
"""

import functools
import hashlib
import itertools
import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig, Scored, one_row
from rewards.exploration.memories import CountMemory

# Distinct captions that an episode remembers; the oldest are forgotten first.
EPISODE_CAPTIONS = 512
# Texts whose key or value is cached.
TEXT_CACHE_SIZE = 1 << 16


@functools.lru_cache(TEXT_CACHE_SIZE)
def key(text: str) -> int:
    """64 bits that name a text, equal in every process; 0 for "" alone."""
    if not text:
        return 0
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


@functools.lru_cache(TEXT_CACHE_SIZE)
def key_without_numbers(text: str) -> int:
    """The key of a text with each of its numbers taken for the same."""
    return key(re.sub(r"[0-9]+", "0", text))


KEYS = {"exact": key, "numbers": key_without_numbers}


@dataclass
class CaptionedConfig(RewardConfig):
    """Settings of a reward from captions."""

    beta: float = setting(3.0, "how fast a caption that is met again loses its value; 0 never", ">= 0")
    alike: str = setting("exact", "which captions are one: exact, or where only numbers differ", choices=tuple(KEYS))


class Captioned(Reward):
    """Base class: a subclass defines the `value` of texts, and calls `forget` when it has changed."""

    config: CaptionedConfig
    requires = frozenset({"text"})
    recalls = "caption_visits"

    def build(self) -> None:
        self.key = KEYS[self.config.alike]
        self.visits = CountMemory(EPISODE_CAPTIONS)
        self.forget()

    @abstractmethod
    def value(self, texts: Sequence[str]) -> np.ndarray:
        """Values of B distinct texts, none of them empty: float32 (B,), at least 0; NaN if unknown."""

    def forget(self) -> None:
        """Values of texts have changed: compute them again."""
        self._values: dict[str, float] = {"": 0.0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.forget()

    def look_up(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Values of B texts, float32 (B,), 0 where unknown; and bool (B,), whether known."""
        # Once a step for every environment: `map` looks up without a Python frame a text.
        cached = map(self._values.get, texts, itertools.repeat(math.nan))
        values = np.fromiter(cached, np.float32, len(texts))
        unknown = np.isnan(values)
        if unknown.any():
            new_texts = list(dict.fromkeys(itertools.compress(texts, unknown)))
            new_values = dict(zip(new_texts, self.value(new_texts).tolist()))
            if len(self._values) > TEXT_CACHE_SIZE:
                self.forget()
            for text, value in new_values.items():
                if not math.isnan(value):
                    self._values[text] = value
            rows = np.flatnonzero(unknown)
            values[rows] = [new_values[texts[row]] for row in rows]
            unknown = np.isnan(values)
            values[unknown] = 0
        return values, ~unknown

    def count_rewarded(self, counts: Mapping[str, int]) -> int:
        """How many of the transitions that met these captions have one of a value."""
        captions = list(counts)
        values, _ = self.look_up(captions)
        return sum(counts[captions[row]] for row in np.flatnonzero(values))

    def initial_memory(self, n: int) -> Memory:
        return self.visits.initial(n)

    def recall(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        """N_ep of each row, float32 (T, N); 0 for a row without a caption."""
        assert batch.text is not None
        texts = batch.text.ravel().tolist()
        keys = np.fromiter(map(self.key, texts), np.uint64, len(texts)).reshape(batch.shape)
        captioned = keys > 0
        visits, memory = self.visits.walk(memory, keys, batch.valid & captioned, batch.ended)
        return np.where(captioned, visits, 0).astype(np.float32), memory

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        reward, _, memory = self._reward(batch, memory)
        return reward, memory

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[Scored, Memory]:
        reward, known, memory = self._reward(one_row(batch), memory)
        return Scored(reward[0], known[0]), memory

    def _reward(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, np.ndarray, Memory]:
        """Rewards and whether they are known, (T, N) each, and the memory after."""
        visits = batch.extras.get(self.recalls)
        if visits is None:
            visits, memory = self.recall(batch, memory)
        assert batch.text is not None
        values, known = self.look_up(batch.text.ravel().tolist())
        decay = np.maximum(visits, 1) ** np.float32(-self.config.beta)
        reward = values.reshape(batch.shape) * decay
        return reward.astype(np.float32, copy=False), known.reshape(batch.shape), memory
