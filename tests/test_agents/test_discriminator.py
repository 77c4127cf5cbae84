"""The judge of imagined transitions, on a line where one of two members is wrong."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.dyna.discriminator import Discriminator, DiscriminatorConfig, gradient_penalty
from agents.dynamics import Predicted
from agents.dynamics.ensemble import split
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.stacked import Stacked

LINE = SpaceEncoding(spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Box(-1, 1, (1,), np.float32))


def right(obs, action):
    return obs + 0.3 * action - 0.1 * obs


def wrong(obs, action):
    """What a broken member believes: the action works the other way."""
    return obs - 0.3 * action - 0.1 * obs


class HalfBroken:
    """Two members, each of which predicts half of the outcomes."""

    def __init__(self):
        self.draw = torch.Generator().manual_seed(0)

    def step(self, obs, action, *, sample=True, member_predictions=False):
        broken = torch.rand(len(obs), 1, generator=self.draw) < 0.5
        return Predicted(torch.where(broken, wrong(obs, action), right(obs, action)), obs[:, 0])


class Rows:
    def __init__(self, count, seed=0):
        draw = torch.Generator().manual_seed(seed)
        obs, action = 4 * torch.rand(count, 1, generator=draw) - 2, 2 * torch.rand(count, 1, generator=draw) - 1
        self.columns, self.added = (obs, action, right(obs, action), obs[:, 0], torch.zeros(count), None), count

    def arrays(self):
        return self.columns


def judge(seed=0, **settings):
    config = DiscriminatorConfig(**{"hidden": [32, 32], "learning_rate": 3e-3, **settings})
    return Discriminator(LINE, config, seed=seed)


@pytest.fixture(scope="module")
def learned():
    model = judge(batch_size=128)
    return model, model.fit(Rows(3000), HalfBroken(), 600)


def unlike(count=1000):
    """Transitions at which the members differ."""
    obs, action, next_obs, *_ = Rows(count, seed=7).arrays()
    far = action[:, 0].abs() > 0.2
    return obs[far], action[far], next_obs[far]


def test_the_true_outcome_is_chosen_and_a_rollout_that_has_only_a_broken_one_ends(learned):
    model, _ = learned
    obs, action, true = unlike()
    false = wrong(obs, action)
    index, keep = model.choose(obs, action, torch.stack([false, true, false]))
    assert (index == 1).float().mean() > 0.99 and keep.float().mean() > 0.9
    _, keep = model.choose(obs, action, torch.stack([false, false]))
    assert keep.float().mean() < 0.05


def test_a_judge_that_cannot_tell_lets_rollouts_go_on():
    class Right:
        def step(self, obs, action, *, sample=True, member_predictions=False):
            return Predicted(right(obs, action), obs[:, 0])

    model = judge(batch_size=64)
    metrics = model.fit(Rows(500), Right(), 100)
    assert metrics["judge_loss"] == pytest.approx(math.log(2), abs=0.01) and metrics[
        "judge_threshold"
    ] == pytest.approx(0.6)
    obs, action, true = unlike()
    assert model.choose(obs, action, true[None])[1].all()


def test_the_threshold_falls_until_nineteen_in_twenty_of_the_recorded_transitions_are_kept():
    class Right:
        """A model that is too certain: it predicts one outcome where there are two."""

        def step(self, obs, action, *, sample=True, member_predictions=False):
            return Predicted(right(obs, action), obs[:, 0])

    def rows(count, seed):
        rows = Rows(count, seed)
        rows.columns[2].add_(0.5 * (torch.rand(count, 1, generator=torch.Generator().manual_seed(seed + 100)) < 0.3))
        return rows

    model, recorded = judge(batch_size=128), rows(3000, 0)
    threshold = model.fit(recorded, Right(), 300)["judge_threshold"]
    _, held = split(3000)
    reward = model.reward(*(x[held] for x in recorded.arrays()[:3]))
    assert float(reward.quantile(0.05)) == pytest.approx(threshold, abs=1e-6) and 0.4 < threshold < 0.6
    assert reward.median() < math.log(2)  # of the likelier outcome, in the limit -log(1 - 0.7 / 1.7) = 0.53
    fresh = model.reward(*rows(2000, 8).arrays()[:3]) >= threshold
    assert abs(fresh.float().mean() - 0.95) < 0.04


def test_the_reward_is_of_the_mean_of_the_snapshots():
    model = judge(snapshots=3, every=5, batch_size=16, hidden=[])
    model.fit(Rows(200), HalfBroken(), 10)  # two of three places are taken
    obs, action, next_obs, *_ = Rows(6, seed=1).arrays()
    x = (torch.cat([obs, action, next_obs - obs], -1) - model.scaler.mean) / model.scaler.scale
    weight, bias = model.panel.weights()
    chance = torch.stack([torch.sigmoid(x @ weight[k] + bias[k])[:, 0] for k in range(2)]).mean(0)
    torch.testing.assert_close(model.reward(obs, action, next_obs), -torch.log(1 - chance))
    assert torch.equal(weight[1], model.judge.weights()[0][0])  # the newest is what is trained
    model.fit(Rows(200), HalfBroken(), 10)  # the third, and the first again
    assert torch.equal(weight[0], model.judge.weights()[0][0])


def test_the_reward_of_a_judge_that_is_sure_stays_finite():
    model = judge(hidden=[])
    weight, bias = model.panel.weights()
    weight.zero_(), bias.fill_(100.0)
    obs, action, next_obs, *_ = Rows(2).arrays()
    torch.testing.assert_close(
        model.reward(obs, action, next_obs), torch.full((2,), -math.log(1e-4)), rtol=1e-2, atol=0
    )
    bias.fill_(-100.0)
    assert model.reward(obs, action, next_obs).tolist() == [0, 0]
    assert torch.isfinite(model.reward(obs, action, next_obs * math.inf)).all()  # a model that blew up


def test_the_gradient_penalty_of_a_linear_judge_is_the_square_of_its_weights():
    linear = Stacked(1, 3, [], 1)
    with torch.no_grad():
        linear.weights()[0].copy_(torch.tensor([[[1.0], [2.0], [-2.0]]]))
    penalty = gradient_penalty(linear, torch.randn(5, 3))
    torch.testing.assert_close(penalty, torch.tensor(9.0))
    penalty.backward()  # d |w|^2 / dw = 2 w
    torch.testing.assert_close(linear.weights()[0].grad[0, :, 0], torch.tensor([2.0, 4.0, -4.0]))


def test_a_heavier_gradient_penalty_makes_a_flatter_judge():
    slopes = [
        judge(gradient_weight=w, batch_size=64).fit(Rows(500), HalfBroken(), 150)["judge_penalty"] for w in (0, 1)
    ]
    assert slopes[1] < slopes[0] / 5


def test_a_given_threshold_is_not_calibrated():
    model = judge(threshold=0.6, batch_size=16)
    metrics = model.fit(Rows(100), HalfBroken(), 5)
    assert metrics["judge_threshold"] == pytest.approx(0.6)


def test_new_scalers_change_nothing_of_what_was_learned():
    model = judge(batch_size=32)
    model.fit(Rows(200), HalfBroken(), 20)
    probe = Rows(50, seed=2).arrays()[:3]
    before = model.reward(*probe)
    wide = Rows(400)
    for column in wide.columns[:3]:
        column.mul_(1.5).add_(0.1)
    model.fit(wide, HalfBroken(), 0)
    assert not torch.allclose(model.scaler.scale, torch.ones(3), atol=0.2)
    torch.testing.assert_close(model.scaler.mean[:2], torch.cat(wide.arrays()[:2], -1).mean(0))
    torch.testing.assert_close(model.reward(*probe), before, rtol=1e-4, atol=1e-5)


def test_a_restored_judge_continues_bit_for_bit():
    first, second = judge(seed=1, batch_size=32), judge(seed=2, batch_size=32)
    models = HalfBroken(), HalfBroken()
    first.fit(Rows(200), models[0], 20)
    models[1].draw.set_state(models[0].draw.get_state())
    second.load_state_dict(first.state_dict())
    metrics = [judge.fit(Rows(200), model, 20) for judge, model in zip((first, second), models)]
    assert metrics[0] == metrics[1]
    probe = Rows(50, seed=2).arrays()[:3]
    assert torch.equal(first.reward(*probe), second.reward(*probe))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_chooses_as_well():
    model = Discriminator(LINE, DiscriminatorConfig(learning_rate=3e-3), device="cuda")
    rows = Rows(2000)
    rows.columns = tuple(x.cuda() for x in rows.columns[:3])

    class OnGpu(HalfBroken):
        def step(self, obs, action, *, sample=True, member_predictions=False):
            return Predicted(super().step(obs.cpu(), action.cpu()).next_obs.cuda(), obs[:, 0])

    model.fit(rows, OnGpu(), 400)
    obs, action, true = (x.cuda() for x in unlike())
    index, _ = model.choose(obs, action, torch.stack([wrong(obs, action), true]))
    assert (index == 1).float().mean() > 0.95


def test_one_transition_is_refused():
    with pytest.raises(ValueError, match=r"1 transitions are too few"):
        judge().fit(Rows(1), HalfBroken(), 1)
