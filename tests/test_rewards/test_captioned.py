"""Rewards from captions: the value divided by a power of the visits, counted on one's fingers."""

import numpy as np
import pytest
from gymnasium import spaces
from rollouts import rollout

from rewards.base import Reward
from rewards.check import RANDOM_CAPTIONS, check_reward
from rewards.language.captioned import EPISODE_CAPTIONS, Captioned, CaptionedConfig, key

SPACES = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)
WORTH = {"door": 1.0, "key": 0.5, "wall": 0.0, **dict.fromkeys(RANDOM_CAPTIONS, 1.0)}


class Told(Captioned):
    """Pays what `WORTH` says; what is not there is unknown."""

    Config = CaptionedConfig
    table = WORTH
    asked: list = []

    def value(self, texts):
        self.asked.append(sorted(texts))
        return np.array([self.table.get(text, np.nan) for text in texts], np.float32)


def make(**options):
    return Told(CaptionedConfig(**options), *SPACES)


def rewards_of(reward, batch):
    return reward.scan(batch, reward.initial_memory(batch.shape[1]))[0]


def test_it_keeps_the_contract():
    check_reward(make())


def test_the_third_visit_gives_a_twenty_seventh():
    rewarded = rewards_of(make(), rollout([["door"], ["door"], ["key"], ["door"], ["key"]]))[:, 0]
    np.testing.assert_allclose(rewarded, [1, 1 / 8, 0.5, 1 / 27, 0.5 / 8], rtol=1e-6)


def test_a_caption_repeated_for_ever_yields_no_more_than_zeta_of_three():
    assert rewards_of(make(), rollout([["door"]] * 2000)).sum() == pytest.approx(1.2020569, abs=1e-6)


def test_beta_of_zero_gives_in_full_each_time():
    assert rewards_of(make(beta=0), rollout([["door"]] * 3)).tolist() == [[1], [1], [1]]


def test_an_episode_begins_with_fresh_counts():
    rewarded = rewards_of(make(), rollout([["door"], ["door"], ["door"]], ended=[[False], [True], [False]]))
    np.testing.assert_allclose(rewarded[:, 0], [1, 1 / 8, 1])


def test_environments_are_counted_apart():
    np.testing.assert_allclose(
        rewards_of(make(), rollout([["door", "key"], ["key", "key"]])), [[1, 0.5], [0.5, 0.5 / 8]]
    )


def test_a_state_without_a_caption_gives_nothing_and_is_not_counted():
    reward = make()
    visits, memory = reward.recall(rollout([[""], ["door"], [""], ["door"]]), reward.initial_memory(1))
    assert visits[:, 0].tolist() == [0, 1, 0, 2] and memory["filled"].tolist() == [1]
    np.testing.assert_allclose(rewards_of(reward, rollout([[""], ["door"], [""], ["door"]]))[:, 0], [0, 1, 0, 1 / 8])


def test_rows_that_are_no_transitions_are_not_counted():
    rewarded = rewards_of(make(), rollout([["door"], ["door"], ["door"]], valid=[[True], [False], [True]]))
    np.testing.assert_allclose(rewarded[[0, 2], 0], [1, 1 / 8])


def test_an_unknown_caption_is_not_ready_but_counted():
    reward = make()
    memory = reward.initial_memory(2)
    scored, memory = reward.score(rollout([["dragon", "door"]])[0], memory)
    assert scored.value.tolist() == [0, 1] and scored.ready.tolist() == [False, True]
    assert reward.recall(rollout([["dragon", "key"]]), memory)[0].tolist() == [[2, 1]]


def test_visits_in_the_extras_stand_for_the_memory():
    reward, batch = make(), rollout([["door"], ["door"], ["key"], ["door"]])
    visits, _ = reward.recall(batch, reward.initial_memory(1))
    shuffled = np.array([2, 0, 3, 1])
    old = batch.replace(extras={reward.recalls: visits})[shuffled]
    np.testing.assert_array_equal(reward.scan(old, None)[0], rewards_of(reward, batch)[shuffled])


def test_a_text_is_asked_about_once_until_its_value_changes():
    reward = make()
    Told.asked.clear()
    batch = rollout([["door", "key"], ["key", "door"]])
    rewards_of(reward, batch), rewards_of(reward, batch)
    assert Told.asked == [["door", "key"]]
    reward.forget()
    rewards_of(reward, batch)
    assert len(Told.asked) == 2


def test_texts_kept_at_hand_are_bounded(monkeypatch):
    monkeypatch.setattr("rewards.language.captioned.TEXT_CACHE_SIZE", 10)
    reward = make()
    monkeypatch.setattr(reward, "value", lambda texts: np.ones(len(texts), np.float32))
    for n in range(30):
        assert rewards_of(reward, rollout([[f"picture {n}", "door"]])).tolist() == [[1, 1]]
    assert len(reward._values) <= 13


def test_what_was_unknown_is_asked_about_again():
    reward = make()
    Told.asked.clear()
    rewards_of(reward, rollout([["dragon"]])), rewards_of(reward, rollout([["dragon"]]))
    assert Told.asked == [["dragon"], ["dragon"]]


def test_an_episode_forgets_the_oldest_of_too_many_captions():
    reward = make()
    many = [[f"picture {i}"] for i in range(EPISODE_CAPTIONS)]
    visits, _ = reward.recall(rollout([["door"], *many, ["door"]]), reward.initial_memory(1))
    assert visits[-1, 0] == 1


def test_a_text_has_the_same_key_in_every_process():
    assert key("") == 0
    assert key("You open the door.") == 0x1B76FB6966DF3CE4
    assert key("\ud800") > 0  # half of a surrogate pair is no reason to stop


def test_a_reward_that_recalls_nothing_says_so():
    class Plain(Reward):
        def score(self, batch, memory=None):
            return np.zeros(batch.shape, np.float32)

    with pytest.raises(TypeError, match=r"Plain names no extra in recalls"):
        Plain(CaptionedConfig(), *SPACES).recall(rollout([["door"]]), None)
