"""The report card of a reward, before any training: does it separate what you want from what you do not want?

    python -m runners.compare env=lodestar/CartPoleUpright-v0 reward=clip
    python -m runners.compare env=lodestar/CartPoleUpright-v0 reward=clip reward.clip.goal="the pole is lying down"
    python -m runners.compare env=lodestar/PendulumUpright-v0 reward=clip,contrast frames=4000
    python -m runners.compare env=lodestar/PendulumUpright-v0 reward=clip \
        'recordings={success: good.safetensors, failed: bad.safetensors}'

Prints a table and writes one page of HTML that needs no other file. Transitions and embeddings are kept beside the
page, so a second sentence about the same frames takes no time. With recordings= it scores their episodes instead, see
`runners.compare.recordings`. The exit code does not depend on the verdict.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rewards
from envs.family import Goal
from envs.make import goals, make
from lodestar.files import make_parent
from lodestar.settings import Settings, declarations, setting
from rewards.base import RewardConfig
from runners.cli.command import Command
from runners.cli.compose import compose as compose_run
from runners.cli.compose import load_name
from runners.run.build import keep_freed_memory
from runners.run.checkpoint import write_atomically
from runners.run.config import TrainConfig, UsageError, Values, describe_unknown
from runners.run.value import literals

if TYPE_CHECKING:
    from runners.compare.candidate import Candidate


@dataclass
class CompareConfig(Settings):
    """One comparison."""

    env: str = setting(help="an environment, as in env=lodestar/CartPoleUpright-v0")
    reward: str = setting(help="one reward or several, as in reward=clip,contrast; several with their distances")
    goal: str = setting("", "name of the goal whose truth is compared with; the environment's first")
    frames: int = setting(2000, "transitions to score", "[20, 100000]")
    seed: int = setting(0, "of the transitions, the actions and the reward", ">= 0")
    run: str = setting("", "folder of a run whose policy makes some of the transitions")
    horizon: int = setting(0, "also how far one must look ahead to solve the task under the reward, up to K", ">= 0")
    solved: float | None = setting(None, "task return that counts as solved there; the environment's own success")
    warm: int | None = setting(None, "passes of `update` over the transitions; until a goal reward is ready", ">= 0")
    recordings: Values = setting(
        {},
        "instead: recordings with frames, {success: FILE, partial: FILE, failed: FILE}, or such by sentence",
    )
    threshold: float = setting(0.5, "score that counts as success in these recordings")
    page: str = setting("", "file of the page; runs/compare/<env>/<reward>.html")
    rest: list[str] = setting([], "env.<option>=, reward.<name>.<option>=, max_episode_steps=, as in runners.train")

    def __post_init__(self) -> None:
        super().__post_init__()
        for argument in self.rest:
            key = argument.partition("=")[0]
            if not key.startswith(("reward.", "env.")) and key != "max_episode_steps":
                keys = list(declarations(CompareConfig))
                keys.remove("rest")
                raise UsageError(describe_unknown("key", key, keys))


def compare(config: CompareConfig) -> int:
    """Score with every reward that is named, print the cards, and write the page."""
    # What is wrong is said before the imports, which take seconds.
    configs = compose(config)
    if config.recordings:
        return compare_recordings(config, configs)
    import torch

    from runners.compare import page
    from runners.compare.card import card, effective_horizon, horizon_text
    from runners.compare.epic import distances_between
    from runners.compare.staying import staying_notes

    torch.set_num_threads(1)
    keep_freed_memory()
    compared = []
    cards = []
    for candidate, goal in candidates(config, configs):
        compared.append(candidate)
        report = card(candidate, goal)
        report["notes"] += staying_notes(configs[candidate.name])
        cards.append(report)
    if config.horizon:
        options = compared[0].spec.options
        look_ahead = functools.partial(effective_horizon, config.env, config.horizon, config.solved, options=options)
        task = look_ahead()
        for candidate, report in zip(compared, cards):
            reward_config = configs[candidate.name].reward[candidate.name]
            report["horizon"] = horizon_text(look_ahead(candidate.reward, reward_config), task)
    between = distances_between(compared)
    print("\n".join(page.lines(config.env, cards, between)))
    path = Path(config.page or compared[0].spec.folder / f"{'+'.join(configs)}.html")
    print(f"page: {page.write(path, config.env, compared, cards, between)}")
    return 0


def compare_recordings(config: CompareConfig, configs: dict[str, TrainConfig]) -> int:
    """Print what every reward makes of recorded episodes whose outcome is known, and write it."""
    from runners.compare import recordings
    from runners.compare.sample import SampleSpec

    files = recordings.read_files(config.recordings)
    reports = {}
    for name, run in configs.items():
        scored = recordings.score_recordings(name, run.reward[name], spaces_of(run), files)
        reports[name] = recordings.measure(scored, config.threshold)
        print("\n".join(recordings.lines(name, reports[name])))
    path = SampleSpec(config.env).folder / f"{'+'.join(configs)}-recordings.json"
    make_parent(path)
    write_atomically(path, json.dumps(reports, indent=2) + "\n")
    print(f"numbers: {path}")
    return 0


def compose(config: CompareConfig) -> dict[str, TrainConfig]:
    """Reward name -> the configuration of a run with it alone, its sentences about that goal; or a UsageError."""
    if "+" in config.reward:
        raise UsageError(f"reward={config.reward} is no list; write reward={config.reward.replace('+', ',')}")
    # Name -> what is written for it, with an option in lerobot:FOLDER.
    sources: dict[str, str] = {}
    for text in filter(None, map(str.strip, config.reward.strip("[]").split(","))):
        given_name, option = rewards.table.split_argument(text)
        name = load_name(rewards.table, given_name)
        if name not in rewards.names():
            raise UsageError(describe_unknown("reward", name, rewards.names()))
        sources[name] = text if option else name
    by_name = {goal.name: goal for goal in goals(config.env)}
    if config.goal and config.goal not in by_name:
        has = ", ".join(by_name) or "none that are known: leave goal out, and rewards are compared with the task's own"
        raise UsageError(f"goal={config.goal} is unknown; {config.env} has {has}")
    goal = by_name.get(config.goal)
    given = {argument.partition("=")[0] for argument in config.rest}
    for key in given:
        if key.startswith("reward.") and key.split(".")[1] not in sources:
            raise UsageError(f"{key} belongs to a reward that is not compared ({', '.join(sources)})")
    configs = {}
    for name, source in sources.items():
        argv = [f"env={config.env}", f"reward=[{source}]", "preset=none"]
        for argument in config.rest:
            if not argument.startswith("reward.") or argument.startswith(f"reward.{name}."):
                argv.append(argument)
        if goal is not None and f"reward.{name}.goal" not in given:
            sentences = {"goal": goal.prompt, "baseline": goal.baseline, "negative": goal.negative}
            for field, sentence in sentences.items():
                key = f"reward.{name}.{field}"
                if hasattr(rewards.get(name).Config, field) and sentence and key not in given:
                    argv += literals({key: sentence})
        configs[name], _ = compose_run(argv)
    return configs


def candidates(config: CompareConfig, configs: dict[str, TrainConfig]) -> Iterator[tuple["Candidate", int | None]]:
    """Each reward with its scores, and the index of the goal it is compared with; None where there is no goal."""
    from runners.compare.candidate import Candidate
    from runners.compare.sample import DEFAULT_FRAME_SIZE, SampleSpec, load_or_take
    from runners.run.video import can_be_drawn

    first = next(iter(configs.values()))
    spaces = spaces_of(first)
    requires: set[str] = set()
    frame_sizes = {}
    for name, run in configs.items():
        reward = rewards.get(name)(run.reward[name], *spaces, seed=config.seed)
        requires |= reward.requires
        if "frame" in reward.requires and reward.frame_size is not None:
            frame_sizes[name] = reward.frame_size
    spec = SampleSpec(
        config.env,
        first.env_options,
        config.frames,
        config.seed,
        frame_size=DEFAULT_FRAME_SIZE if can_be_drawn(config.env) else None,
        text="text" in requires,
        signals="signals" in requires,
        run=config.run,
        max_episode_steps=first.max_episode_steps,
        before="obs_frame" in requires,
    )
    for name, run in configs.items():
        options = run.reward[name]
        own_spec = dataclasses.replace(spec, frame_size=frame_sizes.get(name, spec.frame_size))
        sample = load_or_take(own_spec)
        candidate = Candidate(name, options, spaces, own_spec, sample, warm=config.warm, seed=config.seed)
        yield candidate, goal_index(config, goals(config.env), options)


def spaces_of(run: TrainConfig) -> tuple[Any, Any]:
    """The spaces of observations and actions in a run's environment."""
    with closing(make(run.env, max_episode_steps=run.max_episode_steps, **run.env_options)) as env:
        return env.observation_space, env.action_space


def goal_index(config: CompareConfig, all_goals: list[Goal], options: RewardConfig) -> int | None:
    """The goal asked for, else the one whose sentence the reward has, else the first; None where there are none."""
    if not all_goals:
        return None
    sentence = getattr(options, "goal", "")
    for index, goal in enumerate(all_goals):
        if goal.name == config.goal:
            return index
    for index, goal in enumerate(all_goals):
        if goal.prompt == sentence:
            return index
    return 0


main = Command(CompareConfig, compare, __doc__, busy="drawing and scoring transitions")

if __name__ == "__main__":
    sys.exit(main())
