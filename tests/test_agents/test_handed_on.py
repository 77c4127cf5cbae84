"""What outlives a process, a fresh agent and a change of the reward: states, files, `set_reward`."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sample import mostly_at_night

import envs.make
import rewards
from agents.dyna.agent import Dyna, DynaConfig
from agents.ppo.agent import PPO, PPOConfig
from agents.sqirl import SQIRL, SQIRLConfig
from agents.world_model.agent import WorldModel, WorldModelConfig
from lodestar.state import pack, unpack
from rewards.base import Reward, RewardConfig
from rewards.mix.mix import Mix, Stream

pytestmark = pytest.mark.usefixtures("short_fits")
SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 1, "net_arch": [8], "sequence": 8}
TINY = {"learning_starts": 20, "batch_size": 4, "net_arch": [8], "model_hidden": [8], "model_steps": 2}
LATENT = {
    **{
        "preset": "r2dreamer",
        "learning_starts": 20,
        "batch_size": 2,
        "batch_length": 4,
        "train_ratio": 1,
        "rollout": 10,
    },
    **{"latent": 16, "groups": 2, "hidden": 16, "embed": 16, "classes": 4, "horizon": 2, "imagine_starts": 4},
}
MADE = {  # name -> class, configuration, environment, steps
    "ppo": lambda: (PPO, PPOConfig(**SMALL, normalize_obs=True), "CartPole-v1", 96),
    "gru": lambda: (PPO, PPOConfig(**SMALL, gru=4), "CartPole-v1", 96),
    "dyna": lambda: (
        Dyna,
        DynaConfig(**TINY, preset="mbpo", model_every=20, rollouts_per_step=1.0, updates_per_step=0.2),
        "Pendulum-v1",
        60,
    ),
    "dqn": lambda: (Dyna, DynaConfig(**TINY, preset="sac", updates_per_step=0.2), "CartPole-v1", 60),
    "world_model": lambda: (WorldModel, WorldModelConfig(**LATENT), "CartPole-v1", 40),
    "sqirl": lambda: (SQIRL, SQIRLConfig(episodes=4, net_arch=[8], epochs=1), "CartPole-v1", 96),
}


def mix(made, names=("task", "rnd", "count")):
    return rewards.make(list(names), made.single_observation_space, made.single_action_space, gamma=0.99)


def fresh(name, names=("task", "rnd", "count"), backend="gym"):
    cls, config, env, _ = MADE[name]()
    made = envs.make.make_vec(env, 2, seed=0, backend=backend)
    return cls(made, config, scorer=mix(made, names), seed=0)


def learn(model, name):
    return model.learn(MADE[name]()[-1], log_interval=None, reset_num_timesteps=False)


def weights(model):
    return torch.cat([x.detach().float().flatten() for x in model.policy.state_dict().values()])


@pytest.mark.parametrize("name", mostly_at_night(MADE, "ppo", "dyna", "world_model", "sqirl"))
def test_a_fresh_agent_continues_from_a_state_bit_by_bit_or_with_new_episodes(name):
    whole = learn(fresh(name), name)
    state = pack({"agent": whole.get_state(), "reward": whole.scorer.state_dict(), "envs": whole.envs.snapshot()})
    state = unpack(*state)
    learn(whole, name)
    second = fresh(name)
    second.set_state(state["agent"])
    second.scorer.load_state_dict(state["reward"])
    second.envs.restore(state["envs"])
    learn(second, name)
    assert second.num_timesteps == whole.num_timesteps and torch.equal(weights(second), weights(whole))
    third = fresh(name, backend="sync")  # environments that nobody has reset, and that have no snapshot
    third.set_state(state["agent"])
    learn(third, name)
    assert third.num_timesteps >= MADE[name]()[-1] * 2 and third._n_updates > 0
    assert all(episode["l"] >= 1 for episode in third.ep_info_buffer)


@pytest.mark.parametrize("name", MADE)
def test_an_agent_that_has_not_begun_has_a_state_too(name):
    state, second = pack(fresh(name).get_state()), fresh(name)
    second.set_state(unpack(*state))
    again = pack(second.get_state())
    assert again[0] == state[0] and again[1].keys() == state[1].keys()
    for key, value in state[1].items():
        np.testing.assert_array_equal(again[1][key], value)


@pytest.mark.parametrize("name", MADE)
def test_a_file_keeps_counts_and_the_reward(name, tmp_path):
    path = str(tmp_path / "agent.safetensors")
    first = learn(fresh(name), name)
    first.save(path)
    made = fresh(name).envs
    again = type(first).load(path, made, scorer=mix(made))
    assert (again.num_timesteps, again._n_updates) == (first.num_timesteps, first._n_updates)
    assert torch.equal(weights(again), weights(first))
    assert json.dumps(pack(again.scorer.state_dict())[0]) == json.dumps(pack(first.scorer.state_dict())[0])
    for one, other in zip(*(pack(model.scorer.state_dict())[1].values() for model in (again, first))):
        np.testing.assert_array_equal(one, other)
    if name in ("ppo", "dqn", "sqirl"):
        learn(again, name)
        assert again.num_timesteps > first.num_timesteps and again._n_updates > first._n_updates
    acting = type(first).load(path, fresh(name).envs)
    obs = np.zeros((3, *made.single_observation_space.shape), np.float32)
    for model in (acting, type(first).load(path, made, scorer=mix(made))):
        assert np.array_equal(model.predict(obs, deterministic=True)[0], first.predict(obs, deterministic=True)[0])
    assert acting.scorer.streams.keys() == {"task"} and acting.num_timesteps == first.num_timesteps


def test_a_file_that_does_not_fit_says_so_in_a_sentence(tmp_path):
    path = str(tmp_path / "agent.safetensors")
    fresh("ppo").save(path)
    made = fresh("ppo").envs
    with pytest.raises(ValueError, match=r"^envs=None is no vector; give gymnasium.make_vec\(id, 8\)"):
        PPO.load(path)
    with pytest.raises(ValueError, match=r"was trained on task \+ rnd \+ count, not on task \+ rnd; load it with that"):
        PPO.load(path, made, scorer=mix(made, ("task", "rnd")))
    with pytest.raises(ValueError, match=r"^[^\n]*does not fit these environments and this reward: [^\n]*$"):
        PPO.load(path, fresh("dyna").envs)
    config = rewards.get("rnd").Config(features=7)
    other = rewards.make({"task": None, "rnd": config, "count": None}, *spaces_of(made))
    with pytest.raises(ValueError, match=r"^[^\n]*does not fit this reward: [^\n]*$"):
        PPO.load(path, made, scorer=other)


def spaces_of(made):
    return made.single_observation_space, made.single_action_space


def test_a_file_of_0_2_0_is_read(tmp_path):
    new, old = str(tmp_path / "new"), str(tmp_path / "old")
    first = learn(fresh("ppo"), "ppo")
    first.save(new)
    with safe_open(new, "pt") as file:
        metadata = {key: file.metadata()[key] for key in ("agent", "config")}
        save_file({key: file.get_tensor(key) for key in file.keys() if key[0] != "/"}, old, metadata)  # noqa: SIM118
    made = fresh("ppo").envs
    again = PPO.load(old, made, scorer=mix(made))
    assert torch.equal(weights(again), weights(first)) and again.num_timesteps == 0


@pytest.mark.parametrize("name", mostly_at_night(MADE, "ppo", "dyna", "world_model"))
def test_a_reward_is_exchanged_and_the_policy_stays(name):
    model = learn(fresh(name, ("task", "count")), name)
    before, made, steps = weights(model), model.envs, model.num_timesteps
    policy = {key: x.clone() for key, x in model.policy.state_dict().items() if not key.startswith("vf_head")}
    model.set_reward(mix(made, ("rnd", "task")))
    assert list(model.scorer.streams) == ["rnd", "task"] and model.num_timesteps == steps
    assert all(torch.equal(model.policy.state_dict()[key], x) for key, x in policy.items())
    learn(model, name)
    assert model.num_timesteps > steps and not torch.equal(weights(model), before)
    model.set_reward(None)
    assert model.scorer.is_task


def test_a_stream_that_stays_keeps_its_value_and_a_new_one_begins_with_its_own():
    model = learn(fresh("ppo", ("task", "count")), "ppo")
    before, window = model.policy.vf_head.weight.clone(), list(model.ep_info_buffer)
    model.set_reward(mix(model.envs, ("rnd", "task")))
    after = model.policy.vf_head.weight
    assert torch.equal(after[1], before[0]) and not any(torch.equal(after[0], row) for row in before)
    assert list(model.ep_info_buffer) == window
    model.learn(32, log_interval=None)
    assert model.scorer.streams["rnd"].reward.state_dict() and model.learner.net is model.policy


def test_a_replay_is_relabelled_by_the_new_reward_and_what_that_keeps_is_computed():
    model = learn(fresh("dqn", ("task",)), "dqn")
    rows = len(model.replay)
    task = model.replay.sample(64).reward
    assert set(task.tolist()) == {1.0}
    config = rewards.get("count").Config(memory="episode", scale="none", weight=1.0)
    model.set_reward(rewards.make({"count": config}, *spaces_of(model.envs)))
    assert len(model.replay) == rows and "score/count" in model.replay.columns
    batch = model.replay.transitions(torch.arange(rows)).map(lambda x: x.reshape(-1, 2, *x.shape[1:]))
    scores, _ = model.scorer.score(batch.replace(extras={}), model.scorer.initial_memory(2))
    assert model.replay.rows(torch.arange(rows)).reward.tolist() == scores["count"].ravel().tolist()


def test_a_replay_without_what_the_reward_reads_is_emptied():
    model = learn(fresh("world_model", ("task",)), "world_model")
    assert len(model.replay) > 0
    seen = mix(model.envs, ("task",))
    seen.requires = seen.requires | {"frame"}
    model.set_reward(seen)
    assert len(model.replay) == 0 and model._n_updates > 0


@pytest.mark.parametrize("name", MADE)
def test_a_scorer_that_construction_refuses_is_refused_in_the_same_sentence_and_nothing_changes(name):
    model = fresh(name)
    with pytest.raises(ValueError) as made:
        type(model)(model.envs, model.config, scorer="rnd")
    scorer, state = model.scorer, weights(model)
    with pytest.raises(ValueError) as exchanged:
        model.set_reward("rnd")
    assert str(exchanged.value) == str(made.value) and "scorer='rnd' has no streams" in str(made.value)
    assert model.scorer is scorer and torch.equal(weights(model), state)


def test_a_reward_is_not_exchanged_within_learn():
    model = fresh("ppo")
    with pytest.raises(RuntimeError, match=r"call it after learn"):
        model.learn(64, callback=lambda *_: model.set_reward(None))
    model.set_reward(None)


class Words(Reward):
    """The length of the caption."""

    requires = frozenset({"text"})

    def score(self, batch, memory=None):
        return np.array([len(text) for text in batch.text], np.float32)


def test_a_state_from_before_the_first_caption_is_taken():
    def reader():
        made = envs.make.make_vec("MiniGrid-Empty-5x5-v0", 2, text=True, backend="gym")
        scorer = Mix([Stream("words", Words(RewardConfig(), *spaces_of(made)), gamma=0.99)])
        return PPO(made, PPOConfig(**SMALL), scorer=scorer, seed=0)

    model = reader()
    model.set_state(reader().get_state())
    assert torch.equal(weights(model.learn(32)), weights(reader().learn(32)))
