"""Rooms, noise and dives as array programs: beside the originals, the laws of chance, the cell in the infos."""

import numpy as np
import pytest
import torch

from envs.make import make, make_batched, make_vec

ROOMS, SEA = "lodestar/NoisyRooms-v0", "lodestar/DeepSea-v0"
STAY = 0
OPTIONS = [
    (ROOMS, {}),
    (ROOMS, {"rooms": 1, "bits": 0}),
    (ROOMS, {"rooms": 2, "code": "dense", "dense_size": 5, "bits": 2}),
    (SEA, {}),
    (SEA, {"size": 2, "mapping_seed": 3}),
    (SEA, {"size": 5, "mapping_seed": 1}),
]
CHANCES = [
    (ROOMS, {"noise": "brownian"}),
    (ROOMS, {"noise": "pixels", "code": "dense"}),
    (ROOMS, {"noise": "on_demand", "bits": 3}),
    (SEA, {"stochastic": True}),
]


def record(env, steps, seed=0):
    """Random steps: observations, rewards, both ends and cells, each (steps, N, ...), copied."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(steps):
        *answers, infos = env.step(rng.integers(env.single_action_space.n, size=env.num_envs))
        rows.append([np.array(x) for x in (*answers, infos["cell"])])
    return [np.stack(column) for column in zip(*rows)]


@pytest.mark.parametrize(("env_id", "options"), OPTIONS)
def test_without_chance_it_goes_where_the_original_goes_over_resets(env_id, options):
    n, rng = 3, np.random.default_rng(0)
    env, originals = make_batched(env_id, n, **options), [make(env_id, **options) for _ in range(n)]
    obs, infos = env.reset()
    assert env.n_cells == originals[0].unwrapped.n_cells
    for row, original in enumerate(originals):
        first, info = original.reset()
        assert np.array_equal(obs[row], first) and infos["cell"][row] == info["cell"]
    ends = 0
    for _ in range(450):
        actions = rng.integers(env.single_action_space.n, size=n)
        if env_id == ROOMS:  # with a drift to the right, so that doors, walls and the last room are met
            actions[rng.random(n) < 0.3] = 2
        obs, rewards, terminations, truncations, infos = env.step(actions)
        assert infos["cell"].dtype == np.int64
        for row, original in enumerate(originals):
            expected, reward, terminated, truncated, info = original.step(actions[row])
            assert infos["cell"][row] == info["cell"]
            assert rewards[row] == np.float32(reward)
            assert (terminations[row], truncations[row]) == (terminated, truncated)
            if terminated or truncated:
                ends += 1
                assert np.array_equal(infos["final_obs"][row], expected)
                assert infos["final_info"]["is_success"][row] == info["is_success"]
                assert infos["final_info"]["episode"]["r"][row] == info["episode"]["r"]
                expected, info = original.reset()
            assert np.array_equal(obs[row], expected) and env.cell[row] == info["cell"]
    assert ends >= 6


def test_the_infos_tell_the_cell_that_was_reached_also_where_the_next_episode_began():
    env = make_batched(ROOMS, 2, max_episode_steps=3)
    _, infos = env.reset()
    assert infos["cell"].tolist() == env.cell.tolist() == [12, 12]
    for cells in ([13, 11], [14, 10], [25, 10]):
        *_, infos = env.step(np.array([2, 1]))
        assert infos["cell"].tolist() == cells
    assert env.cell.tolist() == [12, 12] and infos["_final_obs"].tolist() == [True, True]
    assert infos["final_obs"].argmax(axis=1).tolist() == [25, 10]
    assert env.room_of(np.array([25, 26, 206])).tolist() == [0, 1, 7] and env.n_cells == 207


def noise(kind, n=100, steps=199, bits=2, seed=0):
    """Noise (steps + 1, N, bits) with that of the reset, actions (steps, N), within one episode."""
    env, rng = make_batched(ROOMS, n, noise=kind, bits=bits, seed=seed), np.random.default_rng(seed)
    actions = rng.integers(5, size=(steps, n))
    seen = [env.reset()[0][:, -bits:].copy()]
    seen += [env.step(row)[0][:, -bits:].copy() for row in actions]
    return np.stack(seen), actions


def test_brownian_numbers_walk_by_a_seventh_each_its_own_way():
    seen, _ = noise("brownian")
    levels = np.round(seen * 7)
    assert np.array_equal(seen, levels / np.float32(7)) and set(np.unique(levels)) == set(range(8))
    assert (abs(np.diff(levels, axis=0)) == 1).all()
    assert seen.mean() == pytest.approx(0.5, abs=0.03) and seen.var() == pytest.approx(17 / 196, abs=0.01)
    flat = np.diff(levels, axis=0).reshape(199, -1)
    assert abs(np.corrcoef(flat.T) - np.eye(200)).mean() < 0.08  # 1 / sqrt(199) by chance


def test_pixels_change_in_an_eighth_of_the_steps():
    seen, _ = noise("pixels")
    assert set(np.unique(seen)) == {0.0, 1.0} and seen.mean() == pytest.approx(0.5, abs=0.03)
    assert (seen[1:] != seen[:-1]).mean() == pytest.approx(0.125, abs=0.01)


def test_noise_on_demand_is_zero_unless_the_agent_stays():
    seen, actions = noise("on_demand", bits=8)
    stayed = actions == STAY
    assert not seen[0].any() and not seen[1:][~stayed].any()
    fresh = seen[1:][stayed]
    assert set(np.unique(fresh)) == {0.0, 1.0} and fresh.size > 20000
    assert fresh.mean() == pytest.approx(0.5, abs=0.02)


def test_noise_begins_anew_where_an_episode_begins():
    for kind, mean in (("brownian", 0.5), ("pixels", 0.5), ("on_demand", 0.0)):
        env = make_batched(ROOMS, 2000, noise=kind, max_episode_steps=1)
        env.reset()
        obs, *_, infos = env.step(np.zeros(2000, int))
        before, after = infos["final_obs"][:, -8:], obs[:, -8:]
        assert before.mean() == pytest.approx(0.5, abs=0.02) and after.mean() == pytest.approx(mean, abs=0.02)
        if kind != "on_demand":
            assert abs(np.corrcoef(before.ravel(), after.ravel())[0, 1]) < 0.03


def test_stochastic_dives_to_the_right_arrive_as_often_as_they_should():
    env = make_batched(SEA, 4000, stochastic=True, seed=0)
    right = make(SEA).unwrapped.right
    _, infos = env.reset()
    for step in range(10):
        cell = infos["cell"].copy()
        _, rewards, terminations, _, infos = env.step(right[cell])
        assert (terminations == (step == 9)).all()
        if step < 9:
            assert (rewards == np.float32(-0.001)).all()
    success = infos["final_info"]["is_success"]
    assert np.array_equal(success, cell == 99)
    assert success.mean() == pytest.approx(0.9**9, abs=0.03)
    treasures = rewards[success]
    assert treasures.mean() == pytest.approx(0.999, abs=0.1) and treasures.std() == pytest.approx(1, abs=0.1)
    between = (cell > 90) & (cell < 99)
    assert (rewards[between] == np.float32(-0.001)).all()


def test_a_stochastic_dive_to_the_left_meets_noise_at_the_bottom_only():
    env = make_batched(SEA, 4000, size=6, stochastic=True, seed=0)
    left = 1 - make(SEA, size=6).unwrapped.right
    _, infos = env.reset()
    for _ in range(5):
        _, rewards, *_, infos = env.step(left[infos["cell"]])
        assert not rewards.any() and (infos["cell"] % 6 == 0).all()
    _, rewards, *_, infos = env.step(left[infos["cell"]])
    assert rewards.mean() == pytest.approx(0, abs=0.07) and rewards.std() == pytest.approx(1, abs=0.05)
    assert not infos["final_info"]["is_success"].any()


@pytest.mark.parametrize(("env_id", "options"), CHANCES)
@pytest.mark.parametrize("array", ["numpy", "torch"])
def test_a_snapshot_continues_bit_for_bit_with_the_chance_to_come(env_id, options, array):
    def fresh(seed):
        return make_batched(env_id, 150, seed=seed, array=array, max_episode_steps=4, **options)

    env = fresh(1)
    env.reset()
    record(env, 6)
    state = env.snapshot()
    expected = record(env, 9)  # 300 episodes begin, so the pool is made anew
    for other in (env, fresh(2)):
        other.restore(state)
        assert all(np.array_equal(a, b) for a, b in zip(record(other, 9), expected))


@pytest.mark.parametrize(("env_id", "options"), CHANCES)
def test_torch_answers_what_numpy_answers_under_the_same_chance(env_id, options):
    options = {**options, "seed": 2, "max_episode_steps": 25}
    one, other = (make_batched(env_id, 6, array=array, **options) for array in ("numpy", "torch"))
    assert np.array_equal(one.reset()[0], other.reset()[0].numpy())
    assert other.step(torch.zeros(6, dtype=torch.int64))[-1]["cell"].dtype == torch.int64
    one.step(np.zeros(6, int))
    assert all(np.array_equal(a, b) for a, b in zip(record(one, 60), record(other, 60)))


@pytest.mark.parametrize(("env_id", "options"), CHANCES)
def test_a_seed_fixes_chance_whether_given_first_or_at_the_reset(env_id, options):
    runs = []
    for first, second in ((5, None), (0, 5), (6, None)):
        env = make_batched(env_id, 8, seed=first, **options)
        env.reset(seed=second)
        runs.append(record(env, 60))
    assert all(np.array_equal(a, b) for a, b in zip(runs[0], runs[1]))
    assert not all(np.array_equal(a, b) for a, b in zip(runs[0], runs[2]))


def test_auto_takes_the_array_program_with_its_options():
    env = make_vec(ROOMS, 32, backend="auto", noise="on_demand", code="dense")
    assert (
        type(env).__name__ == "BatchedNoisyRooms" and env.world.kind == "on_demand" and env.reset()[0].shape == (32, 16)
    )
    env = make_vec(SEA, 4, backend="auto", size=20, stochastic=True)
    assert type(env).__name__ == "BatchedDeepSea" and env.world.stochastic and env.reset()[0].shape == (4, 400)


def test_a_pendulum_hangs_still_at_first_and_fifty_paid_steps_are_success():
    env = make_batched("lodestar/PendulumSparse-v0", 500)
    obs, _ = env.reset()
    angle = np.arctan2(obs[:, 1], -obs[:, 0])
    assert 0.09 < abs(angle).max() <= 0.1001 and 0.09 < abs(obs[:, 2]).max() <= 0.1
    env.state["x"][:] = [0.0, 0.0]  # upright at rest it stays
    env.state["x"][1:] = [np.pi, 0.0]
    for step in range(200):
        if step == 150:
            env.state["x"][1] = [0.0, 0.0]  # 50 steps are left
        if step == 151:
            env.state["x"][2] = [0.0, 0.0]  # 49
        _, rewards, *_, infos = env.step(np.zeros((500, 1), np.float32))
    assert rewards[:4].tolist() == [1, 1, 1, 0]
    assert infos["final_info"]["episode"]["r"][:4].tolist() == [200, 50, 49, 0]
    assert infos["final_info"]["is_success"][:4].tolist() == [True, True, False, False]


def test_a_car_is_paid_where_it_arrives():
    env = make_batched("lodestar/MountainCarSparse-v0", 2)
    env.reset()
    env.state["x"][0] = [0.49, 0.05]
    _, rewards, terminations, _, infos = env.step(np.array([2, 2]))
    assert rewards.tolist() == [1.0, 0.0] and terminations.tolist() == [True, False]
    assert infos["final_info"]["is_success"].tolist() == [True, False]
