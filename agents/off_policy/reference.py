"""A reference policy to stay near, for SAC: the divergence from it costs, beside the entropy or in its place.

    V(s) = E_a [Q(s, a) - alpha log pi(a | s)] - kl D(s)          the policy ascends the same
    D(s) = KL(pi || pi_ref) = sum of log(sigma_ref / sigma) + (sigma^2 + (mu - mu_ref)^2) / (2 sigma_ref^2) - 1/2

Both policies are Gaussians behind a tanh, which has no part in the divergence. With `agent.entropy=0` the best
policy is the posterior pi_ref exp(Q / kl), normalised; with an entropy weight the reference counts beside it.

    agent.reference=start         the policy that training begins with, which `init_from=RUN` may give
    agent.reference=FILE          one that `python -m runners.export` or `agent.save` wrote, for the same spaces
    agent.reference_every=N       the policy of now becomes the reference after every N rollouts of `agent.rollout`

Sources: Korbak, Perez and Buckley 2022 (arXiv 2205.11275); Wu, Tucker and Nachum 2019, "Behavior Regularized Offline
Reinforcement Learning" (arXiv 1911.11361), equations 3 and 4: the divergence in the value, too.
Differences: the divergence is exact, where those sample it. PPO has a stream instead (`agents.ppo.plugins.reference`).
Fails when: the reference is as random as a fresh policy and kl so high that no action becomes sure. A fresh policy has
a deviation near 1 before the tanh: a narrow one costs some nats of each number of an action.
"""

import copy

import torch
from torch import Tensor

from agents.networks.actor_critic import CLIP
from agents.off_policy.sac import SoftActorCritic, moments
from lodestar.state import Stateful

# The policy that training begins with.
START = "start"


class ReferenceActor(Stateful):
    """The actor of a reference policy with its whitening of observations, and how many rollouts have ended."""

    saved = ("actor", "mean", "scale", "is_set", "rollouts")

    def __init__(self, learner: SoftActorCritic, every: int, teacher: SoftActorCritic | None = None) -> None:
        self.learner = learner
        self.every = every
        self.rollouts = 0
        self.take(teacher or learner)
        # Where training begins is known at its first update: weights may come from another run.
        self.is_set = teacher is not None
        learner.divergence = self.divergence

    def take(self, teacher: SoftActorCritic) -> None:
        """Its policy of now becomes the reference."""
        self.actor = copy.deepcopy(teacher.actor).requires_grad_(False)
        self.mean = teacher.mean.clone()
        self.scale = teacher.scale.clone()
        self.is_set = True

    def begin(self) -> None:
        """Training begins: where no file was given its first policy is the reference."""
        if not self.is_set:
            self.take(self.learner)

    def end_rollout(self) -> None:
        """Count a rollout, after which the policy may become the reference."""
        self.rollouts += 1
        if self.every and self.is_set and self.rollouts % self.every == 0:
            self.take(self.learner)

    def divergence(self, obs: Tensor) -> Tensor:
        """KL(pi || pi_ref) in states (B, D): (B,), differentiable in the learner's policy."""
        outputs = self.learner.actor(self.learner.inputs(obs))[0]
        mean, log_std = moments(outputs)
        with torch.no_grad():
            whitened = (obs - self.mean) * self.scale
            whitened = whitened.clamp(-CLIP, CLIP)
            reference_mean, reference_log_std = moments(self.actor(whitened)[0])
        squares = (2 * log_std).exp() + (mean - reference_mean).square()
        precision = (-2 * reference_log_std).exp()
        terms = reference_log_std - log_std + 0.5 * squares * precision - 0.5
        return terms.sum(-1)
