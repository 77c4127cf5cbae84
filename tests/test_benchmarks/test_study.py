"""Studies: what a file says is the grid that runs, rows and figures follow from runs, a killed study continues."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import figures, results, study
from benchmarks.study import Cell, Study
from runners.report.job_log import replay
from runners.run.config import UsageError

RECORDED = Path(study.FOLDER).parents[1] / "assets" / "results"
TINY = {
    "name": "tiny",
    "claim": "a study of two arms",
    "collected": "tiny",
    "common": {"env": "CartPole-v1", "preset": "none", "n_envs": 2, "total_timesteps": 512, "eval_episodes": 2,
               "agent.n_steps": 64, "agent.n_epochs": 1, "log_every": 64},
    "tasks": {"pole": {}},
    "arms": {"task": {"reward": "task"}, "count": {"reward": "count", "reward.*.weight": 0.5}, "random": "random"},
    "seeds": 1,
    "figures": {"{task}_{arm}": "return"},
}  # fmt: skip


COUNT = {"reward": ["task", "count"], "reward.*.weight": 0.5}


@pytest.mark.nightly
@pytest.mark.parametrize("name", study.names())
def test_every_run_of_a_study_is_a_command_line_that_can_be_read(name, tmp_path):
    found = Study.read(name)
    jobs = study.jobs_of(found, tmp_path, [])
    assert len({job.name for job in jobs}) == len(jobs) == sum(cell.seeds for cell in found.grid())


@pytest.mark.parametrize("name", study.names())
def test_every_task_and_every_arm_of_a_study_can_be_read_and_its_figures_have_columns(name):
    found = Study.read(name)
    cells = list(found.grid())
    for cell in {
        id(c): c for c in [*{c.task: c for c in cells}.values(), *{c.arm: c for c in cells}.values()]
    }.values():
        study._composed(cell)
    collected = {"foundation", "ppo", "exploration", "vision", "language", "model_based", "rewards2", "agents2"}
    collected |= {"published", "shelf3", "models"}
    assert found.claim and len(found.claim) <= 110 and found.collected in collected | {"scale"}
    assert bool(found.recorded) != bool(found.tasks and found.figures)
    known = {*found.header(), "score"}
    columns = {wanted.split(" where ")[0].split(" else ")[0].split()[-1] for wanted in found.figures.values()}
    assert columns <= known
    keys = {key.format(task=t, arm=a) for key in found.figures for t in found.tasks for a in found.arms}
    assert {key for keys_of in found.shares.values() for key in keys_of} <= keys | {*found.shares, *figures.EXTREMES}
    for task, about in found.tasks.items():
        assert set(about.get("arms", ())) <= set(found.arms) and about.get("score", found.score) in known, task


def test_later_layers_win_and_patterns_and_lists_choose_cells():
    made = Study(
        **TINY
        | {
            "tasks": {"pole": {"agent.gamma": 0.9}, "long": {"arms": ["count", "random"], "seeds": 3}},
            "arms": TINY["arms"] | {"task": {"agent.gamma": 0.8}, "count": COUNT},
            "cells": {"*/count other/*": {"agent.gamma": 0.7}, "pole/count": {"seeds": 0}},
        }
    )  # fmt: skip
    cells = list(made.grid())
    assert [(cell.task, cell.arm, cell.seeds) for cell in cells] == [("pole", "task", 1), ("long", "count", 3)]
    assert cells[0].policies == {"task": "this run", "random": "random"}
    assert cells[1].policies == {"count": "this run", "random": "random"}  # the first arm that is trained
    assert cells[0].argv(0)["agent.gamma"] == "0.8"
    given = cells[1].argv(2)
    assert (
        given["reward.count.weight"] == "0.5" and "reward.task.weight" not in given and "reward.*.weight" not in given
    )
    assert (given["agent.gamma"], given["seed"], given["video"]) == ("0.7", "2", "false")


def test_every_cells_first_seed_comes_first_and_rows_alone_say_what_is_missing(tmp_path):
    made = Study(**TINY | {"seeds": 2})
    order = [job.name for job in study.jobs_of(made, tmp_path, [])]
    assert order == ["pole/task/s0", "pole/count/s0", "pole/task/s1", "pole/count/s1"]
    rows = [{"task": "pole", "arm": "task", "seed": "0"}, {"task": "pole", "arm": "count", "seed": "1"}]
    assert [job.name for job in study.jobs_of(made, tmp_path, rows)] == ["pole/count/s0", "pole/task/s1"]


def finished_run(folder: Path) -> Path:
    """A run's folder as runners.train leaves it."""
    folder.mkdir(parents=True)
    scores = {"task_return": 20.0, "success": 0.5, "length": 10.0, "metrics": {"depth": 3.0}}
    other = {"task_return": -1.0, "success": None, "length": 7.0, "metrics": {}}
    columns = {"this run": scores, "random": other, "control: untrained": {**other, "task_return": -2.0}}
    (folder / "result.json").write_text(json.dumps(columns))
    log = [  # 100 episodes of 10 steps are over at step 1000 at the earliest
        {"step": 500, study.RETURN: 0.9, study.SUCCESS: 0.0, study.LENGTH: 10, "oni/labels": ""},
        {"step": 1000, study.RETURN: 0.2, study.SUCCESS: 0.1, study.LENGTH: 10, "oni/labels": 4},
        {"step": 1500, study.RETURN: 0.7, study.SUCCESS: 0.8, study.LENGTH: 10, "oni/labels": 7},
    ]
    results.append_rows(folder / "metrics.csv", log)
    return folder


@pytest.mark.parametrize(("judge", "judged"), [("evaluation", "20.0,0.5"), ("training", "0.7,0.8")])
def test_a_finished_run_becomes_its_row_and_those_of_the_policies_beside_it(judge, judged, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "commit", lambda: "abc")
    columns = {"depth": "depth", "labels": "oni/labels", "best": f"max {study.RETURN}"}
    made = Study(**TINY | {"judge": judge, "columns": columns})
    cell = Cell("pole", "task", {}, 1, {"task": "this run", "random": "random", "bad": "control"}, "return", 0.6)
    folder = finished_run(tmp_path / "run")
    for _ in range(2):  # a study that was killed here does so again
        study.write(made, cell, 3, folder, 12.34, tmp_path / "tiny.csv")
    assert (tmp_path / "tiny.csv").read_text().splitlines() == [
        "task,arm,seed,return,success,length,first_success,solved_at,depth,labels,best,steps,seconds,commit",
        f"pole,task,3,{judged},10.0,1000,1500,3.0,7.0,0.9,1500,12.3,abc",
        "pole,random,3,-1.0,,7.0,,,,,,0,,abc",
        "pole,bad,3,-2.0,,7.0,,,,,,0,,abc",
    ]
    assert (tmp_path / "tiny_curves.csv").read_text().splitlines() == [
        "task,arm,seed,steps,return,success",
        "pole,task,3,500,0.9,0.0",
        "pole,task,3,1000,0.2,0.1",
        "pole,task,3,1500,0.7,0.8",
    ]


def test_a_curve_keeps_its_last_point():
    points = [{"steps": i, "return": i / 3, "success": None} for i in range(250)]
    kept = study.thin(points)
    assert len(kept) <= 100 and kept[-1] == {"steps": 249, "return": 83.0, "success": ""}


def rows_of(arm: str, values: list[float], solved: list[object] | None = None) -> list[dict[str, str]]:
    solved = solved or [""] * len(values)
    return [{"task": "pole", "arm": arm, "seed": str(i), "return": str(v), "solved_at": str(s), "steps": "500"}
            for i, (v, s) in enumerate(zip(values, solved))]  # fmt: skip


def test_figures_are_what_can_be_computed_by_hand():
    made = Study(
        **TINY
        | {
            "threshold": 1.0,
            "figures": {
                "{task}_{arm}": "score",
                "{arm}_mean": "mean return",
                "{arm}_worst": "min return",
                "{arm}_steps": "median solved_at",
                "{arm}_cut": "mean solved_at else steps",
            },
            "shares": {"share": ["count_mean", "random_mean", "task_mean"], "ratio": ["count_cut", "task_cut"]},
        }
    )
    rows = rows_of("random", [0.0]) + rows_of("task", [1, 2, 3, 4, 100], [100, 200, 300, "", ""])
    found = study.figures(made, rows + rows_of("count", [1, 11, 21, 22], ["", "", 100, ""]))
    assert found["pole_task"] == 3 and found["pole_task_low"] < 3 < found["pole_task_high"]  # of the middle three
    assert found["pole_random"] == 0 == found["pole_random_low"]
    assert (found["task_mean"], found["task_worst"], found["count_mean"]) == (22, 1, 13.75)
    assert found["share"] == pytest.approx(13.75 / 22)
    assert found["task_steps"] == 300 and "count_steps" not in found  # more than half never did
    assert found["task_cut"] == (100 + 200 + 300 + 500 + 500) / 5 and found["ratio"] == pytest.approx(400 / 320)
    assert "random_steps" not in found and "random_cut" not in found


def test_where_counts_only_the_runs_that_have_a_value_in_a_column():
    made = Study(
        **TINY
        | {
            "arms": {"task": {}},
            "figures": {"kept": "mean success where first_success", "met": "count success where first_success"},
        }
    )
    rows = [
        {"task": "pole", "arm": "task", "seed": seed, "success": success, "first_success": first}
        for seed, success, first in (("0", "1.0", "500"), ("1", "0.5", "900"), ("2", "0.0", ""))
    ]
    found = study.figures(made, rows)
    assert (found["kept"], found["met"]) == (0.75, 2.0)
    assert found["kept_low"] < 0.75 < found["kept_high"] <= 1
    assert study.figures(made, rows[2:]) == {}


def test_seeds_are_counted_from_the_first(tmp_path):
    made = Study(**TINY | {"seeds": 2, "first_seed": 300, "arms": {"task": {}}})
    assert [seed for _, seed in study.jobs_of(made, tmp_path, []).values()] == [300, 301]


@pytest.mark.parametrize("name", ["exploration", "ppo_learning", "ppo_streams", "sentences"])
def test_recorded_rows_give_the_figures_recorded_with_them(name):
    known = json.loads((RECORDED / f"{name}.json").read_text())["figures"]
    found = study.figures(Study.read(name), results.read_rows(RECORDED / f"{name}.csv"))
    shared = [key for key in found.keys() & known.keys() if not key.endswith(("_low", "_high"))]  # computed otherwise
    assert len(shared) >= 0.3 * len(found) and len(shared) >= 12
    assert {key: found[key] for key in shared} == pytest.approx({key: known[key] for key in shared}, rel=0.01, abs=1e-4)


def test_results_with_other_columns_are_put_aside_whole(tmp_path):
    for name in ("tiny.csv", "tiny_curves.csv"):
        (tmp_path / name).write_text("arm,seed,return\ntask,0,1\n")
    study.put_aside(tmp_path / "tiny.csv", ["task", "arm"])
    assert not (tmp_path / "tiny.csv").exists() and not (tmp_path / "tiny_curves.csv").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny-0.1.0.csv", "tiny_curves-0.1.0.csv"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"arm,seed,return\ntask,0,1\n"}


def test_a_study_without_a_grid_says_why_it_cannot_be_run(tmp_path):
    with pytest.raises(UsageError, match=r"reward-swap cannot be run: .*; its results were recorded with 0\.1\.0"):
        study.run(Study.read("reward-swap"), tmp_path)


def test_rows_and_curves_alone_are_enough_for_figures_and_picture_on_an_empty_machine(tmp_path, monkeypatch):
    made = Study(**TINY)
    for arm, policies in (("task", {"random": "random"}), ("count", {})):
        cell = Cell("pole", arm, {}, 1, {arm: "this run", **policies}, "return", None)
        study.write(made, cell, 0, finished_run(tmp_path / arm), 1.0, tmp_path / "results" / "tiny.csv")
    monkeypatch.setattr(study, "drive", lambda *arguments, **options: pytest.fail("nothing is missing"))
    found = study.run(made, tmp_path / "results", root=tmp_path / "empty")
    assert found["pole_task"] == found["pole_count"] == 20 and found["pole_random"] == -1
    assert (tmp_path / "figures" / "tiny.png").stat().st_size > 5000


SCRIPT = """
import json, sys
from pathlib import Path
from benchmarks.study import Study, run
if __name__ == "__main__":
    print(json.dumps(run(Study(**json.loads(sys.argv[1])), Path("results"), slots=1)))
"""


@pytest.mark.nightly
def test_a_study_that_is_killed_continues_and_has_every_row_once(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    made = TINY | {"seeds": 2, "common": TINY["common"] | {"total_timesteps": 4096, "checkpoint_every": 512}}
    command = [sys.executable, "script.py", json.dumps(made)]
    settings = {**os.environ, "PYTHONPATH": str(study.FOLDER.parents[1])}
    rows = tmp_path / "results" / "tiny.csv"
    process = subprocess.Popen(command, cwd=tmp_path, env=settings, start_new_session=True)
    while not rows.exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = rows.read_text()
    answer = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stderr
    assert rows.read_text().startswith(before)
    cells = Counter((row["task"], row["arm"], row["seed"]) for row in results.read_rows(rows))
    assert cells == Counter(("pole", arm, seed) for arm in TINY["arms"] for seed in "01")
    assert len({row["steps"] for row in results.read_rows(rows) if row["arm"] != "random"}) == 1
    entries = replay(tmp_path / "runs" / "sweeps" / "study-tiny")
    assert entries["pole/task/s0"].attempts == 1  # its row was there


def test_a_cost_that_doubles_is_compared_where_both_ways_first_reach_the_same():
    assert figures.doubling([0, 2, 2, 0, 1, 2]) == 0.5  # at the second figure, at the third
    assert figures.doubling([3, 1, 0, 3, 5, 6]) == 1.0  # at once, both
    assert figures.doubling([0, 2, 4, 0, 1, 1]) == pytest.approx(2**0.5 / 2)  # halfway to the second; at the second
