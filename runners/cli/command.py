"""A command line -> `TrainConfig`. Hydra gives the grammar and the composition, behind a fence:

names come from the tables only, there is no `_target_` and no interpolation, and every mistake is one sentence with the
nearest name. What comes out are plain dataclasses; nothing else in the project sees a DictConfig.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Collection
from typing import Any

from runners.cli import presets
from runners.run.config import TrainConfig, UsageError, nearest, unknown
from runners.run.secrets import refuse

_OWN_NAMES = ("env", "reward", "agent", "preset")  # they choose what the other keys may be
HIDDEN = ("agent_name", "env_options")  # fields that the command line spells otherwise
ENV = "env."  # begins the options of the environment
MAX_LENGTH = 4000  # characters of one argument; a goal is a sentence


def compose(argv: list[str]) -> tuple[TrainConfig, str | None]:
    """Compose the configuration that `argv` asks for.

    Args:
        argv: `key=value` arguments, as the shell hands them over.

    Returns:
        The configuration, and the name of the preset that was applied, or two names where one lies on top.

    Raises:
        UsageError: one sentence about the first thing that is wrong, with the nearest name.
    """
    refuse(argv)
    given = dict(_parse(argument) for argument in argv)
    applied = presets.applied(given)
    values = {**presets.values(applied, given), **given}
    agent, names = _names(values)
    values = {**values, **presets.values_for(applied, agent, names), **given}
    kinds = _keys(agent, names)
    if not kinds.keys() >= values.keys() - set(_OWN_NAMES) and values.get("env"):
        kinds |= _env_keys(str(values["env"]), values)
    for key in values:
        if key not in kinds and key not in _OWN_NAMES:
            raise UsageError(_unknown_key(key, values[key], kinds, names))
    typed = {key: _cast(key, value, kinds[key]) for key, value in values.items() if key in kinds}
    config = _compose({key: value for key, value in typed.items() if not key.startswith(ENV)}, agent, names)
    config.env_options = {key.removeprefix(ENV): value for key, value in typed.items() if key.startswith(ENV)}
    fill_goals(config, values)
    return config, " + ".join(applied) or None


def chosen(argv: list[str]) -> tuple[str, list[str]]:
    """The agent and the rewards that `argv` chooses, by itself or by its preset.

    Raises:
        UsageError: if an argument cannot be read, or a name is unknown.
    """
    given = dict(_parse(argument) for argument in argv)
    return _names({**presets.values(presets.applied(given), given), **given})


def value_of(argument: str) -> Any:
    """What stands behind the = of one argument, read by Hydra's grammar.

    Raises:
        UsageError: if it cannot be read.
    """
    return _parse(argument)[1]


def _parse(argument: str) -> tuple[str, Any]:
    """One argument -> (key, value), by Hydra's grammar; sentences need no quotes of their own."""
    key, equals, text = argument.partition("=")
    if not equals:
        near = nearest(argument, [f.name for f in dataclasses.fields(TrainConfig)])
        hint = f"did you mean {near}=...?" if near else "try --help"
        raise UsageError(f"{argument!r} is no key=value; {hint}")
    if key.startswith(("+", "~")) or "@" in key or not re.fullmatch(r"[A-Za-z_][\w.-]*", key):
        raise UsageError(f"{key!r} is no key; write key=value with the keys that --help lists")
    if "_target_" in argument or "${" in argument:
        raise UsageError(
            f"{key}={_short(text)} is refused: configurations are data, so there is no _target_ and no ${{...}}"
        )
    if key.split(".")[0] == "hydra":
        raise UsageError(
            f"{key} is refused: Hydra only composes the configuration here, its own settings stay as they are"
        )
    if len(text) > MAX_LENGTH:
        raise UsageError(f"{key} has {len(text):,} characters; give at most {MAX_LENGTH:,}")
    return key, _value(key, text)


def _value(key: str, text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if text == "":
        return ""
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
    except HydraException:
        return text  # a sentence with its own commas or quotes
    if override.is_sweep_override():
        if key == "reward":
            raise UsageError(f"reward={text} names alternatives; to add rewards up write 'reward=[{text}]'")
        return text  # "a pole, upright" is a sentence, not two alternatives; numbers fail at their type
    value = override.value()
    return _plain(value)


def _plain(value: Any) -> Any:
    """Without Hydra's own string class."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain(k): _plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, (bool, int, float)) else str(getattr(value, "text", value))


def _names(values: dict[str, Any]) -> tuple[str, list[str]]:
    """The agent's name, and those of the rewards: a bonus that stands alone is added to the task."""
    import agents
    import rewards

    agent = str(values.get("agent", "ppo"))
    if agent not in agents.names():
        for name in ("dyna", "world_model"):
            if agent in agents.get(name).Config.presets:
                raise UsageError(f"agent={agent} is a preset of {name}; give agent={name} agent.preset={agent}")
        raise UsageError(unknown("agent", agent, agents.names()))
    wanted = values.get("reward", "task")
    explicit = isinstance(wanted, list)
    names = [str(name) for name in wanted] if explicit else [str(wanted)]
    if not names:
        raise UsageError("reward=[] teaches nothing; name at least one reward, as in reward=task")
    for name in names:
        if name not in rewards.names():
            raise UsageError(unknown("reward", name, rewards.names()))
    if len(set(names)) < len(names):
        raise UsageError(f"reward=[{','.join(names)}] names a reward twice; raise its weight instead")
    if not explicit and rewards.get(names[0]).role == "bonus":
        names = ["task", *names]
    return agent, names


def _keys(agent: str, names: list[str]) -> dict[str, Any]:
    """Every key this run has -> its type."""
    import agents
    import rewards

    keys: dict[str, Any] = {}
    for prefix, cls in (
        ("", TrainConfig),
        ("agent.", agents.get(agent).Config),
        *((f"reward.{name}.", rewards.get(name).Config) for name in names),
    ):
        hints = typing.get_type_hints(cls)
        keys.update({prefix + f.name: hints[f.name] for f in dataclasses.fields(cls) if f.name not in HIDDEN})
    for name in ("reward", "agent"):
        del keys[name]
    keys["env"] = keys["preset"] = str
    return keys


def _env_keys(env: str, values: dict[str, Any]) -> dict[str, Any]:
    """Every option of the environment -> its type, and what else was given where only the constructor knows them."""
    from envs.options import is_open, options

    keys = {ENV + name: _kind(parameter) for name, parameter in options(env).items()}
    others = [key for key in values if key.startswith(ENV) and key not in keys]
    if others and not is_open(env):
        raise UsageError(f"{others[0]}={_short(values[others[0]])} is no option of {env}; it has {', '.join(keys)}")
    return keys | dict.fromkeys(others, Any)


def _kind(parameter: inspect.Parameter) -> Any:
    """A parameter's type where it is a plain one: as annotated, or as its default suggests; else anything."""
    kind = parameter.annotation
    if kind is parameter.empty:
        kinds = {bool: bool, int: int | float, float: int | float, str: str}
        return kinds.get(type(parameter.default), Any)
    return kind if set(typing.get_args(kind) or (kind,)) <= {bool, int, float, str, type(None)} else Any


def _unknown_key(key: str, value: Any, kinds: dict[str, Any], names: list[str]) -> str:
    import rewards

    parts = key.split(".")
    if parts[0] == "reward" and len(parts) == 3 and parts[1] in rewards.names() and parts[1] not in names:
        return (
            f"{key} belongs to the reward {parts[1]}, which this run does not use ({'+'.join(names)}); "
            f"add it: 'reward=[{','.join([*names, parts[1]])}]'"
        )
    if parts[0] == "reward" and len(parts) > 1 and parts[1] not in names:
        near = nearest(parts[1], rewards.names())
        if near in names:
            return f"{key}={_short(value)} is unknown; did you mean {'.'.join(['reward', str(near), *parts[2:]])}?"
    near = nearest(key, kinds)
    hint = f"did you mean {near}?" if near else "--help lists the keys"
    return f"{key}={_short(value)} is unknown; {hint}"


def _cast(key: str, value: Any, kind: Any) -> Any:
    """`value` as `kind` wants it: 1e6 is a whole number, anything is a string."""
    kinds = (
        typing.get_args(kind)
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
        else (kind,)
    )
    if (value is None and type(None) in kinds) or Any in kinds:
        return value
    if bool in kinds and isinstance(value, bool):
        return value
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if int in kinds and number and value == int(value):
        return int(value)
    if float in kinds and number:
        return float(value)
    if str in kinds and not isinstance(value, (list, dict)):
        text = "" if value is None else str(value)
        return text.lower() if isinstance(value, bool) else text
    for option in kinds:
        if typing.get_origin(option) in (list, tuple):
            items = value if isinstance(value, list) else [value]
            inner = typing.get_args(option)[0] if typing.get_args(option) else Any
            return [_cast(key, item, inner) for item in items]
        if typing.get_origin(option) is dict and isinstance(value, dict):
            return value
    raise UsageError(f"{key}={_short(value)} is not {_words(kinds)}")


def _words(kinds: tuple[Any, ...]) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    return " or ".join(words.get(kind, str(kind)) for kind in kinds)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _compose(values: dict[str, Any], agent: str, names: list[str]) -> TrainConfig:
    """Hydra puts the pieces together; each piece checks itself when it becomes an object."""
    from hydra import compose as hydra_compose
    from hydra import initialize
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    import agents
    import rewards

    store = ConfigStore.instance()
    for name in names:
        store.store(group="reward", name=name, node=rewards.get(name).Config, package=f"reward.{name}")
    store.store(group="agent", name=agent, node=agents.get(agent).Config)
    defaults = [{"reward": names}, {"agent": agent}, "_self_"]
    apart = ("reward", "agent", "env_options")
    own = {f.name: f.default for f in dataclasses.fields(TrainConfig) if f.name not in apart}
    store.store(name="train", node={"defaults": defaults, **own})
    GlobalHydra.instance().clear()
    try:
        with initialize(version_base="1.3", config_path=None):
            # A dict has keys that no dataclass names, which Hydra takes after ++ alone.
            free = {key: "++" if isinstance(value, dict) else "" for key, value in values.items()}
            composed = hydra_compose("train", [f"{free[key]}{key}={literal(value)}" for key, value in values.items()])
        parts = {name: OmegaConf.to_object(composed.reward[name]) for name in names}
        own = {str(key): value for key, value in composed.items() if key not in ("reward", "agent")}
        own["agent_name"] = agent
        return TrainConfig(reward=parts, agent=OmegaConf.to_object(composed.agent), **own)  # type: ignore[arg-type]
    except UsageError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(" ".join(str(error).split("\n")[0].split())) from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def literal(value: Any) -> str:
    """A value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(literal, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{literal(v)}" for k, v in value.items()) + "}"  # Hydra quotes no keys
    # In Hydra's quoted strings only a backslash before a quote is special.
    escaped = re.sub(r'(\\*)"', lambda match: match.group(1) * 2 + '\\"', value)
    escaped = re.sub(r"(\\+)$", lambda match: match.group(1) * 2, escaped)
    return f'"{escaped}"'


def fill_goals(config: TrainConfig, given: Collection[str] = ()) -> None:
    """Give a reward that wants a goal the one that the environment's family knows, and the model that was taught it.

    A reward that reads captions gets the family's aim, and the family's name as its `world`; one that sees gets the
    first goal's sentences, which go together: beside a goal of the user's own nothing is filled in.

    Args:
        config: is changed in place.
        given: keys that the user set; what is among them stays, even if it is empty.

    Raises:
        UsageError: if none is known.
    """
    from envs.family import family_of
    from envs.make import goals, spec_of

    for name, options in config.reward.items():
        _fill_model(config.env, name, options, given)
        if not hasattr(options, "goal") or getattr(options, "semantics", "") == "constant":
            continue
        chosen = f"reward.{name}.goal" in given or options.goal
        if hasattr(options, "world"):
            spec = spec_of(config.env)
            family = family_of(spec)
            options.goal = options.goal if chosen else family.aim(spec)
            options.world = options.world if f"reward.{name}.world" in given else options.world or family.name
            continue
        if chosen:
            continue
        known = goals(config.env)
        if not known:
            raise UsageError(
                f"reward={name} needs a sentence for {config.env}, for which none is known; "
                f'give reward.{name}.goal="what you want to see"'
            )
        options.goal = known[0].prompt
        for field in ("baseline", "negative"):
            if f"reward.{name}.{field}" not in given and not getattr(options, field, True):
                setattr(options, field, getattr(known[0], field))


def _fill_model(env: str, name: str, options: Any, given: Collection[str]) -> None:
    """The shipped model that was taught the environment, where the user names neither a model nor weights."""
    from rewards.vision.encoder import MODELS, model_for

    if getattr(options, "model", None) in MODELS and not {f"reward.{name}.model", f"reward.{name}.weights"} & {*given}:
        options.model = model_for(env)
