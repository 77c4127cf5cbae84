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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import stream_gradients
from agents.ppo.extensions import is_learned
from agents.ppo.seams import Extra, ScoredRollout
from agents.ppo.update import TorchUpdate
from lodestar.numerics.descent import Flat

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

# How much of the averages is kept from one rollout to the next.
GAIN_MEMORY = 0.9
# lambda, where the sum of the advantages has deviation 1.
DAMPING = 1.0
# Of conjugate gradients: steps at most, and the share of the residual's square where they have arrived.
CONJUGATE_STEPS = 10
RESIDUAL_TOLERANCE = 1e-10
# Of search: rollouts a window, and how far phi moves to either side.
SEARCH_WINDOW_ROLLOUTS = 5
SEARCH_STEP = 0.5
# A weight of 2e-9.
MIN_PHI = -20.0


class Blend(Extra):
    """Moves the weights of the streams that have `weight=learned`; the weights themselves are the streams' state."""

    saved = ("inner", "squares", "directions", "trial", "rng")

    def __init__(self, agent: "PPO") -> None:
        config = agent.config
        streams = agent.streams
        self.config = config
        self.device = agent.device
        self.names = list(streams)
        self.learned = {name: stream for name, stream in streams.items() if is_learned(stream)}
        self._check(streams)
        self.needs_gradients = config.blend in ("aligned", "implicit")
        # Averages of the inner products and of their squares, (L,).
        self.inner = np.zeros(len(self.learned))
        self.squares = np.zeros(len(self.learned))
        # (L, P), d theta' / d w of the rollout before.
        self.directions: Tensor | None = None
        # Of search: where it began, its signs, what its windows earned.
        self.trial: dict[str, Any] | None = None
        self.rng = np.random.default_rng([agent.seed, 3])

    def _check(self, streams: Mapping[str, Any]) -> None:
        names = list(self.learned)
        key = f"agent.blend={self.config.blend}"
        if self.config.blend == "none":
            raise ValueError(f"reward.{names[0]}.weight=learned needs agent.blend=aligned, implicit or search")
        if not names:
            raise ValueError(f"{key} has no weight to learn; mark a stream, as in reward.rnd.weight=learned")
        if "task" not in streams or "task" in names:
            other = next((name for name in names if name != "task"), "rnd")
            raise ValueError(
                f"{key} learns what serves the task, which must be a stream and have a fixed weight; give "
                f"reward=[task,{other}] reward.task.weight=1"
            )

    @property
    def weights(self) -> np.ndarray:
        """Those of now, (L,)."""
        return np.array([stream.weight.start for stream in self.learned.values()])

    @property
    def metrics(self) -> dict[str, float]:
        named_weights = zip(self.learned, self.weights)
        return {f"stream/{name}/weight": float(weight) for name, weight in named_weights}

    def after_update(self, agent: "PPO", scored: ScoredRollout) -> dict[str, float]:
        rollout = scored.collector.rollout
        gradients = scored.gradients
        task_rewards = rollout.reward[rollout.valid]
        if self.config.blend == "search":
            episodes = int((rollout.ended & rollout.valid).sum())
            self._search(agent.flat, float(task_rewards.sum()), episodes)
            return self.metrics
        if self.directions is not None and "task" in gradients and task_rewards.any():
            self._ascend(self.directions, gradients["task"])
        if self.config.blend == "implicit":
            self.directions = self._implicit_directions(agent.autograd, scored)
        elif gradients:
            zero = torch.zeros_like(next(iter(gradients.values())))
            directions = [gradients.get(name, zero) for name in self.learned]
            self.directions = torch.stack(directions)
        return self.metrics

    def _ascend(self, directions: Tensor, task_gradient: Tensor) -> None:
        """Ascend the inner products of the task's gradient (P,) with where the weights led, (L, P)."""
        products = (directions @ task_gradient).double().cpu().numpy()
        self.inner = GAIN_MEMORY * self.inner + (1 - GAIN_MEMORY) * products
        self.squares = GAIN_MEMORY * self.squares + (1 - GAIN_MEMORY) * np.square(products)
        size = np.sqrt(self.squares)
        standstill = np.zeros_like(size)
        step = np.divide(self.inner, size, out=standstill, where=size > 0)
        self._set_weights(phi_of(self.weights) + self.config.blend_rate * step)

    def _set_weights(self, phi: np.ndarray) -> None:
        weights = np.logaddexp(0.0, np.maximum(phi, MIN_PHI))
        weights *= min(1.0, len(weights) / weights.sum())
        for stream, weight in zip(self.learned.values(), weights.tolist()):
            stream.weight.start = weight

    def _implicit_directions(self, learner: TorchUpdate, scored: ScoredRollout) -> Tensor:
        """Where the inner's end moves to, (L, P), on the rollout that it was trained on, by clipped ratios."""
        log_prob, old_log_prob, advantage = learner.log_prob_and_advantages(scored.batch, scored.gradient_rows)
        weights = scored.weights.mean((0, 1)) * scored.seen
        parameters = learner.net.policy_parameters()
        ratio = (log_prob - old_log_prob).exp()
        ratio = ratio.clamp(max=1 + learner.clip_range)
        stream_weights = torch.as_tensor(weights, dtype=advantage.dtype, device=advantage.device)
        total = advantage @ stream_weights
        total = total / (total.std() + 1e-8)
        surrogate = (ratio * total).mean()
        slopes = torch.autograd.grad(surrogate, parameters, create_graph=True)
        slope = torch.cat([part.reshape(-1) for part in slopes])
        learned_advantages = {}
        for name in self.learned:
            column = self.names.index(name)
            learned_advantages[name] = advantage[:, column]
        gradients = stream_gradients(ratio, learned_advantages, parameters)
        return inverse_hessian_products(slope, parameters, list(gradients.values()), DAMPING)

    def _search(self, flat: Flat, earned: float, episodes: int) -> None:
        """Count a rollout's task reward; after the first window try the other side, after the second move phi."""
        trial = self.trial
        if trial is None:
            self._begin_trial(flat)
            return
        trial["rollouts"] += 1
        # The first rollout was collected before an update.
        if trial["rollouts"] > 1:
            trial["earned"] += earned
            trial["episodes"] += episodes
        if trial["rollouts"] < SEARCH_WINDOW_ROLLOUTS:
            return
        score = trial["earned"] / max(trial["episodes"], 1)
        if trial["score"] is None:
            counts = {"rollouts": 0, "earned": 0.0, "episodes": 0}
            self.trial = trial | {"score": score, "end": _copy_flat(flat)} | counts
            _restore_flat(flat, trial["begin"])
            self._set_weights(trial["phi"] - SEARCH_STEP * trial["signs"])
            return
        gain = trial["score"] - score
        if gain > 0:
            _restore_flat(flat, trial["end"])
        self.squares = GAIN_MEMORY * self.squares + (1 - GAIN_MEMORY) * gain**2
        size = float(np.sqrt(self.squares[0]))
        step = 0.0
        if size:
            step = float(np.clip(gain / size, -1, 1))
        self._set_weights(trial["phi"] + SEARCH_STEP * step * trial["signs"])
        self._begin_trial(flat)

    def _begin_trial(self, flat: Flat) -> None:
        phi = phi_of(self.weights)
        signs = self.rng.choice([-1.0, 1.0], len(self.learned))
        self.trial = {
            "phi": phi,
            "signs": signs,
            "begin": _copy_flat(flat),
            "score": None,
            "end": None,
            "rollouts": 0,
            "earned": 0.0,
            "episodes": 0,
        }
        self._set_weights(phi + SEARCH_STEP * signs)


def phi_of(weights: np.ndarray) -> np.ndarray:
    """The inverse of softplus."""
    return np.log(np.expm1(weights))


def inverse_hessian_products(
    slope: Tensor, parameters: Sequence[Tensor], gradients: Sequence[Tensor], damping: float
) -> Tensor:
    """-H^-1 g_k for each of `gradients` (P,), (L, P).

    `slope` (P,) is sum_k w_k g_k with its graph, `damping` lambda.
    """

    def product(vector: Tensor) -> Tensor:
        parts = torch.autograd.grad(
            slope @ vector, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return damping * vector - torch.cat([part.reshape(-1) for part in parts])

    return torch.stack([solve(product, gradient) for gradient in gradients])


def solve(product: Callable[[Tensor], Tensor], goal: Tensor) -> Tensor:
    """x with product(x) = goal (P,), by conjugate gradients; `goal` itself where the curvature is not positive at once.

    Example:
        >>> solve(lambda x: 4 * x, torch.tensor([2.0, -8.0])).tolist()
        [0.5, -2.0]
    """
    x = torch.zeros_like(goal)
    residual = goal.clone()
    direction = goal.clone()
    first_size = residual @ residual
    size = first_size
    for _ in range(CONJUGATE_STEPS):
        image = product(direction)
        curvature = direction @ image
        if curvature <= 0:
            return x if x.any() else goal
        x = x + size / curvature * direction
        residual = residual - size / curvature * image
        size_before = size
        size = residual @ residual
        if size <= RESIDUAL_TOLERANCE * first_size:
            break
        direction = residual + size / size_before * direction
    return x


def _copy_flat(flat: Flat) -> dict[str, Any]:
    return {"value": flat.value.clone(), "adam": flat.state_dict()}


def _restore_flat(flat: Flat, copied: dict[str, Any]) -> None:
    flat.value.copy_(copied["value"])
    flat.load_state_dict(copied["adam"])
