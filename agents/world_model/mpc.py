"""Planning in a latent: action sequences are tried in the latent model, and the best is executed (TD-MPC2).

The model predicts latents and rewards, a value follows the last imagined step, and a policy proposes some of the plans;
value and policy are learned from replayed steps. The value's loss also shapes the latent.

    plan: MPPI over z_{t+1} = f(z_t, a_t), sum_{i<H} gamma^i r_i + gamma^H Q(z_H, pi(z_H))
    Q_k -> r_t + gamma (1 - end_t) min of two slow Q_j(z_{t+1}, pi(z_{t+1}))         pi ascends the mean of two Q_k

Source: Hansen et al. 2024, arXiv 2310.16828, section 3; the planner is `agents.dynamics.planners.MPPI`. Differences:
fewer plans, iterations and units; the policy is a Gaussian around a mean in [-1, 1], clipped, with its own entropy,
where the source squashes; one learning rate; ends are respected from the start.
When it fails: discrete actions; rewards far beyond the horizon that the value has not learned; partial observation.
"""

import copy
import functools
from typing import Any

import torch
from torch import Tensor

from agents.dynamics.cells import State
from agents.dynamics.planners import MPPI
from agents.dynamics.rollout import imagine
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.heads import TwoHot
from agents.networks.stacked import Stacked
from agents.replay.replay import Sequences
from agents.world_model.imag_ac import Behaviour, LatentPolicy, ReturnRange
from agents.world_model.model import DECAY, LatentModel, Losses, Replayed, weighted_mean
from lodestar.numerics.descent import draw_order

# Critics that are drawn each time a value is read.
N_CRITICS_READ = 2


class LatentMPC(Behaviour):
    """The critics, the policy and the planner, for continuous actions."""

    joint = True
    networks = {"actor": "policy", "critic": "q", "slow": "slow_q"}

    def _build(self, encoding: SpaceEncoding, features: int, seed: int) -> None:
        config = self.config
        self.head = TwoHot(low=-10.0, high=10.0)
        hidden = [config.hidden, config.hidden]
        self.q = Stacked(
            config.critics,
            features + self.action_size,
            hidden,
            self.head.outputs,
            activation="mish",
            norm="layer",
            dropout=0.01,
            last=0.0,
            seed=seed,
        )
        self.slow_q = copy.deepcopy(self.q)
        self.policy = LatentPolicy(features, self.action_size, False, config.hidden)
        self.scale = ReturnRange()
        samples = config.plan_samples + config.plan_policy
        self.planner = MPPI(
            encoding,
            horizon=config.horizon,
            samples=samples,
            policy_samples=config.plan_policy,
            iterations=config.plan_iterations,
            elites=config.plan_elites,
            gamma=config.gamma,
            device=self.generator.device,
        )
        self.planner.generator = self.generator

    def initial(self, n: int) -> State:
        """Memory of acting beside the latent: the last plan, (N, H, A)."""
        like = next(self.policy.parameters())
        plan = like.new_zeros(n, self.config.horizon, self.action_size)
        return {"plan": plan}

    def act(self, world: LatentModel, state: State, memory: State, deterministic: bool = False) -> tuple[Tensor, State]:
        def head_reward(obs: Any, action: Any, next_obs: Any, reward: Tensor, *others: Any) -> Tensor:
            return reward

        def value(z: Tensor) -> Tensor:
            return self._values(self.q, z).mean(0)

        def propose(z: Tensor, t: int) -> tuple[Tensor, None]:
            return self._sample(z), None

        rollout = functools.partial(imagine, world, reward_function=head_reward, ends=None)
        # Planning continues from the last plan of these episodes.
        self.planner.mean = memory["plan"]
        action = self.planner.plan(
            rollout,
            state["z"],
            value=value,
            policy=propose,
            deterministic=deterministic,
        )
        return action, {"plan": self.planner.mean}

    def value_loss(self, seq: Sequences, ahead: Tensor, next_z: Tensor, weight: Tensor, linked: Tensor) -> Tensor:
        """Temporal-difference loss on latents predicted `ahead` (K + 1, B, Z), through which gradients reach the model.

        `next_z` (K, B, Z) are those encoded after each of the steps of `seq` (K, B), detached, `weight` (K, B) of each
        step; `linked` bool (K, B): the next one follows.
        """
        with torch.no_grad():
            next_value = self._values(self.slow_q, next_z).amin(0)
            discount = self.config.gamma * (1 - seq.terminated)
            target = seq.reward + discount * next_value
        inputs = torch.cat([ahead[:-1], seq.action], -1)
        logits = self.q(inputs.flatten(0, 1), generator=self.generator)
        losses = self.head.loss(logits, target.flatten())
        loss = losses.mean(0).view_as(target)
        # A step without its successor has no target, unless the episode ended there.
        has_target = linked | (seq.terminated > 0)
        return weighted_mean(loss, weight * has_target)

    def update(self, world: LatentModel, sequences: Sequences, replayed: Replayed) -> Losses:
        """One step of the policy, which ascends the values; the critics learn with the model. Returns metrics."""
        config = self.config
        z = replayed.features
        # Later steps of a sequence weigh less, as they do in the model's loss.
        powers = torch.arange(len(z), device=z.device, dtype=z.dtype)
        decay = DECAY["mppi"] ** powers
        weight = replayed.valid * decay[:, None]
        distribution = self.policy(z)
        sample = self.policy.sample(distribution, self.generator)
        action = _clamp_forward(sample)
        _, entropy = self.policy.log_prob(distribution, action.detach())
        value = self._draw_values(self.q, z, action).mean(0)
        self.scale.update(value[0].detach())
        gain = value / self.scale() + config.entropy_weight * entropy
        loss = -weighted_mean(gain, weight)
        self.descend(loss, "actor")
        slow = self._flats["slow"].value
        slow.lerp_(self._flats["critic"].value, config.tau)
        return {
            "actor_loss": loss,
            "entropy": entropy.mean(),
            "value": value.mean(),
            "return_scale": self.scale(),
        }

    def _draw_values(self, q: Stacked, z: Tensor, action: Tensor) -> Tensor:
        """Values by two critics drawn at random, (2, ...), without gradients to their weights."""
        inputs = torch.cat([z, action], -1)
        order = draw_order(self.generator, self.config.critics)
        critics = order[:N_CRITICS_READ]
        weights = [p.detach()[critics] for p in q.weights()]
        logits = q(inputs.flatten(0, -2), weights)
        return self.head.value(logits.unflatten(1, inputs.shape[:-1]))

    def _sample(self, z: Tensor) -> Tensor:
        distribution = self.policy(z)
        action = self.policy.sample(distribution, self.generator)
        return action.clamp(-1, 1)

    def _values(self, q: Stacked, z: Tensor) -> Tensor:
        """Values of latents (..., Z) by two critics and the policy's actions, (2, ...)."""
        return self._draw_values(q, z, self._sample(z))


def _clamp_forward(action: Tensor) -> Tensor:
    # The gradient passes as if nothing were cut, else a policy outside [-1, 1] would never return.
    cut = action.clamp(-1, 1) - action
    return action + cut.detach()
