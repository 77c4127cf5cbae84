"""All parameters of a network as one vector, with Adam: what agents and rewards learn with.

A step is a few calls however many layers there are, and never imports torch's compiler, as `torch.optim` does at the
first one (two seconds and 150 MB of every short run).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from lodestar.state import Stateful

ADAM: Any = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "amsgrad": False, "maximize": False}


class Flat(Stateful):
    """Parameters as one vector, their gradients as another; its state is Adam's moments and step count.

    Example:
        >>> weight = nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> flat = Flat.over([weight])
        >>> weight.square().sum().backward()
        >>> flat.step(0.1)
        >>> [round(x, 3) for x in weight.tolist()]
        [0.9, -0.9]
    """

    saved = ("mean", "square", "steps")

    def __init__(self, value: Tensor, epsilon: float = 1e-5) -> None:
        self.value, self.grad = value, torch.zeros_like(value)
        self.mean, self.square = torch.zeros_like(value), torch.zeros_like(value)  # Adam's moments
        self.steps, self.epsilon = torch.zeros((), device=value.device), epsilon
        self.on_host = value.device.type == "cpu"

    @classmethod
    def over(cls, parameters: list[nn.Parameter], epsilon: float = 1e-5) -> "Flat":
        """Of a module, whose parameters become views in this order; whatever writes into one writes into the other."""
        flat = cls(torch.cat([p.detach().reshape(-1) for p in parameters] or [torch.zeros(0)]), epsilon)
        begin = 0
        for p in parameters:
            end = begin + p.numel()
            p.data = flat.value[begin:end].view_as(p)
            p.grad = flat.grad[begin:end].view_as(p)
            begin = end
        return flat

    def part(self, places: Tensor) -> "Flat":
        part = Flat(self.value[places], self.epsilon)
        part.mean, part.square = self.mean[places], self.square[places]
        part.steps.copy_(self.steps)
        return part

    def put(self, places: Tensor, part: "Flat") -> None:
        self.value[places], self.mean[places], self.square[places] = part.value, part.mean, part.square
        self.steps.copy_(part.steps)

    def descend(self, loss: Tensor, learning_rate: float, max_grad_norm: float = math.inf) -> Tensor:
        """`step` along the gradient of a loss (), which is given back detached."""
        self.grad.zero_()
        loss.backward()
        self.step(learning_rate, max_grad_norm)
        return loss.detach()

    def step(self, learning_rate: float, max_grad_norm: float = math.inf) -> None:
        """Clip the gradient to a norm, then Adam (Kingma & Ba 2015)."""
        self.clip(max_grad_norm)
        self.adam(learning_rate)

    def clip(self, max_grad_norm: float) -> Any:
        """Shorten the gradient to a norm; returns the norm that it had, a number or a tensor ()."""
        if not self.on_host:
            norm: Any = torch.linalg.vector_norm(self.grad)
            self.grad.mul_(torch.clamp(max_grad_norm / (norm + 1e-6), max=1.0))
            return norm
        grad = self.grad.numpy()  # arithmetic in torch costs a call more than in NumPy
        norm = math.sqrt(grad.dot(grad))
        if norm > max_grad_norm:
            grad *= max_grad_norm / (norm + 1e-6)
        return norm

    def adam(self, learning_rate: float) -> None:
        """Adam's step along the gradient as it is."""
        if self.on_host:
            self.steps.numpy()[...] += 1
        else:
            self.steps += 1
        lists: Any = ([self.value], [self.grad], [self.mean], [self.square], [], [self.steps])
        torch._fused_adam_(*lists, lr=learning_rate, eps=self.epsilon, **ADAM)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "param_groups" in state:  # of torch.optim.Adam, which rewards had until 0.2.0
            each = [state["state"][key] for key in sorted(state["state"])]
            names = {"mean": "exp_avg", "square": "exp_avg_sq"}
            state = (
                {own: torch.cat([one[name].reshape(-1) for one in each]) for own, name in names.items()}
                | {"steps": each[0]["step"]}
                if each
                else self.state_dict()
            )
        super().load_state_dict(state)
