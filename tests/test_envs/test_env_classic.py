"""The classic tasks: rewards, walls and poses whose values one can compute by hand."""

import math

import gymnasium as gym
import numpy as np
import pytest

from envs.classic.family import pose
from envs.classic.tasks import FLAG
from envs.make import goals, make

ANGLES = [(11.9, 1.0), (-11.9, 1.0), (12.1, 0.0), (-12.1, 0.0), (180.0, 0.0), (360.0, 1.0), (350.0, 1.0), (-347.0, 0.0)]


@pytest.mark.parametrize(("degrees", "reward"), ANGLES)
def test_cartpole_pays_within_twelve_degrees_on_the_full_circle(degrees: float, reward: float) -> None:
    env = make("lodestar/CartPoleUpright-v0", seed=0)
    env.reset()
    pose(env, angle=math.radians(degrees))
    _, paid, terminated, truncated, _ = env.step(0)  # at rest, one Euler step leaves the angle as it is
    assert (paid, terminated, truncated) == (reward, False, False)
    assert goals("lodestar/CartPoleUpright-v0")[0].truth(env) == bool(reward)


def test_cartpole_moves_as_the_equations_say() -> None:
    env = make("lodestar/CartPoleUpright-v0", seed=0)
    env.reset()
    pose(env)
    obs, *_ = env.step(1)
    # 10 N on 1.1 kg: theta'' = -(10/1.1) / (0.5 (4/3 - 0.1/1.1)), x'' = 10/1.1 - 0.05 theta''/1.1, times 0.02 s
    np.testing.assert_allclose(obs, [0.0, 0.195122, 1.0, 0.0, -0.292683], atol=1e-6)


def test_a_wall_stops_the_cart_and_jolts_the_pole() -> None:
    env = make("lodestar/CartPoleUpright-v0", seed=0)
    env.reset()
    pose(env, position=2.2, velocity=1.0)
    obs, *_ = env.step(1)
    # The jolt is 3/(4 * 0.5) times the velocity lost; what this step's own push did to the pole is undone exactly.
    np.testing.assert_allclose(obs, [2.2, 0.0, 1.0, 0.0, 1.5], atol=1e-6)


def test_the_cart_never_leaves_the_picture() -> None:
    env = make("lodestar/CartPoleUpright-v0", seed=0)
    env.reset()
    positions = [abs(env.step(1)[0][0]) for _ in range(200)]
    assert max(positions) == pytest.approx(2.2)


def _episode(env: gym.Env, policy, seed: int) -> tuple[float, int, bool, bool, dict]:
    obs, _ = env.reset(seed=seed)
    total, steps, terminated, truncated, info = 0.0, 0, False, False, {}
    while not (terminated or truncated):
        obs, reward, terminated, truncated, info = env.step(policy(obs))
        total, steps = total + float(reward), steps + 1
    return total, steps, terminated, truncated, info


def test_a_random_policy_keeps_the_pole_up_for_about_thirty_of_200_steps() -> None:
    env = make("lodestar/CartPoleUpright-v0", seed=0)
    rng = np.random.default_rng(0)
    episodes = [_episode(env, lambda obs: int(rng.integers(2)), seed) for seed in range(100)]
    assert 25 < np.mean([total for total, *_ in episodes]) < 40
    assert {(steps, terminated, truncated) for _, steps, terminated, truncated, _ in episodes} == {(200, False, True)}
    assert not any(info["is_success"] for *_, info in episodes)


def test_a_hand_written_controller_keeps_the_pole_up_and_counts_as_success() -> None:
    env = make("lodestar/CartPoleUpright-v0", seed=0)

    def balance(obs: np.ndarray) -> int:
        x, x_dot, _, sine, theta_dot = obs
        return int(sine + 0.3 * theta_dot + 0.05 * x + 0.1 * x_dot > 0)

    total, *_, info = _episode(env, balance, seed=3)
    assert total == 200 and info["is_success"] and info["episode"]["r"] == 200 and info["episode"]["l"] == 200


def test_the_car_stays_at_the_flag_and_is_paid_there() -> None:
    env = make("lodestar/MountainCarGoal-v0", seed=0)
    env.reset()
    pose(env, position=FLAG - 0.01, velocity=0.05)
    obs, reward, terminated, *_ = env.step(2)
    # velocity 0.05 + 0.001 - 0.0025 cos(3 * 0.44)
    arrived = 0.44 + 0.051 - 0.0025 * math.cos(1.32)
    np.testing.assert_allclose(obs, [arrived, 0.0], atol=1e-6)
    assert reward == 1.0 and not terminated
    obs, reward, *_ = env.step(0)
    np.testing.assert_allclose(obs, [arrived, 0.0], atol=1e-6)
    assert reward == 1.0 and goals("MountainCar-v0")[0].truth(env)
    pose(env, position=-0.5, velocity=0.035)
    assert env.step(1)[1] == 0.0


def test_mountaincar_scales_velocity_to_one() -> None:
    env = make("lodestar/MountainCarGoal-v0", seed=0)
    env.reset()
    pose(env, position=-math.pi / 6, velocity=0.035)  # the valley's bottom: cos(3 x) = 0
    assert env.step(1)[0][1] == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize(("degrees", "reward"), [(0.0, 1.0), (40.0, 0.0), (180.0, 0.0)])
def test_pendulum_pays_near_upright_only(degrees: float, reward: float) -> None:
    env = make("lodestar/PendulumUpright-v0", torques=3, seed=0)
    env.reset()
    pose(env, angle=math.radians(degrees))
    assert env.step(1)[1:3] == (reward, False)


def test_discrete_torques_are_the_continuous_ones() -> None:
    discrete, continuous = make("lodestar/PendulumUpright-v0", torques=5), make("lodestar/PendulumUpright-v0")
    assert discrete.action_space == gym.spaces.Discrete(5)
    for action, torque in enumerate([-2.0, -1.0, 0.0, 1.0, 2.0]):
        discrete.reset(seed=1), continuous.reset(seed=1)
        expected = continuous.step(np.array([torque], dtype=np.float32))[0]
        np.testing.assert_array_equal(discrete.step(action)[0], expected)
    with pytest.raises(ValueError, match=r"torques=1 leaves no choice; give 0 \(continuous\) or at least 2"):
        make("lodestar/PendulumUpright-v0", torques=1)


def test_a_pendulum_frame_hides_the_action() -> None:
    env = make("lodestar/PendulumUpright-v0", torques=2, frame_size=64, seed=0)
    frames = []
    for action in (0, 1):
        env.reset()
        env.step(action)
        pose_after_any_torque = {"angle": 0.7, "angular_velocity": 0.0}
        env.unwrapped.state = np.array(list(pose_after_any_torque.values()))
        frames.append(env.render())
    np.testing.assert_array_equal(frames[0], frames[1])


@pytest.mark.parametrize("env_id", ["lodestar/MountainCarGoal-v0", "lodestar/PendulumUpright-v0"])
def test_goal_tasks_truncate_at_200_and_never_terminate(env_id: str) -> None:
    env = make(env_id, seed=0)
    env.action_space.seed(0)
    _, steps, terminated, truncated, _ = _episode(env, lambda obs: env.action_space.sample(), 0)
    assert (steps, terminated, truncated) == (200, False, True)


@pytest.mark.parametrize(
    ("env_id", "state"),
    [
        ("CartPole-v1", {"position": 0.5, "velocity": 0.1, "angle": 3.0, "angular_velocity": -0.2}),
        ("lodestar/CartPoleUpright-v0", {"angle": -1.0}),
        ("MountainCar-v0", {"position": 0.5}),
        ("MountainCarContinuous-v0", {"position": -0.3, "velocity": 0.01}),
        ("Pendulum-v1", {"angle": 2.0}),
    ],
)
def test_pose_sets_the_state_and_the_picture_follows(env_id: str, state: dict[str, float]) -> None:
    env = make(env_id, render_mode="rgb_array", seed=0)
    env.reset()
    before = env.render()
    pose(env, **state)
    given = list(state.values())
    assert [value for value in env.unwrapped.state if value] == pytest.approx(given)
    assert (env.render() != before).any()


@pytest.mark.parametrize("size", [64, 224])
@pytest.mark.parametrize(
    "env_id", ["lodestar/CartPoleUpright-v0", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1"]
)
def test_frames_are_gymnasiums_own_pictures_averaged(env_id: str, size: int) -> None:
    from envs import render

    env = make(env_id, frame_size=size, seed=0)
    _, info = env.reset()
    official = gym.make(env_id, render_mode="rgb_array")
    official.reset()
    official.unwrapped.state = np.array(env.unwrapped.state)
    np.testing.assert_array_equal(info["frame"], render.resize(official.render(), size))
    assert env.render().shape == official.render().shape  # and an ordinary render is as it was


def test_pose_refuses_what_it_does_not_know() -> None:
    env = make("CartPole-v1", seed=0)
    with pytest.raises(ValueError, match="CartPoleEnv has no state variable 'torque'; it has position, velo"):
        pose(env, torque=1.0)
    with pytest.raises(TypeError, match="knows CartPole, MountainCar and Pendulum, not AcrobotEnv"):
        pose(make("Acrobot-v1"), angle=0.0)


CAPTIONS = [
    ("lodestar/CartPoleUpright-v0", {}, "the pole is upright, the cart is in the middle"),
    (
        "lodestar/CartPoleUpright-v0",
        {"angle": 0.5, "position": -2},
        "the pole leans to the right, the cart is at the left",
    ),
    ("CartPole-v1", {"angle": math.pi, "position": 2}, "the pole hangs straight down, the cart is at the right"),
    ("CartPole-v1", {"angle": -math.pi / 2}, "the pole lies to the left, the cart is in the middle"),
    ("Pendulum-v1", {"angle": 0.5}, "the pendulum leans to the left"),
    ("Pendulum-v1", {"angle": -2.5}, "the pendulum hangs down to the right"),
    ("MountainCar-v0", {"position": 0.5}, "the car is at the peak of the mountain, next to the flag"),
    ("MountainCar-v0", {"position": -0.5}, "the car is in the valley"),
    ("MountainCar-v0", {"position": -1.1}, "the car is on the left slope"),
    ("MountainCar-v0", {"position": 0.1}, "the car is on the right slope"),
    ("CartPole-v1", {"angle": 0.15}, "the pole is upright but tilts to the right, the cart is in the middle"),
    ("CartPole-v1", {"position": -2.3}, "the pole is upright, the cart is at the left, near the edge"),
    ("MountainCar-v0", {"position": -1.18}, "the car is high on the left slope"),
    ("MountainCarContinuous-v0", {"position": 0.3}, "the car is high on the right slope"),
    ("lodestar/PendulumSparse-v0", {"angle": math.pi}, "the pendulum hangs straight down"),
    ("Pendulum-v1", {"angle": 2 * math.pi + 0.5}, "the pendulum leans to the left"),
]


@pytest.mark.parametrize(
    ("angles", "place"),
    [
        ((0.0, 0.0), "below the line, hanging low"),  # the tip hangs two links deep
        ((math.pi / 3, 0.1), "below the line, half way up"),
        ((math.pi / 2, 0.2), "below the line, nearly up to it"),
        ((math.pi, 0.5), "above the line"),
    ],
)
def test_captions_tell_how_high_the_arm_has_swung(angles: tuple[float, float], place: str) -> None:
    env = make("Acrobot-v1", seed=0, text=True)
    env.reset()
    env.unwrapped.state = np.array([*angles, 0.0, 0.0])  # type: ignore[attr-defined]
    assert env.caption(env, {}) == f"the tip is {place}"


@pytest.mark.parametrize(("env_id", "state", "caption"), CAPTIONS)
def test_captions_describe_poses(env_id: str, state: dict[str, float], caption: str) -> None:
    from envs.make import families

    env = make(env_id, seed=0)
    env.reset()
    pose(env, **state)
    assert families()["classic"].caption(env, {}) == caption


@pytest.mark.parametrize(("env_id", "sign"), [("CartPole-v1", 1), ("Pendulum-v1", -1)])
def test_right_in_a_caption_is_right_in_the_picture(env_id: str, sign: int) -> None:
    env = make(env_id, render_mode="rgb_array", seed=0)
    env.reset()
    pose(env, angle=sign * math.pi / 2)
    image = env.render()
    coloured = image.max(axis=-1).astype(int) - image.min(axis=-1) > 40  # pole and pendulum are the coloured things
    columns = np.nonzero(coloured)[1]
    assert columns.mean() > image.shape[1] / 2 + 10
