"""Adding a reward costs its file, its test, a line in the table and one in the changelog: done here in a copy."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = '''"""Dummy: a bonus for large observations, scaled by how large they have been.

Source: none. Fails when: always.
"""

from dataclasses import dataclass

import numpy as np

from lodestar.settings import setting
from rewards.base import Reward, RewardConfig, RunningMeanStd
from rewards.exploration.learned import numeric_spaces


@dataclass
class DummyConfig(RewardConfig):
    """Settings of the dummy."""

    power: float = setting(1.0, "of the size", above=0, high=3, tune=(0.5, 2.0))


class Dummy(Reward):
    """r(s') = (mean |s'| / its running mean) ** power."""

    Config = DummyConfig

    def __init__(self, config, observation_space, action_space, **options):
        super().__init__(config, observation_space, action_space, **options)
        numeric_spaces(observation_space, [], "dummy")
        self.seen = RunningMeanStd()

    def score(self, batch, memory=None):
        return (size(batch) / max(float(self.seen.mean), 1e-3)).astype(np.float32) ** np.float32(self.config.power)

    def update(self, batch):
        batch = batch.flatten()
        self.seen.update(size(batch)[batch.valid])
        return {"size": float(self.seen.mean)}


def size(batch):
    values = batch.next_obs.values() if isinstance(batch.next_obs, dict) else [batch.next_obs]
    return sum(np.abs(np.asarray(x, np.float64).reshape(len(x), -1)).mean(axis=1) for x in values)
'''
TEST = """from gymnasium import spaces
from rewards.check import check_reward
from rewards.exploration.dummy import Dummy


def test_dummy_keeps_the_contract():
    check_reward(Dummy)
    check_reward(Dummy, spaces.Dict(a=spaces.Box(-1, 1, (2,))), spaces.Discrete(2))
"""
RESUMED = """from tests.faults import resume


def test_a_cut_run_with_dummy_ends_with_the_same_numbers(tmp_path):
    gap, where = resume.twice(resume.command("ppo", "dummy", tmp_path / "made"), tmp_path / "pair")
    assert gap == 0, where
"""
CHOSEN = "dummy or every_reward_is_tried or named_as_its_file or everything_in_a_table or it_names_exist"


def enumerations():
    """The test files that go through the whole table."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    found = [path for path in files if re.search(r"rewards\.(TABLE|names\(\))", path.read_text())]
    return [str(path.relative_to(ROOT)) for path in found]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository with one reward more."""
    root = tmp_path_factory.mktemp("repository")
    for entry in ROOT.iterdir():
        if entry.is_dir() and entry.name not in ("assets", "runs") and not entry.name.startswith("."):
            shutil.copytree(entry, root / entry.name)
        elif not entry.name.startswith("."):
            (root / entry.name).symlink_to(entry)
    (root / "rewards" / "exploration" / "dummy.py").write_text(FILE)
    (root / "tests" / "test_rewards" / "test_dummy.py").write_text(TEST)
    (root / "tests" / "test_runners" / "test_dummy_resumes.py").write_text(RESUMED)  # no part of the cost: `-k` below
    with open(root / "rewards" / "table.txt", "a") as table:
        table.write("dummy  rewards.exploration.dummy:Dummy\n")

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(root)}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=280)

    return run


@pytest.mark.nightly
def test_every_test_that_goes_through_the_table_passes_with_one_reward_more(copy):
    own = ["tests/test_rewards/test_dummy.py", "tests/test_runners/test_dummy_resumes.py"]
    answer = copy("-m", "pytest", "-rA", "-p", "no:cacheprovider", "-k", CHOSEN, *own, *enumerations())
    assert answer.returncode == 0, answer.stdout[-4000:] + answer.stderr[-2000:]
    passed = [line for line in answer.stdout.splitlines() if line.startswith("PASSED")]
    # Contract, ways, resume, card and ranges; in a replay most bonuses are tried at night alone.
    assert sum("dummy" in line for line in passed) >= 6, passed


@pytest.mark.nightly
def test_it_is_listed_with_its_options(copy):
    answer = copy("-m", "runners.list", "dummy")
    assert answer.returncode == 0, answer.stderr
    assert "a bonus for large observations" in answer.stdout
    assert "reward.dummy.power=1.0" in answer.stdout
