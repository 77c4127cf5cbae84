"""The bench of model-based learning: what it times does what it says."""

import torch

from benchmarks.speed import model_based
from benchmarks.speed.measure import interleave, ratio


def test_updates_by_hand_and_through_autograd_are_timed_side_by_side(tmp_path):
    variants = {name: model_based._update(2, fused=name == "fused") for name in ("fused", "eager")}
    rates = interleave(tmp_path / "rates.csv", "update", 1, variants)["cpu"]
    assert ratio(rates, "fused", "eager") > 0
    assert (tmp_path / "rates.csv").read_text().count("\n") == 3  # a header and two rows


def test_an_ensemble_is_asked_once_for_each_row(monkeypatch):
    monkeypatch.setattr(model_based, "ROWS", 50)
    rows, work = model_based._ensemble(everyone=True, calls=3)()
    assert rows == 150
    work()


def test_imagined_transitions_are_counted():
    before = torch.random.get_rng_state()
    rows, work = model_based._sindy(share=0.01)()
    assert rows == 10 * 100
    work()
    assert torch.equal(torch.random.get_rng_state(), before)
