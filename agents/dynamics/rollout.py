"""Imagined rollouts: a policy acts in a model of the environment, many rows side by side, and what that is worth.

The single place where imagined transitions get rewards, terminate, are filtered, penalised, kept within bounds and cut.
Rows that have ended are computed on from their last finite state, behind a mask.

    imagined = imagine(model, act, reward_function, ends, obs, horizon)
    imagined.reward[imagined.alive]        rewards of the transitions that were imagined

`RewardSource` is the reward function of learned rewards. `PENALTIES` are five measures of a model's uncertainty about
an outcome, to be subtracted from its reward: functions of the predictions of K members for B transitions, `means` and
`stds` (K, B, D), in standard deviations of the data's changes, as distances (B,) over all D entries.

Sources: Janner et al. 2019, arXiv 1906.08253 (short branched rollouts); Luo et al. 2024, arXiv 2310.05422 (`choose`);
Yu et al. 2020, "MOPO", arXiv 2005.13239 (`penalty`, aleatoric_max); Frauenknecht et al. 2024, arXiv 2405.19014
(`Adaptive`, here by the disagreement of the members' means); Lu et al. 2022, arXiv 2110.04135, section 4 (all five
penalties); Lakshminarayanan et al. 2017, arXiv 1612.01474 (ens_var); Pan et al. 2020, arXiv 2010.04893 (loo_kl).

When it fails: a model that is wrong within the bounds of the data is not noticed, and members that err alike are
certain; a reward that depends on what no observation shows is learned as its mean.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agents.dynamics import OneStepModel, Predicted
from agents.networks.actor_critic import CLIP, SpaceEncoding
from agents.replay.replay import Replay, Rows
from envs.transitions import Transitions
from envs.types import ReplayScorer
from lodestar.numerics.descent import Flat, draw_integers
from lodestar.state import Stateful

# In widths of the data: how far beyond it states are held, and where rollouts are cut.
MARGIN_WIDTHS = 0.1
FAR_WIDTHS = 10.0
# What an imagined transition has of what a reward may read.
IMAGINED = frozenset({"obs", "action", "next_obs", "reward", "terminated", "truncated", "step"})
# The newest transitions that the reward head's gap is measured on.
MIN_GAP_ROWS = 64
MAX_GAP_ROWS = 1024
# Transitions that are relabelled for a fit of the reward head.
MAX_HEAD_ROWS = 16384
HEAD_BATCH_SIZE = 256
HEAD_LEARNING_RATE = 1e-3
# Gradients of the reward head are clipped to this norm.
HEAD_MAX_GRAD_NORM = 10.0
# The smallest deviation in a penalty, so that divisions stay finite.
MIN_PENALTY_STD = 1e-6
# A gap that is this many times its running value, and at least this large, is answered by more gradient steps.
GAP_JUMP = 3.0
MIN_GAP = 0.5
REFIT_STEPS = 200

Act = Callable[[Tensor, int], tuple[Tensor, Tensor | None]]
RewardFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Ends = Callable[[Tensor, Tensor, Tensor], Tensor]
Choose = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass
class Imagined:
    """H steps of B rollouts. Where `alive` is False values are finite and meaningless; rewards are 0 there."""

    # (H, B, D), (H, B, A), (H, B, D).
    obs: Tensor
    action: Tensor
    next_obs: Tensor
    # All (H, B): the reward less the penalty, the task's own as the model predicts it, the penalty.
    reward: Tensor
    task: Tensor
    penalty: Tensor
    # Bool (H, B), whether this transition ended the episode.
    terminated: Tensor
    # Bool (H, B), whether this transition was imagined: nothing before it ended the rollout, and it was not cut.
    alive: Tensor
    # (H, B), of the actions, or None where `act` gives none.
    log_prob: Tensor | None
    # Int64 (H, B), within the episode.
    step: Tensor
    # 0-d, how many rollouts were cut for states that are NaN, infinite or far from the data.
    diverged: Tensor

    @property
    def continues(self) -> Tensor:
        """Bool (B,): rollouts that nothing ended, which continue after the horizon."""
        return self.alive[-1] & ~self.terminated[-1]


def disagreement(predicted: Predicted) -> Tensor:
    """How far apart the members' means are: their standard deviation, mean over D; (B,), in the model's units."""
    return _members(predicted.means).std(0, correction=0).mean(-1)


def aleatoric_max(predicted: Predicted) -> Tensor:
    """max_k |s_k|, the largest noise that any member expects, (B,)."""
    return _members(predicted.stds).norm(dim=-1).amax(0)


def pairwise_max(predicted: Predicted) -> Tensor:
    """max_kl |m_k - m_l|, the widest disagreement between two means, (B,)."""
    # (B, K, D)
    means = _members(predicted.means).transpose(0, 1)
    return torch.cdist(means, means).amax((1, 2))


def ens_var(predicted: Predicted) -> Tensor:
    """sum_d var_k(m) + mean_k(s^2), the variance of the members' mixture, (B,); without stds that of the means."""
    means = _members(predicted.means)
    second_moment = (means - means.mean(0)).square()
    if predicted.stds is not None:
        second_moment = second_moment + predicted.stds.square()
    return second_moment.mean(0).sum(-1)


def ens_std(predicted: Predicted) -> Tensor:
    """sqrt(ens_var), (B,)."""
    return ens_var(predicted).clamp(min=MIN_PENALTY_STD**2).sqrt()


def loo_kl(predicted: Predicted) -> Tensor:
    """Mean over members of KL(member || Gaussian with the moments of the others' mixture), (B,)."""
    means = _members(predicted.means)
    variances = _members(predicted.stds).clamp(min=MIN_PENALTY_STD).square()
    n_others = len(means) - 1
    # Moments are taken about the mean of all: subtracting the squares of large means would lose digits.
    offset = means - means.mean(0)
    second_moment = variances + offset.square()
    # The mean of the others, about the same centre: all offsets sum to 0.
    mean = -offset / n_others
    others_moment = (second_moment.sum(0) - second_moment) / n_others
    variance = (others_moment - mean.square()).clamp(min=MIN_PENALTY_STD**2)
    gap = offset - mean
    gap_moment = variances + gap.square()
    kl = gap_moment / variance - 1 - torch.log(variances / variance)
    return 0.5 * kl.sum(-1).mean(0)


PENALTIES: dict[str, Callable[[Predicted], Tensor]] = {
    measure.__name__: measure for measure in (aleatoric_max, pairwise_max, ens_std, ens_var, loo_kl)
}


def _members(of_members: Tensor | None) -> Tensor:
    assert of_members is not None, "step(..., member_predictions=True) of a model whose members predict it"
    return of_members


class HorizonSchedule:
    """Steps of a rollout over training: a number, or `linear:FROM:TO:BEGIN:END` in environment steps, rounded down."""

    def __init__(self, spec: Any) -> None:
        try:
            if isinstance(spec, str) and spec.startswith("linear:"):
                numbers = [float(x) for x in spec.split(":")[1:]]
            else:
                numbers = [float(spec), float(spec), 0.0, 1.0]
            self.start, self.stop, self.begin, self.end = numbers
        except (TypeError, ValueError):
            raise ValueError(
                f"agent.horizon={spec!r} is no horizon; give a number of steps, or linear:FROM:TO:BEGIN:END in "
                "environment steps, such as linear:1:15:20000:150000"
            ) from None
        is_finite = max(numbers) < math.inf
        if not (is_finite and min(self.start, self.stop) >= 1 and self.begin < self.end):
            raise ValueError(f"agent.horizon={spec!r} is out of range; give steps of 1 or more, and BEGIN before END")

    def __call__(self, timesteps: int) -> int:
        progress = (timesteps - self.begin) / (self.end - self.begin)
        progress = min(max(progress, 0.0), 1.0)
        return int(self.start + (self.stop - self.start) * progress)

    @property
    def longest(self) -> int:
        return int(max(self.start, self.stop))


@dataclass
class Adaptive(Stateful):
    """Cuts rollouts where members disagree more than `factor` times the mean `quantile` of rollouts' first steps."""

    saved = ("threshold",)

    factor: float = 1.0
    quantile: float = 0.95
    decay: float = 0.9
    threshold: Tensor | None = None

    @torch.no_grad()
    def __call__(self, predicted: Predicted, t: int) -> Tensor:
        """Bool (B,): which of the outcomes of step `t` of a rollout are not to be trusted."""
        uncertainty = disagreement(predicted)
        if t == 0:
            threshold = self.factor * uncertainty.quantile(self.quantile)
            if self.threshold is not None:
                threshold = threshold.lerp(self.threshold.to(threshold), self.decay)
            self.threshold = threshold
        assert self.threshold is not None, "a rollout begins with step 0"
        return uncertainty > self.threshold


def imagine(
    model: OneStepModel,
    act: Act,
    reward_function: RewardFunction,
    ends: Ends | None,
    obs: Tensor,
    horizon: int,
    *,
    step: Tensor | None = None,
    choose: Choose | None = None,
    candidates: int = 2,
    penalty: Callable[[Predicted], Tensor] | None = None,
    cut: Callable[[Predicted, int], Tensor] | None = None,
    bounds: tuple[Tensor, Tensor] | None = None,
) -> Imagined:
    """Roll out B rows for `horizon` steps H, at least 1.

    Args:
        act: (obs (B, D), t) -> (action (B, A), log_prob (B,) or None).
        reward_function: (obs, action, next_obs, task (B,), terminated bool (B,), step int64 (B,)) -> (B,); task is the
            task's own reward as the model predicts it, step is within the episode.
        ends: (obs, action, next_obs) -> bool (B,), whether the episode ends there; None for what the model has learned
            of it, and for never where it has not.
        step: int64 (B,), of the first transition within its episode; None for 0.
        choose: (obs, action, outcomes (N, B, D)) -> (index (B,), keep bool (B,)): which of N = `candidates` outcomes
            happens, and whether it is likely enough to continue.
        penalty, cut: subtracted from the reward of an outcome, (B,); (outcome, t) -> bool (B,), where to stop before
            it.
        bounds: lowest and highest observation in the data, (D,) each. States are held within them and `MARGIN_WIDTHS`
            more; those more than `FAR_WIDTHS` beyond are cut and counted.
    """
    member_predictions = penalty is not None or cut is not None
    one_step = functools.partial(model.step, member_predictions=member_predictions)
    transitions: list[dict[str, Any]] = []
    if step is None:
        step = torch.zeros(len(obs), dtype=torch.int64, device=obs.device)
    alive = torch.ones_like(step, dtype=torch.bool)
    diverged = step.new_zeros(())
    box = None if bounds is None else _box(*bounds)
    for t in range(horizon):
        action, log_prob = act(obs, t)
        # Which rows turn out to be finite, written below; gradients pass through no others.
        finite = [alive]
        guarded = (_guard(obs, finite), _guard(action, finite))
        outcome, keep = _outcome(one_step, *guarded, choose, candidates)
        row_penalty = None if penalty is None else penalty(outcome)
        inside, far = _contain(outcome.next_obs, box)
        invalid = ~_checksum(outcome, row_penalty).isfinite()
        if far is not None:
            invalid = invalid | far
        diverged = diverged + (alive & invalid).sum()
        alive = alive & ~invalid
        if keep is not None:
            alive = alive & keep
        if cut is not None:
            alive = alive & ~cut(outcome, t)
        finite[0] = alive
        # Rows that are not alive stand still, with a reward of 0.
        stopped = ~alive
        next_obs = torch.where(alive[:, None], inside, obs)
        task = outcome.reward.masked_fill(stopped, 0)
        terminated = alive & _terminates(ends, outcome, obs, action, next_obs)
        reward = reward_function(obs, action, next_obs, task, terminated, step + t)
        reward = reward.masked_fill(stopped, 0)
        if row_penalty is None:
            row_penalty = torch.zeros_like(reward)
        else:
            row_penalty = row_penalty.masked_fill(stopped, 0)
            reward = reward - row_penalty
        if log_prob is not None:
            log_prob = log_prob.masked_fill(stopped, 0)
        transitions.append(
            {
                "obs": obs,
                "action": action,
                "next_obs": next_obs,
                "reward": reward,
                "task": task,
                "penalty": row_penalty,
                "terminated": terminated,
                "alive": alive,
                "log_prob": log_prob,
            }
        )
        alive = alive & ~terminated
        obs = torch.where(alive[:, None], next_obs, obs)
    columns: dict[str, Any] = {}
    for name, value in transitions[0].items():
        columns[name] = None if value is None else torch.stack([row[name] for row in transitions])
    steps = step + torch.arange(horizon, device=obs.device)[:, None]
    return Imagined(**columns, step=steps, diverged=diverged)


def _guard(x: Tensor, finite: list[Tensor]) -> Tensor:
    """The same, letting gradients back only into rows that are finite: 0 times infinity is NaN."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x
    x = x.view_as(x)
    x.register_hook(lambda gradient: gradient.masked_fill(~finite[0][:, None], 0))
    return x


def _outcome(
    step: Callable[[Tensor, Tensor], Predicted], obs: Tensor, action: Tensor, choose: Choose | None, candidates: int
) -> tuple[Predicted, Tensor | None]:
    """What happens, and whether to keep it, bool (B,) or None for all."""
    if choose is None:
        return step(obs, action), None
    outcomes = step(obs.repeat(candidates, 1), action.repeat(candidates, 1))
    candidate_obs = outcomes.next_obs.unflatten(0, (candidates, -1))
    index, keep = choose(obs, action, candidate_obs)
    row_numbers = torch.arange(len(obs), device=obs.device)
    rows = index * len(obs) + row_numbers

    def pick(x: Tensor | None, axis: int = 0) -> Any:
        return None if x is None else x.index_select(axis, rows)

    # Axis 0 of the members' predictions is that of the members.
    members = (pick(outcomes.means, 1), pick(outcomes.stds, 1))
    outcome = Predicted(pick(outcomes.next_obs), pick(outcomes.reward), pick(outcomes.terminated), *members)
    return outcome, keep


def _checksum(outcome: Predicted, penalty: Tensor | None) -> Tensor:
    """A number (B,) that is finite where all numbers of an outcome are: one sum is cheaper than a test of each."""
    checksum = outcome.next_obs.detach().sum(-1) + outcome.reward.detach()
    if penalty is not None:
        checksum = checksum + penalty.detach()
    return checksum


def _box(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Limits with their margin, the centre, and 1 / width; 0 where nothing moved: there is no width to measure in."""
    width = high - low
    margin = MARGIN_WIDTHS * width
    rate = torch.where(width > 0, 1 / width, 0.0)
    return low - margin, high + margin, (low + high) / 2, rate


def _contain(obs: Tensor, box: tuple[Tensor, Tensor, Tensor, Tensor] | None) -> tuple[Tensor, Any]:
    """Observations held within the box, and bool (B,), those far outside; None without a box."""
    if box is None:
        return obs, None
    low, high, centre, rate = box
    # The distance from the centre, in widths; the data ends half a width from there.
    from_centre = (obs.detach() - centre).abs_()
    distance = (from_centre * rate).amax(-1)
    return obs.clamp(low, high), distance > 0.5 + FAR_WIDTHS


def _terminates(ends: Ends | None, outcome: Predicted, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    """Bool (B,), by the environment's rule, else as the model has learned it, else never."""
    if ends is not None:
        return ends(obs, action, next_obs)
    if outcome.terminated is not None:
        return outcome.terminated > 0.5
    return torch.zeros(len(obs), dtype=torch.bool, device=obs.device)


def seeded_mlp(sizes: tuple[int, ...], seed: int) -> nn.Sequential:
    """Linear layers of these sizes with SiLU between them."""
    layers: list[nn.Module] = []
    # Torch draws initial weights from its global generator, which is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


class RewardHead(Stateful):
    """A network from features (I) to a reward, in the reward's own units; inputs and targets are standardised."""

    saved = ("net", "_flat", "mean", "std", "center", "scale", "_generator")

    def __init__(self, inputs: int, *, seed: int = 0, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        net = seeded_mlp((inputs, 128, 128, 1), seed)
        self.net = net.to(self.device)
        self._flat = Flat.of_parameters(list(self.net.parameters()))
        # Of the features (I), and of the rewards.
        self.mean = torch.zeros(inputs, device=self.device)
        self.std = torch.ones(inputs, device=self.device)
        self.center = torch.zeros((), device=self.device)
        self.scale = torch.ones((), device=self.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def predict(self, x: Tensor) -> Tensor:
        """Rewards (...,) of features (..., I), differentiable."""
        standardised = self.net(self._whiten(x)).squeeze(-1)
        return self.center + self.scale * standardised

    def _whiten(self, x: Tensor) -> Tensor:
        whitened = (x - self.mean) / self.std
        return whitened.clamp(-CLIP, CLIP)

    def fit(self, x: Tensor, y: Tensor, steps: int) -> Tensor:
        """Take `steps` minibatches of features (M, I) and rewards (M,); the last loss, in standard deviations (0-d)."""
        x = x.detach()
        y = y.detach()
        std, self.mean = torch.std_mean(x, 0, correction=0)
        self.std = torch.where(std > 1e-6, std, 1.0)
        self.center = y.mean()
        self.scale = spread(y)
        inputs = self._whiten(x)
        targets = (y - self.center) / self.scale
        size = min(HEAD_BATCH_SIZE, len(x))
        draws = draw_integers(self._generator, len(x), steps, size)
        loss = x.new_zeros(())
        with torch.enable_grad():
            for rows in draws:
                error = self.net(inputs[rows]).squeeze(-1) - targets[rows]
                mean_square = error.square().mean()
                loss = self._flat.descend(mean_square, HEAD_LEARNING_RATE, HEAD_MAX_GRAD_NORM)
        return loss


def spread(y: Tensor) -> Tensor:
    """Standard deviation of rewards; of rewards that are all alike, a millionth of their size."""
    largest = y.abs().max()
    least = 1e-6 * largest.clamp(min=1.0)
    return torch.maximum(y.std(correction=0), least)


class RewardSource(Stateful):
    """The reward function of imagined transitions.

        model   the task's own reward and nothing else: as the model predicts it
        call    the reward reads nothing that imagination lacks: it is evaluated, as on real transitions
        head    everything else: a network r(s, a, s') learns the rewards of real transitions

    The head's gap, on transitions it has not learned from, is the root mean square error over the rewards' deviation. A
    reward that changes shows as a jump, which is answered by `REFIT_STEPS` more steps at once.
    """

    saved = ("head", "_seen", "_usual", "timesteps")

    def __init__(
        self,
        scorer: ReplayScorer,
        encoding: SpaceEncoding,
        *,
        differentiable: bool = False,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.scorer = scorer
        self.encoding = encoding
        self.device = torch.device(device)
        self.how, self.reason = _reward_source(scorer, encoding, differentiable)
        # Environment steps so far, for schedules of weights; the agent sets it.
        self.timesteps = 0
        self.head = None
        if self.how == "head":
            inputs = 2 * encoding.obs_size + encoding.action_size + 1
            self.head = RewardHead(inputs, seed=seed, device=device)
        # Rows the replay had when the head was fitted.
        self._seen = 0
        # The running gap, which falls at once and rises slowly; None before the first.
        self._usual: float | None = None

    def __call__(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor, terminated: Tensor, step: Tensor
    ) -> Tensor:
        """Rewards float32 (B,) of transitions, see `imagine`; the head's and the model's can be differentiated."""
        if self.how == "model":
            return task
        if self.head is not None:
            features = _features(obs, action, next_obs, terminated)
            return self.head.predict(features)
        batch = Transitions(
            obs=self.encoding.obs(_array(obs)),
            action=self.encoding.decode(_array(action)),
            reward=_array(task),
            next_obs=self.encoding.obs(_array(next_obs)),
            terminated=_array(terminated),
            truncated=np.zeros(len(obs), bool),
            valid=np.ones(len(obs), bool),
            step=_array(step),
        )
        reward = self.scorer.combine(self.scorer.relabel(batch), self.timesteps)
        return torch.from_numpy(reward).to(self.device)

    def fit(self, replay: Replay, steps: int) -> dict[str, Any]:
        """Fit the head to rewards in `steps` minibatches, more at a jump: `head_gap`, `head_loss`, `head_refits`."""
        if self.head is None:
            return {}
        rows = replay.sample(min(max(len(replay), 1), MAX_HEAD_ROWS))
        n_unseen = max(replay.added - self._seen, MIN_GAP_ROWS)
        newest = replay.newest(min(n_unseen, MAX_GAP_ROWS))
        self._seen = replay.added
        predicted = self.head.predict(_row_features(newest)).detach()
        error = (predicted - newest.reward).square().mean().sqrt()
        gap = float(error / spread(rows.reward))
        if self._usual is None:
            jumped = True
            self._usual = gap
        else:
            jumped = gap > GAP_JUMP * self._usual and gap > MIN_GAP
            self._usual = min(gap, 0.9 * self._usual + 0.1 * gap)
        if jumped:
            steps += REFIT_STEPS
        loss = self.head.fit(_row_features(rows), rows.reward, steps)
        return {"head_gap": gap, "head_loss": loss, "head_refits": float(jumped)}


def _features(obs: Tensor, action: Tensor, next_obs: Tensor, terminated: Tensor) -> Tensor:
    """What the reward head reads, (B, 2 D + A + 1)."""
    is_end = terminated.to(obs.dtype).unsqueeze(-1)
    return torch.cat([obs, action, next_obs, is_end], -1)


def _row_features(rows: Rows) -> Tensor:
    # A replayed transition that ended its episode has no discount.
    return _features(rows.obs, rows.action, rows.next_obs, rows.discount == 0)


def _array(x: Tensor) -> np.ndarray:
    return x.detach().cpu().numpy()


def _reward_source(scorer: ReplayScorer, encoding: SpaceEncoding, differentiable: bool) -> tuple[str, str]:
    """Where imagined rewards come from, and why."""
    if scorer.is_task:
        return "model", "the task's own reward is used: the model of the environment predicts it"
    not_imagined = sorted(scorer.requires - IMAGINED)
    if not_imagined:
        why = f"the reward reads {', '.join(not_imagined)}, which no model imagines"
    elif encoding.images and {"obs", "next_obs"} & scorer.requires:
        why = "the reward reads images, which no model imagines"
    elif not scorer.relabelable or scorer.initial_memory(1):
        why = "the reward depends on the episode before, which an imagined transition lacks"
    elif differentiable:
        why = "gradients of the reward are needed, and it has none"
    else:
        return "call", "imagined transitions are scored by the reward itself"
    return "head", f"rewards of imagined transitions are predicted by a network, learned from real ones: {why}"
