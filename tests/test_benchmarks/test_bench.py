"""Benchmarks: figures one can compute by hand, results that survive an interruption, one command for all."""

import json

import pytest

from benchmarks import __main__ as bench
from benchmarks import results
from benchmarks.speed import foundation, measure
from runners.report import statistics


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
    assert not results.lacks_row(path, arm="rnd", seed=2) and results.lacks_row(path, arm="task", seed=2)


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


@pytest.mark.nightly
@pytest.mark.parametrize("relabel", [False, True], ids=["bare", "relabelled"])
def test_sac_is_measured_on_as_many_frames_as_it_says(relabel, monkeypatch):
    monkeypatch.setattr(foundation, "SAC_FRAMES", 110)
    frames, work = foundation._learn_sac(relabel)
    assert work().num_timesteps == frames == 110


@pytest.mark.nightly
@pytest.mark.parametrize("measure", [foundation._ppo, foundation._ppo_callback, foundation._ppo_wrapper])
def test_ppo_is_measured_on_as_many_frames_as_it_says(measure, monkeypatch):
    monkeypatch.setattr(foundation, "PPO_FRAMES", 2048)
    frames, work = measure()
    assert work().num_timesteps == frames == 2048


def test_the_command_writes_the_figures_where_the_readme_looks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(foundation, "run", lambda folder: {"rnd_callback_ratio": 0.9})
    monkeypatch.setattr(bench.study, "run", lambda study, folder: {"upright_clip": 0.5})
    assert bench.main(["foundation", "upright"], tmp_path) == 0
    assert json.loads((tmp_path / "foundation.json").read_text())["figures"] == {
        "rnd_callback_ratio": 0.9,
        "upright_clip": 0.5,
    }
    assert json.loads((tmp_path / "upright.json").read_text())["figures"] == {"upright_clip": 0.5}
    assert "rnd_callback_ratio" in capsys.readouterr().out


def test_an_unknown_benchmark_is_answered_with_the_nearest_name(capsys):
    assert bench.main(["fundation"]) == 2
    assert capsys.readouterr().err == "benchmark=fundation is unknown; did you mean foundation?\n"
    assert bench.main([]) == 2
    assert bench.main(["--help"]) == 0


def test_every_benchmark_has_its_line_in_the_list(capsys):
    assert bench.main(["list"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    assert [line.split()[0] for line in lines] == [*bench.study.names(), *bench.CODE]
    assert all(len(line) > 40 for line in lines)
    assert any(line.startswith("reward-swap") and line.endswith("(recorded with 0.1.0)") for line in lines)


def test_a_study_that_is_stopped_says_how_it_continues(monkeypatch, tmp_path, capsys):
    from runners.run.exits import Stopped

    def stop(study, folder):
        raise Stopped(15)

    monkeypatch.setattr(bench.study, "run", stop)
    assert bench.main(["upright"], tmp_path) == 143 and "the same command continues" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
