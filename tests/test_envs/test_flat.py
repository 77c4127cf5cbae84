"""One vector of parameters: it steps as torch's Adam does, goes on from its state, and needs no compiler."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from lodestar.numerics.descent import Flat


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def test_it_goes_on_from_the_state_of_torchs_own_adam():
    x = torch.linspace(-1, 1, 15).view(5, 3)
    theirs, ours = net(), net()
    adam = torch.optim.Adam(theirs.parameters(), lr=0.1)
    flat = Flat.of_parameters(list(ours.parameters()), epsilon=1e-8)
    flat.load_state_dict(adam.state_dict())  # nothing learned yet
    for step in range(4):
        for model in (theirs, ours):
            model.zero_grad(set_to_none=False)
            model(x).square().mean().backward()
        if step == 2:
            flat = Flat.of_parameters(list(ours.parameters()), epsilon=1e-8)
            flat.load_state_dict(adam.state_dict())
            flat.grad.zero_()
            ours(x).square().mean().backward()
        adam.step()
        flat.step(0.1)
    torch.testing.assert_close(flat.value, nn.utils.parameters_to_vector(theirs.parameters()), rtol=0, atol=1e-6)


def test_a_single_parameter_goes_on_from_torchs_own_adam():
    weight = nn.Parameter(torch.ones(2))
    adam = torch.optim.Adam([weight], lr=0.1)
    weight.grad = torch.tensor([2.0, -1.0])
    adam.step()
    flat = Flat(torch.ones(2))
    flat.load_state_dict(adam.state_dict())
    assert flat.steps == 1
    # The moments after one step are 0.1 of the gradient and 0.001 of its square.
    assert flat.mean.tolist() == pytest.approx([0.2, -0.1])
    assert flat.square.tolist() == pytest.approx([0.004, 0.001])


def test_gradients_are_shortened_to_a_norm():
    flat = Flat(torch.zeros(2))
    flat.grad[:] = torch.tensor([3.0, 4.0])
    assert flat.clip(1.0) == pytest.approx(5)
    assert flat.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


def test_a_deep_copy_has_a_gradient_and_steps_of_its_own():
    flat = Flat(torch.zeros(2))
    other = copy.deepcopy(flat)
    other.grad[:] = torch.tensor([3.0, 4.0])
    other.step(0.1, max_grad_norm=1.0)
    assert other.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5) and (other.steps, flat.steps) == (1, 0)


@pytest.mark.nightly
def test_a_reward_that_learns_does_not_import_torchs_compiler():
    code = (
        "import sys, envs.make, rewards\n"
        "from agents.ppo.agent import PPO, PPOConfig\n"
        "vector = envs.make.make_vec('CartPole-v1', 2, backend='batched')\n"
        "mix = rewards.make(['task', 'rnd'], vector.single_observation_space, vector.single_action_space, seed=0)\n"
        "PPO(vector, PPOConfig(n_steps=16, batch_size=16), scorer=mix).learn(64)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
