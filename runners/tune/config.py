"""What a search is going to do, checked before anything runs.

Tuning seeds and test seeds are apart: a setting is chosen by runs with seeds 1000, 1001, ... and judged by new runs
with seeds 0, 1, ... The best of forty noisy numbers is better than the setting behind it; only the test is unbiased.

Source: Eimer, Lindauer & Raileanu 2023, "Hyperparameters in Reinforcement Learning and How To Tune Them", arXiv
2306.01324: tuning and test seeds apart, several of each, the space and the budget stated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.settings import setting
from runners.cli.compose import compose
from runners.run.config import UsageError
from runners.sweep.config import JobsConfig
from runners.sweep.grid import safe
from runners.sweep.job import Job
from runners.train import LOG_EVERY
from runners.tune.space import spaces, values_of

TUNING_SEED = 1000  # the first; test seeds begin at 0, so there may be as many of them


@dataclass
class TuneConfig(JobsConfig):
    """One search.

    Attributes:
        argv: what every run is given, without its setting, its seed and its folder.
        train: the run with its default settings.
        spaces: what is tried.
        default: the settings that a run has by default.
        folder: of the search.
    """

    trials: int = setting(40, "settings that are tried; raised later, the search continues", low=1)
    seeds: int = setting(3, "runs of each setting, with seeds 1000, 1001, ...", low=1)
    test_seeds: int = setting(
        5, "runs that judge the best setting and the default, with seeds 0, 1, ...", low=1, high=TUNING_SEED
    )
    budget: int = setting(0, "environment steps after which no trial begins any more; 0 for no limit", low=0)
    tune: list[str] = setting([], "keys to try, as in tune=agent.learning_rate,reward.rnd.weight; none for all ranges")
    tune_options: dict[str, Any] = setting({}, "a range of your own: [1e-5,1e-3], [1e-5,1e-3,log] or [32,64,choice]")
    sampler: str = setting("tpe", "tpe (tree of Parzen estimators), or random: the control", choices=("tpe", "random"))
    pruner: str = setting(
        "median",
        "median or asha give up on a trial by its task return so far; none never does",
        choices=("median", "asha", "none"),
    )
    seed: int = setting(0, "of the sampler", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse("run_dir", "resume")
        self.train, _ = compose(self.rest)
        if self.train.eval_episodes == 0:
            raise UsageError("eval_episodes=0 leaves nothing to judge a setting by; give 1 or more")
        given = {argument.partition("=")[0] for argument in self.rest}
        log_every = min(LOG_EVERY, max(int(self.train.total_timesteps) // 20, 1))
        # No video is watched, and a control beside every run would double its cost.
        self.argv = ("control=none", "video=false", f"log_every={log_every}", *self.rest)
        self.spaces = spaces(self.train, self.tune, self.tune_options, given)
        self.default = values_of(self.train, self.spaces)
        name = self.name or f"{self.train.env}-{self.train.agent_name}-{self.train.rewards}"
        self.folder = Path(self.root) / "tune" / safe(name)

    @property
    def tuning_seeds(self) -> list[int]:
        """Of the runs that choose."""
        return [TUNING_SEED + i for i in range(self.seeds)]

    def run(self, name: str, values: dict[str, Any], seed: int) -> Job:
        """A run with some settings; `name` is its folder in that of the search, too."""
        return self.job(self.folder, name, self.argv, {**values, "seed": seed})

    def fixed(self) -> dict[str, Any]:
        """What must be the same for a search to continue in its folder; trials and budget may be raised."""
        own = {"seeds": self.seeds, "sampler": self.sampler, "pruner": self.pruner, "seed": self.seed}
        return {"argv": list(self.argv), "spaces": {one.key: str(one) for one in self.spaces}, **own}
