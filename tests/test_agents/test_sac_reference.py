"""SAC near a reference policy: the divergence by hand, values with it, saved state, settings that do not go."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from agents.dyna.agent import Dyna, DynaConfig
from agents.off_policy.reference import ReferenceActor
from agents.off_policy.sac import LearnerConfig, SoftActorCritic, moments
from envs.make import make_vec

SMALL = {
    "preset": "sac",
    "net_arch": [8],
    "learning_starts": 20,
    "batch_size": 8,
    "updates_per_step": 0.5,
    "rollout": 10,
    "buffer_size": 500,
}


def make_agent(seed=0, env="Pendulum-v1", **options):
    return Dyna(make_vec(env, 1), DynaConfig(**SMALL | options), seed=seed)


def make_learner(seed=0, **options):
    config = LearnerConfig(**{"net_arch": [8], "reference": "start", "kl": 0.5} | options)
    return SoftActorCritic(3, 2, config, seed=seed)


OBS = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))


def test_the_divergence_is_that_of_the_gaussians_before_the_tanh():
    learner = make_learner()
    teacher = make_learner(seed=9)
    teacher.whiten(torch.ones(3), torch.full((3,), 2.0))
    reference = ReferenceActor(learner, 0, teacher)
    mean, log_std = moments(learner.actor(learner.inputs(OBS))[0])
    other_mean, other_log_std = moments(teacher.actor(teacher.inputs(OBS))[0])
    by_torch = kl_divergence(Normal(mean, log_std.exp()), Normal(other_mean, other_log_std.exp())).sum(-1)
    torch.testing.assert_close(reference.divergence(OBS), by_torch)
    assert by_torch.min() > 1e-4
    reference.take(learner)
    torch.testing.assert_close(reference.divergence(OBS), torch.zeros(6), atol=1e-6, rtol=0)


def test_by_hand_a_mean_half_a_deviation_away_costs_an_eighth_of_a_nat():
    learner = make_learner()
    reference = ReferenceActor(learner, 0, learner)
    with torch.no_grad():
        # The last bias holds the means, then the raw deviations; the deviation is near 1.
        std = moments(learner.actor(learner.inputs(OBS))[0])[1].exp()[:, 0]
        learner.actor.stack[-1][..., 0] += 0.5
    torch.testing.assert_close(reference.divergence(OBS), 0.5 * (0.5 / std) ** 2)


def test_values_and_what_acting_at_random_earns_are_less_by_kl_times_it():
    learner = make_learner(entropy=0.2)
    state = learner.generator.get_state()
    value = learner.next_value(OBS)
    learner.generator.set_state(state)
    earned = learner.entropy_reward(OBS)
    reference = ReferenceActor(learner, 0, make_learner(seed=9))
    for plain, call in ((value, learner.next_value), (earned, learner.entropy_reward)):
        learner.generator.set_state(state)
        torch.testing.assert_close(call(OBS), plain - 0.5 * reference.divergence(OBS))


def test_in_the_place_of_the_entropy_the_policy_goes_to_the_reference_where_all_actions_are_worth_the_same():
    learner = make_learner(entropy=0, learning_rate=1e-2, kl=10.0)
    reference = ReferenceActor(learner, 0, make_learner(seed=9))
    before = float(reference.divergence(OBS).detach().mean())
    for _ in range(60):
        divergence = reference.divergence(OBS)
        learner.actor_step(-learner.config.kl * divergence, torch.zeros(6))
    assert float(reference.divergence(OBS).detach().mean()) < before / 5


@pytest.mark.nightly
def test_a_high_price_keeps_the_policy_near_its_start():
    divergences = []
    for kl in (1e-3, 100.0):
        agent = make_agent(reference="start", kl=kl, learning_rate=1e-2, updates_per_step=1.0).learn(100)
        rows = agent.replay.rows(agent.replay.sampler.in_order())
        divergences.append(float(agent.reference.divergence(rows.obs).detach().mean()))
    assert divergences[1] < divergences[0] / 5


def test_a_run_goes_on_to_the_last_bit_and_a_new_reference_comes_every_so_many_rollouts():
    options = {"reference": "start", "kl": 0.1, "reference_every": 3}
    whole = make_agent(**options).learn(40)
    resumed = make_agent(seed=0, **options)
    resumed.set_state(whole.get_state())
    actor = dict(whole.reference.actor.named_parameters())
    for key, x in resumed.reference.actor.named_parameters():
        assert torch.equal(x, actor[key])
    torch.testing.assert_close(resumed.learner.mean, whole.learner.mean)
    rows = whole.replay.rows(whole.replay.sampler.in_order())
    metrics = [agent.learner.update(rows) for agent in (whole, resumed)]
    for key in ("critic_loss", "actor_loss", "reference_kl"):
        assert torch.equal(metrics[0][key], metrics[1][key])
    assert torch.equal(whole.learner.actor_flat.value, resumed.learner.actor_flat.value)
    assert whole.reference.rollouts == resumed.reference.rollouts == 4


def test_a_file_of_any_network_is_a_reference(tmp_path):
    path = str(tmp_path / "policy.safetensors")
    teacher = make_agent(seed=3, net_arch=[5, 5]).learn(30)
    teacher.save(path)
    agent = make_agent(reference=path, kl=0.1)
    assert torch.equal(agent.reference.mean, teacher.learner.mean)
    mean, log_std = moments(agent.reference.actor(teacher.learner.inputs(OBS))[0])
    own_mean, own_log_std = moments(teacher.learner.actor(teacher.learner.inputs(OBS))[0])
    assert torch.equal(mean, own_mean)
    assert torch.equal(log_std, own_log_std)
    agent.learn(30)
    # Without the reference it begins with the weights of the one that had it.
    plain = make_agent()
    plain.start_from(agent.get_state(), ["task"])
    assert torch.equal(plain.learner.actor_flat.value, agent.learner.actor_flat.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reference": "start"}, r"agent.reference=start and agent.kl=0.0 need each other"),
        ({"kl": 0.1}, r"agent.reference= and agent.kl=0.1 need each other"),
        ({"reference": "start", "kl": 0.1, "env": "CartPole-v1"}, r"for SAC from transitions: Box actions"),
        ({"reference": "start", "kl": 0.1, "preset": "dhmbpo"}, r"update=none or buffer \(here: svg\)"),
        ({"reference": "none.safetensors", "kl": 0.1}, r"agent.reference=none.safetensors .*give a file that"),
    ],
)
def test_settings_that_do_not_go_together_are_one_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        make_agent(**options)
