"""What one MiniGrid says of each action, and the two nuisances that studies ask for."""

import json

import numpy as np
import pytest

from envs.make import make, make_vec

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
DIRECTIONS = [(1, 0), (0, 1), (-1, 0), (0, -1)]


def stand_before(env, kind):
    """Put the agent on a free cell beside the first thing of a kind, facing it, and let it be captioned there."""
    grid = env.unwrapped.grid
    at = next(i for i, thing in enumerate(grid.grid) if thing is not None and thing.type == kind)
    x, y = at % grid.width, at // grid.width
    for direction, (dx, dy) in enumerate(DIRECTIONS):
        if grid.get(x - dx, y - dy) is None:
            env.unwrapped.agent_pos, env.unwrapped.agent_dir = (x - dx, y - dy), direction
            break
    env.step(DONE)


def told(env, *actions):
    return [env.step(action)[-1]["text"] for action in actions]


def test_every_event_of_doorkey_has_its_words():
    env = make("MiniGrid-DoorKey-6x6-v0", text=True, seed=0)
    assert env.reset()[1]["text"] == "mission: use the key to open the door and then get to the goal"
    stand_before(env, "door")
    assert told(env, TOGGLE, FORWARD) == ["", ""]  # locked; only full captions tell
    stand_before(env, "key")
    assert told(env, DONE, PICKUP, DROP, PICKUP) == [
        "", "picked up the yellow key", "dropped the yellow key", "picked up the yellow key",
    ]  # fmt: skip
    stand_before(env, "door")
    assert told(env, TOGGLE, TOGGLE, TOGGLE) == [
        "unlocked the yellow door", "closed the yellow door", "opened the yellow door",
    ]  # fmt: skip
    stand_before(env, "goal")
    assert told(env, FORWARD) == ["reached the goal"]


def test_full_captions_also_tell_bumps_locks_and_what_comes_into_view():
    env = make("MiniGrid-DoorKey-6x6-v0", text=True, captions="full", seed=0)
    env.reset()
    stand_before(env, "door")
    assert told(env, TOGGLE, FORWARD) == ["the yellow door is locked", "bumped into the yellow door"]
    stand_before(env, "key")
    assert told(env, FORWARD, PICKUP) == ["bumped into the yellow key", "picked up the yellow key"]
    stand_before(env, "door")
    assert told(env, TOGGLE, TOGGLE, TOGGLE) == [
        "unlocked the yellow door, sees the green goal", "closed the yellow door",
        "opened the yellow door, sees the green goal",
    ]  # fmt: skip
    assert "sees the green goal" in told(env, LEFT, LEFT, LEFT, LEFT)
    stand_before(env, "goal")
    assert told(env, FORWARD) == ["reached the goal"]


def test_a_thing_that_is_put_down_does_not_come_into_view():
    env = make("MiniGrid-DoorKey-6x6-v0", text=True, captions="full", seed=0)
    env.reset()
    stand_before(env, "key")
    assert told(env, PICKUP, DROP) == ["picked up the yellow key", "dropped the yellow key"]


def test_walls_lava_and_boxes_have_words_too():
    env = make("MiniGrid-LavaGapS5-v0", text=True, captions="full", seed=0)
    env.reset()
    assert told(env, RIGHT, RIGHT, FORWARD)[2] == "bumped into a wall"
    stand_before(env, "lava")
    assert told(env, FORWARD) == ["fell into lava"]
    env = make("MiniGrid-ObstructedMaze-1Dlh-v0", text=True, seed=0)
    env.reset()
    stand_before(env, "box")
    box = env.unwrapped.grid.get(*env.unwrapped.front_pos)
    assert told(env, TOGGLE, PICKUP) == [f"opened the {box.color} box", f"picked up the {box.contains.color} key"]


def test_chatter_prints_ever_new_pictures_that_a_seed_repeats():
    runs = []
    for seed in (3, 3, 4):
        env = make("MiniGrid-Empty-5x5-v0", text=True, chatter=True, seed=seed)
        said = []
        for _ in range(4):
            env.reset()
            said += told(env, DONE, LEFT, DONE)
        runs.append(said)
    assert runs[0] == runs[1] and len({*runs[0], *runs[2]} - {""}) == 16
    assert all(
        said == "" if i % 3 == 1 else said.startswith("the screen shows picture ") for i, said in enumerate(runs[0])
    )
    assert told(make_reset("MiniGrid-Empty-5x5-v0"), DONE) == [""]


def make_reset(env_id, **options):
    env = make(env_id, text=True, seed=0, **options)
    env.reset()
    return env


def test_varied_captions_count_the_moves_left_where_something_is_said():
    env = make("MiniGrid-Empty-5x5-v0", text=True, varied=True, captions="full", seed=0)
    assert env.reset()[1]["text"] == "mission: get to the green goal square (100 moves left)"
    assert told(env, LEFT, FORWARD, LEFT) == ["", "bumped into a wall (98 moves left)", ""]
    env = make("MiniGrid-Empty-5x5-v0", text=True, varied=True, max_episode_steps=9, seed=0)
    assert env.reset()[1]["text"].endswith(" (9 moves left)")


def test_a_journal_brings_the_same_words_back():
    options = {"text": True, "captions": "full", "chatter": True, "varied": True}
    env, other = (make("MiniGrid-DoorKey-5x5-v0", seed=2, **options) for _ in range(2))
    rng = np.random.default_rng(0)
    env.reset()
    env.reset()
    said = told(env, *rng.integers(7, size=25))
    state = json.loads(json.dumps(env.snapshot()))
    assert other.restore(state)[1]["text"] == said[-1]
    actions = [DONE, *rng.integers(7, size=40)]
    assert told(other, *actions) == told(env, *actions)
    assert env.reset()[1] == other.reset()[1] and told(env, DONE) == told(other, DONE)


def test_a_screen_with_three_pictures_shows_no_other():
    env = make("MiniGrid-Empty-5x5-v0", text=True, chatter=3)
    env.reset(seed=0)
    said = {env.step(6)[-1]["text"] for _ in range(50)}
    assert said == {f"the screen shows picture {number}" for number in range(3)}


def test_without_chatter_levels_are_those_of_always_and_options_do_not_change_observations():
    plain, full, chatter = (
        make("MiniGrid-DoorKey-8x8-v0", seed=0, **options)
        for options in ({}, {"captions": "full", "varied": True}, {"chatter": True})
    )
    first = [env.reset()[0] for env in (plain, full, chatter)]
    second = [env.reset()[0] for env in (plain, full, chatter)]
    assert np.array_equal(first[0], first[1]) and np.array_equal(second[0], second[1])
    assert np.array_equal(first[0], first[2])  # chatter draws its number after the level


def test_events_are_told_without_the_adapter():
    env = make("MiniGrid-DoorKey-6x6-v0", text=True, adapt=False, seed=0)
    env.reset()
    stand_before(env, "key")
    assert told(env, PICKUP) == ["picked up the yellow key"]


@pytest.mark.parametrize("backend", ["gym", "auto"])
def test_wrong_options_are_refused_with_a_sentence(backend):
    for options, sentence in [
        ({"captions": "all"}, r"captions='all' is unknown; give \"events\" or \"full\""),
        ({"chatter": 1.5}, r"chatter=1.5 is neither true, false nor a number of pictures"),
        ({"chatter": -3}, r"chatter=-3 is neither true, false nor a number of pictures"),
        ({"varied": "yes"}, r"varied='yes' is neither true nor false"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            make_vec("MiniGrid-DoorKey-5x5-v0", 2, backend=backend, text=True, **options)
