"""All epochs in one compiled call against the step in NumPy: the same rollout and weights, the same numbers."""

import copy
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_ppo import agent, weights
from test_ppo_update import ACTIONS, learner, rollout

from agents.ppo import numpy_update, update
from agents.ppo.numpy_update import CompiledUpdate
from agents.ppo.update import TorchUpdate

# Every worker imports this file, and only one has to import numba.
pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
FIELDS = ("value", "mean", "square")


def pair(kind="discrete", epochs=1, inputs=5, **settings):
    """A learner with the compiled path, and its twin."""
    obs = spaces.Box(-1, 1, (inputs,), np.float32)
    both = [learner(CompiledUpdate, ACTIONS[kind], obs=obs, **settings) for _ in range(2)]
    for one, path in zip(both, ("numba", "numpy")):
        one.config.path, one.config.n_epochs = path, epochs
        one.net.obs_mean[:], one.net.obs_scale[:] = 0.1, 1.5
    return both


def given(kind, rows, inputs=5):
    vector = np.random.default_rng(3).normal(size=(rows, inputs)).astype(np.float32)
    twin = learner(TorchUpdate, ACTIONS[kind], obs=spaces.Box(-1, 1, (inputs,), np.float32))
    return rollout(twin, rows, vector=vector)


def learn(one, batch, size, rows=None):
    rows = np.arange(len(batch.vector)) if rows is None else rows
    rng = np.random.default_rng(0)
    return one.run_epochs(batch, [rng.permutation(rows) for _ in range(one.config.n_epochs)], size, 0)


def apart(one, other):
    """Distance of two vectors over their length."""
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("kind", ACTIONS)
def test_a_minibatch_moves_the_weights_as_numpy_does_to_a_millionth(kind):
    ours, theirs = pair(kind)
    batch = given(kind, 64)
    found, expected = learn(ours, batch, 64), learn(theirs, batch, 64)
    assert apart(ours.flat.value, theirs.flat.value) < 1e-6 and apart(ours.flat.grad, theirs.flat.grad) < 1e-6
    assert found[0].keys() == expected[0].keys() and len(found) == len(expected) == 1
    np.testing.assert_allclose(list(found[0].values()), list(expected[0].values()), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("net_arch", "entropy_weight", "normalize_obs", "activation"),
    [((64, 64), 0.0, False, "tanh"), ((8, 40, 20), 0.05, True, "tanh"), ((16, 24), 0.05, False, "relu")],
    ids=str,
)
@pytest.mark.parametrize("kind", ACTIONS)
def test_a_hundred_minibatches_do_to_a_hundred_thousandth(kind, net_arch, entropy_weight, normalize_obs, activation):
    """Ten epochs of ten, the last of which is smaller."""
    settings = {"entropy_weight": entropy_weight, "normalize_obs": normalize_obs, "net_arch": net_arch, "inputs": 17}
    settings["activation"] = activation
    ours, theirs = pair(kind, 10, **settings)
    batch, before = given(kind, 200, 17), ours.flat.value.clone()
    found, expected = learn(ours, batch, 21), learn(theirs, batch, 21)
    for name in FIELDS:
        assert apart(getattr(ours.flat, name), getattr(theirs.flat, name)) < 1e-5
    assert apart(ours.flat.value, before) > 0.01 and ours.flat.steps == theirs.flat.steps == 100
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-4, atol=1e-5)


def test_actions_that_were_not_allowed_and_inputs_that_are_never_used_are_left_out():
    ours, theirs = pair("multi-discrete", 3, inputs=90)
    batch = given("multi-discrete", 60, 90)
    batch.vector[:, 30:] = 0
    batch.mask = np.random.default_rng(1).random((60, 9)) < 0.6
    at = np.arange(60)
    for choice, column in enumerate(ours.actions.columns):
        batch.mask[at, column.start + batch.action[:, choice]] = True
    rows = np.flatnonzero(np.arange(60) % 7)
    for one in (ours, theirs):
        learn(one, batch, 20, rows)
    assert ours.net.pi[0].weight.shape[1] == 90 and apart(ours.flat.value, theirs.flat.value) < 1e-6
    masked, free = pair("multi-discrete", 3, inputs=90)[0], copy.copy(batch)
    free.mask = None
    learn(masked, free, 20, rows)
    assert apart(masked.flat.value, theirs.flat.value) > 1e-4


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
def test_a_ratio_that_overflows_is_not_hidden():
    for one in pair():
        batch = given("discrete", 20)
        batch.targets.log_prob[3] = -1e30
        learn(one, batch, 20)
        assert not bool(torch.isfinite(one.flat.value.sum()))


# -------------------------------------------------------------------------------------------- which path a run takes


@pytest.mark.parametrize("changes", [{"path": "numba"}, {"path": "auto", "normalize_obs": True}], ids=str)
def test_continued_from_its_state_it_ends_with_the_same_bits(changes, monkeypatch):
    """With auto it changes over after three of six rollouts, when it is continued after two."""
    monkeypatch.setattr(numpy_update, "COMPILE_AFTER_ROWS", 3 * 4 * 16 * 2)
    whole, first, second, numpy = (agent(**{**changes, **more}) for more in ({}, {}, {}, {"path": "numpy"}))
    for model in (whole, numpy):
        model.learn(4 * 16 * 2)
        model.learn(4 * 16 * 4, reset_num_timesteps=False)
    first.learn(4 * 16 * 2)
    second.envs.reset(seed=0)
    snapshots = first.envs.call("snapshot")
    for env, snapshot in zip(second.envs.envs, snapshots):
        env.get_wrapper_attr("restore")(snapshot)
    second.set_state(copy.deepcopy(first.get_state()))
    second.learn(4 * 16 * 4, reset_num_timesteps=False)
    assert torch.equal(weights(second), weights(whole)) and not torch.equal(weights(second), weights(numpy))


def test_a_short_run_never_asks_for_a_compiler(monkeypatch):
    monkeypatch.setattr(numpy_update, "kernel", lambda *about: pytest.fail("it was asked for"))
    runs = [weights(agent(path=path).learn(4 * 16 * 3)) for path in ("auto", "numpy")]
    assert torch.equal(*runs)


def test_without_numba_it_learns_in_numpy_and_says_so_once(monkeypatch, recwarn):
    monkeypatch.setitem(sys.modules, "numba", None)
    for name in ("agents.ppo.kernel", "lodestar.numerics.kernel"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for cached in (numpy_update.kernel, update.warn_once):
        cached.cache_clear()
    model = agent(path="numba").learn(4 * 16 * 3)
    said = [str(w.message) for w in recwarn if "PPO's update" in str(w.message)]
    assert len(said) == 1 and "runs in NumPy" in said[0] and "pip install 'lodestar-rl[fast]'" in said[0]
    assert torch.equal(weights(model), weights(agent(path="numpy").learn(4 * 16 * 3)))
    numpy_update.kernel.cache_clear()


def test_a_network_that_it_does_not_take_learns_in_torch_and_it_says_so():
    update.warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"runs in torch, as agent\.path=numba is for fully connected networks"):
        model = agent(path="numba", gru=8).learn(4 * 16)
    assert model.learner.__class__ is update.TorchUpdate
