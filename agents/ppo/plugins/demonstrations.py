"""Demonstrations in PPO: the policy begins as a clone of them, and goes back to them where it still expects less.

    at first           `demo_start` minibatches of   L = mean surprise(a | s)
    after a rollout    `demo_updates` minibatches of the same on the rows with   gain = R(s) - V(s) > 0

    surprise    -log p of a discrete action, z^2 / 2 of a Gaussian one, for each number of an action
    R           the demonstrator's return from s on, by the agent's own reward as it is now; V the agent's values

So a demonstration stops to teach where the agent expects more of itself, and an agent that has forgotten something is
taught it again. The task's reward counts only where it is the agent's.

Sources: Ma et al. 2025, "Learning What Reinforcement Learning Can't" (ReLIFT), arXiv 2506.07527: demonstrations for
what the policy fails at, between its own updates; Dong et al. 2025, "RL-PLUS", arXiv 2508.00222: demonstrations against
the collapse of what a policy can do. Differences: "fails" is judged for each row, by a value that language models do
without; no importance weights or exploration bonus for the demonstrated actions (RL-PLUS); a Gaussian keeps its
deviations, which a clone would make so small that nothing is tried; Adam's moments are its own.
Fails when: the demonstrator is bad and its rewards are rare, as V is then too low for long; observations hide what the
demonstrator saw; rewards that grow with what the agent does (novelty) rate old demonstrations low.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from agents.ppo.seams import Extra, ScoredRollout
from agents.ppo.update import TorchUpdate
from agents.replay.demonstrations import demonstrations
from envs.recording import episodes
from envs.transitions import Transitions, index_obs
from lodestar.numerics.descent import Flat
from lodestar.numerics.returns import returns
from lodestar.settings import Schedule

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

DEMO_MINIBATCH_ROWS = 256
# Of Adam while the policy becomes a clone.
CLONE_LEARNING_RATE = 1e-3


class Demonstrations(Extra):
    """The recording, as the policy reads it; a ValueError if it does not fit the run."""

    saved = ("adam", "rng")

    def __init__(self, agent: "PPO") -> None:
        config = agent.config
        self.config = config
        data = demonstrations(agent)
        of_one_environment = data[:, None]
        self.data = _end_episodes(agent.scorer.embed(of_one_environment))
        inputs = agent.policy.inputs
        self.vector = inputs.vector(data.obs)
        self.pixels = inputs.pixels(data.obs)
        self.next_vector = inputs.vector(data.next_obs)
        self.next_pixels = inputs.pixels(data.next_obs)
        self.action = _as_choices(agent.policy.actions, data.action)
        self.rate = Schedule(config.demo_rate)
        self.adam = Flat(agent.flat.value)
        self.adam.grad = agent.flat.grad
        self.rng = np.random.default_rng([agent.seed, 5])
        if config.normalize_obs:
            agent.obs_statistics.update(self.vector.astype(np.float64))
            agent.show_statistics()
        # The policy begins as a clone.
        rows = np.arange(len(self.vector))
        for _ in range(config.demo_start):
            self.step(agent.autograd, rows, CLONE_LEARNING_RATE)

    def after_update(self, agent: "PPO", scored: ScoredRollout) -> dict[str, float]:
        gain = self.gain(agent, scored.timesteps)
        rows = np.flatnonzero(gain > 0)
        metrics = {"train/demos_ahead": len(rows) / len(gain)}
        rate = agent.learner.learning_rate * float(self.rate(scored.timesteps))
        if not len(rows) or not rate:
            return metrics
        losses = [self.step(agent.autograd, rows, rate) for _ in range(self.config.demo_updates)]
        return metrics | {"train/demos_loss": float(torch.stack(losses).mean())}

    def gain(self, agent: "PPO", timesteps: int) -> np.ndarray:
        """By how much the demonstrator's return exceeds the agent's value, of each row (M,)."""
        scorer = agent.scorer
        raw, _ = scorer.score(self.data, scorer.initial_memory(1))
        names = list(scorer.streams)
        scaled = scorer.scale_rewards(raw)
        rewards = [scaled[name][:, 0] for name in names]
        reward = np.stack(rewards, -1)
        weights = scorer.weights(timesteps)
        stream_weights = [float(weights[name]) for name in names]
        weight = np.array(stream_weights, np.float32)
        # Penalties of the agent's own are streams behind those of the reward.
        count = len(names)
        values = agent.autograd.values(self.vector, self.pixels)[:, :count]
        tail = agent.autograd.values(self.next_vector, self.next_pixels)[:, :count]
        terminated = self.data.terminated[:, 0]
        tail[terminated] = 0
        ended = self.data.ended[:, 0]
        worth = returns(reward, ended, tail, agent.gamma[:count])
        return (worth - values) @ weight

    def step(self, learner: TorchUpdate, rows: np.ndarray, rate: float) -> Tensor:
        """One gradient step on some of these rows; returns the loss, ()."""
        index = self.rng.choice(rows, DEMO_MINIBATCH_ROWS)
        pixels = index_obs(self.pixels, index)
        net = learner.net
        outputs, _ = net(*learner.observation_tensors(self.vector[index], pixels))
        log_std = None if net.log_std is None else net.log_std.detach()
        action = learner.tensor(self.action[index])
        loss = net.actions.surprise(outputs, log_std, action).mean()
        return self.adam.descend(loss, rate, self.config.max_grad_norm)


def _end_episodes(rollout: Transitions) -> Transitions:
    """A recording (M, 1) in which an episode that was cut short is truncated, so that no return goes on beyond it."""
    truncated = np.array(rollout.truncated)
    flat = rollout[:, 0]
    for part in episodes(flat):
        last = part.stop - 1
        truncated[last] |= ~flat.ended[last]
    return rollout.replace(truncated=truncated)


def _as_choices(actions: Any, recorded: np.ndarray) -> np.ndarray:
    """Recorded actions as the policy chooses them, (M, choices)."""
    chosen = recorded.reshape(len(recorded), -1)
    if actions.gaussian:
        return chosen.astype(np.float32)
    return chosen - actions.start
