import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from paths import PLANE, TWO, path

from envs.make import make, make_vec
from envs.recording import save
from rewards.adapters.ending import Ending, add_endings
from rewards.adapters.gym import RewardWrapper, VectorRewardWrapper
from rewards.check import check_reward, random_rollout
from rewards.demonstrations.success import EPISODES_A_HELD_OUT, ROWS_A_SLOPE_PENALTY, Success, SuccessConfig
from rewards.mix.mix import Mix, Stream

BOX = spaces.Box(-1, 1, (4,), np.float32)
UPRIGHT = "lodestar/CartPoleUpright-v0"


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    """Twelve walks along x from 0 to about 10, where they terminate."""
    rng = np.random.default_rng(0)
    walks = [np.stack([np.linspace(0, 9 + 2 * rng.random(), 12), rng.normal(size=12)], 1) for _ in range(12)]
    batch = path(*walks, np.zeros((2, 2))).flatten()
    save(file := tmp_path_factory.mktemp("walks") / "walks.safetensors", batch[:-1], {})
    return str(file)


def made(goals, **options):
    return Success(SuccessConfig(**{"goals": goals, "steps": 200, "hidden": 32, **options}), PLANE, TWO)


def along(*places, y=0.0):
    """One episode from the origin over places on x."""
    return path([(0.0, 0.0), *((x, y) for x in places)])


def known(reward, bar=5.0):
    """The reward with a classifier that says success from a place on."""
    reward.logits = lambda batch: np.where(batch.next_obs[..., 0] >= bar, 1.0, -1.0).astype(np.float32)
    return reward


@pytest.fixture(scope="module")
def learnt(walks):
    return made(walks)


def test_states_like_the_ends_of_episodes_are_successes(learnt):
    assert learnt.score(along(0.5, 3.0, 6.0, 10.5, 10.0).flatten()).tolist() == [0, 0, 0, 1, 1]


def test_the_slope_is_the_gradient_of_the_log_odds_along_whitened_states(learnt):
    classifier = learnt.classifier
    states = torch.randn(2 * ROWS_A_SLOPE_PENALTY, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    dropout = torch.ones(len(states), 32)
    every_so_many = classifier(classifier.first(states))[::ROWS_A_SLOPE_PENALTY]
    (slope,) = torch.autograd.grad(every_so_many.sum(), states)
    expected = slope[::ROWS_A_SLOPE_PENALTY].square().sum(1).mean()
    found = learnt._squared_slope(classifier.first(states), dropout)
    torch.testing.assert_close(found, expected)


def test_no_row_that_it_is_judged_by_was_learnt_from(learnt):
    goals, others = learnt.goals, learnt.others
    held_out = 12 // EPISODES_A_HELD_OUT
    assert [len(rows) for rows in goals] == [12 - held_out, held_out] and len(others[0]) == 10 * len(goals[0])
    for learned, kept in (goals, others):
        assert not np.isin(kept, learned).any()
    assert set(learnt.errors()) == {"false_positive", "false_negative"} and max(learnt.errors().values()) < 0.5


def test_successes_in_a_row_are_counted_within_an_episode(walks):
    one = known(made(walks, steps=0, consecutive=3))
    walks = [0, 6, 7, 4, 6, 7, 8, 9], [0, 6, 7, 8]
    batch = path(*(np.stack([np.array(x), np.zeros(len(x))], 1) for x in walks))
    whole, memory = one.scan(batch, one.initial_memory(1))
    assert whole[:, 0].tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 1] and memory["run"].tolist() == [3]
    kept = one.recall(batch, one.initial_memory(1))[0]
    assert kept[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2]


def test_what_fooled_it_stops_earning_when_it_goes_on_learning(walks):
    fooled, wise = made(walks), made(walks, online=True, learning_rate=3e-3, batch_size=16)
    far = along(*[20.0] * 60, y=8.0)  # beyond all examples
    for _ in range(60):
        metrics = wise.update(far)
    assert fooled.update(far)["unrewarded"] == 1 and fooled.score(far.flatten()).all()
    assert not wise.score(far.flatten()).any() and wise.score(along(10.0).flatten())[0] == 1
    assert metrics["false_negative"] == 0


def test_a_loss_that_is_not_finite_moves_no_weight(walks):
    reward = made(walks)
    weights = {name: value.clone() for name, value in reward.classifier.state_dict().items()}
    assert np.isnan(reward.learn(np.full_like(reward.others[0], np.nan), 2))
    assert all((value == weights[name]).all() for name, value in reward.classifier.state_dict().items())
    assert np.isfinite(reward.learn(reward.others[0], 2))
    assert any((value != weights[name]).any() for name, value in reward.classifier.state_dict().items())


def test_logits_are_given_as_they_are_and_have_no_successes_to_count(walks):
    assert made(walks, value="logit").score(along(0.5, 10.0).flatten()) == pytest.approx([-5, 5], abs=15)
    with pytest.raises(ValueError, match=r"value=logit has no successes to count \(consecutive=2, ends=False\)"):
        made(walks, value="logit", consecutive=2)


@pytest.mark.parametrize("options", [{}, {"online": True}, {"consecutive": 2}, {"value": "logit"}])
def test_every_kind_keeps_the_contract(tmp_path, options):
    save(file := tmp_path / "random.safetensors", random_rollout(BOX, TWO, steps=9, seed=1).flatten(), {})
    files = {"goals": str(file), "others": str(file), "which": "all"}
    config = SuccessConfig(**files, steps=5, hidden=8, batch_size=16, **options)
    check_reward(Success(config, BOX, TWO))


def test_recordings_without_goals_or_without_anything_else_are_refused(walks, tmp_path):
    save(file := tmp_path / "lost.safetensors", along(*range(20)).flatten(), {})
    with pytest.raises(ValueError, match=r"has no episode that terminated; take reward\.success\.which=all if"):
        made(str(file))
    with pytest.raises(ValueError, match=r"shows nothing but goals; .* reward\.success\.online=true"):
        made(str(file), which="all")
    assert set(made(str(file), which="all", others=walks).errors()) == {"false_positive"}
    with pytest.raises(ValueError, match=r"walks\.safetensors has no frames; record with frames=64, or take of=obs"):
        made(walks, of="frame")


def always(env, folder):
    """A mix that sees success everywhere, and believes it at the third step."""
    save(file := folder / "some.safetensors", random_rollout(env.observation_space, env.action_space).flatten(), {})
    config = SuccessConfig(goals=str(file), steps=0, ends=True, consecutive=3)
    reward = Success(config, env.observation_space, env.action_space)
    reward.logits = lambda batch: np.ones(batch.shape, np.float32)
    return Mix([Stream("success", reward, gamma=0.99)])


def test_a_success_ends_the_episode_and_the_environment_keeps_its_own_account(tmp_path):
    env = make(UPRIGHT, seed=0)
    mix = always(env, tmp_path)
    wrapped = RewardWrapper(env, mix)
    assert isinstance(wrapped.env, Ending) and add_endings(wrapped, mix) is wrapped
    wrapped.reset(seed=0)
    for step in range(1, 4):
        _, reward, terminated, truncated, info = wrapped.step(0)
        assert (reward, terminated, truncated) == (step == 3, step == 3, False)
    assert info["episode"]["l"] == 3 and info["is_success"] is False


def test_a_success_on_the_last_step_terminates_and_the_account_is_written_once(tmp_path):
    env = make(UPRIGHT, seed=0, max_episode_steps=3)
    wrapped = RewardWrapper(env, always(env, tmp_path))
    wrapped.reset(seed=0)
    for _ in range(2):
        assert wrapped.step(0)[2:4] == (False, False)
    _, reward, terminated, truncated, info = wrapped.step(0)
    assert (reward, terminated, truncated) == (1.0, True, True)
    assert info["episode"]["l"] == 3


def test_a_snapshot_remembers_how_near_the_end_was(tmp_path):
    env = make(UPRIGHT, seed=0)
    one = add_endings(env, always(env, tmp_path))
    one.reset(seed=0)
    one.step(0)
    one.step(0)
    state = one.snapshot()
    assert one.step(0)[2]
    one.reset()
    one.restore(state)
    assert one.step(0)[2]


def test_vectors_whose_environments_are_in_reach_end_episodes_and_others_refuse(tmp_path):
    mix = always(make(UPRIGHT), tmp_path)
    for envs in (
        VectorRewardWrapper(SyncVectorEnv([lambda: make(UPRIGHT)] * 2), mix),
        make_vec(UPRIGHT, 2, backend="gym", wrap=lambda env: add_endings(env, mix)),
    ):
        envs.reset(seed=0)
        assert [envs.step(np.zeros(2, np.int64))[2].tolist() for _ in range(3)][1:] == [[False] * 2, [True] * 2]
    with pytest.raises(ValueError, match=r"the reward 'success' ends episodes, and .* use SyncVectorEnv"):
        VectorRewardWrapper(make_vec(UPRIGHT, 2, backend="batched"), mix)
    with pytest.raises(ValueError, match='backend="batched" has environments that nothing can be wrapped'):
        make_vec(UPRIGHT, 2, backend="batched", wrap=lambda env: add_endings(env, mix))
