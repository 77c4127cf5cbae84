"""A policy by a text, for `env.base=` and `runners.record policy=`; and what a new run takes of one, for `init_from=`.

runs/Pendulum-v1/sac-task/...   a run's folder, or an exported one
cloned.safetensors              what `runners.offline out=` wrote
model.zip                       Stable-Baselines3's: its weights are read, nothing that is pickled in it is executed
my_file:function                a batch of observations (N, D) -> actions (N, A), (N,) where they are discrete

`init_from=` takes a run of the same agent (policy, values, model), or a run or file of another one: what fits of its
policy and critics, see `agents.networks.policy_layers`.
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from gymnasium import Space
from gymnasium.envs.registration import load_env_creator
from safetensors import SafetensorError, safe_open

from envs.residual import script
from envs.types import StateDict
from lodestar.files import SMALL, regular
from lodestar.tables import MODULE_AND_CLASS, module_name
from runners.run.build import Parts, load_checkpoint, load_run, networks_that_fit, quote_error, saved_config
from runners.run.config import TrainConfig, UsageError

# The class that a file of runners.offline names -> where it is.
OFFLINE = {
    "IQL": "agents.offline.iql:IQL",
    "ReCOIL": "agents.offline.recoil:ReCOIL",
    "CPL": "agents.offline.cpl:CPL",
    "Cloning": "agents.offline.cloning:Cloning",
    "RCSL": "agents.offline.rcsl:RCSL",
    "MBRCSL": "agents.offline.mbrcsl:MBRCSL",
    "DT": "agents.offline.dt:DT",
}
# What a file makes may have so many times its size; weights hardly compress.
MAX_UNFOLDING = 10
# Package of Stable-Baselines3 -> its class of policies.
SB3_POLICIES = {"common": "ActorCriticPolicy", "sac": "SACPolicy", "td3": "TD3Policy", "dqn": "DQNPolicy"}


def load(source: str, observation_space: Space, action_space: Space) -> Any:
    """What `source` names, with `predict`, on the CPU; a UsageError or ValueError if it is none, or of other spaces."""
    path = Path(source)
    if (path / "config.yaml").is_file():
        return load_run(path).model
    if path.suffix == ".zip" and path.is_file():
        return _from_zip(path, observation_space, action_space)
    if path.suffix == ".safetensors" and path.is_file():
        return from_file(path, observation_space, action_space)
    module, colon, function = source.rpartition(":")
    reason: Any = "there is no such file or run"
    if colon:
        if not MODULE_AND_CLASS.fullmatch(source) or module.endswith(".py"):
            raise UsageError(f"{source} is no module:function; give {module_name(module)}:{function or 'function'}")
        # Importing executes whatever is in the file.
        try:
            act: Any = load_env_creator(source)
            return script(act, action_space)
        except Exception as error:
            reason = error
    raise UsageError(
        f"{source} is no policy ({reason}); give a run's folder, a *.safetensors of runners.offline, a *.zip of "
        "Stable-Baselines3, or my_file:function"
    )


def from_file(path: Path, observation_space: Space, action_space: Space) -> Any:
    """The policy that `runners.offline out=` wrote; a UsageError if it is none, a ValueError for other spaces."""
    kind = _agent_in_file(path)
    if kind not in OFFLINE:
        raise UsageError(f"{path} holds no policy of {', '.join(OFFLINE)} (but {kind!r}); give its run's folder")
    agent: Any = load_env_creator(OFFLINE[kind])
    with networks_that_fit(_max_unfolded_size(path)):
        return agent.load(str(path), observation_space, action_space)


def _agent_in_file(path: Path, key: str = "") -> str:
    """The class that a file of weights names, or ""; a UsageError, that begins with `key`, if it is none."""
    try:
        with safe_open(regular(path.resolve()), "np") as file:
            return (file.metadata() or {}).get("agent", "")
    except SafetensorError as error:
        raise UsageError(f"{key}{path} is no safetensors file ({error}); give one of runners.offline") from None


def _from_zip(path: Path, observation_space: Space, action_space: Space) -> Any:
    import torch

    max_size = _max_unfolded_size(path)
    # A stranger's file can be wrong in every way.
    try:
        with zipfile.ZipFile(path) as file:
            data = json.loads(_read_member(file, "data", max_size))
            pickled = _read_member(file, "policy.pth", max_size)
        # torch's format is a zip file, too, and an earlier one that is none.
        if zipfile.is_zipfile(io.BytesIO(pickled)):
            with zipfile.ZipFile(io.BytesIO(pickled)) as file:
                size = sum(member.file_size for member in file.infolist())
                _check_size("policy.pth", size, max_size)
        weights = torch.load(io.BytesIO(pickled), "cpu", weights_only=True)
        options = data["policy_kwargs"]
        _, package, _ = data["policy_class"]["__module__"].split(".")
        if ":serialized:" in options:
            raise ValueError(f"its options {', '.join(options)} are pickled")
        kind: Any = load_env_creator(f"stable_baselines3.{package}.policies:{SB3_POLICIES[package]}")
        with networks_that_fit(max_size):
            # Nothing is learnt, so the schedule of the learning rate is 0.
            policy = kind(observation_space, action_space, lambda _: 0.0, **options)
        policy.load_state_dict(weights)
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{path} cannot be read here ({words:.300}); in Python, give make(..., base=model)") from None
    return policy


def _max_unfolded_size(path: Path) -> int:
    """How many bytes what a file of weights holds may have."""
    return SMALL + MAX_UNFOLDING * path.stat().st_size


def _read_member(file: zipfile.ZipFile, name: str, max_size: int) -> bytes:
    """A file in a zip file; a ValueError if it would unfold to more than `max_size` bytes."""
    _check_size(name, file.getinfo(name).file_size, max_size)
    return file.read(name)


def _check_size(name: str, size: int, max_size: int) -> None:
    if size > max_size:
        raise ValueError(
            f"its {name} unfolds to {size:,} bytes, more than the {max_size:,} that weights of its size do"
        )


def initialise(config: TrainConfig, parts: Parts) -> str:
    """Give a new run's agent and rewards what `config.init_from` has learned; returns a sentence about what was taken.

    PPO keeps the values of rewards that both runs have; optimisers, counts and replay are new. A UsageError if it is no
    run and no file, or has other spaces or sizes.
    """
    source = Path(config.init_from)
    try:
        if source.is_file():
            return f"from {source}: {', '.join(_begin_with_file(config, source, parts.model))}"
        saved = saved_config(source, "init_from")
        state, step = load_checkpoint(source)
        streams = list(saved.get("reward") or {})
        loaded = []
        if config.init != "rewards":
            loaded += _begin_with_run(config, dict(saved.get("agent") or {}).get("name"), state, streams, parts.model)
        if config.init != "agent":
            for stream in streams:
                if stream in parts.mix.streams and stream != "task":
                    parts.mix.streams[stream].load_state_dict(state["mix"]["streams"][stream])
                    loaded.append(stream)
            if not loaded:
                words = ", ".join(streams)
                raise UsageError(f"init_from={source} has the rewards {words}, none of which this run learns")
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"init_from={source} cannot begin this run: {error}") from None
    except (RuntimeError, LookupError, TypeError, AttributeError) as error:
        words = quote_error(error)
        raise UsageError(
            f"init_from={source} does not fit this run's environment, networks, options ({words})"
        ) from None
    return f"from step {step:,} of {source}: {', '.join(loaded)}"


def _begin_with_run(config: TrainConfig, name: Any, state: StateDict, streams: list[str], model: Any) -> list[str]:
    """The names of what the model took from the state of a run of agent `name`."""
    from agents.base import BaseAgent

    is_own = isinstance(model, BaseAgent)
    if name == config.agent_name:
        # Only our own agents have more to take than a policy.
        if is_own:
            model.start_from(state["agent"], streams)
        else:
            model.policy.load_state_dict(state["agent"]["modules"]["policy"])
        return ["agent"]
    if not is_own:
        raise UsageError(f"init_from={config.init_from} has agent={name}, not {config.agent_name}; give init=rewards")
    source = Path(config.init_from)
    return _begin_with_agent(source, load_run(source, config.trust).model, model)


def _begin_with_file(config: TrainConfig, path: Path, model: Any) -> list[str]:
    """The names of what the model took from a file."""
    from agents.base import BaseAgent

    if config.init == "rewards" or not isinstance(model, BaseAgent):
        raise UsageError(
            f"init_from={path} is a file of a policy, for agent=ppo or dyna; give a run's folder for init=rewards"
        )
    if _agent_in_file(path, "init_from=") == type(model).__name__:
        other = type(model).load(str(path), model.envs, device=str(model.device))
        model.start_from(other.get_state(), list(other.scorer.streams))
        return ["agent"]
    return _begin_with_agent(path, from_file(path, model.observation_space, model.action_space), model)


def _begin_with_agent(source: Path, other: Any, model: Any) -> list[str]:
    """The names of what the model took from another agent."""
    from agents.predictor import Predictor

    if not isinstance(other, Predictor):
        raise UsageError(
            f"init_from={source} is a run of Stable-Baselines3, whose policy no other agent begins with; take iql, "
            "cloning or dyna"
        )
    spaces = (("observations", "observation_space"), ("actions", "action_space"))
    for words, attribute in spaces:
        theirs = getattr(other, attribute)
        own = getattr(model, attribute)
        if theirs != own:
            raise UsageError(f"init_from={source} has {words} in {theirs}, and this run has {own}; give a run of these")
    return model.begin_with(other.policy_layers())
