"""What PPO can be told: schedules, activation, first weights, noise that lasts; and that it is SB3's PPO."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_ppo import SMALL, agent

import envs.make
from agents.networks.actor_critic import Actions, ActorCritic, Inputs, correlate
from agents.ppo.agent import PPO, PPOConfig
from benchmarks.peers.ppo_twin import learn_both

ROLLOUT = 4 * SMALL["n_steps"]


def test_schedules_follow_training_and_reach_their_end_with_it():
    model = agent(learning_rate="linear:1e-3:0", clip_range="step:0.2:0.1:128", entropy_weight="linear:0.04:0")
    seen = []
    end = model.end_rollout

    def note_rates():
        learner = model.learner
        seen.append((learner.learning_rate, learner.clip_range, learner.entropy_weight))
        end()

    model.end_rollout = note_rates
    model.learn(4 * ROLLOUT)
    rates, clips, entropies = zip(*seen)
    assert rates == pytest.approx([0.75e-3, 0.5e-3, 0.25e-3, 0.0])
    assert clips == pytest.approx([0.2, 0.1, 0.1, 0.1])
    assert entropies == pytest.approx([0.03, 0.02, 0.01, 0.0])


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"clip_range": "linear:2:0"}, r"agent.clip_range=linear:2:0 reaches 2; stay in \(0, 1\]"),
        ({"learning_rate": "1e-3->0"}, r"agent.learning_rate='1e-3->0' is neither a number nor KIND:START:END:STEPS"),
        ({"entropy_weight": 11}, r"agent.entropy_weight=11 is out of range; give a number in \[0, 10\]"),
        ({"activation": "gelu"}, r"agent.activation='gelu' is unknown; give one of tanh, relu"),
        ({"noise_correlation": 1.0}, r"agent.noise_correlation=1.0 is out of range; give a number in \[0, 1\)"),
    ],
    ids=str,
)
def test_a_setting_that_makes_no_sense_is_refused_when_it_is_given(setting, sentence):
    with pytest.raises(ValueError, match=sentence):
        PPOConfig(**setting)


def test_correlated_noise_is_for_actions_that_are_numbers():
    with pytest.raises(ValueError, match=r"noise_correlation=0.9 is for actions that are numbers"):
        agent(noise_correlation=0.9)


@pytest.mark.parametrize("path", ["numpy", "eager"])
def test_passes_over_a_rollout_end_once_the_policy_has_moved_far_enough(path):
    """Two epochs of two minibatches: the first one moves so far that there is no second."""
    settings = {"learning_rate": 1e-2, "path": path}
    far, near, free = (agent(**settings, target_kl=kl).learn(ROLLOUT) for kl in (1e-9, 1e3, 0.0))
    assert far.flat.steps == 2 and near.flat.steps == free.flat.steps == 4
    assert torch.equal(near.flat.value, free.flat.value)


def test_correlated_noise_is_standard_normal_and_its_neighbours_are_alike():
    noise = np.random.default_rng(0).standard_normal((4000, 8), np.float32)
    white = noise.copy()
    correlate(noise, 0.9)
    assert noise.std() == pytest.approx(1, abs=0.05) and noise.mean() == pytest.approx(0, abs=0.1)
    assert np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1] == pytest.approx(0.9, abs=0.02)
    assert np.corrcoef(noise[:-10, 0], noise[10:, 0])[0, 1] == pytest.approx(0.9**10, abs=0.1)
    correlate(white, 0.0)
    assert np.array_equal(white, np.random.default_rng(0).standard_normal((4000, 8), np.float32))


@pytest.mark.parametrize("path", ["numpy", "eager"])
def test_a_pendulum_is_pushed_in_one_direction_for_longer(path):
    def signs_kept(correlation):
        vec = envs.make.make_vec("Pendulum-v1", 4, seed=0, backend="batched")
        config = PPOConfig(n_steps=64, batch_size=64, n_epochs=1, noise_correlation=correlation, path=path)
        model = PPO(vec, config, seed=0).learn(256)
        push = np.sign(model.collector.chosen[..., 0])
        return (push[1:] == push[:-1]).mean()

    assert signs_kept(0.0) < 0.6 < 0.8 < signs_kept(0.95)


def test_weights_begin_orthogonal_or_as_torch_makes_them():
    def network(**options):
        torch.manual_seed(0)
        return ActorCritic(Inputs(spaces.Box(-1, 1, (9,))), Actions(spaces.Discrete(2)), [9], 1, **options)

    weight = network().pi[0].weight / np.sqrt(2)
    torch.testing.assert_close(weight @ weight.T, torch.eye(9), rtol=0, atol=1e-5)
    plain = network(is_orthogonal=False)
    limit = 1 / np.sqrt(9)
    for layer in (plain.pi[0], plain.vf[0], plain.pi_head, plain.vf_head):
        assert 0.8 * limit < layer.weight.abs().max() <= limit
        assert layer.bias.any()
    assert not network(is_orthogonal=False, zero_last=True).pi_head.bias.any()


@pytest.mark.parametrize(
    ("env", "steps", "path"),
    [
        ("CartPole-v1", 128, "numpy"),
        ("Pendulum-v1", 128, "eager"),
        pytest.param("CartPole-v1", 128, "eager", marks=pytest.mark.nightly),
        pytest.param("Pendulum-v1", 128, "numpy", marks=pytest.mark.nightly),
    ],
)
def test_two_rollouts_of_ours_teach_stable_baselines3_s_ppo_the_same_weights(env, steps, path):
    """Episodes end, and on the pendulum run out of time. SB3 reads our rollouts and our noise, and decides the rest."""
    apart, moved = learn_both(env, steps, path)
    assert apart < 1e-5 < 0.1 < moved
