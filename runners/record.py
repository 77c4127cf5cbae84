"""Keep transitions in a file, to learn from without the environment: a policy's, or those that others recorded.

    python -m runners.record env=Pendulum-v1 policy=random steps=5000 out=random.safetensors
    python -m runners.record policy=runs/Pendulum-v1/sac-task/20261121-120000-s0 steps=5000 out=good.safetensors
    python -m runners.record env=lodestar/Peg-v0 policy=my_file:script noise=0.2 out=demos.safetensors
    python -m runners.record policy=runs/... out=good.safetensors snapshots=teacher.safetensors    states for starts=
    python -m runners.record from=D4RL/pen/human-v2 out=pen.safetensors            Minari's, by name or folder
    python -m runners.record from=pusht frames=64 out=pusht.safetensors            a folder in LeRobot's format
    python -m runners.record from=replay.pkl env=Pendulum-v1 trust=true            Stable-Baselines3's replay buffer
    python -m runners.record from=runs/Pendulum-v1/sac-task/20261121-120000-s0     the replay of a run

A function acts for a batch: `script(obs)` takes observations (N, D) and returns actions (N, A), of discrete ones (N,).
`runners.offline` learns from such files, and rewards read them as demonstrations.
"""

import copy
import itertools
import pickle
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import flatten

from envs.datasets import Dataset, from_sb3, read
from envs.datasets.dataset import fitted
from envs.family import family_of
from envs.make import make
from envs.masks import sample
from envs.recording import episodes, save
from envs.recording import record as recorded
from envs.snapshots.s3rl import Snapshots
from envs.snapshots.snapshots import State, get_state, supported
from envs.transitions import Transitions, map_obs
from lodestar.settings import Settings, setting
from runners.cli.command import Command
from runners.evaluate import Scores, policy
from runners.run.build import build, config_of, load_checkpoint, load_run
from runners.run.config import UsageError
from runners.run.policies import load
from runners.run.trust import require, saved_keys

STEPS = 10_000
STATES = 1000  # that a file of snapshots holds, at most


@dataclass
class RecordConfig(Settings):
    """One recording."""

    out: str = setting("", "the file to write, as in out=recording.safetensors; of from=, its name in this folder")
    from_: str = setting("", "of others: a data set's folder or name, a replay buffer's *.pkl, or a run's folder")
    env: str = setting("", "any id; that of the run, or of the data set, by default")
    env_options: dict[str, Any] = setting({}, "options of the environment, as in env.sticky=0.25")
    policy: str = setting(
        "random", "random, a run's folder; for env=, a policy's file or my_file:function of batches, too"
    )
    steps: int | None = setting(None, "transitions; 10,000 of a policy, all of others", low=1)
    noise: float = setting(0.0, "share of the steps at which a random action replaces the policy's", low=0, high=1)
    frames: int = setting(0, "side of the frames to keep, pixels, `frame_size` of envs.make.make; 0 for none", low=0)
    camera: str = setting("", "whose images are the frames of from=, in LeRobot's format; the first")
    text: bool = setting(False, "whether to keep captions")
    signals: bool = setting(False, "whether to keep named quantities of the state")
    snapshots: str = setting("", "a second file, of up to 1,000 of the states that were met, for train's starts=FILE")
    seed: int = setting(0, "of the first episode, and of random actions", low=0)
    trust: bool = setting(False, "whether the run may name code and servers, as env=module:Id, and a *.pkl run code")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.from_:
            if not self.out:
                raise UsageError("out= is missing; give the file to write, as in out=recording.safetensors")
            if self.policy == "random" and not self.env:
                raise UsageError("env= is missing, as in env=Pendulum-v1; or give a run's folder as policy=")
            return
        ours = {"policy": "random", "noise": 0.0, "text": False, "signals": False, "snapshots": ""}
        for name, default in ours.items():
            if getattr(self, name) != default:
                raise UsageError(f"{name}= is of a policy that acts, and from={self.from_} was recorded; leave it out")
        self.out = self.out or f"{Path(self.from_.rstrip('/')).stem}.safetensors"


def record(config: RecordConfig) -> dict[str, Any]:
    """Record and write; returns the file's metadata."""
    if config.from_:
        return write(config, *imported(config))
    options, env_id = dict(config.env_options), config.env
    model: Any = None
    named = config.policy != "random"
    if named and (not env_id or Path(config.policy).is_dir()):
        run, model, *_ = load_run(Path(config.policy), config.trust)
        env_id = env_id or run.env
        options = {"max_episode_steps": run.max_episode_steps, **run.env_options, **options}
    modalities: dict[str, Any] = {"frame_size": config.frames or None, "text": config.text, "signals": config.signals}
    with closing(make(env_id, **{key: value for key, value in modalities.items() if value}, **options)) as env:
        env.action_space.seed(config.seed)
        if named and model is None:
            model = load(config.policy, env.observation_space, env.action_space)
        act = None if model is None else acting(model, env.action_space, config.noise, config.seed)
        steps, met = config.steps or STEPS, list[tuple[State, np.ndarray]]()
        if config.snapshots:
            act = remembering(env, act, -(-steps // STATES), met)
        batch = recorded(env, act, steps, config.seed)
        signals = list(family_of(env.spec).signals(env.spec)) if config.signals and env.spec else []
    if met:
        Snapshots([state for state, _ in met], np.stack([obs for _, obs in met])).save(config.snapshots)
    about = {"policy": config.policy, "noise": config.noise, "seed": config.seed, "signals": signals}
    return write(config, batch, {"env": env_id, "env_options": options, **about})


def imported(config: RecordConfig) -> tuple[Transitions, dict[str, Any]]:
    """The transitions that others recorded, the first `steps` or all, and a recording's metadata.

    They are compared with the environment that is given, or with the one that a data set names. A UsageError if the
    source is to be trusted first, or holds no transitions; else raises as `envs.datasets.read`.
    """
    source, path, named, options = config.from_, Path(config.from_), config.env, config.env_options
    env: Any = None
    dataset: Dataset | None = None
    theirs: dict[str, Any] = {}
    notes: list[str] = []
    if (path / "config.yaml").is_file():
        batch, named, theirs = _replay(path, config.trust)
    elif path.suffix == ".pkl":
        batch = _unpickled(path, config.trust)
    else:
        dataset = read(source, config.frames, config.camera)
        named, theirs, notes = dataset.env, dataset.env_options, [*dataset.notes]
    if dataset is None and config.frames:
        raise UsageError(f"frames={config.frames} cannot be made of a replay, which has what was kept; leave it out")
    if config.env:
        named, theirs = config.env, {}
        env = make(config.env, **options)
    elif named and dataset is not None:
        require(config.trust, f"from={source}", saved_keys({"env": named, "env_options": theirs}))
        try:
            env = make(named, **{**theirs, **options})
        except Exception as error:  # whatever the code of an environment raises that need not be here
            words = " ".join(str(error).split())
            notes.append(f"{named}, which it names, cannot be made here ({words}), so nothing was compared with it")
    with nullcontext() if env is None else closing(env):
        if dataset is not None:
            batch = dataset.transitions(env, config.steps)
        elif env is not None:
            batch = fitted(batch, env)
    about = {"env": named, "env_options": {**theirs, **options}, "from": source, "signals": []}
    return batch[: config.steps], {**about, **(dataset.about if dataset is not None else {}), "notes": notes}


def _unpickled(path: Path, trust: bool) -> Transitions:
    """What `model.save_replay_buffer` of Stable-Baselines3 wrote."""
    if not trust:
        raise UsageError(
            f"from={path} is a pickle, which runs whatever code is in it; add trust=true if it is yours, or from a "
            "source you trust, or hand the buffer over in Python: envs.datasets.from_sb3(model.replay_buffer)"
        )
    from stable_baselines3.common.save_util import load_from_pkl

    try:
        buffer = load_from_pkl(path)
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError) as error:
        raise UsageError(f"from={path} cannot be read ({type(error).__name__}: {error})") from None
    if not hasattr(buffer, "observations") or not hasattr(buffer, "next_observations"):
        raise UsageError(f"from={path} holds a {type(buffer).__name__}, not a replay buffer of Stable-Baselines3")
    return from_sb3(buffer)


def _replay(run: Path, trust: bool) -> tuple[Transitions, str, dict[str, Any]]:
    """What the replay holds at a run's newest checkpoint, with its environment."""
    config = copy.copy(config_of(run, trust))
    state, _ = load_checkpoint(run)
    if "replay" not in state["agent"]:
        named = f"from={run} is of agent={config.agent_name}"
        raise UsageError(f"{named}, which keeps no replay; record what its policy does, with policy={run}")
    config.backend, config.device = "gym", "cpu"
    parts = build(config)
    model: Any = parts.model
    with closing(parts.venv):
        parts.mix.load_state_dict(state["mix"])
        if hasattr(model, "replay"):
            replay = model.replay
            replay.load_state_dict(state["agent"]["replay"])
            if replay.encoding.images and not replay.images.follows:
                raise UsageError(f"from={run} keeps images without the last ones of episodes; give policy={run}")
            rows = replay.sampler.in_order()
            by_environment = (rows % replay.n_envs).argsort(stable=True)
            batch = replay.transitions(rows[by_environment]).replace(extras={})
        else:
            from agents.sb3.agent import load_buffer

            load_buffer(model.replay_buffer, state["agent"]["replay"])
            batch = from_sb3(model.replay_buffer)
    return batch, config.env, {"max_episode_steps": config.max_episode_steps, **config.env_options}


def write(config: RecordConfig, batch: Transitions, meta: dict[str, Any]) -> dict[str, Any]:
    """Write the file; its metadata with what there is to count."""
    returns = whole_episodes(batch).returns
    meta["env_options"] = {key: value for key, value in meta["env_options"].items() if value is not None}
    meta |= {"transitions": batch.shape[0], "episodes": len(returns)}
    meta["mean_return"] = float(np.mean(returns)) if returns else None
    save(config.out, batch, meta)
    return meta


def acting(model: Any, action_space: Any, noise: float, seed: int) -> Callable[..., np.ndarray]:
    """An agent's deterministic policy for batches of observations; a share `noise` of actions is random."""
    rng, best = np.random.default_rng(seed), policy(model)

    def act(obs: Any, begins: Any, masks: Any = None) -> np.ndarray:
        actions = np.array(best(obs, begins, masks))
        for row in np.flatnonzero(rng.random(len(begins)) < noise):
            actions[row] = sample(action_space, None if masks is None else masks[row])
        return actions

    return act


def remembering(env: gym.Env, act: Any, every: int, met: list[tuple[State, np.ndarray]]) -> Callable[..., Any]:
    """The policy `act`, None for a random one, that adds one in `every` states it acts in to `met`, and what it saw."""
    supported(env)

    def acts(obs: Any, begins: Any, *masks: Any) -> Any:
        if next(counted) % every == 0:
            first = flatten(env.observation_space, map_obs(lambda x: x[0], obs))
            met.append((get_state(env), np.asarray(first, np.float32)))
        return [sample(env.action_space, *(mask[0] for mask in masks))] if act is None else act(obs, begins, *masks)

    counted = itertools.count()
    return acts


def whole_episodes(batch: Transitions) -> Scores:
    """The task's return of every whole episode of a recording."""
    scores = Scores()
    for rows in episodes(batch):
        if batch.step[rows.start] == 0 and batch.ended[rows.stop - 1]:
            scores.returns.append(float(batch.reward[rows].sum()))
            scores.lengths.append(rows.stop - rows.start)
    return scores


def record_and_print(config: RecordConfig) -> None:
    """Record, and print what the file holds."""
    meta = record(config)
    print(*meta.get("notes", ()), sep="\n", end="\n" if meta.get("notes") else "")
    mean = "" if meta["mean_return"] is None else f", mean return {meta['mean_return']:.1f}"
    env = meta["env"] or "an environment that is not named (env=)"
    if config.snapshots:
        print(f"use the states:  python -m runners.train env={meta['env']} starts={config.snapshots}")
    print(f"{config.out}: {meta['transitions']:,} transitions of {env}, {meta['episodes']} episodes{mean}")


main = Command(RecordConfig, record_and_print, __doc__)

if __name__ == "__main__":
    sys.exit(main())
