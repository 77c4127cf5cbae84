"""A run cut in two is the run that was not: for kinds of rewards with PPO, and for every agent once."""

import json

import numpy as np
import pytest

import agents
import rewards
from tests.faults import resume
from tests.faults.child import warm


@pytest.fixture(scope="module", autouse=True)
def _imports():
    warm()


# Kinds of state that differ: memories of an episode, labels and models that are fitted to them, proposed goals.
# Weights and running statistics alone (task, rnd) are cut by SIGKILL in test_resume, agents but PPO there at night.
FAST = {("ppo", "ngu"), ("ppo", "bradley_terry"), ("ppo", "subgoals")}
# All pairs are rows of tests/faults.
PAIRS = [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.nightly) for pair in resume.pairs(True)]


@pytest.mark.parametrize(("agent", "reward"), PAIRS, ids=lambda name: name)
def test_a_run_that_goes_on_from_its_middle_ends_with_the_same_numbers(tmp_path, agent, reward):
    gap, where = resume.twice(resume.command(agent, reward, tmp_path / "made"), tmp_path / "pair")
    assert gap == 0, where


def test_every_reward_is_tried():
    assert set(resume.REWARDS) <= set(rewards.TABLE)
    assert set(resume.pairs(True)) >= FAST
    assert {reward for agent, reward in resume.pairs(False) if agent == "ppo"} == set(rewards.TABLE)
    assert set(resume.AGENTS) <= set(agents.TABLE) and {agent for agent, _ in resume.pairs(True)} == set(resume.AGENTS)


@pytest.mark.nightly
def test_one_seed_is_one_run_in_every_process(tmp_path):
    found = resume._same_seed(tmp_path, True)
    assert (found.failed, found.trials) == (0, 2), found.words


def test_a_difference_is_seen_and_named():
    nan = np.float32("nan")
    one = {"weights": np.array([1, nan], np.float32), "words": ["a", "b"], "count": 3}
    assert resume._gap(one["weights"], one["weights"].copy()) == 0
    assert resume._gap(np.float32(1.5), np.float32(1.0)) == 0.5
    assert resume._gap(one["weights"], np.array([1, 2], np.float32)) == np.inf
    assert resume._gap("a", "b") == resume._gap(np.zeros(2), np.zeros(3)) == np.inf
    assert resume._gap(np.zeros(2, np.float32), np.zeros(2)) == np.inf
    assert dict(resume._leaves({"ep_info_buffer": [{"r": 1.0, "t": 9.9}]}, "")) == {
        "/ep_info_buffer/length": 1,
        "/ep_info_buffer/0/r": 1.0,
    }


@pytest.mark.nightly
def test_state_that_is_lost_is_found(tmp_path, monkeypatch):
    from rewards.base import RunningMeanStd

    monkeypatch.setattr(RunningMeanStd, "load_state_dict", lambda self, state: None)
    argv = resume.command("ppo", "rnd", tmp_path / "made")
    gap, where = resume.twice(argv, tmp_path / "pair")
    assert gap > 0 and "rnd" in where
    assert json.loads((tmp_path / "pair" / "half" / "status.json").read_text())["state"] == "finished"
