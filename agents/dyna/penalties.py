"""Five measures of a model's uncertainty about an outcome, to be subtracted from imagined rewards.

Each is a function of the predictions of K members for B transitions, in standard deviations of the changes the model
was fitted to: `means` and `stds` (K, B, D) of an `agents.dynamics.Predicted` with `member_predictions=True`. The result
(B,) is a distance over all D entries, 0 for certainty, and grows as sqrt(D).

    aleatoric_max  max_k |s_k|                     the largest noise that any member expects
    pairwise_max   max_kl |m_k - m_l|              the widest disagreement between two
    ens_std        sqrt(ens_var)
    ens_var        sum_d var_k(m) + mean_k(s^2)    variance of the members' mixture (law of total variance)
    loo_kl         mean_k KL(k || the others)      each against a Gaussian with the moments of the others' mixture

Sources: Lu et al. 2022, "Revisiting Design Choices in Offline Model-Based Reinforcement Learning", arXiv 2110.04135,
section 4 (all five); Yu et al. 2020, "MOPO", arXiv 2005.13239 (aleatoric_max, and the reward less weight times it);
Lakshminarayanan et al. 2017, arXiv 1612.01474 (ens_var); Pan et al. 2020, "Trust the Model When It Is Confident",
arXiv 2010.04893 (loo_kl).

Differences from the sources: deviations are in units of the data's changes, so that one weight serves several tasks;
loo_kl is the mean over members, the source draws one of them.

When it fails: members that err alike are certain; the best weight depends on the penalty, on the horizon and on K.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from agents.dynamics import Predicted

Penalty = Callable[[Predicted], Tensor]
LEAST = 1e-6  # smallest deviation, so that divisions stay finite


def aleatoric_max(predicted: Predicted) -> Tensor:
    """Largest deviation that a member predicts, (B,)."""
    return _stds(predicted).norm(dim=-1).amax(0)


def pairwise_max(predicted: Predicted) -> Tensor:
    """Largest distance between two members' means, (B,)."""
    means = _means(predicted).transpose(0, 1)  # (B, K, D)
    return torch.cdist(means, means).amax((1, 2))


def ens_var(predicted: Predicted) -> Tensor:
    """Variance of the mixture of all members, summed over numbers, (B,); without stds that of the means alone."""
    means = _means(predicted)
    second = (means - means.mean(0)).square()
    return (second if predicted.stds is None else second + predicted.stds.square()).mean(0).sum(-1)


def ens_std(predicted: Predicted) -> Tensor:
    """Deviation of the mixture of all members, (B,)."""
    return ens_var(predicted).clamp(min=LEAST**2).sqrt()


def loo_kl(predicted: Predicted) -> Tensor:
    """Mean over members of KL(member || Gaussian with the moments of the others' mixture), (B,)."""
    means, variances = _means(predicted), _stds(predicted).clamp(min=LEAST).square()
    others = len(means) - 1
    centre = means.mean(0)
    off = means - centre  # moments about the mean of all: subtracting the squares of large means would lose digits
    second = variances + off.square()
    mean = -off / others  # of the others, from the centre: all of them sum to 0
    variance = ((second.sum(0) - second) / others - mean.square()).clamp(min=LEAST**2)
    gap = off - mean
    return 0.5 * ((variances + gap.square()) / variance - 1 - torch.log(variances / variance)).sum(-1).mean(0)


PENALTIES: dict[str, Penalty] = {
    measure.__name__: measure for measure in (aleatoric_max, pairwise_max, ens_std, ens_var, loo_kl)
}


def _means(predicted: Predicted) -> Tensor:
    assert predicted.means is not None, "step(..., member_predictions=True)"
    return predicted.means


def _stds(predicted: Predicted) -> Tensor:
    assert predicted.stds is not None, "step(..., member_predictions=True) of a model that predicts deviations"
    return predicted.stds
