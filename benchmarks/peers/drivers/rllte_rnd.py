"""rllte's PPO with its RND, both with their defaults; what RND does before training is not measured."""

from __future__ import annotations

from functools import partial

import rllte_ppo

DISTRIBUTION = rllte_ppo.DISTRIBUTION
train = partial(rllte_ppo.train, reward=True)
