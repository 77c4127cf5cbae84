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

import math
import time
from collections import Counter, defaultdict
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

from lodestar.files import LARGE, open_to_append, read_bytes, read_json
from lodestar.mappings import map_values
from runners.cli.command import changes_from_defaults
from runners.cli.compose import compose
from runners.report.job_log import Entry
from runners.report.read import possible_returns
from runners.report.statistics import Estimate, aggregate, clip_interval, iqm, paired_difference
from runners.run.checkpoint import versions, write_atomically, write_json
from runners.run.config import Values, sources
from runners.run.exits import MISSING, NUMERICAL
from runners.run.folder import OTHER_WAY, read_status
from runners.run.output import SIGN_OF_LIFE_S, clock, number_text
from runners.run.progress import TASK_RETURN, read_csv
from runners.run.value import literal, literals
from runners.sweep.display import score, scores
from runners.sweep.drive import Watcher, drive
from runners.sweep.job import Job, JobLog, Launcher
from runners.tune.config import TuneConfig, check, options_by_prefix

# A trial is looked at after each ninth of its steps; asha acts at the first and the third.
RUNGS = 9
# Trials before the median means anything.
STARTUP_TRIALS = 5


def open_study(config: TuneConfig) -> optuna.Study:
    """The study of a search's folder, new or as it was left; the caller holds the folder's job log.

    The default is the first trial, moved into the ranges where it lies outside.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = config.folder / "study.jsonl"
    if path.exists():
        # What a kill tore would spoil the line after it.
        whole_lines, newline, _ = read_bytes(path, LARGE).rpartition(b"\n")
        with open_to_append(path) as file:
            file.truncate(len(whole_lines + newline))
    # No lock: that of the job log keeps others out already, and one of Optuna's would outlive a kill.
    lock: Any = SimpleNamespace(acquire=lambda: True, release=lambda: None)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path), lock_obj=lock)),
        pruner=pruner(config),
        study_name="tune",
        direction="maximize",
        load_if_exists=True,
    )
    if not study.trials:
        default = {}
        for space in config.spaces:
            value = space.nearest(config.default[space.key])
            if value is not None:
                default[space.key] = value
        study.enqueue_trial(default)
    return study


def pruner(config: TuneConfig) -> optuna.pruners.BasePruner:
    """What gives up on trials."""
    if config.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=1)
    if config.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return optuna.pruners.NopPruner()


def sampler(config: TuneConfig, number: int) -> optuna.samplers.BaseSampler:
    """What proposes trial `number`, seeded by it: a search that continues does not repeat its first proposals."""
    seed = (config.seed * 100_003 + number) % 2**32
    if config.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    random_trials = min(10, max(config.trials // 4, 2))
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=random_trials, constant_liar=True)


@dataclass
class _OpenTrial:
    """A trial that runs: its jobs, one a tuning seed, names of those `left` to finish, and rungs that it `reported`."""

    trial: optuna.Trial
    jobs: list[Job]
    left: set[str]
    reported: set[int]


@dataclass
class Search(Watcher):
    """All trials of a study, as jobs for `runners.sweep.drive`, which it watches; `report` takes a sentence each."""

    config: TuneConfig
    study: optuna.Study
    launcher: Launcher
    report: Callable[[str], None]

    def __post_init__(self) -> None:
        # Number -> trial.
        self._open: dict[int, _OpenTrial] = {}
        # For the time left: when the search began, and with how many steps of an earlier one.
        self._begin_s = time.monotonic()
        self._begin_steps = steps(self.config)
        self._next_sign_s = self._begin_s + SIGN_OF_LIFE_S

    def run(self, log: JobLog) -> None:
        """Until every trial has ended; an ImportError or RuntimeError if none gets anywhere, `Stopped` by a signal."""
        drive(self.jobs(), log, self.launcher, watcher=self)
        trials = self.study.get_trials(deepcopy=False)
        if trials and not any(trial.state == TrialState.COMPLETE for trial in trials):
            raise RuntimeError(f"no trial was completed; the last one: {trials[-1].user_attrs.get('why', 'stopped')}")

    def jobs(self) -> Iterator[Job]:
        """The next run to begin, whenever there is room for one: trials left from a kill first, then new ones."""
        for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # The kill may have come between two suggestions.
            self.study.sampler = sampler(self.config, frozen.number)
            yield from self._begin(optuna.Trial(self.study, frozen._trial_id))
        budget = self.config.budget or math.inf
        while self._begun_trials() < self.config.trials and steps(self.config) < budget:
            self.study.sampler = sampler(self.config, self._begun_trials())
            yield from self._begin(self.study.ask())

    def _begun_trials(self) -> int:
        return sum(trial.state != TrialState.WAITING for trial in self.study.get_trials(deepcopy=False))

    def _begin(self, trial: optuna.Trial) -> Iterator[Job]:
        """A job for every tuning seed, as long as the trial is not given up."""
        values = {space.key: space.suggest(trial) for space in self.config.spaces}
        folder = f"jobs/t{trial.number:04d}"
        jobs = [self.config.run(f"{folder}/s{seed}", values, seed) for seed in self.config.tuning_seeds]
        try:
            check(self.config.train, values)
        except ValueError as error:
            self._end(trial, TrialState.FAIL, str(error))
            return
        reported = {*self.study.trials[trial.number].intermediate_values}
        self._open[trial.number] = _OpenTrial(trial, jobs, {job.name for job in jobs}, reported)
        for job in jobs:
            if trial.number in self._open:
                yield job

    def job_ended(self, job: Job, entry: Entry) -> None:
        """A run that was stopped leaves its trial open."""
        opened = next((trial for trial in self._open.values() if job.name in trial.left), None)
        # A trial that was pruned is not open.
        if opened is None:
            return
        if entry.state == "finished":
            self._look(opened)
            opened.left.discard(job.name)
            if not opened.left and opened.trial.number in self._open:
                self._complete(opened)
        elif entry.code == MISSING:
            raise ImportError(entry.error)
        elif entry.state == "failed" and entry.code == NUMERICAL:
            self._drop(opened, TrialState.PRUNED, "diverged")
        elif entry.state == "failed":
            self._drop(opened, TrialState.FAIL, entry.error)

    def tick(self, entries: dict[str, Entry], running: list[Job]) -> None:
        """Prune by what the runs have reached."""
        for opened in list(self._open.values()):
            self._look(opened)
        if time.monotonic() >= self._next_sign_s:
            self._next_sign_s = time.monotonic() + SIGN_OF_LIFE_S
            self.report(self.progress())

    def progress(self) -> str:
        """A sign of life: which trials run, the best so far, and the time left."""
        running = ", ".join(map(str, self._open)) or "none"
        sentence = f"running trial {running}, {self.config.trials} in all; "
        complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if complete:
            sentence += f"best so far {self.study.best_value:.4g} (trial {self.study.best_trial.number}); "
        steps_taken = steps(self.config)
        total = self.config.trials * self.config.seeds * self.config.train.total_timesteps
        seconds_left = math.inf
        if steps_taken > self._begin_steps:
            step_s = (time.monotonic() - self._begin_s) / (steps_taken - self._begin_steps)
            seconds_left = step_s * max(total - steps_taken, 0)
        return f"{sentence}{steps_taken:,} of at most {total:,} steps, {clock(seconds_left)} left"

    def _look(self, opened: _OpenTrial) -> None:
        """Report what the first seed's run has reached, rung by rung; give up if the pruner says so."""
        for rung, value in rungs(opened.jobs[0].folder, self.config.train.total_timesteps):
            if rung in opened.reported:
                continue
            opened.reported.add(rung)
            opened.trial.report(value, rung)
            if opened.trial.should_prune():
                self._drop(opened, TrialState.PRUNED, f"{value:.4g} after {rung}/{RUNGS} of the steps")
                return

    def _complete(self, opened: _OpenTrial) -> None:
        del self._open[opened.trial.number]
        returns = [trial_score(job.folder, self.config.objective) for job in opened.jobs]
        opened.trial.set_user_attr("returns", returns)
        value = float(iqm(returns))
        self.study.tell(opened.trial, value)
        outcome = f"{value:.4g}"
        if self.study.best_trial.number == opened.trial.number:
            outcome += ", the best so far"
        self.report(f"trial {opened.trial.number}: {outcome}; {settings(opened.trial.params)}")

    def _drop(self, opened: _OpenTrial, state: TrialState, why: str) -> None:
        """End a trial early, and its runs."""
        del self._open[opened.trial.number]
        self._end(opened.trial, state, why)
        for name in opened.left:
            self.launcher.cancel(name)

    def _end(self, trial: optuna.Trial, state: TrialState, why: str) -> None:
        trial.set_user_attr("why", why)
        self.study.tell(trial, state=state)
        outcome = "pruned" if state == TrialState.PRUNED else "failed"
        self.report(f"trial {trial.number}: {outcome} ({why}); {settings(trial.params)}")


def trial_score(folder: Path, objective: str) -> float | None:
    """What a finished run is worth to a search."""
    if objective == "return":
        return score(folder)
    return float(read_json(folder / "result.json")["this run"]["fitted_value"])


def rungs(folder: Path, total: int) -> list[tuple[int, float]]:
    """(rung, task return in training) for every rung that a run has passed with an episode ended."""
    path = folder / "metrics.csv"
    if not path.exists():
        return []
    rows = read_csv(path)
    returns = {}
    for row in rows:
        # Each rung keeps the newest return at or before it.
        if row.get(TASK_RETURN):
            for rung in range(1, RUNGS):
                rung_step = total * rung // RUNGS
                if int(row["step"]) <= rung_step <= int(rows[-1]["step"]):
                    returns[rung] = float(row[TASK_RETURN])
    return sorted(returns.items())


def steps(config: TuneConfig) -> int:
    """Environment steps that the trials have taken so far."""
    total = 0
    for path in config.folder.glob("jobs/*/*/status.json"):
        total += read_status(path.parent).get("step", 0)
    return total


def settings(values: Values) -> str:
    """As a command line gives them, to four digits."""
    words = []
    for key, value in values.items():
        text = f"{value:.4g}" if isinstance(value, float) else literal(value)
        words.append(f"{key}={text}")
    return " ".join(words)


def best_settings(study: optuna.Study, config: TuneConfig) -> Values:
    """The settings of the best trial; none if that is the default, in all that it sets."""
    params = study.best_trial.params
    return {} if params == config.default else params


def test_jobs(config: TuneConfig, setting: Values) -> list[Job]:
    """Runs that judge: both arms with the same seeds; the default alone if nothing better was found."""
    jobs = []
    for seed in range(config.test_seeds):
        jobs.append(config.run(f"test/default/s{seed}", {}, seed))
        if setting:
            jobs.append(config.run(f"test/tuned/s{seed}", setting, seed))
    return jobs


def verdict(config: TuneConfig, study: optuna.Study, jobs: list[Job], entries: dict[str, Entry]) -> Values:
    """All results, as plain data; `jobs` are the test's, all finished.

    Where the default was the best trial there is no `tuned`: nothing better was found, so there is no difference.
    """
    trials = study.get_trials(deepcopy=False)
    tests = {}
    by_arm = defaultdict(list)
    for job in jobs:
        by_arm[job.folder.parent.name].append(job.folder)
    for arm, folders in by_arm.items():
        tests[arm] = arm_scores(folders)
    # The default is the first trial, unless it lies outside of the ranges.
    chosen_by = {"default": _value(trials[0]) if trials[0].params == config.default else None}
    difference = None
    if "tuned" in tests:
        chosen_by["tuned"] = study.best_value
        tuned = np.array(tests["tuned"]["runs"])
        default = np.array(tests["default"]["runs"])
        difference = _estimate(paired_difference([tuned], [default]))
    counts = Counter(trial.state for trial in trials)
    seconds = 0.0
    for name, entry in entries.items():
        if name.startswith("jobs/"):
            seconds += entry.seconds
    return {
        **config.fixed_settings(),
        "folder": str(config.folder),
        "trials": {state.name.lower(): counts[state] for state in TrialState},
        "best_trial": study.best_trial.number,
        "best": study.best_trial.params,
        "default": config.default,
        "tuning_seeds": config.tuning_seeds,
        "on_tuning_seeds": chosen_by,
        "test_seeds": list(range(config.test_seeds)),
        "on_test_seeds": tests,
        "difference": difference,
        "search_steps": steps(config),
        "search_run_seconds": round(seconds, 1),
        "steps_a_run": config.train.total_timesteps,
        "versions": versions(),
        "history": list(map(_row, trials)),
    }


def arm_scores(folders: list[Path]) -> Values:
    """The task returns of an arm's test runs, their IQM with its interval; and that of their modes, where judged."""
    returns = np.array(list(map(score, folders)))
    mode = None
    mode_returns = scores(folders, OTHER_WAY)
    if mode_returns:
        mode = float(iqm(mode_returns))
    estimate = clip_interval(aggregate([returns]), *possible_returns(read_json(folders[0] / "result.json")))
    return {**_estimate(estimate), "runs": returns.tolist(), "mode": mode}


def _estimate(estimate: Estimate) -> Values:
    return {"iqm": float(estimate.value), "low": float(estimate.low), "high": float(estimate.high)}


def _value(trial: FrozenTrial) -> float | None:
    """What a trial is worth; a pruned one has only a value of a rung."""
    return trial.value if trial.state == TrialState.COMPLETE else None


def _row(trial: FrozenTrial) -> Values:
    row = {"trial": trial.number, "state": trial.state.name.lower(), "value": _value(trial)}
    for key in ("returns", "why"):
        if key in trial.user_attrs:
            row[key] = trial.user_attrs[key]
    return {**row, "params": trial.params}


def table(results: Values) -> str:
    """The verdict as text; the last numbers are the ones that count."""
    counts = results["trials"]
    tuning_seeds = results["tuning_seeds"]
    chosen_header = f"seeds {tuning_seeds[0]}-{tuning_seeds[-1]}, chosen by"
    test_header = f"test seeds 0-{results['test_seeds'][-1]}"
    lines = [
        f"{counts['complete']} trials complete, {counts['pruned']} pruned, {counts['fail']} failed; "
        f"{results['search_steps']:,} environment steps, {results['search_run_seconds']:,.0f} s of runs",
        "",
        f"  {'task return, IQM':<18}{chosen_header:>28}{test_header:>30}",
    ]
    chosen_by = map_values(number_text, results["on_tuning_seeds"])
    tests = dict(results["on_test_seeds"])
    if results["difference"] is not None:
        tests["tuned - default"] = results["difference"]
    for name, test in tests.items():
        interval = f"{test['iqm']:.4g}  [{test['low']:.4g}, {test['high']:.4g}]"
        line = f"  {name:<18}{chosen_by.get(name, ''):>28}{interval:>30}"
        if test.get("mode") is not None:
            line += f"  by its mode {test['mode']:.4g}"
        lines.append(line)
    best = f"(trial {results['best_trial']}): {settings(results['best'])}"
    if "tuned" not in tests:
        best = f"is the default {best}; no trial was better"
    lines += [
        "",
        "  only the test counts: the best of many noisy numbers is always too high. Intervals are 95 %.",
        f"  best {best}",
    ]
    return "\n".join(lines)


def write(config: TuneConfig, results: Values, command: str) -> Path:
    """tune.json and best.yaml, a preset of all in which the best runs differ from a plain `runners.train`: its path."""
    import yaml

    write_json(config.folder / "tune.json", {"command": command, **results})
    run, _ = compose([*config.argv, *literals(results["best"])])
    # A reward or an agent from a file of the user's own is named by that file.
    code = sources(run)
    values = {
        "env": run.env,
        "reward": [code.get(f"reward.{name}", name) for name in run.reward],
        "agent": code.get(f"agent.{run.agent_name}", run.agent_name),
    }
    for key, value in run.env_options.items():
        values[f"env.{key}"] = value
    for key in ("total_timesteps", "n_envs", "max_episode_steps"):
        values[key] = getattr(run, key)
    for prefix, options in options_by_prefix(run).items():
        for key, value in changes_from_defaults(options).items():
            values[prefix + key] = value
    path = config.folder / "best.yaml"
    write_atomically(path, f"# Found by {' '.join(command.split())}\n" + yaml.safe_dump(values, sort_keys=False))
    return path
