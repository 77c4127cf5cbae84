"""The house: which file imports which, and what a version costs in speed beside release 0.4.0.

    python -m benchmarks plain-tests    seconds of the fast tests, on a quiet machine and beside eight busy processes

Speed is frames per CPU-second of whole training runs, both versions in turn, a fresh process each that has already
trained once. A figure is the median of the ratios within a pair, with the 95 % interval of that median.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks import results

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lodestar", "envs", "rewards", "agents", "runners")
BEFORE = "2a4f2e9a"  # the commit of release 0.4.0, with which speed is compared
PAIRS = 9  # the first warms the caches of the disk and is thrown away
COMMON = ("video=false", "eval_episodes=0", "control=none", "preset=none", "checkpoint_every=0")
SPEED = {  # case -> arguments of `runners.train`, environment steps
    "ppo_cartpole": (("env=CartPole-v1",), 122_880),
    "ppo_halfcheetah": (("env=HalfCheetah-v5",), 40_960),
    "ppo_minigrid": (("env=MiniGrid-DoorKey-5x5-v0",), 61_440),
    "ppo_rnd": (("env=CartPole-v1", "reward=rnd"), 40_960),
    "sac": (("env=Pendulum-v1", "agent=sac"), 2_000),
    "dyna": (("env=Pendulum-v1", "agent=dyna", "agent.preset=mbpo"), 1_200),
    "clip": (("env=lodestar/CartPoleUpright-v0", "reward=clip"), 8_192),
}


def import_graph(*packages: str) -> dict[str, set[str]]:
    """Module -> the modules of these packages that it imports, at any depth of its code; TYPE_CHECKING apart."""
    files = {_module(path): path for package in packages for path in sorted((ROOT / package).rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        names = {name for _, name in imports(path)}
        graph[module] = {name for name in names if name in files and name != module}
    return graph


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file, which all checks of its text share."""
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of a file's syntax tree."""
    return [*ast.walk(parse(path))]


@functools.cache
def imports(path: Path) -> list[tuple[int, str]]:
    """(line, module) of every import; `from a import b` gives `a.b` where b is a module, else `a`."""
    return [*_imports(path)]


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    checked: set[int] = set()
    for node in nodes(path):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            checked.update(id(inner) for inner in ast.walk(node))
    for node in nodes(path):
        if id(node) in checked:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            submodules = [name for name in names if _is_file(name)]
            yield from ((node.lineno, name) for name in submodules or [node.module])


@functools.cache
def _is_file(module: str) -> bool:
    return (ROOT / (module.replace(".", "/") + ".py")).exists()


def circles() -> list[list[str]]:
    """Groups of modules that import each other, directly or through others."""
    return _cycles(import_graph(*PACKAGES))


def folder_circles() -> list[list[str]]:
    """The same of folders. A file that stands directly in one of the five packages counts as a folder of its own."""
    graph: dict[str, set[str]] = {}
    for module, imported in import_graph(*PACKAGES).items():
        folder = _folder(module)
        others = {_folder(other) for other in imported}
        graph.setdefault(folder, set()).update(others - {folder})
    return _cycles(graph)


def _folder(module: str) -> str:
    is_folder = (ROOT / module.replace(".", "/")).is_dir()
    folder = module if is_folder else module.rpartition(".")[0]
    return module if folder in PACKAGES else folder


def _cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of a graph that have more than one node."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    names = sorted({*graph}.union(*graph.values()))
    place = {name: i for i, name in enumerate(names)}
    edges = [(place[name], place[other]) for name, others in graph.items() for other in others]
    rows, columns = zip(*edges)
    matrix = csr_array((np.ones(len(edges)), (rows, columns)), shape=(len(names), len(names)))
    _, labels = connected_components(matrix, connection="strong")
    groups = [[names[i] for i in np.flatnonzero(labels == label)] for label in np.unique(labels)]
    return [group for group in groups if len(group) > 1]


def speed(path: Path, cases: tuple[str, ...] = tuple(SPEED)) -> dict[str, float]:
    """Ratio of this version's frames per CPU-second to those of `BEFORE`, with the interval of the median."""
    path.unlink(missing_ok=True)
    figures: dict[str, float] = {}
    with checkout(BEFORE) as before:
        for case in cases:
            arguments, steps = SPEED[case]
            ratios = []
            for pair in range(PAIRS):
                order = [("before", before), ("after", ROOT)]
                rates = {name: steps / train(root, arguments, steps) for name, root in order[:: (-1) ** pair]}
                row = {"case": case, "pair": pair, **{name: round(rate, 1) for name, rate in sorted(rates.items())}}
                results.append_rows(path, [row])
                print(row, flush=True)
                ratios.append(rates["after"] / rates["before"])
            low, high = median_interval(ratios[1:])
            figures |= {f"speed_{case}": float(np.median(ratios[1:]))}
            figures |= {f"speed_{case}_low": low, f"speed_{case}_high": high}
    return figures


def median_interval(values: list[float], draws: int = 10_000) -> tuple[float, float]:
    """95 % bootstrap interval of a median."""
    sample = np.random.default_rng(0).choice(values, (draws, len(values)))
    low, high = np.quantile(np.median(sample, 1), [0.025, 0.975])
    return float(low), float(high)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The project as it was at a commit, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="lodestar-") as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        subprocess.run(["git", "-C", folder, "checkout", "--quiet", commit], check=True)
        yield Path(folder)


_TRAIN = """
import sys, time
from pathlib import Path
from runners.train import main
arguments, steps, folder = sys.argv[3:], int(sys.argv[1]), sys.argv[2]
assert Path(sys.modules["runners.train"].__file__).is_relative_to(Path.cwd())
main([*arguments, f"total_timesteps={max(steps // 10, 300)}", f"run_dir={folder}/warm"])
cpu = time.process_time()
assert main([*arguments, f"total_timesteps={steps}", f"run_dir={folder}/run"]) == 0
print("CPU", time.process_time() - cpu)
"""


def train(root: Path, arguments: tuple[str, ...], steps: int) -> float:
    """CPU-seconds of a training run by the version in `root`."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _TRAIN, str(steps), folder, *arguments, *COMMON]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.rsplit("CPU", 1)[1])


def run_tests(folder: Path) -> dict[str, float]:
    """Seconds and number of the fast tests as `make test` runs them, quiet and beside eight busy processes."""
    command = [sys.executable, "-m", "pytest", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
    figures: dict[str, float] = {}
    for name, load in (("quiet", 0), ("loaded", 8)):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
        try:
            began = time.perf_counter()
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
            )
            figures[f"test_seconds_{name}"] = time.perf_counter() - began
        finally:
            for process in busy:
                process.kill()
        last = done.stdout.strip().splitlines()[-1]
        print(*re.findall(r"^(?:FAILED|ERROR) .*$", done.stdout, re.M), f"{name}: {last}", sep="\n", flush=True)
        if done.returncode:
            raise RuntimeError(f"the tests failed {name}: {last}")
        figures["tests"] = float(re.findall(r"(\d+) passed", last)[0])
    return figures
