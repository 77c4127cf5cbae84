import math

import gymnasium as gym
import numpy as np
import pytest
from rollouts import blank

import rewards
from benchmarks.goals import GapAdvised, GapAdvisedConfig
from envs.driving.vehicle import VEHICLE
from rewards.base import Scored
from rewards.check import check_reward
from rewards.vision.clip import Clip, ClipConfig
from rewards.vision.contrast import Contrast, ContrastConfig
from rewards.vision.synthesis import Synthesis, SynthesisConfig

CLEAR, CRASH = "The road is clear with no car accidents", "Two cars have collided with each other on the road"
SPACES = (gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3))
SENTENCES = {"goal": CLEAR, "negative": CRASH}
CONSTANT = {"semantics": "constant", "history": 0}


def build(**options):
    return Synthesis(SynthesisConfig(**options), *SPACES)


def car(**changes):
    plain = dict(zip(VEHICLE, (25.0, 0, 0, 1, 0, 0, 100, 0.5, 25.0)))
    return [{**plain, **changes}[name] for name in VEHICLE]


def batch_of(*cars, seen=None):
    signals = np.array(cars, np.float32)
    extras = {} if seen is None else {"clip": seen.astype(np.float16)}
    return blank(len(signals), signals=signals, extras=extras)


def units(n):
    x = np.random.default_rng(0).normal(size=(n, 64))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def test_on_a_clear_road_each_factor_falls_in_a_straight_line():
    reward = build(**CONSTANT, target_speed=20)
    rewarded = reward.score(
        batch_of(
            car(speed=20),
            car(speed=15),  # 1 - 5 / 20
            car(speed=45),  # beyond twice the target: not below 0
            car(speed=20, lane_offset=-1.5),  # 1 - 1.5 / 3
            car(speed=20, heading=math.pi / 6),  # 1 - 30 / 90
            car(speed=10, lane_offset=1.5, heading=-math.pi / 4),
            car(speed=20, lane_offset=3.5),
        )
    )
    assert rewarded.dtype == np.float32
    assert rewarded.tolist() == pytest.approx([1, 0.75, 0, 0.5, 2 / 3, 0.125, 0])


def test_the_road_sets_the_target_where_no_speed_is_given():
    rewarded = build(**CONSTANT).score(batch_of(car(speed=15, speed_limit=30), car(speed=15, speed_limit=20)))
    assert rewarded.tolist() == pytest.approx([0.5, 0.75])
    assert np.isfinite(build(**CONSTANT).score(batch_of(car(speed_limit=0)))).all()


def test_a_crash_and_leaving_the_road_pay_the_penalty_alone():
    rewarded = build(**CONSTANT, penalty=-7).score(batch_of(car(crashed=1), car(on_road=0), car()))
    assert rewarded.tolist() == [-7, -7, 1]


def test_danger_lowers_the_speed_of_the_highest_reward():
    """r = 0.25 of 20 m/s: 5 m/s is right, 20 is wrong by 15."""
    options = {**SENTENCES, "history": 0, "target_speed": 20.0, "low": -1.0, "high": 1.0}
    reward = build(**options)
    contrast = Contrast(ContrastConfig(**SENTENCES, low=-1.0, high=1.0, bounded=True), *SPACES)
    seen = units(3)
    share = contrast.rate(seen.astype(np.float16).astype(np.float32))
    speeds = np.array([5, 12, 20], np.float32)
    expected = 1 - np.abs(speeds - share * 20) / 20
    assert reward.score(batch_of(*(car(speed=v) for v in speeds), seen=seen)) == pytest.approx(expected, abs=1e-5)


def test_the_oracle_of_the_study_driving_advises_by_the_true_gap():
    reward = GapAdvised(GapAdvisedConfig(history=0, target_speed=30), *SPACES)
    rewarded = reward.score(batch_of(car(speed=15, gap=25), car(speed=15, gap=80), car(speed=6, gap=0)))
    assert rewarded.tolist() == pytest.approx([1, 0.5, 0.8])  # |15 - 15|, |15 - 30| and |6 - 0| of 30


@pytest.mark.parametrize("semantics", ["lord", "clip", "binary"])
def test_other_semantics_set_the_speed_in_the_same_way(semantics):
    seen = units(40)
    exact = seen.astype(np.float16).astype(np.float32)
    part = {
        "lord": lambda: Contrast(
            ContrastConfig(**SENTENCES, positive_weight=0, negative_weight=1, low=-0.2, high=0.2), *SPACES
        ).rate(exact),
        "clip": lambda: Clip(ClipConfig(goal=CLEAR), *SPACES).rate(exact),
        "binary": lambda: (Clip(ClipConfig(goal=CLEAR, threshold=0.05), *SPACES).rate(exact) + 1) / 2,
    }[semantics]()
    share = np.clip(part, 0, 1)
    assert np.ptp(share) > 0.1
    reward = build(**SENTENCES, semantics=semantics, history=0, threshold=0.05, low=-0.2, high=0.2, target_speed=25)
    rewarded = reward.score(batch_of(*(car(speed=10) for _ in seen), seen=seen))
    assert rewarded == pytest.approx(1 - np.abs(10 - share * 25) / 25, abs=1e-5)


def test_steadiness_is_the_deviation_of_the_latest_offsets():
    reward = build(semantics="constant", history=3, max_offset=1000)
    memory = reward.initial_memory(2)
    offsets = np.array([[0.1, 0.0], [0.5, 0.0], [-0.2, 0.3], [0.3, 0.3], [0.0, 0.6]], np.float32)
    for t, row in enumerate(offsets):
        rewarded, memory = reward.score(batch_of(*(car(lane_offset=x) for x in row)), memory)
        deviation = offsets[max(0, t - 2) : t + 1].std(axis=0)
        assert rewarded == pytest.approx((1 - deviation / 0.4) * (1 - np.abs(row) / 1000), abs=1e-5)


def test_a_memory_keeps_replay_from_computing_it_again_and_none_does_not():
    assert not build(semantics="constant").relabelable and build(**CONSTANT).relabelable
    assert build(**CONSTANT).initial_memory(4) is None


def test_the_control_needs_no_frame_no_sentence_and_no_model():
    reward = build(semantics="constant")
    assert reward.requires == {"signals"} and reward.frame_size is None and reward.embedding is None
    mix = rewards.make({"synthesis": SynthesisConfig(semantics="constant")}, *SPACES)
    assert mix.requires == {"signals"} and mix.frame_size is None
    assert "the control" in mix.notes()[0]
    assert build(**SENTENCES).requires == {"frame", "signals"} and Synthesis.control == {"semantics": "constant"}


def test_nothing_is_ready_before_the_contrast_is():
    reward = build(**SENTENCES, reference=20, history=0)
    seen = units(30)
    batch = batch_of(*(car(speed=10, crashed=i == 3) for i in range(30)), seen=seen)
    early = reward.score(batch)
    assert isinstance(early, Scored) and not early.ready.any()
    metrics = reward.update(batch)
    assert metrics["failed"] == pytest.approx(1 / 30) and 0 < metrics["advised"] < 1 and metrics["blank"] == 0
    rewarded = reward.score(batch)
    assert rewarded[3] == -10 and np.ptp(np.delete(rewarded, 3)) > 0.1


@pytest.mark.parametrize(
    "options", [{"reference": 8}, {"semantics": "clip", "history": 0}, {"semantics": "constant", "history": 4}]
)
def test_it_keeps_the_contract_of_a_reward(options):
    check_reward(build(**SENTENCES, **options), *SPACES)


def test_what_is_no_vehicle_is_refused_with_one_sentence():
    batch = batch_of(car())
    with pytest.raises(ValueError, match="synthesis reads a vehicle's signals; make"):
        build(**CONSTANT).score(batch.replace(signals=None))
    with pytest.raises(ValueError, match="signals of 3 columns are no vehicle's"):
        build(**CONSTANT).score(batch.replace(signals=np.zeros((1, 3), np.float32)))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({**SENTENCES, "semantics": "binary"}, "needs reward.synthesis.threshold; VLM-SR has 0.32"),
        ({"goal": CLEAR}, "reward.synthesis.negative is empty"),
        ({"semantics": "clip"}, "reward.synthesis.goal is empty"),
        ({"alpha": 2, **SENTENCES}, r"alpha=2 is out of range; give a number in \[0, 1\]"),
        ({**SENTENCES, "low": 1.0}, "reward.synthesis.low=1.0 and high=None go together"),
    ],
)
def test_bad_settings_are_refused_with_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        build(**options)
    assert "\n" not in str(caught.value)
