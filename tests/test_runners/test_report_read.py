"""What the report finds in folders and files, and how it sorts it into tasks and arms."""

import json

import numpy as np
import pytest
import yaml

from runners.report import read
from runners.report.__main__ import summarize
from runners.report.comparison import Comparison, alarm, band, bands, configurations, score
from runners.report.numbers import ALL_TASKS, Numbers
from runners.report.page import _score_rows
from runners.report.read import find, read_published
from runners.run import progress
from runners.run.config import UsageError
from tests.glossary import explain


def write(folder, env="CartPole-v1", reward=("task",), seed=0, score=100.0, state="finished", curve=None, **options):
    """A run's folder; `curve` is a list of (step, task return)."""
    folder.mkdir(parents=True)
    config = {"env": env, "reward": {name: {"weight": 1.0} for name in reward}, "agent": {"name": "ppo", "gamma": 0.99}}
    config |= {"seed": seed, "total_timesteps": 1000, "eval_episodes": 20, "run_dir": str(folder), **options}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "status.json").write_text(json.dumps({"state": state, "exit_code": 0 if state == "finished" else 4}))
    rows = [(500, score / 2), (1000, score)] if curve is None else curve
    lines = ["step,rollout/ep_rew_mean,rollout/ep_learned_mean", *(f"{step},{value},{value}" for step, value in rows)]
    (folder / "metrics.csv").write_text("\r\n".join(lines) + "\r\n")
    if state == "finished":
        results = {"this run": {"task_return": score, "success": 1.0}, "random": {"task_return": 20.0}}
        (folder / "result.json").write_text(json.dumps(results))
    return folder


def found_in(*paths, labels=None):
    return Comparison(*find(zip(paths, labels or [""] * len(paths))))


def test_the_tags_are_those_of_the_log():
    assert (read.TASK_RETURN, read.LEARNED_RETURN) == (progress.TASK_RETURN, progress.LEARNED_RETURN)
    assert explain(read.ALARM) and explain(read.ELAPSED)


def test_a_run_is_read_with_its_curve_its_scores_and_its_configuration(tmp_path):
    write(tmp_path / "a", seed=3, env_options={"sticky": 0.25}, score=80.0)
    (run,), problems = find([(tmp_path, "")])
    assert problems == [] and run.notes == []
    assert (run.name, run.task, run.reward, run.agent, run.seed) == ("a", "CartPole-v1 (sticky=0.25)", "task", "ppo", 3)
    assert run.config["agent.gamma"] == 0.99 and run.total == 1000 and run.state == "finished"
    assert np.array_equal(run.curve(read.TASK_RETURN), [[500, 1000], [40, 80]])
    assert run.result("task_return") == 80 and run.result("task_return", "random") == 20


def test_scores_stay_in_the_possible_range_and_have_their_modes_beside_them(tmp_path):
    for seed, found in enumerate((34.0, 500.0)):
        folder = write(tmp_path / f"s{seed}", seed=seed, score=found)
        own = {"task_return": found, "task_return_possible": [0.0, 500.0], "actions": "sampled"}
        results = {"this run": own, "this run, mode": {"task_return": found / 2}}
        (folder / "result.json").write_text(json.dumps(results))
    numbers = Numbers(found_in(tmp_path))
    final = numbers.find_one("final", arm="task")
    assert (final.value, final.low, final.high) == (267.0, 0.0, 500.0)
    assert numbers.find_one("mode", arm="task").value == 133.5
    assert read.possible_returns(found_in(tmp_path).own[0].scores) == (0.0, 500.0)


@pytest.mark.parametrize("ends", [None, [1], [1, 0], ["a", 2], [0, "x"], {}, [0, float("inf")]])
def test_ends_that_are_no_range_bound_nothing(tmp_path, ends):
    assert read.possible_returns({"this run": {"task_return_possible": ends}}) == (-np.inf, np.inf)
    assert read.possible_returns({"this run": 3}) == read.possible_returns({}) == (-np.inf, np.inf)


def test_scores_of_users_are_rows_of_their_own(tmp_path):
    for seed, value in enumerate((40.0, 44.0)):
        folder = write(tmp_path / str(seed), seed=seed, score=0.0)
        scores = json.loads((folder / "result.json").read_text())
        scores["told: ann"] = {"task_return": value, "success": 1.0}
        scores["told: bob"] = {"task_return": -value, "success": None}
        (folder / "result.json").write_text(json.dumps(scores))
    numbers = Numbers(found_in(tmp_path))
    assert [(row.against, row.value, row.runs) for row in numbers.find("told")] == [("ann", 42, 2), ("bob", -42, 2)]
    assert [(row.against, row.value) for row in numbers.find("told_success")] == [("ann", 1)]
    rows = _score_rows(numbers, numbers.data.tasks[0])
    assert [(row[0].partition(", ")[2], row[2], row[6]) for row in rows[1:3]] == [
        ("told it serves ann", "42.00", "100%"),
        ("told it serves bob", "−42.00", "–"),
    ]


def test_the_absolute_path_of_the_runs_is_left_out(tmp_path):
    folder = write(tmp_path / "home" / "a")
    (folder / "command.txt").write_text(f"python -m runners.train env=CartPole-v1 run_dir={folder}\n")
    (run,), _ = find([(tmp_path / "home", "")])
    assert run.commands == ["python -m runners.train env=CartPole-v1 run_dir=a"]
    assert "run_dir: a\n" in run.text and str(tmp_path) not in run.text


def test_a_run_is_found_wherever_it_is_and_its_control_beside_it_but_not_its_checkpoints(tmp_path):
    run = write(tmp_path / "deep" / "down" / "s0")
    write(run / "control" / "run")
    write(run / "checkpoints" / "step_1")
    assert [(r.name, r.control) for r in find([(tmp_path, "")])[0]] == [
        ("deep/down/s0", False),
        ("deep/down/s0/control/run", True),
    ]
    assert [r.name for r in find([(run, "")])[0]] == ["s0", "control/run"]


def test_a_broken_folder_costs_one_named_line(tmp_path):
    write(tmp_path / "good")
    for name, text in {
        "empty": "",
        "torn": "env: [",
        "list": "- 1",
        "partial": "env: CartPole-v1\n",
        "bomb": "a: &a [1, 2]\nb: *a\n",
        "deep": "a: " + "[" * 5000 + "]" * 5000,
        "tag": "env: !!python/object/apply:os.system ['true']\n",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.yaml").write_text("a: " + "x" * 300_000)
    runs, problems = find([(tmp_path, "")])
    assert [run.name for run in runs] == ["good"]
    assert sorted(line.split()[0] for line in problems) == sorted(
        ["empty", "torn", "list", "partial", "bomb", "deep", "tag", "large"]
    )
    assert all("cannot be read: " in line for line in problems)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("metrics.csv", "nothing here", "metrics.csv cannot be read: it has no column 'step'"),
        ("metrics.csv", "step,rollout/ep_rew_mean\n1,2\n3\n5,6\n", "metrics.csv has 1 rows that are not whole"),
        ("metrics.csv", 'step,a\n1,"' + "x" * 200_000 + '"\n', "metrics.csv cannot be read: field larger"),
        ("result.json", "{", "result.json cannot be read"),
        ("result.json", "[1]", "result.json cannot be read"),
        ("versions.json", "3", "versions.json cannot be read"),
    ],
)
def test_a_broken_part_costs_one_line_and_the_rest_is_used(tmp_path, name, text, words):
    write(tmp_path / "a")
    (tmp_path / "a" / name).write_text(text)
    made = found_in(tmp_path)
    assert len(made.runs) == 1 and made.problems[0].startswith(f"a: {words}")


def test_a_last_row_that_a_kill_cut_short_is_left_out_silently_and_words_are_no_Numbers(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "a" / "metrics.csv").write_text("step,rollout/ep_rew_mean\n1,2\n2,word\n3,inf\n4,5\n3,9\n6")
    (run,), _ = find([(tmp_path, "")])
    assert run.notes == [] and np.array_equal(run.curve(read.TASK_RETURN), [[1, 4], [2, 5]])


def test_arms_are_rewards_and_whatever_else_differs_within_a_task(tmp_path):
    for seed in (0, 1):
        write(tmp_path / f"t{seed}", seed=seed)
        for weight in (1.0, 2.0):
            write(tmp_path / f"r{weight}{seed}", seed=seed, reward=("task", "rnd"), n_envs=int(weight))
        write(tmp_path / f"other{seed}", env="Acrobot-v1", seed=seed, total_timesteps=5000)
    made = found_in(tmp_path)
    assert [arm.name for arm in made.arms] == ["task", "task+rnd, n_envs=1", "task+rnd, n_envs=2"]
    assert [arm.baseline for arm in made.arms] == ["", "task", "task"]
    assert made.tasks == ["Acrobot-v1", "CartPole-v1"]
    assert {task: len(runs) for task, runs in made.arms[0].cells.items()} == {"Acrobot-v1": 2, "CartPole-v1": 2}
    settings = configurations(made)
    assert settings["shared"]["agent.gamma"] == "0.99" and settings["own"]["reward.rnd.weight"].keys() == {
        "task+rnd, n_envs=1",
        "task+rnd, n_envs=2",
    }
    assert settings["differing"]["total_timesteps"]["task"] == "5000 | 1000"
    assert settings["differing"]["n_envs"] == {"task+rnd, n_envs=1": "1", "task+rnd, n_envs=2": "2"}


def test_two_paths_have_labels(tmp_path):
    write(tmp_path / "old" / "s0", score=50.0)
    write(tmp_path / "new" / "s0", score=60.0)
    made = found_in(tmp_path / "old", tmp_path / "new", labels=["old", "new"])
    assert [arm.name for arm in made.arms] == ["new: task", "old: task"] and made.problems == []


def test_of_two_runs_with_one_seed_the_finished_one_counts_and_the_other_is_named(tmp_path):
    write(tmp_path / "b", state="stopped", curve=[(900, 90)])
    write(tmp_path / "a", curve=[(800, 80)])
    made = found_in(tmp_path)
    assert [run.name for run in made.runs] == ["a"]
    assert made.problems == ["b is left out: a is the same run, and went further or is newer"]


def test_missing_failed_and_unequal_runs_are_named(tmp_path):
    write(tmp_path / "jobs" / "s0")
    write(tmp_path / "jobs" / "s1", seed=1)
    failed = write(tmp_path / "jobs" / "r0", reward=("task", "rnd"), state="failed", curve=[(400, 30)])
    (failed / "status.json").write_text(json.dumps({"state": "failed", "exit_code": 4, "error": "NaN in rnd"}))
    events = [{"job": "r1", "state": "running", "attempts": 2}, {"job": "r1", "state": "lost"}]
    (tmp_path / "ledger.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n{torn")
    assert found_in(tmp_path).problems == [
        "r1 left nothing: lost",
        "jobs/r0 failed at step 400 of 1,000, exit code 4: NaN in rnd",
        "CartPole-v1, task+rnd: no run with seed 1, which other arms have",
    ]


def test_a_run_without_an_evaluation_has_no_score_unless_nothing_was_evaluated(tmp_path):
    write(tmp_path / "a", curve=[(100, 10), (900, 20), (950, 30), (1000, 40)])
    (run,), _ = find([(tmp_path, "")])
    assert score(run, True) == 100
    assert score(run, False) == 30  # of the steps from 900 on
    run.status["state"] = "failed"
    assert np.isnan(score(run, False))


def test_curves_are_interpolated_but_never_continued(tmp_path):
    write(tmp_path / "a", seed=0, curve=[(0, 0), (100, 100)])
    write(tmp_path / "b", seed=1, curve=[(0, 20), (50, 70)])
    drawn = bands(found_in(tmp_path), 5)["CartPole-v1", "task"]
    assert drawn.steps.tolist() == [0, 25, 50, 75, 100] and drawn.runs.tolist() == [2, 2, 2, 1, 1]
    assert drawn.value.tolist() == [10, 35, 60, 75, 100]  # the second alone from 75 on
    assert np.isfinite(drawn.low).tolist() == [True, True, True, False, False] and drawn.of == 2


def test_a_band_is_the_same_however_its_points_are_cut(monkeypatch):
    curves = np.random.default_rng(0).normal(size=(6, 40))
    whole = band(curves, np.arange(40))
    monkeypatch.setattr("runners.report.comparison.MAX_RESAMPLED_NUMBERS", 2000 * 6 * 7)
    parts = band(curves, np.arange(40))
    assert np.array_equal(whole.low, parts.low) and np.array_equal(whole.value, parts.value)


def test_the_alarm_says_how_often_and_when(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "a" / "metrics.csv").write_text("step,reward/alarm\n10,0\n20,1\n30,1\n40,0\n50,\n")
    (run,), _ = find([(tmp_path, "")])
    assert alarm(run) == (0.5, 20.0, 30.0)


def sweep(folder, scores):
    """scores: task -> reward -> {seed: score}"""
    for env, rewards in scores.items():
        for reward, by_seed in rewards.items():
            for seed, value in by_seed.items():
                write(folder / f"{env}-{reward}-{seed}", env=env, reward=reward.split("+"), seed=seed, score=value)
    return found_in(folder)


def test_scores_are_interquartile_means_over_seeds(tmp_path):
    made = sweep(tmp_path, {"A-v1": {"task": dict(enumerate([10.0, 20.0, 30.0, 40.0, 500.0]))}})
    row = Numbers(made).find_one("final", task="A-v1", arm="task")
    assert (row.value, row.runs, row.of) == (30.0, 5, 5) and row.low < 30 < row.high
    assert (
        Numbers(made).find_one("random", task="A-v1").value == 20
        and Numbers(made).find_one("success", arm="task").value == 1
    )


def test_differences_are_paired_by_seed_whatever_the_order_and_only_where_both_ran(tmp_path):
    scores = {"task": {0: 10.0, 1: 200.0, 2: 300.0, 5: 1.0}, "task+rnd": {2: 303.0, 1: 203.0, 0: 13.0, 7: 900.0}}
    row = Numbers(sweep(tmp_path, {"A-v1": scores})).find_one("difference", arm="task+rnd")
    assert (row.value, row.low, row.high) == (3.0, 3.0, 3.0)  # of scores that are hundreds apart
    assert (row.runs, row.of, row.against) == (3, 5, "task")


def test_scores_are_normalised_by_the_baseline_and_by_the_best_arm_where_it_learnt_nothing(tmp_path):
    made = sweep(
        tmp_path,
        {
            "A-v1": {"task": {0: 120.0, 1: 120.0}, "task+rnd": {0: 170.0, 1: 170.0}},
            "B-v1": {"task": {0: 20.0, 1: 20.0}, "task+rnd": {0: 70.0, 1: 70.0}},
        },
    )
    found = Numbers(made)
    assert [found.scales[task].reference for task in made.tasks] == [120, 70]
    assert found.scales["B-v1"].name == "the mean of the best arm, task+rnd"
    assert (
        found.find_one("normalised", arm="task").value == 0.5
        and found.find_one("normalised", arm="task+rnd").value == 1.25
    )
    assert found.find_one("improvement", arm="task+rnd").value == 1
    assert found.find_one("normalised_difference", task=ALL_TASKS).value == 0.75
    assert Numbers(made, "task+rnd").find_one("normalised", arm="task").value == pytest.approx((100 / 150 + 0) / 2)


def test_a_task_without_a_random_policy_has_no_common_scale(tmp_path):
    made = sweep(tmp_path, {"A-v1": {"task": {0: 5.0}}})
    for run in made.runs:
        del run.scores["random"]
    found = Numbers(made)
    assert found.find("normalised") == [] and found.left_out == ["A-v1: no run measured a random policy there"]


def test_runs_that_never_reach_the_threshold_are_counted_as_such(tmp_path):
    for seed, curve in enumerate([[(0, 0), (100, 100)], [(0, 0), (100, 50)], [(0, 0), (100, 10)]]):
        write(tmp_path / str(seed), seed=seed, curve=curve)
    found = Numbers(found_in(tmp_path), threshold={"": 40.0})
    row = found.find_one("steps_to", arm="task")
    assert (row.value, row.low, row.high, row.runs, row.of) == (80, 40, np.inf, 2, 3)
    assert found.thresholds == {"CartPole-v1": [("as given", 40.0)]}


def test_the_default_thresholds_are_where_the_baselines_training_ends_and_half_of_the_way(tmp_path):
    made = sweep(tmp_path, {"A-v1": {"task": {0: 220.0}, "task+rnd": {0: 240.0}}})
    found = Numbers(made)
    assert [limit for _, limit in found.thresholds["A-v1"]] == [120, 220]  # a random policy has 20
    half, whole = found.find("steps_to", arm="task+rnd")
    assert half.value == 500 and whole.value == pytest.approx(500 + 500 * 100 / 120)


WIDE = """"Step","CartPole-v1__ppo__1__1672531200 - charts/episodic_return","CartPole-v1__ppo__1__1672531200 - \
charts/episodic_return__MIN","CartPole-v1__ppo__1__1672531200 - charts/episodic_return__MAX",\
"CartPole-v1__ppo__2__1672531201 - charts/episodic_return"
"0","10","9","11",""
"100","20","18","22","40"
"200","30","30","30","50"
"""
LONG = """,global_step,charts/episodic_return,seed,exp_name,env_id
0,0,10,1,ppo,CartPole-v1
1,100,20,1,ppo,CartPole-v1
2,0,0,2,dqn,CartPole-v1
3,0,-500,2,dqn,Acrobot-v1
"""


def test_a_wide_export_of_weights_and_biases_is_read(tmp_path):
    (tmp_path / "chart.csv").write_text(WIDE)
    runs, problems = read_published(tmp_path / "chart.csv", "", ["CartPole-v1", "Acrobot-v1"])
    assert problems == [] and [(run.published, run.task, run.seed) for run in runs] == [
        ("published: ppo", "CartPole-v1", 1),
        ("published: ppo", "CartPole-v1", 2),
    ]
    assert np.array_equal(runs[0].curve(read.TASK_RETURN), [[0, 100, 200], [10, 20, 30]])
    assert np.array_equal(runs[1].curve(read.TASK_RETURN), [[100, 200], [40, 50]])


def test_a_long_table_is_read_and_other_tasks_are_named(tmp_path):
    (tmp_path / "all.csv").write_text(LONG)
    runs, problems = read_published(tmp_path / "all.csv", "", ["CartPole-v1"])
    assert [(run.published, run.seed, run.steps.tolist()) for run in runs] == [
        ("published: ppo", 1, [0, 100]),
        ("published: dqn", 2, [0]),
    ]
    assert problems == ["all.csv also has Acrobot-v1, which no run here is on; left out"]


def test_single_episodes_are_averaged_over_the_last_twentieth_of_rows(tmp_path):
    lines = ["step,episodic_return", *(f"{i},{100 * (i % 2)}" for i in range(200))]
    (tmp_path / "CartPole-v1.csv").write_text("\n".join(lines))
    (run,), _ = read_published(tmp_path / "CartPole-v1.csv", "theirs", ["Acrobot-v1", "CartPole-v1"])
    _, values = run.curve(read.TASK_RETURN)
    assert run.published == "published: theirs" and values[:2].tolist() == [0, 50] and set(values[9:]) == {50.0}


def test_a_file_that_names_no_task_is_reported_and_an_unknown_form_refused(tmp_path):
    (tmp_path / "x.csv").write_text("step,episodic_return\n1,2\n")
    runs, problems = read_published(tmp_path / "x.csv", "", ["A-v1", "B-v1"])
    assert runs == [] and problems == ["x.csv does not name its task; name the file after one, as in A-v1.csv"]
    (tmp_path / "y.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match=r"y.csv is of no known form \(its columns: a, b\)"):
        read_published(tmp_path / "y.csv", "", ["A-v1"])


def test_published_arms_stand_last_and_are_never_paired(tmp_path):
    write(tmp_path / "runs" / "s1", seed=1)
    (tmp_path / "chart.csv").write_text(WIDE)
    runs, _ = find([(tmp_path / "runs", "")])
    made = Comparison(runs + read_published(tmp_path / "chart.csv", "", ["CartPole-v1"])[0])
    assert [(arm.name, arm.baseline) for arm in made.arms] == [("task", ""), ("published: ppo", "")]
    found = Numbers(made)
    assert found.find_one("final", arm="published: ppo").value == 40  # 30 and 50, the last tenth of each
    assert found.find("difference") == [] and [row.arm for row in found.find("normalised")] == ["task"]


def test_a_study_is_a_row_a_run_and_a_figure_a_number(tmp_path):
    for seed in (0, 1):
        write(tmp_path / f"t{seed}", seed=seed, score=100.0 + seed)
        write(tmp_path / f"r{seed}", reward=("task", "rnd"), seed=seed, score=110.0 + seed)
    rows, figures = summarize(tmp_path)
    assert [(row["arm"], row["seed"], row["task_return"], row["step"]) for row in rows] == [
        ("task", 0, 100.0, 1000),
        ("task", 1, 101.0, 1000),
        ("task+rnd", 0, 110.0, 1000),
        ("task+rnd", 1, 111.0, 1000),
    ]
    assert figures["final/CartPole-v1/task+rnd"] == 110.5 and figures["difference/CartPole-v1/task+rnd/task"] == 10
    assert figures["random/CartPole-v1/random policy"] == 20 and "random/CartPole-v1/random policy/low" not in figures
