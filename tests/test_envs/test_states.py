"""States that cover a world: they differ, they repeat with the generator, and degrees rise towards the goal."""

import math
from collections import Counter

import numpy as np
import pytest

from envs.classic import family as classic
from envs.family import family_of
from envs.make import goals, make, spec_of
from envs.snapshots.snapshots import get_state, set_state, to_json
from rewards.compare import auroc

CLASSIC = ("lodestar/CartPoleUpright-v0", "MountainCar-v0", "Pendulum-v1", "Acrobot-v1")
ROBOTS = ("HalfCheetah-v5", "Hopper-v5", "Ant-v5", "InvertedPendulum-v5", "Reacher-v5")


def scattered(env_id, n, seed=0):
    """The environment, and a function that puts it into one scattered state after the other."""
    env = make(env_id, seed=0)
    rng = np.random.default_rng(seed)
    scatter = family_of(env.spec).scatter
    for _ in range(n):
        env.reset()
        assert scatter(env, rng)
        yield env


@pytest.mark.parametrize("env_id", [*CLASSIC, *ROBOTS, "MiniGrid-DoorKey-5x5-v0"])
def test_scattered_states_repeat_with_the_generator_and_can_be_stepped_from(env_id):
    first, second = ([to_json(get_state(env)) for env in scattered(env_id, 5)] for _ in range(2))
    assert first == second and len(set(first)) == 5
    assert first != [to_json(get_state(env)) for env in scattered(env_id, 5, seed=1)]
    for env in scattered(env_id, 5):
        obs = set_state(env, get_state(env))
        assert env.observation_space.contains(obs) or env_id == "Acrobot-v1"
        assert np.isfinite(env.step(env.action_space.sample())[0]).all()


@pytest.mark.parametrize("env_id", CLASSIC)
def test_a_fourth_of_a_classic_axis_holds_about_a_fourth_of_the_states(env_id):
    axis = family_of(spec_of(env_id)).axis(spec_of(env_id))
    index = 2 if "CartPole" in env_id else 0
    at = [env.unwrapped.state[index] for env in scattered(env_id, 400)]
    counts, _ = np.histogram(at, 4, (axis.low, axis.high))
    assert counts.sum() == 400 and (counts > 70).all()


def test_the_agent_of_a_grid_stands_on_every_free_cell_and_each_seventh_time_on_the_goal():
    seen, carried, opened, truth = Counter(), 0, 0, goals("MiniGrid-DoorKey-5x5-v0")
    for env in scattered("MiniGrid-DoorKey-5x5-v0", 300):
        inner = env.unwrapped
        under = inner.grid.get(*inner.agent_pos)
        assert under is None or under.can_overlap()
        seen[truth[0].truth(env)] += 1
        carried += inner.carrying is not None
        opened += truth[1].truth(env)
        keys = [thing for thing in inner.grid.grid if thing is not None and thing.type == "key"]
        assert len(keys) + (inner.carrying is not None) == 1
    assert 25 < seen[True] < 65 and 70 < carried < 130 and 110 < opened < 190


def test_babyai_is_left_as_it_is():
    env = make("BabyAI-GoToRedBall-v0", seed=0)
    env.reset()
    before = env.unwrapped.agent_pos
    assert not family_of(env.spec).scatter(env, np.random.default_rng(0))
    assert env.unwrapped.agent_pos == before


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Hopper-v5", "Ant-v5"])
def test_robots_lie_on_the_floor_some_upright_some_upside_down(env_id):
    heights, ups = [], []
    for env in scattered(env_id, 60):
        data = env.unwrapped.data
        assert all(contact.dist > -0.02 for contact in data.contact if 0 in contact.geom), "stuck in the floor"
        heights.append(float(data.body("torso").xpos[2]))
        ups.append(float(data.body("torso").xmat[8]))
        assert not data.qvel.any()
    assert min(ups) < -0.5 and sum(up > 0.9 for up in ups) > 20
    assert min(heights) > 0.03 and max(heights) < 1.6


@pytest.mark.parametrize("env_id", [*CLASSIC, "HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5"])
def test_an_axis_poses_a_world_at_rest_the_same_way_each_time(env_id):
    env = make(env_id, seed=0)
    axis = family_of(env.spec).axis(env.spec)
    states = []
    for value in (axis.low, 0.3, 0.3):
        env.reset()
        axis.place(env, value)
        states.append(to_json(get_state(env)["physics" if hasattr(env.unwrapped, "data") else "variables"]))
    assert states[0] != states[1] == states[2]


def test_other_worlds_have_no_axis():
    for env_id in ("MiniGrid-Empty-8x8-v0", "Ant-v5", "lodestar/DeepSea-v0"):
        spec = spec_of(env_id)
        assert family_of(spec).axis(spec) is None


@pytest.mark.parametrize("env_id", ["lodestar/CartPoleUpright-v0", "Pendulum-v1", "InvertedPendulum-v5"])
def test_the_degree_of_a_pole_is_the_cosine_of_its_angle(env_id):
    env, goal = make(env_id, seed=0), goals(env_id)[0]
    axis = family_of(env.spec).axis(env.spec)
    env.reset()
    for angle in (0.0, 0.5, 1.2):
        axis.place(env, angle)
        assert goal.degree(env) == pytest.approx(math.cos(angle))
        assert goal.truth(env) == (angle == 0)


@pytest.mark.parametrize(
    "env_id", [*CLASSIC, "HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5", "MiniGrid-Empty-5x5-v0"]
)
def test_states_at_the_goal_have_higher_degrees_than_the_others(env_id):
    for goal in goals(env_id):
        rows = [(goal.degree(env), goal.truth(env)) for env in scattered(env_id, 200)]
        degrees, truths = zip(*rows)
        assert 0 < sum(truths) < 150 and auroc(degrees, truths) > 0.95, goal.name


def test_nearness_in_a_grid_counts_steps_around_walls():
    env, goal = make("MiniGrid-Empty-5x5-v0", seed=0), goals("MiniGrid-Empty-5x5-v0")[0]
    env.reset()
    assert goal.degree(env) == -4.0  # from (1, 1) to (3, 3)
    env.unwrapped.agent_pos = (3, 2)
    assert goal.degree(env) == -1.0
    env.unwrapped.grid.set(3, 3, None)
    assert goal.degree(env) == -25.0


def test_pendulum_tells_its_height_its_spin_and_the_last_torque():
    env = make("Pendulum-v1", signals=True)
    env.reset(seed=0)
    classic.pose(env, angle=math.pi / 3, angular_velocity=-2.0)
    assert family_of(env.spec).sense(env).tolist() == pytest.approx([0.5, 2.0, 0.0])
    signals = env.step(np.array([-1.5], np.float32))[-1]["signals"]
    assert signals[2] == 1.5
    env.close()
    with pytest.raises(ValueError, match=r"CartPole-v1 has no signals"):
        make("CartPole-v1", signals=True)
