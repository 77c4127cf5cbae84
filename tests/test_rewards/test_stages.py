"""Reward stages: the potential by hand, over two episodes and within one rollout; files that do not do."""

import numpy as np
import pytest
from gymnasium import spaces
from scripted import staged

from envs.transitions import Transitions
from rewards.check import check_reward
from rewards.design import stages
from rewards.design.stages import StageReward, StagesConfig

BOX, PUSH = spaces.Box(-1.0, 9.0, (2,), np.float32), spaces.Discrete(3)
WITH_SIGNALS = (
    "def stages(next_obs, signals):\n"
    "    near = 1 - abs(next_obs[:, 0] - 5) / 5\n"
    '    return {"near": near, "key": signals[:, 1] == 5, "home": next_obs[:, 0] <= 0}\n'
)


def rollout(places, ended=(), **more) -> Transitions:
    """One environment's rollout (T, 1) through these places."""
    next_obs = np.float32([[[place, 0]] for place in places])
    shape = next_obs.shape[:2]
    is_end = np.isin(np.arange(len(places)), ended)[:, None]
    return Transitions(
        obs=next_obs,
        action=np.zeros(shape, np.int64),
        reward=np.zeros(shape, np.float32),
        next_obs=next_obs,
        terminated=is_end,
        truncated=np.zeros(shape, bool),
        valid=np.ones(shape, bool),
        step=np.arange(len(places))[:, None],
        **more,
    )


@pytest.fixture
def write(tmp_path):
    def make(source=WITH_SIGNALS, **options):
        path = tmp_path / "mine.py"
        path.write_text(source)
        return StageReward(StagesConfig(file=str(path), **options), BOX, PUSH)

    return make


def test_the_score_is_the_furthest_that_the_episode_came_in_the_order_of_the_stages(write):
    reward = write()
    assert reward.requires == {"next_obs", "signals"}
    # Key before the first stage, then near, away again, key, home; and a second episode that goes home at once.
    places = [2.5, 5, 1, 5, 0, 0, 5]
    carried = [5, 0, 0, 5, 0, 0, 5]
    signals = np.float32([[[0, kind]] for kind in carried])
    batch = rollout(places, ended=[4], signals=signals)
    phi, memory = reward.scan(batch, reward.initial_memory(1))
    np.testing.assert_allclose(phi[:, 0] * 3, [0.5, 1, 1, 2, 3, 0, 2], atol=1e-6)
    assert memory["stage"].tolist() == [2]
    # One call of `score` a step gives the same.
    memory = reward.initial_memory(1)
    for t in range(4):
        score, memory = reward.score(batch[t], memory)
        assert score == phi[t]
    # The share of rows at which each condition holds, whatever went before.
    shares = reward.update(batch)
    assert {name: round(7 * share) for name, share in shares.items()} == {"near": 3, "key": 3, "home": 2}


def test_it_keeps_the_contract_with_signals(write):
    check_reward(write())


@pytest.mark.nightly
def test_it_keeps_the_contract_without_signals():
    check_reward(StageReward(StagesConfig(file=staged()), BOX, PUSH))


def test_a_saved_state_goes_on_with_its_own_stages_and_refuses_another_number(write):
    reward = write()
    other = write("def stages(next_obs):\n    return {'a': next_obs[:, 0] > 1, 'b': next_obs[:, 0] > 2}\n")
    with pytest.raises(ValueError, match=r"has the stages near, key, home, .*mine\.py has a, b"):
        other.load_state_dict(reward.state_dict())
    changed = write(WITH_SIGNALS.replace("== 5", "== 6"))
    changed.load_state_dict(reward.state_dict())
    batch = rollout([5], signals=np.float32([[[0, 5]]]))
    assert changed.scan(batch, changed.initial_memory(1))[0] == np.float32(2 / 3)


def test_a_stage_that_never_ends_is_named_once(write, monkeypatch):
    monkeypatch.setattr(stages, "TRANSITIONS_BEFORE_WARNING", 3)
    reward = write("def stages(next_obs):\n    return {'far': next_obs[:, 0] > 8, 'home': next_obs[:, 0] < 1}\n")
    with pytest.warns(RuntimeWarning, match="after 4 transitions no episode has ended stage 'far'"):
        reward.update(rollout([0, 1, 2, 3]))
    assert reward.update(rollout([0, 1, 2, 3])) == {"far": 0, "home": 0.25}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def stages(obs, action, next_obs):\n    return {}", r"one function stages\(next_obs\) or stages\(next_obs, "),
        ("def stages(next_obs):\n    return {}", "1 to 12 different names"),
        ("def stages(next_obs):\n    return next_obs", "stages must end with its components"),
        ("def stages(next_obs):\n    return {'a': next_obs[:, 7]}", "IndexError: index 7 is out of bounds"),
        ("def stages(next_obs, signals):\n    return {'a': np.load(signals)}", r"np\.load is not among"),
    ],
)
def test_a_file_that_does_not_do_is_refused_when_the_reward_is_made(write, source, said):
    with pytest.raises(ValueError, match=f"mine.py' was refused: .*{said}"):
        write(source)


def test_a_missing_file_and_missing_signals_are_one_sentence(write):
    with pytest.raises(ValueError, match=r"reward.stages.file='' names no file; give a file with stages\("):
        StageReward(StagesConfig(), BOX, PUSH)
    reward = write()
    with pytest.raises(ValueError, match="reads signals, and this environment has none"):
        reward.scan(rollout([1]), reward.initial_memory(1))
