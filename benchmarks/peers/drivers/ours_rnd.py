"""Our PPO with RND, both with their defaults."""

from __future__ import annotations

from functools import partial

import ours_ppo

DISTRIBUTION = ours_ppo.DISTRIBUTION
train = partial(ours_ppo.train, names=("task", "rnd"))
