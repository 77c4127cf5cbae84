"""MuJoCo, MiniGrid, NetHack and driving: shapes, captions, goals, seeds and limits."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from envs.make import families, goals, make, make_vec
from envs.nethack.view import NETHACK_KINDS, glyph_kinds
from envs.observations import hashed_words

SHAPES = [
    ("HalfCheetah-v5", (17,), np.float32),
    ("Hopper-v5", (11,), np.float32),
    ("Humanoid-v5", (348,), np.float32),
    ("MiniGrid-DoorKey-8x8-v0", (984,), np.float32),
    ("MiniGrid-KeyCorridorS3R2-v0", (1048,), np.float32),
    ("BabyAI-GoToRedBall-v0", (1048,), np.float32),
    ("NetHackScore-v0", (1386,), np.float32),
    ("highway-fast-v0", (25,), np.float32),
    ("CarRacing-v3", (3, 96, 96), np.uint8),
]


@pytest.mark.parametrize(("env_id", "shape", "dtype"), SHAPES)
def test_observations_have_the_stated_shape_and_stay_in_their_space(env_id: str, shape: tuple, dtype: type) -> None:
    env = make(env_id, seed=0)
    assert env.observation_space.shape == shape and env.observation_space.dtype == dtype
    obs, _ = env.reset()
    for _ in range(10):
        assert obs in env.observation_space
        obs = env.step(env.action_space.sample())[0]


def test_without_adapting_observations_stay_the_environments_own() -> None:
    assert isinstance(make("MiniGrid-DoorKey-8x8-v0", adapt=False).observation_space, gym.spaces.Dict)
    assert make("HalfCheetah-v5", adapt=False).observation_space.dtype == np.float64
    assert make("CarRacing-v3", adapt=False).observation_space.shape == (96, 96, 3)


def test_stable_baselines_accepts_every_family() -> None:
    from stable_baselines3.common.env_checker import check_env

    for env_id, *_ in SHAPES:
        check_env(make(env_id), warn=False, skip_render_check=True)


# MuJoCo


def _turn(env: gym.Env, index: int, angle: float) -> None:
    data = env.unwrapped.data
    position, velocity = data.qpos.copy(), data.qvel.copy() * 0
    position[index] = angle
    env.unwrapped.set_state(position, velocity)


@pytest.mark.parametrize(
    ("angle", "caption", "met"),
    [
        (0.0, "the robot is on its feet", []),
        (np.pi, "the robot is upside down", ["on_its_back"]),
        (-np.pi / 2, "the robot stands with its front up", ["rearing"]),
        (np.pi / 2, "the robot stands on its front", []),
    ],
)
def test_a_cheetah_knows_how_it_lies(angle: float, caption: str, met: list[str]) -> None:
    env = make("HalfCheetah-v5", seed=0)
    env.reset()
    _turn(env, 2, angle)
    assert families()["mujoco"].caption(env, {}) == caption
    assert [goal.name for goal in goals("HalfCheetah-v5") if goal.truth(env)] == met


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Walker2d-v5", "Humanoid-v5"])
def test_robots_stand_at_reset_and_no_longer_when_lowered(env_id: str) -> None:
    env = make(env_id, seed=0)
    env.reset()
    truth = goals(env_id)[0].truth
    assert truth(env) and families()["mujoco"].caption(env, {}) == "the robot is standing"
    degree = goals(env_id)[0].degree
    assert degree is not None and degree(env) == pytest.approx(1.0, abs=0.02)
    _turn(env, 2 if env_id == "Humanoid-v5" else 1, 0.4)  # the torso's height
    assert not truth(env)
    # An upright robot is as near to standing as it is high.
    assert degree(env) == pytest.approx(0.4 / {"Humanoid-v5": 1.4}.get(env_id, 1.25))


def test_shadows_off_changes_the_picture_and_not_the_physics() -> None:
    ours, official = make("Hopper-v5", render_mode="rgb_array"), gym.make("Hopper-v5")
    ours.reset(seed=0), official.reset(seed=0)
    action = np.array([0.3, -0.2, 0.1], dtype=np.float32)
    for _ in range(20):
        np.testing.assert_array_equal(ours.step(action)[0], official.step(action)[0].astype(np.float32))


def test_mujoco_writes_no_log_file_and_warns_of_what_matters(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    env = make("HalfCheetah-v5", seed=0)
    env.reset()
    assert capfd.readouterr() == ("", "")
    _turn(env, 1, float("inf"))
    with pytest.warns(RuntimeWarning, match="MuJoCo: .*huge value"):
        env.step(env.action_space.sample())
    assert list(tmp_path.iterdir()) == []


# MiniGrid


def test_the_grid_vector_is_the_one_hot_view_direction_and_mission() -> None:
    env = make("MiniGrid-KeyCorridorS3R2-v0")
    obs, _ = env.reset(seed=0)
    for action in [2, 1, 2, 0, 5, 2]:
        raw = env.unwrapped.gen_obs()
        expected: list[float] = []
        for column in raw["image"]:
            for cell in column:
                for size, value in zip((11, 6, 3), cell):
                    expected += [float(value == entry) for entry in range(size)]
        expected += [float(raw["direction"] == entry) for entry in range(4)]
        np.testing.assert_array_equal(obs[:984], np.float32(expected))
        np.testing.assert_array_equal(obs[984:], hashed_words(raw["mission"].encode()))
        obs = env.step(action)[0]


def test_missions_are_words_where_they_vary_or_as_asked() -> None:
    assert make("MiniGrid-DoorKey-8x8-v0", mission="words").observation_space.shape == (1048,)
    assert make("MiniGrid-KeyCorridorS3R2-v0", mission="drop").observation_space.shape == (984,)
    with pytest.raises(ValueError, match='mission=\'yes\' is unknown; give "auto", "words" or "drop"'):
        make("MiniGrid-DoorKey-8x8-v0", mission="yes")


def test_missions_that_differ_in_a_word_differ_as_numbers() -> None:
    colours, things = ("red", "green", "blue", "purple", "yellow", "grey"), ("ball", "box", "key", "door")
    missions = [f"pick up the {colour} {thing}" for colour in colours for thing in things]
    missions += [f"put the red key next to the {colour} {thing}" for colour in colours for thing in things]
    assert len({hashed_words(mission.encode()).tobytes() for mission in missions}) == 48
    np.testing.assert_array_equal(hashed_words(b"Key, key: THE red!"), hashed_words(b"the red key"))
    assert not hashed_words(b"\0\0 12").any()


def _stand_before(env: gym.Env, kind: str) -> None:
    """Put the agent on a free cell beside the first thing of a kind, facing it."""
    grid = env.unwrapped.grid
    at = next(i for i, thing in enumerate(grid.grid) if thing is not None and thing.type == kind)
    x, y = at % grid.width, at // grid.width
    for direction, (dx, dy) in enumerate([(1, 0), (0, 1), (-1, 0), (0, -1)]):
        if grid.get(x - dx, y - dy) is None:
            env.unwrapped.agent_pos, env.unwrapped.agent_dir = (x - dx, y - dy), direction
            return


def test_minigrid_tells_events_in_words_and_knows_success() -> None:
    env = make("MiniGrid-DoorKey-6x6-v0", text=True, seed=0)
    by_name = {goal.name: goal for goal in goals("MiniGrid-DoorKey-6x6-v0")}
    act = env.unwrapped.actions
    env.reset()
    _stand_before(env, "key")
    texts = [env.step(act.done)[-1]["text"], env.step(act.pickup)[-1]["text"]]
    _stand_before(env, "door")
    assert not by_name["door"].truth(env)
    env.step(act.done)
    texts += [env.step(action)[-1]["text"] for action in (act.toggle, act.toggle, act.toggle)]
    assert by_name["door"].truth(env) and not by_name["goal"].truth(env)
    _stand_before(env, "goal")
    _, reward, terminated, truncated, info = env.step(act.forward)
    assert texts == ["", *(f"{done} the yellow {what}" for done, what in EVENTS)]
    assert info["text"] == "reached the goal" and by_name["goal"].truth(env)
    assert reward > 0 and terminated and not truncated and info["is_success"] is True


EVENTS = [("picked up", "key"), ("unlocked", "door"), ("closed", "door"), ("opened", "door")]


def test_a_timed_out_mission_truncates_without_success() -> None:
    env = make("MiniGrid-DoorKey-5x5-v0", max_episode_steps=4, seed=0)
    env.reset()
    for _ in range(4):
        _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated, info["is_success"], info["episode"]["l"]) == (False, True, False, 4)


# NetHack

MORE, SEARCH = 0, 22  # indices of two actions of NetHackScore


def test_nethack_seeds_decide_the_whole_game() -> None:
    def game(seed: int) -> list[np.ndarray]:
        env = make("NetHackScore-v0")
        rng = np.random.default_rng(0)
        seen = [env.reset(seed=seed)[0]]
        for _ in range(100):
            obs, _, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
            seen.append(env.reset()[0] if terminated or truncated else obs)
        return seen

    first, again, other = game(1), game(1), game(2)
    np.testing.assert_array_equal(first, again)
    assert any((a != b).any() for a, b in zip(first, other))


def test_environments_of_a_vector_play_different_games() -> None:
    obs, _ = make_vec("NetHackScore-v0", 3, seed=0).reset()
    assert len({row.tobytes() for row in obs}) == 3


@pytest.mark.parametrize("cap", [6, 5003])
def test_a_cap_truncates_below_and_above_the_5000_steps_of_nle(cap: int) -> None:
    env = make("NetHackScore-v0", max_episode_steps=cap, seed=0)
    env.reset()
    for number in range(1, cap + 1):
        _, _, terminated, truncated, info = env.step(MORE)  # takes no time in the game, so nobody starves
        assert (terminated, truncated) == (False, number == cap)
    assert info["episode"]["l"] == cap


def test_nethack_has_its_own_cap_without_ours() -> None:
    assert make("NetHackScore-v0").spec.max_episode_steps == 5000


def test_the_challenge_cannot_be_seeded_and_is_refused() -> None:
    pytest.importorskip("nle")
    with pytest.raises(ValueError, match=r"NetHackChallenge forbids seeds, .* use NetHackScore-v0"):
        make("NetHackChallenge-v0")


def test_every_glyph_has_the_kind_that_its_symbol_says() -> None:
    from nle import nethack

    kinds = glyph_kinds()
    said = {
        "wall": "wall",
        "doorway": "open way",
        "open door": "open way",
        "closed door": "closed door",
        "floor of a room": "floor",
        "corridor": "corridor",
        "lit corridor": "corridor",
        "staircase up": "stairs up",
        "ladder up": "stairs up",
        "staircase down": "stairs down",
        "ladder down": "stairs down",
        "altar": "furniture",
        "fountain": "furniture",
        "molten lava": "hazard",
        "bear trap": "hazard",
        "polymorph trap": "hazard",
    }
    found = set()
    for symbol in range(65):
        words = nethack.symdef.from_idx(symbol).explanation
        if words in said:
            found.add(words)
            assert NETHACK_KINDS[kinds[nethack.GLYPH_CMAP_OFF + symbol]] == said[words], words
    assert found == set(said)
    assert (
        NETHACK_KINDS[kinds[nethack.GLYPH_MON_OFF]] == "monster"
        and NETHACK_KINDS[kinds[nethack.GLYPH_PET_OFF]] == "pet"
    )
    objects = kinds[nethack.GLYPH_OBJ_OFF : nethack.GLYPH_CMAP_OFF]
    assert {NETHACK_KINDS[k] for k in objects} == {"object", "gold", "food", "boulder"}


def test_the_crop_is_centred_on_the_agent_and_one_hot() -> None:
    env = make("NetHackScore-v0", seed=1)
    obs, _ = env.reset()
    view = obs[:1296].reshape(9, 9, 16)
    np.testing.assert_array_equal(view.sum(axis=-1), 1.0)
    assert NETHACK_KINDS[int(view[4, 4].argmax())] == "monster"  # the agent is drawn as a human
    raw = env.unwrapped.last_observation
    x, y = raw[env.unwrapped._blstats_index][:2]
    glyphs = raw[env.unwrapped._glyph_index]
    kinds = glyph_kinds()
    for row in range(9):
        for column in range(9):
            r, c = y + row - 4, x + column - 4
            kind = kinds[glyphs[r, c]] if 0 <= r < 21 and 0 <= c < 79 else 0
            assert view[row, column].argmax() == kind
    assert obs[1296] == pytest.approx(x / 79) and obs[1297] == pytest.approx(y / 21)
    strength = raw[env.unwrapped._blstats_index][2]
    assert obs[1298] == pytest.approx(np.log1p(strength) / 10)


def test_searching_is_not_news() -> None:
    """The turn counter is left out: a step in which only time passes gives the observation it gave before."""
    env = make("NetHackScore-v0", message=False, seed=1, spawn_monsters=False)
    env.reset()
    seen = {env.step(SEARCH)[0].tobytes() for _ in range(10)}
    assert len(seen) < 10


def test_nethack_options_are_checked_and_messages_are_text() -> None:
    env = make("NetHackScore-v0", crop=5, message=False, text=True, seed=0)
    assert env.observation_space.shape == (5 * 5 * 16 + 26,)
    _, info = env.reset()
    assert info["text"].startswith("Hello Agent, welcome to NetHack!")
    with pytest.raises(ValueError, match="crop=4 is out of range; give an odd number of cells from 3 to 21"):
        make("NetHackScore-v0", crop=4)


# Driving


def test_highway_words_and_goals_follow_the_traffic() -> None:
    env = make("highway-fast-v0", text=True, seed=0, config={"vehicles_count": 1, "vehicles_density": 1})
    env.reset()
    by_name = {goal.name: goal for goal in goals("highway-fast-v0")}
    inner = env.unwrapped
    ego, other = inner.vehicle, inner.road.vehicles[-1]
    assert other is not ego

    def place(lane: int, gap: float, speed: float) -> str:
        line = inner.road.network.get_lane(("0", "1", lane))
        for vehicle, along in ((ego, 100.0), (other, 100.0 + gap)):
            vehicle.position, vehicle.heading = line.position(along, 0.0), 0.0
            vehicle.lane_index, vehicle.lane = ("0", "1", lane), line
        ego.speed = speed
        return families()["driving"].caption(env, {})

    assert place(2, 60.0, 30.0) == "the car drives fast in the right lane, the road ahead is clear"
    assert by_name["clear"].truth(env) and by_name["rightmost"].truth(env)
    assert place(0, 15.0, 20.0) == "the car drives slowly in the left lane, another car is close ahead"
    assert not by_name["clear"].truth(env) and not by_name["rightmost"].truth(env)
    ego.crashed = True
    assert families()["driving"].caption(env, {}) == "the car has crashed"
    _, _, terminated, _, info = env.step(1)
    assert terminated and info["is_success"] is False


def test_reaching_the_end_of_the_road_without_a_crash_is_success() -> None:
    env = make("highway-fast-v0", seed=0, config={"vehicles_count": 0, "duration": 2})
    env.reset()
    env.step(1)
    _, _, terminated, truncated, info = env.step(1)
    assert (terminated, truncated, info["is_success"]) == (False, True, True)


def test_car_racing_looks_down_on_its_track() -> None:
    env = make("CarRacing-v3", continuous=False, text=True, seed=0)
    assert env.action_space == gym.spaces.Discrete(5)
    env.reset()
    _, _, _, _, info = env.step(0)
    assert info["text"] == "the car stands on the road, the road ahead is clear" and goals("CarRacing-v3")[0].truth(env)


# Probes


@pytest.mark.parametrize(
    ("probe", "actions", "steps"),
    [("Value", 1, 1), ("Observation", 1, 1), ("Discount", 1, 2), ("Policy", 2, 1), ("Joint", 2, 1), ("Arms", 3, 1)],
)
def test_probes_pay_what_they_say(probe: str, actions: int, steps: int) -> None:
    env = make(f"lodestar/Probe{probe}-v0", seed=0)
    assert env.action_space.n == actions
    seen = set()
    for _ in range(20):
        for action in range(actions):
            obs, _ = env.reset()
            first, rewards = float(obs[0]), []
            terminated = truncated = False
            while not (terminated or truncated):
                obs, reward, terminated, truncated, info = env.step(action)
                rewards.append(reward)
            assert terminated and not truncated and info["episode"]["l"] == steps
            seen.add((first, action, tuple(rewards)))
    assert (
        seen
        == {
            "Value": {(0.0, 0, (1.0,))},
            "Observation": {(-1.0, 0, (-1.0,)), (1.0, 0, (1.0,))},
            "Discount": {(0.0, 0, (0.0, 1.0))},
            "Policy": {(0.0, 0, (-1.0,)), (0.0, 1, (1.0,))},
            "Joint": {(-1.0, 0, (1.0,)), (-1.0, 1, (-1.0,)), (1.0, 0, (-1.0,)), (1.0, 1, (1.0,))},
            "Arms": {(0.0, action, (0.0,)) for action in range(3)},
        }[probe]
    )


@pytest.mark.filterwarnings("ignore:.*not in the possible render_modes")
def test_a_probe_has_nothing_to_render() -> None:
    with pytest.raises(ValueError, match="probes have nothing to render; leave render_mode='rgb_array' and frames out"):
        make("lodestar/ProbeValue-v0", frame_size=64)


def test_infos_of_the_last_step_are_plain_enough_for_json() -> None:
    env = make("lodestar/ProbeJoint-v0", seed=0)
    env.reset()
    *_, info = env.step(0)
    assert json.loads(json.dumps(info))["episode"]["l"] == 1


def test_a_sparse_model_is_warned_of_once_on_the_version_that_solves_it_wrongly(tmp_path, monkeypatch, recwarn) -> None:
    import mujoco
    from gymnasium.envs import mujoco as robots

    from envs.mujoco import family

    model = (Path(robots.__file__).parent / "assets" / "inverted_pendulum.xml").read_text()
    (tmp_path / "sparse.xml").write_text(model.replace("<option ", '<option jacobian="sparse" '))
    family._warn_of_sparse.cache_clear()

    def warned(**given) -> list[str]:
        recwarn.clear()
        make("InvertedPendulum-v5", **given).close()
        return [str(one.message) for one in recwarn if "Hessian" in str(one.message)]

    monkeypatch.setattr(mujoco, "__version__", "4.0.1")
    assert warned(xml_file=str(tmp_path / "sparse.xml")) == []
    monkeypatch.setattr(mujoco, "__version__", "4.0.0")
    assert warned() == []
    (words,) = warned(xml_file=str(tmp_path / "sparse.xml"))
    assert words.startswith("MuJoCo 4.0.0 computes a wrong Hessian for InvertedPendulum-v5, whose Jacobians are sparse")
    assert warned(xml_file=str(tmp_path / "sparse.xml")) == []
