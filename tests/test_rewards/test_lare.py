"""LaRe: the loss by hand, episodes put together, a reward found again from returns alone, and code that misbehaves."""

import copy
import itertools
import runpy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from model_server import ModelServer

from envs.transitions import Transitions, concatenate
from rewards.check import check_reward
from rewards.language.lare import (
    FACTOR_FOLDER,
    LaRe,
    LaReConfig,
    WholeEpisodes,
    code_in,
    decomposition_loss,
    describe,
    draw,
    log_ratio,
    shipped_names,
    success_loss,
)
from rewards.llm.sandbox.process import SandboxError

BOX, PUSH = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)
SMALL = {"hidden": 16, "layers": 1, "steps": 3, "subset": 4, "batch_size": 16}
SQUARES = "def factors(obs, action):\n    return np.stack([obs[:, 0] ** 2, action[:, 0]], axis=1)\n"


def made(seed=0, spaces=(BOX, PUSH), **changes):
    return LaRe(LaReConfig(**{**SMALL, **changes}), *spaces, seed=seed)


def walk(lengths=(20,) * 20, envs=4, seed=0, reward=lambda x, a: x[..., 0] ** 2 - a[..., 0], late=True):
    """Random states in episodes of the given lengths; the task pays the sum of `reward` at the end of each if late."""
    rng = np.random.default_rng(seed)
    steps = sum(lengths)
    obs = rng.uniform(-1, 1, (steps, envs, 2)).astype(np.float32)
    action = rng.uniform(-1, 1, (steps, envs, 1)).astype(np.float32)
    rewarded = reward(obs, action).astype(np.float32)
    last = np.cumsum(lengths) - 1
    ended = np.zeros((steps, envs), bool)
    ended[last] = True
    if late:
        sums = np.add.reduceat(rewarded, np.r_[0, last[:-1] + 1], axis=0)
        rewarded = np.zeros_like(rewarded)
        rewarded[last] = sums
    return Transitions(
        obs=obs,
        action=action,
        reward=rewarded,
        next_obs=np.zeros_like(obs),
        terminated=ended,
        truncated=np.zeros_like(ended),
        valid=np.ones_like(ended),
        step=np.concatenate([np.arange(length) for length in lengths])[:, None] + np.zeros((1, envs), np.int64),
    )


@pytest.fixture
def code(tmp_path):
    """Writes code into a file and gives its name."""

    def write(source=SQUARES):
        path = tmp_path / "mine.py"
        path.write_text(source)
        return str(path)

    return write


def test_it_keeps_the_contract_with_and_without_code(code):
    check_reward(made(code=code()))
    check_reward(made(spaces=(BOX, spaces.Discrete(3)), per="episode", normalize_obs="none"))


@pytest.mark.nightly
def test_it_keeps_the_contract_as_large_as_it_is_by_default():
    check_reward(LaRe)


def loss_of(guess, length, total, **options):
    guess = torch.tensor([guess])
    return float(
        decomposition_loss(guess, torch.ones_like(guess), torch.tensor([length]), torch.tensor([total]), **options)
    )


def test_the_loss_of_all_steps_is_the_squared_gap_of_means():
    assert loss_of([1.0, 2.0, 6.0], 3.0, 3.0) == pytest.approx((3 - 1) ** 2)
    assert loss_of([5.0], 1.0, 2.0) == pytest.approx(9)


def test_the_loss_of_two_steps_of_four_by_hand():
    # mean 2, R / T = 5, variance ((1 - 2)^2 + (3 - 2)^2) / (2 - 1) = 2, times (1 - 2 / 4) / 2
    assert loss_of([1.0, 3.0], 4.0, 20.0) == pytest.approx(9 - 2 * 0.25)
    assert loss_of([1.0, 3.0], 4.0, 20.0, typical=8.0) == pytest.approx(8.5 / 4)


@pytest.mark.parametrize("subset", [1 + 1, 3, 4, 5])
def test_on_average_over_all_subsets_the_loss_is_that_of_the_whole_episode(subset):
    values, total = [0.3, -1.2, 2.5, 0.7, -0.4], 4.0
    whole = loss_of(values, 5.0, total)
    losses = [loss_of(list(chosen), 5.0, total) for chosen in itertools.combinations(values, subset)]
    assert whole == pytest.approx((sum(values) / 5 - total / 5) ** 2, rel=1e-5)
    assert np.mean(losses) == pytest.approx(whole, rel=1e-4)
    assert subset == 5 or np.std(losses) > 0.01


def test_places_are_different_and_all_of_a_short_episode_are_there():
    length = np.array([3, 50, 7])
    place = draw(np.random.default_rng(0), length, 6)
    assert place.shape == (3, 6)
    assert sorted(place[0])[:3] == [0, 1, 2]
    assert (np.sort(place[0])[3:] >= 3).all()
    for row in place[1:]:
        assert len(set(row.tolist())) == 6
    assert place[1].max() < 50
    counts = np.bincount(np.concatenate([draw(np.random.default_rng(i), length, 6)[2] for i in range(700)]))
    assert counts == pytest.approx(np.full(7, 600), abs=40)


def columns(env, step, ended, reward):
    rows = np.asarray(reward, np.float32)[:, None]
    return {
        "column": np.array(env),
        "rows": rows,
        "actions": rows[:, :0],
        "reward": np.asarray(reward, np.float64),
        "step": np.array(step),
        "ended": np.array(ended, bool),
    }


def test_episodes_are_put_together_across_updates_environment_by_environment():
    kept = WholeEpisodes(10)
    # Environment 0 is joined at step 5; environment 1 begins.
    assert kept.add(2, **columns([0, 1, 0, 1], [5, 0, 6, 1], [0, 0, 1, 0], [9, 1, 9, 2])) == []
    found = kept.add(2, **columns([0, 1, 0, 1, 0, 1], [0, 2, 1, 0, 2, 1], [0, 1, 0, 0, 1, 0], [1, 3, 2, 5, 4, 6]))
    assert [(one["rows"].ravel().tolist(), one["total"]) for one in found] == [([1, 2, 4], 7.0), ([1, 2, 3], 6.0)]
    found = kept.add(2, **columns([1], [2], [1], [7]))
    assert [(one["rows"].ravel().tolist(), one["total"]) for one in found] == [([5, 6, 7], 18.0)]
    assert len(kept) == 3
    assert len(kept.begun["step"]) == 0


def test_an_episode_with_a_gap_and_one_of_other_environments_are_dropped():
    kept = WholeEpisodes(10)
    kept.add(1, **columns([0, 0], [0, 1], [0, 0], [1, 1]))
    assert kept.add(1, **columns([0], [3], [1], [1])) == []
    kept.add(1, **columns([0], [0], [0], [1]))
    assert kept.add(2, **columns([0], [1], [1], [1])) == []


def test_an_episode_that_is_too_long_is_left_out_and_counted(monkeypatch):
    monkeypatch.setattr("rewards.language.lare.MAX_EPISODE_STEPS", 4)
    reward = made()
    assert reward.update(walk((4, 5), envs=2))["episodes"] == 2
    assert {len(one["rows"]) for one in reward.episodes.kept} == {4} and reward.episodes.dropped == 2
    assert "2 episodes were longer than 4 steps and were left out" in reward.notes()


def test_the_newest_episodes_are_kept():
    kept = WholeEpisodes(2)
    kept.add(1, **columns([0] * 3, [0] * 3, [1] * 3, [1, 2, 3]))
    assert [one["total"] for one in kept.kept] == [2, 3]


def test_updates_in_pieces_and_rows_that_are_no_transitions_make_the_same_episodes():
    batch = walk((3, 5, 4, 8), envs=2)
    whole, pieces = made(), made()
    whole.update(batch)
    blank = batch[:1].replace(valid=np.zeros((1, 2), bool), reward=np.full((1, 2), 99, np.float32))
    for i in range(0, 20, 7):
        pieces.update(concatenate([batch[i : i + 7], blank]))
    totals = [sorted(one["total"] for one in reward.episodes.kept) for reward in (whole, pieces)]
    assert totals[0] == totals[1]
    assert len(totals[0]) == 8


def test_it_gives_nothing_before_the_first_whole_episode():
    reward, batch = made(), walk((20,))
    assert reward.update(batch[:19]) == {"episodes": 0.0}
    assert not reward.score(batch.flatten()).any()
    assert reward.update(batch[19:])["episodes"] == 4
    assert reward.score(batch.flatten()).any()


def test_an_episode_that_time_cut_off_is_learnt_from_like_one_that_terminated():
    batch = walk((2, 3), envs=1)
    reward = made()
    reward.update(batch.replace(truncated=batch.terminated, terminated=np.zeros_like(batch.terminated)))
    assert [one["total"] for one in reward.episodes.kept] == batch.reward[[1, 4], 0].tolist()
    assert reward.episodes.learnt == 1


def test_a_step_descends_the_mean_over_the_episodes_drawn(monkeypatch):
    reward, descended = made(batch_size=16, subset=4), []
    monkeypatch.setattr(reward, "descend", descended.append)
    metrics = reward.update(walk((20,)))
    assert metrics["loss"] == pytest.approx(np.mean([float(loss.detach()) for loss in descended]), rel=1e-6)
    assert len(descended) == 3 and reward.episodes.learnt == 1


LEARNT = {"hidden": 32, "layers": 2, "steps": 200, "subset": 10, "batch_size": 80, "learning_rate": 5e-3}


@pytest.mark.parametrize("per", ["step", "episode"])
def test_the_reward_of_each_step_is_found_again_from_returns_rewarded_at_the_end(code, per):
    batch, other = walk((20, 10) * 20), walk((20,), seed=1, late=False).flatten()
    reward = made(**LEARNT, code=code(), per=per)
    first = reward.update(batch)
    again = reward.update(walk((20, 10) * 5, seed=2))
    score = reward.score(other)
    assert np.corrcoef(score, other.reward)[0, 1] > 0.95
    assert score.mean() == pytest.approx(other.reward.mean(), abs=0.05)
    assert again["loss"] < 0.5 * first["loss"]
    assert again["error"] < 1.0  # of returns with a deviation of 2.5


def test_factors_that_say_what_counts_find_it_where_raw_ones_do_not(code):
    pays = {"reward": lambda x, a: np.sin(8 * x[..., 0]) * a[..., 0]}
    batch, other = walk((20,) * 10, **pays), walk((40,), seed=1, late=False, **pays).flatten()
    named = code("def factors(obs, action):\n    return np.sin(8 * obs[:, :1]) * action\n")
    found = []
    for options in ({"code": named}, {}):
        reward = made(**LEARNT, **options)
        reward.update(batch)
        found.append(np.corrcoef(reward.score(other), other.reward)[0, 1])
    assert found[0] > 0.98
    assert found[1] < 0.5


@pytest.mark.parametrize(("per", "expected"), [("step", (1 + 0.25) / 2), ("episode", (4 * 1 + 1600 * 0.25) / 1604)])
def test_fitting_sums_counts_long_episodes_where_fitting_means_counts_all_alike(per, expected):
    # WholeEpisodes of 2 steps earn 2, those of 40 earn 10, and all steps look alike: one number must do for both.
    batch = walk((2, 40) * 5).map(lambda x: np.zeros_like(x) if x.ndim == 3 else x)
    batch = batch.replace(reward=np.where(batch.terminated, np.where(batch.step == 1, 2, 10), 0).astype(np.float32))
    reward = made(**LEARNT, per=per)
    for _ in range(2):
        reward.update(batch)
    assert reward.score(batch.flatten()) == pytest.approx(np.full(840, expected), abs=0.1)


def test_it_continues_where_it_was_saved_with_the_code_it_had(code):
    one = made(code=code())
    two = made(seed=5, code=code("def factors(obs, action):\n    return obs * 3\n"))
    batch = walk((5,) * 8)
    one.update(batch[:17])
    two.update(walk((5,), seed=1))
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for reward in (one, two):
        reward.update(batch[17:])
    assert two.phi.source == SQUARES
    assert np.array_equal(one.score(batch.flatten()), two.score(batch.flatten()))


def test_a_constant_factor_on_real_steps_and_code_that_fails_there_are_reported(code):
    source = "def factors(obs, action):\n    k = 2 + int(obs.max() > 1.5)\n"
    source += "    return np.stack([np.where(obs[:, 0] > 0.5, 1.0, 0.0), action[:, 0], obs[:, 1]][:k], axis=1)\n"
    reward = made(code=code(source))
    batch = walk((5,) * 2)
    assert not any("same in all" in note for note in reward.notes())
    reward.update(batch.replace(obs=batch.obs * 0.4))
    assert "factors [0] were the same in all 40 steps so far" in reward.notes()
    reward.update(batch.replace(obs=batch.obs + 2))
    assert any("failed 3 times in a row and is 0 from then on" in note for note in reward.notes())
    assert np.isfinite(reward.score(batch.flatten())).all()


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_factors_run_and_are_described(name):
    import gymnasium as gym

    ids = {"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}
    env = gym.make(ids.get(name, "MountainCarContinuous-v0"))
    reward = LaRe(LaReConfig(**SMALL, code=name), env.observation_space, env.action_space)
    assert 3 <= reward.phi.width <= 6
    assert f"factors are those of {name} (written by hand)" in reward.notes()
    described = describe(name)
    assert all(f"obs[:, {i}]:" in described for i in range(env.observation_space.shape[0]))
    assert "action[:, 0]:" in described


@pytest.mark.parametrize(
    ("name", "obs", "action", "expected"),
    [
        ("cartpole", [[-1.2, 2, -0.209, 0.5], [2.4, -3, 0, -1]], [[1], [0]], [[0.5, 1, 4, 0.25, 1], [1, 0, 9, 1, 1]]),
        ("cartpole", [[0, 0, 0.1, -0.1]], [[0]], [[0, 0.1 / 0.209, 0, 0.01, -1]]),
        ("mountain_car_continuous", [[np.pi / 6, -0.035]], [[0.5]], [[1.25, 1, 0.25, 0.25, -0.5, 1]]),
        ("mountain_car_continuous", [[-np.pi / 6, 0.07], [0.44, 0]], [[0.5], [1]], [[0, -1, 1, 0.25, 0.5, 0], None]),
        ("pendulum", [[0, 1, 2], [-1, 0, 0]], [[1.5], [-2]], [[np.pi**2 / 4, 4, 2.25], [np.pi**2, 0, 4]]),
    ],
)
def test_shipped_factors_by_hand(name, obs, action, expected):
    found = runpy.run_path(str(FACTOR_FOLDER / f"{name}.py"))["factors"](np.array(obs, float), np.array(action, float))
    if expected[-1] is None:
        assert found[1, -1] == 0  # the flag stands beyond 0.44
        found, expected = found[:1], expected[:1]
    np.testing.assert_allclose(found, expected, atol=1e-12)


ASKED = {
    "judge": "openai",
    "goal": "to keep x small",
    "describe": "obs[:, 0]: x; obs[:, 1]: noise; action[:, 0]: force",
}


def test_a_model_writes_the_code_and_its_answers_are_replayed_without_it(tmp_path):
    answers = tmp_path / "answers.sqlite"

    asked = []

    def think(text, images):
        asked.append(text)
        if "Several people answered" in text:
            return f"Both matter.\n```python\nimport numpy as np\n\n{SQUARES}```"
        return "```python\ndef factors(obs, action):\n    return obs\n```"

    with ModelServer(think) as server:
        options = {"model": "m", "url": server.url}
        reward = made(**ASKED, judge_options=options, answers=str(answers))
        heats = [body["temperature"] for _, body in server.seen]
    assert heats == [1.0] * 5 + [0.3]
    assert "to keep x small" in asked[0]
    assert "obs[:, 1]: noise" in asked[0]
    assert "(B, 2)" in asked[0]
    assert len({body["seed"] for _, body in server.seen}) == 5
    assert reward.phi.width == 2
    assert "the factors' code was written by m, asked 6 times" in reward.notes()[0]
    again = made(**ASKED, judge_options=options, answers=str(answers))  # the server is gone
    assert again.phi.source == reward.phi.source
    assert again.author.asked == 0


def test_of_an_answer_the_last_block_with_factors_is_read_or_all_of_it():
    other, helper = SQUARES.replace("** 2", "** 3"), "```\nprint(1)\n```\n"
    assert code_in(f"First:\n```python\n{SQUARES}```\nor\n```py\n{other}```\nUse it so:\n{helper}") == other
    assert code_in(f"```python\n{SQUARES}```\n{helper}") == SQUARES and code_in(f"\n{SQUARES}\n\n") == SQUARES
    with pytest.raises(SandboxError, match=r"no block of code that defines factors"):
        code_in(f"    def factors(obs, action): indented, so no definition of the file\n{helper}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"code": "a.py", "judge": "openai"}, r"code='a\.py' and judge='openai' both give factors; give one"),
        ({"judge": "openai", "goal": "up"}, r"judge='openai' needs goal .* and describe"),
    ],
)
def test_settings_without_sense_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        LaReConfig(**options)


def test_code_that_is_missing_or_hostile_is_refused_when_the_reward_is_made(code):
    with pytest.raises(ValueError, match=r"code='pendulm' cannot be read .*; give a file, or one of cartpole"):
        made(code="pendulm")
    with pytest.raises(ValueError, match=r"the code in .* was refused: line 2: the name 'open' is not known"):
        made(code=code("def factors(obs, action):\n    return open(obs)"))
    with pytest.raises(ValueError, match=r"there is no judge of factors 'opnai'; did you mean 'openai'\?"):
        made(**{**ASKED, "judge": "opnai"})
    with pytest.raises(ValueError, match=r"reads numbers, not the images"):
        made(spaces=(spaces.Box(0, 255, (3, 64, 64), np.uint8), PUSH))


def test_an_implicit_reward_is_a_policys_log_ratio_to_one_that_draws_evenly():
    one_hot = torch.eye(2)
    found = log_ratio(torch.tensor([[1.0, 0.0]] * 2), one_hot, [2])
    p = np.e / (1 + np.e)
    assert found.tolist() == pytest.approx([np.log(2 * p), np.log(2 * (1 - p))], abs=1e-6)  # 0.380, -0.620
    both = log_ratio(torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]]), torch.tensor([[1.0, 0, 1, 0, 0]]), [2, 3])
    assert both.tolist() == pytest.approx([np.log(2 * p)], abs=1e-6)  # three even choices add nothing
    normal = log_ratio(torch.tensor([[1.0], [1.0], [1.0]]), torch.tensor([[0.5], [1.0], [-1.0]]), [])
    assert normal.tolist() == pytest.approx([0.0, 0.5, -1.5])  # a m - m^2 / 2


def test_the_loss_of_a_success_by_hand():
    facts = (torch.ones(1, 2), torch.tensor([2.0]), torch.tensor([1.0]))
    assert success_loss(torch.tensor([[0.5, 1.5]]), *facts).item() == pytest.approx(np.log1p(np.exp(-2.0)))
    facts = (torch.ones(1, 2), torch.tensor([4.0]), torch.tensor([0.0]))  # two steps of four stand for all
    assert success_loss(torch.tensor([[0.5, 1.5]]), *facts).item() == pytest.approx(np.log1p(np.exp(4.0)))


def test_an_implicit_reward_finds_the_step_that_decided():
    """Two steps with two actions each; the first one's decides, which is told at the end."""
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, (400, 1))
    obs = np.tile(np.float32([[1, 0], [0, 1]]), (200, 1))[:, None]
    reward = np.zeros((400, 1), np.float32)
    reward[1::2] = action[::2]
    ended = np.zeros((400, 1), bool)
    ended[1::2] = True
    batch = walk((2,) * 200, envs=1).replace(obs=obs, action=action, reward=reward, terminated=ended)
    given = {**LEARNT, "form": "implicit", "success": 0.5, "beta": 2.0, "subset": 2, "normalize_obs": "none"}
    implicit = made(spaces=(BOX, spaces.Discrete(2)), **given)
    assert "loss" not in implicit.update(batch.replace(reward=0 * reward))  # all fail
    implicit = made(spaces=(BOX, spaces.Discrete(2)), **given)
    implicit.update(batch)
    score = implicit.score(batch.flatten())
    first, second = score[::2], score[1::2]
    chosen = action[::2, 0] == 1
    assert first[chosen].min() > 1.0 and first[~chosen].max() < -1.0 and np.abs(second).max() < 0.3
    assert np.exp(score / 2.0).reshape(200, 2)[:, 0].mean() == pytest.approx(1.0, abs=0.2)  # even draws of one state
    assert implicit.update(batch)["accuracy"] == 1.0
    check_reward(LaRe(LaReConfig(**{**SMALL, "form": "implicit"}), BOX, PUSH))


def test_an_implicit_reward_takes_no_code():
    with pytest.raises(ValueError, match="form=implicit reads obs and action themselves; leave code and judge out"):
        LaReConfig(form="implicit", code="pendulum")
