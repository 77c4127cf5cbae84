"""VLM-RL's figures of driving, against episodes counted by hand."""

import numpy as np
import pytest

from envs.driving.vehicle import VEHICLE, Driving
from envs.family import Metrics
from envs.make import families, make


def signals(speed: float, completion: float = 0.0, crashed: float = 0.0) -> np.ndarray:
    values = {"speed": speed, "completion": completion, "crashed": crashed}
    return np.array([values.get(name, 0.0) for name in VEHICLE], np.float32)


def drive(seconds: float, *episodes: list[np.ndarray]) -> dict[str, float]:
    metrics: Metrics = Driving(seconds)
    for first, *rest in episodes:
        metrics.begin(first)
        for state in rest:
            metrics.step(state)
    return metrics.summary()


def test_one_episode_is_counted_by_hand() -> None:
    found = drive(0.5, [signals(10), signals(12, 0.2), signals(10, 0.4), signals(10, 0.5)])
    assert found["speed, km/h"] == pytest.approx(3.6 * 32 / 3)
    assert found["distance, m"] == pytest.approx(0.5 * (11 + 11 + 10))
    assert found["route completion"] == 0.5
    assert found["acceleration, m/s2"] == pytest.approx((4 + 4 + 0) / 3)
    assert found["jerk, m/s3"] == pytest.approx((8 + 4) / 2 / 0.5)
    assert found["collision rate"] == 0 and found["collision speed, km/h"] == 0


def test_the_speed_of_a_collision_is_the_higher_one_around_it_and_episodes_without_one_count_nothing() -> None:
    crash = [signals(20), signals(25), signals(3, crashed=1), signals(0, crashed=1)]
    found = drive(1.0, crash, [signals(20), signals(20)], [signals(10), signals(10)], [signals(0), signals(0)])
    assert found["collision rate"] == 0.25
    assert found["collision speed, km/h"] == pytest.approx(3.6 * 25 / 4)  # and not 3, braked by the collision
    found = drive(1.0, [signals(20), signals(22, crashed=1)])
    assert found["collision speed, km/h"] == pytest.approx(3.6 * 22) and found["collision rate"] == 1
    assert drive(1.0, [signals(8, crashed=1), signals(9)])["collision speed, km/h"] == pytest.approx(3.6 * 8)


def test_a_jerk_takes_three_states_and_an_acceleration_two() -> None:
    found = [drive(1.0, [*map(signals, speeds)]) for speeds in ((5, 8), (5, 8, 9))]
    assert [each["acceleration, m/s2"] for each in found] == [3, 2] and [each["jerk, m/s3"] for each in found] == [0, 2]


def test_every_episode_counts_alike_however_long() -> None:
    found = drive(1.0, [signals(10)] * 101, [signals(20)] * 2)
    assert found["speed, km/h"] == pytest.approx(54.0)
    assert found["distance, m"] == pytest.approx((1000 + 20) / 2)


def test_driving_backwards_is_driving_too() -> None:
    found = drive(1.0, [signals(-5), signals(-5)])
    assert found["speed, km/h"] == pytest.approx(18.0) and found["distance, m"] == pytest.approx(5.0)
    assert found["acceleration, m/s2"] == 0


def test_before_the_first_step_there_is_nothing_to_divide_by() -> None:
    assert Driving(1.0).summary() == {}
    assert drive(1.0, [signals(5)])["speed, km/h"] == 0
    with pytest.raises(ValueError, match=r"seconds=0 is out of range; give the time of one step, above 0"):
        Driving(0)


def test_the_distance_is_that_of_the_simulator() -> None:
    env = make("highway-fast-v0", seed=0, vehicles_count=0, duration=10)
    family = families()["driving"]
    metrics = family.metrics(env)
    assert metrics is not None
    env.reset()
    start = env.unwrapped.vehicle.position[0]
    metrics.begin(family.sense(env))
    for action in (1, 3, 3, 1, 4, 1, 1, 1, 1, 1):
        env.step(action)
        metrics.step(family.sense(env))
    found = metrics.summary()
    assert found["distance, m"] == pytest.approx(env.unwrapped.vehicle.position[0] - start, rel=0.01)
    assert found["route completion"] == 1 and 90 <= found["speed, km/h"] <= 3.6 * 30


def test_only_roads_are_driven() -> None:
    driving = families()["driving"]
    assert driving.metrics(make("parking-v0")) is None and families()["classic"].metrics(make("CartPole-v1")) is None
