"""Policies given a return to reach: returns-to-go by hand, pieces that only a model joins, and what is refused."""

import functools

import numpy as np
import pytest
import torch
from paths import IMAGE, LINE, TWO
from test_cloning import STICK, batch

from agents.networks.sequence import Causal
from agents.offline import mbrcsl
from agents.offline.dt import DT, DTConfig
from agents.offline.mbrcsl import MBRCSL, MBRCSLConfig
from agents.offline.rcsl import RCSL, RCSLConfig

FAST = {"net_arch": [32], "learning_rate": 1e-2, "batch_size": 128}
SMALL = {**FAST, "width": 16, "layers": 1, "heads": 2, "context": 3}


def rewarded(rewards, lengths):
    """Episodes whose observation is the row's number and whose actions are 0."""
    data = batch(np.arange(len(rewards)), np.zeros(len(rewards)), lengths)
    return data.replace(reward=np.array(rewards, np.float32))


def test_returns_to_go_are_what_was_still_to_come_in_the_episode():
    model = RCSL(RCSLConfig(**FAST), LINE, STICK, rewarded([0, 1, 2, 5, -1], [3, 2]))
    to_go = model._rows[:, 1] * model.net.std[1] + model.net.mean[1]
    torch.testing.assert_close(to_go, torch.tensor([3.0, 3, 2, 4, -1]))
    assert model.asks == {"target": 4, "low": -1, "high": 4}
    relabelled = RCSL(RCSLConfig(**FAST), LINE, STICK, rewarded([0, 1, 2, 5, -1], [3, 2]), np.array([1, 1, 1, 0, 0]))
    assert relabelled.asks["target"] == 3
    unfinished = rewarded([-1, -1, -1, -1], [3, 1])  # the rest of the second was not recorded
    unfinished = unfinished.replace(terminated=np.arange(4) == 2)
    assert RCSL(RCSLConfig(**FAST), LINE, STICK, unfinished).asks == {"target": -3, "low": -3, "high": -1}


def test_what_has_come_is_taken_from_what_is_asked_for_within_what_the_data_had():
    model = RCSL(RCSLConfig(**FAST), LINE, STICK, rewarded([0, 1, 2, 5, -1], [3, 2]))
    model.worth.predict = lambda x: x[:, 0]  # an observation is worth itself
    asked = []
    model._act = lambda both, *rest: (asked.append(both[:, 1].tolist()), (np.zeros((2, 1), np.float32), {}))[1]
    state = None
    for starts in ([True, True], [False, False], [False, True], [False, False]):
        obs = np.array([[3.0], [0.5]], np.float32)
        _, state = model.predict(obs, state=state, episode_start=np.array(starts))
    assert asked == [[4, 4], [1, 3.5], [-1, 4], [-1, 3.5]]  # not -2


def forked(rng):
    """From 0 most go down, some up to 3; from 3 half go up to 5, to a reward, half crawl. Above 2.5 down is up."""
    obs, action, reward, lengths = [], [], [], []
    for start, up in [(0.0, 0.3)] * 150 + [(3.0, 0.5)] * 150:
        sign, place = (1 if rng.random() < up else -1), start + rng.normal(0, 0.1)
        for step in range(1, 4):
            move = (sign if start == 0 or sign > 0 else 0.3) * rng.uniform(0.8, 1.2)
            obs.append(place), action.append(-move if place > 2.5 else move), reward.append(0.0)
            place += move
            if place > 5 or step == 3:
                break
        reward[-1] = float(place > 5)
        lengths.append(step)
    data = batch(obs, action, lengths)
    after = moved(data.obs, data.action)
    return data.replace(reward=np.array(reward, np.float32), next_obs=after, terminated=after[:, 0] > 5)


def moved(place, action):
    return place + np.where(place > 2.5, -action, action)


def arrives(model):
    """The share of 20 starts at 0 from which it comes to 5 within ten steps."""
    place, state, arrived = np.linspace(-0.1, 0.1, 20, dtype=np.float32)[:, None], None, np.zeros(20, bool)
    for _ in range(10):
        action, state = model.predict(place, state=state)
        place = moved(place, action)
        arrived |= place[:, 0] > 5
    return arrived.mean()


@pytest.fixture(scope="module")
def pieces():
    return forked(np.random.default_rng(0))


@pytest.mark.nightly
def test_pieces_of_episodes_are_joined_by_a_model_and_by_nothing_else(pieces, tmp_path, monkeypatch):
    small = functools.partial(mbrcsl.EnsembleConfig, members=2, hidden=[32, 32])
    monkeypatch.setattr(mbrcsl, "EnsembleConfig", small)
    model = MBRCSL(MBRCSLConfig(**FAST, horizon=8, model_steps=150, rollouts=2000), LINE, STICK, pieces)
    found = model.learn(600)
    assert found["kept_return"] > 0.8 > 0.6 > found["recorded_return"] and 0.8 < found["target"] < 1.5
    assert arrives(model) > 0.9
    model.save(file := str(tmp_path / "policy.safetensors"))
    assert arrives(MBRCSL.load(file, LINE, STICK)) > 0.9
    control = RCSL(RCSLConfig(**FAST), LINE, STICK, pieces)
    control.learn(600)
    assert arrives(control) < 0.1
    with pytest.raises(ValueError, match="holds no RCSL"):
        RCSL.load(file, LINE, STICK)


@pytest.mark.nightly
def test_a_memory_does_not_join_them_either(pieces):
    model = DT(DTConfig(**SMALL), LINE, STICK, pieces)
    model.learn(500)
    assert arrives(model) < 0.1


def test_a_model_that_imagines_nothing_better_is_said_so(pieces):
    poor = pieces.replace(reward=np.full(len(pieces.step), 0.5, np.float32))
    with pytest.raises(ValueError, match=r"of 200 imagined rollouts the 4 best return .*, and what was recorded 1.5"):
        MBRCSL(MBRCSLConfig(**FAST, horizon=1, rollouts=200, model_steps=50), LINE, STICK, poor).learn(2)


def test_a_token_is_read_with_those_before_it_alone():
    net, tokens = Causal(8, 2, 2, 5), torch.randn(1, 5, 8)
    whole = net(tokens)
    for length in (1, 3):
        torch.testing.assert_close(net(tokens[:, :length]), whole[:, :length])
    assert not torch.allclose(net(tokens.flip(1))[:, -1], whole[:, -1])
    with pytest.raises(ValueError, match=r"a width of 8 cannot be shared by 3 heads; give a multiple of 3"):
        Causal(8, 1, 3, 5)


def test_stretches_end_with_their_episode():
    model = DT(DTConfig(**SMALL), LINE, STICK, rewarded([0, 1, 2, 5, -1], [3, 2]))
    assert model._rows.tolist() == [[0, 2], [1, 2], [2, 2], [3, 4], [4, 4]]
    seen = []
    model.net.head.loss = lambda features, action, counts, generator: seen.append(counts) or features.sum()
    model._loss(model._rows[1:4])
    assert seen[0][:, 0].view(3, 3).tolist() == [[True, True, False], [True, False, False], [True, True, False]]


def test_it_acts_with_its_own_last_steps_as_one_pass_over_them_would():
    model = DT(DTConfig(**SMALL), LINE, STICK, rewarded([0, 1, 2, 5, -1], [3, 2]))
    model.worth.predict = lambda x: torch.zeros(len(x))
    state, actions = None, []
    places = np.array([[[2.0], [7.0]], [[1.0], [-3.0]], [[0.5], [0.2]], [[4.0], [4.0]], [[3.0], [1.0]]], np.float32)
    for t, obs in enumerate(places):
        action, state = model.predict(obs, state=state, episode_start=np.array([False, t == 3]))
        actions.append(action / 2)
    steps = [
        torch.tensor(np.concatenate([model.net.whiten(torch.tensor(np.append(o, [4])).float()), a]))
        for o, a in zip(places[:, 0], [a[0] for a in actions])
    ]
    for window, t, row in ((steps[2:5], 4, 0), (steps[:2], 1, 0)):
        features = model.net(torch.stack(window)[None].float())[0, -1:]
        assert model.net.head.draw(features, None).item() == pytest.approx(actions[t][row].item(), abs=1e-5)
    again, _ = model.predict(places[4], episode_start=np.array([True, True]))
    assert again[0] != pytest.approx(2 * actions[4][0])  # it remembers
    _, kept = model.predict(places[3][1:])
    assert model.predict(places[4][1:], state=kept)[0] == pytest.approx(
        2 * actions[4][1:], abs=1e-5
    )  # since row 1 began


def test_a_memory_of_one_step_that_ignores_returns_is_cloning():
    data = rewarded([0, 1, 2, 5, -1], [3, 2])
    model = DT(DTConfig(**{**SMALL, "context": 1}), LINE, STICK, data)
    other = DT(DTConfig(**{**SMALL, "context": 1}), LINE, STICK, data.replace(reward=-3 * data.reward))
    for each in (model, other):
        torch.nn.init.zeros_(each.net.embed[0].weight)
    rows = model._rows
    losses = [float(each._loss(rows).detach()) for each in (model, other)]
    assert losses[0] == losses[1]  # the return is all that differs


def test_a_discrete_action_is_chosen_by_all_three():
    data = batch(np.tile([-1, 1], 30), np.zeros(60), [6] * 10)
    data = data.replace(action=np.tile([0, 1], 30), reward=np.ones(60, np.float32))
    for kind, options in ((RCSL, FAST), (DT, SMALL)):
        model = kind(kind.Config(**options), LINE, TWO, data)
        model.learn(100)
        assert model.predict(np.array([[-1], [1]], np.float32))[0].tolist() == [0, 1]


def test_what_cannot_be_asked_for_is_a_sentence():
    data = rewarded([0, 1, 2, 5, -1], [3, 2])
    with pytest.raises(ValueError, match=r"agent.target=9 is out of range; episodes returned 3 to 4"):
        RCSL(RCSLConfig(target=9), LINE, STICK, data)
    with pytest.raises(ValueError, match=r"agent.context=4 is longer than all episodes; give at most 3"):
        DT(DTConfig(context=4), LINE, STICK, data)
    for kind, options in ((MBRCSLConfig, {"horizon": 0}), (DTConfig, {"context": 0}), (DTConfig, {"chunk": 2})):
        with pytest.raises(ValueError, match=r"agent\.\w+=\d is out of range"):
            kind(**options)
    with pytest.raises(ValueError, match="MBRCSL cannot read images"):
        MBRCSL(MBRCSLConfig(), IMAGE, STICK)
    with pytest.raises(ValueError, match="5 rewards are not finite"):
        DT(DTConfig(context=2), LINE, STICK, data, np.full(5, np.nan))
    with pytest.raises(ValueError, match="this MBRCSL was loaded to act and has no data"):
        MBRCSL(MBRCSLConfig(), LINE, STICK).learn(1)
