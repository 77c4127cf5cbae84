"""The examples in the docstrings of what users call."""

import doctest
from importlib import import_module

import pytest

SHOWN = {
    "lodestar": ("load", "make_reward", "wrap"),
    "envs.make": ("make", "make_vec", "options"),
    "lodestar.settings": ("setting", "read_range", "settings_of", "Schedule"),
    "rewards": ("make",),
    "rewards.base": ("Reward",),
    "rewards.check": ("check_reward",),
    "rewards.mix.mix": ("Mix", "potential", "delta"),
    "rewards.adapters.gym": ("RewardWrapper", "VectorRewardWrapper"),
    "rewards.adapters.sb3": ("RewardVecEnv", "RewardCallback", "relabelling"),
    "runners.audit.streams": ("RecordTask",),
    "runners.audit.callback": ("Audit",),
    "runners.audit.wrapper": ("audit",),
    "agents.ppo.agent": ("PPO",),
    "agents.networks.actor_critic": ("stream_gradients", "cosines"),
    "agents.ppo.config": ("PPOConfig",),
}


@pytest.mark.parametrize("name", SHOWN)
def test_examples_in_docstrings_show_what_happens(name):
    module = import_module(name)
    for shown in SHOWN[name]:
        assert ">>>" in getattr(module, shown).__doc__, shown
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL).failed == 0
