"""Runs of a study, one process a core, each once: rows are written as they end, and what is there is not run again."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from runners.report import results

Job = tuple[Callable[..., dict[str, Any]], tuple[Any, ...]]


def run_missing(folder: Path, study: str, keys: tuple[str, ...], jobs: list[Job]) -> list[dict[str, Any]]:
    """Rows of `study`.csv, after the jobs whose keys are not there have run, one process a core.

    A job that fails costs its own row only.

    Raises:
        RuntimeError: at the end, if some failed; the same command tries them again.
    """
    from envs.vector.workers import cores

    path = folder / f"{study}.csv"
    rows = results.read_rows(path)
    finished = {tuple(str(row[key]) for key in keys) for row in rows}
    missing = [(function, values) for function, values in jobs if tuple(map(str, values)) not in finished]
    failed: list[str] = []
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(function, *values): values for function, values in missing}
        for future in as_completed(futures):
            name = " ".join(map(str, futures[future]))
            try:
                row = {**dict(zip(keys, futures[future])), **future.result()}
            except Exception:
                traceback.print_exc()
                failed.append(name)
                continue
            results.append_rows(path, [row])
            rows.append(row)
            print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(missing)} runs of {study} failed: {'; '.join(failed)}; see above")
    return rows
