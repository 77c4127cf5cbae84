r"""Design a reward for a task, and say what it is worth by the task's own return.

    python -m runners.design env=MountainCar-v0 judge=recorded judge.file=mountaincar total_timesteps=50000
    python -m runners.design env=Pendulum-v1 agent=sac task="swing the pendulum up and hold it" describe=pendulum \
        judge=openai judge.model=qwen3-4b-instruct judge.answers=answers.sqlite total_timesteps=10000
    python -m runners.design method=exprd env=FrozenLake-v1 env.is_slippery=false

method=code: an author proposes reward functions, which are checked on transitions before anything is trained. Each that
passes is the only reward of a run. The author reads how its components went, and proposes again; you may comment
(comment=, a sentence or a file that is read before each round). The best by the task's return run again beside the
task's own reward, on seeds that nothing was chosen by. judge=random draws formulas instead: the control. The result is
a file: python -m runners.train env=... reward=code reward.code.file=FILE

method=exprd solves for a reward in few states that keeps the optimal policy and tells it early, on a model of all
states or of a recording; states= allows that many beside those that the task rewards, and each turn tries them all.
method=adaptive solves for the one that moves a run's policy most, as it is now; training does not solve it again.
method=explors lets a learner on that model find it as it goes. The result is a file for reward=table, to begin with or,
with init_from=, to continue on.

The same command continues where it was stopped, or killed.
"""

import sys

from runners.cli.command import Command
from runners.design.config import DesignConfig


def design(config: DesignConfig) -> None:
    """Search, print what came of it, and write the reward's file."""
    if config.method == "code":
        from runners.design.code import search

        search(config)
    else:
        from runners.design.table import solve

        solve(config)


main = Command(DesignConfig, design, __doc__, stopped="stopped: the runs have saved; the same command continues")

if __name__ == "__main__":
    sys.exit(main())
