"""Learned weights: how much of each auxiliary stream serves the task, found while the policy learns.

    inner    the policy follows sum_k w_k g_k, g_k the policy gradient of stream k; the task's weight is fixed
    outer    w_k = softplus(phi_k), 1 at first, ascends the task's return J of the policy that comes out of it:
             dJ / dw_k = <grad J(theta'), d theta' / d w_k>

    aligned    one step of the inner: d theta' / d w_k = g_k of the rollout before
    implicit   where the inner ends, sum_k w_k g_k = lambda (theta' - theta): d theta' / d w_k = -H^-1 g_k, with H the
               derivative of sum_k w_k g_k - lambda theta, negative definite at a maximum; by conjugate gradients
    search     two windows of rollouts with phi + s and phi - s from the same policy, s random signs: phi moves towards
               the one in which an episode earned more of the task's reward, and its policy is kept

grad J is taken on the NEXT rollout: the same would correlate with theta'. A step of phi is `blend_rate` times the mean
inner product of the rollouts so far over its root mean square: a sign that lasts counts, however small. A rollout
without any task reward moves nothing. The sum of the weights stays at most their number.

Source: Gupta et al. 2023 (BARFI), arXiv 2310.19007. Differences: one number a stream instead of a function of the
state, no learned discount; `aligned` is a meta-gradient of one step (Zheng et al. 2018, LIRPG, arXiv 1804.06459);
lambda pulls towards today's policy, and conjugate gradients end where the curvature turns.
Fails when: gradients are mostly noise, so that weights wander; a reward serves late what it harms at first; a stream is
noise: nothing pulls its weight either way. Costs: `python -m benchmarks reward-cost`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import stream_gradients
from agents.ppo.config import PPOConfig
from agents.ppo.update import Batch, TorchUpdate
from envs.transitions import Rollout
from lodestar.numerics.flat import Flat
from lodestar.state import Stateful

RHO = 0.9  # of the averages over rollouts
DAMPING = 1.0  # lambda, where the sum of the advantages has deviation 1
ROUNDS = 10  # of conjugate gradients
WINDOW, STEP = 5, 0.5  # of search: rollouts, and how far phi moves to either side
LEAST = -20.0  # phi: a weight of 2e-9


class Blend(Stateful):
    """Moves the weights of the streams that have `weight=learned`; the weights themselves are the streams' state."""

    saved = ("inner", "squares", "directions", "trial", "rng")

    def __init__(self, config: PPOConfig, streams: Mapping[str, Any], seed: int, device: torch.device) -> None:
        self.config, self.device, self.names = config, device, list(streams)
        self.learned = {name: stream for name, stream in streams.items() if getattr(stream, "learned", False)}
        names, key = [*self.learned], f"agent.blend={config.blend}"
        if names and config.blend == "none":
            raise ValueError(f"reward.{names[0]}.weight=learned needs agent.blend=aligned, implicit or search")
        if config.blend != "none" and not names:
            raise ValueError(f"{key} has no weight to learn; mark a stream, as in reward.rnd.weight=learned")
        if names and ("task" not in streams or "task" in names):
            other = next((name for name in names if name != "task"), "rnd")
            raise ValueError(
                f"{key} learns what serves the task, which must be a stream and have a fixed weight; give "
                f"reward=[task,{other}] reward.task.weight=1"
            )
        self.inner, self.squares = np.zeros(len(names)), np.zeros(len(names))
        self.directions: Tensor | None = None  # (L, P), d theta' / d w of the rollout before
        self.trial: dict[str, Any] | None = None  # of search: where it began, its signs, what its windows earned
        self.rng = np.random.default_rng([seed, 3])

    @property
    def weights(self) -> np.ndarray:
        """Those of now, (L,)."""
        return np.array([stream.weight.start for stream in self.learned.values()])

    @property
    def metrics(self) -> dict[str, float]:
        return {f"stream/{name}/weight": float(weight) for name, weight in zip(self.learned, self.weights)}

    def __call__(
        self,
        learner: TorchUpdate,
        batch: Batch,
        rows: np.ndarray,
        pulls: Mapping[str, Tensor],
        weights: np.ndarray,
        rollout: Rollout,
    ) -> None:
        """After an update, learn from its rollout, on `rows` (sequences) of `batch`; `weights` (K,) are its streams'.

        `pulls` are stream -> its policy gradient (P,) before the update, none of one that has only been zero.
        """
        task = rollout.reward[rollout.valid]
        if self.config.blend == "search":
            self._search(learner.flat, float(task.sum()), int((rollout.ended & rollout.valid).sum()))
            return
        if self.directions is not None and "task" in pulls and task.any():
            self._agree(pulls["task"])
        if self.config.blend == "implicit":
            self.directions = self._implicit(learner, batch, rows, weights)
        elif pulls:
            nothing = torch.zeros_like(next(iter(pulls.values())))
            self.directions = torch.stack([pulls.get(name, nothing) for name in self.learned])

    def _agree(self, goal: Tensor) -> None:
        """Ascend the inner products of the task's gradient (P,) with where the weights led."""
        assert self.directions is not None
        found = (self.directions @ goal).double().cpu().numpy()
        self.inner = RHO * self.inner + (1 - RHO) * found
        self.squares = RHO * self.squares + (1 - RHO) * np.square(found)
        size = np.sqrt(self.squares)
        step = np.divide(self.inner, size, out=np.zeros_like(size), where=size > 0)
        self._set(phi_of(self.weights) + self.config.blend_rate * step)

    def _set(self, phi: np.ndarray) -> None:
        weights = np.logaddexp(0.0, np.maximum(phi, LEAST))
        weights *= min(1.0, len(weights) / weights.sum())
        for stream, weight in zip(self.learned.values(), weights.tolist()):
            stream.weight.start = weight

    def _implicit(self, learner: TorchUpdate, batch: Batch, rows: np.ndarray, weights: np.ndarray) -> Tensor:
        """Where the inner's end moves to, (L, P), on the rollout that it was trained on, by clipped ratios."""
        log_prob, old, advantage = learner.scored(batch, rows)
        parameters = learner.net.policy_parameters()
        ratio = (log_prob - old).exp().clamp(max=1 + self.config.clip_range)
        total = advantage @ torch.as_tensor(weights, dtype=advantage.dtype, device=advantage.device)
        total = total / (total.std() + 1e-8)
        parts = torch.autograd.grad((ratio * total).mean(), parameters, create_graph=True)
        own = {name: advantage[:, self.names.index(name)] for name in self.learned}
        pulls = stream_gradients(ratio, own, parameters)
        return implicit(torch.cat([part.reshape(-1) for part in parts]), parameters, list(pulls.values()), DAMPING)

    def _search(self, flat: Flat, earned: float, episodes: int) -> None:
        trial = self.trial
        if trial is not None:
            trial["rollouts"] += 1
            if trial["rollouts"] > 1:  # the first was collected before an update
                trial["earned"] += earned
                trial["episodes"] += episodes
            if trial["rollouts"] < WINDOW:
                return
            score = trial["earned"] / max(trial["episodes"], 1)
            if trial["score"] is None:
                end, begin = _copied(flat), trial["begin"]
                self.trial = trial | {"score": score, "end": end, "rollouts": 0, "earned": 0.0, "episodes": 0}
                _put(flat, begin)
                self._set(trial["phi"] - STEP * trial["signs"])
                return
            gain = trial["score"] - score
            if gain > 0:
                _put(flat, trial["end"])
            self.squares = RHO * self.squares + (1 - RHO) * gain**2
            size = float(np.sqrt(self.squares[0]))
            self._set(trial["phi"] + STEP * float(np.clip(gain / size, -1, 1) if size else 0) * trial["signs"])
        phi, signs = phi_of(self.weights), self.rng.choice([-1.0, 1.0], len(self.learned))
        counts = {"rollouts": 0, "earned": 0.0, "episodes": 0}
        self.trial = {"phi": phi, "signs": signs, "begin": _copied(flat), "score": None, "end": None, **counts}
        self._set(phi + STEP * signs)


def phi_of(weights: np.ndarray) -> np.ndarray:
    """The inverse of softplus."""
    return np.log(np.expm1(weights))


def implicit(slope: Tensor, parameters: Sequence[Tensor], pulls: Sequence[Tensor], damping: float) -> Tensor:
    """-H^-1 g_k for each of `pulls` (P,), (L, P); `slope` (P,) is sum_k w_k g_k with its graph, `damping` lambda."""

    def product(vector: Tensor) -> Tensor:
        parts = torch.autograd.grad(
            slope @ vector, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return damping * vector - torch.cat([part.reshape(-1) for part in parts])

    return torch.stack([solve(product, pull) for pull in pulls])


def solve(product: Callable[[Tensor], Tensor], goal: Tensor) -> Tensor:
    """x with product(x) = goal (P,), by conjugate gradients; `goal` itself where the curvature is not positive at once.

    Example:
        >>> solve(lambda x: 4 * x, torch.tensor([2.0, -8.0])).tolist()
        [0.5, -2.0]
    """
    found, residual, towards = torch.zeros_like(goal), goal.clone(), goal.clone()
    size = first = residual @ residual
    for _ in range(ROUNDS):
        image = product(towards)
        curvature = towards @ image
        if curvature <= 0:
            return found if found.any() else goal
        found = found + size / curvature * towards
        residual = residual - size / curvature * image
        before, size = size, residual @ residual
        if size <= 1e-10 * first:
            break
        towards = residual + size / before * towards
    return found


def _copied(flat: Flat) -> dict[str, Any]:
    return {"value": flat.value.clone(), "adam": flat.state_dict()}


def _put(flat: Flat, kept: dict[str, Any]) -> None:
    flat.value.copy_(kept["value"])
    flat.load_state_dict(kept["adam"])
