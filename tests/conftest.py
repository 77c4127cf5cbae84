import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("MUJOCO_GL", "egl")
sys.path.insert(0, str(Path(__file__).parent))  # for `from scripted import ...`

if find_spec("nle") is None:
    collect_ignore_glob = ["test_envs/test_nethack_tasks.py", "test_envs/test_batched_nethack.py"]  # they import it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test that needs NetHack is skipped where it cannot be installed (Windows, a Python without its wheel)."""
    try:
        return (yield)
    except ImportError as error:
        if find_spec("nle") is None and "nle" in str(error):
            pytest.skip(f"nle is not installed: {error}")
        raise
