"""Environments that die, hang or raise in their workers, and a parent that dies itself."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.faults import Fault, Found

ID = "LodestarFaulty-v0"
ENV = f"{__name__}:{ID}"
ROOT = Path(__file__).resolve().parents[2]
DETECT_S, RESUME_S, CLOSE_S = 1.0, 30.0, 5.0  # a replacement imports what it needs; a busy machine takes its time
HANG_S = 1e6


class Faulty(gym.Env):
    """Fifty steps of nothing that end as truncated, until something happens.

    Args:
        how: kill, segfault, exit, stop, hang, busy (a long step in C, which lets no other thread run), raise, or none.
        at: in which of the steps that this object is asked for.
        mark: file that takes the time (monotonic) just before; where it exists already, nothing happens.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, how: str = "none", at: int = 10, mark: str = "", render_mode: str | None = None) -> None:
        self.how, self.at, self.mark, self.render_mode = how, at, mark, render_mode
        self.t = self.total = 0
        self.number = 0.0  # of the episode, random

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.number = 0, self.np_random.random()
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t, self.total = self.t + 1, self.total + 1
        if self.total == self.at and self.how != "none" and not (self.mark and os.path.exists(self.mark)):
            if self.mark:
                Path(self.mark).write_text(f"{time.monotonic()}")
            self.happen()
        return self._obs(), 1.0, False, self.t == 50, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.t, self.number], np.float32)

    def happen(self) -> None:
        """What goes wrong."""
        match self.how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)
            case "exit":
                os._exit(3)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hang":
                time.sleep(HANG_S)
            case "busy":
                sum(range(10**15))
            case "raise":
                raise KeyError("the door")


gym.register(ID, f"{__name__}:Faulty")


def vector(how: str, mark: Path | str = "", at: int = 10, n: int = 4, bad: int = 1, **options: Any) -> Any:
    """`n` environments in two workers, of which one will go wrong."""
    from envs.make import make
    from envs.vector.workers import Workers

    makers = [
        functools.partial(make, ENV, seed=row, how=how if row == bad else "none", at=at, mark=str(mark))
        for row in range(n)
    ]
    return Workers(makers, 2, **options)


def lose(folder: Path, how: str, number: int, **options: Any) -> tuple[list[str], dict[str, float]]:
    """Lose a worker once: what was not as promised, and how long it took to notice and to go on."""
    mark, wrong, said = folder / f"mark-{number}", [], []
    envs = vector(how, mark, crash_folder=folder / f"crashes-{number}", **options)
    envs.say = lambda sentence: said.append((time.monotonic(), sentence))
    before = np.array(envs.reset(seed=0)[0])
    lost = None
    for _ in range(20):
        obs, rewards, terminations, truncations, infos = envs.step(np.zeros(4, int))
        if "lost" in infos:
            resumed, lost = time.monotonic(), infos["lost"].copy()
            if not (truncations[lost].all() and not terminations.any() and not rewards[lost].any()):
                wrong.append("a lost episode did not end as truncated without a reward")
            if not np.array_equal(infos["final_obs"][lost], before[lost]):
                wrong.append("its last observation was not the last one known")
            if not (obs[lost, 0] == 0).all():
                wrong.append("no new episode began")
        before = np.array(obs)
    envs.close()
    if lost is None or len(said) != 1 or lost.tolist() != [False, True, False, True]:
        return [*wrong, f"lost {lost}, said {[sentence for _, sentence in said]}"], {}
    happened = float(mark.read_text())
    return [*wrong, *_unnamed(how, said[0][1], folder / f"crashes-{number}")], {
        "detect_s": said[0][0] - happened,
        "resume_s": resumed - happened,
    }


def _unnamed(how: str, sentence: str, crashes: Path) -> list[str]:
    """What a sentence about a loss should have named, and did not."""
    words = {
        "kill": ["environments 1, 3", "SIGKILL", "environment 1, action 0"],
        "segfault": ["environments 1, 3", "SIGSEGV", "environment 1, action 0", str(crashes)],
        "hang": ["environments 1, 3", "gave no answer for 2 s", "workers.py:"],
        "raise": ["environment 1 raised KeyError", "the door", "workers.py:", "action 0"],
    }[how]
    wrong = [f"{word!r} is not in: {sentence}" for word in words if word not in sentence]
    if how == "segfault" and "Segmentation fault" not in (crashes / "worker-1.txt").read_text():
        wrong.append("no stack was written")
    return wrong


def _lost(
    how: str, folder: Path, quick: bool, trials: int, detect: tuple[float, float] = (0, DETECT_S), **options: Any
) -> Found:
    failed, slowest, words = 0, {"detect_s": 0.0, "resume_s": 0.0}, ""
    trials = 1 if quick else trials
    for number in range(trials):
        wrong, seconds = lose(folder, how, number, **options)
        if seconds and not detect[0] <= seconds["detect_s"] <= detect[1]:
            wrong.append(f"it was noticed after {seconds['detect_s']:.2f} s")
        if seconds and seconds["resume_s"] - seconds["detect_s"] > RESUME_S:
            wrong.append(f"stepping went on after {seconds['resume_s']:.2f} s")
        failed += bool(wrong)
        words = words or "; ".join(wrong)
        slowest = {key: max(value, seconds.get(key, 0.0)) for key, value in slowest.items()}
    good = f"noticed within {slowest['detect_s']:.2f} s, stepping again after {slowest['resume_s']:.2f} s at most"
    return Found(trials, failed, slowest, words or good)


def killed(folder: Path, quick: bool) -> Found:
    """SIGKILL in the middle of a step."""
    return _lost("kill", folder, quick, 10)


def segfault(folder: Path, quick: bool) -> Found:
    """A null pointer in a simulator."""
    return _lost("segfault", folder, quick, 10)


def hangs(folder: Path, quick: bool) -> Found:
    """A step that never ends."""
    return _lost("hang", folder, quick, 5, (2.0, 3.0), step_timeout=2.0)


def raises_restart(folder: Path, quick: bool) -> Found:
    """An exception, with on_error=restart."""
    return _lost("raise", folder, quick, 5, on_error="restart")


def trained(folder: Path, *options: str) -> tuple[int | None, str, float]:
    """A run in workers, a process of its own: exit code (None: it hung), what it printed, seconds."""
    command = [sys.executable, "-m", "runners.train", f"env={ENV}", "reward=rnd", "agent=ppo", "backend=workers"]
    command += ["n_envs=2", "agent.n_steps=16", "agent.batch_size=16", "agent.n_epochs=1", "eval_episodes=0"]
    command += ["video=false", "control=none", "device=cpu", "preset=none", f"run_dir={folder}", *options]
    begin = time.monotonic()
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired:
        return None, "", time.monotonic() - begin
    return ended.returncode, ended.stdout + ended.stderr, time.monotonic() - begin


def raises_stop(folder: Path, quick: bool) -> Found:
    """An exception, as it is by default: the run ends."""
    code, printed, _ = trained(folder / "run", "env.how=raise", "env.at=40", "total_timesteps=1000")
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    named = len(errors) == 1 and all(word in errors[0] for word in ("KeyError", "the door", "workers.py:", "action"))
    good = code == 6 and named
    return Found(1, int(not good), {}, errors[0] if good else f"exit code {code}: {printed[-300:]}")


def crash_loop(folder: Path, quick: bool) -> Found:
    """Every environment dies after so many steps, again and again."""
    from runners.run import checkpoint

    code, printed, _ = trained(folder / "run", "env.how=kill", "env.at=40", "total_timesteps=100000")
    restarts = printed.count("it is replaced")
    found = checkpoint.load(folder / "run" / "checkpoints")
    step = found[1] if found else -1
    wrong = [] if code == 6 else [f"exit code {code}"]
    wrong += [] if restarts == 5 else [f"{restarts} restarts: {printed[-400:]}"]
    wrong += [] if step > 0 else ["no checkpoint"]
    good = f"code 6 at the sixth death; the checkpoint of step {step} is whole"
    return Found(1, int(bool(wrong)), {"restarts": restarts}, "; ".join(wrong) or good)


def close_after_death(folder: Path, quick: bool) -> Found:
    """Workers die or hang in every way; then the vector is closed."""
    ways = ("kill", "segfault", "exit", "stop", "hang")
    trials = len(ways) if quick else 50
    hung, left, slowest, pids = 0, 0, 0.0, []
    for number in range(trials):
        envs = vector(ways[number % len(ways)], at=1, restarts=0, step_timeout=0.5, crash_folder=folder / "crashes")
        pids += [worker.process.pid for worker in envs._workers]
        envs.reset(seed=0)
        begin = time.monotonic()
        if number % 2:  # closed in the middle of a step, or after it has failed
            envs.send(np.zeros(2, int))
        else:
            _fails(functools.partial(envs.step, np.zeros(4, int)))
        envs.close()
        envs.close()
        seconds = time.monotonic() - begin
        hung += seconds > CLOSE_S
        slowest = max(slowest, seconds)
    end = time.monotonic() + 10
    while (left := sum(map(runs, pids))) and time.monotonic() < end:
        time.sleep(0.05)
    words = f"closed within {slowest:.2f} s; {left} of {len(pids)} processes left over"
    return Found(trials, hung + bool(left), {"deaths_hung": hung, "slowest_s": slowest}, words)


def _fails(act: Callable[[], Any]) -> None:
    from envs.vector.workers import WorkerError

    try:
        act()
    except WorkerError:
        return
    raise AssertionError("a dead worker went unnoticed")


def runs(pid: int) -> bool:
    """Whether there is such a process, other than as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def parent_killed(folder: Path, quick: bool) -> Found:
    """kill -9 of the trainer, its workers in the middle of a long step."""
    trials, left, slowest = 2 if quick else 10, 0, 0.0
    for number in range(trials):
        how = ("hang", "busy")[number % 2]
        script = (
            "import numpy as np\n"
            f"from {__name__} import vector\n"
            "if __name__ == '__main__':\n"
            f"    envs = vector('{how}', at=1, bad=0)\n"
            "    envs.reset()\n"
            "    envs.send(np.zeros(2, int))\n"
            "    print(*[worker.process.pid for worker in envs._workers], flush=True)\n"
            "    input()\n"
        )
        command = [sys.executable, "-c", script]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            pids = list(map(int, parent.stdout.readline().split()))
            time.sleep(0.2)
            alive = len(pids) == 2 and all(map(runs, pids))
            parent.kill()
            parent.wait()
            begin = time.monotonic()
            while any(map(runs, pids)) and time.monotonic() < begin + 5:
                time.sleep(0.01)
        slowest = max(slowest, time.monotonic() - begin)
        left += any(map(runs, pids)) or not alive
    return Found(trials, left, {"slowest_s": slowest}, f"all workers gone {slowest:.2f} s after their parent at most")


FAULTS = [
    Fault(
        "worker-killed",
        "SIGKILL of a worker",
        "Noticed within 1 s and named; replaced; its episodes end as truncated, unpaid, and are no transitions.",
        killed,
    ),
    Fault(
        "worker-segfault",
        "a simulator that crashes",
        "As a SIGKILL; besides, the stack of the crash lies in the run's folder.",
        segfault,
    ),
    Fault(
        "worker-raises",
        "an environment that raises",
        "The run ends with code 6 and a sentence with the error, its file and line, environment and action.",
        raises_stop,
    ),
    Fault(
        "worker-raises-restart",
        "an environment that raises, on_env_error=restart",
        "The error, its place, environment and action are said, and the worker is replaced.",
        raises_restart,
    ),
    Fault(
        "worker-hangs",
        "a step that never ends, step_timeout=2",
        "Noticed after 2 to 3 s, with the line it hangs in; killed and replaced.",
        hangs,
    ),
    Fault(
        "worker-crash-loop",
        "environments that die again and again",
        "Five are replaced; the sixth death ends the run with code 6 and a whole checkpoint.",
        crash_loop,
    ),
    Fault(
        "worker-close",
        "close() after deaths, hangs and stops, and in the middle of a step",
        "Returns within 5 s, 50 times of 50, and no process is left after 10 s.",
        close_after_death,
    ),
    Fault(
        "worker-parent-killed",
        "SIGKILL of the parent in the middle of a long step",
        "All workers are gone within 5 s.",
        parent_killed,
    ),
]
