"""Bring faults about, one after the other, and tell which promises were kept.

    python -m tests.faults                            all of them, about an hour
    python -m tests.faults killed-in-save resume      some
    python -m tests.faults quick=true                 each with the fewest trials that mean something; writes nothing

Every fault is real: processes are killed, files cut, disks filled. Each runs in a process and a folder of its own; one
that crashes or hangs is a broken promise, not the end. keys:
    quick=   few trials (false)
    out=     folder for faults.csv and faults.json (assets/results; none when quick)
    limit=   seconds after which a fault counts as hung (1200)
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import results
from runners.run.config import UsageError, describe_unknown
from tests.faults import Fault, Found

HEADLINES = (
    "phases_tried",
    "phases_resumed",
    "sweep_false_finished",
    "kills_lost",
    "deaths_hung",
    "malicious_executed",
    "untrusted_executed",
    "untrusted_tried",
    "resume_max_diff",
    "secrets_leaked",
)
GROUPS = ("workers", "processes", "phases", "storage", "resume", "numbers", "security", "judges", "interfaces", "night")
GROUPS += ("cluster", "evaluations", "hostile", "links", "releases")
ASKED = Path(__file__).with_name("asked.csv")  # the faults that the suite has to bear, and the rows that show each


def faults() -> dict[str, Fault]:
    """Every fault of this folder's files by name; a file that cannot be imported is a fault that crashes.

    Raises:
        ValueError: if two have one name.
    """
    found: dict[str, Fault] = {}
    for name in GROUPS:
        try:
            rows = import_module(f"tests.faults.{name}").FAULTS
        except Exception as error:
            rows = [Fault(name, "the file of these faults", "It can be imported.", _raising(error))]
        for row in rows:
            if row.name in found:
                raise ValueError(f"two faults are called {row.name!r}; rename one of them")
            found[row.name] = row
    return found


def _raising(error: Exception) -> Any:
    def run(folder: Path, quick: bool) -> Found:
        raise error

    return run


def bring_about(fault: Fault, quick: bool, limit: float) -> Found:
    """One row, in a process and an empty folder of its own; a crash or a hang is one failed trial."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="lodestar-fault-", ignore_cleanup_errors=True) as folder, ours:
        process = context.Process(target=_work, args=(fault, Path(folder), quick, theirs))
        process.start()
        theirs.close()
        try:
            found = ours.recv() if ours.poll(limit) else Found(1, 1, {}, f"it hung and was killed after {limit:g} s")
        except EOFError:
            process.join(10)
            found = Found(1, 1, {}, f"its process ended with code {process.exitcode}")
        process.join(5)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(int(process.pid or 0), signal.SIGKILL)  # with whatever it left running
        process.join()
    return found


def _work(fault: Fault, folder: Path, quick: bool, out: Connection) -> None:
    os.setsid()
    log = os.open(folder.with_suffix(".txt"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.unlink(folder.with_suffix(".txt"))  # runs are talkative; what counts comes back through the pipe
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
    try:
        found = fault.run(folder, quick)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        found = Found(1, 1, {}, f"it crashed: {type(error).__name__}: {' '.join(str(error).split())[:300]} ({place})")
    out.send(found)
    os._exit(0)


def figures(found: dict[str, Found]) -> dict[str, float]:
    """The figures of all rows: the headlines under their own names, the rest behind the row's."""
    merged: dict[str, float] = {}
    for name, row in found.items():
        for key, value in row.figures.items():
            merged[key if key in HEADLINES else f"{name.replace('-', '_')}_{key}"] = float(value)
    return merged


def write(out: Path, table: dict[str, Fault], found: dict[str, Found], command: str) -> None:
    """faults.csv, with the rows of earlier runs that were not repeated now, and faults.json."""
    path = out / "faults.csv"
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in results.read_rows(path) if row["name"] in table}
    for name, row in found.items():
        rows[name] = {
            "name": name,
            "fault": table[name].fault,
            "promise": table[name].promise,
            "trials": row.trials,
            "failed": row.failed,
            "real": table[name].real,
            "words": row.words,
            "figures": " ".join(f"{key}={value:.6g}" for key, value in row.figures.items()),
        }
    for name, kept in rows.items():
        kept["real"] = table[name].real
    path.unlink(missing_ok=True)
    results.append_rows(path, [rows[name] for name in table if name in rows])
    if (out.parent.parent / "docs").is_dir():
        (out.parent.parent / "docs" / "faults.md").write_text(page(table, list(rows.values())))
    totals = {
        "faults": len(rows),
        "faults_failed": sum(int(row["failed"]) > 0 for row in rows.values()),
        "fault_trials": sum(int(row["trials"]) for row in rows.values()),
    }
    measured = figures(found)
    results.write_figures(out / "faults.json", command, {**measured, **totals})
    headlines = {key: value for key, value in measured.items() if key in HEADLINES}
    results.write_figures(out / "experiments.json", command, headlines)


def page(table: dict[str, Fault], rows: list[dict[str, Any]]) -> str:
    """docs/faults.md: the rows of faults.csv in the order of the table."""
    known = {row["name"]: row for row in rows}
    total, broken = (sum(int(row[key]) for row in rows) for key in ("trials", "failed"))
    lines = [
        "# What goes wrong, and what happens then",
        "",
        f"Written by `python -m tests.faults`: {len(rows)} faults, brought about in {total:,} trials, {broken} of",
        "which broke the promise beside them. *Real* ones kill processes, cut files, fill disks, answer from a server;",
        "for the *replaced* ones a part of the process is exchanged, because the machine cannot be made to do it.",
        "",
        "| fault | promise | trials | broken | how | seen |",
        "|---|---|---|---|---|---|",
    ]
    for name, fault in table.items():
        if name in known:
            row, how = known[name], "real" if fault.real else "replaced"
            seen = " ".join(str(row["words"]).replace("|", "/").replace("<", "&lt;").split())
            promise = f"{fault.promise[0].upper()}{fault.promise[1:].rstrip('.')}"
            lines.append(
                f"| `{name}`: {fault.fault} | {promise} | {row['trials']} | {row['failed']} | {how} | {seen} |"
            )
    lines += [
        "",
        "## Where to find which",
        "",
        "1 to 50 are the faults that the suite was planned to bear; those with a letter broke 0.1.0.",
        "",
        "| | fault | trials | how | shown by |",
        "|---|---|---|---|---|",
    ]
    for asked in results.read_rows(ASKED):
        names = asked["shown by"].split()
        trials = sum(int(known[name]["trials"]) for name in names if name in known)
        how = " and ".join(dict.fromkeys("real" if table[name].real else "replaced" for name in names))
        shown = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {asked['number']} | {asked['fault']} | {trials:,} | {how} | {shown} |")
    return "\n".join(lines) + "\n"


def parse(argv: list[str], names: list[str]) -> tuple[list[str], bool, Path | None, float]:
    """Names, quick, out, limit.

    Raises:
        UsageError: for a name or a key that is unknown.
    """
    chosen, options = [], {"quick": "false", "out": "", "limit": "1200"}
    for argument in argv:
        key, equals, value = argument.partition("=")
        if equals and key in options:
            options[key] = value
        elif not equals and argument in names:
            chosen.append(argument)
        else:
            raise UsageError(describe_unknown("key" if equals else "fault", key, options if equals else names))
    if options["quick"] not in ("true", "false"):
        raise UsageError(f"quick={options['quick']} is neither true nor false")
    try:
        limit = float(options["limit"])
    except ValueError:
        raise UsageError(f"limit={options['limit']} is no number of seconds; give one above 0") from None
    quick = options["quick"] == "true"
    out = Path(options["out"]) if options["out"] else None if quick else Path("assets/results")
    return chosen or names, quick, out, limit


def main(argv: list[str] | None = None) -> int:
    """Bring about what is asked for; 0 if every promise was kept, 1 if not."""
    argv = sys.argv[1:] if argv is None else argv
    if any(argument in ("-h", "--help") for argument in argv):
        print(__doc__)
        return 0
    table = faults()
    try:
        chosen, quick, out, limit = parse(argv, list(table))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name in ("torch", "stable_baselines3", "runners.train"):
        import_module(name)  # once for all rows
    found: dict[str, Found] = {}
    for name in chosen:
        fault, began = table[name], time.monotonic()
        print(f"{name}: {fault.fault}\n    {fault.promise}", flush=True)
        found[name] = row = bring_about(fault, quick, limit)
        if out is not None:
            write(out, table, {name: row}, f"python -m tests.faults {' '.join(argv)}".strip())
        kept = "kept" if not row.failed else f"BROKEN in {row.failed}"
        print(f"    {kept} ({row.trials} trials, {time.monotonic() - began:.1f} s): {row.words}", flush=True)
        if row.figures:
            print(f"    {json.dumps({key: round(value, 6) for key, value in row.figures.items()})}", flush=True)
    broken = [name for name, row in found.items() if row.failed]
    print(f"\n{len(found)} faults, {len(broken)} promises broken{': ' + ', '.join(broken) if broken else ''}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
