"""What may be set of an environment is read from signatures, and everything that is named can be handed to `make`."""

import gymnasium as gym
import numpy as np
import pytest

from envs.make import DISTURBANCES, is_open, make, options

TAKES_NAMES = ["lodestar/NoisyRooms-v0", "lodestar/DeepSea-v0", "CartPole-v1", "Pendulum-v1", "FrozenLake-v1"]
TAKES_NAMES += ["MiniGrid-DoorKey-8x8-v0", "HalfCheetah-v5", "highway-fast-v0", "lodestar/ProbeValue-v0"]
FILLED_IN = ("grid_size", "width", "height")  # by MiniGrid's tasks, of what their base class takes


def defaults(env_id):
    return {name: parameter.default for name, parameter in options(env_id).items()}


def test_options_are_those_of_the_constructor_and_what_disturbs():
    assert defaults("lodestar/NoisyRooms-v0") == {
        "rooms": 8, "noise": "off", "bits": 8, "code": "one_hot", "dense_size": 8, "physics": None, "sticky": None,
        "noisy_tv": None,
        "episodic_reward": False,
        "base": None,
        "base_scale": 0.1,
    }  # fmt: skip
    assert list(options("lodestar/DeepSea-v0")) == ["size", "stochastic", "mapping_seed", *DISTURBANCES]
    assert options("lodestar/DeepSea-v0")["size"].annotation is int
    assert options("CartPole-v1")["sticky"].annotation == float | None
    assert defaults("lodestar/ProbeValue-v0") == {
        "kind": "value",
        "physics": None,
        "sticky": None,
        "noisy_tv": None,
        "episodic_reward": False,
        "base": None,
        "base_scale": 0.1,
    }


def test_a_registration_changes_defaults_and_an_adapter_adds_options():
    found = defaults("MiniGrid-DoorKey-16x16-v0")
    assert (found["size"], found["mission"], found["agent_view_size"]) == (16, "auto", 7)
    assert "mission_space" not in found  # the task fills it in
    assert {"render_mode", "max_episode_steps", "frame_size", "text", "seed", "adapt"}.isdisjoint(found)
    assert {"crop", "message", "penalty_step"} <= set(options("NetHackScore-v0"))
    assert "model_path" not in options("HalfCheetah-v5") and "ctrl_cost_weight" in options("HalfCheetah-v5")


@pytest.mark.parametrize("env_id", TAKES_NAMES)
def test_every_option_that_is_named_can_be_handed_to_make_at_its_default(env_id):
    for name, default in defaults(env_id).items():
        if "MiniGrid" not in env_id or name not in FILLED_IN:
            make(env_id, **{name: default}).close()


def test_what_the_environment_fills_in_itself_is_refused_with_a_sentence():
    for name in FILLED_IN:
        with pytest.raises(ValueError, match=f"DoorKey-8x8-v0 cannot be made with the arguments .*'{name}'"):
            make("MiniGrid-DoorKey-8x8-v0", **{name: 9})


def test_a_constructor_that_takes_every_word_is_open():
    class Any(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 1, (1,), np.float32), gym.spaces.Discrete(2)

        def __init__(self, speed: "Undefined" = 3, **kwargs):  # noqa: F821
            self.speed, self.words = speed, kwargs

    class Plain(gym.Env):
        pass

    for name, entry in (("Any", Any), ("Plain", Plain), ("Function", lambda **words: Any(**words))):
        gym.register(f"Options{name}-v0", entry)
    assert [is_open(f"Options{name}-v0") for name in ("Any", "Plain", "Function")] == [True, False, True]
    assert not any(map(is_open, [*TAKES_NAMES, "NetHackScore-v0"]))
    disturbed = {"physics": None, "sticky": None, "noisy_tv": None, "episodic_reward": False}
    disturbed |= {"base": None, "base_scale": 0.1}
    assert defaults("OptionsAny-v0") == {"speed": 3, **disturbed}


def test_an_unknown_id_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown environment 'CartPole-v9'"):
        options("CartPole-v9")
