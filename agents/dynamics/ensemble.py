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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from agents.dynamics import Predicted
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.stacked import Stacked
from agents.replay.replay import Replay
from envs.types import Options, StateDict
from lodestar.numerics.descent import Flat, draw_integers, draw_order
from lodestar.settings import Settings, setting
from lodestar.state import Stateful, all_finite

# Of every 10 blocks of 20 consecutive rows one is held out.
BLOCK_ROWS = 20
BLOCKS_PER_HELD_OUT = 10
MAX_HELD_OUT_ROWS = 1000
# Gradient steps between two evaluations on the held-out rows.
EVALUATION_STEPS = 50
# Where the learned bounds of log-variances begin.
INITIAL_LOW_LOG_VAR = -10.0
INITIAL_HIGH_LOG_VAR = 0.5
# The weight of the distance between the bounds (PETS).
BOUND_WEIGHT = 0.01
# An evaluation that improves no member's loss by this share is idle, and two in a row end a fit.
MIN_RELATIVE_GAIN = 0.01
MAX_IDLE_EVALUATIONS = 2


@dataclass
class EnsembleConfig(Settings):
    """Settings of `DynamicsEnsemble`."""

    kind: str = setting("gauss", "each member predicts mean and variance, or a value", "gauss | det")
    members: int = setting(5, "networks side by side, K", ">= 1")
    elites: int | None = setting(None, "the best by held-out loss, which predict; None for all", ">= 1")
    hidden: list[int] = setting([128, 128, 128], "units of each hidden layer", ">= 1")
    norm: str = setting("none", "layer: LayerNorm before each activation", "none | layer")
    terminations: bool = setting(False, "whether the end of an episode is learned, too")
    learning_rate: float = setting(1e-3, "of AdamW", "(0, 1)")
    weight_decay: float = setting(1e-4, "of AdamW", "[0, 1)")
    batch_size: int = setting(256, "rows of each member's minibatch", ">= 1")
    first_steps: int = setting(1000, "gradient steps of a fit after the scalers were set", ">= 1")
    min_steps: int = setting(100, "gradient steps of every other fit, at least", ">= 1")
    max_steps: int = setting(500, "at most; it ends early when no member improves", ">= 1")

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
    """Indices of `rows` in time order to fit to, and of at most `MAX_HELD_OUT_ROWS` held out.

    Held out is the `turn`-th of every `BLOCKS_PER_HELD_OUT` blocks.
    """
    if rows < 2:
        raise ValueError(f"{rows} transitions are too few to fit and to validate; collect at least two before")
    index = torch.arange(rows, device=device)
    block = index // BLOCK_ROWS
    held_block = (BLOCKS_PER_HELD_OUT // 2 + turn) % BLOCKS_PER_HELD_OUT
    held = block % BLOCKS_PER_HELD_OUT == held_block
    # There may be too few rows for a block: then the last ones are held out.
    if not held[: rows - BLOCK_ROWS // 2].any():
        held = index >= rows - max(1, rows // BLOCKS_PER_HELD_OUT)
    held_rows = index[held]
    stride = math.ceil(len(held_rows) / MAX_HELD_OUT_ROWS)
    return index[~held], held_rows[::stride]


class DynamicsEnsemble(Stateful):
    """A `Dynamics`: next_obs = obs + mean + scale * f_k(whitened obs and action)."""

    saved = ("net", "_flat", "elites", "_scaled_at", "_scalings", "failures", "generator")

    def __init__(self, encoding: SpaceEncoding, config: EnsembleConfig, *, seed: int = 0, device: str = "cpu") -> None:
        self.config = config
        self.members = config.members
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.net: Any = self._networks(encoding, seed).to(self.device)
        self._flat = Flat.of_parameters(list(self.net.parameters()))
        # Views of the flat vector for `step`, which need no gradient.
        self._weights = [p.detach() for p in self.net.parameters()]
        # Rows there were when the scalers were set, and how often they were.
        self._scaled_at = 0
        self._scalings = 0
        self.failures = 0
        self._set_elites(torch.arange(config.elites or self.members, device=self.device))

    def step(self, obs: Tensor, action: Tensor, *, sample: bool = True, member_predictions: bool = False) -> Predicted:
        net = self.net
        means = stds = std = None
        x = net.inputs(torch.cat([obs, action], -1))
        if sample and not member_predictions and len(self.elites) > 1:
            # A row's outcome needs one elite alone.
            mean, std, ends = net.read(self._by_one_elite_each(x))
        else:
            out = net(x, self._weights if member_predictions else self._elite)
            if member_predictions:
                means, stds, _ = net.read(out)
                # The last column is the reward's.
                means = means[..., :-1]
                stds = None if stds is None else stds[..., :-1]
                out = out.index_select(0, self.elites)
            if sample:
                member, _, _ = self._assign_elites(len(x))
                rows = torch.arange(len(x), device=self.device)
                mean, std, ends = net.read(out[member, rows])
            else:
                mean, _, ends = net.read(out)
                mean = mean.mean(0)
                ends = None if ends is None else ends.mean(0)
        change = mean[:, :-1]
        if sample and std is not None:
            noise = torch.empty_like(change).normal_(generator=self.generator)
            change = change + std[:, :-1] * noise
        # Back from deviations to the environment's units; an entry that never moved stays as it is.
        unit = net.outputs.scale * net.moves
        change_in_units = net.outputs.mean[:-1] + change * unit[:-1]
        next_obs = obs + change_in_units
        reward = net.outputs.mean[-1] + mean[:, -1] * unit[-1]
        return Predicted(next_obs, reward, ends, means, stds)

    def fit(self, replay: Replay, steps: int | None = None) -> dict[str, float]:
        """See `Dynamics.fit`: model_error (held-out RMSE, in deviations), model_loss, model_steps, model_failures."""
        columns = replay.arrays()
        if not all_finite(columns):
            self.failures += 1
            return {"model_steps": 0.0, "model_failures": float(self.failures)}
        rescaled = self._must_rescale(replay)
        table = self._table(columns, rescaled)
        rows, held_rows = split(len(table), self._scalings, self.device)
        held = table[held_rows]
        budget = self.config.first_steps if rescaled else self.config.max_steps
        if steps is not None:
            budget = min(budget, steps)
        n_steps, loss = self._train(table, rows, held, budget, rescaled)
        return {
            "model_error": self._error(held),
            "model_loss": loss,
            "model_steps": float(n_steps),
            "model_failures": float(self.failures),
        }

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self._set_elites(self.elites)

    def _networks(self, encoding: SpaceEncoding, seed: int) -> nn.Module:
        """The networks of all members."""
        return _Members(encoding.obs_size, encoding.action_size, self.config, seed)

    def _error(self, held: Tensor) -> float:
        """Root mean square error of the elites on held-out rows, in deviations."""
        inputs, targets, _ = self.net.columns(held)
        mean, _, _ = self.net.read(self.net(inputs, self._elite))
        return float((mean - targets).square().mean().sqrt())

    def _set_elites(self, elites: Tensor) -> None:
        """Let these members (E,) predict, best first, with their weights: views where all do."""
        self.elites = elites
        self._elite = self._weights
        if len(elites) < self.members:
            self._elite = [weight[elites] for weight in self._weights]

    def _assign_elites(self, rows: int) -> tuple[Tensor, Tensor, int]:
        """Each row's elite and rank among its rows, which are dealt out in random turn; the largest number of rows."""
        n_elites = len(self.elites)
        rank = draw_order(self.generator, rows)
        turn = draw_order(self.generator, n_elites)
        return turn[rank % n_elites], rank // n_elites, math.ceil(rows / n_elites)

    def _by_one_elite_each(self, x: Tensor) -> Tensor:
        """TS1: outputs (B, O), each row's by one elite."""
        n_rows = len(x)
        n_elites = len(self.elites)
        member, rank, size = self._assign_elites(n_rows)
        place = member * size + rank
        # Places left over hold row 0 again and are not read.
        order = torch.zeros(n_elites * size, dtype=torch.int64, device=self.device)
        order[place] = torch.arange(n_rows, device=self.device)
        inputs = x.index_select(0, order).view(n_elites, size, -1)
        out = self.net(inputs, self._elite)
        return out.flatten(0, 1).index_select(0, place)

    def _table(self, columns: tuple[Tensor, ...], rescale: bool) -> Tensor:
        """Whitened inputs, standardised targets, terminated: (M, W), of a replay's columns; scalers are set first."""
        obs, action, next_obs, task, terminated, _ = columns
        net = self.net
        reward = task[:, None]
        is_end = terminated[:, None].float()
        table = torch.cat([obs, action, next_obs - obs, reward, is_end], -1)
        # Views of the table, which are standardised in place.
        inputs, targets, _ = net.columns(table)
        if rescale:
            net.inputs.fit(inputs)
            net.outputs.fit(targets)
        net.moves.copy_((targets != net.outputs.mean).any(0))
        inputs.copy_(net.inputs(inputs))
        targets.copy_(net.outputs(targets))
        return table

    def _must_rescale(self, replay: Replay) -> bool:
        """Whether the data has doubled since the scalers were set; if so, this counts as setting them."""
        if replay.added < 2 * self._scaled_at:
            return False
        self._scaled_at = replay.added
        self._scalings += 1
        return True

    def _train(self, table: Tensor, rows: Tensor, held: Tensor, budget: int, rescaled: bool) -> tuple[int, float]:
        """Gradient steps on `rows` of the table, as many as taken and the loss of the last ones.

        Each member keeps the weights whose loss on the `held` rows was lowest. Without new scalers a fit ends early
        when no member improves.
        """
        members = self.members
        # Each member's bootstrap of the rows, (K, M); a single member sees all.
        bootstraps = rows[None]
        if members > 1:
            bootstraps = rows[draw_integers(self.generator, len(rows), members, len(rows))]
        best = self._flat.value.clone()
        lowest = loss = self._held_loss(held)
        total = torch.zeros((), device=self.device)
        n_steps = 0
        n_idle = 0
        chunk = 1
        while n_steps < budget:
            improving = n_idle < MAX_IDLE_EVALUATIONS
            if not (rescaled or improving or n_steps < self.config.min_steps):
                break
            chunk = min(EVALUATION_STEPS, budget - n_steps)
            total.zero_()
            for batch in self._minibatches(table, bootstraps, chunk):
                total += self._update(batch)
            n_steps += chunk
            loss = self._held_loss(held)
            # Comparisons with NaN are False, so that a member that diverged does not count as better.
            better = loss < lowest
            improved = (loss < lowest - MIN_RELATIVE_GAIN * lowest.abs()).any()
            n_idle = 0 if improved else n_idle + 1
            self._keep(best, better)
            lowest = torch.where(better, loss, lowest)
        if not torch.isfinite(loss).all():
            # Adam's moments are those of the diverged weights.
            self.failures += 1
            self._flat.mean.zero_()
            self._flat.square.zero_()
            self._flat.steps.zero_()
        self._flat.value.copy_(best)
        self._set_elites(lowest.argsort()[: len(self.elites)])
        return n_steps, float(total) / chunk

    def _minibatches(self, table: Tensor, bootstraps: Tensor, steps: int) -> Iterator[Tensor]:
        """Rows (K, B, W) for each of the steps, drawn with replacement from each member's bootstrap."""
        members, n_rows = bootstraps.shape
        size = self.config.batch_size
        places = draw_integers(self.generator, n_rows, members, steps * size)
        index = bootstraps.gather(1, places).view(members, steps, size)
        for step_index in index.transpose(0, 1).reshape(steps, -1):
            yield table.index_select(0, step_index).view(members, size, -1)

    def _update(self, batch: Tensor) -> Tensor:
        """One step of AdamW on (K, B, W); the mean loss of a member."""
        config = self.config
        flat = self._flat
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
        lengths = [weight.numel() for weight in self._weights]
        for weight, piece in zip(self._weights, best.split(lengths)):
            best_weight = piece.view_as(weight)
            best_weight.copy_(torch.where(better[:, None, None], weight, best_weight))


class _Members(nn.Module):
    """The networks with their scalers, on rows (..., W): inputs, targets (change of obs, reward), terminated."""

    moves: Tensor

    def __init__(self, obs_size: int, action_size: int, config: EnsembleConfig, seed: int) -> None:
        super().__init__()
        self.gauss = config.kind == "gauss"
        self.terminations = config.terminations
        self.targets = obs_size + 1
        width = obs_size + action_size
        members = config.members
        outputs = self.targets
        if self.gauss:
            # Each member has its own bounds of the log-variance.
            outputs = 2 * self.targets
            shape = (members, 1, self.targets)
            self.low = nn.Parameter(torch.full(shape, INITIAL_LOW_LOG_VAR))
            self.high = nn.Parameter(torch.full(shape, INITIAL_HIGH_LOG_VAR))
        options: Options = {"activation": "silu", "norm": config.norm}
        self.stack = Stacked(members, width, config.hidden, outputs, **options, seed=seed)
        if self.terminations:
            # A network of its own: the gradients of a sharp likelihood would drown those of an end.
            hidden = config.hidden[:2]
            self.ends = Stacked(members, width, hidden, 1, **options, seed=seed + 1)
        self.inputs = Scaler(width)
        self.outputs = Scaler(self.targets)
        # 0 for a target that never changed.
        self.register_buffer("moves", torch.ones(self.targets))

    def columns(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets, terminated (..., 1)."""
        widths = [len(self.inputs.mean), self.targets, 1]
        return rows.split(widths, -1)  # type: ignore[return-value]

    def forward(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        """(B, I) or (K, B, I) -> (K, B, O): means, log-variances within their bounds, a logit."""
        # The order of the parameters: the bounds, the stack, the network of ends.
        n_bounds = 2 if self.gauss else 0
        out = self.stack(x, weights[n_bounds:])
        parts = [out]
        if self.gauss:
            low, high = weights[:2]
            mean, log_var = out.split(self.targets, -1)
            log_var = high - softplus(high - log_var)
            parts = [mean, low + softplus(log_var - low)]
        if self.terminations:
            end_weights = weights[n_bounds + len(self.stack.stack) :]
            parts.append(self.ends(x, end_weights))
        if len(parts) == 1:
            return out
        return torch.cat(parts, -1)

    def read(self, out: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Means and deviations (..., D + 1), and the probability of an end (...,), of outputs (..., O)."""
        mean = out[..., : self.targets]
        std = ends = None
        if self.gauss:
            log_var = out[..., self.targets : 2 * self.targets]
            std = torch.exp(0.5 * log_var)
        if self.terminations:
            ends = torch.sigmoid(out[..., -1])
        return mean, std, ends

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
            logits = out[..., -1]
            ends = terminated[..., 0].expand(logits.shape)
            end_loss = binary_cross_entropy_with_logits(logits, ends, reduction="none")
            loss = loss + end_loss.mean(1)
        return loss

    def bound_loss(self) -> Tensor | float:
        """PETS: keeps the bounds of the log-variance as narrow as the data allows."""
        if not self.gauss:
            return 0.0
        return BOUND_WEIGHT * (self.high - self.low).sum()
