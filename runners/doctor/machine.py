"""The machine: Python, torch and the GPU, cores, memory, and the disk that runs are written to."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from runners.doctor import Finding

GB = 1e9
PROBE = 16_000_000  # bytes that are written to measure the disk


def python(wanted: str = ">=3.11,<3.14") -> Iterator[Finding]:
    """Python itself, and whether there is a screen."""
    from packaging.specifiers import SpecifierSet

    version = platform.python_version()
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    inside = "" if sys.prefix != sys.base_prefix else ", no virtual environment"
    fits = SpecifierSet(wanted).contains(version, prereleases=True)
    yield Finding.of("python", f"{version} on {system}{inside}", "" if fits else f"use Python {wanted}, as tested")
    from envs.render import prepare

    there = sys.platform in ("win32", "darwin") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    words = "there is one" if there else "none; runners.watch writes videos instead of opening a window"
    yield Finding.of("screen", f"{words} ({prepare()})", required=False)


def torch() -> Iterator[Finding]:
    """Torch with its threads, and the GPU or why there is none."""
    import torch as t

    threads = t.get_num_threads()
    yield Finding.of("torch on the CPU", f"{threads} thread{'s' * (threads > 1)} by default; num_threads= sets it")
    if t.cuda.is_available():
        for index in range(t.cuda.device_count()):
            yield _gpu(t, index)
    elif t.backends.mps.is_available():
        yield Finding.of("GPU", "Apple's, device=mps", required=False)
    else:
        yield Finding("GPU", "ok", *_no_gpu(t), required=False)


def _gpu(t: Any, index: int) -> Finding:
    device = t.device("cuda", index)
    free, total = t.cuda.mem_get_info(device)
    driver = t._C._cuda_getDriverVersion()
    bf16 = "with" if t.cuda.is_bf16_supported() else "without"
    words = (
        f"{t.cuda.get_device_name(device)} {bf16} bf16, {free / GB:.1f} of {total / GB:.1f} GB free, "
        f"torch's CUDA {t.version.cuda}, driver up to CUDA {driver // 1000}.{driver % 1000 // 10}"
    )
    one = t.ones(64, 64, device=device)
    if float((one @ one).sum()) != 64.0**3:
        return Finding(f"GPU {index}", "missing", f"{words}; it multiplies wrongly", "device=cpu", required=False)
    return Finding(f"GPU {index}", "ok", words, required=False)


def _no_gpu(t: Any) -> tuple[str, str]:
    """Why there is none, and what would help."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if t.version.cuda is None:
        return "none, torch was built without CUDA", "with a GPU: pip install torch from the index for your CUDA"
    if hidden is not None and hidden.strip() in ("", "-1"):
        return f"none, CUDA_VISIBLE_DEVICES={hidden!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    if not any(Path("/dev").glob("nvidia[0-9]*")) and sys.platform == "linux":
        return f"none on this machine (torch's CUDA {t.version.cuda}); device=auto takes the CPU", ""
    driver = t._C._cuda_getDriverVersion()
    found = f"there is one, but torch's CUDA {t.version.cuda} cannot use it (driver up to {driver // 1000})"
    return found, "update the driver, or install the torch that was built for it"


def cores() -> Iterator[Finding]:
    """Cores, memory and open files, as this process may use them."""
    count = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    quota = _quota()
    words = f"{usable} of {count} usable" + (f", a quota of {quota:.1f}" if quota is not None else "")
    fix = "" if quota is None or quota >= usable else f"give slots={max(int(quota), 1)} to sweeps"
    yield Finding.of("cores", words, fix)
    free, total = _memory()
    fix = "" if free > 2 * GB or not total else "fewer environments or jobs at once; a job takes 0.5 to 1.5 GB"
    yield Finding.of("memory", f"{free / GB:.1f} of {total / GB:.1f} GB free", fix)
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fix = "" if soft == resource.RLIM_INFINITY or soft >= 1024 else "ulimit -n 4096"
    yield Finding.of("open files", f"up to {soft:,} (could be {hard:,})", fix)


def _quota() -> float | None:
    """Cores that a container may use, None without a limit."""
    with suppress(OSError, ValueError):
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    return None


def _memory() -> tuple[float, float]:
    """Bytes free and in all, of the container if it has a limit; zeros if unknown."""
    free = total = 0.0
    with suppress(OSError, ValueError):
        table = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(table[key].split()[0]) * 1024.0 for key in ("MemTotal", "MemAvailable"))
    with suppress(OSError, ValueError):
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
        free, total = min(free, limit - used), min(total, limit)
    if not total and hasattr(os, "sysconf"):
        with suppress(ValueError, OSError):
            total = free = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return free, total


def disk(root: str) -> Iterator[Finding]:
    """Room, speed, and a checkpoint written and read, where runs are kept."""
    import shutil

    place = Path(root).absolute()
    while not place.exists():
        place = place.parent
    free, total = shutil.disk_usage(place).free, shutil.disk_usage(place).total
    words, fix = f"{free / GB:.1f} of {total / GB:.1f} GB free at {root}", "root=<another folder>, or delete old runs"
    nodes = os.statvfs(place) if hasattr(os, "statvfs") else None
    few = nodes is not None and nodes.f_files > 0 and nodes.f_favail < 10_000
    if nodes is not None and nodes.f_files:
        words += f", {nodes.f_favail:,} files more"
    tight = few or free < 2 * GB
    yield Finding.of("disk", words, fix if tight else "")
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as folder:
        yield _speed(Path(folder))
        yield _checkpoint(Path(folder))
    shm = Path("/dev/shm")
    if shm.is_dir():
        free = shutil.disk_usage(shm).free
        fix = "" if free > 0.06 * GB else "docker run --shm-size=1g; processes pass observations through it"
        yield Finding.of("/dev/shm", f"{free / GB:.2f} GB free", fix, required=False)


def _speed(folder: Path) -> Finding:
    data = os.urandom(PROBE)
    begin = time.perf_counter()
    with (folder / "probe").open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    rate = PROBE / 1e6 / (time.perf_counter() - begin)
    fix = "" if rate > 5 else "checkpoint_every= a larger number, or a local disk as root="
    return Finding.of("disk speed", f"{rate:,.0f} MB/s written and flushed", fix)


def _checkpoint(folder: Path) -> Finding:
    import numpy as np

    from runners.run import checkpoint

    array = np.arange(250_000, dtype=np.float32)
    begin = time.perf_counter()
    checkpoint.save(folder / "checkpoints", {"array": array}, 1)
    seconds = time.perf_counter() - begin
    found = checkpoint.load(folder / "checkpoints")
    if found is None or not np.array_equal(found[0]["array"], array):
        return Finding("checkpoint", "missing", "what was written is not what was read", "root=<another disk>")
    return Finding("checkpoint", "ok", f"1 MB written in {seconds:.2f} s, and read back equal")
