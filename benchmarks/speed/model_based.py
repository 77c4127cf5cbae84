"""What model-based learning costs: frames per CPU-second on one thread, side by side.

    sac_ratio                 our SAC (agent=dyna, update=none) over Stable-Baselines3's, HalfCheetah, one update a
                              step, both with 256 x 256 units and batches of 256, environment and acting included
    sac_update_ratio          the update alone
    sac_fused_ratio           the update alone, fused over through autograd
    svg_cost_ratio            what a step of dhmbpo with one update costs, over one of SAC with five
    sindy_transitions_per_s   transitions a fitted SINDy model imagines, rewards and ends included
    ts1_ratio                 each row by one member, over all rows by all members, 10,000 rows

Ratios are medians over rounds; above 1 the first is faster, but for svg_cost_ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from agents.dyna.agent import Dyna
from agents.dyna.config import DynaConfig
from agents.dynamics.ensemble import DynamicsEnsemble, EnsembleConfig
from agents.networks.actor_critic import SpaceEncoding
from agents.off_policy.sac import LearnerConfig, SoftActorCritic
from agents.replay.replay import Rows
from benchmarks.speed.measure import Measure, interleave, ratio

ROUNDS, STARTS, ROWS = 3, 300, 10_000
TASK = "HalfCheetah-v5"
SAME: dict[str, Any] = {"net_arch": [256, 256], "learning_rate": 3e-4, "batch_size": 256, "learning_starts": STARTS}


def run(folder: Path, rounds: int = ROUNDS, share: float = 1.0) -> dict[str, float]:
    """Measure; a few minutes. `share` of the steps are taken."""
    path = folder / "model_based.csv"
    path.unlink(missing_ok=True)
    steps = max(int(300 * share), 10)
    ends = {"ours": _dyna(steps, preset="sac", updates_per_step=1, **SAME), "sb3": _sb3(steps)}
    figures = {"sac_ratio": ratio(interleave(path, "SAC, end to end", rounds, ends)["cpu"], "ours", "sb3")}
    updates = {"fused": _update(steps), "eager": _update(steps, fused=False), "sb3": _sb3_update(steps)}
    rates = interleave(path, "SAC, the update", rounds, updates)["cpu"]
    figures["sac_update_ratio"] = ratio(rates, "fused", "sb3")
    figures["sac_fused_ratio"] = ratio(rates, "fused", "eager")
    costs = {"svg": _dyna(steps, preset="dhmbpo"), "sac": _dyna(steps, preset="sac", updates_per_step=5)}
    figures["svg_cost_ratio"] = ratio(interleave(path, "dhmbpo and SAC", rounds, costs)["cpu"], "sac", "svg")
    buffer = interleave(path, "SINDy", rounds, {"sindy": _sindy(share)})["cpu"]["sindy"]
    figures["sindy_transitions_per_s"] = sorted(buffer)[len(buffer) // 2]
    members = {name: _ensemble(name == "all", max(int(20 * share), 2)) for name in ("split", "all")}
    figures["ts1_ratio"] = ratio(interleave(path, "ensemble", rounds, members)["cpu"], "split", "all")
    return figures


def _dyna(steps: int, **options: Any) -> Measure:
    """Our agent from its first update on; a fit of the model is among the steps."""

    def measure() -> tuple[int, Callable[[], Any]]:
        envs = gym.vector.SyncVectorEnv([lambda: gym.make(TASK)])
        config = DynaConfig(**{"learning_starts": STARTS, **options})
        agent = Dyna.build(config, envs, seed=0, device="cpu")
        agent.learn(STARTS + 5, log_interval=None)
        return steps, lambda: agent.learn(steps, reset_num_timesteps=False, log_interval=None)

    return measure


def _sb3(steps: int) -> Measure:
    def measure() -> tuple[int, Callable[[], Any]]:
        agent = _sb3_agent()
        return steps, lambda: agent.learn(steps, reset_num_timesteps=False)

    return measure


def _sb3_agent() -> Any:
    from stable_baselines3 import SAC

    agent = SAC("MlpPolicy", TASK, batch_size=256, learning_starts=STARTS, device="cpu", seed=0)
    agent.learn(STARTS + 5)
    return agent


def _sb3_update(steps: int) -> Measure:
    def measure() -> tuple[int, Callable[[], Any]]:
        agent = _sb3_agent()
        return steps, lambda: agent.train(steps, 256)

    return measure


def _update(steps: int, fused: bool = True) -> Measure:
    """SAC's update at HalfCheetah's sizes, on one batch."""

    def measure() -> tuple[int, Callable[[], Any]]:
        learner = SoftActorCritic(17, 6, LearnerConfig(), device="cpu", fused=fused)
        draw = torch.Generator().manual_seed(0)
        obs, next_obs = torch.randn(2, 256, 17, generator=draw)
        action, reward = torch.randn(256, 6, generator=draw).tanh(), torch.randn(256, generator=draw)
        nothing = torch.zeros(256, dtype=torch.int64)
        batch = Rows(obs, action, reward, next_obs, torch.full((256,), 0.99), nothing, nothing)

        def work(count: int = steps) -> None:
            for _ in range(count):
                learner.update(batch)

        work(10)
        return steps, work

    return measure


def _sindy(share: float) -> Measure:
    """Rollouts of 100 steps from 1000 states of Pendulum, as the agent imagines them, with random actions."""

    def measure() -> tuple[int, Callable[[], Any]]:
        from agents.dynamics.rollout import imagine

        envs = gym.vector.SyncVectorEnv([lambda: gym.make("Pendulum-v1")])
        agent = Dyna.build(DynaConfig(preset="sindy", learning_starts=STARTS), envs, seed=0, device="cpu", scorer=None)
        agent.learn(STARTS + 1, log_interval=None)
        imagination, count, horizon = agent.imagination, max(int(1000 * share), 10), 100
        assert imagination is not None
        obs, _ = agent.replay.starts(count)
        actions = 2 * torch.rand(horizon, count, 1, generator=torch.Generator().manual_seed(0)) - 1

        def work() -> None:
            with torch.no_grad():
                imagine(
                    imagination.model,
                    lambda x, t: (actions[t], None),
                    imagination.reward_source,
                    imagination.ends,
                    obs,
                    horizon,
                )

        return count * horizon, work

    return measure


def _ensemble(everyone: bool, calls: int) -> Measure:
    """One step of 10,000 rows by five networks of 3 x 128 units."""

    def measure() -> tuple[int, Callable[[], Any]]:
        env = gym.make(TASK)
        encoding = SpaceEncoding(env.observation_space, env.action_space)
        model = DynamicsEnsemble(encoding, EnsembleConfig(members=5, elites=5, hidden=[128, 128, 128]), seed=0)
        obs, action = torch.zeros(ROWS, encoding.obs_size), torch.zeros(ROWS, encoding.action_size)

        def work() -> None:
            with torch.no_grad():
                for _ in range(calls):
                    model.step(obs, action, member_predictions=everyone)

        return calls * ROWS, work

    return measure
