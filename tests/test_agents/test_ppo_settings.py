"""What PPO can be told: schedules, activation, first weights, noise that lasts; and that it is SB3's PPO."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO as SB3
from stable_baselines3.common.logger import Logger
from test_ppo import SMALL, agent

import envs.make
from agents.networks.actor_critic import Actions, ActorCritic, Inputs, correlate
from agents.ppo.agent import PPO, PPOConfig

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


def stable_baselines_twin(ours):
    """SB3's PPO with the same settings and first weights."""
    config = ours.config
    single = envs.make.make(ours.envs.spec.id if ours.envs.spec else "Pendulum-v1")
    theirs = SB3(
        "MlpPolicy",
        single,
        n_steps=config.n_steps * ours.envs.num_envs,
        batch_size=config.batch_size,
        n_epochs=config.n_epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        ent_coef=config.entropy_weight,
        device="cpu",
    )
    theirs.set_logger(Logger(None, []))
    theirs.rollout_buffer = type(theirs.rollout_buffer)(
        config.n_steps,
        single.observation_space,
        single.action_space,
        device="cpu",
        gae_lambda=config.gae_lambda,
        gamma=config.gamma,
        n_envs=ours.envs.num_envs,
    )
    for mine, their in modules(ours, theirs):
        their.load_state_dict(mine.state_dict())
    return theirs


def modules(ours, theirs):
    net = ours.policy
    other = theirs.policy
    return [
        (net.pi, other.mlp_extractor.policy_net),
        (net.vf, other.mlp_extractor.value_net),
        (net.pi_head, other.action_net),
        (net.vf_head, other.value_net),
    ]


def read_rollout(theirs, collector, noise, actions):
    """SB3's buffer from our rollout: its own actions out of our noise, and its own values and log-probabilities."""
    rollout = collector.rollout
    policy = theirs.policy
    policy.set_training_mode(False)
    buffer = theirs.rollout_buffer
    buffer.reset()
    last_obs = {}
    for t, columns, obs in rollout.finals:
        last_obs[t] = (columns, obs)
    starts = collector.starts
    ended = np.zeros(rollout.n, bool)
    with torch.no_grad():
        for t in range(rollout.length):
            obs = torch.as_tensor(rollout.obs[t])
            distribution = policy.get_distribution(obs).distribution
            if actions.gaussian:
                chosen = distribution.mean + distribution.stddev * torch.as_tensor(noise[t])
                np.testing.assert_allclose(chosen, collector.chosen[t], atol=1e-5)
            else:
                chosen = (distribution.logits + torch.as_tensor(noise[t])).argmax(-1)
                np.testing.assert_array_equal(chosen, collector.chosen[t, :, 0])
            action = torch.as_tensor(collector.chosen[t])
            values, log_prob, _ = policy.evaluate_actions(obs, action.squeeze(-1) if not actions.gaussian else action)
            reward = rollout.reward[t].copy()
            timed_out = rollout.truncated[t] & ~rollout.terminated[t]
            if timed_out.any():
                columns, final = last_obs[t]
                reward[columns] += theirs.gamma * policy.predict_values(torch.as_tensor(final)).numpy()[:, 0]
            buffer.add(rollout.obs[t], collector.chosen[t], reward, starts[t] if t == 0 else ended, values, log_prob)
            ended = rollout.terminated[t] | rollout.truncated[t]
        last_values = policy.predict_values(torch.as_tensor(rollout.obs[rollout.length]))
    buffer.compute_returns_and_advantage(last_values, ended)


@pytest.mark.parametrize(
    ("env", "steps", "path"),
    [
        ("CartPole-v1", 128, "numpy"),
        ("Pendulum-v1", 128, "eager"),
        pytest.param("CartPole-v1", 128, "eager", marks=pytest.mark.nightly),
        pytest.param("Pendulum-v1", 128, "numpy", marks=pytest.mark.nightly),
    ],
)
def test_two_rollouts_of_ours_teach_stable_baselines3_s_ppo_the_same_weights(env, steps, path, monkeypatch):
    """Episodes end, and on the pendulum run out of time. SB3 reads our rollouts and our noise, and decides the rest."""
    vec = envs.make.make_vec(env, 2, seed=0, backend="batched")
    config = PPOConfig(n_steps=steps, n_epochs=2, entropy_weight=0.01, path=path)
    ours = PPO(vec, config, seed=3)
    theirs = stable_baselines_twin(ours)
    noise_rng = np.random.default_rng([3, 1])
    learn = ours.schedule.learn

    def learn_both(model):
        noise = model.policy.actions.draw(noise_rng, steps, 2)
        read_rollout(theirs, model.collector, noise, model.policy.actions)
        # Our rows are (step, environment), SB3's (environment, step).
        order_rng = np.random.default_rng()
        order_rng.bit_generator.state = model.rng.bit_generator.state
        orders = []
        for _ in range(config.n_epochs):
            step, environment = np.divmod(order_rng.permutation(2 * steps), 2)
            orders.append(environment * steps + step)
        with monkeypatch.context() as patch:
            patch.setattr(np.random, "permutation", lambda count: orders.pop(0))
            theirs.train()
        assert not orders
        return learn(model)

    ours.schedule.learn = learn_both
    first = ours.flat.value.clone()
    ours.learn(2 * 2 * steps)
    differences = []
    for mine, their in modules(ours, theirs):
        for one, other in zip(mine.parameters(), their.parameters()):
            differences.append((one - other).detach().flatten())
    apart = torch.cat(differences).norm()
    moved = (ours.flat.value - first).norm()
    assert apart < 1e-5 < 0.1 < moved
