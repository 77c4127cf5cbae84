"""Streams without a discount (`reward.NAME.gamma=average`): values and advantages relative to the mean reward a step.

A discount below 1 is short-sighted in a task that never ends, and one near 1 gives large values, which are slow to
learn. The average-reward criterion has neither fault: what a policy is worth is its mean reward a step, rho, and a
state's differential value is how much more than rho a step will come after it.

    delta_t = r_t - rho + V(s_{t+1}) - V(s_t)       A_t = delta_t + lambda A_{t+1}
    V follows A_t + V(s_t) - PULL b                 rho, b: running means over rollouts of r and of V

V is only known up to a constant, which would drift with every error of rho; the pull holds its mean near 0.

Sources: Ma et al. 2021 (APO), "Average-Reward Reinforcement Learning with Trust Region Methods", arXiv 2106.03442;
Zhang, Ross 2021 (ATRPO), "On-Policy Deep Reinforcement Learning for the Average-Reward Criterion", arXiv 2106.07329.
Differences: the first rollouts count equally in the running means; the pull is part of the advantage as well, where
minibatches take it off again with the mean. A termination is a step to the next episode's first state, at no cost of
its own; where time ran out the episode's last value stands for what would have followed.
Fails when: episodes are the task (their return is what counts), or rho moves faster than its mean follows.
"""

from typing import TYPE_CHECKING

import numpy as np

from agents.ppo.extensions import is_average
from agents.ppo.plugins.credit import CreditEstimator
from agents.ppo.seams import GAEInputs, advantages
from lodestar.state import Stateful

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

# What a rollout counts in the running means, once there were 1 / MEAN_RATE of them; and the pull on V's mean. Both
# are those of the authors' code.
MEAN_RATE = 0.1
PULL = 0.1


class AverageEstimator(Stateful):
    """Differential advantages of some streams; those of the others are by their credit and discount."""

    saved = ("rewards_mean", "values_mean", "rollouts")

    def __init__(self, agent: "PPO") -> None:
        agent.config.refuse_if(
            agent.config.demos,
            "agent.demos={demos} compares values with discounted returns of episodes; leave gamma=average out",
        )
        self.others = CreditEstimator(agent)
        self.names = []
        self.columns = []
        for column, (name, stream) in enumerate(agent.streams.items()):
            if is_average(stream):
                self.names.append(name)
                self.columns.append(column)
        # The agent's metrics, which get the mean rewards.
        self.metrics = agent.metrics
        self.rewards_mean = np.zeros(len(self.columns), np.float32)
        self.values_mean = np.zeros(len(self.columns), np.float32)
        self.rollouts = 0

    def __call__(self, inputs: GAEInputs) -> np.ndarray:
        """As `agents.ppo.seams.advantages`."""
        advantage = self.others(inputs)
        valid = inputs.valid
        averaged = inputs.select_streams(self.columns)
        if valid.any():
            self._follow_means(averaged.rewards[valid], averaged.values[:-1][valid])
        # Only a time limit cuts a return, which goes on with the value of the true last observation.
        differential = averaged._replace(
            rewards=averaged.rewards - self.rewards_mean,
            terminated=np.zeros_like(inputs.terminated),
            truncated=inputs.truncated & ~inputs.terminated,
            episodic=np.ones_like(averaged.episodic),
        )
        pull = PULL * self.values_mean * valid[..., None]
        advantage[..., self.columns] = advantages(differential) - pull
        return advantage

    def _follow_means(self, rewards: np.ndarray, values: np.ndarray) -> None:
        """Move the running means by a rollout's rows (M, K)."""
        self.rollouts += 1
        rate = max(MEAN_RATE, 1 / self.rollouts)
        self.rewards_mean += np.float32(rate) * (rewards.mean(0) - self.rewards_mean)
        self.values_mean += np.float32(rate) * (values.mean(0) - self.values_mean)
        for name, mean in zip(self.names, self.rewards_mean):
            self.metrics[f"train/average_reward_{name}"] = float(mean)
