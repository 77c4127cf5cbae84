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

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.signal import lfilter
from torch import Tensor

from agents.networks.actor_critic import Inputs, cosines, stream_gradients
from envs.types import Obs
from lodestar.mappings import map_values
from runners.explain.episodes import OUTSIDE, PlayedRows
from runners.explain.policy import PolicyView, divergence

# How far a step moves the policy, mean over the states.
POLICY_STEP_NATS = 0.01
# A divergence is the mean over so many rows at most.
MAX_DIVERGENCE_ROWS = 2000
# Parts of an episode, whatever its length, in which a stream's curve has a value each.
EPISODE_BINS = 20
PATCHES_PER_SIDE = 8
BOOTSTRAP_DRAWS = 1000


def contributions(played: PlayedRows) -> dict[str, dict[str, Any]]:
    """Stream -> what it contributes to the reward.

    That is its weight, its mean sum an episode, its share of the mean absolute reward, and its
    curve (EPISODE_BINS,), which is not weighted.
    """
    parts = played.parts
    sizes = {name: float(np.abs(part).mean()) for name, part in parts.items()}
    total = sum(sizes.values()) or 1.0
    lengths = np.diff(played.episode_bounds)
    bins = played.batch.step * EPISODE_BINS // lengths[played.episode]
    counts = np.maximum(np.bincount(bins, minlength=EPISODE_BINS), 1)
    streams = {}
    for name, part in parts.items():
        curve = np.bincount(bins, played.scaled[name], EPISODE_BINS) / counts
        streams[name] = {
            "weight": played.weights[name],
            "sum": float(part.sum(dtype=np.float64) / len(lengths)),
            "share": sizes[name] / total,
            "curve": curve.tolist(),
        }
    return streams


def to_go(rewards: np.ndarray, begins: np.ndarray, discount: float) -> np.ndarray:
    """Discounted sums of what follows within the episode, (M,)."""
    sums = []
    # In each episode the filter y_t = r_t + discount y_{t+1}.
    for episode in np.split(np.asarray(rewards, np.float64), begins[1:-1]):
        sums.append(lfilter([1.0], [1.0, -discount], episode[::-1])[::-1])
    return np.concatenate(sums)


def advantages(
    played: PlayedRows, view: PolicyView, gae_lambda: float
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Stream -> advantages (M,), centred and not weighted; and how much its value explains.

    The latter is a share of the variance of the stream's discounted return.
    """
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.model_selection import GroupKFold, cross_val_predict

    begins = played.episode_bounds
    inputs = flatten_obs(played.batch.obs, Inputs(view.model.observation_space))
    inputs = np.c_[inputs, played.batch.step]
    max_features = 1.0 if inputs.shape[1] <= 64 else "sqrt"
    forest = ExtraTreesRegressor(50, min_samples_leaf=5, max_features=max_features, random_state=0)
    # A value is predicted by trees that have not seen its episode.
    folds = GroupKFold(min(5, len(played.returns)))
    by_stream = {}
    explains = {}
    for name, rewards in played.scaled.items():
        gamma = played.gamma[name]
        returns = to_go(rewards, begins, gamma)
        if returns.std() == 0:
            by_stream[name] = np.zeros(len(returns))
            continue
        values = cross_val_predict(forest, inputs, returns, groups=played.episode, cv=folds)
        next_values = np.append(values[1:], 0.0)
        next_values[begins[1:] - 1] = 0.0
        delta = rewards + gamma * next_values - values
        advantage = to_go(delta, begins, gamma * gae_lambda)
        by_stream[name] = advantage - advantage.mean()
        explains[name] = float(1 - (returns - values).var() / returns.var())
    return by_stream, explains


def split_patches(size: int) -> list[np.ndarray]:
    """Rows or columns of an image, those of a patch together."""
    return np.array_split(np.arange(size), min(PATCHES_PER_SIDE, size))


def flatten_obs(obs: Obs, inputs: Inputs) -> np.ndarray:
    """Observations as float32 (B, D), images as means of patches."""
    columns = [inputs.vector(obs)]
    for image in inputs.pixels(obs).values():
        _, _, height, width = image.shape
        for patch_rows in split_patches(height):
            for patch_columns in split_patches(width):
                patch = image[:, :, patch_rows][..., patch_columns]
                columns.append(patch.mean((2, 3)))
    return np.concatenate(columns, -1, dtype=np.float32)


def gradients(played: PlayedRows, view: PolicyView, advantages: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Stream -> what each episode adds to its policy gradient, (E, P), not weighted."""
    assert view.distributions is not None
    by_stream = defaultdict(list)
    for begin, end in zip(played.episode_bounds, played.episode_bounds[1:]):
        rows = slice(begin, end)
        parts = view.distributions(*played.inputs_at(rows))
        # What squashing adds to a log-probability depends on no parameter.
        log_probs = [part.log_prob(numbers) for part, numbers in zip(parts, played.chosen[rows].unbind(-1))]
        weights = {}
        for name, values in advantages.items():
            weights[name] = torch.as_tensor(values[rows], dtype=torch.float32)
        share_of_rows = float((end - begin) / len(played.episode))
        episode_gradients = stream_gradients(torch.stack(log_probs).sum(0), weights, view.parameters)
        for name, gradient in episode_gradients.items():
            by_stream[name].append(gradient * share_of_rows)
    return map_values(torch.stack, by_stream)


def angles(by_episode: Mapping[str, Tensor], task: str, seed: int = 0) -> dict[str, dict[str, float]]:
    """How a stream's gradient stands to the task's, and how sure that is, from what each of E episodes adds, (E, P).

    Returns stream -> "cosine" with the gradient of `task`, "low" and "high", its 95 % interval by a bootstrap over
    episodes, and "repeats": the cosine with its own on the other half of the episodes, mean over halves. Near 0 the
    gradient is noise, and so is the cosine.
    """
    names = list(by_episode)
    episodes = len(by_episode[task])
    totals = {name: rows.sum(0) for name, rows in by_episode.items()}
    table = cosines(totals)
    # Inner products of all episodes' gradients, (K, E, K, E): a resample weights them by how often
    # it draws an episode, without another pass over the P parameters.
    rows = torch.cat(list(by_episode.values())).double()
    products = (rows @ rows.T).view(len(names), episodes, len(names), episodes)
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(episodes, (BOOTSTRAP_DRAWS, episodes), generator=generator)
    counts = torch.nn.functional.one_hot(draws, episodes).sum(1).double()
    ranks = torch.rand(BOOTSTRAP_DRAWS, episodes, generator=generator).argsort(1)
    halves = (ranks < episodes // 2).double()

    def product(a: int, b: int, a_counts: Tensor, b_counts: Tensor) -> Tensor:
        return ((a_counts @ products[a, :, b]) * b_counts).sum(1)

    def cosine(a: int, b: int, a_counts: Tensor, b_counts: Tensor) -> Tensor:
        square_norms = product(a, a, a_counts, a_counts) * product(b, b, b_counts, b_counts)
        return product(a, b, a_counts, b_counts) / square_norms.sqrt()

    by_stream = {}
    for k, name in enumerate(names):
        resampled = cosine(k, names.index(task), counts, counts)
        low, high = torch.nanquantile(resampled, torch.tensor([0.025, 0.975]).double()).tolist()
        repeats = float(cosine(k, k, halves, 1 - halves).mean())
        by_stream[name] = {"cosine": table[name][task], "low": low, "high": high, "repeats": repeats}
    return by_stream


def _weigh_streams(played: PlayedRows, by_stream: Mapping[str, Any]) -> dict[str, Any]:
    """What streams of the reward add, times their weights."""
    return {name: played.weights[name] * values for name, values in by_stream.items() if name != OUTSIDE}


def flips(played: PlayedRows, advantages: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Stream of the reward -> share of states where the advantage changes sign without it."""
    weighted = _weigh_streams(played, advantages)
    total = np.sum(list(weighted.values()), axis=0)
    by_stream = {}
    for name, part in weighted.items():
        changed = np.sign(total) != np.sign(total - part)
        by_stream[name] = float(np.mean(changed))
    return by_stream


def steps(played: PlayedRows, view: PolicyView, by_episode: Mapping[str, Tensor], seed: int = 0) -> dict[str, float]:
    """Stream of the reward -> how far the step without it ends from the one with it, in divergences of the latter.

    0: the step is the same; 1: as far as no step at all; more: it holds the others back. Nothing where no step is made.
    """
    distributions: Any = view.distributions
    states = np.random.default_rng(seed).permutation(len(played.episode))[:MAX_DIVERGENCE_ROWS]
    obs, memory = played.inputs_at(states)
    weighted = _weigh_streams(played, map_values(lambda rows: rows.sum(0), by_episode))
    total = torch.stack(list(weighted.values())).sum(0)
    originals = []
    sizes = []
    for parameter in view.parameters:
        originals.append(parameter.detach().clone())
        sizes.append(parameter.numel())

    @torch.no_grad()
    def policy_after(step: Tensor) -> Any:
        """The policy after a step (P,), which is undone."""
        try:
            for parameter, change in zip(view.parameters, step.split(sizes)):
                parameter += change.view_as(parameter)
            return distributions(obs, memory)
        finally:
            for parameter, original in zip(view.parameters, originals):
                parameter.copy_(original)

    now = policy_after(0 * total)
    eta = 1e-3 / max(float(total.norm()), 1e-30)
    # The divergence grows with the square of a small step.
    for _ in range(20):
        distance = divergence(now, policy_after(eta * total))
        growth = np.sqrt(POLICY_STEP_NATS / max(distance, 1e-12))
        eta *= float(np.clip(growth, 0.2, 10.0))
    stepped = policy_after(eta * total)
    distance = divergence(stepped, now)
    by_stream = {}
    for name, part in weighted.items():
        if distance > 0:
            without = policy_after(eta * (total - part))
            by_stream[name] = divergence(stepped, without) / distance
    return by_stream


def disagreement(advantages: Mapping[str, np.ndarray]) -> np.ndarray:
    """How hard streams pull apart, (M,): the smaller of the largest pulls up and down.

    Pulls are advantages in standard deviations.
    """
    pulls = []
    for values in advantages.values():
        if values.std() > 0:
            pull = values / values.std()
            pulls.append(pull)
    if not pulls:
        return np.zeros(1)
    up = np.max(pulls, 0)
    down = -np.min(pulls, 0)
    return np.maximum(np.minimum(up, down), 0.0)


def highest_rows(values: np.ndarray, episode: np.ndarray, count: int, apart: int) -> list[int]:
    """Rows of the highest values, at least so many rows apart within an episode, highest first."""
    chosen: list[int] = []
    for row in np.argsort(-values, kind="stable").tolist():
        if len(chosen) == count:
            break
        if not any(episode[other] == episode[row] and abs(row - other) < apart for other in chosen):
            chosen.append(row)
    return chosen
