"""A command line of runners.train -> `TrainConfig`: presets below what is given, names from the tables only.

Every mistake is one sentence with the nearest name, before anything starts.
"""

import collections
import dataclasses
import inspect
import re
import typing
from collections.abc import Collection
from typing import Any

from gymnasium.envs.registration import EnvSpec

import agents
import rewards
from envs.datasets.recordings import read_source
from envs.family import family_of
from envs.make import goals, is_open, spec_of
from envs.make import options as options_of
from lodestar.tables import Table
from runners.cli import presets
from runners.cli.declared import declared_fields
from runners.run.config import (
    RECORDING,
    RENAMED,
    TextValues,
    TrainConfig,
    UsageError,
    Values,
    describe_unknown,
    nearest_name,
)
from runners.run.trust import admit, refuse, require, saved_keys
from runners.run.value import cast, parse, read, shorten, split

# Keys -> the types of their values.
Kinds = Values
# The keys that choose what the other keys may be.
OWN_NAMES = ("env", "reward", "agent", "preset")
# Fields of `TrainConfig` that the command line spells otherwise.
HIDDEN = ("agent_name", "env_options")
# Evaluations of an agent that learns from a recording.
CURVE_POINTS = 5
# Similarity in [0, 1] at which a name counts as misspelt, and no other explanation is looked for.
MIN_MISSPELT_SIMILARITY = 0.8
# Begins the options of the environment.
ENV = "env."
# What other libraries call a key of ours -> what to write here.
ELSEWHERE = {
    "agent.reference": "agent=ppo agent.reference, or our own SAC, agent=dyna agent.preset=sac agent.reference",
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
    comes first: names, then keys, then values of the run's own keys and the environment's, last those of agent and
    rewards.
    """
    refuse(argv)
    admit(argv)
    texts, choices = _read_arguments(argv)
    given = texts | choices
    applied = presets.choose_presets(given)
    trusted = parse("trust", texts.get("trust", "false"), bool)
    for name, part in presets.user_preset_settings(applied):
        require(trusted, f"preset={name}", part)
    values = presets.values(applied, given) | given
    if "data" in texts:
        values = name_source(texts["data"], trusted) | values
    agent, names = _choose_names(values)
    env = environment(values.pop("env", None))
    values |= presets.values_for(applied, agent, names)
    values |= given
    values["env"] = env

    kinds = kinds_of(TrainConfig, hidden=("reward", "agent", *HIDDEN))
    if any(key.startswith(ENV) for key in values):
        kinds |= _env_keys(env, values)
    _refuse_by_sources(values, kinds, env, agent, names)
    try:
        run = _split_by_prefix(values, kinds, texts)
        config = TrainConfig(agent_name=agent, env_options=run["env"], **run[""])
        # From here on the classes of agent and rewards are imported, and with them torch.
        names = _with_task(names, values)
        kinds |= kinds_of(agents.get(agent).Config, "agent.")
        for name in _learned_first(names):
            kinds |= kinds_of(rewards.get(name).Config, f"reward.{name}.")
        for key in values:
            _refuse_unknown(key, kinds, values, env, names)
        parts = _split_by_prefix(values, kinds, texts)
        config.agent = agents.get(agent).Config(**parts["agent"])
        config.reward = {name: rewards.get(name).Config(**parts[f"reward.{name}"]) for name in names}
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    fill_goals(config, values)
    fill_offline(config, given)
    return config, " + ".join(applied) or None


def name_source(text: str, trusted: bool) -> Values:
    """The environment that recordings are of, and its options, as keys; none where they do not say."""
    files = parse("data", text, list[str])
    try:
        env, options = read_source(files)
    except (OSError, ImportError, ValueError) as error:
        raise UsageError(f"data={text}: {error}") from None
    if not env:
        return {}
    require(trusted, f"data={text}", saved_keys({"env": env, "env_options": options}))
    keys = {}
    for name, value in options.items():
        if name != "max_episode_steps":
            keys[f"{ENV}{name}"] = value
    return {"env": env, **keys}


def fill_offline(config: TrainConfig, given: Values) -> None:
    """Evaluate an agent that learns from a recording as it learns; a UsageError if it has none, or another has one."""
    needs_data = agents.get(config.agent_name).driver == RECORDING
    name = config.agent_name
    if config.fitted and not (config.data and config.eval_episodes):
        raise UsageError(
            f"fitted={config.fitted} estimates from data= what a policy is worth, beside its evaluation; give data= "
            "and eval_episodes=1 or more"
        )
    if not config.data:
        if needs_data:
            raise UsageError(f"agent={name} learns from recordings alone; name some, as in data=recording.safetensors")
        return
    if not needs_data:
        raise UsageError(
            f"agent={name} learns in an environment, not from data=; take agent=iql, cloning or offline_dyna, or "
            "agent=dyna with agent.demos="
        )
    for key in ("cluster", "starts", "init_from"):
        if given.get(key):
            raise UsageError(f"{key}={given[key]} is for agents that act while they learn; leave it out beside data=")
    for name, options in config.reward.items():
        # A judge's answers that came later would rate nothing.
        if hasattr(options, "ask") and f"reward.{name}.ask" not in given:
            options.ask = "at_once"
    # Nothing is returned in training, so that the curve is one of evaluations.
    if "eval_every" not in given:
        config.eval_every = max(config.total_timesteps // CURVE_POINTS, 1)


def choose_agent_and_rewards(argv: list[str]) -> tuple[str, list[str]]:
    """The agent and the rewards that `argv` chooses, by itself or by its preset."""
    texts, choices = _read_arguments(argv)
    given = texts | choices
    values = presets.values(presets.choose_presets(given), given) | given
    agent, names = _choose_names(values)
    return agent, _with_task(names, values)


def _read_arguments(argv: list[str]) -> tuple[TextValues, Values]:
    """Keys with their texts; and the values of those that choose the other keys."""
    keys = kinds_of(TrainConfig)
    for argument in argv:
        key = _key_of_value(argument)
        if key:
            raise UsageError(f"{argument!r} is no key=value; did you mean {key}={argument}?")
    texts = dict(split(argument, keys) for argument in argv)
    choices = {key: read(texts.pop(key)) for key in OWN_NAMES if key in texts}
    reward = choices.get("reward")
    if isinstance(reward, str):
        # A text that names several rewards, in whatever signs stand between and around them.
        names = re.findall(r"[^\s,+;]+", reward.strip("[]() "))
        if len(names) > 1:
            problem = "is no list" if set("[]()+; ") & {*reward} else "names alternatives"
            raise UsageError(f"reward={reward} {problem}; to add rewards up write 'reward=[{','.join(names)}]'")
    return texts, choices


def _split_by_prefix(values: Values, kinds: Kinds, texts: Collection[str]) -> dict[str, Values]:
    """The values of the keys among `kinds`: what stands before the last dot of a key -> name -> value."""
    parts: dict[str, Values] = collections.defaultdict(dict)
    for key, value in values.items():
        if key not in kinds:
            continue
        # What the command line gives is a text still; a preset's value has been read as YAML.
        convert = parse if key in texts else cast
        prefix, _, name = key.rpartition(".")
        parts[prefix][name] = convert(key, value, kinds[key])
    return parts


def _key_of_value(argument: str) -> str:
    """The key that a value alone was meant for: of an environment, a reward, an agent or a preset; "" if of none."""
    if "=" in argument:
        return ""
    if re.fullmatch(r"[\w/-]+-v\d+", argument):
        return "env"
    if argument in rewards.names():
        return "reward"
    if argument in agents.names():
        return "agent"
    if argument in presets.all_presets():
        return "preset"
    return ""


def _choose_names(values: Values) -> tuple[str, list[str]]:
    """The agent's name, and those of the rewards; loads, where they are right, none but those of the user's files."""
    agent = values.get("agent", "ppo")
    if isinstance(agent, list | dict) or "," in str(agent):
        raise UsageError(f"agent={shorten(agent)} is no name; a run has one agent, runners.sweep several (agent=A,B)")
    agent = load_name(agents.table, agent)
    if agent not in agents.names():
        raise UsageError(_unknown_agent(agent))
    reward = values.get("reward", "task")
    if not isinstance(reward, list):
        reward = [reward]
    names = []
    for name in reward:
        name, options = rewards.table.split_argument(name)
        name = load_name(rewards.table, name)
        names.append(name)
        for option, value in options.items():
            values.setdefault(f"reward.{name}.{option}", value)
    if not names:
        raise UsageError("reward=[] teaches nothing; name at least one reward, as in reward=task")
    for name in names:
        if name not in rewards.names():
            raise UsageError(describe_unknown("reward", name, rewards.names()))
    if len(set(names)) < len(names):
        raise UsageError(f"reward=[{','.join(names)}] names a reward twice; raise its weight instead")
    return agent, names


def _unknown_agent(agent: str) -> str:
    """The sentence about an agent's name that is none: it may be like that of a preset of an agent."""
    if re.fullmatch(r"\w+", agent) and not nearest_name(agent, agents.names(), MIN_MISSPELT_SIMILARITY):
        for name in ("dyna", "world_model"):
            preset = nearest_name(agent, agents.get(name).Config.presets, MIN_MISSPELT_SIMILARITY)
            if preset == agent:
                return f"agent={agent} is a preset of {name}; give agent={name} agent.preset={agent}"
            if preset:
                return f"agent={agent} is unknown; did you mean agent={name} agent.preset={preset}?"
    return describe_unknown("agent", agent, agents.names())


def load_name(table: Table[Any], given: Any) -> str:
    """A name; of my_file:Class, which is loaded, the one it has from now on."""
    try:
        return table.name_of(str(given))
    except (ImportError, ValueError) as error:
        raise UsageError(str(error)) from error


def _with_task(names: list[str], values: Values) -> list[str]:
    """The rewards of a run: a bonus that stands alone is added to the task."""
    if isinstance(values.get("reward"), list):
        return names
    return rewards.join_task(names[0])


def _learned_first(names: list[str]) -> list[str]:
    """The rewards, the task last: an option without a reward's name is meant for one that is learned."""
    return sorted(names, key=lambda name: name == "task")


def environment(env: Any) -> str:
    """The environment's id, if there is one of this name."""
    if isinstance(env, list | dict):
        raise UsageError(
            f"env={shorten(env)} is no id; a run has one environment, runners.sweep takes several (env=A,B)"
        )
    if env in (None, ""):
        raise UsageError("env= is missing, as in env=CartPole-v1; `python -m runners.list` names the environments")
    try:
        spec_of(str(env))
    except ValueError as error:
        raise UsageError(str(error)) from None
    return str(env)


def kinds_of(config: type, prefix: str = "", hidden: Collection[str] = ()) -> Kinds:
    """The keys of a Config's fields -> their types."""
    hints = typing.get_type_hints(config)
    names = [field.name for field in dataclasses.fields(config)]
    return {prefix + name: hints[name] for name in names if name not in hidden}


def _refuse_by_sources(values: Values, kinds: Kinds, env: str, agent: str, names: list[str]) -> None:
    """Refuse unknown keys as far as the sources of the classes tell, without torch, which is slow to import."""
    keys = [*kinds]
    owners = {"agent": ("agent", agent)} | {f"reward.{name}": ("reward", name) for name in names}
    for owner, place in owners.items():
        options = declared_fields(*place)
        # The classes of other packages are not read.
        if not options:
            return
        keys += [f"{owner}.{option}" for option in options]
    for key in values:
        owner = key.rpartition(".")[0]
        # Whether the task's reward is used, too, is known when the others are imported.
        if not owner or owner in owners or owner.removeprefix("reward.") not in rewards.names():
            _refuse_unknown(key, keys, values, env, names)


def _refuse_unknown(key: str, keys: Collection[str], values: Values, env: str, names: list[str]) -> None:
    if key not in keys and key not in OWN_NAMES:
        raise UsageError(_unknown_key(key, values, [*keys, *OWN_NAMES, *_env_keys(env, values)], names))


def _env_keys(env: str, values: Values) -> Kinds:
    """Every option of the environment -> its type; Any for others, where the constructor takes whatever it is given."""
    keys = {ENV + name: _option_type(parameter) for name, parameter in options_of(env).items()}
    for key in values:
        if not key.startswith(ENV) or key in keys:
            continue
        if not is_open(env):
            hint = f"did you mean {ELSEWHERE[key]}?" if key in ELSEWHERE else f"it has {', '.join(keys)}"
            raise UsageError(f"{key}={shorten(values[key])} is no option of {env}; {hint}")
        keys[key] = Any
    return keys


def _option_type(parameter: inspect.Parameter) -> Any:
    """A parameter's type where it is a plain one: as annotated, or as its default suggests; else anything."""
    kind = parameter.annotation
    if kind is parameter.empty:
        kinds = {bool: bool, int: int | float, float: int | float, str: str}
        return kinds.get(type(parameter.default), Any)
    alternatives = typing.get_args(kind) or (kind,)
    if set(alternatives) <= {bool, int, float, str, type(None)}:
        return kind
    return Any


def _unknown_key(key: str, values: Values, keys: Collection[str], names: list[str]) -> str:
    """The sentence about a key that is none of `keys`, in a run with the rewards `names`."""
    if key in RENAMED:
        if RENAMED[key]:
            return f"{key} is now called {RENAMED[key]}"
        return f"{key} is gone; leave it out"
    parts = key.split(".")
    if parts[0] == "reward" and len(parts) == 3 and parts[1] in rewards.names() and parts[1] not in names:
        fix = _use_reward(parts[1], parts[2], values, names)
        return f"{key} belongs to the reward {parts[1]}, which this run does not use ({'+'.join(names)}); {fix}"
    near = ELSEWHERE.get(key) or _key_with_its_owner(parts, names) or nearest_name(key, keys)
    hint = f"did you mean {near}?" if near else "--help lists the keys"
    return f"{key}={shorten(values[key])} is unknown; {hint}"


def _use_reward(name: str, option: str, values: Values, names: list[str]) -> str:
    """How a run with the rewards `names` comes to use the one called `name`, or the same option of one of its own."""
    if "reward" not in values:
        return f"use it: reward={name}"
    for used in names:
        both_are_goals = rewards.get(used).role == rewards.get(name).role == "goal"
        if both_are_goals and option in kinds_of(rewards.get(used).Config):
            return f"did you mean reward.{used}.{option}?"
    return f"add it: 'reward=[{','.join([*names, name])}]'"


def _key_with_its_owner(parts: list[str], names: list[str]) -> str | None:
    """The whole key whose owner was left out, or named otherwise; None where there is none."""
    owner, *path = parts
    if owner == "agent" and len(path) == 2 and path[0] in agents.names():
        return f"agent.{path[1]}"
    if owner in agents.names() and len(path) == 1:
        return f"agent.{path[0]}"
    if owner in rewards.names() and len(path) == 1:
        return f"reward.{owner}.{path[0]}"
    if owner != "reward" or not path:
        return None
    if len(path) == 1:
        for name in _learned_first(names):
            if path[0] in kinds_of(rewards.get(name).Config):
                return f"reward.{name}.{path[0]}"
        return None
    # A reward of the user's own is called by its class; the user may have written the name of its file.
    names_by_file = {}
    for name, source in rewards.table.files.items():
        names_by_file[source.partition(":")[0].rpartition(".")[2]] = name
    near = names_by_file.get(path[0]) or nearest_name(path[0], rewards.names())
    if near in names and path[0] not in names:
        return ".".join(["reward", near, *path[1:]])
    return None


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
    # Rewards differ in their options, so each is asked which of these it has.
    for name, options in config.reward.items():
        judge = getattr(options, "judge", "")
        if hasattr(options, "signal"):
            _fill_column(name, options, spec)
        if judge == "human":
            _fill_answers(options.judge_options, config.env, family.name)
        names_a_model = f"reward.{name}.model" in given or f"reward.{name}.weights" in given
        if getattr(options, "model", None) in MODELS and not names_a_model:
            options.model = model_for(config.env)
        if not hasattr(options, "goal") or getattr(options, "semantics", "") == "constant":
            continue
        has_goal = f"reward.{name}.goal" in given or options.goal
        if hasattr(options, "family"):
            if not has_goal and judge != "auto":
                options.goal = family.aim(spec)
            if not options.family and f"reward.{name}.family" not in given:
                options.family = family.name
        elif not has_goal:
            _fill_sentences(name, options, config.env, given)


def _fill_column(name: str, options: Any, spec: EnvSpec) -> None:
    """Give a reward that reads a number by its name the number's place; a UsageError for a name that is none."""
    if not options.signal or options.column >= 0:
        return
    family = family_of(spec)
    names = family.observed(spec) if options.of == "obs" else family.signals(spec)
    if options.signal not in names:
        known = f"give one of {', '.join(names)}" if names else f"it has no names; give reward.{name}.column=, from 0"
        raise UsageError(f"reward.{name}.signal={options.signal!r} is none of the {options.of} of {spec.id}; {known}")
    options.column = names.index(options.signal)


def _fill_answers(judge_options: Values, env: str, family: str) -> None:
    """Give a human judge a file of answers for this environment, and what can be shown of it."""
    from runners.run.video import can_be_drawn

    form = "text"
    if can_be_drawn(env):
        form = "frame"
    elif family == "other":
        form = "obs"
    judge_options.setdefault("answers", f"preferences/{re.sub('[/:]', '-', env)}.jsonl")
    judge_options.setdefault("show", form)


def _fill_sentences(name: str, options: Any, env: str, given: Collection[str]) -> None:
    """Give a reward that reads frames the sentences of the environment's first goal; a UsageError if it has none."""
    env_goals = goals(env)
    if not env_goals:
        fix = f'give reward.{name}.goal="what you want to see"'
        raise UsageError(f"reward={name} needs a sentence for {env}, for which none is known; {fix}")
    goal = env_goals[0]
    options.goal = goal.prompt
    for field in ("baseline", "negative"):
        if f"reward.{name}.{field}" not in given and not getattr(options, field, True):
            setattr(options, field, getattr(goal, field))
