import json

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, registry

from envs.family import Goal
from runners.cli.compose import compose
from runners.cli.output import Ticker
from runners.evaluate import SEED, Scores, goal_of, interval, play, policy, table
from runners.report.statistics import iqm
from runners.run.video import Episode, can_be_drawn, draw


def test_the_iqm_is_the_mean_of_the_middle_half():
    assert iqm([0, 1, 2, 3, 4, 5, 6, 1000]) == (2 + 3 + 4 + 5) / 4
    assert iqm([7.0]) == 7.0


def test_the_interval_holds_the_iqm_and_shrinks_with_more_episodes():
    rng = np.random.default_rng(0)
    few, many = rng.normal(10, 1, 10).tolist(), rng.normal(10, 1, 1000).tolist()
    for values in (few, many):
        low, high = interval(values)
        assert low < iqm(values) < high
    assert np.diff(interval(many))[0] < 0.3 * np.diff(interval(few))[0]
    assert interval(few) == interval(few)  # the bootstrap is seeded
    assert interval([3.0, 3.0]) == (3.0, 3.0) and interval([3.0]) == (3.0, 3.0)


def test_a_long_evaluation_says_where_it_is(capsys):
    play("CartPole-v1", lambda obs, begins: 0, 2, tick=Ticker("evaluating", every_s=0.0))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "evaluating: episode 1 of 2, step 1" and lines[-1].startswith(
        "evaluating: episode 2 of 2, step "
    )
    play("CartPole-v1", lambda obs, begins: 0, 2, tick=Ticker("evaluating"))
    assert capsys.readouterr().out == ""  # it did not take long


def test_episodes_are_whole_seeded_and_counted_by_the_task():
    always_left = play("CartPole-v1", lambda obs, begins: 0, 5, seed=2)
    assert always_left.returns == always_left.lengths  # one point a step
    assert all(8 <= length <= 11 for length in always_left.lengths)  # it falls over at once
    assert always_left.successes == [False] * 5 and always_left.goal_steps == []
    assert play("CartPole-v1", lambda obs, begins: 0, 5, seed=2).returns == always_left.returns
    assert play("CartPole-v1", None, 5, seed=2).returns == play("CartPole-v1", None, 5, seed=2).returns


def test_every_policy_meets_the_same_episodes():
    first = []

    def act(obs, begins):
        if begins:
            first.append(obs.copy())
        return 0

    play("CartPole-v1", act, 2, seed=3)
    play("CartPole-v1", act, 2, seed=3)
    play("CartPole-v1", act, 2, seed=4)
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_array_equal(first[1], first[3])
    assert not np.array_equal(first[0], first[1]) and not np.array_equal(first[0], first[4])
    assert SEED >= 2**16  # far from the seeds that people train with


def test_no_episode_begins_after_the_step_limit_and_none_that_ends_before_it_is_cut():
    scores = play("lodestar/CartPoleUpright-v0", None, 20, max_steps=500)
    assert scores.lengths == [200, 200, 200] and scores.cut == 0
    assert play("CartPole-v1", lambda obs, begins: 0, 2, max_episode_steps=5).lengths == [5, 5]


def test_an_episode_without_an_end_is_cut_at_the_step_limit_and_the_table_says_so():
    up = play("CliffWalking-v1", lambda obs, begins: 0, 20, max_steps=300)  # into the wall; the world has no time limit
    assert (up.lengths, up.returns, up.cut) == ([300], [-300.0], 1)
    last = table({"this run": up.to_dict(), "random": Scores([-9.0], [9]).to_dict()}).splitlines()[-1]
    assert "after eval_steps" in last and "1 of 1 of this run; max_episode_steps=1000" in last
    limited = play("CliffWalking-v1", lambda obs, begins: 0, 2, max_steps=300, max_episode_steps=200)
    assert (limited.lengths, limited.cut) == ([200, 200], 0)


def test_the_goal_is_asked_for_after_every_step():
    left = Goal("left", "cart on the left", "cart", lambda env: env.unwrapped.state[0] < 0)
    scores = play("CartPole-v1", lambda obs, begins: 0, 3, goal=left)
    assert scores.goal == "left"
    assert all(0 < steps <= length for steps, length in zip(scores.goal_steps, scores.lengths))


def test_the_goal_is_the_one_a_reward_speaks_about():
    class Options:
        goal = "pole vertically upright on top of the cart"

    class Config:
        env, reward = "CartPole-v1", {"task": object()}

    assert goal_of(Config) is None
    Config.reward = {"seen": Options()}
    assert goal_of(Config).name == "upright"
    Options.goal = "a phrase of the user's"
    assert goal_of(Config).name == "upright"
    Config.env = "FrozenLake-v1"
    assert goal_of(Config) is None


def test_a_recurrent_policy_keeps_its_state_within_an_episode_only():
    class Model:
        action_space = spaces.Discrete(2)

        def predict(self, obs, state, episode_start, deterministic):
            assert deterministic and episode_start == [state is None]
            return 0, (state or 0) + 1

    act = policy(Model())
    for begins in (True, False, False, True, False):
        act(np.zeros(1), begins)


@pytest.mark.parametrize(
    ("env", "asked", "sampled"),
    [("CartPole-v1", False, False), ("CartPole-v1", True, True), ("NetHackScore-v0", False, True)],
)
def test_actions_are_sampled_where_the_run_says_so(env, asked, sampled):
    class Model:
        action_space = spaces.Discrete(2)

        def predict(self, obs, state, episode_start, deterministic):
            return int(deterministic), None

    config, _ = compose([f"env={env}", f"eval_sampled={str(asked).lower()}"])
    assert policy(Model(), config)(np.zeros(1), True) == (not sampled)


def test_the_table_puts_policies_side_by_side():
    good = Scores([10.0, 20.0], [10, 20], [True, False], [9, 18], "upright").to_dict()
    bad = Scores([1.0, 1.0], [1, 1], [False, False], [0, 0], "upright").to_dict()
    lines = table({"this run": good, "random": bad}).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["1.00", "1.00", "1.00", "0.00", "0.00", "1.00"]
    assert lines[1].split() == ["task", "return", "15.00", "1.00"]
    assert lines[4].split("'")[1] == "upright" and lines[4].split()[-2] == "13.50"
    assert len({len(line) for line in lines}) == 1


def test_what_an_environment_says_of_its_pictures_is_asked_in_its_familys_words(monkeypatch):
    drawn = ("CartPole-v1", "NetHackScore-v0", "MiniGrid-Empty-5x5-v0", "lodestar/NoisyRooms-v0", "lodestar/DeepSea-v0")
    assert all(can_be_drawn(env_id) for env_id in drawn)
    assert not can_be_drawn("lodestar/ProbeValue-v0") and not can_be_drawn("faulty_worlds:Plain-v0")
    function = EnvSpec("MadeByAFunction-v0", lambda: None)  # which says nothing
    monkeypatch.setitem(registry, function.id, function)
    assert can_be_drawn(function.id)


def test_the_film_draws_every_stream_up_to_the_step_it_shows():
    streams = {"clip": np.linspace(0, 1, 11), "task (not in the reward)": np.zeros(11)}
    image = np.zeros((448, 448, 3), np.uint8)
    frames = [draw(Episode([image] * 11, streams), t) for t in (0, 5, 10)]
    assert frames[0].shape == (592, 448, 3)
    green = [(np.abs(frame[474:515].astype(int) - (0x5F, 0xBF, 0x77)).sum(-1) < 60) for frame in frames]
    reach = [np.flatnonzero(mask.any(axis=0)).max() for mask in green]
    assert reach[0] < 20 and 215 < reach[1] < 235 and reach[2] > 430
    assert np.flatnonzero(green[2][:, 434:].any(axis=1)).min() < 5  # the highest value is at the top of its lane


def test_scores_are_plain_json():
    assert json.loads(json.dumps(Scores([1.0, 2.0], [1, 2]).to_dict()))["success"] is None


def test_driving_is_told_in_its_own_terms_beside_the_random_policy():
    limits = {"seed": 0, "options": {"vehicles_count": 0, "duration": 3}}
    steady = play("highway-fast-v0", lambda obs, begins: 1, 2, **limits)
    assert steady.metrics["speed, km/h"] == 90 and steady.metrics["distance, m"] == 75
    assert steady.metrics["collision rate"] == 0 and steady.metrics["route completion"] == 1
    random = play("highway-fast-v0", None, 2, **limits)
    lines = table({"this run": steady.to_dict(), "random": random.to_dict()}).splitlines()
    assert next(line for line in lines if "speed, km/h" in line and "collision" not in line).split()[2] == "90.00"
    assert next(line for line in lines if "jerk" in line).split()[-2] == "0.00"
    assert play("CartPole-v1", None, 1).to_dict()["metrics"] == {}
    old = {key: value for key, value in play("CartPole-v1", None, 1).to_dict().items() if key != "metrics"}
    assert "task return" in table({"this run": old})  # from a run that knew no metrics
