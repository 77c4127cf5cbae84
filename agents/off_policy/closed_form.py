"""SAC's update without autograd, for plain critics and policies on a CPU; compiled it is `agents.off_policy.kernel`."""

import math
from typing import Any

import torch
from torch import Tensor

from agents.networks.actor_critic import CLIP
from agents.networks.stacked import Stacked
from agents.replay.replay import Rows
from lodestar.numerics.flat import Flat

LOG_STD = (-5.0, 2.0)  # lowest and highest logarithm of the policy's deviation
SIZES = 4  # of batches whose memory is kept


class ClosedFormUpdate:
    """The update of a plain `SoftActorCritic` without autograd, about twice as fast on a CPU; it shares its weights.

        critics   d L / d q = (q - y) / B
        ReLU      d h / d z = 1(h > 0)
        policy    u = mean + std * noise, a = tanh(u):  d log p / d u = 2 a,  d log p / d log std = 2 a std noise - 1
                  d L / d u = (alpha 2 a - (1 - a^2) dq/da) / B

    It equals the eager update up to rounding (a test compares them). It supports CPUs, ReLU and squared errors.
    """

    def __init__(self, learner: Any) -> None:
        self.learner = learner
        self.actor = _Layers(learner.actor, learner.actor_flat)
        self.critic = _Layers(learner.critic, learner.critic_flat)
        self.target = _Layers(learner.critic, None, learner.target)
        self._memory: dict[int, _Memory] = {}

    @staticmethod
    def fits(learner: Any) -> bool:
        config = learner.config
        plain = config.norm == config.lipschitz == "none" and config.dropout == config.subset == 0
        plain = plain and config.head == "mse" and config.activation == "relu" and len(config.net_arch) > 0
        return plain and learner.device.type == "cpu"

    @torch.no_grad()
    def update(self, rows: Rows) -> dict[str, Tensor]:
        learner, config, count = self.learner, self.learner.config, len(rows.obs)
        if count not in self._memory:
            if len(self._memory) >= SIZES:
                self._memory.clear()
            self._memory[count] = _Memory(count, learner)
        memory = self._memory[count]
        alpha = learner.alpha
        self._policy(rows, memory)
        now, then = memory.action
        x = memory.inputs
        torch.cat([memory.obs[count:], then], -1, out=x)
        value = learner.aggregate(self.target.forward(x, memory.critic)[..., 0]).sub_(alpha * memory.log_prob[1])
        target = torch.addcmul(rows.reward, rows.discount, value)
        if config.bounded_targets:
            learner.watch(rows.reward)
            target = learner.bounded(target)
        torch.cat([memory.obs[:count], rows.action], -1, out=x)
        q = self.critic.forward(x, memory.critic)
        error = q[..., 0] - target
        metrics = {"critic_loss": error.square().mean(-1).sum() * 0.5, "q": q.mean(), "td": error.mean(0).abs()}
        self.critic.backward(x, (error / count)[..., None], memory.critic)
        learner.critic_flat.step(config.learning_rate, config.max_grad_norm)
        learner.target_flat.lerp_(learner.critic_flat.value, config.tau)
        x[:, learner.obs_size :] = now
        q, slope = self._value(x, memory)
        objective = q - alpha * memory.log_prob[0]
        self.actor.backward(memory.obs[:count], self._d_outputs(slope, alpha, memory), memory.actor)
        learner.actor_flat.step(config.learning_rate, config.max_grad_norm)
        return metrics | {"actor_loss": -objective.mean(), **learner.entropy_step(memory.log_prob[0])}

    def _policy(self, rows: Rows, memory: "_Memory") -> None:
        learner, count = self.learner, len(rows.obs)
        obs = torch.cat([rows.obs, rows.next_obs], out=memory.obs)
        obs.sub_(learner.mean).mul_(learner.scale).clamp_(-CLIP, CLIP)
        outputs = self.actor.forward(obs, memory.actor)[0].view(2, count, -1)
        memory.noise[1].normal_(generator=learner.generator)  # in the order in which the eager update draws
        memory.noise[0].normal_(generator=learner.generator)
        mean, raw = outputs.chunk(2, -1)
        low, high = LOG_STD
        torch.tanh(raw, out=memory.squeezed)
        log_std = memory.squeezed * (0.5 * (high - low)) + 0.5 * (high + low)
        torch.exp(log_std, out=memory.std).mul_(memory.noise)
        before = memory.std + mean
        torch.tanh(before, out=memory.action)
        steep = torch.nn.functional.softplus(-2 * before).add_(before).mul_(-2)
        each = memory.noise.square().mul_(-0.5).sub_(log_std).sub_(steep)
        constant = learner.action_size * (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
        torch.sum(each, -1, out=memory.log_prob).sub_(constant)

    def _value(self, x: Tensor, memory: "_Memory") -> tuple[Tensor, Tensor]:
        """Value of (state, own action), (B,), and its slope in the action, (B, A)."""
        learner = self.learner
        q = self.critic.forward(x, memory.critic)[..., 0]
        slope = memory.slope
        if learner.config.target == "mean":
            slope.zero_()
            for member in range(len(q)):
                slope += self.critic.slope(member, None, memory.critic, learner.obs_size) / len(q)
            return q.mean(0), slope
        least = q.min(0)
        for member in range(len(q)):  # only the critic whose value is the smallest: half the work for two
            rows = (least.indices == member).nonzero()[:, 0]
            slope[rows] = self.critic.slope(member, rows, memory.critic, learner.obs_size)
        return least.values, slope

    def _d_outputs(self, slope: Tensor, alpha: Tensor, memory: "_Memory") -> Tensor:
        """Gradient of the policy's loss with respect to its outputs, (1, B, 2A)."""
        action, size = memory.action[0], self.learner.action_size
        low, high = LOG_STD
        out = memory.d_outputs
        d_before, d_raw = out[0, :, :size], out[0, :, size:]
        torch.mul(action, 2 * alpha, out=d_before)
        d_before -= slope * (1 - action.square())
        d_before /= len(action)
        torch.mul(d_before, memory.std[0], out=d_raw)  # std holds std * noise
        d_raw -= alpha / len(action)
        d_raw *= (1 - memory.squeezed[0].square()) * (0.5 * (high - low))
        return out


class _Layers:
    """Weights of a stack of networks with ReLUs, and where their gradients go."""

    def __init__(self, net: Stacked, flat: Flat | None, weights: list[Tensor] | None = None) -> None:
        values = [p.detach() for p in net.weights()] if weights is None else weights
        grads: list[Any] = [p.grad for p in net.weights()] if flat is not None else values
        self.weights, self.biases = values[::2], values[1::2]
        self.weight_grads, self.bias_grads = grads[::2], grads[1::2]

    def forward(self, x: Tensor, space: "_Space") -> Tensor:
        """(B, I) -> (K, B, O); activations of hidden layers stay in `space`."""
        x = x.expand(len(self.weights[0]), *x.shape)
        for weight, bias, out in zip(self.weights[:-1], self.biases, space.hidden):
            x = torch.baddbmm(bias, x, weight, out=out).relu_()
        last = self.weights[-1]
        if last.shape[-1] == 1:  # a batched product with a vector is five times slower
            return torch.add(torch.linalg.vecdot(x, last.mT).unsqueeze(-1), self.biases[-1], out=space.outputs)
        return torch.baddbmm(self.biases[-1], x, last, out=space.outputs)

    def backward(self, x: Tensor, d_outputs: Tensor, space: "_Space") -> None:
        """Gradients of all weights, from those of the outputs (K, B, O) of the first B rows that went forward."""
        count = d_outputs.shape[1]
        x = x.expand(len(d_outputs), *x.shape)
        slope = d_outputs
        for number in range(len(self.weights) - 1, -1, -1):
            below = space.hidden[number - 1][:, :count] if number else x
            weight, grad, single = self.weights[number], self.weight_grads[number], slope.shape[-1] == 1
            torch.bmm(*((slope.mT, below) if single else (below.mT, slope)), out=grad.mT if single else grad)
            torch.sum(slope, 1, keepdim=True, out=self.bias_grads[number])
            if number:
                multiply = torch.mul if single else torch.bmm
                back = multiply(slope, weight.mT, out=space.back[number - 1])
                slope = torch.ops.aten.threshold_backward.grad_input(back, below, 0, grad_input=back)

    def slope(self, member: int, rows: Tensor | None, space: "_Space", begin: int) -> Tensor:
        """Of a member's single output, in its inputs from `begin` on, (rows, I - begin)."""
        slope = self.weights[-1][member].mT
        for number in range(len(self.weights) - 2, -1, -1):
            hidden = space.hidden[number][member]
            hidden = hidden if rows is None else hidden[rows]
            slope = torch.ops.aten.threshold_backward(slope.expand_as(hidden), hidden, 0)
            weight = self.weights[number][member]
            slope = slope @ (weight if number else weight[begin:]).mT
        return slope


class _Space:
    """Memory for B rows on their way through K networks and back."""

    def __init__(self, net: Stacked, rows: int, rows_back: int) -> None:
        self.hidden = [torch.empty(net.count, rows, units) for units in net.hidden]
        self.outputs = torch.empty(net.count, rows, net.outputs)
        self.back = [torch.empty(net.count, rows_back, units) for units in net.hidden]


class _Memory:
    """Memory for a batch of B rows; the leading axis of two is this state and the next."""

    def __init__(self, rows: int, learner: Any) -> None:
        size = learner.action_size
        self.actor = _Space(learner.actor, 2 * rows, rows)
        self.critic = _Space(learner.critic, rows, rows)
        self.obs = torch.empty(2 * rows, learner.obs_size)
        self.inputs = torch.empty(rows, learner.obs_size + size)
        self.noise, self.squeezed, self.std, self.action = (torch.empty(2, rows, size) for _ in range(4))
        self.log_prob, self.slope = torch.empty(2, rows), torch.empty(rows, size)
        self.d_outputs = torch.empty(1, rows, 2 * size)
