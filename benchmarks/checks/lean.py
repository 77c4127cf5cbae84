"""What an install costs: `make train` in a fresh clone, and the wheel alone in an empty environment.

    python -m benchmarks lean

`make train` runs from a warm package cache, venv and install included. Then torch's CPU build and the wheel without any
extra are installed in an environment that has nothing else, and README's first commands run there in an empty folder;
each must succeed. torch comes from a local folder of wheels, if pip is told one that holds it ($PIP_FIND_LINKS), and
else from PyTorch's index for CPUs.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.checks.wheel import ROOT, build

# Distributions that only torch's build with CUDA brings.
GPU_PACKAGES = re.compile(r"nvidia-|triton$|cuda-")
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
    places = [distribution.locate_file(file) for file in distribution.files or []]
    sizes[distribution.metadata["Name"]] = sum(place.stat().st_size for place in places if place.exists())
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
        subprocess.run([*uv, "--quiet", *cpu_torch()], check=True)
        subprocess.run([*uv, "--quiet", str(wheel)], check=True)
        megabytes = sizes(python)
        figures["packages_core"] = len(megabytes)
        figures["install_mb_cpu"] = sum(megabytes.values())
        plan = subprocess.run([*uv, "--dry-run", f"{wheel}[all]"], capture_output=True, text=True, check=True)
        additional = set(re.findall(r"^ \+ ([\w.-]+)==", plan.stderr, re.MULTILINE))
        packages = {re.sub(r"[._]", "-", name.lower()) for name in additional | set(megabytes)} - TOOLS
        figures["packages_all"] = sum(not GPU_PACKAGES.match(name) for name in packages)
        figures["commands_ok"] = sum(is_successful(python, command, Path(place)) for command in COMMANDS)
        figures["commands"] = len(COMMANDS)
    return figures


def cpu_torch() -> list[str]:
    """What uv is told to install torch's CPU build: a local wheel for this Python, or PyTorch's index."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    folder = Path(os.environ.get("PIP_FIND_LINKS", os.devnull))
    wheels = sorted(folder.glob(f"torch-*+cpu-{tag}-*.whl"))
    return [str(wheels[-1])] if wheels else ["--torch-backend", "cpu", "torch"]


def sizes(python: Path) -> dict[str, float]:
    """Megabytes of each distribution of an environment, without ours and its installers."""
    output = subprocess.run([str(python), "-c", SIZES], capture_output=True, text=True, check=True).stdout
    return {name: size / 1e6 for name, size in json.loads(output).items() if name not in TOOLS}


def is_successful(python: Path, command: list[str], place: Path) -> bool:
    """Whether a command ends well in an empty folder; what it printed is shown if it does not."""
    with tempfile.TemporaryDirectory(dir=place) as empty:
        lodestar = [str(python.with_name("lodestar")), *command]
        done = subprocess.run(lodestar, cwd=empty, capture_output=True, text=True)
    if done.returncode:
        print(" ".join(command), done.stdout[-2000:], done.stderr[-2000:], sep="\n")
    return done.returncode == 0
