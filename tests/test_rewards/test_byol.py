"""BYOL-Explore against loops written out one row at a time, the slow encoder, and what it learns and forgets."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn.functional import normalize

from envs.transitions import Transitions
from rewards.base import Reward
from rewards.check import random_rollout
from rewards.exploration.byol import BYOL, BYOLConfig

BOX, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
GREY = spaces.Box(0, 255, (1, 40, 40), np.uint8)
MANY = spaces.Dict({"image": spaces.Box(0, 255, (3, 40, 40), np.uint8), "pose": BOX, "key": spaces.Discrete(3)})


def make(space=BOX, actions=ACTIONS, seed=0, **options):
    return BYOL(BYOLConfig(**options), space, actions, seed=seed)


def rollout(steps=13, envs=3, seed=0):
    """A made-up rollout with ends, and after some of them a row that is no transition."""
    batch = random_rollout(BOX, ACTIONS, steps=steps, envs=envs, seed=seed)
    rng = np.random.default_rng(seed)
    ended, valid = rng.random((steps, envs)) < 0.2, np.ones((steps, envs), bool)
    valid[1:] = ~(ended[:-1] & (rng.random((steps - 1, envs)) < 0.5))
    valid[5:6, 1] = False  # and one in the midst of an episode
    return batch.replace(terminated=ended & valid, truncated=np.zeros_like(ended), valid=valid)


def cycle(points, steps=16, envs=16, seed=0):
    """Walks around `points` (P, D), one after the other."""
    start = np.random.default_rng(seed).integers(0, len(points), envs)
    obs = points[(start + np.arange(steps + 1)[:, None]) % len(points)]
    no = np.zeros((steps, envs), bool)
    return Transitions(
        obs[:-1], no.astype(int), no.astype(np.float32), obs[1:], no, no, ~no, np.arange(steps)[:, None] + no
    )


def by_hand(byol, batch):
    """Scores (T, N) from one list of loops for each environment, one row at a time; and the guesses of each row."""
    steps, envs = batch.shape
    scores, predictions = np.zeros((steps, envs)), np.zeros((steps, envs), int)
    blank = torch.zeros(1, byol.width), torch.zeros(1, byol.actions.size)
    with torch.no_grad():
        for n in range(envs):
            (belief, last), loops = blank, []
            for t in range(steps):
                if not batch.valid[t, n]:
                    continue
                row = batch[t : t + 1, n]
                action = byol.actions(row.action)
                belief = byol.loops.closed(torch.cat([byol.encoder(byol.inputs(row.obs)), last], 1), belief)
                loops = [byol.loops.open(action, state) for state in [belief, *loops][: byol.config.horizon]]
                code = normalize(byol.target(byol.inputs(row.next_obs)))
                errors = [(normalize(byol.predictor(state)) - code).square().sum() for state in loops]
                scores[t, n], predictions[t, n] = np.mean(errors), len(errors)
                last = action
                if batch.ended[t, n]:
                    (belief, last), loops = blank, []
    return scores, predictions


def test_one_step_ahead_from_an_empty_memory_is_two_gates_and_two_layers_by_hand():
    byol = make(actions=spaces.Box(-1, 1, (2,), np.float32), horizon=1, features=5, normalize_obs="none")
    batch = random_rollout(BOX, byol.action_space, steps=1, envs=4).flatten()
    weights = {name: p.detach().numpy().astype(np.float64) for name, p in byol.loops.named_parameters()}

    def dense(layers, x):
        one, _, two = layers
        x = np.maximum(x @ one.weight.detach().numpy().T + one.bias.detach().numpy(), 0)
        return x @ two.weight.detach().numpy().T + two.bias.detach().numpy()

    def gru(name, x, h):
        mine = x @ weights[f"{name}.weight_ih"].T + weights[f"{name}.bias_ih"]
        past = h @ weights[f"{name}.weight_hh"].T + weights[f"{name}.bias_hh"]
        reset, update = (1 / (1 + np.exp(-(mine + past)[:, i : i + 5])) for i in (0, 5))
        return (1 - update) * np.tanh(mine[:, 10:] + reset * past[:, 10:]) + update * h

    seen = np.concatenate([dense(byol.encoder.dense, batch.obs), np.zeros((4, 2))], axis=1)
    prediction = dense(byol.predictor, gru("open", batch.action, gru("closed", seen, np.zeros((4, 5)))))
    code = dense(byol.target.dense, batch.next_obs)
    cosine = (prediction * code).sum(axis=1) / np.linalg.norm(prediction, axis=1) / np.linalg.norm(code, axis=1)
    score, memory = byol.score(batch, byol.initial_memory(4))
    np.testing.assert_allclose(score, 2 - 2 * cosine, rtol=1e-4)
    assert memory["open"].shape == (4, 0, 5)
    np.testing.assert_allclose(memory["action"], batch.action)


@pytest.mark.parametrize("horizon", [1, 2, 4])
def test_a_rollout_gives_the_mean_of_the_loops_that_land_on_each_row(horizon):
    byol, batch = make(horizon=horizon), rollout()
    byol.update(batch)
    scores, predictions = by_hand(byol, batch)
    raw, memory = byol.scan(batch, byol.initial_memory(3))
    np.testing.assert_allclose(raw[batch.valid], scores[batch.valid], rtol=1e-3, atol=1e-5)
    assert predictions.max() == horizon
    continues = ~batch.ended[-1]
    assert (memory["held"][continues] == np.minimum(predictions[-1], horizon - 1)[continues]).all()
    assert all((value[~continues] == 0).all() for value in memory.values())


def test_a_rollout_at_once_is_its_rows_one_by_one_and_two_halves():
    byol, batch = make(), rollout()
    begin = byol.scan(rollout(seed=1), byol.initial_memory(3))[1]
    whole, after = byol.scan(batch, begin)
    rows, rows_after = Reward.scan(byol, batch, begin)
    one, middle = byol.scan(batch[:6], begin)
    two, halves_after = byol.scan(batch[6:], middle)
    for other, memory in ((rows, rows_after), (np.concatenate([one, two]), halves_after)):
        np.testing.assert_allclose(other[batch.valid], whole[batch.valid], rtol=1e-4)
        for name, value in after.items():
            np.testing.assert_allclose(memory[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("horizon", "sequence"), [(1, 13), (1, 5), (1, 1), (3, 13), (3, 100)])
def test_the_loss_is_the_mean_of_what_the_rollout_gives_for_its_predictions(horizon, sequence):
    byol, batch = make(horizon=horizon, sequence=sequence, batch_size=99, normalize_obs="none"), rollout()
    scores, predictions = by_hand(byol, batch)
    loss = byol.update(batch)["loss"]
    np.testing.assert_allclose(loss, (scores * predictions).sum() / predictions.sum(), rtol=1e-4)


def test_open_loops_do_not_reach_over_the_sequence_they_learn_in():
    one, two = (make(horizon=k, sequence=2, normalize_obs="none", batch_size=99) for k in (2, 4))
    assert one.update(rollout()) == two.update(rollout())


@pytest.mark.parametrize("decay", [0.0, 0.9, 1.0])
def test_the_slow_encoder_goes_one_share_of_the_way_at_each_step_and_stands_still_in_score(decay):
    byol = make(decay=decay, batch_size=99)
    before = copy.deepcopy(byol.target.state_dict())
    byol.scan(rollout(), byol.initial_memory(3))
    byol.update(rollout())  # one minibatch
    quick = byol.encoder.state_dict()
    for name, slow in byol.target.state_dict().items():
        torch.testing.assert_close(slow, decay * before[name] + (1 - decay) * quick[name])
        assert not torch.equal(before[name], quick[name])


def test_a_flat_batch_is_sequences_of_one_row():
    one, two, batch = make(), make(), rollout(steps=1, envs=20)
    assert one.update(batch.flatten()) == two.update(batch)
    raw = [byol.scan(rollout(), byol.initial_memory(3))[0] for byol in (one, two)]
    assert np.array_equal(*raw)


def test_rows_that_are_no_transitions_teach_nothing_wherever_they_stand():
    one, two, batch = make(), make(), rollout()
    other = rollout(seed=1)
    obs, after = (
        np.where(batch.valid[..., None], x, y) for x, y in ((batch.obs, other.obs), (batch.next_obs, other.obs))
    )
    action = np.where(batch.valid, batch.action, other.action)
    for _ in range(2):
        assert one.update(batch) == two.update(batch.replace(obs=obs, next_obs=after, action=action))
    for name, value in one.target.state_dict().items():
        assert torch.equal(value, two.target.state_dict()[name])


def test_a_rollout_of_nothing_but_resets_gives_and_teaches_nothing():
    byol, batch = make(), rollout()
    memory = byol.scan(batch, byol.initial_memory(3))[1]
    nothing = batch.replace(valid=np.zeros_like(batch.valid))
    raw, after = byol.scan(nothing, memory)
    assert (raw == 0).all()
    assert all(np.array_equal(after[name], value) for name, value in memory.items())
    assert byol.update(nothing) == {}


@pytest.mark.nightly
def test_a_cycle_is_predicted_and_what_was_never_seen_is_not():
    byol = make(spaces.Box(-3, 3, (4,), np.float32), learning_rate=3e-3, horizon=2)
    points = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    known, new = points[:5], points[5:]

    def rise_of(places):
        return byol.scan(cycle(places), byol.initial_memory(16))[0].mean()

    before = rise_of(known)
    losses = [byol.update(cycle(known, seed=i))["loss"] for i in range(80)]
    assert losses[-1] < 0.1 * losses[0]
    assert rise_of(known) < 0.1 * before
    assert rise_of(new) > 5 * rise_of(known)
    codes = byol.in_pieces(byol.target, byol.inputs(known))
    assert torch.pdist(normalize(codes)).min() > 0.1  # the five have not become one


@pytest.mark.nightly
def test_a_belief_remembers_what_the_observation_no_longer_shows():
    # the first observation says where the third leads; the two between are equal
    space = spaces.Box(-1, 1, (2,), np.float32)
    byol, no = make(space, learning_rate=3e-3, horizon=1, normalize_obs="none"), np.zeros((3, 32), bool)
    side = np.where(np.arange(32) % 2, 1, -1)
    obs = np.zeros((4, 32, 2), np.float32)
    obs[0, :, 0], obs[3, :, 0], obs[1:3, :, 1] = side, side, 1
    step = np.arange(3)[:, None] + no
    ends = step == 2
    batch = Transitions(obs[:-1], no.astype(int), no.astype(np.float32), obs[1:], ends, no, ~no, step)
    for _ in range(80):
        byol.update(batch)
    given = byol.scan(batch, byol.initial_memory(32))[0]
    assert given[2].max() < 0.05  # a guess without memory errs by at least 1 on one of two opposite codes
    forgotten = byol.score(batch[2], byol.initial_memory(32))[0]
    assert forgotten.max() > 0.5
