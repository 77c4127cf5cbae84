"""A recording rated by a mix: its rewards learn from the transitions, then each transition is scored once.

This is how rewards are used where nothing is stepped. A reward with a memory follows each recorded episode, as it would
in an environment; scales are those of the recording.
"""

import numpy as np

from envs.transitions import Transitions
from envs.types import MODALITIES
from rewards.base import Metrics
from rewards.mix.mix import Mix, MixMetrics

# Transitions that the rewards learn from at once.
RATED_ROLLOUT_ROWS = 2048
# How `runners.record` keeps what a reward reads.
RECORD_OPTIONS = {"frame": "frames={size}", "text": "text=true", "signals": "signals=true"}


def rate(mix: Mix, data: Transitions, passes: int = 1) -> tuple[np.ndarray, Metrics]:
    """The reward of each transition (N,), float32, after the rewards learned from all of them `passes` times; metrics.

    Episodes are in time order, and the last transition of each has ended. A ValueError if the data lacks frames, texts
    or signals that a reward reads, or all transitions are worth the same.
    """
    refuse_lacking(mix, data)
    mix.only_sums("learning from a recording")
    # One environment whose steps follow each other, (N, 1).
    rollout = mix.embed(data[:, None])
    count = data.shape[0]
    metrics: Metrics = {}
    for _ in range(passes):
        memory = mix.initial_memory(1)
        for start in range(0, count, RATED_ROLLOUT_ROWS):
            part = rollout[start : start + RATED_ROLLOUT_ROWS]
            raw, memory = mix.score(part, memory)
            metrics = mix.update(part, raw)
    raw, _ = mix.score(rollout, mix.initial_memory(1))
    metrics |= MixMetrics().update(rollout, raw, mix.weighted_rewards(raw, 0))
    # What episodes returned that somebody else acted in says nothing of the agent.
    metrics.pop("rollout/ep_learned_mean", None)
    rating = mix.combine(raw, 0)[:, 0]
    # A constant other than 0 still tells early ends from late ones.
    lengths_count = rating[0] != 0 and data.terminated.any()
    if not np.ptp(rating) and not lengths_count:
        raise ValueError(
            f"the reward {mix.describe()} is {rating[0]:g} in each of the {count} recorded transitions, so that all "
            "policies are as good; take another reward, or a recording that also shows what it rewards"
        )
    return rating, metrics


def refuse_lacking(mix: Mix, data: Transitions) -> None:
    """A ValueError that names what rewards read and the recording lacks, and how to record it."""
    for name, stream in mix.streams.items():
        lacking = [field for field in MODALITIES if field in stream.requires and getattr(data, field) is None]
        if not lacking:
            continue
        size = mix.frame_size or 224
        fixes = [RECORD_OPTIONS.get(field, field).format(size=size) for field in lacking]
        raise ValueError(
            f"the reward {name} reads {', '.join(lacking)}, which the recording lacks; record it with "
            f"{' '.join(fixes)} (lodestar record)"
        )
