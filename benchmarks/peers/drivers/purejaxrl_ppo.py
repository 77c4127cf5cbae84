"""purejaxrl's PPO on gymnax, from the checkout in LODESTAR_PUREJAXRL; its defaults but for our sizes and coefficients.

A lap is one call of its compiled training, whose number of gradient steps is read from its state. Its file of wrappers
imports two libraries of environments that CartPole has no use for: empty modules stand in for them.
"""

from __future__ import annotations

import os
import sys
from typing import Any
from unittest.mock import MagicMock

DISTRIBUTION = ("gymnax", "jax", "flax", "optax")


def train(settings: dict[str, Any], laps: Any) -> None:
    """See `drive`."""
    import jax

    for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix"):
        sys.modules[name] = MagicMock()
    sys.path.insert(0, os.path.join(os.environ["LODESTAR_PUREJAXRL"], "purejaxrl"))
    import ppo

    frames, n = settings["frames"], settings["envs"]
    size = settings["minibatch"]
    config = {
        "ENV_NAME": settings["task"],
        "NUM_ENVS": n,
        "NUM_STEPS": settings["rollout"] // n,
        "TOTAL_TIMESTEPS": frames,
        "UPDATE_EPOCHS": 10,
        "NUM_MINIBATCHES": settings["rollout"] // size,
        "LR": 3e-4,
        "ANNEAL_LR": False,
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.0,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh",
    }
    learn = jax.jit(ppo.make_train(config))
    laps.begin()
    for seed in range(10**9):
        done = jax.block_until_ready(learn(jax.random.PRNGKey(seed)))
        laps.minibatch(size, int(done["runner_state"][0].step))
        laps()
