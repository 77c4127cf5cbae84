"""The check of public models, with a model that ships, a checkpoint made here, and a server of ours."""

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from model_server import ModelServer

from benchmarks.checks import public
from rewards.vision.encoder import MODELS

ROOT = Path(__file__).resolve().parents[2]
WORLD = "lodestar/PendulumUpright-v0"


def see_upright(text, images):
    """How far up the darker pixels are."""
    rows, _ = np.nonzero(images[0].mean(2) < 128)
    share = min(max(1 - rows.mean() / len(images[0]), 0.01), 0.99) if len(rows) else 0.5
    return {"yes": math.log(share), "no": math.log(1 - share)}


@pytest.mark.nightly
def test_it_rates_what_can_be_had_and_says_what_cannot(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(MODELS["lodestar"], tmp_path / "made_here")
    with ModelServer(see_upright) as server:
        monkeypatch.setenv("LODESTAR_VLM_URL", server.url)
        monkeypatch.setenv("LODESTAR_VLM_MODEL", "tiny")
        figures = public.run(tmp_path, ["lodestar", "made_here", "no-such-model"], [WORLD], frames=60)
        assert len(server.seen) == public.ASKED_FRAMES
    assert figures["public_models"] == 0
    assert figures["public_auroc_lodestar"] > 0.9
    assert figures["public_auroc_made_here"] == figures["public_auroc_lodestar"]
    assert "public_auroc_vlm" in figures
    assert "no-such-model is left out: " in capsys.readouterr().err
    with (tmp_path / "public.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == ["lodestar", "made_here", "tiny"]
    assert (tmp_path / "public.md").read_text().count(WORLD) == 3


def test_readme_says_that_no_public_model_was_run_until_one_was():
    path = ROOT / "assets" / "results" / "public.json"
    was_run = path.exists() and json.loads(path.read_text())["figures"]["public_models"] > 0
    says_none = "No public CLIP was run yet" in (ROOT / "README.md").read_text()
    assert says_none is not was_run
