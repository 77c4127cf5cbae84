"""Let a policy act and keep what happened in a file, to learn from without the environment.

    python -m runners.record env=Pendulum-v1 policy=random steps=5000 out=random.safetensors
    python -m runners.record policy=runs/Pendulum-v1/sac-task/20261121-120000-s0 steps=5000 out=good.safetensors

`runners.offline` learns from such files. keys:
    env=        any id; that of the run by default. Options as in env.sticky=0.25
    policy=     random, or a run's folder
    steps=      transitions (10000)
    out=        the file, *.safetensors
    noise=      share of the steps at which the policy's action is replaced by a random one (0)
    frames=     side of the frames to keep, pixels; 0 for none (0)
    text=, signals=   whether to keep captions, and named quantities of the state (false)
    seed=       of the first episode, and of random actions (0)
    trust=      whether the run may name code and servers, as in env=module:Id (false)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from envs.family import family_of
from envs.recording import episodes, save
from envs.recording import record as recorded
from envs.types import Transitions
from runners.evaluate import Scores, load_run
from runners.run.config import UsageError, unknown


@dataclass
class RecordConfig:
    """One recording; the module's docstring explains the keys."""

    env: str = ""
    policy: str = "random"
    steps: int = 10_000
    out: str = ""
    noise: float = 0.0
    frames: int = 0
    text: bool = False
    signals: bool = False
    seed: int = 0
    trust: bool = False
    env_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.out:
            raise UsageError("out= is missing; name the file to write, as in out=recording.safetensors")
        if not 0 <= self.noise <= 1:
            raise UsageError(f"noise={self.noise} is no share; give a number in [0, 1]")
        if self.policy == "random" and not self.env:
            raise UsageError("env= is missing, as in env=Pendulum-v1; or give a run's folder as policy=")


def record(config: RecordConfig) -> dict[str, Any]:
    """Record and write; returns what the file says about itself."""
    from envs.make import make

    options: dict[str, Any] = dict(config.env_options)
    env_id, model = config.env, None
    if config.policy != "random":
        run, model, _ = load_run(Path(config.policy), config.trust)
        env_id = env_id or run.env
        options = {"max_episode_steps": run.max_episode_steps, **run.env_options, **options}
    shows: dict[str, Any] = {"frame_size": config.frames or None, "text": config.text, "signals": config.signals}
    env = make(env_id, **{key: value for key, value in shows.items() if value}, **options)
    env.action_space.seed(config.seed)
    try:
        act = None if model is None else acting(model, env.action_space, config.noise, config.seed)
        batch = recorded(env, act, config.steps, config.seed)
        signals = list(family_of(env.spec).signals(env.spec)) if config.signals and env.spec else []
    finally:
        env.close()
    returns = played(batch).returns
    meta = {
        "env": env_id,
        "env_options": {key: value for key, value in options.items() if value is not None},
        "policy": config.policy,
        "noise": config.noise,
        "seed": config.seed,
        "signals": signals,
        "transitions": batch.shape[0],
        "episodes": len(returns),
        "mean_return": float(np.mean(returns)) if returns else None,
    }
    save(config.out, batch, meta)
    return meta


def acting(model: Any, action_space: Any, noise: float, seed: int) -> Callable[[Any, np.ndarray], np.ndarray]:
    """The deterministic policy of an agent for batches of observations, now and then replaced by chance."""
    rng = np.random.default_rng(seed)
    state: Any = None

    def act(obs: Any, begins: np.ndarray) -> np.ndarray:
        nonlocal state
        actions, state = model.predict(obs, state=state, episode_start=begins, deterministic=True)
        actions = np.array(actions)
        for row in np.flatnonzero(rng.random(len(begins)) < noise):
            actions[row] = action_space.sample()
        return actions

    return act


def played(batch: Transitions) -> Scores:
    """The task's return of every whole episode of a recording."""
    scores = Scores()
    for rows in episodes(batch):
        if batch.step[rows.start] == 0 and batch.ended[rows.stop - 1]:
            scores.returns.append(float(batch.reward[rows].sum()))
            scores.lengths.append(rows.stop - rows.start)
    return scores


def parsed(kind: Any, arguments: list[str], nested: dict[str, str]) -> Any:
    """`key=value` arguments as an instance of a dataclass, whose defaults say what type a value has.

    Args:
        kind: the dataclass.
        arguments: as typed.
        nested: prefix of a dotted key -> the field, a dict, that collects what follows the dot.

    Raises:
        UsageError: for an unknown key, or a value of another type.
    """
    import yaml

    known = {f.name: f for f in fields(kind) if f.name not in nested.values()}
    values: dict[str, Any] = {name: {} for name in nested.values()}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        prefix, dot, rest = key.partition(".")
        if not equals or (key not in known and not (dot and prefix in nested)):
            raise UsageError(unknown("key", key, [*known, *(f"{name}." for name in nested)]))
        try:
            value = yaml.safe_load(text) if text else ""
        except yaml.YAMLError:
            value = text
        if dot:
            values[nested[prefix]][rest] = value
            continue
        wanted = type(known[key].default)
        try:
            values[key] = text if wanted is str else wanted(float(value)) if wanted in (int, float) else value
        except (TypeError, ValueError):
            raise UsageError(f"{key}={text} is no number") from None
        if not isinstance(values[key], wanted):
            raise UsageError(f"{key}={text} is neither true nor false")
    return kind(**values)


def command(doc: str | None, run: Callable[[list[str]], None], argv: list[str] | None) -> int:
    """A command line's manners: help, one sentence for an expected error; returns the exit code."""
    from runners.run.exits import OK, USAGE, explain

    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        print(doc)
        return OK if arguments else USAGE
    try:
        run(arguments)
    except Exception as error:
        code, sentence = explain(error, "set-up")
        if not sentence:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        return code
    return OK


def main(argv: list[str] | None = None) -> int:
    """Record from the command line; returns the exit code."""

    def run(arguments: list[str]) -> None:
        config = parsed(RecordConfig, arguments, {"env": "env_options"})
        meta = record(config)
        said = "" if meta["mean_return"] is None else f", mean return {meta['mean_return']:.1f}"
        print(f"{config.out}: {meta['transitions']:,} transitions of {meta['env']}, {meta['episodes']} episodes{said}")

    return command(__doc__, run, argv)


if __name__ == "__main__":
    sys.exit(main())
