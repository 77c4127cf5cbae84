"""Mistakes on a command line whose sentence names what was meant: of how many that were tried.

mistakes.txt holds the command lines and what the sentence of each has to contain. They are the ones that a user, and
other libraries' habits, make likely; those that 0.4.0 answered rightly already (about one in six) are among them.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import agents
import rewards
from envs.make import spec_of

ROOT = Path(__file__).resolve().parents[3]
MISTAKES = Path(__file__).with_name("mistakes.txt")
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


def answer(commands: list[str]) -> dict[str, tuple[object, str]]:
    """Command line -> its exit code and its sentence, each called in a fork of one process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my_file.py").write_text(OWN_FILE)
        program = [sys.executable, "-m", __name__]
        text = "\n".join(commands)
        done = subprocess.run(program, cwd=folder, env=env, input=text, capture_output=True, text=True, check=True)
    answers = (json.loads(line) for line in done.stdout.splitlines())
    return {command: (code, sentence) for command, code, sentence in answers}


def wrong_hints(mistakes: dict[str, str]) -> dict[str, str]:
    """The mistakes whose sentence does not name what was meant, with what was said."""
    answers = answer([*mistakes])
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
    return {"hints_tried": len(mistakes), "hints_right": len(mistakes) - len(wrong_hints(mistakes))}


def call_all(commands: list[str]) -> None:
    """Call each command line in a fork, and print what came of it as JSON."""
    # A fork takes milliseconds where these are loaded already, torch and the families of environments among them.
    forked = import_module("tests.test_runners.refused").forked
    for agent in ("ppo", "dyna", "world_model"):
        agents.get(agent)
    for reward in ("rnd", "clip", "contrast", "code", "oni"):
        rewards.get(reward)
    with suppress(ValueError):
        spec_of("BallWorld-v0")
    for command in commands:
        code, error, _, _ = forked(command)
        print(json.dumps([command, code, error.strip()]), flush=True)


if __name__ == "__main__":
    call_all(sys.stdin.read().splitlines())
