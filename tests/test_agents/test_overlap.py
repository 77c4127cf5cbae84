"""A rollout that is learnt from while the next one is collected: whichever is first, to the same bits."""

import copy
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback

import envs.make
import rewards
from agents.ppo.agent import PPO, PPOConfig

SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "net_arch": [8], "sequence": 8, "overlap": True}


def agent(names=("task",), env="CartPole-v1", backend="gym", **changes):
    made = envs.make.make_vec(env, 4, seed=0, backend=backend)
    spaces = made.single_observation_space, made.single_action_space
    return PPO(made, PPOConfig(**{**SMALL, **changes}), scorer=rewards.make([*names], *spaces, seed=0), seed=0)


class Begins(BaseCallback):
    """Calls a function at the beginning of every rollout, and another at every step."""

    def __init__(self, function=lambda model: None, step=lambda model: True):
        super().__init__()
        self.function, self.step = function, step

    def _on_rollout_start(self):
        self.function(self.model)

    def _on_step(self):
        return self.step(self.model)


class Before:
    """In place of the thread: it has learnt before anything else happens."""

    def submit(self, function, *arguments):
        done = Future()
        done.set_result(function(*arguments))
        return done


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gru": 4},
        {"normalize_obs": True, "path": "eager"},
        {"names": ["task", "rnd", "count"], "backend": "workers"},
    ],
    ids=str,
)
def test_when_the_other_thread_runs_changes_nothing(changes):
    models = [agent(**changes) for _ in range(3)]
    models[0].extensions.overlap._thread = Before()
    for model in models:
        model.learn(5 * 64)
        model.envs.close()
    for other in models[1:]:
        torch.testing.assert_close(other.flat.value, models[0].flat.value, rtol=0, atol=0)
        assert other.scorer.state_dict().keys() == models[0].scorer.state_dict().keys()
        assert list(other.ep_info_buffer) == list(models[0].ep_info_buffer)
    assert models[0]._n_updates == 10  # the last rollout was learnt from, too


def test_a_rollout_is_collected_by_the_weights_of_one_update_before():
    model, weights = agent(), []
    model.learn(4 * 64, Begins(lambda model: weights.append(model.policy.state_dict()["pi_head.weight"].clone())))
    assert torch.equal(weights[0], weights[1])  # nothing had been learnt from yet
    assert not torch.equal(weights[1], weights[2]) and not torch.equal(weights[2], weights[3])
    assert torch.equal(model.policy.pi_head.weight, model.learnt.pi_head.weight)
    plain, early = agent(overlap=False), []
    plain.learn(4 * 64, Begins(lambda model: early.append(model.policy.state_dict()["pi_head.weight"].clone())))
    assert torch.equal(weights[2], early[1])  # the first update is the same


def test_the_ratio_is_taken_to_the_policy_before_the_update_and_rows_count_as_often_as_it_would_choose_them():
    model, begun, seen = agent(path="eager"), [], []
    learn = model.learn_from

    def noted(collector, timesteps):
        kept = (collector.log_prob, collector.importance, collector.vector[:-1], collector.chosen)
        seen.append(tuple(x.copy() for x in kept))
        return learn(collector, timesteps)

    model.learn_from = noted
    model.learn(4 * 64, Begins(lambda model: begun.append(copy.deepcopy(model.policy))))

    def chosen_by(policy, vector, chosen):
        outputs, _ = policy(torch.from_numpy(vector.reshape(-1, 4)), {})
        return (
            outputs.log_softmax(-1).gather(1, torch.from_numpy(chosen.reshape(-1, 1))).detach().numpy().reshape(16, 4)
        )

    for number, (log_prob, importance, vector, chosen) in enumerate(seen[:3]):
        acted, now = (chosen_by(begun[at], vector, chosen) for at in (number, number + 1))
        np.testing.assert_allclose(log_prob, now, atol=1e-6)
        np.testing.assert_allclose(importance, np.minimum(np.exp(now - acted), 2), atol=1e-6)
    assert (seen[0][1] == 1).all() and (seen[1][1] < 1).any()  # the first update has the policy that acted


def test_importance_weighs_what_is_above_the_mean_so_that_a_value_that_is_off_everywhere_teaches_nothing():
    model, seen, given = agent(path="eager"), [], []
    learn, run_epochs = model.learn_from, model.learner.run_epochs

    def noted(collector, timesteps):
        found = learn(collector, timesteps)
        seen.append((found["advantages"][..., 0], collector.importance))
        return found

    def kept(batch, *rest):
        given.append(batch.targets.advantage.copy())
        return run_epochs(batch, *rest)

    model.learn_from = noted
    model.learner.run_epochs = kept
    model.learn(4 * 64)
    np.testing.assert_array_equal(given[0], seen[0][0].ravel())  # the policy that acted learns: as without overlap
    for found, (advantage, importance) in zip(given[1:], seen[1:]):
        np.testing.assert_allclose(found, ((advantage - advantage.mean()) * importance).ravel(), atol=1e-4)


def test_rewards_learn_from_every_rollout_once_and_in_order():
    model, order = agent(["task", "count"]), []
    update = model.scorer.update

    def noted(batch, raw, timesteps):
        order.append(int(timesteps[0, 0]))
        return update(batch, raw, timesteps)

    model.scorer.update = noted
    model.learn(5 * 64)
    assert order == [0, 64, 128, 192, 256]


@pytest.mark.parametrize(
    "changes",
    [{"names": ["task", "rnd"], "normalize_obs": True}, {"gru": 4}, {"env": "MiniGrid-Empty-5x5-v0"}],
    ids=str,
)
def test_a_state_holds_the_rollout_that_waits(changes):
    whole, states = agent(**changes), []

    def save(model):
        if model.num_timesteps == 2 * 64:
            states.append(copy.deepcopy((model.get_state(), model.scorer.state_dict(), model.envs.snapshot())))

    whole.learn(5 * 64, Begins(save))
    other, (state, mix, snapshot) = agent(**changes), states[0]
    assert state["overlap"]["timesteps"] == 128
    other.begin_rollout()
    other.set_state(state)
    other.scorer.load_state_dict(mix)
    other.envs.restore(snapshot)
    other.learn(3 * 64, reset_num_timesteps=False)
    torch.testing.assert_close(other.flat.value, whole.flat.value, rtol=0, atol=0)


def test_a_stop_or_an_error_leaves_nothing_in_flight():
    model = agent()
    model.learn(10 * 64, Begins(step=lambda model: model.num_timesteps < 2 * 64 + 20))
    # Both whole rollouts were learnt from, and no part of the third.
    assert model.extensions.overlap.waiting is None and model._n_updates == 4
    model.learn(64)
    assert model._n_updates == 6
    model.flat.value.fill_(np.nan)
    model.policy.load_state_dict(model.learnt.state_dict())
    with pytest.raises(FloatingPointError, match="diverged"):
        model.learn(64)


@pytest.mark.parametrize("overlap", [False, True])
def test_with_another_reward_it_still_counts_what_it_learns(overlap):
    model = agent(overlap=overlap).learn(2 * 64)
    model.set_reward(rewards.make(["task", "count"], model.observation_space, model.action_space, seed=0))
    before = model.flat.value.clone()
    model.learn(2 * 64, reset_num_timesteps=False)
    assert model._n_updates == 8 and model.num_timesteps == 4 * 64
    assert not torch.equal(model.flat.value, before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"net": "trees"}, r"agent\.overlap learns from .* agent\.net=trees \(here: trees\)"),
        (
            {"blend": "search", "names": ["task", "rnd"]},
            r"agent\.blend \(here: search\) do not; give",
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        agent(**changes)


def test_a_reward_that_takes_part_in_steps_is_refused():
    made = envs.make.make_vec("CartPole-v1", 4)
    mix = rewards.make(["task", "rnd"], made.single_observation_space, made.single_action_space)
    mix.streams["rnd"].reward.guides = 2
    with pytest.raises(ValueError, match=r"lets rnd learn while environments are stepped, and rnd takes part"):
        PPO(made, PPOConfig(**SMALL), scorer=mix)
