"""Demonstrations in PPO: returns against values by hand, a cloned start, and rows that stop to teach."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.ppo.agent import PPO, PPOConfig
from agents.ppo.plugins import demonstrations
from envs.make import make_vec
from envs.recording import save
from envs.transitions import Transitions

SMALL = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "net_arch": [16], "demo_start": 0}


@pytest.fixture
def demos(tmp_path):
    """Six episodes of three steps that push to the side that the pole leans to; the last reward is 1, the others 0."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(-2, 2, (18, 4)).astype(np.float32)
    step = np.tile([0, 1, 2], 6)
    last = step == 2
    batch = Transitions(
        obs=obs,
        action=(obs[:, 2] > 0).astype(np.int64),
        reward=last.astype(np.float32),
        next_obs=obs[::-1].copy(),
        terminated=last,
        truncated=np.zeros(18, bool),
        valid=np.ones(18, bool),
        step=step,
    )
    path = tmp_path / "demos.safetensors"
    save(path, batch, {"env": "CartPole-v1"})
    return batch, str(path)


def agent_of(path, **options):
    return PPO(make_vec("CartPole-v1", 2), PPOConfig(demos=path, **SMALL | options), seed=0)


def test_a_row_is_worth_its_discounted_return_less_what_the_agent_expects(demos, monkeypatch):
    """Discounted by 0.5 the rows of an episode return 0.25, 0.5 and 1; the agent expects 0.4 everywhere."""
    agent = agent_of(demos[1], gamma=0.5)
    monkeypatch.setattr(agent.autograd, "values", lambda *inputs: np.full((18, 1), 0.4, np.float32))
    gain = agent.extensions.demonstrations.gain(agent, 0)
    np.testing.assert_allclose(gain, np.tile([-0.15, 0.1, 0.6], 6), atol=1e-6)


def test_an_episode_that_was_cut_short_goes_on_with_the_value_of_its_last_state(demos, tmp_path, monkeypatch):
    batch, _ = demos
    cut = batch[:17].replace(terminated=np.zeros(17, bool), truncated=np.zeros(17, bool))
    save(tmp_path / "cut.safetensors", cut, {})
    agent = agent_of(str(tmp_path / "cut.safetensors"), gamma=0.5)
    monkeypatch.setattr(agent.autograd, "values", lambda *inputs: np.full((17, 1), 0.4, np.float32))
    gain = agent.extensions.demonstrations.gain(agent, 0)
    # The last rows: 1 + 0.5 * 0.4 at the end of the fifth episode, then 0 + 0.5 * 0.4 and that discounted.
    np.testing.assert_allclose(gain[14:], np.array([1.2, 0.1, 0.2]) - 0.4, atol=1e-6)


def test_it_begins_as_a_clone(demos):
    batch, path = demos
    clone = agent_of(path, demo_start=300)
    shares = []
    for agent in (clone, agent_of(path)):
        actions, _ = agent.predict(batch.obs, deterministic=True)
        shares.append((actions == batch.action).mean())
    assert shares[0] > 0.9 > shares[1]


def test_the_clone_of_a_gaussian_keeps_its_deviation_and_the_statistics_of_what_it_read(demos, tmp_path):
    obs = np.linspace(-1, 1, 60, dtype=np.float32).reshape(20, 3)
    none = np.zeros(20, bool)
    batch = Transitions(obs, obs[:, :1].copy(), none.astype(np.float32), obs, none, none, ~none, np.arange(20))
    save(tmp_path / "swing.safetensors", batch, {})
    config = PPOConfig(demos=str(tmp_path / "swing.safetensors"), **SMALL | {"demo_start": 400, "normalize_obs": True})
    agent = PPO(make_vec("Pendulum-v1", 2), config, seed=0)
    np.testing.assert_allclose(agent.policy.obs_mean.numpy(), obs.mean(0), atol=1e-2)
    assert agent.policy.log_std.detach().numpy() == pytest.approx(0)
    actions, _ = agent.predict(obs, deterministic=True)
    np.testing.assert_allclose(actions[:, 0], obs[:, 0], atol=0.15)


def test_where_the_agent_expects_more_nothing_is_taught(demos, monkeypatch):
    agent = agent_of(demos[1])
    extra = agent.extensions.demonstrations
    agent.learn(16)
    assert agent.metrics["train/demos_ahead"] > 0 and agent.metrics["train/demos_loss"] > 0
    monkeypatch.setattr(extra, "gain", lambda *_: np.full(18, -1.0))
    before = extra.adam.steps.item()
    agent.learn(16)
    assert agent.metrics["train/demos_ahead"] == 0 and "train/demos_loss" not in agent.metrics
    assert extra.adam.steps.item() == before


def test_the_loss_of_a_step_is_the_mean_surprise_of_its_rows(demos):
    batch, path = demos
    agent = agent_of(path)
    row = 3
    with torch.no_grad():
        logits = agent.policy(torch.tensor(batch.obs[[row]]), {})[0]
    expected = -torch.log_softmax(logits, -1)[0, int(batch.action[row])]
    loss = agent.extensions.demonstrations.step(agent.autograd, np.array([row]), 1e-3)
    torch.testing.assert_close(loss, expected)


def test_its_state_continues(demos):
    agent = agent_of(demos[1]).learn(16)
    other = agent_of(demos[1])
    other.set_state(agent.get_state())
    rows = np.arange(18)
    steps = [each.extensions.demonstrations.step(each.autograd, rows, 1e-3).item() for each in (agent, other)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize(
    ("space", "recorded", "chosen"),
    [
        (spaces.Discrete(3, start=5), np.array([5, 7]), [[0], [2]]),
        (spaces.Box(-1, 1, (1, 2)), np.array([[[0.5, -1.0]], [[0, 1.0]]]), [[0.5, -1], [0, 1]]),
    ],
)
def test_recorded_actions_are_those_that_the_network_chooses(space, recorded, chosen):
    from agents.networks.actor_critic import Actions

    assert demonstrations._as_choices(Actions(space), recorded).tolist() == chosen


def test_what_does_not_go_together_is_a_sentence(demos):
    with pytest.raises(ValueError, match=r"agent\.demos=x clones single steps .*agent\.gru=0 \(here: 8\)"):
        PPOConfig(demos="x", gru=8)
    with pytest.raises(ValueError, match=r"agent\.demos='nowhere' is no file"):
        agent_of("nowhere")
