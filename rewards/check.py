"""The contract of `rewards.base`, as a test to run on a reward of your own.

    from rewards.check import check_reward
    check_reward(Mine)                                    # on random transitions
    check_reward(Mine(config, obs_space, act_space))      # with your settings
    check_reward(Mine, obs_space, act_space, rollout)     # on real ones

It returns silently, or raises `RewardCheckError` with one sentence that names the broken rule. Of what differs between
processes it sees `hash()` in the files of the reward's classes, and not the order of a set of texts.
"""

import copy
import dataclasses
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import torch

from envs.transitions import Transitions, concatenate, map_obs
from envs.types import MODALITIES, Memory
from rewards.base import Reward, RewardConfig, Scored

FIELDS = frozenset(field.name for field in dataclasses.fields(Transitions))
FLAGS = ("terminated", "truncated", "step")
# what `requires` must name
CONTENT = ("obs", "action", "reward", "next_obs", *(p + name for name in MODALITIES for p in ("", "obs_")), *FLAGS)
BEFORE = ("obs", *(f"obs_{name}" for name in MODALITIES))  # what was there before the action
SENTENCES = ("you see a door", "a key lies here", "you hit the newt", "nothing happens")
RTOL, ATOL = 1e-3, 1e-5  # matrix products round differently for batches of different size
LONG = 100  # steps of an episode that a memory has to hold out
TORCH = {  # what sets something for the whole process -> what tells it
    "set_grad_enabled": "is_grad_enabled",
    "set_default_dtype": "get_default_dtype",
    "set_default_device": "get_default_device",
    "set_num_threads": "get_num_threads",
    "set_float32_matmul_precision": "get_float32_matmul_precision",
    "use_deterministic_algorithms": "are_deterministic_algorithms_enabled",
}


class RewardCheckError(Exception):
    """A reward breaks the contract; the message says which rule and what was seen."""


def check_reward(
    reward: Reward | type[Reward],
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
    transitions: Transitions | None = None,
    *,
    seeds_differ: bool = False,
) -> None:
    """Check that a reward keeps the contract of `rewards.base`; raises RewardCheckError for the first broken rule.

    The reward handed in, an instance, or a class to build with its default config, is not changed: fresh instances of
    its class are checked. The spaces are the instance's unless given, for a class a Box of 4 numbers and Discrete(3).

    Args:
        transitions: a rollout (T, N) with T at least 2, in time order; random ones of the spaces if absent.
        seeds_differ: the reward draws something at random when it is built, so that two seeds must score differently.

    Example:
        >>> from rewards.exploration.rnd import RND
        >>> check_reward(RND)
        >>> class Noise(RND):
        ...     def score(self, batch, memory=None):
        ...         return np.random.default_rng().random(batch.shape).astype(np.float32)
        >>> check_reward(Noise)
        Traceback (most recent call last):
        rewards.check.RewardCheckError: Noise breaks the contract: ...
    """
    _Check(reward, observation_space, action_space, transitions).run(seeds_differ)


class _Check:
    def __init__(self, reward: Any, observation_space: Any, action_space: Any, transitions: Transitions | None) -> None:
        built = reward if isinstance(reward, Reward) else None
        self.kind: Any = type(built) if built else reward
        if not (isinstance(self.kind, type) and issubclass(self.kind, Reward)):
            raise RewardCheckError(f"{reward!r} is neither a class that extends Reward nor an instance of one")
        self.device = built.device if built else "cpu"
        self.observation_space = observation_space or (
            built.observation_space if built else gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        )
        self.action_space = action_space or (built.action_space if built else gym.spaces.Discrete(3))
        self.config = self._check_class(built)
        self.reward = self.build(seed=0)
        self.rollout = transitions or random_rollout(
            self.observation_space, self.action_space, self.reward.requires, self.reward.frame_size or 64
        )
        if len(self.rollout.shape) != 2:
            self.fail(f"transitions have shape {self.rollout.shape}; give a rollout (T, N)")
        self.rollout = self._embed(self.rollout)
        self.flat = self.rollout.flatten()
        self.has_memory = self.reward.initial_memory(1) is not None

    def run(self, seeds_differ: bool) -> None:
        self.check_memory_form()
        self.check_output()
        self.check_update()
        self.update(self.reward, self.rollout)  # what follows holds for a reward that has learnt, too
        self.check_output()
        self.check_purity()
        self.check_independence()
        self.check_requires()
        self.check_memory()
        self.check_recall()
        self.check_successor()
        self.check_lengths()
        self.check_seeds(seeds_differ)
        self.check_invalid_rows()
        self.check_state()
        self.check_constant_input()
        self.check_space()

    def fail(self, sentence: str) -> NoReturn:
        raise RewardCheckError(f"{self.kind.__name__} breaks the contract: {sentence}")

    def need(self, holds: object, sentence: str) -> None:
        if not holds:
            self.fail(sentence)

    def build(self, *, seed: int, observation_space: gym.Space | None = None) -> Reward:
        space, config = observation_space or self.observation_space, copy.deepcopy(self.config)
        with self.guarded("building it"):
            return self.kind(config, space, self.action_space, seed=seed, device=self.device)

    @contextmanager
    def guarded(self, what: str, batch: Transitions | None = None) -> Iterator[None]:
        """Within it runs the reward's own code, which leaves the process and what it is handed as they are."""
        settings, given = process_settings(), copy.deepcopy(batch)
        try:
            yield
        finally:
            changed = [name for name, value in process_settings().items() if value != settings[name]]
            for name in changed:
                _set(name, settings[name])
        if changed:
            self.fail(f"{what} changed {changed[0]}, which the whole process shares; leave it as it was")
        if batch is not None and not equal(vars(given), vars(batch)):
            self.fail(f"{what} wrote into the batch it was given; change a copy of its arrays instead")

    def update(self, reward: Reward, batch: Transitions) -> dict[str, float]:
        with self.guarded("update", batch):
            return reward.update(batch)

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        with self.guarded("scan", batch):
            return self.reward.scan(batch, memory)

    def finite(self, score: np.ndarray, what: str) -> None:
        """Every score is finite; `what` says of what these are."""
        strange = score[~np.isfinite(score)][:1]
        self.need(not len(strange), f"score returned {strange} {what}; every score must be finite")

    def score(self, reward: Reward, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return self.score_and_memory(reward, batch, memory)[0]

    def score_and_memory(self, reward: Reward, batch: Transitions, memory: Memory = None) -> tuple[np.ndarray, Memory]:
        """The bare scores of a flat batch; a memory starts afresh unless one is given."""
        with self.guarded("score", batch):
            given = (memory or reward.initial_memory(batch.shape[0]),) if self.has_memory else ()
            scored: Any = reward.score(batch, *given)
        if self.has_memory:
            form = f"with initial_memory score must return (scores, memory); it returned {_kind(scored)}"
            self.need(isinstance(scored, tuple) and len(scored) == 2 and not isinstance(scored, Scored), form)
            scored, memory = scored
        if isinstance(scored, Scored):
            ready = np.asarray(scored.ready)
            marks = f"score marks rows as ready with {ready.dtype} {ready.shape}; it must be bool {batch.shape}"
            self.need(ready.dtype == bool and ready.shape == batch.shape, marks)
            scored = scored.value
        self.need(isinstance(scored, np.ndarray), f"score returned {_kind(scored)}; it must be a NumPy array")
        return scored, memory

    def _embed(self, rollout: Transitions) -> Transitions:
        key = self.reward.embedding
        if key is None or rollout.frame is None or key in rollout.extras:
            return rollout
        extras = dict(rollout.extras)
        for name, frame in ((key, rollout.frame), (f"obs_{key}", rollout.obs_frame)):
            if frame is not None:
                embedded = np.asarray(self.reward.embed(rollout.replace(frame=frame).flatten()))
                if len(embedded) != (frames := rollout.shape[0] * rollout.shape[1]):
                    self.fail(f"embed returned {embedded.shape} for {frames} frames; give one row each")
                extras[name] = embedded.reshape(*rollout.shape, *embedded.shape[1:])
        return rollout.replace(extras=extras, frame=None, obs_frame=None)

    def _check_class(self, built: Reward | None) -> RewardConfig:
        config: Any = self.kind.Config
        if not (isinstance(config, type) and issubclass(config, RewardConfig) and dataclasses.is_dataclass(config)):
            self.fail(f"Config must be a dataclass that extends RewardConfig; it is {config!r}")
        if config.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            self.fail(f"{config.__name__} is frozen; leave it mutable for the command line, and check in __post_init__")
        if unknown := ", ".join(sorted(set(self.kind.requires) - FIELDS)):
            self.fail(f"requires names {unknown}, which Transitions does not have; choose among {sorted(FIELDS)}")
        if (role := self.kind.role) not in ("bonus", "goal"):
            self.fail(f"role is {role!r}; it must be 'bonus' (added to the task's reward) or 'goal' (replaces it)")
        return built.config if built else config()

    def check_memory_form(self) -> None:
        memory = self.reward.initial_memory(3)
        if memory is not None and not (isinstance(memory, Mapping) and all(len(x) == 3 for x in memory.values())):
            self.fail("initial_memory(3) must be None or a dict of arrays with leading axis 3")

    def check_output(self) -> None:
        for batch, what in ((self.flat, "for random transitions"), (self.flat[:1], "for a single one")):
            score, shape = self.score(self.reward, batch), batch.shape
            given = f"score returned {score.dtype} {score.shape} for {shape[0]} transitions; it must be float32 {shape}"
            self.need(score.dtype == np.float32 and score.shape == shape, given)
            self.finite(score, what)

    def check_purity(self) -> None:
        before = copy.deepcopy(self.reward.state_dict())
        drawn_from = generator_states()
        first = self.score(self.reward, self.flat)
        untouched = equal(generator_states(), drawn_from)
        self.need(untouched, "score drew from a global random generator; a score must not be random")
        second = self.score(self.reward, self.flat)
        if not np.array_equal(first, second):
            self.fail(
                f"score is not pure: two calls with the same batch differ by {np.abs(first - second).max():.3g}; what "
                "it remembers of an episode belongs into initial_memory, what it learns into update"
            )
        self.need(
            equal(before, self.reward.state_dict()),
            "score changed state_dict(); only update may move weights and statistics, and what is remembered of an "
            "episode belongs into initial_memory",
        )

    def check_independence(self) -> None:
        whole = self.score(self.reward, self.flat)
        order = np.random.default_rng(0).permutation(len(whole))
        if not np.allclose(self.score(self.reward, self.flat[order]), whole[order], RTOL, ATOL):
            self.fail("score depends on the order of the rows: permuting the batch does not permute the scores")
        half = len(whole) // 2
        pieces = [self.score(self.reward, self.flat[a:b]) for a, b in ((0, 1), (1, half), (half, None))]
        if not np.allclose(np.concatenate(pieces), whole, RTOL, ATOL):
            self.fail("score of a row depends on the other rows: a batch scored in pieces differs from the whole")

    def check_requires(self) -> None:
        whole = self.score(self.reward, self.flat)
        for field in CONTENT:
            if field not in self.reward.requires and (given := getattr(self.flat, field)) is not None:
                blank = map_obs(lambda x: np.full_like(x, "" if x.dtype == object else 0), given)
                same = np.allclose(self.score(self.reward, self.flat.replace(**{field: blank})), whole, RTOL, ATOL)
                self.need(same, f"score reads {field}, which requires does not name; drivers may leave it out")

    def check_successor(self) -> None:
        """Rule 4: if scores follow what was before the actions, they also follow the actions or what these led to."""
        fields = {name: value for name, value in vars(self.rollout).items() if name in CONTENT[: -len(FLAGS)]}
        extras, whole = self.rollout.extras, self.in_order(self.rollout)
        moved = []
        for before in (True, False):
            own = {name: value for name, value in fields.items() if (name in BEFORE) == before}
            kept = {name: value for name, value in extras.items() if name.startswith("obs_") == before}
            other = self.rollout.replace(**_turned(own), extras=extras | _turned(kept))
            moved.append(not np.allclose(self.in_order(other), whole, RTOL, ATOL))
        if moved == [True, False]:
            self.fail("score is about obs, not about what the action led to: next_obs, frame, text")

    def in_order(self, rollout: Transitions) -> np.ndarray:
        """The scores of a rollout (T, N), as (T, N), or (T * N,) without a memory."""
        if not self.has_memory:
            return self.score(self.reward, rollout.flatten())
        return self.scan(rollout, self.reward.initial_memory(rollout.shape[1]))[0]

    def check_memory(self) -> None:
        if not self.has_memory:
            return
        envs = self.rollout.shape[1]
        memory = self.reward.initial_memory(envs)
        rows = np.arange(envs)[::-1]
        swapped = {key: value[rows] for key, value in memory.items()}
        for t in range(self.rollout.shape[0]):
            given = copy.deepcopy(memory)
            score, after = self.score_and_memory(self.reward, self.rollout[t], memory)
            self.need(equal(given, memory), "score wrote into the memory it was given; return a changed copy instead")
            same = set(after) == set(memory) and all(after[key].shape == memory[key].shape for key in memory)
            self.need(same, "score returned a memory of another form than initial_memory's")
            other, swapped = self.score_and_memory(self.reward, self.rollout[t][rows], swapped)
            apart = equal({key: value[rows] for key, value in after.items()}, swapped)
            apart = apart and np.allclose(other, score[rows], RTOL, ATOL)
            mixed = "score mixes the memories of environments: exchanging two of them does not exchange their scores"
            self.need(apart, mixed)
            memory = after
        given = self.reward.initial_memory(envs)
        kept = copy.deepcopy(given)
        whole, end = self.scan(self.rollout, given)
        self.need(equal(given, kept), "scan wrote into the memory it was given; return a changed copy instead")
        plain, plain_end = Reward.scan(self.reward, self.rollout, given)
        same = whole.dtype == np.float32 and np.allclose(whole, plain, RTOL, ATOL)
        self.need(same, "scan of a rollout differs from score step by step, the memory of ended episodes made afresh")
        same = all(np.allclose(end[key], plain_end[key], RTOL, ATOL) for key in plain_end)
        self.need(same, "scan leaves another memory behind than score step by step")
        pieces, no = [self.rollout.map(np.copy)] * -(-LONG // len(self.rollout.step)), np.zeros((LONG, envs), bool)
        long = concatenate(pieces)[:LONG].replace(terminated=no, truncated=no, step=no + np.arange(LONG)[:, None])
        try:
            scores = self.scan(long, self.reward.initial_memory(envs))[0]
        except Exception as error:
            self.fail(
                f"an episode of {LONG} steps ended in {type(error).__name__}: {error}; its memory must hold an episode "
                "of any length, by forgetting the oldest, say"
            )
        self.finite(scores, f"in an episode of {LONG} steps")

    def check_recall(self) -> None:
        """Rows from a replay are scored with what `recall` kept, as in time order with the memory itself."""
        if not (self.has_memory and self.reward.recalls):
            return
        envs, key = self.rollout.shape[1], self.reward.recalls
        defined = self.kind.recall is not Reward.recall
        self.need(defined, f"recalls is {key!r}, but recall is not defined; define it, or leave recalls empty")
        kept = self.reward.recall(self.rollout, self.reward.initial_memory(envs))[0]
        row = self.rollout.replace(extras={**self.rollout.extras, key: kept}).flatten().map(lambda x: x[None])
        same = np.allclose(self.reward.scan(row, None)[0][0], self.in_order(self.rollout).ravel(), RTOL, ATOL)
        self.need(same, f"transitions from a replay, with the extra {key!r} of recall, score otherwise than in order")

    def check_update(self) -> None:
        for batch in (self.rollout, self.flat, self.flat[:1]):
            metrics = self.update(self.build(seed=0), batch)
            fine = isinstance(metrics, dict) and all(map(_is_scalar, metrics.values()))
            form = "it must be a dict of finite numbers, empty if nothing is logged"
            self.need(fine, f"update returned {metrics!r}; {form}")

    def check_lengths(self) -> None:
        """Rollouts differ in length within a run, as its last one does, and in environments from run to run."""
        reward, rollout = self.build(seed=0), self.rollout
        self.update(reward, rollout)
        twice = concatenate([rollout, rollout])
        cases = [(reward, rollout[:-1]), (reward, twice), (reward, rollout[:1]), (self.build(seed=0), rollout[:, :1])]
        for other, batch in cases:
            self.takes("update", lambda: self.update(other, batch), batch)  # noqa: B023
            self.takes("score", lambda: self.in_order(batch), batch)  # noqa: B023

    def takes(self, what: str, work: Callable[[], object], batch: Transitions) -> None:
        """`work` does not fail on a rollout."""
        try:
            work()
        except RewardCheckError:
            raise
        except Exception as error:
            steps, environments = batch.shape
            self.fail(
                f"{what} of a rollout of {steps} steps in {environments} environments ended in "
                f"{type(error).__name__}: {error}; rollouts may have any size"
            )

    def check_invalid_rows(self) -> None:
        valid = np.ones(self.rollout.shape, bool)
        valid[-1] = False
        one, two = self.build(seed=0), self.build(seed=0)
        other = self.rollout[np.r_[1 : len(valid), 0]]  # the same rows in another order, so that the last differs
        last = concatenate([self.rollout[:-1], other[:1]])
        for reward, rollout in ((one, self.rollout), (two, last)):
            self.update(reward, rollout.replace(valid=valid, truncated=rollout.truncated & valid))
        alike = equal(one.state_dict(), two.state_dict())
        self.need(alike, "update learns from rows with valid == False; they are no transitions")
        before, none = copy.deepcopy(one.state_dict()), np.zeros_like(valid)
        self.update(one, self.rollout.replace(valid=none, truncated=none))
        self.need(equal(before, one.state_dict()), "update moves its state on a batch without a valid row")

    def check_state(self) -> None:
        learned, fresh = self.build(seed=0), self.build(seed=1)
        self.update(learned, self.rollout)
        fresh.load_state_dict(copy.deepcopy(learned.state_dict()))
        for when in ("", " after an update", " after two updates"):
            same = np.array_equal(self.score(learned, self.flat), self.score(fresh, self.flat))
            self.need(same, f"a fresh instance that loads state_dict() scores differently{when}; something is missing")
            self.update(learned, self.rollout)
            self.update(fresh, self.rollout)
        with another_process(self.kind):
            fresh = self.build(seed=0)
            fresh.load_state_dict(copy.deepcopy(learned.state_dict()))
            elsewhere = self.score(fresh, self.flat)
        same = np.array_equal(self.score(learned, self.flat), elsewhere)
        self.need(same, "it scores differently in another process, where hash() of a text differs; use zlib.crc32")

    def check_seeds(self, differ: bool) -> None:
        scores, states = [], []
        for seed, noise in ((0, 1), (0, 2), (1, 1)):
            with seeded(noise):
                reward = self.build(seed=seed)
                self.update(reward, self.rollout)
                states.append(generator_states())
            scores.append(self.score(reward, self.flat))
        if not np.array_equal(scores[0], scores[1]):
            self.fail("two instances with the same seed score differently; draw from a generator made from `seed`")
        if any(map(equal, *states[:2])):
            self.fail("it seeds a global random generator, which belongs to the run; use one of your own")
        if differ and np.array_equal(scores[0], scores[2]):
            self.fail("seeds 0 and 1 give the same scores; what is drawn at random must depend on `seed`")

    def check_constant_input(self) -> None:
        """Nothing observed, nothing changed, one transition over and over: what is divided by is zero, nothing NaN."""
        reward, extras = self.build(seed=0), self.flat.extras
        still = {"obs": self.flat.next_obs, **{f"obs_{name}": getattr(self.flat, name) for name in MODALITIES}}
        still["extras"] = extras | {name: extras[name[4:]] for name in extras if name.startswith("obs_")}
        cases = {"transitions that change nothing": self.flat.replace(**still)}
        zero = map_obs(np.zeros_like, self.flat.next_obs)
        if self.observation_space.contains(map_obs(lambda x: x[0], zero)):
            frames = {name: map_obs(np.zeros_like, getattr(self.flat, name)) for name in ("frame", "obs_frame")}
            cases["observations of zeros"] = self.flat.replace(obs=zero, next_obs=zero, **frames)
        cases["equal transitions"] = self.flat[np.zeros(len(self.flat.step), int)]
        cases["a single transition"] = self.flat[:1]
        for what, batch in cases.items():
            self.finite(self.score(reward, batch), f"for {what}")
            self.update(reward, batch)
            self.finite(self.score(reward, self.flat), f"after an update on {what}")

    def check_space(self) -> None:
        if not {"obs", "next_obs"} & set(self.reward.requires):
            return
        space = gym.spaces.Text(5)
        words = np.array(["word"] * len(self.flat.step), dtype=object)
        try:
            reward = self.build(seed=0, observation_space=space)
        except Exception as error:
            refused = isinstance(error, ValueError) and "Text" in str(error)
            met = f"it met the space {space} with {type(error).__name__}: {error}; raise a ValueError that names it"
            self.need(refused, met)
            return
        try:
            self.score(reward, self.flat.replace(obs=words, next_obs=words))
        except Exception as error:
            raise RewardCheckError(
                f"{self.kind.__name__} breaks the contract: built for the space {space} it fails to score; refuse "
                "such a space in the constructor with a ValueError that names it"
            ) from error


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _is_scalar(value: Any) -> bool:
    return np.ndim(value) == 0 and isinstance(value, (int, float, np.number)) and bool(np.isfinite(value))


def equal(one: Any, two: Any) -> bool:
    """Equal to the last bit, through any nesting of dicts, sequences, arrays and tensors."""
    if isinstance(one, Mapping):
        return isinstance(two, Mapping) and set(one) == set(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return isinstance(two, (list, tuple)) and len(one) == len(two) and all(map(equal, one, two))
    if hasattr(one, "detach"):
        one, two = one.detach().cpu().numpy(), two.detach().cpu().numpy()
    if isinstance(one, np.ndarray):
        return np.array_equal(one, two, equal_nan=np.issubdtype(one.dtype, np.inexact))
    return bool(one == two)


def process_settings() -> dict[str, Any]:
    """What the whole process shares besides generators, by the function that sets it: NumPy's and torch's modes."""
    return {"np.seterr": np.geterr(), **{f"torch.{name}": getattr(torch, tell)() for name, tell in TORCH.items()}}


def _set(name: str, value: Any) -> None:
    if name == "np.seterr":
        np.seterr(**value)
    else:
        getattr(torch, name.removeprefix("torch."))(value)


@contextmanager
def another_process(kind: type[Reward]) -> Iterator[None]:
    """Where `hash` of what holds a text differs, as it does in every process, in the files of the reward's classes."""

    def elsewhere(value: Any) -> int:
        if isinstance(value, (tuple, frozenset)):
            return hash(type(value)(map(elsewhere, value)))
        return hash(value) if isinstance(value, (int, float, complex, np.number)) else hash(("elsewhere", value))

    files = [vars(sys.modules[name]) for name in {cls.__module__ for cls in kind.__mro__} - {"builtins"}]
    files = [names for names in files if "hash" not in names]
    for names in files:
        names["hash"] = elsewhere
    try:
        yield
    finally:
        for names in files:
            del names["hash"]


def generator_states() -> list[Any]:
    """The states of the generators that the whole process shares: Python's, NumPy's and torch's."""
    return [random.getstate(), np.random.get_state(), torch.get_rng_state()]  # noqa: NPY002


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """All of them seeded with `seed` within the context; afterwards they are as before."""
    before = generator_states()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


def random_rollout(
    observation_space: gym.Space,
    action_space: gym.Space,
    requires: Collection[str] = (),
    frame_size: int = 64,
    *,
    steps: int = 6,
    envs: int = 4,
    signals: int = 9,
    seed: int = 0,
) -> Transitions:
    """A rollout (steps, envs) in time order; the first episode of environment 0 terminates, that of 1 is truncated.

    Frames (random pixels), texts and so many signals are there if `requires` names them; the spaces' own generators
    are left alone.
    """
    rng = np.random.default_rng(seed)
    states = _sample(observation_space, steps + 1, envs, seed)
    starts = _sample(observation_space, steps, envs, seed + 1)
    terminated, truncated = np.zeros((2, steps, envs), bool)
    terminated[steps // 3, 0] = truncated[steps // 2, 1 % envs] = True
    step = np.zeros((steps, envs), np.int64)
    for t in range(1, steps):
        step[t] = np.where((terminated | truncated)[t - 1], 0, step[t - 1] + 1)
    frames = rng.integers(0, 256, (steps + 1, envs, frame_size, frame_size, 3), dtype=np.uint8)
    texts = np.array(SENTENCES, dtype=object)[rng.integers(0, len(SENTENCES), (steps + 1, envs))]
    numbers = rng.normal(size=(steps + 1, envs, signals)).astype(np.float32)
    content: dict[str, Any] = {"frame": frames, "text": texts, "signals": numbers}
    content = {name: x[1:] for name, x in content.items()} | {f"obs_{name}": x[:-1] for name, x in content.items()}
    return Transitions(
        obs=_where(step == 0, starts, map_obs(lambda x: x[:-1], states)),
        action=_sample(action_space, steps, envs, seed),
        reward=rng.normal(size=(steps, envs)).astype(np.float32),
        next_obs=map_obs(lambda x: x[1:], states),
        terminated=terminated,
        truncated=truncated,
        valid=np.ones((steps, envs), bool),
        step=step,
        **{name: x for name, x in content.items() if name in requires},
    )


def _sample(space: gym.Space, steps: int, envs: int, seed: int) -> Any:
    many = gym.vector.utils.batch_space(space, steps * envs)
    many.seed(seed)
    return map_obs(lambda x: x.reshape(steps, envs, *x.shape[1:]), many.sample())


def _turned(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields (T, N, ...) with their rows exchanged: everyone has its neighbour's of the step before."""
    return {name: map_obs(lambda x: np.roll(x, (1, 1), (0, 1)), value) for name, value in fields.items()}


def _where(mask: np.ndarray, one: Any, other: Any) -> Any:
    """`one` in the rows of `mask` (steps, envs), `other` elsewhere; dicts entry by entry."""
    if isinstance(one, dict):
        return {key: _where(mask, one[key], other[key]) for key in one}
    return np.where(mask.reshape(*mask.shape, *[1] * (one.ndim - 2)), one, other)
