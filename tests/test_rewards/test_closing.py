"""What is closed closes what it holds."""

import operator
import os

import numpy as np
import pytest
from gymnasium import spaces

import rewards
from envs.clones import Clones
from envs.make import make_batched
from rewards.design.code import Code, CodeConfig
from rewards.gate import Gate, GateConfig
from rewards.language.guidance import Guidance, GuidanceConfig
from rewards.language.oni import ONI, ONIConfig
from rewards.language.rubric import Rubric, RubricConfig
from rewards.llm.judges.base import make_judge
from rewards.preference.bradley_terry import BradleyTerry, BradleyTerryConfig
from rewards.preference.vlm import VLM
from rewards.two_level import TwoLevel, TwoLevelConfig
from rewards.vision.progress_model import ProgressModel, ProgressModelConfig

SPACES = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)
CODE = 'def reward(obs, action, next_obs):\n    return {"a": obs[:, 0]}\n'
MODEL = {"model": "m", "url": "http://127.0.0.1:9/v1"}


def code(tmp_path):
    (path := tmp_path / "mine.py").write_text(CODE)
    return Code(CodeConfig(file=str(path)), *SPACES)


def windows(ask):
    settings = ProgressModelConfig(judge="progress", judge_options=MODEL, goal="bright", ask=ask)
    return ProgressModel(settings, *SPACES)


HOLDERS = {
    "bradley_terry": (lambda path: BradleyTerry(BradleyTerryConfig(), *SPACES), ["judge"]),
    "clones": (lambda path: Clones("CartPole-v1"), ["env"]),
    "code": (code, ["program"]),
    "gate": (lambda path: Gate(GateConfig(of="count"), *SPACES), ["of", "by"]),
    "two_level": (lambda path: TwoLevel(TwoLevelConfig(), *SPACES), ["cheap", "dear"]),
    "guidance": (lambda path: Guidance(GuidanceConfig(goals="openai", **MODEL), *SPACES), ["_annotator"]),
    "mix": (lambda path: rewards.make(["task", "count"], *SPACES), ["streams.task.reward", "streams.count.reward"]),
    "oni": (lambda path: ONI(ONIConfig(judge="rules", family="nethack"), *SPACES), ["annotator"]),
    "rubric": (lambda path: Rubric(RubricConfig(principles="A key. | key"), *SPACES), ["annotator"]),
    "progress_model, at once": (lambda path: windows("at_once"), ["annotator", "frames"]),
    "progress_model, beside": (lambda path: windows("beside"), ["annotator", "frames"]),
    "texts": (lambda path: make_judge("openai", goal="g", **MODEL), ["chat"]),
    "vlm": (lambda path: VLM(**MODEL, goal="g"), ["chat", "store"]),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_each_part_is_closed_once(name, tmp_path, monkeypatch):
    build, parts = HOLDERS[name]
    holder, closed = build(tmp_path), []
    for part in parts:
        held = holder
        for step in part.split("."):
            held = held[step] if isinstance(held, dict) else operator.attrgetter(step)(held)
        monkeypatch.setattr(held, "close", lambda part=part, real=held.close: (closed.append(part), real()))
    holder.close()
    assert closed == parts


def test_a_vector_of_games_closes_each_of_them(monkeypatch):
    games, closed = make_batched("NetHackScore-v0", 2), []
    for number, inner in enumerate(games._inners):
        monkeypatch.setattr(inner, "close", lambda number=number, real=inner.close: (closed.append(number), real()))
    games.close()
    assert closed == [0, 1]


def test_frames_and_code_leave_no_folder_and_no_process(tmp_path):
    made, program = windows("at_once"), code(tmp_path).program
    folder, process = made.frames.path, program._stop.peek()[2][0]
    assert os.path.isdir(folder) and process.poll() is None
    made.close()
    program.close()
    assert not os.path.exists(folder) and process.poll() is not None
