"""Networks that predict the next observation: one or several side by side, each with or without a variance.

Every member maps a whitened (obs, action) to the standardised change of the observation and the task's reward, as a
Gaussian or as a value. Several members, each fitted to its own resampling of the same rows, agree where there was data
and differ elsewhere, which penalties and planners read as uncertainty.

Sources: Chua et al. 2018 (PETS), arXiv 1805.12114, section 4 (Gaussian members, bootstrap, TS1) and appendix A.1
(bounded variance); Janner et al. 2019 (MBPO), arXiv 1906.08253 (elites by held-out error); Zheng et al. 2023, "Is Model
Ensemble Necessary for Model-based RL via a Lipschitz Perspective" (one member is often enough).

Differences from the sources:
  - a fit has a budget of gradient steps, continues from the last weights, and ends with those that predicted the
    held-out rows best, member by member; scalers stay until the data has doubled;
  - held-out are stretches of consecutive rows, as neighbours in time are nearly copies;
  - TS1 splits the batch: every elite predicts an equal share of the rows, where in PETS all members predict all rows;
  - the end of an episode, if learned, has its own network; an entry that never changed is predicted exactly as it is.

When it fails: discontinuities (contacts, doors) are smoothed; far from the data all members may err alike; entries that
change rarely are rare in the loss, too.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from agents.dynamics import Predicted
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.stacked import Stacked
from agents.replay.replay import Replay
from lodestar.numerics.flat import Flat
from lodestar.settings import Settings, setting
from lodestar.state import Stateful

BLOCK, OF = 20, 10  # of every 10 blocks of 20 consecutive rows one is held out
HELD = 1000  # held-out rows that are evaluated, at most
EVERY = 50  # gradient steps between two evaluations
LOG_VAR = (-10.0, 0.5)  # where the learned bounds of log-variances begin
BOUND_WEIGHT = 0.01  # PETS: what pulls the bounds together
GAIN = 0.01  # relative improvement below which there is none


@dataclass
class EnsembleConfig(Settings):
    """Settings of `DynamicsEnsemble`."""

    kind: str = setting("gauss", "each member predicts mean and variance, or a value", choices=("gauss", "det"))
    members: int = setting(5, "networks side by side, K", low=1)
    elites: int | None = setting(None, "the best by held-out loss, which predict; None for all", low=1)
    hidden: list[int] = setting([128, 128, 128], "units of each hidden layer", low=1)
    norm: str = setting("none", "layer: LayerNorm before each activation", choices=("none", "layer"))
    terminations: bool = setting(False, "whether the end of an episode is learned, too")
    learning_rate: float = setting(1e-3, "of AdamW", above=0, below=1)
    weight_decay: float = setting(1e-4, "of AdamW", low=0, below=1)
    batch_size: int = setting(256, "rows of each member's minibatch", low=1)
    first_steps: int = setting(1000, "gradient steps of a fit after the scalers were set", low=1)
    min_steps: int = setting(100, "gradient steps of every other fit, at least", low=1)
    max_steps: int = setting(500, "at most; it ends early when no member improves", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elites is not None and self.elites > self.members:
            raise ValueError(f"elites={self.elites} is out of range; give 1 to members={self.members}, or None for all")
        if self.max_steps < self.min_steps:
            raise ValueError(f"max_steps={self.max_steps} is below min_steps={self.min_steps}; give at least as many")


class Scaler(nn.Module):
    """Columns in standard deviations from their mean; a column that never changed keeps its unit."""

    mean: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def fit(self, rows: Tensor) -> None:
        std, mean = torch.std_mean(rows.double(), 0, correction=0)
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(std > 1e-6, std, 1.0))

    def forward(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) / self.scale


def split(rows: int, turn: int = 0, device: str | torch.device = "cpu") -> tuple[Tensor, Tensor]:
    """Indices of `rows` in time order to fit to, and of at most `HELD` held out: the `turn`-th of every `OF` blocks."""
    if rows < 2:
        raise ValueError(f"{rows} transitions are too few to fit and to validate; collect at least two before")
    index = torch.arange(rows, device=device)
    held = index // BLOCK % OF == (OF // 2 + turn) % OF
    if not held[: rows - BLOCK // 2].any():  # too few for a block: the last rows
        held = index >= rows - max(1, rows // OF)
    places = index[held]
    return index[~held], places[:: -(-len(places) // HELD)]


class DynamicsEnsemble(Stateful):
    """A `Dynamics`: next_obs = obs + mean + scale * f_k(whitened obs and action)."""

    saved = ("net", "_flat", "elites", "_scaled_at", "_scalings", "failures", "generator")

    def __init__(self, encoding: SpaceEncoding, config: EnsembleConfig, *, seed: int = 0, device: str = "cpu") -> None:
        self.config, self.members, self.device = config, config.members, torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.net: Any = self._networks(encoding, seed).to(self.device)
        self._flat = Flat.over(list(self.net.parameters()))
        self._weights = [p.detach() for p in self.net.parameters()]  # the same memory, for `step`
        self._scaled_at = self._scalings = self.failures = 0  # scaled_at: rows there were when the scalers were set
        self.elites = torch.arange(config.elites or self.members, device=self.device)  # who predict, best first
        few = len(self.elites) < self.members
        self._elite = [p[: len(self.elites)].clone() for p in self._weights] if few else self._weights

    def step(self, obs: Tensor, action: Tensor, *, sample: bool = True, member_predictions: bool = False) -> Predicted:
        net = self.net
        means = stds = std = None
        x = net.inputs(torch.cat([obs, action], -1))
        if sample and not member_predictions and len(self.elites) > 1:
            mean, std, ends = net.read(self._shared(x))
        else:
            out = net(x, self._weights if member_predictions else self._elite)
            if member_predictions:
                means, stds, _ = net.read(out)
                means, stds = means[..., :-1], stds if stds is None else stds[..., :-1]
                out = out.index_select(0, self.elites)
            if sample:
                mean, std, ends = net.read(out[self._drawn(len(x))[0], torch.arange(len(x), device=self.device)])
            else:
                mean, _, ends = net.read(out)
                mean, ends = mean.mean(0), ends if ends is None else ends.mean(0)
        change, unit = mean[:, :-1], net.outputs.scale * net.moves
        if sample and std is not None:
            change = change + std[:, :-1] * torch.empty_like(change).normal_(generator=self.generator)
        next_obs = obs + (net.outputs.mean[:-1] + change * unit[:-1])
        return Predicted(next_obs, net.outputs.mean[-1] + mean[:, -1] * unit[-1], ends, means, stds)

    def fit(self, replay: Replay, steps: int | None = None) -> dict[str, float]:
        """See `Dynamics.fit`: model_error (held-out RMSE, in deviations), model_loss, model_steps, model_failures."""
        table, fresh = self._table(replay)
        if table is None:
            self.failures += 1
            return {"model_steps": 0.0, "model_failures": float(self.failures)}
        rows, places = split(len(table), self._scalings, self.device)
        held = table[places]
        budget = self.config.first_steps if fresh else self.config.max_steps
        taken, loss = self._train(table, rows, held, min(budget, budget if steps is None else steps), fresh)
        metrics = {"model_error": self._error(held), "model_loss": loss, "model_steps": float(taken)}
        return {**metrics, "model_failures": float(self.failures)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._elect(self.elites)

    def _networks(self, encoding: SpaceEncoding, seed: int) -> nn.Module:
        return _Members(encoding.obs_size, encoding.action_size, self.config, seed)

    def _error(self, held: Tensor) -> float:
        inputs, targets, _ = self.net.columns(held)
        mean = self.net.read(self.net(inputs, self._elite))[0]
        return float((mean - targets).square().mean().sqrt())

    def _elect(self, elites: Tensor) -> None:
        self.elites = elites
        if self._elite is not self._weights:
            self._elite = [weight[elites] for weight in self._weights]

    def _drawn(self, rows: int) -> tuple[Tensor, Tensor, int]:
        """Each row's elite and rank among its rows, which are dealt out in random turn; the largest number of rows."""
        few = len(self.elites)
        rank = torch.randperm(rows, generator=self.generator, device=self.device)
        turn = torch.randperm(few, generator=self.generator, device=self.device)
        return turn[rank % few], rank // few, -(-rows // few)

    def _shared(self, x: Tensor) -> Tensor:
        """TS1: outputs (B, O), each row's by one elite."""
        rows, few = len(x), len(self.elites)
        member, turn, size = self._drawn(rows)
        place = member * size + turn
        order = torch.zeros(few * size, dtype=torch.int64, device=self.device)
        order[place] = torch.arange(rows, device=self.device)  # places left over hold row 0 again and are not read
        out = self.net(x.index_select(0, order).view(few, size, -1), self._elite)
        return out.flatten(0, 1).index_select(0, place)

    def _table(self, replay: Replay) -> tuple[Tensor | None, bool]:
        """Whitened inputs, standardised targets, terminated: (M, W), None if not finite; whether scalers were set."""
        obs, action, next_obs, task, terminated, _ = replay.arrays()
        net = self.net
        table = torch.cat([obs, action, next_obs - obs, task[:, None], terminated[:, None].float()], -1)
        if not torch.isfinite(table).all():
            return None, False
        inputs, targets, _ = net.columns(table)
        fresh = replay.added >= 2 * self._scaled_at
        if fresh:
            self._scaled_at, self._scalings = replay.added, self._scalings + 1
            net.inputs.fit(inputs)
            net.outputs.fit(targets)
        net.moves.copy_((targets != net.outputs.mean).any(0))
        inputs.copy_(net.inputs(inputs))
        targets.copy_(net.outputs(targets))
        return table, fresh

    def _train(self, table: Tensor, rows: Tensor, held: Tensor, budget: int, fresh: bool) -> tuple[int, float]:
        members, size = self.members, self.config.batch_size
        own = rows[self._random(len(rows), members, len(rows))] if members > 1 else rows[None]
        best, lowest = self._flat.value.clone(), self._held_loss(held)
        begin, idle, steps, loss, total = 0, 0, 1, lowest, torch.zeros((), device=self.device)
        while begin < budget and (fresh or begin < self.config.min_steps or idle < 2):
            steps = min(EVERY, budget - begin)
            draws = own.gather(1, self._random(len(rows), members, steps * size)).view(members, steps, size)
            draws = draws.transpose(0, 1).reshape(steps, -1)
            total.zero_()
            for index in draws:
                total += self._update(table.index_select(0, index).view(members, size, -1))
            begin += steps
            loss = self._held_loss(held)
            better = loss < lowest  # never true of NaN
            idle = 0 if bool((loss < lowest - GAIN * lowest.abs()).any()) else idle + 1
            self._keep(best, better)
            lowest = torch.where(better, loss, lowest)
        if not bool(torch.isfinite(loss).all()):
            self.failures += 1
            self._flat.mean.zero_(), self._flat.square.zero_(), self._flat.steps.zero_()
        self._flat.value.copy_(best)
        self._elect(lowest.argsort()[: len(self.elites)])
        return begin, float(total) / steps

    def _update(self, batch: Tensor) -> Tensor:
        """One step of AdamW on (K, B, W); the mean loss of a member."""
        config, flat = self.config, self._flat
        losses = self.net.losses(batch)
        flat.grad.zero_()
        (losses.sum() + self.net.bound_loss()).backward()
        flat.value.mul_(1 - config.learning_rate * config.weight_decay)
        flat.step(config.learning_rate, math.inf)
        return losses.detach().mean()

    @torch.no_grad()
    def _held_loss(self, held: Tensor) -> Tensor:
        """Loss of each member on held-out rows, (K,)."""
        return self.net.losses(held)

    @torch.no_grad()
    def _keep(self, best: Tensor, better: Tensor) -> None:
        """Write the members that got better, bool (K,), into the flat vector `best`."""
        for weight, part in zip(self._weights, best.split([weight.numel() for weight in self._weights])):
            part = part.view_as(weight)
            part.copy_(torch.where(better[:, None, None], weight, part))

    def _random(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator, device=self.device)


class _Members(nn.Module):
    """The networks with their scalers, on rows (..., W): inputs, targets (change of obs, reward), terminated."""

    moves: Tensor

    def __init__(self, obs_size: int, action_size: int, config: EnsembleConfig, seed: int) -> None:
        super().__init__()
        self.gauss, self.terminations = config.kind == "gauss", config.terminations
        width, self.targets = obs_size + action_size, obs_size + 1
        if self.gauss:  # bounds of the log-variance, each member's own
            self.low, self.high = (nn.Parameter(torch.full((config.members, 1, self.targets), b)) for b in LOG_VAR)
        shape: dict[str, Any] = {"activation": "silu", "norm": config.norm}
        self.stack = Stacked(config.members, width, config.hidden, self.targets * (1 + self.gauss), **shape, seed=seed)
        if self.terminations:  # its own: the gradients of a sharp likelihood would drown those of an end
            self.ends = Stacked(config.members, width, config.hidden[:2], 1, **shape, seed=seed + 1)
        self.inputs, self.outputs = Scaler(width), Scaler(self.targets)
        self.register_buffer("moves", torch.ones(self.targets))  # 0 for a target that never changed

    def columns(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return rows.split([len(self.inputs.mean), self.targets, 1], -1)  # type: ignore[return-value]

    def forward(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        """(B, I) or (K, B, I) -> (K, B, O): means, log-variances within their bounds, a logit."""
        bounds = 2 * self.gauss
        outputs = [self.stack(x, weights[bounds:])]
        if self.gauss:
            low, high = weights[:2]
            mean, log_var = outputs[0].split(self.targets, -1)
            log_var = high - softplus(high - log_var)
            outputs = [mean, low + softplus(log_var - low)]
        if self.terminations:
            outputs.append(self.ends(x, weights[bounds + len(self.stack.stack) :]))
        return torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]

    def read(self, out: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Means and deviations (..., D + 1), and the probability of an end (...,), of outputs (..., O)."""
        std = torch.exp(0.5 * out[..., self.targets : 2 * self.targets]) if self.gauss else None
        return out[..., : self.targets], std, torch.sigmoid(out[..., -1]) if self.terminations else None

    def losses(self, rows: Tensor) -> Tensor:
        """Each member's (K,) mean negative log-likelihood (up to a constant) or squared error, and cross-entropy."""
        inputs, targets, terminated = self.columns(rows)
        out = self(inputs, list(self.parameters()))
        loss = (out[..., : self.targets] - targets).square()
        if self.gauss:
            log_var = out[..., self.targets : 2 * self.targets]
            loss = loss * torch.exp(-log_var) + log_var
        loss = loss.mean((1, 2))
        if self.terminations:
            ends = terminated[..., 0].expand(out.shape[:-1])
            loss = loss + binary_cross_entropy_with_logits(out[..., -1], ends, reduction="none").mean(1)
        return loss

    def bound_loss(self) -> Tensor | float:
        """PETS: keeps the bounds of the log-variance as narrow as the data allows."""
        return BOUND_WEIGHT * (self.high - self.low).sum() if self.gauss else 0.0
