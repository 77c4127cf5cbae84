"""An hour of PPO with RND and ONI whose judge's server dies every ten minutes: do memory or open files grow?

    python -m benchmarks soak           SOAK_MINUTES=5 for a short one

The server is killed (SIGKILL) in the second minute of every ten and comes back a minute later. Every five seconds the
resident memory of the run and of its annotator, its open files and the labels so far are noted. The slope is that of a
line through all but the first ten minutes (a sixth of a short one); its interval resamples blocks of two minutes.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from tests.faults.faulty_server import FaultyServer
from tests.faults.outage import last, start

PERIOD, AWAY, EVERY, BLOCK = 600.0, 60.0, 5.0, 24  # seconds between deaths, without a server, between rows; rows


def run(folder: Path) -> dict[str, float]:
    """Rows to soak.csv; the slope in MiB an hour with its 95 % interval."""
    minutes = float(os.environ.get("SOAK_MINUTES", 60))
    work = Path("runs") / "soak"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    deaths, away = 0, False
    with FaultyServer("minigrid", delay=0.05) as server:
        judge = f'{{url: "{server.url("rules")}", model: rules, attempts: 1, timeout: 5}}'
        with start(
            work / "run", ["reward=[task,rnd,oni]", "reward.oni.judge=openai", f"reward.oni.judge_options={judge}"]
        ) as process:
            began = time.monotonic()
            while process.poll() is None and time.monotonic() - began < 60 * minutes:
                time.sleep(EVERY)
                now = time.monotonic() - began
                dead = PERIOD / 10 <= now % PERIOD < PERIOD / 10 + AWAY
                if dead and not away:
                    server.kill()
                    deaths += 1
                elif away and not dead:
                    server.start()
                away = dead
                seen = last(work / "run" / "metrics.csv")
                numbers = {"step": seen.get("step", 0.0), "labels": seen.get("oni/labels", 0.0), "server": not dead}
                rows.append({"seconds": round(now, 1), **memory(process.pid), **numbers})
            alive = process.poll() is None
            process.terminate()
            code = process.wait(60)
    path = folder / "soak.csv"
    path.unlink(missing_ok=True)
    results.append_rows(path, rows)
    if not alive or code != 143:
        raise RuntimeError(f"the run ended with code {code} after {rows[-1]['seconds']:.0f} s")
    late = [row for row in rows if row["seconds"] > 10 * minutes]
    low, slope, high = trend([row["seconds"] / 3600 for row in late], [row["mib"] for row in late])
    return {
        "soak_rss_mib_per_hour": slope,
        "soak_rss_mib_per_hour_low": low,
        "soak_rss_mib_per_hour_high": high,
        "soak_files_more": max(row["files"] for row in late) - min(row["files"] for row in late),
        "soak_minutes": rows[-1]["seconds"] / 60,
        "soak_steps": rows[-1]["step"],
        "soak_labels": rows[-1]["labels"],
        "soak_server_deaths": deaths,
    }


def memory(pid: int) -> dict[str, float]:
    """Resident MiB of a process and of its children, and the files it has open."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in (pid, *children))
    return {"mib": pages * os.sysconf("SC_PAGE_SIZE") / 2**20, "files": len(os.listdir(f"/proc/{pid}/fd"))}


def trend(x: list[float], y: list[float], draws: int = 2000) -> tuple[float, float, float]:
    """Slope of the line through points in order, between the ends of its interval: (low, slope, high)."""
    values, rng = np.array([x, y]), np.random.default_rng(0)
    starts = rng.integers(0, max(len(x) - BLOCK, 0) + 1, (draws, -(-len(x) // BLOCK)))
    picks = (starts[..., None] + np.arange(min(BLOCK, len(x)))).reshape(draws, -1)
    slopes = [np.polyfit(*values[:, rows], 1)[0] for rows in picks]
    low, high = np.quantile(slopes, [0.025, 0.975])
    return float(low), float(np.polyfit(*values, 1)[0]), float(high)
