import socket
import urllib.request
from types import SimpleNamespace

import pytest

from benchmarks.studies import captions, nethack
from rewards.language.oni import ONIConfig
from tests.faults import outage
from tests.faults.faulty_server import FaultyServer


def row(task="doorkey", arm="retrieval", sweep="", value="", success=1.0, solved_at=1000):
    told = {"task": task, "arm": arm, "sweep": sweep, "value": value}
    return {**told, "success": str(success), "solved_at": str(solved_at)}


def test_an_arm_is_its_interquartile_mean_and_the_median_of_its_steps():
    rows = [row(success=s, solved_at=n) for s, n in ((0.0, ""), (0.9, 500), (1.0, 100), (0.8, 300), (1.0, 200))]
    figures = captions.figures(rows)
    assert figures["doorkey_retrieval"] == pytest.approx((0.8 + 0.9 + 1.0) / 3)
    assert figures["steps_to_80_retrieval"] == 300
    assert figures["doorkey_retrieval_low"] <= figures["doorkey_retrieval"] <= figures["doorkey_retrieval_high"]


def test_an_arm_that_most_seeds_did_not_solve_has_no_steps():
    rows = [row("pictures", "count", success=0.0, solved_at=""), row("pictures", "count", success=0.0, solved_at="")]
    assert captions.figures([*rows, row("pictures", "count", success=0.9, solved_at=9)]) == {
        "pictures_count": pytest.approx(0.3),
        # Means of three draws are 0 to 0.9; both arms are stretched by sqrt(3 / 2) times Student's 4.30 over 1.96.
        "pictures_count_low": pytest.approx(0.3 - 0.3 * 2.6886, abs=1e-4),
        "pictures_count_high": pytest.approx(0.3 + 0.6 * 2.6886, abs=1e-4),
    }


def test_every_value_of_a_sweep_is_a_figure_of_its_own():
    rows = [row(sweep="budget", value="30", success=0.5, solved_at=""), row(sweep="budget", value="100")]
    figures = captions.figures(rows)
    assert (figures["doorkey_retrieval_budget_30"], figures["doorkey_retrieval_budget_100"]) == (0.5, 1.0)
    assert figures["steps_to_80_retrieval_budget_100"] == 1000


@pytest.mark.parametrize(("arm", "labelled", "paid"), [("count", False, 1.0), ("oracle", True, 0.5)])
def test_a_short_run_tells_what_became_of_its_captions(arm, labelled, paid):
    told = captions.train("pictures", arm, "", "", 0, steps=2048)
    assert told["steps"] == 2048 and 0.05 < told["chatter"] < 0.3
    assert 150 < told["captions"] < 330  # pictures, sights and bumps of 2,048 steps at random
    assert told["labels"] == (told["captions"] if labelled else 0)
    assert told["paid"] == paid if arm == "count" else 0 < told["paid"] < paid


def test_every_sweep_makes_a_reward():
    for values in captions.SWEEPS.values():
        for options in values.values():
            ONIConfig(**{**captions.ASKED, "judge": "rules", "family": "minigrid", **options})


def test_nethack_is_told_by_score_depth_and_coverage():
    known = {"task": "score", "arm": "rules", "score": "30", "depth": "1.5", "coverage": "0.9"}
    figures = nethack.figures([known, {**known, "task": "staircase", "depth": "2"}])
    assert figures == {
        "nethack_rules_score": 30,
        "nethack_rules_level": 1.5,
        "nethack_rules_coverage": 0.9,
        "nethack_staircase_rules_score": 30,
        "nethack_staircase_rules_level": 2,
        "nethack_staircase_rules_coverage": 0.9,
    }


def test_a_replay_that_differs_in_a_reward_is_told_and_one_in_time_is_not():
    first = [{"step": "1", "reward/oni": "0.5", "time/fps": "100"}]
    assert outage.difference(first, [{"step": "1", "reward/oni": "0.5", "time/fps": "7"}]) == 0
    assert outage.difference(first, [{"step": "1", "reward/oni": "0.25", "time/fps": "7"}]) == 0.25
    assert outage.difference(first, []) == float("inf")


def test_a_killed_server_comes_back_on_its_port():
    with FaultyServer("minigrid") as server:
        url = server.url("rules")
        server.kill()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", server.port), 1)
        server.start()
        assert server.url("rules") == url
        body = b'{"messages": [{"content": "Message: \\"reached the goal\\""}]}'
        answer = urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body), timeout=20).read()
    assert b"helpful" in answer


def test_rewards_of_language_are_filled_with_the_aim_of_the_family():
    from runners.cli.compose import fill_goals

    options = SimpleNamespace(goal="", family="")
    fill_goals(SimpleNamespace(env="MiniGrid-DoorKey-8x8-v0", reward={"oni": options}))
    assert options.family == "minigrid" and "goal" in options.goal
