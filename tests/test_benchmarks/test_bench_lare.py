"""The study of late rewards: its figures by hand, and a run cut short of the arm with factors."""

import pytest

from benchmarks.studies import lare


def test_figures_are_means_with_their_ends_and_arms_that_did_not_run_have_none():
    rows = [
        {"arm": "late", "seed": 0, "return": "-1200", "corr": ""},
        {"arm": "factors", "seed": 0, "return": "-200", "corr": "0.9"},
        {"arm": "factors", "seed": 1, "return": "-400", "corr": "0.7"},
    ]
    assert lare.figures(rows) == {
        "lare_late": -1200,
        "lare_late_low": -1200,
        "lare_late_high": -1200,
        "lare_factors": -300,
        "lare_factors_low": -400,
        "lare_factors_high": -200,
        "lare_factors_corr": pytest.approx(0.8),
    }


def test_a_short_run_hands_out_the_sums_and_knows_how_well(monkeypatch):
    monkeypatch.setattr(lare, "EPISODES", 1)
    monkeypatch.setitem(lare.AGENT, "learning_starts", 10_000)
    row = lare.train("factors", 0, steps=1_600)  # two episodes of each environment
    assert -2000 < row["return"] < 0
    assert 0 < row["corr"] <= 1
    assert row["steps"] == 1_600
