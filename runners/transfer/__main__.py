"""Train on a few tasks of a family, chosen one by one, so that their policies serve all of it without more training.

    python -m runners.transfer env=Pendulum-v1 over=env.g=[2,15,12] budget=5 agent=sac total_timesteps=8000

over= names an option of the environment and its range, [low,high,how many]; give it twice for a grid of two. After
every source its policy is evaluated on all tasks, which decides where to train next (see `runners.transfer.mbtl`). The
same command continues where it was stopped, or killed.
"""

import csv
import functools
import itertools
import json
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lodestar.files import read_json, replacing
from lodestar.settings import setting
from runners.cli.command import Command
from runners.cli.compose import ENV, compose
from runners.evaluate import limits_of, play, policy
from runners.report.statistics import aggregate
from runners.run.build import load_run
from runners.run.checkpoint import versions, write_atomically, write_json
from runners.run.config import UsageError, Values, read, to_dict
from runners.run.exits import Signals
from runners.run.value import is_number, literals, replace_arguments, split
from runners.run.value import read as read_value
from runners.sweep.config import JobsConfig, begin
from runners.sweep.drive import drive
from runners.sweep.grid import folder_name
from runners.sweep.job import Job, JobLog, Launcher
from runners.transfer import mbtl

OURS = "mbtl"
EQUIDISTANT = "equidistant"
CONTROLS = (EQUIDISTANT, "random")
# Source -> returns of its policies, one for each seed, on all tasks: (seeds, N).
Returns = dict[int, np.ndarray]
# In a run's folder: its policy's return on every task.
RETURNS_FILE = "transfer.json"


@dataclass
class TransferConfig(JobsConfig):
    """What is asked for: over `keys`, one or two options as env.g, and N `tasks`, what each sets in their order.

    `contexts` are these scaled to [0, 1], (N, D), `labels` as in `g=7.5`; `train` is the run of the first task, `argv`
    what every run is given without its task, its seed and its folder.
    """

    budget: int = setting(5, "sources to train on, one after the other", ">= 1")
    seeds: int = setting(1, "runs of each source, with seeds 0, 1, ...", ">= 1")
    episodes: int = setting(10, "episodes of every policy on every task, the same for all", ">= 1")
    controls: list[str] = setting([*CONTROLS], "choices to compare with, a budget each; [] for none", choices=CONTROLS)
    seed: int = setting(0, "of the random control", ">= 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse("run_dir", "resume")
        grids = {}
        run_argv = []
        for argument in self.rest:
            if argument.startswith("over="):
                key, values = _grid(argument.removeprefix("over="))
                grids[key] = values
            else:
                run_argv.append(argument)
        if not 1 <= len(grids) <= 2:
            raise UsageError(f"{len(grids)} options are given; name one or two, as in over=env.g=[2,15,12]")
        self.keys = list(grids)
        self.tasks = list(itertools.product(*grids.values()))
        if self.budget > len(self.tasks):
            raise UsageError(f"budget={self.budget} is out of range; there are {len(self.tasks)} tasks")
        self.train, _ = compose(run_argv + literals(dict(zip(grids, self.tasks[0]))))
        self.argv = tuple(replace_arguments(("control=none", "video=false"), run_argv))
        settings = np.array(self.tasks, np.float64)
        self.contexts = (settings - settings.min(axis=0)) / np.ptp(settings, axis=0)
        self.labels = []
        for task in range(len(self.tasks)):
            options = self.options(task)
            self.labels.append(",".join(f"{key}={value:g}" for key, value in options.items()))
        name = f"{self.train.env}-{self.train.agent_name}-{self.train.rewards}-{'-'.join(grids)}"
        self.folder = Path(self.root) / "transfer" / folder_name(self.name or name)

    def options(self, task: int) -> Values:
        """The environment's options in a task."""
        return {key.removeprefix(ENV): value for key, value in zip(self.keys, self.tasks[task])}

    def run(self, task: int, seed: int) -> Job:
        """Training on one task."""
        changes = {**dict(zip(self.keys, self.tasks[task])), "seed": seed}
        return self.job(self.folder, f"jobs/{folder_name(self.labels[task])}/s{seed}", self.argv, changes)

    def fixed_settings(self) -> Values:
        """What must be the same to continue in this folder; the budget may be raised."""
        return {"argv": list(self.argv), "keys": self.keys, "tasks": self.tasks, "episodes": self.episodes}


def _grid(text: str) -> tuple[str, list[float]]:
    """`env.g=[2,15,12]` -> the option and its values."""
    key = text.partition("=")[0]
    if not key.startswith(ENV):
        raise UsageError(
            f"over={key} is no option of an environment; give one, as in over=env.g=[2,15,12] (a reward or an agent is "
            "judged on the same task whatever its options: runners.tune)"
        )
    interval = read_value(split(text)[1])
    has_three_numbers = isinstance(interval, list) and len(interval) == 3 and all(map(is_number, interval))
    if not has_three_numbers or not interval[0] < interval[1] or interval[2] < 2 or interval[2] % 1:
        raise UsageError(f"over={text} is no range; give [low,high,how many], as in over=env.g=[2,15,12]")
    low, high, count = interval
    values = [float(f"{value:.6g}") for value in np.linspace(low, high, int(count))]
    # A range of whole numbers stays one where its steps are whole, too: an option may take no float.
    if all(isinstance(number, int) for number in interval) and all(map(float.is_integer, values)):
        return key, list(map(int, values))
    return key, values


def train_sources(config: TransferConfig, log: JobLog, launcher: Launcher, rows: Returns, sources: list[int]) -> None:
    """Fill in the rows that are missing of these sources, which run at once."""
    jobs = {}
    for source in sources:
        if source not in rows:
            jobs[source] = [config.run(source, seed) for seed in range(config.seeds)]
    entries = drive(itertools.chain(*jobs.values()), log, launcher, resume="errored")
    for job in itertools.chain(*jobs.values()):
        if not job.is_finished:
            error = entries[job.name].error or entries[job.name].state
            raise RuntimeError(f"{job.name} did not finish ({error}); the same command continues it")
    for source, runs in jobs.items():
        rows[source] = np.array([evaluate_on_tasks(config, job) for job in runs])


def evaluate_on_tasks(config: TransferConfig, job: Job) -> list[float]:
    """Return of a run's policy on every task, without further training: mean over episodes, (N,)."""
    path = job.folder / RETURNS_FILE
    wanted = {"tasks": list(map(list, config.tasks)), "episodes": config.episodes}
    saved = read_json(path)
    if {key: saved.get(key) for key in wanted} == wanted:
        return saved["returns"]
    composed, _ = compose(list(job.argv))
    # A run with the settings of this command is ours, so what its folder holds is trusted.
    trust = read(job.folder / "config.yaml") == json.loads(json.dumps(to_dict(composed)))
    trained, model, mix, _ = load_run(job.folder, trust=trust)
    limits = limits_of(trained, seed=0)
    returns = []
    for task in range(len(config.tasks)):
        limits["options"] = {**trained.env_options, **config.options(task)}
        scores = play(trained.env, policy(model, trained), config.episodes, mix=mix, **limits)
        returns.append(float(np.mean(scores.returns)))
    mix.close()
    write_atomically(path, json.dumps({**wanted, "returns": returns}) + "\n")
    return returns


def _stack_returns(rows: Returns, sources: list[int]) -> np.ndarray:
    """Returns (K, seeds, N) of these sources, in this order."""
    return np.array([rows[source] for source in sources])


def summary(config: TransferConfig, orders: dict[str, list[int]], rows: Returns) -> Values:
    """All results, as plain data: `orders` are method -> sources in order."""
    labels = {}
    generalised = {}
    intervals = {}
    for name, order in orders.items():
        labels[name] = [config.labels[source] for source in order]
        # Returns (K, seeds, N) of the sources in their order.
        returns = _stack_returns(rows, order)
        generalised[name] = mbtl.mean_of_best(returns.mean(axis=1)).tolist()
        if config.seeds > 1:
            _, low, high = aggregate([mbtl.mean_of_best(returns.transpose(0, 2, 1))[-1]])
            intervals[name] = [float(low), float(high)]
    chosen = orders[OURS]
    # Returns (K, K) of the policies of the chosen sources, on these.
    at_home = _stack_returns(rows, chosen).mean(axis=1)[:, chosen]
    results = {
        **config.fixed_settings(),
        "folder": str(config.folder),
        "budget": config.budget,
        "seeds": config.seeds,
        "steps": int(config.train.total_timesteps) * config.seeds * config.budget,
        "orders": labels,
        "generalised": generalised,
        "at_home": float(np.mean(at_home.diagonal())),
        "best_of_all_at_home": float(np.mean(at_home.max(axis=0))),
        "versions": versions(),
    }
    if intervals:
        results["intervals"] = intervals
    return results


def table(results: Values) -> str:
    """The summary as text."""
    tasks = len(results["tasks"])
    budget = results["budget"]
    header = "".join(map("{:>10}".format, range(1, budget + 1)))
    lines = [
        f"task return, mean over {tasks} tasks of the best policy that was trained, after k sources",
        f"  {'k':<14}{header}",
    ]
    for name, values in results["generalised"].items():
        cells = list(map("{:>10.4g}".format, values))
        # Equidistant sources are spread for the whole budget: fewer of them mean nothing.
        if name == EQUIDISTANT:
            cells[:-1] = [" " * 10] * (len(values) - 1)
        line = f"  {name:<14}{''.join(cells)}"
        if "intervals" in results:
            low, high = results["intervals"][name]
            line += f"   [{low:.4g}, {high:.4g}]"
        lines.append(line)
    for name, order in results["orders"].items():
        lines.append(f"  {name} chose {' '.join(order)}")
    lines.append(
        f"  on the {budget} tasks trained on: each by its own policy {results['at_home']:.4g}, "
        f"by the best of them {results['best_of_all_at_home']:.4g}; a policy for every task would be {tasks} runs"
    )
    if results["seeds"] == 1:
        lines.append("  one run a source: differences may be luck; seeds=3 or more gives intervals")
    return "\n".join(lines)


def write(config: TransferConfig, results: Values, rows: Returns) -> Path:
    """transfer.json, matrix.csv (a row for every run, a column for every task) and the picture, which is returned."""
    write_json(config.folder / "transfer.json", {"command": config.command("runners.transfer"), **results})
    with replacing(config.folder / "matrix.csv") as temporary, temporary.open("w", newline="") as file:
        matrix = csv.writer(file, lineterminator="\n")
        matrix.writerow(["source", "seed", *config.labels])
        for source in sorted(rows):
            for seed, returns in enumerate(rows[source].tolist()):
                matrix.writerow([config.labels[source], seed, *returns])
    return draw(config, results, rows)


def draw(config: TransferConfig, results: Values, rows: Returns) -> Path:
    """The transfers, a row a source with its place in the order, and what they add up to."""
    from matplotlib.figure import Figure

    from runners.run.curve import STREAM_COLOURS

    sources = sorted(rows)
    names = []
    order = results["orders"][OURS]
    for source in sources:
        label = config.labels[source]
        # A source that was chosen says when.
        place = f"{order.index(label) + 1}. " if label in order else ""
        names.append(place + label)
    figure = Figure(figsize=(11, 1.5 + 0.35 * max(len(sources), 8)), layout="tight")
    left, right = figure.subplots(1, 2)
    image = left.imshow(_stack_returns(rows, sources).mean(axis=1), aspect="auto")
    figure.colorbar(image, ax=left, label="task return")
    left.set_yticks(range(len(sources)), names)
    left.set_xticks(range(len(config.labels)), config.labels, rotation=90, fontsize=7)
    # Squares mark each policy on the task that it was trained on.
    left.scatter(sources, range(len(sources)), marker="s", facecolors="none", edgecolors="white")
    left.set(xlabel="task", ylabel="trained on (numbers: order of choice)", title="zero-shot transfer")
    for colour, (name, values) in zip(STREAM_COLOURS, results["generalised"].items()):
        count = range(1, len(values) + 1)
        mark = "."
        # Equidistant sources are spread for the whole budget: fewer of them mean nothing.
        if name == EQUIDISTANT and len(values) > 1:
            count = count[-1:]
            mark = "o"
        right.plot(count, values[-len(count) :], marker=mark, color=colour, label=name)
    right.set(xlabel="sources trained on", ylabel="task return, mean over tasks", title=config.train.env)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.legend()
    path = config.folder / "transfer.png"
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120)
    return path


def transfer(config: TransferConfig) -> None:
    """All of it: controls know their sources beforehand and run beside the first one; then a source at a time."""
    with Signals(), closing(JobLog(config.folder)) as log:
        begin(config.folder, config.fixed_settings())
        labels = config.labels
        contexts = config.contexts
        print(f"{len(labels)} tasks, {labels[0]} to {labels[-1]}; {config.folder}")
        shuffled = np.random.default_rng(config.seed).permutation(len(contexts))
        controls = {
            EQUIDISTANT: mbtl.equidistant(contexts, config.budget),
            "random": shuffled[: config.budget].tolist(),
        }
        chosen: list[int] = []
        orders = {OURS: chosen}
        rows: Returns = {}
        # Their means (N,), of the chosen sources.
        seen: dict[int, np.ndarray] = {}
        for name in config.controls:
            orders[name] = controls[name]
        with closing(config.launch()) as launcher:
            train = functools.partial(train_sources, config, log, launcher, rows)
            train([mbtl.choose(contexts, {}), *itertools.chain(*orders.values())])
            while len(chosen) < config.budget:
                # The results of the controls are not used.
                source = mbtl.choose(contexts, seen)
                chosen.append(source)
                train([source])
                seen[source] = rows[source].mean(axis=0)
                print(f"source {len(chosen)}: {labels[source]}, {seen[source][source]:.4g} at home", flush=True)
        results = summary(config, orders, rows)
        picture = write(config, results, rows)
        print(f"\n{table(results)}\n\npicture: {picture}")


main = Command(TransferConfig, transfer, __doc__, stopped="stopped: the runs have saved; the same command continues")

if __name__ == "__main__":
    sys.exit(main())
