"""Driving environments of others: a trace made by hand, replayed through the adapter."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from replayed import CarDreamer, VlmRl, picture

from envs.driving.carla import UNITS, Carla, Wiring
from envs.driving.vehicle import FAR, read
from envs.make import goals, make, make_vec


def test_cardreamers_keys_become_frames_and_signals() -> None:
    env = make("lodestar/Carla-v0", world="replayed:CarDreamer", frame_size=16, signals=True, text=True)
    assert env.action_space == spaces.Discrete(9) and set(env.observation_space.spaces) == {"birdeye_wpt", "collision"}
    obs, info = env.reset(seed=0)
    assert set(obs) == {"birdeye_wpt", "collision"}  # and nothing that the space does not name
    np.testing.assert_array_equal(info["frame"], picture([2, 6]))
    car = read(info["signals"])
    assert (car.speed, car.on_road, car.crashed, car.gap, car.speed_limit) == (0, 1, 0, FAR, 4)  # nothing known yet
    _, reward, terminated, truncated, info = env.step(0)
    car = read(info["signals"])
    assert (reward, terminated, truncated, car.speed, car.on_road) == (0.9, False, False, 2.0, 1)
    assert info["text"] == "the car drives slowly on the road, the road ahead is clear"
    np.testing.assert_array_equal(info["frame"], picture([4, 6]))
    *_, terminated, truncated, info = env.step(0)
    assert terminated and not truncated and read(info["signals"]).on_road == 0
    assert info["text"] == "the car is off the road" and info["is_success"] is False


def test_the_old_gyms_end_is_told_apart_and_judged() -> None:
    env = make("lodestar/Carla-v0", world=CarDreamer, signals=True)
    endings = []
    for steps in (2, 1, 1, 1):
        env.reset()
        for _ in range(steps):
            *_, terminated, truncated, info = env.step(0)
        car = read(info["signals"])
        endings.append((terminated, truncated, float(car.crashed), float(car.completion), info["is_success"]))
    assert endings == [
        (True, False, 0.0, 0.0, False),  # off the road
        (True, False, 1.0, 0.0, False),  # collision
        (True, False, 0.0, 1.0, True),  # destination
        (False, True, 0.0, 0.0, False),  # out of time
    ]


def test_vlm_rls_attributes_are_read_in_our_units_from_the_reset_on() -> None:
    env = make("lodestar/Carla-v0", world="replayed:VlmRl", wiring="vlm-rl", frame_size=16, signals=True)
    _, info = env.reset()
    assert read(info["signals"]).lane_offset == pytest.approx(0.1)
    np.testing.assert_array_equal(info["frame"], picture([2, 6]))
    *_, info = env.step(np.zeros(2, np.float32))
    car = read(info["signals"])
    assert car.speed == pytest.approx(5.0) and car.heading == pytest.approx(0.2)
    assert car.lane_offset == pytest.approx(0.4) and car.completion == 0.25
    assert car.speed_limit == pytest.approx(25 / 3.6)
    (goal,) = goals("lodestar/Carla-v0")
    assert goal.truth(env)
    *_, info = env.step(np.zeros(2, np.float32))
    assert read(info["signals"]).crashed == 1 and not goal.truth(env)


def test_it_steps_in_a_vector_with_the_frames_of_ended_episodes() -> None:
    envs = make_vec("lodestar/Carla-v0", 2, world="replayed:CarDreamer", observe="collision", frame_size=16,
                    signals=True, backend="gym")  # fmt: skip
    assert envs.single_observation_space == spaces.Box(0, np.inf, (1,), np.float32)
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    *_, terminated, _, infos = envs.step(np.zeros(2, int))
    assert terminated.all()
    np.testing.assert_array_equal(infos["frame"][0], picture([3, 6]))
    np.testing.assert_array_equal(infos["final_info"]["frame"][0], picture([6, 7]))
    assert infos["final_info"]["signals"][0][0] == 3.5 and infos["signals"][0][0] == 0


def test_stable_baselines_takes_what_is_observed() -> None:
    from stable_baselines3.common.env_checker import check_env

    check_env(make("lodestar/Carla-v0", world=VlmRl, wiring="vlm-rl", observe="vehicle_measures"), warn=False,
              skip_render_check=True)  # fmt: skip


class Modern(gym.Env):
    """A Gymnasium environment with nested infos, events, degrees and channels first."""

    observation_space = spaces.Box(0, 255, (3, 8, 8), np.uint8)
    action_space = spaces.Discrete(2)
    ego = {"v": [10.0], "yaw": 350.0, "lane.offset": 30.0}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.events: list[str] = []
        return self.see(), self.tell()

    def see(self):
        return np.arange(192, dtype=np.uint8).reshape(3, 8, 8)

    def step(self, action):
        self.events = ["hit"] if action else []
        return self.see(), 1.0, False, bool(action), self.tell()

    def tell(self):
        return {"ego": self.ego, "events": self.events, "arrived": "yes"}


def wired(**wiring: object) -> Carla:
    return Carla(Modern, {"image": "obs", **wiring})


def test_units_signs_events_and_nested_keys() -> None:
    env = wired(speed="info.ego.v km/h", heading="info.ego.yaw deg", lane_offset="info.ego.lane.offset -cm",
                crashed="info.events", gap=lambda obs, info, env: 250.0, lane=1, success="info.arrived",
                completion="info.ego.lane.offset %")  # fmt: skip
    env.reset(seed=0)
    car = read(env.signals)
    assert car.speed == pytest.approx(10 / 3.6) and car.heading == pytest.approx(np.deg2rad(-10))
    assert car.lane_offset == pytest.approx(-0.3) and car.completion == pytest.approx(0.3)
    assert (car.crashed, car.gap, car.lane) == (0, FAR, 1)
    np.testing.assert_array_equal(env.render(), env.world.see().transpose(1, 2, 0))
    *_, truncated, info = env.step(1)
    assert truncated and info["is_success"] is True and read(env.signals).crashed == 1
    env.step(0)
    assert read(env.signals).crashed == 1  # the events are gone, the crash is not
    env.reset()
    assert read(env.signals).crashed == 0
    assert UNITS["mph"] * 60 == pytest.approx(26.8224)


@pytest.mark.parametrize(
    ("wiring", "sentence"),
    [
        ("carla", r"wiring='carla' is unknown; give one of cardreamer, vlm-rl, or a dict of paths"),
        ({"sped": "info.v"}, r"wiring has no 'sped'; give some of image, speed"),
        ({"speed": "state.v"}, r"speed='state.v' begins with none of obs, info, env; give such a path"),
        ({"speed": "info.v kmh"}, r"speed='info.v kmh' has the unknown unit 'kmh'; give one of m, cm, m/s, km/h"),
        ({"speed": "info.v not"}, r"the unknown unit 'not'"),
        ({"seconds": 0}, r"seconds=0 is out of range; give the time of one step, above 0"),
    ],
)
def test_a_wrong_wiring_is_refused_when_it_is_given(wiring: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Carla(Modern, wiring)


def test_a_path_that_leads_nowhere_is_told_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"speed='info.ego.w' is not there: at 'w' the environment has \['v', 'yaw'"):
        wired(speed="info.ego.w").reset()
    with pytest.raises(ValueError, match=r"speed='env.wheel' is not there: at 'wheel' the environment is Modern"):
        wired(speed="env.wheel").reset()
    with pytest.raises(ValueError, match=r"speed='info.events' leads to \[\], which is not a number; wire it to one"):
        wired(speed="info.events").reset()
    with pytest.raises(RuntimeError, match=r"image='info.ego.v' is list float64 \(1,\), no picture"):
        env = wired(image="info.ego.v")
        env.reset()
        env.render()


def test_a_world_that_cannot_be_made_is_told() -> None:
    for world, sentence in (
        ("", r'world is missing; give a Gymnasium id, or "module:function"'),
        ("no_such_module:make", r"world='no_such_module:make' cannot be imported"),
        ("NoSuchWorld-v0", r"world='NoSuchWorld-v0' cannot be made"),
    ):
        with pytest.raises(ValueError, match=sentence):
            make("lodestar/Carla-v0", world=world)
    with pytest.raises(ValueError, match=r"observe='lidar' is no entry of the observation, which has \['birdeye_wpt'"):
        make("lodestar/Carla-v0", world=CarDreamer, observe="lidar")
    assert Carla("CartPole-v1", Wiring(speed="obs").__dict__ | {"speed": 1.0}).observation_space.shape == (4,)


def test_synthesis_and_contrast_are_paid_from_it_unchanged() -> None:
    import rewards
    from envs.transitions import OneGroup, Rollout

    envs = make_vec("lodestar/Carla-v0", 1, world="replayed:VlmRl", wiring="vlm-rl", observe="vehicle_measures",
                    frame_size=64, signals=True, backend="gym")  # fmt: skip
    rollout, stepper = Rollout(2, envs, frozenset({"frame", "signals"})), OneGroup(envs)
    rollout.begin(*envs.reset(seed=0))
    for t in range(2):
        stepper.send(np.zeros((1, 2), np.float32), 0)
        rollout.write(t, slice(0, 1), *stepper.recv(0))
    batch = rollout.transitions(frozenset({"frame", "signals"})).flatten()
    spaces_ = (envs.single_observation_space, envs.single_action_space)

    kind = rewards.get("synthesis")
    plain = kind(kind.Config(semantics="constant", history=0, goal="", negative=""), *spaces_)
    target = 25 / 3.6
    expected = (1 - (target - 5) / target) * (1 - 0.4 / 3) * (1 - 0.2 / (np.pi / 2))
    np.testing.assert_allclose(plain.score(batch), [expected, -10.0], rtol=1e-5)  # driving, and the crash

    (goal,) = goals("lodestar/Carla-v0")
    kind = rewards.get("contrast")
    seen = kind(kind.Config(goal=goal.prompt, negative=goal.negative, model="lodestar"), *spaces_)
    seen.update(batch)
    paid = seen.score(batch.replace(extras={"clip": seen.embed(batch)}))
    paid = getattr(paid, "value", paid)
    assert paid.shape == (2,) and np.isfinite(paid).all() and paid[0] != paid[1]
