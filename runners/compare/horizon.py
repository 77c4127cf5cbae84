"""How far ahead one must look to solve a task under a reward: `agents.effective_horizon`, for the report card."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from runners.run.config import UsageError

if TYPE_CHECKING:
    from agents.effective_horizon import EffectiveHorizon
    from rewards.base import Reward, RewardConfig

BUDGET = 300_000  # simulator steps for each k, m and episode
TRIES = 64  # the largest m


def ask(
    env: str,
    k: int,
    solved: float | None,
    reward: Reward | None = None,
    config: RewardConfig | None = None,
    options: dict[str, Any] | None = None,
) -> EffectiveHorizon:
    """The effective horizon of `env` under a reward as a run would pay it: a bonus on top of the task, a goal alone.

    Args:
        env: the environment; discrete actions, a state that can be copied.
        k: the largest look-ahead to try.
        solved: the task's return that counts; None for the environment's own success.
        reward: what pays, as it stands; None for the task's own reward.
        config: its settings, weight and shape included.
        options: of the environment.

    Raises:
        UsageError: if it cannot be asked here.
    """
    from agents.effective_horizon import effective_horizon
    from envs.snapshots.clones import Clones

    shown: dict[str, Any] = {}
    scorer = None
    if reward is not None:
        scorer = _mix(reward, config)
        shown = {name: True for name in ("text", "signals") if name in scorer.requires}
        shown |= {"frame_size": scorer.frame_size} if "frame" in scorer.requires else {}
    try:
        clones = Clones(env, **(options or {}), **shown)
        return effective_horizon(clones, scorer, solved=solved, k_max=k, m_max=TRIES, budget=BUDGET)
    except ValueError as error:
        raise UsageError(f"horizon={k} cannot be found: {error}") from None


def _mix(reward: Reward, config: RewardConfig | None) -> Any:
    """As a run would pay it, weight, shape and scale included: the card compares bare scores."""
    from rewards import get
    from rewards.mix.mix import Mix, Stream

    bare, reward.config = reward.config, config or reward.config
    stream = Stream("asked", reward, gamma=1.0)
    reward.config = bare
    if reward.role == "goal":
        return Mix([stream])
    task = get("task")(get("task").Config(), reward.observation_space, reward.action_space)
    return Mix([Stream("task", task, gamma=1.0), stream])


def words(found: EffectiveHorizon, task: EffectiveHorizon) -> str:
    """The card's sentence."""

    def one(horizon: EffectiveHorizon) -> str:
        if horizon.k is None:
            return "not solved"
        return f"k={horizon.k} with m={horizon.m} (H={horizon.value:.2f})"

    text = f"{one(found)}; the task's own reward: {one(task)}"
    if math.isfinite(found.value) and found.value < task.value:
        return f"{text}: it made the task easier"
    if math.isfinite(task.value) and found.value > task.value:
        return f"{text}: it made the task harder"
    return text
