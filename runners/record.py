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
import math
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

from envs.datasets import from_sb3, read
from envs.datasets.dataset import in_env_types
from envs.family import family_of
from envs.make import make
from envs.masks import sample
from envs.recording import episodes, save
from envs.recording import record as recorded
from envs.snapshots.s3rl import Snapshots
from envs.snapshots.snapshots import State, get_state, refuse_unsupported
from envs.transitions import Transitions, index_obs
from lodestar.settings import Settings, setting
from runners.cli.command import Command
from runners.evaluation.play import Scores, policy
from runners.run.build import build, config_of, load_checkpoint, load_run
from runners.run.config import UsageError, Values
from runners.run.policies import load
from runners.run.trust import require, saved_keys

DEFAULT_RECORD_STEPS = 10_000
# What a file of snapshots holds.
MAX_RECORDED_STATES = 1000


@dataclass
class RecordConfig(Settings):
    """One recording."""

    out: str = setting("", "the file to write, as in out=recording.safetensors; of from=, its name in this folder")
    from_: str = setting("", "of others: a data set's folder or name, a replay buffer's *.pkl, or a run's folder")
    env: str = setting("", "any id; that of the run, or of the data set, by default")
    env_options: Values = setting({}, "options of the environment, as in env.sticky=0.25")
    policy: str = setting(
        "random", "random, a run's folder; for env=, a policy's file or my_file:function of batches, too"
    )
    steps: int | None = setting(None, "transitions; 10,000 of a policy, all of others", ">= 1")
    noise: float = setting(0.0, "share of the steps at which a random action replaces the policy's", "[0, 1]")
    frames: int = setting(0, "side of the frames to keep, pixels, `frame_size` of envs.make.make; 0 for none", ">= 0")
    camera: str = setting("", "whose images are the frames of from=, in LeRobot's format; the first; a,b: side by side")
    text: bool = setting(False, "whether to keep captions")
    signals: bool = setting(False, "whether to keep named quantities of the state")
    snapshots: str = setting("", "a second file, of up to 1,000 of the states that were met, for train's starts=FILE")
    seed: int = setting(0, "of the first episode, and of random actions", ">= 0")
    trust: bool = setting(False, "whether the run may name code and servers, as env=module:Id, and a *.pkl run code")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.from_:
            if not self.out:
                raise UsageError("out= is missing; give the file to write, as in out=recording.safetensors")
            if self.policy == "random" and not self.env:
                raise UsageError("env= is missing, as in env=Pendulum-v1; or give a run's folder as policy=")
            return
        of_a_policy = {"policy": "random", "noise": 0.0, "text": False, "signals": False, "snapshots": ""}
        for name, default in of_a_policy.items():
            if getattr(self, name) != default:
                raise UsageError(f"{name}= is of a policy that acts, and from={self.from_} was recorded; leave it out")
        self.out = self.out or f"{Path(self.from_.rstrip('/')).stem}.safetensors"


def record(config: RecordConfig) -> Values:
    """Record and write; returns the file's metadata."""
    if config.from_:
        return write(config, *read_others(config))
    options = dict(config.env_options)
    env_id = config.env
    model: Any = None
    is_random = config.policy == "random"
    if not is_random and (not env_id or Path(config.policy).is_dir()):
        run, model, *_ = load_run(Path(config.policy), config.trust)
        env_id = env_id or run.env
        options = {"max_episode_steps": run.max_episode_steps, **run.env_options, **options}
    modalities: Values = {"frame_size": config.frames, "text": config.text, "signals": config.signals}
    modalities = {name: value for name, value in modalities.items() if value}
    states: list[tuple[State, np.ndarray]] = []
    signals: list[str] = []
    with closing(make(env_id, **modalities, **options)) as env:
        env.action_space.seed(config.seed)
        if not is_random and model is None:
            model = load(config.policy, env.observation_space, env.action_space)
        act = None
        if model is not None:
            act = noisy_policy(model, env.action_space, config.noise, config.seed)
        steps = config.steps or DEFAULT_RECORD_STEPS
        if config.snapshots:
            act = remember_states(env, act, math.ceil(steps / MAX_RECORDED_STATES), states)
        batch = recorded(env, act, steps, config.seed)
        if config.signals and env.spec:
            signals = list(family_of(env.spec).signals(env.spec))
    if states:
        snapshots, observations = zip(*states)
        Snapshots(list(snapshots), np.stack(observations)).save(config.snapshots)
    meta = {"env": env_id, "env_options": options, "policy": config.policy, "noise": config.noise}
    return write(config, batch, {**meta, "seed": config.seed, "signals": signals})


def read_others(config: RecordConfig) -> tuple[Transitions, Values]:
    """The transitions that others recorded, the first `steps` or all, and a recording's metadata.

    They are compared with the environment that is given, or with the one that a data set names. A UsageError if the
    source is to be trusted first, or holds no transitions; else raises as `envs.datasets.read`.
    """
    source = config.from_
    path = Path(source)
    env = None
    env_id = config.env
    # What the source says of its environment counts only where the user names no other one.
    source_options = {}
    dataset = None
    about = {}
    notes = []
    is_run = (path / "config.yaml").is_file()
    if is_run or path.suffix == ".pkl":
        if config.frames:
            raise UsageError(
                f"frames={config.frames} cannot be made of a replay, which has what was kept; leave it out"
            )
        if is_run:
            batch, saved_env, saved_options = _replay(path, config.trust)
        else:
            batch = _unpickle(path, config.trust)
            saved_env = ""
            saved_options = {}
    else:
        dataset = read(source, config.frames, config.camera)
        about = dataset.about
        notes += dataset.notes
        saved_env = dataset.env
        saved_options = dataset.env_options
    if config.env:
        env = make(config.env, **config.env_options)
    else:
        env_id = saved_env
        source_options = saved_options
        if env_id and dataset is not None:
            saved = {"env": env_id, "env_options": saved_options}
            require(config.trust, f"from={source}", saved_keys(saved))
            # The code of an environment that need not be here may raise anything.
            try:
                env = make(env_id, **{**saved_options, **config.env_options})
            except Exception as error:
                words = " ".join(str(error).split())
                notes.append(
                    f"{env_id}, which it names, cannot be made here ({words}), so nothing was compared with it"
                )
    with nullcontext() if env is None else closing(env):
        if dataset is not None:
            batch = dataset.transitions(env, config.steps)
        elif env is not None:
            batch = in_env_types(batch, env)
    meta = {"env": env_id, "env_options": source_options | config.env_options, "from": source, "signals": []}
    return batch[: config.steps], {**meta, **about, "notes": notes}


def _unpickle(path: Path, trust: bool) -> Transitions:
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


def _replay(run: Path, trust: bool) -> tuple[Transitions, str, Values]:
    """What the replay holds at a run's newest checkpoint, with its environment."""
    config = copy.copy(config_of(run, trust))
    state, _ = load_checkpoint(run)
    if "replay" not in state["agent"]:
        raise UsageError(
            f"from={run} is of agent={config.agent_name}, which keeps no replay; record what its policy does, with "
            f"policy={run}"
        )
    config.backend = "gym"
    config.device = "cpu"
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


def write(config: RecordConfig, batch: Transitions, meta: Values) -> Values:
    """Write the file; its metadata with what there is to count."""
    returns = whole_episodes(batch).returns
    meta["env_options"] = {key: value for key, value in meta["env_options"].items() if value is not None}
    meta["transitions"] = batch.shape[0]
    meta["episodes"] = len(returns)
    meta["mean_return"] = float(np.mean(returns)) if returns else None
    save(config.out, batch, meta)
    return meta


def noisy_policy(model: Any, action_space: Any, noise: float, seed: int) -> Callable[..., np.ndarray]:
    """An agent's deterministic policy for batches of observations; a share `noise` of actions is random."""
    rng = np.random.default_rng(seed)
    best = policy(model)

    def act(obs: Any, begins: Any, masks: Any = None) -> np.ndarray:
        actions = np.array(best(obs, begins, masks))
        for row in np.flatnonzero(rng.random(len(begins)) < noise):
            actions[row] = sample(action_space, None if masks is None else masks[row])
        return actions

    return act


def remember_states(env: gym.Env, act: Any, every: int, states: list[tuple[State, np.ndarray]]) -> Callable[..., Any]:
    """The policy `act`, None for a random one, that adds one in `every` states it acts in to `states`, with its obs."""
    refuse_unsupported(env)
    steps = itertools.count()

    def act_and_remember(obs: Any, begins: Any, *masks: Any) -> Any:
        if next(steps) % every == 0:
            first_obs = flatten(env.observation_space, index_obs(obs, 0))
            states.append((get_state(env), np.asarray(first_obs, np.float32)))
        if act is not None:
            return act(obs, begins, *masks)
        return [sample(env.action_space, *(mask[0] for mask in masks))]

    return act_and_remember


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
    for note in meta.get("notes", ()):
        print(note)
    if config.snapshots:
        print(f"use the states:  python -m runners.train env={meta['env']} starts={config.snapshots}")
    env = meta["env"] or "an environment that is not named (env=)"
    summary = f"{config.out}: {meta['transitions']:,} transitions of {env}, {meta['episodes']} episodes"
    if meta["mean_return"] is not None:
        summary += f", mean return {meta['mean_return']:.1f}"
    print(summary)


main = Command(RecordConfig, record_and_print, __doc__)

if __name__ == "__main__":
    sys.exit(main())
