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
import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from envs import recording, render
from envs.family import family_of
from envs.make import goals, make
from envs.masks import sample
from envs.snapshots.snapshots import get_state, set_state, supported
from envs.steps import Cursor, from_gym_step, modalities_of_one
from envs.transitions import Transitions, concatenate
from envs.types import MASK
from envs.wrappers import Observer
from rewards.adapters.guided import guides
from runners.evaluate import policy
from runners.run.build import load_run
from runners.run.config import UsageError

SOURCES = ("scattered", "random policy", "trained policy", "landscape")
POSES = 61  # along the axis
STATES = 300  # of an environment that is enumerated, at most
FRAME = 64  # pixels, where no reward reads frames
KEPT = ("source", "place", "truth", "degree", "blank")


@dataclass(frozen=True)
class SampleSpec:
    """What to sample; equal specs give equal rows."""

    env: str
    options: dict[str, Any] = field(default_factory=dict)
    frames: int = 2000  # rows, those of the landscape not counted
    seed: int = 0
    frame_size: int | None = FRAME
    text: bool = False
    signals: bool = False
    run: str = ""  # a run's folder, whose policy acts too
    max_episode_steps: int | None = None
    before: bool = False  # whether the state before the action is drawn too

    @property
    def key(self) -> str:
        """Equal for equal samples; names the file that keeps them."""
        values = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(values.encode()).hexdigest()[:16]

    @property
    def folder(self) -> Path:
        """Where samples and embeddings of this environment are kept."""
        return Path("runs") / "compare" / re.sub(r"[^\w.-]+", "-", self.env).strip("-.")


@dataclass
class Sample:
    """Rows (N,), flat, and what is true of their next states."""

    batch: Transitions  # with frames if the environment can be rendered
    source: np.ndarray  # index into SOURCES, (N,)
    place: np.ndarray  # where on the axis, float (N,); NaN off the landscape
    truth: np.ndarray  # whether each goal is met, bool (N, G)
    degree: np.ndarray  # how near each goal is, float (N, G); NaN where nothing graded is known
    blank: np.ndarray  # whether the frame had one single colour, bool (N,)
    seconds: dict[str, float]  # spent on rendering and on stepping
    axis: str = ""  # its name; empty without one
    proportion: float = 1.0  # width over height of what the environment draws, which frames are squashed from

    @property
    def counted(self) -> np.ndarray:
        """Bool (N,): the rows that numbers are about; the landscape is only plotted."""
        return self.source != SOURCES.index("landscape")

    @property
    def uniform(self) -> np.ndarray:
        """Bool (N,): the rows with uniformly random actions."""
        return np.isin(self.source, (0, 1))

    def about(self) -> str:
        """How many rows come from where."""
        counts = [int((self.source == i).sum()) for i in range(3)]
        return ", ".join(f"{n:,} {name}" for n, name in zip(counts, SOURCES) if n)


def load_or_take(spec: SampleSpec) -> Sample:
    """The sample of a spec, from the folder if it is there."""
    path = spec.folder / f"sample-{spec.key}.safetensors"
    if not path.exists():
        sample = take(spec)
        meta = {"seconds": sample.seconds, "axis": sample.axis, "proportion": sample.proportion}
        recording.save(path, _with_truth(sample), meta)
        return sample
    return _without_truth(*recording.load(path))


def load_or_enumerate(spec: SampleSpec) -> "FiniteMDP | None":
    """Every state of an environment, from the folder if it was enumerated before; None where that is impossible."""
    path = spec.folder / f"states-{spec.key}.safetensors"
    too_large = path.with_suffix(".none")
    if path.exists():
        batch, meta = recording.load(path)
        return FiniteMDP(_without_truth(batch, meta), np.array(meta["successors"]))
    mdp = None if too_large.exists() else enumerate_mdp(spec)
    if mdp is None:
        too_large.parent.mkdir(parents=True, exist_ok=True)
        too_large.touch()
        return None
    meta = {"seconds": mdp.sample.seconds, "axis": "", "successors": mdp.successors.tolist()}
    recording.save(path, _with_truth(mdp.sample), meta)
    return mdp


def _with_truth(sample: Sample) -> Transitions:
    """The rows with what is true of them as extras; a table without columns is left out."""
    extras = {name: getattr(sample, name) for name in KEPT}
    return sample.batch.replace(extras={name: value for name, value in extras.items() if value.size})


def _without_truth(batch: Transitions, meta: dict[str, Any]) -> Sample:
    nothing = np.zeros((batch.shape[0], 0))
    kept = {name: batch.extras.get(name, nothing) for name in KEPT}
    kept["truth"] = kept["truth"].astype(bool)
    about = {"seconds": meta["seconds"], "axis": meta["axis"], "proportion": meta.get("proportion", 1.0)}
    return Sample(batch.replace(extras={}), **kept, **about)


def take(spec: SampleSpec) -> Sample:
    """Sample as the spec asks; a UsageError if every frame has one single colour."""
    sampler = _Sampler(spec)
    try:
        scattered = spec.frames // 2 if sampler.can_scatter() else 0
        trained = (spec.frames - scattered) // 2 if spec.run else 0
        sampler.episodes(SOURCES.index("random policy"), spec.frames - scattered - trained, None)
        if trained:
            sampler.episodes(SOURCES.index("trained policy"), trained, _policy_of(spec))
        for _ in range(scattered):
            sampler.one_step(functools.partial(sampler.family.scatter, sampler.env, sampler.rng), 0)
        if axis := sampler.axis:
            for place in np.linspace(axis.low, axis.high, POSES).tolist():
                sampler.one_step(functools.partial(axis.place, sampler.env, place), 3, place)
        return sampler.sample()
    finally:
        sampler.env.close()


def _policy_of(spec: SampleSpec) -> Callable[..., Any]:
    config, model, mix, _ = load_run(Path(spec.run))
    if config.env != spec.env:
        raise UsageError(f"run={spec.run} is of {config.env}, not of {spec.env}; give a run of the same environment")
    if found := guides(mix):
        raise UsageError(f"the policy of run={spec.run} is guided by {', '.join(found)}; give a run without a guide")
    return policy(model, config, seed=spec.seed)


class _Sampler:
    """One environment below its Observer, so that only states that count are rendered."""

    def __init__(self, spec: SampleSpec) -> None:
        given = ("frame_size", "text", "signals", "seed", "max_episode_steps")
        env = make(spec.env, **{name: getattr(spec, name) for name in given}, **spec.options)
        self.spec, self.env = spec, env.env if isinstance(env, Observer) else env
        self.family, self.goals = family_of(env.spec), goals(spec.env)
        self.axis = self.family.axis(env.spec) if env.spec is not None else None
        self.rng, self.cursor = np.random.default_rng(spec.seed), Cursor(1)
        self.memory: dict[str, Any] = {}  # of the captions
        self.info: dict[str, Any] = {}  # of the last reset or step
        self.rows: list[Transitions] = []
        self.notes: dict[str, list[Any]] = {name: [] for name in KEPT}
        self.seconds = {"render": 0.0, "step": 0.0}

    def can_scatter(self) -> bool:
        """Whether states can be restored and drawn at random; where they cannot, there is no axis either."""
        axis, self.axis = self.axis, None
        try:
            supported(self.env)
        except ValueError:
            return False
        self.env.reset()
        can = self.family.scatter(self.env, np.random.default_rng(0))
        self.axis = axis if can else None
        return can

    def modalities(self, drawn: bool, counted: bool = True) -> dict[str, Any]:
        """The frame, caption and signals of the state; `blank` is noted of states that count."""
        info: dict[str, Any] = {}
        if self.spec.frame_size is not None and drawn:
            begin, blank = time.perf_counter(), False
            try:
                info["frame"] = render.frame(self.env, self.spec.frame_size)
            except RuntimeError:
                blank, info["frame"] = True, np.zeros((self.spec.frame_size, self.spec.frame_size, 3), np.uint8)
            if counted:
                self.notes["blank"].append(blank)
            self.seconds["render"] += time.perf_counter() - begin
        if self.spec.text:
            info["text"] = self.family.caption(self.env, self.memory)
        if self.spec.signals:
            info["signals"] = self.family.sense(self.env)
        return info

    def begin(self, obs: Any) -> Any:
        self.memory.clear()
        self.cursor.begin(modalities_of_one(self.modalities(self.spec.before, counted=False)))
        return obs

    def step(self, obs: Any, action: Any, source: int, place: float = np.nan) -> tuple[Any, bool]:
        begin = time.perf_counter()
        next_obs, reward, terminated, truncated, self.info = self.env.step(action)
        self.seconds["step"] += time.perf_counter() - begin
        ends = source in (0, 3)  # a row that is an episode of its own
        found = self.modalities(drawn=True)
        row = from_gym_step(self.cursor, obs, action, float(reward), next_obs, terminated, truncated or ends, found)
        self.rows.append(row if self.spec.before else row.replace(obs_frame=None))
        self.notes["source"].append(source)
        self.notes["place"].append(place)
        self.notes["truth"].append([bool(goal.truth(self.env)) for goal in self.goals])
        self.notes["degree"].append([goal.degree(self.env) if goal.degree else np.nan for goal in self.goals])
        return next_obs, terminated or truncated

    def episodes(self, source: int, rows: int, act: Callable[..., Any] | None) -> None:
        ended, obs = True, None
        for _ in range(rows):
            if ended:
                obs, self.info = self.env.reset()
                obs = self.begin(obs)
            mask = (self.info[MASK],) if MASK in self.info else ()
            action = sample(self.env.action_space, *mask) if act is None else act(obs, ended, *mask)
            obs, ended = self.step(obs, action, source)
        if rows:  # the next row is another episode
            self.rows[-1] = self.rows[-1].replace(truncated=self.rows[-1].truncated | ~self.rows[-1].terminated)

    def one_step(self, put: Callable[[], object], source: int, place: float = np.nan) -> None:
        """A random action from the state that the environment is put into."""
        self.env.reset()
        put()
        obs = self.begin(set_state(self.env, get_state(self.env)))
        self.step(obs, self.env.action_space.sample(), source, place)

    def sample(self) -> Sample:
        n, goals = len(self.rows), len(self.goals)
        blank = np.array(self.notes["blank"] or np.zeros(n), bool)
        if blank.all():
            raise UsageError(
                f"every frame of {self.spec.env} has one single colour, which no reward can use; the renderers in "
                f"use are {render.prepare()}: set these variables"
            )
        return Sample(
            concatenate(self.rows),
            np.array(self.notes["source"], np.int64),
            np.array(self.notes["place"], np.float32),
            np.array(self.notes["truth"], bool).reshape(n, goals),
            np.array(self.notes["degree"], np.float32).reshape(n, goals),
            blank,
            self.seconds,
            self.axis.name if self.axis else "",
            self.proportion(),
        )

    def proportion(self) -> float:
        """Width over height of what the environment draws; 1 where nothing is drawn."""
        if self.spec.frame_size is None:
            return 1.0
        try:
            height, width, _ = render.drawn(self.env).shape
        except RuntimeError:
            return 1.0
        return width / height


@dataclass
class FiniteMDP:
    """Every state of a small environment, and every action from each."""

    sample: Sample  # S * A rows, state by state
    successors: np.ndarray  # index of the next state (S, A); S where the episode terminates

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

    None where states cannot be copied and restored, where there are more than STATES, or where dynamics are random.
    """
    sampler = _Sampler(spec)
    env = sampler.env
    try:
        supported(env)
        if not isinstance(env.action_space, spaces.Discrete):
            return None
        env.reset(seed=spec.seed)
        generator: Any = env.unwrapped.np_random.bit_generator
        untouched, root = generator.state, get_state(env)
        states, order = [root], {_identity(root): 0}
        first, actions = int(env.action_space.start), int(env.action_space.n)
        successors: list[int] = []
        for state in states:  # grows meanwhile
            for action in range(first, first + actions):
                set_state(env, state)
                _, _, terminated, _, _ = env.step(action)
                if generator.state != untouched:
                    return None
                after = get_state(env)
                after["wrappers"] = root["wrappers"]  # step counters do not distinguish states
                if "step_count" in root["variables"]:
                    after["variables"]["step_count"] = root["variables"]["step_count"]
                name = _identity(after)
                if not terminated and name not in order:
                    order[name] = len(states)
                    states.append(after)
                    if len(states) > STATES:
                        return None
                successors.append(-1 if terminated else order[name])
        for state in states:
            for action in range(first, first + actions):
                sampler.step(sampler.begin(set_state(env, state)), action, 0)
        table = np.array(successors).reshape(len(states), actions)
        return FiniteMDP(sampler.sample(), np.where(table < 0, len(states), table))
    except ValueError:
        return None
    finally:
        env.close()


def _identity(state: dict[str, Any]) -> str:
    """What distinguishes states; NumPy numbers and plain ones are the same."""
    return json.dumps([state["variables"], state["things"]], default=lambda value: value.tolist())
