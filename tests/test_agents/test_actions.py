"""What an agent chooses reaches an environment in the type and range that the environment itself would sample."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import agents
from agents.sb3.agent import make_venv
from envs.make import make_vec
from runners.evaluate import play, policy

SPACES = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(2),
    "Box": spaces.Box(-2, 2, (2,), np.float32),
}
SHORT = {"n_steps": 8, "batch_size": 8, "learning_starts": 4, "buffer_size": 50}


class Particular(gym.Env):
    """Takes nothing but actions that it could have sampled."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, kind: str) -> None:
        self.action_space = SPACES[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert action in self.action_space, repr(action)
        if isinstance(self.action_space, spaces.Discrete):
            {}.get(action)  # Taxi and FrozenLake look it up in a table
        else:
            assert action.dtype == self.action_space.dtype, repr(action)
        return np.zeros(1, np.float32), 1.0, False, False, {}


gym.register("test/Particular-v0", Particular, max_episode_steps=6)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in ("ppo", "sb3_ppo") for kind in SPACES] + [("dqn", "Discrete"), ("sac", "Box")],
)
def test_actions_are_those_that_the_environment_would_sample(name: str, kind: str) -> None:
    agent = agents.get(name)
    fields = vars(agent.Config())
    config = agent.Config(**{key: value for key, value in SHORT.items() if key in fields})
    build = make_vec if agent.driver == "scorer" else make_venv
    model = agent.build(config, build("test/Particular-v0", 2, seed=0, kind=kind), seed=0, device="cpu")
    model.learn(32)
    assert play("test/Particular-v0", policy(model), 1, options={"kind": kind}).returns == [6.0]


@pytest.mark.parametrize("name", ["Taxi", "FrozenLake", "CliffWalking"])
def test_a_dqn_plays_environments_that_look_actions_up_in_a_table(name: str) -> None:
    env_id = next(env_id for env_id in gym.registry if env_id.startswith(f"{name}-"))
    model = agents.get("dqn").build(agents.get("dqn").Config(), make_venv(env_id, 1, seed=0), seed=0, device="cpu")
    assert play(env_id, policy(model), 1, max_episode_steps=5).lengths[0] <= 5
