"""The ensemble: its members one by one, dynamics it must learn exactly, and bad data."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agents.dynamics.ensemble import DynamicsEnsemble, EnsembleConfig, split
from agents.networks.actor_critic import SpaceEncoding

A = torch.tensor([[0.9, 0.2], [-0.1, 0.8]])
B, C = torch.tensor([[0.0, 0.5]]), torch.tensor([0.1, -0.2])


class Rows:
    """Transitions as a replay gives them."""

    def __init__(self, obs, action, next_obs, task=None, terminated=None):
        n = len(obs)
        task = torch.zeros(n) if task is None else task
        terminated = torch.zeros(n) if terminated is None else terminated
        self.columns, self.added = (obs, action, next_obs, task, terminated, torch.zeros(n, dtype=torch.int64)), n

    def arrays(self):
        return self.columns


def encoding(obs_size, action_size=1):
    box = spaces.Box(-np.inf, np.inf, (obs_size,), np.float32)
    return SpaceEncoding(box, spaces.Box(-1, 1, (action_size,), np.float32))


def linear_rows(rows=2000, seed=0, noise=0.0):
    """x' = A x + B u + c, in units that differ between the two numbers; reward x_0 + u."""
    draw = torch.Generator().manual_seed(seed)
    obs, action = torch.randn(rows, 2, generator=draw), torch.rand(rows, 1, generator=draw) * 2 - 1
    next_obs = obs @ A.T + action @ B + C + noise * torch.randn(rows, 2, generator=draw)
    unit = torch.tensor([1.0, 100.0])
    return Rows(obs * unit, action, next_obs * unit, obs[:, 0] + action[:, 0])


def ensemble(obs_size=2, action_size=1, seed=0, **settings):
    return DynamicsEnsemble(
        encoding(obs_size, action_size), EnsembleConfig(**{"hidden": [32, 32], "batch_size": 64, **settings}), seed=seed
    )


def r2(predicted, true):
    return 1 - (predicted - true).square().mean(0) / true.var(0, correction=0)


def test_members_side_by_side_equal_a_loop_over_them():
    model = ensemble(members=3, norm="layer", terminations=True)
    model.fit(linear_rows(), 20)
    obs, action = torch.randn(7, 2), torch.randn(7, 1)
    predicted = model.step(obs, action, sample=False, member_predictions=True)
    x = (torch.cat([obs, action], -1) - model.net.inputs.mean) / model.net.inputs.scale
    for k in range(3):
        low, high, *layers = [p[k] for p in model.net.parameters()]
        h = x
        for i in range(0, 8, 4):
            h = h @ layers[i] + layers[i + 1]
            h = torch.nn.functional.layer_norm(h, h.shape[-1:]) * layers[i + 2] + layers[i + 3]
            h = h * torch.sigmoid(h)
        out = h @ layers[8] + layers[9]
        log_var = high - torch.log1p(torch.exp(high - out[:, 3:6]))
        log_var = low + torch.log1p(torch.exp(log_var - low))
        torch.testing.assert_close(predicted.means[k], out[:, :2], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(predicted.stds[k], torch.exp(log_var / 2)[:, :2], rtol=1e-5, atol=1e-6)
    expected = obs + model.net.outputs.mean[:2] + predicted.means.mean(0) * model.net.outputs.scale[:2]
    torch.testing.assert_close(predicted.next_obs, expected)
    assert predicted.terminated.shape == (7,) and (predicted.terminated < 1).all()


@pytest.mark.parametrize("kind", ["gauss", pytest.param("det", marks=pytest.mark.nightly)])
def test_linear_dynamics_are_learned_and_so_is_its_reward(kind):
    model = ensemble(members=2, kind=kind, first_steps=700)
    metrics = model.fit(linear_rows())
    obs, action, next_obs, task, *_ = linear_rows(500, seed=1).arrays()
    predicted = model.step(obs, action, sample=False)
    assert (r2(predicted.next_obs - obs, next_obs - obs) > 0.999).all() and r2(predicted.reward, task) > 0.999
    assert metrics["model_error"] < 0.03 and metrics["model_steps"] == 700


def test_noise_is_recovered_as_the_deviation_a_member_predicts():
    model = ensemble(members=1, hidden=[32], first_steps=700)
    model.fit(linear_rows(6000, noise=0.1))
    obs, action, *_ = linear_rows(500, seed=1).arrays()
    predicted = model.step(obs, action, member_predictions=True)
    stds = predicted.stds[0] * model.net.outputs.scale[:2]
    torch.testing.assert_close(stds.mean(0), torch.tensor([0.1, 10.0]), rtol=0.1, atol=0)
    spread = predicted.next_obs - model.step(obs, action, sample=False).next_obs  # what is sampled has it, too
    torch.testing.assert_close(spread.std(0), stds.mean(0), rtol=0.1, atol=0)


@pytest.mark.parametrize("rows", [1, 7, 12])
def test_ts1_gives_each_elite_an_equal_share_of_the_rows_and_every_row_every_elite(rows):
    model = ensemble(members=3, kind="det")
    model.fit(linear_rows(), 5)
    obs, action = torch.randn(rows, 2), torch.randn(rows, 1)
    by_member = model.step(obs, action, member_predictions=True).means  # (3, rows, 2)
    by_member = obs + model.net.outputs.mean[:2] + by_member * model.net.outputs.scale[:2]
    counts = torch.zeros(3, rows)
    splits = 600
    for _ in range(splits):
        gap = (model.step(obs, action).next_obs - by_member).abs().amax(-1)  # (3, rows)
        who = gap < 1e-5
        assert (who.sum(0) == 1).all()
        shares = who.sum(1)
        assert shares.max() - shares.min() <= (rows % 3 > 0)
        counts += who
    torch.testing.assert_close(counts / splits, torch.full((3, rows), 1 / 3), rtol=0, atol=0.1)  # five deviations


def test_elites_are_the_members_with_the_least_held_out_loss_and_only_they_predict():
    model = ensemble(members=4, elites=2, kind="det")
    rows = linear_rows(300)
    model.fit(rows, 60)
    table = torch.cat([*rows.arrays()[:2], rows.arrays()[2] - rows.arrays()[0], rows.arrays()[3][:, None]], -1)
    scaled = torch.cat([model.net.inputs(table[:, :3]), model.net.outputs(table[:, 3:])], -1)
    judged = torch.cat([scaled, torch.zeros(300, 1)], -1)[split(300, 1)[1]]
    assert model.elites.tolist() == model.net.losses(judged).argsort()[:2].tolist()
    obs, action = torch.randn(50, 2), torch.randn(50, 1)
    predicted = model.step(obs, action, member_predictions=True)
    by_member = obs + model.net.outputs.mean[:2] + predicted.means * model.net.outputs.scale[:2]
    for outcome in (predicted, model.step(obs, action)):
        gap = (outcome.next_obs - by_member).abs().amax(-1)
        assert set(gap.argmin(0).tolist()) == set(model.elites.tolist()) and gap.amin(0).max() < 1e-4
    mean = model.step(obs, action, sample=False).next_obs
    torch.testing.assert_close(mean, by_member[model.elites].mean(0))


@pytest.mark.parametrize("members", [1, 4])
def test_each_member_trains_on_a_bootstrap_of_its_own(members):
    model, batches = ensemble(members=members, batch_size=50), []
    model._update = lambda batch: batches.append(batch) or torch.zeros(())
    table = torch.arange(1000.0)[:, None].expand(1000, 7)
    rows = torch.arange(900)
    model._train(table, rows, table[900:], 200, True)
    seen = torch.stack(batches)[..., 0]  # (200, K, 50), the number of every row in a minibatch
    assert seen.shape == (200, members, 50) and seen.max() < 900
    own = [set(seen[:, k].flatten().tolist()) for k in range(members)]
    if members == 1:
        assert len(own[0]) == 900
        return
    for k, mine in enumerate(own):
        assert len(mine) / 900 == pytest.approx(1 - np.exp(-1), abs=0.04)  # drawn with replacement
        assert len(mine & own[k - 1]) / 900 == pytest.approx((1 - np.exp(-1)) ** 2, abs=0.04)


def test_weights_decay_by_their_share_of_the_learning_rate():
    model = ensemble(members=2, kind="det", learning_rate=0.5, weight_decay=0.1)
    model.net.losses = lambda batch: 0 * sum(p.sum() for p in model.net.parameters()) * torch.ones(2)
    before = model._flat.value.clone()
    model._update(torch.zeros(2, 4, 7))
    torch.testing.assert_close(model._flat.value, 0.95 * before)


def test_scalers_stay_until_the_data_has_doubled():
    model = ensemble(members=1)
    seen = []
    for n in (200, 399, 400, 401):
        world = linear_rows(n)
        steps = model.fit(world, 3)["model_steps"]
        assert steps == 3
        seen.append(model.net.inputs.mean.clone())
        obs, action, *_ = world.arrays()
        if n in (200, 400):
            torch.testing.assert_close(seen[-1], torch.cat([obs, action], -1).mean(0))
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3]) and not torch.equal(seen[1], seen[2])


def test_later_fits_are_short_and_end_early_where_nothing_gets_better():
    model = ensemble(members=1, hidden=[16], first_steps=150, min_steps=100, max_steps=300)
    world = linear_rows(400)
    assert model.fit(world)["model_steps"] == 150
    assert 100 <= model.fit(world)["model_steps"] <= 300
    assert model.fit(world, 7)["model_steps"] == 7 and model.fit(world, 0)["model_steps"] == 0
    model.config.learning_rate = 1e-9
    assert model.fit(world)["model_steps"] == 100


def test_a_fit_that_only_made_things_worse_leaves_the_weights_as_they_were():
    model = ensemble(members=2)
    world = linear_rows(400)
    before = model.fit(world, 200)
    weights = model._flat.value.clone()
    model.config.learning_rate = 0.5
    after = model.fit(world)
    assert torch.equal(model._flat.value, weights) and after["model_error"] == before["model_error"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_no_number_leaves_what_was_known_and_is_counted(bad):
    model = ensemble(members=2)
    world = linear_rows(400)
    model.fit(world, 50)
    before = {name: value.clone() for name, value in model.net.state_dict().items()}
    world.arrays()[2][17, 1] = bad
    world.added = 800  # scalers would be set anew
    assert model.fit(world, 50) == {"model_steps": 0.0, "model_failures": 1.0}
    assert all(torch.equal(value, before[name]) for name, value in model.net.state_dict().items())
    assert model.fit(linear_rows(400), 50)["model_failures"] == 1


def test_a_fit_that_blows_up_leaves_what_was_known_and_the_next_one_works():
    model = ensemble(members=2)
    world = linear_rows(400)
    model.fit(world, 100)
    weights, rate = model._flat.value.clone(), model.config.learning_rate
    model.config.learning_rate = 1e30
    assert model.fit(world)["model_failures"] == 1
    assert torch.equal(model._flat.value, weights)
    model.config.learning_rate = rate
    after = model.fit(world, 200)
    assert after["model_failures"] == 1 and after["model_error"] < 0.1 and torch.isfinite(model._flat.value).all()


@pytest.mark.parametrize(
    "settings", [{"sample": True}, {"sample": False}, {"sample": True, "member_predictions": True}]
)
def test_gradients_of_an_outcome_equal_finite_differences(settings):
    model = ensemble(members=3, hidden=[8], terminations=True)
    model.fit(linear_rows(200), 20)
    model.net.double()
    model._weights = model._elite = [p.detach() for p in model.net.parameters()]

    def outcome(obs, action):
        model.generator.manual_seed(0)
        predicted = model.step(obs, action, **settings)
        uncertainty = () if predicted.means is None else (predicted.means, predicted.stds)
        return predicted.next_obs, predicted.reward, predicted.terminated, *uncertainty

    inputs = torch.randn(4, 2, dtype=torch.float64), torch.randn(4, 1, dtype=torch.float64)
    assert torch.autograd.gradcheck(outcome, tuple(x.requires_grad_() for x in inputs))


def test_gradients_through_an_outcome_leave_the_models_own_alone():
    model = ensemble(members=3)
    model.fit(linear_rows(200), 20)
    before, obs = model._flat.grad.clone(), torch.randn(4, 2, requires_grad=True)
    model.step(obs, torch.zeros(4, 1), member_predictions=True).next_obs.sum().backward()
    assert obs.grad.abs().min() > 0 and torch.equal(model._flat.grad, before)


def test_a_number_that_never_changed_is_predicted_exactly_even_in_a_sample():
    world = linear_rows(400)
    still = torch.full((400, 1), 0.3)
    columns = [torch.cat([x, still], -1) if x.shape == (400, 2) else x for x in world.arrays()]
    model = ensemble(obs_size=3, members=2)
    model.fit(Rows(*columns[:4]), 20)
    obs = torch.cat([torch.randn(9, 2), still[:9]], -1)
    predicted = model.step(obs, torch.zeros(9, 1)).next_obs
    assert torch.equal(predicted[:, 2], obs[:, 2]) and not (predicted[:, :2] == obs[:, :2]).any()


def test_discrete_actions_and_the_end_of_an_episode_are_learned():
    draw = torch.Generator().manual_seed(0)
    obs = torch.rand(2000, 1, generator=draw) * 4 - 2
    action = torch.nn.functional.one_hot(torch.randint(3, (2000,), generator=draw), 3).float()
    next_obs = obs + action @ torch.tensor([[-0.5], [0.0], [0.5]])
    ended = (next_obs[:, 0].abs() > 1).float()
    line = SpaceEncoding(spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(3))
    model = DynamicsEnsemble(
        line, EnsembleConfig(members=1, hidden=[32, 32], terminations=True, batch_size=64, first_steps=700)
    )
    model.fit(Rows(obs, action, next_obs, next_obs[:, 0], ended))
    predicted = model.step(obs, action, sample=False)
    assert (r2(predicted.next_obs - obs, next_obs - obs) > 0.995).all()
    assert ((predicted.terminated > 0.5) == (ended > 0)).float().mean() > 0.97
    assert model.step(obs, action).terminated.shape == (2000,)


def test_a_restored_ensemble_continues_bit_for_bit():
    first, second = (ensemble(members=3, elites=2, max_steps=100, seed=seed) for seed in (1, 2))
    world, obs, action = linear_rows(400), torch.randn(5, 2), torch.randn(5, 1)
    first.fit(world, 60)
    second.load_state_dict(first.state_dict())
    for model in (first, second):
        model.fit(world)
    outcomes = [
        (model.step(obs, action), model.step(obs, action, member_predictions=True)) for model in (first, second)
    ]
    for a, b in zip(*outcomes):
        assert torch.equal(a.next_obs, b.next_obs) and torch.equal(a.reward, b.reward)
    assert torch.equal(first._flat.value, second._flat.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_learns_the_same_dynamics():
    model = DynamicsEnsemble(encoding(2), EnsembleConfig(members=3, elites=2, hidden=[32, 32]), device="cuda")
    world = linear_rows()
    world.columns = tuple(x.cuda() for x in world.columns)
    assert model.fit(world)["model_error"] < 0.03
    obs, action, next_obs, *_ = (x.cuda() for x in linear_rows(500, seed=1).arrays())
    for predicted in (model.step(obs, action), model.step(obs, action, member_predictions=True)):
        assert (r2(predicted.next_obs - obs, next_obs - obs) > 0.99).all()


def test_the_same_seed_gives_the_same_model_and_no_other_generator_is_used():
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    models = [ensemble(members=2, seed=seed) for seed in (5, 5, 6)]
    for model in models:
        model.fit(linear_rows(200), 20)
        model.step(torch.zeros(3, 2), torch.zeros(3, 1))
    assert torch.equal(models[0]._flat.value, models[1]._flat.value)
    assert not torch.equal(models[0]._flat.value, models[2]._flat.value)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("rows", [2, 9, 100, 101, 250, 5000])
def test_the_split_parts_no_row_twice(rows):
    for turn in (0, 7):
        fitted, judged = split(rows, turn)
        assert len(fitted) >= rows * 0.8 - 1 and 1 <= len(judged) <= 1000
        assert sorted(fitted.tolist() + judged.tolist()) == list(range(rows))


def test_the_split_stays_as_the_data_grows_until_the_next_turn():
    few, judged = split(250)
    many, _ = split(5000)
    assert many[many < 250].tolist() == few.tolist() and judged.tolist() == list(range(100, 120))
    assert len(split(50_000)[1]) == 1000
    kept = [set(range(400)) - set(split(400, turn)[0].tolist()) for turn in range(10)]
    assert set.union(*kept) == set(range(400)) and sum(map(len, kept)) == 400  # nothing is held out twice in ten turns


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"kind='bayes' is unknown; give one of gauss, det"):
        EnsembleConfig(kind="bayes")
    with pytest.raises(ValueError, match=r"members=0 is out of range; give a number at least 1"):
        EnsembleConfig(members=0)
    with pytest.raises(ValueError, match=r"elites=6 is out of range; give 1 to members=5"):
        EnsembleConfig(elites=6)
    with pytest.raises(ValueError, match=r"max_steps=50 is below min_steps=100"):
        EnsembleConfig(max_steps=50)
    with pytest.raises(ValueError, match=r"learning_rate=1.5"):
        EnsembleConfig(learning_rate=1.5)
    with pytest.raises(ValueError, match=r"1 transitions are too few to fit"):
        ensemble().fit(linear_rows(1))
