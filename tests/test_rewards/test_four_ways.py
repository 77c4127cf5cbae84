"""One trajectory, every way of running a reward, equal rewards: for each reward in the table."""

import copy
import functools

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted import FRAME, JUDGED, ScriptedWorld, coded, demonstrations, labels, script, staged, tabled
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

import rewards
from agents.ppo.agent import PPO as FastPPO
from agents.ppo.agent import PPOConfig
from envs.transitions import Transitions
from rewards.adapters.gym import RewardWrapper, VectorRewardWrapper
from rewards.adapters.sb3 import RelabelCallback, RewardCallback, RewardVecEnv, relabelling

N, T = 2, 18  # at least three episodes in each world
NEVER = 10**9  # update_every: nothing learns while we compare
STEPS = [divmod(t, 4) for t in range(16)]  # episode and step of what is learnt from


UP = {"goal": "pole vertically upright on top of the cart"}
DOWN = {"negative": "the pole is hanging down", "reference": 32}
KNOWN = {
    "progress_model": UP,
    "clip": UP | {"baseline": "pole and cart"},
    "contrast": UP | DOWN,
    "synthesis": UP | DOWN | {"history": 3},
}
SHUFFLED = {"judge": "simulated", "judge_options": {"shuffle": True, "positive": 0.5}, "min_labels": 1}
KNOWN |= {"rubric": {"principles": JUDGED}}
KNOWN |= {"progress_model": UP, "oni": SHUFFLED, "motif": {"data": labels()}}
KNOWN |= {"code": {"file": coded()}, "table": {"file": tabled()}}
KNOWN |= {"stages": {"file": staged()}, "signal": {"column": 4}}
KNOWN |= {"progress": {"demos": demonstrations(), "steps": 20}, "self_reference": {"threshold": -1e9}}
KNOWN |= {"hilp": {"data": demonstrations(), "steps": 3}}
KNOWN |= {"discriminator": {"demos": demonstrations()}, "success": {"goals": demonstrations(), "steps": 20}}


def cases():
    """Every reward with its defaults, and shapes, scales and other settings that a way of running could get wrong.

    Of the settings those that look ahead or keep a scale run by day, the others at night.
    """
    by_day = [(name, {}) for name in rewards.names()]
    by_day += [("clip", {"shape": "potential"}), ("clip", {"shape": "delta"}), ("rnd", {"scale": "ema"})]
    at_night = [("clip", {"shape": "clip"}), ("clip", {"shape": "sigmoid"})]
    at_night += [("contrast", {"shape": "potential"}), ("synthesis", {"semantics": "constant"})]
    at_night += [("stages", {"shape": shape}) for shape in ("none", "potential")]
    at_night += [("debate", {"seed_steps": 0, "shown": 2}), ("self_play", {"seed_steps": 0})]
    at_night += [("bradley_terry", {"of": "history", "length": 2, "seed_steps": 0})]
    at_night += [("synthesis", {"semantics": "clip", "history": 0, "shape": "potential"})]
    at_night += [("progress", {"of": "obs", "shape": shape}) for shape in ("none", "delta", "potential")]
    at_night += [("self_reference", {"of": "frame"})]
    at_night += [("discriminator", {"form": "airl", "of": "next_obs"}), ("success", {"of": "frame"})]
    at_night += [("success", {"consecutive": 2}), ("hilp", {"value": "direction", "shape": "none"})]
    at_night += [("oni", {"model": model}) for model in ("classification", "ranking", "count")]
    at_night += [("task", {"shape": "clip", "clip_at": 0.5}), ("rnd", {"shape": "potential"})]
    night = [()] * len(by_day) + [pytest.mark.nightly] * len(at_night)
    return [
        pytest.param(number, name, changes, id="-".join([name, *map(str, changes.values())]), marks=marks)
        for number, ((name, changes), marks) in enumerate(zip(by_day + at_night, night))
    ]


def make_mix(name, changes, state=None):
    cls = rewards.get(name)
    config = cls.Config(**KNOWN.get(name, {}) | changes)
    config.warmup = 0
    mix = rewards.make({name: config}, ScriptedWorld.observation_space, ScriptedWorld.action_space, gamma=0.9, seed=3)
    if state is not None:
        mix.load_state_dict(copy.deepcopy(state))
    return mix


@functools.cache
def experience():
    """What rewards learn from before they are compared."""
    rng = np.random.default_rng(0)
    shape = (16, N)
    return Transitions(
        obs=rng.normal(size=(*shape, 4)).astype(np.float32),
        action=rng.integers(0, 3, shape),
        reward=rng.normal(size=shape).astype(np.float32),
        next_obs=rng.normal(size=(*shape, 4)).astype(np.float32),
        terminated=rng.random(shape) < 0.1,
        truncated=np.zeros(shape, bool),
        valid=np.ones(shape, bool),
        step=np.arange(16)[:, None] + np.zeros(shape, np.int64),
        frame=rng.integers(0, 255, (*shape, FRAME, FRAME, 3)).astype(np.uint8),
        obs_frame=rng.integers(0, 255, (*shape, FRAME, FRAME, 3)).astype(np.uint8),
        text=np.array([[f"world {i}, episode {e}, step {k}" for i in range(N)] for e, k in STEPS], object),
        signals=rng.normal(size=(*shape, 9)).astype(np.float32),
        obs_signals=rng.normal(size=(*shape, 9)).astype(np.float32),
    )


@pytest.mark.parametrize(("number", "name", "changes"), cases())
def test_every_way_of_running_a_reward_gives_the_rewards_of_the_single_wrapper(number, name, changes):
    learnt = make_mix(name, changes)
    batch = learnt.embed(experience())
    learnt.update(batch, learnt.score(batch)[0])
    state = learnt.state_dict()

    def maker():
        return make_mix(name, changes, state)

    expected = reference(maker)
    # the auto-reset mode does not depend on the reward: modes take turns along the table
    modes, own = list(AutoresetMode), (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
    compare("vector wrapper", vector_wrapper(maker, modes[number % 3]), expected)
    compare("SB3 VecEnv", sb3_venv(maker), expected)
    compare("rollout callback", rollout_callback(maker), expected)
    compare("our PPO", our_ppo(maker, own[number % 2]), expected)
    compare("replay", replay(maker), expected)


def reference(maker):
    """The Gymnasium wrapper's rewards: (world, episode, step) -> reward."""
    found = {}
    for index in range(N):
        env = RewardWrapper(ScriptedWorld(index), maker(), update_every=NEVER)
        obs, _ = env.reset()
        for _ in range(T):
            key = (index, int(obs[1]), int(obs[0]))
            obs, found[key], terminated, truncated, _ = env.step(script(obs[None])[0])
            if terminated or truncated:
                obs, _ = env.reset()
    return found


def compare(way, found, expected):
    shared = [key for key in found if key in expected]
    assert len(shared) > 0.7 * N * T
    ours, theirs = np.array([found[k] for k in shared]), np.array([expected[k] for k in shared])
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5, err_msg=way)


def vector_wrapper(maker, mode):
    vec = SyncVectorEnv([lambda i=i: ScriptedWorld(i) for i in range(N)], autoreset_mode=mode)
    env = VectorRewardWrapper(vec, maker(), update_every=NEVER)
    obs, _ = env.reset()
    ended = np.zeros(N, bool)
    found = {}
    for _ in range(T):
        if mode == AutoresetMode.DISABLED and ended.any():
            obs, _ = env.reset(options={"reset_mask": ended})
        actions = script(obs)
        keys = [(i, int(o[1]), int(o[0])) for i, o in enumerate(obs)]
        obs, total, terminated, truncated, _ = env.step(actions)
        for i in range(N):
            if mode == AutoresetMode.NEXT_STEP and ended[i]:
                assert total[i] == 0  # this step only reset the world
            else:
                found[keys[i]] = total[i]
        ended = terminated | truncated
    return found


def sb3_venv(maker):
    env = RewardVecEnv(DummyVecEnv([lambda i=i: ScriptedWorld(i) for i in range(N)]), maker(), update_every=NEVER)
    obs = env.reset()
    found = {}
    for _ in range(T):
        keys = [(i, int(o[1]), int(o[0])) for i, o in enumerate(obs)]
        obs, total, _, _ = env.step(script(obs))
        found.update(zip(keys, total))
    return found


def rollout_callback(maker):
    mix = maker()
    mix.update = lambda *args: {}  # compare before anything learns
    env = DummyVecEnv([lambda i=i: ScriptedWorld(i) for i in range(N)])
    model = PPO("MlpPolicy", env, n_steps=T // 2, batch_size=N * T // 2, n_epochs=1, device="cpu", seed=0)
    model.policy.forward = lambda obs: (torch.as_tensor(script(obs)), torch.zeros(N, 1), torch.zeros(N))
    model.policy.predict_values = lambda obs: torch.zeros(len(obs), 1)  # no bootstrap value in the rewards
    found = {}

    class Spy(RewardCallback):
        def _on_rollout_end(self):
            super()._on_rollout_end()
            buffer = self.model.rollout_buffer
            for t in range(T // 2):
                for i in range(N):
                    o = buffer.observations[t, i]
                    found[i, int(o[1]), int(o[0])] = buffer.rewards[t, i]

    model.train = lambda: None
    model.learn(N * T, callback=Spy(mix))
    return found


def our_ppo(maker, mode):
    mix = maker()
    mix.update = lambda *args: {}  # compare before anything learns
    vec = SyncVectorEnv([lambda i=i: ScriptedWorld(i) for i in range(N)], autoreset_mode=mode)
    model = FastPPO(vec, PPOConfig(n_steps=T // 2, batch_size=N * T // 2, n_epochs=1), scorer=mix)
    model.learner.act = lambda vector, *rest: script(vector)[:, None]
    found = {}

    class Spy(BaseCallback):
        def _on_step(self):
            return True

        def _on_rollout_end(self):
            batch = self.locals["batch"]
            total = mix.combine(self.locals["raw"], 0)
            for t, i in np.argwhere(batch.valid):
                found[int(i), int(batch.obs[t, i, 1]), int(batch.obs[t, i, 0])] = total[t, i]

    model.learn(N * T, callback=Spy())
    return found


def replay(maker):
    env = DummyVecEnv([lambda i=i: ScriptedWorld(i) for i in range(N)])
    model = DQN(
        "MlpPolicy", env, learning_starts=0, gradient_steps=0, buffer_size=N * (T + 5), device="cpu", seed=0,
        replay_buffer_class=relabelling(ReplayBuffer), replay_buffer_kwargs={"mix": maker(), "update_every": NEVER},
    )  # fmt: skip
    model.replay_buffer._update_rows = NEVER
    model.predict = lambda obs, *args, **kwargs: (script(obs), None)
    model.learn(N * T, callback=RelabelCallback())
    buffer = model.replay_buffer
    rows, columns = np.broadcast_arrays(np.arange(buffer.pos)[:, None], np.arange(N))
    total = buffer.rewards[rows, columns]
    found = {}
    for t in range(buffer.pos):
        for i in range(N):
            o = buffer.observations[t, i]
            found[i, int(o[1]), int(o[0])] = total[t, i]
    return found
