"""A reward that is looked at before training, and its scores on a sample of transitions."""

import dataclasses
import functools
import hashlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import rewards
from envs.transitions import Transitions
from lodestar.files import make_parent, regular, replacing, save_arrays
from rewards.base import Reward, RewardConfig, Scored
from rewards.mix.mix import Stream
from rewards.vision.load import PHRASES_FILE
from rewards.vision.pictures import is_picture_goal
from runners.compare.sample import Sample, SampleSpec

# Rows that a goal reward may learn from until it is ready.
MAX_WARM_UP_ROWS = 6_000
GAMMA = 0.99

Card = dict[str, Any]


def bare_config(config: RewardConfig, **changes: Any) -> Any:
    """Other settings of a reward, without weight, scale and shape."""
    changes |= {"weight": 1.0, "scale": "none", "shape": "none"}
    if hasattr(config, "ask"):
        # Answers that come while an agent trains would come too late.
        changes["ask"] = "at_once"
    return dataclasses.replace(config, **changes)


@dataclass(eq=False)
class Candidate:
    """One reward, built on its own, and its scores on a sample: weight, scale and shape are left out.

    Embeddings of the sample's frames are kept in runs/compare/<env>/, keyed by the model and everything that made the
    sample (its `spec`), so that another sentence about the same frames costs a product of matrices.

    Before it is scored, `update` passes over the sample `warm` times; None is as often as a goal reward needs to be
    ready, and never for a bonus.
    """

    name: str
    config: Any
    spaces: tuple[Any, Any]
    spec: SampleSpec
    sample: Sample
    _: dataclasses.KW_ONLY
    warm: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.config = bare_config(self.config)
        self.reward: Reward = rewards.get(self.name)(self.config, *self.spaces, seed=self.seed, device="cpu")
        self.encoder: Any = getattr(self.reward, "encoder", None)
        self.stream = Stream(self.name, self.reward, gamma=GAMMA)
        self.seconds = {"embed": 0.0, "score": 0.0}
        self.batch = self.embed_frames(self.sample.batch, self.spec.key)
        self.learns = type(self.reward).update is not Reward.update
        self.passes = self._warm_up()
        begin = time.perf_counter()
        self.values = self.score(self.batch)
        self.seconds["score"] = time.perf_counter() - begin

    @functools.cached_property
    def phrases(self) -> tuple[list[str], np.ndarray] | None:
        """Phrases that the reward's model was trained on and their embeddings (K, D); None where they are unknown."""
        training = getattr(self.encoder, "trained_on", None)
        if training is None:
            return None
        return training["phrases"], self.encoder.text(training["phrases"])

    def sentence(self, field: str) -> str:
        """A sentence of its settings: goal, negative or baseline; empty where it has none, or a picture."""
        text = getattr(self.config, field, "")
        if not isinstance(text, str) or is_picture_goal(text):
            return ""
        return text

    def with_settings(self, **changes: Any) -> "Candidate":
        """The same reward with other settings, on the same sample."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **changes))

    def score(self, batch: Transitions) -> np.ndarray:
        """Raw scores of flat rows in time order, float64 (N,)."""
        # One environment, (N, 1).
        raw, _ = self.stream.score(batch[:, None], self.reward.initial_memory(1))
        return raw[:, 0].astype(np.float64)

    def embed_frames(self, batch: Transitions, key: str) -> Transitions:
        """Frames exchanged for the reward's embedding of them, from the folder if it is there under that key."""
        name = self.reward.embedding
        if name is None or batch.frame is None or "frame" not in self.reward.requires:
            return batch
        path = self.spec.folder / f"embeddings-{key}-{self._model_key(name)}.safetensors"
        # Names of frames mean something to this reward alone, so they are not read back.
        are_names = self.stream.has_memory and self.reward.recalls
        if path.exists() and not are_names:
            embeddings = load_file(regular(path))
        else:
            begin = time.perf_counter()
            seen = self.reward.embed(batch)
            self.seconds["embed"] = time.perf_counter() - begin
            # What was seen after the action, (N, D), and before it, where that was drawn.
            embeddings = {"seen": np.ascontiguousarray(seen)}
            if batch.obs_frame is not None:
                before = self.reward.embed(batch.replace(frame=batch.obs_frame))
                embeddings["before"] = np.ascontiguousarray(before)
            make_parent(path)
            with replacing(path) as temporary:
                save_arrays(temporary, embeddings)
        extras = {**batch.extras, name: embeddings["seen"]}
        if "before" in embeddings:
            extras[f"obs_{name}"] = embeddings["before"]
        return batch.replace(frame=None, obs_frame=None, extras=extras)

    def _model_key(self, embedding: str) -> str:
        """What stands for the model in the names of files."""
        weights = getattr(self.config, "weights", "")
        model = [embedding, getattr(self.config, "model", ""), weights, getattr(self.config, "precision", "")]
        # A file, or a folder's, that was trained further is another model.
        source = Path(str(weights))
        if source.is_dir():
            source = source / PHRASES_FILE
        if source.is_file():
            model.append(source.stat().st_mtime_ns)
        return hashlib.sha256(repr(model).encode()).hexdigest()[:12]

    def _warm_up(self) -> int:
        """Let it learn from the rows; returns how many passes it took."""
        rollout = self.batch[self.sample.counted][:, None]
        passes = self.warm or 0
        until_ready = self.warm is None and self.reward.role == "goal" and self.learns
        if until_ready:
            passes = math.ceil(MAX_WARM_UP_ROWS / len(rollout.step))
        for number in range(passes):
            if until_ready and self._is_ready():
                return number
            self.stream.update(rollout, np.zeros(rollout.shape, np.float32))
        return passes

    def _is_ready(self) -> bool:
        if self.stream.has_memory:
            return True
        scored = self.reward.score(self.batch[:1])
        return not isinstance(scored, Scored) or bool(scored.ready.any())
