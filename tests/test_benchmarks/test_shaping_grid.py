import numpy as np
import pytest

from benchmarks.checks import shaping_grid
from benchmarks.checks.shaping_grid import GOAL, SIZE, WEIGHTS, best_policy, reached, score, successors, walk
from benchmarks.results import read_rows

KNOWN = {  # share of cells whose best policy reaches the goal, at weights 0.05, 0.2 and 1
    "task alone": (1, 1, 1),
    "as it is": (0, 0, 0),
    "sigmoid, positive": (0, 0, 0),
    "sigmoid": (1, 0, 0),
    "clip": (1, 1, 1),
    "delta": (1, 1, 1),
    "potential": (1, 1, 1),
    "par, each step": (0, 0, 0),
    "par": (1, 1, 1),
}


@pytest.mark.parametrize("shape", KNOWN)
def test_the_best_policy_goes_to_the_goal_where_the_shape_cannot_be_farmed(shape):
    assert tuple(reached(score(), shape, weight) for weight in WEIGHTS) == KNOWN[shape]


def test_a_log_sigmoid_is_farmed_from_part_of_the_grid():
    small, middle, large = (reached(score(), "log-sigmoid", weight) for weight in WEIGHTS)
    assert small == 1 and 0.2 < large < middle < 0.7


def test_clip_loses_the_goal_behind_a_valley_that_potential_crosses():
    assert reached(score(width=5.0), "clip", 1.0) < 0.6
    assert reached(score(width=5.0), "potential", 1.0) == 1


def test_with_the_task_alone_the_best_walk_is_a_shortest_one():
    successor, goal = successors()
    ends = goal[successor]
    cells = walk(successor, goal, best_policy(successor, ends.astype(float), ends))
    arrival = goal[cells].argmax(axis=0)
    row, column = np.divmod(np.arange(SIZE**2), SIZE)
    np.testing.assert_array_equal(arrival, (GOAL[0] - row) + (GOAL[1] - column))


def test_the_score_peaks_at_the_decoy_and_again_at_the_goal():
    p = score().reshape(SIZE, SIZE)
    assert np.unravel_index(p.argmax(), p.shape) == shaping_grid.DECOY and p.max() == 1
    assert p[GOAL] == pytest.approx(0.6) and p[GOAL] == p[8:, 8:].max() and p.min() >= 0


def test_the_study_leaves_a_table_its_figures_and_a_picture(tmp_path):
    figures = shaping_grid.run(tmp_path / "results")
    rows = read_rows(tmp_path / "results" / "shaping_grid.csv")
    assert len(rows) == len(figures) == 10 * 3
    assert figures["shaping_potential_w1"] == 1 and figures["shaping_as_it_is_w0.05"] == 0
    assert (tmp_path / "figures" / "shaping_grid.png").stat().st_size > 10_000
