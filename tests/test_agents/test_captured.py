"""Updates recorded as a CUDA graph: the plain function on a CPU, its equal on a GPU."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from agents.networks.cuda_graphs import WARM_UP, Captured, captured
from agents.off_policy.sac import LearnerConfig, SoftActorCritic

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Rows(NamedTuple):
    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor


def rows(seed, device="cpu", size=64):
    draw = torch.Generator().manual_seed(seed)
    obs, next_obs = torch.randn(2, size, 3, generator=draw)
    action = torch.randn(size, 2, generator=draw).tanh()
    reward = torch.randn(size, generator=draw)
    return Rows(*(x.to(device) for x in (obs, action, reward, next_obs, torch.full((size,), 0.99))))


def test_on_a_cpu_and_when_switched_off_it_is_the_function_itself():
    assert captured(len, device="cpu") is len
    assert captured(len, device="cuda", mode="off") is len


@gpu
@pytest.mark.parametrize("options", [{}, {"norm": "layer", "critics": 5, "target": "mean", "bounded_targets": True}])
def test_replayed_updates_equal_plain_ones_and_the_weights_move_with_each(options):
    config = LearnerConfig(net_arch=[32, 32], **options)
    one, two = (SoftActorCritic(3, 2, config, seed=0, device="cuda") for _ in range(2))
    step = captured(one.update, device="cuda", generators=[one.generator])
    for number in range(100):
        before = one.critic_flat.value.clone()
        got, expected = step(rows(number, "cuda")), two.update(rows(number, "cuda"))
        assert not torch.equal(before, one.critic_flat.value)
        torch.testing.assert_close(got["critic_loss"], expected["critic_loss"], rtol=1e-3, atol=1e-4)
    assert step.reason is None
    torch.testing.assert_close(one.critic_flat.value, two.critic_flat.value, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.actor_flat.value, two.actor_flat.value, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.log_alpha, two.log_alpha, rtol=1e-3, atol=1e-5)


@gpu
def test_a_batch_of_another_size_is_computed_plainly():
    learner = SoftActorCritic(3, 2, LearnerConfig(net_arch=[8]), device="cuda")
    step = captured(learner.update, device="cuda", generators=[learner.generator])
    for number in range(WARM_UP + 1):
        step(rows(number, "cuda"))
    assert step(rows(9, "cuda", size=7))["td"].shape == (7,)


@gpu
def test_a_function_that_cannot_be_recorded_is_called_plainly_with_a_sentence():
    total = torch.zeros((), device="cuda")

    def looks(inputs):
        total.add_(inputs[0].sum())
        return {"sum": inputs[0].sum() if inputs[0].sum().item() > 0 else total.clone()}

    step = captured(looks, device="cuda")
    for _ in range(WARM_UP):
        step((torch.ones(2, device="cuda"),))
    with pytest.warns(RuntimeWarning, match=r"could not be recorded as a CUDA graph and is called plainly"):
        step((torch.ones(2, device="cuda"),))
    assert isinstance(step, Captured)
    assert step.reason
    assert total.item() == 2 * (WARM_UP + 1)  # each call counted once
