"""Is our PPO Stable-Baselines3's? Both learn from the same rollouts, and their weights are compared.

    python -m benchmarks ppo_twin

Teacher forcing: our agent acts, with its own noise. SB3's agent begins with the same weights, and reads our rollouts
and our noise. It computes its own actions, values, advantages and updates. Compared are CartPole and Pendulum, whose
episodes run out of time, with both of our updates: autograd, and the closed form in NumPy that small networks get.

`ppo_twin_difference` is the norm of the difference of all weights over that of what they have moved, the largest of the
four cases. Afterwards rounding makes the two drift apart, as it does two machines.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from stable_baselines3 import PPO as SB3
from stable_baselines3.common.logger import Logger
from torch import nn

import envs.make
from agents.networks.actor_critic import Actions
from agents.ppo.agent import PPO, PPOConfig
from agents.ppo.collector import Collector

ENVS = ("CartPole-v1", "Pendulum-v1")
UPDATES = ("numpy", "eager")
ROLLOUTS = 2
STEPS = 1024  # of each environment in a rollout
NUM_ENVS = 2


def run(folder: Path) -> dict[str, float]:
    """The largest difference, and how many steps were learnt from."""
    worst = 0.0
    for env in ENVS:
        for path in UPDATES:
            apart, moved = learn_both(env, STEPS, path)
            print(f"{env}, path={path}: apart {apart:.2e}, moved {moved:.3g}", flush=True)
            worst = max(worst, apart / moved)
    return {"ppo_twin_difference": worst, "ppo_twin_steps": ROLLOUTS * NUM_ENVS * STEPS}


def learn_both(env: str, steps: int, path: str) -> tuple[float, float]:
    """How far the weights are apart after two rollouts, and how far ours have moved, as Euclidean norms."""
    vector = envs.make.make_vec(env, NUM_ENVS, seed=0, backend="batched")
    config = PPOConfig(n_steps=steps, n_epochs=2, entropy_weight=0.01, path=path)
    ours = PPO(vector, config, seed=3)
    theirs = make_twin(ours, env)
    noise_rng = np.random.default_rng([3, 1])
    learn = ours.schedule.learn

    def learn_from_rollout(model: PPO) -> dict[str, Any]:
        noise = model.policy.actions.draw(noise_rng, steps, NUM_ENVS)
        read_rollout(theirs, model.collector, noise, model.policy.actions)
        # Our rows are (step, environment), SB3's (environment, step).
        order_rng = np.random.default_rng()
        order_rng.bit_generator.state = model.rng.bit_generator.state
        orders = []
        for _ in range(config.n_epochs):
            step, environment = np.divmod(order_rng.permutation(NUM_ENVS * steps), NUM_ENVS)
            orders.append(environment * steps + step)
        with mock.patch.object(np.random, "permutation", lambda count: orders.pop(0)):
            theirs.train()
        assert not orders, "SB3 has not shuffled once an epoch"
        return learn(model)

    first = ours.flat.value.clone()
    with mock.patch.object(ours.schedule, "learn", learn_from_rollout):
        ours.learn(ROLLOUTS * NUM_ENVS * steps)
    differences = []
    for mine, their in modules(ours, theirs):
        for one, other in zip(mine.parameters(), their.parameters()):
            differences.append((one - other).detach().flatten())
    apart = torch.cat(differences).norm()
    moved = (ours.flat.value - first).norm()
    return float(apart), float(moved)


def make_twin(ours: PPO, env: str) -> SB3:
    """SB3's PPO with the same settings and first weights."""
    config = ours.config
    single = envs.make.make(env)
    theirs = SB3(
        "MlpPolicy",
        single,
        n_steps=config.n_steps * ours.envs.num_envs,
        batch_size=config.batch_size,
        n_epochs=config.n_epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        ent_coef=config.entropy_weight,
        device="cpu",
    )
    theirs.set_logger(Logger(None, []))
    theirs.rollout_buffer = type(theirs.rollout_buffer)(
        config.n_steps,
        single.observation_space,
        single.action_space,
        device="cpu",
        gae_lambda=config.gae_lambda,
        gamma=config.gamma,
        n_envs=ours.envs.num_envs,
    )
    for mine, their in modules(ours, theirs):
        their.load_state_dict(mine.state_dict())
    return theirs


def modules(ours: PPO, theirs: SB3) -> Iterator[tuple[nn.Module, nn.Module]]:
    """The layers of both networks, in pairs."""
    net = ours.policy
    other = theirs.policy
    yield net.pi, other.mlp_extractor.policy_net
    yield net.vf, other.mlp_extractor.value_net
    yield net.pi_head, other.action_net
    yield net.vf_head, other.value_net


def read_rollout(theirs: SB3, collector: Collector, noise: np.ndarray, actions: Actions) -> None:
    """SB3's buffer from our rollout: its own actions out of our noise, and its own values and log-probabilities."""
    rollout = collector.rollout
    policy = theirs.policy
    policy.set_training_mode(False)
    buffer = theirs.rollout_buffer
    buffer.reset()
    last_obs = {}
    for t, columns, obs in rollout.finals:
        last_obs[t] = (columns, obs)
    starts = collector.starts
    ended = np.zeros(rollout.n, bool)
    with torch.no_grad():
        for t in range(rollout.length):
            obs = torch.as_tensor(rollout.obs[t])
            distribution: Any = policy.get_distribution(obs).distribution
            if actions.gaussian:
                chosen = distribution.mean + distribution.stddev * torch.as_tensor(noise[t])
                np.testing.assert_allclose(chosen, collector.chosen[t], atol=1e-5)
            else:
                chosen = (distribution.logits + torch.as_tensor(noise[t])).argmax(-1)
                np.testing.assert_array_equal(chosen, collector.chosen[t, :, 0])
            action = torch.as_tensor(collector.chosen[t])
            if not actions.gaussian:
                action = action.squeeze(-1)
            values, log_prob, _ = policy.evaluate_actions(obs, action)
            reward = rollout.reward[t].copy()
            timed_out = rollout.truncated[t] & ~rollout.terminated[t]
            if timed_out.any():
                columns, final = last_obs[t]
                reward[columns] += theirs.gamma * policy.predict_values(torch.as_tensor(final)).numpy()[:, 0]
            begins = starts[t] if t == 0 else ended
            buffer.add(rollout.obs[t], collector.chosen[t], reward, begins, values, log_prob)
            ended = rollout.terminated[t] | rollout.truncated[t]
        last_values = policy.predict_values(torch.as_tensor(rollout.obs[rollout.length]))
    buffer.compute_returns_and_advantage(last_values, ended)
