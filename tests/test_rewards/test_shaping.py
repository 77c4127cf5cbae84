import numpy as np
import pytest
from test_mix import ACTIONS, OBS, Height, HeightConfig, rollout

import rewards
from envs import recording
from rewards.mix.mix import Mix, Stream
from rewards.mix.shaping import clip, delta, par, potential, sigmoid


def test_potential_telescopes_over_an_episode_that_runs_out_of_time():
    rng = np.random.default_rng(0)
    phi = rng.normal(size=11)
    gamma = 0.9
    rewards = potential(phi[:-1], phi[1:], np.zeros(10, bool), gamma)
    discounted = (gamma ** np.arange(10) * rewards).sum()
    assert discounted == pytest.approx(gamma**10 * phi[-1] - phi[0], abs=1e-6)


def test_potential_is_zero_at_a_terminal_state():
    phi = np.array([1.0, 2.0, 3.0])
    terminated = np.array([False, True])
    rewards = potential(phi[:-1], phi[1:], terminated, 0.5)
    assert rewards.tolist() == [0.5 * 2 - 1, -2]
    assert (0.5 ** np.arange(2) * rewards).sum() == pytest.approx(-phi[0])


def test_delta_sums_to_what_was_gained():
    phi = np.array([0.5, 0.2, 0.9])
    assert delta(phi[:-1], phi[1:]).sum() == pytest.approx(0.4)


def test_clip_is_never_positive():
    assert clip(np.array([0.1, 0.5, 0.9]), 0.5).tolist() == pytest.approx([-0.4, 0, 0])


def test_sigmoid_is_zero_at_its_centre_and_bounded():
    values = sigmoid(np.array([0.3, 1e6, -1e6]), 0.3, 10.0)
    assert values.tolist() == pytest.approx([0, 0.5, -0.5])
    assert sigmoid(np.array([0.4]), 0.3, 10.0)[0] == pytest.approx(1 / (1 + np.exp(-1)) - 0.5)


def stream(**options):
    return Stream("height", Height(HeightConfig(**options), OBS, ACTIONS), gamma=0.5)


def test_par_is_the_mean_chance_to_be_preferred_to_the_references():
    # 1/3 (1 / (1 + e^-1) + 1 / (1 + e^-0.5) + 1 / (1 + e^0.5)), by hand
    references = np.array([0.5, 1.0, 2.0], np.float32)
    assert par(np.array([1.5]), references, 1.0)[0] == pytest.approx(0.57702, abs=1e-5)
    assert par(np.array([1e6, -1e6]), references, 1.0).tolist() == pytest.approx([1, 0])


def test_references_are_quantiles_of_the_first_scores_that_differ_and_stay():
    made = stream(shape="par_step", slope=1.0, references=3, warmup=6)
    flat, first, later = rollout([[0.0]] * 4), rollout([[0.0], [1], [2], [3], [4], [5]]), rollout([[9.0], [8.0]])
    assert made.score(first, None)[0].ravel().tolist() == [0] * 6  # nothing to compare with yet
    for batch in (flat, first, later):
        made.update(batch, made.score(batch, None)[0])
    assert made.references.scores.tolist() == pytest.approx([5 / 6, 2.5, 25 / 6])
    expected = par(np.arange(6, dtype=np.float32), np.float32([5 / 6, 2.5, 25 / 6]), 1.0)
    assert made.score(first, None)[0].ravel() == pytest.approx(expected)
    fresh = stream(shape="par_step", slope=1.0, references=3, warmup=6)
    fresh.load_state_dict(made.state_dict())
    assert fresh.score(first, None)[0].ravel() == pytest.approx(expected)


def test_par_is_a_potential_and_telescopes():
    made = stream(shape="par", slope=1.0, references=2, warmup=2)
    batch = rollout([[1.0], [2], [3]])
    made.update(batch, made.score(batch, None)[0])
    rewards_ = made.score(batch, None)[0].ravel()
    phi = par(np.float32([0, 3]), made.references.scores, 1.0)
    assert (0.5 ** np.arange(3) * rewards_).sum() == pytest.approx(0.5**3 * phi[1] - phi[0], abs=1e-6)


def test_references_of_a_recording_are_there_at_the_first_update(tmp_path):
    batch = rollout([[1.0], [2], [3], [6]])
    recording.save(tmp_path / "a.safetensors", batch.flatten(), {})
    made = stream(shape="par_step", references=1, references_from=str(tmp_path / "a.safetensors"))
    made.update(batch[:1], made.score(batch[:1], None)[0])
    assert made.references.scores.tolist() == [2.5]
    recording.save(
        tmp_path / "b.safetensors", batch.flatten().replace(next_obs=np.zeros((4, 2)), obs=np.zeros((4, 2))), {}
    )
    with pytest.raises(ValueError, match=r"observations of shape \(2,\), these environments \(1,\)"):
        stream(shape="par", references_from=str(tmp_path / "b.safetensors"))


def test_what_adds_up_rewards_refuses_the_least_of_them():
    made = Mix([stream(credit="min")])
    with pytest.raises(ValueError, match=r"reward\.height\.credit=min needs whole rollouts"):
        made.only_sums("agent=sac")
    with pytest.raises(ValueError, match="leave episodic=true"):
        stream(credit="min", episodic=False)
    rewards.make(["task"], OBS, ACTIONS).only_sums("agent=sac")
