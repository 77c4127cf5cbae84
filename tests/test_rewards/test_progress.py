import copy

import numpy as np
import pytest
from gymnasium import spaces
from paths import LINE, TWO, path

import rewards
from envs.recording import save
from envs.transitions import Transitions
from rewards.check import check_reward, random_rollout
from rewards.vision.progress import Progress, ProgressConfig, hop, hop_between

LENGTH = 20.0  # of the line that demonstrations walk


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Three walks along a line, of different speeds."""
    walks = [np.linspace(0, LENGTH, 41), np.linspace(0, LENGTH, 21), np.linspace(0, LENGTH, 31)]
    batch = path(*walks, [0, 0]).flatten()
    file = tmp_path_factory.mktemp("demos") / "line.safetensors"
    save(file, batch[:-1], {"env": "line"})
    return str(file)


@pytest.fixture(scope="module")
def learnt(demos):
    return made(demos)


def made(demos, **config):
    return Progress(ProgressConfig(**{"demos": demos, "of": "obs", "steps": 400, **config}), LINE, TWO)


class Told:
    """Hops as they truly are on a line of length 1, as a perfect network tells them; `lies` moves the backward view."""

    def __init__(self, lies=0.0):
        self.lies = lies

    def predict_hops(self, firsts, before, after):
        first, last, now = (x[..., 0].clip(0, 1) for x in (firsts, before, after))
        goal = np.ones_like(now)
        back = hop_between(goal, now)
        return hop_between(first, now), np.clip(back + self.lies, -1, 1), hop_between(last, now)


def known_hops(reward, lies=0.0, **config):
    """The reward with perfect hops."""
    copied = copy.copy(reward)
    copied.config = ProgressConfig(demos="given", of="obs", **config)
    copied.hops = Told(lies)
    return copied


def phi(reward, *episodes):
    batch = path(*episodes)
    return reward.scan(batch, reward.initial_memory(1))[0][:, 0]


def test_hops_are_shares_of_what_is_left_or_lies_behind():
    p, q = np.array([0, 0.2, 0.5, 1, 1, 0.5, 0]), np.array([0.3, 0.6, 0.25, 0.75, 1, 1, 0])
    np.testing.assert_allclose(hop_between(p, q), [0.3, 0.5, -0.5, -0.25, 0, 1, 0])


def test_a_hop_undoes_what_lies_between_two_states():
    rng = np.random.default_rng(0)
    p, q = rng.random((2, 1000))
    np.testing.assert_allclose(hop(p, hop_between(p, q)), q, atol=1e-12)


def test_reconstructed_progress_never_leaves_0_to_1():
    rng = np.random.default_rng(1)
    now = np.zeros(500)
    for _ in range(50):
        now = hop(now, rng.uniform(-1, 1, 500))
        assert now.min() >= 0 and now.max() <= 1


@pytest.mark.parametrize("view", ["gated", "mean", "forward", "backward", "incremental"])
def test_with_perfect_hops_every_view_tells_the_truth(learnt, view):
    walk = [0, 0.1, 0.4, 0.3, 0.9, 1.0]
    np.testing.assert_allclose(phi(known_hops(learnt, view=view), walk), walk[1:], atol=1e-5)


def test_the_gate_closes_where_forward_and_backward_disagree(learnt):
    # at 0.5 the forward view says 0.5, the backward one 0.1: they are 0.4 apart around 0.3, w = exp(-gate 16 / 9)
    for gate in (0.0, 1.0, 5.0):
        w = np.exp(-gate * (0.4 / 0.3) ** 2)
        expected = 0 + w / 2 * (0.3 - 0 + 0.5)
        assert phi(known_hops(learnt, lies=-0.4, gate=gate), [0, 0.5])[0] == pytest.approx(expected, rel=1e-4)
    assert phi(known_hops(learnt, lies=-0.4, gate=1000.0), [0, 0.5])[0] == 0  # and progress stands still


def test_an_episode_is_measured_from_its_own_first_state(learnt):
    forward = known_hops(learnt, view="forward")
    np.testing.assert_allclose(phi(forward, [0.5, 0.75, 1.0], [0, 0.5, 0.25]), [0.5, 1, 0.5, 0.25], atol=1e-6)


def test_progress_is_used_as_a_potential_that_telescopes(demos):
    config = {"progress": ProgressConfig(demos=demos, of="obs", steps=50)}
    mix = rewards.make(config, LINE, TWO, gamma=0.9)
    batch = path(np.linspace(0, LENGTH, 11), [3, 5, 6], [0, 0])
    batch = batch.replace(terminated=batch.terminated & (np.arange(13)[:, None] > 9))
    batch = batch.replace(truncated=np.arange(13)[:, None] == 9)
    raw, memory = mix.score(batch)
    scan_rewards, progress = raw["progress"][:, 0], phi(mix.streams["progress"].reward, np.linspace(0, LENGTH, 11))
    assert (0.9 ** np.arange(10) * scan_rewards[:10]).sum() == pytest.approx(
        0.9**10 * progress[-1], abs=1e-5
    )  # truncated
    assert scan_rewards[10] + 0.9 * scan_rewards[11] == pytest.approx(0, abs=1e-5)  # terminated: -phi(start) = 0
    assert memory["progress"]["begun"].tolist() == [True] and not mix.relabelable


def test_hops_learnt_on_a_line_rank_its_states(learnt):
    assert learnt.error < 0.1
    walk = np.linspace(0.5, LENGTH - 0.5, 60)
    progress = phi(learnt, walk)
    assert np.corrcoef(np.arange(59), progress.argsort().argsort())[0, 1] > 0.95
    assert progress[-1] - progress[0] > 0.7 and progress.min() >= 0 and progress.max() <= 1


def test_far_beyond_the_demonstrations_progress_stays_in_0_to_1(learnt):
    progress = phi(learnt, [0, -1000.0, 1000.0, 0])
    assert progress.min() >= 0 and progress.max() <= 1


def test_the_same_seed_learns_the_same_hops(demos):
    one, other = (made(demos, steps=20) for _ in range(2))
    walk = np.linspace(0, LENGTH, 9)
    np.testing.assert_array_equal(phi(one, walk), phi(other, walk))


def test_state_holds_the_hops_and_the_goal(demos, learnt):
    other = made(demos, steps=1)
    walk = np.linspace(0, LENGTH, 9)
    assert np.abs(phi(other, walk) - phi(learnt, walk)).max() > 0.05
    other.load_state_dict(copy.deepcopy(learnt.state_dict()))
    np.testing.assert_array_equal(phi(other, walk), phi(learnt, walk))


def test_it_keeps_the_contract_on_observations(demos):
    check_reward(made(demos, steps=5), seeds_differ=True)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A recording with frames: noise that brightens along the way."""
    batch = random_rollout(LINE, TWO, {"frame", "obs_frame"}, steps=9, envs=1).map(lambda x: x[:, 0])
    ends = np.arange(9) == 8
    light = np.linspace(0, 250, 10)[:, None, None, None] + np.arange(64)[None, :, None, None] % 2
    frames = np.broadcast_to(light, (10, 64, 64, 3)).astype(np.uint8)
    batch = batch.replace(
        step=np.arange(9), terminated=ends, truncated=np.zeros(9, bool), frame=frames[1:], obs_frame=frames[:-1]
    )
    file = tmp_path_factory.mktemp("demos") / "seen.safetensors"
    save(file, batch, {})
    return str(file)


def test_it_keeps_the_contract_on_frames(seen):
    reward = Progress(ProgressConfig(demos=seen, steps=5), LINE, TWO)
    assert reward.requires == {"frame", "obs_frame"} and reward.frame_size == 64
    check_reward(reward)


def test_frames_are_needed_for_the_first_state_of_an_episode_too(seen):
    mix = rewards.make({"progress": ProgressConfig(demos=seen, steps=5)}, LINE, TWO)
    assert mix.requires == {"frame", "obs_frame"}
    batch = random_rollout(LINE, TWO, {"frame", "obs_frame"})
    embedded = mix.embed(batch)
    assert embedded.frame is None and set(embedded.extras) == {"clip", "obs_clip"}
    assert isinstance(embedded, Transitions) and np.isfinite(mix.score(embedded)[0]["progress"]).all()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"demos": ""}, r"demos is empty; name a recording"),
        ({"demos": "/nowhere"}, r"demos='/nowhere' is no file"),
        ({"of": "frame"}, r"does not show what of=frame reads \(progress reads frames"),
    ],
)
def test_settings_that_make_no_sense_are_refused(demos, config, words):
    with pytest.raises(ValueError, match=words) as error:
        made(**{"demos": demos, **config})
    assert "reward.progress." in str(error.value)


def test_demonstrations_of_another_environment_are_refused(demos):
    with pytest.raises(ValueError, match=r"record demonstrations in the same environment"):
        Progress(ProgressConfig(demos=demos, of="obs"), spaces.Box(-1, 1, (4,), np.float32), TWO)


def test_only_whole_episodes_above_the_threshold_are_learnt_from(tmp_path):
    batch = path([0, 1], [10, 11, 12], [20, 21], [30, 31, 32]).flatten()  # the last one is cut short
    begun_earlier = batch.replace(step=np.array([5, *batch.step[1:]]), reward=np.array([1, 1, 2, 0, 1, 1], np.float32))
    save(tmp_path / "mixed", begun_earlier, {})
    reward = made(str(tmp_path / "mixed"), threshold=2.0, steps=1)
    assert reward.hops.mean.tolist() == [11]  # of 10, 11 and 12
    no = np.zeros_like(batch.terminated)
    save(tmp_path / "timed", begun_earlier.replace(truncated=batch.terminated, terminated=no), {})
    assert made(str(tmp_path / "timed"), threshold=2.0, steps=1).hops.mean.tolist() == [11]  # an end is an end
    assert made(str(tmp_path / "mixed"), steps=1).hops.mean.item() == pytest.approx((10 + 11 + 12 + 20 + 21) / 5)
    with pytest.raises(ValueError, match=r"holds no whole episode with a return above 9.0"):
        made(str(tmp_path / "mixed"), threshold=9.0)
