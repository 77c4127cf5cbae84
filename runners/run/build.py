"""What trains, made of a configuration; and a run that was trained, made again at one of its checkpoints."""

from __future__ import annotations

import copy
import ctypes
import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints
from typing import cast as assume

from gymnasium import Env, Space
from gymnasium.spaces import Box, Dict
from gymnasium.vector import VectorEnv

import agents
import rewards
from envs.family import OTHER, family_of
from envs.make import make, make_vec
from envs.masks import offered, sizes
from envs.transitions import OnNan
from lodestar.memory import memory, refuse_beyond
from runners.cli.value import cast
from runners.run import checkpoint
from runners.run.config import TrainConfig, UsageError, from_dict, read
from runners.run.trust import require, saved_keys

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import VecEnv

    from agents.base import BaseAgent
    from rewards.mix.mix import Mix
    from runners.run.coverage import Coverage

    Model = BaseAgent | BaseAlgorithm

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's numbers, from malloc.h
LIMIT = 1 << 30  # bytes
NESTED = ("agent", "reward", "code", "trust")  # of a saved configuration, which are no fields of one


@dataclass
class Parts:
    """An agent, its rewards and its environments."""

    venv: VectorEnv | VecEnv
    mix: Mix
    model: Model
    driver: BaseCallback | None  # the callback that feeds the mix; None for an agent that does so itself
    n_envs: int
    device: str
    taken: str = ""  # what it begins with of another run
    notes: tuple[str, ...] = ()  # sentences a user should read before training
    coverage: Coverage | None = None


def build(
    config: TrainConfig,
    crashes: Path | None = None,
    mix: Mix | None = None,
    make_vector: Callable[..., VectorEnv | VecEnv] | None = None,
) -> Parts:
    """Environments, mix and agent, and the driver it takes a reward through.

    Workers that crash write into the folder `crashes`; a `mix` that is given is used as it is, and so is what makes the
    environments in the place of `make_envs`.
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
    with closing(make(config.env, max_episode_steps=config.max_episode_steps, **config.env_options)) as one:
        spaces = one.observation_space, one.action_space
        masked = masks_actions(one, config.seed)
    refuse_empty(config.env, spaces[0])
    agent.check(*spaces)
    if getattr(agent, "needs_masks", False) and not masked:
        raise UsageError(f"agent={config.agent_name} needs action masks, and {config.env} gives none; use agent=ppo")
    deaf = f"{config.env} masks its actions, but agent={config.agent_name} may choose any; ppo, dqn, maskable_ppo obey"
    notes = (deaf,) if masked and not getattr(agent, "masks", False) else ()
    with networks_that_fit():
        if mix is None:
            mix = make_mix(config.reward, *spaces, gamma=config.agent.gamma, seed=config.seed, device=device)
            mix.on_nan = OnNan(config.on_nan)
        venv = (make_vector or make_envs)(config, agent.driver, n_envs, mix, crashes)
        driver, given = make_driver(agent.driver, mix, spaces[0])
        model = agent.build(config.agent, venv, seed=config.seed, device=device, **given)
    coverage = Coverage(config.coverage, config.coverage_bin, spaces[0]) if config.coverage else None
    return Parts(venv, mix, model, driver, n_envs, device, notes=notes, coverage=coverage)


def refuse_empty(env_id: str, observation_space: Space) -> None:
    """A UsageError for observations without a number in them, which no network reads."""
    parts = observation_space.spaces.values() if isinstance(observation_space, Dict) else [observation_space]
    empty = [part for part in parts if isinstance(part, Box) and 0 in part.shape]
    if empty:
        raise UsageError(f"env={env_id} has observations of size 0 ({empty[0]}); give one with something to observe")


def masks_actions(env: Env, seed: int) -> bool:
    """Whether an environment that is made only to see what it is has action masks; none of our own families has."""
    from runners.run.progress import random_state, set_random_state

    if family_of(env.spec) is not OTHER or not sizes(env.action_space):
        return False
    before = random_state()
    try:
        return offered(env, env.reset(seed=seed)[1])
    finally:
        set_random_state(before)


@contextmanager
def networks_that_fit(most: float = math.inf) -> Iterator[None]:
    """Refuse networks, made inside, that learning (a gradient and two moments a weight) would fill the memory with.

    `most` are bytes that they may have, where less than the memory will do.
    """
    from torch.nn.modules.module import register_module_parameter_registration_hook
    from torch.nn.parameter import Parameter

    free = min(memory()[0] or math.inf, most)
    made: list[Parameter] = []

    def count(module: object, name: str, parameter: Parameter) -> None:
        if parameter is not None and parameter.device.type == "cpu":
            made.append(parameter)
            refuse_beyond(sum(each.nbytes for each in made), "the networks of this run", free)

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
    refuse_beyond(sum(each.nbytes * (4 if each.requires_grad else 1) for each in made), "learning", free)


def make_envs(config: TrainConfig, driver: str, n: int, mix: Mix, crashes: Path | None = None) -> VectorEnv | VecEnv:
    """The environments of a run: a Gymnasium vector for our agents, a VecEnv for Stable-Baselines3's."""
    from agents.sb3.agent import make_venv
    from rewards.adapters.ending import ending, endings
    from rewards.adapters.guided import guided, guides

    options: dict[str, Any] = {"max_episode_steps": config.max_episode_steps, "frame_size": mix.frame_size}
    options |= {name: name in mix.requires for name in ("text", "signals")} | config.env_options
    options |= {"starts": config.starts} if config.starts else {}
    watchdog = {"step_timeout": config.step_timeout, "on_error": config.on_env_error, "crash_folder": crashes}
    workers = watchdog if config.backend == "workers" else None
    ends, apart = endings(mix), config.backend in ("batched", "device", "workers")
    if ends and (guides(mix) or apart):
        beside = f"backend={config.backend}" if apart else next(iter(guides(mix)))
        raise UsageError(f"reward.{next(iter(ends))}.ends=true does not work beside {beside}; leave one out")
    end = functools.partial(ending, mix=mix) if ends else None
    if driver == "scorer":
        how: dict[str, Any] = {"backend": config.backend, "workers": workers, "num_threads": config.num_threads}
        how |= {"device": find_device(config.device)} if config.backend == "device" else {}
        envs = make_vec(config.env, n, seed=config.seed, wrap=end, **how, **options)
        return guided(envs, mix)
    if config.backend in ("batched", "device") or (guides(mix) and config.backend == "workers"):
        raise UsageError(f"backend={config.backend} does not fit agent={config.agent_name}; use backend=auto")
    wrap = functools.partial(guided, mix=mix) if guides(mix) else end
    return make_venv(config.env, n, config.seed, workers=workers, wrap=wrap, **options)


def find_device(wanted: str) -> str:
    """`auto` takes a GPU if there is one; a device that is not there is refused."""
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if not there[wanted.split(":")[0]]:
        found = ", ".join(name for name, present in there.items() if present)
        raise UsageError(f"device={wanted} is not on this machine (it has {found}); give one of these, or auto")
    return wanted


def make_driver(kind: str, mix: Mix, observation_space: Space) -> tuple[BaseCallback | None, dict[str, Any]]:
    """The callback that feeds the mix, if the agent does not do so itself, and what the agent is built with."""
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


def acting(config: TrainConfig, mix: Mix | None = None) -> Parts:
    """A run's agent that only acts, on the CPU with a single environment; its mix, or the one given."""
    small, options = copy.copy(config), copy.copy(config.agent)
    small.agent, small.n_envs, small.backend, small.device = options, 1, "gym", "cpu"
    if agents.get(config.agent_name).driver == "relabel":
        options.buffer_size = 1  # nothing will be learnt
    if hasattr(options, "demos"):
        options.demos = ""
    if hasattr(options, "n_steps") and hasattr(options, "batch_size"):
        options.batch_size = options.n_steps
    return build(small, mix=mix)


def load_run(run: Path, trust: bool = False, at: str | int = "") -> Trained:
    """A trained run at its newest checkpoint, at that of a step, or at the "best"; see `acting`.

    A UsageError if it is no run, has no such checkpoint, or names what is not trusted (`runners.run.trust`).
    """
    config = config_of(run, trust)
    state, step = load_checkpoint(run, str(at))
    try:
        parts = acting(config)
    except (TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        words = f"{type(error).__name__}: {shorten(str(error), 160, placeholder=' ...')}"
        raise UsageError(f"what the configuration of run={run} describes cannot be made ({words})") from error
    try:
        # All that acting needs.
        parts.model.policy.load_state_dict(state["agent"]["modules"]["policy"])
        if state.get("masked"):
            parts.model.masked = True  # type: ignore[union-attr]
        parts.mix.load_state_dict(state["mix"])
    except Exception as error:  # a stranger's checkpoint can be wrong in every way
        words = shorten(str(error), 160, placeholder=" ...")
        raise UsageError(f"the checkpoint of run={run} does not fit its configuration ({words})") from error
    return Trained(config, parts.model, parts.mix, step)


def config_of(run: Path, trust: bool = False) -> TrainConfig:
    """The configuration of a run; a UsageError if it is none, or names what is not trusted."""
    saved = saved_config(run)
    require(trust, f"run={run}", saved_keys(saved))
    try:
        return from_dict(check_types(saved), trust)
    except UsageError as error:
        raise UsageError(f"{run / 'config.yaml'} cannot be used: {error}") from error


def check_types(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved configuration with values of the types that are declared; a UsageError for one that is of no such type.

    Names that are unknown, of an earlier version perhaps, are left to `from_dict`.
    """
    options = dict(saved.get("agent") or {})
    name = options.pop("name", "")
    checked = {**saved, **typed_options("", TrainConfig, {key: saved[key] for key in saved if key not in NESTED})}
    if name in agents.names():
        checked["agent"] = {"name": name, **typed_options("agent.", agents.get(name).Config, options)}
    checked["reward"] = dict(saved.get("reward") or {})
    for key, values in checked["reward"].items():
        if key in rewards.names() and isinstance(values, dict):
            checked["reward"][key] = typed_options(f"reward.{key}.", rewards.get(key).Config, values)
    return checked


def typed_options(prefix: str, kind: type, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a Config as its fields' types want them; those of fields that it lacks as they are."""
    hints = get_type_hints(kind)
    return {
        name: cast(f"{prefix}{name}", value, hints[name]) if name in hints else value for name, value in options.items()
    }


def saved_config(run: Path, key: str = "run") -> dict[str, Any]:
    """What a run's config.yaml holds; a UsageError, about the `key` of the command line, if it is no run's folder."""
    if not (run / "config.yaml").exists():
        raise UsageError(f"{key}={run} is no run's folder (it has no config.yaml); give one below runs/")
    return read(run / "config.yaml")


def load_checkpoint(run: Path, at: str = "") -> tuple[dict[str, Any], int]:
    """State and step of a run's newest checkpoint, that of a step, or the "best"; else a UsageError."""
    # Of one step the last that was written.
    oldest_first = reversed(checkpoint.step_folders(run / "checkpoints"))
    folders = {path.name.split("_")[1].lstrip("0"): path for path in oldest_first}
    if at.isdecimal() and at.lstrip("0") in folders:
        return checkpoint.read(folders[at.lstrip("0")])
    if at not in ("", checkpoint.BEST):
        known = ", ".join(map(str, sorted(map(int, folders))))
        raise UsageError(f"checkpoint={at} is not in {run}; there are those of the steps {known}")
    folder = run / (at or "checkpoints")
    found = checkpoint.load(folder, lambda sentence: print(sentence, file=sys.stderr))
    if found is None:
        lacks = "best checkpoint; train with eval_every=, which keeps it" if at else "checkpoint yet; train it on"
        raise UsageError(f"run={run} has no {lacks}")
    return found


def initialise(config: TrainConfig, parts: Parts) -> str:
    """Give a new run's agent and rewards the weights of `config.init_from`; returns a sentence about what was taken.

    PPO keeps the values of rewards that both runs have; optimisers, counts and replay are new. A UsageError if it is no
    run, or has another agent, other spaces or sizes.
    """
    run, model, taken = Path(config.init_from), assume(Any, parts.model), []
    saved = saved_config(run, "init_from")
    name, streams = dict(saved.get("agent") or {}).get("name"), list(saved.get("reward") or {})
    state, step = load_checkpoint(run)
    try:
        if config.init != "rewards":
            if name != config.agent_name:
                raise UsageError(f"init_from={run} has agent={name}, not {config.agent_name}; give init=rewards")
            if hasattr(model, "start_from"):
                model.start_from(state["agent"], streams)
            else:
                model.policy.load_state_dict(state["agent"]["modules"]["policy"])
            taken.append("agent")
        shared = [one for one in streams if one in parts.mix.streams and one != "task"]
        if config.init == "rewards" and not shared:
            raise UsageError(f"init_from={run} has the rewards {', '.join(streams)}, none of which this run learns")
        for one in shared if config.init != "agent" else ():
            parts.mix.streams[one].load_state_dict(state["mix"]["streams"][one])
            taken.append(one)
    except (RuntimeError, LookupError, TypeError, AttributeError) as error:
        words = shorten(str(error), 160, placeholder=" ...")
        raise UsageError(f"init_from={run} does not fit this run's environment, networks, options ({words})") from None
    return f"from step {step:,} of {run}: {', '.join(taken)}"


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks for the next pass, as returning them to the kernel costs up to a quarter."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(TRIM_THRESHOLD, LIMIT)
        libc.mallopt(MMAP_THRESHOLD, LIMIT)
