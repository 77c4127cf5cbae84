"""Reads the folders of runs below a path, and published curves, trusting nothing in them.

The process that wrote a folder may have been killed, or be untrusted: every file may be missing, torn or made up. A
folder that cannot be read costs one sentence, and a part of it that cannot be read another; nothing is executed.

Published curves come from CSVs as others export them; no run of ours is paired with them. Two forms are known by their
headers:

    wide  global_step | Step, then a column a run: "<run> - charts/episodic_return", beside "...__MIN" and "...__MAX",
          as Weights & Biases exports a chart; CleanRL's run names are <env>__<name>__<seed>__<time>
    long  a row a point: step, episodic_return, and what there is of seed, exp_name and env_id, under these or similar
          names, as `DataFrame.to_csv` leaves them
"""

import csv
import itertools
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lodestar.files import opened_text, read_text
from runners.run.config import UsageError, flatten, read
from runners.run.folder import read_status
from runners.run.judged import no_label_sentences
from runners.sweep.job import Entry, replay

TASK_RETURN, LEARNED_RETURN = "rollout/ep_rew_mean", "rollout/ep_learned_mean"  # as runners.run.progress, without torch
ALARM, ELAPSED = "reward/alarm", "time/time_elapsed"

STEPS = ("global_step", "step", "steps", "timesteps", "total_timesteps", "env_steps", "time/total_timesteps", "frame")
RETURNS: tuple[str, ...] = ("charts/episodic_return", "episodic_return", "rollout/ep_rew_mean", "eval/mean_reward")
RETURNS += ("episode_return", "episode_reward", "ep_rew_mean", "mean_reward", "return", "returns")
RETURNS += ("reward", "score", "value")
NAMES = ("exp_name", "algo", "algorithm", "agent", "method", "run", "run_name", "name")
TASKS = ("env_id", "env", "environment", "task", "game")
EXTREMES = ("__MIN", "__MAX", "_step")
MOST_CSV_BYTES = 200_000_000
MOST_ROWS_AVERAGED = 100
Points = dict[tuple[str, str, str], list[tuple[float, float]]]  # (name, task, seed) -> (step, return)
Curve = tuple[np.ndarray, np.ndarray]  # steps, ascending, and finite values; both (P,)


@dataclass
class Run:
    """One run, as far as it can be read; also a published one, which has a curve only."""

    name: str  # its folder, as seen from the path that was given
    task: str  # environment and its options
    reward: str  # names, as in `task+rnd`
    agent: str
    seed: int | None
    config: dict[str, Any] = field(default_factory=dict)  # flat, as in {"agent.learning_rate": 0.0003}
    folder: Path | None = None
    steps: np.ndarray = field(default_factory=lambda: np.zeros(0))
    table: dict[str, np.ndarray] = field(default_factory=dict)  # tag -> values over `steps`, nan where a row has none
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)  # of result.json: policy, as "random" -> results
    status: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    text: str = ""
    control: bool = False
    published: str = ""
    label: str = ""  # of the path that it was found below
    attempt: Entry | None = None  # its state in the job log of its sweep
    notes: list[str] = field(default_factory=list)  # what could not be read, and rewards without a label

    @property
    def state(self) -> str:
        """running, stopped, failed or finished, as the run itself wrote it."""
        return "published" if self.published else str(self.status.get("state", "unknown"))

    @property
    def total(self) -> float:
        """Steps that it was meant to take; nan if unknown."""
        return number(self.config.get("total_timesteps"))

    @property
    def last(self) -> float:
        """The step of its last row; 0 without rows."""
        return float(self.steps[-1]) if len(self.steps) else 0.0

    def curve(self, tag: str) -> Curve:
        """Where a tag has finite values."""
        values = self.table.get(tag, np.full(len(self.steps), np.nan))
        there = np.isfinite(values)
        return self.steps[there], values[there]

    @property
    def key(self) -> int | str:
        """Its seed, or its name where it has none."""
        return self.name if self.seed is None else self.seed

    @property
    def possible(self) -> tuple[float, float]:
        """The lowest and the highest task return that there can be, as its evaluation says; infinite where unknown."""
        return possible_returns(self.scores)

    def result(self, key: str, policy: str = "this run") -> float:
        """A number of the final evaluation; nan if there is none."""
        return number(self.scores.get(policy, {}).get(key))


def find(labelled: Iterable[tuple[Path, str]]) -> tuple[list[Run], list[str]]:
    """All runs in or below some folders, whose labels go before arms' names; a sentence about each unreadable one."""
    runs: list[Run] = []
    problems: list[str] = []
    seen: set[Path] = set()
    for path, label in labelled:
        jobs, lost = _jobs(path)
        problems += lost
        for folder in _folders(path):
            if folder.resolve() in seen:
                continue
            seen.add(folder.resolve())
            name = folder.relative_to(path).as_posix() if folder != path else folder.resolve().name
            try:
                runs.append(read_run(folder, name))
                runs[-1].label, runs[-1].attempt = label, jobs.get(folder)
            except Exception as error:  # whatever an untrusted file does to a parser
                problems.append(f"{name} cannot be read: {_sentence(error)}")
    return runs, problems


def _folders(path: Path) -> Iterator[Path]:
    """Folders with a config.yaml; below one, only its control run is looked for."""
    for place, folders, files in os.walk(path):
        folders.sort()
        if "config.yaml" in files:
            yield Path(place)
            folders[:] = [name for name in folders if name == "control"]


def _jobs(path: Path) -> tuple[dict[Path, Entry], list[str]]:
    """Run folder -> its entry in the job log of a sweep, and a sentence about each job that left no folder."""
    try:
        entries = replay(path)
    except (OSError, TypeError, ValueError) as error:
        return {}, [f"its job log cannot be read: {_sentence(error)}"]
    lost = [
        f"{name} left nothing: {entry.state}" + (f", {entry.error}" if entry.error else "")
        for name, entry in entries.items()
        if not (path / "jobs" / name / "config.yaml").exists()
    ]
    return {path / "jobs" / name: entry for name, entry in entries.items()}, lost


def read_run(folder: Path, name: str) -> Run:
    """One run's folder; an Exception of any kind if its config.yaml does not name what was run."""
    config = read(folder / "config.yaml")
    rewards, agent = config.get("reward"), config.get("agent")
    if not isinstance(rewards, dict) or not isinstance(agent, dict) or not config.get("env"):
        raise ValueError("config.yaml does not name the env, reward and agent that were run")
    flat = flatten(config)
    options = [f"{key.removeprefix('env_options.')}={flat[key]}" for key in flat if key.startswith("env_options.")]
    task = f"{config['env']} ({', '.join(options)})" if options else str(config["env"])
    seed = config.get("seed") if isinstance(config.get("seed"), int) else None
    run = Run(name, task, "+".join(map(str, rewards)), str(agent.get("name", "unknown")), seed, flat, folder)
    place = str(folder.resolve())  # may name a home directory
    run.text = read_text(folder / "config.yaml").replace(place, name)
    run.control = folder.parent.name == "control"
    run.status = read_status(folder) or {}
    for part, take in (("metrics.csv", _metrics), ("result.json", _result), ("versions.json", _versions)):
        if not (folder / part).exists():
            continue
        try:
            take(run, folder / part)
        except Exception as error:
            run.notes.append(f"{part} cannot be read: {_sentence(error)}")
    if (folder / "command.txt").exists():
        run.commands = read_text(folder / "command.txt").replace(place, name).splitlines()
    return run


def _metrics(run: Run, path: Path) -> None:
    """Take in the columns that pictures and tables use; rows that are not whole are left out, a last one silently."""
    with opened_text(path, MOST_CSV_BYTES) as file:
        rows = csv.reader(file)
        header = next(rows, [])
        if "step" not in header:
            raise ValueError("it has no column 'step'")
        step, width, every = header.index("step"), len(header), list(rows)
    good = [len(row) == width and row[step].isdigit() for row in every]
    whole = list(itertools.compress(every, good))
    broken = good[:-1].count(False)
    if broken:
        run.notes.append(f"metrics.csv has {broken} rows that are not whole; they are left out")
    wanted = ("step", TASK_RETURN, LEARNED_RETURN, ALARM, ELAPSED)
    columns = {tag: i for i, tag in enumerate(header) if tag in wanted or re.fullmatch(r"(?s)reward/.*_share", tag)}
    table = {tag: _column([row[i] for row in whole]) for tag, i in columns.items()}
    steps = table.pop("step")
    rising = np.ones(len(steps), bool)
    rising[1:] = steps[1:] > np.maximum.accumulate(steps)[:-1]
    run.steps, run.table = steps[rising], {tag: values[rising] for tag, values in table.items()}


def _column(cells: list[str]) -> np.ndarray:
    """Numbers of a column; nan where a cell is empty, infinite or text."""
    try:
        values = np.array([float(cell or "nan") for cell in cells])
    except ValueError:
        return np.array([number(cell) for cell in cells])
    return np.where(np.isfinite(values), values, np.nan)


def _result(run: Run, path: Path) -> None:
    found = json.loads(read_text(path)).items()
    run.scores = {str(policy): results for policy, results in found if isinstance(results, dict)}
    run.notes += no_label_sentences(run.scores.get("this run", {}))


def _versions(run: Run, path: Path) -> None:
    found = json.loads(read_text(path)).items()
    run.versions = {str(name): str(version) for name, version in found}


def possible_returns(scores: dict[str, Any]) -> tuple[float, float]:
    """The lowest and the highest task return that there can be, by what result.json holds; infinite where unknown."""
    own = scores.get("this run")
    ends = own.get("task_return_possible") if isinstance(own, dict) else None
    if not isinstance(ends, list) or len(ends) != 2 or not number(ends[0]) < number(ends[1]):
        return -math.inf, math.inf
    return number(ends[0]), number(ends[1])


def number(value: Any) -> float:
    """A finite number, or nan."""
    try:
        found = float(value) if isinstance(value, (int, float, str)) else math.nan
    except ValueError:
        return math.nan
    return found if math.isfinite(found) else math.nan


def _sentence(error: Exception) -> str:
    return " ".join(f"{error}".split())[:300] or type(error).__name__


def published(path: Path, label: str, tasks: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Published runs in a CSV, and a sentence about each that was left out; a UsageError for a file of no known form.

    `label` is the arm's name, if there is one arm only, else put before its arms' names. A file that names no task
    belongs to the only one of `tasks`, or to the one its own name contains.
    """
    try:
        with opened_text(path.resolve(), MOST_CSV_BYTES) as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a CSV ({error}); give a file with a header line") from None
    header = [cell.strip() for cell in rows[0]] if rows else []
    whole = [row for row in rows[1:] if len(row) == len(header)]
    points = _points(header, whole)
    if not points:
        raise UsageError(
            f"{path} is of no known form (its columns: {', '.join(header)[:200]}); give one with global_step and "
            "'<run> - charts/episodic_return', or with step, episodic_return, seed, exp_name and env_id"
        )
    return _published_runs(points, path, label, tasks)


def _published_runs(points: Points, path: Path, label: str, tasks: Sequence[str]) -> tuple[list[Run], list[str]]:
    own = next((task for task in tasks if task in path.stem), tasks[0] if len(tasks) == 1 else "")
    arms = {name for name, _, _ in points}
    runs, left = [], set()
    for (name, task, seed), pairs in points.items():
        task = task or own
        if not task or (tasks and task not in tasks):
            left.add(task)
            continue
        arm = label if label and len(arms) == 1 else f"{label} {name}".strip() or path.stem
        given, name = int(seed) if seed.isdigit() else None, f"{path.name}: {arm} {task} {seed}".strip()
        run = Run(name, task, "", "", given, published=f"published: {arm}")
        _fill(run, np.array(sorted(pairs)))
        runs.append(run)
    problems = []
    if "" in left:
        example = (tasks or ["ENV"])[0]
        problems.append(f"{path.name} does not name its task; name the file after one, as in {example}.csv")
    if left - {""}:
        problems.append(f"{path.name} also has {', '.join(sorted(left - {''}))}, which no run here is on; left out")
    return runs, problems


def _fill(run: Run, pairs: np.ndarray) -> None:
    """Steps and returns (P, 2) of a run, means over its last few rows: single episodes are too ragged to be drawn."""
    steps, first = np.unique(pairs[:, 0], return_index=True)
    counts = np.diff([*first, len(pairs)])
    values = np.add.reduceat(pairs[:, 1], first) / counts
    width = max(1, min(MOST_ROWS_AVERAGED, len(steps) // 20))
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(steps) + 1)
    begins = np.maximum(ends - width, 0)
    run.steps, run.table = steps, {TASK_RETURN: (sums[ends] - sums[begins]) / (ends - begins)}


def _points(header: list[str], rows: list[list[str]]) -> Points:
    """Of a long table, else of a wide one with a column a run; a run without a seed in its name is one of its own."""
    step, value = _place(header, STEPS), _place(header, RETURNS)
    if step is None:
        return {}
    places = [_place(header, names) for names in (NAMES, TASKS, ("seed",))]
    columns = [] if value is None else [(value, "")]
    for i, (run, dash, metric) in enumerate(title.rpartition(" - ") for title in header if value is None):
        if dash and not metric.endswith(EXTREMES) and metric.lower() in RETURNS:
            columns.append((i, run))
    found: Points = defaultdict(list)
    for row in rows:
        given = ["" if i is None else row[i].strip() for i in places]
        for i, run in columns:
            point, (name, task, seed) = (number(row[step]), number(row[i])), _cleanrl(run or given[0])
            if np.isfinite(point).all():
                found[name, given[1] or task, given[2] or seed].append(point)
    return found


def _cleanrl(run: str) -> tuple[str, str, str]:
    """Name, task and seed of a run's name, as in `CartPole-v1__ppo__1__1672531200`; the last two may be missing."""
    parts = run.split("__")
    if len(parts) >= 4 and parts[-1].isdigit() and parts[-2].isdigit():
        return "__".join(parts[1:-2]), parts[0], parts[-2]
    return re.sub(r"^(Group|exp_name|algo|env_id): *", "", run), "", ""


def _place(header: list[str], names: Sequence[str]) -> int | None:
    """The first column of one of the names, the earlier ones preferred."""
    lower = [title.lower() for title in header]
    return next((lower.index(name) for name in names if name in lower), None)
