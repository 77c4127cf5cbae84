"""Verdicts follow from figures by conditions; every row of the table can be judged as soon as its study has run."""

import json

import numpy as np
import pytest
import yaml

from benchmarks import effects, results, study
from benchmarks.effects import Evidence, holds, judge
from benchmarks.figures import Sample

FIGURES = {"a": 2.0, "a_low": 1.5, "a_high": 2.5, "b": 1.0, "b_low": 0.5, "b_high": 1.4, "c": 0.9}
EVIDENCE = Evidence(FIGURES)


@pytest.mark.parametrize(
    ("condition", "kind", "expected"),
    [
        ("a >= 2", "shown", True),
        ("a >= 2", "contradicted", False),  # its interval begins at 1.5
        ("a > 2", "shown", False),
        ("b <= 1.4", "contradicted", True),
        ("a above b", "shown", True),  # 1 - hypot(0.5, 0.4) = 0.36 is above 0
        ("b below a", "shown", True),
        ("a above 1.6", "shown", False),
        ("b below 1.5", "shown", True),
        ("b above c", "shown", False),
        ({"any": ["a < 0", "c <= 0.9"]}, "shown", True),
        ({"any": ["a < 0", "c > 0.9"]}, "shown", False),
    ],
    ids=str,
)
def test_a_condition_compares_intervals_or_a_level(condition, kind, expected):
    assert holds(condition, EVIDENCE, kind) is expected


def test_two_figures_cannot_be_compared_as_points():
    with pytest.raises(ValueError, match="compares two points; write above or below"):
        holds("a >= b", EVIDENCE, "shown")


def test_two_figures_whose_intervals_overlap_differ_if_the_interval_of_their_difference_says_so():
    seeds = [str(seed) for seed in range(5)]
    left = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    # Nearly the same seed by seed, one less each: the difference is certain although the arms overlap.
    right = left - np.array([1.0, 1.1, 0.9, 1.0, 1.0])
    samples = {"a": Sample("x", "iqm", seeds, left), "b": Sample("x", "iqm", seeds, right)}
    overlapping = {"a": 3.0, "a_low": 0.5, "a_high": 5.5, "b": 2.0, "b_low": -0.5, "b_high": 4.5}
    low, high = Evidence(overlapping, samples).difference("a", "b")
    assert 0.8 < low < 1.0 < high < 1.2
    low, high = Evidence(overlapping).difference("a", "b")
    assert low < 0 < high


def test_a_share_is_compared_by_resampling_the_runs_that_it_is_made_of():
    seeds = [str(seed) for seed in range(6)]
    samples = {
        "arm": Sample("x", "mean", seeds, np.array([7.9, 8.0, 8.1, 8.0, 7.9, 8.1])),
        "best": Sample("x", "mean", seeds, np.array([10.1, 10.0, 9.9, 10.2, 9.9, 9.9])),
        "half": Sample("x", "mean", seeds, np.array([5.0, 5.1, 4.9, 5.0, 4.9, 5.1])),
    }
    shares = {"kept": ["arm", "best"], "half_kept": ["half", "best"]}
    low, high = Evidence({}, samples, shares).difference("kept", "half_kept")
    assert 0.27 < low < 0.3 < high < 0.33


def test_all_conditions_of_a_verdict_have_to_hold_and_what_is_neither_is_not_shown():
    verdict = {"shown": ["a above b", "c > 1"], "contradicted": ["a below b"]}
    assert judge(verdict, EVIDENCE) == "not shown"
    assert judge(verdict, Evidence(FIGURES | {"c": 1.1})) == "shown"
    assert judge(verdict, Evidence({"a": 0.1, "b": 1.0, "c": 0.9})) == "contradicted"
    with pytest.raises(KeyError):
        judge({"shown": ["nothing > 1"]}, EVIDENCE)


def test_few_seeds_are_a_pilot_and_missing_figures_not_a_run(tmp_path):
    name, entry = "circle", yaml.safe_load(effects.ENTRIES.read_text())["circle"]
    assert next(row for row in effects.effects(tmp_path) if row.name == name).verdict == "not run"
    figures = {"spo_cycle_distance": 0.01, "bt_cycle_distance": 0.6}
    (tmp_path / "circle.json").write_text(json.dumps({"figures": figures}))
    for seeds, verdict in ((4, "not shown (pilot)"), (5, "shown")):
        (tmp_path / "circle.csv").write_text("reward,seed,seconds\n" + "".join(f"spo,{n},720\n" for n in range(seeds)))
        row = next(row for row in effects.effects(tmp_path) if row.name == name)
        assert (row.verdict, row.seeds, row.figures) == (verdict, seeds, figures) and row.claim == entry["claim"]
    assert row.hours == pytest.approx(1.0)


def test_a_study_with_fresh_seeds_takes_over_the_row_once_every_cell_has_five(tmp_path):
    columns = study.Study.read("gate_fresh").header()
    cells = [("aside", arm, value) for arm, value in (("sum", 0.2), ("end", 1.0), ("renorm", 1.0))]
    for seeds, verdict in ((4, "not run"), (5, "shown")):
        rows = [
            dict.fromkeys(columns, "") | {"task": task, "arm": arm, "seed": seed, "return": value}
            for task, arm, value in cells
            for seed in range(seeds)
        ]
        (tmp_path / "gate_fresh.csv").unlink(missing_ok=True)
        results.append_rows(tmp_path / "gate_fresh.csv", rows)
        # An interrupted study has rows and no file of figures yet: it decides nothing.
        (tmp_path / "gate_fresh.json").unlink(missing_ok=True)
        found = [row for row in effects.effects(tmp_path) if row.system.startswith("gated rewards")]
        assert [row.verdict for row in found] == ["not run"]
        (tmp_path / "gate_fresh.json").write_text(json.dumps({"figures": {}}))
        found = [row for row in effects.effects(tmp_path) if row.system.startswith("gated rewards")]
        assert [row.verdict for row in found] == [verdict]
    assert found[0].name == "gate_fresh"


def test_a_rule_that_changed_after_the_data_were_seen_shows_nothing_without_fresh_seeds():
    known = effects.Effect("x", "system", "claim", "not run", post_hoc="the rule was another one")
    found = effects.judged_effect(known, {"shown": ["a above b"]}, EVIDENCE, seeds=9)
    assert found.verdict == "not shown (post hoc: shown)"


def test_every_study_that_writes_down_a_verdict_says_it_in_conditions_on_figures_of_its_own():
    for name in study.names():
        found = study.Study.read(name)
        assert not found.verdict or "erdict" in found.about, name
        arms = {key.format(task=task, arm=arm) for key in found.figures for task in found.tasks for arm in found.arms}
        named = {key for kind in found.verdict.values() for key in effects.keys_of(kind)}
        assert named <= arms | {*found.shares}, (name, named - arms - {*found.shares})


def test_every_study_with_a_verdict_names_its_system_or_the_row_that_it_tries_again():
    entries = yaml.safe_load(effects.ENTRIES.read_text())
    for name in study.names():
        found = study.Study.read(name)
        if found.verdict:
            assert bool(found.system) != bool(found.again), name
            assert not found.again or found.again in {*entries, *study.names()}, name


def test_what_a_study_would_cost_stands_where_there_is_none(tmp_path):
    rows = {row.name: row for row in effects.effects(tmp_path) if row.cost}
    assert rows["mbtl"].verdict == "not run" and rows["mbtl"].cost.startswith("2, after a family")
    assert len(rows) <= 8 and not any(row.figures or row.seeds for row in rows.values())


def test_the_counts_in_readme_are_rewritten(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("Before. Of 9 claims of methods 1 are shown, and so on, not run yet (`x`).\nAfter.\n")
    effects.write_counts(readme, {"rows": 10, "shown": 4, "not_shown": 3, "contradicted": 2, "not_run": 1})
    sentence = "Of 10 claims of methods 4 are shown, 3 not shown, 2 contradicted and 1 not run yet"
    assert readme.read_text() == f"Before. {sentence} (`x`).\nAfter.\n"


def test_an_entry_with_fresh_seeds_takes_over_the_row_once_its_figures_are_there(tmp_path):
    known = {"fdvl_fresh_fdvl": 1.0, "fdvl_fresh_iql": 1.0}
    known |= dict.fromkeys((f"fdvl_fresh_{arm}_astray" for arm in ("fdvl", "fdvl_sharp")), 0.0)
    rows = [{"arm": arm, "seed": seed, "return": -200 - seed} for arm in ("iql", "fdvl") for seed in range(5)]
    results.append_rows(tmp_path / "fdvl_fresh.csv", rows)
    for sharp, name, verdict in (({}, "offline_shelf", "not run"), ({"quantile": 0.0}, "fdvl_fresh", "shown")):
        extra = {f"fdvl_fresh_{arm}_sharp_astray": value for arm, value in sharp.items()}
        (tmp_path / "fdvl_fresh.json").write_text(json.dumps({"figures": known | extra}))
        found = [row for row in effects.effects(tmp_path) if row.system.startswith("dual losses")]
        assert [(row.name, row.verdict) for row in found] == [(name, verdict)]
