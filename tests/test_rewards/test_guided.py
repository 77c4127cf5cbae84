"""Rewards that speak to the policy: what is said stands beside the right observation, on every way of running one."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted import ScriptedWorld, script
from stable_baselines3.common.callbacks import BaseCallback

import rewards
from agents.ppo.agent import PPO, PPOConfig
from agents.sb3.agent import A2CConfig, make_venv
from envs.make import make, make_vec
from rewards.adapters.guided import Guided, GuidedEnv, add_guides, guide_modalities, guided_space, guides, make_mix
from rewards.base import Reward, RewardConfig
from rewards.language.subgoals import SubgoalsConfig
from runners.run.config import TrainConfig, UsageError

N, T = 3, 24  # at least four episodes in each world


class Teller(Reward):
    """Says how many steps of the episode it has heard of, and what the signals showed last."""

    requires = frozenset({"signals"})
    relabelable = False
    guides = 2

    def initial_memory(self, n):
        return {"heard": np.full((n, 2), -1, np.float32)}

    def begin(self, memory, modalities, mask):
        heard = memory["heard"].copy()
        heard[mask] = np.stack([np.zeros(mask.sum()), modalities["signals"][mask, 5]], axis=1)
        return {"heard": heard}

    def score(self, batch, memory=None):
        heard = np.stack([memory["heard"][:, 0] + 1, batch.signals[:, 5]], axis=1)
        return np.zeros(batch.shape, np.float32), {"heard": heard.astype(np.float32)}

    def guide(self, memory):
        return memory["heard"]


class Reader(Teller):
    requires = frozenset({"signals", "next_obs"})


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Both rewards have names, for these tests alone."""
    monkeypatch.setattr(rewards.table, "registered", {"teller": Teller, "reader": Reader})


def mix_of(*names, space=ScriptedWorld.observation_space, action_space=ScriptedWorld.action_space):
    return make_mix(list(names), space, action_space)


def says_right(obs):
    """A world's observation begins with the step k of its episode, and its signals show k / 7."""
    np.testing.assert_allclose(obs[..., 4], obs[..., 0])
    np.testing.assert_allclose(obs[..., 5], obs[..., 0] / 7, rtol=1e-6)


def test_around_one_environment_every_observation_comes_with_its_guide_vector():
    env = add_guides(ScriptedWorld(0), mix_of("task", "teller"))
    assert isinstance(env, GuidedEnv) and env.observation_space.shape == (6,)
    obs, _ = env.reset()
    says_right(obs)
    for _ in range(T):
        obs, _, terminated, truncated, _ = env.step(script(obs[None])[0])
        says_right(obs)
        assert obs in env.observation_space
        if terminated or truncated:
            assert obs[4] >= 3  # the true successor, not the next episode's first
            obs, _ = env.reset()
            assert obs[4] == 0


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_around_a_vector_an_episodes_last_observation_keeps_its_own_guide(mode):
    inner = SyncVectorEnv([lambda i=i: ScriptedWorld(i) for i in range(N)], autoreset_mode=mode)
    envs = add_guides(inner, mix_of("task", "teller"))
    assert isinstance(envs, Guided) and envs.observation_space.shape == (N, 6)
    obs, _ = envs.reset()
    says_right(obs)
    ends = 0
    for _ in range(T):
        obs, _, terminated, truncated, infos = envs.step(script(obs))
        says_right(obs)
        ended = terminated | truncated
        ends += ended.sum()
        if mode == AutoresetMode.SAME_STEP and ended.any():
            says_right(infos["final_obs"][ended])
            assert (infos["final_obs"][ended, 4] >= 3).all() and (obs[ended, 4] == 0).all()
    assert ends > 3 * N / 2


def test_a_masked_reset_begins_those_episodes_only():
    envs = add_guides(make_vec("MiniGrid-Empty-5x5-v0", N, backend="gym", signals=True), grid_mix())
    envs.reset(seed=0)
    obs = envs.step(np.full(N, 2))[0].copy()  # forward
    again = envs.reset(options={"reset_mask": np.array([True, False, False])})[0]
    assert not np.array_equal(again[0], obs[0]) and np.array_equal(again[1:], obs[1:])
    envs.close()


def test_without_a_guide_nothing_is_wrapped():
    mix, world = mix_of("task", "count"), ScriptedWorld(0)
    assert add_guides(world, mix) is world and guides(mix) == {} and guide_modalities(mix) == {}
    assert guided_space(world.observation_space, mix) is world.observation_space


def test_other_rewards_see_the_observations_with_guide_vectors():
    mix = mix_of("task", "count", "teller")
    assert mix.streams["count"].reward.observation_space.shape == (6,)
    assert list(guides(mix)) == ["teller"] and guide_modalities(mix) == {"signals": True}


@pytest.mark.parametrize(
    ("space", "name", "sentence"),
    [
        (spaces.Box(0, 255, (3, 8, 8), np.uint8), "teller", r"teller guides beside flat float obs"),
        (spaces.Discrete(4), "teller", r"not Discrete\(4\); flatten them"),
        (ScriptedWorld.observation_space, "reader", r"'reader' guides, so it may read texts and signals, but not next"),
    ],
)
def test_spaces_and_guides_that_do_not_fit_are_refused(space, name, sentence):
    with pytest.raises(ValueError, match=sentence):
        mix_of(name, space=space)


def test_missing_signals_are_named_at_the_first_reset():
    env = add_guides(make("MiniGrid-Empty-5x5-v0"), grid_mix())
    with pytest.raises(
        ValueError, match=r'the reward \'subgoals\' reads signals, but info\["signals"\] is missing; make'
    ):
        env.reset()


# --- subgoals on real MiniGrids ---------------------------------------------------------------------------------------

GRID = "MiniGrid-DoorKey-5x5-v0"


def grid_mix(env_id=GRID, **options):
    env = make(env_id)
    config = {"task": None, "subgoals": SubgoalsConfig(**options)}
    mix = make_mix(config, env.observation_space, env.action_space, seed=1)
    env.close()
    return mix


def grids(n, mix, **options):
    return add_guides(make_vec(GRID, n, seed=5, backend="gym", signals=True, max_episode_steps=7, **options), mix)


def test_a_vector_gives_the_guide_vectors_of_single_environments():
    mix, rng = grid_mix(), np.random.default_rng(0)
    envs = grids(2, mix)
    singles = [add_guides(make(GRID, seed=5 + i, signals=True, max_episode_steps=7), mix) for i in range(2)]
    obs = envs.reset()[0]
    np.testing.assert_array_equal(obs, [env.reset()[0] for env in singles])
    for _ in range(30):
        actions = rng.integers(0, 6, 2)
        obs, _, terminated, truncated, infos = envs.step(actions)
        for i, env in enumerate(singles):
            one = env.step(int(actions[i]))[0]
            if terminated[i] or truncated[i]:
                np.testing.assert_array_equal(infos["final_obs"][i], one)
                one = env.reset()[0]
            np.testing.assert_array_equal(obs[i], one)
    envs.close()


def test_a_snapshot_brings_back_what_the_guides_remember():
    mix, rng = grid_mix(), np.random.default_rng(1)
    actions = rng.integers(0, 6, (40, 2))

    def walk(envs, rows):
        return np.stack([envs.step(row)[0].copy() for row in rows])

    envs = grids(2, mix)
    envs.reset()
    walk(envs, actions[:17])
    state = envs.snapshot()
    expected = walk(envs, actions[17:])
    fresh = grids(2, mix)
    fresh.reset()
    walk(fresh, actions[5:9])
    fresh.restore(state)
    np.testing.assert_array_equal(walk(fresh, actions[17:]), expected)


def test_our_ppo_learns_from_guided_observations_and_resumes_exactly():
    settings = PPOConfig(n_steps=16, batch_size=16, n_epochs=1, net_arch=[8])

    def build():
        mix = grid_mix()
        return PPO(grids(2, mix), settings, scorer=mix, seed=0)

    whole = build()
    whole.learn(64)
    state, envs = copy.deepcopy((whole.get_state(), whole.envs.snapshot()))
    finals = [last for _, _, last in whole.collector.rollout.finals]
    assert all(last.shape[1] == 986 for last in finals) and whole.policy.inputs.size == 986
    whole.learn(64, reset_num_timesteps=False)

    rest = build()
    rest.envs.reset(seed=3)
    rest.set_state(state)
    rest.envs.restore(envs)
    rest.learn(64, reset_num_timesteps=False)
    assert rest.num_timesteps == whole.num_timesteps == 128
    for name, value in whole.policy.state_dict().items():
        torch.testing.assert_close(rest.policy.state_dict()[name], value, rtol=0, atol=0)


def test_the_policy_is_rewarded_for_its_current_subgoal():
    mix = grid_mix()
    model = PPO(grids(2, mix), PPOConfig(n_steps=64, batch_size=32, n_epochs=1, net_arch=[8]), scorer=mix, seed=0)
    kept = []

    class Keep(BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_end(self):
            kept.append((copy.deepcopy(self.locals["batch"]), self.locals["raw"]["subgoals"].copy()))

    model.learn(768, callback=Keep())
    reached = 0
    for batch, raw in kept:
        place = np.rint(batch.obs_signals[..., :2] + 5 * batch.obs[..., -2:]).astype(int)  # what the policy was told
        cell = 7 + 3 * (5 * place[..., 1] + place[..., 0])[..., None] + np.arange(3)
        changed = np.take_along_axis(batch.obs_signals, cell, -1) != np.take_along_axis(batch.signals, cell, -1)
        there = (batch.signals[..., :2] == place).all(-1)
        np.testing.assert_array_equal(raw > 0, changed.any(-1) | there)
        reached += (raw > 0).sum()
    assert reached >= 3


def config(agent_name="ppo", agent=None, **options):
    agent = agent or PPOConfig(n_steps=32, batch_size=32, n_epochs=1, net_arch=[8])
    pays = {"task": rewards.get("task").Config(), "subgoals": SubgoalsConfig()}
    options = {"n_envs": 2, "backend": "gym", "max_episode_steps": 12, **options}
    return TrainConfig(env=GRID, reward=pays, agent_name=agent_name, agent=agent, device="cpu", **options)


@pytest.mark.parametrize(("name", "agent"), [("ppo", None), ("a2c", A2CConfig(n_steps=8))])
def test_a_run_is_trained_evaluated_and_filmed_with_its_guide(name, agent):
    from runners.evaluate import evaluation, policy
    from runners.run.build import build
    from runners.run.video import play

    run = config(name, agent)
    parts = build(run)
    callback = parts.driver
    parts.model.learn(64, callback=callback)
    assert parts.model.observation_space.shape == (986,)
    scores = evaluation(run, parts.model, parts.mix, 2, 0)
    assert len(scores["this run"]["returns"]) == len(scores["random"]["returns"]) == 2
    episode = play(run, policy(parts.model, run), parts.mix, 0, 5)
    assert len(episode.images) == len(episode.streams["subgoals"]) == 5


def test_stable_baselines3_gets_the_guide_of_an_episodes_end_and_its_snapshot():
    mix = grid_mix()
    venv = make_venv(GRID, 2, 5, wrap=lambda env: add_guides(env, mix), signals=True, max_episode_steps=3)
    first = venv.reset()
    for _ in range(3):
        obs, _, over, infos = venv.step(np.zeros(2, int))  # turns on the spot
    assert over.all()
    last = np.stack([info["terminal_observation"] for info in infos])
    assert last.shape == (2, 986)
    np.testing.assert_array_equal(last[:, -2:], first[:, -2:])
    assert not np.array_equal(obs[:, -2:], first[:, -2:])  # other levels
    state = venv.env_method("snapshot")
    before = [venv.step(np.full(2, 2))[0] for _ in range(2)][-1]
    for index, one in enumerate(state):
        venv.env_method("restore", one, indices=index)
    np.testing.assert_array_equal([venv.step(np.full(2, 2))[0] for _ in range(2)][-1], before)


def test_workers_of_stable_baselines3_cannot_share_a_guide():
    from runners.run.build import build

    with pytest.raises(UsageError, match=r"backend=workers does not fit agent=a2c; use backend=auto"):
        build(config("a2c", A2CConfig(n_steps=8), backend="workers"))


def test_a_vector_that_does_not_reset_itself_is_refused():
    inner = SyncVectorEnv([ScriptedWorld], autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ValueError, match=r"DISABLED.*must reset its environments itself, in SAME_STEP mode"):
        add_guides(inner, mix_of("teller"))


def test_a_guide_needs_no_begin():
    class Silent(Teller):
        begin = property()  # absent: reading it raises AttributeError

    mix = mix_of("teller")
    mix.streams["teller"].reward = Silent(RewardConfig(), *[ScriptedWorld.observation_space] * 2)
    obs, _ = add_guides(ScriptedWorld(0), mix).reset()
    assert obs[4:].tolist() == [-1, -1]
