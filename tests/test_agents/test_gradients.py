import math

import pytest
import torch

from agents.gradients import cosines, stream_gradients


def two_states():
    """One logit for each of two states, at 0: both actions have probability 1/2 everywhere."""
    logits = torch.zeros(2, requires_grad=True)
    state, action = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 1, 0])
    sign = 2.0 * action - 1
    return logits, torch.nn.functional.logsigmoid(sign * logits[state])


def test_the_gradient_of_a_stream_is_its_advantages_times_the_score_by_hand():
    logits, log_prob = two_states()
    # d log p(1) / d logit = 1 - p = 1/2, d log p(0) / d logit = -p = -1/2, each a quarter of the mean.
    found = stream_gradients(
        log_prob, {"task": torch.tensor([4.0, -4.0, 0, 0]), "bonus": torch.tensor([4.0, -4.0, -4.0, 4.0])}, [logits]
    )
    assert found["task"].tolist() == [1.0, 0.0] and found["bonus"].tolist() == [1.0, -1.0]
    table = cosines(found)
    assert table["task"]["bonus"] == table["bonus"]["task"] == pytest.approx(1 / math.sqrt(2))
    assert table["task"]["task"] == pytest.approx(1.0)


def test_gradients_add_up_by_weight_and_a_parameter_that_is_not_used_has_none():
    logits, log_prob = two_states()
    unused, generator = torch.zeros(3, requires_grad=True), torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 4, generator=generator)
    streams = {"one": one, "other": other, "sum": 0.5 * one - 2 * other}
    found = stream_gradients(log_prob, streams, [logits, unused])
    torch.testing.assert_close(found["sum"], 0.5 * found["one"] - 2 * found["other"])
    assert found["sum"][2:].tolist() == [0.0, 0.0, 0.0] and log_prob.requires_grad


def test_a_stream_that_pulls_nowhere_has_no_angle():
    table = cosines({"task": torch.tensor([3.0, 4.0]), "still": torch.zeros(2), "against": torch.tensor([-6.0, -8.0])})
    assert math.isnan(table["task"]["still"]) and math.isnan(table["still"]["still"])
    assert table["task"]["against"] == pytest.approx(-1.0)
