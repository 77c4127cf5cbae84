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
from agents.replay.replay import Replay
from envs.transitions import Transitions
from envs.types import ReplayScorer
from lodestar.numerics.flat import Flat
from lodestar.state import Stateful

MARGIN, FAR = 0.1, 10.0  # in widths of the data: how far beyond it states are held, and where rollouts are cut
IMAGINED = frozenset({"obs", "action", "next_obs", "reward", "terminated", "truncated", "step"})
FRESH = 1024  # newest transitions that a gap is measured on, at most
TABLE = 16384  # transitions that are relabelled for a fit, at most
HEAD_BATCH, HEAD_RATE = 256, 1e-3  # of the reward head
LEAST = 1e-6  # smallest deviation in a penalty, so that divisions stay finite
REFIT = 200  # gradient steps that answer a jump of its gap
JUMP, LARGE = 3.0, 0.5  # times its running value, and at least: a gap that is answered by more steps

Act = Callable[[Tensor, int], tuple[Tensor, Tensor | None]]
RewardFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Ends = Callable[[Tensor, Tensor, Tensor], Tensor]
Choose = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass
class Imagined:
    """H steps of B rollouts. Where `alive` is False values are finite and meaningless; rewards are 0 there."""

    obs: Tensor  # (H, B, D)
    action: Tensor  # (H, B, A)
    next_obs: Tensor  # (H, B, D)
    reward: Tensor  # (H, B), less the penalty
    task: Tensor  # (H, B), the task's own reward, as the model predicts it
    penalty: Tensor  # (H, B)
    terminated: Tensor  # bool (H, B), this transition ended the episode
    alive: Tensor  # bool (H, B), this transition was imagined: nothing before it ended the rollout, and it was not cut
    log_prob: Tensor | None  # (H, B) of the actions, or None where `act` gives none
    step: Tensor  # int64 (H, B), within the episode
    diverged: Tensor  # 0-d, how many rollouts were cut for states that are NaN, infinite or far from the data

    @property
    def continues(self) -> Tensor:
        """Bool (B,): rollouts that nothing ended, which continue after the horizon."""
        return self.alive[-1] & ~self.terminated[-1]


def disagreement(predicted: Predicted) -> Tensor:
    """How far apart the members' means are: their standard deviation, mean over D; (B,), in the model's units."""
    return _asked(predicted.means).std(0, correction=0).mean(-1)


def aleatoric_max(predicted: Predicted) -> Tensor:
    """max_k |s_k|, the largest noise that any member expects, (B,)."""
    return _asked(predicted.stds).norm(dim=-1).amax(0)


def pairwise_max(predicted: Predicted) -> Tensor:
    """max_kl |m_k - m_l|, the widest disagreement between two means, (B,)."""
    means = _asked(predicted.means).transpose(0, 1)  # (B, K, D)
    return torch.cdist(means, means).amax((1, 2))


def ens_var(predicted: Predicted) -> Tensor:
    """sum_d var_k(m) + mean_k(s^2), the variance of the members' mixture, (B,); without stds that of the means."""
    means = _asked(predicted.means)
    second = (means - means.mean(0)).square()
    return (second if predicted.stds is None else second + predicted.stds.square()).mean(0).sum(-1)


def ens_std(predicted: Predicted) -> Tensor:
    """sqrt(ens_var), (B,)."""
    return ens_var(predicted).clamp(min=LEAST**2).sqrt()


def loo_kl(predicted: Predicted) -> Tensor:
    """Mean over members of KL(member || Gaussian with the moments of the others' mixture), (B,)."""
    means, variances = _asked(predicted.means), _asked(predicted.stds).clamp(min=LEAST).square()
    others = len(means) - 1
    centre = means.mean(0)
    off = means - centre  # moments about the mean of all: subtracting the squares of large means would lose digits
    second = variances + off.square()
    mean = -off / others  # of the others, from the centre: all of them sum to 0
    variance = ((second.sum(0) - second) / others - mean.square()).clamp(min=LEAST**2)
    gap = off - mean
    return 0.5 * ((variances + gap.square()) / variance - 1 - torch.log(variances / variance)).sum(-1).mean(0)


PENALTIES: dict[str, Callable[[Predicted], Tensor]] = {
    measure.__name__: measure for measure in (aleatoric_max, pairwise_max, ens_std, ens_var, loo_kl)
}


def _asked(of_members: Tensor | None) -> Tensor:
    assert of_members is not None, "step(..., member_predictions=True) of a model whose members predict it"
    return of_members


class HorizonSchedule:
    """Steps of a rollout over training: a number, or `linear:FROM:TO:BEGIN:END` in environment steps, rounded down."""

    def __init__(self, spec: Any) -> None:
        try:
            linear = isinstance(spec, str) and spec.startswith("linear:")
            numbers = [float(x) for x in spec.split(":")[1:]] if linear else [float(spec)] * 2 + [0.0, 1.0]
            self.start, self.stop, self.begin, self.end = numbers
        except (TypeError, ValueError):
            raise ValueError(
                f"agent.horizon={spec!r} is no horizon; give a number of steps, or linear:FROM:TO:BEGIN:END in "
                "environment steps, such as linear:1:15:20000:150000"
            ) from None
        if not (min(self.start, self.stop) >= 1 and max(numbers) < math.inf and self.begin < self.end):
            raise ValueError(f"agent.horizon={spec!r} is out of range; give steps of 1 or more, and BEGIN before END")

    def __call__(self, timesteps: int) -> int:
        share = min(max((timesteps - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return int(self.start + (self.stop - self.start) * share)

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
            usual = self.factor * uncertainty.quantile(self.quantile)
            self.threshold = usual if self.threshold is None else usual.lerp(self.threshold.to(usual), self.decay)
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
        bounds: lowest and highest observation in the data, (D,) each. States are held within them and `MARGIN` widths
            more; those more than `FAR` widths beyond are cut and counted.
    """
    members = penalty is not None or cut is not None
    one_step = functools.partial(model.step, member_predictions=members)
    rows: list[dict[str, Any]] = []
    began = torch.zeros(len(obs), dtype=torch.int64, device=obs.device) if step is None else step
    alive = torch.ones_like(began, dtype=torch.bool)
    diverged = began.new_zeros(())
    box = None if bounds is None else _box(*bounds)
    for t in range(horizon):
        action, log_prob = act(obs, t)
        finite = [alive]  # which rows turn out to be finite; gradients pass through no others
        outcome, keep = _outcome(one_step, _guard(obs, finite), _guard(action, finite), choose, candidates)
        taken = None if penalty is None else penalty(outcome)
        inside, far = _contain(outcome.next_obs, box)
        checked = outcome.next_obs.detach().sum(-1) + outcome.reward.detach()
        wrong = ~(checked if taken is None else checked + taken.detach()).isfinite()
        wrong = wrong if far is None else wrong | far
        diverged = diverged + (alive & wrong).sum()
        alive = alive & ~wrong if keep is None else alive & ~wrong & keep
        if cut is not None:
            alive = alive & ~cut(outcome, t)
        finite[0] = alive
        over = ~alive
        next_obs = torch.where(alive[:, None], inside, obs)
        task = outcome.reward.masked_fill(over, 0)
        terminated = alive & _ended(ends, outcome, obs, action, next_obs)
        reward = reward_function(obs, action, next_obs, task, terminated, began + t).masked_fill(over, 0)
        taken = torch.zeros_like(reward) if taken is None else taken.masked_fill(over, 0)
        reward = reward if penalty is None else reward - taken
        log_prob = None if log_prob is None else log_prob.masked_fill(over, 0)
        kept = {"obs": obs, "action": action, "next_obs": next_obs, "reward": reward, "task": task, "penalty": taken}
        rows.append({**kept, "terminated": terminated, "alive": alive, "log_prob": log_prob})
        alive = alive & ~terminated
        obs = torch.where(alive[:, None], next_obs, obs)
    steps = began + torch.arange(horizon, device=obs.device)[:, None]
    whole: Any = {name: None if x is None else torch.stack([row[name] for row in rows]) for name, x in rows[0].items()}
    return Imagined(**whole, step=steps, diverged=diverged)


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
    many = step(obs.repeat(candidates, 1), action.repeat(candidates, 1))
    index, keep = choose(obs, action, many.next_obs.unflatten(0, (candidates, -1)))
    picked = index * len(obs) + torch.arange(len(obs), device=obs.device)

    def pick(x: Tensor | None, axis: int) -> Any:
        return None if x is None else x.index_select(axis, picked)

    rows = (pick(many.next_obs, 0), pick(many.reward, 0), pick(many.terminated, 0))
    return Predicted(*rows, pick(many.means, 1), pick(many.stds, 1)), keep


def _box(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Limits with their margin, the centre, and 1 / width; 0 where nothing moved: there is no width to measure in."""
    width = high - low
    margin, rate = MARGIN * width, torch.where(width > 0, 1 / width, 0.0)
    return low - margin, high + margin, (low + high) / 2, rate


def _contain(obs: Tensor, box: tuple[Tensor, Tensor, Tensor, Tensor] | None) -> tuple[Tensor, Any]:
    """Observations held within the box, and bool (B,), those far outside; None without a box."""
    if box is None:
        return obs, None
    low, high, centre, rate = box
    distance = ((obs.detach() - centre).abs_() * rate).amax(-1)  # from the centre, in widths
    return obs.clamp(low, high), distance > 0.5 + FAR


def _ended(ends: Ends | None, outcome: Predicted, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    if ends is not None:
        return ends(obs, action, next_obs)
    if outcome.terminated is not None:
        return outcome.terminated > 0.5
    return torch.zeros(len(obs), dtype=torch.bool, device=obs.device)


def seeded_mlp(sizes: tuple[int, ...], seed: int) -> nn.Sequential:
    """Linear layers of these sizes with SiLU between them."""
    with torch.random.fork_rng(devices=[]):  # torch draws initial weights from its global generator
        torch.default_generator.manual_seed(seed)
        layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.SiLU())]
    return nn.Sequential(*layers[:-1])


class RewardHead(Stateful):
    """A network from features (I) to a reward, in the reward's own units; inputs and targets are standardised."""

    saved = ("net", "_flat", "mean", "std", "center", "scale", "_generator")

    def __init__(self, inputs: int, *, seed: int = 0, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.net = seeded_mlp((inputs, 128, 128, 1), seed).to(self.device)
        self._flat = Flat.over(list(self.net.parameters()))
        self.mean, self.std = torch.zeros(inputs, device=self.device), torch.ones(inputs, device=self.device)
        self.center, self.scale = torch.zeros((), device=self.device), torch.ones((), device=self.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def predict(self, x: Tensor) -> Tensor:
        """Rewards (...,) of features (..., I), differentiable."""
        x = ((x - self.mean) / self.std).clamp(-CLIP, CLIP)
        return self.center + self.scale * self.net(x).squeeze(-1)

    def fit(self, x: Tensor, y: Tensor, steps: int) -> Tensor:
        """Take `steps` minibatches of features (M, I) and rewards (M,); the last loss, in standard deviations (0-d)."""
        x, y = x.detach(), y.detach()
        std, self.mean = torch.std_mean(x, 0, correction=0)
        self.std = torch.where(std > 1e-6, std, 1.0)
        self.center, self.scale = y.mean(), spread(y)
        x, y = ((x - self.mean) / self.std).clamp_(-CLIP, CLIP), (y - self.center) / self.scale
        size = min(HEAD_BATCH, len(x))
        draws = torch.randint(len(x), (steps, size), generator=self._generator, device=self.device)
        loss = x.new_zeros(())
        with torch.enable_grad():
            for rows in draws:
                gap = self.net(x[rows]).squeeze(-1) - y[rows]
                loss = self._flat.descend(gap.square().mean(), HEAD_RATE, 10.0)
        return loss


def spread(y: Tensor) -> Tensor:
    """Standard deviation of rewards; of rewards that are all alike, a millionth of their size."""
    return torch.maximum(y.std(correction=0), 1e-6 * y.abs().max().clamp(min=1.0))


class RewardSource(Stateful):
    """The reward function of imagined transitions.

        model   the task's own reward and nothing else: as the model predicts it
        call    the reward reads nothing that imagination lacks: it is evaluated, as on real transitions
        head    everything else: a network r(s, a, s') learns the rewards of real transitions

    The head's gap, on transitions it has not learned from, is the root mean square error over the rewards' deviation. A
    reward that changes shows as a jump, which is answered by `REFIT` more steps at once.
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
        self.scorer, self.encoding, self.device = scorer, encoding, torch.device(device)
        self.how, self.reason = _how(scorer, encoding, differentiable)
        self.timesteps = 0  # environment steps so far, for schedules of weights; set by the agent
        inputs = 2 * encoding.obs_size + encoding.action_size + 1
        self.head = RewardHead(inputs, seed=seed, device=device) if self.how == "head" else None
        self._seen = 0  # rows the replay had when the head was fitted
        self._usual: float | None = None  # running gap: falls at once, rises slowly

    def __call__(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor, terminated: Tensor, step: Tensor
    ) -> Tensor:
        """Rewards float32 (B,) of transitions, see `imagine`; the head's and the model's can be differentiated."""
        if self.how == "model":
            return task
        if self.head is not None:
            return self.head.predict(_features(obs, action, next_obs, terminated))
        arrays = [x.detach().cpu().numpy() for x in (obs, action, next_obs, task, terminated, step)]
        batch = Transitions(
            obs=self.encoding.obs(arrays[0]),
            action=self.encoding.decode(arrays[1]),
            reward=arrays[3],
            next_obs=self.encoding.obs(arrays[2]),
            terminated=arrays[4],
            truncated=np.zeros(len(obs), bool),
            valid=np.ones(len(obs), bool),
            step=arrays[5],
        )
        reward = self.scorer.combine(self.scorer.relabel(batch), self.timesteps)
        return torch.from_numpy(reward).to(self.device)

    def fit(self, replay: Replay, steps: int) -> dict[str, Any]:
        """Fit the head to rewards in `steps` minibatches, more at a jump: `head_gap`, `head_loss`, `head_refits`."""
        if self.head is None:
            return {}
        rows = replay.sample(min(max(len(replay), 1), TABLE))
        x, y = _features(rows.obs, rows.action, rows.next_obs, rows.discount == 0), rows.reward
        fresh = replay.newest(min(max(replay.added - self._seen, 64), FRESH))
        self._seen = replay.added
        guess = self.head.predict(_features(fresh.obs, fresh.action, fresh.next_obs, fresh.discount == 0)).detach()
        gap = float((guess - fresh.reward).square().mean().sqrt() / spread(y))
        jumped = self._usual is None or (gap > JUMP * self._usual and gap > LARGE)
        self._usual = gap if self._usual is None else min(gap, 0.9 * self._usual + 0.1 * gap)
        loss = self.head.fit(x, y, steps + REFIT * jumped)
        return {"head_gap": gap, "head_loss": loss, "head_refits": float(jumped)}


def _features(obs: Tensor, action: Tensor, next_obs: Tensor, terminated: Tensor) -> Tensor:
    return torch.cat([obs, action, next_obs, terminated.to(obs.dtype).unsqueeze(-1)], -1)


def _how(scorer: ReplayScorer, encoding: SpaceEncoding, differentiable: bool) -> tuple[str, str]:
    """Where imagined rewards come from, and why."""
    if scorer.is_task:
        return "model", "the task's own reward is used: the model of the environment predicts it"
    foreign = sorted(scorer.requires - IMAGINED)
    if foreign:
        why = f"the reward reads {', '.join(foreign)}, which no model imagines"
    elif encoding.images and {"obs", "next_obs"} & scorer.requires:
        why = "the reward reads images, which no model imagines"
    elif not scorer.relabelable or scorer.initial_memory(1):
        why = "the reward depends on the episode before, which an imagined transition lacks"
    elif differentiable:
        why = "gradients of the reward are needed, and it has none"
    else:
        return "call", "imagined transitions are scored by the reward itself"
    return "head", f"rewards of imagined transitions are predicted by a network, learned from real ones: {why}"
