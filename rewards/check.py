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
import math
import random
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import torch
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space

from envs.transitions import Transitions, concatenate, index_obs, map_obs, put
from envs.types import MODALITIES, MODALITY_FIELDS, OBS_MODALITIES, Memory
from lodestar.mappings import map_values, take_rows
from rewards.base import Metrics, Reward, RewardConfig, Scored, Walk

ALL_FIELDS = frozenset(field.name for field in dataclasses.fields(Transitions))
# What was there before the action, and that with what the action led to.
FIELDS_BEFORE = ("obs", *OBS_MODALITIES)
CONTENT_FIELDS = ("obs", "action", "reward", "next_obs", *MODALITY_FIELDS)
RANDOM_CAPTIONS = ("you see a door", "a key lies here", "you hit the newt", "nothing happens")
# Steps of an episode that a memory has to hold out.
LONG_EPISODE_STEPS = 100
# What sets something for the whole process, and what reads it.
TORCH_SETTINGS = {
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
    observation_space: Space | None = None,
    action_space: Space | None = None,
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
        self.kind: Any = type(reward) if isinstance(reward, Reward) else reward
        if not (isinstance(self.kind, type) and issubclass(self.kind, Reward)):
            raise RewardCheckError(f"{reward!r} is neither a class that extends Reward nor an instance of one")
        config_class = self.check_class()
        # The reward handed in only says what to build; it is never run itself.
        if isinstance(reward, Reward):
            self.config = reward.config
            self.device = reward.device
            self.observation_space = observation_space or reward.observation_space
            self.action_space = action_space or reward.action_space
        else:
            self.config = config_class()
            self.device = "cpu"
            self.observation_space = observation_space or spaces.Box(-1.0, 1.0, (4,), np.float32)
            self.action_space = action_space or spaces.Discrete(3)
        self.reward = self.build()
        rollout = transitions or random_rollout(
            self.observation_space, self.action_space, self.reward.requires, self.reward.frame_size or 64
        )
        self.need(len(rollout.shape) == 2, f"transitions have shape {rollout.shape}; give a rollout (T, N)")
        self.rollout = self.embed(rollout)
        self.flat = self.rollout.flatten()
        self.has_memory = self.reward.initial_memory(1) is not None

    def run(self, seeds_differ: bool) -> None:
        self.check_memory_form()
        self.check_output()
        self.check_update()
        # What follows holds for a reward that has learnt, too.
        self.update(self.reward, self.rollout)
        self.check_output()
        self.check_purity()
        self.check_independence()
        self.check_requires()
        if self.has_memory:
            self.check_memory()
            self.check_scan()
            self.check_long_episode()
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

    def need_finite(self, score: np.ndarray, what: str) -> None:
        """Every score is finite; `what` says which scores these are."""
        strange = score[~np.isfinite(score)][:1]
        self.need(not len(strange), f"score returned {strange} {what}; every score must be finite")

    def build(self, *, seed: int = 0, observation_space: Space | None = None) -> Reward:
        space = observation_space or self.observation_space
        config = copy.deepcopy(self.config)
        with self.guard("building it"):
            return self.kind(config, space, self.action_space, seed=seed, device=self.device)

    @contextmanager
    def guard(self, what: str, batch: Transitions | None = None) -> Iterator[None]:
        """Within it runs the reward's own code, which leaves the process and what it is handed as they are."""
        # The settings are put back also after an error, so that the next check does not blame another reward.
        before = process_settings()
        batch_before = copy.deepcopy(batch)
        try:
            yield
        finally:
            changed = [name for name, value in process_settings().items() if value != before[name]]
            for name in changed:
                _call_setter(name, before[name])
        if changed:
            self.fail(f"{what} changed {changed[0]}, which the whole process shares; leave it as it was")
        if batch is not None and not is_equal(vars(batch_before), vars(batch)):
            self.fail(f"{what} wrote into the batch it was given; change a copy of its arrays instead")

    def update(self, reward: Reward, batch: Transitions) -> Metrics:
        with self.guard("update", batch):
            return reward.update(batch)

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        with self.guard("scan", batch):
            return self.reward.scan(batch, memory)

    def score(self, batch: Transitions, reward: Reward | None = None) -> np.ndarray:
        """The bare scores of a flat batch, with a memory of episodes that begin."""
        reward = reward or self.reward
        return self.score_and_memory(batch, reward.initial_memory(batch.shape[0]), reward)[0]

    def score_and_memory(self, batch: Transitions, memory: Memory, reward: Reward | None = None) -> Walk:
        """The bare scores of a flat batch, and the memory that comes with them."""
        reward = reward or self.reward
        arguments = (batch, memory) if self.has_memory else (batch,)
        with self.guard("score", batch):
            scored: Any = reward.score(*arguments)
        if self.has_memory:
            form = f"with initial_memory score must return (scores, memory); it returned {_kind(scored)}"
            self.need(isinstance(scored, tuple) and len(scored) == 2 and not isinstance(scored, Scored), form)
            scored, memory = scored
        # Annotators may leave rows without an answer for now.
        if isinstance(scored, Scored):
            ready = np.asarray(scored.ready)
            form = f"score marks rows as ready with {ready.dtype} {ready.shape}; it must be bool {batch.shape}"
            self.need(ready.dtype == bool and ready.shape == batch.shape, form)
            scored = scored.value
        self.need(isinstance(scored, np.ndarray), f"score returned {_kind(scored)}; it must be a NumPy array")
        return scored, memory

    def in_order(self, rollout: Transitions) -> np.ndarray:
        """The scores of a rollout (T, N), as (T, N), or (T * N,) without a memory."""
        if not self.has_memory:
            return self.score(rollout.flatten())
        return self.scan(rollout, self.reward.initial_memory(rollout.shape[1]))[0]

    def embed(self, rollout: Transitions) -> Transitions:
        """The rollout with embeddings in place of frames, as drivers hand it to a reward that names one."""
        key = self.reward.embedding
        if key is None or rollout.frame is None or key in rollout.extras:
            return rollout
        extras = dict(rollout.extras)
        count = math.prod(rollout.shape)
        for name, frame in ((key, rollout.frame), (f"obs_{key}", rollout.obs_frame)):
            if frame is not None:
                embedded = np.asarray(self.reward.embed(rollout.replace(frame=frame).flatten()))
                form = f"embed returned {embedded.shape} for {count} frames; give one row each"
                self.need(len(embedded) == count, form)
                extras[name] = embedded.reshape(*rollout.shape, *embedded.shape[1:])
        return rollout.replace(extras=extras, frame=None, obs_frame=None)

    def check_class(self) -> Any:
        """What the class declares; its Config."""
        config: Any = self.kind.Config
        if not (isinstance(config, type) and issubclass(config, RewardConfig) and dataclasses.is_dataclass(config)):
            self.fail(f"Config must be a dataclass that extends RewardConfig; it is {config!r}")
        if config.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            self.fail(f"{config.__name__} is frozen; leave it mutable for the command line, and check in __post_init__")
        unknown = ", ".join(sorted(set(self.kind.requires) - ALL_FIELDS))
        if unknown:
            self.fail(f"requires names {unknown}, which Transitions does not have; choose among {sorted(ALL_FIELDS)}")
        role = self.kind.role
        if role not in ("bonus", "goal"):
            self.fail(f"role is {role!r}; it must be 'bonus' (added to the task's reward) or 'goal' (replaces it)")
        return config

    def check_memory_form(self) -> None:
        memory = self.reward.initial_memory(3)
        if memory is not None and not (isinstance(memory, Mapping) and all(len(x) == 3 for x in memory.values())):
            self.fail("initial_memory(3) must be None or a dict of arrays with leading axis 3")

    def check_output(self) -> None:
        for batch, what in ((self.flat, "for random transitions"), (self.flat[:1], "for a single one")):
            score = self.score(batch)
            shape = batch.shape
            form = f"score returned {score.dtype} {score.shape} for {shape[0]} transitions; it must be float32 {shape}"
            self.need(score.dtype == np.float32 and score.shape == shape, form)
            self.need_finite(score, what)

    def check_purity(self) -> None:
        """Rule 1: scoring draws nothing at random and moves no state."""
        # A score that draws from a global generator leaves its state changed.
        state = copy.deepcopy(self.reward.state_dict())
        generators = generator_states()
        first = self.score(self.flat)
        untouched = is_equal(generator_states(), generators)
        self.need(untouched, "score drew from a global random generator; a score must not be random")
        second = self.score(self.flat)
        if not np.array_equal(first, second):
            self.fail(
                f"score is not pure: two calls with the same batch differ by {np.abs(first - second).max():.3g}; what "
                "it remembers of an episode belongs into initial_memory, what it learns into update"
            )
        self.need(
            is_equal(state, self.reward.state_dict()),
            "score changed state_dict(); only update may move weights and statistics, and what is remembered of an "
            "episode belongs into initial_memory",
        )

    def check_independence(self) -> None:
        """Rule 2: a row's score depends neither on the other rows nor on their order."""
        scores = self.score(self.flat)
        order = np.random.default_rng(0).permutation(len(scores))
        if not close(self.score(self.flat[order]), scores[order]):
            self.fail("score depends on the order of the rows: permuting the batch does not permute the scores")
        # Pieces of different sizes, one of them a single row, as networks round differently and statistics fail there.
        half = len(scores) // 2
        pieces = [self.score(self.flat[rows]) for rows in (slice(0, 1), slice(1, half), slice(half, None))]
        if not close(np.concatenate(pieces), scores):
            self.fail("score of a row depends on the other rows: a batch scored in pieces differs from the whole")

    def check_requires(self) -> None:
        scores = self.score(self.flat)
        for field in (*CONTENT_FIELDS, "terminated", "truncated", "step"):
            value = getattr(self.flat, field)
            if field in self.reward.requires or value is None:
                continue
            # If the reward reads the field, its scores change when all of it is replaced by zeros.
            blank = map_obs(lambda x: np.full_like(x, "" if x.dtype == object else 0), value)
            unread = close(self.score(self.flat.replace(**{field: blank})), scores)
            self.need(unread, f"score reads {field}, which requires does not name; drivers may leave it out")

    def check_successor(self) -> None:
        """Rule 4: if scores follow what was before the actions, they also follow the actions or what these led to."""
        scores = self.in_order(self.rollout)
        follows = {}
        for before in (True, False):
            fields = {name: getattr(self.rollout, name) for name in CONTENT_FIELDS if (name in FIELDS_BEFORE) == before}
            extras = {name: x for name, x in self.rollout.extras.items() if name.startswith("obs_") == before}
            # Both sides of a step get their rows exchanged in turn.
            changed = self.rollout.replace(
                **_exchange_rows(fields), extras=self.rollout.extras | _exchange_rows(extras)
            )
            follows[before] = not close(self.in_order(changed), scores)
        if follows[True] and not follows[False]:
            self.fail("score is about obs, not about what the action led to: next_obs, frame, text")

    def check_memory(self) -> None:
        """The memory of an environment is its own, keeps its form, and is never written into."""
        envs = self.rollout.shape[1]
        memory = self.reward.initial_memory(envs)
        # The same environments in reverse order, beside them.
        rows = np.arange(envs)[::-1]
        reversed_memory = take_rows(memory, rows)
        for t in range(self.rollout.shape[0]):
            before = copy.deepcopy(memory)
            step = self.rollout[t]
            score, after = self.score_and_memory(step, memory)
            self.need(
                is_equal(before, memory), "score wrote into the memory it was given; return a changed copy instead"
            )
            same_form = set(after) == set(memory) and all(after[key].shape == memory[key].shape for key in memory)
            self.need(same_form, "score returned a memory of another form than initial_memory's")
            reversed_score, reversed_memory = self.score_and_memory(step[rows], reversed_memory)
            reversed_after = take_rows(after, rows)
            apart = is_equal(reversed_after, reversed_memory) and close(reversed_score, score[rows])
            mixed = "score mixes the memories of environments: exchanging two of them does not exchange their scores"
            self.need(apart, mixed)
            memory = after

    def check_scan(self) -> None:
        memory = self.reward.initial_memory(self.rollout.shape[1])
        before = copy.deepcopy(memory)
        scores, end = self.scan(self.rollout, memory)
        self.need(is_equal(memory, before), "scan wrote into the memory it was given; return a changed copy instead")
        # The base class scores step by step, which is what any other way must equal.
        expected, expected_end = Reward.scan(self.reward, self.rollout, memory)
        same = scores.dtype == np.float32 and close(scores, expected)
        self.need(same, "scan of a rollout differs from score step by step, the memory of ended episodes made afresh")
        same = all(close(end[key], expected_end[key]) for key in expected_end)
        self.need(same, "scan leaves another memory behind than score step by step")

    def check_long_episode(self) -> None:
        steps, envs = self.rollout.shape
        pieces = [self.rollout] * math.ceil(LONG_EPISODE_STEPS / steps)
        never = np.zeros((LONG_EPISODE_STEPS, envs), bool)
        step = never + np.arange(LONG_EPISODE_STEPS)[:, None]
        episode = concatenate(pieces)[:LONG_EPISODE_STEPS].replace(terminated=never, truncated=never, step=step)
        try:
            scores = self.in_order(episode)
        except Exception as error:
            self.fail(
                f"an episode of {LONG_EPISODE_STEPS} steps ended in {type(error).__name__}: {error}; its memory must "
                "hold an episode of any length, by forgetting the oldest, say"
            )
        self.need_finite(scores, f"in an episode of {LONG_EPISODE_STEPS} steps")

    def check_recall(self) -> None:
        """Rows from a replay are scored with what `recall` kept, as in time order with the memory itself."""
        key = self.reward.recalls
        if not key:
            return
        defined = self.kind.recall is not Reward.recall
        self.need(defined, f"recalls is {key!r}, but recall is not defined; define it, or leave recalls empty")
        recalled, _ = self.reward.recall(self.rollout, self.reward.initial_memory(self.rollout.shape[1]))
        # A replay hands out single rows in any order, and no memory with them.
        stored = self.rollout.replace(extras={**self.rollout.extras, key: recalled}).flatten()
        scores, _ = self.reward.scan(stored[None], None)
        same = close(scores[0], self.in_order(self.rollout).ravel())
        self.need(same, f"transitions from a replay, with the extra {key!r} of recall, score otherwise than in order")

    def check_update(self) -> None:
        for batch in (self.rollout, self.flat, self.flat[:1]):
            metrics = self.update(self.build(), batch)
            fine = isinstance(metrics, dict) and all(map(_is_finite_number, metrics.values()))
            form = "it must be a dict of finite numbers, empty if nothing is logged"
            self.need(fine, f"update returned {metrics!r}; {form}")

    def check_lengths(self) -> None:
        """Rollouts differ in length within a run, as its last one does, and in environments from run to run."""
        reward = self.build()
        rollout = self.rollout
        self.update(reward, rollout)
        for batch in (rollout[:-1], concatenate([rollout, rollout]), rollout[:1]):
            self.check_shape(reward, batch)
        self.check_shape(self.build(), rollout[:, :1])

    def check_shape(self, reward: Reward, rollout: Transitions) -> None:
        """Neither `update` nor `score` fails on a rollout."""
        what = "update"
        try:
            self.update(reward, rollout)
            what = "score"
            self.in_order(rollout)
        except RewardCheckError:
            raise
        except Exception as error:
            steps, envs = rollout.shape
            self.fail(
                f"{what} of a rollout of {steps} steps in {envs} environments ended in {type(error).__name__}: {error};"
                " rollouts may have any size"
            )

    def check_invalid_rows(self) -> None:
        """Rule 3: rows that are no transitions are not learnt from."""
        valid = np.ones(self.rollout.shape, bool)
        valid[-1] = False
        truncated = self.rollout.truncated & valid
        # The same rollout but for its last row, which is not valid.
        changed = concatenate([self.rollout[:-1], self.rollout[1:2]])
        # Two equal instances learn from rollouts that differ in nothing that may be learnt from.
        one = self.build()
        two = self.build()
        self.update(one, self.rollout.replace(valid=valid, truncated=truncated))
        self.update(two, changed.replace(valid=valid, truncated=truncated))
        same = is_equal(one.state_dict(), two.state_dict())
        self.need(same, "update learns from rows with valid == False; they are no transitions")
        before = copy.deepcopy(one.state_dict())
        never = np.zeros_like(valid)
        self.update(one, self.rollout.replace(valid=never, truncated=never))
        self.need(is_equal(before, one.state_dict()), "update moves its state on a batch without a valid row")

    def check_state(self) -> None:
        """Rule 5: a fresh instance that loads `state_dict()` goes on equally, in another process, too."""
        learned = self.build()
        self.update(learned, self.rollout)
        fresh = self.build(seed=1)
        fresh.load_state_dict(copy.deepcopy(learned.state_dict()))
        for when in ("", " after an update", " after two updates"):
            same = np.array_equal(self.score(self.flat, learned), self.score(self.flat, fresh))
            self.need(same, f"a fresh instance that loads state_dict() scores differently{when}; something is missing")
            self.update(learned, self.rollout)
            self.update(fresh, self.rollout)
        # A checkpoint is loaded by another process, so what is hashed must not depend on it.
        with another_process(self.kind):
            fresh = self.build()
            fresh.load_state_dict(copy.deepcopy(learned.state_dict()))
            elsewhere = self.score(self.flat, fresh)
        same = np.array_equal(self.score(self.flat, learned), elsewhere)
        self.need(same, "it scores differently in another process, where hash() of a text differs; use zlib.crc32")

    def check_seeds(self, differ: bool) -> None:
        scores = []
        states = []
        # The second differs from the first in the global generators alone, the third in the reward's seed alone.
        pairs = [(0, 1), (0, 2)]
        if differ:
            pairs.append((1, 1))
        for seed, global_seed in pairs:
            with seed_generators(global_seed):
                reward = self.build(seed=seed)
                self.update(reward, self.rollout)
                states.append(generator_states())
            scores.append(self.score(self.flat, reward))
        if not np.array_equal(scores[0], scores[1]):
            self.fail("two instances with the same seed score differently; draw from a generator made from `seed`")
        if any(map(is_equal, states[0], states[1])):
            self.fail("it seeds a global random generator, which belongs to the run; use one of your own")
        if differ and np.array_equal(scores[0], scores[2]):
            self.fail("seeds 0 and 1 give the same scores; what is drawn at random must depend on `seed`")

    def check_constant_input(self) -> None:
        """Nothing observed, nothing changed, one transition over and over: what is divided by is zero, nothing NaN."""
        reward = self.build()
        flat = self.flat
        still: dict[str, Any] = {"obs": flat.next_obs, "extras": dict(flat.extras)}
        for name in MODALITIES:
            still[f"obs_{name}"] = getattr(flat, name)
        for name in flat.extras:
            if name.startswith("obs_"):
                still["extras"][name] = flat.extras[name.removeprefix("obs_")]
        cases = {"transitions that change nothing": flat.replace(**still)}
        # Zeros are an observation only where the space says so: a Box may begin at 1.
        zero = map_obs(np.zeros_like, flat.next_obs)
        if self.observation_space.contains(index_obs(zero, 0)):
            black = {name: map_obs(np.zeros_like, getattr(flat, name)) for name in ("frame", "obs_frame")}
            cases["observations of zeros"] = flat.replace(obs=zero, next_obs=zero, **black)
        cases["equal transitions"] = flat[np.zeros(len(flat.step), int)]
        cases["a single transition"] = flat[:1]
        for what, batch in cases.items():
            self.need_finite(self.score(batch, reward), f"for {what}")
            self.update(reward, batch)
            self.need_finite(self.score(flat, reward), f"after an update on {what}")

    def check_space(self) -> None:
        """A space without numbers is refused by name."""
        if not {"obs", "next_obs"} & set(self.reward.requires):
            return
        # Either the constructor refuses it, or the reward scores it.
        space = spaces.Text(5)
        words = np.array(["word"] * len(self.flat.step), dtype=object)
        try:
            reward = self.build(observation_space=space)
        except Exception as error:
            refused = isinstance(error, ValueError) and "Text" in str(error)
            met = f"it met the space {space} with {type(error).__name__}: {error}; raise a ValueError that names it"
            self.need(refused, met)
            return
        try:
            self.score(self.flat.replace(obs=words, next_obs=words), reward)
        except Exception:
            self.fail(
                f"built for the space {space} it fails to score; refuse such a space in the constructor with a "
                "ValueError that names it"
            )


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and bool(np.isfinite(value))


def close(one: np.ndarray, two: np.ndarray) -> bool:
    """Equal but for rounding: matrix products round differently for batches of different size."""
    return np.allclose(one, two, 1e-3, 1e-5)


def is_equal(one: Any, two: Any) -> bool:
    """Equal to the last bit, NaN to NaN, through any nesting of dicts, sequences, arrays and tensors."""
    try:
        np.testing.assert_equal(_as_arrays(one), _as_arrays(two))
    except AssertionError:
        return False
    return True


def _as_arrays(tree: Any) -> Any:
    """A nested state with arrays in place of tensors."""
    if isinstance(tree, Mapping):
        return map_values(_as_arrays, tree)
    if isinstance(tree, (list, tuple)):
        return list(map(_as_arrays, tree))
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu().numpy()
    return tree


def process_settings() -> dict[str, Any]:
    """What the whole process shares besides generators, by the function that sets it: NumPy's and torch's modes."""
    settings: dict[str, Any] = {"np.seterr": np.geterr()}
    for setter, getter in TORCH_SETTINGS.items():
        settings[f"torch.{setter}"] = getattr(torch, getter)()
    return settings


def _call_setter(name: str, value: Any) -> None:
    if name == "np.seterr":
        np.seterr(**value)
    else:
        getattr(torch, name.removeprefix("torch."))(value)


@contextmanager
def another_process(kind: type[Reward]) -> Iterator[None]:
    """Where `hash` of what holds a text differs, as it does in every process, in the files of the reward's classes."""

    def hash_elsewhere(value: Any) -> int:
        if isinstance(value, (tuple, frozenset)):
            return hash(type(value)(map(hash_elsewhere, value)))
        if isinstance(value, (int, float, complex, np.number)):
            return hash(value)
        return hash(("elsewhere", value))

    names = {cls.__module__ for cls in kind.__mro__} - {"builtins"}
    modules = [vars(sys.modules[name]) for name in names if not hasattr(sys.modules[name], "hash")]
    for module in modules:
        module["hash"] = hash_elsewhere
    try:
        yield
    finally:
        for module in modules:
            del module["hash"]


def generator_states() -> list[Any]:
    """The states of the generators that the whole process shares: Python's, NumPy's and torch's."""
    return [random.getstate(), np.random.get_state(), torch.get_rng_state()]  # noqa: NPY002


@contextmanager
def seed_generators(seed: int) -> Iterator[None]:
    """All of them seeded with `seed` within the context; afterwards they are as before."""
    python_state, numpy_state, torch_state = generator_states()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_rng_state(torch_state)


def random_rollout(
    observation_space: Space,
    action_space: Space,
    requires: Collection[str] = (),
    frame_size: int = 64,
    *,
    steps: int = 6,
    envs: int = 4,
    seed: int = 0,
) -> Transitions:
    """A rollout (steps, envs) in time order; the first episode of environment 0 terminates, that of 1 is truncated.

    Frames (random pixels), texts and nine signals are there if `requires` names them; the spaces' own generators
    are left alone.
    """
    rng = np.random.default_rng(seed)
    # Row t of the states is seen before step t, except where an episode begins.
    states = _sample(observation_space, steps + 1, envs, seed)
    starts = _sample(observation_space, steps, envs, seed + 1)
    terminated = np.zeros((steps, envs), bool)
    terminated[steps // 3, 0] = True
    truncated = np.zeros((steps, envs), bool)
    truncated[steps // 2, 1 % envs] = True
    step = np.zeros((steps, envs), np.int64)
    for t in range(1, steps):
        step[t] = np.where((terminated | truncated)[t - 1], 0, step[t - 1] + 1)
    # All are drawn, so that the other numbers do not depend on what is required.
    shape = (steps + 1, envs)
    frames = rng.integers(0, 256, (*shape, frame_size, frame_size, 3), dtype=np.uint8)
    texts = np.array(RANDOM_CAPTIONS, dtype=object)[rng.integers(0, len(RANDOM_CAPTIONS), shape)]
    numbers = rng.normal(size=(*shape, 9)).astype(np.float32)
    modalities: dict[str, Any] = {}
    for name, x in (("frame", frames), ("text", texts), ("signals", numbers)):
        if name in requires:
            modalities[name] = x[1:]
        if f"obs_{name}" in requires:
            modalities[f"obs_{name}"] = x[:-1]
    obs = map_obs(lambda x: x[:-1].copy(), states)
    put(obs, step == 0, index_obs(starts, step == 0))
    return Transitions(
        obs=obs,
        action=_sample(action_space, steps, envs, seed),
        reward=rng.normal(size=(steps, envs)).astype(np.float32),
        next_obs=map_obs(lambda x: x[1:], states),
        terminated=terminated,
        truncated=truncated,
        valid=np.ones((steps, envs), bool),
        step=step,
        **modalities,
    )


def _sample(space: Space, steps: int, envs: int, seed: int) -> Any:
    rows_space = batch_space(space, steps * envs)
    rows_space.seed(seed)
    return map_obs(lambda x: x.reshape(steps, envs, *x.shape[1:]), rows_space.sample())


def _exchange_rows(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields (T, N, ...) with their rows exchanged: each has its neighbour's of the step before."""
    return {name: map_obs(lambda x: np.roll(x, (1, 1), (0, 1)), value) for name, value in fields.items()}
