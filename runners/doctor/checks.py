"""The checks: the machine, the packages, environments and models. Each gives its findings one by one."""

import functools
import importlib
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from lodestar.memory import memory
from lodestar.packages import DISTRIBUTION, distribution, install, module_of, version
from runners.doctor import Finding, ask
from runners.run.packages import HOME, PACKAGES, name_collision

GB = 1e9
RANDOM_STEPS = 10
CHECKED_FRAME_SIZE = 64
# What to do about what was found.
BUILD_NETHACK = "pip install --force-reinstall nle (where it has no wheel it needs cmake, bison, flex and libbz2)"
INSTALL_GL = "apt-get install libegl1 libgl1 libosmesa6, then MUJOCO_GL=egl or osmesa"
DRAWN_FOR = "only videos and rewards that read frames need it"


def python(wanted: str = ">=3.11,<3.14") -> Iterator[Finding]:
    """Python itself."""
    from packaging.specifiers import SpecifierSet

    version = platform.python_version()
    fix = ""
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        fix = f"use Python {wanted}, as tested"
    yield Finding.of("python", f"{version} on {platform.platform()}", fix)


def torch() -> Iterator[Finding]:
    """The GPUs that torch sees, or why it sees none."""
    import torch as t

    for index in range(t.cuda.device_count()):
        free, total = t.cuda.mem_get_info(index)
        words = f"{t.cuda.get_device_name(index)}, {free / GB:.1f} of {total / GB:.1f} GB free, CUDA {t.version.cuda}"
        yield Finding.of(f"GPU {index}", words, required=False)
    if not t.cuda.device_count():
        yield Finding("GPU", "ok", *_no_gpu(t), required=False)


def _no_gpu(t: Any) -> tuple[str, str]:
    """Why there is none, and what would help."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if t.version.cuda is None:
        return "none, torch was built without CUDA", "with a GPU: pip install torch from the index for your CUDA"
    if hidden is not None and hidden.strip() in ("", "-1"):
        return f"none, CUDA_VISIBLE_DEVICES={hidden!r} hides it", "unset CUDA_VISIBLE_DEVICES"
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return f"none on this machine (torch's CUDA {t.version.cuda}); device=auto takes the CPU", ""
    words = f"there is one, but torch's CUDA {t.version.cuda} cannot use it"
    return words, "update the driver, or install the torch that was built for it"


def cores() -> Iterator[Finding]:
    """Cores and memory, as this process may use them."""
    usable = usable_cores()
    words = f"{usable} of {os.cpu_count()} usable"
    fix = ""
    # Without a container's limit there is no such file, or "max" in it, which is no number.
    with suppress(OSError, ValueError):
        limit, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        words += f", a quota of {limit / period:.1f}"
        if limit / period < usable:
            fix = f"give slots={max(limit // period, 1)} to sweeps"
    yield Finding.of("cores", words, fix)
    free, total = memory()
    fix = ""
    if total and free <= 2 * GB:
        fix = "fewer environments or jobs at once; a job takes 0.5 to 1.5 GB"
    yield Finding.of("memory", f"{free / GB:.1f} of {total / GB:.1f} GB free", fix)


def usable_cores() -> int:
    """Only Linux says which cores a process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def disk(root: str) -> Iterator[Finding]:
    """Room, and a checkpoint written and read, where runs are kept."""
    import shutil

    place = Path(root).absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    words = f"{usage.free / GB:.1f} of {usage.total / GB:.1f} GB free at {root}"
    fix = ""
    if usage.free < 2 * GB:
        fix = "root=<another folder>, or delete old runs"
    yield Finding.of("disk", words, fix)
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as folder:
        yield _checkpoint(Path(folder))


def _checkpoint(folder: Path) -> Finding:
    import numpy as np

    from runners.run import checkpoint

    array = np.arange(250_000, dtype=np.float32)
    begin = time.perf_counter()
    checkpoint.save(folder / "checkpoints", {"array": array}, 1)
    seconds = time.perf_counter() - begin
    loaded = checkpoint.load(folder / "checkpoints")
    if loaded is None or not np.array_equal(loaded[0]["array"], array):
        return Finding("checkpoint", "missing", "what was written is not what was read", "root=<another disk>")
    return Finding("checkpoint", "ok", f"1 MB written in {seconds:.2f} s, and read back equal")


def imports(requirements: list[str], timeout: float) -> list[Finding]:
    """Import all of them, in one process as training does; one that kills it is named and the rest go on in another."""
    findings: list[Finding] = []
    while len(findings) < len(requirements):
        untried = requirements[len(findings) :]
        name = distribution(untried[0])
        answered = ask(name, f"{__name__}:requirement_findings", *untried, fix=install(untried[0]), timeout=timeout)
        if answered[-1].name == name and len(answered) > 1:
            # The last line is about the requirement after those that answered, which killed the process.
            killer = untried[len(answered) - 1]
            answered[-1] = answered[-1]._replace(name=distribution(killer), fix=install(killer))
        findings += answered[: len(untried)]
    return findings


def requirement_findings(*requirements: str) -> Iterator[Finding]:
    """One finding for each requirement."""
    from packaging.requirements import Requirement

    for line in requirements:
        requirement = Requirement(line)
        name = distribution(line)
        if requirement.marker is not None and not requirement.marker.evaluate():
            yield Finding(name, "ok", f"not needed here ({requirement.marker})")
            continue
        begin = time.perf_counter()
        try:
            importlib.import_module(module_of(name))
            installed = metadata.version(name)
        except Exception as error:
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            yield Finding(name, "missing", words, install(line))
            continue
        words = f"{installed}, {time.perf_counter() - begin:.1f} s"
        fix = ""
        if not requirement.specifier.contains(installed, prereleases=True):
            words += f", but {requirement.specifier} is asked for"
            fix = install(line)
        yield Finding.of(name, words, fix)


def extra(name: str, requirements: list[str], env_id: str = "", drawn: bool = False) -> Iterator[Finding]:
    """Whether what an extra brings is installed; nothing is imported but for its environment, if it has one."""
    label = name if env_id else f"[{name}]"
    versions = {package: version(package) for package in map(distribution, requirements)}
    lacking = [package for package in versions if versions[package] is None]
    if lacking:
        fix = f"pip install '{DISTRIBUTION}[{name}]'"
        yield Finding(label, "optional", f"without {', '.join(lacking)}", fix, required=False)
    elif env_id and requirements:
        yield from environment(name, env_id, drawn, required=False)
    else:
        words = [f"{package} {number}" for package, number in versions.items()]
        yield Finding.of(label, ", ".join(words), required=False)


def own_packages() -> Iterator[Finding]:
    """Where the four packages are, and whether they are ours."""
    collision = name_collision()
    if collision:
        yield Finding("packages", "missing", collision, "make a virtual environment without the other one")
    else:
        yield Finding.of("packages", f"{', '.join(PACKAGES)} in {HOME}")


def pygames() -> Iterator[Finding]:
    """pygame and pygame-ce share a folder: the one installed last has overwritten the other's files."""
    installed = list(filter(version, ("pygame", "pygame-ce")))
    fix = ""
    if len(installed) == 2:
        fix = "pip uninstall -y pygame pygame-ce && pip install pygame-ce"
    yield Finding.of("pygame", f"installed in its folder: {' and '.join(installed) or 'nothing'}", fix)


def environment(name: str, env_id: str, drawn: bool | None, required: bool = True) -> Iterator[Finding]:
    """Ten random steps, with frames if it shall be drawn (None: if it can be); a picture of one colour is an error."""
    from envs.make import make

    if drawn is None:
        from runners.run.video import can_be_drawn

        drawn = can_be_drawn(env_id)
    begin = time.perf_counter()
    env = make(env_id, seed=0, frame_size=CHECKED_FRAME_SIZE if drawn else None)
    env.reset(seed=0)
    words = f"{env_id} made in {time.perf_counter() - begin:.1f} s"
    for _ in range(RANDOM_STEPS):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    if drawn:
        height, width, _ = info["frame"].shape
        words += f" with a frame of {height} x {width}"
    yield Finding.of(name, words, required=required)


def mujoco(timeout: float) -> list[Finding]:
    """MuJoCo drawn by the chosen renderer; if that fails, which of the others would work."""
    from envs.render import prepare

    name = "robots drawn"
    draw = functools.partial(
        ask, name, f"{__name__}:environment", name, "HalfCheetah-v5", True, False, required=False, timeout=timeout
    )
    first = draw(fix=INSTALL_GL)[0]
    prepare()
    chosen = os.environ.get("MUJOCO_GL") or "its default"
    if first.state == "ok":
        return [first._replace(found=f"{first.found}, through {chosen}")]
    for other in ("egl", "osmesa", "glfw"):
        if other != chosen and draw(MUJOCO_GL=other)[0].state == "ok":
            words = f"not through {chosen} ({first.found}), but through {other}"
            return [Finding(name, "warning", words, f"export MUJOCO_GL={other}", required=False)]
    return [first._replace(found=f"not through {chosen}, nor any other: {first.found}; {DRAWN_FOR}")]


def video() -> Iterator[Finding]:
    """Two frames through the encoder and back."""
    import numpy as np

    from lodestar.video import INSTALL_FFMPEG, find_ffmpeg, write_mp4

    ffmpeg = find_ffmpeg()
    if not ffmpeg:
        yield Finding("video", "optional", "without ffmpeg, so that videos are GIFs", INSTALL_FFMPEG, required=False)
        return
    frames = np.zeros((2, 64, 64, 3), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "two.mp4"
        write_mp4(path, frames, fps=2)
        command = [ffmpeg, "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
        back = subprocess.run(command, capture_output=True, check=True).stdout
    fix = ""
    words = f"{ffmpeg}, two frames encoded and read back"
    if len(back) != frames.nbytes:
        words = f"{ffmpeg}: of {frames.nbytes} bytes {len(back)} came back"
        fix = "pip install --force-reinstall imageio-ffmpeg"
    yield Finding.of("video", words, fix, required=False)
