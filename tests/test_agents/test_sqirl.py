"""SQIRL and GORP: as far as they look ahead, so far they see; and what a learned reward changes about it."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envs.make
import rewards
from agents.effective_horizon import effective_horizon, gorp
from agents.sqirl import SQIRL, SQIRLConfig, returns_to_go
from envs.clones import Clones
from envs.transitions import Transitions

LAST = 0.9  # what the safe way pays


class Fork(gym.Env):
    """Left is safe; right leads down a corridor where only one of two actions is right, `depth` times in a row.

    The right way pays 4 at its end, a mistake costs 4, so that random play on it is worth less than the safe way:
    whoever looks k steps ahead finds it only with k = depth + 1.
    """

    metadata = {"render_modes": []}
    STATE = ("place",)

    def __init__(self, depth=1, slip=0.0, mistake=-4.0):
        self.depth, self.slip, self.mistake = depth, slip, mistake
        self.observation_space = spaces.Box(0, 1, (depth + 1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.place = 0

    def _obs(self):
        return np.eye(self.depth + 1, dtype=np.float32)[min(self.place, self.depth)]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self._obs(), {}

    def step(self, action):
        if self.slip and self.np_random.random() < self.slip:
            action = 1 - action
        if self.place == 0 and action == 0:
            return self._obs(), LAST, True, False, {}
        if self.place and action == 0:
            return self._obs(), self.mistake, True, False, {}
        self.place += 1
        ended = self.place > self.depth
        return self._obs(), 4.0 if ended else 0.0, ended, False, {}


@pytest.fixture
def fork():
    """depth -> the simulator in many places at once; and the id of the world."""
    for depth in (1, 2):
        gym.register(f"Fork{depth}-v0", Fork, kwargs={"depth": depth}, max_episode_steps=10)
    yield lambda depth, **options: Clones(f"Fork{depth}-v0", **options)
    for depth in (1, 2):
        del gym.registry[f"Fork{depth}-v0"]


def forks(depth, n=4, slip=0.0):
    return SyncVectorEnv([lambda: Fork(depth, slip)] * n, autoreset_mode=AutoresetMode.SAME_STEP)


# ----------------------------------------------------------------------------------------------------------- GORP


@pytest.mark.parametrize("depth", [1, 2])
def test_the_effective_horizon_is_as_long_as_the_world_asks_for(fork, depth):
    found = effective_horizon(fork(depth), solved=4.0, k_max=3, m_max=256, step=4)
    assert found.k == depth + 1
    assert depth not in found.solved
    assert found.value <= found.k + math.log2(found.m)


def test_the_least_horizon_is_that_of_its_own_k_and_m(fork):
    found = effective_horizon(fork(1, mistake=-1.0), solved=4.0)  # random play to the right is worth 1.5 on average
    assert found.solved[1] > 2 and found.solved[2] == 1  # looking one step ahead takes tries, two steps none
    assert (found.k, found.m, found.value) == (2, 1, 2.0)


def test_gorp_one_step_short_takes_the_safe_way(fork):
    played = gorp(fork(2), None, k=2, m=200, seed=0)
    assert (played.task, played.actions) == (pytest.approx(LAST), [0])
    played = gorp(fork(2), None, k=3, m=1, seed=0)
    assert (played.task, played.actions) == (4.0, [1, 1, 1])


class Towards:
    """Pays each step along the corridor, and nothing for the safe way: what a good shaping does."""

    def initial_memory(self, n):
        return {}

    def total(self, batch, memory, timesteps):
        gained = np.where(batch.terminated, batch.reward > LAST, 1.0)
        return gained.astype(np.float32), memory


def test_a_reward_that_shows_the_way_shortens_the_horizon_to_one(fork):
    found = effective_horizon(fork(2), Towards(), solved=4.0, k_max=3, m_max=64)
    assert found.k == 1


def test_gorp_costs_what_it_says(fork):
    played = gorp(fork(1), None, k=2, m=1, seed=0)
    # at the start: 00, 01 end after one step, 10 and 11 after two; then from the corridor: both actions end at once
    assert played.steps == 1 + 1 + 2 + 2 + 4


def test_no_answer_is_given_beyond_the_budget(fork):
    assert gorp(fork(1), None, k=2, m=8, seed=0, budget=10) is None
    assert effective_horizon(fork(1), solved=4.0, budget=3).k is None


def test_success_of_the_environment_counts_where_no_return_is_named():
    found = effective_horizon(Clones("MiniGrid-Empty-5x5-v0"), k_max=1, m_max=1, seeds=2)
    assert (found.k, found.m) == (1, 1)
    assert gorp(Clones("MiniGrid-Empty-5x5-v0"), None, k=1, m=1, max_steps=1).success is False  # cut off on its way


def test_what_cannot_be_asked_is_refused(fork):
    with pytest.raises(ValueError, match=r"does not say whether an episode succeeded; give solved="):
        effective_horizon(fork(1))
    with pytest.raises(ValueError, match=r"give Discrete"):
        gorp(Clones("Pendulum-v1"), None, 1, 1)
    with pytest.raises(ValueError, match=r"A\^k <= 20,000"):
        gorp(fork(1), None, 15, 1)
    with pytest.raises(ValueError, match=r"give max_steps="):
        gorp(Clones("lodestar/DeepSea-v0"), None, 1, 1)


# ---------------------------------------------------------------------------------------------------------- SQIRL


def test_returns_to_go_stop_where_episodes_end():
    reward = np.array([[1.0], [2.0], [4.0], [8.0]])
    ended = np.array([[False], [True], [False], [False]])
    assert returns_to_go(reward, ended, 0.5)[:, 0].tolist() == [2.0, 2.0, 8.0, 8.0]


def test_a_backup_is_the_reward_and_the_best_value_of_what_follows():
    """Depth 1 learns returns of random play, depth 2 rewards and what it says of the next step."""
    model = SQIRL(forks(1), SQIRLConfig(k=2, episodes=4, net_arch=[4], gamma=0.5), seed=0)
    for net, bias in zip(model.nets, ([0.5, -1.0], [0.0, 0.0])):  # values of the two actions, the same everywhere
        for weight in net.weights():
            weight.data.zero_()
        net.weights()[-1].data[0, 0] = torch.tensor(bias)
    targets = []
    model._fit = lambda depth, x, action, target: targets.append(target.tolist()) or 0.0
    ended, zeros = np.array([False, True, False, True]), np.zeros(4, np.float32)
    obs = np.array([[0, 5], [4, 5], [0, 5], [4, 5]], np.float32)
    # the task's rewards are 0; those that the scorer made of them are handed in
    rows = Transitions(obs, zeros.astype(int), zeros, obs, ended, zeros > 0, zeros == 0, np.array([0, 1, 0, 1]))
    assert model.policy.ready == 0
    read, steps = model.policy.inputs, []
    model.policy.inputs = lambda vector, step: steps.append(step.tolist()) or read(vector, step)
    model._look_ahead(rows, np.array([3.0, 7.0, 1.0, 9.0]), np.array([6.0, 2.0, 6.0, 2.0]))
    assert targets[0] == [1.0, -1.0, 1.0, -1.0]  # of mean 4 and deviation 2
    follows = 0.5 * 2 + 4  # the best action's value, in the returns' unit
    backup = np.array([3 + 0.5 * follows, 7, 1 + 0.5 * follows, 9])  # nothing follows an end
    half = math.log(2) / 2  # of log(1 + step), at steps 0 and 1
    assert model.policy.mean.tolist() == pytest.approx([2, 5, half])
    assert model.policy.std.tolist() == pytest.approx([2, 0.01, half])  # what never changes keeps a small deviation
    assert targets[1] == pytest.approx((backup - backup.mean()) / backup.std())
    assert steps == [[0, 1, 0, 1], [1, 2, 1, 2]]  # of what is acted on, and of what follows


def test_it_is_greedy_before_its_stage_and_random_from_there_on():
    model = SQIRL(forks(1, 400), SQIRLConfig(episodes=400, net_arch=[4]), seed=0)
    model.begin_rollout()
    with torch.no_grad():
        model.nets[-1].weights()[-1][0, 0] = torch.tensor([9.0, -9.0])
    model.policy.set_weights(0, list(model.nets[-1].parameters()))
    model.stage, model.steps.step_index[200:] = 1, 1
    right = model._act()[:, 1]
    assert right[:200].sum() == 0 and 70 < right[200:].sum() < 130


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_every_pass_plays_twice_the_episodes_of_the_last(passes):
    model = SQIRL(forks(1), SQIRLConfig(episodes=8, net_arch=[4]), seed=0)
    model.begin_rollout()
    model.passes = passes
    assert model.collect(lambda reward, ended, obs: True)
    played = model._played
    assert (played.ended & played.valid).sum(0).tolist() == [2 * 2**passes] * 4


def play(model, env, episodes=20):
    returns = []
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        state, start, total, ended = None, np.ones(1, bool), 0.0, False
        while not ended:
            action, state = model.predict(obs, state, start)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, ended, start = total + reward, terminated or truncated, np.zeros(1, bool)
        returns.append(total)
    return float(np.mean(returns))


@pytest.mark.parametrize(("depth", "k", "expected"), [(1, 1, LAST), (1, 2, 4.0), (2, 2, LAST), (2, 3, 4.0)])
def test_it_solves_a_world_with_its_k_and_not_with_one_less(depth, k, expected):
    config = SQIRLConfig(k=k, episodes=64, net_arch=[32], epochs=30, learning_rate=3e-3)
    model = SQIRL(forks(depth), config, seed=0).learn(64 * 8, log_interval=None)
    assert play(model, Fork(depth), 3) == pytest.approx(expected)


@pytest.mark.nightly
def test_it_plans_for_the_average_where_actions_slip():
    # right, right works with .8^2 = .64: .64 * 4 - (.8 * .2 + .2 * ...) is worth more than the safe .9
    config = SQIRLConfig(k=2, episodes=256, net_arch=[32], epochs=20, learning_rate=3e-3)
    model = SQIRL(forks(1, 8, 0.1), config, seed=0).learn(2500, log_interval=None)
    action, _ = model.predict(np.array([1.0, 0.0], np.float32))
    assert action == 1


@pytest.mark.nightly
def test_it_learns_a_corner_from_random_play():
    venv = envs.make.make_vec("MiniGrid-Empty-5x5-v0", 8, seed=0)
    config = SQIRLConfig(episodes=16, max_steps=12, net_arch=[32], epochs=2)
    model = SQIRL(venv, config, seed=1).learn(8_000, log_interval=None)
    env = envs.make.make("MiniGrid-Empty-5x5-v0")
    assert play(model, env, 5) > 0.7  # random play earns .2


def test_a_mix_pays_it_and_learns_beside_it():
    venv = envs.make.make_vec("MiniGrid-Empty-5x5-v0", 4, seed=0)
    spaces_ = (venv.single_observation_space, venv.single_action_space)
    configs = {"task": None, "rnd": rewards.get("rnd").Config(), "count": rewards.get("count").Config()}
    mix = rewards.make(configs, *spaces_, gamma=1.0, seed=0)
    before = str(mix.state_dict()["streams"]["rnd"])
    SQIRL(venv, SQIRLConfig(episodes=4, net_arch=[8], epochs=1), scorer=mix, seed=0).learn(1, log_interval=None)
    assert str(mix.state_dict()["streams"]["rnd"]) != before


def test_it_goes_on_exactly_where_it_stood():
    def make():
        return SQIRL(forks(2), SQIRLConfig(k=2, episodes=8, net_arch=[8], epochs=2), seed=3)

    whole = make().learn(120, log_interval=None)
    half = make().learn(60, log_interval=None)
    state = half.get_state()
    again = make()
    again.set_state(state)
    # the worlds are deterministic, so they need no snapshot
    again.learn(120 - again.num_timesteps, log_interval=None, reset_num_timesteps=False)
    assert again.num_timesteps == whole.num_timesteps
    for one, other in zip(again.policy.state_dict().values(), whole.policy.state_dict().values()):
        assert np.array_equal(one.numpy(), other.numpy())


def test_files_keep_the_policy_of_every_step(tmp_path):
    config = SQIRLConfig(k=2, episodes=64, net_arch=[32], epochs=30, learning_rate=3e-3)
    model = SQIRL(forks(1), config, seed=0).learn(512, log_interval=None)
    model.save(str(tmp_path / "m.safetensors"))
    again = SQIRL.load(str(tmp_path / "m.safetensors"), forks(1, 8))
    assert again.policy.ready == model.policy.ready == 2
    obs = np.eye(2, dtype=np.float32)
    clock = np.arange(2)
    assert again.predict(obs, clock)[0].tolist() == model.predict(obs, clock)[0].tolist()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"k": 0}, r"agent.k=0 is out of range"),
        ({"episodes": 2}, r"agent.episodes=2 is less than n_envs=4; give that or more"),
        ({"net_arch": []}, r"is no network"),
    ],
)
def test_bad_settings_are_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        SQIRL(forks(1), SQIRLConfig(**{"episodes": 8, **changes}))


def test_spaces_it_cannot_use_are_refused_with_an_agent_that_can():
    with pytest.raises(ValueError, match=r"use agent=dyna"):
        SQIRL.check(spaces.Box(0, 1, (2,)), spaces.Box(-1, 1, (1,)))
    with pytest.raises(ValueError, match=r"use agent=world_model"):
        SQIRL.check(spaces.Box(0, 255, (3, 8, 8), np.uint8), spaces.Discrete(2))
