"""Subgoals: rewards and observations, hand-derived and on real MiniGrids; plans that hold when they are carried out."""

import itertools
import json

import numpy as np
import pytest
from gymnasium import spaces
from model_server import ModelServer, says, status
from rollouts import blank

import rewards
from envs.make import make
from envs.minigrid.family import HEAD
from envs.transitions import stack
from rewards.adapters.gym import RewardWrapper
from rewards.check import check_reward
from rewards.language.subgoals import Subgoals, SubgoalsConfig
from rewards.language.teacher import (
    OBJECT_EMPTY,
    OBJECT_GOAL,
    OBJECT_KEY,
    OBJECT_WALL,
    PUBLISHED,
    ModelTeacher,
    NoisyPlanner,
    RecordedPlans,
    level_of,
    question,
    reachable_subgoals,
    sentence,
    solve,
)

OBS, ACTIONS = spaces.Box(0, 1, (4,), np.float32), spaces.Discrete(7)
YELLOW, GREEN, LOCKED = 4, 1, 2
ROOM = """
#######
#A.#..#
#K.D..#
#..#.G#
#######
"""


def drawn(text=ROOM, agent=None, changes=(), max_steps=100):
    """Signals of a grid drawn in letters; `changes` are (x, y, (object, colour, state))."""
    rows = text.split()
    codes = {
        "#": (OBJECT_WALL, 5, 0),
        "K": (OBJECT_KEY, YELLOW, 0),
        "D": (4, YELLOW, LOCKED),
        "G": (OBJECT_GOAL, GREEN, 0),
    }
    codes |= {"B": (6, 2, 0), "X": (7, 0, 0), "O": (4, YELLOW, 1)}
    grid = np.array([[codes.get(letter, (OBJECT_EMPTY, 0, 0)) for letter in row] for row in rows])
    if agent is None:
        agent = next((x, y) for y, row in enumerate(rows) for x, letter in enumerate(row) if letter == "A")
    for x, y, code in changes:
        grid[y, x] = code
    return np.array([*agent, 0, 1, 0, grid.shape[1], max_steps, *grid.ravel()], np.float32)


def reward(**options):
    return Subgoals(SubgoalsConfig(**options), OBS, ACTIONS)


def transition(before, now, step):
    """(N, K) signals before and after one step of N environments."""
    before, now = np.atleast_2d(before), np.atleast_2d(now)
    obs = np.zeros((len(now), 4), np.float32)
    return blank(len(now), obs=obs, next_obs=obs, step=np.full(len(now), step), signals=now, obs_signals=before)


def walk(subject, *states):
    """Rewards of an episode through these signals; and observations before its first step and after each."""
    memory = subject.begin(subject.initial_memory(1), {"signals": states[0][None]}, np.ones(1, bool))
    rewarded, observed = [], [subject.guide(memory)[0]]
    for step, (before, now) in enumerate(itertools.pairwise(states)):
        value, memory = subject.score(transition(before, now, step), memory)
        rewarded.append(float(value[0]))
        observed.append(subject.guide(memory)[0])
    return rewarded, np.array(observed)


TAKEN = (1, 2, (OBJECT_EMPTY, 0, 0))
OPENED = (3, 2, (4, YELLOW, 0))
EPISODE = (  # waits, takes the key, opens the door, walks through it, stands on the goal
    drawn(),
    drawn(),
    drawn(changes=[TAKEN]),
    drawn(agent=(2, 2), changes=[TAKEN]),
    drawn(agent=(2, 2), changes=[TAKEN, OPENED]),
    drawn(agent=(3, 2), changes=[TAKEN, OPENED]),
    drawn(agent=(5, 3), changes=[TAKEN, OPENED]),
    drawn(agent=(5, 3), changes=[TAKEN, OPENED]),
)


def test_a_subgoal_gives_less_the_longer_it_took_and_only_once():
    rewarded, _ = walk(reward(), *EPISODE)
    np.testing.assert_allclose(rewarded, [0, 0.98, 0, 0.98, 0, 0.98, 0], rtol=1e-6)


def test_a_goal_five_steps_away_gives_what_the_source_adds_to_the_task():
    env = make("MiniGrid-Empty-5x5-v0", signals=True)  # 100 steps at most; the task itself gives 1 - 0.9 * 5 / 100
    env = RewardWrapper(env, rewards.make(["task", "subgoals"], env.observation_space, env.action_space))
    env.reset(seed=0)
    given = [env.step(action)[1] for action in (2, 2, 1, 2, 2)]  # from (1, 1) to the goal in (3, 3)
    env.close()
    assert given == pytest.approx([0, 0, 0, 0, 0.955 + 0.2 * (1 - 5 / 100)])


def test_subgoals_count_in_their_order_only():
    door_first = (drawn(), drawn(changes=[OPENED]), drawn(changes=[OPENED, TAKEN]), drawn(changes=[OPENED, TAKEN]))
    rewarded, observed = walk(reward(form="object"), *door_first)
    np.testing.assert_allclose(rewarded, [0, 0.98, 0], rtol=1e-6)
    np.testing.assert_allclose(observed[0], observed[1])  # still the key
    np.testing.assert_allclose(observed[2], observed[3])  # the door, which is open and will not change by itself


def test_a_plan_that_is_cut_ends_with_its_last_subgoal():
    rewarded, observed = walk(reward(most=1), *EPISODE)  # the key alone; the agent leaves (1, 1) later
    np.testing.assert_allclose(rewarded, [0, 0.98, 0, 0, 0, 0, 0], rtol=1e-6)
    assert not observed[2:].any()


def test_a_position_is_observed_relative_to_the_agent_in_sides_of_the_grid():
    _, observed = walk(reward(), *EPISODE)
    np.testing.assert_allclose(observed[0], np.array([0, 1]) / 7, rtol=1e-6)  # the key is one cell below
    np.testing.assert_allclose(observed[3], np.array([1, 0]) / 7, rtol=1e-6)  # the door is one to the right of (2, 2)
    np.testing.assert_allclose(observed[5], np.array([2, 1]) / 7, rtol=1e-6)
    np.testing.assert_allclose(observed[6:], 0)  # nothing left


def test_an_object_is_encoded_by_kind_colour_and_state_and_none_is_minus_one():
    _, observed = walk(reward(form="object"), *EPISODE)
    expected = [[0.5, 0.8, 0]] * 2 + [[0.4, 0.8, 1]] * 2 + [[0.8, 0.2, 0]] * 2 + [[-1, -1, -1]] * 2
    np.testing.assert_allclose(observed, expected, rtol=1e-6)


def test_a_sentence_is_observed_as_its_embedding():
    from rewards.llm.judges.embedding import encode

    subject = reward(form="sentence")
    assert subject.guides == 384
    _, observed = walk(subject, *EPISODE)
    plan = ["pick up the yellow key", "open the yellow door", "go to the green goal"]
    np.testing.assert_allclose(observed[[0, 2, 4]], encode(plan), atol=1e-5)
    assert not observed[6:].any()
    assert observed[0] @ encode(["take the yellow key"])[0] > 0.9 > observed[0] @ observed[4]


def test_a_subgoal_that_took_the_whole_episode_gives_nothing():
    late = [drawn(max_steps=3)] * 3 + [drawn(changes=[TAKEN], max_steps=3)]
    assert walk(reward(), *late)[0] == [0, 0, 0]
    assert walk(reward(), *[drawn(max_steps=3)] * 5, drawn(changes=[TAKEN], max_steps=3))[0][-1] == 0  # never below 0


def test_rows_are_independent_and_each_gets_the_plan_of_its_own_level():
    other = drawn(ROOM.replace("K", ".").replace("A.", "AK"))
    both = np.stack([drawn(), other])
    subject = reward()
    memory = subject.begin(subject.initial_memory(2), {"signals": both}, np.ones(2, bool))
    np.testing.assert_allclose(subject.guide(memory) * 7, [[0, 1], [1, 0]], atol=1e-6)
    again = subject.begin(memory, {"signals": both[::-1]}, np.array([True, False]))
    np.testing.assert_allclose(subject.guide(again) * 7, [[1, 0], [1, 0]], atol=1e-6)


def test_a_grid_that_is_higher_than_wide_is_measured_by_its_height():
    subject = reward()
    high = drawn("\n###\n#A#\n#.#\n#.#\n#G#\n###\n")
    memory = subject.begin(subject.initial_memory(1), {"signals": high[None]}, np.ones(1, bool))
    assert memory["agent"].tolist() == [[1, 1, 6]]
    np.testing.assert_allclose(subject.guide(memory), [[0, 3 / 6]])


def test_an_episode_is_planned_when_its_first_step_is_scored_if_not_before():
    subject = reward()
    value, memory = subject.score(transition(drawn(), drawn(changes=[TAKEN]), 0), subject.initial_memory(1))
    assert value[0] == np.float32(0.99) and memory["index"][0] == 1


def test_signals_that_are_no_grid_have_no_plan_and_pay_nothing():
    subject = reward(form="object")
    cars = np.random.default_rng(0).normal(size=(2, 3, 9)).astype(np.float32)
    value, memory = subject.score(transition(cars[0], cars[1], 0), subject.initial_memory(3))
    assert not value.any() and (subject.guide(memory) == -1).all()
    bare = transition(cars[0], cars[1], 0).replace(signals=None, obs_signals=None)
    assert not subject.score(bare, subject.initial_memory(3))[0].any()


@pytest.mark.parametrize("form", ["position", "object"])
def test_subgoals_keep_the_contract_on_a_real_rollout(form):
    rollout = played(steps=30, envs=2)
    check_reward(Subgoals(SubgoalsConfig(form=form), OBS, ACTIONS), transitions=rollout)
    check_reward(reward(form=form))  # and on made-up numbers


def played(steps, envs, env_id="MiniGrid-DoorKey-5x5-v0"):
    """A random rollout (T, N) of MiniGrids, whose episodes are cut after 25 steps."""
    rng, rows = np.random.default_rng(0), [[] for _ in range(steps)]
    for index in range(envs):
        env = make(env_id, signals=True, max_episode_steps=25)
        before, step = env.reset(seed=index)[1]["signals"], 0
        for t in range(steps):
            _, _, terminated, truncated, info = env.step(int(rng.integers(7)))
            one = transition(before, info["signals"], step)
            rows[t].append(one.replace(terminated=np.array([terminated]), truncated=np.array([truncated])))
            before, step = info["signals"], step + 1
            if terminated or truncated:
                before, step = env.reset()[1]["signals"], 0
        env.close()
    columns = [stack([row[index] for row in rows]) for index in range(envs)]
    join = {name: np.concatenate([getattr(c, name) for c in columns], 1) for name in vars(columns[0]) if name in NAMES}
    return columns[0].replace(**join)


NAMES = {"obs", "action", "reward", "next_obs", "terminated", "truncated", "valid", "step", "signals", "obs_signals"}


# --- plans ------------------------------------------------------------------------------------------------------------


def words(signals):
    return [sentence(row[0], row[3], row[4]) for row in solve(level_of(signals))]


def test_the_planner_fetches_the_key_opens_the_door_and_goes_to_the_goal():
    assert words(drawn()) == ["pick up the yellow key", "open the yellow door", "go to the green goal"]
    assert [row[1:3] for row in solve(level_of(drawn()))] == [(1, 2), (3, 2), (5, 3)]


def test_what_bars_the_only_way_is_a_subgoal_and_what_can_be_walked_round_is_not():
    narrow = "\n######\n#A.BG#\n######\n"
    assert words(drawn(narrow)) == ["pick up the blue ball", "go to the green goal"]
    assert words(drawn("\n######\n#A.BG#\n#....#\n######\n")) == ["go to the green goal"]
    assert words(drawn("\n######\n#A.OG#\n######\n")) == ["open the yellow door", "go to the green goal"]
    assert words(drawn("\n######\n#A.OG#\n#..O.#\n######\n")) == ["go to the green goal"]  # one of two doors


def test_a_box_is_opened_for_the_key_that_lies_nowhere():
    hidden = drawn("\n#######\n#A..DB#\n#..X###\n#######\n")
    plan = ["open the red box", "pick up the yellow key", "open the yellow door", "pick up the blue ball"]
    assert words(hidden) == plan


def test_the_nearest_box_is_opened_and_one_key_opens_all_doors_of_its_colour():
    box = solve(level_of(drawn("\n########\n#...ADB#\n#X..X###\n########\n")))[0][1:3]
    assert box == (4, 2)
    doors = words(drawn("\n########\n#AKD.DG#\n########\n"))
    assert doors == ["pick up the yellow key", *["open the yellow door"] * 2, "go to the green goal"]


def test_of_several_balls_the_blue_one_is_wanted_and_without_it_none():
    red = [(x, 1, (6, 0, 0)) for x in (4, 5)]
    assert words(drawn("\n#######\n#AKDBB#\n#######\n", changes=red)) == []
    assert words(drawn("\n#######\n#AKDBB#\n#######\n", changes=red[:1]))[-1] == "pick up the blue ball"
    assert words(drawn("\n#######\n#AKDB.#\n#######\n", changes=red[:1]))[-1] == "pick up the red ball"


def test_without_a_way_or_a_wish_there_is_no_plan():
    assert words(drawn("\n#####\n#A#G#\n#####\n")) == []
    assert words(drawn("\n#####\n#AKB#\n#####\n")) == []  # a world of things and no doors: its mission says the rest
    assert words(drawn("\n######\n#A.DG#\n######\n")) == []  # the key is missing


@pytest.mark.parametrize(
    ("env_id", "ending"),
    [
        ("MiniGrid-DoorKey-6x6-v0", "go to the green goal"),
        ("MiniGrid-KeyCorridorS3R2-v0", "ball"),
        ("MiniGrid-MultiRoom-N2-S4-v0", "go to the green goal"),
        ("MiniGrid-ObstructedMaze-1Dlhb-v0", "pick up the blue ball"),
        ("MiniGrid-Unlock-v0", "door"),
        ("MiniGrid-UnlockPickup-v0", "box"),
        ("MiniGrid-BlockedUnlockPickup-v0", "box"),
    ],
)
def test_plans_of_real_levels_end_where_the_mission_does(env_id, ending):
    env = make(env_id, signals=True)
    for seed in range(4):
        level = level_of(env.reset(seed=seed)[1]["signals"])
        plan = solve(level)
        assert plan and reachable_subgoals(level, plan) == plan
        assert sentence(plan[-1][0], plan[-1][3], plan[-1][4]).endswith(ending)
        assert all(level.grid[y, x].tolist() == rest for _, x, y, *rest in plan if rest[0] != OBJECT_KEY)
    env.close()


@pytest.mark.parametrize(("form", "accuracy"), [("object", 0.9), ("position", 0.9), ("object", 0.0), ("position", 0.5)])
def test_a_simulated_teacher_is_as_accurate_as_its_settings(form, accuracy):
    options = {"form": form, "accuracy": accuracy, "error": (1.0, 0.0), "seed": 3}
    levels = [level_of(drawn(max_steps=steps)) for steps in range(1, 301)]  # the same grid, other keys
    truth, observed = solve(levels[0]), NoisyPlanner(**options).ask(levels)
    assert NoisyPlanner(**options).ask(levels[20::-1]) == observed[20::-1]  # a level's plan depends on nothing else
    assert all(len(plan) == 3 for plan in observed)
    right = np.mean([one == other for plan in observed for one, other in zip(plan, truth)])
    assert abs(right - accuracy) < 3 * np.sqrt(accuracy * (1 - accuracy) / 900) + 1e-9


def test_a_wrong_position_is_as_far_off_as_its_error_says():
    level, teacher = level_of(drawn()), NoisyPlanner(form="position", accuracy=0.0, error=(2.0, 0.0))
    for seed in range(20):
        teacher.seed = seed
        for row, observed in zip(solve(level), teacher.ask([level])[0]):
            assert abs(row[1] - observed[1]) + abs(row[2] - observed[2]) == 2
            assert level.grid[observed[2], observed[1], 0] != OBJECT_WALL


def test_the_published_accuracies_are_the_authors():
    assert len(PUBLISHED) == 18
    assert NoisyPlanner(published="KeyCorridorS3R3 Llama").accuracy == 0.9847
    positions = NoisyPlanner(form="position", published="KeyCorridorS3R3 deepseek")
    assert (positions.accuracy, positions.error) == (0.3337, (2.57, 2.54))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"teacher_options": {"accuracy": 1.2}}, r"accuracy=1.2 is out of range; give a number in \[0, 1\]"),
        ({"teacher_options": {"published": "Chess llama"}}, r"'Chess llama' was never measured; give one of KeyCor"),
        ({"teacher_options": {"accuracies": 1}}, r"no option 'accuracies'; did you mean 'accuracy'\?"),
        ({"teacher": "recorded"}, r"the teacher recorded needs file"),
        ({"teacher": "openai", "teacher_options": {"model": "m", "concurrency": 0}}, r"concurrency=0 is out of range"),
    ],
)
def test_a_value_out_of_range_is_refused_with_a_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        reward(**options)


# --- recordings and servers -------------------------------------------------------------------------------------------


PLAN = [
    {"do": "pick up", "x": 1, "y": 2, "thing": "yellow key"},
    {"do": "open", "x": 3, "y": 2, "thing": "the locked yellow door"},
    {"do": "go to", "x": 5, "y": 3, "thing": "green goal"},
]
ODD = [
    {"do": "go to", "x": 70, "y": 2, "thing": "green goal"},  # outside
    {"do": "go to", "x": 0, "y": 0, "thing": "wall"},
    {"do": "pick up", "x": 1, "y": 3, "thing": "red ball"},  # no such thing there
]


def test_a_recorded_plan_belongs_to_its_level_whatever_the_seed(tmp_path):
    file = tmp_path / "plans.jsonl"
    file.write_text("\n".join(json.dumps({"level": level_of(drawn()).key, "plan": plan}) for plan in (ODD, PLAN)))
    subject = reward(teacher="recorded", teacher_options={"file": str(file)})
    np.testing.assert_allclose(walk(subject, *EPISODE)[0], [0, 0.98, 0, 0.98, 0, 0.98, 0], rtol=1e-6)
    elsewhere = walk(subject, *[drawn(agent=(2, 3)) for _ in range(3)])  # another level, without a plan
    assert elsewhere[0] == [0, 0] and not elsewhere[1].any()
    assert "1 levels" in subject.notes()[0]


def test_a_recorded_step_may_name_the_key_that_a_box_hides_or_nothing_and_stays_inside(tmp_path):
    level = level_of(drawn(changes=[(1, 3, (7, 0, 0))]))
    steps = [(1, 3, "the green key"), (1, 3, "a key"), (1, 2, None), (5, 3, ""), (7, 1, ""), (1, 5, ""), (-1, 1, "")]
    plan = [{"do": "pick up", "x": x, "y": y, "thing": thing} for x, y, thing in steps]
    (file := tmp_path / "plans.jsonl").write_text(json.dumps({"level": level.key, "plan": plan}))
    [rows] = RecordedPlans(str(file)).ask([level])
    assert rows == [
        (2, 1, 3, OBJECT_KEY, GREEN, 0),
        (2, 1, 3, OBJECT_KEY, 0, 0),
        (2, 1, 2, OBJECT_KEY, YELLOW, 0),
        (2, 5, 3, OBJECT_GOAL, GREEN, 0),
    ]


@pytest.mark.parametrize(
    "line", ["nonsense", '{"level": "a"}', '{"level": "a", "plan": [{"do": "fly", "x": 1, "y": 1}]}']
)
def test_a_bad_line_of_a_recording_is_named(tmp_path, line):
    file = tmp_path / "plans.jsonl"
    file.write_text(json.dumps({"level": "a", "plan": PLAN}) + "\n" + line)
    with pytest.raises(ValueError, match=r"plans\.jsonl, line 2: .* is no plan"):
        reward(teacher="recorded", teacher_options={"file": str(file)})
    with pytest.raises(ValueError, match=r"does not exist; give the file"):
        reward(teacher="recorded", teacher_options={"file": str(tmp_path / "none")})


def test_a_model_is_asked_once_a_level_and_its_answer_is_kept(tmp_path):
    options = {"model": "m", "answers": str(tmp_path / "plans.sqlite"), "attempts": 1, "timeout": 5}
    with ModelServer(lambda text, images: json.dumps({"subgoals": ODD + PLAN})) as server:
        subject = reward(teacher="openai", teacher_options={**options, "url": server.url})
        rewarded, _ = walk(subject, *EPISODE)
        walk(subject, *EPISODE)
        assert len(server.seen) == 1
        assert subject.update(transition(drawn(), drawn(), 0)) == {"teacher_asked": 1, "teacher_failed": 0}
        asked = json.dumps(server.seen[0][1]["messages"])
    assert json.dumps(question(level_of(drawn())))[1:-1] in asked
    assert "(3, 2): locked yellow door" in asked and "The agent stands at (1, 1)." in asked and "#..#..#" in asked
    np.testing.assert_allclose(rewarded, [0, 0.98, 0, 0.98, 0, 0.98, 0], rtol=1e-6)  # what makes no sense was left out
    offline = reward(teacher="recorded", teacher_options={"file": options["answers"]})
    assert walk(offline, *EPISODE)[0] == rewarded


def test_a_server_that_fails_leaves_no_subgoal_and_is_asked_again_later_but_not_at_once():
    with ModelServer(lambda text, images: json.dumps({"subgoals": PLAN})) as server:
        teacher = ModelTeacher("m", server.url, attempts=1, timeout=5, concurrency=1)
        server.plan = [status(500), says("I would rather not"), says('{"subgoals": [{"do": "fly"}]}')]
        first = drawn()[None]
        assert not teacher.plans(first, 4).any()
        assert not teacher.plans(drawn(agent=(2, 1))[None], 4).any()
        assert not teacher.plans(first, 4).any() and len(server.seen) == 3
        assert not teacher.plans(first, 4).any() and len(server.seen) == 3  # three in a row: left alone
        teacher.breaker.until = 0.0
        assert teacher.plans(first, 4)[0, :3, 0].tolist() == [2, 3, 1]
        assert teacher.metrics() == {"teacher_asked": 4, "teacher_failed": 3}


def test_only_the_newest_plans_are_kept_at_hand(monkeypatch):
    monkeypatch.setattr("rewards.language.teacher.MAX_CACHED_PLANS", 2)
    teacher, levels = NoisyPlanner(), np.stack([drawn(max_steps=steps) for steps in (1, 2, 3)])
    plans = teacher.plans(levels, 4)
    assert (plans == plans[0]).all() and plans[0, :, 0].tolist() == [2, 3, 1, 0]
    assert list(teacher._plans) == [level_of(one).key for one in levels[1:]]


def test_signals_tell_the_level_and_equal_levels_have_equal_keys():
    level = level_of(drawn())
    assert level.grid.shape == (5, 7, 3) and (level.x, level.y) == (1, 1) and len(level.key) == 16
    assert level_of(drawn()).key == level.key != level_of(drawn(agent=(2, 1))).key
    assert level.key == "10be1a80eff772ec"  # as in the recordings written so far
    assert level_of(np.zeros(len(HEAD), np.float32)) is None
    assert level_of(np.full(28, np.nan, np.float32)) is None
    assert level_of(drawn()[:-3]) is None and level_of(drawn()[:-1]) is None  # no whole row, no whole cell
    assert level_of(np.where(np.arange(len(drawn())) == 5, 0, drawn())) is None
