"""Cells learn a small environment: where actions lead, without observations; and what was observed long ago."""

import pytest
import torch
import torch.nn.functional as F

from agents.dynamics.cells import RSSM, SSM, Mamba, SimNorm
from agents.world_model.model import divergence
from lodestar.numerics.descent import Flat

PLACES, L, B = 5, 6, 16
SMALL = {"memory": 32, "groups": 4, "classes": 4, "hidden": 32}
CELLS = {
    "rssm": lambda g: RSSM(PLACES, 2, **SMALL, generator=g),
    "ssm": lambda g: SSM(PLACES, 2, **SMALL, generator=g),
    "mamba": lambda g: Mamba(PLACES, 2, **SMALL, generator=g),
    "simnorm": lambda g: SimNorm(PLACES, 2, latent=32, hidden=32, generator=g),
}


class Learner:
    """A cell, and a linear decoder of its features."""

    def __init__(self, kind):
        self.g = torch.Generator().manual_seed(1)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            self.cell = CELLS[kind](self.g)
            self.decoder = torch.nn.Linear(self.cell.size, PLACES)
        self.flat = Flat.of_parameters([*self.cell.parameters(), *self.decoder.parameters()])
        self.first = torch.zeros(L, B, dtype=torch.bool)
        self.first[0] = True

    def says(self, state):
        return self.decoder(self.cell.features(state))

    def minimise(self, loss):
        self.flat.grad.zero_()
        loss.backward()
        self.flat.step(3e-3, 100.0)


def walks(n, length, g):
    """Walks around a ring: the place, and a step to the left or to the right, one-hot; (length, n, ...)."""
    action = torch.randint(2, (length, n), generator=g)
    begin = torch.randint(PLACES, (1, n), generator=g)
    place = torch.cat([begin, begin + (2 * action[:-1] - 1).cumsum(0)]) % PLACES
    return place, F.one_hot(action, 2).float()


def unroll(cell, state, actions):
    """The imagined states after each of the actions, (H, B, ...)."""
    states = []
    for action in actions:
        state = cell.step(state, action)
        states.append(state)
    return {name: torch.stack([each[name] for each in states]) for name in state}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_learns_where_actions_lead(kind):
    learner = Learner(kind)
    cell = learner.cell
    for _ in range(150):
        place, action = walks(B, L, learner.g)
        states, stats = cell.observe(F.one_hot(place, PLACES).float(), action, learner.first)
        loss = F.cross_entropy(learner.says(states).flatten(0, 1), place.flatten())
        if kind == "simnorm":
            ahead = unroll(cell, {"z": states["z"][0]}, action[:-1])["z"]
            loss = loss + 20 * (ahead - states["z"][1:].detach()).square().mean()
        else:
            loss = loss + 0.3 * divergence(*cell.kl(stats), free=0.1).mean()
        learner.minimise(loss)
    place, action = walks(256, 8, learner.g)
    with torch.no_grad():  # looks twice, then six steps with closed eyes; one in five would be chance
        seen = F.one_hot(place[:2], PLACES).float()
        states, _ = cell.observe(seen, action[:2], learner.first[:2, :1].expand(2, 256))
        imagined = unroll(cell, {name: part[-1] for name, part in states.items()}, action[1:7])
        right = (learner.says(imagined).argmax(-1) == place[2:]).float().mean(1)
    assert right[0] > 0.9 and right.mean() > 0.8


# Mamba writes little at first, as its steps are small, and learns later.
@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "updates"), [("rssm", 180), ("ssm", 180), ("mamba", 360)])
def test_a_cell_remembers_what_is_no_longer_seen(kind, updates):
    learner = Learner(kind)
    right = []
    for _ in range(updates):
        cue = torch.randint(PLACES, (B,), generator=learner.g)
        embed = torch.zeros(5, B, PLACES)
        embed[0] = F.one_hot(cue, PLACES)
        states, stats = learner.cell.observe(embed, torch.zeros(5, B, 2), learner.first[:5])
        said = learner.says({name: part[-1] for name, part in states.items()})
        learner.minimise(F.cross_entropy(said, cue) + 0.1 * divergence(*learner.cell.kl(stats)).mean())
        right.append((said.argmax(-1) == cue).float().mean())
    assert sum(right[:20]) / 20 < 0.5 and sum(right[-20:]) / 20 > 0.7  # every batch is new; one in five is chance
