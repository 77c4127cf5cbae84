"""What MuJoCo's robots, arms and poles say of how they stand and move."""

import pytest

from envs.make import make


@pytest.mark.parametrize(
    ("env_id", "speed", "caption"),
    [
        ("HalfCheetah-v5", 0.0, "the robot is on its feet"),
        ("HalfCheetah-v5", 1.0, "the robot is on its feet, moving forward"),
        ("HalfCheetah-v5", 4.0, "the robot is on its feet, moving forward fast"),
        ("Hopper-v5", -1.0, "the robot is standing, moving backward"),
        ("Ant-v5", 2.0, "the robot is on its feet, moving forward fast"),
        ("Swimmer-v5", 0.1, "the robot is swimming, moving forward"),
    ],
)
def test_robots_tell_whether_they_move_forward(env_id: str, speed: float, caption: str) -> None:
    env = make(env_id, seed=0, text=True)
    env.reset()
    data = env.unwrapped.data
    velocity = data.qvel * 0
    velocity[0] = speed
    env.unwrapped.set_state(data.qpos.copy(), velocity)
    assert env.caption(env, {}) == caption


def test_arms_and_poles_tell_how_near_they_are() -> None:
    def told(env_id: str, **positions: float) -> str:
        env = make(env_id, seed=0, text=True)
        env.reset()
        inner = env.unwrapped
        place, velocity = inner.data.qpos.copy(), inner.data.qvel * 0
        for name, value in positions.items():
            place[inner.model.joint(name).qposadr[0]] = value
        inner.set_state(place, velocity)
        return env.caption(env, {})

    stretched = {"joint0": 0.0, "joint1": 0.0, "target_y": 0.0}
    assert told("Reacher-v5", target_x=0.21, **stretched) == "the tip is on the target"
    assert told("Reacher-v5", target_x=0.16, **stretched) == "the tip is near the target"
    assert told("Reacher-v5", target_x=0.05, **stretched) == "the tip is away from the target"
    assert told("InvertedDoublePendulum-v5", hinge=0.0, hinge2=0.0) == "the poles are upright"
    assert told("InvertedDoublePendulum-v5", hinge=0.4, hinge2=0.0) == "the poles lean"
    assert told("InvertedDoublePendulum-v5", hinge=1.2, hinge2=0.0) == "the poles have fallen over"
    assert told("Pusher-v5").startswith("the object is away from the target, the tip is ")
    assert told("HumanoidStandup-v5") == "the robot lies on the ground"
