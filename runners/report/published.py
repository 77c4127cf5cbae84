"""Published curves, from CSVs as others export them; no run of ours is paired with them.

Three forms are known by their headers:

    wide   global_step | Step, then a column a run: "<run> - charts/episodic_return", beside "...__MIN" and "...__MAX",
           as Weights & Biases exports a chart; CleanRL's run names are <env>__<name>__<seed>__<time>
    long   a row a point: step, episodic_return, and what there is of seed, exp_name and env_id, under these or similar
           names, as `DataFrame.to_csv` leaves them
    table  a row a task and a column an algorithm, cells like "405.73 ± 11.47", as Open RL Benchmark writes results
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runners.report.read import TASK_RETURN, Run, number
from runners.run.config import UsageError

STEPS = ("global_step", "step", "steps", "timesteps", "total_timesteps", "env_steps", "time/total_timesteps", "frame")
RETURNS: tuple[str, ...] = ("charts/episodic_return", "episodic_return", "rollout/ep_rew_mean", "eval/mean_reward")
RETURNS += ("episode_return", "episode_reward", "ep_rew_mean", "mean_reward", "return", "returns")
RETURNS += ("reward", "score", "value")
NAMES = ("exp_name", "algo", "algorithm", "agent", "method", "run", "run_name", "name")
TASKS = ("env_id", "env", "environment", "task", "game")
EXTREMES = ("__MIN", "__MAX", "_step")
MOST_BYTES = 200_000_000
MOST_ROWS_AVERAGED = 100

Points = dict[tuple[str, str, str], list[tuple[float, float]]]  # (name, task, seed) -> (step, return)


def published(path: Path, label: str, tasks: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Published runs in a CSV, and a sentence about each that was left out.

    Args:
        label: the arm's name, if there is one arm only; else put before its arms' names.
        tasks: that are compared; a file that names none belongs to the only one, or to the one its own name contains.

    Raises:
        UsageError: if the file cannot be read, or is of no known form.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} has more than {MOST_BYTES:,} bytes; thin its rows out")
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a CSV ({error}); give a file with a header line") from None
    header = [cell.strip() for cell in rows[0]] if rows else []
    whole = [row for row in rows[1:] if len(row) == len(header)]
    points = _long(header, whole) or _wide(header, whole) or _table(header, whole)
    if not points:
        raise UsageError(
            f"{path} is of no known form (its columns: {', '.join(header)[:200]}); give one with global_step and "
            "'<run> - charts/episodic_return', or with step, episodic_return, seed, exp_name and env_id"
        )
    return _runs(points, path, label, tasks)


def _runs(points: Points, path: Path, label: str, tasks: Sequence[str]) -> tuple[list[Run], list[str]]:
    own = next((task for task in tasks if task in path.stem), tasks[0] if len(tasks) == 1 else "")
    arms = {name for name, _, _ in points}
    runs, left = [], set()
    for (name, task, seed), pairs in points.items():
        task = task or own
        if not task or (tasks and task not in tasks):
            left.add(task)
            continue
        arm = label if label and len(arms) == 1 else f"{label} {name}".strip() or path.stem
        run = Run(f"{path.name}: {arm} {task} {seed}".strip(), task, "", "", None, published=f"published: {arm}")
        run.seed = int(seed) if seed.isdigit() else None
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
    if np.isnan(pairs[0, 0]):  # a result without a curve
        run.scores = {"this run": {"task_return": float(pairs[0, 1])}}
        return
    steps, first = np.unique(pairs[:, 0], return_index=True)
    counts = np.diff([*first, len(pairs)])
    values = np.add.reduceat(pairs[:, 1], first) / counts
    width = max(1, min(MOST_ROWS_AVERAGED, len(steps) // 20))
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(steps) + 1)
    begins = np.maximum(ends - width, 0)
    run.steps, run.table = steps, {TASK_RETURN: (sums[ends] - sums[begins]) / (ends - begins)}


def _long(header: list[str], rows: list[list[str]]) -> Points:
    step, value = _column(header, STEPS), _column(header, RETURNS)
    name, task, seed = (_column(header, names) for names in (NAMES, TASKS, ("seed",)))
    if step is None or value is None:
        return {}
    found: Points = defaultdict(list)
    for row in rows:
        given = [row[i].strip() if i is not None else "" for i in (name, task, seed)]
        parts = _cleanrl(given[0])
        given[0] = parts[0] if parts[1] else given[0]
        _add(found, (given[0] or parts[0], given[1] or parts[1], given[2] or parts[2]), row[step], row[value])
    return found


def _wide(header: list[str], rows: list[list[str]]) -> Points:
    """A column for each run of a chart; a run without a seed in its name is one of its own."""
    step = _column(header, STEPS)
    if step is None:
        return {}
    found: Points = defaultdict(list)
    for i, title in enumerate(header):
        run, dash, metric = title.rpartition(" - ")
        if dash and not metric.endswith(EXTREMES) and metric.lower() in RETURNS:
            for row in rows:
                _add(found, _cleanrl(run), row[step], row[i])
    return found


def _add(found: Points, run: tuple[str, str, str], step: str, value: str) -> None:
    point = (number(step), number(value))
    if np.isfinite(point).all():
        found[run].append(point)


def _cleanrl(run: str) -> tuple[str, str, str]:
    """Name, task and seed of a run's name, as in `CartPole-v1__ppo__1__1672531200`; the last two may be missing."""
    parts = run.split("__")
    if len(parts) >= 4 and parts[-1].isdigit() and parts[-2].isdigit():
        return "__".join(parts[1:-2]), parts[0], parts[-2]
    return re.sub(r"^(Group|exp_name|algo|env_id): *", "", run), "", ""


def _table(header: list[str], rows: list[list[str]]) -> Points:
    """Results without curves; the step is nan."""
    found: Points = {}
    for row in rows:
        for name, cell in zip(header[1:], row[1:]):
            mean, sign, _ = cell.partition("±")
            if sign and np.isfinite(number(mean.strip())):
                found[name.replace("({})", "").strip(), row[0].strip(), ""] = [(float("nan"), number(mean.strip()))]
    return found


def _column(header: list[str], names: Sequence[str]) -> int | None:
    """The first column of one of the names, the earlier ones preferred."""
    lower = [title.lower() for title in header]
    return next((lower.index(name) for name in names if name in lower), None)
