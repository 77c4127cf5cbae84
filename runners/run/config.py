"""What a run is: `TrainConfig`, checked when it is made, written to config.yaml and read back.

`runners.cli.compose` turns a command line into one; a script can make one by hand:

    TrainConfig(env="CartPole-v1", reward={"rnd": RNDConfig()}, agent_name="ppo", agent=PPOConfig())
"""

import dataclasses
import difflib
import hashlib
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import agents
import rewards
from lodestar.files import read_text
from lodestar.mappings import map_values
from lodestar.settings import Settings, setting

# Plain data by name: options, keys of a command line, what YAML and JSON files hold.
Values = dict[str, Any]
# The same as texts: arguments of a command line by key, a row of a table by column.
TextValues = dict[str, str]
# The driver of an agent that learns from recordings alone.
RECORDING = "recording"
MAX_YAML_DEPTH = 12
# The address of a Ray cluster.
ADDRESS = r"auto|local|[\w.-]+:\d+"
# Environment steps between two rows of the log, unless the user says otherwise.
LOG_EVERY = 1000
# Fields that count environment steps; 1e6 is a whole number, too.
STEP_FIELDS = ("total_timesteps", "checkpoint_every", "log_every", "eval_steps", "eval_every", "video_every")


class UsageError(ValueError):
    """A command that cannot be done as it was given; the sentence says how to give it."""

    exit_code = 2


class InUse(UsageError):
    """Another process is at work in the run's folder; later the same command may work."""

    exit_code = 8


@dataclass
class TrainConfig(Settings):
    """One run. Its fields are the keys of the command line: `agent_name` is `agent`, `env_options` are `env.<name>`."""

    env: str = setting("", "any Gymnasium id, or module:Id-v0 for your own; its options are env.<name>")
    env_options: Values = setting({}, "options of the environment, for envs.make.make")
    reward: Values = setting({}, "a name (bonuses are added to the task), or a list: 'reward=[task,clip]'")
    agent: Any = setting(None, "a name; its options are agent.<field>")
    agent_name: str = "ppo"
    data: list[str] = setting(
        [],
        "recordings that an offline agent (iql, cloning, rcsl, dt, mbrcsl, offline_dyna) learns from, rated by the "
        "reward; the environment only evaluates, by default that of the recordings, and steps are minibatches",
    )
    passes: int = setting(1, "of data: times that rewards learn from it before they rate it", "[1, 1000]")
    preset: str = setting("auto", "a name, auto (the one made for this env and reward, if any) or none")
    seed: int = setting(0, "of environments, agent and rewards", low=0, below=2**31)
    total_timesteps: int = setting(100_000, "environment steps, of all environments; 1e6 is fine", "[1, 1e15]")
    max_episode_steps: int | None = setting(None, "truncate episodes here; null keeps the environment's limit", ">= 1")
    n_envs: int = setting(0, "environments side by side; 0 takes the agent's own number", "[0, 65536]")
    starts: str = setting(
        "",
        "where episodes of training begin: variance (states that the agent came through, by how much returns from "
        "there differ), uniform, clusters, branches (each such state twice, for judges who compare), or a file of a "
        "teacher's snapshots (S3RL); empty for the environment's own",
    )
    backend: str = setting(
        "auto",
        "what steps them: batched (array programs of ours), device (the same in torch, on the device; agent=ppo), gym "
        "(this process), workers, auto",
        "auto | batched | device | gym | workers",
    )
    cluster: str = setting(
        "none",
        "steps the environments in actors on Ray: auto (the cluster that RAY_ADDRESS names, or that runs on this "
        "machine, else a local one), local (start one on this machine only) or host:port; none: in this process",
    )
    workers: int = setting(1, "actors on the cluster that share the environments, a CPU each", "[1, 65536]")
    lag: int = setting(
        0,
        "rollouts by which the policy that acts on the cluster may be older; 1 collects while the learner learns, "
        "which PPO corrects for",
        "[0, 1]",
    )
    servers: int = setting(
        0,
        "reward servers on the cluster that embed frames (CLIP) for the learner, a CPU each, or a GPU where there are",
        "[0, 1024]",
    )
    step_timeout: float = setting(60.0, "seconds until a slow worker is replaced (backend=workers); 0: never", ">= 0")
    on_env_error: str = setting("stop", "after an environment raised (backend=workers)", "stop | restart")
    device: str = setting("auto", "as torch writes it; auto takes a GPU if there is one")
    num_threads: int = setting(
        1, "of torch (small networks get slower with more), CLIP's passes and batched MuJoCo", "[1, 1024]"
    )
    root: str = setting("runs", "folder that runs are written to")
    run_dir: str = setting("", "exactly this folder instead of root/env/agent-reward/time-seed")
    resume: str = setting("auto", "auto (the same command continues), never, must", "auto | never | must")
    init_from: str = setting("", "run, or file of a policy, with whose weights this one begins")
    init: str = setting("both", "what of init_from is taken", "both | agent | rewards")
    checkpoint_every: int = setting(
        20_000, "environment steps between two checkpoints; 0 saves only at the end", ">= 0"
    )
    log_every: int = setting(0, "environment steps between two rows of the log; 0 leaves it to the agent", ">= 0")
    logger: list[str] = setting(
        ["tensorboard"], "where the log goes besides metrics.csv; [] for nowhere", "tensorboard | wandb"
    )
    histograms: bool = setting(False, "with each row of the log, histograms of weights, gradients, rewards' scores")
    eval_episodes: int = setting(20, "episodes of the final evaluation; 0 skips it", ">= 0")
    eval_steps: int = setting(20_000, "environment steps after which no evaluation episode begins, nor goes on", ">= 1")
    eval_every: int = setting(0, "environment steps between evaluations, which keep the best weights; 0: none", ">= 0")
    fitted: int = setting(
        0, "minibatches that estimate from data= alone what the policy is worth (fitted Q evaluation); 0: none", ">= 0"
    )
    eval_sampled: str = setting(
        "auto",
        "how a policy is evaluated: auto (as it was trained: by sampled actions where it is a distribution over "
        "discrete actions, with its mode beside it; else by its mode), true (sampled alone) or false (the mode alone)",
        "auto | true | false",
    )
    coverage: str = setting(
        "", "log how many different observations the agent acted on: all, or A:B for that part of a vector; empty: none"
    )
    coverage_bin: float = setting(0.1, "width of a cell of numbers that are no integers, for coverage", "> 0")
    video: bool = setting(True, "record one episode at the end, learned reward drawn over it")
    video_every: int = setting(0, "environment steps between videos while training; 0: none", ">= 0")
    on_nan: str = setting(
        "stop",
        "what a reward that is NaN or infinite does: stop (exit code 4), or zero (replaced by 0 and counted)",
        "stop | zero",
    )
    control: str = setting("auto", "auto (the reward's own, up to 200,000 steps) or none", "auto | none")

    trust: bool = setting(False, "whether a preset's file may name code, servers and files, as in env=module:Id")

    def __post_init__(self) -> None:
        if not self.env:
            raise UsageError("env= is missing, as in env=CartPole-v1; `python -m runners.list` names the environments")
        if isinstance(self.eval_sampled, bool):
            self.eval_sampled = str(self.eval_sampled).lower()
        super().__post_init__()
        for name in STEP_FIELDS:
            value = getattr(self, name)
            if value != int(value):
                raise UsageError(f"{name}={value:g} is no number of steps; give a whole number, such as 100000 or 1e5")
            setattr(self, name, int(value))
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise UsageError(f"device={self.device} is no device; give auto, cpu, cuda, cuda:N or mps")
        if self.histograms and "tensorboard" not in self.logger:
            raise UsageError(f"histograms=true has nowhere to go with logger={self.logger}; add tensorboard to logger")
        self._check_cluster()
        for name in ("root", "run_dir"):
            folder = getattr(self, name)
            if not folder.isprintable():
                raise UsageError(f"{name}={folder!r} holds control characters; give a name without them")
            if ".." in PurePath(folder).parts:
                raise UsageError(f"{name}={folder} leaves its folder by '..'; give the folder itself")

    def _check_cluster(self) -> None:
        if not re.fullmatch(f"none|{ADDRESS}", self.cluster):
            raise UsageError(f"cluster={self.cluster} is no address of a cluster; give none, auto, local or host:port")
        if self.cluster == "none":
            for name, default in (("workers", 1), ("lag", 0), ("servers", 0)):
                value = getattr(self, name)
                if value != default:
                    raise UsageError(f"{name}={value} is for actors on a cluster; give cluster=auto with it")
            return
        # Acting and learning are in two processes.
        if self.agent_name in ("sac", "dqn"):
            raise UsageError(
                f"cluster={self.cluster} cannot divide the loop of agent={self.agent_name}, which is "
                "Stable-Baselines3's; give agent=dyna agent.preset=sac, which is SAC, or DQN where actions are discrete"
            )
        if self.agent_name not in ("ppo", "dyna"):
            raise UsageError(f"cluster={self.cluster} is for agent=ppo and dyna, not {self.agent_name}; leave it out")

    @property
    def env_label(self) -> str:
        """The environment and what was set of it, as in `CartPole-v1 (sticky=0.25)`."""
        if not self.env_options:
            return self.env
        return f"{self.env} ({', '.join(assignments(self.env_options))})"

    @property
    def rewards(self) -> str:
        """The rewards' names, as in `task+rnd`."""
        return "+".join(self.reward)

    def folder(self) -> Path:
        """Where runs with this environment, agent and reward are kept."""
        env = re.sub(r"[^\w.-]+", "-", self.env).strip("-.")
        return Path(self.root) / env / f"{self.agent_name}-{self.rewards}"

    def key(self, total_timesteps: int | None = None) -> str:
        """Equal for two configurations whose runs would have the same numbers; of this one, or of another length."""
        values = to_dict(self)
        for name in MANAGEMENT:
            values.pop(name, None)
        if total_timesteps is not None:
            values["total_timesteps"] = total_timesteps
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def assignments(values: Values) -> list[str]:
    """Arguments of a command line, key=value each."""
    return [f"{key}={value}" for key, value in values.items()]


# What an earlier version's key is called now, "" where it is gone and a saved one ignored; with its prefix, as on the
# command line.
RENAMED = {
    "agent.compile": "",
    "agent.dreams_per_step": "agent.rollouts_per_step",
    "agent.reward_in_dreams": "agent.reward_source",
    "reward.guidance.world": "reward.guidance.family",
    "reward.oni.world": "reward.oni.family",
}

# Where a run is kept and what it reports does not change what it learns.
MANAGEMENT = frozenset(
    {
        "root",
        "run_dir",
        "resume",
        "checkpoint_every",
        "log_every",
        "eval_episodes",
        "eval_steps",
        "eval_every",
        "eval_sampled",
        "video",
        "video_every",
        "control",
        "preset",
        "step_timeout",
        "on_env_error",
        "logger",
        "histograms",
        "coverage",
        "coverage_bin",
        "fitted",
        "cluster",
        "workers",
    }
)

# Options that came later are not written at their defaults, so that runs from before keep their keys and can be
# continued.
LATER_DEFAULTS = {
    "env_options": {},
    "data": [],
    "passes": 1,
    "fitted": 0,
    "on_nan": "stop",
    "starts": "",
    "cluster": "none",
    "workers": 1,
    "lag": 0,
    "servers": 0,
}


def to_dict(config: TrainConfig) -> Values:
    """Plain data: what config.yaml holds."""
    values = dict(vars(config))
    values["reward"] = map_values(dataclasses.asdict, config.reward)
    values["agent"] = {"name": values.pop("agent_name"), **dataclasses.asdict(config.agent)}
    # It is never read from a file.
    del values["trust"]
    code = sources(config)
    if code:
        values["code"] = code
    for name, default in LATER_DEFAULTS.items():
        if values[name] == default:
            del values[name]
    if not config.init_from:
        del values["init_from"]
        del values["init"]
    return values


def sources(config: TrainConfig) -> dict[str, str]:
    """The module:Class of the rewards and the agent that are the user's, by `reward.<name>` and `agent.<name>`."""
    places = {}
    for table, names in ((rewards.table, config.reward), (agents.table, [config.agent_name])):
        for name in names:
            if name in table.files:
                places[f"{table.kind}.{name}"] = table.files[name]
    return places


def flatten(values: dict[Any, Any], prefix: str = "") -> Values:
    """{"agent": {"gamma": 1}} -> {"agent.gamma": 1}."""
    flat: Values = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def from_dict(values: Values, trusted: bool = False) -> TrainConfig:
    """The inverse of `to_dict`; of the user's classes only those loaded, unless it is `trusted`; else a UsageError."""
    try:
        for name, source in values.get("code", {}).items():
            # Looking it up would execute its file.
            if not trusted and source.rpartition(":")[0] not in sys.modules:
                raise UsageError(f"it names {source}; add trust=true if it is yours, or from a source you trust")
            table = agents.table if name.startswith("agent.") else rewards.table
            table.name_of(source)
        options = dict(values["agent"])
        name = options.pop("name")
        reward = {}
        for key, reward_options in values["reward"].items():
            reward[key] = rewards.get(key).Config(**_current_options(f"reward.{key}.", reward_options))
        agent = agents.get(name).Config(**_current_options("agent.", options))
        fields = _current_options("", values)
        for key in ("agent", "reward", "trust", "code"):
            fields.pop(key, None)
        return TrainConfig(agent_name=name, agent=agent, reward=reward, **fields)
    except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the saved configuration does not fit this version of lodestar-rl ({error})") from None


def _current_options(prefix: str, options: Values) -> Values:
    """Options saved by an earlier version, by the names of this one."""
    current = {}
    for key, value in options.items():
        name = RENAMED.get(prefix + key, key).rpartition(".")[2]
        if name:
            current[name] = value
    # The default of earlier versions, saved with every run: nothing that its user had asked for.
    if prefix == "" and current.get("eval_sampled") is False:
        current["eval_sampled"] = "auto"
    # What runs did that were saved before there was this option, whose default is something else.
    if prefix == "reward.hindsight.":
        current.setdefault("skip", False)
    return current


def save(config: TrainConfig, path: Path) -> None:
    """Write config.yaml."""
    import yaml

    from runners.run.checkpoint import write_atomically

    plain = json.loads(json.dumps(to_dict(config)))
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    write_atomically(path, yaml.dump(plain, Dumper=dumper, sort_keys=False))


def load(path: Path) -> TrainConfig:
    """Read a config.yaml."""
    return from_dict(read(path))


def read(path: Path) -> Values:
    """The plain data in a YAML file, a mapping without references, which can unfold to gigabytes; else a UsageError."""
    import yaml

    # Both loaders are safe ones, which make plain data only.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = read_text(path)
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_YAML_DEPTH or isinstance(event, yaml.AliasEvent):
                raise yaml.YAMLError("it is nested too deeply, or has references; write it plainly")
        values = yaml.load(text, Loader=loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        words = " ".join(str(error).split())
        raise UsageError(f"{path} cannot be read ({words})") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UsageError(f"{path} holds no key: value")
    return values


def describe_unknown(what: str, given: Any, names: Iterable[str]) -> str:
    """The sentence about a name that is not one of `names`, with the nearest one."""
    near = nearest_name(str(given), names)
    if near:
        return f"{what}={given} is unknown; did you mean {near}?"
    return f"{what}={given} is unknown; give one of {', '.join(names)}"


def nearest_name(given: str, names: Iterable[str], least: float = 0.6) -> str | None:
    """The name that `given` may have meant: by letters, by last part, or by initials (lr); `least` is in [0, 1]."""
    word = given.lower()
    best = max(names, key=lambda name: _name_similarity(word, name), default="")
    return best if _name_similarity(word, best) > least else None


def _name_similarity(word: str, name: str) -> float:
    """In [0, 1], of a word in small letters and a name, with or without what stands before the name's last dot."""
    start, _, last = name.rpartition(".")
    if word == last.lower():
        return 1.0
    initials = "".join(part[:1] for part in last.split("_"))
    if len(initials) > 1 and word in (initials, f"{start}.{initials}"):
        return 0.95
    by_letters = difflib.SequenceMatcher(None, word, name.lower()).ratio()
    by_last_part = difflib.SequenceMatcher(None, word.rpartition(".")[2], last.lower()).ratio()
    return max(by_letters, 0.98 * by_last_part)
