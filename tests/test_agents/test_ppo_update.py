"""The step written by hand against its twin in autograd: same weights, same numbers."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sample import mostly_at_night

from agents.networks.actor_critic import Actions, ActorCritic, Inputs
from agents.ppo.config import PPOConfig
from agents.ppo.numpy_update import NumpyUpdate
from agents.ppo.seams import Batch, Targets
from agents.ppo.update import TorchUpdate
from lodestar.numerics.descent import Flat

OBS = spaces.Box(-1, 1, (5,), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(4, start=2),
    "multi-discrete": spaces.MultiDiscrete([3, 2, 4]),
    "multi-binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
}


def learner(
    cls,
    action_space,
    streams=3,
    entropy_weight=0.02,
    normalize_obs=False,
    net_arch=(16, 16),
    obs=OBS,
    activation="tanh",
):
    torch.manual_seed(0)
    options = {"normalize_obs": normalize_obs, "activation": activation}
    net = ActorCritic(Inputs(obs), Actions(action_space), list(net_arch), streams, **options)
    net.obs_mean += 0.3
    net.obs_scale *= 20.0
    config = PPOConfig(learning_rate=1e-3, entropy_weight=entropy_weight, activation=activation)
    return cls(net, Flat.of_parameters(net.ordered()), config)


def rollout(twin, rows=60, seed=0, vector=None):
    """Random observations, the actions taken there, old log-probabilities a little off, and what to learn."""
    rng = np.random.default_rng(seed)
    vector = rng.normal(size=(rows, 5)).astype(np.float32) if vector is None else vector
    action, values, log_prob = twin.act(vector, {}, twin.actions.draw(rng, rows))
    numbers = np.concatenate(
        [
            log_prob[:, None] + 0.3 * rng.normal(size=(rows, 1)),
            rng.normal(size=(rows, 1)),
            values + rng.normal(size=values.shape),
        ],
        1,
    ).astype(np.float32)
    return Batch(vector, {}, action, Targets(numbers))


# Entropy weight, normalised observations, activation.
SETTINGS = list(itertools.product([0.0, 0.05], [False, True], ["tanh", "relu"]))


@pytest.mark.parametrize(
    ("entropy_weight", "normalize_obs", "activation"),
    mostly_at_night(SETTINGS, (0.0, False, "tanh"), (0.05, True, "tanh"), (0.05, True, "relu")),
)
@pytest.mark.parametrize("kind", ACTIONS)
def test_thirty_updates_by_hand_end_where_autograd_does(kind, entropy_weight, normalize_obs, activation):
    settings = {"entropy_weight": entropy_weight, "normalize_obs": normalize_obs, "activation": activation}
    twin, hand = learner(TorchUpdate, ACTIONS[kind], **settings), learner(NumpyUpdate, ACTIONS[kind], **settings)
    batch = rollout(twin)
    before = twin.flat.value.clone()
    rng = np.random.default_rng(1)
    for number in range(30):
        rows = rng.permutation(60)[: 20 if number % 3 else 7]
        theirs, ours = twin.update(batch, rows, True), hand.update(batch, rows, True)
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=2e-3, atol=2e-5)
    assert (twin.flat.value - before).abs().max() > 0.01
    torch.testing.assert_close(hand.flat.value, twin.flat.value, rtol=0, atol=2e-5)


@pytest.mark.parametrize("cls", [NumpyUpdate, TorchUpdate])
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_an_epoch_ends_where_stable_baselines3_s_does(cls, kind, monkeypatch):
    """Three minibatches of the same rollout from the same weights; advantages have another size in each of them."""
    from stable_baselines3 import PPO as SB3
    from stable_baselines3.common.logger import Logger

    action_space = spaces.Discrete(4) if kind == "discrete" else ACTIONS[kind]

    toy = gym.Env()
    toy.observation_space, toy.action_space = OBS, action_space
    ours = learner(cls, action_space, streams=1, net_arch=(64, 64))
    ours.net.obs_mean[:], ours.net.obs_scale[:] = 0.0, 1.0
    settings = {"n_steps": 60, "batch_size": 20, "n_epochs": 1, "learning_rate": 1e-3, "ent_coef": 0.02}
    theirs = SB3("MlpPolicy", toy, **settings, seed=0, device="cpu")
    theirs.set_logger(Logger(None, []))
    other = theirs.policy
    pairs = [
        (ours.net.pi, other.mlp_extractor.policy_net),
        (ours.net.vf, other.mlp_extractor.value_net),
        (ours.net.pi_head, other.action_net),
        (ours.net.vf_head, other.value_net),
    ]
    for mine, their in pairs:
        their.load_state_dict(mine.state_dict())

    batch = rollout(learner(TorchUpdate, action_space, streams=1, net_arch=(64, 64)))
    batch.targets.advantage[:] *= np.geomspace(0.1, 10, 60, dtype=np.float32)
    buffer = theirs.rollout_buffer
    buffer.reset()
    old, advantage, returns = batch.targets.rows.T
    for row in range(60):
        buffer.add(batch.vector[row], batch.action[row], 0.0, False, torch.zeros(1), torch.tensor([old[row]]))
    buffer.advantages[:, 0], buffer.returns[:, 0] = advantage, returns
    order = np.random.default_rng(5).permutation(60)
    monkeypatch.setattr(np.random, "permutation", lambda count: order)
    theirs.train()
    for begin in range(0, 60, 20):
        ours.update(batch, order[begin : begin + 20])
    for mine, their in pairs:
        for one, other in zip(mine.parameters(), their.parameters()):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_leaving_out_inputs_that_are_never_used_changes_nothing():
    """One-hot observations that use more inputs from rollout to rollout, and once fewer."""
    twin, hand = (
        learner(c, ACTIONS["discrete"], obs=spaces.Box(0, 1, (90,), np.float32)) for c in (TorchUpdate, NumpyUpdate)
    )
    rng = np.random.default_rng(0)
    widths = []
    for inputs in (20, 50, 30, 90, 40):
        vector = np.zeros((60, 90), np.float32)
        vector[np.arange(60), rng.integers(0, inputs, 60)] = 1
        batch = rollout(twin, vector=vector)
        if inputs == 50:  # who has evaluated them need not look again
            hand.evaluate(batch.vector, {}, None)
        narrow = hand.begin_update(batch)
        widths.append(narrow.vector.shape[1])
        for number in range(10):
            rows = rng.permutation(60)[:20]
            twin.update(batch, rows)
            hand.update(narrow, rows if number % 2 else rows.copy())
        hand.end_update()
        torch.testing.assert_close(hand.flat.value, twin.flat.value, rtol=0, atol=2e-5)
        torch.testing.assert_close(hand.flat.square, twin.flat.square, rtol=1e-3, atol=1e-9)
        np.testing.assert_allclose(hand.evaluate(vector, {}, None)[0], twin.evaluate(vector, {}, None)[0], atol=1e-4)
    assert widths[0] <= 20 < widths[1] <= 50 and widths == sorted(widths) and widths[-1] > 50
    assert hand.flat.steps == 50


def test_acting_on_a_grid_reads_the_weights_of_inputs_that_are_not_0():
    twin, hand = (
        learner(c, ACTIONS["discrete"], obs=spaces.Box(0, 1, (900,), np.float32), net_arch=(128, 8))
        for c in (TorchUpdate, NumpyUpdate)
    )
    rng = np.random.default_rng(0)
    hand.begin_rollout()
    for share in (0.0, 0.1, 0.9):
        vector, noise = (rng.random((7, 900)) < share).astype(np.float32), twin.actions.draw(rng, 7)
        np.testing.assert_array_equal(hand.act(vector, {}, noise), twin.act(vector, {}, noise)[0])
    hand._first_weights[:] = 0  # which is what is read while few are not 0
    first = hand.layers[0]
    expected = np.tanh(np.tanh(first.bias[0]) @ hand.layers[1].transposed[0] + hand.layers[1].bias[0])
    logits = expected @ hand.heads[0].transposed + hand.heads[0].bias[:, 0]
    sparse = (rng.random((1, 900)) < 0.1).astype(np.float32)
    noise = np.zeros((1, logits.shape[1]), np.float32)
    assert hand.act(sparse, {}, noise)[0, 0] == logits.argmax()


@pytest.mark.parametrize("net_arch", [(16,), (16, 8), (8, 16, 12)])
def test_every_depth_has_the_gradient_of_autograd(net_arch):
    twin, hand = (learner(c, ACTIONS["discrete"], net_arch=net_arch) for c in (TorchUpdate, NumpyUpdate))
    batch = rollout(twin)
    for x in (twin, hand):
        x.config.max_grad_norm = 1e9
        x.update(batch, np.arange(40))
    torch.testing.assert_close(hand.flat.grad, twin.flat.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_same_noise_chooses_the_same_actions_and_the_same_values_come_out(kind):
    twin, hand = learner(TorchUpdate, ACTIONS[kind]), learner(NumpyUpdate, ACTIONS[kind])
    rng = np.random.default_rng(2)
    vector, noise = rng.normal(size=(2000, 5)).astype(np.float32), twin.actions.draw(rng, 2000)
    action, values, log_prob = twin.act(vector, {}, noise)
    np.testing.assert_allclose(hand.act(vector, {}, noise), action, atol=1e-5)
    ours = hand.evaluate(vector, {}, action[:1500])
    np.testing.assert_allclose(ours[0], values, atol=1e-5)
    np.testing.assert_allclose(ours[1], log_prob[:1500], atol=1e-5)


def test_actions_are_drawn_with_the_policy_s_probabilities():
    actions = Actions(spaces.MultiDiscrete([2, 3]))
    logits = torch.log(torch.tensor([0.2, 0.8, 0.5, 0.1, 0.4])).expand(200_000, 5)
    noise = torch.as_tensor(actions.draw(np.random.default_rng(0), 200_000))
    drawn = actions.sample(logits, None, noise)
    np.testing.assert_allclose(torch.bincount(drawn[:, 0]) / 200_000, [0.2, 0.8], atol=0.005)
    np.testing.assert_allclose(torch.bincount(drawn[:, 1]) / 200_000, [0.5, 0.1, 0.4], atol=0.005)


@pytest.mark.parametrize("kind", ["discrete", "multi-discrete", "box"])
def test_log_probability_and_entropy_are_those_of_torch_distributions(kind):
    actions = Actions(ACTIONS[kind])
    outputs = torch.randn(10, actions.outputs)
    if kind == "box":
        log_std = torch.tensor([-0.5, 0.3])
        action = torch.randn(10, 2)
        normal = torch.distributions.Normal(outputs, log_std.exp())
        expected, entropy = normal.log_prob(action).sum(-1), normal.entropy().sum(-1)
    else:
        log_std = None
        parts = [torch.distributions.Categorical(logits=x) for x in outputs.split(actions.sizes, -1)]
        action = torch.stack([p.sample() for p in parts], -1)
        expected = sum(p.log_prob(a) for p, a in zip(parts, action.T))
        entropy = sum(p.entropy() for p in parts)
    got = actions.log_prob(outputs, log_std, action)
    torch.testing.assert_close(got[0], expected)
    torch.testing.assert_close(got[1], entropy)


def test_adam_on_the_flat_vector_is_torch_s_adam():
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    theirs.load_state_dict(ours.state_dict())
    flat = Flat.of_parameters(list(ours.parameters()))
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
    for number in range(20):
        x = torch.randn(8, 4) * (number + 1)
        for net in (ours, theirs):
            for p in net.parameters():
                p.grad.zero_() if p.grad is not None else None
            net(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        flat.step(0.01, 0.5)
        adam.step()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
