"""NetHack's benchmark, on next to nothing."""

import csv

import pytest

from benchmarks.speed import nethack as nethack_speed


@pytest.mark.nightly
def test_each_ratio_is_the_median_over_rounds_of_what_the_rows_say(tmp_path):
    figures = nethack_speed.run(tmp_path, rounds=1, share=0.02)
    with open(tmp_path / "nethack-speed.csv") as file:
        rows = list(csv.DictReader(file))
    names = ["nle", "program", "program, text", "single, text", "ours, 32 games, text"]
    assert [row["variant"] for row in rows] == names
    assert [int(row["frames"]) for row in rows] == [160, 160, 160, 160, 160]
    nle, *ours, steps = (float(row["frames_per_cpu_second"]) for row in rows)
    for key, rate in zip(("nle_adapter_ratio", "nethack_text_ratio", "nethack_single_ratio"), ours):
        assert abs(figures[key] / (rate / nle) - 1) < 0.05
    assert abs(figures["nethack_steps"] / steps - 1) < 0.05
