"""Crafter: seeds, ends, what is seen and told, and coming back to exactly the same state."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

from envs.crafter.family import ACHIEVEMENT_WORDS, CRAFTER_KINDS, CRAFTER_SIGNALS, FACINGS, Achievements
from envs.make import families, goals, make
from envs.make import make_vec as made

SMALL = {"area": 16}  # a small world grows in a fraction of a second
ACTIONS = {name: number for number, name in enumerate(["noop", "left", "right", "up", "down", "do", "sleep"])}


def stand_before(env: gym.Env, material: str) -> None:
    """Put a material on the cell that the player faces, and nothing else there."""
    player, world = env.unwrapped.player, env.unwrapped.game._world
    there = tuple(np.array(player.pos) + player.facing)
    world[there] = material
    if (obj := world[there][1]) is not None:
        world.remove(obj)


def keep_away(env: gym.Env) -> None:
    """Remove all creatures, and let no others come."""
    world = env.unwrapped.game._world
    for obj in world.objects:
        if obj is not env.unwrapped.player:
            world.remove(obj)
    env.unwrapped.game._balance_chunk = lambda chunk, objs: None


@pytest.fixture(scope="module")
def env():
    """One environment for tests that reset it."""
    return make("lodestar/Crafter-v0", text=True, signals=True, frame_size=32, **SMALL)


def test_the_flat_view_shows_cells_inventory_facing_daylight_and_sleep(env):
    obs, _ = env.reset(seed=3)
    assert obs.shape == (9 * 9 * 19 + 16 + 4 + 2,) and obs in env.observation_space
    stand_before(env, "table")
    keep_away(env)
    env.unwrapped.player.inventory.update(wood=3, health=9)
    obs = env.step(ACTIONS["noop"])[0]
    cells = obs[:1539].reshape(9, 9, 19)
    assert (cells.sum(axis=-1) == 1).all() and cells[4, 4].argmax() == CRAFTER_KINDS.index("player")
    across, down = env.unwrapped.player.facing
    assert cells[4 + across, 4 + down].argmax() == CRAFTER_KINDS.index("table")
    np.testing.assert_allclose(obs[1539:1555][[0, 5]], [1, 3 / 9], rtol=1e-6)  # health, wood
    assert obs[1555:1559].tolist() == [float(facing == (across, down)) for facing in FACINGS]
    assert obs[-2] == pytest.approx(env.unwrapped.game._world.daylight) and obs[-1] == 0


def test_beyond_the_world_there_is_nothing(env):
    env.reset(seed=0)
    keep_away(env)
    env.unwrapped.game._world.move(env.unwrapped.player, (0, 0))
    cells = env.unwrapped._obs()[:1539].reshape(9, 9, 19).argmax(axis=-1)
    assert (cells[:4] == 0).all() and (cells[:, :4] == 0).all() and (cells[4:, 4:] > 0).all()


def test_kinds_are_the_numbers_of_the_games_own_map(env):
    env.reset(seed=0)
    view = env.unwrapped.game._sem_view
    own = {number: name for name, number in view._mat_ids.items() if name}
    own |= {number: kind.__name__.lower() for kind, number in view._obj_ids.items()}
    assert [own[number] for number in range(1, 19)] == list(CRAFTER_KINDS[1:])


def test_what_happens_is_told_in_words_and_paid_once(env):
    info = env.reset(seed=1)[1]
    assert (
        info["text"] == ""
        and set(info["achievements"]) == set(ACHIEVEMENT_WORDS)
        and not any(info["achievements"].values())
    )
    keep_away(env)
    stand_before(env, "tree")
    _, reward, _, _, info = env.step(ACTIONS["do"])
    assert info["text"] == "collected wood" and reward == 1 and info["achievements"]["collect_wood"] == 1
    assert [goal.name for goal in goals("lodestar/Crafter-v0") if goal.truth(env)] == ["collect_wood"]
    stand_before(env, "tree")
    _, reward, _, _, info = env.step(ACTIONS["do"])
    assert info["text"] == "collected wood" and reward == 0 and info["achievements"]["collect_wood"] == 2
    assert env.step(ACTIONS["noop"])[4]["text"] == ""
    stand_before(env, "water")
    assert env.step(ACTIONS["do"])[4]["text"] == "drank water"
    env.unwrapped.player.inventory["energy"] = 3
    assert env.step(ACTIONS["sleep"])[4]["text"] == "fell asleep"
    env.unwrapped.player.inventory["energy"] = 9
    assert env.step(ACTIONS["noop"])[4]["text"] == "woke up"
    env.unwrapped.player.health = 7
    assert env.step(ACTIONS["noop"])[4]["text"] == "was hurt"
    assert env.step(ACTIONS["noop"])[4]["text"] == ""
    met = [goal.name for goal in goals("lodestar/Crafter-v0") if goal.truth(env)]
    assert met == ["collect_wood", "collect_drink", "wake_up"]
    signals = dict(zip(CRAFTER_SIGNALS, env.step(ACTIONS["noop"])[4]["signals"]))
    assert (signals["collect_wood"], signals["wake_up"], signals["health"]) == (2, 1, 7)


def test_two_things_at_once_are_both_told(env):
    env.reset(seed=1)
    keep_away(env)
    stand_before(env, "tree")
    env.unwrapped.player.health = 5
    assert env.step(ACTIONS["do"])[4]["text"] == "collected wood; was hurt"


def test_only_death_terminates_and_the_limit_truncates(env):
    env.reset(seed=0)
    keep_away(env)
    env.unwrapped.player.health = 0
    _, _, terminated, truncated, info = env.step(ACTIONS["noop"])
    assert (terminated, truncated, info["text"]) == (True, False, "died") and "is_success" not in info
    assert env.spec.max_episode_steps == 10_000
    short = make("lodestar/Crafter-v0", max_episode_steps=2, **SMALL)
    short.reset(seed=0)
    assert [short.step(0)[2:4] for _ in range(2)] == [(False, False), (False, True)]


def play(env: gym.Env, steps: int, seed: int) -> list:
    """Observations, rewards and pictures of random play."""
    rng = np.random.default_rng(seed)
    seen = []
    for _ in range(steps):
        obs, reward, terminated, _, _ = env.step(int(rng.integers(17)))
        seen.append((obs.tobytes(), reward, terminated))
        if terminated:
            env.reset()
    return seen


def herd() -> gym.Env:
    """A meadow with more cows in its first chunk than the game lets live."""
    from crafter.objects import Cow

    env = make("lodestar/Crafter-v0", **SMALL)
    env.reset(seed=5)
    world = env.unwrapped.game._world
    for obj in world.objects:
        if obj is not env.unwrapped.player:
            world.remove(obj)
    env.unwrapped.game._world.move(env.unwrapped.player, (15, 15))
    for x in range(8):
        world[x, 0] = "grass"
        world.add(Cow(world, (x, 0)))
    return env


def test_which_creature_goes_does_not_hang_on_where_it_lies_in_memory():
    left = []
    for backwards in (False, True):
        game = herd().unwrapped.game
        for _ in range(30):  # each time a cow may go
            cows = [obj for obj in game._world.objects if obj is not game._player]
            game._balance_chunk((0, 12, 0, 12), cows[::-1] if backwards else cows)
        left.append([tuple(obj.pos) for obj in game._world.objects])
    assert left[0] == left[1] and len(left[0]) < 9


def test_seeds_differ_and_looking_does_not_change_the_world():
    seen, unseen, other = (make("lodestar/Crafter-v0", render_mode="rgb_array", **SMALL) for _ in range(3))
    first, again, different = seen.reset(seed=7)[0], unseen.reset(seed=7)[0], other.reset(seed=8)[0]
    np.testing.assert_array_equal(first, again)
    assert (first != different).any()
    for env in (seen, unseen):
        env.unwrapped.game._step = 270  # night has noise in its pictures
    for action in (1, 2, 3, 4) * 15:
        one = seen.render()
        assert one.shape == (288, 288, 3)
        np.testing.assert_array_equal(one, seen.render())
        np.testing.assert_array_equal(seen.step(action)[0], unseen.step(action)[0])


def test_the_journal_leads_back_to_exactly_the_same_state():
    env, copy = (make("lodestar/Crafter-v0", text=True, **SMALL) for _ in range(2))
    env.reset(seed=2)
    play(env, 60, 1)
    env.reset()
    play(env, 40, 2)
    copy.restore(env.snapshot())
    assert play(env, 60, 3) == play(copy, 60, 3)


def test_pixels_are_the_papers_picture_channel_first():
    env = make("lodestar/Crafter-v0", pixels=True, **SMALL)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.shape == (3, 64, 64) and obs in env.observation_space and obs.std() > 10
    bare = make("lodestar/Crafter-v0", pixels=True, adapt=False, **SMALL)
    np.testing.assert_array_equal(bare.reset(seed=0)[0].transpose(2, 0, 1), obs)


def test_vectors_carry_frames_texts_and_signals():
    envs = made("lodestar/Crafter-v0", 2, seed=0, backend="gym", text=True, frame_size=32, **SMALL)
    obs, infos = envs.reset(seed=0)
    assert obs.shape == (2, 1561) and infos["frame"].shape == (2, 32, 32, 3) and infos["text"].tolist() == ["", ""]
    envs.close()


def test_evaluation_counts_achievements_and_the_papers_score():
    metrics = Achievements()
    assert isinstance(families()["crafter"].metrics(None), Achievements)
    once = np.zeros(len(CRAFTER_SIGNALS), np.float32)
    once[:11] = [3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    for signals in (once, np.zeros_like(once)):
        metrics.begin(signals * 0)
        metrics.step(signals)
    # half of 22 achievements in half of the episodes: 11 shares of 50 %, 11 of 0 %
    assert metrics.summary()["achievements"] == 5.5
    assert metrics.summary()["Crafter score, %"] == pytest.approx(np.sqrt(51) - 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"area": 3}, r"area=3 is out of range; give 16 to 256"), ({"render_mode": "ansi"}, r"render_mode='ansi' is")],
)
def test_what_makes_no_sense_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make("lodestar/Crafter-v0", **options)


def test_without_the_package_one_sentence_says_what_to_install():
    code = (
        "import sys; sys.modules['crafter'] = None\n"
        "from envs.make import make\n"
        "try: make('lodestar/Crafter-v0')\n"
        "except ImportError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert (
        said.startswith("environment 'lodestar/Crafter-v0' needs the package crafter (")
        and "pip install 'lodestar-rl[crafter]'" in said
    )
