"""Find settings of an agent and its rewards, and report what they are worth on seeds of their own.

    python -m runners.tune env=CartPole-v1 reward=rnd agent=ppo trials=40 total_timesteps=30000

Optuna proposes settings from the ranges that are declared beside every option (`python -m runners.list NAME` prints
them); each is trained with several tuning seeds and judged by the task's return, never the learned one. At the end the
best setting and the default run on test seeds that nothing was chosen by: only these numbers are final. The same
command continues where the search was stopped, or killed.

objective=fqe chooses settings of an agent that learns from data= without any step in the environment:

    python -m runners.tune data=pendulum agent=offline_dyna reward=task objective=fqe total_timesteps=3000

tune= names the keys to try; by default all that have a range and that the command does not set. tune.<key>= gives a
range of your own.
"""

import sys
from contextlib import closing

from runners.cli.command import Command
from runners.run.exits import Signals
from runners.sweep.config import begin
from runners.sweep.drive import drive
from runners.sweep.job import JobLog
from runners.tune.config import TuneConfig


def tune(config: TuneConfig) -> None:
    """Try, then test: the whole search, top to bottom."""
    from runners.tune.search import Search, best_settings, open_study, table, test_jobs, verdict, write

    with Signals(), closing(JobLog(config.folder)) as log:
        begin(config.folder, config.fixed_settings())
        seeds = f"{config.tuning_seeds[0]}-{config.tuning_seeds[-1]}"
        words = {"return": "the task's return", "fqe": "its value by the recording alone (fitted Q evaluation)"}
        print(f"objective of a trial: {words[config.objective]}, IQM over seeds {seeds}")
        for space in config.spaces:
            print(f"  {space.key:<32}{space!s:<28}default {config.default[space.key]}")
        runs = config.trials * config.seeds + 2 * config.test_seeds
        print(f"at most {runs} runs of {config.train.total_timesteps:,} steps; folder: {config.folder}", flush=True)
        with closing(config.launch()) as launcher:
            study = open_study(config)
            Search(config, study, launcher, lambda sentence: print(sentence, flush=True)).run(log)
            jobs = test_jobs(config, best_settings(study, config))
            print(f"test: {len(jobs)} runs", flush=True)
            entries = drive(jobs, log, launcher, resume="errored")
        missing = [job for job in jobs if not job.is_finished]
        if missing:
            error = entries[missing[0].name].error
            raise RuntimeError(
                f"{len(missing)} of {len(jobs)} test runs did not finish ({error}); the same command tries them again"
            )
        results = verdict(config, study, jobs, entries)
        path = write(config, results, config.command("runners.tune"))
        print(f"\n{table(results)}\n\nuse it:     python -m runners.train preset={path}")
        # A page of the tuning seeds would flatter the best setting.
        print(f"one page:   python -m runners.report {config.folder / 'test'}")


main = Command(TuneConfig, tune, __doc__, stopped="stopped: the runs have saved; the same command continues")

if __name__ == "__main__":
    sys.exit(main())
