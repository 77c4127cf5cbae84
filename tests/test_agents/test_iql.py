"""IQL: its two formulas by hand, a small world solved to the digit, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.offline.iql import (
    IQL,
    IQLConfig,
    chi_square_loss,
    expectile_loss,
    gumbel_loss,
    imitation_weights,
    quantile_loss,
    run,
)
from envs.transitions import Transitions

STATES, TWO = spaces.Discrete(3), spaces.Discrete(2)
LINE, STICK = spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Box(-2, 2, (1,), np.float32)
GAMMA = 0.9


def batch(obs, action, reward, next_obs, terminated):
    n = len(reward)
    flags = {"terminated": np.array(terminated, bool), "truncated": np.zeros(n, bool), "valid": np.ones(n, bool)}
    reward = np.array(reward, np.float32)
    return Transitions(np.array(obs), np.array(action), reward, np.array(next_obs), **flags, step=np.zeros(n, int))


# Three states in a row, both actions of each equally often. Action 1 of the first takes 0.5 and ends; going on to the
# last and taking action 1 there is worth 1. Every other action 0 or end is worth nothing.
CORRIDOR = batch(
    obs=[0, 0, 1, 1, 2, 2],
    action=[0, 1, 0, 1, 0, 1],
    reward=[0, 0.5, 0, 0, 0, 1],
    next_obs=[1, 0, 1, 2, 2, 2],
    terminated=[0, 1, 1, 0, 1, 1],
)


def learned(expectile=0.7, beta=3.0, steps=500, **loss):
    numbers = {"learning_rate": 2e-2, "gamma": GAMMA, "tau": 0.2, "batch_size": 48, "normalize_reward": False}
    model = IQL(IQLConfig(expectile=expectile, beta=beta, net_arch=[], **numbers, **loss), STATES, TWO, CORRIDOR)
    model.learn(steps)
    model.config.learning_rate /= 20  # a row is a sixth of a minibatch on average only
    model.learn(steps // 2)
    with torch.no_grad():
        outputs = run(model.net.layers(), model.net.inputs(model.net.whiten(torch.eye(3)), torch.zeros(3, 2)))
    q, v, policy = outputs[:2].mean(0), outputs[2, :, 0], torch.softmax(outputs[3], -1)
    return model, v.numpy(), q.numpy(), policy.numpy()


def test_q_of_an_action_of_two_numbers_is_one_number():
    numbers = np.zeros((3, 1), np.float32)
    rows = batch(numbers, np.zeros((3, 2), np.float32), [0, 0, 1], numbers, [0, 0, 1])
    model = IQL(IQLConfig(net_arch=[4]), LINE, spaces.Box(-2, 2, (2,), np.float32), rows)
    outputs = torch.arange(12.0).view(2, 3, 2)
    assert model.net.q(outputs, torch.zeros(3, 2)).tolist() == [[[0.0], [2.0], [4.0]], [[6.0], [8.0], [10.0]]]


def test_the_expectile_loss_weighs_shortfall_and_excess_unequally():
    gaps = torch.tensor([2.0, -2.0, 0.0])
    torch.testing.assert_close(expectile_loss(gaps, 0.7), torch.tensor([0.7 * 4, 0.3 * 4, 0.0]))
    torch.testing.assert_close(expectile_loss(gaps, 0.5), gaps.square() / 2)


def test_the_other_losses_of_v_have_the_values_of_their_formulas():
    gaps = torch.tensor([-6.0, -3.0, -1.0, 0.0, 2.0])
    torch.testing.assert_close(chi_square_loss(gaps, 0.8), torch.tensor([1.2, 0.6, 0.2, 0, 2.0]))
    torch.testing.assert_close(quantile_loss(gaps, 0.8), torch.tensor([1.2, 0.6, 0.2, 0, 1.2]))
    z = torch.tensor([0.0, 1.0, -1.0, 9.0])
    loss = torch.tensor([0, math.e - 2, math.exp(-1), math.exp(2) - 3])
    torch.testing.assert_close(gumbel_loss(10 * z, 10.0, 2.0), loss * math.exp(-2))
    assert gumbel_loss(torch.tensor([1e4]), 1.0, None).item() == pytest.approx(1)  # not infinite


def test_an_action_is_imitated_as_the_exponential_of_its_advantage_says_up_to_a_limit():
    weights = imitation_weights(torch.tensor([0.0, 1.0, -1.0, 50.0]), beta=3.0, most=100.0)
    torch.testing.assert_close(weights, torch.tensor([1.0, math.e**3, math.e**-3, 100.0]))
    assert imitation_weights(torch.tensor([5.0, -5.0]), 0.0, 100.0).tolist() == [1, 1]


def test_a_step_regresses_the_slow_q_and_the_value_of_what_follows():
    config = IQLConfig(expectile=0.9, gamma=GAMMA, tau=0.2, net_arch=[], normalize_reward=False)
    model = IQL(config, STATES, TWO, CORRIDOR)
    model._target = [(torch.zeros_like(weight), bias + 2) for weight, bias in model._target]  # elsewhere than Q
    slow, fast = model._target[0][1].clone(), model.net.layers(slice(2))[0][1].detach().clone()
    model._flat.step = lambda *_: None
    with torch.no_grad():
        outputs = run(model.net.layers(), model.net.inputs(model._rows[:, :3], torch.zeros(6, 2)))
        after = run(model.net.layers(), model.net.inputs(model._rows[:, 3:6], torch.zeros(6, 2)))[2, :, 0]
    metrics = model._step(model._rows)
    chosen = [0, 1] * 3  # the recorded actions
    gap = torch.minimum(*slow[:, 0, chosen]) - outputs[2, :, 0]
    torch.testing.assert_close(metrics["value_loss"], (torch.where(gap > 0, 0.9, 0.1) * gap.square()).mean())
    target = torch.tensor([0, 0.5, 0, 0, 0, 1]) + GAMMA * torch.tensor([1, 0, 0, 1, 0, 0]) * after
    error = (outputs[:2, torch.arange(6), chosen] - target).square().mean(1)
    torch.testing.assert_close(metrics["q_loss"], error.sum())
    torch.testing.assert_close(model._target[0][1], slow + 0.2 * (fast - slow))


def test_values_of_a_corridor_are_the_expectiles_of_its_returns():
    # The 0.9-expectile of {0, x} is 0.9 x: V(2) = 0.9, V(1) = 0.9 * 0.9 * V(2) = 0.729, Q(0, on) = 0.9 * V(1) = 0.6561,
    # and V(0), between 0.6561 and 0.5, solves 0.9 (0.6561 - v) = 0.1 (v - 0.5).
    _, v, q, policy = learned(0.9, beta=1.5)
    np.testing.assert_allclose(v, [0.64049, 0.729, 0.9], atol=0.02)
    np.testing.assert_allclose(q, [[0.6561, 0.5], [0, 0.81], [0, 1]], atol=0.02)
    # Imitated as the weights say, of actions that are equally frequent: odds exp(1.5 (Q - Q')).
    odds = np.log(policy[:, 1] / policy[:, 0])
    np.testing.assert_allclose(odds, [1.5 * (0.5 - 0.6561), 1.5 * 0.81, 1.5], atol=0.1)
    assert policy.argmax(-1).tolist() == [0, 1, 1]  # it goes on, although half of those who did ended with nothing


@pytest.mark.nightly
def test_at_expectile_one_half_the_values_are_those_of_whoever_acted():
    # V(2) = 0.5, V(1) = 0.9 * 0.5 / 2 = 0.225, Q(0, on) = 0.2025: taking 0.5 at once looks better.
    _, v, q, policy = learned(0.5)
    np.testing.assert_allclose(v, [0.35125, 0.225, 0.5], atol=0.02)
    np.testing.assert_allclose(q[0], [0.2025, 0.5], atol=0.02)
    assert policy.argmax(-1).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("loss", "values"),
    [
        # The 0.75-quantile of two returns is the larger one.
        pytest.param({"value_loss": "quantile"}, [0.81, 0.9, 1], marks=pytest.mark.nightly),
        ({"value_loss": "chi_square"}, [0.81, 0.9, 1]),
        # E[exp(Q - V)] = 1: V(2) = log((1 + e) / 2), V(1) = log((1 + exp(0.9 V(2))) / 2), Q(0, on) = 0.9 V(1)
        ({"value_loss": "gumbel"}, [0.3986, 0.3175, 0.6201]),
    ],
)
def test_values_of_a_corridor_by_the_other_losses(loss, values):
    np.testing.assert_allclose(learned(**loss)[1], values, atol=0.03)


def test_without_beta_it_imitates_what_was_done_however_good():
    policy = learned(0.9, beta=0.0, steps=200)[3]
    np.testing.assert_allclose(policy, 0.5, atol=0.05)


def line(action_of, n=512, seed=0):
    """Positions, actions around 0 .. 1 of the range, and a reward for acting as `action_of` the position says."""
    rng = np.random.default_rng(seed)
    obs, action = rng.normal(5, 2, (n, 1)).astype(np.float32), rng.uniform(-2, 2, (n, 1)).astype(np.float32)
    return batch(obs, action, -((action - action_of(obs)) ** 2)[:, 0], obs, np.ones(n)), obs


def test_continuous_actions_follow_the_reward_in_the_environments_own_range():
    data, _ = line(lambda x: np.where(x > 5, 1.0, -1.0))
    model = IQL(IQLConfig(net_arch=[32], learning_rate=1e-2, beta=10.0, batch_size=64), LINE, STICK, data)
    model.learn(400)
    actions, state = model.predict(np.array([[2.0], [8.0]], np.float32))
    assert state is None and actions.dtype == np.float32
    np.testing.assert_allclose(actions, [[-1], [1]], atol=0.3)
    single, _ = model.predict(np.array([8.0], np.float32))
    np.testing.assert_allclose(single, actions[1], atol=1e-6)


def test_what_is_paid_is_what_it_was_given_and_not_the_task():
    data, _ = line(lambda x: np.ones_like(x))
    opposite = -((data.action + 1) ** 2)[:, 0]
    model = IQL(IQLConfig(net_arch=[], learning_rate=1e-2, beta=10.0, batch_size=64), LINE, STICK, data, opposite)
    model.learn(200)
    assert model.predict(np.array([[5.0]], np.float32))[0][0, 0] < -0.5


def test_the_scale_of_a_reward_does_not_matter_unless_asked():
    data, _ = line(lambda x: np.ones_like(x))
    for normalize, same in ((True, True), (False, False)):
        config = IQLConfig(net_arch=[8], learning_rate=3e-3, batch_size=32, normalize_reward=normalize)
        one, two = (IQL(config, LINE, STICK, data, factor * data.reward) for factor in (1.0, 8.0))
        one.learn(20), two.learn(20)
        assert np.allclose(*(m.predict(data.obs[:5])[0] for m in (one, two)), rtol=1e-4) == same


def test_a_seed_decides_everything_and_no_global_generator_moves():
    before = torch.get_rng_state()
    data, obs = line(np.ones_like)

    def acts(seed):
        model = IQL(IQLConfig(net_arch=[8]), LINE, STICK, data, seed=seed)
        model.learn(10)
        return model.predict(obs[:4], deterministic=False)[0]

    np.testing.assert_array_equal(acts(1), acts(1))
    assert not np.array_equal(acts(1), acts(2))
    assert torch.equal(before, torch.get_rng_state())


def test_sampled_discrete_actions_are_as_frequent_as_the_policy_says():
    model, _, _, policy = learned(0.9, steps=200)
    sampled = model.predict(np.zeros(4000, int), deterministic=False)[0]
    assert sampled.mean() == pytest.approx(policy[0, 1], abs=0.03)


def test_rows_that_are_no_transitions_are_left_out_and_only_a_true_end_stops_the_bootstrap():
    data = batch([0, 1, 2], [0, 1, 1], [1, 2, 3], [1, 2, 2], [0, 0, 1])
    data = data.replace(valid=np.array([True, False, True]), truncated=np.array([True, False, False]))
    table = IQL(IQLConfig(normalize_reward=False), STATES, TWO, data)._rows
    assert table.shape == (2, 3 + 3 + 2 + 2)
    assert table[:, 6:].tolist() == [[1, 0, 1, 1], [0, 1, 3, 0]]  # one-hot action, reward, whether it goes on


def test_a_policy_comes_back_from_its_file(tmp_path):
    data, obs = line(np.ones_like)
    model = IQL(IQLConfig(net_arch=[8], beta=1.5), LINE, STICK, data)
    model.learn(20)
    model.save(str(tmp_path / "iql.safetensors"))
    back = IQL.load(str(tmp_path / "iql.safetensors"), LINE, STICK)
    assert back.config == model.config
    np.testing.assert_array_equal(back.predict(obs)[0], model.predict(obs)[0])
    with pytest.raises(ValueError, match=r"was loaded to act and has no data"):
        back.learn(1)
    with pytest.raises(ValueError, match=r"does not fit these spaces"):
        IQL.load(str(tmp_path / "iql.safetensors"), spaces.Box(-1, 1, (2,)), STICK)


def test_what_it_cannot_use_is_refused():
    data, _ = line(np.ones_like, n=4)
    for options, words in [
        ({"expectile": 1.0}, r"agent.expectile=1.0 is out of range; give a number in \(0, 1\)"),
        ({"beta": -1}, r"agent.beta=-1 is out of range"),
        ({"gamma": 1.5}, r"agent.gamma=1.5 is out of range"),
        ({"batch_size": 0}, r"agent.batch_size=0 is out of range"),
        ({"level": 1.0}, r"agent.level=1.0 is out of range; give a number in \(0.5, 1\)"),  # nothing pulls V down
        ({"value_loss": "huber"}, r"agent.value_loss='huber' is unknown; give one of expectile, gumbel"),
    ]:
        with pytest.raises(ValueError, match=words):
            IQLConfig(**options)
    for space, action_space, words in [
        (spaces.Box(0, 255, (3, 8, 8), np.uint8), TWO, r"IQL cannot read images"),
        (LINE, spaces.Box(-np.inf, np.inf, (1,)), r"IQL cannot choose actions from"),
        (LINE, spaces.MultiDiscrete([2, 2]), r"IQL cannot choose actions from"),
    ]:
        with pytest.raises(ValueError, match=words):
            IQL(IQLConfig(), space, action_space)
    for rewards, words in [
        (np.zeros(3), r"rewards of shape \(3,\) for data of shape \(4,\)"),
        (np.array([0, np.nan, 0, 0]), r"1 rewards are not finite"),
    ]:
        with pytest.raises(ValueError, match=words):
            IQL(IQLConfig(), LINE, STICK, data, rewards)
    with pytest.raises(ValueError, match=r"the data has no valid transition"):
        IQL(IQLConfig(), LINE, STICK, data.replace(valid=np.zeros(4, bool)))
