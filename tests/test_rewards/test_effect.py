import numpy as np
from gymnasium import spaces
from test_mix import rollout

from rewards.effect import Effect, EffectConfig


def test_an_action_that_changed_nothing_earns_nothing():
    reward = Effect(EffectConfig(), spaces.Box(-1, 1, (1,)), spaces.Discrete(2))
    batch = rollout([[0.0], [1.0], [1.0], [2.0]]).flatten()  # starts at 0
    assert reward.score(batch).tolist() == [0, 0.5, 0, 0.5]
    parts = batch.replace(
        obs={"a": batch.obs, "b": np.zeros((4, 2, 2))}, next_obs={"a": batch.next_obs, "b": np.zeros((4, 2, 2))}
    )
    parts.next_obs["b"][0, 1, 1] = 1
    assert reward.score(parts).tolist() == [0.5, 0.5, 0, 0.5]
