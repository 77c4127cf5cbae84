import numpy as np
import pytest
from gymnasium import spaces
from paths import LINE, TWO, path

from envs.recording import save
from rewards.check import check_reward, random_rollout
from rewards.demonstrations.hilp import Hilp, HilpConfig, recorded_graph

BOX = spaces.Box(-1, 1, (4,), np.float32)
SMALL = {"hidden": 32, "features": 4, "follow": 0.1}


def made(file, **options):
    return Hilp(HilpConfig(data=str(file), **SMALL | options), LINE, TWO)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """Three states in a line, walked at random."""
    rng, place = np.random.default_rng(0), [1]
    for _ in range(400):
        place.append(int(np.clip(place[-1] + rng.choice([-1, 1]), 0, 2)))
    save(file := tmp_path_factory.mktemp("line") / "line.safetensors", path(place).flatten(), {})
    return made(file, steps=400, batch_size=64, learning_rate=3e-3, place=[2.0])


def test_distances_in_a_line_of_three_states_are_discounted_steps(learnt):
    zero, one, two = learnt.hilbert.phi(np.float32([[0], [1], [2]]))
    steps = [np.linalg.norm(a - b) for a, b in ((zero, one), (one, two), (zero, two))]
    assert steps == pytest.approx([1, 1, 1.99], abs=0.15)


def test_the_note_compares_distances_with_the_fewest_recorded_steps(learnt, tmp_path):
    distance, steps, gap = learnt.quality
    assert steps == pytest.approx((4 * 1 + 2 * 1.99) / 6)  # of the six pairs of three states in a line
    assert distance == pytest.approx(steps, abs=0.15) and gap < 0.15
    untaught = made(learnt.config.data, steps=1)
    assert untaught.quality.steps == steps and untaught.quality.gap > 0.5
    assert f"{steps:.2f} apart are {distance:.2f} apart, off by {gap:.2f}" in learnt.notes()[0]


def test_the_fewest_recorded_steps_join_episodes_where_states_are_equal():
    before = np.float32([[0], [1], [2], [0]])
    after = np.float32([[1], [2], [3], [2]])  # 0 -> 1 -> 2 -> 3 and 0 -> 2
    states, start, end = recorded_graph(before, after)
    assert states.ravel().tolist() == [0, 1, 2, 3]
    assert (start.tolist(), end.tolist()) == ([0, 1, 2, 0], [1, 2, 3, 2])


def test_the_score_is_the_distance_to_the_goal_and_its_potential_a_step(learnt):
    batch = path([0, 1, 2]).flatten()
    assert learnt.score(batch) == pytest.approx([-1, 0], abs=0.15)
    assert learnt.config.shape == "potential"


def test_a_direction_is_worth_what_of_the_step_goes_there(learnt):
    learnt.by_direction = True
    towards, away = learnt.score(path([0, 1, 2]).flatten()), learnt.score(path([1, 0]).flatten())
    learnt.by_direction = False
    assert towards == pytest.approx([1, 1], abs=0.2) and away == pytest.approx([-1], abs=0.2)


@pytest.mark.parametrize("options", [{}, {"value": "direction", "shape": "none"}])
def test_both_values_keep_the_contract(tmp_path, options):
    save(file := tmp_path / "random.safetensors", random_rollout(BOX, TWO, steps=9, seed=1).flatten(), {})
    check_reward(Hilp(HilpConfig(data=str(file), steps=3, **SMALL | options), BOX, TWO), seeds_differ=True)


def test_goals_that_are_none_are_refused(tmp_path):
    save(file := tmp_path / "line.safetensors", path(range(20)).flatten(), {})
    with pytest.raises(ValueError, match=r"reward\.hilp\.row=40 is not among the 19 rows"):
        made(file, steps=1, row=40)
    with pytest.raises(ValueError, match=r"reward\.hilp\.place has 2 numbers; give 1 with of=obs"):
        made(file, steps=1, place=[1.0, 2.0])
    with pytest.raises(ValueError, match="shape=potential of value=direction would be a difference of differences"):
        made(file, value="direction")
