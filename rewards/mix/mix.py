"""The mix: several rewards, each a stream with its own weight, scale, shape and discount, and their metrics.

    score    each stream's shaped scores of the transitions                    pure
    combine  sum of weight(t) * score / scale                                  pure
    update   the rewards learn, scales and metrics move                        the only place where anything moves
    keep     what a replay has to store so that it can score `relabel`           pure

Scores are divided by the statistics of the last update, so a stream that has a scale gives 0 until it has seen `warmup`
transitions: that is what makes wrapper, rollout and replay give equal rewards.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from typing import Any

import numpy as np

from envs.types import MODALITIES, Memory, OnNan, Transitions
from rewards.base import Reward, values_at_obs
from rewards.mix.stream import Stream
from rewards.task import Task

__all__ = ["Mix", "Stream"]


class Mix:
    """Streams added up. It is a `Scorer`: agents that imagine or relabel call `total`."""

    def __init__(self, streams: list[Stream]) -> None:
        self.streams = {stream.name: stream for stream in streams}
        self.requires = frozenset().union(*(stream.requires for stream in streams))
        self.relabelable = all(stream.reward.relabelable for stream in streams)
        self.differentiable = all(stream.reward.differentiable for stream in streams)
        sizes = {stream.reward.frame_size for stream in streams if "frame" in stream.requires}
        if len(sizes) > 1:
            raise ValueError(
                f"the rewards want frames of {sorted(map(str, sizes))} pixels; a mix can render only one size"
            )
        self.frame_size: int | None = next(iter(sizes), None)
        self._lasting = [stream for stream in streams if stream.has_memory or not stream.reward.relabelable]
        self.keeps = bool(self._lasting) or any(name in self.requires for name in MODALITIES)
        self._metrics = MixMetrics()
        self.on_nan = OnNan()

    @property
    def on_nan(self) -> OnNan:
        """What replaces rewards that are NaN or infinite, the task's and the learned ones; agents read it, too."""
        return self._on_nan

    @on_nan.setter
    def on_nan(self, value: OnNan) -> None:
        self._on_nan = value
        for stream in self.streams.values():
            stream.on_nan = value

    @property
    def replaces_task(self) -> bool:
        """True when the task's own reward is not part of the mix."""
        return "task" not in self.streams

    @property
    def is_task(self) -> bool:
        """True when the reward is the task's own as it is, and nothing else."""
        return self.describe() == "task" and isinstance(self.streams["task"].reward, Task)

    def describe(self) -> str:
        """The composed reward, as one line."""
        return " + ".join(map(str, self.streams.values()))

    def notes(self) -> list[str]:
        """What a user should know before training, stream by stream."""
        return [f"{name}: {note}" for name, stream in self.streams.items() for note in stream.reward.notes()]

    def initial_memory(self, n: int) -> Memory:
        """Memories of the streams that have one, for `n` fresh episodes."""
        return {name: s.initial_memory(n) for name, s in self.streams.items() if s.has_memory}

    def embed(self, batch: Transitions) -> Transitions:
        """Replace frames by the embeddings that stand for them; a batch without frames is returned as it is."""
        if batch.frame is None:
            return batch
        extras = dict(batch.extras)
        keeps_frame = False
        for stream in self.streams.values():
            key = stream.reward.embedding
            if "frame" not in stream.requires:
                continue
            if key is None:
                keeps_frame = True
                continue
            keeps_frame = keeps_frame or stream.reward.keeps_frames
            if key not in extras:
                extras[key] = _embed(stream.reward, batch, batch.frame)
            if "obs_frame" in stream.requires and f"obs_{key}" not in extras:
                extras[f"obs_{key}"] = _embed_obs(stream.reward, batch, extras[key])
        batch = batch.replace(extras=extras)
        return batch if keeps_frame else batch.replace(frame=None, obs_frame=None)

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[dict[str, np.ndarray], Memory]:
        """Every stream's scores of a batch, shape (N,) or (T, N); pure.

        Args:
            batch: transitions, in time order if the shape is (T, N).
            memory: from `initial_memory` or the previous call; rows of ended episodes come back reset.

        Returns:
            name -> float32 scores with the batch's leading shape, unweighted and unscaled; and the memory for the
            next step.
        """
        memory = self.initial_memory(batch.shape[-1]) if memory is None else memory
        raw: dict[str, np.ndarray] = {}
        after: dict[str, Any] = {}
        for name, stream in self.streams.items():
            raw[name], kept = stream.score(batch, memory.get(name))
            if stream.has_memory:
                after[name] = kept
        return raw, after

    def keep(self, batch: Transitions, memory: Memory) -> tuple[dict[str, np.ndarray], Memory]:
        """What a replay keeps beside transitions, so that `relabel` can score them later and in any order.

        Embeddings of frames, and those frames, texts and signals that are read themselves. A reward with a memory of
        the episode cannot be computed from a transition alone: its score is kept, to be weighted and scaled later; or,
        where one number a row can stand for the memory (`Reward.recalls`), that number.

        Args:
            batch: (T, N) in time order, each transition handed in once.
            memory: from `initial_memory` or the previous call.

        Returns:
            name -> column (T, N, ...); and the memory for the next call.
        """
        batch = self.embed(batch)
        columns = dict(batch.extras)
        for name in (*MODALITIES, *(f"obs_{name}" for name in MODALITIES)):
            if name in self.requires and getattr(batch, name) is not None:
                columns[name] = getattr(batch, name)
        memory = dict(memory)
        for stream in self._lasting:
            if stream.reward.relabelable and stream.reward.recalls:
                key = stream.reward.recalls
                columns[key], memory[stream.name] = stream.reward.recall(batch, memory[stream.name])
            elif not stream.reward.relabelable:
                columns[f"score/{stream.name}"], after = stream.score(batch, memory.get(stream.name))
                if stream.has_memory:
                    memory[stream.name] = after
        return columns, memory

    def relabel(self, batch: Transitions) -> dict[str, np.ndarray]:
        """Raw scores by stream, as the rewards stand now, of transitions that lie in a replay; pure.

        Args:
            batch: any leading shape, in any order, with the columns of `keep` as its fields and extras.
        """
        flat = batch.flatten()  # rows need not follow one another
        raw = {}
        for name, stream in self.streams.items():
            if stream.reward.relabelable:
                raw[name] = stream.score(flat, None, again=True)[0].reshape(batch.shape)
            else:
                raw[name] = batch.extras[f"score/{name}"]
        return raw

    def scaled(self, raw: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Each stream's scaled reward, not yet weighted: what an agent with a value for every stream learns from."""
        return {name: stream.scaled(raw[name]) for name, stream in self.streams.items()}

    def weights(self, timesteps: Any) -> dict[str, Any]:
        """Each stream's weight after `timesteps` environment steps; an array gives arrays."""
        return {name: stream.weight(timesteps) for name, stream in self.streams.items()}

    def parts(self, raw: dict[str, np.ndarray], timesteps: Any) -> dict[str, np.ndarray]:
        """Each stream's weighted, scaled reward."""
        return {name: stream.weighted(raw[name], timesteps) for name, stream in self.streams.items()}

    def combine(self, raw: dict[str, np.ndarray], timesteps: Any) -> np.ndarray:
        """The reward an agent receives, float32: the sum over streams after `timesteps` environment steps."""
        total = None
        for name, stream in self.streams.items():
            part = stream.weighted(raw[name], timesteps)
            total = part if total is None else total + part
        return np.asarray(total, np.float32)

    def total(self, batch: Transitions, memory: Memory, timesteps: int) -> tuple[np.ndarray, Memory]:
        """Score and combine in one call: the `Scorer` protocol."""
        raw, memory = self.score(self.embed(batch), memory)
        return self.combine(raw, timesteps), memory

    def update(self, batch: Transitions, raw: dict[str, np.ndarray], timesteps: Any = 0) -> dict[str, float]:
        """Learn from fresh transitions; returns metrics.

        Args:
            batch: (T, N) in time order, each transition handed in once.
            raw: what `score` returned for it.
            timesteps: environment steps at the batch's first row, or an array that broadcasts to (T, N).

        Returns:
            Metrics by tag: `reward/<name>` (mean score), `_share`, `_corr`, `reward/total`, `<name>/<metric>`.
        """
        parts = self.parts(raw, timesteps)
        metrics = self._metrics.update(batch, raw, parts)
        for name, stream in self.streams.items():
            for key, value in stream.update(batch, raw[name]).items():
                metrics[f"{name}/{key}"] = float(value)
            if stream.has_scale:
                metrics[f"reward/{name}_scale"] = stream.scale.value
        if self.on_nan.what == "zero":
            metrics["reward/nan"] = float(self.on_nan.zeroed)
        return metrics

    def close(self) -> None:
        """Close every reward."""
        for stream in self.streams.values():
            stream.reward.close()

    def state_dict(self) -> dict[str, Any]:
        """Rewards, scales and metrics, nested."""
        state: dict[str, Any] = {
            name: {
                "reward": stream.reward.state_dict(),
                "scale": stream.scale.state_dict(),
                "updates": stream.updates.state_dict(),
            }
            for name, stream in self.streams.items()
        }
        return {"streams": state, "metrics": self._metrics.state_dict(), "zeroed": self.on_nan.zeroed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: if it was saved by a mix of other rewards.
        """
        if set(state["streams"]) != set(self.streams):
            raise ValueError(f"the saved mix has {sorted(state['streams'])}, this one has {sorted(self.streams)}")
        for name, stream in self.streams.items():
            stream.reward.load_state_dict(state["streams"][name]["reward"])
            stream.scale.load_state_dict(state["streams"][name]["scale"])
            stream.updates.load_state_dict(state["streams"][name]["updates"])
        self._metrics.load_state_dict(state["metrics"])
        self.on_nan.zeroed = int(state["zeroed"])


def _embed(reward: Reward, batch: Transitions, frame: Any) -> np.ndarray:
    flat = batch.replace(frame=frame).flatten()
    embedded = reward.embed(flat)
    return embedded.reshape(*batch.shape, *embedded.shape[1:])


def _embed_obs(reward: Reward, batch: Transitions, embedded: np.ndarray) -> np.ndarray:
    """Embeddings of `obs_frame`; only frames that are no previous row's are encoded."""

    def ask(missing: np.ndarray) -> np.ndarray:
        rows = batch[missing]
        return reward.embed(rows.replace(frame=rows.obs_frame))

    return values_at_obs(batch, embedded, ask)


class MixMetrics:
    """Means, shares of the total, correlation with the task, learned return of the last 100 episodes."""

    def __init__(self) -> None:
        self.running = np.zeros(0)  # learned return of the running episode, per environment
        self.returns: deque[float] = deque(maxlen=100)  # of the last 100 episodes

    def update(self, batch: Transitions, raw: dict[str, np.ndarray], parts: dict[str, np.ndarray]) -> dict[str, float]:
        """Metrics by tag of a rollout (T, N), given each stream's scores and its weighted, scaled reward."""
        valid = batch.valid
        metrics: dict[str, float] = {}
        if not valid.any():
            return metrics
        pick = np.ravel if valid.all() else functools.partial(np.compress, valid.ravel())
        sizes = {name: float(np.abs(pick(part)).mean()) for name, part in parts.items()}
        everything = sum(sizes.values())
        task = pick(batch.reward).astype(np.float64)
        task -= task.mean()
        for name, value in raw.items():
            rows = pick(value).astype(np.float64)
            mean = rows.mean()
            metrics[f"reward/{name}"] = float(mean)
            metrics[f"reward/{name}_share"] = sizes[name] / everything if everything > 0 else 0.0
            rows -= mean
            norm = math.sqrt(rows.dot(rows) * task.dot(task))
            if name != "task" and norm > 1e-12 * len(rows):
                metrics[f"reward/{name}_corr"] = float(rows.dot(task)) / norm
        total = functools.reduce(np.add, parts.values())
        metrics["reward/total"] = float(pick(total).mean())
        self._episodes(np.where(valid, total, 0.0), batch.ended, valid)
        if self.returns:
            metrics["rollout/ep_learned_mean"] = float(np.mean(self.returns))
        return metrics

    def _episodes(self, total: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:
        if len(self.running) != total.shape[1]:
            self.running = np.zeros(total.shape[1])
        start = 0
        for t in map(int, np.flatnonzero(ended.any(axis=1))):
            self.running = self.running + total[start : t + 1].sum(axis=0)
            self.returns.extend(self.running[ended[t] & valid[t]].tolist())  # a lost episode does not count
            self.running = np.where(ended[t], 0.0, self.running)
            start = t + 1
        self.running = self.running + total[start:].sum(axis=0)

    def state_dict(self) -> dict[str, Any]:
        return {"running": self.running, "returns": list(self.returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.running = np.array(state["running"])
        self.returns = deque(state["returns"], maxlen=100)
