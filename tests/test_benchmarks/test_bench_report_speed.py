"""The report's benchmark writes folders of the real form, and measures a report of them."""

import numpy as np
import pytest

from benchmarks import results
from benchmarks.speed import report as report_speed
from runners.run.config import load
from runners.run.progress import LEARNED_RETURN, TASK_RETURN, read_csv


def test_the_folders_are_of_the_real_form(tmp_path):
    assert report_speed.write_sweep(tmp_path, ("CartPole-v1",), (("task", "rnd"),), 1, 4) == 1
    folder = tmp_path / "jobs" / "CartPole-v1" / "ppo-task+rnd" / "s0"
    config = load(folder / "config.yaml")
    assert (config.env, config.rewards, config.seed, config.total_timesteps) == ("CartPole-v1", "task+rnd", 0, 4000)
    rows = read_csv(folder / "metrics.csv")
    assert [row["step"] for row in rows] == ["1000", "2000", "3000", "4000"] and len(rows[0]) > 20
    assert {TASK_RETURN, LEARNED_RETURN, "reward/rnd_share"} <= set(rows[0])


@pytest.mark.nightly
def test_a_report_of_them_is_measured_in_a_process_of_its_own(tmp_path):
    held = np.ones(2**27)  # this process's own GiB is not the report's
    figures = report_speed.run(tmp_path, seeds=1, rows=5)
    assert held.nbytes == 2**30
    assert figures.keys() == {"report_200_s", "report_200_gib"} and figures["report_200_s"] > 0
    assert 0.05 < figures["report_200_gib"] < 1
    (row,) = results.read_rows(tmp_path / "report-speed.csv")
    assert (row["runs"], row["rows"]) == ("20", "5")
