"""Users: a KL by hand, two of opposite wishes distinguished by four answers, whose reward it is, missing answers."""

import copy
import math

import numpy as np
import pytest
import torch
from test_bradley_terry import BOX, PUSH, Says, walk

from envs.make import make, make_vec
from rewards.adapters.guided import add_guides, make_mix
from rewards.adapters.gym import VectorRewardWrapper
from rewards.check import check_reward
from rewards.preference import users
from rewards.preference.users import Users, UsersConfig, divergence

SMALL = {"length": 3, "seed_steps": 4, "every": 8, "queries": 6, "epochs": 3, "hidden": 8, "features": 8, "latent": 2}
MANY = {"queries": 250, "budget": 500, "epochs": 25, "hidden": 32, "features": 32, "length": 4, "held_out": 0.3}


def made(seed=0, **changes):
    return Users(UsersConfig(**{**SMALL, **changes}), BOX, PUSH, seed=seed)


def test_the_kl_has_its_half():
    mean, log_var = torch.tensor([[1.0], [0.0]]), torch.tensor([[math.log(0.25)], [0.0]])
    assert divergence(mean, log_var).tolist() == pytest.approx([0.81815, 0], abs=1e-5)
    assert divergence(torch.ones(1, 3), torch.full((1, 3), math.log(0.25))).item() == pytest.approx(
        3 * 0.818147, abs=1e-5
    )


def test_it_keeps_the_contract():
    check_reward(Users)
    for changes in ({"user": "against"}, {"latent": 0}):
        check_reward(made(**changes))


@pytest.mark.parametrize("latent", [4, 0])
def test_users_of_opposite_wishes_are_told_apart_by_four_answers_and_not_by_one_reward_for_all(latent):
    reward, batch, other = made(**MANY | {"latent": latent}), walk(), walk(seed=1).flatten()
    found = reward.update(batch)
    assert found["labels"] == 500 and found["disagreeing"] == 1
    if not latent:
        assert found["accuracy_disagreeing"] == 0.5 and found["kl"] == 0
        return
    assert found["accuracy_disagreeing"] > 0.85
    scores = {}
    for user in ("for", "against"):
        reward.config.user = user
        scores[user] = reward.score(other)
        assert scores[user].min() >= 0 and scores[user].max() <= 1
    assert (
        np.corrcoef(scores["for"], other.reward)[0, 1] > 0.8 > -0.8 > np.corrcoef(scores["against"], other.reward)[0, 1]
    )
    assert abs(scores["for"].mean() - 0.5) < 0.1 and abs(scores["against"].mean() - 0.5) < 0.1  # one scale for both


def test_a_reward_is_the_share_of_references_that_a_state_is_better_than():
    reward = made(latent=1, normalize_obs="none")
    reward.labelled.fits, reward.labelled.references = 1, np.float32([[0, 0], [1, 0]])
    reward.labelled.z = np.float32([[2], [-1]])
    reward.rate = lambda state, z: (state[..., 0] * z[..., 0]).reshape(
        np.broadcast_shapes(state.shape[:-1], z.shape[:-1])
    )
    batch = walk(steps=1, envs=2).flatten().replace(next_obs=np.float32([[3, 0], [0, 0]]))
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    assert reward.score(batch).tolist() == pytest.approx([(sigmoid(6) + sigmoid(4)) / 2, (0.5 + sigmoid(-2)) / 2])
    reward.config.user = "against"
    assert reward.score(batch)[0] == pytest.approx((sigmoid(-3) + sigmoid(-2)) / 2)


def test_every_episode_serves_the_next_user_whose_z_stands_beside_the_observation():
    env = make("lodestar/PointMaze-v0")
    options = {"users": {**SMALL, "user": "all", "latent": 3, "length": 2}}
    mix = make_mix(options, env.observation_space, env.action_space)
    users = mix.streams["users"].reward
    users.labelled.z[:] = [[1, 2, 3], [4, 5, 6]]
    single, vector = (
        add_guides(env, mix),
        make_vec("lodestar/PointMaze-v0", 3, seed=0, backend="gym", max_episode_steps=5),
    )
    assert [single.reset(seed=0)[0][2:].tolist() for _ in range(3)] == [[1, 2, 3], [4, 5, 6], [1, 2, 3]]
    vector = VectorRewardWrapper(add_guides(vector, mix), mix, update_every=12)
    obs, served = vector.reset(seed=0)[0], []
    for _ in range(12):
        served.append(obs[:, 2].copy())
        before = users.labelled.z.copy()
        obs, reward, *_ = vector.step(vector.action_space.sample())
    turns = np.array(served)
    assert (
        turns[:4].tolist() == [[1, 4, 1]] * 4 and users.labelled.fits > 0 and reward.any()
    )  # learnt from the fourth on
    assert len({*map(tuple, turns[4:10].round(4).tolist())}) > 1 and obs.shape == (3, 5)
    state = vector.env.snapshot()
    after = vector.step(np.zeros((3, 2), np.float32))[0].copy()
    vector.env.restore(state)
    np.testing.assert_array_equal(vector.step(np.zeros((3, 2), np.float32))[0], after)
    assert before.shape == (2, 3)


def test_a_stored_observation_is_scored_for_the_user_it_was_seen_for():
    one, every = made(), Users(UsersConfig(**SMALL, user="all"), type(BOX)(-1, 1, (4,), np.float32), PUSH)
    batch = walk()
    one.update(batch)
    beside = np.tile(one.labelled.z[1], (*batch.shape, 1))
    seen = batch.replace(next_obs=np.concatenate([batch.next_obs, beside], axis=-1))
    every.load_state_dict(copy.deepcopy(one.state_dict()))
    one.config.user = "against"
    assert np.array_equal(every.score(seen.flatten()), one.score(batch.flatten())) and every.relabelable


def test_a_user_who_does_not_answer_is_the_average_and_training_goes_on():
    reward = made()
    reward.labelled.judges["against"] = Says(lambda a, b: 1 / 0)
    found = reward.update(walk())
    use = reward.judge_use()
    assert (use.asked, use.answered, use.labels) == (12, 6, 6) and "division by zero" in use.failure
    assert found["labels"] == 6 and not reward.labelled.z[1].any() and reward.labelled.z[0].any()
    assert "no answers yet of against, for whom z is 0" in reward.notes() and "division by zero" in reward.notes()[-1]


def test_a_question_is_worth_what_its_answer_says_about_the_user():
    reward = made(latent=1)
    reward.rate = lambda state, z: 100 * state[..., 0] * z[..., 0]
    pairs = torch.zeros(3, 2, 3, 2)
    pairs[0, 1, :, 0] = 1  # The sign of z decides: one bit.
    pairs[1, :, :, 0] = 1  # Both sides are equal, so that everybody answers at random.
    pairs[2, 1, :, 0] = 1
    mean, certain = torch.zeros(1, 1), torch.full((1, 1), -20.0)
    worth = reward.information(pairs, mean, torch.zeros(1, 1))
    assert worth[[0, 2]] == pytest.approx([math.log(2)] * 2, abs=0.05) and worth[1] == pytest.approx(0, abs=1e-6)
    assert reward.information(pairs, torch.ones(1, 1), certain) == pytest.approx([0, 0, 0], abs=1e-6)


def test_somebody_new_is_known_by_a_few_answers_and_served(monkeypatch):
    reward, other = made(**MANY | {"latent": 4}), walk(seed=1).flatten()
    reward.update(walk())
    before = copy.deepcopy(reward.labelled.z)
    for mistakes, sign in ((0.0, 1), (1.0, -1)):
        new = reward.judge_of("carl", {"mistakes": mistakes}, 2)
        z, count = reward.infer(new, 2)
        assert count == 2 and z.shape == (4,)
        with reward.serving(z):
            assert np.array_equal(reward.guide(np.arange(3)), [z] * 3)
        reward.labelled.z[0] = z
        assert sign * np.corrcoef(reward.score(other), other.reward)[0, 1] > 0.8
        reward.labelled.z[:] = before
    assert np.array_equal(reward.guide(np.arange(3)), before[[0, 1, 0]])
    # Who answers nothing is asked about every pair.
    monkeypatch.setattr(users, "CANDIDATE_PAIRS", 10)
    assert reward.infer(Says(lambda a, b: np.full(a.shape[1], np.nan)), 2)[1] == 0
    assert reward.infer(Says(lambda a, b: 1 / 0), 2)[1] == 0 and "division by zero" in reward.failure


def test_an_answer_is_judged_by_others_of_its_user_and_never_by_itself():
    reward = made(answers=40)
    reward.labelled.user = np.array([0, 1, 0, 1, 0, 1, 2])
    learnt = np.array([0, 1, 2, 3, 6])
    drawn = reward.examples(np.arange(7), learnt)
    assert drawn.shape == (7, 40)
    assert [{*row} for row in drawn.tolist()] == [{2}, {3}, {0}, {1}, {0, 2}, {1, 3}, {6}]  # 4 and 5 are held out


def test_it_continues_where_it_was_saved_with_every_judge_of_its_own():
    users = {"a": {"mistakes": 0.4}, "b": {"mistakes": 0.6}}
    one, two = made(users=users), made(users=users, seed=5)
    batch = walk(steps=24)
    one.update(batch[:12])
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for reward in (one, two):
        reward.update(batch[12:])
    assert np.array_equal(one.labelled.label, two.labelled.label)
    assert np.array_equal(one.score(batch.flatten()), two.score(batch.flatten()))


def test_users_that_cannot_be_are_refused(tmp_path):
    (tmp_path / "ann.csv").write_text("first,second,label\n")
    for changes, words in (
        ({"users": {}}, r"reward\.users\.users=\{\} names none"),
        ({"user": "carl"}, r"reward\.users\.user=carl is unknown; give one of for, against, or all"),
        ({"users": {"ann": {"judge": "recorded", "path": f"{tmp_path}/ann.csv"}}}, r"ann has no answers in .*ann\.csv"),
        ({"users": {"ann": {"judge": "scipted"}}}, r"no judge 'scipted'; did you mean 'scripted'\?"),
        ({"users": {"ann": {"judge": "vlm", "goal": "a pole", "model": "m"}}}, r"the judge of ann reads frames"),
    ):
        with pytest.raises(ValueError, match=words):
            made(**changes)
