"""The contract of `rewards.base`, as a test to run on a reward of your own.

    from rewards.check import check_reward
    check_reward(Mine)                                    # on random transitions
    check_reward(Mine(config, obs_space, act_space))      # with your settings
    check_reward(Mine, obs_space, act_space, rollout)     # on real ones

It returns silently, or raises `RewardCheckError` with one sentence that names the broken rule.
"""

from rewards.check.contract import RewardCheckError, check_reward

__all__ = ["RewardCheckError", "check_reward"]
