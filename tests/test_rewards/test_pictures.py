"""Goals that are shown: pictures, folders, recordings; and encoders that see pictures and read no words."""

import numpy as np
import pytest
import torch
from PIL import Image

from envs.recording import save
from envs.transitions import Transitions
from rewards.vision import load
from rewards.vision.clip import Clip, ClipConfig
from rewards.vision.contrast import ContrastConfig
from rewards.vision.pictures import goal_frames, is_picture_goal
from rewards.vision.timm_tower import TimmTower, load_state

NAME = "reward.clip.goal"


def drawing(seed=0, side=64):
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def test_a_picture_is_squashed_to_a_square_as_frames_are(tmp_path):
    picture = np.zeros((2, 4, 3), np.uint8)
    picture[:, 2:] = 200
    picture[0, 0] = 100
    Image.fromarray(picture).save(tmp_path / "goal.png")
    frames = goal_frames(str(tmp_path / "goal.png"), 2, NAME)
    # Each pixel is the mean of two neighbours in a row.
    assert frames.tolist() == [[[[50] * 3, [200] * 3], [[0] * 3, [200] * 3]]]


def test_a_folder_is_all_of_its_pictures_and_a_recording_the_ends_of_its_episodes(tmp_path):
    for i in range(3):
        Image.fromarray(drawing(i)).save(tmp_path / f"{i}.png")
    (tmp_path / "notes.txt").touch()
    frames = goal_frames(str(tmp_path), 64, NAME)
    assert [(frames[i] == drawing(i)).all() for i in range(3)] == [True] * 3
    count = 20
    shown = np.stack([drawing(i, 8) for i in range(count)])
    ends = np.arange(count) % 10 == 9
    zeros = np.zeros((count, 1), np.float32)
    batch = Transitions(
        *(zeros, np.zeros(count, np.int64), zeros[:, 0], zeros, ends & (np.arange(count) > 10)),
        *(ends & (np.arange(count) < 10), np.ones(count, bool), np.arange(count) % 10),
        frame=shown,
    )
    path = str(tmp_path / "demo.safetensors")
    save(path, batch, {})
    # The second episode terminated, the first ran out of time.
    assert (goal_frames(path, 8, NAME) == shown[15:]).all()
    save(path, batch.replace(frame=None), {})
    with pytest.raises(ValueError, match="has no frames; record with frames=8"):
        goal_frames(path, 8, NAME)


def test_pictures_that_cannot_be_used_are_one_sentence(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"PNG")
    Image.fromarray(drawing()[..., 0]).save(tmp_path / "grey.png")
    Image.fromarray(np.full((9, 9, 3), 7, np.uint8)).save(tmp_path / "plain.png")
    opaque = np.dstack([drawing(), np.full((64, 64), 255, np.uint8)])
    Image.fromarray(opaque).save(tmp_path / "opaque.png")
    opaque[0, 0, 3] = 10
    Image.fromarray(opaque).save(tmp_path / "seen_through.png")
    (tmp_path / "empty").mkdir()
    assert (goal_frames(str(tmp_path / "opaque.png"), 64, NAME)[0] == drawing()).all()
    for file, sentence in {
        "broken.png": "cannot be read as a picture",
        "grey.png": "has colours of mode L, not RGB without transparency; save it as RGB",
        "seen_through.png": "has colours of mode RGBA, not RGB",
        "plain.png": "has a single colour, so it shows no goal",
        "missing.png": "does not exist; give a picture, a folder",
        "empty": "has no picture in it",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            goal_frames(str(tmp_path / file), 64, NAME)


def test_a_shown_goal_is_a_potential_and_a_said_one_is_not(tmp_path):
    assert ClipConfig(goal="goal.png").shape == "potential"
    assert ClipConfig(goal="goal.png", shape="none").shape == "none"
    assert ClipConfig(goal="the pole is upright").shape == ContrastConfig(goal="a", negative="b").shape == "none"
    assert is_picture_goal(str(tmp_path)) and not is_picture_goal("the pole stands on a png")


def test_the_picture_of_a_frame_is_most_like_that_frame(tmp_path):
    Image.fromarray(drawing(1)).save(tmp_path / "goal.png")
    reward = Clip(ClipConfig(goal=str(tmp_path / "goal.png"), weights="untrained"), None, None)
    frames = np.stack([drawing(i) for i in range(3)])
    rows = np.zeros(3)
    batch = Transitions(rows, rows, rows, rows, rows > 0, rows > 0, rows == 0, rows, frame=frames)
    scores = reward.score(batch)
    assert scores.argmax() == 1 and scores[1] == pytest.approx(1, abs=1e-3)


class Net(torch.nn.Module):
    """As a network of timm: a map of 2 x 2 places from a picture of 4 x 4."""

    num_features = 3

    def __init__(self, last=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.last = last

    def forward_features(self, image):
        features = torch.nn.functional.avg_pool2d(image, 2) * self.weight[:, None, None]
        return features.permute(0, 2, 3, 1) if self.last else features


CONFIG = {"input_size": (3, 4, 4), "mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic"}


def test_an_encoder_of_timm_keeps_where_things_are():
    tower = TimmTower(Net(), CONFIG)
    images = torch.zeros(3, 3, 4, 4)
    images[0, :, 0, 0] = images[1, :, 3, 3] = images[2, :, 1, 1] = 1
    seen = tower.encode_image(images, normalize=True)
    # The mean over the map is equal for all three; the first and the last share a place.
    assert (seen[0] @ seen[2]).item() == pytest.approx(1) and (seen[0] @ seen[1]).item() == pytest.approx(0)
    assert torch.equal(seen, TimmTower(Net(last=True), CONFIG).encode_image(images, normalize=True))


def test_weights_are_taken_by_name_or_by_order(tmp_path):
    net = Net()
    torch.save({"weight": torch.full((3,), 2.0), "head": torch.ones(9)}, tmp_path / "named.pth")
    load_state(net, str(tmp_path / "named.pth"))
    assert net.weight.tolist() == [2, 2, 2]
    torch.save({"_other.weight": torch.full((3,), 5.0), "_fc": torch.ones(9)}, tmp_path / "ordered.pth")
    load_state(net, str(tmp_path / "ordered.pth"))
    assert net.weight.tolist() == [5, 5, 5]
    torch.save({"_other.weight": torch.ones(4)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"weight has shape \(3,\), in the file it is \(4,\)"):
        load_state(net, str(tmp_path / "other.pth"))


class Timm:
    """Stands in for timm, whose import takes seconds."""

    @staticmethod
    def is_model(name):
        return name == "net"

    @staticmethod
    def list_models():
        return ["net"]

    @staticmethod
    def create_model(name, pretrained, num_classes):
        assert not pretrained and num_classes == 0
        return Net()

    class data:
        @staticmethod
        def resolve_model_data_config(net):
            return CONFIG


@pytest.fixture
def timm(monkeypatch):
    monkeypatch.setattr(load, "import_models", lambda package, model: Timm)


def test_an_encoder_without_words_scores_pictures_and_refuses_sentences(timm, tmp_path):
    from rewards.vision.encoder import ClipEncoder

    encoder = ClipEncoder("timm:net", "untrained")
    assert encoder.size == 4 and encoder.width == 4 * 256
    Image.fromarray(drawing(1, 4)).save(tmp_path / "goal.png")
    goal = str(tmp_path / "goal.png")
    assert Clip(ClipConfig(goal=goal, model="timm:net", weights="untrained"), None, None).frame_size == 4
    with pytest.raises(ValueError, match=r"reward.clip.model=timm:net sees pictures and reads no words \('a pole'\)"):
        Clip(ClipConfig(goal="a pole", model="timm:net", weights="untrained"), None, None)
    with pytest.raises(ValueError, match="there is no model of timm called 'nett'; did you mean timm:net"):
        ClipEncoder("timm:nett", "untrained")
    with pytest.raises(FileNotFoundError, match="'openai' is no file, and timm:net names its weights"):
        ClipEncoder("timm:net", "openai")


def test_what_a_model_needs_is_said_before_anything_is_downloaded(monkeypatch):
    class OpenClip:
        class factory:
            @staticmethod
            def get_model_config(name):
                return {"text_cfg": {"hf_tokenizer_name": "some/tokenizer"}}

    monkeypatch.setattr(load, "import_models", lambda package, model: OpenClip)
    monkeypatch.setattr(load, "check_reachable", lambda model, weights: None)
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"hf-hub:a/b' needs the package transformers; pip install .*\[models\]"):
        load.create_model("hf-hub:a/b", "", None)


def test_a_missing_package_is_one_sentence():
    with pytest.raises(ImportError, match=r"needs the package no_such_package; pip install 'lodestar-rl\[models\]'"):
        load.import_models("no_such_package", "timm:x")


@pytest.mark.nightly
def test_a_real_pretrained_encoder_ranks_states_by_their_nearness(tmp_path):
    from benchmarks.checks.own_world import picture_goal_spearman

    assert picture_goal_spearman(tmp_path) > 0.8
