"""NetHack's captions: what is said, what the agent wrote itself, the status line; and exact resume."""

import numpy as np
import pytest

from envs.make import make
from envs.nethack.family import caption, with_status


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"", ""),
        (b"You kill the newt!  Welcome to experience level 2.", "You kill the newt! Welcome to experience level 2."),
        (b"You miss the rat.  You miss the rat.  The rat bites!", "You miss the rat. (x2) The rat bites!"),
        (
            b'Something is written here.  You read: "You find the Oracle!".',
            'Something is written here. You read: "(written)".',
        ),
        (b'You read: "say "friend" and 50 points".', 'You read: "(written)".'),
        (b"The dog named You win the game bites.  You stop.", "The dog named (written). You stop."),
        (b"k - a potion called full healing 50.", "k - a potion called (written)."),
        (b"There is a \xe9 here.  ", "There is a \xe9 here."),
    ],
)
def test_captions_are_the_message_without_what_players_wrote(message, told):
    assert caption(message) == told


def test_what_the_agent_types_is_in_no_caption_not_even_as_the_name_of_its_pet():
    from nle.nethack import ACTIONS

    env = make("NetHackScore-v0", text=True, actions=tuple(ACTIONS), allow_all_yn_questions=True, allow_all_modes=True)
    actions = [int(action) for action in env.unwrapped.actions]
    told = [env.reset(seed=1)[1]["text"]]
    keys = "E-   You kill the newt!\r:: Cmm,You slay newts\rjkl"
    told += [env.step(actions.index(ord(key)))[4]["text"] for key in keys]
    assert "What do you want to write in the dust here? (written)" in told
    assert "What do you want to call the kitten? (written)" in told
    assert 'You read: "(written)".' in told
    assert "(written) picks up a gold piece." in told
    assert not [text for text in told if "newt" in text or "slay" in text]


def test_the_status_line_follows_the_message_if_asked():
    env = make("NetHackScore-v0", text=True, status=True)
    _, info = env.reset(seed=1)
    assert info["text"].startswith("Hello Agent, welcome to NetHack!")
    assert info["text"].endswith(" [Dlvl 1, HP 14, XP 1, $ 0]")
    numbers = np.zeros(27, np.int64)
    numbers[[10, 12, 13, 18]] = 12, 2, 45, 3
    assert with_status("", numbers) == "[Dlvl 2, HP 12, XP 3, $ 45]"
    assert with_status("You die...", np.zeros(27, np.int64)) == "You die..."
    assert make("NetHackScore-v0", text=True).reset(seed=1)[1]["text"].endswith("Monk.")


@pytest.mark.parametrize("env_id", ["NetHackScore-v0", "lodestar/NetHackScore-v0"])
def test_a_game_goes_on_exactly_from_its_snapshot(env_id):
    env, rng = make(env_id, text=True, max_episode_steps=60), np.random.default_rng(0)
    env.reset(seed=3)
    for _ in range(100):
        if any(env.step(int(rng.integers(23)))[2:4]):
            env.reset()
    snapshot = env.snapshot()
    actions = rng.integers(env.action_space.n, size=30).tolist()

    def continues(other):
        seen = []
        for action in actions:
            obs, reward, terminated, truncated, info = other.step(action)
            seen.append((obs.tobytes(), float(reward), terminated, truncated, info["text"]))
            if terminated or truncated:
                seen.append(other.reset()[0].tobytes())
        return seen

    expected = continues(env)
    fresh = make(env_id, text=True, max_episode_steps=60)
    fresh.restore(snapshot)
    assert continues(fresh) == expected


def test_minihack_is_seeded_truncated_and_captioned_as_nethack_is():
    # By way of `make`, which stands in for a module that MiniHack imports and setuptools no longer brings.
    env_id = "minihack:MiniHack-Room-Random-15x15-v0"
    env, rng = make(env_id, text=True, seed=4), np.random.default_rng(0)
    assert env.observation_space.shape == (1386,) and env.spec.max_episode_steps == 300
    first, _ = env.reset()
    other, _ = make(env_id, seed=5).reset()
    assert (first != other).any()
    for _ in range(20):
        *_, terminated, _, info = env.step(int(rng.integers(8)))
        assert isinstance(info["text"], str) and not terminated
    fresh = make(env_id, text=True)
    fresh.restore(env.snapshot())
    for action in (0, 2, 4, 6):
        np.testing.assert_array_equal(env.step(action)[0], fresh.step(action)[0])
    short = make(env_id, max_episode_steps=3, seed=4)
    short.reset()
    assert [short.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
