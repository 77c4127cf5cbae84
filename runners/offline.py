"""Learn from recordings alone: rated by any reward, by a judge's comparisons, or as demonstrations.

    python -m runners.offline data=pendulum reward=success reward.success.goals=good.safetensors      any reward
    python -m runners.offline data=framed.safetensors algo=dyna 'reward=[clip,rnd]'       or a mix
    python -m runners.offline data=pendulum                            a recording that ships
    python -m runners.offline data=random.safetensors,good.safetensors judge=scripted queries=300 seed=0
    python -m runners.offline data=pendulum judge=none agent.value_loss=chi_square     its own rewards
    python -m runners.offline data=pendulum algo=recoil demos=pendulum_good            imitate, with what else there is
    python -m runners.offline data=play.safetensors algo=hilp prompt.row=100           any goal: `runners.run.prompt`
    python -m runners.offline data=run0.safetensors,run1.safetensors,... algo=ad       learning runs, a task each
    python -m runners.offline data=cube-single-play-v0.npz env=ogbench:cube-single-v0 trust=true algo=cloning

With reward= this is `runners.train data=... agent=ALGO`, a run with its folder, and takes that command's keys: the mix
learns from the recording, rates each transition once, and ALGO learns from the ratings. `runners.sweep`, `runners.tune`
and `runners.report` take such runs as they take others. The environment only evaluates.

Without reward= several policies are compared in a table. A judge compares pairs of segments of the recordings;
`bradley_terry` fits a reward to its answers and labels every transition with it, and `algo` learns a policy from that
(preferences); `cpl` learns from the answers themselves. Beside it: the same on the task's own rewards (true), behaviour
cloning, the returns of the recorded episodes, and a random policy. Data are files of runners.record or OGBench (*.npz),
or data sets of Minari, by name or folder.

Source: Venkataraman et al. 2024, "Real-World Offline Reinforcement Learning from Vision Language Model Feedback", arXiv
2411.05273 (with judge=vlm).
"""

import dataclasses
import sys
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import Space

import agents
from envs.datasets.dataset import learnable
from envs.datasets.recordings import is_dataset
from envs.make import make
from envs.recording import load as read
from envs.transitions import Transitions, concatenate
from lodestar.files import make_parent
from lodestar.settings import Settings, setting
from runners.cli.command import Command
from runners.evaluation.context import NEW_TASKS, play_tasks
from runners.evaluation.play import play, policy, table
from runners.record import RecordConfig, read_others, whole_episodes
from runners.run.config import RECORDING, UsageError, Values, describe_unknown
from runners.run.trust import require, saved_keys

if TYPE_CHECKING:
    from rewards.preference.bradley_terry import BradleyTerry
    from rewards.preference.sessions import ComparedPairs

ARMS = ("preferences", "true", "cloning")
Metrics = dict[str, float]


class Algo(NamedTuple):
    """What learns: its class, what it can learn from, and settings of its own."""

    place: str
    arms: tuple[str, ...] = ARMS
    options: Values = {}


ALGOS = {
    "iql": Algo("agents.offline.iql:IQL"),
    "dyna": Algo("agents.dyna.offline:OfflineDyna"),
    "recoil": Algo("agents.offline.recoil:ReCOIL", ("demos", "cloning")),
    "cpl": Algo("agents.offline.cpl:CPL", ("preferences", "cloning")),
    "cpl_kl": Algo("agents.offline.cpl:CPL", ("preferences", "cloning"), {"kl": True}),
    "cloning": Algo("agents.offline.cloning:Cloning", ("cloning",)),
    "rcsl": Algo("agents.offline.rcsl:RCSL"),
    "mbrcsl": Algo("agents.offline.mbrcsl:MBRCSL"),
    "dt": Algo("agents.offline.dt:DT"),
    "hilp": Algo("agents.offline.hilp:HILP", ("prompt",)),
    "ad": Algo("agents.offline.ad:AD", ("context",)),
}
# Keys that `runners.train` calls otherwise.
TRAIN_KEYS = {"steps": "total_timesteps", "episodes": "eval_episodes"}
# Keys that a run with a reward has no use for -> what to give instead.
INSTEAD_OF_ARMS = {
    "arms": "give algo=cloning for one, or runners.sweep agent=iql,cloning for several",
    "demos": "give reward=discriminator reward.discriminator.demos=FILE",
    "judge": "give reward=bradley_terry reward.bradley_terry.judge=NAME",
    "queries": "give reward=bradley_terry reward.bradley_terry.queries=",
    "length": "give reward=bradley_terry reward.bradley_terry.length=",
    "prompt": "leave reward= out",
    "policy": "leave reward= out",
    "out": "the run's folder keeps its policy, and every key that takes a policy takes the folder",
}
# Cloning beside another algorithm; with beta=0 rewards do not matter.
CLONING_BESIDE = Algo("agents.offline.iql:IQL", ("cloning",), {"beta": 0.0})


@dataclass
class OfflineConfig(Settings):
    """One offline run."""

    data: list[str] = setting(help="recordings, by commas: files of python -m runners.record, or pendulum, mountaincar")
    env: str = setting("", "where to evaluate; that of the recordings by default")
    algo: str = setting("iql", "what learns", choices=tuple(ALGOS))
    demos: list[str] = setting([], "of recoil: recordings of what is to be imitated")
    judge: str = setting("scripted", "scripted, heron, clip, human, recorded, vlm; none leaves preferences out")
    judge_options: Values = setting({}, "options of the judge, as in judge.mistakes=0.1")
    queries: int = setting(300, "pairs that the judge compares", ">= 1")
    length: int = setting(25, "steps of a segment", ">= 1")
    reward_options: Values = setting({}, "other options of bradley_terry, as in reward.of=frame")
    steps: int = setting(10_000, "minibatches of each policy", ">= 1")
    agent_options: Values = setting({}, "options of the algorithm, as in agent.beta=10")
    arms: list[str] = setting([], "policies to train; all that algo has", choices=(*ARMS, "demos", "prompt", "context"))
    prompt: str = setting("goal", "of hilp: goal (prompt.row=, prompt.place=), or a reward by name")
    prompt_options: Values = setting({}, "options of the prompt, as in prompt.row=100, prompt.goal=...")
    policy: str = setting("", "of hilp: a file that out= wrote, to prompt without learning again")
    episodes: int = setting(20, "of each evaluation; of ad: that a new task has", ">= 1")
    out: str = setting("", "where to keep the policy of the first arm, *.safetensors")
    seed: int = setting(0, "of everything", ">= 0")
    device: str = setting("cpu", "as torch writes it")
    trust: bool = setting(False, "whether the data may name an environment's code, as in module:Id")

    def __post_init__(self) -> None:
        super().__post_init__()
        possible_arms = list(ALGOS[self.algo].arms)
        if self.judge == "none" and "preferences" in possible_arms:
            possible_arms.remove("preferences")
        self.arms = self.arms or possible_arms
        for arm in self.arms:
            if arm not in possible_arms:
                problem = f"arms={arm} does not go with algo={self.algo} and judge={self.judge}"
                raise UsageError(f"{problem}; give {' or '.join(possible_arms)}")
        if self.algo != "hilp" and (self.policy or self.prompt_options or self.prompt != "goal"):
            raise UsageError(f"prompt= and policy= do not go with algo={self.algo}; give algo=hilp")
        if bool(self.demos) != ("demos" in possible_arms):
            problem = f"demos=[{','.join(self.demos)}] does not go with algo={self.algo}"
            raise UsageError(f"{problem}; demonstrations are for recoil, which needs some, as in demos=pendulum_good")


def run(config: OfflineConfig, batch: Transitions | None = None) -> Values:
    """Label, learn, evaluate, on `batch` if it is given, transitions for `config.env`, else on `config.data`.

    Returns `arms`, name -> `Scores.to_dict`, `labels`, metrics of the comparisons and what was learned of them,
    `learned`, arm -> the algorithm's metrics, and `notes`, sentences.
    """
    meta: Values = {"env": config.env}
    # Before the imports below, which take seconds.
    if batch is None:
        batch, meta = load(config.data, config.env, trust=config.trust)
    import torch

    torch.set_num_threads(1)
    env_id = _env_of(config, meta)
    _set_judge_defaults(config, batch, meta)
    options = meta.get("env_options", {})
    with closing(make(env_id, **options)) as env:
        spaces = (env.observation_space, env.action_space)
    batch, data, is_demo = join_demonstrations(config, batch, *spaces)
    labels: dict[str, float] = {}
    notes = list(meta.get("notes", ()))
    columns: Values = {}
    metrics_by_arm: dict[str, Metrics] = {}
    model: Any
    for arm in config.arms:
        algo = ALGOS[config.algo]
        if arm == "cloning" != config.algo:
            algo = CLONING_BESIDE
        if arm == "prompt":
            from runners.run.prompt import zero_shot

            model = zero_shot(config, data, spaces, partial(build, algo, config, spaces, data))
        else:
            # What the arm learns from: the data's own rewards without one.
            signal: Any = None
            if arm == "demos":
                signal = is_demo
            elif arm == "preferences":
                ask: Any = compare_by_judge if config.algo.startswith("cpl") else label_by_judge
                signal, labels, sentences = ask(config, batch, *spaces)
                notes += sentences
            model = build(algo, config, spaces, data, signal)
            # The metrics of dyna are in its log.
            metrics = model.learn(config.steps)
            metrics_by_arm[arm] = metrics if isinstance(metrics, dict) else {}
            # How many of the comparisons cpl gets right.
            if "accuracy" in metrics_by_arm[arm]:
                labels["accuracy"] = metrics_by_arm[arm]["accuracy"]
        if arm == config.arms[0] and config.out:
            make_parent(config.out)
            model.save(config.out)
        if arm == "context":
            by_episode = play_tasks(model.learner(), env_id, NEW_TASKS, config.episodes, config.seed, options)
            columns["first episode"] = by_episode[0].to_dict()
            columns["last episode"] = by_episode[-1].to_dict()
            continue
        columns[arm] = play(env_id, policy(model), config.episodes, seed=config.seed, options=options).to_dict()
    columns["random"] = play(env_id, None, config.episodes, seed=config.seed, options=options).to_dict()
    scores = whole_episodes(batch)
    if scores.returns:
        columns["the data"] = scores.to_dict()
    return {"arms": columns, "labels": labels, "learned": metrics_by_arm, "notes": notes}


def _env_of(config: OfflineConfig, meta: Values) -> str:
    """Where to evaluate; a UsageError where nothing says so, or the data name what is not trusted."""
    data = f"data={','.join(config.data)}"
    env_id = config.env or meta["env"]
    if not env_id:
        raise UsageError(f"env= is missing: {data} does not say where to evaluate")
    # What the user names is trusted.
    saved = {"env": "" if config.env else env_id, "env_options": meta.get("env_options")}
    require(config.trust, data, saved_keys(saved))
    return env_id


def _set_judge_defaults(config: OfflineConfig, batch: Transitions, meta: Values) -> None:
    """Options of the judge that follow from the data."""
    if config.judge == "heron" and meta.get("signals"):
        config.judge_options.setdefault("names", meta["signals"])
    if config.judge == "human":
        config.judge_options.setdefault("wait", True)
        config.judge_options.setdefault("show", "obs" if batch.frame is None else "frame")


def build(algo: Algo, config: OfflineConfig, spaces: tuple[Space, Space], data: Transitions, signal: Any) -> Any:
    """What learns from a signal about transitions; a UsageError for options that `config.algo` lacks."""
    kind = resolve_name(algo.place)
    names = [f"agent.{field.name}" for field in dataclasses.fields(kind.Config)]
    options = {}
    for name, value in config.agent_options.items():
        key = f"agent.{name}"
        if key in names:
            options[name] = value
        elif algo.place == ALGOS[config.algo].place:
            raise UsageError(describe_unknown("option", key, names))
    settings = kind.Config(**{**options, **algo.options})
    make_agent = getattr(kind, "of", kind)
    return make_agent(settings, *spaces, data=data, signal=signal, seed=config.seed, device=config.device)


def join_demonstrations(
    config: OfflineConfig, batch: Transitions, observation_space: Space, action_space: Space
) -> tuple[Transitions, Transitions, np.ndarray]:
    """The data, the same with the demonstrations behind it, and bool (N,): which are those.

    A ValueError where nothing can be learned from them.
    """
    spaces = (observation_space, action_space, config.env or "the environment")
    source = f"data={','.join(config.data)}"
    batch = learnable(batch, *spaces, source)
    if "true" in config.arms and not np.ptp(batch.reward) and not batch.terminated.any():
        problem = f"every reward of {source} is {batch.reward[0]:g} and no episode terminates"
        raise UsageError(f"{problem}, so that all policies are as good; give arms=preferences, or arms=cloning")
    data = batch
    if config.demos:
        demos = load(config.demos, config.env, trust=config.trust)[0]
        data = concatenate([batch, learnable(demos, *spaces, f"demos={','.join(config.demos)}")])
    return batch, data, np.arange(data.shape[0]) >= batch.shape[0]


def load(files: list[str], env: str = "", *, trust: bool = False) -> tuple[Transitions, Values]:
    """Recordings of one environment as one batch, and the metadata of the first; a UsageError if of several.

    Data sets of others are compared with `env`, and `trust` lets them name an environment's code.
    """
    batches = []
    metas = []
    tasks = []
    for index, name in enumerate(files):
        if is_dataset(name):
            batch, meta = read_others(RecordConfig(from_=name, env=env, trust=trust))
        else:
            batch, meta = read(name)
        if len(files) > 1 and "task" not in batch.extras:
            # Each file is the history of a task, if it does not say otherwise.
            batch = batch.replace(extras={**batch.extras, "task": np.full(batch.shape, index)})
        batches.append(batch)
        metas.append(meta)
        tasks.append((meta.get("env", ""), meta.get("env_options", {})))
    if tasks.count(tasks[0]) < len(tasks):
        names = ",".join(files)
        raise UsageError(f"data={names} holds recordings of different environments: {tasks}; give those of one")
    return concatenate(batches), metas[0]


def make_judged_reward(config: OfflineConfig, batch: Transitions, *spaces: Space) -> "tuple[BradleyTerry, Transitions]":
    """A `bradley_terry` with the judge, and the batch with what it reads; a UsageError if the recording lacks that."""
    from rewards.preference.bradley_terry import BradleyTerry, BradleyTerryConfig
    from runners.run.prompt import refuse_missing

    settings: Values = {
        "judge": config.judge,
        "judge_options": config.judge_options,
        "queries": config.queries,
        "budget": config.queries,
        "length": config.length,
        "seed_steps": 0,
        "pool": max(len(batch.step) // config.length, 2),
    }
    settings |= config.reward_options
    reward = BradleyTerry(BradleyTerryConfig(**settings), *spaces, seed=config.seed, device=config.device)
    refuse_missing(batch, reward, f"the judge {config.judge}")
    if reward.embedding:
        batch = batch.replace(extras={**batch.extras, reward.embedding: reward.embed(batch)})
    return reward, batch


def label_by_judge(config: OfflineConfig, batch: Transitions, *spaces: Space) -> tuple[np.ndarray, Metrics, list[str]]:
    """The reward of every transition that fits the judge's answers: float32 (N,), metrics, sentences.

    A UsageError if the recording lacks what the judge reads, or no reward fits its answers.
    """
    reward, batch = make_judged_reward(config, batch, *spaces)
    metrics = reward.update(batch)
    # With reward.of=history it remembers along the recorded episodes, as one environment's steps (T, 1).
    memory = reward.initial_memory(1)
    if memory is None:
        rewards = reward.score(batch)
    else:
        scores, _ = reward.scan(batch[:, None], memory)
        rewards = scores[:, 0]
    if not rewards.any():
        raise UsageError(f"no reward could be learned: {' '.join(reward.notes())}")
    if np.ptp(batch.reward) > 0:
        # With the task's rewards, step by step.
        metrics["correlation"] = float(np.corrcoef(rewards, batch.reward)[0, 1])
    return rewards, metrics, reward.notes()


def compare_by_judge(
    config: OfflineConfig, batch: Transitions, *spaces: Space
) -> "tuple[ComparedPairs, Metrics, list[str]]":
    """The judge's answers themselves, about the segments that `label_by_judge` asks about, metrics, and sentences."""
    reward, batch = make_judged_reward(config, batch, *spaces)
    reward.segments.add(batch)
    if len(reward.segments) < 2:
        raise UsageError(f"the data has no two segments of {config.length} steps to compare; give a smaller length=")
    pairs, metrics = reward.draw_labelled_pairs(config.queries)
    if pairs is None or (pairs[2] == 0.5).all():
        raise UsageError(f"the judge {config.judge} preferred nothing: {' '.join(reward.notes())}")
    return pairs, metrics | {"labels": float(len(pairs[2]))}, reward.notes()


def report(config: OfflineConfig) -> None:
    """Run, and print notes, metrics and the table of returns."""
    result = run(config)
    for note in result["notes"]:
        print(note)
    if result["labels"]:
        print("  ".join(f"{key} {value:.3g}" for key, value in result["labels"].items()))
    print(table(result["arms"]))


def train_arguments(argv: list[str]) -> list[str]:
    """The arguments of `runners.train` for those of this command that name a reward; a UsageError for what it lacks."""
    arguments = []
    algo = OfflineConfig.algo
    for argument in argv:
        key, equals, text = argument.partition("=")
        owner = key.partition(".")[0]
        if owner in INSTEAD_OF_ARMS:
            raise UsageError(f"{key}= is for the table of arms, not for a run with reward=; {INSTEAD_OF_ARMS[owner]}")
        if key == "algo":
            algo = text
        else:
            arguments.append(f"{TRAIN_KEYS.get(key, key)}{equals}{text}")
    agent = "offline_dyna" if algo == "dyna" else algo
    if agent not in agents.TABLE or agents.get(agent).driver != RECORDING:
        raise UsageError(
            f"algo={algo} learns from no reward; give iql, dyna, cloning, rcsl, dt or mbrcsl, or leave reward= out"
        )
    if not any(argument.startswith("total_timesteps=") for argument in arguments):
        arguments.append(f"total_timesteps={OfflineConfig.steps}")
    return [*arguments, f"agent={agent}"]


def train_rewarded(argv: list[str]) -> int:
    """A run for the reward that is named; its exit code."""
    from runners.train import train

    return train(train_arguments(argv))


class OfflineCommand(Command):
    """The table of arms; with reward= a run."""

    def __call__(self, argv: list[str] | None = None) -> int:
        words = sys.argv[1:] if argv is None else argv
        if any(word.partition("=")[0] == "reward" for word in words):
            return Command(None, train_rewarded, self.doc, stopped="")(argv)
        return super().__call__(argv)


main = OfflineCommand(OfflineConfig, report, __doc__)

if __name__ == "__main__":
    sys.exit(main())
