"""Benchmarks: figures one can compute by hand, results that survive an interruption, a study that goes on."""

import csv
import json

import pytest

from benchmarks import __main__ as bench
from benchmarks.speed import foundation, measure
from benchmarks.studies import studies
from benchmarks.studies.studies import Arm, Study
from runners.report import results, statistics


def test_the_interquartile_mean_leaves_out_a_quarter_on_each_side():
    assert statistics.iqm([0.0, 0.4, 0.5, 0.6, 1.0]) == pytest.approx(0.5)
    assert statistics.iqm([9, 1, 2, 3, 0, 4, 5, 100]) == pytest.approx((2 + 3 + 4 + 5) / 4)
    assert statistics.iqm([3.0]) == 3.0


def test_figures_of_other_commands_are_kept_and_ones_own_replaced(tmp_path):
    path = tmp_path / "deeper" / "foundation.json"
    results.write_figures(path, "first", {"a": 1.00004, "b": 2})
    results.write_figures(path, "second", {"b": 3, "c": 4})
    results.write_figures(path, "second", {"c": 5})
    summary = json.loads(path.read_text())
    assert summary["figures"] == {"a": 1.0, "b": 3.0, "c": 5.0}
    assert summary["command"] == "first; second"
    assert set(summary) == {"command", "date", "machine", "versions", "figures"}
    assert summary["versions"]["torch"]
    assert [file.name for file in path.parent.iterdir()] == ["foundation.json"]


def test_rows_are_appended_under_one_header(tmp_path):
    path = tmp_path / "rows.csv"
    assert results.read_rows(path) == []
    results.append_rows(path, [{"arm": "task", "seed": 0}])
    results.append_rows(path, [{"arm": "rnd", "seed": 1}, {"arm": "rnd", "seed": 2}])
    assert path.read_text() == "arm,seed\ntask,0\nrnd,1\nrnd,2\n"
    assert results.read_rows(path)[2] == {"arm": "rnd", "seed": "2"}


def test_variants_take_turns_and_the_figure_is_the_median_of_the_rounds_ratios(tmp_path, monkeypatch):
    turns, seconds, clock = [], {"bare": [9, 1, 2, 3], "with": [9, 2, 8, 4]}, [0.0]
    monkeypatch.setattr(measure, "_cpu", lambda: clock[0])

    def variant(name):
        def build():
            def work():
                turns.append(name)
                clock[0] += seconds[name][turns.count(name) - 1]

            return 12, work

        return build

    rates = measure.interleave(tmp_path / "x.csv", "g", 3, {name: variant(name) for name in ("bare", "with")})
    assert turns == ["bare", "with"] * 4
    assert measure.ratio(rates["cpu"], "with", "bare") == 0.5  # of 1/2, 2/8, 3/4; the first round is thrown away
    rows = results.read_rows(tmp_path / "x.csv")
    assert [row["frames_per_cpu_second"] for row in rows] == ["12.0", "6.0", "6.0", "1.5", "4.0", "3.0"]


@pytest.mark.parametrize("relabel", [False, True], ids=["bare", "relabelled"])
def test_sac_is_measured_on_as_many_frames_as_it_says(relabel, monkeypatch):
    monkeypatch.setattr(foundation, "SAC_FRAMES", 110)
    frames, work = foundation._learn_sac(relabel)
    assert work().num_timesteps == frames == 110


@pytest.mark.parametrize("measure", [foundation._ppo, foundation._ppo_callback, foundation._ppo_wrapper])
def test_ppo_is_measured_on_as_many_frames_as_it_says(measure, monkeypatch):
    monkeypatch.setattr(foundation, "PPO_FRAMES", 2048)
    frames, work = measure()
    assert work().num_timesteps == frames == 2048


def tiny(figures=lambda rows: {"runs": len(rows)}):
    agent = {"n_steps": 32, "n_epochs": 1}
    arms = {
        "task": Arm({"task": {}}, steps=256, seeds=2),
        "count": Arm({"task": {}, "count": {"bin": 0.5}}, steps=5_000, until_solved=True, seeds=2),
    }
    return Study("tiny", "CartPole-v1", 2, agent, arms, figures, threshold=1.0)


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """A study of two seeds and two arms, and its figures."""
    folder = tmp_path_factory.mktemp("studied")
    return folder, studies.run(tiny(), folder)


def test_a_study_writes_a_row_for_every_run_and_stops_an_arm_that_is_asked_no_more(studied):
    folder, figures = studied
    rows = results.read_rows(folder / "tiny.csv")
    assert figures == {"runs": 4}
    assert [(row["arm"], row["seed"]) for row in rows] == [("task", "0"), ("count", "0"), ("task", "1"), ("count", "1")]
    assert [row["steps"] for row in rows if row["arm"] == "task"] == ["256", "256"]
    for row in rows:
        if row["arm"] == "count":  # 100 episodes of CartPole, each longer than the threshold of 1
            assert int(row["solved_at"]) < int(row["steps"]) < 5_000
            assert row["reward"] == "task + 0.01 * count"
    with (folder / "tiny_curves.csv").open() as file:
        assert {line["arm"] for line in csv.DictReader(file)} == {"task", "count"}


def test_an_interrupted_study_goes_on_where_it_stopped(studied, tmp_path, monkeypatch):
    folder, _ = studied
    rows = results.read_rows(folder / "tiny.csv")
    results.append_rows(tmp_path / "tiny.csv", rows[:3])
    trained = []
    train = studies.train
    monkeypatch.setattr(
        studies, "train", lambda study, arm, seed: trained.append((arm, seed)) or train(study, arm, seed)
    )
    studies.run(tiny(), tmp_path)
    assert trained == [("count", 1)]
    again = results.read_rows(tmp_path / "tiny.csv")[3]
    assert {**again, "seconds": ""} == {**rows[3], "seconds": ""}  # and the run repeats to the last digit


def test_figures_of_the_studies_are_means_of_what_the_rows_say():
    def row(arm, **values):
        return {"arm": arm, "solved_at": "", "final_return": -200, "best_return": -120, "final_success": 0, **values}

    rows = [row("count", final_success=x) for x in (0.0, 0.7, 0.8, 0.9, 1.0)] + [row("task")] * 5
    figures = studies.KEYCORRIDOR.figures(rows)
    assert figures == pytest.approx({"keycorridor_count": 0.8, "keycorridor_task": 0.0})
    rows = [row("task", solved_at=x) for x in (250_000, 300_000, 350_000, "", "")]
    rows += [row("rnd_faded", solved_at=x, final_return=-130) for x in (100_000, 110_000, 120_000, 130_000, 140_000)]
    rows += [row("rnd_kept", solved_at=150_000)] * 3 + [row("rnd_default")]
    figures = studies.MOUNTAINCAR.figures(rows)
    assert figures["mountaincar_task_steps"] == 300_000  # never, or later than a run lasts: the last step
    assert figures["mountaincar_rnd_steps_ratio"] == pytest.approx(0.4)
    assert figures["mountaincar_rnd_faded_final_return"] == -130
    assert figures["mountaincar_rnd_kept_best_return"] == -120


def test_the_command_writes_the_figures_where_the_readme_looks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(foundation, "run", lambda folder: {"rnd_callback_ratio": 0.9})
    monkeypatch.setattr(studies, "tiny", lambda folder: {"tiny_score": 0.5}, raising=False)
    monkeypatch.setitem(bench.TABLE, "tiny", ("studies.studies:tiny", "foundation"))
    assert bench.main(["foundation", "tiny"], tmp_path) == 0
    assert json.loads((tmp_path / "foundation.json").read_text())["figures"] == {
        "rnd_callback_ratio": 0.9,
        "tiny_score": 0.5,
    }
    assert json.loads((tmp_path / "tiny.json").read_text())["figures"] == {"tiny_score": 0.5}
    assert "rnd_callback_ratio" in capsys.readouterr().out


def test_an_unknown_benchmark_is_answered_with_the_nearest_name(capsys):
    assert bench.main(["fundation"]) == 2
    assert capsys.readouterr().err == "benchmark=fundation is unknown; did you mean foundation?\n"
    assert bench.main([]) == 2
    assert bench.main(["--help"]) == 0
