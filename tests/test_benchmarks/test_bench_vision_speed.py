import contextlib
import csv
import io
import json
import sys

import numpy as np
import pytest

from benchmarks.speed import vision as vision_speed
from rewards.vision.clip import goal_reward

VLMRM = """
import torch


class CLIPEmbed:
    def __init__(self, model):
        self.model, self.transform = model, torch.nn.Identity()
        self.transform.transforms = []

    def __call__(self, frames):
        return torch.ones(len(frames), 64) / 8


class CLIPReward:
    def __init__(self, *, model, alpha, target_prompts, baseline_prompts):
        with torch.no_grad():
            g, b = (model.model.encode_text(p, normalize=True) for p in (target_prompts, baseline_prompts))
        d = g - b
        self.embed_module, self.goal = model, g
        self.projection = alpha * d.T @ d / torch.norm(d) ** 2 + (1 - alpha) * torch.eye(len(d[0]))

    def eval(self):
        return self

    def __call__(self, x):
        return FACTOR * (1 - torch.norm((x - self.goal) @ self.projection, dim=-1) ** 2 / 2)
"""


@pytest.fixture
def small(monkeypatch):
    for name, value in (("ROUNDS", 1), ("BATCH", 4), ("SIDE", 96), ("PICTURES", 5), ("SHOWN", 20)):
        monkeypatch.setattr(vision_speed, name, value)
    monkeypatch.setitem(vision_speed.BATCHES, "lodestar", 1)
    monkeypatch.setattr(vision_speed, "_reprompt", lambda path: {})

    def alone(model, kind, home):  # in this process, which has all it needs
        written = io.StringIO()
        with contextlib.redirect_stdout(written):
            vision_speed._main(model, kind, str(home), "4", "96")
        return json.loads(written.getvalue())

    monkeypatch.setattr(vision_speed, "_alone", alone)


def peer(tmp_path, monkeypatch, factor):
    """A stand-in for vlmrm with its formula, or nearly."""
    monkeypatch.setattr("sys.path", list(sys.path))
    for name in ("vlmrm", "vlmrm.reward_model", "vlmrm.trainer.config"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    folder = tmp_path / "vlmrm" / "src" / "vlmrm"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "reward_model.py").write_text(VLMRM.replace("FACTOR", str(factor)))


@pytest.mark.nightly
def test_it_writes_a_row_for_every_measurement_and_a_ratio_for_every_pair(tmp_path, small, monkeypatch):
    peer(tmp_path, monkeypatch, 1.0)
    figures = vision_speed.run(tmp_path, models=["lodestar"], home=tmp_path)
    assert set(figures) == {
        "clip_encoder_ratio_lodestar",
        "vlmrm_ratio_lodestar",
        "vlmrm_quick_ratio_lodestar",
        "vlmrm_kept_ratio_lodestar",
        "clip_cache_cost",
        "clip_repeats_ratio",
    }
    assert all(np.isfinite(value) and value > 0 for value in figures.values())
    rows = list(csv.DictReader((tmp_path / "vision-speed.csv").open()))
    variants = ["ours", "vlmrm", "vlmrm_quick", "vlmrm_kept", "encoder", "reward", "none", "lookup", "repeats"]
    assert [row["variant"] for row in rows] == variants


def test_a_peer_with_another_formula_is_no_peer(tmp_path, small, monkeypatch):
    peer(tmp_path, monkeypatch, 1.01)
    with pytest.raises(RuntimeError, match="give other rewards for the same embeddings"):
        vision_speed.run(tmp_path, models=["lodestar"], home=tmp_path)


def test_without_the_peer_its_figures_are_left_out_with_a_sentence(tmp_path, small, monkeypatch, capsys):
    def fail(command, settings=None):
        raise RuntimeError("fatal: unable to access the network")

    monkeypatch.setattr(vision_speed.peers, "call", fail)
    figures = vision_speed.run(tmp_path, models=["lodestar"], home=tmp_path / "nothing")
    assert "vlmrm_ratio_lodestar" not in figures and "clip_encoder_ratio_lodestar" in figures
    assert "vlmrm is skipped: fatal: unable to access the network" in capsys.readouterr().err


def test_frames_of_a_measurement_were_never_seen_before():
    one, two = vision_speed._frames(3, 8), vision_speed._frames(3, 8)
    assert len(np.unique(np.concatenate([one, two]).reshape(6, -1), axis=0)) == 6


def test_the_mix_that_is_measured_pays_the_formula():
    clip = vision_speed._clip("lodestar")
    frames = vision_speed._frames(4, 64)
    paid = vision_speed._mix(clip).total(vision_speed._batch(frames), None, 0)[0]
    seen = clip.encoder.image(frames, 4).astype(np.float32)
    assert paid == pytest.approx(goal_reward(seen, clip.goal, clip.baseline, 0.5), abs=1e-3)
