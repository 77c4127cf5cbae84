"""A reward that is looked at before training, and its scores on a sample of transitions."""

import dataclasses
import functools
import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import rewards
from envs.transitions import Transitions
from lodestar.files import regular, replacing, save_arrays
from rewards.base import Reward, RewardConfig, Scored
from rewards.mix.mix import Stream
from runners.compare.sample import Sample, SampleSpec

PATIENCE = 6_000  # rows that a goal reward may learn from until it is ready
GAMMA = 0.99

Card = dict[str, Any]


class Candidate:
    """One reward, built on its own, and its scores on a sample: weight, scale and shape are left out.

    Embeddings of the sample's frames are kept in runs/compare/<env>/, keyed by the model and everything that made the
    sample (its `spec`), so that another sentence about the same frames costs a product of matrices.

    Before it is scored, `update` passes over the sample `warm` times; None is as often as a goal reward needs to be
    ready, and never for a bonus.
    """

    def __init__(
        self,
        name: str,
        config: RewardConfig,
        spaces: tuple[Any, Any],
        spec: SampleSpec,
        sample: Sample,
        *,
        warm: int | None = None,
        seed: int = 0,
    ) -> None:
        waits: Card = {"ask": "at_once"} if hasattr(config, "ask") else {}  # nothing comes beside a card
        config = dataclasses.replace(config, weight=1.0, scale="none", shape="none", **waits)
        self.name, self.config, self.spec, self.sample = name, config, spec, sample
        self.spaces, self.seed, self.warm = spaces, seed, warm
        self.reward: Reward = rewards.get(name)(config, *spaces, seed=seed, device="cpu")
        self.stream = Stream(name, self.reward, gamma=GAMMA)
        self.seconds = {"embed": 0.0, "score": 0.0}
        self.batch = self.embedded(sample.batch, spec.key)
        self.learns = type(self.reward).update is not Reward.update
        self.passes = self._warm_up()
        begin = time.perf_counter()
        self.values = self.score(self.batch)
        self.seconds["score"] = time.perf_counter() - begin

    @functools.cached_property
    def phrases(self) -> tuple[list[str], np.ndarray] | None:
        """Phrases that the reward's model was trained on and their embeddings (K, D); None where they are unknown."""
        encoder: Any = getattr(self.reward, "encoder", None)
        known = getattr(encoder, "trained_on", None)
        return (known["phrases"], encoder.text(known["phrases"])) if known else None

    def sentence(self, field: str) -> str:
        """A sentence of its settings: goal, negative or baseline; empty where it has none."""
        text = getattr(self.config, field, "")
        return text if isinstance(text, str) else ""

    def again(self, **changes: Any) -> "Candidate":
        """The same reward with other settings, on the same sample."""
        config = dataclasses.replace(self.config, **changes)
        return Candidate(self.name, config, self.spaces, self.spec, self.sample, warm=self.warm, seed=self.seed)

    def score(self, batch: Transitions) -> np.ndarray:
        """Raw scores of flat rows in time order, float64 (N,)."""
        raw, _ = self.stream.score(batch.map(lambda x: x[:, None]), self.reward.initial_memory(1))
        return raw[:, 0].astype(np.float64)

    def embedded(self, batch: Transitions, key: str) -> Transitions:
        """Frames exchanged for the reward's embedding of them, from the folder if it is there under that key."""
        name = self.reward.embedding
        if name is None or batch.frame is None or "frame" not in self.reward.requires:
            return batch
        what = [name, *(getattr(self.config, f, "") for f in ("model", "weights", "precision"))]
        weights = Path(str(getattr(self.config, "weights", "")))
        if weights.is_file():  # a file that was trained further is another model
            what.append(weights.stat().st_mtime_ns)
        digest = hashlib.sha256(repr(what).encode()).hexdigest()[:12]
        path = self.spec.folder / f"embeddings-{key}-{digest}.safetensors"
        names = self.stream.has_memory and self.reward.recalls  # of frames, which mean something to this reward alone
        if path.exists() and not names:
            kept = load_file(regular(path))
        else:
            begin = time.perf_counter()
            kept = {"seen": np.asarray(self.reward.embed(batch))}
            self.seconds["embed"] = time.perf_counter() - begin
            if batch.obs_frame is not None:
                kept["before"] = np.asarray(self.reward.embed(batch.replace(frame=batch.obs_frame)))
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays = {part: np.ascontiguousarray(value) for part, value in kept.items()}
            with replacing(path) as temporary:
                save_arrays(temporary, arrays)
        extras = {**batch.extras, name: kept["seen"]}
        extras |= {f"obs_{name}": kept["before"]} if "before" in kept else {}
        return batch.replace(frame=None, obs_frame=None, extras=extras)

    def _warm_up(self) -> int:
        """Let it learn from the rows; returns how many passes it took."""
        rollout = self.batch[self.sample.counted].map(lambda x: x[:, None])
        until_ready = self.warm is None and self.reward.role == "goal" and self.learns
        wanted = -(-PATIENCE // len(rollout.step)) if until_ready else (self.warm or 0)
        for number in range(wanted):
            if until_ready and self._ready():
                return number
            self.stream.update(rollout, np.zeros(rollout.shape, np.float32))
        return wanted

    def _ready(self) -> bool:
        scored: Any = None if self.stream.has_memory else self.reward.score(self.batch[:1])
        return not isinstance(scored, Scored) or bool(scored.ready.any())
