"""What a reward is asked about before training: transitions that cover a world, and what is true of each.

    scattered        a random state of the family's, one random action from it
    random policy    episodes of it
    trained policy   episodes of a run's, if one is given
    landscape        states along the family's axis, one random action from each

The rows are kept in runs/compare/<env>/ (see `envs.recording`), keyed by everything that made them, so that a second
question about the same world costs no rendering. `enumerate_world` walks through every state of a small one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from envs.types import Transitions, concatenate
from runners.run.config import UsageError

SOURCES = ("scattered", "random policy", "trained policy", "landscape")
POSES = 61  # along the axis
STATES = 300  # of a world that is enumerated, at most
PICTURE = 64  # pixels, where no reward asks for frames
KEPT = ("source", "place", "truth", "degree", "blank")


@dataclass(frozen=True)
class Plan:
    """What to sample; equal plans give equal rows."""

    env: str
    options: dict[str, Any] = field(default_factory=dict)
    frames: int = 2000  # rows, those of the landscape not counted
    seed: int = 0
    frame_size: int | None = PICTURE
    text: bool = False
    signals: bool = False
    run: str = ""  # a run's folder, whose policy acts too
    max_episode_steps: int | None = None
    before: bool = False  # whether the state before the action is drawn too

    def __post_init__(self) -> None:
        if not 20 <= self.frames <= 100_000:
            raise UsageError(f"frames={self.frames} is out of range; give 20 to 100000")

    @property
    def key(self) -> str:
        """Sixteen letters that stand for it."""
        values = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(values.encode()).hexdigest()[:16]

    @property
    def folder(self) -> Path:
        """Where samples and embeddings of this environment are kept."""
        return Path("runs") / "compare" / re.sub(r"[^\w.-]+", "-", self.env).strip("-.")


@dataclass
class Sample:
    """Rows (N,), flat, and what is true of their next states.

    Attributes:
        batch: the transitions, with frames if the world can be drawn.
        source: index into SOURCES, (N,).
        place: where on the axis, float (N,); NaN off the landscape.
        truth: whether each goal is met, bool (N, G).
        degree: how near each goal is, float (N, G); NaN where nothing graded is known.
        blank: whether the frame had one single colour, bool (N,).
        seconds: spent on rendering and on stepping.
        axis: the name of the axis; empty without one.
    """

    batch: Transitions
    source: np.ndarray
    place: np.ndarray
    truth: np.ndarray
    degree: np.ndarray
    blank: np.ndarray
    seconds: dict[str, float]
    axis: str = ""

    @property
    def counted(self) -> np.ndarray:
        """Bool (N,): the rows that numbers are about; the landscape is only drawn."""
        return self.source != SOURCES.index("landscape")

    def about(self) -> str:
        """Who made the rows, in words."""
        counts = [int((self.source == i).sum()) for i in range(3)]
        return ", ".join(f"{n:,} {name}" for n, name in zip(counts, SOURCES) if n)


def load_or_take(plan: Plan) -> Sample:
    """The sample of a plan, from the folder if it is there."""
    from envs import recording

    path = plan.folder / f"sample-{plan.key}.safetensors"
    if not path.exists():
        sample = take(plan)
        recording.save(path, _with_truth(sample), {"seconds": sample.seconds, "axis": sample.axis})
        return sample
    return _without_truth(*recording.load(path))


def load_or_walk(plan: Plan) -> World | None:
    """The world of a plan, from the folder if somebody walked through it before; None where it cannot be done."""
    from envs import recording

    path = plan.folder / f"world-{plan.key}.safetensors"
    too_large = path.with_suffix(".none")
    if too_large.exists():
        return None
    if not path.exists():
        world = enumerate_world(plan)
        if world is None:
            too_large.parent.mkdir(parents=True, exist_ok=True)
            too_large.touch()
            return None
        meta = {"seconds": world.sample.seconds, "axis": "", "leads": world.leads.tolist()}
        recording.save(path, _with_truth(world.sample), meta)
        return world
    batch, meta = recording.load(path)
    return World(_without_truth(batch, meta), np.array(meta["leads"]))


def _with_truth(sample: Sample) -> Transitions:
    """The rows with what is true of them as extras; a table without columns is left out."""
    extras = {name: getattr(sample, name) for name in KEPT}
    return sample.batch.replace(extras={name: value for name, value in extras.items() if value.size})


def _without_truth(batch: Transitions, meta: dict[str, Any]) -> Sample:
    nothing = np.zeros((batch.shape[0], 0))
    kept = {name: batch.extras.get(name, nothing) for name in KEPT}
    kept["truth"] = kept["truth"].astype(bool)
    return Sample(batch.replace(extras={}), **kept, seconds=meta["seconds"], axis=meta["axis"])


def take(plan: Plan) -> Sample:
    """Sample as the plan says.

    Raises:
        UsageError: if every picture is of one single colour.
    """
    sampler = _Sampler(plan)
    try:
        scattered = plan.frames // 2 if sampler.can_scatter() else 0
        trained = (plan.frames - scattered) // 2 if plan.run else 0
        sampler.episodes(SOURCES.index("random policy"), plan.frames - scattered - trained, None)
        if trained:
            sampler.episodes(SOURCES.index("trained policy"), trained, _policy_of(plan))
        for _ in range(scattered):
            sampler.scattered()
        sampler.landscape()
        return sampler.sample()
    finally:
        sampler.env.close()


def _policy_of(plan: Plan) -> Callable[[Any, bool], Any]:
    from rewards.adapters.guided import guides
    from runners.evaluate import load_run, policy

    config, model, mix = load_run(Path(plan.run))
    if config.env != plan.env:
        raise UsageError(f"run={plan.run} is of {config.env}, not of {plan.env}; give a run of the same environment")
    if guides(mix):
        raise UsageError(
            f"the policy of run={plan.run} listens to {', '.join(guides(mix))}; give a run without a guide"
        )
    return policy(model)


class _Sampler:
    """One environment below its Observer, so that only states that count are drawn."""

    def __init__(self, plan: Plan) -> None:
        from envs.family import family_of
        from envs.make import goals, make
        from envs.transitions import Cursor
        from envs.wrappers import Observer

        env = make(
            plan.env,
            frame_size=plan.frame_size,
            text=plan.text,
            signals=plan.signals,
            seed=plan.seed,
            max_episode_steps=plan.max_episode_steps,
            **plan.options,
        )
        self.plan, self.env = plan, env.env if isinstance(env, Observer) else env
        self.family, self.goals = family_of(env.spec), goals(plan.env)
        self.axis = self.family.axis(env.spec) if env.spec is not None else None
        self.rng, self.cursor = np.random.default_rng(plan.seed), Cursor(1)
        self.memory: dict[str, Any] = {}  # of the captions
        self.rows: list[Transitions] = []
        self.notes: dict[str, list[Any]] = {name: [] for name in KEPT}
        self.seconds = {"render": 0.0, "step": 0.0}

    def can_scatter(self) -> bool:
        from envs.snapshots.snapshots import supported

        try:
            supported(self.env)
        except ValueError:
            self.axis = None
            return False
        self.env.reset()
        if self.family.scatter(self.env, np.random.default_rng(0)):
            return True
        self.axis = None
        return False

    def show(self, drawn: bool, counted: bool = True) -> dict[str, Any]:
        """What the environment shows of its state; `blank` is noted of states that count."""
        from envs import render

        info: dict[str, Any] = {}
        if self.plan.frame_size is not None and drawn:
            begin, blank = time.perf_counter(), False
            try:
                info["frame"] = render.frame(self.env, self.plan.frame_size)
            except RuntimeError:
                blank, info["frame"] = True, np.zeros((self.plan.frame_size, self.plan.frame_size, 3), np.uint8)
            if counted:
                self.notes["blank"].append(blank)
            self.seconds["render"] += time.perf_counter() - begin
        if self.plan.text:
            info["text"] = self.family.caption(self.env, self.memory)
        if self.plan.signals:
            info["signals"] = self.family.sense(self.env)
        return info

    def begin(self, obs: Any) -> Any:
        from envs.transitions import modalities_of_one

        self.memory.clear()
        self.cursor.begin(modalities_of_one(self.show(self.plan.before, counted=False)))
        return obs

    def step(self, obs: Any, action: Any, source: int, place: float = np.nan) -> tuple[Any, bool]:
        from envs.transitions import from_gym_step

        begin = time.perf_counter()
        next_obs, reward, terminated, truncated, _ = self.env.step(action)
        self.seconds["step"] += time.perf_counter() - begin
        ends = source in (0, 3)  # a row that is an episode of its own
        shown = self.show(drawn=True)
        row = from_gym_step(self.cursor, obs, action, float(reward), next_obs, terminated, truncated or ends, shown)
        self.rows.append(row if self.plan.before else row.replace(obs_frame=None))
        self.notes["source"].append(source)
        self.notes["place"].append(place)
        self.notes["truth"].append([bool(goal.truth(self.env)) for goal in self.goals])
        self.notes["degree"].append([goal.degree(self.env) if goal.degree else np.nan for goal in self.goals])
        return next_obs, terminated or truncated

    def episodes(self, source: int, rows: int, act: Callable[[Any, bool], Any] | None) -> None:
        ended, obs = True, None
        for _ in range(rows):
            begins = ended
            if ended:
                obs = self.begin(self.env.reset()[0])
            action = self.env.action_space.sample() if act is None else act(obs, begins)
            obs, ended = self.step(obs, action, source)
        if rows:  # the next row is another episode
            self.rows[-1] = self.rows[-1].replace(truncated=self.rows[-1].truncated | ~self.rows[-1].terminated)

    def scattered(self) -> None:
        from envs.snapshots.snapshots import get_state, set_state

        self.env.reset()
        self.family.scatter(self.env, self.rng)
        obs = self.begin(set_state(self.env, get_state(self.env)))
        self.step(obs, self.env.action_space.sample(), 0)

    def landscape(self) -> None:
        from envs.snapshots.snapshots import get_state, set_state

        if self.axis is None:
            return
        for place in np.linspace(self.axis.low, self.axis.high, POSES):
            self.env.reset()
            self.axis.place(self.env, float(place))
            obs = self.begin(set_state(self.env, get_state(self.env)))
            self.step(obs, self.env.action_space.sample(), 3, float(place))

    def sample(self) -> Sample:
        from envs import render

        n, goals = len(self.rows), len(self.goals)
        blank = np.array(self.notes["blank"] or np.zeros(n), bool)
        if blank.all():
            raise UsageError(
                f"every picture of {self.plan.env} has one single colour, which no reward can read; the renderers in "
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
        )


@dataclass
class World:
    """Every state of a small world, and every action from each.

    Attributes:
        sample: S * A rows, state by state.
        leads: index of the next state (S, A); S where the episode terminates.
    """

    sample: Sample
    leads: np.ndarray


def enumerate_world(plan: Plan, limit: int = STATES) -> World | None:
    """Walk through the world that the first reset of a plan's seed makes.

    None where states cannot be taken and given back, where there are more than `limit`, or where chance has a say.
    """
    from gymnasium import spaces

    from envs.snapshots.snapshots import get_state, set_state, supported

    sampler = _Sampler(plan)
    env = sampler.env
    try:
        supported(env)
        if not isinstance(env.action_space, spaces.Discrete):
            return None
        env.reset(seed=plan.seed)
        chance: Any = env.unwrapped.np_random.bit_generator
        untouched, root = chance.state, get_state(env)
        states, order = [root], {_identity(root): 0}
        leads: list[list[int]] = []
        for state in states:  # grows while we walk
            leads.append([])
            for action in range(int(env.action_space.n)):
                set_state(env, state)
                _, _, terminated, _, _ = env.step(int(env.action_space.start) + action)
                if chance.state != untouched:
                    return None
                after = get_state(env)
                after["wrappers"] = root["wrappers"]  # clocks stand still
                if "step_count" in root["variables"]:
                    after["variables"]["step_count"] = root["variables"]["step_count"]
                name = _identity(after)
                if not terminated and name not in order:
                    order[name] = len(states)
                    states.append(after)
                    if len(states) > limit:
                        return None
                leads[-1].append(-1 if terminated else order[name])
        for state in states:
            for action in range(int(env.action_space.n)):
                sampler.step(sampler.begin(set_state(env, state)), int(env.action_space.start) + action, 0)
        table = np.array(leads)
        return World(sampler.sample(), np.where(table < 0, len(states), table))
    except ValueError:
        return None
    finally:
        env.close()


def _identity(state: dict[str, Any]) -> str:
    """What tells states apart; whether a number came as NumPy's does not."""
    return json.dumps([state["variables"], state["things"]], default=lambda value: value.tolist())
