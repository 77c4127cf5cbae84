"""Speed, measured side by side: the variants of a group take turns, so that a busy neighbour disturbs all alike.

A figure is the median over rounds of a ratio within a round. Frames are counted against the process's own CPU time, its
children's included, which on one thread is the wall time of an idle machine; and against the wall, for what uses more
than one core.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results

Measure = Callable[[], tuple[int, Callable[[], Any]]]  # builds everything; returns frames and what is to be timed
Rates = dict[str, list[float]]  # variant -> frames a second, one for each round


def interleave(path: Path, group: str, rounds: int, variants: dict[str, Measure]) -> dict[str, Rates]:
    """Frames per CPU-second ("cpu") and per second ("wall") of each variant in each round, also written to a CSV.

    A first round warms up and is thrown away.
    """
    rates: dict[str, Rates] = {clock: {name: [] for name in variants} for clock in ("cpu", "wall")}
    for turn in range(rounds + 1):
        for name, measure in variants.items():
            frames, work = measure()
            wall, cpu = time.perf_counter(), _cpu()
            work()
            wall, cpu = time.perf_counter() - wall, _cpu() - cpu
            row = {"group": group, "variant": name, "round": turn, "frames": frames, "seconds": round(wall, 4)}
            row |= {"cpu_seconds": round(cpu, 4), "frames_per_cpu_second": round(frames / cpu, 1)}
            if turn > 0:
                results.append_rows(path, [row])
                rates["cpu"][name].append(frames / cpu)
                rates["wall"][name].append(frames / wall)
    return rates


def ratio(rates: Rates, one: str, other: str) -> float:
    """Median over rounds of one variant's rate over the other's."""
    return float(np.median(np.array(rates[one]) / np.array(rates[other])))


def _cpu() -> float:
    """Of this process and its children, those that run and those that ended: what one took to begin is not measured."""
    running = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    clocks = [~int(pid) << 3 | 2 for pid in running]  # MAKE_PROCESS_CPUCLOCK of linux/posix-timers.h
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(time.clock_gettime, clocks))
