"""What the rows of a policy's episodes say about its streams: shares, advantages, gradients, steps.

    advantage of stream k     A_k = sum_i (gamma_k lambda)^i delta_i, delta = r_k + gamma_k V_k(s') - V_k(s), centred
    its policy gradient       g_k = mean of A_k * grad log pi; that of the reward is sum_k w_k g_k
    one step                  theta + eta * sum_k w_k g_k, with eta such that the policy moves by STEP nats
    without stream k          the same eta, without the term w_k g_k

V_k is a forest's guess of the stream's discounted return within the episode, from the observation and the step; it has
not seen the episode it is asked about. `explains` is the share of the return's variance that it explains.

What this does not show: what a policy would have become without a stream; that takes a run without it. The steps are
those that the policy would take now: of one that has converged, the gradients are small and mostly noise.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import Inputs, cosines, stream_gradients
from envs.types import Obs
from runners.explain.episodes import OUTSIDE, PlayedRows
from runners.explain.policy import PolicyView, divergence

STEP = 0.01  # nats, mean over the states
ROWS = 2000  # that a divergence is the mean of, at most
BINS = 20  # of an episode's length
SIDE = 8  # patches of an image along a side


def contributions(played: PlayedRows) -> dict[str, dict[str, Any]]:
    """Stream -> weight, mean sum an episode, share of the mean absolute reward, and its curve (BINS,), not weighted."""
    sizes = {name: float(np.abs(part).mean()) for name, part in played.parts.items()}
    total, episodes = sum(sizes.values()) or 1.0, len(played.returns)
    place = played.batch.step * BINS // np.diff(played.begins)[played.episode]
    count = np.maximum(np.bincount(place, minlength=BINS), 1)
    return {
        name: {
            "weight": played.weights[name],
            "sum": float(part.sum(dtype=np.float64) / episodes),
            "share": sizes[name] / total,
            "curve": (np.bincount(place, played.scaled[name], BINS) / count).tolist(),
        }
        for name, part in played.parts.items()
    }


def to_go(rewards: np.ndarray, begins: np.ndarray, discount: float) -> np.ndarray:
    """Discounted sums of what follows within the episode, (M,)."""
    found = np.array(rewards, np.float64)
    for row in range(len(found) - 2, -1, -1):
        if row + 1 not in begins:
            found[row] += discount * found[row + 1]
    return found


def advantages(
    played: PlayedRows, view: PolicyView, gae_lambda: float
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Stream -> advantages (M,), centred and not weighted; and the share of its return that its value explains."""
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.model_selection import GroupKFold, cross_val_predict

    begins = played.begins
    read = np.c_[flat(played.batch.obs, Inputs(view.model.observation_space)), played.batch.step]
    most = 1.0 if read.shape[1] <= 64 else "sqrt"
    forest = ExtraTreesRegressor(50, min_samples_leaf=5, max_features=most, random_state=0)
    folds = GroupKFold(min(5, len(played.returns)))
    found, explains = {}, {}
    for name, rewards in played.scaled.items():
        goal = to_go(rewards, begins, played.gamma[name])
        if goal.std() == 0:
            found[name] = np.zeros(len(goal))
            continue
        values = cross_val_predict(forest, read, goal, groups=played.episode, cv=folds)
        after = np.append(values[1:], 0.0)
        after[begins[1:] - 1] = 0.0
        delta = rewards + played.gamma[name] * after - values
        advantage = to_go(delta, begins, played.gamma[name] * gae_lambda)
        found[name], explains[name] = advantage - advantage.mean(), float(1 - (goal - values).var() / goal.var())
    return found, explains


def flat(obs: Obs, inputs: Inputs) -> np.ndarray:
    """Observations as float32 (B, D), images as means of patches."""
    columns = [inputs.vector(obs)]
    for image in inputs.pixels(obs).values():
        down, across = (np.array_split(np.arange(n), min(SIDE, n)) for n in image.shape[2:])
        columns += [image[:, :, rows][..., cut].mean((2, 3)) for rows in down for cut in across]
    return np.concatenate(columns, -1, dtype=np.float32)


def gradients(played: PlayedRows, view: PolicyView, found: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Stream -> what each episode adds to its policy gradient, (E, P), not weighted."""
    assert view.parts is not None
    listed: dict[str, list[Tensor]] = {name: [] for name in found}
    for begin, end in zip(played.begins, played.begins[1:]):
        rows = slice(begin, end)
        pairs = zip(view.parts(*played.at(rows)), played.chosen[rows].unbind(-1))
        likely = torch.stack([part.log_prob(each) for part, each in pairs]).sum(
            0
        )  # no parameter changes what squashing adds
        given = {name: torch.as_tensor(values[rows], dtype=torch.float32) for name, values in found.items()}
        for name, one in stream_gradients(likely, given, view.parameters).items():
            listed[name].append(one * float((end - begin) / len(played.episode)))
    return {name: torch.stack(each) for name, each in listed.items()}


def angles(
    by_episode: Mapping[str, Tensor], task: str, draws: int = 1000, seed: int = 0
) -> dict[str, dict[str, float]]:
    """How a stream's gradient stands to the task's, and how sure that is, from what each of E episodes adds, (E, P).

    Returns stream -> "cosine" with the gradient of `task`, "low" and "high", its 95 % interval by a bootstrap over
    episodes, and "repeats": the cosine with its own on the other half of the episodes, mean over halves. Near 0 the
    gradient is noise, and so is the cosine.
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


def flips(played: PlayedRows, found: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Stream of the reward -> share of states where the sign of the advantage changes if it is left out."""
    weighted = {name: played.weights[name] * values for name, values in found.items() if name != OUTSIDE}
    total = np.sum(list(weighted.values()), axis=0)
    return {name: float(np.mean(np.sign(total) != np.sign(total - part))) for name, part in weighted.items()}


def steps(played: PlayedRows, view: PolicyView, by_episode: Mapping[str, Tensor], seed: int = 0) -> dict[str, float]:
    """Stream of the reward -> how far the step without it ends from the one with it, in divergences of the latter.

    0: the step is the same; 1: as far as no step at all; more: it holds the others back. Nothing where no step is made.
    """
    parts: Any = view.parts
    read = played.at(np.random.default_rng(seed).permutation(len(played.episode))[:ROWS])
    weighted = {name: played.weights[name] * each.sum(0) for name, each in by_episode.items() if name != OUTSIDE}
    total = torch.stack(list(weighted.values())).sum(0)
    kept = [parameter.detach().clone() for parameter in view.parameters]

    @torch.no_grad()
    def after(step: Tensor) -> Any:
        try:
            for parameter, part in zip(view.parameters, step.split([each.numel() for each in kept])):
                parameter += part.view_as(parameter)
            return parts(*read)
        finally:
            for parameter, before in zip(view.parameters, kept):
                parameter.copy_(before)

    now, eta, far = after(0 * total), 1e-3 / max(float(total.norm()), 1e-30), 0.0
    for _ in range(20):  # the divergence grows with the square of a small step
        far = divergence(now, after(eta * total))
        eta *= float(np.clip(np.sqrt(STEP / max(far, 1e-12)), 0.2, 10.0))
    whole = after(eta * total)
    far = divergence(whole, now)
    return {name: divergence(whole, after(eta * (total - part))) / far for name, part in weighted.items() if far > 0}


def disagreement(found: Mapping[str, np.ndarray]) -> np.ndarray:
    """How hard streams pull apart, (M,): the smaller of the largest pulls up and down, in standard deviations."""
    pulls = np.stack([values / values.std() for values in found.values() if values.std() > 0] or [np.zeros(1)])
    return np.maximum(np.minimum(pulls.max(0), -pulls.min(0)), 0.0)


def highest(values: np.ndarray, episode: np.ndarray, count: int, apart: int) -> list[int]:
    """Rows of the highest values, at least so many rows apart within an episode, highest first."""
    chosen: list[int] = []
    for row in np.argsort(-values, kind="stable").tolist():
        if len(chosen) < count and all(episode[row] != episode[x] or abs(row - x) >= apart for x in chosen):
            chosen.append(row)
    return chosen
