"""The policy gradient of every reward stream by itself, and the angles between them.

    g_k = mean over rows of A_k(s, a) * grad log pi(a | s)

The gradient is linear in the advantages: that of a weighted reward is sum_k w_k g_k. What one step owes to a stream,
and whether two streams pull the policy in one direction, can be read off these vectors without training again.

Source: the policy gradient theorem, Sutton et al. 2000; cosines between the gradients of several objectives as in Yu et
al. 2020 (PCGrad), arXiv 2001.06782, definition 1.
Fails when: the rows are few. Both gradients then are noise, and the cosine is that of the noise: compare it with that
of a stream with itself on other episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def stream_gradients(
    log_prob: Tensor, advantages: Mapping[str, Tensor], parameters: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Stream -> its policy gradient (P,), one number for each of the parameters.

    Args:
        log_prob: (M,), log-probabilities of the actions taken, a function of the parameters.
        advantages: stream -> (M,), of these actions.
        parameters: the policy's; one that `log_prob` does not depend on has gradient 0.

    Example:
        >>> logit = torch.zeros(1, requires_grad=True)  # two actions, both with probability 1/2
        >>> log_prob = torch.log_softmax(torch.cat([logit, torch.zeros(1)]), -1)
        >>> {k: g.tolist() for k, g in stream_gradients(log_prob, {"task": torch.tensor([4.0, 0])}, [logit]).items()}
        {'task': [1.0]}
    """
    found: dict[str, Tensor] = {}
    for name, advantage in advantages.items():
        ascended = (log_prob * advantage).mean()
        parts = torch.autograd.grad(ascended, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        found[name] = torch.cat([part.reshape(-1) for part in parts])
    return found


def cosines(gradients: Mapping[str, Tensor]) -> dict[str, dict[str, float]]:
    """Stream -> stream -> cosine of their gradients, in [-1, 1]; NaN where one is 0, which has no direction.

    Example:
        >>> cosines({"task": torch.tensor([2.0, 0.0]), "bonus": torch.tensor([-3.0, 0.0])})["task"]["bonus"]
        -1.0
    """
    rows = torch.stack(list(gradients.values())).double()
    units = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)  # 0 / 0 is NaN
    table = (units @ units.T).clamp(-1, 1).tolist()
    return {name: dict(zip(gradients, row)) for name, row in zip(gradients, table)}


def angles(
    by_episode: Mapping[str, Tensor], task: str, draws: int = 1000, seed: int = 0
) -> dict[str, dict[str, float]]:
    """How a stream's gradient stands to the task's, and how sure that is, from the gradients of E episodes.

    Args:
        by_episode: stream -> (E, P), what each episode adds to its gradient.
        task: the stream that the others are compared with.
        draws: of the bootstrap over episodes, and of the halves.

    Returns:
        Stream -> "cosine" with the task's gradient, "low" and "high", its 95 % interval, and "repeats": the cosine with
        its own on the other half of the episodes, mean over halves. Near 0 the gradient is noise, and so is the cosine.
    """
    names, rng = list(by_episode), torch.Generator().manual_seed(seed)
    count, table = len(by_episode[task]), cosines({name: each.sum(0) for name, each in by_episode.items()})
    rows = torch.cat(list(by_episode.values())).double()
    products = (rows @ rows.T).view(len(names), count, len(names), count)
    drawn = torch.nn.functional.one_hot(torch.randint(count, (draws, count), generator=rng), count).sum(1).double()
    halves = (torch.rand(draws, count, generator=rng).argsort(1) < count // 2).double()

    def cosine(a: int, b: int, x: Tensor, y: Tensor) -> Tensor:
        parts = (((u @ products[i, :, j]) * v).sum(1) for i, j, u, v in ((a, b, x, y), (a, a, x, x), (b, b, y, y)))
        between, one, other = parts
        return between / (one * other).sqrt()

    found: dict[str, dict[str, float]] = {}
    for k, name in enumerate(names):
        resampled = cosine(k, names.index(task), drawn, drawn)
        low, high = torch.nanquantile(resampled, torch.tensor([0.025, 0.975]).double()).tolist()
        repeats = float(cosine(k, k, halves, 1 - halves).mean())
        found[name] = {"cosine": table[name][task], "low": low, "high": high, "repeats": repeats}
    return found
