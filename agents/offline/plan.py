"""Plan on a recording: any reward becomes a goal in each state, for a policy that reaches near goals (`hilp`).

    V(u) = max over recorded segments from u to w of  r_1 + gamma r_2 + ... + gamma^(n-1) r_n + gamma^n V(w)
    aim(s) = where the best segment of the region of s ended

A region u is what lies nearest to one of `REGIONS` recorded states in phi, where distances are steps, so segments of
different episodes can follow one another. A segment has `SEGMENT_STEPS` steps, fewer at the end of an episode.
Sources: the policy, and planning a goal between here and the last one, are HILP's (Park, Kreiman, Levine 2024, arXiv
2402.15567); shortest ways over recorded states are from Eysenbach, Salakhutdinov & Levine 2019, "Search on the Replay
Buffer", arXiv 1906.05253. Differences: recorded segments instead of learned distances join states, so ways can have one
direction and their rewards are the recorded ones; values instead of shortest ways, so any reward can be planned for.
Fails when: no recorded ways meet; within a region it takes some steps for none; chance looks like skill.
"""

import numpy as np
from scipy.spatial import KDTree

REGIONS = 500
SEGMENT_STEPS = 4
DISCOUNT = 0.99
# DISCOUNT to the power of all their steps is below 0.01.
SWEEPS = 150


class Plan:
    """What to aim at from where, both as vectors phi.

    Of transitions from `before` to `after`, float32 (N, d), whose rewards are `reward` (N,). `last` is the last row of
    each one's episode, and `terminated` bool (N,).
    """

    def __init__(
        self, before: np.ndarray, after: np.ndarray, reward: np.ndarray, last: np.ndarray, terminated: np.ndarray
    ) -> None:
        count = len(before)
        rows = np.random.default_rng(0).choice(count, min(count, REGIONS), replace=False)
        # Equal states would be regions without segments.
        self.regions = KDTree(np.unique(before[rows], axis=0))
        starts = self._region(before)
        row = np.arange(count)
        end = np.minimum(row + SEGMENT_STEPS - 1, last)
        segment_reward = np.zeros(count)
        for step in range(SEGMENT_STEPS):
            is_within = row + step <= end
            now = np.minimum(row + step, end)
            segment_reward += DISCOUNT**step * reward[now] * is_within
        # What comes after a segment counts by its length, and not at all after an end.
        continues = DISCOUNT ** (end - row + 1) * ~terminated[end]
        next_regions = self._region(after[end])
        value = np.zeros(self.regions.n)
        for _ in range(SWEEPS):
            total = segment_reward + continues * value[next_regions]
            # A region is worth what its best segment is, whatever part of the region that began in.
            value = np.full(len(value), -np.inf)
            np.maximum.at(value, starts, total)
        # Of several rows written to one region the last stays, which is the best one.
        order = np.argsort(total, kind="stable")
        best = np.zeros(len(value), int)
        best[starts[order]] = order
        self.aims = after[end[best]]

    def aim(self, phi: np.ndarray) -> np.ndarray:
        """Where to go next from (M, d), (M, d)."""
        return self.aims[self._region(phi)]

    def _region(self, phi: np.ndarray) -> np.ndarray:
        return self.regions.query(phi)[1]
