import base64
import io
import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, registry
from PIL import Image

import lodestar as ld
from agents.ppo.agent import PPO
from envs.family import Goal
from envs.make import make_vec
from runners.cli.compose import compose
from runners.evaluation.play import (
    SEED,
    Scores,
    disagreement,
    evaluation,
    goal_of,
    interval,
    play,
    policy,
    table,
    way_of,
)
from runners.report import html
from runners.report.statistics import iqm
from runners.run import output
from runners.run.config import from_dict, to_dict
from runners.run.output import Ticker
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


def test_a_long_evaluation_says_where_it_is(capsys, monkeypatch):
    with monkeypatch.context() as impatient:
        impatient.setattr(output, "SIGN_OF_LIFE_S", 0.0)
        play("CartPole-v1", lambda obs, begins: 0, 2, tick=Ticker("evaluating"))
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


class Sayer:
    """A model whose action says whether it was asked for its mode."""

    action_space = spaces.Discrete(2)

    def predict(self, obs, state, episode_start, deterministic):
        return int(deterministic), None


DOORKEY, PENDULUM = "env=MiniGrid-DoorKey-5x5-v0", "env=Pendulum-v1"


@pytest.mark.parametrize(
    ("line", "space", "way"),
    [
        ([DOORKEY], spaces.Discrete(7), "sampled"),
        ([DOORKEY], spaces.MultiDiscrete([2, 3]), "sampled"),
        ([DOORKEY, "agent=a2c"], spaces.Discrete(7), "sampled"),
        ([DOORKEY, "agent=maskable_ppo"], spaces.Discrete(7), "sampled"),
        ([DOORKEY, "agent=dqn"], spaces.Discrete(7), "mode"),
        ([DOORKEY, "agent=dyna"], spaces.Discrete(7), "mode"),
        ([DOORKEY, "agent=world_model"], spaces.Discrete(7), "sampled"),
        ([DOORKEY, "agent=world_model", "agent.preset=mrq"], spaces.Discrete(7), "mode"),
        ([PENDULUM], spaces.Box(-2, 2, (1,)), "mode"),
        ([PENDULUM, "agent=sac"], spaces.Box(-2, 2, (1,)), "mode"),
        ([PENDULUM, "eval_sampled=true"], spaces.Box(-2, 2, (1,)), "sampled"),
        ([DOORKEY, "eval_sampled=false"], spaces.Discrete(7), "mode"),
        (["env=NetHackScore-v0", "agent=dqn"], spaces.Discrete(23), "mode"),
    ],
)
def test_a_policy_is_judged_as_it_was_trained_unless_the_run_says_otherwise(line, space, way, monkeypatch):
    monkeypatch.setattr(Sayer, "action_space", space)
    config, _ = compose(line)
    assert way_of(config, Sayer()) == way
    monkeypatch.setattr(Sayer, "action_space", spaces.Discrete(2))
    assert policy(Sayer(), way=way)(np.zeros(1), True) == (way == "mode")
    assert policy(Sayer())(np.zeros(1), True) == 1


@pytest.mark.parametrize(("saved", "read"), [(False, "auto"), (True, "true"), ("false", "false"), ("auto", "auto")])
def test_what_a_run_of_an_earlier_version_did_not_ask_for_is_automatic(saved, read):
    values = to_dict(compose(["env=CartPole-v1"])[0]) | {"eval_sampled": saved}
    assert from_dict(values).eval_sampled == read


class Coin:
    """A PPO whose sampled actions keep a pole up for a while, and whose mode falls over at once."""

    action_space = spaces.Discrete(2)

    def predict(self, obs, state, episode_start, deterministic):
        return 0 if deterministic else int(obs[2] > 0), None


@pytest.mark.parametrize(
    ("asked", "columns", "actions"),
    [
        ("auto", ["this run", "this run, mode", "random"], ["sampled", "mode", "random"]),
        ("true", ["this run", "random"], ["sampled", "random"]),
        ("false", ["this run", "random"], ["mode", "random"]),
    ],
)
def test_the_mode_of_a_sampled_policy_stands_beside_it_on_half_of_the_episodes(asked, columns, actions):
    config, _ = compose(["env=CartPole-v1", f"eval_sampled={asked}"])
    mix = ld.make_reward("task", gymnasium.make("CartPole-v1"))
    scores = evaluation(config, Coin(), mix, 6, 0)
    assert list(scores) == columns and [column["actions"] for column in scores.values()] == actions
    ours = scores["this run"]
    assert (ours["task_return"] > 30) == (asked != "false") and ours["episodes"] == 6
    if asked == "auto":
        assert scores["this run, mode"]["episodes"] == 3 and scores["this run, mode"]["task_return"] < 12
        lines = [line.split() for line in table(scores).splitlines()]
        assert lines[1:3] == [["actions", "sampled", "mode", "random"], ["episodes", "6", "3", "6"]]


def test_a_policy_that_is_judged_by_its_mode_is_played_once(monkeypatch):
    played = []
    monkeypatch.setattr("runners.evaluation.play.play", lambda *given, **more: played.append(1) or Scores([1.0], [1]))
    config, _ = compose(["env=Pendulum-v1"])
    monkeypatch.setattr(Sayer, "action_space", spaces.Box(-2, 2, (1,)))
    mix = ld.make_reward("task", gymnasium.make("Pendulum-v1"))
    assert list(evaluation(config, Sayer(), mix, 6, 0)) == ["this run", "random"] and len(played) == 2


def test_sampled_actions_of_an_episode_depend_on_the_seed_and_its_number_alone():
    vector = make_vec("CartPole-v1", 2)
    model, obs = PPO(vector), np.zeros((1, 4), np.float32)

    def actions(seed, *lengths):
        act = policy(model, way="sampled", seed=seed)
        return [[int(act(obs, np.array([t == 0]))[0]) for t in range(length)] for length in lengths]

    first = actions(3, 40, 40)
    assert first[0] != first[1] and actions(4, 40) != first[:1]
    assert actions(3, 5, 40) == [first[0][:5], first[1]]  # whole and cut episodes go together
    vector.close()


def test_the_note_names_closing_and_training_returns_that_differ_beyond_their_intervals():
    stuck = {"returns": [0.0] * 20, "actions": "mode"}
    said = disagreement(stuck, [0.0] * 80 + [0.9, 1.0] * 10)
    assert said.startswith("note: the last 20 episodes of training had a mean task return of 0.95 (0.926 to 0.974)")
    assert "these 20 have 0 (0 to 0)" in said and said.endswith("these are the policy's mode")
    assert "both are sampled" in disagreement({**stuck, "actions": "sampled"}, [0.9, 1.0] * 10)
    assert disagreement({"returns": [0.0, 1.0] * 10, "actions": "mode"}, [0.4, 0.6] * 10) == ""
    # Returns that differ by rounding alone.
    assert disagreement({"returns": [1.4] * 20, "actions": "mode"}, [1.4000001] * 20) == ""
    assert disagreement(stuck, [1.0]) == "" and disagreement({"returns": [1.0], "actions": "mode"}, [0.0, 0.0]) == ""


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


def test_a_video_keeps_the_proportions_of_its_pictures():
    wide, tall = np.full((299, 448, 3), 250, np.uint8), np.full((448, 200, 3), 250, np.uint8)
    streams = {"clip": np.zeros(2)}
    one, other = (draw(Episode([image] * 2, streams), 0) for image in (wide, tall))
    assert one.shape == (384, 448, 3) and (one[:299] == 250).all()  # 299 + 64 + 8, in multiples of 16
    assert other.shape == (528, 448, 3) and (other[:448, 124:324] == 250).all() and (other[:448, :124] < 40).all()


def test_a_page_scales_a_picture_without_squashing_it():
    uri = html.picture(np.zeros((40, 60, 3), np.uint8), 30)
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        assert image.size == (30, 20)


@pytest.mark.parametrize(
    ("env_id", "steps", "possible"),
    [
        ("CartPole-v1", None, (0, 500)),
        ("CartPole-v1", 20, (0, 20)),
        ("MountainCar-v0", None, (-200, 0)),
        ("Acrobot-v1", None, (-500, 0)),
        ("MiniGrid-DoorKey-5x5-v0", 3, (0, 1)),
        ("FrozenLake-v1", None, None),
    ],
)
def test_an_interval_stays_in_the_range_of_possible_returns(env_id, steps, possible):
    scores = play(env_id, None, 1, max_steps=20, max_episode_steps=steps)
    assert scores.possible == possible
    scores.returns = [190.0, 500.0, 480.0, 500.0]
    low, high = scores.to_dict()["task_return_interval"]
    assert interval(scores.returns)[1] > 500
    if possible is not None:
        assert possible[0] <= low <= high <= possible[1]
    else:
        assert (low, high) == interval(scores.returns)


def test_a_pendulum_cannot_return_less_than_its_lowest_rewards():
    low, high = play("Pendulum-v1", None, 1).possible
    assert (low, high) == (pytest.approx(-3254.72, abs=0.01), 0)


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
