"""Words, goals, success and options of the driving environments."""

import gymnasium as gym
import numpy as np
import pytest

from envs.driving.family import DRIVER, road_caption
from envs.driving.vehicle import VEHICLE
from envs.make import families, goals, make, options, spec_of

DRIVING = families()["driving"]
SIX = ["highway-fast-v0", "merge-v0", "roundabout-v0", "intersection-v0", "racetrack-v0", "CarRacing-v3"]


def signals(**changes: float) -> np.ndarray:
    """A car at 25 m/s in the middle of a clear road of 30 m/s."""
    values = {"speed": 25.0, "on_road": 1.0, "gap": 100.0, "lane": 0.5, "speed_limit": 30.0} | changes
    return np.array([values.get(name, 0.0) for name in VEHICLE], np.float32)


@pytest.mark.parametrize(
    ("changes", "lanes", "bent", "caption"),
    [
        ({}, 3, 0.0, "the car drives steadily in the middle lane, the road ahead is clear"),
        ({"lane": 0.33}, 4, 0.0, "the car drives steadily in the middle lane, the road ahead is clear"),
        ({"lane": 0, "speed": 28}, 2, 0.0, "the car drives fast in the left lane, the road ahead is clear"),
        ({"lane": 1, "gap": 19}, 2, 0.0, "the car drives steadily in the right lane, another car is close ahead"),
        ({"speed": 21}, 1, -0.3, "the car drives slowly on the road, turning left, the road ahead is clear"),
        ({"speed": 0.1}, 1, 0.3, "the car stands on the road, turning right, the road ahead is clear"),
        ({"on_road": 0}, 3, 1.0, "the car is off the road"),
        ({"on_road": 0, "crashed": 1}, 3, 0.0, "the car has crashed"),
    ],
)
def test_captions_follow_the_signals(changes: dict, lanes: int, bent: float, caption: str) -> None:
    assert road_caption(signals(**changes), lanes, bent) == caption


@pytest.mark.parametrize("env_id", SIX)
def test_six_environments_speak_know_goals_and_their_opposites(env_id: str) -> None:
    env = make(env_id, seed=0, text=True)
    _, info = env.reset()
    assert info["text"].startswith("the car ") and info["text"] == DRIVING.caption(env, {})
    assert goals(env_id)
    for goal in goals(env_id):
        assert goal.prompt and goal.baseline and goal.negative and goal.prompt != goal.negative
        assert isinstance(goal.truth(env), bool)


def test_the_sentences_of_vlm_rl_are_a_goal_wherever_there_is_traffic() -> None:
    for env_id in SIX[:5]:
        safe = next(goal for goal in goals(env_id) if goal.name == "safe")
        assert safe.prompt == "The road is clear with no car accidents"
        assert safe.negative == "Two cars have collided with each other on the road"
        env = make(env_id, seed=0)
        env.reset()
        assert safe.truth(env)
        env.unwrapped.vehicle.crashed = True
        assert not safe.truth(env)
    assert [goal.name for goal in goals("CarRacing-v3")] == ["on_track"] and goals("parking-v0") == []


def leave_the_road(env: gym.Env) -> None:
    car = env.unwrapped.vehicle
    car.position = car.position + 40.0


def test_leaving_the_racetrack_is_no_success_and_is_told() -> None:
    env = make("racetrack-v0", seed=0, text=True)
    env.reset()
    leave_the_road(env)
    _, _, terminated, _, info = env.step(np.zeros(1, np.float32))
    assert terminated and info["is_success"] is False and info["text"] == "the car is off the road"
    assert not goals("racetrack-v0")[0].truth(env)


def test_intersection_succeeds_at_the_exit_and_not_by_waiting() -> None:
    env = make("intersection-v0", seed=0, vehicles_count=1)
    env.reset()
    info: dict = {}
    while "episode" not in info:
        *_, info = env.step(0)  # slower: stand until the time is over
    assert info["episode"]["l"] == 13 and info["is_success"] is False
    env.reset()
    inner = env.unwrapped
    lane = inner.road.network.get_lane(("il1", "o1", 0))
    inner.vehicle.position, inner.vehicle.heading = lane.position(20.0, 0.0), lane.heading_at(20.0)
    inner.vehicle.on_state_update()
    inner.vehicle.target_lane_index = ("il1", "o1", 0)
    inner.road.vehicles = [inner.vehicle]
    _, _, terminated, _, info = env.step(1)
    assert terminated and info["is_success"] is True


def test_the_number_of_vehicles_and_lanes_and_the_duration_are_options() -> None:
    env = make("highway-v0", seed=0, vehicles_count=6, lanes_count=2, duration=2)
    env.reset()
    road = env.unwrapped.road
    assert len(road.vehicles) == 7 and len(road.network.graph["0"]["1"]) == 2
    env.step(1)
    assert env.step(1)[3]  # truncated after two seconds
    again = gym.make(env.spec)
    again.reset()
    assert len(again.unwrapped.road.vehicles) == 7
    assert {"vehicles_count", "lanes_count", "duration"} <= set(options("highway-v0"))
    env = make("racetrack-v0", vehicles_count=0)
    env.reset(seed=0)
    assert len(env.unwrapped.road.vehicles) == 1


def test_what_cannot_be_set_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"vehicles_count=-1 is out of range; give 0 or more, or leave it out"):
        make("highway-fast-v0", vehicles_count=-1)
    with pytest.raises(ValueError, match=r"lanes_count=0 is out of range; give 1 or more"):
        make("highway-fast-v0", lanes_count=0)
    for env_id in ("merge-v0", "CarRacing-v3"):
        with pytest.raises(ValueError, match=rf"vehicles_count=3 cannot be set: {env_id} has no such option"):
            make(env_id, vehicles_count=3)


def test_parking_keeps_its_own_observations_and_says_nothing() -> None:
    env = make("parking-v0", seed=0, text=True)
    obs, info = env.reset()
    assert set(obs) == {"observation", "achieved_goal", "desired_goal"} and info["text"] == ""
    assert DRIVING.signals(spec_of("parking-v0")) == ()


def test_random_actions_follow_their_seed_across_resets() -> None:
    env = make("highway-fast-v0", seed=0, vehicles_count=0)
    drawn = []
    for _ in range(2):
        env.action_space.seed(7)
        env.reset()
        drawn.append([int(env.action_space.sample()) for _ in range(12)])
    assert drawn[0] == drawn[1] and len(set(drawn[0])) > 2


def test_an_intersection_leaves_the_drivers_of_other_roads_as_they_are() -> None:
    from highway_env.vehicle.behavior import IDMVehicle

    def manners() -> tuple[float, ...]:
        return tuple(getattr(IDMVehicle, name) for name in DRIVER)

    usual = tuple(DRIVER.values())
    road, crossing = make("highway-fast-v0", seed=0), make("intersection-v0", seed=0)
    crossing.reset()
    assert manners() == (7, 6, -3)  # what it makes of the class that all environments share
    road.reset()
    assert manners() == usual
    crossing.step(crossing.action_space.sample())
    assert manners() == (7, 6, -3)
    road.step(1)
    assert manners() == usual
