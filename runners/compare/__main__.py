"""The report card of a reward, before any training: does it separate what you want from what you do not want?

    python -m runners.compare env=lodestar/CartPoleUpright-v0 reward=clip
    python -m runners.compare env=lodestar/CartPoleUpright-v0 reward=clip reward.clip.goal="the pole is lying down"
    python -m runners.compare env=lodestar/PendulumUpright-v0 reward=clip,contrast frames=4000

Prints a table and writes one page of HTML that needs no other file. Transitions and embeddings are kept beside the
page, so a second sentence about the same frames takes no time. The exit code does not depend on the verdict.
"""

import dataclasses
import functools
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import rewards
from envs.family import Goal
from envs.make import goals, make
from lodestar.settings import Settings, declarations, setting
from rewards.base import RewardConfig
from runners.cli.command import Command
from runners.cli.compose import compose as compose_run
from runners.cli.compose import named
from runners.run.build import keep_freed_memory
from runners.run.config import TrainConfig, UsageError, unknown

if TYPE_CHECKING:
    from runners.compare.candidate import Candidate


@dataclass
class CompareConfig(Settings):
    """One comparison."""

    env: str = setting(help="an environment, as in env=lodestar/CartPoleUpright-v0")
    reward: str = setting(help="one reward or several, as in reward=clip,contrast; several with their distances")
    goal: str = setting("", "name of the goal whose truth is compared with; the environment's first")
    frames: int = setting(2000, "transitions to score", low=20, high=100_000)
    seed: int = setting(0, "of the transitions, the actions and the reward", low=0)
    run: str = setting("", "folder of a run whose policy makes some of the transitions")
    horizon: int = setting(0, "also how far one must look ahead to solve the task under the reward, up to K", low=0)
    solved: float | None = setting(None, "task return that counts as solved there; the environment's own success")
    warm: int | None = setting(None, "passes of `update` over the transitions; until a goal reward is ready", low=0)
    page: str = setting("", "file of the page; runs/compare/<env>/<reward>.html")
    rest: list[str] = setting([], "env.<option>=, reward.<name>.<option>=, max_episode_steps=, as in runners.train")

    def __post_init__(self) -> None:
        super().__post_init__()
        for argument in self.rest:
            key = argument.partition("=")[0]
            if not key.startswith(("reward.", "env.")) and key != "max_episode_steps":
                raise UsageError(unknown("key", key, [name for name in declarations(CompareConfig) if name != "rest"]))


def compare(config: CompareConfig) -> int:
    """Score with every reward that is named, print the cards, and write the page."""
    configs = compose(config)  # before the imports, which take seconds
    import torch

    from runners.compare import page
    from runners.compare.card import card, effective_horizon, horizon_text
    from runners.compare.epic import distances_between

    torch.set_num_threads(1)
    keep_freed_memory()
    found = [(candidate, card(candidate, goal)) for candidate, goal in candidates(config, configs)]
    chosen, cards = [candidate for candidate, _ in found], [made for _, made in found]
    if config.horizon:
        asked = config.env, config.horizon, config.solved
        look_ahead = functools.partial(effective_horizon, *asked, options=chosen[0].spec.options)
        task = look_ahead()
        for candidate, made in zip(chosen, cards):
            own = configs[candidate.name].reward[candidate.name]
            made["horizon"] = horizon_text(look_ahead(candidate.reward, own), task)
    between = distances_between(chosen)
    print("\n".join(page.lines(config.env, cards, between)))
    path = Path(config.page) if config.page else chosen[0].spec.folder / f"{'+'.join(configs)}.html"
    print(f"page: {page.write(path, config.env, chosen, cards, between)}")
    return 0


def compose(config: CompareConfig) -> dict[str, TrainConfig]:
    """Reward name -> the configuration of a run with it alone, its sentences about that goal; or a UsageError."""
    if "+" in config.reward:
        raise UsageError(f"reward={config.reward} is no list; write reward={config.reward.replace('+', ',')}")
    texts = [text.strip() for text in config.reward.strip("[]").split(",") if text.strip()]
    names = list(dict.fromkeys(named(rewards.table, text) for text in texts))
    for name in names:
        if name not in rewards.names():
            raise UsageError(unknown("reward", name, rewards.names()))
    known = {goal.name: goal for goal in goals(config.env)}
    if config.goal and config.goal not in known:
        has = ", ".join(known) or "none that are known: leave goal out, and rewards are compared with the task's own"
        raise UsageError(f"goal={config.goal} is unknown; {config.env} has {has}")
    goal = known.get(config.goal)
    given = {argument.partition("=")[0] for argument in config.rest}
    for key in given:
        if key.startswith("reward.") and key.split(".")[1] not in names:
            raise UsageError(f"{key} belongs to a reward that is not compared ({', '.join(names)})")
    configs = {}
    for name in names:
        own = [a for a in config.rest if not a.startswith("reward.") or a.startswith(f"reward.{name}.")]
        if goal is not None and f"reward.{name}.goal" not in given:
            sentences = {"goal": goal.prompt, "baseline": goal.baseline, "negative": goal.negative}
            for field, sentence in sentences.items():
                key, quoted = f"reward.{name}.{field}", sentence.replace('"', '\\"')
                if hasattr(rewards.get(name).Config, field) and sentence and key not in given:
                    own.append(f'{key}="{quoted}"')
        configs[name] = compose_run([f"env={config.env}", f"reward=[{name}]", "preset=none", *own])[0]
    return configs


def candidates(config: CompareConfig, configs: dict[str, TrainConfig]) -> Iterator[tuple["Candidate", int | None]]:
    """Each reward with its scores, and the index of the goal it is compared with; None where there is no goal."""
    from runners.compare.candidate import Candidate
    from runners.compare.sample import FRAME, SampleSpec, load_or_take
    from runners.run.video import can_be_drawn

    first = next(iter(configs.values()))
    with closing(make(config.env, max_episode_steps=first.max_episode_steps, **first.env_options)) as env:
        spaces = env.observation_space, env.action_space
    built = {name: rewards.get(name)(c.reward[name], *spaces, seed=config.seed) for name, c in configs.items()}
    need = frozenset().union(*(reward.requires for reward in built.values()))
    asked = config.env, first.env_options, config.frames, config.seed
    size, text, signals = FRAME if can_be_drawn(config.env) else None, "text" in need, "signals" in need
    spec = SampleSpec(*asked, size, text, signals, config.run, first.max_episode_steps, "obs_frame" in need)
    for name, reward in built.items():
        own = configs[name].reward[name]
        sized = "frame" in reward.requires and reward.frame_size is not None
        mine = dataclasses.replace(spec, frame_size=reward.frame_size) if sized else spec
        sample = load_or_take(mine)
        candidate = Candidate(name, own, spaces, mine, sample, warm=config.warm, seed=config.seed)
        yield candidate, goal_index(config, goals(config.env), own)


def goal_index(config: CompareConfig, known: list[Goal], options: RewardConfig) -> int | None:
    """The goal asked for, else the one whose sentence the reward has, else the first; None where there are none."""
    if not known:
        return None
    named = [i for i, goal in enumerate(known) if goal.name == config.goal]
    prompted = [i for i, goal in enumerate(known) if goal.prompt == getattr(options, "goal", "")]
    return next(iter([*named, *prompted]), 0)


main = Command(CompareConfig, compare, __doc__)

if __name__ == "__main__":
    sys.exit(main())
