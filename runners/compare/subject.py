"""One reward, built on its own and asked about a sample of transitions before any training.

Embeddings of the sample's frames are kept in runs/compare/<env>/, keyed by the model and everything that made the
sample, so that another sentence about the same pictures costs a product of matrices.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from envs.types import Transitions
from rewards.base import Reward, RewardConfig, Scored
from rewards.mix.mix import Stream
from runners.compare.sample import Plan, Sample, World

GAMMA = 0.99
FITTED = {"gamma": 0.9, "ridge": 1e-3}  # of values fitted to rows that do not follow each other; see rewards.compare
PATIENCE = 6_000  # rows that a goal reward may learn from until it is ready


class Subject:
    """One reward, built on its own and asked about a sample.

    Args:
        name: of the reward.
        config: its settings; weight, scale and shape are left out, because a score is what is compared.
        plan: of the sample, which keys the embeddings that are kept.
        sample: the transitions.
        warm: passes of `update` over the sample before it is asked; None for as many as a goal reward needs to be
            ready, and none for a bonus.
        seed: of the reward.
        device: as torch writes it.
    """

    def __init__(
        self,
        name: str,
        config: RewardConfig,
        spaces: tuple[Any, Any],
        plan: Plan,
        sample: Sample,
        *,
        warm: int | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        import rewards

        config = dataclasses.replace(config, weight=1.0, scale="none", shape="none")
        self.name, self.config, self.plan, self.sample = name, config, plan, sample
        self.spaces, self.seed, self.device, self.warm = spaces, seed, device, warm
        self.reward: Reward = rewards.get(name)(config, *spaces, seed=seed, device=device)
        self.stream = Stream(name, self.reward, gamma=GAMMA)
        self.seconds = {"embed": 0.0, "score": 0.0}
        self.batch = self._embedded(sample.batch, plan.key)
        self.learns = type(self.reward).update is not Reward.update
        self.passes = self._warm_up(warm)
        begin = time.perf_counter()
        self.values = self.score(self.batch)
        self.seconds["score"] = time.perf_counter() - begin

    @functools.cached_property
    def taught(self) -> tuple[list[str], np.ndarray] | None:
        """Phrases that the reward's model was taught and their embeddings (K, D); None where it does not say."""
        encoder: Any = getattr(self.reward, "encoder", None)
        known = getattr(encoder, "trained_on", None)
        return (known["phrases"], encoder.text(known["phrases"])) if known else None

    def again(self, **changes: Any) -> Subject:
        """The same reward with other settings, asked about the same sample."""
        config = dataclasses.replace(self.config, **changes)
        return Subject(
            self.name, config, self.spaces, self.plan, self.sample, warm=self.warm, seed=self.seed, device=self.device
        )

    def score(self, batch: Transitions) -> np.ndarray:
        """Raw scores of flat rows in time order, float64 (N,)."""
        raw, _ = self.stream.score(batch.map(lambda x: x[:, None]), self.reward.initial_memory(1))
        return raw[:, 0].astype(np.float64)

    def embed(self, world: World) -> Transitions:
        """The rows of an enumerated world, as the reward reads them."""
        return self._embedded(world.sample.batch, f"{self.plan.key}-world")

    def _embedded(self, batch: Transitions, key: str) -> Transitions:
        """Frames exchanged for the reward's embedding of them, from the folder if it is there."""
        from safetensors.numpy import load_file, save_file

        name = self.reward.embedding
        if name is None or batch.frame is None or "frame" not in self.reward.requires:
            return batch
        path = self._vault(key)
        if path.exists():
            kept = load_file(path)
        else:
            begin = time.perf_counter()
            kept = {"seen": np.asarray(self.reward.embed(batch))}
            self.seconds["embed"] = time.perf_counter() - begin
            if batch.obs_frame is not None:
                kept["before"] = np.asarray(self.reward.embed(batch.replace(frame=batch.obs_frame)))
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            save_file({part: np.ascontiguousarray(value) for part, value in kept.items()}, partial)
            partial.replace(path)
        extras = {**batch.extras, name: kept["seen"]}
        if "before" in kept:
            extras[f"obs_{name}"] = kept["before"]
        return batch.replace(frame=None, obs_frame=None, extras=extras)

    def _vault(self, key: str) -> Path:
        what = [self.reward.embedding, *(getattr(self.config, f, "") for f in ("model", "weights", "precision"))]
        weights = Path(str(getattr(self.config, "weights", "")))
        if weights.is_file():  # a file that was trained further is another model
            what.append(weights.stat().st_mtime_ns)
        return self.plan.folder / f"embeddings-{key}-{hashlib.sha256(repr(what).encode()).hexdigest()[:12]}.safetensors"

    def _warm_up(self, warm: int | None) -> int:
        """Let it learn from the rows; returns how often they were shown."""
        rollout = self.batch[self.sample.counted].map(lambda x: x[:, None])
        until_ready = warm is None and self.reward.role == "goal" and self.learns
        wanted = -(-PATIENCE // len(rollout.step)) if until_ready else (warm or 0)
        for number in range(wanted):
            if until_ready and self._ready():
                return number
            self.stream.update(rollout, np.zeros(rollout.shape, np.float32))
        return wanted

    def _ready(self) -> bool:
        if self.stream.has_memory:
            return True
        scored: Any = self.reward.score(self.batch[:1])
        return not isinstance(scored, Scored) or bool(scored.ready.any())
