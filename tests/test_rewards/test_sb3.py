import gymnasium as gym
import numpy as np
import pytest
import torch
from scripted import ScriptedWorld
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

import rewards
from rewards.adapters.sb3 import RewardCallback, SideCritic, non_episodic_advantages

SPACES = ScriptedWorld.observation_space, ScriptedWorld.action_space


class Follows(ScriptedWorld):
    """Accepts any action and pays `pay`."""

    pay = 1.0

    def step(self, action):
        from scripted import script

        obs, _, *rest = super().step(script(np.array([[self.k, self.episode, self.index, 0]]))[0])
        return obs, self.pay, *rest


class Pays0(Follows):
    pay = 0.0


def learn(mix, world=Follows, steps=16, callback=None, **kwargs):
    model = PPO(
        "MlpPolicy", DummyVecEnv([world] * 2), n_steps=8, batch_size=16, n_epochs=1, device="cpu", seed=0, gamma=0.9,
        **kwargs,
    )  # fmt: skip
    callback = callback or RewardCallback(mix)
    model.learn(steps, callback=callback)
    return model, callback


def test_returns_and_advantages_are_computed_anew_from_the_new_rewards():
    """A mix of twice the task must equal plain PPO on a world that pays twice."""

    class Pays2(Follows):
        pay = 2.0

    mix = rewards.make({"task": rewards.get("task").Config(weight=2.0)}, *SPACES, gamma=0.9)
    ours, _ = learn(mix, steps=64)
    plain = PPO(
        "MlpPolicy", DummyVecEnv([Pays2] * 2), n_steps=8, batch_size=16, n_epochs=1, device="cpu", seed=0, gamma=0.9
    )
    plain.learn(64)
    for key, value in plain.policy.state_dict().items():
        torch.testing.assert_close(ours.policy.state_dict()[key], value, rtol=1e-5, atol=1e-6)


def test_the_bootstrap_value_at_a_time_limit_survives():
    mix = rewards.make({"task": rewards.get("task").Config(weight=3.0)}, *SPACES, gamma=0.9)
    seen = {}

    class Spy(RewardCallback):
        def _on_rollout_end(self):
            seen["before"] = self.model.rollout_buffer.rewards.copy()
            super()._on_rollout_end()
            seen["after"] = self.model.rollout_buffer.rewards.copy()
            seen["truncated"] = self.batch.truncated.copy()

    learn(mix, callback=Spy(mix))
    assert seen["truncated"].any()
    np.testing.assert_allclose(seen["after"] - seen["before"], 2.0, rtol=1e-5)  # 3 * task - task, bootstrap untouched
    assert (np.abs(seen["before"][seen["truncated"]] - 1) > 1e-4).all()


def test_a_run_that_has_seen_no_reward_does_not_drift():
    mix = rewards.make(["task"], *SPACES, gamma=0.9)
    model = PPO("MlpPolicy", DummyVecEnv([Pays0] * 2), n_steps=8, batch_size=16, n_epochs=2, device="cpu", seed=0)
    before = {k: v.clone() for k, v in model.policy.action_net.state_dict().items()}
    model.learn(64, callback=RewardCallback(mix))
    for key, value in before.items():
        torch.testing.assert_close(model.policy.action_net.state_dict()[key], value)


def test_non_episodic_advantages_by_hand():
    rewards_, values = np.array([[1.0], [2.0]]), np.array([[0.5], [0.25], [4.0]])
    advantages, returns = non_episodic_advantages(rewards_, values, 0.5, 0.5, np.ones((2, 1), bool))
    last = 2 + 0.5 * 4 - 0.25
    first = 1 + 0.5 * 0.25 - 0.5 + 0.25 * last
    assert advantages[:, 0].tolist() == pytest.approx([first, last])
    assert returns[:, 0].tolist() == pytest.approx([first + 0.5, last + 0.25])


def test_a_non_episodic_stream_leaves_returns_alone_and_moves_advantages():
    config = rewards.get("count").Config(memory="lifetime", episodic=False)
    mix = rewards.make({"task": None, "count": config}, *SPACES, gamma=0.9)
    seen = {}

    class Spy(RewardCallback):
        def _on_rollout_end(self):
            super()._on_rollout_end()
            seen["rewards"] = self.model.rollout_buffer.rewards.copy()
            seen["gap"] = self.model.rollout_buffer.advantages - (
                self.model.rollout_buffer.returns - self.model.rollout_buffer.values
            )

    _, callback = learn(mix, callback=Spy(mix))
    assert set(callback.critics) == {"count"}
    assert np.abs(seen["gap"]).max() > 0.1  # the bonus is in the advantages
    assert seen["rewards"].max() < 2.5  # task 1 and its bootstrap; the bonus is not in the rewards


def test_the_side_critic_learns_a_constant_return_and_keeps_torchs_random_numbers():
    model = PPO("MlpPolicy", DummyVecEnv([Follows] * 2), n_steps=8, batch_size=16, device="cpu", seed=0)
    state = torch.get_rng_state()
    critic = SideCritic(model.policy, gamma=0.5, gae_lambda=0.95)
    assert torch.equal(torch.get_rng_state(), state)
    rng = np.random.default_rng(0)
    from test_mix import rollout

    for _ in range(60):
        batch = rollout(rng.normal(size=(32, 2)))
        obs = rng.normal(size=(32, 2, 4)).astype(np.float32)
        critic.advantages(batch.replace(obs=obs), obs[-1], np.ones((32, 2), np.float32))
    with torch.no_grad():
        value = float(critic.net(critic._features(obs.reshape(64, 4))).mean())
    assert value == pytest.approx(2.0, abs=0.2)  # 1 / (1 - 0.5)


def test_callback_state_survives_a_save():
    mix = rewards.make(["task", "count"], *SPACES, gamma=0.9)
    _, callback = learn(mix)
    fresh = RewardCallback(rewards.make(["task", "count"], *SPACES, gamma=0.9))
    fresh.load_state_dict(callback.state_dict())
    assert fresh.tracker.cursor.step.tolist() == callback.tracker.cursor.step.tolist()
    assert fresh.seen_reward
    for key, value in callback.tracker.memory["count"].items():
        np.testing.assert_array_equal(fresh.tracker.memory["count"][key], value)


def test_a_reward_that_reads_texts_is_refused_at_the_first_step_of_an_environment_without_them():
    env = gym.make("CartPole-v1")
    mix = rewards.make(["oni"], env.observation_space, env.action_space)
    with pytest.raises(ValueError, match="reads text"):
        PPO("MlpPolicy", env, n_steps=16, batch_size=16).learn(16, callback=RewardCallback(mix))
