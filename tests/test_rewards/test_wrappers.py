import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted import ScriptedWorld, script

import rewards
from envs.make import make_vec
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


def test_gymnasiums_autoreset_goes_around_the_wrapper_and_never_into_it():
    inside = gym.wrappers.TransformReward(gym.wrappers.Autoreset(gym.make("CartPole-v1")), float)
    with pytest.raises(ValueError, match="resets itself in a step that is none; put Autoreset around RewardWrapper"):
        RewardWrapper(inside, rewards.make(["task"], inside.observation_space, inside.action_space))
    env = gym.make("CartPole-v1")
    wrapper = RewardWrapper(env, rewards.make(["task", "count"], env.observation_space, env.action_space))
    outside = gym.wrappers.Autoreset(wrapper)
    outside.reset(seed=0)
    ends = [outside.step(1)[2] for _ in range(12)]
    assert ends.index(True) + 1 + wrapper.driver.cursor.step[0] == 11  # one of twelve steps was a reset


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


BOX = spaces.Box(-1, 1, (2,), np.float32)
ODD = {
    "Tuple": spaces.Tuple([BOX, spaces.Discrete(3)]),
    "Text": spaces.Text(5),
    "Graph": spaces.Graph(BOX, spaces.Discrete(2)),
    "Sequence": spaces.Sequence(spaces.Discrete(3)),
    "OneOf": spaces.OneOf([spaces.Discrete(3), BOX]),
    "Dict": spaces.Dict({"x": BOX, "words": spaces.Text(5)}),
}


class Odd(gym.Env):
    """Episodes of three steps, whose observations or actions fit into no array."""

    def __init__(self, observation_space=BOX, action_space=BOX):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert action in self.action_space
        self.age += 1
        return self.observation_space.sample(), 1.0, False, self.age == 3, {}


@pytest.mark.parametrize("field", ["observation_space", "action_space"])
@pytest.mark.parametrize("space", ODD.values(), ids=ODD)
def test_what_fits_into_no_array_passes_through(field, space):
    env = Odd(**{field: space})
    one = RewardWrapper(env, rewards.make(["task"], env.observation_space, env.action_space), update_every=2)
    one.reset()
    assert [one.step(one.action_space.sample())[1] for _ in range(3)] == [1.0] * 3
    for mode, total in ((AutoresetMode.SAME_STEP, 12.0), (AutoresetMode.NEXT_STEP, 10.0)):
        vec = SyncVectorEnv([lambda: Odd(**{field: space})] * 2, autoreset_mode=mode)
        mix = rewards.make(["task"], env.observation_space, env.action_space)
        vec = VectorRewardWrapper(vec, mix, update_every=4)
        vec.reset()
        assert sum(vec.step(vec.action_space.sample())[1].sum() for _ in range(6)) == total


@pytest.mark.parametrize("field", ["obs", "action"])
def test_a_reward_that_reads_what_fits_into_no_array_is_refused(field):
    from rewards.mix.mix import Mix, Stream

    class Reads(rewards.get("task")):
        requires = frozenset({field})

    mix = Mix([Stream("reads", Reads(Reads.Config(), BOX, BOX), gamma=0.9)])
    env = Odd(ODD["Text"], ODD["Text"])
    words = rf"the reward 'reads' reads {field}, but Text\(.* fits into no array; flatten it"
    with pytest.raises(ValueError, match=words):
        RewardWrapper(env, mix)
    with pytest.raises(ValueError, match=words):
        VectorRewardWrapper(SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP), mix)


@pytest.mark.filterwarnings("ignore::UserWarning")  # that it is wrapped
def test_gymnasium_checks_a_wrapped_environment_and_makes_it_again_from_its_spec():
    one = gym.make("CartPole-v1")
    env = RewardWrapper(one, rewards.make(["task", "count"], one.observation_space, one.action_space))
    check_env(env)
    again = gym.make(env.spec)
    assert isinstance(again, RewardWrapper) and again.driver.mix is env.driver.mix
    again.reset(seed=3)
    assert again.step(1)[4]["reward/task"] == 1


@pytest.mark.parametrize("backend", ["gym", "sync", "batched"])
def test_every_vector_shows_its_autoreset_mode(backend):
    vec = make_vec("CartPole-v1", 1, backend=backend)
    env = VectorRewardWrapper(vec, rewards.make(["task"], vec.single_observation_space, vec.single_action_space))
    assert env.autoreset_mode == vec.autoreset_mode == env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
