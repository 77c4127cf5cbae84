"""HILP: one policy for every direction in which states can change, prompted by a goal without learning on.

    r_z(s, s') = <phi(s') - phi(s), z>     |phi(s) - phi(g)| are the steps from s to g, |z| = sqrt(d)
    goal g        z = sqrt(d) (phi(g) - phi(s)) / ||phi(g) - phi(s)||, at every step
    reward r      in each state a goal a few steps ahead, from a plan over recorded segments (`agents.offline.plan`)

IQL learns the policy from a recording, with z beside the observation: each minibatch draws its own z and is rewarded
for going there. phi was learned before, of the same recording (`Hilbert` of the reward `hilp`), and stays.
Source: Park, Kreiman, Levine 2024, "Foundation Policies with Hilbert Representations", arXiv 2402.15567, equation 8.
Differences: phi first, then the policy, where the source learns both at once; half of the z lead from one recorded
state to another, all are uniform in the source; small networks; a reward is a plan, not the one direction that fits it
best by least squares, which leads to few rewards (`benchmarks hilp_prompts`).
Fails when: phi does (see the reward `hilp`); the recording shows no action that leads on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from agents.offline.iql import IQL, IQLConfig
from envs.transitions import Transitions
from envs.types import Obs
from lodestar.numerics.descent import draw_normal, draw_uniform
from lodestar.settings import setting

# Observations as vectors (N, D) -> (N, d).
Phi = Callable[[np.ndarray], np.ndarray]
# Share of the z that are drawn from the whole sphere; the others lead from one recorded state to another.
UNIFORM_Z_SHARE = 0.5


@dataclass
class HILPConfig(IQLConfig):
    """Settings of `HILP`; see `agents.offline.iql` for the others."""

    expectile: float = setting(0.9, "as in IQL, of going in a direction", "(0, 1)")
    beta: float = setting(10.0, "how much more a better action is imitated", ">= 0")
    features: int = setting(16, "numbers in phi and z, d [32]", ">= 1")


class HILP(IQL):
    """pi(a | s, z). Before it acts, `prompt` has to say what z is: observations as vectors (N, D) -> (N, d).

    Rewards and ends of `data`, a flat batch (N,), are not read; `signal` is phi, which embeds what `vector` gives.
    """

    Config = HILPConfig
    config: HILPConfig
    prompt: Phi
    phi: Any = None

    def _extra_size(self) -> int:
        # z stands behind the observation.
        return self.config.features

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
        vector = self.own.vector(obs)
        inputs = np.concatenate([vector, self.prompt(vector)], 1)
        return super()._predict(inputs, state, starts, deterministic)

    def _table(self, data: Transitions, signal: Any) -> Tensor:
        """As in IQL, with room for z; and where phi lies before and after each transition."""
        self.phi = signal
        data = data[data.valid]
        obs = self.own.vector(data.obs)
        next_obs = self.own.vector(data.next_obs)
        room = ((0, 0), (0, self.config.features))
        wider_obs = np.pad(obs, room)
        wider = data.replace(obs=wider_obs, next_obs=np.pad(next_obs, room))
        rows = super()._table(wider, None)
        # z is read as it is.
        self.net.mean[self.own.obs_size :] = 0
        self.net.std[self.own.obs_size :] = 1
        before = self.tensor(signal(obs))
        after = self.tensor(signal(next_obs))
        # The deviation of r_z over uniform z; without any movement rewards are 0 in every unit.
        squared_distance = (after - before).square().sum(1)
        self.unit = float(squared_distance.mean().sqrt()) or 1.0
        return torch.cat([rows, before, after], 1)

    def _step(self, rows: Tensor) -> dict[str, Tensor]:
        width = self.encoding.obs_size
        obs_size = self.own.obs_size
        d = self.config.features
        width_of_rows = rows.shape[1] - 2 * d
        rows, before, after = rows.split([width_of_rows, d, d], 1)
        noise = draw_normal(self._generator, *before.shape)
        chance = draw_uniform(self._generator, len(rows), 1)
        # The other z lead from each row's state to where the row before it ended.
        to_another = after.roll(1, 0) - before
        z = on_sphere(torch.where(chance < UNIFORM_Z_SHARE, noise, to_another))
        rows[:, obs_size:width] = z
        rows[:, width + obs_size : 2 * width] = z
        # The last two columns are the signal, and whether the episode continues: nothing ends.
        reward = ((after - before) * z).sum(1)
        rows[:, -2] = reward / self.unit
        rows[:, -1] = 1
        return super()._step(rows)


def on_sphere(z: Tensor) -> Tensor:
    """Vectors (..., d) of the length sqrt(d)."""
    return math.sqrt(z.shape[-1]) * normalize(z, dim=-1)
