"""A reward in a package of its own, with one entry point: installed, listed, trained with, checked."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest

import rewards
from lodestar import tables as table
from rewards.check import check_reward
from runners import list as listing
from runners.train import main

SOURCE = Path(__file__).resolve().parents[1] / "third_party"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The module and the metadata that installing tests/third_party would leave on the path."""
    shutil.copy(SOURCE / "nearby.py", tmp_path)
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    about = tmp_path / f"{project['name']}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, entries in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("nearby", None)


def test_it_is_listed_with_its_first_sentence(installed, capsys):
    assert listing.main([]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("nearby"))
    assert "Reward for staying close to the origin of the observation" in line


def test_it_keeps_the_contract(installed):
    check_reward(rewards.get("nearby"))


def test_it_is_trained_with_and_its_settings_come_from_the_command_line(installed, tmp_path, capsys):
    command = ["env=CartPole-v1", "reward=nearby", "reward.nearby.radius=2", "total_timesteps=512", "n_envs=2"]
    command += ["agent.n_steps=64", "video=false", "eval_episodes=1", f"run_dir={tmp_path / 'run'}"]
    assert main(command) == 0
    assert "task + nearby" in capsys.readouterr().out
    assert "reward/nearby" in (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0]


def test_it_is_unknown_where_it_is_not_installed():
    assert "nearby" not in rewards.names()


def test_one_named_like_a_built_in_is_refused_in_a_sentence(installed, tmp_path, capsys):
    entry_points = next(tmp_path.glob("*.dist-info")) / "entry_points.txt"
    entry_points.write_text(entry_points.read_text().replace("nearby =", "rnd ="))
    table._read_entry_points.cache_clear()
    assert main(["env=CartPole-v1", "reward=rnd", f"run_dir={tmp_path / 'run'}"]) != 0
    assert "the reward 'rnd' is built in, and nearby:Nearby is installed under the same name" in capsys.readouterr().err
    assert rewards.get("count").__name__ == "Count" and listing.main([]) == 0


def test_two_packages_that_bring_one_name_are_both_named(installed, tmp_path, capsys):
    about = tmp_path / "other_rewards-2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: other-rewards\nVersion: 2\n")
    (about / "entry_points.txt").write_text("[lodestar_rl.rewards]\nnearby = elsewhere:Nearby\n")
    assert main(["env=CartPole-v1", "reward=nearby", f"run_dir={tmp_path / 'run'}"]) != 0
    assert listing.main(["nearby"]) != 0
    sentence = "error: the reward 'nearby' is installed by {} and by {}; uninstall one, or rename its entry point"
    assert capsys.readouterr().err.splitlines() == [sentence.format("nearby", "other-rewards")] * 2
    assert listing.main([]) == 0  # the others can be used
    assert not (tmp_path / "run").exists()
