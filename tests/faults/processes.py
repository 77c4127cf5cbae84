"""Signals, machines that lack something, clocks that jump, and runs that go on for long; sweeps are in `night`."""

from __future__ import annotations

import itertools
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tests.faults import Fault, Found
from tests.faults.child import TINY, Child, python_without, run, sentence, train, typed, until, warm
from tests.faults.storage import loaded, status

SLEEPER = "tests.faults.processes:Sleeper-v0"


class Sleeper(gym.Env):
    """Sleeps for a minute in its 300th step."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.total = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.total += 1
        if self.total == 300:
            time.sleep(60)
        return np.zeros(3, np.float32), 1.0, False, self.total % 40 == 0, {}


class Raiser(Sleeper):
    """Raises in its 50th step."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.total == 49:
            raise KeyError("the door")
        return super().step(action)


class Exiter(Sleeper):
    """Calls `exit(0)` in its 100th step."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.total == 99:
            sys.exit(0)
        return super().step(action)


class Vanisher(Sleeper):
    """Ends the process in its 100th step, as if all were well."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.total == 99:
            os._exit(0)
        return super().step(action)


gym.register("Exiter-v0", f"{__name__}:Exiter")
gym.register("Vanisher-v0", f"{__name__}:Vanisher")
gym.register("Sleeper-v0", f"{__name__}:Sleeper")
gym.register("Raiser-v0", f"{__name__}:Raiser")


def terminated(folder: Path, quick: bool) -> Found:
    """SIGTERM at a random time: in the set-up, at once after it, in training; the same command then goes on."""
    warm()
    rng = np.random.default_rng(3)
    trials, failed, saved, slowest = 3 if quick else 50, 0, 0, 0.0
    for trial in range(trials):
        place = folder / str(trial)
        options = {"run_dir": place, "total_timesteps": 1e7, "reward": "rnd"}
        with Child(lambda options=options: train(**options), folder / "out.txt") as child:  # type: ignore[misc]
            if trial % 3:
                until((place / "checkpoints" / "LATEST").exists)
            time.sleep(0.7 * rng.random() + 0.05)
            began = time.monotonic()
            os.kill(child.pid, signal.SIGTERM)
            code = child.wait(60)
        slowest = max(slowest, time.monotonic() - began)
        _, step, said = loaded(place / "checkpoints")
        state = status(place)
        trained = state.get("step", 0) > 0
        saved += step > 0
        kept = code == 143 and not said and (step > 0) == trained == (trial % 3 > 0 or trained)
        kept &= not state or (state["state"], state["exit_code"], state["step"]) == ("stopped", 143, max(step, 0))
        failed += not kept
    words = f"{trials - failed} of {trials} ended with 143, {saved} with a checkpoint (the others had not begun); "
    words += f"the slowest after {slowest:.1f} s"
    return Found(trials, failed + (slowest > 10), {"slowest_s": slowest, "saved": saved}, words)


def interrupted_twice(folder: Path, quick: bool) -> Found:
    """Ctrl-C while an environment is stuck in a step, and once more 0.2 s later."""
    warm()
    place = folder / "run"
    with Child(lambda: train(env=SLEEPER, run_dir=place, total_timesteps=1e5), folder / "out.txt") as child:
        until((place / "checkpoints" / "step_000000000576").exists)
        time.sleep(1.0)  # by now it sleeps inside a step
        os.kill(child.pid, signal.SIGINT)
        time.sleep(0.2)
        waited = child.alive
        began = time.monotonic()
        os.kill(child.pid, signal.SIGINT)
        code = child.wait(30)
        seconds = time.monotonic() - began
    _, step, said = loaded(place / "checkpoints")
    kept = code == 130 and waited and seconds <= 2 and step == 576 and not said
    return Found(
        1, int(not kept), {"second_s": seconds}, f"code {code} {seconds:.2f} s after the second, step {step} kept"
    )


def no_gpu(folder: Path, quick: bool) -> Found:
    """CUDA hidden from the process; asked for, and left to device=auto."""
    warm()

    def action(device: str) -> Callable[[], int]:
        def training() -> int:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
            return train(run_dir=folder / device, total_timesteps=64, device=device)

        return training

    refused, words = run(action("cuda"), folder / "cuda.txt")
    went, printed = run(action("auto"), folder / "auto.txt")
    kept = refused == 2 and sentence(words) and not (folder / "cuda").exists()
    fell_back = went == 0 and "seed 0, cpu" in printed
    line = next((line for line in words.splitlines() if line.startswith("error: ")), "nothing")
    return Found(
        2, (not kept) + (not fell_back), {}, f"cuda: code {refused}, {line[7:]}; auto: code {went}, on the CPU"
    )


def no_renderer(folder: Path, quick: bool) -> Found:
    """MuJoCo draws by a library that is not installed, by one of a name that is none, and not at all."""
    codes, failed = [], 0
    cases = [("osmesa", "clip", 3), ("nonsense", "task", 3), ("disable", "clip", 3), ("disable", "task", 0)]
    for choice, reward, wanted in cases[1:] if quick else cases:
        python = python_without("OpenGL", folder / "venv") if choice == "osmesa" else sys.executable
        world = {"env": "HalfCheetah-v5", "reward": reward, "run_dir": folder / choice, "total_timesteps": 64}
        argv = [f"{key}={value}" for key, value in {**TINY, **world, "control": "none"}.items()]
        code, printed = typed(python, "-m", "runners.train", *argv, MUJOCO_GL=choice)
        codes.append(code)
        failed += code != wanted or (wanted > 0 and not (sentence(printed) and "MUJOCO_GL=disable" in printed))
    words = f"codes {codes} for {', '.join(f'{c} with {r}' for c, r, _ in cases[-len(codes) :])}"
    return Found(len(codes), failed, {}, words)


LLM = '{url: "http://127.0.0.1:9/v1", model: any}'
LACKING: dict[str, dict[str, Any]] = {
    "minigrid": {"env": "MiniGrid-Empty-5x5-v0"},
    "nle": {"env": "NetHackScore-v0"},
    "highway_env": {"env": "highway-fast-v0"},
    "crafter": {"env": "lodestar/Crafter-v0"},
    "mujoco": {"env": "HalfCheetah-v5"},
    "open_clip": {"reward": "clip"},
    "sb3_contrib": {"agent": "qrdqn"},
    "httpx2": {"reward": "oni", "reward.oni.judge": "openai", "reward.oni.judge_options": LLM},
}


def lacking(folder: Path, quick: bool) -> Found:
    """Every package of an environment, a reward or an agent, in a virtual environment that has all the others."""
    broken = []
    names = list(LACKING)[-3:] if quick else list(LACKING)
    for package in names:
        python = python_without(package, folder / f"without-{package}")
        options = {"env": "CartPole-v1", **LACKING[package], "run_dir": folder / package, "total_timesteps": 64}
        code, printed = typed(python, "-m", "runners.train", *(f"{key}={value}" for key, value in options.items()))
        if code != 3 or not sentence(printed) or "pip install" not in printed or (folder / package).exists():
            broken.append(f"{package} (code {code})")
    words = f"{', '.join(names)}: code 3, one line{'; not ' if broken else ''}{', '.join(broken)}"
    return Found(len(names), len(broken), {}, words)


JUMPING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec *now) {  /* plus the seconds in the file that CLOCK_JUMP names */
    static int (*original)(clockid_t, struct timespec *);
    if (!original) original = dlsym(RTLD_NEXT, "clock_gettime");
    int code = original(which, now), file = which == CLOCK_REALTIME ? open(getenv("CLOCK_JUMP"), O_RDONLY) : -1;
    char text[32] = {0};
    if (file >= 0 && read(file, text, 31) > 0) now->tv_sec += atol(text);
    if (file >= 0) close(file);
    return code;
}
"""


def clock_jump(folder: Path, quick: bool) -> Found:
    """The wall clock goes back by an hour in the middle of a run, and forward by a day; then the run goes on.

    The machine's clock stays as it is: a library before the C library answers this process alone.
    """
    from runners.run.progress import read_csv

    library = folder / "jumping.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"], input=JUMPING, text=True, check=True)
    trials, failed, lowest, every = 0, 0, float("inf"), 2048
    for agent, jump in itertools.product(("ppo", "dqn")[: 1 if quick else 2], (-3600, 86400)):
        place, clock = folder / f"{agent}{jump:+}", folder / f"clock{jump:+}-{agent}"
        options: dict[str, Any] = {
            "run_dir": place,
            "env": "CartPole-v1",
            "agent": agent,
            "total_timesteps": 16 * every,
        }
        options |= {"eval_episodes": 0, "video": "false", "log_every": every, "checkpoint_every": every}
        command = [sys.executable, "-m", "runners.train", *(f"{key}={value}" for key, value in options.items())]
        latest = place / "checkpoints" / "LATEST"

        def saved(count: int, latest: Path = latest) -> bool:
            return latest.exists() and int(latest.read_text()[5:17]) >= count * every

        env = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_JUMP": str(clock)}
        with (folder / "out.txt").open("w") as out:
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        until(lambda: saved(2) or process.poll() is not None, 120)  # noqa: B023
        clock.with_suffix(".new").write_text(str(jump))
        clock.with_suffix(".new").rename(clock)
        until(lambda: saved(5) or process.poll() is not None, 120)  # noqa: B023
        process.terminate()
        codes = [process.wait(60), typed(*command)[0]]
        rows = read_csv(place / "metrics.csv") if (place / "metrics.csv").exists() else []
        times = [float(row[key]) for row in rows for key in row if key.startswith("time/") and row[key]]
        lowest = min([lowest, *times])
        trials += 1
        failed += codes != [143, 0] or not times or min(times) < 0 or max(float(r["time/fps"]) for r in rows) > 1e6
    words = f"{trials - failed} of {trials} runs: no negative time, and they went on"
    return Found(trials, failed, {"lowest_time": lowest}, words)


def hung_up(folder: Path, quick: bool) -> Found:
    """The terminal of a run is closed in the middle of training."""
    warm()
    from runners.run.progress import read_csv

    trials, failed, steps = 2 if quick else 20, 0, []
    for trial in range(trials):
        place = folder / str(trial)
        pid, terminal = pty.fork()
        if not pid:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which this may run, ignores it
            sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
            os._exit(train(run_dir=place, total_timesteps=1e7, reward="rnd", checkpoint_every=1e6))
        log = place / "metrics.csv"
        until(lambda log=log: log.exists() and len(read_csv(log)) > 1)  # type: ignore[misc]
        time.sleep(0.05 * trial)
        os.close(terminal)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _, step, said = loaded(place / "checkpoints")
        steps.append(step)
        failed += code != 129 or bool(said) or step <= 0 or status(place).get("state") != "stopped"
    words = f"{trials - failed} of {trials} saved, after {min(steps)} to {max(steps)} steps without another checkpoint"
    return Found(trials, failed, {}, words)


def warned(folder: Path, quick: bool) -> Found:
    """The signals by which batch systems and alarms warn, in the middle of training."""
    warm()
    codes, failed, each = {}, 0, 1 if quick else 5
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU):
        for trial in range(each):
            place = folder / f"{number.name}-{trial}"
            options = {"run_dir": place, "total_timesteps": 1e7, "checkpoint_every": 1e6}
            with Child(lambda options=options: train(**options), folder / "out.txt") as child:  # type: ignore[misc]
                until(lambda place=place: status(place).get("state") == "running")  # type: ignore[misc]
                time.sleep(0.2 + 0.1 * trial)
                os.kill(child.pid, number)
                codes[number.name] = code = child.wait(60)
            _, step, said = loaded(place / "checkpoints")
            failed += code != 128 + number or bool(said) or step <= 0 or status(place).get("state") != "stopped"
    words = f"{4 * each - failed} of {4 * each} saved; codes {', '.join(f'{k} {v}' for k, v in codes.items())}"
    return Found(4 * each, failed, {}, words)


def soak(folder: Path, quick: bool) -> Found:
    """CartPole with RND for five minutes (20 s when quick), memory and open files looked at every second."""
    warm()
    seconds, lead = (20.0, 8.0) if quick else (300.0, 60.0)
    options = {"run_dir": folder / "run", "total_timesteps": 1e8, "reward": "[task,rnd]", "checkpoint_every": 2048}
    rows: list[tuple[float, float, int]] = []
    with Child(lambda: train(**{**options, "agent.n_steps": 128, "log_every": 512}), folder / "out.txt") as child:
        until((folder / "run" / "checkpoints" / "LATEST").exists)
        began = time.monotonic()
        while child.alive and time.monotonic() - began < seconds:
            time.sleep(1)
            resident = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            rows.append((time.monotonic() - began, resident / 2**20, len(os.listdir(f"/proc/{child.pid}/fd"))))
        alive = child.alive
        os.kill(child.pid, signal.SIGTERM)
        code = child.wait(60)
    late = np.array([row for row in rows if row[0] > lead])
    slope = float(np.polyfit(late[:, 0] / 60, late[:, 1], 1)[0])
    files = int(late[:, 2].max() - late[:, 2].min())
    # A save opens up to two files for a moment.
    kept = alive and code == 143 and files <= 2 and (slope < 1 or quick)
    step = status(folder / "run").get("step", 0)
    words = f"{seconds:.0f} s, {step:,} steps: memory {slope:+.2f} MiB a minute, open files {late[:, 2].min():.0f}"
    return Found(1, int(not kept), {"slope_mib_per_minute": slope, "files_more": files, "minutes": seconds / 60}, words)


FAULTS = [
    Fault("terminated", "SIGTERM at any time", "Saved and out within 10 s with code 143, 50 of 50.", terminated),
    Fault(
        "interrupted-twice",
        "Ctrl-C twice",
        "The first waits for the step, the second ends it at once.",
        interrupted_twice,
    ),
    Fault("no-gpu", "CUDA is absent", "device=cuda is refused in a sentence; auto takes the CPU.", no_gpu),
    Fault("no-renderer", "OpenGL is absent", "One sentence, code 3; without pictures the run goes.", no_renderer),
    Fault("lacking-package", "a package is missing", "One line that installs it, code 3.", lacking),
    Fault("clock-jump", "the clock jumps", "No time is negative, and the run can go on.", clock_jump),
    Fault("hung-up", "the terminal is closed", "Saved, code 129.", hung_up),
    Fault("warned", "SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU", "Saved, the code of the signal.", warned),
    Fault("soak", "a long run", "Memory grows by less than 1 MiB a minute, open files stay.", soak),
]
