"""Verdicts follow from figures by conditions; every row of the table can be judged as soon as its study has run."""

import json

import pytest
import yaml

from benchmarks import effects, study
from benchmarks.effects import holds, judge

FIGURES = {"a": 2.0, "a_low": 1.5, "a_high": 2.5, "b": 1.0, "b_low": 0.5, "b_high": 1.4, "c": 0.9}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("a >= 2", True),
        ("a > 2", False),
        ("b <= c", False),
        ("c < b", True),
        ("a above b", True),  # 1.5 > 1.4
        ("b below a", True),
        ("a above 1.6", False),
        ("b below 1.5", True),
        ("a above c", True),
        ("b above c", False),  # 0.5 is not above 0.9
        ({"any": ["a < 0", "c <= 0.9"]}, True),
        ({"any": ["a < 0", "c > 0.9"]}, False),
    ],
    ids=str,
)
def test_a_condition_compares_figures_or_the_ends_of_their_intervals(condition, expected):
    assert holds(condition, FIGURES) is expected


def test_all_conditions_of_a_verdict_have_to_hold_and_what_is_neither_is_not_shown():
    verdict = {"shown": ["a above b", "c > 1"], "contradicted": ["a < b"]}
    assert judge(verdict, FIGURES) == "not shown"
    assert judge(verdict, FIGURES | {"c": 1.1}) == "shown"
    assert judge(verdict, FIGURES | {"a": 0.9}) == "contradicted"
    with pytest.raises(KeyError):
        judge({"shown": ["nothing > 1"]}, FIGURES)


def test_few_seeds_are_a_pilot_and_missing_figures_not_a_run(tmp_path):
    name, entry = "circle", yaml.safe_load((study.FOLDER.parent / "effects.yaml").read_text())["circle"]
    assert next(row for row in effects.effects(tmp_path) if row.name == name).verdict == "not run"
    figures = {"spo_cycle_distance": 0.01, "bt_cycle_distance": 0.6}
    (tmp_path / "circle.json").write_text(json.dumps({"figures": figures}))
    for seeds, verdict in ((4, "not shown (pilot)"), (5, "shown")):
        (tmp_path / "circle.csv").write_text("reward,seed,seconds\n" + "".join(f"spo,{n},720\n" for n in range(seeds)))
        row = next(row for row in effects.effects(tmp_path) if row.name == name)
        assert (row.verdict, row.seeds, row.figures) == (verdict, seeds, figures) and row.claim == entry["claim"]
    assert row.hours == pytest.approx(1.0)


def test_every_study_that_writes_down_a_verdict_says_it_in_conditions_on_figures_of_its_own():
    for name in study.names():
        found = study.Study.read(name)
        assert not found.verdict or "erdict" in found.about, name
        arms = {key.format(task=task, arm=arm) for key in found.figures for task in found.tasks for arm in found.arms}
        named = {key for kind in found.verdict.values() for key in effects._keys(kind)}
        assert named <= arms | {*found.shares}, (name, named - arms - {*found.shares})


def test_what_a_study_would_cost_stands_where_there_is_none(tmp_path):
    rows = {row.name: row for row in effects.effects(tmp_path) if row.cost}
    assert rows["mbtl"].verdict == "not run" and rows["mbtl"].cost.startswith("2, after a family")
    assert len(rows) <= 8 and not any(row.figures or row.seeds for row in rows.values())
