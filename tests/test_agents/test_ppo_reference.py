"""PPO near a reference policy: the penalty by hand, what it does to learning, saved state, settings that do not go."""

import numpy as np
import pytest
import torch

from agents.ppo.agent import PPO, PPOConfig
from envs.make import make_vec

SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 2}


def make_agent(seed=0, env="CartPole-v1", **options):
    return PPO(make_vec(env, 4, backend="batched"), PPOConfig(**SMALL | options), seed=seed)


def weights_of(agent):
    return {key: x.clone() for key, x in agent.policy.state_dict().items() if not key.startswith("vf_head")}


def test_the_penalty_is_the_log_ratio_to_the_policy_that_training_began_with():
    agent = make_agent(reference="start", kl=0.5)
    start = weights_of(agent)
    agent.learn(64)
    # The reference itself acted the first rollout.
    np.testing.assert_allclose(agent._scored.rewards[..., 1], 0, atol=1e-6)
    acted = weights_of(agent)
    agent.learn(64, reset_num_timesteps=False)
    assert list(agent.streams) == ["task", "reference"]
    scored = agent._scored
    np.testing.assert_array_equal(scored.weights[..., 1], 0.5)

    def log_prob(weights):
        """A softmax by hand, of the logits that these weights give."""
        policy = make_agent().policy
        policy.load_state_dict(weights, strict=False)
        with torch.no_grad():
            logits, _ = policy(torch.as_tensor(scored.transitions.obs).flatten(0, 1), {})
        actions = torch.as_tensor(scored.transitions.action).flatten()[:, None]
        return torch.log_softmax(logits, 1).gather(1, actions)[:, 0].reshape(16, 4).numpy()

    by_hand = log_prob(start) - log_prob(acted)
    assert np.abs(by_hand).max() > 1e-4
    # The first row of observations is that of the next rollout by now.
    np.testing.assert_allclose(scored.rewards[1:, :, 1], by_hand[1:], atol=1e-5)
    assert agent.metrics["reference/kl"] == pytest.approx(-scored.rewards[..., 1].mean(), abs=1e-6)


def test_a_high_price_keeps_the_policy_where_it_was_and_a_new_reference_lets_it_go():
    def divergence(**options):
        agent = make_agent(learning_rate=3e-3, **options)
        start = weights_of(agent)
        agent.learn(64 * 12)
        moved = weights_of(agent)
        policy = make_agent().policy
        obs = torch.as_tensor(agent._scored.transitions.obs).flatten(0, 1)
        log_probs = []
        for weights in (start, moved):
            policy.load_state_dict(weights, strict=False)
            with torch.no_grad():
                log_probs.append(torch.log_softmax(policy(obs, {})[0], 1))
        return float((log_probs[1].exp() * (log_probs[1] - log_probs[0])).sum(1).mean())

    free = divergence()
    held = divergence(reference="start", kl=30.0)
    let_go = divergence(reference="start", kl=30.0, reference_every=1)
    assert held < free / 3
    assert held < let_go


def test_a_file_is_a_reference_and_a_run_goes_on_with_it(tmp_path):
    path = str(tmp_path / "policy.safetensors")
    teacher = make_agent(seed=3)
    teacher.save(path)
    agent = make_agent(reference=path, kl=0.1)
    agent.learn(64)
    assert agent.metrics["reference/kl"] > 0
    for key, x in weights_of(teacher).items():
        assert torch.equal(agent.extensions.reference.net.state_dict()[key], x), key
    # What was saved goes on, also when the file is another by then.
    make_agent(seed=4).save(path)
    resumed = make_agent(reference=path, kl=0.1)
    resumed.set_state(agent.get_state())
    for key, x in weights_of(teacher).items():
        assert torch.equal(resumed.extensions.reference.net.state_dict()[key], x), key
    # A policy without a reference begins with the weights of one that had it, and the other way round.
    agent.save(str(tmp_path / "near.safetensors"))
    plain = PPO.load(str(tmp_path / "near.safetensors"), agent.envs)
    assert torch.equal(plain.policy.pi_head.weight, agent.policy.pi_head.weight)
    plain = make_agent()
    plain.start_from(agent.get_state(), ["task"])
    assert torch.equal(plain.policy.vf_head.weight[0], agent.policy.vf_head.weight[0])
    agent.start_from(plain.get_state(), ["task"])
    assert agent.policy.vf_head.weight.shape[0] == 2


def test_one_value_of_the_sum_counts_the_penalty_in_it():
    agent = make_agent(reference="start", kl=0.5, streams="sum")
    agent.learn(128)
    scored = agent._scored
    assert list(agent.streams) == ["task"]
    assert scored.rewards.shape == (16, 4, 1)
    assert (scored.rewards[..., 0] != 1).any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reference": "start"}, r"agent.reference=start and agent.kl=0.0 need each other"),
        ({"kl": 0.1}, r"agent.reference= and agent.kl=0.1 need each other"),
        ({"reference": "start", "kl": 0.1, "gru": 8, "sequence": 8}, "networks without memory"),
        ({"reference": "start", "kl": 0.1, "blend": "aligned"}, "weights that are given"),
        ({"reference": "none.safetensors", "kl": 0.1}, r"agent.reference=none.safetensors .*give a file that"),
    ],
)
def test_settings_that_do_not_go_together_are_one_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        make_agent(**options)


def test_a_file_for_other_spaces_or_of_another_network_is_refused(tmp_path):
    path = str(tmp_path / "policy.safetensors")
    make_agent(env="Acrobot-v1").save(path)
    with pytest.raises(ValueError, match="does not fit this environment"):
        make_agent(reference=path, kl=0.1)
    make_agent(net_arch=[8]).save(path)
    with pytest.raises(ValueError, match=r"was trained with agent.net_arch=\[8\], this agent has \[64, 64\]"):
        make_agent(reference=path, kl=0.1)
