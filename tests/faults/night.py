"""A sweep that is killed, whose jobs fail or are killed, or that loses a machine, finishes every job once.

`python -m benchmarks night` is two larger ones, and the page of the first is the example in the docs:

    local   the sweep is killed by SIGKILL, the same command is given again, then a job is killed by SIGKILL
    ray     the same grid on a cluster of three nodes, one of which is lost

Counted is what is promised: that all jobs end finished, or failed after their attempts, and that none which was
finished runs again.
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
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks import results
from runners.report.job_log import Entry, events, replay
from tests.faults import Fault, Found
from tests.faults.child import TINY, until

GRID = [
    "env=CartPole-v1,MountainCar-v0,MiniGrid-DoorKey-5x5-v0,MiniGrid-MultiRoom-N4-S5-v0",
    "reward=task,rnd,count,noveld",
    "seed=range(5)",
    "total_timesteps=120000",
]
ROOT = Path("runs/night")
LIMIT_S = 7200.0

Blow = tuple[int, Callable[[subprocess.Popen], None]]  # once so many jobs are finished, do this


class Unlucky(gym.Env):
    """Nothing but steps; without luck, the 50th raises, or ends the process as if all were well.

    Args:
        luck: 0 for none.
        how: raise, exit (`sys.exit(0)`) or vanish (`os._exit(0)`).
    """

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, luck: int = 0, how: str = "raise", render_mode: str | None = None) -> None:
        self.luck, self.how, self.render_mode, self.total = luck, how, render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.total += 1
        if self.total == 50 and self.luck == 0:
            if self.how == "raise":
                raise KeyError("the door")
            sys.exit(0) if self.how == "exit" else os._exit(0)
        return np.zeros(3, np.float32), 1.0, False, self.total % 40 == 0, {}


gym.register("Unlucky-v0", f"{__name__}:Unlucky")


def begin(root: Path, name: str, grid: list[str]) -> subprocess.Popen:
    """The sweep, in a process of its own; what it prints is appended to a log beside its folder."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}.log").open("a") as log:
        command = [sys.executable, "-m", "runners.sweep", *grid, f"root={root}", f"name={name}", "report=false"]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def sweep_with(root: Path, name: str, grid: list[str], blows: list[Blow]) -> dict[str, float]:
    """Run the sweep, deal each blow in its turn, give the command again if the sweep itself died, and count."""
    folder = (root / "sweeps" / name).absolute()
    began = time.monotonic()
    process = begin(root, name, grid)
    waiting = list(blows)
    killed, code = 0, -1
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
        process = begin(root, name, grid)
    entries = replay(folder)
    found = {
        "jobs": len(entries),
        "finished": finished(entries),
        "failed": sum(entry.state == "failed" for entry in entries.values()),
        "again": sum(runs_after_success(folder).values()),
        "attempts": sum(entry.attempts for entry in entries.values()),
        "blows": len(blows) - len(waiting),
        "sweeps_killed": killed,
        "code": code,
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


def kill_job(folder: Path) -> Callable[[subprocess.Popen], None]:
    """SIGKILL to a job that runs in a sweep's folder."""

    def kill(process: subprocess.Popen) -> None:
        for job, entry in replay(folder).items():
            if entry.state == "running":
                os.kill(int(entry.where.split()[0].rsplit(":", 1)[1]), signal.SIGKILL)
                print(f"{folder.name}: {job} was killed", flush=True)
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

    local = ROOT / "sweeps" / "local"
    keep("local", sweep_with(ROOT, "local", GRID, [(20, kill_sweep), (45, kill_job(local))]))
    title = "title=A bad night: four tasks, four rewards, five seeds"
    report([str(local), f"out={folder / 'night'}", title])
    with nodes(3) as cluster:
        grid = [*GRID, "launcher=ray", f"launcher.address={cluster.address}"]
        keep("ray", sweep_with(ROOT, "ray", grid, [(30, lambda process: cluster.kill(cluster.pids[0]))]))
    return {**figures, "night_differ": differing(local, ROOT / "sweeps" / "ray")}


def grid_of(luck: str, seeds: int, **options: Any) -> list[str]:
    """Tiny jobs in `Unlucky`, one for every luck and seed."""
    given = {**TINY, "env": f"{__name__}:Unlucky-v0", "env.luck": luck, "seed": f"range({seeds})", "slots": 1}
    return [f"{key}={value}" for key, value in {**given, "total_timesteps": 256, **options}.items()]


def _unlucky(folder: Path, name: str) -> dict[str, Entry]:
    """The jobs without luck in a sweep's folder."""
    return {job: entry for job, entry in replay(folder / "sweeps" / name).items() if "luck=0" in job}


def killed(folder: Path, quick: bool) -> Found:
    """A sweep in which every other job fails is killed, when some have finished; then the same command again."""
    seeds = 2 if quick else 5
    found = sweep_with(folder, "night", grid_of("0,1", seeds, attempts=2), [(1, kill_sweep)])
    tried = sorted({entry.attempts for entry in _unlucky(folder, "night").values()})
    kept = (found["finished"], found["failed"], found["again"], found["code"]) == (seeds, seeds, 0, 1)
    kept &= found["sweeps_killed"] == 1 and 2 <= tried[0] <= tried[-1] <= 4  # each command tries twice
    words = f"{found['finished']} finished, {found['failed']} failed after {' or '.join(map(str, tried))} attempts, "
    words += f"code {found['code']}; {found['again']} that had finished before the kill ran again"
    return Found(1, int(not kept), {"ran_again": found["again"], "jobs": found["jobs"]}, words)


def two_hundred(folder: Path, quick: bool) -> Found:
    """200 jobs of which 20 fail; the sweep is killed after 50 and after 120 are finished."""
    seeds = 2 if quick else 20
    blows = [(5, kill_sweep), (12, kill_sweep)] if quick else [(50, kill_sweep), (120, kill_sweep)]
    found = sweep_with(folder, "night", grid_of("range(10)", seeds, attempts=2), blows)
    unlucky = _unlucky(folder, "night")
    tried = sorted({entry.attempts for entry in unlucky.values()})
    false = sum(entry.state == "finished" for entry in unlucky.values())
    lost = found["jobs"] - found["finished"] - found["failed"]
    wanted = {"jobs": 10 * seeds, "finished": 9 * seeds, "failed": seeds, "again": 0, "code": 1, "sweeps_killed": 2}
    kept = {key: found[key] for key in wanted} == wanted and false == 0 and max(tried) <= 6  # each command tries twice
    words = f"{found['finished']} of {found['jobs']} finished, {found['failed']} failed after "
    words += (
        f"{' or '.join(map(str, tried))} attempts, {found['sweeps_killed']} kills; {found['again']} ran again after "
    )
    words += f"they had finished, {lost} are lost, {found['wall_s']:.0f} s"
    figures = {"ran_again": found["again"], "lost": lost, "false_finished": false, "attempts": found["attempts"]}
    return Found(found["jobs"], int(not kept) and max(1, found["again"] + lost + false), figures, words)


def silent(folder: Path, quick: bool) -> Found:
    """Jobs whose process ends with exit code 0 in the middle of training, and others that are left alone."""
    seeds = 1 if quick else 5
    found = sweep_with(folder, "night", grid_of("0,1", seeds, attempts=1, **{"env.how": "exit,vanish"}), [])
    dead = _unlucky(folder, "night")
    false = sum(entry.state == "finished" for entry in dead.values())
    told = sum("exit" in entry.error.lower() for entry in dead.values())
    whole = found["finished"] - false
    kept = (found["code"], len(dead), false, whole, told) == (1, 2 * seeds, 0, 2 * seeds, 2 * seeds)
    words = (
        f"{len(dead)} jobs that died with exit code 0: {false} count as finished, {told} are named; {whole} others do"
    )
    return Found(len(dead), false or int(not kept), {"sweep_false_finished": false}, words)


def ray_losses(folder: Path, quick: bool) -> Found:
    """On a cluster of two nodes a worker is killed in the middle of its job, then a node is lost."""
    from tests.faults.ray_nodes import nodes

    seeds = 6 if quick else 16
    with nodes(2) as cluster:
        ray = {"launcher": "ray", "launcher.address": cluster.address, "total_timesteps": 40_000}
        ray |= {"checkpoint_every": 10_000, "log_every": 10_000}
        grid = [part for part in grid_of("1", seeds, **ray) if not part.startswith("slots=")]

        def strike(kill: Callable[[int, int], Any]) -> Callable[[subprocess.Popen], None]:
            """One with a job."""

            def struck(process: subprocess.Popen) -> None:
                until(lambda: cluster.working)
                kill(*next(iter(cluster.working.items())))

            return struck

        lose_worker = strike(lambda worker, raylet: os.kill(worker, signal.SIGKILL))
        lose_node = strike(lambda worker, raylet: cluster.kill(raylet))
        blows = [(2, lose_worker), (4, lose_node)]
        found = sweep_with(folder, "night", grid, blows)
    wanted = {"finished": seeds, "again": 0, "blows": 2, "code": 0}
    words = (
        f"{found['finished']} of {found['jobs']} jobs finished, {found['again']} twice, in {found['attempts']} attempts"
    )
    kept = {key: found[key] for key in wanted} == wanted and found["attempts"] >= seeds + 2
    return Found(2, int(not kept), {key: found[key] for key in ("jobs", "finished", "again", "attempts")}, words)


FAULTS = [
    Fault(
        "sweep-killed", "jobs fail, and the sweep is killed", "The rest goes on; no finished job runs again.", killed
    ),
    Fault(
        "sweep-200",
        "a sweep of 200 jobs, 20 of which fail, is killed twice",
        "180 finish, 20 fail after their attempts; none is lost, none that finished runs again.",
        two_hundred,
    ),
    Fault(
        "silent-death",
        "jobs of a sweep end with exit code 0 in the middle (SystemExit, os._exit)",
        "None counts as finished; the reason is named.",
        silent,
    ),
    Fault(
        "ray-losses",
        "a worker of a Ray cluster is killed, then a node is lost",
        "Their jobs run again elsewhere; every job finishes once.",
        ray_losses,
    ),
]
