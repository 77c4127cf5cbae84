"""Numbers of recorded episodes by hand, and the command on recordings of a pendulum, with CLIP and a reward of ours."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from rollouts import blank

from envs.recording import save
from lodestar.settings import setting
from rewards import table
from rewards.base import Reward, RewardConfig
from rewards.compare import kendall
from runners.compare.__main__ import main
from runners.compare.recordings import ScoredEpisode, lines, measure, read_files
from runners.run.config import UsageError

ENV = "env=Pendulum-v1"


@dataclass
class BrightnessConfig(RewardConfig):
    goal: str = setting("bright", "bright or dark")


class RecordedBrightness(Reward):
    """How bright a frame is, or how dark: what the goal says."""

    Config = BrightnessConfig
    requires = frozenset({"frame"})
    role = "goal"

    def score(self, batch, memory=None):
        level = batch.frame.reshape(len(batch.frame), -1).mean(1) / 255
        return (1 - level if self.config.goal == "dark" else level).astype(np.float32)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """The name is known in these tests alone."""
    monkeypatch.setitem(table.registered, "recordedbrightness", RecordedBrightness)


def write(path, *episodes):
    """A recording whose episodes have frames of these brightnesses."""
    levels = np.concatenate(episodes)
    step = np.concatenate([np.arange(len(episode)) for episode in episodes])
    ended = np.concatenate([np.arange(len(episode)) == len(episode) - 1 for episode in episodes])
    rows = len(levels)
    frame = np.broadcast_to(np.uint8(levels)[:, None, None, None], (rows, 8, 8, 3)).copy()
    flat = blank(rows, 1, frame=frame[:, None], step=step[:, None], truncated=ended[:, None]).flatten()
    save(path, flat, {"env": "Pendulum-v1"})
    return str(path)


def episode(outcome, *scores, task="", instruction=""):
    return ScoredEpisode(task, instruction, outcome, np.array(scores, float))


def test_the_numbers_are_those_of_a_count_by_hand():
    scored = [
        episode("success", 0.1, 0.5, 0.9),
        episode("success", 0.1, 0.9, 0.5),
        episode("partial", 0.1, 0.6),
        episode("failed", 0.6, 0.2),
        episode("failed", 0.1, 0.4),
    ]
    report = measure(scored, 0.5)
    assert report["alignment"] == pytest.approx((1 + 0.5) / 2)
    # Pairs of different outcomes: 8. One is against the order: a success that ends at 0.5 below the partial 0.6.
    assert report["ranking"] == pytest.approx((7 - 1) / 8)
    assert (report["reached_failed"], report["reached_partial"], report["reached_success"]) == (0.5, 1, 1)
    assert "0.50 of failed (false positives)" in "\n".join(lines("clip", report))
    assert kendall([1, 1, 2], [0, 1, 1]) == pytest.approx(0.5) and np.isnan(kendall([1, 2], [1, 1]))


def test_a_confusion_shows_which_sentence_scores_highest():
    scored = []
    for task, own in (("open", 0.9), ("close", 0.3)):
        for instruction in ("open", "close"):
            last = own if instruction == task else 0.5
            scored.append(episode("success", 0, last, task=task, instruction=instruction))
    report = measure(scored, 0.5)
    assert report["confusion"] == [[0.9, 0.5], [0.5, 0.3]] and report["told_apart"] == 0.5
    assert "   0.900   0.500   open" in "\n".join(lines("clip", report))


def test_the_command_prints_them_for_outcomes_and_for_sentences(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rising = write("good.safetensors", [10, 50, 90, 200], [20, 60, 250])
    falling = write("bad.safetensors", [200, 100, 20], [10, 60, 30])
    darker = write("dark.safetensors", [200, 100, 20])
    assert main([ENV, "reward=recordedbrightness", f"recordings={{success: {rising}, failed: {falling}}}"]) == 0
    printed = capsys.readouterr().out
    assert "2 success, 0 partial, 2 failed" in printed and "alignment with time   1.00" in printed
    assert "ranking by outcome    1.00" in printed and "0.50 of failed (false positives)" in printed
    by_sentence = f"recordings={{bright: {{success: {rising}, failed: {falling}}}, dark: {{success: {darker}}}}}"
    assert main([ENV, "reward=recordedbrightness", by_sentence]) == 0
    assert "tasks told apart      1.00" in capsys.readouterr().out
    [path] = (tmp_path / "runs").rglob("*-recordings.json")
    assert json.loads(path.read_text())["recordedbrightness"]["tasks"] == ["bright", "dark"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"won": "a.safetensors"}, "'won' is no outcome; take success, partial, failed"),
        ({"open": {}}, "'open' names {} and no outcomes"),
        ({"success": 3}, "success is 3; give the name of a file"),
        ({"open": {"success": "a"}, "close": "b"}, "'close' names 'b' and no outcomes"),
    ],
)
def test_what_is_no_recording_is_one_sentence(given, words):
    with pytest.raises(UsageError, match=words.replace("{", r"\{")):
        read_files(given)
