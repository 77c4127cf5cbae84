"""What a policy that serves several users (`reward=users`, `user=all`) does for each of them, told whom it serves.

A user's own success is not the task's: it is that their judge prefers the end of the episode to a random policy's from
the same start. Judges that are no rule of ours (a person, a model, answers in a file) are not asked here.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envs.make import make
from envs.masks import sample
from envs.steps import Cursor, from_gym_step, modalities_of_one
from envs.transitions import Transitions, stack
from envs.types import MASK
from rewards.adapters.guided import guided
from rewards.llm.judges.base import SegmentJudge
from rewards.mix.mix import Mix
from rewards.preference.users import Users
from runners.run.config import TrainConfig, UsageError

Act = Callable[..., Any]


@dataclass
class ServedEpisodes:
    """Episodes in which one user was served; `successes` is empty where their judge is not asked."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)
    cut: int = 0


def serving_reward(mix: Mix | None) -> Users | None:
    """The reward of a mix whose users the policy serves one by one, told which."""
    if mix is None:
        return None
    for stream in mix.streams.values():
        if isinstance(stream.reward, Users) and stream.reward.guides:
            return stream.reward
    return None


def scores_by_user(
    config: TrainConfig,
    act: Act,
    mix: Mix | None,
    episodes: int,
    seed: int,
    new: SegmentJudge | None = None,
    answers: int = 4,
) -> Iterator[tuple[str, ServedEpisodes]]:
    """Each user's name and as many of the `episodes` as there are for each; last a `new` user, after `answers`."""
    users = serving_reward(mix)
    if mix is None or users is None:
        return
    judges, known = users.labelled.judges, users.labelled.z
    rows = [(name, judges[name], z) for name, z in zip(judges, known)]
    if new is not None:
        z, count = users.infer(new, answers)
        if not count:
            raise UsageError(f"new_user={new.name} answered no question; {users.failure or 'give another judge'}")
        rows.append((f"a new user, {count} answer{'s' * (count > 1)}", new, z))
    each = max(episodes // len(known), 1)
    by_chance = play_episodes(config, None, mix, each, seed)
    for name, judge, z in rows:
        with users.serving(z):
            played = play_episodes(config, act, mix, each, seed)
        found = ServedEpisodes()
        for episode, other in zip(played, by_chance):
            found.returns.append(float(episode.reward.sum(dtype=np.float64)))
            found.lengths.append(len(episode.step))
            found.cut += not episode.ended[-1].any()
            if judge.synthetic:
                found.successes.append(is_preferred(judge, episode, other, users.config.length))
        yield name, found


def is_preferred(judge: SegmentJudge, episode: Transitions, other: Transitions, length: int) -> bool:
    """Whether a judge prefers the last steps of an episode (T, 1) to as many of the other."""
    steps = min(length, len(episode.step), len(other.step))
    # A copy answers, as the faults of a synthetic judge are drawn one after the other.
    label = copy.deepcopy(judge).compare(other[-steps:], episode[-steps:])
    return bool(label[0] > 0.5)


def play_episodes(config: TrainConfig, act: Act | None, mix: Mix, count: int, seed: int) -> list[Transitions]:
    """Episodes (T, 1) from the seeds `seed`, `seed + 1`, ...; `act` of None acts at random.

    No further one begins after `eval_steps` steps, and none is longer.
    """
    users = serving_reward(mix)
    read = frozenset() if users is None else users.requires
    options: dict[str, Any] = {name: True for name in ("text", "signals") if name in read}
    env = make(config.env, max_episode_steps=config.max_episode_steps, **{**config.env_options, **options})
    with closing(guided(env, mix)) as env:
        env.action_space.seed(seed)
        left = int(config.eval_steps)
        episodes: list[Transitions] = []
        while len(episodes) < count and left > 0:
            episodes.append(play_episode(env, act, seed + len(episodes), int(config.eval_steps)))
            left -= len(episodes[-1].step)
        return episodes


def play_episode(env: Any, act: Act | None, seed: int, most: int) -> Transitions:
    """One episode (T, 1) of at most so many steps."""
    cursor, rows = Cursor(1), list[Transitions]()
    obs, info = env.reset(seed=seed)
    cursor.begin(modalities_of_one(info))
    while len(rows) < most and not (rows and rows[-1].ended.any()):
        mask = (info[MASK],) if MASK in info else ()
        action = sample(env.action_space, *mask) if act is None else act(obs, not rows, *mask)
        next_obs, reward, terminated, truncated, info = env.step(action)
        rows.append(from_gym_step(cursor, obs, action, float(reward), next_obs, terminated, truncated, info))
        obs = next_obs
    return stack(rows)


def new_judge(mix: Mix, kind: str, options: dict[str, Any]) -> SegmentJudge:
    """The judge of somebody new; a UsageError where nobody can be told to the policy, or answers come later."""
    users = serving_reward(mix)
    if users is None:
        raise UsageError(f"new_user={kind} needs a run of reward=users with reward.users.user=all, which this is not")
    if kind == "human":
        raise UsageError("new_user=human answers later; annotate first and give new_user=recorded new_user.path=FILE")
    if len(users.segments) < 2:
        gathered = f"this checkpoint holds {len(users.segments)} segments"
        raise UsageError(f"new_user={kind} has nothing to be asked about: {gathered}; evaluate a later one")
    return users.judge_of("new_user", {"judge": kind, **options}, len(users.labelled.judges))
