"""A sweep that is killed, whose job is killed, or that loses a machine finishes every job once; then its page.

    local   the sweep is killed by SIGKILL, the same command is given again, then a job is killed by SIGKILL
    ray     the same grid on a cluster of three nodes, one of which is lost

Counted is what it promises: that all jobs end finished, and that none which was finished runs again. The page of the
first is the example in the docs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from runners.report import results
from runners.sweep.job import Entry, events, replay

GRID = [
    "env=CartPole-v1,MountainCar-v0,MiniGrid-DoorKey-5x5-v0,MiniGrid-MultiRoom-N4-S5-v0",
    "reward=task,rnd,count,noveld",
    "seed=range(5)",
    "total_timesteps=120000",
]
ROOT = Path("runs/night")
LIMIT_S = 7200.0

Fault = tuple[int, Callable[[subprocess.Popen], None]]  # once so many jobs are finished, do this


def begin(name: str, *options: str) -> subprocess.Popen:
    """The sweep, in a process of its own; what it prints is appended to a log beside its folder."""
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / f"{name}.log").open("a") as log:
        own = [f"root={ROOT}", f"name={name}", "report=false", *options]
        command = [sys.executable, "-m", "runners.sweep", *GRID, *own]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def sweep_with(name: str, faults: list[Fault], *options: str) -> dict[str, float]:
    """Run the sweep, inject each fault in its turn, give the command again if the sweep itself died, and count."""
    folder = (ROOT / "sweeps" / name).absolute()
    began = time.monotonic()
    process = begin(name, *options)
    waiting = list(faults)
    killed = 0
    while time.monotonic() - began < LIMIT_S:
        try:
            code = process.wait(0.5)
        except subprocess.TimeoutExpired:
            if waiting and finished(replay(folder)) >= waiting[0][0]:
                waiting.pop(0)[1](process)
            continue
        if code >= 0:
            break
        killed += 1
        print(f"{name}: the sweep was killed; the same command again", flush=True)
        process = begin(name, *options)
    entries = replay(folder)
    found = {
        "jobs": len(entries),
        "finished": finished(entries),
        "again": sum(runs_after_success(folder).values()),
        "attempts": sum(entry.attempts for entry in entries.values()),
        "faults": len(faults) - len(waiting),
        "sweeps_killed": killed,
        "wall_s": round(time.monotonic() - began, 1),
        "jobs_s": round(sum(entry.seconds for entry in entries.values()), 1),
    }
    print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items()), flush=True)
    return found


def finished(entries: dict[str, Entry]) -> int:
    """How many jobs are."""
    return sum(entry.state == "finished" for entry in entries.values())


def runs_after_success(folder: Path) -> dict[str, int]:
    """Job -> how often it was started after it had finished, by the job log; without those that were not."""
    ended: set[str] = set()
    again: dict[str, int] = {}
    for event in events(folder):
        if event.get("state") == "finished":
            ended.add(event["job"])
        elif event.get("state") == "running" and event["job"] in ended:
            again[event["job"]] = again.get(event["job"], 0) + 1
    return again


def differing(one: Path, other: Path) -> int:
    """Runs of two sweeps' folders whose evaluations differ in any digit of a return."""
    found = []
    for folder in (one, other):
        ends = {path.relative_to(folder): json.loads(path.read_text()) for path in folder.glob("jobs/**/result.json")}
        found.append({name: end["this run"]["returns"] for name, end in ends.items()})
    return sum(found[0].get(name) != found[1].get(name) for name in {*found[0], *found[1]})


def kill_sweep(process: subprocess.Popen) -> None:
    """SIGKILL to the sweep."""
    process.kill()


def kill_job(name: str) -> Callable[[subprocess.Popen], None]:
    """SIGKILL to a job that runs."""

    def kill(process: subprocess.Popen) -> None:
        for job, entry in replay(ROOT / "sweeps" / name).items():
            if entry.state == "running":
                os.kill(int(entry.where.split()[0].rsplit(":", 1)[1]), signal.SIGKILL)
                print(f"{name}: {job} was killed", flush=True)
                return

    return kill


def run(folder: Path) -> dict[str, float]:
    """Both sweeps; rows to night.csv, the first one's page to the folder `night`."""
    from runners.report.__main__ import main as report
    from tests.faults.ray_nodes import nodes

    path = folder / "night.csv"
    path.unlink(missing_ok=True)
    shutil.rmtree(ROOT, ignore_errors=True)
    figures: dict[str, float] = {}

    def keep(name: str, found: dict[str, float]) -> None:
        results.append_rows(path, [{"launcher": name, **found}])
        figures.update({f"night_{name}_{key}": found[key] for key in ("jobs", "finished", "again")})

    keep("local", sweep_with("local", [(20, kill_sweep), (45, kill_job("local"))]))
    title = "title=A bad night: four tasks, four rewards, five seeds"
    report([str(ROOT / "sweeps" / "local"), f"out={folder / 'night'}", title])
    with nodes(3) as cluster:
        fault = (30, lambda process: cluster.kill(cluster.pids[0]))
        keep("ray", sweep_with("ray", [fault], "launcher=ray", f"launcher.address={cluster.address}"))
    return {**figures, "night_differ": differing(ROOT / "sweeps" / "local", ROOT / "sweeps" / "ray")}
