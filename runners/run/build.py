"""What trains, made of a configuration; and a run that was trained, made again at one of its checkpoints."""

from __future__ import annotations

import copy
import ctypes
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import numpy as np
from gymnasium import Env, Space
from gymnasium.spaces import Box, Dict
from gymnasium.vector import VectorEnv

import agents
import rewards
from envs import render
from envs.datasets.recordings import RecordedEnvs, read_recordings
from envs.family import OTHER, family_of
from envs.make import goals, make, make_vec, spec_of
from envs.masks import has_mask, sizes
from envs.transitions import Transitions
from lodestar.memory import memory, refuse_beyond
from runners.run import checkpoint
from runners.run.config import RECORDING, TrainConfig, UsageError, Values, from_dict, read
from runners.run.trust import require, saved_keys
from runners.run.value import cast

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecEnv

    from agents.base import BaseAgent
    from rewards.mix.mix import Mix
    from runners.run.coverage import Coverage

    Model = BaseAgent | BaseAlgorithm

# The numbers of two of glibc's options, from malloc.h, and the value that both get.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
MALLOC_THRESHOLD_BYTES = 1 << 30
# At most so many characters of a library's error are quoted in a sentence.
MAX_QUOTED_ERROR = 160


@dataclass
class Parts:
    """An agent, its rewards and its environments."""

    venv: VectorEnv | VecEnv
    mix: Mix
    model: Model
    # The callback that feeds the mix; None for an agent that does so itself.
    driver: BaseCallback | None
    n_envs: int
    device: str
    # What the run begins with of another one, in words.
    taken: str = ""
    # Sentences that a user should read before training.
    notes: tuple[str, ...] = ()
    coverage: Coverage | None = None


def build(
    config: TrainConfig,
    crashes: Path | None = None,
    mix: Mix | None = None,
    make_vector: Callable[..., VectorEnv | VecEnv] | None = None,
) -> Parts:
    """Environments, mix and agent, and the driver it takes a reward through.

    Workers that crash write into the folder `crashes`. A `mix` that is given is used as it is, and
    `make_vector` makes the environments in the place of `make_envs`.
    """
    import torch
    from stable_baselines3.common.utils import set_random_seed

    from rewards.adapters.guided import make_mix
    from runners.run.coverage import Coverage

    torch.set_num_threads(config.num_threads)
    keep_freed_memory()
    set_random_seed(config.seed)
    device = find_device(config.device)
    agent = agents.get(config.agent_name)
    n_envs = config.n_envs or agent.n_envs
    data = None
    # One environment is made only to see its spaces, and whether it masks its actions.
    single = make(config.env, max_episode_steps=config.max_episode_steps, **config.env_options)
    with closing(single):
        if config.data:
            data = read_recordings(config.data, single)
        spaces = (single.observation_space, single.action_space)
        has_masks = masks_actions(single, config.seed)
    refuse_empty(config.env, spaces[0])
    agent.check(*spaces)
    notes = mask_notes(config, agent, has_masks)
    with networks_that_fit():
        if mix is None:
            gamma = config.agent.gamma
            mix = make_mix(config.reward, *spaces, gamma=gamma, seed=config.seed, device=device)
            mix.on_nan.what = config.on_nan
            introduce_task(mix, config)
        venv: VectorEnv | VecEnv
        if agent.driver == RECORDING:
            venv = rated_recording(config, mix, data, *spaces)
        else:
            venv = (make_vector or make_envs)(config, agent.driver, n_envs, mix, crashes)
        driver, options = make_driver(agent.driver, mix, spaces[0])
        model = agent.build(config.agent, venv, seed=config.seed, device=device, **options)
    coverage = None
    if config.coverage:
        coverage = Coverage(config.coverage, config.coverage_bin, spaces[0])
    return Parts(venv, mix, model, driver, n_envs, device, notes=notes, coverage=coverage)


def rated_recording(
    config: TrainConfig, mix: Mix, data: Transitions | None, observation_space: Space, action_space: Space
) -> RecordedEnvs:
    """The recording with what the mix makes of it as rewards; without data for an agent that only acts."""
    if data is None:
        return RecordedEnvs(observation_space, action_space)
    if config.fitted and not np.ptp(data.reward):
        raise UsageError(
            f"fitted={config.fitted} estimates the task's return, and all rewards of the recording are "
            f"{data.reward[0]:g}; leave it out"
        )
    from rewards.adapters.recorded import rate

    rating, metrics = rate(mix, data, config.passes)
    # Nothing else is read of the frames and texts.
    unread = dict.fromkeys(("frame", "obs_frame", "text", "obs_text", "signals", "obs_signals"))
    unrated = data.replace(extras={}, **unread)
    recorded = RecordedEnvs(observation_space, action_space, unrated.replace(reward=rating))
    recorded.metrics = metrics
    recorded.unrated = unrated
    return recorded


def introduce_task(mix: Mix, config: TrainConfig) -> None:
    """Have the page of a person who judges name the task, and show frames as wide as the environment draws them."""
    from rewards.preference.human import Human

    for stream in mix.streams.values():
        judge = getattr(stream.reward, "judge", None)
        if not isinstance(judge, Human):
            continue
        prompts = [goal.prompt for goal in goals(config.env)]
        judge.introduce_task(config.env_label, prompts[0] if prompts else "")
        if judge.show != "frame" or judge.aspect is not None:
            continue
        with closing(make(config.env, render_mode="rgb_array", **config.env_options)) as env:
            env.reset(seed=config.seed)
            height, width, _ = render.render_picture(env).shape
        judge.show_in_proportion(width / height)


def refuse_empty(env_id: str, observation_space: Space) -> None:
    """A UsageError for observations without a number in them, which no network reads."""
    spaces: Iterable[Space] = [observation_space]
    if isinstance(observation_space, Dict):
        spaces = observation_space.values()
    for space in spaces:
        if isinstance(space, Box) and 0 in space.shape:
            raise UsageError(f"env={env_id} has observations of size 0 ({space}); give one with something to observe")


def masks_actions(env: Env, seed: int) -> bool:
    """Whether an environment that is made only for this question has action masks; none of our families has."""
    from runners.run.progress import random_state, set_random_state

    if family_of(env.spec) is not OTHER or not sizes(env.action_space):
        return False
    # The reset of a stranger's environment may draw from the global generators.
    state_before = random_state()
    try:
        _, info = env.reset(seed=seed)
        return has_mask(env, info)
    finally:
        set_random_state(state_before)


def mask_notes(config: TrainConfig, agent: Any, has_masks: bool) -> tuple[str, ...]:
    """What to say where agent and environment differ about action masks; a UsageError for an agent that needs them."""
    if getattr(agent, "needs_masks", False) and not has_masks:
        raise UsageError(f"agent={config.agent_name} needs action masks, and {config.env} gives none; use agent=ppo")
    if has_masks and not getattr(agent, "masks", False):
        ignores = f"agent={config.agent_name} may choose any; ppo, dqn, maskable_ppo obey"
        return (f"{config.env} masks its actions, but {ignores}",)
    return ()


@contextmanager
def networks_that_fit(max_bytes: float = math.inf) -> Iterator[None]:
    """Refuse networks, made inside, that learning would fill the memory with.

    Learning needs a gradient and two moments for each weight. `max_bytes` is a limit beside the free memory.
    """
    from torch.nn.modules.module import register_module_parameter_registration_hook
    from torch.nn.parameter import Parameter

    free, _ = memory()
    # Where the free memory is unknown, it is 0.
    limit = min(free or math.inf, max_bytes)
    parameters = []

    def count_parameter(module: object, name: str, parameter: Parameter) -> None:
        if parameter is not None and parameter.device.type == "cpu":
            parameters.append(parameter)
            size = sum(weights.nbytes for weights in parameters)
            refuse_beyond(size, "the networks of this run", limit)

    hook = register_module_parameter_registration_hook(count_parameter)
    try:
        yield
    finally:
        hook.remove()
    learning_size = 0
    for weights in parameters:
        copies = 4 if weights.requires_grad else 1
        learning_size += copies * weights.nbytes
    refuse_beyond(learning_size, "learning", limit)


def make_envs(config: TrainConfig, driver: str, n: int, mix: Mix, crashes: Path | None = None) -> VectorEnv | VecEnv:
    """The environments of a run: a Gymnasium vector for our agents, a VecEnv for Stable-Baselines3's."""
    from agents.sb3.agent import make_venv
    from rewards.adapters.ending import add_endings, endings
    from rewards.adapters.guided import add_guides, guides

    backend = config.backend
    options: Values = {"max_episode_steps": config.max_episode_steps, "frame_size": mix.frame_size}
    options["text"] = "text" in mix.requires
    options["signals"] = "signals" in mix.requires
    if options["text"]:
        refuse_without_captions(config, mix)
    options |= config.env_options
    if config.starts:
        options["starts"] = config.starts
    workers: Values | None = None
    if backend == "workers":
        watchdog = {"step_timeout": config.step_timeout, "on_error": config.on_env_error}
        workers = {**watchdog, "crash_folder": crashes}
    # A reward that ends episodes wraps each environment, which these backends have none to wrap.
    ends = endings(mix)
    lacks_single_envs = backend in ("batched", "device", "workers")
    if ends and (guides(mix) or lacks_single_envs):
        conflict = f"backend={backend}" if lacks_single_envs else next(iter(guides(mix)))
        raise UsageError(f"reward.{next(iter(ends))}.ends=true does not work beside {conflict}; leave one out")
    wrap = functools.partial(add_endings, mix=mix) if ends else None
    if driver == "scorer":
        if backend == "device":
            options["device"] = find_device(config.device)
        envs = make_vec(
            config.env,
            n,
            seed=config.seed,
            wrap=wrap,
            backend=backend,
            workers=workers,
            num_threads=config.num_threads,
            **options,
        )
        return add_guides(envs, mix)
    if backend in ("batched", "device") or (guides(mix) and backend == "workers"):
        raise UsageError(f"backend={backend} does not fit agent={config.agent_name}; use backend=auto")
    if guides(mix):
        wrap = functools.partial(add_guides, mix=mix)
    return make_venv(config.env, n, config.seed, workers=workers, wrap=wrap, **options)


def refuse_without_captions(config: TrainConfig, mix: Mix) -> None:
    """A UsageError where a reward reads captions and neither the environment nor its family writes any."""
    if family_of(spec_of(config.env)).caption is not OTHER.caption:
        return
    with closing(make(config.env, **config.env_options)) as env:
        _, info = env.reset(seed=config.seed)
        *_, step_info = env.step(env.action_space.sample())
    if "text" in info or "text" in step_info:
        return
    text_streams = []
    for stream in mix.streams.values():
        if "text" in stream.reward.requires:
            text_streams.append(stream.name)
    [name, *_] = text_streams
    raise UsageError(
        f"reward={name} reads captions, and {config.env} writes none; choose an environment with captions, such as "
        "MiniGrid-DoorKey-5x5-v0, or give this one a FAMILY with a caption"
    )


def find_device(requested: str) -> str:
    """`auto` takes a GPU if there is one; a device that is not there is refused."""
    import torch

    has_cuda = torch.cuda.is_available()
    if requested == "auto":
        return "cuda" if has_cuda else "cpu"
    available = ["cpu"]
    if has_cuda:
        available.append("cuda")
    if torch.backends.mps.is_available():
        available.append("mps")
    if requested.split(":")[0] not in available:
        has = f"it has {', '.join(available)}"
        raise UsageError(f"device={requested} is not on this machine ({has}); give one of these, or auto")
    return requested


def make_driver(kind: str, mix: Mix, observation_space: Space) -> tuple[BaseCallback | None, Values]:
    """The callback that feeds the mix, if the agent does not do so itself, and what the agent is built with."""
    if kind == RECORDING:
        return None, {}
    if kind == "scorer":
        return None, {"scorer": mix}
    from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

    from rewards.adapters.sb3 import RelabelCallback, RewardCallback, relabelling

    if kind == "rollout":
        return RewardCallback(mix), {"buffer": None}
    plain = DictReplayBuffer if isinstance(observation_space, Dict) else ReplayBuffer
    return RelabelCallback(), {"buffer": (relabelling(plain), {"mix": mix})}


class Trained(NamedTuple):
    """A run at one of its checkpoints."""

    config: TrainConfig
    model: Model
    mix: Mix
    step: int


def build_actor(config: TrainConfig, mix: Mix | None = None) -> Parts:
    """A run's agent that only acts, on the CPU with a single environment; its mix, or the one given."""
    options = copy.copy(config.agent)
    # Nothing will be learnt: no replay, no demonstrations, no minibatch larger than a rollout.
    if agents.get(config.agent_name).driver == "relabel":
        options.buffer_size = 1
    if hasattr(options, "demos"):
        options.demos = ""
    if hasattr(options, "n_steps") and hasattr(options, "batch_size"):
        options.batch_size = options.n_steps
    acting_config = copy.copy(config)
    acting_config.agent = options
    acting_config.n_envs = 1
    acting_config.data = []
    acting_config.backend = "gym"
    acting_config.device = "cpu"
    return build(acting_config, mix=mix)


def load_run(run: Path, trust: bool = False, at: str | int = "") -> Trained:
    """A trained run at its newest checkpoint, at that of a step, or at the "best"; see `build_actor`.

    A UsageError if it is no run, has no such checkpoint, or names what is not trusted (`runners.run.trust`).
    """
    config = config_of(run, trust)
    state, step = load_checkpoint(run, str(at))
    try:
        parts = build_actor(config)
    except (TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        words = f"{type(error).__name__}: {quote_error(error)}"
        raise UsageError(f"what the configuration of run={run} describes cannot be made ({words})") from error
    # Acting needs no more of the state. A stranger's checkpoint can be wrong in every way.
    try:
        parts.model.policy.load_state_dict(state["agent"]["modules"]["policy"])
        if state.get("masked"):
            parts.model.masked = True  # type: ignore[union-attr]
        parts.mix.load_state_dict(state["mix"])
    except Exception as error:
        words = quote_error(error)
        raise UsageError(f"the checkpoint of run={run} does not fit its configuration ({words})") from error
    return Trained(config, parts.model, parts.mix, step)


def quote_error(error: Exception) -> str:
    """The beginning of what an error says."""
    return shorten(str(error), MAX_QUOTED_ERROR, placeholder=" ...")


def config_of(run: Path, trust: bool = False) -> TrainConfig:
    """The configuration of a run; a UsageError if it is none, or names what is not trusted."""
    saved = saved_config(run)
    require(trust, f"run={run}", saved_keys(saved))
    try:
        return from_dict(check_types(saved), trust)
    except UsageError as error:
        raise UsageError(f"{run / 'config.yaml'} cannot be used: {error}") from error


def check_types(saved: Values) -> Values:
    """A saved configuration with values of the types that are declared; a UsageError for one that is of no such type.

    Names that are unknown, of an earlier version perhaps, are left to `from_dict`.
    """
    checked = typed_options("", TrainConfig, saved)
    options = saved.get("agent") or {}
    if options.get("name") in agents.names():
        checked["agent"] = typed_options("agent.", agents.get(options["name"]).Config, options)
    checked["reward"] = dict(saved.get("reward") or {})
    for key, values in checked["reward"].items():
        if key in rewards.names() and isinstance(values, dict):
            checked["reward"][key] = typed_options(f"reward.{key}.", rewards.get(key).Config, values)
    return checked


def typed_options(prefix: str, kind: type, options: Values) -> Values:
    """The options of a Config as its fields' types want them; those of fields that it lacks as they are."""
    hints = get_type_hints(kind)
    typed = dict(options)
    for name, value in options.items():
        if name in hints:
            typed[name] = cast(f"{prefix}{name}", value, hints[name])
    return typed


def saved_config(run: Path, key: str = "run") -> Values:
    """What a run's config.yaml holds; a UsageError, about the `key` of the command line, if it is no run's folder."""
    if not (run / "config.yaml").exists():
        raise UsageError(f"{key}={run} is no run's folder (it has no config.yaml); give one below runs/")
    return read(run / "config.yaml")


def load_checkpoint(run: Path, at: str = "") -> tuple[Values, int]:
    """State and step of a run's newest checkpoint, that of a step, or the "best"; else a UsageError."""
    # Of several checkpoints of one step the last that was written stays in this table.
    paths = reversed(checkpoint.step_folders(run / "checkpoints"))
    folders = {int(path.name.split("_")[1]): path for path in paths}
    if at.isdecimal() and int(at) in folders:
        return checkpoint.read(folders[int(at)])
    if at not in ("", checkpoint.BEST):
        steps = ", ".join(map(str, sorted(folders)))
        raise UsageError(f"checkpoint={at} is not in {run}; there are those of the steps {steps}")
    folder = run / (at or "checkpoints")
    newest = checkpoint.load(folder, lambda sentence: print(sentence, file=sys.stderr))
    if newest is None:
        missing = "checkpoint yet; train it on"
        if at:
            missing = "best checkpoint; train with eval_every=, which keeps it"
        raise UsageError(f"run={run} has no {missing}")
    return newest


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks for the next pass, as returning them to the kernel costs up to a quarter."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(TRIM_THRESHOLD, MALLOC_THRESHOLD_BYTES)
        libc.mallopt(MMAP_THRESHOLD, MALLOC_THRESHOLD_BYTES)
