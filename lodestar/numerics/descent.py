"""Stochastic gradient descent: parameters of a network as one vector, with Adam, and what is drawn at random for it.

A step is a few calls however many layers there are, and never imports torch's compiler, as `torch.optim` does at the
first one (two seconds and 150 MB of every short run). A draw is made by a generator, on its own device.
"""

import math
from typing import Any

import torch
from torch import Generator, Tensor, nn

from lodestar.state import Stateful

# What torch's fused step of Adam takes besides the rate and epsilon.
ADAM_OPTIONS: Any = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "amsgrad": False, "maximize": False}


class Flat(Stateful):
    """Parameters as one vector, their gradients as another; its state is Adam's moments and step count.

    Example:
        >>> weight = nn.Parameter(torch.tensor([1.0, -1.0]))
        >>> flat = Flat.of_parameters([weight])
        >>> weight.square().sum().backward()
        >>> flat.step(0.1)
        >>> [round(x, 3) for x in weight.tolist()]
        [0.9, -0.9]
    """

    saved = ("mean", "square", "steps")

    def __init__(self, value: Tensor, epsilon: float = 1e-5) -> None:
        self.value = value
        self.grad = torch.zeros_like(value)
        # Adam's moments and step count.
        self.mean = torch.zeros_like(value)
        self.square = torch.zeros_like(value)
        self.steps = torch.zeros((), device=value.device)
        self.epsilon = epsilon
        self.on_host = value.device.type == "cpu"

    @classmethod
    def of_parameters(cls, parameters: list[nn.Parameter], epsilon: float = 1e-5) -> "Flat":
        """A flat vector of parameters, which become views of it in order: a write into one is a write into both."""
        values = [parameter.detach().reshape(-1) for parameter in parameters]
        flat = cls(torch.cat(values or [torch.zeros(0)]), epsilon)
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            parameter.data = flat.value[begin:end].view_as(parameter)
            parameter.grad = flat.grad[begin:end].view_as(parameter)
            begin = end
        return flat

    def part(self, places: Tensor) -> "Flat":
        """A copy of the numbers at some places, with their moments."""
        part = Flat(self.value[places], self.epsilon)
        part.mean = self.mean[places]
        part.square = self.square[places]
        part.steps.copy_(self.steps)
        return part

    def put(self, places: Tensor, part: "Flat") -> None:
        """Write the values and moments of `part` to the places that it was copied from."""
        self.value[places] = part.value
        self.mean[places] = part.mean
        self.square[places] = part.square
        self.steps.copy_(part.steps)

    def descend(self, loss: Tensor, learning_rate: float, max_grad_norm: float = math.inf, of: Any = None) -> Tensor:
        """`step` along the gradient of a loss (), given back detached; `of`: the only parameters to get one."""
        self.grad.zero_()
        loss.backward(inputs=of)
        self.step(learning_rate, max_grad_norm)
        return loss.detach()

    def step(self, learning_rate: float, max_grad_norm: float = math.inf) -> None:
        """Clip the gradient to a norm, then Adam (Kingma & Ba 2015)."""
        self.clip(max_grad_norm)
        self.adam(learning_rate)

    def clip(self, max_grad_norm: float) -> Any:
        """Shorten the gradient to a norm; returns the norm that it had, a number or a tensor ()."""
        if not self.on_host:
            norm = torch.linalg.vector_norm(self.grad)
            self.grad.mul_(torch.clamp(max_grad_norm / (norm + 1e-6), max=1.0))
            return norm
        # On the host, a call of NumPy's arithmetic costs less than one of torch's.
        grad = self.grad.numpy()
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
        torch._fused_adam_(*lists, lr=learning_rate, eps=self.epsilon, **ADAM_OPTIONS)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "param_groups" in state:
            state = self._from_torch_adam(state)
        super().load_state_dict(state)

    def _from_torch_adam(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of a `torch.optim.Adam`, which rewards had until 0.2.0, as one of ours."""
        parameters = [state["state"][key] for key in sorted(state["state"])]
        if not parameters:
            return self.state_dict()
        means = []
        squares = []
        for parameter in parameters:
            means.append(parameter["exp_avg"].reshape(-1))
            squares.append(parameter["exp_avg_sq"].reshape(-1))
        return {"mean": torch.cat(means), "square": torch.cat(squares), "steps": parameters[0]["step"]}


def draw_uniform(generator: Generator, *shape: int) -> Tensor:
    """Numbers in [0, 1)."""
    return torch.rand(shape, generator=generator, device=generator.device)


def draw_normal(generator: Generator, *shape: int) -> Tensor:
    """Numbers with mean 0 and deviation 1."""
    return torch.randn(shape, generator=generator, device=generator.device)


def draw_integers(generator: Generator, count: int, *shape: int) -> Tensor:
    """Int64 numbers in [0, count)."""
    return torch.randint(count, shape, generator=generator, device=generator.device)


def draw_order(generator: Generator, count: int) -> Tensor:
    """Int64 (count,): the numbers from 0 on, shuffled."""
    return torch.randperm(count, generator=generator, device=generator.device)
