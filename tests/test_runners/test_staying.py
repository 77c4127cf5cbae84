"""What staying is worth, told before training: by hand in a corridor, and in a maze at weights that were tried."""

import gymnasium as gym
import numpy as np
import pytest

from runners.cli.compose import compose
from runners.compare import staying
from runners.compare.staying import staying_notes


class Corridor(gym.Env):
    """Ten new places, then a pay of 5; each step shows where it is."""

    observation_space = gym.spaces.Discrete(11)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, step_cost=0.0):
        self.step_cost = step_cost

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.place, {}

    def step(self, action):
        self.place += 1
        at_end = self.place == 10
        return self.place, 5.0 if at_end else -self.step_cost, at_end, False, {}


@pytest.fixture(autouse=True, scope="module")
def corridor():
    gym.register("tests/Corridor-v0", Corridor)
    yield
    gym.registry.pop("tests/Corridor-v0")


def notes(*argv):
    config, _ = compose(["preset=none", *argv])
    return staying_notes(config)


def test_a_new_place_every_step_is_worth_its_weight_over_one_less_gamma_of_what_the_end_pays():
    """0.05 a step, four times as much once it is sought, / (1 - 0.9) = 2, of a pay of 5."""
    (note,) = notes("env=tests/Corridor-v0", "reward=count", "reward.count.weight=0.05", "agent.gamma=0.9")
    assert "staying is worth 0.4 of the task to count: 0.2 a step / (1 - 0.9), where an episode's end gives 5" in note
    assert "find the goal and leave it alone, reward.count.weight=0.01 would be worth 0.1" in note


def test_it_stops_at_the_first_reward_on_the_way_and_does_not_wait_for_a_slow_simulator(monkeypatch):
    steps = []
    step = Corridor.step
    monkeypatch.setattr(Corridor, "step", lambda self, action: steps.append(action) or step(self, action))
    corridor = ("env=tests/Corridor-v0", "reward=count")
    assert notes(*corridor, "env.step_cost=1") == []
    assert len(steps) == staying.RANDOM_ENVS
    monkeypatch.setattr(staying, "MAX_LOOK_S", 0.0)
    assert notes(*corridor) == []
    assert len(steps) == 2 * staying.RANDOM_ENVS


def test_a_small_weight_is_too_little_and_one_between_is_right():
    common = ("env=tests/Corridor-v0", "reward=count", "agent.gamma=0.9")
    assert "may be too little to explore for" in notes(*common, "reward.count.weight=0.001")[0]
    assert notes(*common, "reward.count.weight=0.0125")[0].endswith("about 0.1 is right")


@pytest.mark.parametrize(
    "argv",
    [
        ["env=tests/Corridor-v0", "reward=count", "env.step_cost=1"],
        ["env=tests/Corridor-v0", "reward=count", "reward.count.episodic=false"],
        ["env=tests/Corridor-v0", "reward=task"],
        ["env=CartPole-v1", "reward=count"],
    ],
    ids=str,
)
def test_nothing_is_said_of_a_task_that_pays_on_the_way_or_a_bonus_that_does_not_end(argv):
    assert notes(*argv) == []


@pytest.mark.parametrize(
    ("name", "failed", "solved"),
    [("count", 0.01, 0.002), pytest.param("noveld", 0.3, 0.03, marks=pytest.mark.nightly)],
)
def test_the_weights_that_failed_in_a_maze_are_told_from_those_that_solved_it(name, failed, solved, monkeypatch):
    # Also on a busy processor.
    monkeypatch.setattr(staying, "MAX_LOOK_S", 60.0)
    # Random play is the same at both weights.
    play = staying._random_rollout
    rollouts = []

    def play_once(envs, seed):
        if not rollouts:
            rollouts.append(play(envs, seed))
        return rollouts[0]

    monkeypatch.setattr(staying, "_random_rollout", play_once)
    worths = []
    for weight in (failed, solved):
        (note,) = notes("env=MiniGrid-KeyCorridorS3R3-v0", f"reward={name}", f"reward.{name}.weight={weight}")
        worths.append(float(note.split()[3]))
    assert worths[0] > 0.4 and worths[1] < 0.2


def test_it_takes_nothing_from_the_run_s_own_random_numbers():
    import torch

    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    notes("env=tests/Corridor-v0", "reward=noveld")
    assert torch.equal(torch.rand(1), expected)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
