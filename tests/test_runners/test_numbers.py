"""Numbers that are none stop a run before they are learnt from, are named, and are kept; or pay nothing."""

import numpy as np
import pytest
import torch

import rewards
from envs.transitions import NotFinite, OnNan, is_finite, refuse
from rewards.exploration.rnd import RND, RNDConfig
from rewards.mix.mix import GuardedUpdates
from tests.faults import numbers

pytestmark = pytest.mark.usefixtures("short_fits")
STEPS = np.array([[0, 7], [1, 8], [2, 0]])  # (T, N)


@pytest.fixture(scope="module", autouse=True)
def _imports():
    numbers._ready()


@pytest.mark.parametrize(
    ("agent", "kind"),
    [
        *(("ppo", kind) for kind in numbers.KINDS),
        pytest.param("sb3_ppo", "observation", marks=pytest.mark.nightly),
        ("dqn", "reward"),
        pytest.param("dqn", "action", marks=pytest.mark.nightly),
        pytest.param("sac", "score", marks=pytest.mark.nightly),
        ("dyna", "reward"),
    ],
)
def test_a_number_that_is_none_ends_the_run_in_a_sentence_and_spoils_no_checkpoint(tmp_path, agent, kind):
    assert numbers.nan_of(agent, kind, tmp_path / "run") == ""


@pytest.mark.parametrize("fault", [numbers.zero, numbers.exploding, numbers.spoilt_model])
def test_rewards_that_are_none_or_explode_are_outlived(tmp_path, fault):
    found = fault(tmp_path, True)
    assert (found.failed, found.trials) == (0, 1), found.words


@pytest.mark.parametrize("agent", [pytest.param("dqn", marks=pytest.mark.nightly), "sb3_ppo"])
def test_with_zero_every_agent_goes_on(tmp_path, agent):
    assert numbers.train(agent, tmp_path / "run", "reward", "reward=task", "on_nan=zero") == 0
    assert numbers.sound(tmp_path / "run") and not (tmp_path / "run" / "nan.npz").exists()


def test_what_was_wrong_is_written_down(tmp_path, capsys):
    assert numbers.train("ppo", tmp_path / "run", "observation", "reward=task") == 4
    assert f"(the step is in {tmp_path / 'run' / 'nan.npz'})" in capsys.readouterr().err
    with np.load(tmp_path / "run" / "nan.npz", allow_pickle=False) as found:
        assert np.isposinf(found["next_obs"][1]) and np.isfinite(found["obs"]).all()
        assert (int(found["environment"]), int(found["step"])) == (0, 19)
        assert found["action"].shape == () and np.isfinite(found["reward"])


def test_the_first_number_that_is_none_is_named():
    reward, obs = np.zeros((3, 2), np.float32), np.zeros((4, 2, 5), np.float32)
    action = np.zeros((3, 2, 1), np.float32)
    refuse({"reward": reward, "observation": obs, "action": action}, STEPS)
    reward[2, 0] = np.nan
    with pytest.raises(NotFinite, match=r"environment 0 gave the reward nan at step 2 of its episode \(stream task\)"):
        refuse({"observation": obs, "reward": reward}, STEPS)
    obs[2, 1, 4] = -np.inf  # where the second step led to
    with pytest.raises(NotFinite, match=r"environment 1 gave the observation -inf at step 8 of") as caught:
        refuse({"reward": reward, "observation": obs}, lambda: STEPS, {"next_obs": obs[1:], "reward": reward})
    assert caught.value.kept["next_obs"].tolist() == [0, 0, 0, 0, -np.inf] and caught.value.kept["step"] == 8
    action[1, 1] = np.nan  # which the second step took: it comes before what followed
    with pytest.raises(NotFinite, match=r"the policy gave environment 1 the action nan at step 8 of its episode"):
        refuse({"reward": reward, "observation": obs, "action": action}, STEPS)


def test_entries_of_dicts_tensors_and_single_steps_are_looked_at():
    given = {"position": np.zeros((2, 3), np.float32), "picture": np.zeros((2, 4, 4), np.uint8)}
    refuse({"observation": given}, np.array([4, 5]))
    given["position"][1, 0] = np.nan
    with pytest.raises(NotFinite, match=r"environment 1 gave the observation 'position' nan at step 5 of its episode"):
        refuse({"observation": given}, np.array([4, 5]), {"obs": given})
    assert not is_finite(given) and not is_finite(torch.tensor([1.0, torch.inf]))
    assert is_finite(np.full(4, 3e38, np.float32))  # whose sum overflows


def test_zero_pays_nothing_for_what_is_none_and_counts_it():
    on_nan, reward = OnNan("zero"), np.array([1, np.nan, -np.inf], np.float32)
    assert on_nan(reward).tolist() == [1, 0, 0] and on_nan(torch.from_numpy(reward)).tolist() == [1, 0, 0]
    assert on_nan.zeroed == 4
    sound = np.ones(3, np.float32)
    assert on_nan(sound) is sound and OnNan()(reward) is reward


def made(seed=0):
    spaces = numbers.SpoiltWorld.observation_space, numbers.SpoiltWorld().action_space
    return RND(RNDConfig(features=4, hidden=4), *spaces, seed=seed)


def batch(value=0.5):
    mix = rewards.make(["task"], numbers.SpoiltWorld.observation_space, numbers.SpoiltWorld().action_space)
    assert mix.on_nan.what == "stop"
    from rewards.check import random_rollout

    return random_rollout(
        numbers.SpoiltWorld.observation_space, numbers.SpoiltWorld().action_space, steps=8, seed=0
    ).flatten()


def test_weights_that_became_no_numbers_come_back_at_once():
    reward = made()
    learning = GuardedUpdates(reward)
    learning.update(batch())
    good = [weight.detach().clone() for weight in reward.trained]
    with torch.no_grad():
        reward.trained[0].fill_(torch.nan)
    metrics = learning.update(batch())
    assert (metrics["skipped"], metrics["restored"]) == (1, 1)
    assert all(bool(weight.isfinite().all()) for weight in reward.trained)
    assert max(float((one - two).detach().abs().max()) for one, two in zip(good, reward.trained)) < 0.01


def test_what_learning_counted_is_saved():
    learning = GuardedUpdates(made())
    learning.skipped, learning.restored = 3, 1
    other = GuardedUpdates(made())
    other.load_state_dict(learning.state_dict())
    assert (other.skipped, other.restored) == (3, 1)
