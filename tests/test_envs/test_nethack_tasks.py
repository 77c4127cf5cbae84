"""Our tasks of NetHack: what pays, when they end, and how prompts are answered."""

import numpy as np
import pytest

pytest.importorskip("nle")
from nethack_walk import DOWN, way_down
from nle import nethack

from envs.make import make, make_vec, spec_of
from envs.nethack.family import NETHACK_FAMILY
from envs.nethack.tasks import ACTIONS, Oracle, answer, oracle_glyph, score
from envs.nethack.view import STAT_CONDITION, STAT_DEPTH, STAT_HUNGER, STAT_SCORE, STAT_TIME, STAT_X, STAT_Y, Games

Command = nethack.Command
OURS = [name for name in NETHACK_FAMILY.ids if name.startswith("lodestar/")]
SEED = 15  # the stairs of its first level are 15 steps away


def play(env, *actions):
    """Each an index, or the game's own key or command; returns what the last step told."""
    for action in actions:
        index = ACTIONS.index(ord(action) if isinstance(action, str) else action)
        *_, info = env.step(index)
    return info["text"]


def key(env, keys: str) -> None:
    """Keys that no action presses, straight into the game."""
    for one in keys:
        env.unwrapped.games.playing[0].step(ord(one))


def test_all_tasks_have_28_actions_the_last_five_beyond_nles():
    assert len(OURS) == 5
    for env_id in OURS:
        env = make(env_id)
        assert env.action_space.n == 28
        assert env.spec.max_episode_steps == 5000
        env.close()
    names = (Command.CAST, Command.QUAFF, Command.PRAY, Command.PICKUP, Command.PAY)
    assert ACTIONS[23:] == names


def test_the_stairs_down_pay_50_once_and_end_the_episode():
    env = make("lodestar/NetHackStaircase3-v0", level=2, text=True)
    env.reset(seed=SEED)
    actions, results = way_down(env)
    assert len(actions) == 15 and actions[-1] == DOWN
    assert results == [(0.0, False)] * 14 + [(50.0, True)]
    assert env.get_wrapper_attr("caption")(env, {}) == "You descend the stairs."
    assert (
        env.unwrapped.games.blstats[0, STAT_DEPTH] == 2
    )  # the last observation is the level below, not the end of a game


def test_the_stairs_to_another_level_do_not_pay():
    env = make("lodestar/NetHackStaircase3-v0")
    env.reset(seed=SEED)
    actions, results = way_down(env)
    assert actions[-1] == DOWN and env.unwrapped.games.blstats[0, STAT_DEPTH] == 2
    assert results == [(0.0, False)] * 15


def test_a_won_episode_counts_as_success_in_every_vector():
    env = make("lodestar/NetHackStaircase3-v0", level=2)
    env.reset(seed=SEED)
    actions, _ = way_down(env)
    for backend in ("gym", "batched"):
        vec = make_vec("lodestar/NetHackStaircase3-v0", 1, seed=SEED, backend=backend, level=2)
        vec.reset()
        for action in actions:
            _, rewards, terminated, _, infos = vec.step(np.array([action]))
        assert rewards.tolist() == [50.0] and terminated.tolist() == [True]
        assert infos["final_info"]["is_success"].tolist() == [True]
        assert infos["final_info"]["episode"]["l"].tolist() == [15]


def games_with(env) -> Games:
    env.reset(seed=1)
    return env.unwrapped.games


def test_a_depth_reached_without_stairs_does_not_pay():
    env = make("lodestar/NetHackStaircase3-v0")
    games = games_with(env)
    before = np.array([[0, 1, 2]])
    said = np.frombuffer(b"There's a trap door here!", np.uint8)
    games.blstats[0, STAT_DEPTH] = 3
    games.message[0] = 0
    games.message[0, : len(said)] = said
    assert env.unwrapped.judge(games, before)[0].tolist() == [0.0]
    said = np.frombuffer(b"You descend the stairs.", np.uint8)
    games.message[0, : len(said)] = said
    assert env.unwrapped.judge(games, before)[0].tolist() == [50.0]
    assert env.unwrapped.judge(games, np.array([[0, 1, 3]]))[0].tolist() == [0.0]  # it was there already


@pytest.mark.parametrize(
    ("env_id", "hallucinating", "pays"),
    [
        ("lodestar/NetHackOracle-v0", False, True),
        ("lodestar/NetHackOracle-v0", True, True),
        ("lodestar/NetHackOracleSober-v0", False, True),
        ("lodestar/NetHackOracleSober-v0", True, False),
    ],
)
def test_the_oracle_pays_beside_the_agent_and_only_to_the_sober(env_id, hallucinating, pays):
    env = make(env_id)
    games = games_with(env)
    y, x = games.blstats[0, STAT_Y], games.blstats[0, STAT_X]
    games.blstats[0, STAT_CONDITION] = 512 if hallucinating else 0
    before = np.zeros((1, 3), np.int64)
    assert not env.unwrapped.judge(games, before)[1][0]
    games.glyphs[0, y - 1, x + 2] = oracle_glyph()  # two cells away
    assert not env.unwrapped.judge(games, before)[1][0]
    games.glyphs[0, y - 1, x + 1] = oracle_glyph()
    rewards, won = env.unwrapped.judge(games, before)
    assert rewards.tolist() == [50.0 * pays] and won.tolist() == [pays]
    assert nethack.permonst(nethack.glyph_to_mon(oracle_glyph())).mname == "Oracle"


def test_the_score_is_what_it_grew_by_less_a_hundredth_for_a_frozen_step():
    env = make("lodestar/NetHackScore-v0")
    games = games_with(env)
    games.blstats[0, STAT_SCORE], games.blstats[0, STAT_TIME] = 70, 9
    assert score(games, np.array([[50, 8, 1]])).tolist() == [20.0]
    assert score(games, np.array([[50, 9, 1]])).tolist() == [19.99]
    assert score(games, np.array([[50, 9, 1]]), penalty=0.0).tolist() == [20.0]
    env.reset(seed=1)
    more = ACTIONS.index(13)
    assert env.step(more)[1] == pytest.approx(-0.01)


def test_eating_and_drinking_take_the_first_thing():
    env = make("lodestar/NetHackScore-v0", text=True)
    env.reset(seed=1)
    assert play(env, Command.QUAFF) != "Never mind."
    env.reset(seed=1)
    env.unwrapped.games.playing[0].step(ord("e"))
    question = env.unwrapped.games.text_of(0)
    assert question.startswith(b"What do you want to eat? [")
    key(env, "\x1b")
    hunger = env.unwrapped.games.internal[0, 7]
    text = play(env, Command.EAT)
    assert text and "eat?" not in text
    assert env.unwrapped.games.internal[0, 7] > hunger  # fed


def test_who_is_satiated_does_not_eat():
    env = make("lodestar/NetHackScore-v0", text=True)
    env.reset(seed=1)
    said = [play(env, Command.EAT) for _ in range(8)]
    assert env.unwrapped.games.blstats[0, STAT_HUNGER] == 0
    assert said[-1] == "Never mind."
    assert not any("choke" in text for text in said)


def test_casting_opens_the_list_and_takes_the_first_spell():
    env = make("lodestar/NetHackScore-v0", text=True, character="wiz-elf-cha-mal")
    env.reset(seed=1)
    power = env.unwrapped.games.blstats[0, 14]
    assert play(env, Command.CAST) == "In what direction?"  # force bolt; directions are the agent's
    assert env.unwrapped.games.blstats[0, 14] == power - 5
    assert play(env, "l") != "In what direction?"


def test_picking_up_takes_all_that_lies_there():
    env = make("lodestar/NetHackScore-v0", text=True, spawn_monsters=False)
    env.reset(seed=1)
    for item in "de":
        key(env, f"d{item}\r\r  ")
    text = play(env, Command.PICKUP)
    assert "d - " in text and "e - " in text


def test_a_question_that_no_task_has_is_declined():
    env = make("lodestar/NetHackScore-v0")
    env.reset(seed=1)
    games = env.unwrapped.games
    key(env, "d")
    assert games.text_of(0).startswith(b"What do you want to drop?")
    answer(games, 0, ord("d"))
    assert not games.internal[0, 1:4].any()  # it waits for nothing but the next move


def test_prayers_are_the_agents_to_confirm():
    env = make("lodestar/NetHackScore-v0", text=True)
    env.reset(seed=1)
    assert play(env, Command.PRAY).startswith("Are you sure you want to pray?")
    assert play(env, "y").startswith("You begin praying")


def test_all_pages_of_a_message_are_kept():
    env = make("lodestar/NetHackScore-v0", text=True)
    env.reset(seed=1)
    play(env, Command.PRAY)
    text = play(env, "y")  # a first page, a question of --More--, and what the god thinks of it
    assert text.startswith("You begin praying to Chih Sung-tzu.")
    assert "You finish your prayer." in text and text.endswith("You feel foolish!")


def test_a_depth_above_the_second_is_refused():
    with pytest.raises(ValueError, match=r"level=1 cannot be reached by stairs down; give a depth of at least 2"):
        make("lodestar/NetHackStaircase3-v0", level=1)


def test_every_task_says_what_counts_as_progress():
    said = {env_id: NETHACK_FAMILY.aim(spec_of(env_id)) for env_id in NETHACK_FAMILY.ids}
    assert "Oracle" in said["lodestar/NetHackOracleSober-v0"]
    assert "stairs" in said["lodestar/NetHackStaircase4-v0"] and "gold" in said["NetHackScore-v0"]
    assert all(text.endswith(".") and text.count(".") == 1 for text in said.values())


def test_sober_is_a_task_of_its_own():
    assert spec_of("lodestar/NetHackOracleSober-v0").kwargs == {"sober": True}
    assert Oracle(sober=True).sober and not Oracle().sober
