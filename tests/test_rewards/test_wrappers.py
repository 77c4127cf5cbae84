import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted import ScriptedWorld, script

import rewards
from rewards.adapters.driver import Driver
from rewards.adapters.gym import RewardWrapper, VectorRewardWrapper

SPACES = ScriptedWorld.observation_space, ScriptedWorld.action_space


class Silent(ScriptedWorld):
    """A world that shows nothing."""

    def _look(self):
        return super()._look()[0], {}


def test_the_wrapper_keeps_the_parts_in_info():
    env = RewardWrapper(ScriptedWorld(), rewards.make(["task", "count"], *SPACES))
    obs, _ = env.reset()
    _, total, _, _, info = env.step(script(obs[None])[0])
    assert info["reward/count"] == 1  # first visit
    assert info["reward/task"] == pytest.approx(np.cos(0))
    assert total == pytest.approx(info["reward/task"] + 0.01 * info["reward/count"])  # its default weight


def test_an_undeclared_autoreset_mode_is_refused():
    vec = SyncVectorEnv([ScriptedWorld])
    vec.metadata = {key: value for key, value in vec.metadata.items() if key != "autoreset_mode"}
    with pytest.raises(ValueError, match=r'declares metadata\["autoreset_mode"\]=None; set it'):
        VectorRewardWrapper(vec, rewards.make(["task"], *SPACES))


def test_a_missing_frame_is_reported_at_the_first_reset():
    class Looks(rewards.get("task")):
        requires = frozenset({"frame"})
        frame_size = 64

    from rewards.mix.mix import Mix, Stream

    mix = Mix([Stream("looks", Looks(Looks.Config(), *SPACES), gamma=0.9)])
    with pytest.raises(ValueError, match=r"the reward 'looks' reads frame.*frame_size=64"):
        RewardWrapper(Silent(), mix).reset()


def test_the_rewards_learn_every_so_many_transitions_and_never_from_resets():
    vec = SyncVectorEnv([lambda i=i: ScriptedWorld(i) for i in range(2)], autoreset_mode=AutoresetMode.NEXT_STEP)
    mix = rewards.make(["task"], *SPACES)
    sizes = []
    mix.update = lambda batch, raw, timesteps: sizes.append((batch.shape, int(batch.valid.sum()))) or {}
    env = VectorRewardWrapper(vec, mix, update_every=20)
    obs, _ = env.reset()
    for _ in range(20):
        obs, *_ = env.step(script(obs))
    assert [shape for shape, _ in sizes] == [(10, 2), (10, 2)]
    assert sum(valid for _, valid in sizes) == env.driver.timesteps < 40


def test_a_saved_driver_continues_with_the_same_memory_and_waiting_rows():
    def make():
        return RewardWrapper(ScriptedWorld(), rewards.make(["count"], *SPACES), update_every=50)

    env = make()
    obs, _ = env.reset()
    for _ in range(2):
        obs, *_ = env.step(script(obs[None])[0])
    copy = Driver(rewards.make(["count"], *SPACES), 1, 50)
    copy.load_state_dict(env.driver.state_dict())
    assert copy.timesteps == 2
    assert copy.chunk.count == 2
    assert copy.cursor.step.tolist() == [2]
    before = {k: v.copy() for k, v in copy.memory["count"].items()}
    for key, value in env.driver.memory["count"].items():
        np.testing.assert_array_equal(value, before[key])
