"""ReCOIL: the corridor of IQL's test with one demonstration, solved to the digit, and the paper's loss by hand."""

import numpy as np
import pytest
import torch
from test_iql import CORRIDOR, STATES, TWO

from agents.offline.iql import run
from agents.offline.recoil import ReCOIL, ReCOILConfig

SHOWN = np.array([0, 0, 0, 0, 0, 1])  # at the end of the corridor action 1 is demonstrated
NUMBERS = {"temperature": 1.0, "gamma": 0.9, "net_arch": [], "batch_size": 48}


def test_what_leads_to_a_demonstration_is_imitated_by_the_steps_that_it_takes():
    """In units of 10, t = 2, an action before the end is worth -0.2 + 0.9 V, and any other end -2.

    Q(2, 1): in half of a minibatch 2, in a sixth of the other half -2: (1 - 1/6) / (1/2 + 1/12) = 1.4286.
    V(2) = log((exp(1.4286) + exp(-2)) / 2) = 0.7673, Q(1, 1) = 0.4906, V(1) = -0.1229, Q(0, 0) = -0.3106.
    """
    model = ReCOIL(ReCOILConfig(learning_rate=2e-2, tau=0.2, beta=1.0, **NUMBERS), STATES, TWO, CORRIDOR, SHOWN)
    model.learn(600)
    model.config.learning_rate /= 20
    model.learn(300)
    with torch.no_grad():
        outputs = run(model.net.layers(), model.net.inputs(model.net.whiten(torch.eye(3)), torch.zeros(3, 2)))
    expected = [[-0.3106, -2], [-2, 0.4906], [-2, 1.4286]]
    np.testing.assert_allclose(outputs[:2].mean(0).numpy(), expected, atol=0.06)
    assert outputs[3].argmax(-1).tolist() == [0, 1, 1]


@pytest.mark.parametrize(("normalize", "unit"), [(True, 0.1), (False, 1.0)])
def test_the_papers_loss_lowers_what_the_policy_does_and_raises_what_was_shown(normalize, unit):
    config = ReCOILConfig(form="paper", mixture=0.25, normalize_reward=normalize, **NUMBERS)
    model = ReCOIL(config, STATES, TWO, CORRIDOR, SHOWN)
    with torch.no_grad():
        for part in (*model.net.weights, *model.net.biases):
            part.zero_()
        model.net.biases[0][:2, 0] = torch.tensor([3.0, 5.0])  # Q of the two actions, in every state
    obs, ones = torch.eye(3)[:2], torch.ones(2, 1)  # a row of everything, then a demonstration
    policy = torch.tensor([[-99.0, 99.0]]).repeat(2, 1)
    q = torch.tensor([3.0, 5.0]).view(1, 2, 1).repeat(2, 1, 1)
    loss = model._q_loss(q, ones, ones, ones, obs, policy)
    by_hand = unit * 0.25 * (5 - 5) + (0.75 * (0.9 - 3) ** 2 + 0.25 * (0.9 - 5) ** 2) / 4
    assert loss.item() == pytest.approx(2 * by_hand)  # of both networks
    loss = model._q_loss(q, ones, ones, ones, obs, -policy)
    assert loss.item() == pytest.approx(2 * (by_hand + unit * 0.25 * (3 - 5)))


def test_what_it_cannot_use_is_refused():
    for shown in (np.zeros(6), np.ones(6)):
        with pytest.raises(ValueError, match=r"of 6 transitions are demonstrations; ReCOIL needs both kinds"):
            ReCOIL(ReCOILConfig(), STATES, TWO, CORRIDOR, shown)
    with pytest.raises(ValueError, match=r"demonstrations of shape \(2,\) for data of shape \(6,\)"):
        ReCOIL(ReCOILConfig(), STATES, TWO, CORRIDOR, np.ones(2))
    with pytest.raises(ValueError, match=r"agent.gamma=1 is out of range; give a number in \(0, 1\)"):
        ReCOILConfig(gamma=1)
