import gc
import os
import re
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("MUJOCO_GL", "egl")
sys.path.insert(0, str(Path(__file__).parent))  # for `from scripted import ...`
# The files that take a processor longest, by several seconds each.
LONGEST_FILES = {
    "test_sweep.py",
    "test_resume.py",
    "test_resume_rewards.py",
    "test_train.py",
    "test_world_model.py",
    "test_dyna.py",
    "test_compiled.py",
    "test_compiled_bonuses.py",
    "test_compiled_off_policy.py",
    "test_bench_exploration_speed.py",
    "test_third_party.py",
    "test_front_door.py",
    "test_cluster.py",
    "test_qd.py",
    "test_ppo.py",
}
# Collecting makes millions of objects that all stay: looking for garbage among them takes a quarter of its time.
gc.disable()


def pytest_collection_modifyitems(items):
    """The longest files go first: begun at the end, one of them would keep the other processors waiting."""
    items.sort(key=lambda item: item.path.name not in LONGEST_FILES)


def pytest_collection_finish():
    """From here on garbage is collected, but not looked for among what was imported."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def temporary_folders(tmp_path_factory):
    """Folders that libraries would leave among the temporary ones are among pytest's, which are removed in time."""
    for variable, name in (("SB3_LOGDIR", "sb3"), ("TORCHINDUCTOR_CACHE_DIR", "inductor")):
        os.environ.setdefault(variable, str(tmp_path_factory.mktemp(name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """A test, or its fixture, that needs an extra is skipped where that is not installed."""
    try:
        return (yield)
    except ImportError as error:
        if re.search(r"lodestar-rl\[\w+\]|No module named '(nle|crafter)", str(error)):
            pytest.skip(str(error))
        raise


pytest_runtest_call = pytest_runtest_setup
