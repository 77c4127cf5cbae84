"""How long the report of a large sweep takes, and how much memory: 200 runs with a log of 1,000 rows each.

The folders are of the real form, written by what writes real ones; their numbers are drawn.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from runners.run.config import TrainConfig, save

TASKS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MiniGrid-DoorKey-5x5-v0", "Pendulum-v1")
REWARDS = (("task",), ("task", "rnd"), ("task", "count"), ("task", "icm"))
SEEDS, ROWS = 10, 1000


def run(folder: Path, seeds: int = SEEDS, rows: int = ROWS) -> dict[str, float]:
    """Seconds and GiB of one report, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        sweep = Path(place) / "sweep"
        count = write_sweep(sweep, seeds=seeds, rows=rows)
        command = [sys.executable, "-c", _MEASURED, str(sweep)]
        began = time.perf_counter()
        answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
        seconds = time.perf_counter() - began
        gib = int(answer.stdout.splitlines()[-1]) / 2**20
        size = (sweep / "report.html").stat().st_size / 2**20
    row = {"runs": count, "rows": rows, "seconds": round(seconds, 2), "gib": round(gib, 3), "page_mib": round(size, 2)}
    results.append_rows(folder / "report-speed.csv", [row])
    return {"report_200_s": seconds, "report_200_gib": gib}


# ru_maxrss also counts what the parent held when it started this process, VmHWM (in KiB) starts at 0 with the program.
_MEASURED = """
import sys
from pathlib import Path
from runners.report.__main__ import main
code = main(sys.argv[1:])
lines = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))
sys.exit(code)
"""


def write_sweep(
    folder: Path,
    tasks: tuple[str, ...] = TASKS,
    rewards: tuple[tuple[str, ...], ...] = REWARDS,
    seeds: int = SEEDS,
    rows: int = ROWS,
) -> int:
    """Write the folders of a finished sweep; returns how many."""
    rng = np.random.default_rng(0)
    count = 0
    for task in tasks:
        for streams in rewards:
            for seed in range(seeds):
                level = 0.55 + 0.1 * rewards.index(streams) + 0.08 * rng.standard_normal()
                place = folder / "jobs" / task / f"ppo-{'+'.join(streams)}" / f"s{seed}"
                write_run(place, task, streams, seed, level, rows, rng)
                count += 1
    return count


def write_run(
    place: Path, task: str, streams: tuple[str, ...], seed: int, level: float, rows: int, rng: np.random.Generator
) -> None:
    """Write a run's folder, its return rising from 20 to about `level` times 500."""
    import agents
    import rewards
    from runners.run.checkpoint import versions

    place.mkdir(parents=True)
    config = TrainConfig(
        env=task,
        reward={name: rewards.get(name).Config() for name in streams},
        agent=agents.get("ppo").Config(),
        seed=seed,
        total_timesteps=1000 * rows,
        run_dir=str(place),
    )
    save(config, place / "config.yaml")
    score = float(20 + 480 * np.clip(level, 0, 1))
    (place / "metrics.csv").write_text(_log(streams, score, rows, rng), newline="")
    scores = {"this run": _scores(score, rng), "random": _scores(20.0, rng)}
    (place / "result.json").write_text(json.dumps(scores, indent=1))
    status = {"state": "finished", "key": config.key(), "total": 1000 * rows, "error": None, "exit_code": 0}
    status |= {"pid": 1, "host": "box", "time": "2026-11-21T12:00:00+0000", "step": 1000 * rows}
    (place / "status.json").write_text(json.dumps(status, indent=1))
    (place / "versions.json").write_text(json.dumps(versions(), indent=1))
    (place / "command.txt").write_text(f"python -m runners.train env={task} reward={'+'.join(streams)} seed={seed}\n")


def _log(streams: tuple[str, ...], score: float, rows: int, rng: np.random.Generator) -> str:
    """A metrics.csv of 20 columns or so."""
    time_left = np.linspace(1, 0, rows)
    truth = 20 + (score - 20) * (1 - time_left**3) + 6 * rng.standard_normal(rows)
    table: dict[str, Any] = {"step": 1000 * np.arange(1, rows + 1)}
    bonus = np.full(rows, 0.0) if len(streams) == 1 else 0.05 + 0.45 * time_left
    for name, share in zip(streams, (1 - bonus, bonus)):
        table |= {f"reward/{name}": share, f"reward/{name}_share": share, f"reward/{name}_scale": 1 + share}
    table["reward/total"] = truth / 200
    table["reward/alarm"] = np.zeros(rows)
    table["rollout/ep_learned_mean"] = truth if len(streams) == 1 else truth * (1 + bonus)
    table |= {"rollout/ep_len_mean": truth, "rollout/ep_rew_mean": truth, "rollout/success_rate": truth / 500}
    table |= {
        "time/fps": np.full(rows, 1000.0),
        "time/time_elapsed": np.arange(rows),
        "time/total_timesteps": table["step"],
    }
    for name in ("approx_kl", "clip_fraction", "entropy", "explained_variance", "policy_loss", "value_loss"):
        table[f"train/{name}"] = rng.standard_normal(rows)
    lines = [",".join(table)]
    lines += [",".join(f"{value:.8g}" for value in row) for row in zip(*table.values())]
    return "\r\n".join(lines) + "\r\n"


def _scores(level: float, rng: np.random.Generator) -> dict[str, Any]:
    from runners.evaluation.play import Scores

    returns = np.full(20, level).tolist() if level > 400 else (level + rng.random(20)).tolist()
    return Scores(returns=returns, lengths=[100] * 20, successes=[value > 300 for value in returns]).to_dict()
