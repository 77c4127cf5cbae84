"""The result of a search: its best setting and the default, on seeds that neither was chosen by, and the cost.

tune.json   everything: ranges, trials, budget, scores on tuning seeds and on test seeds
best.yaml   a preset: python -m runners.train preset=runs/tune/<name>/best.yaml
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from runners.cli.compose import compose
from runners.cli.value import literal
from runners.report.statistics import Estimate, aggregate, paired_difference
from runners.run.checkpoint import versions, write_atomically
from runners.sweep.job import Job
from runners.sweep.job_log import Entry
from runners.tune.config import TuneConfig
from runners.tune.search import settings, steps, task_return
from runners.tune.space import parts

ARMS = ("default", "tuned")


def best(study: optuna.Study, config: TuneConfig) -> dict[str, Any]:
    """The settings of the best trial; none if that is the default, in all that it sets."""
    found = study.best_trial.params
    return {} if found == config.default else found


def test_jobs(config: TuneConfig, setting: dict[str, Any]) -> list[Job]:
    """Runs that judge: both arms with the same seeds; the default alone if nothing better was found."""
    arms = {"default": {}, "tuned": setting} if setting else {"default": {}}
    pairs = [(seed, arm) for seed in range(config.test_seeds) for arm in arms]
    return [config.run(f"test/{arm}/s{seed}", arms[arm], seed) for seed, arm in pairs]


def verdict(config: TuneConfig, study: optuna.Study, jobs: list[Job], entries: dict[str, Entry]) -> dict[str, Any]:
    """All results, as plain data.

    Args:
        config: of the search.
        study: its trials.
        jobs: the test's, all finished.
        entries: of the job log.
    """
    trials = study.get_trials(deepcopy=False)
    returns = {
        arm: np.array([task_return(job.folder) for job in jobs if job.name.startswith(f"test/{arm}/")]) for arm in ARMS
    }
    if not len(returns["tuned"]):  # nothing better was found, so both are one
        returns["tuned"] = returns["default"]
    searched = sum(entry.seconds for name, entry in entries.items() if name.startswith("jobs/"))
    first = trials[0]
    return {
        **config.fixed(),
        "folder": str(config.folder),
        "trials": {state.name.lower(): sum(trial.state == state for trial in trials) for state in TrialState},
        "best_trial": study.best_trial.number,
        "best": study.best_trial.params,
        "default": config.default,
        "tuning_seeds": config.tuning_seeds,
        "on_tuning_seeds": {
            "default": first.value if first.state == TrialState.COMPLETE and first.params == config.default else None,
            "tuned": study.best_value,
        },
        "test_seeds": list(range(config.test_seeds)),
        "on_test_seeds": {arm: _estimate(aggregate([returns[arm]]), returns[arm].tolist()) for arm in ARMS},
        "difference": _estimate(paired_difference([returns["tuned"]], [returns["default"]])),
        "search_steps": steps(config),
        "search_run_seconds": round(searched, 1),
        "steps_a_run": int(config.train.total_timesteps),
        "versions": versions(),
        "history": [_row(trial) for trial in trials],
    }


def _estimate(estimate: Estimate, runs: list[float] | None = None) -> dict[str, Any]:
    numbers = {"iqm": float(estimate.value), "low": float(estimate.low), "high": float(estimate.high)}
    return numbers if runs is None else {**numbers, "runs": runs}


def _row(trial: FrozenTrial) -> dict[str, Any]:
    extra: dict[str, Any] = {key: trial.user_attrs[key] for key in ("returns", "why") if key in trial.user_attrs}
    value = trial.value if trial.state == TrialState.COMPLETE else None
    return {"trial": trial.number, "state": trial.state.name.lower(), "value": value, **extra, "params": trial.params}


def table(found: dict[str, Any]) -> str:
    """The verdict as text; the last numbers are the ones that count."""
    counts = found["trials"]
    on_tuning, on_test = found["on_tuning_seeds"], found["on_test_seeds"]
    seeds, tests = found["tuning_seeds"], found["test_seeds"]
    lines = [
        f"{counts['complete']} trials complete, {counts['pruned']} pruned, {counts['fail']} failed; "
        f"{found['search_steps']:,} environment steps, {found['search_run_seconds']:,.0f} s of runs",
        "",
        f"  {'task return, IQM':<18}{f'seeds {seeds[0]}-{seeds[-1]}, chosen by':>28}{f'test seeds 0-{tests[-1]}':>30}",
    ]
    for arm in ARMS:
        one = on_test[arm]
        chosen = "-" if on_tuning[arm] is None else f"{on_tuning[arm]:.4g}"
        interval = f"{one['iqm']:.4g}  [{one['low']:.4g}, {one['high']:.4g}]"
        lines.append(f"  {arm:<18}{chosen:>28}{interval:>30}")
    gain = found["difference"]
    lines += [
        f"  {'tuned - default':<18}{'':>28}{'{:.4g}  [{:.4g}, {:.4g}]'.format(*gain.values()):>30}",
        "",
        "  only the test counts: the best of many noisy numbers is always too high. Intervals are 95 %.",
        f"  best (trial {found['best_trial']}): {settings(found['best'])}",
    ]
    return "\n".join(lines)


def write(config: TuneConfig, found: dict[str, Any], command: str) -> Path:
    """tune.json and best.yaml; returns the preset's path."""
    write_atomically(config.folder / "tune.json", json.dumps({"command": command, **found}, indent=1) + "\n")
    path = config.folder / "best.yaml"
    write_atomically(path, preset(config, found["best"], command))
    return path


def preset(config: TuneConfig, setting: dict[str, Any], command: str) -> str:
    """The best setting as a preset: all in which its runs differ from a plain `runners.train`."""
    import yaml

    run, _ = compose([*config.argv, *(f"{key}={literal(value)}" for key, value in setting.items())])
    values: dict[str, Any] = {"env": run.env, "reward": list(run.reward), "agent": run.agent_name}
    values |= {f"env.{key}": value for key, value in run.env_options.items()}
    values |= {key: getattr(run, key) for key in ("total_timesteps", "n_envs", "max_episode_steps")}
    for prefix, options in parts(run).items():
        plain = type(options)()
        own = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
        values |= {prefix + key: value for key, value in own.items() if value != getattr(plain, key)}
    return f"# Found by {' '.join(command.split())}\n" + yaml.safe_dump(values, sort_keys=False)
