"""The checks: the machine, the packages, environments and models. Each gives its findings one by one."""

import hashlib
import importlib
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from lodestar.memory import memory
from runners.doctor import Finding, ask
from runners.run.packages import DISTRIBUTION, HOME, PACKAGES, distribution, install, module_of, name_collision, version

GB = 1e9
STEPS = 10
SIDE = 64  # pixels of the frames
AGAIN = f"pip install --force-reinstall --no-deps {DISTRIBUTION}"
BUILD = "pip install --force-reinstall nle (where it has no wheel it needs cmake, bison, flex and libbz2)"
GL = "apt-get install libegl1 libgl1 libosmesa6, then MUJOCO_GL=egl or osmesa"
SEEN = "only videos and rewards that read frames need it"


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
    words, fix = f"{usable} of {count} usable", ""
    with suppress(OSError, ValueError):  # without a container's limit, "max" is no number
        limit, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        words += f", a quota of {limit / period:.1f}"
        fix = "" if limit / period >= usable else f"give slots={max(limit // period, 1)} to sweeps"
    yield Finding.of("cores", words, fix)
    free, total = memory()
    fix = "" if free > 2 * GB or not total else "fewer environments or jobs at once; a job takes 0.5 to 1.5 GB"
    yield Finding.of("memory", f"{free / GB:.1f} of {total / GB:.1f} GB free", fix)
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fix = "" if soft == resource.RLIM_INFINITY or soft >= 1024 else "ulimit -n 4096"
    yield Finding.of("open files", f"up to {soft:,} (could be {hard:,})", fix)


def disk(root: str) -> Iterator[Finding]:
    """Room, speed, and a checkpoint written and read, where runs are kept."""
    import shutil

    place = Path(root).absolute()
    while not place.exists():
        place = place.parent
    free, total = shutil.disk_usage(place).free, shutil.disk_usage(place).total
    words, fix = f"{free / GB:.1f} of {total / GB:.1f} GB free at {root}", "root=<another folder>, or delete old runs"
    nodes = os.statvfs(place) if hasattr(os, "statvfs") else None
    tight = free < 2 * GB
    if nodes is not None and nodes.f_files:
        words += f", {nodes.f_favail:,} files more"
        tight |= nodes.f_favail < 10_000
    yield Finding.of("disk", words, fix if tight else "")
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as folder:
        yield _checkpoint(Path(folder))
    shm = Path("/dev/shm")
    if shm.is_dir():
        free = shutil.disk_usage(shm).free
        fix = "" if free > 0.06 * GB else "docker run --shm-size=1g; processes pass observations through it"
        yield Finding.of("/dev/shm", f"{free / GB:.2f} GB free", fix, required=False)


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


def imports(requirements: list[str], timeout: float) -> list[Finding]:
    """Import all of them, in one process as training does; one that kills it is named and the rest go on in another."""
    findings: list[Finding] = []
    while len(findings) < len(requirements):
        rest = requirements[len(findings) :]
        name = distribution(rest[0])
        found = ask(name, f"{__name__}:each", *rest, fix=install(rest[0]), timeout=timeout)
        if found[-1].name == name and len(found) > 1:  # the last line is about the one after those that answered
            found[-1] = found[-1]._replace(name=distribution(rest[len(found) - 1]), fix=install(rest[len(found) - 1]))
        findings += found[: len(rest)]
    return findings


def each(*requirements: str) -> Iterator[Finding]:
    """One finding for each requirement."""
    from packaging.requirements import Requirement

    for line in requirements:
        wish, name = Requirement(line), distribution(line)
        if wish.marker is not None and not wish.marker.evaluate():
            yield Finding(name, "ok", f"not needed here ({wish.marker})")
            continue
        begin = time.perf_counter()
        try:
            importlib.import_module(module_of(name))
            have = metadata.version(name)
        except Exception as error:
            words = " ".join(str(error).split())[:200]
            yield Finding(name, "missing", f"{type(error).__name__}: {words}", install(line))
            continue
        found, fix = f"{have}, {time.perf_counter() - begin:.1f} s", ""
        if not wish.specifier.contains(have, prereleases=True):
            found, fix = f"{found}, but {wish.specifier} is asked for", install(line)
        yield Finding.of(name, found, fix)


def extra(name: str, *requirements: str) -> Iterator[Finding]:
    """Whether what an extra brings is installed; it is not imported."""
    found = {package: version(package) for package in map(distribution, requirements)}
    lacking = ", ".join(package for package, have in found.items() if have is None)
    if lacking:
        fix = f"pip install '{DISTRIBUTION}[{name}]'"
        yield Finding(f"[{name}]", "optional", f"without {lacking}", fix, required=False)
    else:
        yield Finding.of(f"[{name}]", ", ".join(f"{p} {have}" for p, have in found.items()), required=False)


def brought(name: str, requirements: list[str], env_id: str, drawn: bool) -> Iterator[Finding]:
    """The same, and an environment that it brings."""
    (there,) = extra(name, *requirements)
    if there.state == "ok" and requirements:
        yield from environment(name, env_id, drawn, required=False)
    else:
        yield there._replace(name=name)


def ours() -> Iterator[Finding]:
    """Where the four packages are, and whether they are ours."""
    collision = name_collision()
    if collision:
        yield Finding("packages", "missing", collision, "make a virtual environment without the other one")
    else:
        yield Finding.of("packages", f"{', '.join(PACKAGES)} in {HOME}")


def pygames() -> Iterator[Finding]:
    """pygame and pygame-ce share a folder: the one installed last has overwritten the other's files."""
    there = [name for name in ("pygame", "pygame-ce") if version(name)]
    if len(there) == 2:
        fix = "pip uninstall -y pygame pygame-ce && pip install pygame-ce"
        yield Finding.of("pygame", "pygame and pygame-ce are both installed, in one folder", fix)
    else:
        yield Finding.of("pygame", f"{there[0]} alone" if there else "neither pygame nor pygame-ce is installed")


def environment(name: str, env_id: str, drawn: bool | None, required: bool = True) -> Iterator[Finding]:
    """Ten random steps, with frames if it shall be drawn (None: if it can be); a picture of one colour is an error."""
    from envs.make import make

    if drawn is None:
        from runners.run.video import can_be_drawn

        drawn = can_be_drawn(env_id)
    begin = time.perf_counter()
    env = make(env_id, seed=0, frame_size=SIDE if drawn else None)
    env.reset(seed=0)
    made = time.perf_counter() - begin
    begin = time.perf_counter()
    for _ in range(STEPS):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    each = (time.perf_counter() - begin) / STEPS
    words = f"{env_id} made in {made:.1f} s, {1000 * each:.1f} ms a step"
    if drawn:
        words += f" with a frame of {info['frame'].shape[0]} x {info['frame'].shape[1]}"
    yield Finding(name, "ok", words, required=required)


def mujoco(timeout: float) -> list[Finding]:
    """MuJoCo drawn by the chosen renderer; if that fails, which of the others would work."""
    from envs.render import prepare

    target, arguments = f"{__name__}:environment", ("mujoco drawn", "HalfCheetah-v5", True, False)
    first = ask("mujoco drawn", target, *arguments, fix=GL, required=False, timeout=timeout)[0]
    prepare()
    chosen = os.environ.get("MUJOCO_GL") or "its default"
    if first.state == "ok":
        return [first._replace(found=f"{first.found}, through {chosen}")]
    for other in ("egl", "osmesa", "glfw"):
        if other == chosen or sys.platform != "linux":
            continue
        found = ask("mujoco drawn", target, *arguments, required=False, timeout=timeout, MUJOCO_GL=other)[0]
        if found.state == "ok":
            words = f"not through {chosen} ({first.found}), but through {other}"
            return [Finding("mujoco drawn", "warning", words, f"export MUJOCO_GL={other}", required=False)]
    return [first._replace(found=f"not through {chosen}, nor any other: {first.found}; {SEEN}")]


def video() -> Iterator[Finding]:
    """Two frames through the encoder and back."""
    import imageio.v2 as imageio
    import imageio_ffmpeg
    import numpy as np

    frames = [np.full((64, 64, 3), value, np.uint8) for value in (40, 200)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "two.mp4"
        imageio.mimwrite(path, frames, fps=2, codec="libx264")  # type: ignore[arg-type]
        back = imageio.mimread(path)
        size = path.stat().st_size
    levels = [round(float(np.mean(frame))) for frame in back]
    if len(back) != 2 or not np.allclose(levels, (40, 200), rtol=0, atol=8):
        found = f"of two frames {len(back)} came back, with the grey levels {levels} instead of 40 and 200"
        yield Finding.broken("video", found, "pip install --force-reinstall imageio-ffmpeg", required=False)
    else:
        words = f"ffmpeg {imageio_ffmpeg.get_ffmpeg_version()}, two frames encoded to {size:,} bytes and read back"
        yield Finding("video", "ok", words, required=False)


def shipped() -> Iterator[Finding]:
    """The models that come with the suite, against the fingerprints of their cards."""
    from rewards.vision.encoder import MODELS

    for model, folder in MODELS.items():
        name, weights = f"CLIP {model}", folder / "open_clip_model.safetensors"
        if not weights.is_file():
            yield Finding.broken(name, f"there is no {weights}", AGAIN, required=False)
            continue
        card = folder / "README.md"
        found = re.search(r"sha256\W+([0-9a-f]{64})", card.read_text()) if card.is_file() else None
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        size = f"{weights.stat().st_size / 1e6:.1f} MB"
        if found is not None and found[1] != digest:
            words = f"{size}, but not the file that its card describes ({digest[:12]}, not {found[1][:12]})"
            yield Finding.broken(name, words, AGAIN, required=False)
        else:
            yield Finding.of(name, f"{size}, {'as its card says' if found else 'without a card'}", required=False)
