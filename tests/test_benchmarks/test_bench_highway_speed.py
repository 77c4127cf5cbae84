"""The highway's benchmark, on next to nothing."""

import csv

import pytest

from benchmarks.__main__ import CODE
from benchmarks.speed import highway as highway_speed


@pytest.mark.nightly
def test_each_ratio_is_the_median_over_rounds_of_what_the_rows_say(tmp_path):
    figures = highway_speed.run(tmp_path, rounds=1, share=0.01)
    assert set(figures) == {*highway_speed.GROUPS, "highway_steps", "highway_frames"}
    with open(tmp_path / "highway-speed.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["variant"] for row in rows] == ["batched", "highway-env"] * 3
    rates = [int(row["frames"]) / float(row["cpu_seconds"]) for row in rows]
    for key, ours, theirs in zip(highway_speed.GROUPS, rates[::2], rates[1::2]):
        assert abs(figures[key] / (ours / theirs) - 1) < 0.05
    assert CODE["highway-speed"] == ("benchmarks.speed.highway:run", "vision")
