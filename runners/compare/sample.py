"""What a reward is scored on before training: transitions that cover an environment, and what is true of each.

    scattered        a random state of the environment's family, one random action from it
    random policy    episodes of it
    trained policy   episodes of a run's, if one is given
    landscape        states along the family's axis, one random action from each

The rows are kept in runs/compare/<env>/ (see `envs.recording`), keyed by everything that made them, so that a second
command about the same environment costs no rendering. `enumerate_mdp` visits every state of a small one.
"""

import dataclasses
import functools
import json
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs import recording, render
from envs.family import family_of
from envs.make import goals, make
from envs.masks import sample
from envs.snapshots.snapshots import State, get_state, refuse_unsupported, set_state
from envs.steps import Cursor, from_gym_step, modalities_of_one
from envs.transitions import Transitions, concatenate
from envs.types import MASK, Info
from envs.wrappers import Observer
from lodestar.files import make_parent
from rewards.adapters.guided import guides
from runners.evaluate import policy
from runners.run.build import load_run
from runners.run.checkpoint import digest
from runners.run.config import UsageError, Values

SOURCES = ("scattered", "random policy", "trained policy", "landscape")
SCATTERED, RANDOM_POLICY, TRAINED_POLICY, LANDSCAPE = range(4)
# States along the axis.
POSES = 61
MAX_ENUMERATED_STATES = 300
# Pixels, where no reward reads frames.
DEFAULT_FRAME_SIZE = 64


@dataclass(frozen=True)
class SampleSpec:
    """What to sample; equal specs give equal rows."""

    env: str
    options: Values = field(default_factory=dict)
    # Rows, those of the landscape not counted.
    frames: int = 2000
    seed: int = 0
    frame_size: int | None = DEFAULT_FRAME_SIZE
    text: bool = False
    signals: bool = False
    # A run's folder, whose policy acts too.
    run: str = ""
    max_episode_steps: int | None = None
    # Whether the state before the action is drawn too.
    before: bool = False

    @property
    def key(self) -> str:
        """Equal for equal samples; names the file that keeps them."""
        return digest(dataclasses.asdict(self))[:16]

    @property
    def folder(self) -> Path:
        """Where samples and embeddings of this environment are kept."""
        return Path("runs") / "compare" / re.sub(r"[^\w.-]+", "-", self.env).strip("-.")


@dataclass
class Sample:
    """Rows (N,), flat, and what is true of their next states, which is kept in their extras."""

    # With frames if the environment can be rendered.
    batch: Transitions
    # Spent on rendering and on stepping.
    seconds: dict[str, float]
    # Its name; empty without one.
    axis: str = ""
    # Width over height of what the environment draws, which frames are squashed from.
    proportion: float = 1.0

    @property
    def source(self) -> np.ndarray:
        """Index into SOURCES, (N,)."""
        return self.batch.extras["source"]

    @property
    def place(self) -> np.ndarray:
        """Where on the axis, float (N,); NaN off the landscape."""
        return self.batch.extras["place"]

    @property
    def truth(self) -> np.ndarray:
        """Whether each goal is met, bool (N, G)."""
        return self.batch.extras["truth"]

    @property
    def degree(self) -> np.ndarray:
        """How near each goal is, float (N, G); NaN where nothing graded is known."""
        return self.batch.extras["degree"]

    @property
    def blank(self) -> np.ndarray:
        """Whether the frame had one single colour, bool (N,)."""
        return self.batch.extras["blank"]

    @property
    def meta(self) -> Values:
        """What a file keeps beside the rows."""
        return {"seconds": self.seconds, "axis": self.axis, "proportion": self.proportion}

    @property
    def counted(self) -> np.ndarray:
        """Bool (N,): the rows that numbers are about; the landscape is only plotted."""
        return self.source != LANDSCAPE

    @property
    def uniform(self) -> np.ndarray:
        """Bool (N,): the rows with uniformly random actions."""
        return np.isin(self.source, (SCATTERED, RANDOM_POLICY))

    def describe_sources(self) -> str:
        """How many rows come from where."""
        parts = []
        for source, name in enumerate(SOURCES[:LANDSCAPE]):
            rows = int((self.source == source).sum())
            if rows:
                parts.append(f"{rows:,} {name}")
        return ", ".join(parts)


def load_or_take(spec: SampleSpec) -> Sample:
    """The sample of a spec, from the folder if it is there."""
    path = spec.folder / f"sample-{spec.key}.safetensors"
    if path.exists():
        batch, meta = recording.load(path)
        return Sample(batch, **meta)
    sample = take(spec)
    recording.save(path, sample.batch, sample.meta)
    return sample


def load_or_enumerate(spec: SampleSpec) -> "FiniteMDP | None":
    """Every state of an environment, from the folder if it was enumerated before; None where that is impossible."""
    path = spec.folder / f"states-{spec.key}.safetensors"
    # An empty file of this name says that it is impossible.
    impossible = path.with_suffix(".none")
    if path.exists():
        batch, meta = recording.load(path)
        successors = np.array(meta.pop("successors"))
        return FiniteMDP(Sample(batch, **meta), successors)
    if impossible.exists():
        return None
    mdp = enumerate_mdp(spec)
    if mdp is None:
        make_parent(impossible)
        impossible.touch()
        return None
    recording.save(path, mdp.sample.batch, {**mdp.sample.meta, "successors": mdp.successors.tolist()})
    return mdp


def take(spec: SampleSpec) -> Sample:
    """Sample as the spec asks; a UsageError if every frame has one single colour."""
    sampler = _Sampler(spec)
    with closing(sampler.env):
        scattered = 0
        if sampler.can_scatter():
            scattered = spec.frames // 2
        else:
            # What cannot be restored cannot be placed on the axis either.
            sampler.axis = None
        trained = (spec.frames - scattered) // 2 if spec.run else 0
        sampler.episodes(RANDOM_POLICY, spec.frames - scattered - trained, None)
        if trained:
            sampler.episodes(TRAINED_POLICY, trained, _policy_of(spec))
        for _ in range(scattered):
            sampler.one_step(functools.partial(sampler.family.scatter, sampler.env, sampler.rng), SCATTERED)
        axis = sampler.axis
        if axis is not None:
            for place in np.linspace(axis.low, axis.high, POSES).tolist():
                sampler.one_step(functools.partial(axis.place, sampler.env, place), LANDSCAPE, place)
        return sampler.sample()


def _policy_of(spec: SampleSpec) -> Callable[..., Any]:
    config, model, mix, _ = load_run(Path(spec.run))
    if config.env != spec.env:
        raise UsageError(f"run={spec.run} is of {config.env}, not of {spec.env}; give a run of the same environment")
    names = ", ".join(guides(mix))
    if names:
        raise UsageError(f"the policy of run={spec.run} is guided by {names}; give a run without a guide")
    return policy(model, config, seed=spec.seed)


class _Sampler:
    """One environment below its Observer, so that only states that count are rendered."""

    def __init__(self, spec: SampleSpec) -> None:
        self.spec = spec
        self.env = make(
            spec.env,
            frame_size=spec.frame_size,
            text=spec.text,
            signals=spec.signals,
            seed=spec.seed,
            max_episode_steps=spec.max_episode_steps,
            **spec.options,
        )
        if isinstance(self.env, Observer):
            self.env = self.env.env
        self.family = family_of(self.env.spec)
        self.goals = goals(spec.env)
        env_spec: Any = self.env.spec
        self.axis = self.family.axis(env_spec)
        self.rng = np.random.default_rng(spec.seed)
        self.cursor = Cursor(1)
        # What captions remember of the episode.
        self.memory: Values = {}
        self.rows: list[Transitions] = []
        # Whether the last frame had one single colour.
        self.is_blank = False
        self.seconds = {"render": 0.0, "step": 0.0}

    def can_scatter(self) -> bool:
        """Whether states can be restored and drawn at random."""
        try:
            refuse_unsupported(self.env)
        except ValueError:
            return False
        self.env.reset()
        return self.family.scatter(self.env, np.random.default_rng(0))

    def modalities(self, drawn: bool = True) -> Info:
        """The frame, if it is `drawn`, the caption and the signals of the state."""
        info: Info = {}
        size = self.spec.frame_size
        self.is_blank = False
        if size is not None and drawn:
            begin = time.perf_counter()
            try:
                info["frame"] = render.frame(self.env, size)
            except RuntimeError:
                self.is_blank = True
                info["frame"] = np.zeros((size, size, 3), np.uint8)
            self.seconds["render"] += time.perf_counter() - begin
        if self.spec.text:
            info["text"] = self.family.caption(self.env, self.memory)
        if self.spec.signals:
            info["signals"] = self.family.sense(self.env)
        return info

    def begin(self, obs: Any) -> Any:
        self.memory.clear()
        self.cursor.begin(modalities_of_one(self.modalities(self.spec.before)))
        return obs

    def step(self, obs: Any, action: Any, source: int, place: float = np.nan) -> tuple[Any, bool, Info]:
        """Take a step and note what is true after it; returns the next obs, whether the episode ended, and the info."""
        begin = time.perf_counter()
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        self.seconds["step"] += time.perf_counter() - begin
        # These rows are episodes of their own.
        cut = truncated or source in (SCATTERED, LANDSCAPE)
        seen = self.modalities()
        row = from_gym_step(self.cursor, obs, action, float(reward), next_obs, terminated, cut, seen)
        if not self.spec.before:
            row = row.replace(obs_frame=None)
        truths = []
        degrees = []
        for goal in self.goals:
            truths.append(bool(goal.truth(self.env)))
            degrees.append(goal.degree(self.env) if goal.degree else np.nan)
        extras = {"source": np.array([source]), "place": np.array([place], np.float32)}
        extras["blank"] = np.array([self.is_blank])
        # Tables without columns cannot be kept.
        if self.goals:
            extras |= {"truth": np.array([truths]), "degree": np.array([degrees], np.float32)}
        self.rows.append(row.replace(extras=extras))
        return next_obs, terminated or truncated, info

    def episodes(self, source: int, rows: int, act: Callable[..., Any] | None) -> None:
        ended = True
        for _ in range(rows):
            if ended:
                obs, info = self.env.reset()
                obs = self.begin(obs)
            mask = (info[MASK],) if MASK in info else ()
            action = sample(self.env.action_space, *mask) if act is None else act(obs, ended, *mask)
            obs, ended, info = self.step(obs, action, source)
        if rows:
            # The next row is another episode.
            last = self.rows[-1]
            self.rows[-1] = last.replace(truncated=last.truncated | ~last.terminated)

    def one_step(self, put: Callable[[], object], source: int, place: float = np.nan) -> None:
        """A random action from the state that the environment is put into."""
        self.env.reset()
        put()
        obs = self.begin(set_state(self.env, get_state(self.env)))
        self.step(obs, self.env.action_space.sample(), source, place)

    def sample(self) -> Sample:
        batch = concatenate(self.rows)
        if batch.extras["blank"].all():
            raise UsageError(
                f"every frame of {self.spec.env} has one single colour, which no reward can use; the renderers in "
                f"use are {render.prepare()}: set these variables"
            )
        return Sample(batch, self.seconds, self.axis.name if self.axis else "", self.proportion())

    def proportion(self) -> float:
        """Width over height of what the environment draws; 1 where nothing is drawn."""
        if self.spec.frame_size is None:
            return 1.0
        try:
            height, width, _ = render.render_picture(self.env).shape
        except RuntimeError:
            return 1.0
        return width / height


@dataclass
class FiniteMDP:
    """Every state of a small environment, and every action from each."""

    # S * A rows, state by state.
    sample: Sample
    # Index of the next state (S, A); S where the episode terminates.
    successors: np.ndarray

    def table(self, values: np.ndarray) -> np.ndarray:
        """Values of the rows as a table (S + 1, A, S + 1); the last state is the terminal one."""
        states, actions = self.successors.shape
        table = np.zeros((states + 1, actions, states + 1))
        np.put_along_axis(table[:-1], self.successors[..., None], values.reshape(states, actions, 1), axis=2)
        return table

    @property
    def transition(self) -> np.ndarray:
        """Probabilities (S + 1, A, S + 1)."""
        table = self.table(np.ones(self.successors.size))
        table[-1, :, -1] = 1
        return table


def enumerate_mdp(spec: SampleSpec) -> FiniteMDP | None:
    """Visit every state of the environment that the first reset with a spec's seed makes.

    None where states cannot be copied and restored, where there are more than MAX_ENUMERATED_STATES, or where dynamics
    are random.
    """
    sampler = _Sampler(spec)
    env = sampler.env
    try:
        refuse_unsupported(env)
        if not isinstance(env.action_space, spaces.Discrete):
            return None
        env.reset(seed=spec.seed)
        first_action = int(env.action_space.start)
        actions = range(first_action, first_action + int(env.action_space.n))
        visit = _visit_every_state(env, actions)
        if visit is None:
            return None
        states, successors = visit
        for state in states:
            for action in actions:
                sampler.step(sampler.begin(set_state(env, state)), action, SCATTERED)
        return FiniteMDP(sampler.sample(), successors)
    except ValueError:
        return None
    finally:
        env.close()


def _visit_every_state(env: gym.Env, actions: range) -> tuple[list[State], np.ndarray] | None:
    """The states that can be reached from where the environment is, and their `successors`; None as above."""
    generator = env.unwrapped.np_random.bit_generator
    generator_state = generator.state
    root = get_state(env)
    states = [root]
    indices = {_identity(root): 0}
    successors: list[list[int]] = []
    # The list grows meanwhile: this is a breadth-first search.
    for state in states:
        successors.append([])
        for action in actions:
            set_state(env, state)
            _, _, terminated, _, _ = env.step(action)
            if generator.state != generator_state:
                return None
            if terminated:
                successors[-1].append(-1)
                continue
            after = get_state(env)
            # Counters of steps do not distinguish states.
            after["wrappers"] = root["wrappers"]
            if "step_count" in root["variables"]:
                after["variables"]["step_count"] = root["variables"]["step_count"]
            name = _identity(after)
            if name not in indices:
                indices[name] = len(states)
                states.append(after)
                if len(states) > MAX_ENUMERATED_STATES:
                    return None
            successors[-1].append(indices[name])
    table = np.array(successors)
    return states, np.where(table < 0, len(states), table)


def _identity(state: State) -> str:
    """What distinguishes states; NumPy numbers and plain ones are the same."""
    return json.dumps([state["variables"], state["things"]], default=lambda value: value.tolist())
