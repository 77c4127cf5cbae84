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
from rewards.adapters.guided import add_guides
from rewards.llm.judges.base import SegmentJudge
from rewards.mix.mix import Mix
from rewards.preference.users import Users
from runners.run.config import TrainConfig, UsageError, Values

# (observation, whether an episode begins, its action mask if it has one) -> action
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
    # A user is a name, a judge and the latent z that says to the policy whom it serves.
    rows = [(name, judge, z) for (name, judge), z in zip(users.labelled.judges.items(), users.labelled.z)]
    each = max(episodes // len(rows), 1)
    if new is not None:
        z, count = users.infer(new, answers)
        if not count:
            raise UsageError(f"new_user={new.name} answered no question; {users.failure or 'give another judge'}")
        plural = "s" if count > 1 else ""
        rows.append((f"a new user, {count} answer{plural}", new, z))
    random_episodes = play_episodes(config, None, mix, each, seed)
    for name, judge, z in rows:
        with users.serving(z):
            served_episodes = play_episodes(config, act, mix, each, seed)
        results = ServedEpisodes()
        for episode, random_episode in zip(served_episodes, random_episodes):
            results.returns.append(float(episode.reward.sum(dtype=np.float64)))
            results.lengths.append(len(episode.step))
            results.cut += not episode.ended[-1].any()
            if judge.synthetic:
                results.successes.append(is_preferred(judge, episode, random_episode, users.config.length))
        yield name, results


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
    options = dict(config.env_options)
    for name in ("text", "signals"):
        if users is not None and name in users.requires:
            options[name] = True
    env = make(config.env, max_episode_steps=config.max_episode_steps, **options)
    with closing(add_guides(env, mix)) as env:
        env.action_space.seed(seed)
        steps_left = config.eval_steps
        episodes: list[Transitions] = []
        while len(episodes) < count and steps_left > 0:
            steps = play_steps(env, act, seed + len(episodes), config.eval_steps)
            episode = stack([row for row, _, _ in steps])
            episodes.append(episode)
            steps_left -= len(episode.step)
        return episodes


def play_steps(env: Any, act: Act | None, seed: int, max_steps: int) -> Iterator[tuple[Transitions, Any, Any]]:
    """The steps of one episode as they are taken: a transition (1,), the observation it led to, the info."""
    cursor = Cursor(1)
    obs, info = env.reset(seed=seed)
    cursor.begin(modalities_of_one(info))
    for step in range(max_steps):
        mask = (info[MASK],) if MASK in info else ()
        if act is None:
            action = sample(env.action_space, *mask)
        else:
            action = act(obs, step == 0, *mask)
        next_obs, reward, terminated, truncated, info = env.step(action)
        row = from_gym_step(cursor, obs, action, float(reward), next_obs, terminated, truncated, info)
        yield row, next_obs, info
        if terminated or truncated:
            return
        obs = next_obs


def new_judge(mix: Mix, kind: str, options: Values) -> SegmentJudge:
    """The judge of somebody new; a UsageError where nobody can be told to the policy, or answers come later."""
    users = serving_reward(mix)
    if users is None:
        raise UsageError(f"new_user={kind} needs a run of reward=users with reward.users.user=all, which this is not")
    if kind == "human":
        raise UsageError("new_user=human answers later; annotate first and give new_user=recorded new_user.path=FILE")
    if len(users.segments) < 2:
        reason = f"this checkpoint holds {len(users.segments)} segments"
        raise UsageError(f"new_user={kind} has nothing to be asked about: {reason}; evaluate a later one")
    return users.judge_of("new_user", {"judge": kind, **options}, len(users.labelled.judges))
