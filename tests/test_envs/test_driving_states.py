"""Scattered driving states cover the road and its dangers; a posed one is where it was put."""

import numpy as np
import pytest
from sample import mostly_at_night

from envs.driving.family import DRIVING_FAMILY
from envs.driving.vehicle import Vehicle, read
from envs.family import family_of
from envs.make import goals, make, spec_of

SMALL = {"highway-fast-v0": {"vehicles_count": 2}, "intersection-v0": {"vehicles_count": 1}}
SIX = ["highway-fast-v0", "merge-v0", "roundabout-v0", "intersection-v0", "racetrack-v0", "CarRacing-v3"]


def scattered(env_id: str, count: int) -> tuple[Vehicle, Vehicle, np.ndarray]:
    """Signals of scattered states, those one step later, and what goals then hold."""
    env = make(env_id, seed=0, **SMALL.get(env_id, {}))
    sense = family_of(env.spec).sense
    rng = np.random.default_rng(0)
    now, later, truth = [], [], []
    for i in range(count):
        if i % 20 == 0:
            env.reset()
        assert DRIVING_FAMILY.scatter(env, rng)
        now.append(sense(env))
        env.step(env.action_space.sample())
        later.append(sense(env))
        truth.append([goal.truth(env) for goal in goals(env_id)])
    return read(np.array(now)), read(np.array(later)), np.array(truth)


@pytest.mark.parametrize("env_id", mostly_at_night(SIX, "highway-fast-v0", "intersection-v0", "CarRacing-v3"))
def test_every_goal_is_met_in_some_scattered_states_and_missed_in_others(env_id: str) -> None:
    now, later, truth = scattered(env_id, 40 if env_id == "racetrack-v0" else 24)
    assert (now.crashed == 0).all()
    share = truth.mean(axis=0)
    assert (share > 0).all() and (share < 1).all(), share
    assert np.ptp(now.lane_offset) > 0.3 and np.ptp(now.heading) > 0.05
    if env_id != "CarRacing-v3":
        assert (later.crashed > 0).any() and np.ptp(now.speed) > 0.3 * now.speed_limit.mean()


def test_scattering_follows_its_generator_alone() -> None:
    first, second = scattered("racetrack-v0", 5)[0], scattered("racetrack-v0", 5)[0]
    np.testing.assert_array_equal(np.array(first), np.array(second))


def test_a_gap_and_an_offset_are_posed_as_asked() -> None:
    for env_id, values, column in (
        ("highway-fast-v0", (2.0, 30.0), "gap"),
        ("roundabout-v0", (1.0,), "gap"),
        ("CarRacing-v3", (-4.0, 0.0, 5.0), "lane_offset"),
    ):
        env = make(env_id, seed=0, **SMALL.get(env_id, {}))
        env.reset()
        line = DRIVING_FAMILY.axis(env.spec)
        assert line is not None
        for value in values:
            line.place(env, value)
            assert getattr(read(family_of(env.spec).sense(env)), column) == pytest.approx(value, abs=0.1)


def test_parking_is_left_alone() -> None:
    env = make("parking-v0", seed=0)
    env.reset()
    assert DRIVING_FAMILY.axis(spec_of("parking-v0")) is None and not DRIVING_FAMILY.scatter(
        env, np.random.default_rng(0)
    )
