"""An agent begins with another one's policy: the same actions, critics in the rewards' units, and what does not fit."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_iql import batch

import envs.make
from agents.dyna.agent import Dyna, DynaConfig
from agents.dyna.offline import OfflineDyna, OfflineDynaConfig
from agents.off_policy.sac import moments
from agents.offline.cloning import Cloning, CloningConfig
from agents.offline.iql import IQL, PI, IQLConfig, Q, run
from agents.ppo.agent import PPO, PPOConfig

SAC = {"preset": "sac", "net_arch": [8, 8], "batch_size": 8}
SMALL = {"n_steps": 16, "batch_size": 32, "net_arch": [8, 8]}


def world(name):
    return envs.make.make_vec(name, 2, backend="batched")


def recorded(vector, seed=0, n=40):
    """Random transitions, whose observations lie away from 0 and have a deviation of 2."""
    rng = np.random.default_rng(seed)
    space = vector.single_observation_space
    obs = rng.normal(1, 2, (n, *space.shape)).astype(np.float32)
    vector.single_action_space.seed(seed)
    action = np.array([vector.single_action_space.sample() for _ in range(n)])
    return batch(obs, action, rng.normal(0, 5, n), obs[::-1], np.zeros(n))


def trained(kind, config, vector, steps=50):
    agent = kind(config, vector.single_observation_space, vector.single_action_space, recorded(vector), seed=1)
    agent.learn(steps)
    return agent


def act(agent, obs):
    return agent.predict(obs, deterministic=True)[0]


def test_sac_begins_with_the_actor_and_the_critics_of_iql_and_keeps_the_actor_while_critics_learn():
    vector = world("Pendulum-v1")
    iql = trained(IQL, IQLConfig(net_arch=[8, 8]), vector)
    agent = Dyna(vector, DynaConfig(**SAC, learning_starts=20, actor_from=60), seed=0)
    assert agent.begin_with(iql.policy_layers()) == ["actor", "critics"]
    data = recorded(vector, seed=2)
    np.testing.assert_allclose(act(agent, data.obs), act(iql, data.obs), atol=1e-5)
    obs = torch.tensor(data.obs)
    action = torch.tensor(iql.encoding.encode(data.action))
    with torch.no_grad():
        outputs = run(iql.net.layers(Q), iql.net.inputs(iql.net.whiten(obs), action, Q))[..., 0]
        # Q was learned in units of the rewards' deviation.
        unit = float(recorded(vector).reward.std())
        for target in (False, True):
            torch.testing.assert_close(agent.learner.q(obs, action, target), outputs * unit, rtol=1e-4, atol=1e-4)
        # One deviation in all states.
        outputs = agent.learner.actor(agent.learner.inputs(obs))[0]
        expected = iql.net.deviation_log().expand(len(obs), -1)
        torch.testing.assert_close(moments(outputs)[1], expected, rtol=1e-4, atol=1e-4)
    before = agent.learner.critic_flat.value.clone()
    agent.learn(60)
    np.testing.assert_allclose(act(agent, data.obs), act(iql, data.obs), atol=1e-5)
    assert agent._n_updates > 0 and not torch.equal(agent.learner.critic_flat.value, before)
    agent.learn(40, reset_num_timesteps=False)
    assert np.abs(act(agent, data.obs) - act(iql, data.obs)).max() > 1e-4


def test_critics_of_another_shape_begin_anew_and_an_actor_of_another_shape_is_refused():
    vector = world("Pendulum-v1")
    layers = trained(IQL, IQLConfig(net_arch=[8, 8]), vector).policy_layers()
    assert Dyna(vector, DynaConfig(**SAC, critics=3)).begin_with(layers) == ["actor"]
    assert Dyna(vector, DynaConfig(**SAC, norm="layer")).begin_with(layers) == ["actor"]
    other = Dyna(vector, DynaConfig(**{**SAC, "net_arch": [8], "activation": "silu"}))
    with pytest.raises(ValueError, match=r"has \[8\] with silu; give agent.net_arch=\[8,8\] agent.activation=relu"):
        other.begin_with(layers)


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_ppo_begins_with_the_choices_of_iql(normalize_obs):
    vector = world("CartPole-v1")
    iql = trained(IQL, IQLConfig(net_arch=[8, 8], beta=0.0), vector)
    agent = PPO(vector, PPOConfig(**SMALL, activation="relu", normalize_obs=normalize_obs))
    assert agent.begin_with(iql.policy_layers()) == ["actor"]
    obs = recorded(vector, seed=2).obs
    with torch.no_grad():
        vectors = torch.tensor(obs)
        logits = agent.policy(vectors, {})[0]
        unused = torch.zeros(len(obs), 2)
        expected = run(iql.net.layers(PI), iql.net.inputs(iql.net.whiten(vectors), unused, PI))[0]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    values = Dyna(vector, DynaConfig(**SAC))
    assert values.begin_with(iql.policy_layers()) == ["critics"]


@pytest.mark.parametrize("overlap", [False, True])
def test_ppo_begins_with_a_clone_in_the_environments_units(overlap):
    vector = world("Pendulum-v1")
    config = CloningConfig(chunk=1, components=1, activation="tanh", net_arch=[8, 8])
    clone = trained(Cloning, config, vector)
    agent = PPO(vector, PPOConfig(**SMALL, overlap=overlap))
    assert agent.begin_with(clone.policy_layers()) == ["actor"]
    # The network that learns while another acts begins with the same.
    torch.testing.assert_close(agent.learnt.state_dict(), agent.policy.state_dict())
    obs = recorded(vector, seed=2).obs
    np.testing.assert_allclose(act(agent, obs), act(clone, obs), atol=1e-4)
    with torch.no_grad():
        _, _, log_std = clone.net.gaussians(torch.zeros(1, 3))
    # Actions lie between -2 and 2.
    assert float(agent.policy.log_std.detach()) == pytest.approx(float(log_std) + np.log(2), abs=1e-5)


def test_means_behind_a_tanh_are_for_sac_and_others_for_ppo():
    vector = world("Pendulum-v1")
    ppo = PPO(vector, PPOConfig(**SMALL, activation="relu"))
    sac = Dyna(vector, DynaConfig(**SAC))
    bounded = trained(IQL, IQLConfig(net_arch=[8, 8]), vector)
    free = trained(IQL, IQLConfig(net_arch=[8, 8], squash=False), vector)
    with pytest.raises(ValueError, match=r"train iql or cloning with agent.squash=false"):
        ppo.begin_with(bounded.policy_layers())
    with pytest.raises(ValueError, match=r"train iql or cloning with agent.squash=true"):
        sac.begin_with(free.policy_layers())
    obs = recorded(vector, seed=2).obs
    ppo.begin_with(free.policy_layers())
    np.testing.assert_allclose(act(ppo, obs), act(free, obs), atol=1e-4)
    clone = trained(
        Cloning, CloningConfig(chunk=1, components=1, squash=True, activation="relu", net_arch=[8, 8]), vector
    )
    assert sac.begin_with(clone.policy_layers()) == ["actor"]
    np.testing.assert_allclose(act(sac, obs), act(clone, obs), atol=1e-4)


def test_dyna_begins_with_what_dyna_learned_offline(short_fits):
    vector = world("Pendulum-v1")
    options = {**SAC, "members": 1, "model_hidden": [8], "model_steps": 2, "preset": "mbpo"}
    place = (vector.single_observation_space, vector.single_action_space)
    offline = OfflineDyna.of(OfflineDynaConfig(**options), *place, data=recorded(vector), seed=3).learn(20)
    agent = Dyna(vector, DynaConfig(**SAC))
    assert agent.begin_with(offline.policy_layers()) == ["actor", "critics"]
    obs = recorded(vector, seed=2).obs
    np.testing.assert_allclose(act(agent, obs), act(offline, obs), atol=1e-5)
    torch.testing.assert_close(agent.learner.alpha, offline.learner.alpha)
    torch.testing.assert_close(agent.learner.critic_flat.value, offline.learner.critic_flat.value)


def test_policies_of_another_form_are_refused():
    vector = world("Pendulum-v1")
    spaces_of = (vector.single_observation_space, vector.single_action_space)
    with pytest.raises(ValueError, match=r"8 actions at once from 5 Gaussians.*agent.chunk=1 agent.components=1"):
        Cloning(CloningConfig(), *spaces_of).policy_layers()
    with pytest.raises(ValueError, match=r"imitate discrete ones by agent=iql agent.beta=0"):
        Cloning(CloningConfig(chunk=1, components=1), spaces_of[0], spaces.Discrete(2)).policy_layers()
    with pytest.raises(ValueError, match=r"of PPO, is no stack of layers"):
        PPO(vector, PPOConfig(**SMALL)).policy_layers()
    layers = IQL(IQLConfig(net_arch=[8, 8], squash=False), *spaces_of).policy_layers()
    with pytest.raises(ValueError, match=r"leave out agent.gru and net"):
        PPO(vector, PPOConfig(**SMALL, gru=4, sequence=8)).begin_with(layers)


def test_ppos_values_learn_before_its_policy():
    agent = PPO(world("Pendulum-v1"), PPOConfig(**SMALL, n_epochs=1, actor_from=32, entropy_weight=0.1), seed=0)
    before = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
    agent.learn(32)
    after = agent.policy.state_dict()
    # The entropy bonus waits as well: it would widen the Gaussian.
    for name in ("pi_head.weight", "log_std"):
        assert torch.equal(after[name], before[name])
    assert not torch.equal(after["vf_head.weight"], before["vf_head.weight"])
    agent.learn(32, reset_num_timesteps=False)
    assert not torch.equal(agent.policy.state_dict()["pi_head.weight"], before["pi_head.weight"])
