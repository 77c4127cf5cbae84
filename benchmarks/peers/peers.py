"""Our PPO beside other libraries', each in a virtual environment of its own: frames per CPU-second, learning included.

    peer_<name>       ours over theirs: CartPole-v1, eight environments in one process, 256 steps a rollout, ten epochs
                      of minibatches of 64, two networks of 64 x 64 with tanh; one thread of one core
    peer_rllte_rnd    the same with random network distillation on both sides

Ours and theirs take turns; a figure is the median over rounds of the ratio of neighbours. The environments are made
with `uv` on first use (7 GB), under $LODESTAR_PEERS or runs/peers, and kept. A library that cannot be
installed or does not run is skipped with a sentence. What is measured, and how it is checked, says
`benchmarks/peers/drivers/drive.py`.

Left out: CleanRL and PufferLib, whose packages of today (1.2, 3.0) fail to build what they depend on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "drivers"
HOME = Path(os.environ.get("LODESTAR_PEERS", ROOT / "runs" / "peers"))
ROUNDS, ROLLOUTS = 3, 8  # rollouts of 2,048 frames
LIMIT = 600  # seconds for an installation or a run
# One thread, and freed memory is kept, as in our own runs.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "SDL_VIDEODRIVER": "dummy",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}


@dataclass(frozen=True)
class Peer:
    """A library: its name, what to install, the script in `drivers`, and ours that it is measured against."""

    name: str
    requirements: tuple[str, ...]
    script: str
    ours: str = "ours_ppo"


# rllte says nothing about the versions it needs: it breaks on NumPy 2 and on Gymnasium 1.
RLLTE = ("rllte-core==1.0.1", "numpy<2", "gymnasium<1")
PEERS = (
    Peer("sbx", ("sbx-rl>=0.28,<0.29", "gymnasium>=1.2,<2"), "sbx_ppo"),
    Peer("rllte", RLLTE, "rllte_ppo"),
    Peer("rllte_rnd", RLLTE, "rllte_rnd", "ours_rnd"),
    Peer("tianshou", ("tianshou>=2,<3", "gymnasium>=1.2,<2"), "tianshou_ppo"),
    Peer("torchrl", ("torchrl>=0.14,<0.15", "gymnasium>=1.2,<2"), "torchrl_ppo"),
    Peer("sample_factory", ("sample-factory>=2.1,<2.2",), "sample_factory_ppo"),
)


def run(folder: Path, peers: Sequence[Peer] = PEERS, home: Path = HOME) -> dict[str, float]:
    """Measure all that can be measured; writes a row for every measurement.

    Raises:
        RuntimeError: if ours does not run.
    """
    path = folder / "peers.csv"
    path.unlink(missing_ok=True)
    pythons: dict[str, Path] = {}
    for peer in peers:
        try:
            pythons[peer.name] = environment(home, peer.requirements)
        except RuntimeError as error:
            _skip(peer, error)
    ratios: dict[str, list[float]] = {}
    for turn in range(1, ROUNDS + 1):
        for peer in [peer for peer in peers if peer.name in pythons]:
            ours = _measure(Path(sys.executable), peer.ours)
            try:
                theirs = _measure(pythons[peer.name], peer.script)
            except RuntimeError as error:
                _skip(peer, error)
                del pythons[peer.name]
                continue
            rows = [{"peer": name, "round": turn, **row} for name, row in ((peer.ours, ours), (peer.name, theirs))]
            results.append_rows(path, [_ordered(row) for row in rows])
            ratios.setdefault(peer.name, []).append(ours["rate"] / theirs["rate"])
    return {f"peer_{name}": float(np.median(ratios[name])) for name in ratios if name in pythons}


def _ordered(row: dict[str, Any]) -> dict[str, Any]:
    columns = ("peer", "version", "round", "frames", "cpu_seconds", "wall_seconds")
    return {**{column: row[column] for column in columns}, "frames_per_cpu_second": round(row["rate"], 1)}


def _skip(peer: Peer, error: RuntimeError) -> None:
    print(f"{peer.name} is skipped: {error}", file=sys.stderr)


def environment(home: Path, requirements: tuple[str, ...]) -> Path:
    """The Python of a virtual environment that has what is required; made where there is none yet.

    Raises:
        RuntimeError: if it cannot be made.
    """
    folder = home / requirements[0].split("=")[0].rstrip("<>")
    python, note = folder / "bin" / "python", folder / "installed.txt"
    if note.exists() and note.read_text().split() == list(requirements):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    call(["uv", "venv", "-q", "--python", sys.executable, str(folder)])
    call(["uv", "pip", "install", "-q", "--python", str(python), *requirements])
    note.write_text("\n".join(requirements))
    return python


def _measure(python: Path, script: str) -> dict[str, Any]:
    """Version, frames, seconds and frames per CPU-second ("rate") of one run.

    Raises:
        RuntimeError: if it fails.
    """
    path = {"PYTHONPATH": str(ROOT)} if script.startswith("ours") else {}
    row = json.loads(call([str(python), str(SCRIPTS / "drive.py"), script, str(ROLLOUTS)], path).splitlines()[-1])
    return {**row, "rate": row["frames"] / row["cpu_seconds"]}


def call(command: list[str], settings: dict[str, str] | None = None) -> str:
    """What a command prints.

    Raises:
        RuntimeError: with the last error that it complains of, if it fails, takes too long or is not there.
    """
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment = {**inherited, **SETTINGS, **(settings or {})}
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(str(error)) from None
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        raise RuntimeError(([line for line in lines if "rror" in line] or lines)[-1].strip())
    return answer.stdout
