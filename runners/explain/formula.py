"""A policy of continuous actions as sparse polynomials of what it reads: short equations that imitate it.

Source: Zolman et al. 2024, "SINDy-RL", arXiv 2403.09110, section on sparse policies: a trained network's actions are
fitted by sequentially thresholded least squares. Differences: the states are those that the policy visited, without
disturbances; one fit instead of an ensemble; how well it imitates is measured in episodes that were held out.
When it fails: policies that jump or saturate, as of bang-bang control; many numbers, for which the degree falls to 1.
"""

import math
from typing import Any

import numpy as np
import torch

from agents.dynamics.sindy import Library, polynomial_text, stlsq

# The least coefficient that is kept, in deviations of the action for a term of root mean square 1; and the penalty.
THRESHOLD = 0.05
RIDGE = 1e-4


def fit_polynomials(
    read: np.ndarray, names: list[str], actions: np.ndarray, held_out: np.ndarray, low: Any, high: Any
) -> dict[str, Any]:
    """Equations from what is read (M, F) to actions (M, n) in [low, high], of the rows that are not `held_out` (M,).

    Returns the equations as `lines`, a line each, and their `fidelity`: R^2 of the actions that were held out.
    """
    inputs = torch.from_numpy(np.asarray(read, np.float64))
    goal = torch.from_numpy(np.asarray(actions, np.float64))
    fitted = torch.from_numpy(~held_out)
    library = Library(inputs.shape[1], 0, 0, affine=False)
    scale = _positive(inputs[fitted].std(0, correction=0))
    spread = _positive(goal[fitted].std(0, correction=0))
    columns = library((inputs / scale).T)
    # Terms of root mean square 1, so that one threshold serves all.
    size = _positive(columns[:, fitted].square().mean(1).sqrt())
    theta = columns[:, fitted] / size[:, None]
    count = theta.shape[1]
    gram = theta @ theta.T / count
    cross = theta @ (goal[fitted] / spread) / count
    solution = stlsq(gram[None], cross[None], THRESHOLD, RIDGE)[0]
    coefficients = solution * spread / size[:, None]
    predicted = (columns.T @ coefficients).numpy().clip(low, high)

    expected = goal.numpy()[held_out]
    error = np.square(predicted[held_out] - expected).sum()
    variation = np.square(expected - expected.mean(0)).sum()
    # A monomial of scaled numbers is one of the numbers themselves, divided by their scales.
    units = [math.prod(scale[i].item() for i in term) for term in library.terms]
    words = [f"({name})" if " " in name else name for name in names]
    lines = []
    for number, row in enumerate(coefficients.T.tolist()):
        raw = [c / unit for c, unit in zip(row, units)]
        lines.append(f"action {number} = {polynomial_text(raw, library.terms, words) or 0}")
    return {"lines": lines, "fidelity": float(1 - error / max(variation, 1e-12))}


def _positive(sizes: torch.Tensor) -> torch.Tensor:
    """Sizes, 1 where they are 0."""
    return torch.where(sizes > 0, sizes, 1.0)
