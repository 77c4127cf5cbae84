"""make and make_vec: ids, seeds, limits, errors, and an import that stays light."""

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

import envs
from envs.make import families, goals, make, make_vec, spec_of

FAMILY_IDS = [
    "lodestar/CartPoleUpright-v0",
    "HalfCheetah-v5",
    "MiniGrid-DoorKey-8x8-v0",
    "NetHackScore-v0",
    "highway-fast-v0",
    "CarRacing-v3",
    "lodestar/ProbeJoint-v0",
    "FrozenLake-v1",
]


def test_packages_are_imported_one_by_one_until_one_brings_the_id(monkeypatch) -> None:
    imported: list[str] = []

    def load(module: str) -> None:
        imported.append(module)
        if module == "two":
            monkeypatch.setitem(gym.registry, "Brought-v0", EnvSpec("Brought-v0"))

    known = {name: SimpleNamespace(module=name, ids=(), extra="") for name in ("one", "two", "three")}
    monkeypatch.setattr(envs.make, "families", lambda: known)
    monkeypatch.setattr(envs.make.importlib, "import_module", load)
    envs.make._import_family_of("Brought-v0")
    assert imported == ["one", "two"]


def test_importing_envs_loads_no_simulator_and_no_torch() -> None:
    code = """
        import sys, envs, envs.make
        heavy = {"torch", "stable_baselines3", "mujoco", "minigrid", "nle", "highway_env", "pygame", "matplotlib"}
        print(sorted(heavy & set(sys.modules)))
        envs.make.families()
        print(sorted(heavy & set(sys.modules)))
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert out.stdout.split("\n")[:2] == ["[]", "[]"]


def test_our_ids_are_registered_with_gymnasium() -> None:
    assert envs.__doc__
    for family in families().values():
        for env_id in family.ids:
            if env_id.startswith("lodestar/"):
                assert gym.spec(env_id).entry_point.startswith("envs.")


@pytest.mark.parametrize("family", [f for f in families().values() if f.ids], ids=lambda f: f.name)
def test_every_listed_id_exists_and_belongs_to_its_family(family) -> None:
    from envs.family import family_of

    for env_id in family.ids:
        assert family_of(spec_of(env_id)) is family, env_id
        for goal in goals(env_id):
            assert goal.prompt and goal.baseline and goal.prompt != goal.baseline


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("lodestar/CartPoleUprigth-v0", "lodestar/CartPoleUpright-v0"),
        ("MiniGrid-DoorKey-8x8", "MiniGrid-DoorKey-8x8-v0"),
        ("NetHackScor-v0", "NetHackScore-v0"),
        ("highway-fats-v0", "highway-fast-v0"),
    ],
)
def test_an_unknown_id_names_the_nearest(wrong: str, near: str) -> None:
    if near.startswith("NetHack"):
        pytest.importorskip("nle")
    with pytest.raises(ValueError) as caught:
        make(wrong)
    assert str(caught.value) == f"unknown environment {wrong!r}; did you mean {near!r}?"


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("ALE/Pong-v5", "ale_py:ALE/Pong-v5"), ("gymnasium:CartPole-v9", "gymnasium:CartPole-v1")],
)
def test_an_id_is_suggested_with_the_module_that_brings_it(wrong: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"unknown environment '{wrong}'; did you mean '{near}'"):
        spec_of(wrong)


def test_a_module_prefix_imports_the_module_first(tmp_path, monkeypatch) -> None:
    (tmp_path / "their_worlds.py").write_text(
        textwrap.dedent(
            """
            import gymnasium as gym
            from gymnasium.envs.classic_control import PendulumEnv
            gym.register("Theirs-v0", entry_point=PendulumEnv, max_episode_steps=3)
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    env = make("their_worlds:Theirs-v0", seed=0)
    env.reset()
    ends = [env.step(env.action_space.sample())[3] for _ in range(3)]
    assert ends == [False, False, True]
    with pytest.raises(ValueError, match=r"cannot import 'no_such_worlds' .* install it, or check the name"):
        make("no_such_worlds:Theirs-v0")


def test_a_missing_package_that_an_extra_brings_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "minihack", None)
    with pytest.raises(ImportError, match=r"needs the package minihack .*; pip install 'lodestar-rl\[minihack\]'$"):
        make("minihack:MiniHack-Room-5x5-v0")
    meant = r"did you mean 'minihack:MiniHack-Room-5x5-v0', after pip install 'lodestar-rl\[minihack\]'\?"
    with pytest.raises(ValueError, match=meant):
        make("MiniHack-Room-5x5-v0")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"frame_size": 4}, "frame_size=4 is out of range; give a side of 8 to 1024 pixels, or None"),
        ({"frame_size": 64, "render_mode": "human"}, "frames need render_mode=\"rgb_array\", not 'human'"),
        ({"max_episode_steps": 0}, "max_episode_steps=0 is out of range; give at least 1, or None"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(arguments: dict, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        make("CartPole-v1", **arguments)
    assert str(caught.value).startswith(sentence)


def test_an_argument_that_an_environment_does_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match=r"CartPole-v1 cannot be made with the arguments \['colour'\]: .*'colour'"):
        make("CartPole-v1", colour="red")


def test_an_environment_need_not_know_render_mode() -> None:
    class Bare(gym.Env):
        observation_space = gym.spaces.Box(-1.0, 1.0, (2, 2), np.float64)
        action_space = gym.spaces.Discrete(2)

        def __init__(self) -> None:
            self.at = 0.0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.full((2, 2), self.np_random.uniform()), {}

        def step(self, action):
            return np.full((2, 2), 0.5), 1.0, False, False, {}

    gym.register("Bare-v0", entry_point=Bare)
    env = make("Bare-v0", seed=0, max_episode_steps=2)
    obs, _ = env.reset()
    assert obs.shape == (4,) and obs.dtype == np.float32
    env.step(0)
    *_, truncated, info = env.step(0)
    assert truncated and info["episode"]["r"] == 2.0 and "is_success" not in info
    del gym.registry["Bare-v0"]


def test_bad_vectors_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="n=0 environments make no vector; give at least 1"):
        make_vec("CartPole-v1", 0)
    with pytest.raises(ValueError, match='backend=\'threads\' is unknown; give one of "auto", "gym", "workers"'):
        make_vec("CartPole-v1", 1, backend="threads")


@pytest.mark.parametrize("env_id", FAMILY_IDS)
def test_a_seed_given_to_make_is_a_seed_given_to_reset(env_id: str) -> None:
    first = make(env_id, seed=5).reset()[0]
    np.testing.assert_array_equal(first, make(env_id).reset(seed=5)[0])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "NetHackScore-v0", "MiniGrid-KeyCorridorS3R2-v0"])
def test_seeds_repeat_and_differ(env_id: str) -> None:
    env = make(env_id)
    first = env.reset(seed=1)[0]
    following = env.reset()[0]
    assert (first != following).any()
    np.testing.assert_array_equal(env.reset(seed=1)[0], first)
    np.testing.assert_array_equal(env.reset()[0], following)
    assert (env.reset(seed=2)[0] != first).any()


def test_a_step_limit_truncates() -> None:
    env = make("MountainCar-v0", max_episode_steps=7, seed=0)
    env.reset()
    ends = [env.step(1)[2:4] for _ in range(7)]
    assert ends == [(False, False)] * 6 + [(False, True)]


@pytest.mark.parametrize("env_id", FAMILY_IDS)
def test_the_whole_stack_rebuilds_from_its_spec(env_id: str) -> None:
    text = make(env_id, text=True).spec.to_json()
    again = gym.make(gym.envs.registration.EnvSpec.from_json(text))
    same = make(env_id, text=True)
    assert again.observation_space == same.observation_space
    obs, info = again.reset(seed=3)
    expected, expected_info = same.reset(seed=3)
    np.testing.assert_array_equal(obs, expected)
    assert info["text"] == expected_info["text"]


def _lengths_alone(seed: int, episodes: int) -> list[int]:
    env = make("CartPole-v1", seed=seed)
    found: list[int] = []
    obs, _ = env.reset()
    while len(found) < episodes:
        obs, _, terminated, truncated, info = env.step(_lean(obs[None])[0])
        if terminated or truncated:
            found.append(info["episode"]["l"])
            obs, _ = env.reset()
    return found


def _lean(obs: np.ndarray) -> np.ndarray:
    return (obs[:, 2] > 0).astype(np.int64)  # lasts 25 to 60 steps


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_episode_lengths_are_right_in_both_autoreset_modes(mode: AutoresetMode, backend: str) -> None:
    envs_ = make_vec("CartPole-v1", 3, seed=10, autoreset_mode=mode, backend=backend)
    assert envs_.metadata["autoreset_mode"] == mode
    found: list[list[int]] = [[], [], []]
    obs, _ = envs_.reset()
    for _ in range(200):
        obs, _, terminated, truncated, infos = envs_.step(_lean(obs))
        ended = infos.get("final_info", {}) if mode == AutoresetMode.SAME_STEP else infos
        for i in np.flatnonzero(terminated | truncated):
            assert ended["_episode"][i]
            found[i].append(int(ended["episode"]["l"][i]))
            assert ended["episode"]["r"][i] == found[i][-1]
    envs_.close()
    for i, lengths in enumerate(found):
        assert len(lengths) >= 3
        assert lengths == _lengths_alone(10 + i, len(lengths))


def test_episode_lengths_are_right_when_the_caller_resets() -> None:
    envs_ = make_vec("CartPole-v1", 2, seed=4, autoreset_mode=AutoresetMode.DISABLED)
    found: list[list[int]] = [[], []]
    obs, _ = envs_.reset()
    for _ in range(150):
        obs, _, terminated, truncated, infos = envs_.step(_lean(obs))
        ended = terminated | truncated
        for i in np.flatnonzero(ended):
            found[i].append(int(infos["episode"]["l"][i]))
        if ended.any():
            obs, _ = envs_.reset(options={"reset_mask": ended})
    assert found == [_lengths_alone(4 + i, len(found[i])) for i in range(2)]


def test_a_vector_carries_frames_and_texts() -> None:
    envs_ = make_vec("lodestar/CartPoleUpright-v0", 2, frame_size=32, text=True)
    _, infos = envs_.reset()
    assert np.asarray(infos["frame"]).shape == (2, 32, 32, 3)
    assert list(infos["text"]) == ["the pole is upright, the cart is in the middle"] * 2
    *_, infos = envs_.step(np.array([0, 1]))
    assert np.asarray(infos["frame"]).shape == (2, 32, 32, 3)
    assert np.asarray(infos["frame"]).dtype == np.uint8
