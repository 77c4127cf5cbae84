"""`import lodestar as ld` in a program of a user's own: train, load, make rewards, wrap what is there already."""

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import lodestar as ld
import rewards
from envs.wrappers import Observer
from rewards.adapters.gym import VectorRewardWrapper
from rewards.base import Reward

ROOT = Path(__file__).parents[1]
QUICK = {"total_timesteps": 128, "n_envs": 2, "eval_episodes": 1, "video": False}
SMALL = {"agent.n_steps": 32, "agent.batch_size": 32, "agent.net_arch": [8]}
GOAL = "pole standing upright"


def test_all_public_names_come_from_one_place():
    for name in ld.__all__:
        assert callable(getattr(ld, name)), name
    assert ld.Reward is Reward and ld.make("CartPole-v1").spec.id == "CartPole-v1"
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = ld.no_such_name


class Still(Reward):
    """r(s') = -|velocity of the cart|."""

    requires = frozenset({"next_obs"})

    def score(self, batch, memory=None):
        return -np.abs(batch.next_obs[:, 1])


class Told(Still):
    requires = frozenset({"text"})


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    monkeypatch.setattr(rewards.table, "registered", {})
    monkeypatch.setattr(rewards.table, "files", {})


def seen_cartpole():
    return gym.make("CartPole-v1", render_mode="rgb_array")


def of_the_process():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    drawn = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002
    return [handlers, threads, grad, drawn, list(sys.path), os.getcwd(), sys.stdout, sys.excepthook]


def test_a_run_leaves_the_process_as_it_was_and_is_loaded_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    torch.set_num_threads(2)
    before = of_the_process()
    run = ld.train(
        "CartPole-v1", "rnd", run_dir=str(tmp_path / "a run"), **QUICK, **SMALL, **{"reward.rnd.weight": 0.1}
    )
    assert of_the_process() == before
    again = ld.load(run.folder)
    scores = again.evaluate(1, seed=3)
    assert of_the_process() == before
    torch.set_num_threads(1)
    assert again.config.reward["rnd"].weight == 0.1 and again.config.agent.net_arch == [8]
    assert run.figures["this run"]["episodes"] == 1 and scores["random"]["task_return"] >= 8
    action, _ = again.policy.predict(np.zeros(4, np.float32), deterministic=True)
    assert action in (0, 1)
    assert run.folder == tmp_path / "a run"


def test_options_are_dicts_and_a_class_of_the_program_is_a_reward(tmp_path):
    own = {"ppo": {"n_steps": 32, "batch_size": 32, "net_arch": [8]}}
    run = ld.train("CartPole-v1", {"task": {}, Still: {"weight": 0.5}}, own, run_dir=str(tmp_path / "run"), **QUICK)
    assert run.config.reward["still"].weight == 0.5 and list(run.config.reward) == ["task", "still"]
    assert "reward/still" in (run.folder / "metrics.csv").read_text()


def test_mistakes_are_value_errors_with_the_sentence_of_the_command(tmp_path):
    with pytest.raises(ValueError, match=r"reward=rndd is unknown; did you mean rnd"):
        ld.train("CartPole-v1", "rndd")
    with pytest.raises(ValueError, match=r"total_timestep=5 is unknown; did you mean total_timesteps"):
        ld.train("CartPole-v1", total_timestep=5)
    with pytest.raises(ValueError, match=r"is no run's folder"):
        ld.load(tmp_path)
    with pytest.raises(ValueError, match=r"'gaol' is no option of the reward 'clip'; did you mean 'goal'"):
        ld.wrap(seen_cartpole(), "clip", gaol="x")
    with pytest.raises(ValueError, match=r"reads frames, but CartPole-v1 was made with render_mode=None; make it with"):
        ld.wrap(gym.make("CartPole-v1"), "clip")
    with pytest.raises(ValueError, match=r"'told' reads text, which FrozenLake-v1 does not have"):
        ld.wrap(gym.make("FrozenLake-v1"), Told)
    with pytest.raises(ValueError, match=r"is no environment; give one of Gymnasium"):
        ld.wrap("CartPole-v1", "task")


@pytest.mark.nightly
def test_the_readmes_program_runs_in_an_empty_folder(tmp_path):
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n((?:import gymnasium, lodestar|run = ld.train).*?)```", readme, re.DOTALL)
    (tmp_path / "mine.py").write_text("".join(blocks).replace("10_000", "256"))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"^[\d.]+ \(.*[01]\)?, None\)$", answer.stdout.splitlines()[-1]), answer.stdout


def test_importing_it_is_quick_loads_no_torch_and_registers_our_environments():
    script = (
        "import sys, time; began = time.process_time(); import lodestar; seconds = time.process_time() - began\n"
        "import gymnasium; env = gymnasium.make('lodestar/CartPoleUpright-v0')\n"
        "print('torch' in sys.modules, seconds, bool(lodestar.__version__))"
    )
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", script], env=path, capture_output=True, text=True, timeout=120)
    torch_loaded, seconds, version = answer.stdout.split()
    assert (torch_loaded, version) == ("False", "True") and float(seconds) < 0.6  # 0.15 on a quiet machine


def test_what_a_reward_reads_is_added_to_an_environment_that_is_there_already():
    env = ld.wrap(seen_cartpole(), "clip", goal=GOAL)
    _, info = env.reset(seed=0)
    assert info["frame"].shape == (64, 64, 3)
    made = seen_cartpole()
    already = ld.wrap(Observer(made, 64), "clip", goal=GOAL)
    assert already.env.env is made  # none is added twice
    already.reset(seed=0)
    assert [env.step(action)[1] for action in (0, 1, 1)] == [already.step(action)[1] for action in (0, 1, 1)]
    check_env(env, skip_render_check=True)  # in a window there are no frames
    again = gym.make(env.spec)
    assert again.reset(seed=1)[1]["frame"].shape == (64, 64, 3) and again.driver.mix is env.driver.mix
    check_env(ld.wrap(gym.make("CartPole-v1"), "rnd"))


def test_an_environment_that_returns_the_same_info_again_gets_fresh_frames_and_keeps_its_own():
    class Same(gym.Wrapper):
        info: dict = {"text": "its own"}

        def reset(self, **options):
            return self.env.reset(**options)[0], self.info

        def step(self, action):
            return *self.env.step(action)[:4], self.info

    env = Observer(Same(seen_cartpole()), 64, text=True)
    first = env.reset(seed=0)[1]["frame"]
    for _ in range(5):
        info = env.step(0)[4]
    assert (info["frame"] != first).any() and info["text"] == "its own"


def test_a_goal_that_its_family_knows_need_not_be_said():
    env = ld.wrap(seen_cartpole(), "clip")
    assert env.driver.mix.streams["clip"].reward.config.goal == "pole vertically upright on top of the cart"
    assert list(ld.make_reward("rnd", env).streams) == ["task", "rnd"]
    assert list(ld.make_reward(["rnd"], env).streams) == ["rnd"]
    assert (
        ld.make_reward(["task", "rnd"], env, rnd={"weight": 0.25}).describe()
        == "task + 0.25 * rnd (/ return, non-episodic)"
    )


def test_minigrids_dict_with_its_mission_is_read_as_our_environments_give_it():
    import minigrid  # noqa: F401

    from envs.make import make

    mine = ld.wrap(gym.make("BabyAI-GoToObj-v0"), ["forward", "oni"])
    ours = ld.wrap(make("BabyAI-GoToObj-v0"), ["forward", "oni"])
    (obs, info), _ = mine.reset(seed=5), ours.reset(seed=5)
    assert set(obs) == {"image", "direction", "mission"} and info["text"] == f"mission: {obs['mission']}"
    steps = [(mine.step(action), ours.step(action)) for action in (2, 0, 2, 1, 2, 2)]
    assert [a[1] for a, _ in steps] == [b[1] for _, b in steps]
    vector = SyncVectorEnv([lambda: gym.make("MiniGrid-Empty-5x5-v0", max_episode_steps=3)] * 2)
    wrapped = ld.wrap(vector, ["forward"])
    wrapped.reset(seed=0)
    assert all(np.isfinite(wrapped.step(np.array([2, 0]))[1]).all() for _ in range(8))


def test_vectors_show_their_frames_in_every_mode_in_which_they_can():
    totals = []
    for kind, mode in ((SyncVectorEnv, "SAME_STEP"), (SyncVectorEnv, "NEXT_STEP"), (AsyncVectorEnv, "NEXT_STEP")):
        envs = ld.wrap(kind([seen_cartpole] * 2, autoreset_mode=AutoresetMode[mode]), "clip", goal=GOAL)
        assert isinstance(envs, VectorRewardWrapper)
        envs.reset(seed=0)
        totals.append([envs.step(np.array([0, 1]))[1] for _ in range(12)])
        envs.close()
    np.testing.assert_allclose(totals[0][:8], totals[1][:8])
    np.testing.assert_allclose(totals[1], totals[2])
    envs = ld.wrap(AsyncVectorEnv([seen_cartpole] * 2, autoreset_mode=AutoresetMode.SAME_STEP), "clip", goal=GOAL)
    with pytest.raises(ValueError, match=r"resets in the same step, wrap each in envs\.wrappers\.Observer where it is"):
        envs.reset()
    envs.close()


def test_ppo_of_stable_baselines_learns_from_what_is_wrapped():
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    venv = make_vec_env("CartPole-v1", 2, env_kwargs={"render_mode": "rgb_array"})
    few = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "seed": 0, "policy_kwargs": {"net_arch": [8]}}
    one = PPO("MlpPolicy", ld.wrap(seen_cartpole(), "clip", goal=GOAL), **few).learn(32)
    two = PPO("MlpPolicy", ld.wrap(venv, ["task", "clip"], clip={"goal": GOAL}), **few).learn(64)
    assert one.rollout_buffer.rewards.max() < 1 < two.rollout_buffer.rewards.max()
    assert two.ep_info_buffer[0]["r"] == two.ep_info_buffer[0]["l"]  # Monitor counts the task's own reward
