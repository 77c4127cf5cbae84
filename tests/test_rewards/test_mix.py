from dataclasses import dataclass

import numpy as np
import pytest
from gymnasium import spaces

import rewards
from envs.transitions import Transitions
from envs.types import Scorer
from lodestar.settings import Schedule
from rewards.base import Reward, RewardConfig, Scored, merge_memory
from rewards.mix.mix import Mix, Stream

OBS, ACTIONS = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)


@dataclass
class HeightConfig(RewardConfig):
    factor: float = 1.0


class Height(Reward):
    Config = HeightConfig

    def score(self, batch, memory=None):
        return (self.config.factor * batch.next_obs[..., 0]).astype(np.float32)


class Age(Reward):
    """Steps since the episode began, kept in memory."""

    relabelable = False

    def initial_memory(self, n):
        return {"age": np.zeros(n, np.int64)}

    def score(self, batch, memory=None):
        return memory["age"].astype(np.float32), {"age": memory["age"] + 1}


def rollout(heights, ended=None, terminated=None, valid=None, reward=None):
    """(T, N) heights of next_obs, episodes ending where told; obs is the previous next_obs, or 0 at a start."""
    heights = np.asarray(heights, np.float32)
    shape = heights.shape
    ended = np.zeros(shape, bool) if ended is None else np.asarray(ended, bool)
    terminated = np.zeros(shape, bool) if terminated is None else np.asarray(terminated, bool)
    step, obs = np.zeros(shape, np.int64), np.zeros((*shape, 1), np.float32)
    for t in range(1, shape[0]):
        step[t] = np.where(ended[t - 1], 0, step[t - 1] + 1)
        obs[t, :, 0] = np.where(ended[t - 1], 0, heights[t - 1])
    return Transitions(
        obs=obs,
        action=np.zeros(shape, np.int64),
        reward=np.zeros(shape, np.float32) if reward is None else np.asarray(reward, np.float32),
        next_obs=heights[..., None],
        terminated=terminated,
        truncated=ended & ~terminated,
        valid=np.ones(shape, bool) if valid is None else np.asarray(valid, bool),
        step=step,
    )


def mix(reward=Height, gamma=0.9, **config):
    return Mix([Stream("height", reward(reward.Config(**config), OBS, ACTIONS), gamma=gamma)])


def test_schedules_start_and_end_where_they_say():
    assert Schedule(0.5)(10**9) == 0.5
    assert Schedule("linear:1:0:100")(np.array([0, 50, 100, 500])).tolist() == [1, 0.5, 0, 0]
    assert Schedule("cosine:1:0:100")(50) == pytest.approx(0.5)
    assert Schedule("exp:1:0.01:100")(50) == pytest.approx(0.1)
    assert Schedule("step:1:0.2:100")(np.array([99, 100])).tolist() == [1, 0.2]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (-1, "at least 0"),
        ("linear:1:0", "neither a number nor KIND:START:END:STEPS"),
        ("parabola:1:0:10", "linear, cosine, exp, step"),
        ("linear:1:-1:10", "at least 0"),
        ("linear:1:0:0", "at least 1 environment step"),
        ("exp:1:0:10", "use linear"),
        ("much", "weight='much'"),
    ],
)
def test_a_weight_that_makes_no_sense_is_refused_at_construction(spec, words):
    with pytest.raises(ValueError, match=words) as error:
        mix(weight=spec)
    assert str(error.value).startswith("reward.height.weight=")


def test_streams_add_up_by_weight():
    both = Mix(
        [
            Stream("one", Height(HeightConfig(weight=2.0), OBS, ACTIONS), gamma=0.9),
            Stream("two", Height(HeightConfig(factor=-1.0, weight=0.5), OBS, ACTIONS), gamma=0.9),
        ]
    )
    raw, _ = both.score(rollout([[1.0, 3.0]]))
    assert raw["two"].tolist() == [[-1, -3]]
    assert both.combine(raw, 0).tolist() == [[1.5, 4.5]]
    assert both.describe() == "2.0 * one + 0.5 * two"
    assert isinstance(both, Scorer)


def test_a_schedule_counts_environment_steps_row_by_row():
    stream = mix(weight="linear:1:0:4")
    raw, _ = stream.score(rollout([[1.0, 1.0], [1.0, 1.0]]))
    assert stream.combine(raw, np.array([[0], [2]])).tolist() == [[1, 1], [0.5, 0.5]]


def test_potential_uses_the_learners_gamma_and_zero_at_terminal_states_only():
    heights = [[1.0], [2.0], [3.0], [1.0], [4.0]]
    batch = rollout(heights, ended=[[0], [0], [1], [0], [1]], terminated=[[0], [0], [0], [0], [1]])
    raw, _ = mix(shape="potential", gamma=0.5).score(batch)
    expected = [0.5 * 1 - 0, 0.5 * 2 - 1, 0.5 * 3 - 2, 0.5 * 1 - 0, 0 - 1]
    assert raw["height"][:, 0].tolist() == pytest.approx(expected)


def test_a_flat_batch_gets_the_same_potential_as_the_rollout():
    batch = rollout([[1.0, 2.0], [3.0, 5.0]])
    shaped = mix(shape="potential")
    flat = batch.flatten()
    np.testing.assert_allclose(
        shaped.score(flat)[0]["height"].reshape(2, 2), shaped.score(batch)[0]["height"], rtol=1e-6
    )


def test_memory_restarts_with_the_episode_and_skips_rows_that_are_no_transitions():
    ended = [[0, 0], [1, 0], [0, 0], [0, 0]]
    valid = [[1, 1], [1, 1], [0, 1], [1, 1]]  # environment 0 spends row 2 on resetting
    aged = Mix([Stream("age", Age(RewardConfig(), OBS, ACTIONS), gamma=0.9)])
    raw, memory = aged.score(rollout(np.zeros((4, 2)), ended=ended, valid=valid))
    assert raw["age"].tolist() == [[0, 0], [1, 1], [0, 2], [0, 3]]
    assert memory["age"]["age"].tolist() == [1, 4]


def test_a_memory_and_a_potential_exclude_each_other():
    with pytest.raises(ValueError, match="remembers the episode; use shape=none or clip"):
        mix(Age, shape="potential")


class Climbed(Height):
    """The highest that the episode has been, 0 at its start: a score of the history that may be a potential."""

    relabelable = False
    starts_at = 0.0

    def initial_memory(self, n):
        return {"top": np.zeros(n, np.float32)}

    def score(self, batch, memory=None):
        top = np.maximum(memory["top"], batch.next_obs[..., 0])
        return top, {"top": top}


CLIMB = [[1.0], [3.0], [2.0], [9.0], [4.0], [1.0]]  # row 3 only resets; the second episode terminates
ENDED = [[0], [0], [1], [0], [0], [1]]


def climb(shape="potential"):
    ends_well = [[0], [0], [0], [0], [0], [1]]
    batch = rollout(CLIMB, ended=ENDED, terminated=ends_well, valid=[[1], [1], [1], [0], [1], [1]])
    return mix(Climbed, gamma=0.5, shape=shape), batch


def test_a_potential_of_the_history_is_measured_from_where_every_episode_starts():
    stream, batch = climb()
    raw, memory = stream.score(batch)
    expected = [0.5 * 1 - 0, 0.5 * 3 - 1, 0.5 * 3 - 3, 0, 0.5 * 4 - 0, 0 - 4]
    assert raw["height"][:, 0].tolist() == expected
    assert {key: value.tolist() for key, value in memory["height"].items()} == {"top": [0], "last score": [0]}
    assert stream.requires == {"next_obs"}


def test_a_potential_of_the_history_telescopes_to_a_constant():
    stream, batch = climb()
    given = stream.score(batch)[0]["height"][:, 0]
    assert (0.5 ** np.arange(3) * given[:3]).sum() == pytest.approx(0.5**3 * 3)  # truncated: gamma^T phi_T - 0
    assert (0.5 ** np.arange(2) * given[4:]).sum() == pytest.approx(0)  # terminated: -0


@pytest.mark.parametrize("shape", ["potential", "delta"])
def test_a_potential_of_the_history_is_given_step_by_step_as_in_a_rollout(shape):
    stream, batch = climb(shape)
    memory, given = stream.initial_memory(1), []
    for t in range(len(CLIMB)):
        raw, memory = stream.score(batch[t], memory)
        given.append(raw["height"])
        fresh, ended = stream.initial_memory(len(batch.ended[t])), batch.ended[t]
        memory = {name: merge_memory(kept, fresh[name], ended) for name, kept in memory.items()}
    np.testing.assert_array_equal(np.stack(given), stream.score(batch)[0]["height"])
    first, memory = stream.score(batch[:2])
    rest, _ = stream.score(batch[2:], memory)
    np.testing.assert_array_equal(np.concatenate([first["height"], rest["height"]]), np.stack(given))


def test_a_scaled_stream_gives_no_reward_until_it_is_warm_then_divides_by_the_statistics_of_the_last_update():
    scaled = mix(scale="std", warmup=4)
    first = rollout([[2.0], [6.0]])
    raw, _ = scaled.score(first)
    assert scaled.combine(raw, 0).tolist() == [[0], [0]]
    scaled.update(first, raw)
    scaled.update(first, raw)
    assert scaled.combine(raw, 0).tolist() == [[1], [3]]  # the standard deviation of 2 and 6 is 2
    before = scaled.state_dict()
    scaled.score(first)
    scaled.combine(raw, 0)
    assert str(scaled.state_dict()) == str(before)


def test_a_frozen_scale_stands_still():
    frozen = mix(scale="std", warmup=0, freeze=2)
    for heights in ([[1.0], [3.0]], [[100.0], [0.0]]):
        batch = rollout(heights)
        frozen.update(batch, frozen.score(batch)[0])
    assert frozen.streams["height"].scale.value == pytest.approx(1.0)


def test_the_ledger_knows_shares_correlation_and_the_learned_return():
    both = Mix(
        [
            Stream("task", rewards.get("task")(RewardConfig(), OBS, ACTIONS), gamma=0.9),
            Stream("height", Height(HeightConfig(weight=3.0), OBS, ACTIONS), gamma=0.9),
        ]
    )
    batch = rollout([[1.0], [2.0], [3.0]], ended=[[0], [1], [0]], reward=[[1.0], [2.0], [3.0]])
    metrics = both.update(batch, both.score(batch)[0])
    assert metrics["reward/height"] == pytest.approx(2.0)
    assert metrics["reward/height_share"] == pytest.approx(0.75)
    assert metrics["reward/height_corr"] == pytest.approx(1.0)
    assert metrics["reward/total"] == pytest.approx(8.0)
    assert metrics["rollout/ep_learned_mean"] == pytest.approx(4 + 8)
    metrics = both.update(batch, both.score(batch)[0])
    assert metrics["rollout/ep_learned_mean"] == pytest.approx(np.mean([12, 12 + 12]))  # row 3 carried over


def test_a_reward_that_is_not_finite_is_named_with_its_place():
    batch = rollout([[1.0, 1.0], [1.0, np.nan]])
    with pytest.raises(FloatingPointError, match="'height' gave nan for environment 1 at step 1 of its episode"):
        mix().score(batch)


def test_replaced_rewards_are_counted_where_they_are_replaced():
    batch, lenient, strict = rollout([[1.0, np.nan]]), mix(), mix()
    lenient.on_nan.what = "zero"
    raw, _ = lenient.score(batch)
    assert raw["height"].tolist() == [[1, 0]]
    assert lenient.update(batch, raw)["reward/nan"] == 1
    assert "reward/nan" not in strict.update(batch, raw)


def test_rows_without_an_answer_give_no_reward():
    class Slow(Height):
        def score(self, batch, memory=None):
            value = super().score(batch)
            return Scored(value, value > 1)

    raw, _ = mix(Slow).score(rollout([[1.0, 3.0]]))
    assert raw["height"].tolist() == [[0, 3]]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"gamma": 99}, r"^reward.height.gamma=99 is out of range; give a number in \(0, 1\]$"),
        ({"scale": "big"}, "^reward.height.scale='big' is unknown; give one of none, return, ema, std$"),
        ({"shape": "round"}, "^reward.height.shape='round' is unknown; give one of none, potential"),
    ],
)
def test_bad_stream_settings_are_refused_with_the_value_and_the_choices(config, words):
    with pytest.raises(ValueError, match=words):
        mix(**config)


def test_a_saved_mix_refuses_the_state_of_another():
    other = Mix([Stream("age", Age(RewardConfig(), OBS, ACTIONS), gamma=0.9)])
    with pytest.raises(ValueError, match=r"the saved mix has \['age'\], this one has \['height'\]"):
        mix().load_state_dict(other.state_dict())


def test_unknown_rewards_get_the_nearest_name():
    with pytest.raises(ValueError, match="there is no reward 'rdn'; did you mean 'rnd'"):
        rewards.make(["rdn"], OBS, ACTIONS)
    with pytest.raises(ValueError, match="mix of no rewards"):
        rewards.make([], OBS, ACTIONS)


def test_registering_a_name_twice_is_refused(monkeypatch):
    monkeypatch.setattr(rewards.table, "registered", {})
    rewards.register("height-for-test", Height)
    assert rewards.get("height-for-test") is Height
    with pytest.raises(ValueError, match="another reward is named 'rnd'"):
        rewards.register("rnd", Height)


def test_references_of_a_reward_that_learns_on_are_said_to_stay_as_they_were():
    class Learning(Height):
        def update(self, batch):
            return {"learned": 1.0}

    (note,) = mix(Learning, shape="par_step").notes()
    assert note.startswith("height: shape=par_step compares with scores from the beginning of training")
    assert mix(Height, shape="par_step").notes() == []
    assert mix(Learning).notes() == []


def test_another_reward_in_the_tasks_place_is_not_taken_for_it():
    class Other(Reward):
        requires = frozenset({"reward"})

        def score(self, batch, memory=None):
            return -batch.reward

    spaces_ = (spaces.Box(-1, 1, (2,)), spaces.Discrete(2))
    assert not Mix([Stream("task", Other(RewardConfig(), *spaces_), gamma=0.9)]).is_task
    assert rewards.make({"task": None}, *spaces_, gamma=0.9).is_task
    assert not rewards.make({"task": rewards.get("task").Config(weight=2.0)}, *spaces_, gamma=0.9).is_task
