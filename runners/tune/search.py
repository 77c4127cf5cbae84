"""The search: Optuna proposes a setting, the launcher runs it once for every tuning seed, Optuna gets the task returns.

    ask -> a job a seed -> (rungs: as good as others were by now? else prune) -> tell the IQM of the task returns

The study is a file, study.jsonl, and the runs are folders that continue where they stopped. A search that was killed
continues the trials that were running: the same settings, from the last checkpoints, never counted twice.

How a trial ends: complete; pruned, if it was given up, or diverged (for Optuna that is bad, not unknown); failed, if
its settings were refused or it failed for other reasons again and again.

Limits: rungs compare runs with the first tuning seed, like with like; two searches prune alike only if their runs take
equally long. A run that is stopped leaves its trial open: the same command continues it.

The result is the best setting and the default, on seeds that neither was chosen by, and the cost:

    tune.json   everything: ranges, trials, budget, scores on tuning seeds and on test seeds
    best.yaml   a preset: python -m runners.train preset=runs/tune/<name>/best.yaml
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from lodestar.files import LARGE, appended, read_bytes, read_json
from runners.cli.command import changed
from runners.cli.compose import compose
from runners.cli.value import literal
from runners.report.job_log import Entry
from runners.report.read import possible_returns
from runners.report.statistics import Estimate, aggregate, iqm, paired_difference, within
from runners.run.checkpoint import versions, write_atomically
from runners.run.config import sources
from runners.run.exits import MISSING, NUMERICAL
from runners.run.folder import OTHER_WAY, read_status
from runners.run.progress import TASK_RETURN, read_csv
from runners.sweep.display import score
from runners.sweep.drive import Watcher, drive
from runners.sweep.job import Job, JobLog, Launcher
from runners.tune.config import TuneConfig, check, parts

RUNGS = 9  # a trial is looked at after each ninth of its steps; asha acts at the first and the third
STARTUP = 5  # trials before the median means anything
ARMS = ("default", "tuned")


def open_study(config: TuneConfig) -> optuna.Study:
    """The study of a search's folder, new or as it was left; the caller holds the folder's job log.

    The default is the first trial, moved into the ranges where it lies outside.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = config.folder / "study.jsonl"
    if path.exists():  # what a kill tore would spoil the line after it
        whole = read_bytes(path, LARGE).rpartition(b"\n")
        with appended(path) as file:
            file.truncate(len(whole[0]) + len(whole[1]))
    # No lock: that of the job log keeps others out already, and one of Optuna's would outlive a kill.
    lock: Any = SimpleNamespace(acquire=lambda: True, release=lambda: None)
    storage = JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
    pruners: dict[str, optuna.pruners.BasePruner] = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=1),
        "asha": optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        "none": optuna.pruners.NopPruner(),
    }
    given: dict[str, Any] = {"storage": storage, "study_name": "tune", "pruner": pruners[config.pruner]}
    study = optuna.create_study(direction="maximize", load_if_exists=True, **given)
    if not study.trials:
        default = {one.key: one.nearest(config.default[one.key]) for one in config.spaces}
        study.enqueue_trial({key: value for key, value in default.items() if value is not None})
    return study


def sampler(config: TuneConfig, number: int) -> optuna.samplers.BaseSampler:
    """What proposes trial `number`, seeded by it: a search that continues does not repeat its first proposals."""
    seed = (config.seed * 100_003 + number) % 2**32
    if config.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    first = min(10, max(config.trials // 4, 2))
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=first, constant_liar=True)


@dataclass
class _OpenTrial:
    """A trial that runs: its jobs, one a tuning seed, names of those `left` to finish, and rungs that it `reported`."""

    trial: optuna.Trial
    jobs: list[Job]
    left: set[str]
    reported: set[int]


class Search(Watcher):
    """All trials of a study, as jobs for `runners.sweep.drive`, which it watches; `report` takes a sentence each."""

    def __init__(
        self, config: TuneConfig, study: optuna.Study, launcher: Launcher, report: Callable[[str], None] = print
    ) -> None:
        self.config, self.study, self.launcher, self.report = config, study, launcher, report
        self._open, self._owner = dict[int, _OpenTrial](), dict[str, int]()  # number -> trial; job -> number

    def run(self, log: JobLog) -> None:
        """Until every trial has ended; an ImportError or RuntimeError if none gets anywhere, `Stopped` by a signal."""
        drive(self.jobs(), log, self.launcher, watcher=self)
        trials = self.study.get_trials(deepcopy=False)
        if trials and not any(trial.state == TrialState.COMPLETE for trial in trials):
            raise RuntimeError(f"no trial was completed; the last one: {trials[-1].user_attrs.get('why', 'stopped')}")

    def jobs(self) -> Iterator[Job]:
        """The next run to begin, whenever there is room for one: trials left from a kill first, then new ones."""
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.study.sampler = sampler(self.config, frozen.number)  # the kill may have come between two suggestions
            yield from self._begin(optuna.Trial(self.study, frozen._trial_id))
        while self._asked() < self.config.trials and not 0 < self.config.budget <= steps(self.config):
            self.study.sampler = sampler(self.config, self._asked())
            yield from self._begin(self.study.ask())

    def _asked(self) -> int:
        return sum(trial.state != TrialState.WAITING for trial in self.study.get_trials(deepcopy=False))

    def _begin(self, trial: optuna.Trial) -> Iterator[Job]:
        """A job for every tuning seed, as long as the trial is not given up."""
        values = {one.key: one.suggest(trial) for one in self.config.spaces}
        jobs = [self.config.run(f"jobs/t{trial.number:04d}/s{seed}", values, seed) for seed in self.config.tuning_seeds]
        try:
            check(self.config.train, values)
        except ValueError as error:
            self._end(trial, TrialState.FAIL, str(error))
            return
        reported = {*self.study.trials[trial.number].intermediate_values}
        self._open[trial.number] = _OpenTrial(trial, jobs, {job.name for job in jobs}, reported)
        for job in jobs:
            self._owner[job.name] = trial.number
            if trial.number in self._open:
                yield job

    def job_ended(self, job: Job, entry: Entry) -> None:
        """A run that was stopped leaves its trial open."""
        one = self._open.get(self._owner[job.name])
        if one is None:  # it was pruned
            return
        if entry.state == "finished":
            self._look(one)
            one.left.discard(job.name)
            if not one.left and one.trial.number in self._open:
                self._complete(one)
        elif entry.code == MISSING:
            raise ImportError(entry.error)
        elif entry.state == "failed" and entry.code == NUMERICAL:
            self._drop(one, TrialState.PRUNED, "diverged")
        elif entry.state == "failed":
            self._drop(one, TrialState.FAIL, entry.error)

    def tick(self, entries: dict[str, Entry], running: list[Job]) -> None:
        """Prune by what the runs have reached."""
        for one in list(self._open.values()):
            self._look(one)

    def _look(self, one: _OpenTrial) -> None:
        """Report what the first seed's run has reached, rung by rung; give up if the pruner says so."""
        for rung, value in rungs(one.jobs[0].folder, int(self.config.train.total_timesteps)):
            if rung in one.reported:
                continue
            one.reported.add(rung)
            one.trial.report(value, rung)
            if one.trial.should_prune():
                self._drop(one, TrialState.PRUNED, f"{value:.4g} after {rung}/{RUNGS} of the steps")
                return

    def _complete(self, one: _OpenTrial) -> None:
        del self._open[one.trial.number]
        returns = [score(job.folder) for job in one.jobs]
        one.trial.set_user_attr("returns", returns)
        value = float(iqm(returns))
        self.study.tell(one.trial, value)
        best = ", the best so far" if self.study.best_trial.number == one.trial.number else ""
        self.report(f"trial {one.trial.number}: {value:.4g}{best}; {settings(one.trial.params)}")

    def _drop(self, one: _OpenTrial, state: TrialState, why: str) -> None:
        """End a trial early, and its runs."""
        del self._open[one.trial.number]
        self._end(one.trial, state, why)
        for name in one.left:
            self.launcher.cancel(name)

    def _end(self, trial: optuna.Trial, state: TrialState, why: str) -> None:
        trial.set_user_attr("why", why)
        self.study.tell(trial, state=state)
        outcome = "pruned" if state == TrialState.PRUNED else "failed"
        self.report(f"trial {trial.number}: {outcome} ({why}); {settings(trial.params)}")


def rungs(folder: Path, total: int) -> list[tuple[int, float]]:
    """(rung, task return in training) for every rung that a run has passed with an episode ended."""
    path = folder / "metrics.csv"
    rows = read_csv(path) if path.exists() else []
    last = int(rows[-1]["step"]) if rows else 0
    found: dict[int, float] = {}
    for row in rows:  # the newest return at or before each rung
        if row.get(TASK_RETURN):
            passed = [r for r in range(1, RUNGS) if int(row["step"]) <= total * r // RUNGS <= last]
            found |= dict.fromkeys(passed, float(row[TASK_RETURN]))
    return sorted(found.items())


def steps(config: TuneConfig) -> int:
    """Environment steps that the trials have taken so far."""
    found = [read_status(path.parent) or {} for path in config.folder.glob("jobs/*/*/status.json")]
    return sum(int(status.get("step", 0)) for status in found)


def settings(values: dict[str, Any]) -> str:
    """As a command line gives them, to four digits."""
    return " ".join(f"{k}={f'{v:.4g}' if isinstance(v, float) else literal(v)}" for k, v in values.items())


def best(study: optuna.Study, config: TuneConfig) -> dict[str, Any]:
    """The settings of the best trial; none if that is the default, in all that it sets."""
    found = study.best_trial.params
    return {} if found == config.default else found


def test_jobs(config: TuneConfig, setting: dict[str, Any]) -> list[Job]:
    """Runs that judge: both arms with the same seeds; the default alone if nothing better was found."""
    arms = {"default": {}, "tuned": setting} if setting else {"default": {}}
    seeds = range(config.test_seeds)
    return [config.run(f"test/{arm}/s{seed}", values, seed) for seed in seeds for arm, values in arms.items()]


def verdict(config: TuneConfig, study: optuna.Study, jobs: list[Job], entries: dict[str, Entry]) -> dict[str, Any]:
    """All results, as plain data; `jobs` are the test's, all finished.

    Where the default was the best trial there is no `tuned`: nothing better was found, so there is no difference.
    """
    trials = study.get_trials(deepcopy=False)
    arms = {arm: [job.folder for job in jobs if f"test/{arm}/" in job.name] for arm in ARMS}
    tests = {arm: arm_scores(folders) for arm, folders in arms.items() if folders}
    first = trials[0].value if trials[0].state == TrialState.COMPLETE and trials[0].params == config.default else None
    chosen, difference = {"default": first}, None
    if "tuned" in tests:
        chosen["tuned"] = study.best_value
        runs = [np.array(tests[arm]["runs"]) for arm in ("tuned", "default")]
        difference = _estimate(paired_difference(runs[:1], runs[1:]))
    return {
        **config.fixed(),
        "folder": str(config.folder),
        "trials": {state.name.lower(): sum(trial.state == state for trial in trials) for state in TrialState},
        "best_trial": study.best_trial.number,
        "best": study.best_trial.params,
        "default": config.default,
        "tuning_seeds": config.tuning_seeds,
        "on_tuning_seeds": chosen,
        "test_seeds": list(range(config.test_seeds)),
        "on_test_seeds": tests,
        "difference": difference,
        "search_steps": steps(config),
        "search_run_seconds": round(sum(e.seconds for name, e in entries.items() if name.startswith("jobs/")), 1),
        "steps_a_run": int(config.train.total_timesteps),
        "versions": versions(),
        "history": [_row(trial) for trial in trials],
    }


def arm_scores(folders: list[Path]) -> dict[str, Any]:
    """The task returns of an arm's test runs, their IQM with its interval; and that of their modes, where judged."""
    returns = np.array([score(folder) for folder in folders])
    modes = [score(folder, OTHER_WAY) for folder in folders]
    judged = [value for value in modes if value is not None]
    estimate = within(aggregate([returns]), *possible_returns(read_json(folders[0] / "result.json")))
    return {**_estimate(estimate), "runs": returns.tolist(), "mode": float(iqm(judged)) if judged else None}


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return dict(zip(("iqm", "low", "high"), map(float, estimate)))


def _row(trial: FrozenTrial) -> dict[str, Any]:
    value = trial.value if trial.state == TrialState.COMPLETE else None
    why: dict[str, Any] = {key: trial.user_attrs[key] for key in ("returns", "why") if key in trial.user_attrs}
    return {"trial": trial.number, "state": trial.state.name.lower(), "value": value, **why, "params": trial.params}


def table(found: dict[str, Any]) -> str:
    """The verdict as text; the last numbers are the ones that count."""
    counts, seeds, tests = found["trials"], found["tuning_seeds"], found["test_seeds"]
    lines = [
        f"{counts['complete']} trials complete, {counts['pruned']} pruned, {counts['fail']} failed; "
        f"{found['search_steps']:,} environment steps, {found['search_run_seconds']:,.0f} s of runs",
        "",
        f"  {'task return, IQM':<18}{f'seeds {seeds[0]}-{seeds[-1]}, chosen by':>28}{f'test seeds 0-{tests[-1]}':>30}",
    ]
    chosen = {arm: "-" if value is None else f"{value:.4g}" for arm, value in found["on_tuning_seeds"].items()}
    tests = dict(found["on_test_seeds"])
    if found["difference"] is not None:
        tests["tuned - default"] = found["difference"]
    for name, test in tests.items():
        interval = f"{test['iqm']:.4g}  [{test['low']:.4g}, {test['high']:.4g}]"
        by_mode = "" if test.get("mode") is None else f"  by its mode {test['mode']:.4g}"
        lines.append(f"  {name:<18}{chosen.get(name, ''):>28}{interval:>30}{by_mode}")
    best = f"(trial {found['best_trial']}): {settings(found['best'])}"
    if "tuned" not in tests:
        best = f"is the default {best}; no trial was better"
    lines += [
        "",
        "  only the test counts: the best of many noisy numbers is always too high. Intervals are 95 %.",
        f"  best {best}",
    ]
    return "\n".join(lines)


def write(config: TuneConfig, found: dict[str, Any], command: str) -> Path:
    """tune.json and best.yaml, a preset of all in which the best runs differ from a plain `runners.train`: its path."""
    import yaml

    write_atomically(config.folder / "tune.json", json.dumps({"command": command, **found}, indent=1) + "\n")
    run, _ = compose([*config.argv, *(f"{key}={literal(value)}" for key, value in found["best"].items())])
    code = sources(run)
    values: dict[str, Any] = {"env": run.env, "reward": [code.get(f"reward.{name}", name) for name in run.reward]}
    values["agent"] = code.get(f"agent.{run.agent_name}", run.agent_name)
    values |= {f"env.{key}": value for key, value in run.env_options.items()}
    values |= {key: getattr(run, key) for key in ("total_timesteps", "n_envs", "max_episode_steps")}
    for prefix, options in parts(run).items():
        values |= {prefix + key: value for key, value in changed(options).items()}
    path = config.folder / "best.yaml"
    write_atomically(path, f"# Found by {' '.join(command.split())}\n" + yaml.safe_dump(values, sort_keys=False))
    return path
