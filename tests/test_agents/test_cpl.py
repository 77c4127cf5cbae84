"""CPL: its loss by hand, and a line where the judge says which way to go."""

import math

import numpy as np
import pytest
import torch
from test_iql import LINE, STICK, line

from agents.offline.cpl import CPL, CPLConfig, cpl_loss
from agents.offline.iql import IQL, IQLConfig

FAST = {"net_arch": [16], "learning_rate": 1e-2, "alpha": 1.0}


def test_the_loss_has_the_values_of_its_formula():
    """Log-probabilities (-1, -2) and (-0.5, -1) at alpha 0.1."""
    first, second = torch.tensor(-0.3), torch.tensor(-0.15)
    for bias, label, value in [(1, 1, 0.62096), (0.5, 1, math.log(2)), (1, 0, 0.77096), (0.5, 0, 0.81196)]:
        assert cpl_loss(first, second, torch.tensor(float(label)), bias).item() == pytest.approx(value, abs=1e-5)
    tie = cpl_loss(first, second, torch.tensor(0.5), 1.0).item()
    assert tie == pytest.approx((0.62096 + 0.77096) / 2, abs=1e-5)


def compared(count=400, length=3, right=1.0):
    """Random actions on a line, and pairs of segments: better is what follows `right` times the sign of x - 5."""
    data, _ = line(lambda x: np.where(x > 5, 1.0, -1.0) * right, n=length * count)
    segments = data.map(lambda x: x.reshape(length, count, *x.shape[1:]))
    first, second = (segments[:, rows] for rows in np.random.default_rng(1).integers(count, size=(2, count)))
    label = (second.reward.sum(0) > first.reward.sum(0)).astype(np.float32)
    return data, (first, second, label)


def towards(model):
    """How far the policy goes the judge's way on both sides, 1 where it goes as the best segments do."""
    return float(model.predict(np.array([[2.0], [8.0]], np.float32))[0][:, 0] @ [-0.5, 0.5])


@pytest.mark.parametrize("kl", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_it_acts_as_the_judge_prefers_and_cloning_does_not(kl):
    least = 0.7 if kl else 0.8
    for right in (1, -1):
        data, pairs = compared(right=right)
        model = CPL(CPLConfig(kl=kl, bias=1.0, **FAST), LINE, STICK, data, pairs)
        metrics = model.learn(300)
        assert right * towards(model) > 0.5
        assert metrics["accuracy"] > least
    cloned = IQL(IQLConfig(beta=0.0, net_arch=[16], learning_rate=1e-2), LINE, STICK, data)
    cloned.learn(150)
    assert abs(towards(cloned)) < 0.3


def test_beside_the_cloned_policy_comparisons_begin_as_coin_flips():
    data, pairs = compared(40)
    model = CPL(CPLConfig(kl=True, **FAST), LINE, STICK, data, pairs)
    model._before = model._sums(slice(None)).detach()
    assert model._loss(slice(None)).item() == pytest.approx(math.log(2))
    probable = -(((model.predict(pairs[1].obs[0])[0] - pairs[1].action[0]) / 2) ** 2)  # in [-1, 1]
    first_step = model._log_prob(model._obs[:, 1, 0], model._action[:, 1, 0]).detach().numpy()
    np.testing.assert_allclose(first_step, probable, atol=1e-5)


def test_the_accuracy_is_that_of_the_model_that_the_loss_has():
    """The cloned policy finds the second segment far more probable, what was learnt since the first."""
    data, pairs = compared(40)
    model = CPL(CPLConfig(kl=True, **FAST), LINE, STICK, data, pairs)
    model._label = torch.zeros(40)  # the first is better
    sums = model._sums(slice(None)).detach()
    model._before = sums + torch.tensor([-1.0, 1.0])
    assert model._accuracy(slice(None)) == 1.0
    model._before = sums + torch.tensor([1.0, -1.0])
    assert model._accuracy(slice(None)) == 0.0
    model._label[:10] = 0.5  # ties have no better side
    model._label[10:25] = 1.0
    assert model._accuracy(slice(None)) == pytest.approx(0.5)


@pytest.mark.parametrize("kl", [False, True])
def test_the_accuracy_printed_is_of_the_comparisons_as_the_loss_weighs_them(kl):
    data, pairs = compared(60)
    model = CPL(CPLConfig(kl=kl, **FAST), LINE, STICK, data, pairs)
    accuracy = model.learn(40)["accuracy"]
    scores = (model._sums(slice(None)) - model._before).detach().numpy()
    right = (scores[:, 1] > scores[:, 0]) == (pairs[2] > 0.5)
    assert accuracy == pytest.approx(right.mean())


def test_what_it_cannot_use_is_refused(tmp_path):
    data, pairs = compared(20)
    for wrong in (None, (*pairs[:2], np.full(20, 0.5))):
        with pytest.raises(ValueError, match=r"CPL learns from comparisons that say which segment is better"):
            CPL(CPLConfig(), LINE, STICK, data, wrong)
    with pytest.raises(ValueError, match=r"agent.bias=0.0 is out of range; give a number in \(0, 1\]"):
        CPLConfig(bias=0.0)
    model = CPL(CPLConfig(**FAST), LINE, STICK, data, pairs)
    model.save(str(tmp_path / "cpl.safetensors"))
    back = CPL.load(str(tmp_path / "cpl.safetensors"), LINE, STICK)
    np.testing.assert_array_equal(back.predict(data.obs)[0], model.predict(data.obs)[0])
