# ruff: noqa: NPY002 - that the global generators stay as they are is tested here
"""What learned bonuses share, tested on RND, which adds nothing to it; and bad input, given to all of them."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rewards
from rewards.check import is_equal, random_rollout
from rewards.exploration.learned import ActionCode, Learned, LearnedConfig
from rewards.exploration.rnd import RND, RNDConfig

BOX, ACTIONS = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(2)
GREY = spaces.Box(0, 255, (4, 40, 40), np.uint8)
MANY = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (3, 40, 48), np.uint8),
        "small": spaces.Box(0, 255, (3, 7, 7), np.uint8),
        "pose": BOX,
        "key": spaces.Discrete(3, start=1),
        "dice": spaces.MultiDiscrete([3, 4]),
        "bits": spaces.MultiBinary(5),
    }
)
ALL = {
    "rnd": {},
    "rdd": {"replay": 64},
    "drnd": {"target": "ensemble", "members": 3},
    "cfn": {"target": "coin_flip"},
    "icm": {},
    "disagreement": {},
    "forward": {},
    "hindsight": {},
}


def make(space=BOX, seed=0, **options):
    return RND(RNDConfig(**options), space, ACTIONS, seed=seed)


def build(case, observation_space=BOX, action_space=ACTIONS, **options):
    cls = rewards.get("rdd" if case in ("drnd", "cfn") else case)
    return cls(cls.Config(**{**ALL[case], **options}), observation_space, action_space)


def rows(next_obs):
    """Transitions that end in `next_obs` (N, 2)."""
    next_obs = np.asarray(next_obs, np.float32)
    batch = random_rollout(BOX, ACTIONS, steps=len(next_obs), envs=1).flatten()
    return batch.replace(obs=next_obs, next_obs=next_obs)


def points(count, centre, seed=0):
    return rows(np.random.default_rng(seed).normal(centre, 1.0, (count, 2)))


def test_statistics_are_those_of_all_valid_rows_and_move_only_in_update():
    rnd = make()
    data = points(64, 3.0)
    rnd.score(data)
    assert rnd.statistics.count == 0
    rnd.update(data.replace(valid=np.arange(64) < 40))
    rnd.update(data.replace(valid=np.arange(64) >= 40))
    np.testing.assert_allclose(rnd.statistics.mean, data.next_obs.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(rnd.statistics.var, data.next_obs.var(axis=0), rtol=1e-5)


def test_before_the_first_update_the_bounds_of_the_space_whiten():
    bounded = make(spaces.Box(np.float32([0, -np.inf]), np.float32([12, np.inf])))
    np.testing.assert_allclose(bounded.statistics.mean, [6, 0])
    np.testing.assert_allclose(bounded.statistics.var, [12, 1])  # 12 squared / 12, and 1 where there is no bound
    bounded.update(rows([[100, 100], [102, 104]]))
    np.testing.assert_allclose(bounded.statistics.mean, [101, 102])  # nothing of the stand-in is left


def test_update_proportion_is_the_share_of_each_minibatch_that_is_learnt_from(monkeypatch):
    learnt = []
    rnd = make(update_proportion=0.25, batch_size=100, epochs=2)
    learn = rnd.loss
    monkeypatch.setattr(rnd, "loss", lambda x, y: learnt.append(len(x)) or learn(x, y))
    rnd.update(points(1000, 0.0))
    assert len(learnt) == 20  # as many steps as without it
    assert sum(learnt) / 2000 == pytest.approx(0.25, abs=0.04)
    learnt.clear()
    whole = make(batch_size=100)
    learn_whole = whole.loss
    monkeypatch.setattr(whole, "loss", lambda x, y: learnt.append(len(x)) or learn_whole(x, y))
    whole.update(points(250, 0.0))
    assert learnt == [100, 100, 50]


def test_two_updates_after_loading_are_those_of_the_uninterrupted_reward():
    rnd, data = make(update_proportion=0.5, batch_size=32), points(128, 0.0)
    rnd.update(data)
    other = make(update_proportion=0.5, batch_size=32, seed=5)
    other.load_state_dict(copy.deepcopy(rnd.state_dict()))
    for _ in range(2):
        assert rnd.update(data) == other.update(data)
    for one, two in zip(rnd.predictor.parameters(), other.predictor.parameters()):
        assert torch.equal(one, two)


def test_torchs_and_numpys_global_generators_are_neither_read_nor_moved():
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    rnd, data = make(GREY), random_rollout(GREY, ACTIONS)
    rnd.update(data)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    torch.manual_seed(2)
    again = make(GREY)
    again.update(data)
    assert np.array_equal(rnd.score(data.flatten()), again.score(data.flatten()))


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (3, 40, 40), np.float32), spaces.Box(0, 255, (40, 40), np.uint8)])
def test_only_bytes_in_three_dimensions_are_an_image(space):
    layout = make(space).layout
    assert (layout.images, layout.vector) == ({}, int(np.prod(space.shape)))


def test_with_channels_only_the_last_frames_of_a_stack_matter():
    rnd, data = make(GREY, channels=1), random_rollout(GREY, ACTIONS).flatten()
    assert rnd.layout.images == {"": (1, 40, 40)}
    older, newest = data.next_obs.copy(), data.next_obs.copy()
    older[:, :3] = 0
    newest[:, 3] = 0
    score = rnd.score(data)
    assert np.array_equal(rnd.score(data.replace(next_obs=older)), score)
    assert not np.array_equal(rnd.score(data.replace(next_obs=newest)), score)


def test_a_dict_is_laid_out_with_vectors_first_and_large_images_through_convolutions():
    layout = make(MANY).layout
    assert layout.order == ["bits", "dice", "key", "pose", "small", "image"]
    assert layout.vector == 5 + 2 + 3 + 2 + 3 * 7 * 7
    assert layout.images == {"image": (3, 40, 48)}
    data = random_rollout(MANY, ACTIONS).flatten()
    flat = layout.flatten(data.next_obs)
    assert flat.shape == (24, layout.size)
    assert flat.dtype == np.float32
    assert np.array_equal(flat[:, 7:10].argmax(axis=1) + 1, data.next_obs["key"])  # one-hot
    assert np.array_equal(flat[0, layout.vector :].reshape(3, 40, 48), data.next_obs["image"][0])
    assert make(MANY, keys=["pose"]).layout.size == 2


def test_many_images_are_scored_in_pieces_with_the_same_result():
    data = random_rollout(GREY, ACTIONS, steps=65, envs=8).flatten()  # 520 rows, more than one piece
    rnd = make(GREY)
    np.testing.assert_allclose(rnd.score(data)[510:], rnd.score(data[510:]), rtol=1e-4)


def test_one_row_and_equal_rows_give_finite_scores():
    for data in (rows([[3, 3]]), rows([[3, 3]] * 16)):
        rnd = make()
        assert np.isfinite(rnd.update(data)["loss"])
        assert np.isfinite(rnd.score(rows([[3, 3], [3.001, 3], [1e9, -1e9]]))).all()


@pytest.mark.parametrize(
    ("options", "space", "sentence"),
    [
        ({"channels": 5}, GREY, "channels=5, but the image has 4; give at most that"),
        ({"keys": ["poze"]}, MANY, "names 'poze', which the observation does not have"),
        ({}, spaces.Dict({"words": spaces.Text(5)}), "(entry 'words'); it takes Box, Discrete, MultiDiscrete"),
    ],
)
def test_bad_settings_are_refused_when_it_is_built(options, space, sentence):
    with pytest.raises(ValueError, match=r"reward[. ]rnd") as error:
        make(space, **options)
    assert sentence in str(error.value)


# -- bad input, to each of them ----------------------------------------------------------------------------------------


def poisoned(field, value):
    """A rollout with one bad number in row 3."""
    batch = random_rollout(BOX, ACTIONS).flatten()
    bad = getattr(batch, field).copy()
    bad[3, 1] = value
    return batch.replace(**{field: bad})


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("case", "field"), [(case, "next_obs") for case in ALL] + [(case, "obs") for case in list(ALL)[4:]]
)
def test_an_observation_that_is_not_finite_is_named_and_nothing_is_learnt_from_it(case, field, value):
    reward = build(case)
    scored = field == "obs" or case != "disagreement"  # which learns from next_obs, but pays before it is known
    reward.update(random_rollout(BOX, ACTIONS, seed=1))
    before = copy.deepcopy(reward.state_dict())
    for call in (reward.update, reward.score) if scored else (reward.update,):
        with pytest.raises(FloatingPointError) as error:
            call(poisoned(field, value))
        assert str(error.value) == (
            f"reward {reward.config.name} was given an observation with {value} at place 1 (row 3 of the batch); "
            "nothing has been learnt from it, fix the environment"
        )
        assert is_equal(before, reward.state_dict())


@pytest.mark.parametrize("case", ["icm", "disagreement", "forward", "hindsight"])
def test_an_action_that_is_not_finite_is_named_and_nothing_is_learnt_from_it(case):
    actions = spaces.Box(-2, 2, (3,))
    reward, batch = build(case, action_space=actions), random_rollout(BOX, actions).flatten()
    before, bad = copy.deepcopy(reward.state_dict()), batch.action.copy()
    bad[5, 2] = np.nan
    for call in (reward.update, reward.score):
        with pytest.raises(FloatingPointError, match=rf"reward {case} was given an action with nan at place 2 \(row 5"):
            call(batch.replace(action=bad))
        assert is_equal(before, reward.state_dict())


@pytest.mark.parametrize("case", ALL)
def test_observations_that_never_vary_give_finite_scores(case):
    reward = build(case)
    data = random_rollout(BOX, ACTIONS).flatten()
    dull = data.replace(obs=np.full_like(data.obs, 1e6), next_obs=np.full_like(data.obs, 1e6))
    for _ in range(3):
        assert all(np.isfinite(value) for value in reward.update(dull).values())
    assert np.isfinite(reward.score(dull)).all()
    assert np.isfinite(reward.score(data.replace(next_obs=data.next_obs * 1e30))).all()


@pytest.mark.parametrize("case", ALL)
def test_one_environment_and_one_row_are_enough(case):
    for steps in (1, 5):
        reward = build(case)
        alone = random_rollout(BOX, ACTIONS, steps=steps, envs=1)
        assert all(np.isfinite(value) for value in reward.update(alone).values())
        score = reward.score(alone.flatten())
        assert score.shape == (steps,)
        assert np.isfinite(score).all()


@pytest.mark.parametrize("case", ALL)
def test_spaces_that_cannot_be_read_are_refused_when_it_is_built(case):
    name = "rdd" if case in ("drnd", "cfn") else case
    with pytest.raises(ValueError, match=rf"reward {name} cannot read the observation space Text\(1, 5"):
        build(case, observation_space=spaces.Text(5))
    if "action" in rewards.get(name).requires:
        with pytest.raises(ValueError, match=rf"reward {name} cannot read the action space Text\(1, 5"):
            build(case, action_space=spaces.Text(5))


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84, 4)], ids=["channels_first", "channels_last"])
@pytest.mark.parametrize("case", ALL)
def test_stacks_of_bytes_are_learnt_from(case, shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    reward = build(case, space, hidden=8, features=8)
    data = random_rollout(space, ACTIONS, steps=2, envs=2)
    assert all(np.isfinite(value) for value in reward.update(data).values())
    score = reward.score(data.flatten())
    assert score.dtype == np.float32
    assert np.isfinite(score).all()
    assert len(set(score.tolist())) == 4


@pytest.mark.parametrize("action_space", [spaces.MultiDiscrete([3, 2]), spaces.Box(-2, 2, (3,)), spaces.MultiBinary(2)])
@pytest.mark.parametrize("case", ["icm", "disagreement", "forward", "hindsight"])
def test_every_kind_of_action_is_read(case, action_space):
    reward, data = build(case, action_space=action_space), random_rollout(BOX, action_space)
    assert all(np.isfinite(value) for value in reward.update(data).values())
    score = reward.score(data.flatten())
    other = data.replace(action=data.action[::-1])
    assert np.isfinite(score).all()
    assert not np.allclose(score, reward.score(other.flatten()))


# -- actions as numbers ------------------------------------------------------------------------------------------------


def test_actions_become_one_hot_blocks_or_numbers_scaled_to_their_bounds():
    discrete = ActionCode(spaces.Discrete(3, start=5), "x")
    assert discrete(np.array([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
    many = ActionCode(spaces.MultiDiscrete([2, 3]), "x")
    assert many(np.array([[1, 2], [0, 1]])).tolist() == [[0, 1, 0, 0, 1], [1, 0, 0, 1, 0]]
    bits = ActionCode(spaces.MultiBinary(2), "x")
    assert bits(np.array([[1, 0]])).tolist() == [[0, 1, 1, 0]]
    box = ActionCode(spaces.Box(np.float32([0, -np.inf]), np.float32([4, np.inf])), "x")
    assert box(np.float32([[4, 7], [1, -3]])).tolist() == [[1, 7], [-0.5, -3]]
    assert [code.size for code in (discrete, many, bits, box)] == [3, 5, 4, 2]


@pytest.mark.parametrize(
    ("space", "actions", "sentence"),
    [
        (spaces.Discrete(3, start=5), [6, 8], r"action 8 at place 0 \(row 1 of the batch\); give 5 to 7,"),
        (spaces.Discrete(3), [-1], r"action -1 at place 0 \(row 0 of the batch\); give 0 to 2,"),
        (spaces.MultiDiscrete([2, 3]), [[1, 2], [2, 0]], r"action 2 at place 0 \(row 1 of the batch\); give 0 to 1,"),
        (spaces.MultiBinary(2), [[0, 2]], r"action 2 at place 1 \(row 0 of the batch\); give 0 to 1,"),
    ],
)
def test_an_action_that_the_space_does_not_have_is_refused(space, actions, sentence):
    with pytest.raises(ValueError, match=f"reward x was given the {sentence}"):
        ActionCode(space, "x")(np.array(actions))


def test_no_rows_are_laid_out_coded_and_scored_as_none():
    data = random_rollout(MANY, ACTIONS, steps=1, envs=1).flatten()[:0]
    rnd = make(MANY)
    assert rnd.layout.flatten(data.next_obs).shape == (0, rnd.layout.size)
    assert rnd.score(data).shape == make().score(rows([[0, 0]])[:0]).shape == (0,)
    assert ActionCode(spaces.MultiDiscrete([2, 3]), "x")(np.zeros((0, 2), int)).shape == (0, 5)
    assert ActionCode(ACTIONS, "x")(np.zeros(0, int)).shape == (0, 2)


@pytest.mark.parametrize("case", ALL)
def test_a_step_of_nothing_but_resets_is_scored_and_learnt_from_without_complaint(case):
    reward, batch = build(case), random_rollout(BOX, ACTIONS, steps=4, envs=2).flatten()
    assert reward.score(batch[:0]).shape == (0,)
    assert reward.update(batch.replace(valid=np.zeros(8, bool))) == {}


def test_a_prediction_costs_cross_entropy_summed_over_blocks_or_squared_error():
    many = ActionCode(spaces.MultiDiscrete([2, 3]), "x")
    prediction = torch.log(torch.tensor([[0.25, 0.75, 0.2, 0.3, 0.5], [0.5, 0.5, 0.1, 0.1, 0.8]]))
    loss = many.loss(prediction, many(np.array([[1, 2], [0, 0]])))
    assert float(loss) == pytest.approx(-np.log([0.75, 0.5, 0.5, 0.1]).sum() / 2, rel=1e-6)
    box = ActionCode(spaces.Box(-1, 1, (2,)), "x")
    assert float(box.loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 3.0]]))) == pytest.approx((1 + 9) / 2)


# -- the base class ----------------------------------------------------------------------------------------------------


class Twice(Learned):
    """Two losses that fall with one weight: w and 3 w."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.module = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(self.module.weight, 5.0)
        self.config.learning_rate = 0.5
        self.train_on(self.module)

    def score(self, batch, memory=None):
        return self.inputs(batch.next_obs).sum(dim=1).numpy()

    def loss(self, x):
        weight = self.module.weight.sum()
        return {"one": weight, "three": 3 * weight}


def test_the_losses_of_a_minibatch_are_added_descended_and_logged_as_means_over_minibatches():
    twice = Twice(LearnedConfig(batch_size=2, max_grad_norm=4.0), BOX, ACTIONS)
    metrics = twice.update(points(4, 0.0))
    # Adam's steps are of length learning_rate: the weight goes 5, 4.5, 4
    assert metrics["one"] == pytest.approx((5 + 4.5) / 2)
    assert metrics["three"] == pytest.approx(3 * (5 + 4.5) / 2)
    assert float(twice.module.weight.detach()) == pytest.approx(4)
    assert float(twice.module.weight.grad) == pytest.approx(4, rel=1e-5)  # of both losses


def test_a_bonus_without_a_loss_is_refused():
    class Silent(Learned):
        def score(self, batch, memory=None):
            return np.zeros(len(batch.step), np.float32)

    with pytest.raises(NotImplementedError, match=r"Silent must define loss\(\)"):
        Silent(LearnedConfig(), BOX, ACTIONS).update(points(3, 0.0))


def test_with_bounds_the_space_whitens_and_nothing_moves():
    space = spaces.Box(np.float32([0, -np.inf]), np.float32([12, np.inf]))
    bounded = make(space, normalize_obs="bounds")
    bounded.update(points(64, 3.0))
    assert bounded.statistics.count == 0
    seen = bounded.inputs(np.float32([[12, 2], [6, 100]])).numpy()
    np.testing.assert_allclose(seen, [[6 / np.sqrt(12), 2], [0, 5]], rtol=1e-6)


def test_with_none_numbers_are_taken_as_they_are():
    plain = make(normalize_obs="none")
    plain.update(points(64, 3.0))
    assert plain.inputs(np.float32([[12, 2], [6, 100]])).tolist() == [[12, 2], [6, 100]]


def test_update_does_nothing_without_a_valid_row():
    rnd = make()
    before = copy.deepcopy(rnd.state_dict())
    assert rnd.update(points(8, 0.0).replace(valid=np.zeros(8, bool))) == {}
    assert is_equal(before, rnd.state_dict())
