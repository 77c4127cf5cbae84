"""Action masks: what an environment does not allow is never chosen, by no way from the environment to the agent."""

import copy
import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

import agents
import envs.make
import lodestar as ld
from agents.networks.actor_critic import MASKED, mask_outputs
from agents.ppo.agent import PPO, PPOConfig
from agents.sb3 import agent as sb3
from agents.sb3.masked import MaskedDQN, MaskedPPO
from envs.batched import classic
from envs.batched.base import Arrays
from envs.masks import check_mask, sample
from envs.types import MaskFault
from envs.vector.in_process import InProcess, SharedBuffers, Stepper
from rewards.adapters.sb3 import RewardCallback, relabelling

SMALL = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "net_arch": [16], "sequence": 8}


def doors(n=4, backend="gym", env_id="MaskDoors-v0", **kwargs):
    return envs.make.make_vec(f"tests.masked_env:{env_id}", n, seed=0, backend=backend, **kwargs)


# ------------------------------------------------------------------------------------------------------------- values


def test_masked_log_probabilities_and_entropy_are_those_of_the_valid_actions_alone():
    logits, mask = torch.tensor([[0.0, np.log(3.0), 5.0]]), np.array([[True, True, False]])
    actions = PPO(doors(2), PPOConfig(**SMALL)).policy.actions
    actions.sizes = [3]
    log_prob, entropy = actions.log_prob(mask_outputs(logits, mask), None, torch.tensor([[1]]))
    assert log_prob.item() == pytest.approx(np.log(0.75), abs=1e-6)  # 3 / (1 + 3)
    assert entropy.item() == pytest.approx(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)), abs=1e-6)
    assert mask_outputs(logits, None) is logits


def test_no_gradient_reaches_the_logits_of_forbidden_actions():
    logits = torch.tensor([[0.0, 1.0, 5.0]], requires_grad=True)
    log = torch.log_softmax(mask_outputs(logits, np.array([[True, True, False]])), -1)
    (log[0, 0] - (log.exp() * log).sum()).backward()
    assert logits.grad[0, 2] == 0 and logits.grad.isfinite().all()


def test_numpy_and_torch_learn_the_same_under_masks():
    fast, eager = (PPO(doors(), PPOConfig(**SMALL, path=path, entropy_weight=0.01)) for path in ("auto", "eager"))
    assert type(fast.learner).__name__ == "CompiledUpdate" and type(eager.learner).__name__ == "TorchUpdate"
    for model in (fast, eager):
        model.learn(4 * 32 * 2)
    torch.testing.assert_close(fast.flat.value, eager.flat.value, rtol=0, atol=1e-4)


def test_the_target_of_dqn_is_the_best_allowed_next_action():
    model = dqn(doors_venv(1))
    model.learn(64)
    buffer = model.replay_buffer
    buffer.rewards[np.array([3, 5]), np.array([0, 0])]  # what a sample reads
    values = torch.arange(12.0).reshape(2, 6)
    got = model._mask_next_values(None, None, values)
    for row, place in enumerate((3, 5)):
        allowed = buffer.columns["action_mask"][place, 0]
        assert got[row].max() == values[row][torch.from_numpy(allowed)].max()
        assert (got[row][torch.from_numpy(~allowed)] == MASKED).all()
    ended = np.flatnonzero(buffer.dones[:64, 0])
    assert len(ended) > 10 and buffer.columns["action_mask"][ended, 0].sum(-1).max() < 6  # the true successor's


def test_a_random_action_is_one_that_the_mask_allows():
    space = spaces.MultiDiscrete([2, 3])
    space.seed(0)
    drawn = {tuple(sample(space, np.array([0, 1, 1, 0, 1], bool))) for _ in range(50)}
    assert drawn == {(1, 0), (1, 2)}
    assert sample(spaces.Discrete(3, start=-1), np.array([0, 0, 1], bool)) == 1


# ------------------------------------------------------------------------------------------- never a forbidden action


@pytest.mark.parametrize(
    ("way", "changes"),
    [
        ("method", {}),
        pytest.param("info", {"path": "eager"}, marks=pytest.mark.nightly),
        ("info", {"gru": 8, "n_epochs": 1}),
    ],
)
def test_ppo_never_chooses_a_forbidden_action(way, changes):
    model = PPO(doors(way=way), PPOConfig(**{**SMALL, **changes})).learn(2_000)  # a closed door raises
    assert model.masked and len(model.episodes.returns) == 100


def test_ppo_obeys_masks_of_several_numbers_across_workers_and_in_gymnasiums_vectors():
    space = spaces.MultiDiscrete([4, 2, 6])
    with_workers = doors(3, "workers", processes=2, space=space)
    try:
        one = PPO(with_workers, PPOConfig(**{**SMALL, "batch_size": 48})).learn(480)
        other = PPO(doors(3, space=space), PPOConfig(**{**SMALL, "batch_size": 48})).learn(480)
        assert one.masked and torch.equal(one.flat.value, other.flat.value)
    finally:
        with_workers.close()
    for mode in (gym.vector.AutoresetMode.NEXT_STEP, gym.vector.AutoresetMode.SAME_STEP):
        makers = [functools.partial(gym.make, "tests.masked_env:MaskDoors-v0", space=space)] * 2
        assert PPO(gym.vector.SyncVectorEnv(makers, autoreset_mode=mode), PPOConfig(**SMALL)).learn(256).masked


def test_without_the_switch_ppo_chooses_anything():
    with pytest.raises(RuntimeError, match="is closed"):
        PPO(doors(), PPOConfig(**SMALL, masks=False)).learn(500)


def doors_venv(n, **kwargs):
    return sb3.make_venv("tests.masked_env:MaskDoors-v0", n, 0, **kwargs)


def dqn(venv, seed=0, **changes):
    cls = agents.get("dqn")
    options = {"learning_starts": 100, "batch_size": 16, "buffer_size": 1000, "exploration_fraction": 0.5, **changes}
    mix = ld.make_reward(["task"], venv)
    return cls.build(
        cls.Config(**options), venv, seed=seed, device="cpu", buffer=(relabelling(ReplayBuffer), {"mix": mix})
    )


def test_dqn_never_chooses_a_forbidden_action_here_and_in_workers():
    model = dqn(doors_venv(1), train_freq=8).learn(1_000)
    assert isinstance(model, MaskedDQN) and model.masked and model._n_updates > 100
    venv = doors_venv(2, workers={"processes": 2})
    try:
        assert dqn(venv, train_freq=8).learn(400).masked
    finally:
        venv.close()


def test_dqn_explores_among_what_is_allowed_and_never_where_it_plays_its_best():
    model = dqn(doors_venv(1), train_freq=8).learn(120)
    obs = np.zeros((64, 6), np.float32)
    mask = np.tile(np.array([0, 1, 1, 0, 1, 0], bool), (64, 1))
    best, _ = model.predict(obs, deterministic=True, mask=mask)
    assert len(set(best)) == 1 and mask[0, best[0]]

    model.exploration_rate = 0.0
    np.testing.assert_array_equal(model.predict(obs, mask=mask)[0], best)

    model.exploration_rate = 1.0
    assert set(model.predict(obs, mask=mask)[0]) == {1, 2, 4}
    np.testing.assert_array_equal(model.predict(obs, deterministic=True, mask=mask)[0], best)


@pytest.mark.parametrize("way", ["info", "method"])
def test_maskable_ppo_trains_through_wrap_and_by_its_name(way):
    env = ld.wrap(gym.make("tests.masked_env:MaskDoors-v0", way=way), "rnd")
    assert MaskedPPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0).learn(64).num_timesteps == 64
    cls = agents.get("maskable_ppo")
    model = cls.build(cls.Config(n_steps=32, n_epochs=1), doors_venv(2, way=way), seed=0, device="cpu").learn(64)
    with pytest.raises(ValueError, match=r"trained with action masks; give one: predict\(obs, mask="):
        model.predict(np.zeros(6, np.float32))
    only = np.array([0, 0, 1, 0, 0, 0], np.int8)
    assert model.predict(np.zeros(6, np.float32), mask=only)[0] == 2


def test_the_reward_callback_gives_maskable_ppo_the_returns_it_has_by_itself():
    cls, found = agents.get("maskable_ppo"), []
    for callback in (None, RewardCallback(ld.make_reward(["task"], doors_venv(2)))):
        model = cls.build(cls.Config(n_steps=8, batch_size=16, n_epochs=1), doors_venv(2), seed=0, device="cpu")
        found.append(list(model.learn(64, callback=callback).policy.parameters()))
    for mine, its in zip(*found):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-6)


class EvenLeft(classic.BatchedCartPole):
    """Left is allowed at even steps only; an array program."""

    def _setup(self, original):
        super()._setup(original)
        self.modalities["action_mask"] = np.ones((self.num_envs, 2), bool)

    def _show(self, rows):
        self.modalities["action_mask"][rows, 0] = self._steps[rows] % 2 == 0

    def _advance(self, actions):
        assert self.modalities["action_mask"][np.arange(self.num_envs), actions].all()
        return super()._advance(actions)


def test_ppo_obeys_the_masks_of_an_array_program():
    vector = EvenLeft(envs.make.make("CartPole-v1"), 8, 0, Arrays())
    model = PPO(vector, PPOConfig(**SMALL)).learn(1024)
    mask, action = model.collector._masks(), model.collector.rollout.action
    assert not mask.all() and np.take_along_axis(mask, action[..., None], -1).all()


# -------------------------------------------------------------------------------------------- prediction, continuation


def test_prediction_needs_a_mask_where_training_had_one_also_after_a_file(tmp_path):
    model = PPO(doors(2), PPOConfig(**SMALL)).learn(64)
    model.save(tmp_path / "a.safetensors")
    obs, only = np.zeros((2, 6), np.float32), np.eye(6, dtype=bool)[[4, 1]]
    for one in (model, PPO.load(tmp_path / "a.safetensors", doors(2)), dqn(doors_venv(1)).learn(50)):
        with pytest.raises(ValueError, match="this policy was trained with action masks"):
            one.predict(obs)
        assert one.predict(obs, mask=only)[0].tolist() == [4, 1]
        assert one.predict(obs, mask=only, deterministic=True)[0].tolist() == [4, 1]
        assert one.predict(obs[0], mask=only[0])[0] == 4
        with pytest.raises(ValueError, match=r"the action mask given to predict \(row 0\) is bool \(5,\)"):
            one.predict(obs, mask=np.ones((2, 5), bool))


@pytest.mark.parametrize("changes", [{}, {"gru": 8}])
def test_ppo_continues_with_the_mask_of_its_last_observation(changes):
    whole, half = (PPO(doors(way="method"), PPOConfig(**SMALL, **changes)) for _ in range(2))
    whole.learn(256)
    half.learn(128)
    state, place = copy.deepcopy(half.get_state()), half.envs.snapshot()
    again = PPO(doors(way="method"), PPOConfig(**SMALL, **changes))
    again.envs.restore(place)
    again.set_state(state)
    again.learn(128, reset_num_timesteps=False)
    assert again.masked and torch.equal(again.flat.value, whole.flat.value)


def test_workers_that_are_replaced_give_masks_again():
    vector = doors(3, "workers", processes=3)
    try:
        vector.say = lambda sentence: None
        _, infos = vector.reset(seed=0)
        vector._workers[1].process.kill()
        actions = infos["action_mask"].argmax(-1)
        _, _, _, _, infos = vector.step(actions)
        assert infos["lost"].tolist() == [False, True, False] and infos["action_mask"].any(-1).all()
        for _ in range(10):
            infos = vector.step(infos["action_mask"].argmax(-1))[4]
    finally:
        vector.close()


def test_one_that_takes_the_place_of_a_lost_one_masks_from_its_beginning():
    env = envs.make.make("tests.masked_env:MaskDoors-v0", seed=0)
    slots = SharedBuffers.like(env, 1, np.zeros)
    Stepper({0: env}, slots, (slice(0, 1),), lost={0: 7})
    assert slots.masked.tolist() == [True] and "action_mask" in slots.modalities


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("missing", "there is no action mask at step 3 of the episode, though earlier there was; give bool"),
        ("shape", r"the action mask at step 3 of the episode is bool \(5,\); give bool \(6,\), one entry an action"),
        ("none", "the action mask at step 3 of the episode allows no action; allow one, or end the episode"),
    ],
)
def test_a_bad_mask_is_named_with_environment_and_step(bad, words):
    with pytest.raises(MaskFault, match=f"^environment 0: {words}"):
        PPO(doors(2, bad=bad), PPOConfig(**SMALL)).learn(64)


def test_a_terminal_observation_needs_no_mask_and_one_at_a_time_limit_does():
    PPO(doors(2, env_id="MaskDoorsLong-v0", bad="none", at=7), PPOConfig(**SMALL)).learn(64)  # step 7 terminates
    with pytest.raises(MaskFault, match="at step 5 of the episode allows no action"):
        PPO(doors(2, bad="none", at=5), PPOConfig(**SMALL)).learn(64)  # where time runs out


def test_a_vector_of_which_one_environment_masks_is_refused():
    makers = [functools.partial(envs.make.make, "tests.masked_env:MaskDoors-v0", way=way) for way in ("info", "none")]
    with pytest.raises(MaskFault, match="environment 0 masks its actions and environment 1 does not"):
        InProcess(makers).reset()


def test_a_mask_of_floats_is_refused():
    with pytest.raises(MaskFault, match=r"is float64 \(2,\); give bool \(2,\)"):
        check_mask(np.ones(2), [2], "here")


def test_environments_without_masks_have_no_part_of_it():
    env = envs.make.make("CartPole-v1")
    env.reset(seed=0)
    assert not env.has_wrapper_attr("action_masks")
    vector = envs.make.make_vec("CartPole-v1", 2, backend="gym")
    assert vector.reset(seed=0)[1] == {} and vector._slots.modalities == {}
    model = PPO(vector, PPOConfig(**SMALL)).learn(64)
    assert not model.masked and "masked" not in model.extra_state() and model.collector.rollout.modalities == {}
