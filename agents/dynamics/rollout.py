"""Imagination: a policy acts in a model of the world, many rows side by side.

The single place where imagined transitions are paid, ended, filtered, penalised, kept within bounds and cut. Rows that
are over go on being computed from their last sound state, behind a mask, so that no shape depends on what happens and
no gradient meets a number that is none.

    imagined = imagine(model, act, pay, ends, obs, horizon)
    imagined.reward[imagined.alive]        what was paid for transitions that were really imagined

With gradients enabled, everything that the model, `act` and `reward_function` let through can be differentiated; without, results
are written into arrays made once.

Sources: Janner et al. 2019, "When to Trust Your Model", arXiv 1906.08253 (short branched rollouts); Luo et al. 2024,
"Reward-Consistent Dynamics Models are Strongly Generalizable for Offline RL", arXiv 2310.05422 (`choose`); Yu et al.
2020, "MOPO", arXiv 2005.13239 (`penalty`); Frauenknecht et al. 2024, "Trust the Model Where It Trusts Itself", arXiv
2405.19014 (`Adaptive`).

Differences: `Adaptive` measures the disagreement of the members' means, not a divergence of their distributions; a
rollout that is cut is not marked as terminated, so that no value is learned from the cut.

When it fails: a model that is wrong within the bounds of the data is believed; see `agents.dyna.penalties`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agents.dynamics import Dynamics, Predicted
from agents.networks.actor_critic import CLIP, Flat
from agents.networks.space_encoding import SpaceEncoding
from envs.types import Transitions

MARGIN, FAR = 0.1, 10.0  # in widths of what has been seen: how far beyond it states are held, and where they are no use
IMAGINED = frozenset({"obs", "action", "next_obs", "reward", "terminated", "truncated", "step"})
FRESH = 1024  # newest transitions that a gap is measured on, at most
TABLE = 16384  # transitions that are paid for a fit, at most
JUMP, LARGE = 3.0, 0.5  # times its running value, and at least: a gap that asks for more steps

Act = Callable[[Tensor, int], tuple[Tensor, Tensor | None]]
RewardFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Ends = Callable[[Tensor, Tensor, Tensor], Tensor]
Choose = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass
class Imagined:
    """H steps of B rollouts. What stands where `alive` is False is finite and means nothing; rewards are 0 there.

    Attributes:
        obs, next_obs: (H, B, D); action (H, B, A).
        reward: (H, B), what was paid less the penalty.
        task: (H, B), the task's own reward, as the model expects it.
        penalty: (H, B).
        terminated: bool (H, B), this transition ended the episode.
        alive: bool (H, B), this transition was imagined: nothing before it ended the rollout, and it was not cut.
        log_prob: (H, B) of the actions, or None where `act` gives none.
        step: int64 (H, B), within the episode.
        clamped: 0-d, how many alive transitions were held at the bounds.
        diverged: 0-d, how many rollouts were cut for states that are no numbers or far from any seen.
    """

    obs: Tensor
    action: Tensor
    next_obs: Tensor
    reward: Tensor
    task: Tensor
    penalty: Tensor
    terminated: Tensor
    alive: Tensor
    log_prob: Tensor | None
    step: Tensor
    clamped: Tensor
    diverged: Tensor

    @property
    def continues(self) -> Tensor:
        """Bool (B,): rollouts that nothing ended, whose value goes on after the horizon."""
        return self.alive[-1] & ~self.terminated[-1]


def disagreement(predicted: Predicted) -> Tensor:
    """How far apart the members' means are: their standard deviation, mean over D; (B,), in the model's units.

    Raises:
        ValueError: for a model that gives no opinions.
    """
    if predicted.means is None:
        raise ValueError("this model gives no opinions to compare; use an ensemble (model=ensemble, members >= 2)")
    return predicted.means.std(0, correction=0).mean(-1)


class Adaptive:
    """Cuts a rollout where the members disagree more than they do at the start of rollouts.

    threshold = factor * running mean over rollouts of the `quantile` of the disagreement at the first step.

    Args:
        factor: above 0; larger trusts the model further.
        quantile: in (0, 1).
        decay: of the running mean, in [0, 1).

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(self, factor: float = 1.0, quantile: float = 0.95, decay: float = 0.9) -> None:
        if not (factor > 0 and 0 < quantile < 1 and 0 <= decay < 1):
            raise ValueError(
                f"factor={factor}, quantile={quantile}, decay={decay} make no threshold; give a factor above 0, a "
                "quantile in (0, 1) and a decay in [0, 1)"
            )
        self.factor, self.quantile, self.decay = factor, quantile, decay
        self.threshold: Tensor | None = None

    @torch.no_grad()
    def __call__(self, predicted: Predicted, t: int) -> Tensor:
        """Bool (B,): which of the outcomes of step `t` of a rollout are not to be trusted."""
        doubt = disagreement(predicted)
        if t == 0:
            usual = self.factor * doubt.quantile(self.quantile)
            self.threshold = usual if self.threshold is None else usual.lerp(self.threshold.to(usual), self.decay)
        assert self.threshold is not None, "a rollout begins with step 0"
        return doubt > self.threshold

    def state_dict(self) -> dict[str, Any]:
        return {"threshold": self.threshold}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.threshold = state["threshold"]


def imagine(
    model: Dynamics,
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
    lengths: Tensor | None = None,
    sample: bool = True,
) -> Imagined:
    """Roll out B rows for `horizon` steps.

    Args:
        model: what an action leads to.
        act: (obs (B, D), t) -> (action (B, A), log_prob (B,) or None).
        reward_function: (obs, action, next_obs, task (B,), terminated bool (B,), step int64 (B,)) -> (B,); see `agents.dynamics.rollout`.
        ends: (obs, action, next_obs) -> bool (B,), whether the episode ends there; None for what the model has learned
            of it, and for never where it has not.
        obs: (B, D), where the rollouts begin.
        horizon: H, at least 1.
        step: int64 (B,), of the first transition within its episode; None for 0.
        choose: (obs, action, outcomes (N, B, D)) -> (index (B,), keep bool (B,)): which of N = `candidates` outcomes
            happens, and whether it is likely enough to go on.
        candidates: N, at least 1.
        penalty: what to take off the pay for an outcome, (B,).
        cut: (outcome, t) -> bool (B,), where not to go on; such as `Adaptive`.
        bounds: lowest and highest observation seen, (D,) each. States are held within them and `MARGIN` widths more;
            those more than `FAR` widths beyond are cut and counted.
        lengths: int64 (B,), how many steps each row goes at most.
        sample: whether outcomes are random; see `Dynamics.step`.

    Raises:
        ValueError: for a horizon below 1.
    """
    if horizon < 1:
        raise ValueError(f"horizon={horizon} imagines nothing; give at least 1 step")
    member_predictions = penalty is not None or cut is not None
    record = _Record(horizon)
    began = torch.zeros(len(obs), dtype=torch.int64, device=obs.device) if step is None else step
    alive = torch.ones_like(began, dtype=torch.bool)
    clamped = diverged = began.new_zeros(())
    box = None if bounds is None else _box(*bounds)
    for t in range(horizon):
        if lengths is not None:
            alive = alive & (t < lengths)
        action, log_prob = act(obs, t)
        sound = [alive]  # which rows turn out to be sound; gradients pass through no others
        outcome, keep = _outcome(
            model, _guard(obs, sound), _guard(action, sound), choose, candidates, sample, member_predictions
        )
        taken = None if penalty is None else penalty(outcome)
        inside, held, far = _contain(outcome.next_obs, box)
        doubtful = outcome.next_obs.detach().sum(-1) + outcome.reward.detach()
        wrong = ~(doubtful if taken is None else doubtful + taken.detach()).isfinite()
        wrong = wrong if far is None else wrong | far
        diverged = diverged + (alive & wrong).sum()
        alive = alive & ~wrong if keep is None else alive & ~wrong & keep
        if cut is not None:
            alive = alive & ~cut(outcome, t)
        sound[0] = alive
        over = ~alive
        clamped = clamped if held is None else clamped + (alive & held).sum()
        next_obs = torch.where(alive[:, None], inside, obs)
        task = outcome.reward.masked_fill(over, 0)
        terminated = alive & _ended(ends, outcome, obs, action, next_obs)
        reward = reward_function(obs, action, next_obs, task, terminated, began + t).masked_fill(over, 0)
        taken = torch.zeros_like(reward) if taken is None else taken.masked_fill(over, 0)
        reward = reward if penalty is None else reward - taken
        log_prob = None if log_prob is None else log_prob.masked_fill(over, 0)
        record.write(t, obs=obs, action=action, next_obs=next_obs, reward=reward, task=task, penalty=taken)
        record.write(t, terminated=terminated, alive=alive, log_prob=log_prob)
        alive = alive & ~terminated
        obs = torch.where(alive[:, None], next_obs, obs)
    steps = began + torch.arange(horizon, device=obs.device)[:, None]
    return Imagined(**record.tensors(), step=steps, clamped=clamped, diverged=diverged)


class _Record:
    """Results of H steps: stacked at the end where gradients are kept, else written in place."""

    def __init__(self, horizon: int) -> None:
        self._horizon, self._grad = horizon, torch.is_grad_enabled()
        self._lists: dict[str, list[Tensor]] = {}
        self._arrays: dict[str, Any] = {}

    def write(self, t: int, **values: Tensor | None) -> None:
        for name, value in values.items():
            if value is None:
                self._arrays[name] = None
            elif self._grad:
                self._lists.setdefault(name, []).append(value)
            else:
                if name not in self._arrays:
                    self._arrays[name] = value.new_empty(self._horizon, *value.shape)
                self._arrays[name][t] = value

    def tensors(self) -> dict[str, Any]:
        return {name: torch.stack(values) for name, values in self._lists.items()} | self._arrays


def _guard(x: Tensor, sound: list[Tensor]) -> Tensor:
    """The same, letting gradients back only into rows that are sound: 0 times infinity is no number."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x
    x = x.view_as(x)
    x.register_hook(lambda gradient: gradient.masked_fill(~sound[0][:, None], 0))
    return x


def _outcome(
    model: Dynamics,
    obs: Tensor,
    action: Tensor,
    choose: Choose | None,
    candidates: int,
    sample: bool,
    member_predictions: bool,
) -> tuple[Predicted, Tensor | None]:
    """What happens, and whether to keep it, bool (B,) or None for all."""
    if choose is None:
        return model.step(obs, action, sample=sample, member_predictions=member_predictions), None
    rows = torch.arange(len(obs), device=obs.device)
    many = model.step(
        obs.repeat(candidates, 1), action.repeat(candidates, 1), sample=sample, member_predictions=member_predictions
    )
    index, keep = choose(obs, action, many.next_obs.unflatten(0, (candidates, -1)))
    picked = index * len(obs) + rows

    def pick(x: Tensor | None, axis: int) -> Any:
        return None if x is None else x.index_select(axis, picked)

    terminated, means, stds = pick(many.terminated, 0), pick(many.means, 1), pick(many.stds, 1)
    return Predicted(pick(many.next_obs, 0), pick(many.reward, 0), terminated, means, stds), keep


def _box(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Limits with their margin, the centre, and 1 / width; 0 where nothing moved: there is no width to measure in."""
    width = high - low
    margin, rate = MARGIN * width, torch.where(width > 0, 1 / width, 0.0)
    return low - margin, high + margin, (low + high) / 2, rate


def _contain(obs: Tensor, box: tuple[Tensor, Tensor, Tensor, Tensor] | None) -> tuple[Tensor, Any, Any]:
    """Observations held within the box; bool (B,): those that had to be, and those far outside; None without a box."""
    if box is None:
        return obs, None, None
    low, high, centre, rate = box
    distance = ((obs.detach() - centre).abs_() * rate).amax(-1)  # from the centre, in widths
    return obs.clamp(low, high), distance > 0.5 + MARGIN, distance > 0.5 + FAR


def _ended(ends: Ends | None, outcome: Predicted, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
    if ends is not None:
        return ends(obs, action, next_obs)
    if outcome.terminated is not None:
        return outcome.terminated > 0.5
    return torch.zeros(len(obs), dtype=torch.bool, device=obs.device)


class Head:
    """A network from features to a reward, in the reward's own units.

    Args:
        inputs: I, features.
        net_arch: units of the hidden layers.
        learning_rate: of Adam, above 0.
        batch_size: rows a step, 1 or more.
        seed: of weights and minibatches.
        device: as torch writes it.

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(
        self,
        inputs: int,
        *,
        net_arch: tuple[int, ...] = (128, 128),
        learning_rate: float = 1e-3,
        batch_size: int = 256,
        seed: int = 0,
        device: Any = "cpu",
    ) -> None:
        if inputs < 1 or batch_size < 1 or not learning_rate > 0:
            raise ValueError(
                f"a head with inputs={inputs}, batch_size={batch_size}, learning_rate={learning_rate} cannot learn; "
                "give numbers above 0"
            )
        self.device, self.learning_rate, self.batch_size = torch.device(device), learning_rate, batch_size
        layers: list[nn.Module] = []
        with torch.random.fork_rng(devices=[]):  # torch draws initial weights from its global generator
            torch.default_generator.manual_seed(seed)
            width = inputs
            for units in net_arch:
                layers += [nn.Linear(width, units), nn.SiLU()]
                width = units
            self.net = nn.Sequential(*layers, nn.Linear(width, 1)).to(self.device)
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
        size = min(self.batch_size, len(x))
        draws = torch.randint(len(x), (steps, size), generator=self._generator, device=self.device)
        loss = x.new_zeros(())
        with torch.enable_grad():
            for rows in draws:
                loss = (self.net(x[rows]).squeeze(-1) - y[rows]).square().mean()
                self._flat.grad.zero_()
                loss.backward()
                self._flat.step(self.learning_rate, 10.0)
        return loss.detach()

    @torch.no_grad()
    def gap(self, x: Tensor, y: Tensor) -> Tensor:
        """How far off it is: root mean square error on (M, I), (M,) over the rewards' standard deviation; 0-d."""
        return (self.predict(x) - y).square().mean().sqrt() / spread(y)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, statistics and random numbers."""
        return {
            "net": {key: value.clone() for key, value in self.net.state_dict().items()},
            "flat": {key: value.clone() for key, value in self._flat.state_dict().items()},
            "statistics": [self.mean, self.std, self.center, self.scale],
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.net.load_state_dict({key: torch.as_tensor(value) for key, value in state["net"].items()})
        self._flat.load_state_dict(state["flat"])
        statistics = (torch.as_tensor(value).to(self.device) for value in state["statistics"])
        self.mean, self.std, self.center, self.scale = statistics
        self._generator.set_state(torch.as_tensor(state["generator"]).cpu())


def spread(y: Tensor) -> Tensor:
    """Standard deviation of rewards; of rewards that are all alike, a millionth of their size."""
    return torch.maximum(y.std(correction=0), 1e-6 * y.abs().max().clamp(min=1.0))


class RewardSource:
    """Pays imagined transitions.

    Args:
        scorer: what pays real ones.
        encoding: the spaces.
        differentiable: whether gradients of the reward are wanted.
        refit: steps that the head takes at once, beside those it is given, when the gap has jumped.
        seed: of the head.
        device: as torch writes it.

    Attributes:
        how: `model`, `call` or `head`; see the top of the file.
        reason: why, a sentence.
        timesteps: environment steps so far, for schedules of weights; whoever drives it sets them.
        head: the network, or None.
    """

    def __init__(
        self,
        scorer: Any,
        encoding: SpaceEncoding,
        *,
        differentiable: bool = False,
        refit: int = 200,
        seed: int = 0,
        device: Any = "cpu",
    ) -> None:
        self.scorer, self.encoding, self.refit, self.device = scorer, encoding, refit, torch.device(device)
        self.how, self.reason = _how(scorer, encoding, differentiable)
        self.timesteps = 0
        self.head: Head | None = None
        if self.how == "head":
            self.head = Head(2 * encoding.obs_size + encoding.action_size + 1, seed=seed, device=device)
        self._seen = 0  # rows the replay had when the head was fitted
        self._usual: float | None = None  # running gap: falls at once, rises slowly

    def __call__(
        self, obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor, terminated: Tensor, step: Tensor
    ) -> Tensor:
        """Rewards float32 (B,) of transitions; the head's and the model's can be differentiated.

        Args:
            obs: (B, D).
            action: (B, A).
            next_obs: (B, D).
            task: (B,), what the model of the world expects the task to pay.
            terminated: bool (B,).
            step: int64 (B,), within the episode.
        """
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
        paid = self.scorer.combine(self.scorer.again(batch), self.timesteps)
        return torch.from_numpy(paid).to(self.device)

    def fit(self, replay: Any, steps: int) -> dict[str, Any]:
        """Let the head learn what real transitions are paid now, in `steps` minibatches, more if the gap has jumped.

        Returns:
            Metrics: `head_gap` before, `head_loss` after, `head_refits` 0 or 1; nothing without a head.

        Raises:
            ValueError: if the replay is empty.
        """
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
        loss = self.head.fit(x, y, steps + self.refit * jumped)
        return {"head_gap": gap, "head_loss": loss, "head_refits": float(jumped)}

    def state_dict(self) -> dict[str, Any]:
        """The head and its running gap."""
        head = None if self.head is None else self.head.state_dict()
        return {"head": head, "seen": self._seen, "usual": self._usual, "timesteps": self.timesteps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        if self.head is not None:
            self.head.load_state_dict(state["head"])
        self._seen, self._usual, self.timesteps = int(state["seen"]), state["usual"], int(state["timesteps"])


def _features(obs: Tensor, action: Tensor, next_obs: Tensor, terminated: Tensor) -> Tensor:
    return torch.cat([obs, action, next_obs, terminated.to(obs.dtype).unsqueeze(-1)], -1)


def _how(scorer: Any, encoding: SpaceEncoding, differentiable: bool) -> tuple[str, str]:
    """How imagined transitions are paid, and why."""
    if scorer.is_task:
        return "model", "the task's own reward is paid: the model of the world predicts it"
    why = ""
    foreign = sorted(scorer.requires - IMAGINED)
    if foreign:
        why = f"the reward reads {', '.join(foreign)}, which no model imagines"
    elif encoding.images and {"obs", "next_obs"} & scorer.requires:
        why = "the reward reads images, which no model imagines"
    elif not scorer.relabelable or scorer.initial_memory(1):
        why = "the reward remembers the episode, which an imagined transition lacks"
    elif differentiable:
        why = "gradients of the reward are wanted, and it has none"
    if why:
        return "head", f"imagined transitions are paid by a network that learns the reward from real ones: {why}"
    return "call", "imagined transitions are paid by the reward itself"
