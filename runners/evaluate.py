"""How good a policy is by the task's own reward: return, success, goal steps, beside a random policy.

    python -m runners.evaluate run=runs/CartPole-v1/ppo-task+rnd/20261121-120000-s0 episodes=20
    python -m runners.evaluate run=runs/... episodes=20 estimator=mfmc cheap=50 cheap_episodes=400
    python -m runners.evaluate run=runs/... new_user=scripted new_user.mistakes=1.0 answers=4

The learned reward is never its own judge; it appears in the video only. A policy acts as it was trained: PPO is
sampled on discrete actions and acts by its mode on continuous ones, SAC and DQN act by their mode. Where sampled
actions and the mode are different policies, the mode has a column of its own, over half as many episodes.

`estimator=mfmc` narrows the interval of the return by many more episodes that are cut after a few steps
(`runners.report.statistics.mfmc`).
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lodestar.settings import Settings, setting
from runners.cli.command import Command
from runners.evaluation.play import SEED, evaluation, limits_of, play, policy, table
from runners.report import statistics
from runners.run.build import load_run
from runners.run.config import TrainConfig, Values
from runners.run.output import Ticker

if TYPE_CHECKING:
    from rewards.mix.mix import Mix


@dataclass
class EvaluateConfig(Settings):
    """One evaluation."""

    run: str = setting(help="a run's folder below runs/")
    episodes: int = setting(20, "how many", ">= 1")
    checkpoint: str = setting("", "environment steps of the checkpoint to evaluate, or best; the newest")
    seed: int = setting(0, "of the first episode", ">= 0")
    estimator: str = setting("mean", "of the return: mean, or mfmc, with cheap episodes too", "mean | mfmc")
    cheap: int = setting(50, "mfmc: steps after which a cheap episode is cut", ">= 1")
    cheap_episodes: int = setting(400, "mfmc: how many, the whole ones among them", ">= 5")
    new_user: str = setting("", "the judge of a new user of reward=users, as in scripted or recorded")
    new_user_options: Values = setting({}, "options of that judge, as in new_user.mistakes=1.0")
    answers: int = setting(4, "that the new user gives, to questions chosen by information", ">= 1")
    video: bool = setting(True, "whether to record one episode in the run's folder")
    trust: bool = setting(False, "whether the run may name code and servers, as in env=module:Id")

    def __post_init__(self) -> None:
        super().__post_init__()
        too_few = self.estimator == "mfmc" and not 4 <= self.episodes < self.cheap_episodes
        self.refuse_if(
            too_few,
            "estimator=mfmc makes no interval of episodes={episodes} and cheap_episodes={cheap_episodes}; "
            "give 4 episodes or more, and more cheap ones",
        )


def evaluate(config: EvaluateConfig) -> None:
    """Evaluate a run and print its scores."""
    run = Path(config.run)
    trained, model, mix, _ = load_run(run, config.trust, config.checkpoint)

    # These import torch.
    from lodestar.video import video_suffix
    from runners.run.served import new_judge
    from runners.run.video import record_video

    judge = new_judge(mix, config.new_user, config.new_user_options) if config.new_user else None
    columns = evaluation(trained, model, mix, config.episodes, config.seed, judge, config.answers)
    episodes = columns["this run"]["episodes"]
    print(f"{trained.env_label}, agent {trained.agent_name}, reward {trained.rewards}, {episodes} episodes")
    print(table(columns))
    if config.estimator == "mfmc":
        print(mfmc_summary(config, trained, model, mix, columns["this run"]["returns"]))
    if config.video:
        act = policy(model, trained, seed=config.seed)
        seed = SEED + 1000 * config.seed
        # The scores are there, and the run's folder may be read-only: a picture that fails is one sentence.
        try:
            path = run / f"video{video_suffix()}"
            print(f"video: {record_video(trained, act, mix, path, seed)}")
        except Exception as error:
            print(f"video: none ({type(error).__name__}: {error}); video=false leaves it out")


def mfmc_summary(
    config: EvaluateConfig, trained: TrainConfig, model: Any, mix: "Mix", full_returns: list[float]
) -> str:
    """The mean return by `mfmc`, given the returns of whole episodes, as a sentence."""
    limits = limits_of(trained, config.seed)
    limits["tick"] = Ticker("evaluating, cut short")
    limits["max_episode_steps"] = config.cheap
    limits["max_steps"] = config.cheap * config.cheap_episodes
    act = policy(model, trained, seed=config.seed)
    cheap = play(trained.env, act, config.cheap_episodes, mix=mix, **limits)
    estimate = statistics.mfmc(full_returns, cheap.returns)
    return (
        f"mean task return by mfmc: {estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g}), from "
        f"{len(full_returns)} whole episodes and {len(cheap.returns)} of {config.cheap} steps; "
        f"correlation {estimate.correlation:.2f}, variance {estimate.ratio:.2f} of that of the whole ones alone"
    )


main = Command(EvaluateConfig, evaluate, __doc__)

if __name__ == "__main__":
    sys.exit(main())
