"""SLURM's five commands in a few lines, for one machine: no queue, no limits, but arrays, signals and requeueing.

`install(folder)` makes the commands, to be put on the PATH; what they know of the jobs is in that folder too.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

COMMANDS = ("sbatch", "srun", "sacct", "scancel", "scontrol")


def install(folder: Path) -> None:
    for name in COMMANDS:
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {folder} {name} "$@"\n')
        (folder / name).chmod(0o755)


def sbatch(state: Path, script: str) -> None:
    number = 1 + len([*state.glob("*.submitted")])
    (state / f"{number}.submitted").write_text(script)
    array = re.search(r"--array=0-(\d+)", Path(script).read_text())
    for element in range(int(array[1]) + 1) if array else [None]:
        name = str(number) if element is None else f"{number}_{element}"
        (state / f"{name}.state").write_text("PENDING")
        command = [sys.executable, __file__, str(state), "node", name, script]
        subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(f"Submitted batch job {number}")


def node(state: Path, name: str, script: str) -> None:
    number, _, element = name.partition("_")
    env = {**os.environ, "SLURM_JOB_ID": number, "SLURM_NTASKS": "1", "PRETEND_NAME": name}
    if element:
        env |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": element}
    while True:
        (state / f"{name}.state").write_text("RUNNING")
        with (state / f"{name}.log").open("a") as log:
            code = subprocess.call(["bash", script], env=env, stdout=log, stderr=log)
        if not (state / f"{name}.requeue").exists():
            break
        (state / f"{name}.requeue").unlink()
    (state / f"{name}.state").write_text("FAILED" if code else "COMPLETED")


def srun(state: Path, *arguments: str) -> None:
    words = [*arguments]
    while words[0].startswith("--"):
        del words[: 1 if words[0] == "--unbuffered" else 2]
    (state / f"{os.environ['PRETEND_NAME']}.pid").write_text(str(os.getpid()))
    os.execvp(words[0], words)


def sacct(state: Path, *arguments: str) -> None:
    print("JobID|State|NodeList")
    for path in sorted(state.glob("*.state")):
        print(f"{path.stem}|{path.read_text()}|here")


def scancel(state: Path, *arguments: str) -> None:
    name = arguments[-1]
    if "--state=PENDING" in arguments or (state / f"{name}.state").read_text() != "RUNNING":
        return
    number = signal.SIGTERM if "--signal=TERM" in arguments else signal.SIGKILL
    os.kill(int((state / f"{name}.pid").read_text()), number)


def scontrol(state: Path, verb: str, name: str) -> None:
    assert verb == "requeue"
    (state / f"{name}.requeue").write_text("")


if __name__ == "__main__":
    globals()[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
