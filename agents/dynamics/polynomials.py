"""Monomials of many variables, and least squares that keep few of them, for many bootstraps at once.

Source: Brunton, Proctor & Kutz 2016, "Discovering governing equations from data by sparse identification of nonlinear
dynamical systems", PNAS 113(15). Difference: what is struck out becomes a row of the identity, so that systems of
different sparsity have one shape and are solved together, by Cholesky's method.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

COLUMNS, AFFORDABLE = 500, 150  # of a library: at most, and at most if nobody chose the degree


class Library:
    """All monomials of I variables up to a degree, the constant first.

    Attributes:
        terms: what each of P columns multiplies: tuples of variables in rising order.

    Args:
        variables: I, observations first.
        controls: how many of the last variables are actions.
        degree: 1 to 3, or 0 for the largest that fits.
        affine: whether no term holds two actions.

    Raises:
        ValueError: for a library of more than 500 terms.
    """

    def __init__(self, variables: int, controls: int, degree: int, affine: bool) -> None:
        first = variables - controls if affine else variables
        for self.degree in [degree] if degree else [3, 2, 1]:  # a fit solves systems of the library's size
            self.terms = [
                term
                for size in range(self.degree + 1)
                for term in itertools.combinations_with_replacement(range(variables), size)
                if sum(i >= first for i in term) <= 1
            ]
            if len(self.terms) <= (COLUMNS if degree else AFFORDABLE):
                break
        else:
            raise ValueError(
                f"polynomials of degree {self.degree} in {variables} numbers have {len(self.terms)} terms, and at most "
                f"{COLUMNS} can be fitted; give a lower sindy.degree, or model=ensemble"
            )
        self._last = []  # of every degree above 1: column of the degree below, and the variable it is multiplied by
        for size in range(2, self.degree + 1):
            below = {term: place for place, term in enumerate(t for t in self.terms if len(t) == size - 1)}
            here = [term for term in self.terms if len(term) == size]
            self._last.append((torch.tensor([below[t[:-1]] for t in here]), torch.tensor([t[-1] for t in here])))

    def __call__(self, variables: Tensor) -> Tensor:
        """(I, B) -> (P, B)."""
        columns = [torch.ones_like(variables[:1]), variables]
        for left, right in self._last:
            columns.append(columns[-1][left] * variables[right])
        return torch.cat(columns)

    def to(self, device: torch.device) -> Library:
        """Itself, there."""
        self._last = [(left.to(device), right.to(device)) for left, right in self._last]
        return self


def stlsq(gram: Tensor, cross: Tensor, threshold: float, alpha: float, keep: Tensor | None = None) -> Tensor:
    """Sequentially thresholded least squares of K bootstraps at once.

    Args:
        gram: float64 (K, P, P), Theta^T Theta over the rows' number, columns of root mean square 1.
        cross: float64 (K, P, D), Theta^T Y over the rows' number.
        threshold: coefficients below it are struck out, and the others fitted again, until none is.
        alpha: ridge penalty.
        keep: bool (K, P), the columns each may use; None for all.

    Returns:
        Coefficients (K, P, D), exactly 0 where struck out.
    """
    allowed = torch.ones(gram.shape[:2], dtype=torch.bool, device=gram.device) if keep is None else keep
    solutions = []
    for target in cross.unbind(-1):
        mask = allowed
        for _ in range(gram.shape[1] + 1):  # each round but the last strikes a column of somebody
            solution = _ridge(gram, target, mask, alpha)
            smaller = mask & (solution.abs() >= threshold)
            if torch.equal(smaller, mask):
                break
            mask = smaller
        solutions.append(solution)
    return torch.stack(solutions, -1)


def _ridge(gram: Tensor, target: Tensor, mask: Tensor, alpha: float) -> Tensor:
    """(K, P): least squares over the columns in `mask`; the others become rows of the identity, so they solve to 0."""
    m = mask.to(gram)
    system = gram * m[:, :, None] * m[:, None, :] + torch.diag_embed(1 - m + alpha * m)
    factor, failed = torch.linalg.cholesky_ex(system)
    solution = torch.cholesky_solve((target * m)[..., None], factor)[..., 0]
    return torch.where(failed[:, None] > 0, torch.nan, solution)
