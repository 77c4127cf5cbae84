"""A policy of continuous actions as sparse polynomials of what it reads: short equations that imitate it.

Source: Zolman et al. 2024, "SINDy-RL", arXiv 2403.09110, section on sparse policies: a trained network's actions are
fitted by sequentially thresholded least squares. Differences: the states are those that the policy visited, without
disturbances; one fit instead of an ensemble; how well it imitates is measured in episodes that were held out.
When it fails: policies that jump or saturate, as of bang-bang control; many numbers, for which the degree falls to 1.
"""

from typing import Any

import numpy as np
import torch

from agents.dynamics.sindy import Library, polynomial_text, stlsq
from runners.explain.reading import r_squared

# The least coefficient that is kept, in deviations of the action for a term of root mean square 1; and the penalty.
THRESHOLD = 0.05
RIDGE = 1e-4


def fit_polynomials(
    read: np.ndarray, names: list[str], actions: np.ndarray, held_out: np.ndarray, low: Any, high: Any
) -> dict[str, Any]:
    """Equations from what is read (M, F) to actions (M, n) in [low, high], of the rows that are not `held_out` (M,).

    Returns the equations as `lines`, a line each, and their `fidelity`: R^2 of the actions that were held out.
    """
    inputs = torch.tensor(read, dtype=torch.float64)
    goal = torch.tensor(actions, dtype=torch.float64)
    fitted = torch.from_numpy(~held_out)
    library = Library(inputs.shape[1], 0, 0, affine=False)
    columns = library(inputs.T)
    coefficients = _sparse_coefficients(columns[:, fitted], goal[fitted])
    predicted = (columns.T @ coefficients).numpy()
    predicted = predicted.clip(low, high)

    words = []
    for name in names:
        if " " in name:
            name = f"({name})"
        words.append(name)
    lines = []
    for number, row in enumerate(coefficients.T.tolist()):
        text = polynomial_text(row, library.terms, words) or "0"
        lines.append(f"action {number} = {text}")
    return {"lines": lines, "fidelity": r_squared(predicted[held_out], actions[held_out])}


def _sparse_coefficients(columns: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """Coefficients (P, n) of terms (P, M) for actions (M, n)."""
    # Terms of root mean square 1 and actions of deviation 1, so that one threshold serves all.
    mean_squares = columns.square().mean(1)
    size = _positive(mean_squares.sqrt())
    spread = _positive(goal.std(0, correction=0))
    theta = columns / size[:, None]
    count = theta.shape[1]
    gram = theta @ theta.T / count
    cross = theta @ (goal / spread) / count
    solutions = stlsq(gram[None], cross[None], THRESHOLD, RIDGE)
    return solutions[0] * spread / size[:, None]


def _positive(sizes: torch.Tensor) -> torch.Tensor:
    """Sizes, 1 where they are 0."""
    return torch.where(sizes > 0, sizes, 1.0)
