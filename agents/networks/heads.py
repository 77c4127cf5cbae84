"""How a network represents a number: the number itself, or a distribution over bins whose mean it is.

    head = TwoHot(low=-10, high=10)
    out = network(x)                (..., head.outputs)
    head.value(out)                 (...), the number
    head.loss(out, target)          (...), to be averaged

A classification over bins keeps its gradients of one size however large the numbers are, which a squared error does
not. Bins need a range, and `symlog` squeezes any number into a fixed one. (One that grew with the targets would inflate
all values whenever it did, and with them the next targets.)

Sources: HL-Gauss is Farebrother et al. 2024, arXiv 2403.03950, section 3.1 (a Gaussian of deviation 0.75 bins around
the target, as a histogram); two-hot symlog is DreamerV3's, arXiv 2301.04104, equations 8 to 10. Differences: HL-Gauss
has three bins beyond each end, so that targets near an end keep their mean; means are taken in symlog's space.

When it fails: targets outside the range are cut, and their gradients fade. In symlog's space the mean of very noisy
targets lies nearer to 0 than their mean.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|)."""
    return torch.sign(x) * torch.log1p(x.abs())


def symexp(x: Tensor) -> Tensor:
    """The inverse of `symlog`."""
    return torch.sign(x) * torch.expm1(x.abs())


class Mse(nn.Module):
    """The number itself; half its squared error."""

    outputs = 1

    def value(self, out: Tensor) -> Tensor:
        return out.squeeze(-1)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (out.squeeze(-1) - target).square()


class _Bins(nn.Module):
    """A categorical over centres that are evenly spaced in symlog's space.

    `low`, `high` are the smallest and largest target there, `pad` bins beyond them.
    """

    centres: Tensor

    def __init__(self, bins: int, low: float, high: float, pad: int) -> None:
        super().__init__()
        self.outputs = bins
        self.low = low
        self.high = high
        # `low` and `high` are centres, too, so that there is one bin more than there are gaps.
        self.width = (high - low) / (bins - 1 - 2 * pad)
        beyond = pad * self.width
        centres = torch.linspace(low - beyond, high + beyond, bins)
        self.register_buffer("centres", centres, persistent=False)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        # A count that nothing read; and before version 0.4 bins had a scale that grew with the targets.
        state.pop(prefix + "frac_clipped", None)
        if float(state.pop(prefix + "scale", torch.ones(()))) != 1:
            raise ValueError("the checkpoint's agent.head=hl_gauss has bins of another range (0.3); train it again")
        super()._load_from_state_dict(state, prefix, *rest)

    def value(self, out: Tensor) -> Tensor:
        return symexp(torch.softmax(out, -1) @ self.centres)

    def loss(self, out: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy (...) of logits (..., bins) to targets (...), which broadcast; a target outside is cut."""
        log_probs = F.log_softmax(out, -1)
        return -(self.spread(target) * log_probs).sum(-1)

    def spread(self, target: Tensor) -> Tensor:
        """Targets (...), cut to the range, as probabilities (..., bins)."""
        inside = symlog(target).clamp(self.low, self.high)
        return self._histogram(inside[..., None])

    def _histogram(self, inside: Tensor) -> Tensor:
        """(..., 1) -> (..., bins)."""
        raise NotImplementedError


class HLGauss(_Bins):
    """Targets as histograms of a Gaussian of deviation 0.75 bins; three bins of `bins` lie beyond each end."""

    def __init__(self, bins: int = 101, low: float = -12.0, high: float = 12.0) -> None:
        super().__init__(bins, low, high, pad=3)
        half = self.width / 2
        last_edge = self.centres[-1:] + half
        edges = torch.cat([self.centres - half, last_edge])
        self.edges: Tensor
        self.register_buffer("edges", edges, persistent=False)

    def _histogram(self, inside: Tensor) -> Tensor:
        # The mass of each bin is a difference of the distribution function at its edges, over that of all bins.
        scale = math.sqrt(2) * 0.75 * self.width
        below = torch.erf((self.edges - inside) / scale)
        total = below[..., -1:] - below[..., :1]
        return below.diff(dim=-1) / total


class TwoHot(_Bins):
    """Targets as weights of the two nearest centres."""

    def __init__(self, bins: int = 101, low: float = -20.0, high: float = 20.0) -> None:
        super().__init__(bins, low, high, pad=0)

    def _histogram(self, inside: Tensor) -> Tensor:
        distance = (inside - self.centres).abs() / self.width
        return (1 - distance).clamp(min=0)


HEADS: dict[str, Callable[[], Mse | _Bins]] = {"mse": Mse, "hl_gauss": HLGauss, "two_hot": TwoHot}
