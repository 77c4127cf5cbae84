"""Ours beside other libraries, like beside like, each in a process and a virtual environment of its own.

    python -m benchmarks peers              all cases of `benchmarks/peers/cases.py`, about 17 minutes on a quiet core
    python -m benchmarks peers:NAME:NAME    some of them

A case that has all its rounds at this commit is not measured again, so that the whole can be run in pieces. The
processes of a case live side by side on one thread of one core and take turns of `SECONDS`; a figure is the median over
rounds of the ratio of frames per CPU-second within a round. Round 0 is what went before: compiling and the first lap.
Each row has the versions and the settings. How it is checked that all do the same says `drivers/drive.py`.

Environments are made with `uv` on first use (8 GB), under $LODESTAR_PEERS or runs/peers, and kept. A library that
cannot be installed or does not run is skipped with a sentence, and figures that need it are left as they were.
$LODESTAR_PUREJAXRL is a checkout of github.com/luchris429/purejaxrl, $LODESTAR_CLEANRL of github.com/vwxyzjn/cleanrl,
which are no packages.

Left out: PufferLib, whose wheel has environments and no trainer; and vectors of processes, as it is CPU-seconds that
are counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.study import commit

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "drivers"
HOME = Path(os.environ.get("LODESTAR_PEERS", ROOT / "runs" / "peers"))
ROUNDS, SECONDS = 5, 1.5
LIMIT = 600  # seconds for an installation or a turn
# One thread, and freed memory is kept, as in our own runs.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "SDL_VIDEODRIVER": "dummy",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
}
COLUMNS = (
    *("case", "round", "variant", "versions", "settings", "frames", "cpu_seconds", "wall_seconds"),
    *("frames_per_cpu_second", "megabytes", "commit"),
)
Row = dict[str, Any]
Rates = dict[str, np.ndarray]  # variant -> frames per CPU-second of each round
Figure = Callable[[Rates], float]
# rllte says nothing about the versions it needs: it breaks on NumPy 2 and on Gymnasium 1.
RLLTE = ("rllte-core==1.0.1", "numpy<2", "gymnasium<1")


@dataclass(frozen=True)
class Variant:
    """What takes turns: a script in `drivers`, what it reads, and what to install for it; nothing where it is ours."""

    script: str
    settings: dict[str, Any]
    needs: tuple[str, ...] = ()
    checkout: str = ""  # VARIABLE=REPOSITORY: what names a clone that it cannot do without, and of what


@dataclass(frozen=True)
class Case:
    """Variants, the figures that follow from their rates, and what measures them where it is not turns of processes."""

    variants: dict[str, Variant] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    measure: Callable[[], list[Row]] | None = None
    rows: Callable[[list[Row]], dict[str, float]] | None = None  # figures that are no ratio of rates
    rounds: int = ROUNDS


def over(ours: str, *theirs: str) -> Figure:
    """Median over rounds of ours over the best of theirs."""
    return lambda rates: float(np.median(rates[ours] / np.max([rates[name] for name in theirs], axis=0)))


def run(
    folder: Path, cases: Sequence[str] = (), home: Path = HOME, table: dict[str, Case] | None = None
) -> dict[str, float]:
    """Measure the cases, all by default, that lack rows at this commit; the figures of those that have them.

    Raises:
        RuntimeError: if ours does not run.
        UsageError: for a case that is not there.
    """
    from benchmarks.peers.cases import CASES
    from runners.run.config import UsageError, describe_unknown

    table, path, figures = CASES if table is None else table, folder / "peers.csv", dict[str, float]()
    for name in cases:
        if name not in table:
            raise UsageError(describe_unknown("case", name, list(table)))
    for name in cases or table:
        case, rows = table[name], [row for row in results.read_rows(path) if row.get("case") == name]
        if not _complete(case, rows):
            _forget(path, name)
            if case.measure is not None:
                _write(path, name, case.measure())
            else:
                _turns(path, name, case, home)
            rows = [row for row in results.read_rows(path) if row.get("case") == name]
        found = case.rows(rows) if case.rows else {}
        rates = _rates(rows)
        for key, figure in case.figures.items():
            with contextlib.suppress(KeyError):  # a variant was skipped
                found[key] = figure(rates)
        print("".join(f"  {key} {value:.3f}" for key, value in found.items()), flush=True)
        figures |= found
    by_hand = [float(row["wall_seconds"]) for row in results.read_rows(path) if row["case"] == "make_train"]
    return figures | ({"make_train_s": by_hand[-1]} if by_hand else {})


def _complete(case: Case, rows: list[Row]) -> bool:
    """Whether there are all rounds of all variants at this commit."""
    last = {row["variant"]: int(row["round"]) for row in rows if row["commit"] == commit()}
    return bool(last) and all(last.get(name, 0) >= case.rounds for name in case.variants or last)


def _rates(rows: list[Row]) -> Rates:
    found: dict[str, list[float]] = {}
    for row in rows:
        if int(row["round"]) > 0 and row["frames"]:
            found.setdefault(row["variant"], []).append(float(row["frames"]) / float(row["cpu_seconds"]))
    return {name: np.array(values) for name, values in found.items()}


def _forget(path: Path, name: str) -> None:
    """Remove the rows of a case."""
    kept = [row for row in results.read_rows(path) if row["case"] != name]
    path.unlink(missing_ok=True)
    if kept:
        results.append_rows(path, kept)


def _write(path: Path, case: str, rows: list[Row]) -> None:
    for row in rows:
        rate = f"{row['frames'] / row['cpu_seconds']:.1f}" if row["frames"] else ""
        print(case, row["round"], row["variant"], f"{row['cpu_seconds']:.2f} CPU-s", rate, flush=True)
        whole = {"megabytes": "", **row, "case": case, "frames_per_cpu_second": rate, "commit": commit()}
        results.append_rows(path, [{column: whole[column] for column in COLUMNS}])


def _turns(path: Path, name: str, case: Case, home: Path) -> None:
    with contextlib.ExitStack() as stack:
        running: dict[str, Process] = {}
        for variant, about in case.variants.items():
            try:
                process = running[variant] = stack.enter_context(Process(about, home))
                first = process.read()
                process.calibrate()
            except RuntimeError as error:
                if not about.needs:
                    raise
                running.pop(variant, None)
                print(f"{variant} is skipped: {error}", file=sys.stderr)
            else:
                _write(path, name, [process.row(0, variant, first)])
        for turn in range(1, case.rounds + 1):
            for variant, process in running.items():
                _write(path, name, [process.row(turn, variant, process.ask(process.laps))])


class Process:
    """A variant in its own Python: it answers every request for laps with their seconds.

    Raises:
        RuntimeError: with the last error that it complains of, if it fails, takes too long or is not there.
    """

    def __init__(self, about: Variant, home: Path = HOME) -> None:
        variable, _, source = about.checkout.partition("=")
        if source and not Path(os.environ.get(variable, ""), source.split("/")[-1]).is_dir():
            raise RuntimeError(f"it is no package; git clone https://{source}, and set {variable} to the folder")
        python = environment(home, about.needs) if about.needs else Path(sys.executable)
        self.settings, self.laps, self.folder = about.settings, 1, tempfile.TemporaryDirectory()
        self.said = Path(self.folder.name) / "stderr"  # what a library writes, it writes in this folder
        command = [str(python), str(SCRIPTS / "drive.py"), about.script, json.dumps(about.settings)]
        with self.said.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self.folder.name,
                env=_variables({"PYTHONPATH": str(ROOT)} if not about.needs else {}),
            )
        self.versions = "unknown"

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.folder.cleanup()

    def read(self) -> Row:
        """What it answers next; versions come first."""
        assert self.process.stdout is not None
        timer = threading.Timer(LIMIT, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            self.process.wait()
            raise RuntimeError(_complaint(self.said.read_text()))
        answer: Row = json.loads(line)
        if "versions" in answer:
            self.versions = ", ".join(" ".join(pair) for pair in answer["versions"].items())
            return self.read()
        return answer

    def ask(self, laps: int) -> Row:
        """The seconds of so many laps."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `read` says why it ended
            self.process.stdin.write(f"{laps}\n")
            self.process.stdin.flush()
        return {**self.read(), "laps": laps}

    def calibrate(self) -> None:
        """Choose how many laps a turn has."""
        self.laps = max(1, round(SECONDS / self.ask(1)["cpu_seconds"]))

    def row(self, turn: int, variant: str, answer: Row) -> Row:
        """A row of the CSV."""
        row = {"round": turn, "variant": variant, "versions": self.versions, "settings": json.dumps(self.settings)}
        frames = answer.get("laps", 1) * self.settings["frames"]
        return {**row, "frames": frames, **{key: answer[key] for key in ("cpu_seconds", "wall_seconds")}}


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


def _variables(settings: dict[str, str] | None = None) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return {**inherited, **SETTINGS, **(settings or {})}


def _complaint(said: str) -> str:
    lines = said.strip().splitlines() or ["it ended without a word, or took too long"]
    return ([line for line in lines if "rror" in line] or lines)[-1].strip()


def call(command: list[str], settings: dict[str, str] | None = None) -> str:
    """What a command prints.

    Raises:
        RuntimeError: with the last error that it complains of, if it fails, takes too long or is not there.
    """
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=_variables(settings))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(str(error)) from None
    if answer.returncode:
        raise RuntimeError(_complaint(answer.stderr))
    return answer.stdout
