"""A command line of runners.train -> `TrainConfig`: presets below what is given, names from the tables only.

Every mistake is one sentence with the nearest name, before anything starts.
"""

import collections
import dataclasses
import inspect
import itertools
import re
import typing
from collections.abc import Collection, Iterable
from typing import Any

import agents
import rewards
from envs.family import family_of
from envs.make import goals, is_open, spec_of
from envs.make import options as options_of
from lodestar.tables import Table
from runners.cli import declared, presets
from runners.cli.value import cast, parse, read, short, split
from runners.run.config import RENAMED, TrainConfig, UsageError, nearest, unknown
from runners.run.trust import admit, refuse, require

OWN_NAMES = ("env", "reward", "agent", "preset")  # they choose what the other keys may be
HIDDEN = ("agent_name", "env_options")  # fields that the command line spells otherwise
CLOSE = 0.8  # similarity, in [0, 1], at which no nearer key is looked for among the options
ENV = "env."  # begins the options of the environment
# What other libraries call a key of ours -> what to write here.
ELSEWHERE = {
    "algo": "agent",
    "algorithm": "agent",
    "env_id": "env",
    "steps": "total_timesteps",
    "n_timesteps": "total_timesteps",
    "max_steps": "max_episode_steps",
    "env.max_steps": "max_episode_steps",
    "env.max_episode_steps": "max_episode_steps",
    "capture_video": "video",
    "cuda": "device=cuda",
    "gpu": "device=cuda",
    "track": "logger=wandb",
    "wandb": "logger=wandb",
}


def compose(argv: list[str]) -> tuple[TrainConfig, str | None]:
    """The configuration that `argv` asks for, and the preset that was applied, or two names where one lies on top.

    The first thing that is wrong is a UsageError, one sentence with the nearest name. What can be refused without torch
    comes first: names, then the run's own keys and the environment's, then the options of agent and rewards.
    """
    refuse(argv)
    admit(argv)
    given, chosen = _given(argv)
    applied = presets.applied({**given, **chosen})
    trusted = parse("trust", given.get("trust", "false"), bool)
    for name, part in presets.from_elsewhere(applied):
        require(trusted, f"preset={name}", part)
    values = {**presets.values(applied, {**given, **chosen}), **given, **chosen}
    agent, names = _names(values)
    env = environment(values.pop("env", None))
    values = {**values, **presets.values_for(applied, agent, names), **given, **chosen, "env": env}
    kinds = kinds_of(TrainConfig, hidden=("reward", "agent", *HIDDEN))
    kinds |= _env_keys(env, values) if any(key.startswith(ENV) for key in values) else {}
    _check_begins(values, kinds, agent, names)
    parts: dict[str, dict[str, Any]] = collections.defaultdict(dict)

    def take(keys: Iterable[str], kinds: dict[str, Any]) -> None:
        for key in keys:
            prefix, _, name = key.rpartition(".")
            parts[prefix][name] = (parse if key in given else cast)(key, values[key], kinds[key])

    try:
        take([key for key in values if key in kinds], kinds)
        config = TrainConfig(agent_name=agent, env_options=parts["env"], **parts[""])
        names = _with_task(names, values)
        options = kinds_of(agents.get(agent).Config, "agent.")
        for name in _learned_first(names):
            options |= kinds_of(rewards.get(name).Config, f"reward.{name}.")
        strange = [key for key in values if key not in {*kinds, *options, *OWN_NAMES}]
        if strange:
            meant = {**kinds, **_env_keys(env, values), **options}
            raise UsageError(_unknown_key(strange[0], values, meant, names))
        take([key for key in values if key in options], options)
        config.agent = agents.get(agent).Config(**parts["agent"])
        config.reward = {name: rewards.get(name).Config(**parts[f"reward.{name}"]) for name in names}
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    fill_goals(config, values)
    return config, " + ".join(applied) or None


def chosen(argv: list[str]) -> tuple[str, list[str]]:
    """The agent and the rewards that `argv` chooses, by itself or by its preset."""
    given, chosen = _given(argv)
    given |= chosen
    values = {**presets.values(presets.applied(given), given), **given}
    agent, names = _names(values)
    return agent, _with_task(names, values)


def _given(argv: list[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Keys with their texts; and what chooses the keys, read."""
    keys = [field.name for field in dataclasses.fields(TrainConfig)]
    for argument in argv:
        if own := _key_of_value(argument):
            raise UsageError(f"{argument!r} is no key=value; did you mean {own}={argument}?")
    given = dict(split(argument, keys) for argument in argv)
    chosen = {key: read(given.pop(key)) for key in OWN_NAMES if key in given}
    reward = chosen.get("reward")
    if isinstance(reward, str):
        _refuse_list(reward)
    return given, chosen


def _key_of_value(argument: str) -> str:
    """The key that a value alone was meant for: of an environment, a reward, an agent or a preset; "" if of none."""
    if re.fullmatch(r"[\w/-]+-v\d+", argument):
        return "env"
    names = {"reward": rewards.names(), "agent": agents.names(), "preset": presets.every()}
    return next((key for key, known in names.items() if argument in known), "")


def _refuse_list(reward: str) -> None:
    """Refuse a text that names several rewards, in whatever signs stand between and around them."""
    names = [name for name in re.split(r"[\s,+;]+", reward.strip("[]() ")) if name]
    if len(names) > 1:
        words = "is no list" if set("[]()+; ") & {*reward} else "names alternatives"
        raise UsageError(f"reward={reward} {words}; to add rewards up write 'reward=[{','.join(names)}]'")


def _names(values: dict[str, Any]) -> tuple[str, list[str]]:
    """The agent's name, and those of the rewards; loads, where they are right, none but those of the user's files."""
    agent = values.get("agent", "ppo")
    if isinstance(agent, list | dict) or "," in str(agent):
        raise UsageError(f"agent={short(agent)} is no name; a run has one agent, runners.sweep several (agent=A,B)")
    agent = named(agents.table, agent)
    if agent not in agents.names():
        raise UsageError(_unknown_agent(agent))
    wanted = values.get("reward", "task")
    names = [named(rewards.table, name) for name in (wanted if isinstance(wanted, list) else [wanted])]
    if not names:
        raise UsageError("reward=[] teaches nothing; name at least one reward, as in reward=task")
    for name in names:
        if name not in rewards.names():
            raise UsageError(unknown("reward", name, rewards.names()))
    if len(set(names)) < len(names):
        raise UsageError(f"reward=[{','.join(names)}] names a reward twice; raise its weight instead")
    return agent, names


def _unknown_agent(agent: str) -> str:
    """The sentence about an agent's name that is none: it may be like that of a preset of an agent."""
    if re.fullmatch(r"\w+", agent) and not nearest(agent, agents.names(), CLOSE):
        for name in ("dyna", "world_model"):
            preset = nearest(agent, agents.get(name).Config.presets, CLOSE)
            if preset == agent:
                return f"agent={agent} is a preset of {name}; give agent={name} agent.preset={agent}"
            if preset:
                return f"agent={agent} is unknown; did you mean agent={name} agent.preset={preset}?"
    return unknown("agent", agent, agents.names())


def named(table: Table[Any], given: Any) -> str:
    """A name; of my_file:Class, which is loaded, the one it has from now on."""
    try:
        return table.name_of(str(given))
    except (ImportError, ValueError) as error:
        raise UsageError(str(error)) from error


def _with_task(names: list[str], values: dict[str, Any]) -> list[str]:
    """The rewards of a run: a bonus that stands alone is added to the task."""
    alone = not isinstance(values.get("reward"), list)
    return ["task", *names] if alone and rewards.get(names[0]).role == "bonus" else names


def _learned_first(names: list[str]) -> list[str]:
    """The rewards, the task last: an option without a reward's name is meant for one that is learned."""
    return sorted(names, key=lambda name: name == "task")


def environment(env: Any) -> str:
    """The environment's id, if there is one of this name."""
    if isinstance(env, list | dict):
        raise UsageError(f"env={short(env)} is no id; a run has one environment, runners.sweep takes several (env=A,B)")
    if env in (None, ""):
        raise UsageError("env= is missing, as in env=CartPole-v1; `python -m runners.list` names the environments")
    try:
        spec_of(str(env))
    except ValueError as error:
        raise UsageError(str(error)) from None
    return str(env)


def kinds_of(config: type, prefix: str = "", hidden: Collection[str] = ()) -> dict[str, Any]:
    """The keys of a Config's fields -> their types."""
    hints = typing.get_type_hints(config)
    return {prefix + field.name: hints[field.name] for field in dataclasses.fields(config) if field.name not in hidden}


def _check_begins(values: dict[str, Any], kinds: dict[str, Any], agent: str, names: list[str]) -> None:
    """Refuse keys that begin as none does, and options that are in no source of ours; without torch, which is slow."""
    tops, known = [*kinds, *OWN_NAMES], rewards.names()
    ours = [("agent", "agent.", agent)] + [("reward", f"reward.{name}.", name) for name in names]
    known_options = {begin: [begin + name for name in declared.options(kind, named)] for kind, begin, named in ours}
    for key in values:
        begin, *rest = key.split(".")
        of_a_part = (begin == "agent" and len(rest) == 1) or (begin == "reward" and len(rest) == 2 and rest[0] in known)
        own = known_options.get(key[: key.rfind(".") + 1])
        if key in tops or (of_a_part and (not own or key in own)):
            continue
        if own:
            raise UsageError(_unknown_key(key, values, [*tops, *itertools.chain(*known_options.values())], names))
        if rest or key in RENAMED or key in ELSEWHERE or nearest(key, tops, CLOSE):
            raise UsageError(_unknown_key(key, values, tops, names))


def _env_keys(env: str, values: dict[str, Any]) -> dict[str, Any]:
    """Every option of the environment -> its type; Any for others, where the constructor takes whatever it is given."""
    keys = {ENV + name: _kind(parameter) for name, parameter in options_of(env).items()}
    others = [key for key in values if key.startswith(ENV) and key not in keys]
    if others and not is_open(env):
        wrong = others[0]
        hint = f"did you mean {ELSEWHERE[wrong]}?" if wrong in ELSEWHERE else f"it has {', '.join(keys)}"
        raise UsageError(f"{wrong}={short(values[wrong])} is no option of {env}; {hint}")
    return keys | dict.fromkeys(others, Any)


def _kind(parameter: inspect.Parameter) -> Any:
    """A parameter's type where it is a plain one: as annotated, or as its default suggests; else anything."""
    kind = parameter.annotation
    if kind is parameter.empty:
        kinds = {bool: bool, int: int | float, float: int | float, str: str}
        return kinds.get(type(parameter.default), Any)
    return kind if set(typing.get_args(kind) or (kind,)) <= {bool, int, float, str, type(None)} else Any


def _unknown_key(key: str, values: dict[str, Any], kinds: Collection[str], names: list[str]) -> str:
    """The sentence about a key that is none of `kinds`, in a run with the rewards `names`."""
    parts = key.split(".")
    if key in RENAMED:
        return f"{key} is now called {RENAMED[key]}" if RENAMED[key] else f"{key} is gone; leave it out"
    if parts[0] == "reward" and len(parts) == 3 and parts[1] in rewards.names() and parts[1] not in names:
        fix = _use_reward(parts[1], parts[2], values, names)
        return f"{key} belongs to the reward {parts[1]}, which this run does not use ({'+'.join(names)}); {fix}"
    near = _key_with_its_owner(parts, names) or nearest(key, kinds)
    hint = f"did you mean {near}?" if near else "--help lists the keys"
    return f"{key}={short(values[key])} is unknown; {hint}"


def _use_reward(name: str, option: str, values: dict[str, Any], names: list[str]) -> str:
    """How a run with the rewards `names` comes to use the one called `name`, or the same option of one of its own."""
    if "reward" not in values:
        return f"use it: reward={name}"
    for used in names:
        both_are_goals = rewards.get(used).role == rewards.get(name).role == "goal"
        if both_are_goals and option in declared.options("reward", used):
            return f"did you mean reward.{used}.{option}?"
    return f"add it: 'reward=[{','.join([*names, name])}]'"


def _key_with_its_owner(parts: list[str], names: list[str]) -> str | None:
    """The whole key whose owner was left out, or named otherwise; None where there is none."""
    begin, *rest = parts
    if ".".join(parts) in ELSEWHERE:
        return ELSEWHERE[".".join(parts)]
    if begin == "agent" and len(rest) == 2 and rest[0] in agents.names():
        return f"agent.{rest[1]}"
    if begin in agents.names() and len(rest) == 1:
        return f"agent.{rest[0]}"
    if begin in rewards.names() and len(rest) == 1:
        return f"reward.{begin}.{rest[0]}"
    if begin != "reward" or not rest:
        return None
    if len(rest) == 1:
        owners = (name for name in _learned_first(names) if rest[0] in declared.options("reward", name))
        owner = next(owners, None)
        return f"reward.{owner}.{rest[0]}" if owner else None
    files = {source.partition(":")[0].rpartition(".")[2]: name for name, source in rewards.table.files.items()}
    near = files.get(rest[0]) or nearest(rest[0], rewards.names())
    return ".".join(["reward", near, *rest[1:]]) if near in names and rest[0] not in names else None


def fill_goals(config: Any, given: Collection[str] = ()) -> None:
    """Give, in place, a reward without its goal the one of the environment's family, and the model trained on it.

    A reward that reads captions gets the family's aim, and its name as `family` (without the aim where its judge is
    `auto`, which takes the rulebook of a family and another judge for a goal); one that reads frames gets the first
    goal's sentences, which go together: beside a goal of the user's own nothing is filled in. A shipped model gives way
    to the one for this environment where the user names neither a model nor weights. Keys among `given`, which the user
    set, stay even if they are empty. A UsageError if no goal is known.
    """
    from rewards.vision.encoder import MODELS, model_for

    spec = spec_of(config.env)
    family = family_of(spec)
    for name, options in config.reward.items():
        if getattr(options, "judge", "") == "human":  # gets a file for this environment, and what it can show
            from runners.run.video import can_be_drawn

            shown = "frame" if can_be_drawn(config.env) else "obs" if family.name == "other" else "text"
            options.judge_options.setdefault("answers", f"preferences/{re.sub('[/:]', '-', config.env)}.jsonl")
            options.judge_options.setdefault("show", shown)
        named = {f"reward.{name}.model", f"reward.{name}.weights"} & {*given}
        if getattr(options, "model", None) in MODELS and not named:
            options.model = model_for(config.env)
        if not hasattr(options, "goal") or getattr(options, "semantics", "") == "constant":
            continue
        chosen = f"reward.{name}.goal" in given or options.goal
        if hasattr(options, "family"):
            if not chosen and getattr(options, "judge", "") != "auto":
                options.goal = family.aim(spec)
            options.family = options.family if f"reward.{name}.family" in given else options.family or family.name
            continue
        if chosen:
            continue
        known = goals(config.env)
        if not known:
            give = f'give reward.{name}.goal="what you want to see"'
            raise UsageError(f"reward={name} needs a sentence for {config.env}, for which none is known; {give}")
        options.goal = known[0].prompt
        for field in ("baseline", "negative"):
            if f"reward.{name}.{field}" not in given and not getattr(options, field, True):
                setattr(options, field, getattr(known[0], field))
