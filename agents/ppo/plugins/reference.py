"""A reference policy to stay near: a penalty for what it would hardly have done, as a stream of its own.

    r(s, a) = log pi_ref(a | s) - log pi(a | s)          counts `agent.kl` times, with a value of its own

Its mean is minus the divergence KL(pi || pi_ref) at the states that are visited. Beside other rewards R, the best
policy is the posterior pi_ref exp(R / kl), normalised: what the reward says, as far as the reference holds it possible.
A learned reward is right where it was taught. A policy that stays near the one that its data came from does not get far
to where the reward is wrong.

    agent.reference=start         the policy that training begins with, which `init_from=RUN` may give
    agent.reference=FILE          one that `python -m runners.export` or `agent.save` wrote, for the same spaces
    agent.reference_every=N       the policy of now becomes the reference after every N rollouts

Sources: Korbak, Perez and Buckley 2022, "RL with KL penalties is better viewed as Bayesian inference"
(arXiv 2205.11275); the new reference every so often is ProRL's, Liu et al. 2025 (arXiv 2505.24864).
Differences: the penalty is a stream with a value and the learner's discount, where language models add it to a token's
reward; the single sample log pi - log pi_ref, whose gradient is right, stands for the divergence.
Fails when: the reference is bad, as one that plays at random forbids every sure policy; kl is so small that the reward
outweighs it. Divergences add up along an episode: choose kl by `reference/kl` in the log.
"""

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from agents.networks.actor_critic import ActorCritic
from agents.ppo.config import PPOConfig
from agents.ppo.seams import Penalty, Targets
from agents.ppo.update import TorchUpdate
from lodestar.numerics.descent import Flat

if TYPE_CHECKING:
    from agents.ppo.agent import PPO
    from agents.ppo.collector import Collector

# The policy that training begins with.
START = "start"
# Settings in which the network of a file has to be the agent's own.
NETWORK_SETTINGS = ("net", "net_arch", "activation", "gru", "normalize_obs")


class Reference(Penalty):
    """The reference policy, and how many rollouts it was compared with."""

    saved = ("net", "rollouts")

    def __init__(self, agent: "PPO") -> None:
        config = agent.config
        self.weight = config.kl
        self.every = config.reference_every
        # Where training begins is known at the first rollout: weights may come from another run.
        self.is_start = config.reference == START
        self.rollouts = 0
        self.net = copy.deepcopy(agent.policy)
        if not self.is_start:
            copy_policy(self.net, _read_policy(agent))
        flat = Flat.of_parameters(self.net.ordered())
        self.learner = TorchUpdate(self.net, flat, config)

    @staticmethod
    def stream(config: PPOConfig) -> SimpleNamespace:
        return SimpleNamespace(gamma=config.gamma, episodic=True)

    def reward(self, agent: "PPO", collector: "Collector", valid: np.ndarray) -> np.ndarray:
        """log pi_ref(a | s) - log pi(a | s) of a rollout, float32 (T, N), 0 where a row is no transition."""
        begins = self.rollouts == 0 and self.is_start
        is_due = self.rollouts > 0 and self.every > 0 and self.rollouts % self.every == 0
        if begins or is_due:
            copy_policy(self.net, agent.policy)
        self.rollouts += 1
        log_prob = collector.log_prob
        rows = log_prob.shape
        no_returns = np.zeros((*rows, 0), np.float32)
        targets = Targets.stack(log_prob, np.zeros_like(log_prob), no_returns)
        batch = collector.batch(targets)
        evaluated = self.learner.evaluate(batch.vector, batch.pixels, batch.action, batch.mask)
        reference_log_prob = evaluated[1].reshape(rows)
        ratio = np.where(valid, reference_log_prob - log_prob, np.float32(0))
        agent.metrics["reference/kl"] = -float(ratio.mean(where=valid))
        return ratio


def copy_policy(net: ActorCritic, other: ActorCritic) -> None:
    """Copy what `other` does into `net`; its values stay, which are those of other streams."""
    state = other.state_dict()
    weights = {key: x for key, x in state.items() if not key.startswith("vf_head.")}
    net.load_state_dict(weights, strict=False)


def _read_policy(agent: "PPO") -> ActorCritic:
    """The network of a file; a ValueError where it is not like the agent's own."""
    reference = agent.read_reference(agent, overlap=False)
    for name in NETWORK_SETTINGS:
        theirs = getattr(reference.config, name)
        agent.config.refuse_if(
            theirs != getattr(agent.config, name),
            f"agent.reference={{reference}} was trained with agent.{name}={theirs}, this agent has {{{name}}}; give "
            "both the same",
        )
    return reference.policy
