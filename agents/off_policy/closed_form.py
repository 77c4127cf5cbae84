"""SAC's update without autograd, for plain critics and policies on a CPU; compiled it is `agents.off_policy.kernel`."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from agents.networks.actor_critic import CLIP
from agents.networks.stacked import Stacked
from agents.replay.replay import Rows
from lodestar.numerics.descent import Flat

# Lowest and highest logarithm of the policy's standard deviation.
MIN_LOG_STD = -5.0
MAX_LOG_STD = 2.0
LOG_STD_HALF_RANGE = 0.5 * (MAX_LOG_STD - MIN_LOG_STD)
LOG_STD_MIDDLE = 0.5 * (MAX_LOG_STD + MIN_LOG_STD)
# Batch sizes whose memory is kept.
MAX_BATCH_SIZES = 4

# This path earns its length where numba is missing, and before the compiled path takes over. Steps
# of Pendulum-v1 a CPU-second, acting and one update each included, on one core, medians of three
# alternating runs: 104 against 85 through autograd with two layers of 256 units and batches of 256,
# 457 against 303 with 64 and 64.


class ClosedFormUpdate:
    """The update of a plain `SoftActorCritic` without autograd; it shares its weights.

        critics   d L / d q = (q - y) / B
        ReLU      d h / d z = 1(h > 0)
        policy    u = mean + std * noise, a = tanh(u):  d log p / d u = 2 a,  d log p / d log std = 2 a std noise - 1
                  d L / d u = (alpha 2 a - (1 - a^2) dq/da) / B

    It equals the eager update up to rounding (a test compares them). It supports CPUs, ReLU and squared errors.
    """

    def __init__(self, learner: Any) -> None:
        self.learner = learner
        actor_weights = list(learner.actor.parameters())
        critic_weights = list(learner.critic.parameters())
        self.actor = _Layers(actor_weights, learner.actor_flat)
        self.critic = _Layers(critic_weights, learner.critic_flat)
        self.target = _Layers(learner.target)
        self._memory: dict[int, _Memory] = {}

    @staticmethod
    def fits(learner: Any) -> bool:
        """Whether a learner's device, networks and losses are those that this update is written for."""
        config = learner.config
        plain_critics = config.norm == "none" and config.dropout == 0 and config.head == "mse"
        plain_layers = config.activation == "relu" and len(config.net_arch) > 0
        plain_loss = config.lipschitz == "none" and config.subset == 0 and config.kl == 0
        return plain_critics and plain_layers and plain_loss and learner.device.type == "cpu"

    @torch.no_grad()
    def update(self, rows: Rows) -> dict[str, Tensor]:
        """One step of critics, targets, policy and entropy weight; returns what the eager update does."""
        learner = self.learner
        config = learner.config
        count = len(rows.obs)
        memory = self._memory_for(count)
        alpha = learner.alpha
        self._sample_actions(rows, memory)

        # Equation 5: the critics are moved towards y = r + discount (Q(s', a') - alpha log p(a' | s')).
        obs = memory.obs[:count]
        next_obs = memory.obs[count:]
        x = memory.inputs
        torch.cat([next_obs, memory.action[1]], -1, out=x)
        next_q = self.target.forward(x, memory.critic)[..., 0]
        next_entropy_cost = alpha * memory.log_prob[1]
        next_value = learner.aggregate(next_q).sub_(next_entropy_cost)
        target = torch.addcmul(rows.reward, rows.discount, next_value)
        if config.bounded_targets:
            learner.watch(rows.reward)
            target = learner.clip_target(target)
        torch.cat([obs, rows.action], -1, out=x)
        q = self.critic.forward(x, memory.critic)
        error = q[..., 0] - target
        # The means are taken now, because the next pass writes into the memory of `q`.
        metrics = {
            "critic_loss": error.square().mean(-1).sum() * 0.5,
            "q": q.mean(),
            "td": error.mean(0).abs(),
        }
        q_grad = (error / count)[..., None]
        self.critic.backward(x, q_grad, memory.critic)
        learner.critic_flat.step(config.learning_rate, config.max_grad_norm)
        learner.target_flat.lerp_(learner.critic_flat.value, config.tau)

        # Equation 9: the policy ascends Q(s, a) - alpha log p(a | s), by the critics after their step.
        x[:, learner.obs_size :] = memory.action[0]
        value, slope = self._value_and_slope(x, memory)
        objective = value - alpha * memory.log_prob[0]
        output_grad = self._actor_output_grad(slope, alpha, memory)
        self.actor.backward(obs, output_grad, memory.actor)
        learner.actor_flat.step(config.learning_rate, config.max_grad_norm)
        metrics["actor_loss"] = -objective.mean()
        return metrics | learner.entropy_step(memory.log_prob[0])

    def _memory_for(self, count: int) -> "_Memory":
        if count not in self._memory:
            if len(self._memory) >= MAX_BATCH_SIZES:
                self._memory.clear()
            self._memory[count] = _Memory(count, self.learner)
        return self._memory[count]

    def _sample_actions(self, rows: Rows, memory: "_Memory") -> None:
        """Whiten both states, and draw the policy's actions there with their log-densities."""
        learner = self.learner
        obs = torch.cat([rows.obs, rows.next_obs], out=memory.obs)
        obs.sub_(learner.mean).mul_(learner.scale).clamp_(-CLIP, CLIP)
        outputs = self.actor.forward(obs, memory.actor)[0]
        outputs = outputs.view(2, len(rows.obs), -1)
        # The next state's noise comes first, as in the eager update, so that seeds mean the same.
        memory.noise[1].normal_(generator=learner.generator)
        memory.noise[0].normal_(generator=learner.generator)
        mean, raw = outputs.chunk(2, -1)
        torch.tanh(raw, out=memory.squeezed)
        log_std = memory.squeezed * LOG_STD_HALF_RANGE + LOG_STD_MIDDLE
        torch.exp(log_std, out=memory.deviation).mul_(memory.noise)
        u = memory.deviation + mean
        torch.tanh(u, out=memory.action)
        # log(1 - tanh(u)^2) without its constant 2 log 2, which is subtracted in the last line.
        log_slope = softplus(-2 * u).add_(u).mul_(-2)
        log_density = memory.noise.square().mul_(-0.5).sub_(log_std)
        log_probs = log_density.sub_(log_slope)
        half_log_2pi = 0.5 * math.log(2 * math.pi)
        constant = learner.action_size * (half_log_2pi + 2 * math.log(2))
        torch.sum(log_probs, -1, out=memory.log_prob).sub_(constant)

    def _value_and_slope(self, x: Tensor, memory: "_Memory") -> tuple[Tensor, Tensor]:
        """Value of (state, own action), (B,), and its slope in the action, (B, A)."""
        learner = self.learner
        q = self.critic.forward(x, memory.critic)[..., 0]
        slope = memory.slope
        if learner.config.target == "mean":
            slope.zero_()
            for member in range(len(q)):
                member_slope = self.critic.slope(member, None, memory.critic, learner.obs_size)
                slope += member_slope / len(q)
            return q.mean(0), slope
        least = q.min(0)
        # Each row goes back through the critic with the smallest value alone: half the work for two.
        for member in range(len(q)):
            rows = (least.indices == member).nonzero()[:, 0]
            slope[rows] = self.critic.slope(member, rows, memory.critic, learner.obs_size)
        return least.values, slope

    def _actor_output_grad(self, slope: Tensor, alpha: Tensor, memory: "_Memory") -> Tensor:
        """Gradient of the policy's loss with respect to its outputs, (1, B, 2A)."""
        action = memory.action[0]
        grad = memory.output_grad
        d_mean, d_raw = grad[0].chunk(2, -1)
        torch.mul(action, 2 * alpha, out=d_mean)
        action_slope = 1 - action.square()
        d_mean -= slope * action_slope
        d_mean /= len(action)
        torch.mul(d_mean, memory.deviation[0], out=d_raw)
        d_raw -= alpha / len(action)
        squeezed_slope = 1 - memory.squeezed[0].square()
        d_raw *= squeezed_slope * LOG_STD_HALF_RANGE
        return grad


class _Layers:
    """Weights (K, I, O) and biases (K, 1, O) of networks with ReLUs, and where `flat` has their gradients."""

    def __init__(self, parameters: list[Tensor], flat: Flat | None = None) -> None:
        values = [parameter.detach() for parameter in parameters]
        self.weights = values[::2]
        self.biases = values[1::2]
        if flat is not None:
            grads: list[Any] = [parameter.grad for parameter in parameters]
            self.weight_grads = grads[::2]
            self.bias_grads = grads[1::2]

    def forward(self, x: Tensor, space: "_Space") -> Tensor:
        """(B, I) -> (K, B, O); activations of hidden layers stay in `space`."""
        x = x.expand(len(self.weights[0]), *x.shape)
        for weight, bias, out in zip(self.weights[:-1], self.biases, space.hidden):
            x = torch.baddbmm(bias, x, weight, out=out).relu_()
        weight = self.weights[-1]
        bias = self.biases[-1]
        # A batched product with a vector is five times slower.
        if weight.shape[-1] == 1:
            product = torch.linalg.vecdot(x, weight.mT).unsqueeze(-1)
            return torch.add(product, bias, out=space.outputs)
        return torch.baddbmm(bias, x, weight, out=space.outputs)

    def backward(self, x: Tensor, output_grad: Tensor, space: "_Space") -> None:
        """Gradients of all weights, from those of the outputs (K, B, O) of the first B rows that went forward."""
        count = output_grad.shape[1]
        inputs = [x.expand(len(output_grad), *x.shape)]
        for hidden in space.hidden:
            inputs.append(hidden[:, :count])
        slope = output_grad
        for layer in reversed(range(len(self.weights))):
            below = inputs[layer]
            grad = self.weight_grads[layer]
            single = slope.shape[-1] == 1
            if single:
                torch.bmm(slope.mT, below, out=grad.mT)
            else:
                torch.bmm(below.mT, slope, out=grad)
            torch.sum(slope, 1, keepdim=True, out=self.bias_grads[layer])
            if layer == 0:
                return
            back = space.back[layer - 1]
            multiply = torch.mul if single else torch.bmm
            multiply(slope, self.weights[layer].mT, out=back)
            slope = torch.ops.aten.threshold_backward.grad_input(back, below, 0, grad_input=back)

    def slope(self, member: int, rows: Tensor | None, space: "_Space", begin: int) -> Tensor:
        """Of a member's single output, in its inputs from `begin` on, (rows, I - begin)."""
        slope = self.weights[-1][member].mT
        for layer in reversed(range(len(self.weights) - 1)):
            hidden = space.hidden[layer][member]
            if rows is not None:
                hidden = hidden[rows]
            slope = slope.expand_as(hidden)
            slope = torch.ops.aten.threshold_backward(slope, hidden, 0)
            weight = self.weights[layer][member]
            if layer == 0:
                weight = weight[begin:]
            slope = slope @ weight.mT
        return slope


class _Space:
    """Memory for B rows on their way through K networks and back."""

    def __init__(self, net: Stacked, rows: int, rows_back: int) -> None:
        self.outputs = torch.empty(net.count, rows, net.outputs)
        self.hidden = []
        self.back = []
        for units in net.hidden:
            self.hidden.append(torch.empty(net.count, rows, units))
            self.back.append(torch.empty(net.count, rows_back, units))


class _Memory:
    """Memory for a batch of B rows; the leading axis of two is this state and the next."""

    def __init__(self, rows: int, learner: Any) -> None:
        size = learner.action_size
        self.actor = _Space(learner.actor, 2 * rows, rows)
        self.critic = _Space(learner.critic, rows, rows)
        self.obs = torch.empty(2 * rows, learner.obs_size)
        self.inputs = torch.empty(rows, learner.obs_size + size)
        self.noise = torch.empty(2, rows, size)
        # tanh of the policy's raw log deviation, and the deviation times the noise.
        self.squeezed = torch.empty(2, rows, size)
        self.deviation = torch.empty(2, rows, size)
        self.action = torch.empty(2, rows, size)
        self.log_prob = torch.empty(2, rows)
        self.slope = torch.empty(rows, size)
        self.output_grad = torch.empty(1, rows, 2 * size)
