"""What an install costs: `make train` in a fresh clone, and the wheel alone in an empty environment.

    python -m benchmarks lean

`make train` runs from a warm package cache, venv and install included. Then the wheel is installed without any extra in
an environment that has nothing else, and README's first commands run there in an empty folder; each must succeed.
`install_mb_cpu` leaves out what only a GPU needs. It counts torch as the registry's build with CUDA has it, which holds
520 MB of CUDA code that torch's CPU build lacks: `install_mb_cpu_torch` leaves out these files, too.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.checks.wheel import ROOT, build

# Distributions that only torch's build with CUDA brings, and the files of torch that its CPU build lacks.
GPU_PACKAGES = re.compile(r"nvidia-|triton$|cuda-")
GPU_FILES = re.compile(r"torch/lib/lib(torch_cuda|c10_cuda|torch_nvshmem)")
# Of the environment itself.
TOOLS = {"pip", "uv", "lodestar-rl"}
COMMANDS = (
    ["--help"],
    ["list"],
    ["doctor"],
    ["train", "env=CartPole-v1", "reward=rnd", "total_timesteps=2000", "eval_episodes=2"],
    ["train", "env=lodestar/CartPoleUpright-v0", "reward=clip", "total_timesteps=2000", "eval_episodes=2"],
    ["train", "env=MiniGrid-Empty-5x5-v0", "reward=noveld", "total_timesteps=2000", "eval_episodes=2"],
    ["compare", "env=Pendulum-v1", "reward=clip,contrast"],
)
SIZES = """
import json
from importlib import metadata
sizes = {}
for distribution in metadata.distributions():
    places = [(str(file), distribution.locate_file(file)) for file in distribution.files or []]
    sizes[distribution.metadata["Name"]] = {name: place.stat().st_size for name, place in places if place.exists()}
print(json.dumps(sizes))
"""


def run(folder: Path) -> dict[str, float]:
    """Counts, megabytes (10**6 bytes) and seconds; nothing is kept."""
    del folder
    with tempfile.TemporaryDirectory(prefix="lodestar-") as place:
        clone = Path(place) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        start = time.perf_counter()
        subprocess.run(["make", "train", f"PYTHON={sys.executable}"], cwd=clone, check=True)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        # On a machine that does other work, too, only the processor's seconds mean anything.
        figures = {"make_train_s": time.perf_counter() - start, "make_train_cpu_s": usage.ru_utime + usage.ru_stime}
        _, wheel = build(Path(place))
        python = Path(place) / "empty" / "bin" / "python"
        uv = [str(clone / ".venv" / "bin" / "uv"), "pip", "install", "--python", str(python)]
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        subprocess.run([*uv, "--quiet", str(wheel)], check=True)
        figures |= sizes(python)
        plan = subprocess.run([*uv, "--dry-run", f"{wheel}[all]"], capture_output=True, text=True, check=True)
        additional = re.findall(r"^ \+ ([\w.-]+)==", plan.stderr, re.MULTILINE)
        figures["packages_all"] = figures["packages_core"] + len(additional)
        figures["commands_ok"] = sum(is_successful(python, command, Path(place)) for command in COMMANDS)
        figures["commands"] = len(COMMANDS)
    return figures


def sizes(python: Path) -> dict[str, float]:
    """Packages, without ours and those of a GPU, and megabytes of an environment."""
    output = subprocess.run([str(python), "-c", SIZES], capture_output=True, text=True, check=True).stdout
    files_of = {name: files for name, files in json.loads(output).items() if name not in TOOLS}
    ordinary = {name: files for name, files in files_of.items() if not GPU_PACKAGES.match(name)}
    without_cuda = [size for files in ordinary.values() for name, size in files.items() if not GPU_FILES.match(name)]
    return {
        "packages_core": len(ordinary),
        "packages_core_cuda": len(files_of),
        "install_mb": sum(sum(files.values()) for files in files_of.values()) / 1e6,
        "install_mb_cpu": sum(sum(files.values()) for files in ordinary.values()) / 1e6,
        "install_mb_cpu_torch": sum(without_cuda) / 1e6,
    }


def is_successful(python: Path, command: list[str], place: Path) -> bool:
    """Whether a command ends well in an empty folder; what it printed is shown if it does not."""
    with tempfile.TemporaryDirectory(dir=place) as empty:
        lodestar = [str(python.with_name("lodestar")), *command]
        done = subprocess.run(lodestar, cwd=empty, capture_output=True, text=True)
    if done.returncode:
        print(" ".join(command), done.stdout[-2000:], done.stderr[-2000:], sep="\n")
    return done.returncode == 0
