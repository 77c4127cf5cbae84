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
from typing import Any

import numpy as np
import torch

from envs.transitions import NotFinite, OnNan, Transitions, is_finite, map_obs
from envs.types import MODALITIES, Memory
from lodestar.numerics.flat import Flat
from lodestar.settings import LEARNED, Schedule
from lodestar.state import Stateful
from rewards.base import JudgeUse, Reward, RewardConfig, make_scale, values_at_obs, values_of
from rewards.mix.shaping import PAIRED, RELATIVE, References, clip, delta, potential, sigmoid
from rewards.sharing import shared
from rewards.task import Task

LAST = "last score"  # in the memory of a stream
PATIENCE = 3  # updates in a row whose loss is not finite
EVERY = 10  # finite updates between two copies of the weights


class Mix:
    """Streams added up. It is a `Scorer`: agents that imagine or relabel call `total`.

    Example:
        >>> import rewards
        >>> from gymnasium.spaces import Box, Discrete
        >>> from rewards.exploration.rnd import RNDConfig
        >>> mix = rewards.make({"task": None, "rnd": RNDConfig(weight=0.5)}, Box(-1, 1, (4,)), Discrete(2))
        >>> mix.weights(0), sorted(mix.requires)
        ({'task': 1.0, 'rnd': 0.5}, ['next_obs', 'reward'])
    """

    def __init__(self, streams: list["Stream"]) -> None:
        self.streams = {stream.name: stream for stream in streams}
        self.requires = frozenset().union(*(stream.requires for stream in streams))
        self.relabelable = all(stream.relabelable for stream in streams)
        sizes = {stream.reward.frame_size for stream in streams if "frame" in stream.requires}
        if len(sizes) > 1:
            raise ValueError(f"the rewards want frames of {sorted(map(str, sizes))} pixels; a mix renders one size")
        self.frame_size: int | None = next(iter(sizes), None)
        self._lasting = [stream for stream in streams if stream.has_memory or not stream.relabelable]
        self.keeps = bool(self._lasting) or any(name in self.requires for name in MODALITIES)
        self._metrics = MixMetrics()
        self._is_readable = False  # whether a batch was seen that has what the rewards read
        self.watched: dict[str, np.ndarray] | None = None  # newest scores by stream, where a log shows them
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
    def is_task(self) -> bool:
        """True when the reward is the task's own as it is, and nothing else."""
        return self.describe() == "task" and isinstance(self.streams["task"].reward, Task)

    def describe(self) -> str:
        return " + ".join(map(str, self.streams.values()))

    def notes(self) -> list[str]:
        return [f"{name}: {note}" for name, stream in self.streams.items() for note in stream.notes()]

    def judge_use(self) -> dict[str, JudgeUse]:
        """By the names of rewards that ask a judge, what came of it."""
        used = {name: stream.reward.judge_use() for name, stream in self.streams.items()}
        return {name: use for name, use in used.items() if use is not None}

    def preflight(self) -> list[str]:
        found = {name: stream.reward.preflight() for name, stream in self.streams.items()}
        return [f"{name}: {sentence}" for name, sentence in found.items() if sentence]

    def only_sums(self, who: str) -> None:
        """Refuse, for what adds up rewards, streams whose `credit` is no sum or whose weight is learned: ValueError."""
        for name, stream in self.streams.items():
            why = f"needs whole rollouts and a value for every stream, which {who} has not; take agent=ppo with"
            if stream.learned:
                other = "agent.blend=aligned and streams=separate, or give a number"
                raise ValueError(f"reward.{name}.weight=learned {why} {other}")
            if stream.credit != "sum":
                raise ValueError(f"reward.{name}.credit={stream.credit} {why} streams=separate, or credit=sum")

    def initial_memory(self, n: int) -> Memory:
        return {name: s.initial_memory(n) for name, s in self.streams.items() if s.has_memory}

    def embed(self, batch: Transitions) -> Transitions:
        """Replace frames by the embeddings that stand for them; a batch without frames is returned as it is."""
        if batch.frame is None:
            return batch
        extras = dict(batch.extras)
        seeing = [stream for stream in self.streams.values() if "frame" in stream.requires]
        for stream in seeing:
            key = stream.reward.embedding
            if key is None:
                continue
            if key not in extras:
                embedded = stream.reward.embed(batch.flatten())
                extras[key] = embedded.reshape(*batch.shape, *embedded.shape[1:])
            if "obs_frame" in stream.requires and f"obs_{key}" not in extras:
                before, embed = batch.replace(frame=batch.obs_frame), stream.reward.embed
                extras[f"obs_{key}"] = values_at_obs(batch, extras[key], lambda rows: embed(before[rows]))  # noqa: B023
        batch = batch.replace(extras=extras)
        if any(stream.reward.embedding is None or stream.reward.keeps_frames for stream in seeing):
            return batch
        return batch.replace(frame=None, obs_frame=None)

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[dict[str, np.ndarray], Memory]:
        """Every stream's scores of a batch, (N,), or (T, N) in time order; pure.

        Returns name -> float32 scores, unweighted and unscaled; and the memory for the next step, rows of ended
        episodes reset. `memory` is from `initial_memory` or the previous call.
        """
        self._check_readable(batch)
        memory = self.initial_memory(batch.shape[-1]) if memory is None else memory
        raw: dict[str, np.ndarray] = {}
        after: dict[str, Any] = {}
        with self._sharing():
            for name, stream in self.streams.items():
                raw[name], kept = stream.score(batch, memory.get(name))
                if stream.has_memory:
                    after[name] = kept
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
        for name in (*MODALITIES, *(f"obs_{name}" for name in MODALITIES)):
            if name in self.requires and getattr(batch, name) is not None:
                columns[name] = getattr(batch, name)
        memory = dict(memory)
        for stream in self._lasting:
            if stream.relabelable and stream.reward.recalls:
                key = stream.reward.recalls
                columns[key], memory[stream.name] = stream.reward.recall(batch, memory[stream.name])
            elif not stream.relabelable:
                columns[f"score/{stream.name}"], after = stream.score(batch, memory.get(stream.name))
                if stream.has_memory:
                    memory[stream.name] = after
        return columns, memory

    def relabel(self, batch: Transitions) -> dict[str, np.ndarray]:
        """Raw scores by stream, as the rewards stand now, of transitions with the columns of `keep`; pure."""
        flat = batch.flatten()  # rows need not follow one another
        with self._sharing():
            return {
                name: stream.score(flat, None, again=True)[0].reshape(batch.shape)
                if stream.relabelable
                else batch.extras[f"score/{name}"]
                for name, stream in self.streams.items()
            }

    def scaled(self, raw: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Each stream's scaled reward, not yet weighted: what an agent with a value for every stream learns from."""
        return {name: stream.scaled(raw[name]) for name, stream in self.streams.items()}

    def weights(self, timesteps: Any) -> dict[str, Any]:
        """Each stream's weight after `timesteps` environment steps; an array gives arrays."""
        return {name: stream.weight(timesteps) for name, stream in self.streams.items()}

    def parts(self, raw: dict[str, np.ndarray], timesteps: Any) -> dict[str, np.ndarray]:
        return {name: stream.scaled(raw[name]) * stream.weight(timesteps) for name, stream in self.streams.items()}

    def combine(self, raw: dict[str, np.ndarray], timesteps: Any) -> np.ndarray:
        """The reward an agent receives, float32: the sum over streams after `timesteps` environment steps."""
        return np.asarray(functools.reduce(np.add, self.parts(raw, timesteps).values()), np.float32)

    def total(self, batch: Transitions, memory: Memory, timesteps: int) -> tuple[np.ndarray, Memory]:
        """Score and combine in one call: the `Scorer` protocol."""
        raw, memory = self.score(self.embed(batch), memory)
        return self.combine(raw, timesteps), memory

    def update(self, batch: Transitions, raw: dict[str, np.ndarray], timesteps: Any = 0) -> dict[str, float]:
        """Learn from fresh transitions (T, N) in time order, each handed in once, that `score` gave `raw`.

        `timesteps` are environment steps at the first row, or an array that broadcasts to (T, N). Returns metrics by
        tag: `reward/<name>` (mean score), `_share`, `_corr`, `reward/total`, `<name>/<metric>`.
        """
        if len(batch.shape) != 2:
            raise ValueError(f"update takes a rollout (T, N), not {batch.shape}; envs.transitions.stack makes one")
        self._watch(batch, raw)
        metrics = self._metrics.update(batch, raw, self.parts(raw, timesteps))
        with self._sharing():
            for name, stream in self.streams.items():
                for key, value in stream.update(batch, raw[name]).items():
                    metrics[f"{name}/{key}"] = float(value)
                if stream.has_scale:
                    metrics[f"reward/{name}_scale"] = stream.scale.value
        if self.on_nan.what == "zero":
            metrics["reward/nan"] = float(self.on_nan.zeroed)
        return metrics

    def measure(self, batch: Transitions, timesteps: Any = 0) -> dict[str, float]:
        """The tags `reward/...` of stored transitions (T, N) that `update` has not seen yet; nothing learns."""
        raw = self.relabel(batch)
        self._watch(batch, raw)
        return copy.deepcopy(self._metrics).update(batch, raw, self.parts(raw, timesteps))

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
        own = [stream for stream in self.streams.values() if not isinstance(stream.reward, Task)]
        return shared() if len(own) > 1 else nullcontext()

    def _watch(self, batch: Transitions, raw: dict[str, np.ndarray]) -> None:
        if self.watched is not None:
            self.watched = {name: value[batch.valid] for name, value in raw.items()}

    def close(self) -> None:
        for stream in self.streams.values():
            stream.reward.close()

    def state_dict(self) -> dict[str, Any]:
        state = {name: stream.state_dict() for name, stream in self.streams.items()}
        return {"streams": state, "metrics": self._metrics.state_dict(), "zeroed": self.on_nan.zeroed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; raises ValueError for that of a mix of other rewards."""
        if set(state["streams"]) != set(self.streams):
            raise ValueError(f"the saved mix has {sorted(state['streams'])}, this one has {sorted(self.streams)}")
        for name, stream in self.streams.items():
            stream.load_state_dict(state["streams"][name])
        self._metrics.load_state_dict(state["metrics"])
        self.on_nan.zeroed = int(state["zeroed"])


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


class MixMetrics(Stateful):
    """Means, shares of the total, correlation with the task, learned return of the last 100 episodes."""

    saved = ("running", "returns")

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


class Stream(Stateful):
    """One reward inside a mix."""

    saved = ("reward", "scale", "updates")

    def __init__(self, name: str, reward: Reward, *, gamma: float) -> None:
        config: RewardConfig = reward.config
        self.name = name
        self.reward = reward
        self.gamma = gamma if config.gamma is None else config.gamma
        reward.use_discount(self.gamma)
        config.check("scale", "shape", "gamma")  # a Config may have changed since it was made
        if not (0 < self.gamma <= 1):
            raise ValueError(f"reward.{name}.gamma={self.gamma} is out of range; give a number in (0, 1]")
        try:
            self.weight = Schedule(config.weight)
        except ValueError as error:
            raise ValueError(f"reward.{name}.{error}") from None
        self.has_scale = config.scale != "none"
        self.learned = config.weight == LEARNED  # by the agent, which moves `weight.start`
        self.warmup, self.freeze = config.warmup, config.freeze
        if self.learned and not self.freeze:
            self.freeze = max(self.warmup, 1)  # a scale that moves on would undo what the weight learns
        self.shape, self.clip_at, self.slope = config.shape, config.clip_at, config.slope
        self.compares = config.shape in PAIRED  # needs the score of obs as well
        self.has_memory = reward.initial_memory(1) is not None
        lasting = reward.role == "bonus" and not self.has_memory and config.credit != "min"
        self.episodic = not lasting if config.episodic is None else config.episodic
        self.scale = make_scale(config.scale, self.gamma, self.episodic)
        self._fits = isinstance(reward, Task)  # whether observations were compared with the reward's space
        self.relabelable = reward.relabelable and (not self.has_memory or bool(reward.recalls))
        self.on_nan = OnNan()
        self.updates = GuardedUpdates(reward)
        self.credit = config.credit
        if self.credit == "min" and not self.episodic:
            raise ValueError(f"reward.{name}.credit=min is the least reward of an episode; leave episodic=true")
        self.references: References | None = None
        if config.shape in RELATIVE:
            own = getattr(reward.observation_space, "shape", None)
            self.references = References(config.references, config.warmup, config.references_from, own)
        self.around = self.compares and self.has_memory and type(reward).around is not Reward.around
        # of the step before, beside the reward's own memory
        self.keeps_score = self.compares and self.has_memory and not self.around
        if (self.references is not None and self.has_memory) or (self.keeps_score and reward.starts_at is None):
            raise ValueError(
                f"reward.{name}.shape={config.shape} needs a score that depends on the state alone, but {name} "
                "remembers the episode; use shape=none or clip"
            )

    def _places(self) -> Mapping[str, str]:
        more = {"references": "references"} if self.references else {}
        return {**super()._places(), **more, **({"weight": "weight.start"} if self.learned else {})}

    @property
    def requires(self) -> frozenset[str]:
        need = set(self.reward.requires)
        if self.compares and not self.has_memory:
            need |= {f"obs_{field}" for field in need & set(MODALITIES)} | {"obs"}
        return frozenset(need)

    def initial_memory(self, n: int) -> Memory:
        """The reward's memory for `n` fresh episodes; with their first score, where the next is compared with it."""
        memory = self.reward.initial_memory(n)
        return {**memory, LAST: np.full(n, self.reward.starts_at, np.float32)} if self.keeps_score else memory

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

    def score(self, batch: Transitions, memory: Memory, again: bool = False) -> tuple[np.ndarray, Memory]:
        """Shaped scores, float32, of the batch's shape; 0 in rows not valid or not ready; `again`: out of a replay."""
        if not self._fits:
            self._check_fits(batch)
        if self.has_memory and len(batch.shape) == 1:  # one step of a rollout
            raw, memory = self.score(batch.map(lambda x: x[None]), memory, again)
            return raw[0], memory
        if self.around:
            kept = batch.extras.get(self.reward.recalls)
            if kept is None:
                kept, memory = self.reward.recall(batch, memory)
            before, raw = self.reward.around(kept)
        elif self.has_memory:
            given = memory
            raw, memory = self.reward.scan(batch, memory)
        elif isinstance(self.reward, Task):
            raw = np.array(batch.reward, np.float32)
        else:
            raw = values_of(self.reward.score(batch.flatten())).reshape(batch.shape)
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
                before, last = self._last_scores(batch, raw, given[LAST])
                memory = {**memory, LAST: last}
            elif not self.around:
                before = values_at_obs(batch, raw, lambda rows: self._at_obs(batch[rows]))
            if self.shape == "delta":
                raw = delta(before, raw)
            else:
                raw = potential(before, raw, batch.terminated, self.gamma)
        if not batch.valid.all():
            raw = np.where(batch.valid, raw, np.float32(0))
        return raw, memory

    def _at_obs(self, rows: Transitions) -> np.ndarray:
        """Scores (M,) of the observations that flat rows started from."""
        scores = values_of(self.reward.score(rows.at_obs()))
        return scores if self.references is None else self.references(scores, self.slope)

    def _check_fits(self, batch: Transitions) -> None:
        """Refuse observations that are not the space's, once: the reward may have been made for a whole vector."""
        own = getattr(self.reward.observation_space, "shape", None)
        given = np.shape(batch.obs)[len(batch.shape) :]
        reads = bool({"obs", "next_obs"} & self.requires)  # a guide sees longer observations, and reads none
        if reads and isinstance(batch.obs, np.ndarray) and own not in (None, given):
            raise ValueError(
                f"the reward {self.name!r} was made for observations of shape {own} and is given {given}; make it with "
                "the spaces of one environment: single_observation_space and single_action_space of a vector"
            )
        self._fits = True

    def _refuse(self, raw: np.ndarray, batch: Transitions, again: bool) -> None:
        where = tuple(np.argwhere(~np.isfinite(raw))[0])
        whose = "a transition out of the replay" if again else f"environment {where[-1]}"
        names = ("obs", "action", "reward", "next_obs")
        kept = {name: map_obs(lambda x: np.asarray(x)[where], getattr(batch, name)) for name in names}
        raise NotFinite(
            f"the reward {self.name!r} gave {raw[where]} for {whose} at step {batch.step[where]} of its episode; "
            "nothing has been learnt from it",
            kept,
        )

    def _last_scores(self, batch: Transitions, score: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of a reward with a memory one step before, `starts_at` where an episode begins; and the last (N,)."""
        before = np.empty_like(score)
        for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
            before[t] = last
            last = np.where(ended, np.float32(self.reward.starts_at or 0), np.where(valid, score[t], last))
        return before, last

    def scaled(self, raw: np.ndarray) -> np.ndarray:
        """raw / scale; zero while a scaled stream warms up."""
        if not self.has_scale:
            return raw
        return np.zeros_like(raw) if self.scale.count < self.warmup else raw / np.float32(self.scale.value)

    def update(self, batch: Transitions, raw: np.ndarray) -> dict[str, float]:
        if self.references is not None and not len(self.references.scores):
            rows = self.references.recorded or batch.flatten()[batch.valid.ravel()]
            self.references.take(values_of(self.reward.score(rows)))
        if self.has_scale and not (self.freeze and self.scale.count >= self.freeze):
            self.scale.update(raw, batch.ended, batch.valid)
        return self.updates.update(batch)

    def __str__(self) -> str:
        text = self.name if str(self.weight.spec) in ("1", "1.0") else f"{self.weight.spec} * {self.name}"
        details = [] if self.shape == "none" else [self.shape]
        details += [f"/ {self.reward.config.scale}"] if self.has_scale else []
        details += [] if self.episodic else ["non-episodic"]
        return text + (f" ({', '.join(details)})" if details else "")


class GuardedUpdates(Stateful):
    """`Reward.update`, with recovery from losses that are NaN or infinite.

    `Learned.descend` takes no step on such a loss. If it happens `PATIENCE` times in a row the model itself is
    suspected, and the last weights that gave finite losses are restored; weights that are not finite at once. Training
    continues; `<name>/skipped` and `<name>/restored` count.
    """

    saved = ("skipped", "restored", "_row")

    def __init__(self, reward: Reward) -> None:
        self.reward = reward
        self.skipped = self.restored = 0
        self._row = self._finite_updates = 0  # updates: skipped one after the other, and learnt from
        self._good: list[Any] | None = None  # a resumed run takes its first copy at its first finite update

    def update(self, batch: Transitions) -> dict[str, float]:
        kinds = (Flat, torch.optim.Optimizer)
        optimizers = [value for value in vars(self.reward).values() if isinstance(value, kinds)]
        if optimizers and self._good is None and _finite(optimizers):
            self._keep(optimizers)
        metrics = self.reward.update(batch)
        if not optimizers or not metrics:
            return metrics
        spoilt = not _finite(optimizers)
        if spoilt or not all(math.isfinite(value) for key, value in metrics.items() if "loss" in key):
            self.skipped += 1
            self._row += 1
            if spoilt or self._row >= PATIENCE:
                self._restore(optimizers)
        else:
            self._row = 0
            self._finite_updates += 1
            if self._finite_updates % EVERY == 0:
                self._keep(optimizers)
        if not self.skipped:
            return metrics
        return {**metrics, "skipped": float(self.skipped), "restored": float(self.restored)}

    def _keep(self, optimizers: list[Any]) -> None:
        self._good = [copy.deepcopy(([p.detach() for p in _weights(o)], o.state_dict())) for o in optimizers]

    def _restore(self, optimizers: list[Any]) -> None:
        self.restored += 1
        self._row = 0
        for optimizer, (weights, state) in zip(optimizers, self._good or ()):
            with torch.no_grad():
                for parameter, good in zip(_weights(optimizer), weights):
                    parameter.copy_(good)
            optimizer.load_state_dict(copy.deepcopy(state))


def _weights(optimizer: Flat | torch.optim.Optimizer) -> list[torch.Tensor]:
    if isinstance(optimizer, Flat):
        return [optimizer.value]
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _finite(optimizers: list[Any]) -> bool:
    return all(is_finite(parameter.detach()) for optimizer in optimizers for parameter in _weights(optimizer))
