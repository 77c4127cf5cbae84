"""The highway as an array program, beside highway-env: from the same states come the same roads and pictures."""

import numpy as np
import pytest
from originals import load
from sample import mostly_at_night

from envs.batched.highway import env as highway
from envs.batched.highway.env import Traffic, closest_lane, overlap
from envs.batched.highway.view import RoadPainter, _Blocks
from envs.driving.vehicle import read
from envs.make import make, make_batched, make_vec
from envs.steps import Cursor, from_vector_step
from envs.vector.in_process import InProcess

FAST = "highway-fast-v0"
FEW = {"vehicles_count": 8, "vehicles_density": 2, "duration": 10}
POLICIES = ([0.15, 0.2, 0.15, 0.4, 0.1], [0.1, 0.4, 0.1, 0.0, 0.4], [0.03, 0.45, 0.02, 0.05, 0.45])  # reckless to tame


def play_beside(env, originals, rng, look=lambda row, infos, info: None):
    """Play one episode in each original, and the same in `env`; how many crashed, and how often others changed lane."""
    firsts = [original.reset(seed=int(rng.integers(1 << 30)))[0] for original in originals]
    np.testing.assert_allclose(load(env, originals), np.stack(firsts), atol=1e-5)
    running, crashes, changes, lane = set(range(len(originals))), 0, 0, env.state["lane"].copy()
    while running:
        actions = np.array([rng.choice(5, p=POLICIES[row % 3]) for row in range(len(originals))])
        obs, rewards, terminations, truncations, infos = env.step(actions)
        for row in sorted(running):
            expected, reward, terminated, truncated, info = originals[row].step(int(actions[row]))
            assert (terminations[row], truncations[row]) == (terminated, truncated)
            mine = infos["final_obs"][row] if terminated or truncated else obs[row]
            np.testing.assert_allclose(mine, expected, atol=1e-4)
            np.testing.assert_allclose(rewards[row], reward, atol=1e-4)
            if terminated or truncated:
                running.remove(row)
                crashes += terminated
                final = infos["final_info"]
                assert final["is_success"][row] == info["is_success"]
                assert final["episode"]["l"][row] == info["episode"]["l"]
                np.testing.assert_allclose(final["episode"]["r"][row], info["episode"]["r"], atol=1e-3)
                look(row, infos["final_info"], info)
            else:
                changes += int((env.state["lane"][row, 1:] != lane[row, 1:]).sum())
                look(row, infos, info)
        lane = env.state["lane"].copy()
    return crashes, changes


@pytest.mark.parametrize(
    ("env_id", "config", "least"),
    [
        (FAST, FEW, (3, 5)),
        pytest.param(
            "highway-v0",
            {**FEW, "vehicles_count": 6, "simulation_frequency": 5, "duration": 6},
            (3, 2),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            FAST,
            {**FEW, "action": {"type": "DiscreteMetaAction", "target_speeds": [25, 30]}},
            (3, 3),
            marks=pytest.mark.nightly,
        ),
        (FAST, {**FEW, "vehicles_count": 3, "policy_frequency": 2, "lanes_count": 2, "duration": 5}, (2, 0)),
        (
            FAST,
            {"vehicles_count": 0, "duration": 3, "lanes_count": 1, "normalize_reward": False, "offroad_terminal": True},
            (0, 0),
        ),
    ],
)
def test_roads_go_on_as_highway_env_has_them(env_id, config, least):
    env, originals = make_batched(env_id, 9, config=config), [make(env_id, config=config) for _ in range(9)]
    crashes, changes = play_beside(env, originals, np.random.default_rng(0))
    assert crashes >= least[0]
    assert changes >= least[1]


def test_signals_are_those_that_the_family_senses():
    options = {"config": FEW, "signals": True}
    env, originals = make_batched(FAST, 4, **options), [make(FAST, **options) for _ in range(4)]

    def look(row, infos, info):
        np.testing.assert_allclose(infos["signals"][row], info["signals"], atol=1e-4)

    play_beside(env, originals, np.random.default_rng(3), look)


@pytest.mark.parametrize(
    ("env_id", "size"),
    mostly_at_night([(FAST, 96), ("highway-v0", 64), (FAST, 40), (FAST, 224)], (FAST, 96), ("highway-v0", 64)),
)
def test_pictures_differ_from_highway_envs_by_less_than_a_level(env_id, size):
    options = {"config": {**FEW, "duration": 6, "simulation_frequency": 5}, "frame_size": size}
    env, originals = make_batched(env_id, 3, **options), [make(env_id, **options) for _ in range(3)]
    differences = []

    def look(row, infos, info):
        differences.append(np.abs(infos["frame"][row].astype(int) - info["frame"]).mean())

    play_beside(env, originals, np.random.default_rng(1), look)
    assert np.mean(differences) < 0.3
    assert max(differences) < 1.0


TWO_CARS = {"x": np.array([[500.0, 530.0]]), "y": np.array([[4.0, 8.0]])}


def test_a_car_is_where_it_belongs_and_a_crashed_one_is_red():
    config = dict(make(FAST).unwrapped.config)
    view = RoadPainter(config, 150)
    heading, crashed = np.zeros((1, 2)), np.array([[False, False]])
    picture = view.draw(**TWO_CARS, heading=heading, crashed=crashed)[0]
    # The agent at 0.3 and 0.5 of the screen; the other 30 m * 5.5 px ahead of 600 px, 4 m * 5.5 px below of 150.
    agent, other = picture[75, 45], picture[75 + 22, 45 + round(30 * 5.5 / 4)]
    assert agent.tolist() == [50, 200, 0]
    assert other.tolist() == [100, 200, 255]
    assert picture[140, 75].tolist() == [100, 100, 100]
    crashed[...] = True
    assert view.draw(**TWO_CARS, heading=heading, crashed=crashed)[0][75, 45].tolist() == [
        255,
        100,
        100,
    ]


def test_cars_that_turn_are_seen_and_of_two_in_one_place_the_last():
    view, nobody = RoadPainter(dict(make(FAST).unwrapped.config), 150), np.array([[False, False]])
    turned = view.draw(**TWO_CARS, heading=np.array([[1.5, 0.4]]), crashed=nobody)[0]
    assert turned[75, 45].tolist() == [50, 200, 0] and turned[97, 86].tolist() == [100, 200, 255]
    both = view.draw(x=TWO_CARS["x"][:, [0, 0]], y=TWO_CARS["y"][:, [0, 0]], heading=np.zeros((1, 2)), crashed=nobody)[
        0
    ]
    assert both[75, 45].tolist() == [100, 200, 255]


def test_final_frames_and_signals_come_apart_from_those_of_the_next_episode():
    env = make_vec(FAST, 3, backend="batched", frame_size=40, signals=True, duration=2, vehicles_count=5)
    obs, infos = env.reset()
    cursor = Cursor(3)
    cursor.begin({name: infos[name] for name in ("frame", "signals")})
    assert infos["frame"].shape == (3, 40, 40, 3)
    assert read(infos["signals"]).completion.tolist() == [0, 0, 0]
    for step in (1, 2):
        obs = obs.copy()
        next_obs, rewards, terminations, truncations, infos = env.step(np.ones(3, int))
        batch = from_vector_step(
            cursor, env.metadata["autoreset_mode"], obs, np.ones(3), rewards, next_obs, terminations, truncations, infos
        )
        assert read(batch.signals).completion.tolist() == [step / 2] * 3
        assert read(batch.obs_signals).completion.tolist() == [(step - 1) / 2] * 3
        obs = next_obs
    assert truncations.all()
    assert read(infos["signals"]).completion.tolist() == [0, 0, 0]
    assert not np.array_equal(infos["frame"], infos["final_info"]["frame"])
    assert np.array_equal(batch.frame, infos["final_info"]["frame"])


def test_a_snapshot_goes_on_bit_for_bit_and_shows_the_same():
    env = make_batched(FAST, 5, seed=2, frame_size=32, signals=True, config=FEW)
    rng = np.random.default_rng(0)
    env.reset()
    for _ in range(3):
        env.step(rng.integers(5, size=5))
    state, frame = env.snapshot(), env.modalities["frame"].copy()
    actions = rng.integers(5, size=(15, 5))
    runs = []
    for other in (env, make_batched(FAST, 5, frame_size=32, signals=True, config=FEW)):
        other.restore(state)
        assert np.array_equal(other.modalities["frame"], frame)
        answers = [other.step(row) for row in actions[:1]]
        runs.append(
            [np.concatenate([np.ravel(x) for x in (*answer[:4], other.modalities["signals"])]) for answer in answers]
        )
        for row in actions[1:]:
            runs[-1].append(np.ravel(other.step(row)[0]).copy())
    assert all(np.array_equal(a, b) for a, b in zip(*runs))


def test_episodes_begin_as_highway_env_lets_them():
    env = make_batched("highway-v0", 200, seed=0)
    env.reset()
    state = env.state
    assert state["x"].shape == (200, 51)
    assert set(np.unique(state["lane"])) == {0, 1, 2, 3}
    assert np.array_equal(state["y"], 4.0 * state["lane"])
    assert np.array_equal(state["lane"], state["target"])
    assert (state["speed"][:, 0] == 25).all() and (state["target_speed"][:, 0] == 25).all()
    assert 21 <= state["speed"][:, 1:].min() < 21.1 < 23.9 < state["speed"][:, 1:].max() <= 24
    # The agent's car: 3 spacings and one more, each 2 * (12 + 25) * exp(-0.5) m; then one of 33 to 36 m * exp(-0.5).
    spacing = 74 * np.exp(-0.5)
    assert 3.9 * spacing <= state["x"][:, 0].min() and state["x"][:, 0].max() <= 4.1 * spacing
    gaps = np.diff(state["x"], axis=1) / np.exp(-0.5)
    assert 0.9 * 33 <= gaps.min() < 30.5 and 38.5 < gaps.max() <= 1.1 * 36
    assert 3.5 <= state["delta"].min() < 3.51 and 4.49 < state["delta"].max() <= 4.5


def test_who_is_next_ahead_and_behind_is_asked_lane_by_lane():
    traffic = Traffic(1, 4, 2, 0.2, False)
    zeros = np.zeros((1, 4))
    state = {"x": np.array([[10.0, 40.0, 20.0, 30.0]]), "y": np.array([[0.0, 0.0, 4.0, 2.0]])}
    state |= {key: zeros.copy() for key in ("heading", "speed", "target_speed")}
    traffic._look(state)
    ahead, behind = traffic.neighbours(np.arange(4), np.array([0, 0, 0, 1]))
    assert ahead.tolist() == [3, 4, 3, 4]  # number 3 straddles both lanes; 4 is nobody
    assert behind.tolist() == [5, 3, 0, 2]
    assert closest_lane(np.array([-3.0, 1.9, 2.0, 2.1, 9.0]), 2).tolist() == [0, 0, 0, 1, 1]


def thinking(speed, traffic):
    """Three cars of this speed, one lane free: number 1 has waited behind 2, and 0 follows in the free lane."""
    state = {"x": np.array([[-20.0, 0.0, 10.0]]), "y": np.array([[4.0, 0.0, 0.0]]), "lane": np.array([[1, 0, 0]])}
    state |= {"heading": np.zeros((1, 3)), "speed": np.full((1, 3), speed), "target_speed": np.full((1, 3), 20.0)}
    state |= {"target": state["lane"].copy(), "timer": np.array([[0.0, 1.1, 0.0]]), "delta": np.full((1, 3), 4.0)}
    traffic._look(state)
    return state, np.array([False, True, True]), traffic.neighbours(np.arange(3), np.array([1, 0, 0]))[0]


def test_a_car_that_moves_at_least_at_a_metre_a_second_changes_to_a_better_lane():
    for speed, target in ((0.9, 0), (1.0, 1), (1.5, 1)):
        traffic = Traffic(1, 3, 2, 0.2, False)
        state, *others = thinking(speed, traffic)
        traffic._begin_changes(state, *others)
        assert state["target"].tolist() == [[1, target, 0]] and not state["timer"].any()


def test_a_lane_is_safe_if_who_follows_brakes_as_hard_as_may_be_imposed_and_no_harder(monkeypatch):
    traffic = Traffic(1, 3, 2, 0.2, False)
    state, *others = thinking(10.0, traffic)
    # behind a car of its own speed, 20 m ahead: 3 (1 - (10 / 20)^4) - 3 ((10 + 10 * 1.5) / 20)^2
    braking = -float(traffic._follow(np.array([0]), np.array([1]), np.array([4.0]))[0])
    assert braking == pytest.approx(3 * 25**2 / 20**2 - 3 * 15 / 16)
    for imposed, target in ((braking - 1e-9, 0), (braking, 1)):
        monkeypatch.setattr(highway, "_MAX_IMPOSED_BRAKING", imposed)
        traffic._begin_changes(state, *others)
        assert state["target"].tolist() == [[1, target, 0]]
        state["timer"][0, 1] = 1.1


def test_pairs_that_may_collide_come_in_the_order_of_their_cars():
    one, other = Traffic(1, 4, 2, 0.2, True)._near_pairs(np.array([[3.0, 1.0, 0.0, 9.0]]), 6.5)
    assert list(zip(one.tolist(), other.tolist())) == [(0, 1), (0, 2), (0, 3), (1, 2)]
    one, other = Traffic(1, 4, 2, 0.2, True)._near_pairs(np.array([[3.0, 1.0, 0.0, 2.0]]), 6.5)
    assert list(zip(one.tolist(), other.tolist())) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


def test_places_of_cars_that_are_not_seen_are_zeros():
    env = make_batched(FAST, 2, config={**FEW, "vehicles_count": 1})
    obs = env.reset(seed=0)[0].copy()
    dirty = np.full_like(obs, 9.0)
    env._observe(env.state, dirty)
    assert np.array_equal(dirty, obs) and not obs.reshape(2, -1, 5)[:, 2:].any()


def test_rectangles_overlap_now_or_after_the_next_move():
    square = np.array([[0.0, 0.0], [0.0, 2.0], [2.0, 2.0], [2.0, 0.0]])
    one = np.stack([square] * 3)
    other = square + np.array([[[1.5, 0.5]], [[3.0, 0.0]], [[3.0, 0.0]]])
    touch, soon, push = overlap(one, other, np.array([[0.0, 0.0], [0.5, 0.0], [1.25, 0.0]]))
    assert touch.tolist() == [True, False, False]
    assert soon.tolist() == [True, False, True]
    np.testing.assert_allclose(push[[0, 2]], [[-0.5, 0.0], [-0.25, 0.0]])


def test_what_is_not_heeded_is_refused_in_a_sentence():
    for options, sentence in [
        ({"config": {"controlled_vehicles": 2}}, r"config controlled_vehicles=2 is not supported .* backend=\"gym\""),
        ({"config": {"observation": {"type": "OccupancyGrid"}}}, "config observation="),
        ({"array": "torch"}, 'array="torch" has no highway'),
        ({"text": True}, "text=True is not supported"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            make_batched(FAST, 1, **options)


def test_auto_takes_the_array_program_for_frames_and_signals_but_not_for_words():
    assert not isinstance(make_vec(FAST, 2, backend="auto", frame_size=32, signals=True, vehicles_count=3), InProcess)
    assert isinstance(make_vec(FAST, 2, backend="auto", text=True), InProcess)


def test_pixels_beyond_the_picture_cover_nothing():
    blocks, shares = _Blocks(4, 2).cover(np.array([[-1, 0, 1], [2, 3, 4]]))  # two blocks of two pixels
    assert blocks.tolist() == [[0], [1]]
    assert shares.tolist() == [[[0, 0.5, 0.5]], [[0.5, 0.5, 0]]]
