"""A reward in a package of its own, with one entry point: installed, listed, trained with, checked."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Runs Python with tests/third_party installed beside us, as its author's users would have it; no network."""
    site = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "nearby"
    shutil.copytree(ROOT / "tests" / "third_party", source)  # building leaves files behind
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    answer = subprocess.run(pip, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(site)}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)

    return run


def test_it_is_listed_with_its_first_sentence(installed):
    answer = installed("-m", "runners.list")
    assert answer.returncode == 0, answer.stderr
    line = next(line for line in answer.stdout.splitlines() if line.strip().startswith("nearby"))
    assert "Pay for staying close to the origin of the observation" in line


def test_it_keeps_the_contract(installed):
    answer = installed("-c", "import rewards, rewards.check as c; c.check_reward(rewards.get('nearby')); print('kept')")
    assert answer.stdout.strip() == "kept", answer.stderr


def test_it_is_trained_with_and_its_settings_come_from_the_command_line(installed, tmp_path):
    command = ["env=CartPole-v1", "reward=nearby", "reward.nearby.radius=2", "total_timesteps=512", "n_envs=2"]
    command += ["agent.n_steps=64", "video=false", "eval_episodes=1", f"run_dir={tmp_path / 'run'}"]
    answer = installed("-m", "runners.train", *command)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "task + nearby" in answer.stdout
    assert "reward/nearby" in (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0]


def test_it_is_unknown_where_it_is_not_installed():
    script = "import rewards; print('nearby' in rewards.names())"
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == "False", answer.stderr
