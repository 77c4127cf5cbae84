"""What a language model's server can do, and the file in which its answers are kept.

A server that goes away for a minute in the middle of a run is `python -m benchmarks outage`.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

from tests.faults import Fault, Found
from tests.faults.child import Child

JUDGE = "rules 0123456789abcdef"


def misbehaving(folder: Path, quick: bool) -> Found:
    """Forty ways to answer badly, and captions that give orders; see `tests.faults.judge_faults`."""
    from tests.faults.judge_faults import run

    found = run(folder)
    failed = found["mislabels"] + found["injection_flips"] + found["leaked_keys"]
    trials = int(found["faults"] + found["injections"])
    words = f"{found['mislabels']:.0f} wrong labels from {found['faults']:.0f} faults of a server, "
    words += f"{found['injection_flips']:.0f} of {found['injections']:.0f} injections changed a label"
    return Found(trials, int(failed), {key: float(value) for key, value in found.items()}, words)


def torn(folder: Path, quick: bool) -> Found:
    """The head of the file of answers is overwritten."""
    from rewards.llm.store import AnswerStore, Label

    path = folder / "answers.sqlite"
    said: list[str] = []
    with closing(AnswerStore(path)) as cache:
        cache.put(JUDGE, [Label("a door", 1.0)])
    path.write_bytes(bytes(100) + path.read_bytes()[100:])
    with closing(AnswerStore(path, say=said.append)) as cache:
        cache.put(JUDGE, [Label("a wall", 0.0)])
        known = cache.get(JUDGE, ["a door", "a wall"])
    aside = [other.name for other in folder.iterdir() if ".bad" in other.name]
    kept = known == {"a wall": 0.0} and len(said) == 1 and len(aside) == 1
    return Found(1, int(not kept), {}, f"put aside as {', '.join(aside)}; a new one took what came next")


def writers(folder: Path, quick: bool) -> Found:
    """Four processes write into one file of answers at once."""
    from rewards.llm.store import AnswerStore, Label

    rows, size = (500 if quick else 5000), 50
    path = folder / "answers.sqlite"

    def write(number: int) -> int:
        said: list[str] = []
        with closing(AnswerStore(path, wait=60, say=said.append)) as cache:
            for start in range(0, rows, size):
                cache.put(JUDGE, [Label(f"{number} {i}", 1.0) for i in range(start, start + size)])
        return len(said)

    with ExitStack() as stack:
        children = [stack.enter_context(Child(lambda n=n: write(n), folder / f"{n}.txt")) for n in range(4)]  # type: ignore[misc]
        codes = [child.wait(300) for child in children]
    with closing(AnswerStore(path)) as cache, closing(sqlite3.connect(path)) as connection:
        there = len(cache)
        sound = connection.execute("PRAGMA integrity_check").fetchone()[0]
    failed = 4 * rows - there + sum(code != 0 for code in codes) + (sound != "ok")
    return Found(4 * rows, failed, {}, f"{there:,} of {4 * rows:,} rows there, exit codes {codes}, integrity {sound}")


FAULTS = [
    Fault("torn-answers", "the file of answers is damaged", "It is put aside, and the run goes on.", torn),
    Fault("four-writers", "four writers, one file of answers", "No row is lost, no lock is an error.", writers),
    Fault("judge-misbehaves", "a judge's server answers badly", "No label is wrong, no key is repeated.", misbehaving),
]
