"""The offline study: what its data are, and how its figures follow from its rows."""

import numpy as np
import pytest

from benchmarks import __main__ as bench
from benchmarks.studies import offline
from runners.record import whole_episodes


def test_the_ratio_is_the_share_of_what_true_rewards_bring_over_random(tmp_path, monkeypatch):
    rows = [
        {"seed": seed, "preferences": -300 + seed, "true": -200, "cloning": -600, "random": -1200, "data": -700}
        | {"agreement": 0.9, "accuracy": 0.8, "correlation": 0.95}
        for seed in (0, 1, 2)
    ]
    monkeypatch.setattr(offline, "run_missing", lambda *arguments: rows)
    monkeypatch.setattr(offline, "DATA", tmp_path / "data.safetensors")
    offline.DATA.touch()
    figures = offline.run(tmp_path)
    assert figures["offline_preferences"] == -299 and figures["offline_true"] == -200
    assert figures["offline_preferences_ratio"] == pytest.approx((1200 - 299) / (1200 - 200))
    assert bench.TABLE["offline"] == ("studies.offline:run", "vision")


def test_the_data_hold_as_many_transitions_of_each_age_and_begin_at_random(monkeypatch):
    monkeypatch.setattr(offline, "AGES", (0, 20))
    monkeypatch.setattr(offline, "EACH", 400)
    batch = offline.mixed(0)
    assert batch.shape == (800,) and len(whole_episodes(batch).returns) == 4
    random, untrained = batch.action[:400, 0], batch.action[400:, 0]
    assert np.abs(random).max() <= 2 and random.std() == pytest.approx(4 / np.sqrt(12), abs=0.15)
    assert untrained.std() < random.std()
