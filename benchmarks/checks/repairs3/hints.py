"""Mistakes on a command line whose sentence names what was meant: of how many that were tried.

mistakes.txt holds the command lines and what the sentence of each has to contain. They are the ones that a user, and
other libraries' habits, make likely; those that 0.4.0 answered rightly already (about one in six) are among them.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import agents
import rewards
from envs.make import spec_of

ROOT = Path(__file__).resolve().parents[3]
MISTAKES = Path(__file__).with_name("mistakes.txt")
# Command line -> its exit code and its sentence.
Answers = dict[str, tuple[object, str]]
OWN_FILE = """
import gymnasium
import numpy


class BallWorld(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)


gymnasium.register("BallWorld-v0", entry_point=BallWorld)


def act(obs):
    return numpy.zeros(len(obs), int)
"""


def read_mistakes() -> dict[str, str]:
    """Command line -> what the sentence that refuses it has to contain."""
    lines = MISTAKES.read_text().splitlines()
    pairs = [line.rsplit("=> ", 1) for line in lines if line and not line.startswith("#")]
    return {command.strip(): meant.strip() for command, meant in pairs}


def write_own_file(folder: Path) -> None:
    """The file of a user that some of the command lines name."""
    (folder / "my_file.py").write_text(OWN_FILE)


def answers_in_process(commands: Iterable[str]) -> Answers:
    """Command line -> its exit code and its sentence, each called in a fork of one process of their own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        write_own_file(Path(folder))
        program = [sys.executable, "-m", __name__]
        text = "\n".join(commands)
        done = subprocess.run(program, cwd=folder, env=env, input=text, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def answers_in_forks(commands: Iterable[str]) -> Answers:
    """Command line -> its exit code and its sentence, each called in a fork of this process."""
    forked = import_module("tests.test_runners.refused").forked
    answers = {}
    for command in commands:
        code, error, _, _ = forked(command)
        answers[command] = (code, error.strip())
    return answers


def wrong_hints(mistakes: dict[str, str], answers: Answers) -> dict[str, str]:
    """The mistakes whose sentence does not name what was meant, with what was said."""
    wrong = {}
    for command, meant in mistakes.items():
        code, sentence = answers[command]
        one_sentence = "\n" not in sentence and "Traceback" not in sentence
        if code != 2 or not one_sentence or meant not in sentence:
            wrong[command] = sentence
    return wrong


def measure() -> dict[str, float]:
    """How many mistakes were tried, and of how many the sentence names what was meant."""
    mistakes = read_mistakes()
    wrong = wrong_hints(mistakes, answers_in_process(mistakes))
    return {"hints_tried": len(mistakes), "hints_right": len(mistakes) - len(wrong)}


def warm_up() -> None:
    """Load torch, agents, rewards and the families of environments, so that a fork takes milliseconds."""
    for agent in ("ppo", "dyna", "world_model"):
        agents.get(agent)
    for reward in ("rnd", "clip", "contrast", "code", "oni"):
        rewards.get(reward)
    with suppress(ValueError):
        spec_of("BallWorld-v0")


if __name__ == "__main__":
    warm_up()
    print(json.dumps(answers_in_forks(sys.stdin.read().splitlines())))
