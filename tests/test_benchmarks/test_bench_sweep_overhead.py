"""The bench of the sweep, small: what it counts and what it writes down."""

import numpy as np
import pytest

from benchmarks import results
from benchmarks.speed.sweep import measure


@pytest.mark.nightly
def test_a_small_sweep_is_accounted_for(tmp_path):
    figures = measure(tmp_path, jobs=3, slots=2, seconds=0.5, pairs=1)
    assert figures.keys() == {"sweep_overhead", "sweep_wall_s", "job_start_s", "job_training_s", "plain_training_s"}
    rows = results.read_rows(tmp_path / "sweep-overhead.csv")
    inside = np.array([float(row["seconds"]) for row in rows if row["what"] == "job"])
    assert len(inside) == 3 and (inside >= 0.5).all()  # the world waits so long
    assert figures["sweep_overhead"] == pytest.approx(2 * figures["sweep_wall_s"] / inside.sum() - 1, abs=0.01)
    assert figures["sweep_wall_s"] > inside.sum() / 2
    assert 0 < figures["job_start_s"] < figures["job_training_s"]
