"""The trunk for observations in parts: what it reads where, and PPO with it."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.networks.actor_critic import Actions, ActorCritic, Glyphs, Inputs
from agents.ppo.agent import PPO, PPOConfig
from agents.ppo.update import TorchUpdate
from envs.make import make_vec
from envs.nethack.view import NETHACK_KINDS, View

SMALL = {"n_steps": 8, "batch_size": 16, "n_epochs": 2, "net": "glyphs"}


def space(side: int = 5) -> spaces.Box:
    return View(crop=side, message=True).space()


def test_cells_are_a_picture_whose_channels_are_kinds():
    trunk = Glyphs(space(5))
    convolution = trunk.cells[0]
    with torch.no_grad():
        for layer in (convolution, trunk.cells[2]):
            layer.weight.zero_()
        convolution.weight[0, NETHACK_KINDS.index("gold"), 0, 2] = 1.0  # gold at the upper right of a window of 3 x 3
        trunk.cells[2].weight[0, 0, 0, 0] = 1.0  # the upper left of the 3 x 3 windows
    cells = np.zeros((5, 5, len(NETHACK_KINDS)), np.float32)
    for row in range(5):
        for column in range(5):
            cells[:] = 0
            cells[row, column, NETHACK_KINDS.index("gold")] = 1
            seen = trunk.cells[:4](torch.from_numpy(cells).permute(2, 0, 1)[None]).detach()
            assert float(seen.sum()) == float((row, column) == (0, 2)) == float(seen[0, 0, 0, 0])


def test_every_part_is_read_and_only_in_its_place():
    torch.manual_seed(0)
    trunk = Glyphs(space(5))
    torch.nn.init.constant_(trunk.join[0].bias, 1.0)
    nothing = torch.zeros(1, 490)
    before = trunk(nothing)
    assert before.shape == (1, 256) == (1, trunk.width)
    for place in (0, 399, 400, 425, 426, 489):
        other = nothing.clone()
        other[0, place] = 1.0
        assert not torch.equal(trunk(other), before), place
    assert {name: layer[0].in_features for name, layer in trunk.others.items()} == {"status": 26, "words": 64}
    assert set(Glyphs(View(crop=3, message=False).space()).others) == {"status"}


def test_a_network_with_a_trunk_is_no_mlp():
    inputs, actions = Inputs(space()), Actions(spaces.Discrete(28))
    torch.manual_seed(0)
    net = ActorCritic(inputs, actions, [64], 2, trunk=Glyphs(space()))
    assert not net.is_mlp
    assert net.pi[0].in_features == 256
    outputs, values = net(torch.zeros(3, inputs.size), {})
    assert outputs.shape == (3, 28) and values.shape == (3, 2)


def test_spaces_without_parts_are_refused():
    with pytest.raises(ValueError, match=r'agent.net="glyphs" needs observations in parts, .* give "mlp"'):
        PPO(make_vec("CartPole-v1", 2), PPOConfig(**SMALL))
    with pytest.raises(ValueError, match=r"agent.net='cnn' is unknown; give one of mlp, glyphs"):
        PPOConfig(net="cnn")


@pytest.mark.parametrize("gru", [0, 16])
def test_ppo_learns_with_it_the_same_way_twice(gru):
    def learnt() -> list[torch.Tensor]:
        envs = make_vec("lodestar/NetHackScore-v0", 2, backend="auto", crop=5)
        agent = PPO(envs, PPOConfig(**SMALL, gru=gru, sequence=4), seed=3)
        assert isinstance(agent.learner, TorchUpdate)
        begin = [p.clone() for p in agent.policy.trunk.parameters()]
        agent.learn(32)
        assert all(not torch.equal(a, b) for a, b in zip(begin, agent.policy.trunk.parameters()))
        envs.close()
        return [p.detach().clone() for p in agent.policy.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(learnt(), learnt()))


def test_backends_declare_the_same_parts():
    envs = [make_vec("lodestar/NetHackScore-v0", 1, backend=backend) for backend in ("auto", "gym", "sync")]
    assert [env.single_observation_space.parts for env in envs] == [View().parts] * 3
    for env in envs:
        env.close()
