"""Fitted Q evaluation: what a policy is worth, of a recording alone.

    Q(s, a) <- r + gamma Q'(s', pi(s'))        value: the mean of Q(s, pi(s)) over the recording's first states

Sources: Le, Voloshin & Yue 2019, "Batch Policy Learning under Constraints", arXiv 1903.08738 (FQE); Paine et al. 2020,
"Hyperparameter Selection for Offline Reinforcement Learning", arXiv 2007.09055, which chooses settings by it.
Differences: two networks with layer normalisation and their mean; targets stay within what the recording's rewards can
sum up to; Q' follows slowly. The policy acts by its mode, without memory.
When it fails: it is as blind as the policy's own critics to actions that the recording does not have, and a policy that
leaves the recording can look good. Values of policies with a memory, as chunks of actions, are those of its first step.
"""

import copy
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import CLIP, SpaceEncoding
from agents.networks.stacked import Stacked
from agents.predictor import Predictor
from envs.transitions import Transitions, index_obs, map_obs
from lodestar.numerics.descent import Flat, draw_integers

FITTED_NETWORKS = 2
FITTED_UNITS = [64, 64]
FITTED_BATCH = 256
FITTED_RATE = 1e-3
FITTED_TAU = 0.05
MAX_FITTED_GRAD_NORM = 10.0
# Observations that a policy is asked about at once.
ROWS_A_CALL = 10_000


def fitted_value(policy: Predictor, data: Transitions, steps: int, gamma: float, seed: int = 0) -> float:
    """The discounted return from the first states of `data`, a batch (N,), by its task's rewards, after `steps`."""
    data = data[data.valid]
    encoding = SpaceEncoding(policy.observation_space, policy.action_space)
    obs = _to_tensor(encoding.vector(data.obs))
    std, mean = torch.std_mean(obs, 0, correction=0)

    def inputs(observations: Any, action: np.ndarray) -> Tensor:
        vector = _to_tensor(encoding.vector(observations))
        whitened = (vector - mean) / std.clamp(min=1e-3)
        whitened = whitened.clamp(-CLIP, CLIP)
        encoded = torch.from_numpy(encoding.encode(action))
        return torch.cat([whitened, encoded], -1)

    recorded = inputs(data.obs, data.action)
    next_action = chosen_actions(policy, data.next_obs)
    following = inputs(data.next_obs, next_action)
    reward = _to_tensor(data.reward)
    unit = float(reward.std()) or 1.0
    continues = torch.from_numpy(~data.terminated)
    discount = gamma * continues.float()
    q = _fit(recorded, reward / unit, discount, following, steps, gamma, seed)
    is_first = data.step == 0
    if not is_first.any():
        is_first[:] = True
    starts = index_obs(data.obs, is_first)
    with torch.no_grad():
        values = q(inputs(starts, chosen_actions(policy, starts)))
    return float(values.mean()) * unit


def _to_tensor(numbers: Any) -> Tensor:
    """A copy in float32."""
    return torch.from_numpy(np.array(numbers, np.float32))


def chosen_actions(policy: Predictor, obs: Any) -> np.ndarray:
    """The modes of a policy in states (N, ...)."""
    count = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
    parts = []
    for begin in range(0, count, ROWS_A_CALL):
        part = map_obs(operator.itemgetter(slice(begin, begin + ROWS_A_CALL)), obs)
        parts.append(policy.predict(part, deterministic=True)[0])
    return np.concatenate(parts)


def _fit(
    inputs: Tensor, reward: Tensor, discount: Tensor, following: Tensor, steps: int, gamma: float, seed: int
) -> Stacked:
    """Networks of values (K, B, 1) of states and actions (B, I), after so many minibatches of these rows (N, ...)."""
    q = Stacked(FITTED_NETWORKS, inputs.shape[1], FITTED_UNITS, 1, norm="layer", seed=seed)
    flat = Flat.of_parameters(list(q.parameters()))
    target = copy.deepcopy(q)
    target_flat = Flat.of_parameters(list(target.parameters()))
    # A sum of rewards cannot leave this range, which contains 0, the value of an end.
    horizon = 1 / max(1 - gamma, 1e-6)
    lowest = float(reward.min().clamp(max=0)) * horizon
    highest = float(reward.max().clamp(min=0)) * horizon
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = draw_integers(generator, len(inputs), FITTED_BATCH)
        with torch.no_grad():
            next_value = target(following[rows]).mean(0)[:, 0]
            goal = reward[rows] + discount[rows] * next_value
            goal = goal.clamp(lowest, highest)
        error = q(inputs[rows])[..., 0] - goal
        flat.descend(error.square().mean(), FITTED_RATE, MAX_FITTED_GRAD_NORM)
        target_flat.value.lerp_(flat.value, FITTED_TAU)
    return q
