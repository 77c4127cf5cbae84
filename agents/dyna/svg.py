"""Stochastic value gradients: the policy ascends the return of a few imagined steps, with gradients through the model.

From each of B states the policy and the model are unrolled for T differentiable steps; a critic values the state after
them. The policy ascends that sum directly, and the critic of the first state regresses it.

    R = sum_t gamma^t (r_t - alpha log pi(a_t | s_t) [t >= 1]) + gamma^T (Q(s_T, a_T) - alpha log pi(a_T | s_T))
    critic:  Q(s_0, a_0) -> R with the target's Q       policy:  maximise R - alpha log pi(a_0 | s_0)

Sources: Heess et al. 2015, arXiv 1510.09142; Feinberg et al. 2018 (MVE), 1803.00101, equation 3; Amos et al. 2021
(SAC-SVG), 2008.12775, equation 8; two horizons, a long one for states and a short one for gradients: Kubo et al. 2025
(DHMBPO), 2512.15439.

Differences: a rollout that is cut because it diverged continues with the value of its last finite state; only the first
state's Q is regressed, as DHMBPO does. When it fails: models whose gradients are wrong where their values are right.
"""

import torch
from torch import Tensor

from agents.dynamics.planners import Rollout
from agents.dynamics.rollout import Imagined
from agents.off_policy.sac import SoftActorCritic


def model_return(imagined: Imagined, alpha: Tensor, gamma: float, last: Tensor) -> Tensor:
    """R of the file, (B,); a rollout cut after n <= T steps continues with gamma^n V, V the soft value `last` (B,)."""
    # 0 where nothing was imagined.
    reward = imagined.reward
    if imagined.log_prob is not None:
        # The first action's entropy is no part of R.
        no_entropy = torch.zeros_like(reward[:1])
        entropy = torch.cat([no_entropy, alpha * imagined.log_prob[1:]])
        entropy = entropy.masked_fill(~imagined.alive, 0)
        reward = reward - entropy
    times = torch.arange(len(reward), device=reward.device, dtype=reward.dtype)
    powers = gamma**times
    total = (powers[:, None] * reward).sum(0)
    steps = imagined.alive.sum(0)
    ended = imagined.terminated.any(0)
    value = gamma**steps * last
    return total + value.masked_fill(ended, 0)


def svg_update(
    learner: SoftActorCritic,
    rollout: Rollout,
    obs: Tensor,
    step: Tensor,
    *,
    gamma: float,
    horizon: int,
) -> dict[str, Tensor]:
    """One step of actor, critics and alpha from B states (B, D), `step` int64 (B,) within the episode."""
    alpha = learner.alpha

    def act(obs: Tensor, t: int) -> tuple[Tensor, Tensor]:
        return learner.sample(obs)

    imagined = rollout(act=act, obs=obs, horizon=horizon, step=step)
    assert imagined.log_prob is not None
    first_log_prob = imagined.log_prob[0]
    last_obs = imagined.next_obs[-1]
    last_action, last_log_prob = learner.sample(last_obs)
    # The soft value of the last state, with gradients for the policy and by the target networks for the critics.
    last_entropy = alpha * last_log_prob
    q = learner.q(last_obs, last_action)
    value = learner.aggregate(q) - last_entropy
    objective = model_return(imagined, alpha, gamma, value)
    objective = objective - alpha * first_log_prob
    with torch.no_grad():
        target_q = learner.q(last_obs, last_action, target=True)
        target_value = learner.aggregate(target_q, drawn=True) - last_entropy
        target = model_return(imagined, alpha, gamma, target_value)
    metrics = learner.actor_step(objective, first_log_prob)
    first_action = imagined.action[0].detach()
    first_reward = imagined.reward[0].detach()
    metrics |= learner.critic_step(obs, first_action, target, first_reward)
    metrics["diverged"] = imagined.diverged.float()
    metrics["model_return"] = target.mean()
    return metrics
