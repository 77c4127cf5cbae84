import numpy as np
import pytest
from gymnasium import spaces
from test_mix import ACTIONS, OBS, Height, rollout  # noqa: F401

import rewards
from rewards.gate import Gate, GateConfig

SPACES = (OBS, ACTIONS)
SCORES = "test_mix:Height"


def gate(**options):
    return Gate(GateConfig(of=SCORES, **options), *SPACES)


def episode(outcome):
    """Three steps that score 1 each, and an outcome at the end."""
    last = [[False], [False], [True]]
    return rollout(np.ones((3, 1)), ended=last, terminated=last, reward=[[0], [0], [outcome]])


@pytest.mark.parametrize(
    "mode, outcome, paid",
    [
        ("end", 0, [0, 0, 0]),
        ("end", 1, [0, 0, 3]),
        ("latched", 0, [0, 0, 0]),
        ("latched", 1, [0, 0, 1]),
        ("renorm", 0, [0, 0, 0]),
        ("renorm", 1, [0, 0, 3]),
    ],
)
def test_the_rewards_of_an_episode_count_when_its_outcome_is_there(mode, outcome, paid):
    made = gate(mode=mode)
    scores, memory = made.scan(episode(outcome), made.initial_memory(1))
    assert scores.ravel().tolist() == paid
    assert [float(memory[key][0]) for key in ("sum", "outcome", "steps")] == [0, 0, 0]  # the next episode begins


def test_half_an_outcome_costs_half_a_point_a_step_when_renormalised():
    made = gate(mode="renorm")
    scores, _ = made.scan(rollout([[0.2], [0.8]], ended=[[0], [1]], reward=[[0.5], [0]]), made.initial_memory(1))
    assert scores.ravel().tolist() == pytest.approx([0, (0.2 - 0.5) + (0.8 - 0.5)], abs=1e-6)


def test_a_gate_that_has_opened_stays_open_and_lost_rows_count_for_nothing():
    made = gate(mode="latched")
    batch = rollout([[2], [3], [9], [4]], reward=[[0], [1], [9], [0]], valid=[[1], [1], [0], [1]])
    scores, memory = made.scan(batch, made.initial_memory(1))
    assert scores.ravel().tolist() == [0, 3, 0, 4]
    assert (memory["sum"][0], memory["outcome"][0], memory["steps"][0]) == (9, 1, 3)


def test_step_by_step_is_what_a_rollout_is_with_a_reward_that_remembers():
    made = Gate(GateConfig(of="ngu", at=0.0), spaces.Box(-1, 1, (1,)), ACTIONS)
    batch = rollout(np.random.default_rng(0).random((5, 2)), reward=np.ones((5, 2)))
    whole, end = made.scan(batch, made.initial_memory(2))
    memory, rows = made.initial_memory(2), []
    for t in range(5):
        row, memory = made.score(batch[t], memory)
        rows.append(row)
    assert np.array(rows) == pytest.approx(whole) and memory["sum"] == pytest.approx(end["sum"])


@pytest.mark.parametrize(
    "options, why",
    [
        ({"of": "gate"}, "two other, different rewards"),
        ({"of": "task"}, "two other, different rewards"),
        ({"of": "rnd", "of_options": {"weight": 2}}, "of_options has weight, which is the gate's: reward.gate.weight"),
        ({"of": "cuont"}, "count"),
    ],
)
def test_gates_that_cannot_be_are_refused(options, why):
    with pytest.raises(ValueError, match=why):
        rewards.make({"gate": options}, *SPACES)
