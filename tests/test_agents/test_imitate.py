"""Self-imitation in PPO: weights by hand, the cap, what enters the buffer, scores as they are now, resume, refusals."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import envs.make
import rewards
from agents.ppo.agent import PPO, PPOConfig
from rewards.base import Reward, RewardConfig
from tests.rollouts import cut

SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "net_arch": [8], "imitate": 1.0}


class Corridor(gym.Env):
    """Five cells; action 1 goes right, 0 left; the last cell is rewarded and ends the episode; 9 steps at most."""

    observation_space, action_space = gym.spaces.Box(0, 1, (5,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.cell, self.steps = 0, 0
        return np.eye(5, dtype=np.float32)[0], {}

    def step(self, action):
        self.cell, self.steps = max(self.cell + 2 * int(action) - 1, 0), self.steps + 1
        won = self.cell == 4
        return np.eye(5, dtype=np.float32)[self.cell], float(won), won, not won and self.steps == 9, {}


class Wanted(Reward):
    """What `Wanted.sign` says, at the last cell; a goal that changes its mind."""

    Config, requires, role, sign = RewardConfig, frozenset({"next_obs"}), "goal", 1.0

    def score(self, batch):
        return np.float32(self.sign) * batch.next_obs[..., 4]


def corridor(n=4, names=("task",), **changes):
    vector = gym.vector.SyncVectorEnv([Corridor] * n, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    spaces = vector.single_observation_space, vector.single_action_space
    mix = rewards.make(dict.fromkeys(names), *spaces, gamma=changes.get("gamma", 0.99), seed=0)
    return PPO(vector, PPOConfig(**{**SMALL, **changes}), scorer=mix, seed=0)


def rows(model, worth):
    """Rows of the first cell, where action 1 was taken, with these returns."""
    count = len(worth)
    tree = {"vector": np.eye(5, dtype=np.float32)[[0] * count], "pixels": {}, "mask": None}
    model.extensions.imitation.weights = np.ones(1, np.float32)
    return tree | {"action": np.ones((count, 1), np.int64), "worth": np.array(worth, np.float32)}


def test_each_row_counts_by_how_much_its_return_beats_its_value_up_to_one():
    model = corridor(entropy_weight=0.01)
    tree = rows(model, [0.0] * 3)
    value = float(model.autograd.values(tree["vector"], {})[0, 0])
    tree["worth"] += np.array([0.5, -0.2, 3], np.float32) + value  # weights 0.5, 0 and 1
    outputs, values = model.policy(torch.as_tensor(tree["vector"]), {})
    log_prob, entropy = model.policy.actions.log_prob(outputs, None, torch.as_tensor(tree["action"]))
    below = torch.tensor([-0.5, 0, -1])
    by_hand = -(torch.tensor([0.5, 0, 1]) * log_prob).sum() - 0.01 * 2 * entropy[0]
    by_hand += (0.5 * 0.01 * below * values[:, 0]).sum()
    by_hand = by_hand / 64
    (slope,) = torch.autograd.grad(by_hand, [model.policy.pi_head.weight])
    moments = model.flat.mean.clone()
    imitation = model.extensions.imitation
    assert imitation.step(model.autograd, tree, 1e-3) == pytest.approx(float(by_hand.detach()), rel=1e-4)
    torch.testing.assert_close(model.policy.pi_head.weight.grad, slope)
    assert torch.equal(model.flat.mean, moments) and imitation.adam.mean.abs().sum() > 0  # moments of its own


def test_the_cap_leaves_a_rarer_action_alone():
    slopes = {}
    for cap in (0.1, 5.0):  # -log pi is 0.69
        model = corridor(imitate_cap=cap)
        model.extensions.imitation.step(model.autograd, rows(model, [9.0]), 1e-3)
        slopes[cap] = model.policy.pi_head.bias.grad.abs().max()
    assert slopes[0.1] < 1e-3 < slopes[5.0]


class Moving(gym.Env):
    """Observations of three numbers, nothing is rewarded; actions of the space given."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}


def moving(space, action, **changes):
    """A model with these actions, and one row where this one was taken and returned 9."""
    vector = gym.vector.SyncVectorEnv([lambda: Moving(space)] * 2)
    model = PPO(vector, PPOConfig(**{**SMALL, **changes}), seed=0)
    model.extensions.imitation.weights = np.ones(1, np.float32)
    row = {"vector": np.zeros((1, 3), np.float32), "pixels": {}, "mask": None, "action": action[None]}
    return model, row | {"worth": np.full(1, 9.0, np.float32)}


SIX = gym.spaces.Box(-1, 1, (6,), np.float32)
HUMANOID = gym.spaces.Box(-1, 1, (17,), np.float32)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (SIX, np.full(6, 0.5, np.float32)),  # -log pi is at least 5.5, at the mode
        (HUMANOID, np.full(17, 1.0, np.float32)),  # as far away as actions of the policy's own are on average
        (gym.spaces.MultiDiscrete([3] * 6), np.zeros(6, np.int64)),  # -log pi is 6.6
    ],
    ids=str,
)
def test_an_action_of_many_numbers_is_imitated(space, action):
    model, row = moving(space, action)
    model.extensions.imitation.step(model.autograd, row, 1e-3)
    assert model.policy.pi_head.bias.grad.abs().max() > 1e-3
    assert model.extensions.imitation._compare(model.autograd, row).imitated.tolist() == [True]


def test_an_action_that_is_too_far_away_moves_neither_the_policy_nor_its_deviation():
    """z is 4 in each of six dimensions, so z^2 / 2 is 8; the entropy's weight would raise the deviation alone."""
    model, row = moving(SIX, np.full(6, 4.0, np.float32), entropy_weight=0.01)
    model.extensions.imitation.step(model.autograd, row, 1e-3)
    assert model.policy.pi_head.bias.grad.abs().max() == 0
    assert model.policy.log_std.grad.abs().max() == 0
    assert model.extensions.imitation._compare(model.autograd, row).imitated.tolist() == [False]
    model.config.imitate_cap = 8.5
    model.extensions.imitation.step(model.autograd, row, 1e-3)
    assert model.policy.pi_head.bias.grad.abs().max() > 1e-3


def test_the_buffer_holds_rewarded_episodes_alone_and_their_returns_as_the_reward_is_now():
    model = corridor(names=("task", Wanted, "count"), gamma=0.5)
    model.learn(4 * 16 * 8)
    buffer = model.extensions.imitation.rows
    ends = np.flatnonzero(buffer["batch"]["terminated"])
    assert len(ends) > 3 and not buffer["batch"]["truncated"].any() and (buffer["vector"][ends, 3] == 1).all()
    assert model.extensions.imitation.names == ["task", "wanted"]  # no bonus
    worth = model.extensions.imitation._score(buffer)[1]
    assert worth[ends].tolist() == [2.0] * len(ends) and worth[ends - 1] == pytest.approx(1.0)
    model.scorer.streams["wanted"].reward.sign = -1.0
    model.extensions.imitation._turn = 0
    model.extensions.imitation._rescore(len(worth))
    assert model.extensions.imitation._score(buffer)[1] == pytest.approx(0.0)


def test_time_that_ran_out_goes_on_with_a_value_and_the_median_lets_in_the_better_half():
    model = corridor(imitate_baseline="median")
    model.learn(4 * 16 * 2)
    buffer = model.extensions.imitation.rows
    late = np.flatnonzero(buffer["batch"]["truncated"])
    assert (
        len(late) and (buffer["tail"][late] != 0).all() and (buffer["tail"][buffer["batch"]["terminated"]] == 0).all()
    )
    assert model.extensions.imitation._score(buffer)[1][late] == pytest.approx(0.99 * buffer["tail"][late, 0])
    first = np.flatnonzero(buffer["batch"]["step"] == 0)
    assert 0 < len(first) < len(model.extensions.imitation.recent)
    old = corridor(imitate_baseline="median", imitate_max_age=1)
    old.learn(4 * 16 * 4)
    assert old.extensions.imitation.rows["age"].max() == 0


@pytest.mark.nightly
def test_what_was_reached_once_is_learned_in_fewer_steps_than_by_ppo_alone():
    steps = {}
    for imitate in (0.0, 3.0):
        model = corridor(imitate=imitate, learning_rate=1e-3)
        for _ in range(40):
            model.learn(4 * 16, reset_num_timesteps=False)
            if np.mean([episode["r"] for episode in model.ep_info_buffer]) > 0.8:
                break
        steps[imitate] = model.num_timesteps
    assert steps[3.0] < 0.7 * steps[0.0]


def test_a_schedule_begins_with_nothing_and_its_tags_are_logged():
    model = corridor(imitate="linear:0:1:100000000")
    before = model.extensions.imitation.adam.mean.clone()
    logged = {}
    model.record = logged.update
    model.learn(4 * 16 * 6)
    assert {"train/imitation_rows", "train/imitation_loss", "train/imitated"} <= set(logged)
    assert not torch.equal(before, model.extensions.imitation.adam.mean)


@pytest.mark.parametrize("changes", [{}, {"imitate_baseline": "median", "imitate_max_age": 3}], ids=str)
def test_a_run_that_imitates_itself_continues_exactly(changes):
    def build():
        vector = envs.make.make_vec("CartPole-v1", 2, seed=0)
        mix = rewards.make(["task", "count"], vector.single_observation_space, vector.single_action_space, seed=0)
        return PPO(vector, PPOConfig(**{**SMALL, **changes}), scorer=mix, seed=0)

    whole, second = cut(build, 2 * 16 * 6)
    assert torch.equal(second.flat.value, whole.flat.value)
    assert len(second.extensions.imitation.rows["age"]) == len(whole.extensions.imitation.rows["age"]) > 0


@pytest.mark.parametrize("env", ["Pendulum-v1", "MiniGrid-Empty-5x5-v0"])
def test_continuous_actions_and_images_are_imitated(env):
    vector = envs.make.make_vec(env, 2, seed=0, max_episode_steps=12)
    model = PPO(vector, PPOConfig(**{**SMALL, "imitate_baseline": "median"}), seed=0).learn(2 * 16 * 4)
    assert len(model.extensions.imitation.rows["age"]) > 0 and bool(model.flat.value.isfinite().all())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"names": ["rnd", "count"]}, r"agent\.imitate imitates what a goal rewards, and rnd, count are bonuses"),
        ({"gru": 8, "sequence": 8}, r"agent\.imitate learns from single steps.*take gru=0 and streams=separate"),
        ({"streams": "sum"}, r"agent\.imitate learns from single steps"),
        ({"imitate": "learned"}, r"agent\.imitate='learned' is neither a number nor KIND:START:END:STEPS"),
        ({"imitate": -1}, r"agent\.imitate=-1 must be finite and at least 0"),
        ({"imitate_baseline": "mean"}, r"agent\.imitate_baseline='mean' is unknown"),
    ],
)
def test_what_cannot_be_imitated_is_one_sentence_at_construction(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        corridor(**options)
