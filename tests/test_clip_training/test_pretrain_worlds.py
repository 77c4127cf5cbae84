import dataclasses

import numpy as np
import pytest
from sample import mostly_at_night

from assets.clip.train.worlds import MODELS, classic, highway, merge, minigrid, mujoco, racing
from assets.clip.train.worlds.acrobot import LEXICON as ACROBOT
from assets.clip.train.worlds.shapes import bump, near
from rewards.vision.training.captions import Caption, Grammar, truth
from rewards.vision.training.lexicon import States, collect, join

LEXICONS = {name: model.lexicon() for name, model in MODELS.items()}
SECOND = LEXICONS["lodestar-96"]
WORLDS = [(lexicon, i) for lexicon in LEXICONS.values() for i in range(len(lexicon.worlds))]
NAMES = [lexicon.worlds[i].name for lexicon, i in WORLDS]


def one(lexicon, name, **facts):
    """How true an attribute is of a single state."""
    states = States(np.zeros(1, np.int64), {key: np.array([float(value)]) for key, value in facts.items()})
    return float(lexicon.attributes[name].truth(states)[0])


def some(lexicon, world, count, size=None, seed=0):
    rng = np.random.default_rng(seed)
    return collect(lexicon.worlds[world].scenes(rng, count, np.random.default_rng(1)), world, size)


# Robots other than one stand in their scenes by the same code.
FAST_WORLDS = [world for world, name in zip(WORLDS, NAMES) if name not in ("Hopper", "Walker2d", "Humanoid")]


@pytest.mark.parametrize(("lexicon", "world"), mostly_at_night(WORLDS, *FAST_WORLDS), ids=NAMES)
def test_scenes_repeat_with_their_seed_and_cover_truths_from_false_to_true(lexicon, world):
    states, _ = some(lexicon, world, 50)
    (first, again) = (some(lexicon, world, 7)[0].facts for _ in range(2))
    assert all((first[name] == again[name]).all() for name in first)
    name = lexicon.worlds[world].name
    for attribute in lexicon.attributes.values():
        seen_in = attribute.worlds or lexicon.subjects[attribute.about].worlds("")
        if name not in seen_in or (name, attribute.about) == ("highway", "racer"):  # nothing leaves the highway
            continue
        values = attribute.truth(states)
        assert values.min() >= 0 and values.max() <= 1 + 1e-9
        assert values.max() - values.min() > 0.4, attribute.said[0]


@pytest.mark.parametrize("name", MODELS)
def test_training_never_sees_what_is_held_out(name):
    lexicon = LEXICONS[name]
    captions = Grammar(lexicon, np.random.default_rng(0)).draw(3000)
    assert not {c.text for c in captions} & set(lexicon.verbatim)
    for caption in captions:
        claims = [claim for claim, _ in caption.claims]
        assert len(claims) < 2 or lexicon.pairs_held_out.get(claims[0]) != claims[1]
    for thing in (*lexicon.attributes.values(), *lexicon.subjects.values()):
        assert not set(thing.said) & {*thing.held_out, *thing.fresh}


@pytest.mark.parametrize("name", MODELS)
def test_every_goal_of_a_world_means_an_attribute_that_can_be_seen_there(name):
    lexicon = LEXICONS[name]
    for i, world in enumerate(lexicon.worlds):
        assert world.goals
        for prompt, attribute in world.goals:
            assert i in lexicon.worlds_of(attribute, prompt), prompt


@pytest.mark.parametrize(
    ("env_id", "world"),
    [
        ("Acrobot-v1", "Acrobot"),
        ("MiniGrid-Empty-8x8-v0", "MiniGrid"),
        ("MiniGrid-DoorKey-5x5-v0", "MiniGrid"),
        ("CarRacing-v3", "CarRacing"),
        ("HalfCheetah-v5", "HalfCheetah"),
        ("Hopper-v5", "Hopper"),
        ("Walker2d-v5", "Walker2d"),
        ("Humanoid-v5", "Humanoid"),
    ],
)
def test_the_prompts_of_an_environment_are_goals_of_its_world(env_id, world):
    from envs.make import goals

    (known,) = (dict(w.goals) for w in SECOND.worlds if w.name == world)
    goal = goals(env_id)[0]
    assert goal.prompt in known and goal.negative in known
    assert {known[goal.prompt], known[goal.negative]} in [set(pair) for pair in SECOND.opposites]


def test_a_caption_of_two_claims_is_about_the_worlds_of_both():
    # "car" may be the highway's or the track's, "lane" is the highway's alone.
    captions = Grammar(SECOND, np.random.default_rng(0)).draw(4000)
    names = [world.name for world in SECOND.worlds]
    pairs = [c for c in captions if len(c.claims) == 2]
    assert np.mean([bool(c.worlds) for c in pairs]) > 0.9  # the rest: a hopper and a humanoid, together nowhere
    assert SECOND.worlds_of("on_track", "red car on the road") == (names.index("CarRacing"),)
    assert SECOND.worlds_of("on_track", "car on the road") == (names.index("highway"), names.index("CarRacing"))
    assert SECOND.worlds_of("clear", "car with no car ahead") == (names.index("highway"),)


def test_lexicons_with_the_same_names_do_not_merge():
    with pytest.raises(ValueError, match="attributes of two lexicons share the names"):
        merge([ACROBOT, dataclasses.replace(ACROBOT, subjects={})])


def test_a_fact_that_a_world_lacks_is_nought():
    a = States(np.array([0]), {"x": np.array([2.0])})
    b = States(np.array([1]), {"y": np.array([3.0])})
    both = join([a, b])
    assert both.fact("x").tolist() == [2, 0] and both.fact("y").tolist() == [0, 3] and both.fact("z").tolist() == [0, 0]
    assert both[np.array([1])].fact("y").tolist() == [3]


def test_shapes_of_truth_by_hand():
    assert near(0.0, 0) == pytest.approx(1) and near(np.pi, 0) == pytest.approx(0)
    assert bump(0.5, 0.5) == pytest.approx(np.exp(-0.5))


def test_acrobots_truth_rises_with_its_tip():
    values = [one(ACROBOT, "acrobot_high", tip=tip) for tip in (-2, -1, 0, 1, 2)]
    assert values == sorted(values) and values[0] < 0.01 and values[-1] > 0.99
    assert values[3] == pytest.approx(0.6 * 3 / 4 + 0.4 / 2)  # at the line the step stands at one half


def test_a_grids_truth_climbs_along_the_path_and_peaks_on_the_square():
    from envs.make import make

    env = make("MiniGrid-Empty-5x5-v0", render_mode="rgb_array")
    env.reset(seed=0)
    inner = env.unwrapped
    expected = {(1, 1): 0.0, (2, 1): 0.25, (2, 2): 0.5, (3, 2): 0.75, (3, 3): 1.0}  # of 4 steps to the corner
    for cell, near_goal in expected.items():
        inner.agent_pos = np.array(cell)
        assert minigrid.facts(env)["goal"] == pytest.approx(near_goal)
    assert one(SECOND, "at_goal", goal=0.75) == pytest.approx(0.45) and one(SECOND, "at_goal", goal=1) == 1
    assert one(SECOND, "far_from_goal", goal=0, goals=1) == 1 and one(SECOND, "far_from_goal", goal=0, goals=0) == 0


def test_a_walk_through_grids_also_reaches_the_goal():
    states, _ = collect(minigrid.LEXICON.worlds[0].walk(np.random.default_rng(0), 240), 0, None)
    assert len(states) == 240
    random, seeking = states.fact("goal")[80:160], states.fact("goal")[160:]
    assert seeking.max() == 1 and seeking.mean() > random.mean() + 0.1


def test_a_door_and_a_key_are_read_from_the_grid():
    from envs.make import make

    env = make("MiniGrid-DoorKey-5x5-v0", render_mode="rgb_array")
    env.reset(seed=0)
    inner = env.unwrapped
    before = minigrid.facts(env)
    assert (before["keys"], before["carrying"], before["doors"], before["open"]) == (1, 0, 1, 0)
    (key,) = (i for i, thing in enumerate(inner.grid.grid) if thing is not None and thing.type == "key")
    inner.carrying, inner.grid.grid[key] = inner.grid.grid[key], None
    next(thing for thing in inner.grid.grid if thing is not None and thing.type == "door").is_open = True
    after = minigrid.facts(env)
    assert (after["keys"], after["carrying"], after["doors"], after["open"]) == (0, 1, 1, 1)
    assert after["goal"] == before["goal"]  # doors count as open on the path


def test_a_highway_scene_is_what_its_facts_say():
    states, frames = some(highway.LEXICON, 0, 40, 96)
    crashed = states.fact("crashed") == 1
    assert 0 < crashed.sum() < 40 and states.fact("clear")[crashed].max() == 0
    red = (frames[..., 0] > 200) & (frames[..., 1] < 140)
    green = (frames[..., 1] > 150) & (frames[..., 0] < 110) & (frames[..., 2] < 80)
    assert red[crashed].any((1, 2)).all() and not red[~crashed].any()
    assert green[~crashed].any((1, 2)).all()


def test_a_car_on_the_grass_is_seen_on_the_grass():
    states, frames = some(racing.LEXICON, 0, 25, 96)
    # Left and right of the car, which always stands at the same place, is grey track or green grass.
    beside = np.concatenate([frames[:, 70:73, 44:46], frames[:, 70:73, 51:53]], axis=2).astype(int)
    green = ((beside[..., 1] - beside[..., 0]) > 40).mean((1, 2))
    on = states.fact("on_road")
    assert green[on > 0.97].mean() < 0.2 and green[on < 0.03].mean() > 0.8


@pytest.mark.parametrize("world", range(4), ids=[w.name for w in mujoco.LEXICON.worlds])
def test_a_robot_stands_on_the_floor_and_is_seen(world):
    states, frames = some(mujoco.LEXICON, world, 6, 96)
    assert (states.fact("height") > 0).all() and frames.std((1, 2)).min() > 10
    assert len({f.tobytes() for f in frames}) == len(frames)


def test_a_cheetahs_pitch_tells_back_from_feet_and_nose_up_from_nose_down():
    pitches = {"cheetah_feet": 0, "cheetah_rear": np.pi / 2, "cheetah_back": np.pi, "cheetah_front": -np.pi / 2}
    for name, pitch in pitches.items():
        values = {other: one(SECOND, other, pitch=pitch) for other in pitches}
        assert max(values, key=values.get) == name and values[name] == pytest.approx(1)


@pytest.mark.parametrize("world", range(3), ids=[w.name for w in classic.LEXICON.worlds])
def test_a_walk_tells_the_state_that_it_shows(world):
    rng = np.random.default_rng(0)
    for env, facts in classic.LEXICON.worlds[world].walk(rng, 20):
        state = env.unwrapped.state
        if world == 1:
            assert facts == {"angle": 0, "x": float(state[0])}
        else:
            angle = state[2] if world == 0 else -state[0]
            assert np.cos(facts["angle"]) == pytest.approx(np.cos(angle))


def test_a_sentence_about_one_world_is_true_of_no_other():
    states = join([some(SECOND, world, 10)[0] for world in range(len(SECOND.worlds))])
    claim = Caption("", SECOND.numbers(["MiniGrid"]), (("far_from_goal", True),))
    value, about = truth(SECOND, [claim], states)
    assert (
        value[0][states.world != claim.worlds[0]].max() == 0 and about.sum() == (states.world == claim.worlds[0]).sum()
    )
