"""Random numbers of torch, drawn by a generator on its own device."""

import torch
from torch import Generator, Tensor


def draw_uniform(generator: Generator, *shape: int) -> Tensor:
    """Numbers in [0, 1)."""
    device = generator.device
    return torch.rand(shape, generator=generator, device=device)


def draw_normal(generator: Generator, *shape: int) -> Tensor:
    """Numbers with mean 0 and deviation 1."""
    device = generator.device
    return torch.randn(shape, generator=generator, device=device)


def draw_integers(generator: Generator, count: int, *shape: int) -> Tensor:
    """Int64 numbers in [0, count)."""
    device = generator.device
    return torch.randint(count, shape, generator=generator, device=device)


def draw_order(generator: Generator, count: int) -> Tensor:
    """Int64 (count,): the numbers from 0 on, shuffled."""
    device = generator.device
    return torch.randperm(count, generator=generator, device=device)
