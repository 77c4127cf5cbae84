"""A search: it finds what is good, prunes what is not, survives a kill, and is judged on seeds of its own."""

import json
import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path

import numpy as np
import pytest
from optuna.trial import TrialState

from runners.cli.compose import compose
from runners.sweep.drive import drive
from runners.sweep.job import JobLog
from runners.tune.__main__ import main
from runners.tune.config import TuneConfig
from runners.tune.search import (
    Search,
    arm_scores,
    best_settings,
    open_study,
    rungs,
    sampler,
    steps,
    table,
    test_jobs,
    verdict,
    write,
)

sys.path.insert(0, str(Path(__file__).parent))
from instant_runs import Instant, options

test_jobs.__test__ = False  # pytest takes it for a test
RATE = "agent.learning_rate"


def earn(given):
    """Best at a learning rate of 1e-3; seeds differ by luck, and a run by itself learns too slowly."""
    rate = float(given.get(RATE, 3e-4))
    return 100 - 50 * abs(np.log10(rate) + 3) + 0.1 * (int(given["seed"]) % 7)


def plan(tmp_path, *argv):
    base = ["env=CartPole-v1", "total_timesteps=900", f"root={tmp_path}", "name=s", f"tune={RATE}"]
    return main.parse([*base, *argv])


def searched(plan, launcher, log=None):
    """The study after a search."""
    with nullcontext(log) if log else closing(JobLog(plan.folder)) as own:
        study = open_study(plan)
        Search(plan, study, launcher, lambda sentence: None).run(own)
    return study


def test_the_search_comes_near_the_best_setting_and_beats_the_default(tmp_path):
    one = plan(tmp_path, "trials=25", "seeds=2", "pruner=none")
    study = searched(one, Instant(earn))
    assert len(study.trials) == 25 and all(trial.state == TrialState.COMPLETE for trial in study.trials)
    assert study.trials[0].params == {RATE: 3e-4}  # the default goes first
    assert abs(np.log10(study.best_params[RATE]) + 3) < 0.15
    assert study.best_value > study.trials[0].value


def test_a_search_shows_its_trial_the_best_so_far_and_the_time_left(tmp_path):
    one = plan(tmp_path, "trials=2", "seeds=1", "pruner=none")
    said = []
    with closing(JobLog(one.folder)) as log:
        search = Search(one, open_study(one), Instant(earn), said.append)
        assert search.progress() == "running trial none, 2 in all; 0 of at most 1,800 steps, ?:?? left"
        search.run(log)
        best_so_far = f"best so far {search.study.best_value:.4g} (trial {search.study.best_trial.number}); "
        assert best_so_far in search.progress()
        said.clear()
        search._next_sign_s = 0
        search.tick({}, [])
        search.tick({}, [])
    assert said == [search.progress()]


def test_a_trial_is_worth_the_iqm_of_its_tuning_seeds(tmp_path):
    luck = {1000: 0.0, 1001: 10.0, 1002: 20.0, 1003: 30.0, 1004: 1000.0}
    study = searched(plan(tmp_path, "trials=1", "seeds=5"), Instant(lambda given: luck[int(given["seed"])]))
    assert study.best_value == 20.0
    assert study.trials[0].user_attrs["returns"] == list(luck.values())


def test_tuning_seeds_and_test_seeds_are_apart(tmp_path):
    one = plan(tmp_path, "trials=2", "seeds=3", "test_seeds=4", "pruner=none")
    launcher = Instant(earn)
    study = searched(one, launcher)
    tuning = {int(name.rpartition("/s")[2]) for name in launcher.ran}
    tests = {int(options(job)["seed"]) for job in test_jobs(one, {RATE: 1e-3})}
    assert (tuning, tests) == ({1000, 1001, 1002}, {0, 1, 2, 3})
    assert best_settings(study, one) == ({} if study.best_trial.number == 0 else study.best_params)


def test_the_verdict_counts_only_test_seeds_and_states_the_budget(tmp_path):
    one = plan(tmp_path, "trials=12", "seeds=2", "test_seeds=5", "pruner=none")
    launcher, log = Instant(earn), JobLog(one.folder)
    study = searched(one, launcher, log)
    jobs = test_jobs(one, best_settings(study, one))
    entries = drive(jobs, log, launcher)
    found = verdict(one, study, jobs, entries)
    log.close()
    tuned = [earn({RATE: study.best_params[RATE], "seed": seed}) for seed in range(5)]
    default = [earn({"seed": seed}) for seed in range(5)]
    assert found["on_test_seeds"]["tuned"]["runs"] == pytest.approx(tuned)
    assert found["on_test_seeds"]["default"]["runs"] == pytest.approx(default)
    assert found["difference"]["iqm"] == pytest.approx(tuned[0] - default[0])  # luck is equal, seed by seed
    assert found["search_steps"] == 12 * 2 * 900 and found["search_run_seconds"] == 24.0
    assert found["trials"]["complete"] == 12
    assert "12 trials complete, 0 pruned, 0 failed; 21,600 environment steps" in table(found)

    path = write(one, found, "python -m runners.tune ...")
    config, preset = compose([f"preset={path}", "seed=3"])
    assert preset == str(path) and config.env == "CartPole-v1" and config.total_timesteps == 900
    assert config.agent.learning_rate == study.best_params[RATE]
    assert json.loads((one.folder / "tune.json").read_text())["best"] == study.best_params


def test_when_nothing_is_better_nothing_is_called_tuned(tmp_path):
    one = plan(tmp_path, "trials=3", "seeds=1", "test_seeds=2", "pruner=none")
    launcher, log = Instant(lambda given: -abs(float(given.get(RATE, 3e-4)) - 3e-4)), JobLog(one.folder)
    study = searched(one, launcher, log)
    jobs = test_jobs(one, best_settings(study, one))
    found = verdict(one, study, jobs, drive(jobs, log, launcher))
    log.close()
    assert [job.name for job in jobs] == ["test/default/s0", "test/default/s1"]
    assert found["difference"] is None and list(found["on_test_seeds"]) == ["default"]
    assert list(found["on_tuning_seeds"]) == ["default"]
    printed = table(found)
    assert "tuned" not in printed
    assert f"best is the default (trial 0): {RATE}=0.0003; no trial was better" in printed


def test_a_verdict_stays_in_the_possible_range_and_names_the_mode(tmp_path):
    folders = [tmp_path / str(seed) for seed in range(2)]
    for folder, value in zip(folders, (34.0, 500.0)):
        folder.mkdir()
        own = {"task_return": value, "task_return_possible": [0.0, 500.0]}
        scores = {"this run": own, "this run, mode": {"task_return": 10.0}}
        (folder / "result.json").write_text(json.dumps(scores))
    found = arm_scores(folders)
    assert (found["iqm"], found["low"], found["high"], found["mode"]) == (267.0, 0.0, 500.0, 10.0)


def test_the_median_prunes_what_lags_and_spares_its_other_seeds(tmp_path):
    one = plan(tmp_path, "trials=30", "seeds=3", "pruner=median")
    launcher = Instant(earn)
    study = searched(one, launcher)
    pruned = [trial for trial in study.trials if trial.state == TrialState.PRUNED]
    complete = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    assert pruned and len(pruned) + len(complete) == 30
    assert all(trial.number >= 5 for trial in pruned)  # the first five set the measure
    assert len(launcher.ran) < 3 * 30
    for trial in pruned:
        assert [name for name in launcher.ran if f"t{trial.number:04d}" in name] == [f"jobs/t{trial.number:04d}/s1000"]
    assert np.mean([earn({**trial.params, "seed": 0}) for trial in pruned]) < study.best_value


def test_asha_prunes_more(tmp_path):
    study = searched(plan(tmp_path, "trials=20", "seeds=1", "pruner=asha"), Instant(earn))
    assert sum(trial.state == TrialState.PRUNED for trial in study.trials) >= 8


def test_a_run_that_diverges_is_bad_and_one_that_is_refused_is_unknown(tmp_path):
    def sometimes(given):
        rate = float(given[RATE])
        return {"code": 4} if rate > 2e-3 else {"code": 2} if rate < 2e-5 else earn(given)

    study = searched(plan(tmp_path, "trials=20", "seeds=1", "sampler=random", "pruner=none"), Instant(sometimes))
    for trial in study.trials:
        rate = trial.params[RATE]
        state = TrialState.PRUNED if rate > 2e-3 else TrialState.FAIL if rate < 2e-5 else TrialState.COMPLETE
        assert trial.state == state
    assert {trial.user_attrs.get("why") for trial in study.trials} == {None, "diverged", "as asked"}


def test_a_crash_is_tried_again_and_a_missing_package_stops_the_search(tmp_path):
    crashes = []

    def first_crashes(given):
        crashes.append(given["seed"])
        return {"code": -9} if len(crashes) <= 2 else 1.0

    study = searched(plan(tmp_path, "trials=1", "seeds=1"), Instant(first_crashes))
    assert study.best_value == 1.0 and len(crashes) == 4  # asked twice an attempt
    with pytest.raises(ImportError, match=r"as asked"):
        searched(plan(tmp_path / "b", "trials=1"), Instant(lambda given: {"code": 3}))


def test_no_completed_trial_is_an_error_with_the_last_reason(tmp_path):
    with pytest.raises(RuntimeError, match=r"no trial was completed; the last one: diverged"):
        searched(plan(tmp_path, "trials=2", "seeds=1"), Instant(lambda given: {"code": 4}))


def test_the_budget_stops_new_trials(tmp_path):
    one = plan(tmp_path, "trials=10", "seeds=1", "budget=2000", "pruner=none")
    assert len(searched(one, Instant(earn)).trials) == 3
    assert steps(one) == 2700


def test_more_trials_continue_the_same_study(tmp_path):
    first = [trial.params for trial in searched(plan(tmp_path, "trials=4", "seeds=1"), Instant(earn)).trials]
    launcher = Instant(earn)
    second = searched(plan(tmp_path, "trials=6", "seeds=1"), launcher)
    assert [trial.params for trial in second.trials[:4]] == first and len(second.trials) == 6
    assert launcher.ran == ["jobs/t0004/s1000", "jobs/t0005/s1000"]


KILLED = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from test_tune import earn, plan, searched
from instant_runs import Instant
searched(plan(Path({tmp!r}), "trials=6", "seeds=2", "pruner=none"), Instant(earn, die_after=5))
"""


@pytest.mark.nightly
def test_a_killed_search_continues_the_trial_that_ran(tmp_path):
    whole = searched(plan(tmp_path / "whole", "trials=6", "seeds=2", "pruner=none"), Instant(earn))
    here = Path(__file__).parent
    script = KILLED.format(paths=[str(here), str(here.parent.parent)], tmp=str(tmp_path / "killed"))
    code = subprocess.run([sys.executable, "-c", script], cwd=here.parent.parent, timeout=200).returncode
    assert code == -9
    one = plan(tmp_path / "killed", "trials=6", "seeds=2", "pruner=none")
    with (one.folder / "study.jsonl").open("a") as file:
        file.write('{"op_code": 4, "trial_')  # and the kill tore a line
    launcher = Instant(earn)
    study = searched(one, launcher)
    assert [trial.params for trial in study.trials] == [trial.params for trial in whole.trials]
    assert [trial.value for trial in study.trials] == [trial.value for trial in whole.trials]
    assert launcher.ran[0] == "jobs/t0002/s1001"  # five runs had ended, and are not run again
    assert len(launcher.ran) == 12 - 5


def test_each_trials_proposal_has_a_seed_of_its_own(tmp_path):
    one = plan(tmp_path, "sampler=random")
    draws = [sampler(one, number)._rng.rng.random() for number in (0, 1, 0)]
    assert draws[0] == draws[2] != draws[1]


def test_rungs_are_the_latest_task_return_at_each_ninth(tmp_path):
    lines = ["step,rollout/ep_rew_mean", "50,", "100,1.5", "220,2.5", "460,4"]
    (tmp_path / "metrics.csv").write_text("\r\n".join(lines) + "\r\n")
    assert rungs(tmp_path, 900) == [(1, 1.5), (2, 1.5), (3, 2.5), (4, 2.5)]
    assert rungs(tmp_path / "nowhere", 900) == []


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("trials=0", r"trials=0 is out of range; give a number at least 1"),
        ("pruner=hyperband", r"pruner='hyperband' is unknown; give one of median, asha, none"),
        ("run_dir=x", r"run_dir= cannot be given here"),
        ("eval_episodes=0", r"eval_episodes=0 leaves nothing to judge runs by"),
        ("gpus=1.5", r"gpus=1.5 is out of range; give a share, 0 to 1, or a whole number"),
        ("test_seeds=1001", r"test_seeds=1001 is out of range; give a number in \[1, 1000\]"),
        ("tune.agent.gamma=[1,0.9]", r"the lower end first"),
        ("objective=fqe", r"estimates from data= what a policy is worth"),
    ],
)
def test_a_wrong_command_is_one_sentence(tmp_path, argument, sentence):
    with pytest.raises(ValueError, match=sentence):
        plan(tmp_path, argument)


def test_another_search_in_the_same_folder_is_refused(tmp_path, capsys):
    arguments = ["env=CartPole-v1", "total_timesteps=64", f"root={tmp_path}", "name=s", "trials=1"]
    one = plan(tmp_path)
    one.folder.mkdir(parents=True)
    (one.folder / "plan.json").write_text(json.dumps(one.fixed_settings()))
    assert main([*arguments, "seeds=1", f"tune={RATE}"]) == 2
    assert "was begun by another command (it differs in argv, seeds); give name=" in capsys.readouterr().err


def test_a_search_from_the_command_line_tests_what_it_found_and_writes_it_down(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(TuneConfig, "launch", lambda self: Instant(earn))
    arguments = ["env=CartPole-v1", "total_timesteps=900", f"root={tmp_path}", "name=s", f"tune={RATE}"]
    assert main([*arguments, "trials=8", "seeds=1", "test_seeds=2", "pruner=none"]) == 0
    found = json.loads((tmp_path / "tune" / "s" / "tune.json").read_text())
    assert found["trials"]["complete"] == 8 and found["search_steps"] == 8 * 900
    tuned, default = (found["on_test_seeds"][arm]["runs"] for arm in ("tuned", "default"))
    assert default == pytest.approx([earn({"seed": seed}) for seed in range(2)]) and tuned > default
    out = capsys.readouterr().out
    assert f"{RATE}" in out and "default 0.0003" in out and "at most 12 runs of 900 steps" in out
    assert "only the test counts" in out and str(tmp_path / "tune" / "s" / "best.yaml") in out


def test_settings_are_chosen_by_what_the_recording_says_and_tested_by_the_task(tmp_path, capsys, monkeypatch):
    def tell(given):
        """The recording likes a high beta, and the task a low one."""
        beta = float(given.get("agent.beta", 3.0))
        return {"this run": {"task_return": -beta, "fitted_value": beta}}

    launcher = Instant(lambda given: tell(given)["this run"]["task_return"], result=tell)
    monkeypatch.setattr(TuneConfig, "launch", lambda self: launcher)
    arguments = ["data=pendulum", "agent=iql", "reward=task", "total_timesteps=90", "objective=fqe", "name=s"]
    assert main([*arguments, f"root={tmp_path}", "tune=agent.beta", "trials=6", "seeds=1", "test_seeds=1"]) == 0
    found = json.loads((tmp_path / "tune" / "s" / "tune.json").read_text())
    assert found["objective"] == "fqe" and found["pruner"] == "none" and "fitted=3000" in found["argv"]
    best_beta = found["best"]["agent.beta"]
    assert found["on_tuning_seeds"]["tuned"] == best_beta > 3
    assert found["on_test_seeds"]["tuned"]["runs"] == [-best_beta]
    assert "its value by the recording alone" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_real_search_from_the_command_line(tmp_path, capfd):
    arguments = ["env=CartPole-v1", "total_timesteps=64", "n_envs=2", "agent.n_steps=32", "eval_episodes=1"]
    arguments += [f"root={tmp_path}", "name=real", "trials=1", "seeds=1", "test_seeds=1", f"tune={RATE}", "slots=1"]
    assert main(arguments) == 0
    out = capfd.readouterr().out
    found = json.loads((tmp_path / "tune" / "real" / "tune.json").read_text())
    assert found["trials"]["complete"] == 1 and found["search_steps"] == 64
    assert len(found["on_test_seeds"]["default"]["runs"]) == 1
    assert "only the test counts" in out and "best.yaml" in out
