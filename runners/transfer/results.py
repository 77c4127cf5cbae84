"""A family's policies: each is trained once and evaluated on every task; then a table, a file and a picture of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from runners.report.results import append_rows
from runners.report.statistics import aggregate
from runners.run.checkpoint import versions, write_atomically
from runners.sweep.drive import drive
from runners.sweep.job import Launcher
from runners.sweep.job_log import JobLog
from runners.transfer.config import TransferConfig
from runners.transfer.mbtl import generalised

OURS = "mbtl"
RETURNS = "transfer.json"  # in a run's folder: its policy's return on every task


class SourcePolicies:
    """Source -> the returns of its policies on all tasks; what is missing is trained."""

    def __init__(self, config: TransferConfig, log: JobLog, launcher: Launcher) -> None:
        self.config, self.log, self.launcher = config, log, launcher
        self.rows: dict[int, np.ndarray] = {}  # (seeds, N)

    def get(self, sources: list[int]) -> dict[int, np.ndarray]:
        """The returns of policies trained at some sources, mean over seeds, (N,) each; those that are new run at once.

        Raises:
            RuntimeError: if a run did not finish; the same command tries it again.
        """
        new = [source for source in dict.fromkeys(sources) if source not in self.rows]
        seeds = range(self.config.seeds)
        jobs = [self.config.run(source, seed) for source in new for seed in seeds]
        entries = drive(jobs, self.log, self.launcher, resume="errored")
        for job in jobs:
            if not job.finished:
                error = entries[job.name].error or entries[job.name].state
                raise RuntimeError(f"{job.name} did not finish ({error}); the same command continues it")
        for source in new:
            self.rows[source] = np.array([returns(self.config, self.config.run(source, seed).folder) for seed in seeds])
        return {source: self.rows[source].mean(axis=0) for source in sources}


def returns(config: TransferConfig, run: Path) -> list[float]:
    """Return of a run's policy on every task, without further training: mean over episodes, (N,)."""
    path, asked = run / RETURNS, {"tasks": [list(task) for task in config.tasks], "episodes": config.episodes}
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if {key: known.get(key) for key in asked} != asked:
        from runners.evaluate import play, policy
        from runners.run.build import load_run

        trained, model, mix, _ = load_run(run, trust=True)  # trained by this command, a moment ago
        found = []
        for task in range(len(config.tasks)):
            scores = play(
                trained.env,
                policy(model, trained.env),
                config.episodes,
                max_steps=int(trained.eval_steps),
                max_episode_steps=trained.max_episode_steps,
                options={**trained.env_options, **config.options(task)},
                mix=mix,
            )
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
        "folder": str(config.folder),
        "budget": config.budget,
        "seeds": config.seeds,
        "steps": int(config.train.total_timesteps) * config.seeds * config.budget,
        "orders": {name: [config.label(source) for source in order] for name, order in orders.items()},
        "generalised": {
            name: generalised(np.array([means[s] for s in order])).tolist() for name, order in orders.items()
        },
        "at_home": float(np.mean([means[source][source] for source in chosen])),
        "best_of_all_at_home": float(np.mean(best[chosen])),
        "versions": versions(),
    }
    if config.seeds > 1:
        found["intervals"] = {}
        for name, order in orders.items():
            final = generalised(np.array([rows[source] for source in order]).transpose(0, 2, 1))[-1]
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
    labels = config.labels
    lines = [
        {"source": config.label(source), "seed": seed, **dict(zip(labels, values.tolist()))}
        for source in sorted(rows)
        for seed, values in enumerate(rows[source])
    ]
    path = config.folder / "matrix.csv"
    path.unlink(missing_ok=True)
    append_rows(path, lines)
    return draw(config, found, rows)


def draw(config: TransferConfig, found: dict[str, Any], rows: dict[int, np.ndarray]) -> Path:
    """The transfers, a row a source with its place in the order, and what they add up to."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from runners.run.curve import COLOURS

    labels = config.labels
    sources = sorted(rows)
    place = {label: k + 1 for k, label in enumerate(found["orders"][OURS])}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 1.5 + 0.35 * max(len(sources), 8)))
    image = left.imshow(np.array([rows[source].mean(axis=0) for source in sources]), aspect="auto")
    figure.colorbar(image, ax=left, label="task return")
    left.set_yticks(
        range(len(sources)), [f"{place[labels[s]]}. {labels[s]}" if labels[s] in place else labels[s] for s in sources]
    )
    left.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
    left.scatter(sources, range(len(sources)), marker="s", facecolors="none", edgecolors="white")  # at home
    left.set(xlabel="task", ylabel="trained on (numbers: order of choice)", title="zero-shot transfer")
    for colour, (name, values) in zip(COLOURS, found["generalised"].items()):
        k = np.arange(1, len(values) + 1)
        if name == "equidistant":
            right.plot(k[-1:], values[-1:], "o", color=colour, label=name)
        else:
            right.plot(k, values, marker=".", color=colour, label=name)
    right.set(xlabel="sources trained on", ylabel="task return, mean over tasks", title=config.train.env)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.legend()
    figure.tight_layout()
    path = config.folder / "transfer.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
