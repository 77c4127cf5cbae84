"""Train on a few tasks of a family, chosen one by one, so that their policies serve all of it without more training.

    python -m runners.transfer env=Pendulum-v1 over=env.g=[2,15,12] budget=5 agent=sac total_timesteps=8000

over= names an option of the environment and its range, [low,high,how many]; give it twice for a grid of two. After
every source its policy is evaluated on all tasks, which decides where to train next (see `runners.transfer.mbtl`). The
same command continues where it was stopped, or killed.
"""

import csv
import itertools
import json
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lodestar.files import read_json, replacing
from lodestar.settings import setting
from runners.cli.command import Command
from runners.cli.compose import ENV, compose
from runners.cli.value import is_number, literal, replaced, split
from runners.cli.value import read as read_value
from runners.evaluate import limits_of, play, policy
from runners.report.statistics import aggregate
from runners.run.build import load_run
from runners.run.checkpoint import versions, write_atomically
from runners.run.config import UsageError, read, to_dict
from runners.run.exits import Signals
from runners.sweep.config import JobsConfig, begin
from runners.sweep.drive import drive
from runners.sweep.grid import safe
from runners.sweep.job import Job, JobLog, Launcher
from runners.transfer import mbtl

CONTROLS = ("equidistant", "random")
OURS = "mbtl"
RETURNS = "transfer.json"  # in a run's folder: its policy's return on every task


@dataclass
class TransferConfig(JobsConfig):
    """What is asked for: over `keys`, one or two options as env.g, and N `tasks`, what each sets in their order.

    `contexts` are these scaled to [0, 1], (N, D), `labels` as in `g=7.5`; `train` is the run of the first task, `argv`
    what every run is given without its task, its seed and its folder.
    """

    budget: int = setting(5, "sources to train on, one after the other", low=1)
    seeds: int = setting(1, "runs of each source, with seeds 0, 1, ...", low=1)
    episodes: int = setting(10, "episodes of every policy on every task, the same for all", low=1)
    controls: list[str] = setting([*CONTROLS], "choices to compare with, a budget each; [] for none", choices=CONTROLS)
    seed: int = setting(0, "of the random control", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse("run_dir", "resume")
        over = [argument.partition("=")[2] for argument in self.rest if argument.startswith("over=")]
        rest = [argument for argument in self.rest if not argument.startswith("over=")]
        grids = dict(map(_grid, over))
        if not 1 <= len(grids) <= 2:
            raise UsageError(f"{len(grids)} options are given; name one or two, as in over=env.g=[2,15,12]")
        self.keys, self.tasks = list(grids), list(itertools.product(*grids.values()))
        if self.budget > len(self.tasks):
            raise UsageError(f"budget={self.budget} is out of range; there are {len(self.tasks)} tasks")
        self.train, _ = compose([*rest, *(f"{key}={literal(value)}" for key, value in zip(grids, self.tasks[0]))])
        self.argv = tuple(replaced(("control=none", "video=false"), rest))
        values, every = np.array(self.tasks, np.float64), map(self.options, range(len(self.tasks)))
        self.contexts = (values - values.min(axis=0)) / np.ptp(values, axis=0)
        self.labels = [",".join(f"{key}={value:g}" for key, value in options.items()) for options in every]
        run = f"{self.train.env}-{self.train.agent_name}-{self.train.rewards}-{'-'.join(grids)}"
        self.folder = Path(self.root) / "transfer" / safe(self.name or run)

    def options(self, task: int) -> dict[str, Any]:
        """The environment's options in a task."""
        return dict(zip((key.removeprefix(ENV) for key in self.keys), self.tasks[task]))

    def run(self, task: int, seed: int) -> Job:
        """Training on one task."""
        changes = {**dict(zip(self.keys, self.tasks[task])), "seed": seed}
        return self.job(self.folder, f"jobs/{safe(self.labels[task])}/s{seed}", self.argv, changes)

    def fixed(self) -> dict[str, Any]:
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
    given = read_value(split(text)[1])
    numbers = isinstance(given, list) and all(map(is_number, given))
    if not numbers or len(given) != 3 or not given[0] < given[1] or given[2] < 2 or given[2] != int(given[2]):
        raise UsageError(f"over={text} is no range; give [low,high,how many], as in over=env.g=[2,15,12]")
    low, high, count = given
    values = [float(f"{value:.6g}") for value in np.linspace(low, high, int(count))]
    whole = all(isinstance(v, int) for v in given) and all(value == int(value) for value in values)
    return key, [int(value) for value in values] if whole else values


class SourcePolicies:
    """Source -> the returns of its policies on all tasks; what is missing is trained."""

    def __init__(self, config: TransferConfig, log: JobLog, launcher: Launcher) -> None:
        self.config, self.log, self.launcher = config, log, launcher
        self.rows: dict[int, np.ndarray] = {}  # (seeds, N)

    def get(self, sources: list[int]) -> dict[int, np.ndarray]:
        """Returns (N,) of policies trained at each source, mean over seeds; sources that are new run at once."""
        new = [source for source in dict.fromkeys(sources) if source not in self.rows]
        seeds = range(self.config.seeds)
        jobs = [self.config.run(source, seed) for source in new for seed in seeds]
        entries = drive(jobs, self.log, self.launcher, resume="errored")
        for job in jobs:
            if not job.finished:
                error = entries[job.name].error or entries[job.name].state
                raise RuntimeError(f"{job.name} did not finish ({error}); the same command continues it")
        for source in new:
            self.rows[source] = np.array([returns(self.config, self.config.run(source, seed)) for seed in seeds])
        return {source: self.rows[source].mean(axis=0) for source in sources}


def returns(config: TransferConfig, job: Job) -> list[float]:
    """Return of a run's policy on every task, without further training: mean over episodes, (N,)."""
    path, asked = job.folder / RETURNS, {"tasks": [list(task) for task in config.tasks], "episodes": config.episodes}
    known: dict[str, Any] = read_json(path)
    if {key: known.get(key) for key in asked} != asked:
        typed = json.loads(json.dumps(to_dict(compose(list(job.argv))[0])))
        trained, model, mix, _ = load_run(job.folder, trust=read(job.folder / "config.yaml") == typed)
        limits, found = limits_of(trained, seed=0), []
        for task in range(len(config.tasks)):
            limits["options"] = {**trained.env_options, **config.options(task)}
            scores = play(trained.env, policy(model, trained), config.episodes, mix=mix, **limits)
            found.append(float(np.mean(scores.returns)))
        mix.close()
        known = {**asked, "returns": found}
        write_atomically(path, json.dumps(known) + "\n")
    return known["returns"]


def summary(config: TransferConfig, orders: dict[str, list[int]], rows: dict[int, np.ndarray]) -> dict[str, Any]:
    """All results, as plain data: `orders` are method -> sources in order, `rows` source -> returns (seeds, N)."""
    means = {source: values.mean(axis=0) for source, values in rows.items()}
    chosen = orders[OURS]
    best = np.max([means[source] for source in chosen], axis=0)
    found: dict[str, Any] = {
        **config.fixed(),
        **{"folder": str(config.folder), "budget": config.budget, "seeds": config.seeds},
        "steps": int(config.train.total_timesteps) * config.seeds * config.budget,
        "orders": {name: [config.labels[source] for source in order] for name, order in orders.items()},
        "generalised": {
            name: mbtl.generalised(np.array([means[s] for s in each])).tolist() for name, each in orders.items()
        },
        "at_home": float(np.mean([means[source][source] for source in chosen])),
        "best_of_all_at_home": float(np.mean(best[chosen])),
        "versions": versions(),
    }
    if config.seeds > 1:
        found["intervals"] = {}
        for name, order in orders.items():
            final = mbtl.generalised(np.array([rows[source] for source in order]).transpose(0, 2, 1))[-1]
            found["intervals"][name] = [float(end) for end in aggregate([final])[1:]]
    return found


def table(found: dict[str, Any]) -> str:
    """The summary as text."""
    tasks, names = found["tasks"], found["orders"]
    lines = [f"task return, mean over {len(tasks)} tasks of the best policy that was trained, after k sources"]
    lines.append(f"  {'k':<14}" + "".join(f"{k + 1:>10}" for k in range(found["budget"])))
    for name, values in found["generalised"].items():
        shown = values if name != "equidistant" else [None] * (len(values) - 1) + values[-1:]  # spread for the whole
        cells = "".join(f"{'' if value is None else f'{value:.4g}':>10}" for value in shown)
        ends = found.get("intervals", {}).get(name)
        lines.append(f"  {name:<14}{cells}" + (f"   [{ends[0]:.4g}, {ends[1]:.4g}]" if ends else ""))
    lines += [f"  {name} chose {' '.join(order)}" for name, order in names.items()]
    lines.append(
        f"  on the {found['budget']} tasks trained on: each by its own policy {found['at_home']:.4g}, "
        f"by the best of them {found['best_of_all_at_home']:.4g}; a policy for every task would be {len(tasks)} runs"
    )
    if found["seeds"] == 1:
        lines.append("  one run a source: differences may be luck; seeds=3 or more gives intervals")
    return "\n".join(lines)


def write(config: TransferConfig, found: dict[str, Any], rows: dict[int, np.ndarray], command: str) -> Path:
    """transfer.json, matrix.csv (a row for every run, a column for every task) and the picture, which is returned."""
    write_atomically(config.folder / "transfer.json", json.dumps({"command": command, **found}, indent=1) + "\n")
    with replacing(config.folder / "matrix.csv") as temporary, temporary.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["source", "seed", *config.labels])
        for source in sorted(rows):
            table.writerows([config.labels[source], seed, *each] for seed, each in enumerate(rows[source].tolist()))
    return draw(config, found, rows)


def draw(config: TransferConfig, found: dict[str, Any], rows: dict[int, np.ndarray]) -> Path:
    """The transfers, a row a source with its place in the order, and what they add up to."""
    from matplotlib.figure import Figure

    from runners.run.curve import STREAMS

    labels = config.labels
    sources = sorted(rows)
    numbered = {label: f"{k + 1}. {label}" for k, label in enumerate(found["orders"][OURS])}
    figure = Figure(figsize=(11, 1.5 + 0.35 * max(len(sources), 8)), layout="tight")
    left, right = figure.subplots(1, 2)
    image = left.imshow(np.array([rows[source].mean(axis=0) for source in sources]), aspect="auto")
    figure.colorbar(image, ax=left, label="task return")
    left.set_yticks(range(len(sources)), [numbered.get(labels[source], labels[source]) for source in sources])
    left.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
    left.scatter(sources, range(len(sources)), marker="s", facecolors="none", edgecolors="white")  # at home
    left.set(xlabel="task", ylabel="trained on (numbers: order of choice)", title="zero-shot transfer")
    for colour, (name, values) in zip(STREAMS, found["generalised"].items()):
        first = len(values) - 1 if name == "equidistant" else 0  # these are spread for the whole budget
        mark = "o" if first else "."
        right.plot(range(first + 1, len(values) + 1), values[first:], marker=mark, color=colour, label=name)
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
        begin(config.folder, config.fixed())
        labels, contexts = config.labels, config.contexts
        print(f"{len(labels)} tasks, {labels[0]} to {labels[-1]}; {config.folder}")
        fixed = {
            "equidistant": mbtl.equidistant(contexts, config.budget),
            "random": np.random.default_rng(config.seed).permutation(len(contexts))[: config.budget].tolist(),
        }
        orders: dict[str, list[int]] = {OURS: [], **{name: fixed[name] for name in config.controls}}
        with closing(config.launch()) as launcher:
            trained = SourcePolicies(config, log, launcher)
            trained.get([mbtl.choose(contexts, {}), *(source for order in orders.values() for source in order)])
            while len(orders[OURS]) < config.budget:
                seen = trained.get(orders[OURS])  # results of the controls are not used
                source = mbtl.choose(contexts, seen)
                orders[OURS].append(source)
                value = trained.get([source])[source][source]
                print(f"source {len(seen) + 1}: {labels[source]}, {value:.4g} at home", flush=True)
        found = summary(config, orders, trained.rows)
        picture = write(config, found, trained.rows, config.command("runners.transfer"))
        print(f"\n{table(found)}\n\npicture: {picture}")


main = Command(TransferConfig, transfer, __doc__, stopped="stopped: the runs have saved; the same command continues")

if __name__ == "__main__":
    sys.exit(main())
