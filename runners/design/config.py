"""What a search for a reward is going to do, checked before anything runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lodestar.settings import setting
from runners.run.config import UsageError, Values
from runners.sweep.config import JobsConfig
from runners.sweep.grid import folder_name
from runners.sweep.job import Job

# The first seed that candidates are tried with; test seeds begin at 0.
SEARCH_SEED = 1000


@dataclass
class DesignConfig(JobsConfig):
    """One search. `train` is a run with the task's own reward, `argv` what every run is given without its reward."""

    method: str = setting("code", "what designs the reward", "code | exprd | adaptive | explors")
    task: str = setting("", "code: what the task is, for a model: a sentence or more")
    describe: str = setting("", "code: the numbers of obs and action, for a model; auto, cartpole, or your words")
    judge: str = setting("recorded", "code: who writes it", "openai | recorded | random")
    judge_options: Values = setting({}, "judge.file=, judge.model=, judge.url=, judge.answers=, ...")
    rounds: int = setting(3, "code: times that the author is asked; raised later, the search continues", ">= 1")
    candidates: int = setting(4, "code: proposals in a round", ">= 1")
    seeds: int = setting(1, "code: runs of each candidate, with seeds 1000, 1001, ...", ">= 1")
    finalists: int = setting(2, "code: candidates that run again on the test seeds", ">= 1")
    test_seeds: int = setting(3, "code: runs of each of them and of the task's own reward", low=1, high=SEARCH_SEED)
    comment: str = setting("", "code: a sentence for the author, or a file of yours that is read before each round")
    states: int = setting(0, "exprd: states with a reward beside those that the task rewards; 0 for all", ">= 0")
    l1: float = setting(0.0, "exprd: what the sum of absolute rewards costs", ">= 0")
    episodes: int = setting(2000, "explors: of the learner that designs it", ">= 10")
    of_run: str = setting("", "adaptive: folder of a run, whose policy the reward is for; a beginner's by default")
    data: list[str] = setting([], "recordings to check candidates on, or to cluster; random steps by default")
    frames: int = setting(500, "random steps, where there is no data", "[10, 100000]")

    def __post_init__(self) -> None:
        super().__post_init__()
        for argument in self.rest:
            key = argument.partition("=")[0]
            if key.split(".")[0] == "reward":
                raise UsageError(f"{key}= cannot be given here, as the reward is what is designed; leave it out")
        self.train, self.argv = self.compose_search()
        if self.judge == "openai" and not (self.task.strip() and self.describe.strip()):
            raise UsageError(
                "judge=openai needs task= (what it is about) and describe= (each number of obs and action)"
            )
        name = f"{self.train.env}-{self.method}"
        if self.method == "code":
            name += f"-{self.judge}"
        self.folder = Path(self.root).absolute() / "design" / folder_name(self.name or name)

    def run(self, name: str, seed: int, reward: str = "task", **options: Any) -> Job:
        """Training on one reward; `options` are its own."""
        changes = {"reward": reward}
        for key, value in options.items():
            changes[f"reward.{reward}.{key}"] = value
        return self.job(self.folder, name, self.argv, {**changes, "seed": seed})

    def fixed_settings(self) -> Values:
        """What must be the same for a search to continue in its folder; more rounds and other comments may come."""
        free = {*JobsConfig.__dataclass_fields__, "rounds", "comment", "finalists", "test_seeds"}
        fixed = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in free}
        return {"argv": list(self.argv), **fixed}
