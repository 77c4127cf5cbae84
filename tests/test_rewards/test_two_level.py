"""Two levels: a process by hand, asks that are chosen, answers that come late or never."""

import json
import math

import numpy as np
import pytest
from gymnasium import spaces
from rollouts import blank

import rewards
from envs.transitions import Transitions
from rewards.base import Reward, RewardConfig, Scored
from rewards.check import check_reward
from rewards.two_level import Correction, TwoLevel, TwoLevelConfig, choose_informative

LINE, PUSH = spaces.Box(-9.0, 9.0, (1,), np.float32), spaces.Discrete(2)


class Twice(Reward):
    """Twice the cheap one and one more."""

    asked = 0

    def score(self, batch, memory=None):
        type(self).asked += len(batch.step)
        return 2 * batch.next_obs[:, 0] + 1


class Bent(Twice):
    def score(self, batch, memory=None):
        return np.abs(batch.next_obs[:, 0])


class Place(Reward):
    """The cheap one, which may move."""

    moved = 0.0

    def score(self, batch, memory=None):
        return (batch.next_obs[:, 0] * (1 + self.moved)).astype(np.float32)


class Slow(Twice):
    def score(self, batch, memory=None):
        return Scored(super().score(batch), batch.next_obs[:, 0] > 0)


def made(dear="Twice", seed=0, **changes):
    names = {"cheap": "test_two_level:Place", "dear": f"test_two_level:{dear}"}
    return TwoLevel(TwoLevelConfig(**{**names, "every": 10, "queries": 5, **changes}), LINE, PUSH, seed=seed)


def places(x) -> Transitions:
    x = np.asarray(x, np.float32)[..., None]
    return blank(*x.shape[:-1], obs=0 * x, next_obs=x, action=np.zeros(x.shape[:-1], np.int64))


def test_two_answers_at_a_deviation_to_either_side_correlate_by_the_kernel():
    level = Correction()
    level.dear = np.array([1.0, 3.0])
    x = np.array([[0.0], [4.0]])
    level.fit(x, np.zeros(2))  # mean 2, deviation 2: -1 and 1
    assert level.kernel(x, x, 1.0) == pytest.approx(np.array([[1, math.exp(-2)], [math.exp(-2), 1]]))
    assert level.trend[0] == pytest.approx(2.0)  # by symmetry
    weight = 1 / (1 + level.noise - math.exp(-2 / level.length**2))
    near = math.exp(-0.5 / level.length**2) - math.exp(-0.5 / level.length**2)
    assert level.predict(np.array([[2.0]]), np.zeros(1)) == pytest.approx(2 + weight * near)
    share = (1 - math.exp(-2 / level.length**2)) * weight
    assert level.predict(x, np.zeros(2)).tolist() == pytest.approx([2 - share, 2 + share], abs=1e-6)


def test_a_dear_reward_that_is_twice_the_cheap_one_and_one_more_is_known_after_three_answers():
    reward = made(queries=3)
    assert reward.score(places([4.0])).tolist() == [4.0]  # the cheap one, as it is
    metrics = reward.update(places([-1.0, 0.0, 2.0]))
    assert metrics["rho"] == pytest.approx(2) and metrics["asked"] == 3 and metrics["failed"] == 0
    assert reward.score(places([4.0, -3.0])).tolist() == pytest.approx([9.0, -5.0], abs=1e-4)


def test_rows_are_asked_about_whose_answers_say_most_of_the_others():
    alike = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert choose_informative(alike, 0.01, 2).tolist() == [0, 2]
    assert sorted(choose_informative(alike, 0.01, 9).tolist()) == [0, 1, 2]  # none twice


def test_chosen_asks_find_what_random_ones_seldom_meet():
    rng = np.random.default_rng(0)
    crowd = np.concatenate([rng.normal(3, 0.1, 230), rng.uniform(-6, 6, 26)])
    far, errors = places(np.linspace(-6, 6, 50)), {}
    for choose in ("informative", "random"):
        found = []
        for seed in range(5):
            reward = made("Bent", seed=seed, choose=choose, queries=8)
            reward.update(places(crowd))
            found.append(np.abs(reward.score(far) - Bent.score(reward, far)).mean())
        errors[choose] = float(np.mean(found))
    assert errors["informative"] < 0.5 * errors["random"]


def test_the_budget_is_kept_and_rows_that_never_happened_are_not_asked_about():
    reward, Twice.asked = made(budget=12), 0
    batch = places(np.linspace(-5, 5, 40).reshape(20, 2))
    for _ in range(9):
        metrics = reward.update(batch)
    assert (Twice.asked, metrics["asked"], len(reward.asked)) == (12, 12, 12)
    lost = made()
    lost.update(batch.replace(valid=np.zeros((20, 2), bool)))
    assert not lost.correction.given


def test_what_has_no_answer_counts_and_teaches_nothing():
    reward = made("Slow", choose="random")
    assert reward.update(places([-3.0, -2.0]))["failed"] == 1 and not len(reward.asked)
    assert reward.score(places([2.0])).tolist() == [2.0]
    metrics = reward.update(places(np.tile([-1.0, 1.0, 2.0, 3.0], 4)))
    assert metrics["asked"] == 7 and 0 < metrics["failed"] < 1 and len(reward.asked) == 5 - 5 * metrics["failed"]


def test_a_cheap_reward_that_moves_is_fitted_again():
    reward = made(queries=4, budget=4)
    reward.update(places([-1.0, 0.0, 2.0, 3.0]))
    reward.cheap.moved = 1.0
    assert reward.update(places(np.zeros(20)))["rho"] == pytest.approx(1)
    assert reward.score(places([4.0])).tolist() == pytest.approx([9.0], abs=1e-4)


def test_a_judge_of_captions_may_be_the_dear_one(tmp_path):
    file = tmp_path / "labels.jsonl"
    file.write_text(
        "".join(json.dumps({"text": text, "value": value}) + "\n" for text, value in (("up", 1), ("down", 0)))
    )
    options = {"cheap": "effect", "dear": "recorded", "dear_options": {"path": str(file)}, "queries": 3}
    reward = rewards.make({"two_level": options}, LINE, PUSH).streams["two_level"].reward
    assert reward.requires == {"obs", "next_obs", "text"}
    text = np.array(["up", "down", "?"], object)
    found = reward.update(places([1.0, -1.0, 0.0]).replace(text=text))
    assert found["failed"] == pytest.approx(1 / 3)
    assert reward.score(places([1.0, -1.0])).tolist() == pytest.approx([1, 0], abs=0.1)


def test_it_keeps_the_contract():
    check_reward(TwoLevel(TwoLevelConfig(cheap="rnd", every=1, queries=3), LINE, PUSH))
    assert RewardConfig().shape == TwoLevelConfig().shape == "none"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cheap": "count"}, "cheap=count dear=task: one remembers the episode; take rewards that rate a transition"),
        (
            {"cheap_options": {"weight": 2}},
            "cheap_options has weight, which is the two_level's: reward.two_level.weight",
        ),
        ({"dear": "tsak"}, "task"),
        ({"dear": "recorded"}, "the judge recorded needs path"),
        ({"choose": "best"}, "choose='best' is unknown; give one of random, informative"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_levels_that_cannot_be_are_refused(options, why):
    with pytest.raises(ValueError, match=why):
        rewards.make({"two_level": options}, LINE, PUSH)
