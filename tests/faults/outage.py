"""A judge's server is killed in the middle of a run and comes back a minute later; then the run again without it.

`runners.train` learns DoorKey with ONI beside a real server on this machine that answers by rules. The server is
killed (SIGKILL) once labels flow, and started again a minute later. Expected: training continues, the breaker
opens, no question is lost, labels resume. The second run replays the transcript of the first with the server off: every
number of its log but the times is the same. An API key in the environment must be in no file of either run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import results

AWAY, AFTER = 60.0, 30.0  # seconds without a server, and with it again
ENV = ["env=MiniGrid-DoorKey-8x8-v0", "env.captions=full", "env.chatter=true"]
RUN = ["total_timesteps=1e8", "n_envs=16", "control=none", "video=false", "seed=0"]
KEY = "sk-canary-9876543210"


def run(folder: Path, away: float = AWAY, after: float = AFTER) -> dict[str, float]:
    """Both runs; labels before, during and after the outage, and how far the replay's log is from the first."""
    from tests.faults.faulty_server import FaultyServer

    work = Path("runs") / "bench-outage"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    transcript = work / "transcript.jsonl"
    first, second = work / "first" / "metrics.csv", work / "second" / "metrics.csv"
    rows: list[dict[str, Any]] = []
    with FaultyServer("minigrid", delay=0.05) as server:
        judge = f'{{url: "{server.url("rules")}", model: rules, attempts: 1, timeout: 5}}'
        asked = [
            "reward=oni",
            "reward.oni.judge=openai",
            f"reward.oni.judge_options={judge}",
            f"reward.oni.transcript={transcript}",
        ]
        with start(first.parent, asked) as process:
            _wait(process, lambda: last(first).get("oni/labels", 0) >= 20)
            rows.append(_row("before", first))
            server.kill()
            _wait(process, lambda: False, away)
            rows.append(_row("without the server", first))
            server.start()
            labels = rows[-1]["labels"]
            _wait(process, lambda: last(first)["oni/labels"] > labels)
            _wait(process, lambda: False, after)
            process.terminate()
    rows.append(_row("after", first))
    end = rows[-1]["step"]
    with start(
        second.parent, ["reward=oni", "reward.oni.clock=transcript", f"reward.oni.transcript={transcript}"]
    ) as process:
        _wait(process, lambda: last(second).get("step", 0) >= end, 1e9)
        process.terminate()
    rows.append(_row("replayed without a server", second))
    path = folder / "outage.csv"
    path.unlink(missing_ok=True)
    results.append_rows(path, rows)
    before, during, total = (float(row["labels"]) for row in rows[:3])
    leaks = sum(KEY.encode() in file.read_bytes() for file in work.rglob("*") if file.is_file())
    played, replayed = ([row for row in results.read_rows(log) if int(row["step"]) <= end] for log in (first, second))
    return {
        "outage_labels_before": before,
        "outage_labels_during": during - before,
        "outage_labels_after": total - during,
        "outage_dropped": float(rows[2]["dropped"]),
        "replay_rows": float(len(played)),
        "replay_difference": difference(played, replayed),
        "outage_leaked_keys": float(leaks),
    }


def difference(first: list[dict[str, str]], second: list[dict[str, str]]) -> float:
    """Largest difference of a logged reward, loss or return between two runs; infinite if their rows differ."""
    if len(first) != len(second):
        return float("inf")
    largest = 0.0
    for one, other in zip(first, second):
        for key, value in one.items():
            if key.startswith(("reward/", "rollout/", "train/")) and value != other.get(key):
                largest = max(largest, abs(float(value or "nan") - float(other.get(key) or "nan")))
    return largest


def start(place: Path, options: list[str]) -> subprocess.Popen:
    """Training on DoorKey in a process of its own, with a key in its environment."""
    command = [sys.executable, "-m", "runners.train", *ENV, *RUN, *options, f"run_dir={place}"]
    return subprocess.Popen(command, env={**os.environ, "OPENAI_API_KEY": KEY})


def _wait(process: subprocess.Popen, until: Any, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end and not until():
        time.sleep(1)


def last(log: Path) -> dict[str, float]:
    """The newest row of a metrics.csv."""
    rows = results.read_rows(log)
    return {key: float(value) for key, value in rows[-1].items() if value} if rows else {}


def _row(name: str, log: Path) -> dict[str, Any]:
    newest = last(log)
    kept = {key: newest.get(f"oni/{key}", 0.0) for key in ("labels", "asked", "failed", "dropped", "queued", "breaker")}
    return {
        "when": name,
        "step": int(newest.get("step", 0)),
        **kept,
        "success": newest.get("rollout/success_rate", 0.0),
    }
