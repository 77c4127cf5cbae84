import copy

import gymnasium as gym
import numpy as np
import pytest
from rollouts import blank

import rewards
from rewards.base import Scored
from rewards.check import check_reward
from rewards.vision.clip import ClipConfig, goal_reward
from rewards.vision.contrast import MIN_SCALE_WIDTH, Calibration, Contrast, ContrastConfig
from rewards.vision.encoder import ClipEncoder

UP, DOWN = "pole vertically upright on top of the cart", "the pole is hanging down"
RAW = {"goal": UP, "negative": DOWN, "reference": 0}


def build(**options):
    return Contrast(ContrastConfig(**{"goal": UP, "negative": DOWN, **options}), None, None)


def units(n, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, 64))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def batch_of(seen, valid=None):
    flags = {} if valid is None else {"valid": valid}
    return blank(len(seen), extras={"clip": seen.astype(np.float16)}, **flags)


def text(*sentences):
    return ClipEncoder("lodestar", "").text(list(sentences))


def test_the_contrast_is_half_the_good_cosine_minus_half_the_bad_one():
    seen = units(9)
    good, bad = text(UP, DOWN)
    assert build(**RAW).rate(seen) == pytest.approx(0.5 * seen @ good - 0.5 * seen @ bad, abs=1e-6)


def test_one_weight_is_shared_out_and_several_are_one_a_sentence():
    seen = units(5)
    first, second, bad = text("pole upright", "the rod is straight up", DOWN)
    goal = {"goal": "pole upright | the rod is straight up", "reference": 0, "negative_weight": 0.25}
    shared_out = build(**goal, positive_weight=0.8).rate(seen)
    assert shared_out == pytest.approx(seen @ (0.4 * first + 0.4 * second - 0.25 * bad), abs=1e-6)
    each = build(**goal, positive_weight=[0.1, 0.7]).rate(seen)
    assert each == pytest.approx(seen @ (0.1 * first + 0.7 * second - 0.25 * bad), abs=1e-6)


def test_the_published_numbers_give_the_published_reward():
    """VLM-RL's code: z = cos(s, bad) - cos(s, good); 1 - clip(z, 0, 0.03) / 0.03."""
    seen = units(500)
    good, bad = text(UP, DOWN)
    published = 1 - np.clip(seen @ bad - seen @ good, 0, 0.03) / 0.03
    ours = build(positive_weight=1, negative_weight=1, low=-0.03, high=0, bounded=True).rate(seen)
    assert ours == pytest.approx(published, abs=1e-4)
    assert len(np.unique(ours)) > 20 and {0, 1} <= set(ours.tolist())
    half = build(low=-0.015, high=0, bounded=True).rate(seen)
    assert half == pytest.approx(published, abs=1e-4)


def test_without_a_goal_it_is_lords_distance_from_the_bad_sentence():
    seen = units(50)
    lord = build(goal="", positive_weight=0, negative_weight=1, low=-1, high=0)
    assert lord.rate(seen) == pytest.approx(1 - seen @ text(DOWN)[0], abs=1e-6)


def test_it_ranks_the_poses_of_the_pole_it_was_taught():
    from envs.classic.family import pose
    from envs.render import frame

    env = gym.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=0)
    frames = []
    for degrees in (0, 60, 120, 180):
        pose(env, position=0.3, angle=np.deg2rad(degrees))
        frames.append(frame(env, 64))
    env.close()
    reward = build(**RAW)
    seen = reward.encoder.embed(np.stack(frames), 64).astype(np.float32)
    scores = reward.rate(seen)
    assert (np.diff(scores) < 0).all()
    alone = goal_reward(seen, text(UP)[0], None, 0.0)
    assert np.ptp(reward.rate(seen)) > 0.5 * np.ptp(alone)


def test_the_reward_is_zero_before_the_reference_is_seen_and_its_percentiles_are_zero_and_one_after():
    reward, seen = build(reference=100), units(230)
    z = build(**RAW).rate(seen.astype(np.float16).astype(np.float32))
    early = reward.score(batch_of(seen[:60]))
    assert isinstance(early, Scored) and not early.ready.any()
    assert early.value == pytest.approx(z[:60], abs=1e-6)  # already in their right order
    assert reward.update(batch_of(seen[:60])) == {"blank": 0.0}
    assert isinstance(reward.score(batch_of(seen)), Scored)
    low, high = np.percentile(z[:100], [5, 95])
    metrics = reward.update(batch_of(seen[60:]))
    assert metrics == pytest.approx({"blank": 0.0, "low": low, "high": high}, abs=1e-6)
    rewarded = reward.score(batch_of(seen))
    assert rewarded == pytest.approx((z - low) / (high - low), abs=1e-4) and rewarded.min() < 0 and rewarded.max() > 1
    reward.update(batch_of(units(500, seed=1)))
    assert reward.score(batch_of(seen)).tolist() == rewarded.tolist()  # frozen


def test_bounded_cuts_off_at_zero_and_one():
    reward, free = (build(low=-0.05, high=0.05, bounded=bounded) for bounded in (True, False))
    seen = units(100)
    assert reward.rate(seen).tolist() == np.clip(free.rate(seen), 0, 1).tolist()


def test_rows_that_are_no_transitions_or_show_nothing_are_not_in_the_reference():
    reward, seen = build(reference=10), units(30)
    seen[3] = 0
    valid = np.arange(30) != 5
    reward.update(batch_of(seen, valid))
    z = build(**RAW).rate(seen.astype(np.float16).astype(np.float32))
    chosen = np.delete(np.arange(12), [3, 5])
    assert (reward.calibration.low, reward.calibration.high) == pytest.approx(tuple(np.percentile(z[chosen], [5, 95])))
    assert reward.score(batch_of(seen))[3] == 0


def test_a_reference_without_spread_does_not_blow_noise_up():
    calibration = Calibration(ContrastConfig(**RAW | {"reference": 4}))
    calibration.update(np.full(4, 0.25, np.float32))
    assert calibration(np.array([0.25, 0.25 + MIN_SCALE_WIDTH], np.float32), False) == pytest.approx([0, 1], abs=1e-3)


def test_half_a_reference_survives_a_checkpoint():
    seen = units(100)
    one = build(reference=80)
    one.update(batch_of(seen[:50]))
    two = build(reference=80)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for reward in (one, two):
        reward.update(batch_of(seen[50:]))
    assert one.score(batch_of(seen)).tolist() == two.score(batch_of(seen)).tolist()


def test_the_reference_can_be_a_recording(tmp_path):
    from envs.recording import save

    rng = np.random.default_rng(0)
    frames = np.kron(rng.integers(0, 256, (40, 8, 8, 3), np.uint8), np.ones((1, 8, 8, 1), np.uint8))
    frames[7] = 0
    batch = batch_of(units(40)).replace(frame=frames, extras={})
    save(tmp_path / "some.safetensors", batch, {})
    reward = build(reference_file=str(tmp_path / "some.safetensors"))
    z = build(**RAW).rate(reward.encoder.embed(np.delete(frames, 7, 0), 64).astype(np.float32))
    assert (reward.calibration.low, reward.calibration.high) == pytest.approx(tuple(np.percentile(z, [5, 95])))
    save(tmp_path / "none.safetensors", batch.replace(frame=None), {})
    with pytest.raises(ValueError, match="has no frame that shows anything; record with frames=64"):
        build(reference_file=str(tmp_path / "none.safetensors"))


@pytest.mark.parametrize("options", [{"reference": 8}, {"low": -0.1, "high": 0.1}, {"reference": 0}])
def test_it_keeps_the_contract_of_a_reward(options):
    check_reward(build(**options), gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(3))


def test_it_shares_one_look_at_the_frames_with_clip():
    configs = {"clip": ClipConfig(goal=UP), "contrast": ContrastConfig(**RAW)}
    mix = rewards.make(configs, gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2))
    frames = np.kron(np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)), np.ones((1, 8, 8, 1))).astype(np.uint8)
    looked = []
    with pytest.MonkeyPatch.context() as patch:
        original = ClipEncoder.embed
        patch.setattr(ClipEncoder, "embed", lambda self, *a: (looked.append(1), original(self, *a))[1])
        batch = mix.embed(batch_of(units(6)).replace(frame=frames, extras={}))
    assert looked == [1] and set(batch.extras) == {"clip"} and batch.frame is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"negative": ""}, "reward.contrast.negative is empty; say the opposite of the goal"),
        ({"goal": ""}, "reward.contrast.goal is empty"),
        ({"negative": UP}, "goal and negative mean the same"),
        ({"positive_weight": [0.5, 0.5]}, "positive_weight has 2 numbers for 1 sentences in goal"),
        ({"negative": "a | b | c", "negative_weight": [1, 2]}, "negative_weight has 2 numbers for 3 sentences"),
        ({"negative_weight": 0}, r"negative_weight=\[0.0\] subtracts nothing; make it positive, or use clip"),
        ({"low": 0.1}, "low=0.1 and high=None go together"),
        ({"low": 0.2, "high": 0.1}, "low=0.2 must be below high=0.1"),
        ({"low": float("nan"), "high": 0.1}, r"low=nan is out of range; give a number that is finite"),
        ({"low_percentile": 95, "high_percentile": 5}, "must rise within"),
        ({"negative": "der Stab hängt"}, "reward.contrast.negative has 'ä'"),
        ({"model": "ViT-B-32"}, "reward.contrast.model='ViT-B-32' needs reward.contrast.weights"),
        ({"precision": "int4"}, "reward.contrast.precision='int4'"),
    ],
)
def test_bad_settings_are_refused_with_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        build(**options)
    assert "\n" not in str(caught.value)
