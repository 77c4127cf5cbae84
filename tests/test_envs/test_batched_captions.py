"""Captions of array programs: step by step those of single environments, in the infos where they belong."""

import numpy as np
import pytest
from originals import load
from sample import mostly_at_night

from envs.batched import PROGRAMS
from envs.batched.base import BatchedEnv
from envs.family import entry
from envs.make import make, make_batched, make_vec, spec_of
from envs.minigrid.captions import MAX_CHATTER_PICTURES, picture
from envs.transitions import Rollout
from envs.vector.in_process import InProcess

GRIDS = [name for name in PROGRAMS if name.startswith("MiniGrid")]
# One or two sizes of each kind of level.
FAST_GRIDS = [
    *("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-Random-6x6-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-8x8-v0"),
    *("MiniGrid-FourRooms-v0", "MiniGrid-KeyCorridorS3R1-v0", "MiniGrid-KeyCorridorS4R3-v0"),
    *("MiniGrid-MultiRoom-N2-S4-v0", "MiniGrid-MultiRoom-N4-S5-v1", "MiniGrid-LockedRoom-v0"),
    *("MiniGrid-ObstructedMaze-1Dlhb-v0", "MiniGrid-ObstructedMaze-2Dlh-v0"),
]
CLASSIC = [
    name
    for name in PROGRAMS
    if "NetHack" not in name and entry(spec_of(name)).startswith(("gymnasium.envs.classic", "envs.classic.tasks"))
]
BEGIN = "mission: use the key to open the door and then get to the goal (7 moves left)"
OPTIONS = [{}, {"captions": "full"}, {"captions": "full", "chatter": True, "varied": True}]
N = 4


def urge(original, rng):
    """A random action that likes to pick up keys and balls, open boxes and doors, and go through these to the goal."""
    inner = original.unwrapped
    ahead = inner.grid.get(*inner.front_pos)
    if ahead is not None and rng.random() < 0.8:
        if ahead.type == "goal" or (ahead.type == "door" and ahead.is_open):
            return rng.choice([2, 2, 2, 5])
        if ahead.type == "door":
            return 5
        if ahead.type in ("key", "ball") and inner.carrying is None:
            return 3
        if ahead.type == "box":
            return rng.choice([3, 5])
    return rng.choice(7, p=[0.15, 0.15, 0.35, 0.05, 0.1, 0.15, 0.05])


def told_alike(env, originals, rng, steps):
    """Play beside the originals until an episode ends; all that was said."""
    said = [original.reset(seed=int(rng.integers(1 << 30)))[1]["text"] for original in originals]
    load(env, originals)
    assert env.modalities["text"].tolist() == said
    for _ in range(steps):
        actions = np.array([urge(original, rng) for original in originals])
        *_, terminations, truncations, infos = env.step(actions)
        ended = terminations | truncations
        texts = [original.step(action)[-1]["text"] for original, action in zip(originals, actions)]
        mine = np.where(ended, infos["final_info"]["text"], infos["text"]) if ended.any() else infos["text"]
        assert mine.tolist() == texts
        assert all(text.startswith("mission: ") for text in infos["text"][ended])
        said += texts
        if ended.any():
            break
    return said


@pytest.mark.parametrize("env_id", mostly_at_night(GRIDS, *FAST_GRIDS))
def test_all_worlds_say_what_the_originals_say(env_id):
    rng = np.random.default_rng(1)
    for options, array in ((OPTIONS[GRIDS.index(env_id) % 2], "torch"), (OPTIONS[2], "numpy")):
        env = make_batched(env_id, N, text=True, array=array, **options)
        originals = [make(env_id, text=True, **options) for _ in range(N)]
        said = [text for _ in range(2) for text in told_alike(env, originals, rng, 15)]
        assert all(isinstance(text, str) for text in said)
        if options.get("captions") == "full":
            assert any("sees " in text or "bumped into " in text for text in said)
        if options.get("varied"):
            assert all(text == "" or text.endswith(" moves left)") for text in said)


def test_every_event_is_said_where_it_happens():
    env_id, rng, heard = "MiniGrid-DoorKey-5x5-v0", np.random.default_rng(0), []
    env = make_batched(env_id, N, text=True, captions="full")
    originals = [make(env_id, text=True, captions="full") for _ in range(N)]
    while len(heard) < 1500:
        heard += told_alike(env, originals, rng, 250)
    assert {text.partition(",")[0] for text in heard} == {
        "", "mission: use the key to open the door and then get to the goal", "picked up the yellow key",
        "dropped the yellow key", "unlocked the yellow door", "opened the yellow door", "closed the yellow door",
        "reached the goal", "bumped into a wall", "bumped into the yellow key", "bumped into the yellow door",
        "the yellow door is locked", "sees the yellow key", "sees the yellow door", "sees the green goal",
    }  # fmt: skip


def test_captions_travel_as_those_of_a_vector_of_environments():
    options = {"text": True, "captions": "full", "varied": True, "max_episode_steps": 7}
    for backend, kind in (("auto", BatchedEnv), ("gym", InProcess)):
        env = make_vec("MiniGrid-DoorKey-6x6-v0", 3, seed=0, backend=backend, **options)
        assert isinstance(env, kind)
        obs, infos = env.reset()
        rollout = Rollout(9, env, modality_names=frozenset({"text"}))
        rollout.begin(obs, infos)
        for step in range(9):
            rollout.write(step, slice(0, 3), *env.step(np.full(3, 2)))
        batch = rollout.transitions(frozenset({"text", "obs_text"}))
        for step, row in enumerate(batch.text):  # also where time ran out, in row 6: the successor's, no mission
            assert all(said == "" or said.endswith(f" ({6 - step % 7} moves left)") for said in row)
        assert any("bumped into a wall" in said for said in batch.text[6])
        assert batch.obs_text[0].tolist() == batch.obs_text[7].tolist() == [BEGIN] * 3


@pytest.mark.parametrize("array", ["numpy", "torch"])
def test_a_snapshot_keeps_what_was_said_and_what_was_seen(array):
    options = {"text": True, "captions": "full", "chatter": True, "varied": True, "array": array}
    env = make_batched("MiniGrid-DoorKey-5x5-v0", 50, seed=3, max_episode_steps=9, **options)
    env.reset()
    rng = np.random.default_rng(0)
    actions = rng.integers(7, size=(30, 50))
    for one in actions[:10]:
        env.step(one)
    state = env.snapshot()
    said = [env.step(one)[-1]["text"].tolist() for one in actions]
    other = make_batched("MiniGrid-DoorKey-5x5-v0", 50, max_episode_steps=9, **options)
    other.restore(state)
    assert other.modalities["text"].tolist() == state["text"]
    assert [other.step(one)[-1]["text"].tolist() for one in actions] == said
    assert len({text for row in said for text in row if "picture" in text}) > 150


@pytest.mark.parametrize("env_id", CLASSIC)
def test_classic_control_says_what_the_originals_say(env_id):
    array = "torch" if env_id.startswith("lodestar") else "numpy"
    env = make_batched(env_id, 8, text=True, array=array, max_episode_steps=60)
    originals = [make(env_id, text=True, seed=i, max_episode_steps=60) for i in range(8)]
    said = [original.reset()[1]["text"] for original in originals]
    load(env, originals)
    assert env.modalities["text"].tolist() == said and "the " in said[0]
    for _ in range(60):
        actions = np.stack([original.action_space.sample() for original in originals])
        *_, terminations, truncations, infos = env.step(actions)
        ended = np.array(terminations | truncations)
        mine = np.where(ended, infos["final_info"]["text"], infos["text"]) if ended.any() else infos["text"]
        assert mine.tolist() == [original.step(action)[-1]["text"] for original, action in zip(originals, actions)]
        if ended.any():
            break
    assert isinstance(make_vec(env_id, 2, backend="auto", text=True), BatchedEnv)


def test_classic_snapshots_bring_their_captions_back():
    env = make_batched("lodestar/CartPoleUpright-v0", 3, text=True, frame_size=16)
    env.reset()
    for _ in range(40):
        *_, infos = env.step(np.ones(3, int))
    said = infos["text"].tolist()
    other = make_batched("lodestar/CartPoleUpright-v0", 3, text=True, frame_size=16)
    other.restore(env.snapshot())
    assert other.modalities["text"].tolist() == said and "upright, the cart is in the middle" not in said[0]
    assert set(other.modalities) == {"text", "frame"}


def test_pictures_are_ever_new_and_follow_from_episode_and_step():
    step = np.arange(1, 5_001)
    numbers = picture(np.random.default_rng(0).integers(1 << 32, size=(20, 1)), step, 10**7)
    assert numbers.min() >= 0 and numbers.max() < MAX_CHATTER_PICTURES
    assert all(len(np.unique(episode)) == 5_000 for episode in numbers)
    assert len(np.unique(numbers)) > 0.9 * numbers.size
    assert picture(7, 3, 10**7) == picture(np.array([7]), np.array([3]), 10**7)[0] == 3_307_290
    assert abs(numbers.mean() / MAX_CHATTER_PICTURES - 0.5) < 0.01


def test_without_being_asked_nothing_is_said():
    for options in OPTIONS:
        env = make_vec("MiniGrid-DoorKey-5x5-v0", 2, backend="auto", **options)
        assert isinstance(env, BatchedEnv) and env.reset()[1] == {}
        assert env.step(np.array([0, 1]))[-1] == {}
