"""A judge's server is killed in the middle of a run and comes back a minute later; then the run again without it.

`runners.train` learns DoorKey with ONI beside a real server on this machine that answers by rules. The server is
killed (SIGKILL) once labels flow, and started again a minute later. What must be seen: training goes on, the breaker
opens, nothing is lost, labels resume. The second run replays the transcript of the first with the server off: every
number of its log but the times is the same. A key in the environment must stand in no file of either run.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from runners import results

AWAY = 60.0  # seconds without a server
STEPS = 800_000
ENV = ["env=MiniGrid-DoorKey-8x8-v0", "env.captions=full", "env.chatter=true"]
RUN = ["reward=oni", "total_timesteps={steps}", "n_envs=16", "control=none", "video=false", "seed=0"]
KEY = "sk-canary-9876543210"


def run(folder: Path, away: float = AWAY, steps: int = STEPS) -> dict[str, float]:
    """Both runs; labels before, during and after the outage, and how far the replay's log is from the first."""
    from runners.bench.faulty_server import FaultyServer

    work = Path("runs") / "bench-outage"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    transcript = work / "transcript.jsonl"
    rows: list[dict[str, Any]] = []
    with FaultyServer("minigrid", delay=0.05) as server:
        judge = f'{{url: "{server.url("rules")}", model: rules, attempts: 1, timeout: 5}}'
        asked = ["reward.oni.judge=openai", f"reward.oni.judge_options={judge}", f"reward.oni.transcript={transcript}"]
        with _train(work / "first", steps, asked) as process:
            log = _metrics(work / "first")
            _wait(process, lambda: _last(log).get("oni/labels", 0) >= 20)
            rows.append(_row("before", log))
            server.kill()
            _wait(process, lambda: False, away)
            rows.append(_row("without the server", log))
            server.start()
            _wait(process, lambda: False, 1e9)
            rows.append(_row("after", log))
    replay = ["reward.oni.clock=transcript", f"reward.oni.transcript={transcript}"]
    with _train(work / "second", steps, replay) as process:
        process.wait()
    first, second = _read(_metrics(work / "first")), _read(_metrics(work / "second"))
    rows.append({**_row("replayed", _metrics(work / "second"))})
    path = folder / "outage.csv"
    path.unlink(missing_ok=True)
    results.append_rows(path, rows)
    labels = [float(row["labels"]) for row in rows]
    leaks = sum(KEY.encode() in file.read_bytes() for file in work.rglob("*") if file.is_file())
    return {
        "outage_labels_before": labels[0],
        "outage_labels_during": labels[1] - labels[0],
        "outage_labels_after": labels[2] - labels[1],
        "replay_difference": difference(first, second),
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


def _train(place: Path, steps: int, options: list[str]) -> subprocess.Popen:
    run = [word.format(steps=steps) for word in RUN]
    command = [sys.executable, "-m", "runners.train", *ENV, *run, *options, f"run_dir={place}"]
    return subprocess.Popen(command, env={**os.environ, "OPENAI_API_KEY": KEY})


def _wait(process: subprocess.Popen, until: Any, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end and not until():
        time.sleep(1)


def _metrics(place: Path) -> Path:
    return place / "metrics.csv"


def _read(log: Path) -> list[dict[str, str]]:
    if not log.exists():
        return []
    with log.open(newline="") as file:
        return list(csv.DictReader(file))


def _last(log: Path) -> dict[str, float]:
    rows = _read(log)
    return {key: float(value) for key, value in rows[-1].items() if value} if rows else {}


def _row(name: str, log: Path) -> dict[str, Any]:
    last = _last(log)
    kept = {key: last.get(f"oni/{key}", 0.0) for key in ("labels", "asked", "failed", "dropped", "queued", "breaker")}
    return {"when": name, "step": int(last.get("step", 0)), **kept, "success": last.get("rollout/success_rate", 0.0)}
