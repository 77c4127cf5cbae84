"""What staying is worth beside the task, from a short random rollout, before anything is trained.

A task whose reward comes at the end of an episode ends the bonus, too. An agent that never finishes gets instead

    weight * mean bonus a step / (1 - gamma)

Once it seeks the bonus a step is worth more than with random actions (`GROWTH_WHEN_SOUGHT`). Where staying is worth
about a tenth of the task's reward, bonuses solved MiniGrid's hard mazes. At a half agents found the goal and left it
alone (`python -m benchmarks hard_grids`). The alarm of a run cannot see this, as nothing falls.
"""

import time
from contextlib import closing
from typing import NamedTuple

import torch
from gymnasium.vector import VectorEnv

import rewards
from envs.make import make_vec
from envs.transitions import Rollout
from envs.types import MODALITIES
from rewards.adapters.guided import guides, make_mix
from rewards.mix.mix import Mix, Stream
from runners.run.config import TrainConfig

# How much more an agent that seeks a bonus has of it, by scale, on KeyCorridorS3R3: a count of fixed size .4 to .7
# after .13, NovelD over its running deviation 2.6 after 1.2, over that of its return .96 after .98.
GROWTH_WHEN_SOUGHT = {"none": 4, "ema": 2, "std": 2, "return": 1}
RANDOM_STEPS = 512
RANDOM_ENVS = 8
# A slow simulator is not waited for.
MAX_LOOK_S = 5.0
# As shares of the task's reward: what a bonus should be worth, and from where on it is in the way, or too weak.
GOOD_WORTH = 0.1
HIGH_WORTH = 0.25
LOW_WORTH = 0.02


class Staying(NamedTuple):
    """What a bonus is worth to an agent that never finishes."""

    stream: Stream
    step: float  # the weighted bonus of a step in the mean, once it is sought
    worth: float  # of never finishing, as a share of `end_reward`
    end_reward: float  # the task's, at an episode's end


def staying_notes(config: TrainConfig) -> list[str]:
    """A sentence for each bonus that ends with an episode, where the task's reward comes then; none for others."""
    return [_sentence(bonus) for bonus in staying(config)]


def staying(config: TrainConfig) -> list[Staying]:
    """What each bonus that ends with an episode is worth; none where the task also rewards the way."""
    bonuses = [name for name in config.reward if rewards.get(name).role == "bonus"]
    if not bonuses:
        return []
    chosen = {"task": rewards.get("task").Config(), **{name: config.reward[name] for name in bonuses}}
    # What is drawn here is not taken from the run's own random numbers.
    with torch.random.fork_rng(devices=[]):
        envs = make_vec(config.env, RANDOM_ENVS, seed=config.seed, **config.env_options)
        with closing(envs):
            spaces = (envs.single_observation_space, envs.single_action_space)
            mix = make_mix(chosen, *spaces, gamma=config.agent.gamma, seed=config.seed)
            streams = [mix.streams[name] for name in bonuses if mix.streams[name].episodic]
            # Frames, texts and judges cost more than a look is worth.
            if not streams or guides(mix) or not mix.requires.isdisjoint(MODALITIES):
                return []
            rollout = _random_rollout(envs, config.seed)
        if rollout is None:
            return []
        return _measure(config, mix, streams, rollout)


def _random_rollout(envs: VectorEnv, seed: int) -> Rollout | None:
    """Random play; None in a task that also rewards the way, and where steps take too long."""
    deadline = time.monotonic() + MAX_LOOK_S
    rollout = Rollout(RANDOM_STEPS, envs)
    envs.action_space.seed(seed)
    rollout.begin(*envs.reset(seed=seed))
    for t in range(RANDOM_STEPS):
        action = envs.action_space.sample()
        rollout.action[t] = action
        rollout.write(t, slice(0, rollout.n), *envs.step(action))
        # A row that only resets an environment has no reward.
        if rollout.reward[t][~rollout.ended[t]].any() or time.monotonic() > deadline:
            return None
    return rollout


def _measure(config: TrainConfig, mix: Mix, streams: list[Stream], rollout: Rollout) -> list[Staying]:
    batch = rollout.transitions(mix.requires)
    # The largest, 1 where no episode that ended earned anything.
    end_reward = float(batch.reward[rollout.ended].max(initial=0.0)) or 1.0
    raw, _ = mix.score(batch)
    # Once, so that a stream with a scale has one.
    mix.update(batch, raw)
    parts = mix.weighted_rewards(raw, 0)
    bonuses = []
    for stream in streams:
        step = float(parts[stream.name][batch.valid].mean())
        step *= GROWTH_WHEN_SOUGHT[config.reward[stream.name].scale]
        worth = step / (1 - stream.gamma) / end_reward
        bonuses.append(Staying(stream, step, worth, end_reward))
    return bonuses


def _sentence(bonus: Staying) -> str:
    stream = bonus.stream
    worth = bonus.worth
    name = f"reward.{stream.name}.weight"
    weight = float(stream.weight(0))
    text = (
        f"staying is worth {worth:.2g} of the task to {stream.name}: {bonus.step:.2g} a step / (1 - {stream.gamma:g})"
    )
    text += f", where an episode's end gives {bonus.end_reward:g}"
    better = f"{name}={weight * GOOD_WORTH / max(worth, 1e-9):.1g} would be worth {GOOD_WORTH}"
    if worth > HIGH_WORTH:
        return f"{text}; the agent may find the goal and leave it alone, {better}"
    if worth < LOW_WORTH:
        return f"{text}; that may be too little to explore for, {better}"
    return f"{text}; about {GOOD_WORTH} is right"
