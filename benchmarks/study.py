"""A study is data: a YAML file in `studies/` says what is compared; the sweep runs it, the report draws it.

    claim, about                    one line; what a reader of the figures must know
    collected                       the JSON that collects the figures of its area
    common, tasks, arms, cells      keys of runners.train, each on top of the one before; `cells` by pattern "task/arm"
    seeds (5), first_seed (0)       seeds of every cell, counted from the first
    chosen                          how the settings were chosen
    judge (evaluation)              or training: the last 100 episodes instead of those of the final policy
    score (return)                  the column that is drawn, and that `threshold` is for
    columns: {name: source}         further columns: a key of the evaluation, a tag of metrics.csv, or "max TAG"
    figures: {key: column}          of every cell, as in "{task}_{arm}": IQM over seeds with its interval, or
                                    "STATISTIC column"; the column `score` is the task's; "... where COLUMN"
                                    takes only the runs that have a value there
    shares: {key: [of, low, high]}  (of - low) / (high - low) of the figures of these keys; [of, high]: of / high;
                                    [of]: that figure under another name; [least, ...], [most, ...], [mean, ...] of
                                    figures and of shares above; [gap, ...]: the most that one of them lacks to 1;
                                    [doubling, a5, a10, b5, b10]: of two ways whose cost doubles from figure to
                                    figure, the cost of the first over that of the second, to equal figures
    system, verdict                 which system's effect it shows, and when it does: see effects.py
    again                           the row of the table of effects whose claim it tries again on fresh seeds
    post_hoc, cause                 how its rule was changed after its data were seen; why it is not shown
    recorded: why                   it cannot be run; its results are those of 0.1.0

`reward.*.x` is the option x of every reward but the task's. A task, an arm or a cell may also set `seeds` (0: not run),
and a task its `score`, its `threshold` and its `arms`. An arm that is a text is not trained: `random` and `control` are
evaluated by the runs of the task's first arm, whatever `judge` says.

A finished run becomes at once a row of NAME.csv and a curve of NAME_curves.csv; what has its row is not run again, on
whatever machine. Rows without a commit are those of 0.1.0; a study that is run again puts them aside first.
"""

from __future__ import annotations

import fnmatch
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.figures import Keys, Rows, figures, read_number
from runners.report.job_log import Entry
from runners.run.config import UsageError
from runners.sweep.config import make_launcher
from runners.sweep.display import Display
from runners.sweep.drive import drive
from runners.sweep.grid import make_job
from runners.sweep.job import Job, JobLog

FOLDER = Path(__file__).parent / "studies"
OWN = ("seeds", "score", "threshold")  # keys of a task, an arm or a cell that are the study's, not runners.train's
WINDOW = 100  # episodes that the training curve looks back on
POINTS = 100  # of a curve that are kept
EACH = "reward.*."
RETURN, SUCCESS, LENGTH = "rollout/ep_rew_mean", "rollout/success_rate", "rollout/ep_len_mean"


@dataclass(frozen=True)
class Cell:
    """A task and an arm: the command line of its runs, which seeds, and which policies of a run are its rows."""

    task: str
    arm: str
    keys: Keys
    seeds: int
    policies: dict[str, str]  # arm -> the policy of result.json that it is
    score: str
    threshold: float | None

    def argv(self, seed: int) -> dict[str, str]:
        """Key -> text, as runners.train reads it."""
        from runners.run.value import literal

        rewards = self.keys.get("reward", "task")
        given: Keys = {}
        for key, value in sorted(self.keys.items(), key=lambda item: not item[0].startswith(EACH)):
            names = [rewards] if isinstance(rewards, str) else rewards
            each = [f"reward.{name}.{key.removeprefix(EACH)}" for name in names if name != "task"]
            given |= dict.fromkeys(each if key.startswith(EACH) else [key], value)
        given = {"video": False, **given, "seed": seed}
        return {key: value if isinstance(value, str) else literal(value) for key, value in given.items()}


@dataclass(frozen=True)
class Study:
    """The file's keys; see the head of this file."""

    name: str
    claim: str
    collected: str
    about: str = ""
    common: Keys = field(default_factory=dict)
    tasks: dict[str, Keys] = field(default_factory=dict)
    arms: dict[str, Keys | str] = field(default_factory=dict)
    cells: dict[str, Keys] = field(default_factory=dict)
    seeds: int = 5
    first_seed: int = 0
    chosen: str = ""
    judge: str = "evaluation"
    score: str = "return"
    threshold: float | None = None
    columns: dict[str, str] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)
    shares: dict[str, list[str]] = field(default_factory=dict)
    system: str = ""
    verdict: dict[str, list[Any]] = field(default_factory=dict)
    again: str = ""
    post_hoc: str = ""
    cause: str = ""
    recorded: str = ""

    @classmethod
    def read(cls, name: str) -> Study:
        """The study of a name."""
        import yaml

        # libyaml reads ten times as fast as PyYAML's own loader.
        text = (FOLDER / f"{name}.yaml").read_text()
        study = cls(name=name, **yaml.load(text, yaml.CSafeLoader))
        if double := [column for column in study.columns if study.header().count(column) > 1]:
            raise UsageError(f"{name}: every study has the column {double[0]}; leave it out of columns")
        return study

    def grid(self) -> Iterator[Cell]:
        """Every cell that is trained, in the file's order."""
        for task, about in self.tasks.items():
            arms = {arm: keys for arm, keys in self.arms.items() if arm in about.get("arms", self.arms)}
            beside = {arm: keys for arm, keys in arms.items() if isinstance(keys, str)}
            for arm, keys in arms.items():
                if isinstance(keys, str):
                    continue
                merged: Keys = {"seeds": self.seeds, "score": self.score, "threshold": self.threshold}
                for layer in (self.common, about, keys, *self._patterns(task, arm)):
                    merged |= layer
                merged.pop("arms", None)
                if merged["seeds"]:
                    study = {key: merged.pop(key) for key in OWN}
                    yield Cell(task, arm, merged, policies={arm: "this run", **beside}, **study)
                    beside = {}

    def _patterns(self, task: str, arm: str) -> Iterator[Keys]:
        for patterns, keys in self.cells.items():
            if any(fnmatch.fnmatchcase(f"{task}/{arm}", pattern) for pattern in patterns.split()):
                yield keys

    def header(self) -> list[str]:
        """Columns of the CSV."""
        judged = ["return", "success", "length", "first_success", "solved_at"]
        return ["task", "arm", "seed", *judged, *self.columns, "steps", "seconds", "commit"]


def names() -> list[str]:
    """Every study."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def run(study: Study, folder: Path, *, root: Path = Path("runs"), slots: int | None = None) -> dict[str, float]:
    """Run what has no row yet, one process a core; returns the figures. Stop it at any time: it continues.

    Args:
        study: what to run.
        folder: of the results.
        root: the runs themselves are below its `sweeps`.
        slots: runs at once; None takes one a core.

    Raises:
        UsageError: if an arm's arguments are wrong, before anything runs; or if the study can no longer be run.
        RuntimeError: at the end, if runs failed; the same command tries them again.
        Stopped: if a signal came; the runs have saved.
    """
    if study.recorded:
        raise UsageError(f"{study.name} cannot be run: {study.recorded}; its results were recorded with 0.1.0")
    path = folder / f"{study.name}.csv"
    put_aside(path, study.header())
    place = root.absolute() / "sweeps" / f"study-{study.name}"
    jobs = jobs_of(study, place, results.read_rows(path))
    if jobs:
        display = RowWriter(study, jobs, path)
        with closing(JobLog(place)) as log, closing(make_launcher("local", {"slots": slots})) as launcher, display:
            drive(jobs, log, launcher, resume="errored", watcher=display)
        if display.failed:
            raise RuntimeError(f"{len(display.failed)} runs of {study.name} failed: {'; '.join(display.failed)}")
    rows = results.read_rows(path)
    draw(study, rows, results.read_rows(curves(path)), folder.parent / "figures" / f"{study.name}.png")
    return figures(study, rows)


class RowWriter(Display):
    """Shows the runs of a study, and writes the rows of each when it has finished."""

    def __init__(self, study: Study, jobs: dict[Job, tuple[Cell, int]], path: Path) -> None:
        super().__init__(list(jobs))
        self.study, self.cells, self.path = study, jobs, path
        self.failed: list[str] = []

    def job_ended(self, job: Job, entry: Entry) -> None:
        if entry.state == "finished":
            write(self.study, *self.cells[job], job.folder, entry.seconds, self.path)
        elif entry.state == "failed":
            self.failed.append(f"{job.name}: {entry.error}")


def put_aside(path: Path, header: list[str]) -> None:
    """Results with other columns, such as those of 0.1.0, keep their numbers under another name."""
    found = results.read_rows(path)
    if found and list(found[0]) != header:
        version = time.strftime("%Y%m%d-%H%M%S") if "commit" in found[0] else "0.1.0"
        for old in filter(Path.exists, (path, curves(path))):
            kept = old.with_stem(f"{old.stem}-{version}")
            print(f"{old} has other columns: it is kept as {kept.name}", flush=True)
            old.rename(kept)


def curves(path: Path) -> Path:
    """The CSV of learning curves that belongs to one of results."""
    return path.with_stem(f"{path.stem}_curves")


def jobs_of(study: Study, place: Path, rows: Rows) -> dict[Job, tuple[Cell, int]]:
    """Jobs that lack a row -> cell and seed; every cell's first seed comes before any second one."""
    there = {(row["task"], row["arm"], str(row["seed"])) for row in rows}
    found: dict[Job, tuple[Cell, int]] = {}
    composed = [(cell, *_composed(cell)) for cell in study.grid()]
    most_seeds = max((cell.seeds for cell, _, _ in composed), default=0)
    for repetition in range(most_seeds):
        seed = study.first_seed + repetition
        for cell, given, config in composed:
            if repetition < cell.seeds and (cell.task, cell.arm, str(seed)) not in there:
                job = (f"{cell.task}/{cell.arm}/s{seed}", {**given, "seed": str(seed)}, replace(config, seed=seed))
                found[make_job(*job, place, 0.0)] = (cell, seed)
    return found


def _composed(cell: Cell) -> tuple[dict[str, str], Any]:
    """Its command line, and the configuration of that: a mistake in it is an error before anything runs."""
    from runners.cli.compose import compose

    given = cell.argv(0)
    return given, compose([f"{key}={text}" for key, text in given.items()])[0]


def write(study: Study, cell: Cell, seed: int, run_folder: Path, seconds: float, path: Path) -> None:
    """Append the curve and the rows of a finished run, each once however often the study was killed."""
    scores = json.loads((run_folder / "result.json").read_text())
    log = results.read_rows(run_folder / "metrics.csv")
    trained = {"task": cell.task, "arm": cell.arm, "seed": seed}
    if not _of(results.read_rows(curves(path)), trained) and curve(log):
        results.append_rows(curves(path), [{**trained, **point} for point in thin(curve(log))])
    rows = []
    for arm, wanted in cell.policies.items():
        policy = next((name for name in scores if name.startswith(wanted)), None)
        if policy is not None:
            own = log if arm == cell.arm else []
            row = {**trained, "arm": arm, **measured(study, cell, scores[policy], own), "commit": commit()}
            row |= {"steps": int(own[-1]["step"]), "seconds": round(seconds, 1)} if own else {"steps": 0}
            rows.append({key: row.get(key, "") for key in study.header()})
    if not _of(results.read_rows(path), trained):
        results.append_rows(path, rows)


def _of(rows: Rows, who: Keys) -> Rows:
    """Those of a task, an arm and perhaps a seed."""
    return [row for row in rows if all(row[key] == str(value) for key, value in who.items())]


def measured(study: Study, cell: Cell, scores: dict[str, Any], log: Rows) -> dict[str, Any]:
    """The columns that say how a policy did: by its evaluation, or by the end of its training."""
    points, solved = curve(log), solved_at(log, cell)
    judged = {"return": scores["task_return"], "success": scores["success"], "length": scores["length"]}
    if study.judge == "training" and points:
        judged |= {key: points[-1][key] for key in ("return", "success")}
    first = next((point["steps"] for point in points if (point["success"] or 0) > 0), None)
    judged |= {"first_success": first, "solved_at": solved}
    for name, source in study.columns.items():
        tag = source.removeprefix("max ")
        values = [float(row[tag]) for row in log if row.get(tag)]
        known = {**scores, **(scores.get("metrics") or {})}
        judged[name] = known.get(source, (max(values) if tag != source else values[-1]) if values else None)
    return {key: "" if v is None else round(v, 4) if isinstance(v, float) else v for key, v in judged.items()}


def curve(log: Rows) -> Rows:
    """Steps, return and success (None where the task has none) of the last episodes, from the rows of metrics.csv."""
    return [
        {"steps": int(row["step"]), **{name: read_number(row.get(tag)) for name, tag in _CURVE.items()}}
        for row in log
        if row.get(RETURN)
    ]


_CURVE = {"return": RETURN, "success": SUCCESS}


def solved_at(log: Rows, cell: Cell) -> int | None:
    """When the mean over whole `WINDOW` episodes first reached the threshold.

    There were at most step / length episodes. Before `WINDOW` of them, those that ended early would stand for all.
    """
    if cell.threshold is None:
        return None
    tag = _CURVE[cell.score]
    whole = (row for row in log if row.get(tag) and int(row["step"]) >= WINDOW * float(row[LENGTH]))
    return next((int(row["step"]) for row in whole if float(row[tag]) >= cell.threshold), None)


def thin(points: Rows, most: int = POINTS) -> Rows:
    """At most so many points of a curve, the last among them, rounded."""
    kept = points[:: -max(1, -(-len(points) // most))][::-1]
    return [{key: "" if v is None else round(v, 4) for key, v in point.items()} for point in kept]


@cache
def commit() -> str:
    """Of this checkout, with + behind it if files differ from it, results apart."""
    ask = partial(subprocess.run, cwd=FOLDER, capture_output=True, text=True, check=True)
    try:
        head = ask(["git", "rev-parse", "--short", "HEAD"]).stdout.strip()
        changed = ask(["git", "status", "--porcelain", "--", ":/", ":(top,exclude)assets"]).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + "+" * bool(changed)


def draw(study: Study, rows: Rows, points: Rows, picture: Path) -> None:
    """Learning curves and final scores of every task, as in the report; scores alone where there are many arms."""
    import matplotlib

    from runners.report import plots
    from runners.report.comparison import Comparison, bands
    from runners.report.numbers import Numbers

    runs = list(_runs(study, rows, points))
    if not runs:
        return
    data = Comparison(runs)
    picture.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(plots.STYLE):
        if len(data.arms) <= plots.MAX_DIRECT_ARMS and all(len(run.steps) for run in runs):
            figure = plots.learning(Numbers(data), bands(data, POINTS), aggregated=True)
        else:
            figure = _finals(Numbers(data))
        for axis in figure.axes:
            score = study.tasks.get(axis.get_title(loc="left"), {}).get("score", study.score)
            axis.set_xlabel(axis.get_xlabel().replace("task return", score))
            axis.set_ylabel(axis.get_ylabel().replace("task return", score))
        figure.savefig(picture, dpi=160)


def _finals(numbers: Any) -> Any:
    """Final scores of every arm, one panel a task, a random policy dotted: where there are more arms than curves."""
    from runners.report import plots

    rows = {task: numbers.find("final", task=task) for task in numbers.data.tasks}
    high = 0.2 * max(map(len, rows.values())) + 0.8
    figure, axes = plots.grid(len(rows), (plots.PANEL_INCHES[0], max(plots.PANEL_INCHES[1], high)))
    for axis, (task, found) in zip(axes, rows.items()):
        plots.draw_intervals(axis, numbers.data, found, "task return, IQM and 95 % interval")
        axis.set_title(plots.cut(task, 44))
        chance = numbers.find_one("random", task=task)
        if chance is not None and np.isfinite(chance.value):
            axis.axvline(chance.value, **plots.RANDOM, zorder=0)
    return figure


def _runs(study: Study, rows: Rows, points: Rows) -> Iterator[Any]:
    """Trained rows as the report's runs; the score of the study stands where it looks for the task's return."""
    from runners.report.read import TASK_RETURN, Run

    scores = {cell.task: cell.score for cell in study.grid()}
    at_random = [row for row in rows if study.arms.get(row["arm"]) == "random"]
    chance = {(row["task"], row["seed"]): read_number(row[scores[row["task"]]]) for row in at_random}
    for row in rows:
        task, arm, score = row["task"], row["arm"], scores[row["task"]]
        if read_number(row[score]) is None or row in at_random:
            continue
        own = [p for p in _of(points, {key: row[key] for key in ("task", "arm", "seed")}) if p.get(score)]
        made = Run(f"{task}/{arm}/s{row['seed']}", task, arm, "", int(row["seed"]), status={"state": "finished"})
        made.scores = {"this run": {"task_return": read_number(row[score])}}
        made.scores["random"] = {"task_return": chance.get((task, row["seed"]))}
        made.steps = np.array([float(p["steps"]) for p in own])
        made.table = {TASK_RETURN: np.array([float(p[score]) for p in own])}
        yield made
