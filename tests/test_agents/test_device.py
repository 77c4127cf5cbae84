"""Rollouts on a device: the same learning as on the host. Without a GPU the device is torch's CPU."""

import copy

import numpy as np
import pytest
import torch

import rewards
from agents.ppo.agent import PPO, PPOConfig
from envs.make import make_vec

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
SMALL = {"n_steps": 16, "batch_size": 64, "n_epochs": 2, "net_arch": [16]}


def agent(env_id="CartPole-v1", n=8, device="cpu", names=("task",), **changes):
    made = make_vec(env_id, n, seed=0, backend="batched", array="torch", device=device)
    mix = rewards.make(list(names), made.single_observation_space, made.single_action_space, gamma=0.99, seed=0)
    return PPO(made, PPOConfig(**{**SMALL, **changes}), scorer=mix, seed=0, device=device)


@pytest.mark.nightly
@pytest.mark.parametrize("device", DEVICES)
def test_it_learns_on_the_device(device):
    model = agent("CartPole-v1", 16, device, n_steps=64, batch_size=128, n_epochs=6, learning_rate=2e-3).learn(40_000)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    assert len(returns) == 100 and np.mean(returns) > 100


@pytest.mark.parametrize("device", DEVICES)
def test_every_episode_of_the_device_is_told_with_its_length(device):
    model = agent("Pendulum-v1", 16, device, n_steps=64, batch_size=128, n_epochs=1).learn(16 * 64 * 4)
    assert model.collector.vector.device.type == device and isinstance(model.collector.vector, torch.Tensor)
    # 256 steps of 16 environments hold one episode each, which runs out of time.
    assert [episode["l"] for episode in model.ep_info_buffer] == [200] * 16


@pytest.mark.parametrize("device", DEVICES)
def test_the_host_sees_what_happened_on_the_device(device):
    """Every row: the original world, put where the row says, does what the row says."""
    from envs.make import make

    model = agent(device=device, names=("task", "count"), n_steps=64)
    seen = []

    model.learn(8 * 64)
    batch = model.collector.rollout.transitions(frozenset({"next_obs"}))
    env = make("CartPole-v1")
    env.reset(seed=0)
    for t, n in [(t, n) for t in range(0, 64, 7) for n in range(8)]:
        if t == 0:
            continue  # the rollout has rolled on: row 0 is the next one's
        row = batch[t, n]
        env.reset(seed=0)
        env.unwrapped.state = row.obs.astype(np.float64)
        obs, reward, terminated, _, _ = env.step(int(row.action))
        if not row.ended:
            np.testing.assert_allclose(row.next_obs, obs, atol=1e-5)
        assert (row.reward, bool(row.terminated)) == (reward, terminated)
        seen.append(terminated)
    assert len(seen) == 72


def test_on_the_cpu_it_is_the_host_s_agent_to_the_last_digits():
    """With the same noise and the same starts, device and host fill the same rollout and learn the same weights."""
    device = agent()
    made = make_vec("CartPole-v1", 8, seed=0, backend="batched")
    host = PPO(made, PPOConfig(**SMALL, path="eager"), seed=0)
    noise = host.policy.actions.draw(np.random.default_rng(0), 16, 8)
    device.policy.actions.draw_on = lambda generator, *shape: torch.from_numpy(noise)
    host.policy.actions.draw = lambda rng, *shape: noise
    for model in (device, host):
        model.learn(16 * 8 * 3)
    torch.testing.assert_close(device.flat.value, host.flat.value, rtol=0, atol=1e-5)
    assert list(device.ep_info_buffer) == list(host.ep_info_buffer)


def test_continued_from_its_state_it_ends_with_the_same_weights():
    whole = agent(names=("task", "rnd")).learn(8 * 16 * 6)
    first = agent(names=("task", "rnd")).learn(8 * 16 * 3)
    state = copy.deepcopy((first.get_state(), first.scorer.state_dict(), first.envs.snapshot()))
    second = agent(names=("task", "rnd"))
    second.envs.reset(seed=0)
    second.envs.restore(state[2])
    second.set_state(state[0])
    second.scorer.load_state_dict(state[1])
    second.learn(8 * 16 * 3, reset_num_timesteps=False)
    assert torch.equal(second.flat.value, whole.flat.value)


def test_success_that_is_not_defined_is_reported_nowhere():
    model = agent("Hopper-v5", 4, n_steps=64).learn(256)
    assert model.ep_info_buffer and np.isnan(model.collector.rollout.success).all()


def test_a_recurrent_policy_is_refused():
    with pytest.raises(ValueError, match=r"agent\.gru is for environments on the host"):
        agent(gru=8, sequence=16)
