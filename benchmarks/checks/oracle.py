"""Do imagined rollouts return what the environment does, where the model is the simulator itself?

Episodes are played in the environment, and imagined (`agents.dynamics.rollout`) with the simulator as the model
(`agents.dynamics.true`), from the same first observation with the same actions, or the same policy where one is needed
to keep a pole up. The error is the difference of returns over the sum of the absolute rewards. Of robots, whose float32
observations do not hold the whole state, every real step is imagined from where it began, and rollouts are short; the
others last 100 steps or to the end of the episode. Any fault in how rewards, ends, masks, actions or steps are put
together shows here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results

STEPS, EPISODES = 100, 5
SHORT = 3  # steps of a rollout of robots
ROBOTS = ("Hopper-v5", "HalfCheetah-v5")
TASKS = (
    "Pendulum-v1",
    "CartPole-v1",
    "MountainCarContinuous-v0",
    "Acrobot-v1",
    "lodestar/CartPoleSwingUp-v0",
    "InvertedPendulum-v5",
    *ROBOTS,
)
BALANCE: dict[str, Callable[[np.ndarray], Any]] = {  # policies that keep episodes going
    "CartPole-v1": lambda obs: int(obs[2] + 0.5 * obs[3] + 0.05 * obs[0] + 0.1 * obs[1] > 0),
    "InvertedPendulum-v5": lambda obs: np.array([8 * obs[1] + obs[3] + 0.2 * obs[0] + 0.3 * obs[2]], np.float32),
}


def run(folder: Path) -> dict[str, float]:
    """The largest error of all tasks, and that of each; seconds."""
    rows = [{"task": task, **compare(task)} for task in TASKS]
    (folder / "oracle.csv").unlink(missing_ok=True)
    results.append_rows(folder / "oracle.csv", rows)
    return {"oracle_error": max(row["error"] for row in rows), "oracle_tasks": len(rows)}


def compare(env_id: str, episodes: int = EPISODES, steps: int = STEPS, seed: int = 0) -> dict[str, Any]:
    """Real and imagined returns of the same actions.

    Returns:
        `error`, the largest over episodes (and of robots over steps and short rollouts), relative to the sum of
        absolute rewards; `state_error`, the largest of a number in an observation, relative to that number's largest;
        `steps` compared; `ends`, whether imagined episodes end where the real ones do.
    """
    from agents.dynamics.true import TrueModel
    from agents.networks.actor_critic import SpaceEncoding
    from envs.make import make

    env = make(env_id, seed=seed)
    encoding = SpaceEncoding(env.observation_space, env.action_space)
    model = TrueModel(env_id, encoding)
    played = [_play(env, encoding, BALANCE.get(env_id), steps) for _ in range(episodes)]
    env.close()
    pieces = played
    if env_id in ROBOTS:
        pieces = [
            tuple(part[t : t + length] for part in episode)
            for episode in played
            for length in (1, SHORT)
            for t in range(0, len(episode[0]) - length + 1, length)
        ]
    # The scale of a return: a single reward may happen to be next to nothing.
    typical = float(np.mean(np.abs(np.concatenate([episode[2] for episode in played]))))
    found = _errors(env_id, model, encoding, pieces, typical)
    return {**found, "steps": sum(len(episode[0]) for episode in played)}


Episode = tuple[np.ndarray, ...]  # obs (T, D), action (T, A) as agents see it, reward (T,), terminated (T,)


def _play(env: Any, encoding: Any, policy: Callable[[np.ndarray], Any] | None, steps: int) -> Episode:
    obs, _ = env.reset()
    rows = []
    for _ in range(steps):
        action = env.action_space.sample() if policy is None else policy(obs)
        if not encoding.discrete:
            action = np.clip(action, env.action_space.low, env.action_space.high)
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((encoding.vector(obs[None])[0], encoding.encode(np.asarray(action)[None])[0], reward, terminated))
        obs = after
        if terminated or truncated:
            break
    return tuple(np.array(column) for column in zip(*rows))


def _errors(env_id: str, model: Any, encoding: Any, pieces: list[Episode], typical: float) -> dict[str, Any]:
    """The columns of `compare`."""
    import torch

    from agents.dynamics.rollout import imagine
    from envs.make import termination

    horizon, lengths = max(len(piece[0]) for piece in pieces), np.array([len(piece[0]) for piece in pieces])
    obs, actions, rewards = (_padded(pieces, column, horizon) for column in range(3))
    policy, there = BALANCE.get(env_id), np.arange(horizon)[:, None] < lengths

    def act(state: torch.Tensor, t: int) -> tuple[torch.Tensor, None]:
        if policy is None:
            return torch.as_tensor(actions[t]), None
        return torch.as_tensor(encoding.encode(np.stack([policy(row) for row in state.numpy()]))), None

    with torch.no_grad():
        rollout = imagine(
            model,
            act,
            lambda obs, action, next_obs, task, terminated, step: task,
            termination(env_id),
            torch.as_tensor(obs[0]),
            horizon,
            cut=lambda predicted, t: torch.as_tensor(t >= lengths),
        )
    scale = np.maximum(np.abs(rewards).sum(0), typical * lengths)
    alive, ended = rollout.alive.numpy(), np.array([bool(piece[3][-1]) for piece in pieces])
    width = np.abs(obs).max((0, 1)) + 1e-9
    return {
        "error": float((np.abs(rollout.reward.sum(0).numpy() - rewards.sum(0)) / scale).max()),
        "state_error": float((np.abs(rollout.obs.numpy() - obs) / width)[there & alive].max()),
        "ends": bool(np.array_equal(alive, there) and np.array_equal(rollout.terminated.any(0).numpy(), ended)),
    }


def _padded(pieces: list[Episode], column: int, horizon: int) -> np.ndarray:
    """One column of all pieces, time first, float64 (T, B, ...), 0 after their ends."""
    values = [piece[column].astype(np.float64) for piece in pieces]
    return np.stack([np.pad(v, [(0, horizon - len(v))] + [(0, 0)] * (v.ndim - 1)) for v in values], 1)
