import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agents.networks.actor_critic import cosines, stream_gradients
from agents.ppo.agent import PPO, PPOConfig
from envs.make import make_vec


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


class Opposed:
    """A task, the same with the other sign, and a stream that has only ever been zero."""

    requires, relabelable, differentiable = frozenset({"reward"}), True, False
    streams = dict.fromkeys(("task", "against", "silent"), SimpleNamespace(gamma=0.9, episodic=True))
    initial_memory = staticmethod(lambda n: {})
    embed = staticmethod(lambda batch: batch)
    scale_rewards = staticmethod(lambda raw: raw)
    update = staticmethod(lambda batch, raw, timesteps: {})
    total = staticmethod(lambda batch, memory, timesteps: (batch.reward, memory))

    def __init__(self, task="task"):
        self.streams = dict(zip((task, "against", "silent"), self.streams.values()))

    def score(self, batch, memory):
        reward = batch.reward + np.asarray(batch.action, np.float32)
        return dict(zip(self.streams, (reward, -reward, 0 * reward))), memory

    def weights(self, timesteps):
        return dict(zip(self.streams, (1.0, 0.25, 1.0)))


@pytest.mark.parametrize("changes", [{}, {"path": "eager"}, {"gru": 8}], ids=str)
def test_ppo_logs_how_each_stream_stands_to_the_task_or_to_the_sum(changes):
    def run(task, every=None, n_updates=0):
        config = PPOConfig(n_steps=16, batch_size=32, n_epochs=2, net_arch=[16], sequence=8, **changes)
        model = PPO(make_vec("CartPole-v1", 4, seed=0), config, scorer=Opposed(task), seed=0)
        with torch.no_grad():
            model.policy.vf_head.weight.zero_()  # advantages are opposed exactly as long as values are 0
        model._n_updates = n_updates
        model.gradients.every = every or model.gradients.every
        model.learn(64, log_interval=None)
        found = {tag: x for tag, x in model.logger.name_to_value.items() if tag.endswith("/cosine")}
        return found, model.learn(64, reset_num_timesteps=False).flat.value

    found, weights = run("task")
    known = {"stream/against/cosine": -1.0, "stream/silent/cosine": math.nan}
    assert found == pytest.approx(known, nan_ok=True)
    assert run("goal")[0] == pytest.approx(known | {"stream/goal/cosine": 1.0}, nan_ok=True)
    left_out, same = run("task", every=10**9, n_updates=2)
    assert left_out == {} and torch.equal(weights, same)  # looking changes nothing
