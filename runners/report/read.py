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

from lodestar.files import open_text_file, read_text
from lodestar.mappings import map_values
from runners.report.job_log import Entry, replay
from runners.run.config import UsageError, Values, assignments, flatten, read
from runners.run.folder import read_status
from runners.run.judged import no_label_sentences

# Tags of the log, as `runners.run.progress` writes them; that module would import torch.
TASK_RETURN = "rollout/ep_rew_mean"
LEARNED_RETURN = "rollout/ep_learned_mean"
ALARM = "reward/alarm"
ELAPSED = "time/time_elapsed"
# Columns of metrics.csv that pictures and tables use, and every stream's share.
LOG_COLUMNS = ("step", TASK_RETURN, LEARNED_RETURN, ALARM, ELAPSED)
SHARE_COLUMN = r"(?s)reward/.*_share"

# What others call the columns of a published table, in lower case, the likelier names first.
STEP_COLUMNS = ["global_step", "step", "steps", "timesteps", "total_timesteps", "env_steps"]
STEP_COLUMNS += ["time/total_timesteps", "frame"]
RETURN_COLUMNS = ["charts/episodic_return", "episodic_return", "rollout/ep_rew_mean"]
RETURN_COLUMNS += ["eval/mean_reward", "episode_return", "episode_reward", "ep_rew_mean"]
RETURN_COLUMNS += ["mean_reward", "return", "returns", "reward", "score", "value"]
ARM_COLUMNS = ["exp_name", "algo", "algorithm", "agent", "method", "run", "run_name", "name"]
TASK_COLUMNS = ["env_id", "env", "environment", "task", "game"]
# Columns that Weights & Biases adds to each curve of a chart.
EXTREME_SUFFIXES = ("__MIN", "__MAX", "_step")
MAX_CSV_BYTES = 200_000_000
MAX_ROWS_AVERAGED = 100

# (name, task, seed) -> (step, return) of each row
Points = dict[tuple[str, str, str], list[tuple[float, float]]]
# ascending steps and finite values, both (P,)
Curve = tuple[np.ndarray, np.ndarray]


@dataclass
class Run:
    """One run, as far as it can be read; also a published one, which has a curve only.

    Attributes:
        name: its folder, as seen from the path that was given.
        task: the environment and its options.
        reward: names of the streams, as in `task+rnd`.
        config: flat, as in {"agent.learning_rate": 0.0003}.
        steps: environment steps of the rows of its log, ascending.
        table: tag -> values over `steps`, NaN where a row has none.
        scores: of result.json, policy, as in "random" -> its results.
        published: the name of the arm of a published run, else empty.
        label: of the path that the run was found below.
        attempt: its entry in the job log of its sweep.
        notes: what could not be read, and rewards without a label.
    """

    name: str
    task: str
    reward: str
    agent: str
    seed: int | None
    config: Values = field(default_factory=dict)
    folder: Path | None = None
    steps: np.ndarray = field(default_factory=lambda: np.zeros(0))
    table: dict[str, np.ndarray] = field(default_factory=dict)
    scores: dict[str, Values] = field(default_factory=dict)
    status: Values = field(default_factory=dict)
    versions: Values = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    text: str = ""
    control: bool = False
    published: str = ""
    label: str = ""
    attempt: Entry | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        """running, stopped, failed or finished, as the run itself wrote it."""
        if self.published:
            return "published"
        return str(self.status.get("state", "unknown"))

    @property
    def total(self) -> float:
        """Steps that it was meant to take; NaN if unknown."""
        return number(self.config.get("total_timesteps"))

    @property
    def last_step(self) -> float:
        """The step of its last row; 0 without rows."""
        if not len(self.steps):
            return 0.0
        return float(self.steps[-1])

    def curve(self, tag: str) -> Curve:
        """Steps and values where a tag has finite values."""
        if tag not in self.table:
            return np.zeros(0), np.zeros(0)
        values = self.table[tag]
        finite = np.isfinite(values)
        return self.steps[finite], values[finite]

    @property
    def key(self) -> int | str:
        """Its seed, or its name where it has none."""
        return self.name if self.seed is None else self.seed

    def result(self, key: str, policy: str = "this run") -> float:
        """A number of the final evaluation; NaN if there is none."""
        return number(self.scores.get(policy, {}).get(key))


# Runs, and a sentence about each one that cannot be read.
RunsAndProblems = tuple[list[Run], list[str]]


def find(labelled: Iterable[tuple[Path, str]]) -> RunsAndProblems:
    """All runs in or below some folders, and a sentence about each one that cannot be read.

    The label of a folder stands before the names of its arms.
    """
    runs = []
    problems: list[str] = []
    seen = set()
    for path, label in labelled:
        entries = _read_job_log(path, problems)
        for folder in _run_folders(path):
            resolved = folder.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            name = folder.relative_to(path).as_posix()
            if folder == path:
                name = resolved.name
            try:
                run = read_run(folder, name)
            except Exception as error:
                # An untrusted file can make a parser raise anything.
                problems.append(f"{name} cannot be read: {_sentence(error)}")
                continue
            run.label = label
            run.attempt = entries.get(folder)
            runs.append(run)
    return runs, problems


def _run_folders(path: Path) -> Iterator[Path]:
    """Folders with a config.yaml; below one, only its control run is looked for."""
    for place, folders, files in os.walk(path):
        folders.sort()
        if "config.yaml" in files:
            yield Path(place)
            # Assigning in place tells os.walk where to descend.
            folders[:] = {"control"} & set(folders)


def _read_job_log(path: Path, problems: list[str]) -> dict[Path, Entry]:
    """Run folder -> its entry in the job log of a sweep; `problems` gets jobs without a folder."""
    by_folder: dict[Path, Entry] = {}
    try:
        entries = replay(path)
    except (OSError, TypeError, ValueError) as error:
        problems.append(f"its job log cannot be read: {_sentence(error)}")
        return by_folder
    for name, entry in entries.items():
        folder = path / "jobs" / name
        by_folder[folder] = entry
        if not (folder / "config.yaml").exists():
            problem = f"{name} left nothing: {entry.state}"
            if entry.error:
                problem += f", {entry.error}"
            problems.append(problem)
    return by_folder


def read_run(folder: Path, name: str) -> Run:
    """One run's folder; an Exception of any kind if its config.yaml does not name what was run."""
    config = read(folder / "config.yaml")
    rewards = config.get("reward")
    agent = config.get("agent")
    if not isinstance(rewards, dict) or not isinstance(agent, dict) or not config.get("env"):
        raise ValueError("config.yaml does not name the env, reward and agent that were run")
    flat = flatten(config)
    task = str(config["env"])
    env_options = config.get("env_options")
    if isinstance(env_options, dict) and env_options:
        task += f" ({', '.join(assignments(flatten(env_options)))})"
    seed = config.get("seed")
    if not isinstance(seed, int):
        seed = None
    reward = "+".join(map(str, rewards))
    run = Run(name, task, reward, str(agent.get("name", "unknown")), seed, flat, folder)
    # The absolute path may name a home directory, which no page should show.
    place = str(folder.resolve())
    run.text = read_text(folder / "config.yaml").replace(place, name)
    run.control = folder.parent.name == "control"
    run.status = read_status(folder)
    readers = {"metrics.csv": _read_metrics, "result.json": _read_result, "versions.json": _read_versions}
    for part, read_part in readers.items():
        if not (folder / part).exists():
            continue
        try:
            read_part(run, folder / part)
        except Exception as error:
            run.notes.append(f"{part} cannot be read: {_sentence(error)}")
    if (folder / "command.txt").exists():
        run.commands = read_text(folder / "command.txt").replace(place, name).splitlines()
    return run


def _read_metrics(run: Run, path: Path) -> None:
    """Read the columns that pictures and tables use; incomplete rows are left out."""
    with open_text_file(path, MAX_CSV_BYTES) as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if "step" not in header:
            raise ValueError("it has no column 'step'")
        rows = list(reader)
    step_column = header.index("step")

    def is_complete(row: list[str]) -> bool:
        return len(row) == len(header) and row[step_column].isdigit()

    complete = list(filter(is_complete, rows))
    broken = len(rows) - len(complete)
    # A kill may cut the last row short, which is no reason for a note.
    if rows and not is_complete(rows[-1]):
        broken -= 1
    if broken:
        run.notes.append(f"metrics.csv has {broken} rows that are not whole; they are left out")
    table = {}
    for column, tag in enumerate(header):
        if tag in LOG_COLUMNS or re.fullmatch(SHARE_COLUMN, tag):
            table[tag] = _parse_column([row[column] for row in complete])
    steps = table.pop("step")
    # A run that was continued from a checkpoint may log a step twice: the first row counts.
    rising = np.ones(len(steps), bool)
    rising[1:] = steps[1:] > np.maximum.accumulate(steps)[:-1]
    run.steps = steps[rising]
    for tag, values in table.items():
        run.table[tag] = values[rising]


def _parse_column(cells: list[str]) -> np.ndarray:
    """Numbers of a column; NaN where a cell is empty, infinite or text."""
    try:
        values = np.array([float(cell or "nan") for cell in cells])
    except ValueError:
        return np.array(list(map(number, cells)))
    return np.where(np.isfinite(values), values, np.nan)


def _read_result(run: Run, path: Path) -> None:
    for policy, results in json.loads(read_text(path)).items():
        if isinstance(results, dict):
            run.scores[policy] = results
    run.notes += no_label_sentences(run.scores.get("this run", {}))


def _read_versions(run: Run, path: Path) -> None:
    run.versions = map_values(str, json.loads(read_text(path)))


def possible_returns(scores: Values) -> tuple[float, float]:
    """The lowest and the highest possible task return in result.json; infinite where unknown."""
    results = scores.get("this run")
    ends = results.get("task_return_possible") if isinstance(results, dict) else None
    if isinstance(ends, list) and len(ends) == 2:
        low, high = map(number, ends)
        if low < high:
            return low, high
    return -math.inf, math.inf


def number(value: Any) -> float:
    """A finite number, or NaN."""
    if not isinstance(value, (int, float, str)):
        return math.nan
    try:
        parsed = float(value)
    except ValueError:
        return math.nan
    return parsed if math.isfinite(parsed) else math.nan


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def read_published(path: Path, label: str, tasks: Sequence[str]) -> RunsAndProblems:
    """Published runs in a CSV, and a sentence about each that was left out.

    `label` is the arm's name if the file has one arm only, else it stands before its arms' names.
    A file that names no task belongs to the only one of `tasks`, or to the one its own name
    contains. Raises a UsageError for a file of no known form.
    """
    try:
        with open_text_file(path.resolve(), MAX_CSV_BYTES) as file:
            rows = list(filter(None, csv.reader(file))) or [[]]
    except (OSError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a CSV ({error}); give a file with a header line") from None
    header = list(map(str.strip, rows[0]))
    points = _read_points(header, rows[1:])
    if not points:
        raise UsageError(
            f"{path} is of no known form (its columns: {', '.join(header)[:200]}); give one with global_step and "
            "'<run> - charts/episodic_return', or with step, episodic_return, seed, exp_name and env_id"
        )
    return _make_published_runs(points, path, label, tasks)


def _make_published_runs(points: Points, path: Path, label: str, tasks: Sequence[str]) -> RunsAndProblems:
    file_task = ""
    if len(tasks) == 1:
        file_task = tasks[0]
    for task in reversed(tasks):
        if task in path.stem:
            file_task = task
    has_one_arm = len({name for name, _, _ in points}) == 1
    runs = []
    other_tasks = set()
    for (name, own_task, seed), pairs in points.items():
        task = own_task or file_task
        if not task or (tasks and task not in tasks):
            other_tasks.add(task)
            continue
        arm = f"{label} {name}".strip() or path.stem
        if label and has_one_arm:
            arm = label
        run_name = f"{path.name}: {arm} {task} {seed}".strip()
        run_seed = int(seed) if seed.isdigit() else None
        run = Run(run_name, task, "", "", run_seed, published=f"published: {arm}")
        _set_published_curve(run, np.array(sorted(pairs)))
        runs.append(run)
    problems = []
    if "" in other_tasks:
        example = (tasks or ["ENV"])[0]
        problems.append(f"{path.name} does not name its task; name the file after one, as in {example}.csv")
        other_tasks.remove("")
    if other_tasks:
        names = ", ".join(sorted(other_tasks))
        problems.append(f"{path.name} also has {names}, which no run here is on; left out")
    return runs, problems


def _set_published_curve(run: Run, pairs: np.ndarray) -> None:
    """Fill in a run from its steps and returns (P, 2)."""
    # Several returns at one step count by their mean.
    steps, first = np.unique(pairs[:, 0], return_index=True)
    counts = np.diff([*first, len(pairs)])
    values = np.add.reduceat(pairs[:, 1], first) / counts
    # Single episodes vary too much to be drawn: a value is the mean over its last few rows.
    window = max(1, min(MAX_ROWS_AVERAGED, len(steps) // 20))
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(steps) + 1)
    begins = np.maximum(ends - window, 0)
    run.steps = steps
    run.table[TASK_RETURN] = (sums[ends] - sums[begins]) / (ends - begins)


def _read_points(header: list[str], rows: list[list[str]]) -> Points:
    """Points of a long table, else of a wide one with a column a run; empty for another form."""
    points: Points = defaultdict(list)
    step_column = _find_column(header, STEP_COLUMNS)
    if step_column is None:
        return points
    # Columns of returns, each with the name of its run; in a long table other columns name it.
    return_columns = {}
    long_column = _find_column(header, RETURN_COLUMNS)
    if long_column is not None:
        return_columns[long_column] = ""
    else:
        for column, title in enumerate(header):
            run, dash, metric = title.rpartition(" - ")
            if dash and not metric.endswith(EXTREME_SUFFIXES) and metric.lower() in RETURN_COLUMNS:
                return_columns[column] = run
    name_columns = [_find_column(header, names) for names in (ARM_COLUMNS, TASK_COLUMNS, ["seed"])]
    for row in rows:
        if len(row) != len(header):
            continue
        arm, own_task, own_seed = ["" if column is None else row[column].strip() for column in name_columns]
        for column, run in return_columns.items():
            name, task, seed = _split_cleanrl_name(run or arm)
            point = (number(row[step_column]), number(row[column]))
            if np.isfinite(point).all():
                points[name, own_task or task, own_seed or seed].append(point)
    return points


def _split_cleanrl_name(run: str) -> tuple[str, str, str]:
    """Name, task and seed of a run, as in `CartPole-v1__ppo__1__1672531200`; "" where missing."""
    parts = run.split("__")
    if len(parts) >= 4 and parts[-1].isdigit() and parts[-2].isdigit():
        return "__".join(parts[1:-2]), parts[0], parts[-2]
    return re.sub(r"^(Group|exp_name|algo|env_id): *", "", run), "", ""


def _find_column(header: list[str], names: Sequence[str]) -> int | None:
    """The first column of one of the names, the earlier ones preferred."""
    titles = list(map(str.lower, header))
    for name in names:
        if name in titles:
            return titles.index(name)
    return None
