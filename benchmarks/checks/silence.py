"""How long a command says nothing: the longest gap between two characters that each prints, off a terminal.

    python -m benchmarks silence

Criterion: `silent_seconds_max`, over all commands below, is at most 10. Times are those of a wall clock, so the machine
should have a core to spare. The gap from the start to the first character counts, as does that to the end.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import results

RUN = ["control=none", "eval_episodes=5"]
# In this order, as some read what others left; each in the same folder.
COMMANDS = {
    "ppo": ["train", "env=CartPole-v1", "total_timesteps=50000", *RUN],
    "ppo_clip": ["train", "env=lodestar/CartPoleUpright-v0", "reward=clip", "total_timesteps=20000", *RUN],
    "sac": ["train", "env=Pendulum-v1", "agent=sac", "total_timesteps=2000", *RUN],
    "dyna": ["train", "env=Pendulum-v1", "agent=dyna", "total_timesteps=1500", *RUN],
    "highway": ["train", "env=highway-fast-v0", "total_timesteps=1000", *RUN],
    "sweep": ["sweep", "env=CartPole-v1", "reward=task,rnd", "total_timesteps=30000", "eval_episodes=5"],
    "compare": ["compare", "env=Pendulum-v1", "reward=clip,contrast"],
    "tune": ["tune", "env=CartPole-v1", "trials=2", "seeds=1", "test_seeds=1", "total_timesteps=10000"],
    "clip": ["clip", "env=CartPole-v1", "frames=1000", "steps=20", "text_steps=20", "out=clip"],
    "report": ["report", "runs/CartPole-v1"],
}
MAX_COMMAND_S = 120.0


def run(folder: Path) -> dict[str, float]:
    """Each command's longest silence, and the longest of all."""
    path = folder / "silence.csv"
    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="lodestar-") as place:
        for name, command in COMMANDS.items():
            seconds, longest, last_line, code = longest_silence(command, Path(place))
            row = {
                "command": name,
                "seconds": round(seconds, 1),
                "silent_seconds": round(longest, 2),
                "before": last_line,
                "exit_code": code,
            }
            results.append_rows(path, [row])
            print(f"{name:<12}{seconds:7.1f} s, silent for {longest:5.2f} s after {last_line!r}", flush=True)
    rows = results.read_rows(path)
    silences = {f"silent_seconds_{row['command']}": float(row["silent_seconds"]) for row in rows}
    failed = sum(row["exit_code"] != "0" for row in rows)
    return {**silences, "silent_seconds_max": max(silences.values()), "silent_commands_failed": float(failed)}


def longest_silence(command: list[str], place: Path) -> tuple[float, float, str, int]:
    """Seconds of a command and of its longest silence, the line before it, and the exit code; a slow one is ended."""
    words = [str(Path(sys.executable).with_name("lodestar")), *command]
    began = time.monotonic()
    process = subprocess.Popen(
        words, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    output = process.stdout.fileno()
    last = began
    longest = 0.0
    printed = b""
    line_before = ""
    while True:
        select.select([output], [], [], MAX_COMMAND_S)
        data = os.read(output, 65536)
        now = time.monotonic()
        if now - last > longest:
            longest = now - last
            line_before = (printed.decode(errors="replace").splitlines() or [""])[-1]
        last = now
        printed += data
        if not data or now - began > MAX_COMMAND_S:
            break
    if process.poll() is None and now - began > MAX_COMMAND_S:
        process.terminate()
    code = process.wait()
    return now - began, longest, line_before[:120], code
