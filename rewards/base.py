"""The contract of a reward.

A reward rates transitions. It never receives an environment, never weighs or scales itself, never logs:
`rewards.mix.mix` does; `rewards.adapters` feed it transitions.

What you write, in one file:

    class Mine(Reward):
        Config = MineConfig                     # a mutable dataclass that extends RewardConfig
        requires = frozenset({"next_obs"})      # the fields of Transitions it reads
        def build(self): ...                    # networks and statistics, once config and spaces are set
        def score(self, batch): ...             # float32 (N,): pure, no gradient, no state moves
        def update(self, batch): ...            # the only place where weights and statistics move

Rules that `rewards.check.check_reward` enforces:
    1. `score` is pure: the same input gives the same output, and `state_dict()` stays as it was.
    2. A row's score does not depend on the other rows of the batch, nor on their order.
    3. `update` is the only place that learns. Rows with `valid == False` are not to be learnt from.
    4. The score of row t is about `next_obs`, `frame`, `text`: what the action led to.
    5. `state_dict()` holds everything; a fresh instance that loads it gives equal scores.

A reward with a memory of the episode (counts, nearest neighbours) defines `initial_memory(n)`, takes `score(batch,
memory)` and returns `(float32 (N,), memory)`. Memory is a dict of arrays with leading axis n; the caller keeps it and
resets the rows whose episode ended; `score` must not write into it. Where a whole rollout can be scored faster than
step by step, override `scan`. A score that depends on the episode can be a potential only if all episodes start at the
same one: `starts_at` names it. Where a column can stand for the memory, `recalls` names it and `recall` computes it:
replay relabels with it.

A reward that needs frames and reduces them to an embedding which never changes while training (CLIP) names it in
`embedding` and computes it in `embed`; drivers keep `batch.extras[embedding]` and drop the image.

What several rewards make of the same arrays is made once:

    with sharing():                          for as long as nothing writes into the arrays
        compute_once(obs, key, compute)      by the first that asks; later ones are given the same, to read only

Arrays are the same if they are the same memory, read alike; `key` names all else that the answer depends on. So rewards
know nothing of each other: two that whiten by equal statistics share what they read, and part when these do.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np

from envs.transitions import Transitions, put
from envs.types import Memory, StateDict
from lodestar.mappings import map_values, take_rows
from lodestar.settings import Settings, check_config, setting
from lodestar.state import Stateful, restore, state_of

# Nothing is divided by a smaller deviation.
MIN_DEVIATION = 1e-8
# The discount of a reward outside of a mix, where no learner gives its own.
DEFAULT_DISCOUNT = 0.99
# Instead of a discount: values are relative to the mean reward a step.
AVERAGE = "average"
# The least share of the mean's size that a stream's rewards are divided by.
MIN_SPREAD_SHARE = 0.1
Answer = TypeVar("Answer")
# Numbers to log, by name.
Metrics = dict[str, float]
# Scores along a rollout, (T, N), and the memory after it.
Walk = tuple[np.ndarray, Memory]
# Within `sharing`, place and key -> the answer, and the array, in whose memory nothing else can lie meanwhile.
_shared_answers: ContextVar[dict[Any, Any] | None] = ContextVar("shared_answers", default=None)


class Scored(NamedTuple):
    """What `score` may return instead of a bare array when some rows have no answer yet (annotators)."""

    # Float32 (N,).
    value: np.ndarray
    # Bool (N,); a row that is not ready gets 0 and may be asked again later.
    ready: np.ndarray


@dataclass(frozen=True)
class JudgeUse:
    """What a reward had of its judge since the run began."""

    # Questions put to the judge.
    asked: int
    # Those of them that were answered.
    answered: int
    # Answers that an earlier run had got.
    cached: int = 0
    # Answers to learn from: those in which the judge was sure.
    labels: int = 0
    # Distinct captions that were met; None for a reward that reads no captions.
    captions: int | None = None
    # Those of them that have a label.
    captions_labelled: int = 0
    # Share of the steps that got a reward; None where it is not counted.
    rewarded: float | None = None
    # Steps whose caption got its label only after they were rewarded; None where it is not counted.
    late: int | None = None
    # The sentence of the latest question without an answer.
    failure: str = ""


@dataclass
class RewardConfig(Settings):
    """How a reward enters the mix. Each reward's Config extends this with its own fields."""

    weight: Any = setting(
        1.0,
        "multiplies the scaled reward: a number, or a schedule over environment steps; linear:1:0:200000 goes from 1 to"
        " 0 in 200,000 steps; also cosine:, exp: and step:; learned, by what serves the task (PPO, agent.blend)",
        tune=(1e-3, 10.0, "log"),
    )
    scale: str = setting(
        "none",
        "what divides it: none; return (running deviation of the discounted return, along time); ema (moving average"
        " of the scores' deviation); std (running, all-time); ema and std at least a tenth of their mean",
        "none | return | ema | std",
    )
    shape: str = setting(
        "none",
        "how a score becomes a reward: none; potential (gamma * phi(s') - phi(s)); delta (phi(s') - phi(s)); clip"
        " (min(score - clip_at, 0)); sigmoid (centred on clip_at); par (potential of how often the score is preferred"
        " to frozen references, see rewards.mix.shaping); par_step (that itself)",
        "none | potential | delta | clip | sigmoid | par | par_step",
    )
    clip_at: float = setting(0.0, "threshold of clip and centre of sigmoid, in units of the raw score")
    slope: float = setting(10.0, "steepness of sigmoid and par, in 1 / units of the raw score [PAR 1]")
    references: int = setting(10, "of par: quantiles of the scores of the first `warmup` transitions", ">= 1")
    references_from: str = setting("", "of par: a recording whose scores the references are quantiles of, instead")
    credit: str = setting(
        "sum",
        "what an action answers for, of the rewards that follow: the sum; min, the least (PPO; dense scores only);"
        " soft_min, a sum weighted by softmax(-reward / 0.1) over the episode's part of a rollout (PPO)",
        "sum | min | soft_min",
    )
    gamma: float | str | None = setting(
        None,
        "discount of this stream; null takes the learner's; average has none: values are relative to the mean reward a"
        " step, for tasks that never end (PPO, episodic=false)",
        "(0, 1]",
    )
    episodic: bool | None = setting(
        True,
        "whether its return ends with the episode; false gives it a value across resets; null: false for a bonus"
        " that remembers nothing of the episode",
    )
    warmup: int = setting(256, "transitions that a scaled stream watches before it gives a reward", ">= 0")
    freeze: int = setting(0, "transitions after which its scale stands still; 0 never freezes", ">= 0")
    limit: float | None = setting(
        None,
        "what its mean must stay below: the score is a cost, which no longer adds to the reward, see rewards.mix.limit",
        ">= 0",
    )
    limit_per: str = setting("step", "what the mean is taken over", "step | episode")
    limit_rate: float = setting(0.1, "of a limit's multiplier, for each update; 0: it stays at limit_start", "[0, 1]")
    limit_start: float = setting(0.0, "multiplier of a limit at first", ">= 0")

    @property
    def name(self) -> str:
        """The reward's name, for errors: its file's, or its class's outside of this package."""
        package, _, file = type(self).__module__.rpartition(".")
        if package.partition(".")[0] == "rewards" and file != "base":
            return file
        return type(self).__name__.removesuffix("Config").lower()

    @property
    def prefix(self) -> str:
        return f"reward.{self.name}." if self.name != "reward" else "reward."

    def discount_or(self, default: float) -> float:
        """The stream's discount, 1 where its values are relative to its mean reward; a ValueError for other words."""
        if self.gamma is None:
            return default
        if self.gamma == AVERAGE:
            return 1.0
        if isinstance(self.gamma, str):
            raise ValueError(f"{self.prefix}gamma={self.gamma!r} is no discount; give a number in (0, 1], or average")
        return float(self.gamma)


class Reward(ABC):
    """Base class of every reward; the module's docstring is the contract.

    Example:
        >>> from gymnasium.spaces import Box, Discrete
        >>> class Level(Reward):
        ...     def score(self, batch, memory=None):
        ...         return batch.next_obs[:, 0]
        >>> level = Level(RewardConfig(weight=0.5), Box(-1, 1, (4,)), Discrete(2))
        >>> level.role, sorted(level.requires), level.config.weight
        ('bonus', ['next_obs'], 0.5)
    """

    Config: ClassVar[type[RewardConfig]] = RewardConfig
    requires: frozenset[str] = frozenset({"next_obs"})
    # "bonus" is added to the task's reward, "goal" replaces it.
    role: ClassVar[str] = "bonus"
    # Whether it may be recomputed on an old transition; with a memory it needs `recalls`, too.
    relabelable: bool = True
    # Height and width of the frames it wants, pixels.
    frame_size: int | None = None
    # Name of the extra that stands for the frame; equal names, equal models.
    embedding: str | None = None
    # Whether the frames must stay beside the embedding.
    keeps_frames: bool = False
    # With a memory: the extra, one number a row, that can stand for it (see `recall`).
    recalls: ClassVar[str] = ""
    # With a memory: what every episode's first state scores, if one constant.
    starts_at: ClassVar[float | None] = None
    # Size of the guide vector that the policy gets, see `rewards.adapters.guided`.
    guides: int = 0
    # Config changes that make it meaningless, for the control run.
    control: ClassVar[dict[str, Any] | None] = None

    def __init__(
        self,
        config: RewardConfig,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        check_config(config, self.Config)
        # `Any`, as each class has a Config of its own.
        self.config: Any = config
        self.observation_space = observation_space
        self.action_space = action_space
        self.seed = seed
        self.device = device
        self.discount = config.discount_or(DEFAULT_DISCOUNT)
        self.build()

    def use_discount(self, discount: float) -> None:
        """Take the discount of the return that this reward is part of, also for the rewards inside of it."""
        self.discount = discount
        for part in vars(self).values():
            if isinstance(part, Reward):
                part.use_discount(discount)

    def build(self) -> None:  # noqa: B027 - some need nothing
        """Make what the reward needs besides; called once, when config, spaces, seed and device are set."""

    @abstractmethod
    def score(self, batch: Transitions, memory: Memory = None) -> Any:
        """Rate transitions (N,): float32 (N,), or `Scored`; with a memory, of `initial_memory` or the last call, and
        the new.
        """

    def update(self, batch: Transitions) -> Metrics:
        """Learn from fresh transitions, shape (N,) or (T, N) in time order; returns metrics to log."""
        return {}

    def initial_memory(self, n: int) -> Memory:
        """Memory for `n` environments whose episodes begin; None for a reward without memory."""
        return None

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        """Score a rollout (T, N) along time; only for rewards with a memory, which is not written into.

        Returns float32 (T, N), rows that are not ready 0, and the memory for the step after. Memory of an ended episode
        starts afresh, rows that are no transitions leave it alone. Override it where a whole rollout can be scored at
        once; the answer must be the one that `score` gives step by step.
        """
        raw = np.empty(batch.shape, np.float32)
        for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
            scored, after = self.score(batch[t], memory)
            raw[t] = values_of(scored)
            # The memory is None for rows from a replay, where the extra in `recalls` stands for it.
            if memory is not None and not valid.all():
                after = merge_memory(after, memory, ~valid)
            if memory is not None and ended.any():
                after = merge_memory(after, self.initial_memory(len(ended)), ended)
            memory = after
        return raw, memory

    def recall(self, batch: Transitions, memory: Memory) -> Walk:
        """What `recalls` names, at each row, float32 (T, N), and the memory after; only for rewards that name one.

        A replay buffer keeps it, in time order; `score` and `scan` read `batch.extras[recalls]` where it is there and
        leave the memory alone. So a transition from the buffer is scored with what the reward has learnt since.
        """
        raise TypeError(f"{type(self).__name__} names no extra in recalls, so its memory stands for itself")

    def score_both_states(self, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores at `obs` and `next_obs`, float32, of rows of which `recall` kept this; equal where one is missing."""
        raise TypeError(f"{type(self).__name__} has no score before a step")

    def embed(self, batch: Transitions) -> np.ndarray:
        """The embedding (N, D) of `batch.frame`; only for rewards that name one in `embedding`."""
        raise TypeError(f"{type(self).__name__} names no embedding, so there is nothing to embed")

    def notes(self) -> list[str]:
        """Sentences a user should read before training: what supervised this reward, which prompt looks unknown."""
        return []

    def reasons(self, batch: Transitions, names: Sequence[str]) -> list[str]:
        """Why each row (N,) scores as it does, for `runners.explain`; `names` are those of the numbers of `obs`."""
        return []

    def preflight(self) -> str:
        """What a run needs that is not there, such as a server, in a sentence with its fix; "" for nothing."""
        return ""

    def judge_use(self) -> JudgeUse | None:
        """What came of the questions to a judge, to be read when a run ends; None for a reward that asks none."""
        return None

    def close(self) -> None:
        """Release what it holds, all that has a `close`: processes, connections, files."""
        for part in vars(self).values():
            if hasattr(part, "close"):
                part.close()

    def _stateful_parts(self) -> dict[str, Any]:
        """What of it has a state, by name."""
        parts = {}
        for name, value in vars(self).items():
            if hasattr(value, "load_state_dict") or isinstance(value, np.random.Generator):
                parts[name] = value
        return parts

    def state_dict(self) -> StateDict:
        return map_values(state_of, self._stateful_parts())

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned; raises ValueError if it belongs to another kind of reward."""
        names = set(self._stateful_parts())
        if names != set(state):
            parts = f"the parts {sorted(state)}, this one has {sorted(names)}"
            raise ValueError(f"the saved state of {type(self).__name__} has {parts}; was it another reward or version?")
        for name in names:
            restore(self, name, state[name])


def valid_rows(batch: Transitions) -> Transitions:
    """The rows to learn from, flat: those that are transitions."""
    flat = batch.flatten()
    return flat if flat.valid.all() else flat[flat.valid]


def one_row(batch: Transitions) -> Transitions:
    """A step (N,) as a rollout of one row, whose caller handles ends and rows that are no transitions."""
    never = np.zeros((1, *batch.shape), bool)
    return batch[None].replace(terminated=never, truncated=never, valid=~never)


def merge_memory(memory: Memory, other: Memory, mask: np.ndarray) -> Memory:
    """A copy of `memory` whose rows in `mask` (N,) come from `other`."""
    merged = map_values(np.copy, memory)
    put(merged, mask, take_rows(other, mask))
    return merged


def values_at_obs(batch: Transitions, at_next: np.ndarray, ask: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Values for each row's `obs`, given those for its `next_obs`: along a rollout they are the previous row's.

    `ask(missing)` returns those of the mask `missing`: where an episode begins or there is no row before.
    """
    before = np.roll(at_next, 1, axis=0)
    missing = rows_without_previous(batch)
    if missing.any():
        before[missing] = ask(missing)
    return before


def rows_without_previous(batch: Transitions) -> np.ndarray:
    """Rows, bool, where an episode begins or there is no row before: their `obs` is no row's `next_obs`."""
    missing = np.ones(batch.shape, bool)
    if len(batch.shape) == 2:
        missing[1:] = (batch.step[1:] == 0) | ~batch.valid[:-1]
    return missing


class RunningMeanStd(Stateful):
    """Mean and variance over everything seen so far, per element of `shape`: the running statistic of all rewards.

    In float64, with the population variance, so that one row is as safe as a thousand (Chan, Golub, LeVeque 1979:
    merging variances). With a `window`, rows count as if only that many had been seen before: what is older fades.
    """

    saved: ClassVar[tuple[str, ...]] = ("mean", "var", "count")

    def __init__(self, shape: tuple[int, ...] = (), window: int | None = None) -> None:
        self.window = window
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 0

    def update(self, x: np.ndarray) -> None:
        """Take in `x` (N, *shape); an empty batch changes nothing."""
        n = len(x)
        if n == 0:
            return
        away = x.astype(np.float64)
        mean = away.mean(axis=0)
        away -= mean
        # `einsum` sums the squares without another array of their size.
        var = np.einsum("n...,n...->...", away, away) / n
        total = self.count + n
        delta = mean - self.mean
        self.var = (self.var * self.count + var * n + delta**2 * self.count * n / total) / total
        self.mean = self.mean + delta * n / total
        self.count = total if self.window is None else min(total, self.window)

    @property
    def key(self) -> tuple[bytes, bytes]:
        """Equal for statistics that whiten alike."""
        return self.mean.tobytes(), self.var.tobytes()

    @property
    def std(self) -> np.ndarray:
        return np.maximum(np.sqrt(self.var), MIN_DEVIATION)


class StreamScale(Stateful):
    """What divides the rewards of a stream: here nothing does.

    A scale is a divisor, never a shift: subtracting a mean would turn a bonus into a penalty for ordinary states.
    Source: Burda et al. 2018, arXiv 1810.12894, section 2.4 (a bonus over the deviation of its discounted return).
    Differences: the filter never crosses environments (as in implementations that people copy); an `ema` and a freeze,
    as a vanishing bonus over its own all-time deviation either dies early or has its noise amplified; rewards that
    hardly differ are divided by a tenth of their mean, as a constant one has no deviation.
    """

    saved: ClassVar[tuple[str, ...]] = ("count",)
    # The divisor.
    value = 1.0
    # Transitions seen.
    count = 0

    def update(self, reward: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:
        """Take in rewards (T, N) in time order; `ended` and `valid` are bool (T, N)."""
        self.count += int(valid.sum())


def spread_of(mean: float, deviation: float) -> float:
    """What rewards of this mean and deviation are divided by: their deviation, at least a tenth of the mean's size."""
    spread = max(deviation, MIN_SPREAD_SHARE * abs(mean))
    if spread == 0:
        return 1.0
    return max(spread, MIN_DEVIATION)


class RewardStd(RunningMeanStd, StreamScale):
    """Divide by the standard deviation of all rewards so far; by 1 until one was not 0."""

    @property
    def value(self) -> float:  # type: ignore[override]
        if not self.count:
            return 1.0
        return spread_of(float(self.mean), float(np.sqrt(self.var)))

    def update(self, reward: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:  # type: ignore[override]
        super().update(reward[valid])


class ReturnStd(RewardStd):
    """Divide by the deviation of the discounted return R_t = gamma R_{t-1} + r_t, along time, per environment.

    It restarts at an episode's end if the stream is episodic.
    """

    saved = (*RewardStd.saved, "running")

    def __init__(self, gamma: float, episodic: bool) -> None:
        super().__init__()
        self.gamma = gamma
        self.episodic = episodic
        # The return R so far, of each environment.
        self.running = np.zeros(0)

    def update(self, reward: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:  # type: ignore[override]
        if len(self.running) != reward.shape[1]:
            self.running = np.zeros(reward.shape[1])
        # The factor of each row by which the return before it still counts.
        keep = np.ones((len(reward) + 1, reward.shape[1]))
        # A row that is no transition neither discounts nor adds.
        keep[:-1][valid] = self.gamma
        if self.episodic:
            keep[1:][ended] = 0.0
        returns = np.where(valid, reward.astype(np.float64), 0.0)
        running = self.running
        for left, total in zip(keep, returns):
            total += left * running
            running = total
        self.running = keep[-1] * running
        super().update(returns, ended, valid)


@dataclass(eq=False)
class RewardEma(StreamScale):
    """Divide by an exponential moving average of the rewards' standard deviation, one step of the average an update.

    By 1 until a reward was not 0. An update whose rewards are all 0 does not move the average, as it tells nothing of
    their size: a reward that comes once in many updates would be divided by next to nothing.
    """

    saved = ("average", "updates", "count")
    decay: float = 0.9
    average: float = 0.0
    updates: int = 0

    @property
    def value(self) -> float:  # type: ignore[override]
        if self.updates == 0:
            return 1.0
        # Undo the bias towards the initial zero.
        return self.average / (1 - self.decay**self.updates)

    def update(self, reward: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:
        rewards = reward[valid]
        self.count += len(rewards)
        if not rewards.any():
            return
        spread = spread_of(float(rewards.mean()), float(rewards.std()))
        self.average = self.decay * self.average + (1 - self.decay) * spread
        self.updates += 1


def make_scale(name: str, gamma: float, episodic: bool) -> StreamScale:
    """The scale called `name`; the discount and the episode's role matter to `return` alone."""
    if name == "return":
        return ReturnStd(gamma, episodic)
    return {"none": StreamScale, "ema": RewardEma, "std": RewardStd}[name]()


def values_of(scored: Any) -> np.ndarray:
    """The float32 array inside whatever `score` returned; rows that are not ready are 0."""
    if isinstance(scored, Scored):
        return np.where(scored.ready, scored.value, np.float32(0)).astype(np.float32, copy=False)
    return np.asarray(scored, np.float32)


@contextmanager
def sharing() -> Iterator[None]:
    """Within it, what is asked for by `compute_once` is kept."""
    token = _shared_answers.set({})
    try:
        yield
    finally:
        _shared_answers.reset(token)


def compute_once(array: Any, key: Callable[[], Any], compute: Callable[[], Answer]) -> Answer:
    """`compute()`, or what it was for this array and key; outside of `sharing`, and for a dict, always the former."""
    answers = _shared_answers.get()
    if answers is None or not isinstance(array, np.ndarray):
        return compute()
    place = array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str, key()
    if place not in answers:
        answers[place] = compute(), array
    answer: Answer = answers[place][0]
    return answer
