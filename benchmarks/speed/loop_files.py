"""How many of our files one turn of a learning loop passes through: what must be read to follow it.

    python -m benchmarks.speed.loop_files

A turn of PPO is from its second rollout to its third, one of dyna from a fit of its model to the next, with logging on.
Counted are the files of agents, envs, rewards and runners in which a Python function runs meanwhile. The clock stands
still: what is done by the clock, such as a line of progress, would be counted on a busy machine alone.
"""

from __future__ import annotations

import contextlib
import io
import pkgutil
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("lodestar", "envs", "rewards", "agents", "runners")
QUIET = ["eval_episodes=0", "video=false", "control=none", "log_every=1"]
LOOPS = {  # name -> the function whose second and third calls are the ends of the turn, the run
    "ppo": ("agents.ppo.agent:PPO.collect", "env=CartPole-v1 reward=rnd agent=ppo total_timesteps=8192"),
    "dyna": (
        "agents.dyna.imagination:Imagination.fit",
        "env=Pendulum-v1 agent=dyna agent.preset=mbpo total_timesteps=1500",
    ),
}


def files(loop: str) -> list[str]:
    """The files, relative to the repository, that one turn of a loop passes through."""
    from runners.train import main

    name, command = LOOPS[loop]
    begin = pkgutil.resolve_name(name).__code__
    calls, met = 0, set()

    def watch(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        if event == "call":
            calls += frame.f_code is begin
            if calls == 2:
                met.add(frame.f_code.co_filename)

    started = time.monotonic()
    still_clock = mock.patch("time.monotonic", lambda: started)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), still_clock:
        sys.setprofile(watch)
        try:
            main([*command.split(), *QUIET, f"run_dir={folder}/run"])
        finally:
            sys.setprofile(None)
    assert calls > 2, f"{name} ran {calls} times: the run is too short for a turn"
    ours = (Path(path).relative_to(ROOT) for path in met if Path(path).is_relative_to(ROOT))
    return sorted(str(path) for path in ours if path.parts[0] in PACKAGES)


def measure() -> dict[str, int]:
    """How many files of each loop."""
    return {f"{loop}_loop_files": len(files(loop)) for loop in LOOPS}


if __name__ == "__main__":
    for loop in LOOPS:
        found = files(loop)
        print(f"{loop}: {len(found)} files", *found, sep="\n  ")
