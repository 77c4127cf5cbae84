"""A critic for a stream that does not end with the episode, beside an agent that has only one critic.

Burda et al. 2018 (arXiv 1810.12894, section 2.3) value a novelty bonus with a return that crosses resets: dying must
not look expensive to curiosity. Stock PPO has one value head, whose returns end with the episode. This critic
estimates the other return; its advantages are added to the agent's, whose own returns stay as they are.
Differences: the critic reads the policy's features without training them; both advantages are added in the units of
the rewards (PPO normalises the sum). Fails when: the policy's features lack what the bonus depends on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from envs.state import Stateful
from envs.transitions import Transitions, map_obs
from envs.types import Obs


def non_episodic_advantages(
    rewards: np.ndarray, values: np.ndarray, gamma: float, gae_lambda: float, valid: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Generalised advantage estimation that ignores where episodes end.

    Args:
        rewards: (T, N).
        values: (T + 1, N), the last row is the value of the observation after the rollout.
        gamma: discount in (0, 1].
        gae_lambda: in [0, 1].
        valid: bool (T, N), False where an episode was lost: no advantage, and none flows past it. None for all.

    Returns:
        advantages and returns, both (T, N).
    """
    errors = rewards + gamma * values[1:] - values[:-1]
    advantages = np.empty_like(errors)
    running = np.zeros(errors.shape[1])
    for t in reversed(range(len(errors))):
        running = errors[t] + gamma * gae_lambda * running
        if valid is not None:
            running = np.where(valid[t], running, 0.0)
        advantages[t] = running
    return advantages, advantages + values[:-1]


class SideCritic(Stateful):
    """Two layers of 64 on the policy's features, trained on non-episodic returns after each rollout."""

    saved = ("net", "optimizer", "rng")

    def __init__(
        self, policy: Any, gamma: float, gae_lambda: float, learning_rate: float = 1e-3, epochs: int = 4
    ) -> None:
        self.policy = policy
        self.gamma, self.gae_lambda, self.epochs = gamma, gae_lambda, epochs
        self.rng = np.random.default_rng(0)
        with torch.random.fork_rng(devices=[]):  # the agent's own stream of random numbers stays as it was
            torch.manual_seed(0)
            self.net = nn.Sequential(
                nn.Linear(policy.features_dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
            ).to(policy.device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=learning_rate)

    def _features(self, obs: Obs) -> torch.Tensor:
        with torch.no_grad():
            tensor = map_obs(lambda x: torch.as_tensor(x, device=self.policy.device), obs)
            extractor = getattr(self.policy, "vf_features_extractor", None) or self.policy.features_extractor
            return self.policy.extract_features(tensor, extractor)

    def advantages(self, batch: Transitions, new_obs: Obs, rewards: np.ndarray) -> tuple[np.ndarray, float]:
        """Advantages (T, N) of `rewards` (T, N), then one round of learning; also the critic's loss."""
        length, n = batch.shape
        features = self._features(batch.flatten().obs)
        last = self._features(map_obs(lambda x: np.asarray(x), new_obs))
        with torch.no_grad():
            values = self.net(torch.cat([features, last])).cpu().numpy().reshape(length + 1, n)
        advantages, returns = non_episodic_advantages(rewards, values, self.gamma, self.gae_lambda, batch.valid)
        targets = torch.as_tensor(returns.reshape(-1, 1), dtype=torch.float32, device=features.device)
        losses = []
        for _ in range(self.epochs):
            for rows in np.array_split(self.rng.permutation(length * n), max(length * n // 256, 1)):
                loss = nn.functional.mse_loss(self.net(features[rows]), targets[rows])
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
                self.optimizer.step()
                losses.append(loss.detach())
        return advantages.astype(np.float32), float(torch.stack(losses).mean())
