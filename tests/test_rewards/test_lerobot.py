"""The judge of LeRobot's models: a real process of another Python, whose package lerobot is a stand-in of ours.

The stand-in has the names and signatures of lerobot 0.6.1 that the script uses, and a model that sees brightness. Its
torch does nothing, since importing the real one takes long.
"""

import json
import sys

import numpy as np
import pytest

import rewards
from lodestar import make_reward
from rewards.llm.judges.lerobot import LeRobotModel
from rewards.vision.progress_model import ProgressModel
from runners.cli.compose import compose
from runners.run.config import UsageError
from runners.run.trust import require

FILES = {
    "lerobot/__init__.py": "",
    "lerobot/configs/__init__.py": "",
    "lerobot/configs/rewards.py": """
import json, types
class RewardModelConfig:
    @classmethod
    def from_pretrained(cls, path):
        print("a library that talks")
        with open(path + "/config.json") as file:
            values = json.load(file)
        features = {name: types.SimpleNamespace(**it) for name, it in values.pop("input_features", {}).items()}
        return types.SimpleNamespace(pretrained_path=None, input_features=features, **values)
""",
    "lerobot/rewards.py": """
class Brightness:
    def __init__(self, config):
        self.config = config
    def compute_reward(self, batch):
        frames = batch[self.config.image_key]
        if batch["task"] == ["fail"]:
            raise KeyError("no such task")
        if self.config.type == "reward_classifier":
            assert frames.shape == (1, 3, 4, 6), frames.shape
            return frames.mean((1, 2, 3)) > 0.5
        assert frames.ndim == 5 and 0 <= frames.min() and frames.max() <= 1
        level = frames[:, -1].mean((1, 2, 3))
        import numpy
        return numpy.log(level) if self.config.type == "topreward" else 2 * level
def make_reward_model(cfg):
    assert cfg.pretrained_path
    return Brightness(cfg)
def make_reward_pre_post_processors(cfg):
    return (lambda batch: batch), None
""",
    "torch.py": """
import contextlib
from_numpy = lambda array: array
inference_mode = contextlib.nullcontext
""",
    "lerobot/processor.py": "class PolicyProcessorPipeline: pass",
}
KEY = "observation.images.top"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return write_python(tmp_path_factory.mktemp("python"), "0.6.1")


def write_python(folder, version):
    """A Python that has a package lerobot of this version; without any for ""."""
    for name, text in FILES.items():
        path = folder / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if version:
        about = folder / "packages" / f"lerobot-{version}.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text(f"Metadata-Version: 2.1\nName: lerobot\nVersion: {version}\n")
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/packages exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


def write_model(folder, kind="robometer"):
    folder.mkdir(exist_ok=True)
    values = {"type": kind, "image_key": KEY, "input_features": {KEY: {"shape": [3, 4, 6]}}}
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder)


@pytest.fixture
def frames(tmp_path):
    for level in (51, 102, 255):
        np.save(tmp_path / f"{level}.npy", np.full((8, 8, 3), level, np.uint8))
    return str(tmp_path)


def test_a_model_in_another_python_scores_the_last_frame(python, frames, tmp_path):
    judge = LeRobotModel(write_model(tmp_path / "model"), python, "open the drawer", frames)
    answers = judge.label(["51", "51 102", "255", "7"])
    np.testing.assert_allclose(answers.value, [0.4, 0.8, 1, np.nan], rtol=1e-6)
    assert answers.failed.tolist() == [False, False, False, True] and "are gone" in answers.failure
    assert "robometer of " in judge.notes()[0] and "(lerobot 0.6.1)" in judge.notes()[0]
    judge.goal = "fail"
    assert "KeyError: 'no such task'" in judge.label(["51"]).failure
    judge._process.kill()
    judge._process.wait()
    assert "its process ended" in judge.label(["51"]).failure
    judge.close()


def test_a_classifier_and_a_log_probability(python, frames, tmp_path):
    classifier = LeRobotModel(write_model(tmp_path / "model", "reward_classifier"), python, folder=frames)
    assert classifier.label(["51", "51 255"]).value.tolist() == [0, 1]
    classifier.close()
    judge = LeRobotModel(write_model(tmp_path / "model", "topreward"), python, "open the drawer", frames)
    assert judge.label(["51"]).value[0] == pytest.approx(1 + np.log(0.2) / 10)
    judge.close()


@pytest.mark.parametrize(
    ("version", "words"), [("0.4.4", "has lerobot 0.4.4, and reward models of 0.6"), ("", "no pac")]
)
def test_another_version_is_one_sentence(version, words, tmp_path):
    with pytest.raises(ValueError, match=words) as refusal:
        LeRobotModel(write_model(tmp_path / "model"), write_python(tmp_path, version), "open the drawer")
    assert "pip install 'lerobot>=0.6,<0.7'" in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("path", "python", "words"),
    [
        ("", "python3", "path is empty; give a folder or a repository"),
        ("./nowhere", "python3", "path='./nowhere' is no folder"),
        (".", "python3", "has no config.json; give the folder of a reward model"),
        ("lerobot/Robometer-4B", "/nowhere", "python='/nowhere' cannot be started"),
    ],
)
def test_what_is_wrong_is_said_before_training(path, python, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words):
        LeRobotModel(path, python, "open the drawer")


def test_a_name_with_a_folder_sets_its_option():
    config, _ = compose(
        ["env=Pendulum-v1", "reward=lerobot:lerobot/Robometer-4B", "reward.progress_model.goal=upright"]
    )
    options = config.reward["progress_model"]
    assert options.judge == "lerobot"
    assert options.judge_options == {"path": "lerobot/Robometer-4B", "python": "python3"}
    assert (options.size, options.frames) == (224, "even")
    assert rewards.table.split_argument("my_file:Class") == ("my_file:Class", {})
    with pytest.raises(UsageError, match="the program /tmp/evil, which would be started"):
        require(False, "config.yaml", {"reward.progress_model.python": "/tmp/evil"})


def test_a_program_names_it_as_the_command_does(python, tmp_path):
    import gymnasium

    folder = write_model(tmp_path / "model")
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    mix = make_reward(f"lerobot:{folder}", env, python=python, goal="the pole stands", ask="at_once")
    reward = mix.streams["progress_model"].reward
    assert isinstance(reward, ProgressModel) and not reward.preflight()
    assert "(lerobot 0.6.1)" in reward.notes()[0]
    reward.close()
