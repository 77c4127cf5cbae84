"""Normalised observations of Stable-Baselines3's agents: the statistics are right, move as said, and are saved."""

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO as SB3PPO
from test_sb3_agents import OFF, SMALL, venv

import agents
from agents.sb3.agent import get_state, set_state
from agents.sb3.normalized import NormalizedObs


def build(name, seed=0):
    cls = agents.get(name)
    env_id = "CartPole-v1" if name == "dqn" else "Pendulum-v1"
    config = cls.Config(**SMALL.get(name, OFF), normalize_obs=True)
    return cls.build(config, venv(env_id, 2), seed=seed, device="cpu")


def extractors(model):
    return [module for module in model.policy.modules() if isinstance(module, NormalizedObs)]


@pytest.mark.parametrize(("name", "count"), [("sac", 3), ("td3", 4), ("dqn", 2)])
def test_off_policy_statistics_are_those_of_all_steps(name, count):
    model = build(name).learn(40)
    seen = model.replay_buffer.observations[: model.replay_buffer.pos].reshape(40, -1)
    found = {id(module): module for module in extractors(model)}
    assert len(found) == count
    for module in found.values():
        np.testing.assert_allclose(module.mean, seen.mean(0), atol=1e-4)
        np.testing.assert_allclose(module.var, seen.var(0), atol=1e-4)
    flat = next(iter(found.values()))(torch.as_tensor(seen))
    np.testing.assert_allclose(flat.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(flat.std(0, correction=0), 1, atol=1e-3)


def test_on_policy_they_move_after_an_update_and_not_within(monkeypatch):
    during = []
    train = SB3PPO.train

    def note_mean_and_train(model):
        during.append(extractors(model)[0].mean.clone())
        train(model)

    monkeypatch.setattr(SB3PPO, "train", note_mean_and_train)
    model = build("sb3_ppo").learn(64)
    module = extractors(model)[0]
    assert not during[0].any() and during[1].any() and not torch.equal(during[1], module.mean)
    last = model.rollout_buffer.observations.reshape(-1, 3)
    expected = (during[1].numpy() + last.mean(0)) / 2
    np.testing.assert_allclose(module.mean, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["sac", "sb3_ppo"])
def test_a_fresh_agent_with_the_state_predicts_the_same(name):
    model = build(name).learn(64)
    fresh = build(name, seed=1)
    fresh.set_logger(model.logger)
    set_state(fresh, get_state(model))
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], fresh.predict(obs, deterministic=True)[0])
    assert extractors(fresh)[0].count == extractors(model)[0].count > 60


def test_observations_that_are_no_numbers_are_refused():
    cls = agents.get("sb3_ppo")
    with pytest.raises(ValueError, match=r"normalize_obs=true is for a Box of floats, and observations are Discrete"):
        cls.build(cls.Config(**SMALL["sb3_ppo"], normalize_obs=True), venv("FrozenLake-v1"), seed=0, device="cpu")
