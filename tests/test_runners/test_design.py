"""Designing a reward: a whole search with a real server whose author misbehaves, continued; what is refused at once."""

import json

import numpy as np
import pytest
from model_server import ModelServer, breaks_off, status

import rewards
from envs.make import make
from envs.recording import record, save
from runners.design.__main__ import main
from runners.design.code import Proposal, begin_brief, table
from runners.design.context import _number_lines, describe_environment
from runners.run.config import UsageError

RUN = ["env=CartPole-v1", "preset=none", "n_envs=2", "total_timesteps=128", "agent.n_steps=32", "agent.n_epochs=1",
       "eval_episodes=1", "eval_steps=20", "logger=[]"]  # fmt: skip
GOOD = '```python\ndef reward(obs, action, next_obs):\n    return {"upright": -np.abs(next_obs[:, 2])}\n```'
HOSTILE = "```python\nimport os\n\ndef reward(obs, action, next_obs):\n    return {'a': os.getpid() * obs[:, 0]}\n```"


def test_a_search_survives_a_bad_author_and_continues_without_asking_again(tmp_path, capsys):
    comment = tmp_path / "comment.txt"
    comment.write_text("It leans to the left.")
    answers = [HOSTILE, "Well. " * 5000 + GOOD]
    with ModelServer(lambda text, images: answers.pop(0)) as server:
        argv = [*RUN, "task=stay up", "describe=cartpole", "judge=openai", "judge.model=m", f"judge.url={server.url}",
                "judge.attempts=1", "judge.concurrency=1", "rounds=2", "candidates=2",
                "finalists=1", "test_seeds=1", f"root={tmp_path}", f"comment={comment}", "slots=2"]  # fmt: skip
        server.plan = [None, None, status(500), breaks_off]  # nothing usable in the second round
        assert main(argv) == 0
        assert len(server.seen) == 4
        told_first, told_then = (server.seen[i][1]["messages"][0]["content"] for i in (0, 2))
    out = capsys.readouterr().out
    assert "r1c0: refused: line 1: only functions and constants may stand outside of a function" in out
    assert "r1c1: task return" in out and "upright" in out
    assert "r2c0: refused" in out and "answered 500" in out and "broke off" in out
    assert told_first.endswith("A person who watched says: It leans to the left.")
    assert "upright: -" in told_then and "The others: refused: line 1" in told_then and "to the left" in told_then
    folder = tmp_path / "design" / "CartPole-v1-code-openai"
    page = json.loads((folder / "design.json").read_text())
    assert page["best"] == "r1c1" and set(page["test"]) == {"r1c1", "task"} and len(page["proposals"]) == 4
    env = make("CartPole-v1")
    found = rewards.make({"code": {"file": str(folder / "reward.py")}}, env.observation_space, env.action_space)
    assert "upright" in found.notes()[0]
    # round 1 is known, the server is gone: round 2 costs two sentences, nothing is trained again
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/*/*/status.json")}
    assert len(before) == 4 and main(argv) == 0
    assert before == {path: path.stat().st_mtime_ns for path in folder.glob("*/*/*/status.json")}
    out = capsys.readouterr().out
    assert out.count("cannot be reached") == 2 and "r1c1: task return" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reward=rnd"], r"reward= cannot be given here, as the reward is what is designed"),
        (["reward.rnd.weight=2"], r"reward.rnd.weight= cannot be given here"),
        (["judge=openai", "judge.model=m"], r"judge=openai needs task= .* and describe="),
        (["judge=chance"], r"judge='chance' is unknown; give one of openai, recorded, random"),
        (["eval_episodes=0"], r"eval_episodes=0 leaves nothing to judge runs by"),
        (["candidates=0"], r"candidates=0 is out of range"),
    ],
)
def test_what_cannot_be_designed_is_one_sentence(arguments, said):
    with pytest.raises(ValueError, match=said):
        main.parse(["env=CartPole-v1", *arguments])


def test_an_author_without_a_file_or_a_recording_of_another_world_is_one_sentence(tmp_path, capsys):
    assert main(["env=CartPole-v1", f"root={tmp_path}"]) == 2
    assert "needs file; give it among the author's options" in capsys.readouterr().err
    other = make("Pendulum-v1")
    save(tmp_path / "other.safetensors", record(other, None, 20), {"env": "Pendulum-v1"})
    config = main.parse(["env=CartPole-v1", f"data={tmp_path}/other.safetensors", f"root={tmp_path}"])
    with pytest.raises(UsageError, match=r"has observations of 3 and actions of 1 numbers, CartPole-v1 of 4 and 1"):
        begin_brief(config)
    assert not (tmp_path / "design").exists()


def test_an_author_reads_ten_moments_of_each_component_and_of_the_returns():
    rows = [{"code/upright": str(float(i)), "rollout/ep_rew_mean": str(10.0 + i)} for i in range(20)]
    text = table(rows, ["upright", "never"])
    assert text.splitlines()[0] == "upright: 0, 2, 4, 6, 8, 10, 12, 14, 16, 19; least 0, most 19"
    assert text.splitlines()[1].startswith("task's return of an episode: 10, 12") and "never" not in text
    assert table([], ["upright"]) == "nothing was logged"


def test_a_proposal_is_worth_the_interquartile_mean_of_its_returns_and_a_failed_one_nothing():
    assert Proposal("r1c0", returns=[1.0, 2, 3, 4, 100]).value == pytest.approx(3)
    assert Proposal("r1c0", error="refused: x").value == -np.inf


def test_an_author_is_told_of_numbers_signals_and_the_source_and_may_read_the_signals(tmp_path, capsys):
    body = "return {'moved': signals[:, 0] + signals[:, 1]}"
    code = f"```python\ndef reward(obs, action, next_obs, signals):\n    {body}\n```"
    world = ["env=MiniGrid-Empty-5x5-v0", *RUN[1:], "task=reach the goal", "describe=auto", f"root={tmp_path}"]
    with ModelServer(lambda text, images: code) as server:
        ask = ["judge=openai", "judge.model=m", f"judge.url={server.url}", "rounds=1", "candidates=1"]
        assert main([*world, *ask, "finalists=1", "test_seeds=1"]) == 0
        told = server.seen[0][1]["messages"][0]["content"]
    assert "class EmptyEnv(MiniGridEnv):" in told and "signals[:, 0]: " in told and "signals is a float array" in told
    assert "r1c0: task return" in capsys.readouterr().out


def test_a_space_is_described_number_by_number():
    env = make("CartPole-v1")
    text = describe_environment(env)
    assert "obs[:, 2]: " in text and "action is of the space Discrete(2)." in text and "class CartPoleEnv" in text
    assert _number_lines("x", ["a"] * 66)[-1] == "and 2 more, up to x[:, 65]: a"
