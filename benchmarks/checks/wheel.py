"""What is published: the sdist, the wheel that is made of it, and an environment that has nothing else of ours.

The environment shares every other package of this interpreter, so that it takes seconds and no network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[1]}')(sys.argv[2])"


def run(folder: Path) -> dict[str, float]:
    """Megabytes (10**6 bytes) of either; nothing is kept."""
    del folder
    with tempfile.TemporaryDirectory(prefix="lodestar-") as place:
        sdist, wheel = build(Path(place))
        return {"wheel_mb": wheel.stat().st_size / 1e6, "sdist_mb": sdist.stat().st_size / 1e6}


def build(place: Path) -> tuple[Path, Path]:
    """The sdist of what git lists in this checkout, and the wheel of the unpacked sdist."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # not deleted since
            (place / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / "tree" / name)
    sdist = _built("sdist", place / "tree", place)
    tree = unpack(sdist, place / "sdist")
    return sdist, _built("wheel", tree, place)


def unpack(sdist: Path, place: Path) -> Path:
    """The folder that an sdist of ours unpacks to, in a new folder `place`."""
    with tarfile.open(sdist) as file:
        # Python knows filters from 3.11.4 on; before, the attribute is ignored.
        if hasattr(tarfile, "data_filter"):
            file.extraction_filter = tarfile.data_filter
        file.extractall(place)
    (tree,) = place.iterdir()
    return tree


def _built(kind: str, tree: Path, place: Path) -> Path:
    out = place / f"{kind}-built"
    out.mkdir()
    subprocess.run([sys.executable, "-c", BUILD, kind, str(out)], cwd=tree, check=True, capture_output=True)
    (made,) = out.iterdir()
    return made


def install(wheel: Path, place: Path) -> Path:
    """The interpreter of a new virtual environment with the wheel in it."""
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(
        sysconfig.get_path("purelib") + "\n"
    )  # behind its own; no .pth in there is read
    return python
