"""The mix: several rewards, each a stream with its own weight, scale, shape and discount, and their metrics.

    score    each stream's shaped scores of the transitions                    pure
    combine  sum of weight(t) * score / scale                                  pure
    update   the rewards learn, scales and metrics move                        the only place where anything moves
    keep     what a replay has to store so that it can score `relabel`           pure

Scores are divided by the statistics of the last update, so a stream that has a scale gives 0 until it has seen `warmup`
transitions: that is what makes wrapper, rollout and replay give equal rewards.

`rewards.mix.shaping` says how a score becomes a reward that an agent cannot farm.
"""

import copy
import functools
import math
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from envs.transitions import NotFinite, OnNan, Transitions, index_obs, is_finite
from envs.types import MODALITIES, MODALITY_FIELDS, Memory, StateDict
from lodestar.numerics.descent import Flat
from lodestar.settings import LEARNED_WEIGHT, Schedule
from lodestar.state import Stateful
from rewards.base import (
    AVERAGE,
    JudgeUse,
    Metrics,
    Reward,
    RewardConfig,
    Walk,
    make_scale,
    sharing,
    values_at_obs,
    values_of,
)
from rewards.mix.limit import Limit, refuse_limit
from rewards.mix.shaping import PAIRED, RELATIVE, References, clip, delta, potential, sigmoid
from rewards.task import Task

LAST_SCORE = "last score"  # key in the memory of a stream
MIN_CORRELATED_NORM = 1e-12  # a transition; below it one side is constant, and has no correlation
# Updates in a row whose loss is not finite.
MAX_BAD_UPDATES = 3
# Finite updates between two copies of the weights.
COPY_INTERVAL = 10

# Arrays of one shape, (N,) or (T, N), by the name of a stream: scores, rewards or their parts.
ByStream = dict[str, np.ndarray]


class Mix(Stateful):
    """Streams added up. It is a `Scorer`: agents that imagine or relabel call `total`.

    Example:
        >>> import rewards
        >>> from gymnasium.spaces import Box, Discrete
        >>> from rewards.exploration.rnd import RNDConfig
        >>> mix = rewards.make({"task": None, "rnd": RNDConfig(weight=0.5)}, Box(-1, 1, (4,)), Discrete(2))
        >>> mix.weights(0), sorted(mix.requires)
        ({'task': 1.0, 'rnd': 0.5}, ['next_obs', 'reward'])
    """

    saved = {"streams": "streams", "metrics": "_metrics", "zeroed": "on_nan.zeroed"}

    def __init__(self, streams: list["Stream"]) -> None:
        self.streams = {stream.name: stream for stream in streams}
        self.requires: frozenset[str] = frozenset()
        self.relabelable = True
        for stream in streams:
            self.requires |= stream.requires
            self.relabelable = self.relabelable and stream.relabelable
        sizes = {stream.reward.frame_size for stream in streams if "frame" in stream.requires}
        if len(sizes) > 1:
            raise ValueError(f"the rewards want frames of {sorted(map(str, sizes))} pixels; a mix renders one size")
        self.frame_size: int | None = next(iter(sizes), None)
        self.limits = {stream.name: stream.limit for stream in streams if stream.limit is not None}
        if len(self.limits) == len(streams):
            name = streams[0].name
            raise ValueError(
                f"reward.{name}.limit={self.limits[name].limit:g} leaves nothing to learn beside a cost; name a reward "
                "without a limit as well, as in reward=[task,signal] reward.signal.limit=0.1"
            )
        # A replay has to keep something of these streams, or it could not score a transition later.
        self._lasting = [stream for stream in streams if stream.has_memory or not stream.relabelable]
        self.keeps = bool(self._lasting) or not self.requires.isdisjoint(MODALITIES)
        self._metrics = MixMetrics()
        self._is_readable = False  # whether a batch was seen that has what the rewards read
        self.watched: ByStream | None = None  # newest scores by stream, where a log shows them
        # What replaces rewards that are NaN or infinite, the task's and the learned ones; agents read it, too.
        self.on_nan = OnNan()
        for stream in streams:
            stream.on_nan = self.on_nan
        # Constant weights are read once, the others at each call of `weights`.
        self._first_weights = {stream.name: stream.weight(0) for stream in streams}
        self._varying = [stream for stream in streams if stream.weight_varies]

    @property
    def is_task(self) -> bool:
        """True when the reward is the task's own as it is, and nothing else."""
        return self.describe() == "task" and isinstance(self.streams["task"].reward, Task)

    def describe(self) -> str:
        return " + ".join(map(str, self.streams.values()))

    def notes(self) -> list[str]:
        notes = []
        for name, stream in self.streams.items():
            notes += [f"{name}: {note}" for note in stream.notes()]
        return notes

    def judge_use(self) -> dict[str, JudgeUse]:
        """By the names of rewards that ask a judge, what came of it."""
        used = {name: stream.reward.judge_use() for name, stream in self.streams.items()}
        return {name: use for name, use in used.items() if use is not None}

    def preflight(self) -> list[str]:
        sentences = []
        for name, stream in self.streams.items():
            sentence = stream.reward.preflight()
            if sentence:
                sentences.append(f"{name}: {sentence}")
        return sentences

    def only_sums(self, who: str) -> None:
        """Refuse, for what adds up rewards, streams that need a value of their own: a ValueError.

        Those are streams whose `credit` is no sum, whose weight is learned or whose values are differential.
        """
        for name, stream in self.streams.items():
            why = f"needs whole rollouts and a value for every stream, which {who} has not; take agent=ppo with"
            if stream.learned:
                fix = "agent.blend=aligned and streams=separate, or give a number"
                raise ValueError(f"reward.{name}.weight=learned {why} {fix}")
            if stream.credit != "sum":
                raise ValueError(f"reward.{name}.credit={stream.credit} {why} streams=separate, or credit=sum")
            if stream.average:
                raise ValueError(f"reward.{name}.gamma={AVERAGE} {why} streams=separate, or give a discount")

    def initial_memory(self, n: int) -> Memory:
        return {name: stream.initial_memory(n) for name, stream in self.streams.items() if stream.has_memory}

    def embed(self, batch: Transitions) -> Transitions:
        """Replace frames by the embeddings that stand for them; a batch without frames is returned as it is."""
        if batch.frame is None:
            return batch
        extras = dict(batch.extras)
        frames_stay = False
        for stream in self.streams.values():
            if "frame" not in stream.requires:
                continue
            # A reward without an embedding reads the frames themselves.
            key = stream.reward.embedding
            if key is None:
                frames_stay = True
                continue
            frames_stay |= stream.reward.keeps_frames
            if key not in extras:
                embedding = stream.reward.embed(batch.flatten())
                extras[key] = embedding.reshape(*batch.shape, *embedding.shape[1:])
            if "obs_frame" in stream.requires and f"obs_{key}" not in extras:
                extras[f"obs_{key}"] = _embed_obs(stream.reward, batch, extras[key])
        batch = batch.replace(extras=extras)
        if frames_stay:
            return batch
        return batch.replace(frame=None, obs_frame=None)

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[ByStream, Memory]:
        """Every stream's scores of a batch, (N,), or (T, N) in time order; pure.

        Returns name -> float32 scores, unweighted and unscaled; and the memory for the next step, rows of ended
        episodes reset. `memory` is from `initial_memory` or the previous call.
        """
        self._check_readable(batch)
        if memory is None:
            memory = self.initial_memory(batch.shape[-1])
        raw: ByStream = {}
        after: dict[str, Any] = {}
        with self._sharing():
            for name, stream in self.streams.items():
                raw[name], stream_memory = stream.score(batch, memory.get(name))
                if stream.has_memory:
                    after[name] = stream_memory
        return raw, after

    def keep(self, batch: Transitions, memory: Memory) -> tuple[dict[str, np.ndarray], Memory]:
        """What a replay keeps beside transitions, so that `relabel` can score them later and in any order.

        Embeddings of frames, and those frames, texts and signals that are read themselves; of a reward with a memory of
        the episode its score, or what can stand for the memory (`Reward.recalls`). Takes a batch (T, N) in time order,
        each transition once, and the memory; returns name -> column (T, N, ...), and the memory for the next call.
        """
        batch = self.embed(batch)
        self._check_readable(batch)
        columns = dict(batch.extras)
        for name in MODALITY_FIELDS:
            if name in self.requires and getattr(batch, name) is not None:
                columns[name] = getattr(batch, name)
        memory = dict(memory)
        for stream in self._lasting:
            if stream.relabelable:
                key = stream.reward.recalls
                columns[key], memory[stream.name] = stream.reward.recall(batch, memory[stream.name])
            else:
                columns[f"score/{stream.name}"], after = stream.score(batch, memory.get(stream.name))
                if stream.has_memory:
                    memory[stream.name] = after
        return columns, memory

    def relabel(self, batch: Transitions) -> ByStream:
        """Raw scores by stream, as the rewards stand now, of transitions with the columns of `keep`; pure."""
        # Rows out of a replay need not follow one another, so they are scored one by one.
        flat = batch.flatten()
        raw: ByStream = {}
        with self._sharing():
            for name, stream in self.streams.items():
                if stream.relabelable:
                    score, _ = stream.score(flat, None, again=True)
                    raw[name] = score.reshape(batch.shape)
                else:
                    raw[name] = batch.extras[f"score/{name}"]
        return raw

    def scale_rewards(self, raw: ByStream) -> ByStream:
        """Each stream's scaled reward, not yet weighted: what an agent with a value for every stream learns from."""
        return {name: stream.scale_rewards(raw[name]) for name, stream in self.streams.items()}

    def weights(self, timesteps: Any) -> dict[str, Any]:
        """Each stream's weight after `timesteps` environment steps; an array gives arrays."""
        weights = dict(self._first_weights)
        for stream in self._varying:
            weights[stream.name] = stream.weight(timesteps)
        if not self.limits:
            return weights
        # However large multipliers become, rewards stay of the size of the task's or of the cost.
        return {name: weight / self._multiplier_sum for name, weight in weights.items()}

    @property
    def _multiplier_sum(self) -> float:
        """1 + lambda, summed over the streams with a limit."""
        return 1 + sum(limit.multiplier for limit in self.limits.values())

    def weighted_rewards(self, raw: ByStream, timesteps: Any) -> ByStream:
        """Each stream's share of the reward: scaled, and times its weight."""
        weights = self.weights(timesteps)
        return {name: scaled * weights[name] for name, scaled in self.scale_rewards(raw).items()}

    def combine(self, raw: ByStream, timesteps: Any) -> np.ndarray:
        """The reward an agent receives, float32: the sum over streams after `timesteps` environment steps."""
        return add_parts(self.weighted_rewards(raw, timesteps))

    def total(self, batch: Transitions, memory: Memory, timesteps: int) -> Walk:
        """Score and combine in one call: the `Scorer` protocol."""
        raw, memory = self.score(self.embed(batch), memory)
        return self.combine(raw, timesteps), memory

    def update(self, batch: Transitions, raw: ByStream, timesteps: Any = 0) -> Metrics:
        """Learn from fresh transitions (T, N) in time order, each handed in once, that `score` gave `raw`.

        `timesteps` are environment steps at the first row, or an array that broadcasts to (T, N). Returns metrics by
        tag: `reward/<name>` (mean score), `_share`, `_corr`, `reward/total`, `<name>/<metric>`.
        """
        if len(batch.shape) != 2:
            raise ValueError(f"update takes a rollout (T, N), not {batch.shape}; envs.transitions.stack makes one")
        self._watch(batch, raw)
        parts = self.weighted_rewards(raw, timesteps)
        metrics = self._metrics.update(batch, raw, parts)
        with self._sharing():
            for name, stream in self.streams.items():
                for key, value in stream.update(batch, raw[name]).items():
                    metrics[f"{name}/{key}"] = float(value)
                if stream.has_scale:
                    metrics[f"reward/{name}_scale"] = stream.scale.value
        if self.limits:
            others = [part for name, part in parts.items() if name not in self.limits]
            unlimited = self._multiplier_sum * np.sum(others, axis=0)
            for name, limit in self.limits.items():
                metrics |= limit.update(batch, raw[name], unlimited)
        if self.on_nan.what == "zero":
            metrics["reward/nan"] = self.on_nan.zeroed
        return metrics

    def measure(self, batch: Transitions, timesteps: Any = 0) -> Metrics:
        """The tags `reward/...` of stored transitions (T, N) that `update` has not seen yet; nothing learns."""
        raw = self.relabel(batch)
        self._watch(batch, raw)
        # A copy, so that the returns of running episodes do not count these transitions twice.
        metrics = copy.deepcopy(self._metrics)
        return metrics.update(batch, raw, self.weighted_rewards(raw, timesteps))

    def _check_readable(self, batch: Transitions) -> None:
        """Refuse (ValueError) a first batch without frames, texts or signals that a reward reads."""
        if self._is_readable:
            return
        present = {name for name in MODALITIES if getattr(batch, name) is not None}
        if any(stream.reward.embedding in batch.extras for stream in self.streams.values()):
            present.add("frame")  # Its embedding stands for it.
        refuse_missing(self.streams, present, self.frame_size)
        self._is_readable = True

    def _sharing(self) -> AbstractContextManager[None]:
        """What streams read of a batch, prepared once; a single one has nothing to share."""
        learned = [stream for stream in self.streams.values() if not isinstance(stream.reward, Task)]
        return sharing() if len(learned) > 1 else nullcontext()

    def _watch(self, batch: Transitions, raw: ByStream) -> None:
        if self.watched is not None:
            self.watched = index_obs(raw, batch.valid)

    def close(self) -> None:
        for stream in self.streams.values():
            stream.reward.close()

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned; raises ValueError for that of a mix of other rewards."""
        if set(state["streams"]) != set(self.streams):
            raise ValueError(f"the saved mix has {sorted(state['streams'])}, this one has {sorted(self.streams)}")
        # Streams keep their own order.
        streams = {name: state["streams"][name] for name in self.streams}
        super().load_state_dict({**state, "streams": streams})


def add_parts(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """The reward, float32, that weighted and scaled streams add up to."""
    return np.asarray(functools.reduce(np.add, parts.values()), np.float32)


def refuse_missing(sources: Mapping[str, Any], present: Collection[str], frame_size: int | None) -> None:
    """Refuse (ValueError) frames, texts or signals that a stream or reward reads and that are not `present`."""
    for name, source in sources.items():
        for field in MODALITIES:
            if field not in source.requires or field in present:
                continue
            option = f"frame_size={frame_size}" if field == "frame" else f"{field}=True"
            rendered = ' with render_mode="rgb_array", or' if field == "frame" else ""
            raise ValueError(
                f'the reward {name!r} reads {field}, but info["{field}"] is missing; make it{rendered} '
                f"with envs.make.make(..., {option}); in other processes, or in a vector that resets in the "
                "same step, wrap each in envs.wrappers.Observer where it is made"
            )


def _embed_obs(reward: Reward, batch: Transitions, embedding: np.ndarray) -> np.ndarray:
    """Embeddings of `obs_frame`, given those of `frame`, which along a rollout are the next row's."""
    at_obs = batch.replace(frame=batch.obs_frame)
    return values_at_obs(batch, embedding, lambda rows: reward.embed(at_obs[rows]))


class MixMetrics(Stateful):
    """Means, shares of the total, correlation with the task, learned return of the last 100 episodes."""

    saved = ("running", "returns")

    def __init__(self) -> None:
        self.running = np.zeros(0)  # learned return of the running episode, per environment
        self.returns: deque[float] = deque(maxlen=100)  # of the last 100 episodes

    def update(self, batch: Transitions, raw: ByStream, parts: ByStream) -> Metrics:
        """Metrics by tag of a rollout (T, N), given each stream's scores and its weighted, scaled reward."""
        valid = batch.valid
        metrics: Metrics = {}
        if not valid.any():
            return metrics
        # Both make a vector of the rows that are transitions.
        select_valid = np.ravel if valid.all() else functools.partial(np.compress, valid.ravel())
        sizes = {name: float(np.abs(select_valid(part)).mean()) for name, part in parts.items()}
        total_size = sum(sizes.values())
        task = select_valid(batch.reward).astype(np.float64)
        task -= task.mean()
        # Pearson's correlation of each stream with the task's reward.
        for name, value in raw.items():
            scores = select_valid(value).astype(np.float64)
            mean = scores.mean()
            metrics[f"reward/{name}"] = float(mean)
            metrics[f"reward/{name}_share"] = sizes[name] / total_size if total_size > 0 else 0.0
            scores -= mean
            norm = math.sqrt(scores.dot(scores) * task.dot(task))
            if name != "task" and norm > MIN_CORRELATED_NORM * len(scores):
                metrics[f"reward/{name}_corr"] = float(scores.dot(task)) / norm
        total = functools.reduce(np.add, parts.values())
        metrics["reward/total"] = float(select_valid(total).mean())
        self._add_returns(np.where(valid, total, 0.0), batch.ended, valid)
        if self.returns:
            metrics["rollout/ep_learned_mean"] = float(np.mean(self.returns))
        return metrics

    def _add_returns(self, total: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:
        """Sum rewards (T, N), 0 in rows that are no transitions, up to the ends of episodes."""
        if len(self.running) != total.shape[1]:
            self.running = np.zeros(total.shape[1])
        start = 0
        for t in np.flatnonzero(ended.any(axis=1)).tolist():
            self.running = self.running + total[start : t + 1].sum(axis=0)
            # An episode that was lost with its worker does not count.
            self.returns.extend(self.running[ended[t] & valid[t]].tolist())
            self.running = np.where(ended[t], 0.0, self.running)
            start = t + 1
        self.running = self.running + total[start:].sum(axis=0)


class Stream(Stateful):
    """One reward inside a mix."""

    saved = ("reward", "scale", "updates")

    def __init__(self, name: str, reward: Reward, *, gamma: float) -> None:
        config: RewardConfig = reward.config
        self.name = name
        self.reward = reward
        self.gamma = config.discount_or(gamma)
        self.average = config.gamma == AVERAGE
        reward.use_discount(self.gamma)
        # A Config may have changed since it was made.
        config.check("scale", "shape")
        if not (0 < self.gamma <= 1):
            raise ValueError(f"reward.{name}.gamma={self.gamma} is out of range; give a number in (0, 1]")
        try:
            self.weight: Schedule | Limit = Schedule(config.weight)
        except ValueError as error:
            raise ValueError(f"reward.{name}.{error}") from None
        self.limit: Limit | None = None
        if config.limit is not None:
            refuse_limit(name, reward, learns=bool(optimizers_of(reward)))
            self.limit = Limit(name, config.limit, config.limit_per, config.limit_rate, config.limit_start)
            self.weight = self.limit
        self.has_scale = config.scale != "none"
        self.learned = config.weight == LEARNED_WEIGHT  # by the agent, which moves `weight.start`
        is_constant = isinstance(self.weight, Schedule) and self.weight.kind == "constant"
        self.weight_varies = self.learned or not is_constant
        self.warmup = config.warmup
        self.freeze = config.freeze
        # A scale that moves on would undo what the weight learns.
        if self.learned and not self.freeze:
            self.freeze = max(self.warmup, 1)
        self.shape = config.shape
        self.clip_at = config.clip_at
        self.slope = config.slope
        self.credit = config.credit
        self.compares = config.shape in PAIRED  # needs the score of obs as well
        self.has_memory = reward.initial_memory(1) is not None
        self.relabelable = reward.relabelable and (not self.has_memory or bool(reward.recalls))
        self.episodic = config.episodic
        if self.episodic is None:
            self.episodic = reward.role != "bonus" or self.has_memory or config.credit == "min"
        if self.average:
            self._check_average()
        self.scale = make_scale(config.scale, self.gamma, self.episodic)
        self.updates = GuardedUpdates(reward)
        self.on_nan = OnNan()
        self._fits = isinstance(reward, Task)  # whether observations were compared with the reward's space
        if self.credit == "min" and not self.episodic:
            raise ValueError(f"reward.{name}.credit=min is the least reward of an episode; leave episodic=true")
        self.references: References | None = None
        if config.shape in RELATIVE:
            self.references = References(
                config.references, config.warmup, config.references_from, reward.observation_space.shape
            )
        # Some rewards with a memory know the score at `obs` themselves. For others the score of the step before is kept
        # beside the reward's own memory.
        is_overridden = type(reward).score_both_states is not Reward.score_both_states
        self.knows_both_scores = self.compares and self.has_memory and is_overridden
        self.keeps_score = self.compares and self.has_memory and not self.knows_both_scores
        if (self.references is not None and self.has_memory) or (self.keeps_score and reward.starts_at is None):
            raise ValueError(
                f"reward.{name}.shape={config.shape} needs a score that depends on the state alone, but {name} "
                "remembers the episode; use shape=none or clip"
            )

    def _check_average(self) -> None:
        """Refuse, with a ValueError, what has no meaning for a return that neither fades nor ends."""
        setting = f"reward.{self.name}.gamma={AVERAGE}"
        if self.episodic:
            raise ValueError(
                f"{setting} compares with the mean reward of a task that never ends, and episodic=true ends its return "
                f"with the episode; give reward.{self.name}.episodic=false, or a discount"
            )
        if self.credit != "sum":
            raise ValueError(f"{setting} is of sums, and credit={self.credit} is none; give credit=sum, or a discount")
        if self.reward.config.scale == "return":
            raise ValueError(
                f"{setting} leaves scale=return without a discounted return; give reward.{self.name}.scale=ema or std"
            )

    def _places(self) -> Mapping[str, str]:
        places = dict(super()._places())
        if self.references:
            places["references"] = "references"
        if self.learned:
            places["weight"] = "weight.start"
        if self.limit:
            places["limit"] = "limit"
        return places

    @property
    def requires(self) -> frozenset[str]:
        fields = set(self.reward.requires)
        if self.compares and not self.has_memory:
            fields |= {f"obs_{field}" for field in fields & set(MODALITIES)}
            fields.add("obs")
        return frozenset(fields)

    def initial_memory(self, n: int) -> Memory:
        """The reward's memory for `n` fresh episodes; with their first score, where the next is compared with it."""
        memory = self.reward.initial_memory(n)
        if self.keeps_score:
            return {**memory, LAST_SCORE: np.full(n, self.reward.starts_at, np.float32)}
        return memory

    def notes(self) -> list[str]:
        """Sentences of the reward, and of what its stream makes of it."""
        notes = list(self.reward.notes())
        learns = type(self.reward).update is not Reward.update
        if self.references is not None and learns:
            notes.append(
                f"shape={self.shape} compares with scores from the beginning of training, which stay as they were "
                f"while {self.name} learns on; where all of its scores drift, take shape=none or a reward that has "
                "learned"
            )
        return notes

    def score(self, batch: Transitions, memory: Memory, again: bool = False) -> Walk:
        """Shaped scores, float32, of the batch's shape; 0 in rows not valid or not ready; `again`: out of a replay."""
        if not self._fits:
            self._check_fits(batch)
        # A flat batch is one step of a rollout for a reward with a memory.
        if self.has_memory and len(batch.shape) == 1:
            raw, memory = self.score(batch[None], memory, again)
            return raw[0], memory
        # `before` is the score at `obs`, where the reward itself knows it.
        before, raw, after = self._ask_reward(batch, memory)
        raw = self.on_nan(raw)
        if not is_finite(raw):
            self._refuse(raw, batch, again)
        if self.shape == "clip":
            raw = clip(raw, self.clip_at)
        elif self.shape == "sigmoid":
            raw = sigmoid(raw, self.clip_at, self.slope)
        elif self.references is not None:
            raw = self.references(raw, self.slope)
        if self.compares:
            if self.keeps_score:
                # The scores one step before, `starts_at` where an episode begins.
                before = np.empty_like(raw)
                last = memory[LAST_SCORE]
                for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
                    before[t] = last
                    last = np.where(valid, raw[t], last)
                    last = np.where(ended, np.float32(self.reward.starts_at), last)
                after = {**after, LAST_SCORE: last}
            elif before is None:
                before = values_at_obs(batch, raw, lambda rows: self._score_obs(batch[rows]))
            if self.shape == "delta":
                raw = delta(before, raw)
            else:
                raw = potential(before, raw, batch.terminated, self.gamma)
        if not batch.valid.all():
            raw = np.where(batch.valid, raw, np.float32(0))
        return raw, after

    def _ask_reward(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray | None, np.ndarray, Memory]:
        """The reward's scores at `obs`, where it has a memory and knows them, and at `next_obs`; and the memory."""
        if self.knows_both_scores:
            column = batch.extras.get(self.reward.recalls)
            if column is None:
                column, memory = self.reward.recall(batch, memory)
            return *self.reward.score_both_states(column), memory
        if self.has_memory:
            return None, *self.reward.scan(batch, memory)
        if isinstance(self.reward, Task):
            return None, np.array(batch.reward, np.float32), memory
        raw = values_of(self.reward.score(batch.flatten()))
        return None, raw.reshape(batch.shape), memory

    def _score_obs(self, rows: Transitions) -> np.ndarray:
        """Scores (M,) of the observations that flat rows started from."""
        scores = values_of(self.reward.score(rows.at_obs()))
        if self.references is None:
            return scores
        return self.references(scores, self.slope)

    def _check_fits(self, batch: Transitions) -> None:
        """Refuse observations that are not the space's, once: the reward may have been made for a whole vector."""
        expected = self.reward.observation_space.shape
        given = np.shape(batch.obs)[len(batch.shape) :]
        # The observations that a guide is given are longer than its space, but it does not read them.
        reads = bool({"obs", "next_obs"} & self.requires)
        if reads and isinstance(batch.obs, np.ndarray) and expected not in (None, given):
            raise ValueError(
                f"the reward {self.name!r} was made for observations of shape {expected} and is given {given}; make it "
                "with the spaces of one environment: single_observation_space and single_action_space of a vector"
            )
        self._fits = True

    def _refuse(self, raw: np.ndarray, batch: Transitions, again: bool) -> None:
        """Raise `NotFinite` for the first score that is NaN or infinite, with its transition."""
        place = tuple(np.argwhere(~np.isfinite(raw))[0])
        origin = "a transition out of the replay" if again else f"environment {place[-1]}"
        transition = {}
        for name in ("obs", "action", "reward", "next_obs"):
            transition[name] = index_obs(getattr(batch, name), place)
        raise NotFinite(
            f"the reward {self.name!r} gave {raw[place]} for {origin} at step {batch.step[place]} of its episode; "
            "nothing has been learnt from it",
            transition,
        )

    def scale_rewards(self, raw: np.ndarray) -> np.ndarray:
        """raw / scale; zero while a scaled stream warms up."""
        if not self.has_scale:
            return raw
        if self.scale.count < self.warmup:
            return np.zeros_like(raw)
        return raw / np.float32(self.scale.value)

    def update(self, batch: Transitions, raw: np.ndarray) -> Metrics:
        # References are gathered before anything is learnt, from a recording or from these transitions.
        if self.references is not None and not len(self.references.scores):
            rows = self.references.recorded or batch.flatten()[batch.valid.ravel()]
            self.references.take(values_of(self.reward.score(rows)))
        is_frozen = self.freeze and self.scale.count >= self.freeze
        if self.has_scale and not is_frozen:
            self.scale.update(raw, batch.ended, batch.valid)
        return self.updates.update(batch)

    def __str__(self) -> str:
        text = self.name
        if str(self.weight.spec) not in ("1", "1.0"):
            text = f"{self.weight.spec} * {self.name}"
        if self.limit:
            text = f"{self.name} {self.limit.spec}"
        details = []
        if self.shape != "none":
            details.append(self.shape)
        if self.has_scale:
            details.append(f"/ {self.reward.config.scale}")
        if not self.episodic:
            details.append("non-episodic")
        if details:
            text += f" ({', '.join(details)})"
        return text


@dataclass(eq=False)
class GuardedUpdates(Stateful):
    """`Reward.update`, with recovery from losses that are NaN or infinite.

    `Learned.descend` takes no step on such a loss. If it happens `MAX_BAD_UPDATES` times in a row the model itself is
    suspected, and the last weights that gave finite losses are restored; weights that are not finite at once. Training
    continues; `<name>/skipped` and `<name>/restored` count.
    """

    saved = {"skipped": "skipped", "restored": "restored", "row": "_skipped_in_a_row"}

    reward: Reward
    skipped: int = 0
    restored: int = 0
    _skipped_in_a_row: int = 0
    _finite_updates: int = 0
    # Weights, and the state of each optimiser; a resumed run takes its first copy at its first finite update.
    _good_copy: tuple[list[torch.Tensor], list[dict[str, Any]]] | None = None

    def update(self, batch: Transitions) -> Metrics:
        optimizers = optimizers_of(self.reward)
        if optimizers and self._good_copy is None and all(map(is_finite, _weights(optimizers))):
            self._copy_weights(optimizers)
        metrics = self.reward.update(batch)
        if not optimizers or not metrics:
            return metrics
        weights_spoilt = not all(map(is_finite, _weights(optimizers)))
        losses_finite = all(math.isfinite(value) for key, value in metrics.items() if "loss" in key)
        if weights_spoilt or not losses_finite:
            self.skipped += 1
            self._skipped_in_a_row += 1
            if weights_spoilt or self._skipped_in_a_row >= MAX_BAD_UPDATES:
                self._restore_weights(optimizers)
        else:
            self._skipped_in_a_row = 0
            self._finite_updates += 1
            if self._finite_updates % COPY_INTERVAL == 0:
                self._copy_weights(optimizers)
        if not self.skipped:
            return metrics
        return {**metrics, "skipped": self.skipped, "restored": self.restored}

    def _copy_weights(self, optimizers: list[Any]) -> None:
        states = [optimizer.state_dict() for optimizer in optimizers]
        self._good_copy = copy.deepcopy((_weights(optimizers), states))

    def _restore_weights(self, optimizers: list[Any]) -> None:
        self.restored += 1
        self._skipped_in_a_row = 0
        if self._good_copy is None:
            return
        good_weights, states = copy.deepcopy(self._good_copy)
        for weights, good in zip(_weights(optimizers), good_weights):
            weights.copy_(good)
        for optimizer, state in zip(optimizers, states):
            optimizer.load_state_dict(state)


def optimizers_of(reward: Reward) -> list[Any]:
    """What moves the weights of a reward that learns."""
    return [value for value in vars(reward).values() if isinstance(value, Flat | torch.optim.Optimizer)]


def _weights(optimizers: list[Any]) -> list[torch.Tensor]:
    """All weights that optimisers move, apart from their gradients; a write into one is a write into the network."""
    weights = []
    for optimizer in optimizers:
        if isinstance(optimizer, Flat):
            weights.append(optimizer.value)
            continue
        for group in optimizer.param_groups:
            weights += group["params"]
    return [part.detach() for part in weights]
