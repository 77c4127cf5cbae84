"""The trained agents of assets/agents: small, loaded as any run is, and as good as their cards say."""

import gymnasium as gym
import pytest
import yaml

import lodestar as ld
from benchmarks.checks.agents import COMMANDS, HOME
from runners.run.config import from_dict


def test_there_is_one_for_each_command_in_less_than_twelve_megabytes_and_nothing_else():
    files = [path for path in HOME.rglob("*") if path.is_file() and path.suffix != ".mp4"]
    assert {path.relative_to(HOME).parts[0] for path in files} == set(COMMANDS)
    assert sum(path.stat().st_size for path in files) < 12e6
    assert {path.suffix for path in files} == {".md", ".yaml", ".json", ".safetensors", ""}  # "": LATEST


def test_this_version_reads_their_configurations():
    read = {path.parent.name: from_dict(yaml.safe_load(path.read_text())) for path in HOME.glob("*/config.yaml")}
    assert read.keys() == COMMANDS.keys()


def test_the_trained_cartpole_agent_stands():
    run = ld.load(HOME / "cartpole-task")
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    steps, fallen = 0, False
    while not fallen and steps < 200:
        action, _ = run.policy.predict(obs, deterministic=True)
        obs, _, fallen, _, _ = env.step(action)
        steps += 1
    assert steps == 200


@pytest.mark.nightly
@pytest.mark.parametrize("name", COMMANDS)
def test_a_trained_agent_is_as_good_as_its_card_says(name):
    if name.startswith("nethack"):
        pytest.importorskip("nle")
    run = ld.load(HOME / name)
    again = run.evaluate(20, seed=1)["this run"]  # other episodes than the card's
    (low, high), (card_low, card_high) = again["task_return_interval"], run.figures["this run"]["task_return_interval"]
    assert low <= card_high + 1e-6 and card_low <= high + 1e-6  # of equal returns it is their rounding
    assert again["task_return_iqm"] > run.figures["random"]["task_return_interval"][1]
