"""SINDy: dynamics as sparse polynomials, fitted by least squares in milliseconds.

The change of the observation is a linear combination of monomials of observation and action, x' = x + Theta(x, u) Xi.
Terms with small coefficients are removed one round after another; an ensemble of bootstraps gives the uncertainty of
the others.

Sources: Brunton, Proctor & Kutz 2016, PNAS 113(15) (sequentially thresholded least squares); Fasel et al. 2022,
"Ensemble-SINDy", Proc. R. Soc. A 478 (bagging of rows and of library terms); Zolman et al. 2024, "SINDy-RL", arXiv
2403.09110 (discrete time, control-affine libraries, the median of 20 members; its sparse policy: `lodestar explain`).

Differences from them:
    - the threshold is in standard deviations of the change for a term of root mean square 1, not in raw coefficients;
    - a bootstrap draws from 64 random blocks of rows, so that Theta^T Theta is computed once for all members;
    - every member keeps the whole library unless `drop_terms` is set; the median is the lower of the two in the middle;
    - members whose rollouts leave the data are replaced by others; predictions are cut at the data's bounds;
    - a reward that is no such polynomial (held-out R2 below 0.99) is predicted by a small network.

When it fails: contacts, clipping and other corners; observations so large that even their squares are too many; angles
that are not given as sine and cosine. It learns no termination.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agents.dynamics import Predicted
from agents.dynamics.rollout import seeded_mlp
from agents.networks.actor_critic import SpaceEncoding
from agents.replay.replay import Replay
from lodestar.numerics.descent import Flat, draw_integers, draw_order, draw_uniform
from lodestar.settings import Settings, setting
from lodestar.state import Stateful, all_finite

# Blocks of rows, which bootstraps draw from.
N_BLOCKS = 64
# R2 of the polynomial reward below which a network predicts it.
MIN_REWARD_R2 = 0.99
# Rollouts of `validate`, their length, and the share by which a member may leave the data more often than the best.
VALIDATION_STARTS = 32
VALIDATION_STEPS = 50
MAX_EXCESS_SHARE = 0.1
# Rows a fit begins with, and reads at most, drawn from all.
MIN_FIT_ROWS = 20
MAX_FIT_ROWS = 20_000
MAX_HELD_OUT_ROWS = 1000
# How far outside the data predictions are clipped, in ranges of the data.
CLIP_MARGIN_RANGES = 0.1
# Gradient steps, rows of a minibatch and learning rate of the reward's network.
REWARD_NET_STEPS = 1000
REWARD_NET_BATCH_SIZE = 256
REWARD_NET_LEARNING_RATE = 1e-3
# Terms of a library, at most; and at most where the degree is not set.
MAX_TERMS = 500
MAX_TERMS_BY_DEFAULT = 150


@dataclass
class SindyConfig(Settings):
    """Settings of `Sindy`; the source's value in brackets where it differs."""

    prefix = "sindy."

    members: int = setting(20, "bootstraps", "[1, 1000]")
    degree: int = setting(0, "of the polynomials; 0: the largest whose library has at most 150 terms", "[0, 3]")
    # Where zero means something, whiten=False gives sparser and truer equations; where zero lies far outside the data,
    # they cannot be told apart without it.
    whiten: bool = setting(True, "whether monomials are of observations minus their mean")
    threshold: float = setting(0.005, "smallest coefficient that is kept, see above [0.007 to 0.02, raw]", ">= 0")
    alpha: float = setting(1e-3, "ridge penalty, for terms of root mean square 1 [5e-5 to 0.5]", "> 0")
    drop_terms: float = setting(0.0, "share of the library each member does without", "[0, 1)")


class Sindy(Stateful):
    """A `Dynamics` of sparse polynomials; a ValueError refuses images, and libraries that are too large."""

    saved = ("_state", "head", "_flat", "use_head", "failures", "circles", "_generator")

    def __init__(
        self, encoding: SpaceEncoding, config: SindyConfig | None = None, *, seed: int = 0, device: str = "cpu"
    ) -> None:
        if encoding.images or not encoding.obs_size:
            raise ValueError(f"SINDy cannot predict images, and {encoding.observation_space} has some; use world_model")
        self.config = config or SindyConfig()
        self.device = torch.device(device)
        self.members = self.config.members
        self.size = encoding.obs_size
        d = self.size
        actions = encoding.action_size
        n_variables = d + actions
        self.library = Library(n_variables, actions, self.config.degree, encoding.discrete, self.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        head = seeded_mlp((2 * d + actions, 64, 64, 1), seed)
        self.head = head.to(self.device)
        self._flat = Flat.of_parameters(list(self.head.parameters()))
        p = len(self.library.terms)
        # What a fit finds. Rows of coefficients are the changes, then the reward; `middle` is the members' median.
        # `shift` is the mean or 0, `change` the standard deviation of the changes.
        state = {
            "coefficients": torch.zeros(self.members, d + 1, p),
            "middle": torch.zeros(d + 1, p),
            "mean": torch.zeros(d),
            "shift": torch.zeros(d),
            "scale": torch.ones(d),
            "change": torch.ones(d),
            "low": torch.full((d,), -torch.inf),
            "high": torch.full((d,), torch.inf),
            "reward_mean": torch.zeros(()),
            "reward_std": torch.ones(()),
        }
        self._state = {name: value.to(self.device) for name, value in state.items()}
        self.use_head = False
        self.failures = 0
        # Pairs of observed numbers that were a sine and a cosine in all data.
        self.circles: list[tuple[int, int]] = []

    def step(self, obs: Tensor, action: Tensor, *, sample: bool = True, member_predictions: bool = False) -> Predicted:
        """One transition for each row; see `Dynamics`. Without `sample`, by the members' median."""
        state = self._state
        variables = self._variables(obs, action)
        if sample and self.members > 1:
            out = self._sampled_changes(variables)
        else:
            out = state["middle"] @ self.library(variables)
        next_obs = obs + out[:-1].T
        next_obs = next_obs.clamp(state["low"], state["high"])
        next_obs = self._on_circles(next_obs)
        reward = out[-1]
        if self.use_head:
            inputs = self._head_inputs(obs, action, next_obs)
            standardised = self.head(inputs)[:, 0]
            reward = state["reward_mean"] + state["reward_std"] * standardised
        means = None
        if member_predictions:
            # (K, D, B)
            coefficients = state["coefficients"][:, :-1]
            changes = coefficients @ self.library(variables)
            means = changes.transpose(1, 2) / state["change"]
        return Predicted(next_obs, reward, means=means)

    def fit(self, replay: Replay, steps: int | None = None) -> dict[str, float]:
        """See `Dynamics.fit`: model_error, reward_r2, terms a member and number, members_dropped, model_failures."""
        columns = replay.arrays()[:4]
        order = draw_order(self._generator, len(columns[0]))
        order = order[:MAX_FIT_ROWS]
        if len(order) < MIN_FIT_ROWS:
            return {}
        n_held_out = min(MAX_HELD_OUT_ROWS, len(order) // 10)
        rows = [column.to(self.device, torch.float64)[order] for column in columns]
        held_out = [x[:n_held_out].float() for x in rows]
        training = [x[n_held_out:] for x in rows]
        coefficients = self._fit_polynomials(rows, training)
        if coefficients is None:
            self.failures += 1
            return {"model_failures": float(self.failures)}
        obs = training[0].float()
        action = training[1].float()
        n_dropped = self._keep(coefficients, obs, action)
        self.use_head = False
        metrics = self._errors(*held_out)
        if metrics["reward_r2"] < MIN_REWARD_R2:
            self.use_head = True
            head_steps = REWARD_NET_STEPS if steps is None else min(steps, REWARD_NET_STEPS)
            self._fit_head([x.float() for x in training], head_steps)
            metrics = self._errors(*held_out)
        n_terms = float((coefficients[:, :-1] != 0).sum())
        metrics["terms"] = n_terms / (self.members * self.size)
        metrics["members_dropped"] = float(n_dropped)
        metrics["model_failures"] = float(self.failures)
        return metrics

    def _fit_polynomials(self, rows: list[Tensor], training: list[Tensor]) -> Tensor | None:
        """Coefficients of the training rows, with scales of all rows; None where anything is not finite."""
        if not all_finite(rows):
            return None
        before = self._state
        self._state = self._scaled_state(*rows)
        self.circles = _circles(rows[0])
        coefficients = self._coefficients(*training)
        if not all_finite(coefficients):
            self._state = before
            return None
        return coefficients

    def validate(self, obs: Tensor, action: Tensor) -> Tensor:
        """Share (K,) of each member's rollouts, from (B, D) by actions (T, B, A), that leave the data, or are NaN."""
        state = self._state
        low = state["low"]
        high = state["high"]
        margin = (high - low).clamp(min=1e-6)
        starts = obs.repeat(self.members, 1)
        current = starts
        strayed = torch.zeros(len(starts), dtype=torch.bool, device=obs.device)
        for actions in action:
            variables = self._variables(current, actions.repeat(self.members, 1))
            change = self._by_members(state["coefficients"], variables)[:-1].T
            current = self._on_circles(current + change)
            # NaN compares as False, so that it is not inside.
            inside = (current >= low - margin) & (current <= high + margin)
            strayed |= ~inside.all(-1)
            # Rollouts that strayed stand at their start, where nothing overflows.
            current = torch.where(strayed[:, None], starts, current)
        return strayed.view(self.members, -1).float().mean(1)

    def equations(self, names: list[str]) -> list[str]:
        """Changes and reward as text, a line each: "x0 +0.05 x2"; `names` of the D observations, then A actions."""
        state = self._state
        terms = self.library.terms
        n_variables = 1 + max(term[-1] for term in terms[1:])
        names = [*names, *(f"u{i}" for i in range(n_variables - len(names)))]
        # The text of each variable, and what its monomials are divided by.
        variables = list(names)
        for i, shift in enumerate(state["shift"].tolist()):
            if shift:
                variables[i] = f"({names[i]}{-shift:+.3g})"
        unscaled = [1.0] * (n_variables - self.size)
        scale = [*state["scale"].tolist(), *unscaled]
        units = []
        for term in terms:
            factors = [scale[i] for i in term]
            units.append(math.prod(factors))
        lines = []
        for row, coefficients in enumerate(state["middle"].tolist()):
            raw = [coefficient / unit for coefficient, unit in zip(coefficients, units)]
            text = polynomial_text(raw, terms, variables)
            if row < self.size:
                lines.append(f"{names[row]}' = {names[row]} {text}".rstrip())
            else:
                lines.append(f"reward = {text or 0}")
        return lines

    def _on_circles(self, obs: Tensor) -> Tensor:
        """Observations (B, D) whose sines and cosines are moved back onto the unit circle."""
        if not self.circles:
            return obs
        columns = list(obs.unbind(-1))
        for i, j in self.circles:
            radius = torch.hypot(columns[i], columns[j]).clamp(min=1e-3)
            columns[i] = columns[i] / radius
            columns[j] = columns[j] / radius
        return torch.stack(columns, -1)

    def _variables(self, obs: Tensor, action: Tensor) -> Tensor:
        """(D + A, B), what the library reads."""
        scaled = (obs - self._state["shift"]) / self._state["scale"]
        return torch.cat([scaled, action], -1).T

    def _sampled_changes(self, variables: Tensor) -> Tensor:
        """Changes and reward (D + 1, B), each row by a random member; every member has an equal share of the rows."""
        count = variables.shape[1]
        k = self.members
        order = draw_order(self._generator, count)
        # Every member gets as many columns; those beyond the rows are repetitions and are not read.
        n_columns = math.ceil(count / k) * k
        padded_order = order[torch.arange(n_columns, device=self.device) % count]
        member = draw_order(self._generator, k)
        out = self._by_members(self._state["coefficients"][member], variables[:, padded_order])
        return out[:, order.argsort()]

    def _by_members(self, coefficients: Tensor, variables: Tensor) -> Tensor:
        """(K, Q, P) and (I, K * S) -> (Q, K * S): the first member reads the first S columns, and so on."""
        # (K, P, S)
        columns = self.library(variables).unflatten(1, (len(coefficients), -1))
        columns = columns.transpose(0, 1)
        return (coefficients @ columns).transpose(0, 1).flatten(1)

    def _head_inputs(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        """What the reward's network reads, (B, 2 D + A)."""
        mean = self._state["mean"]
        scale = self._state["scale"]
        scaled_obs = (obs - mean) / scale
        scaled_next_obs = (next_obs - mean) / scale
        return torch.cat([scaled_obs, action, scaled_next_obs], -1)

    def _scaled_state(self, obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor) -> dict[str, Tensor]:
        """The state with means, scales and bounds of these rows."""
        both = torch.cat([obs, next_obs])
        low = both.amin(0)
        high = both.amax(0)
        margin = CLIP_MARGIN_RANGES * (high - low)
        mean = both.mean(0)
        statistics = {
            "mean": mean,
            "shift": mean * self.config.whiten,
            "scale": _spread(both),
            "change": _spread(next_obs - obs),
            "low": low - margin,
            "high": high + margin,
            "reward_mean": task.mean(),
            "reward_std": _spread(task),
        }
        return self._state | {name: value.float() for name, value in statistics.items()}

    def _coefficients(self, obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor) -> Tensor:
        """Every bootstrap's, float64 (K, D + 1, P): from the library to changes and reward."""
        k = self.members
        p = len(self.library.terms)
        config = self.config
        state = self._state
        reward_unit = state["reward_std"][None]
        unit = torch.cat([state["change"], reward_unit]).double()
        changes = torch.cat([next_obs - obs, task[:, None]], -1)
        targets = changes / unit
        columns = self.library(self._variables(obs, action))
        # Terms of root mean square 1, so that one threshold serves all.
        size = columns.square().mean(1).sqrt()
        size = torch.where(size > 0, size, 1.0)
        columns = columns / size[:, None]
        blocks = torch.arange(len(obs), device=self.device).chunk(N_BLOCKS)
        times = self._bootstrap_counts(len(blocks)).to(columns)
        # Theta^T Theta and Theta^T Y of each bootstrap, from those of each block.
        gram = columns.new_zeros(k, p, p)
        cross = columns.new_zeros(k, p, len(unit))
        for block, block_times in zip(blocks, times.T):
            theta = columns[:, block]
            gram += block_times[:, None, None] * (theta @ theta.T)
            cross += block_times[:, None, None] * (theta @ targets[block])
        block_rows = torch.tensor(list(map(len, blocks))).to(times)
        rows = (times @ block_rows)[:, None, None]
        keep = draw_uniform(self._generator, k, p) >= config.drop_terms
        solution = stlsq(gram / rows, cross / rows, config.threshold, config.alpha, keep)
        solution = solution * unit / size[:, None]
        return solution.transpose(1, 2)

    def _bootstrap_counts(self, n_blocks: int) -> Tensor:
        """How often each member's bootstrap holds each block, (K, blocks); once where there is a single member."""
        blocks = draw_integers(self._generator, n_blocks, self.members, n_blocks)
        if self.members == 1:
            return torch.ones_like(blocks)
        return torch.nn.functional.one_hot(blocks, n_blocks).sum(1)

    def _keep(self, coefficients: Tensor, obs: Tensor, action: Tensor) -> int:
        """Keep these, with stable members in place of those that diverge; returns how many were replaced."""
        self._state["coefficients"] = coefficients.float()
        generator = self._generator
        starts = draw_integers(generator, len(obs), VALIDATION_STARTS)
        actions = draw_integers(generator, len(obs), VALIDATION_STEPS, VALIDATION_STARTS)
        share = self.validate(obs[starts], action[actions])
        is_stable = share <= share.amin() + MAX_EXCESS_SHARE
        stable = is_stable.nonzero().flatten()
        places = torch.arange(self.members, device=self.device) % len(stable)
        members = stable[places]
        stable_coefficients = self._state["coefficients"][members]
        self._state["coefficients"] = stable_coefficients
        self._state["middle"] = stable_coefficients.median(0).values
        return self.members - len(stable)

    def _errors(self, obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor) -> dict[str, float]:
        """Error of the changes in their standard deviations (root mean square), and R2 of the reward, on these rows."""
        state = self._state
        with torch.no_grad():
            predicted = self.step(obs, action, sample=False)
            changes = (predicted.next_obs - next_obs) / state["change"]
            reward = (predicted.reward - task) / state["reward_std"]
        error = changes.square().mean().sqrt()
        unexplained = reward.square().mean()
        return {"model_error": float(error), "reward_r2": 1 - float(unexplained)}

    def _fit_head(self, rows: list[Tensor], steps: int) -> None:
        """Fit the reward's network to rows of obs, action, next_obs and task, at a rate that falls to 0."""
        state = self._state
        inputs = self._head_inputs(*rows[:3])
        target = (rows[3] - state["reward_mean"]) / state["reward_std"]
        draws = draw_integers(self._generator, len(target), steps, REWARD_NET_BATCH_SIZE)
        for number, batch in enumerate(draws):
            predicted = self.head(inputs[batch])[:, 0]
            loss = (predicted - target[batch]).square().mean()
            rate = REWARD_NET_LEARNING_RATE * (1 - number / steps)
            self._flat.descend(loss, rate, 10.0)


def _spread(values: Tensor) -> Tensor:
    """Standard deviation over rows, 1 where there is none."""
    std = values.std(0, correction=0)
    size = values.abs().amax(0)
    varies = std > 1e-8 * (1 + size)
    return torch.where(varies, std, 1.0)


def _circles(obs: Tensor) -> list[tuple[int, int]]:
    """Pairs of columns of (B, D) that move and whose squares add to 1 in every row; each column in one at most."""
    rows = obs[:1000]
    moving = rows.std(0) > 1e-3
    # A column that does not move is in no pair: 2 and any square add to more than 1.
    squares = torch.where(moving, rows.square(), 2.0)
    sums = squares[:, :, None] + squares[:, None]
    deviation = (sums - 1).abs().amax(0)
    pairs: list[tuple[int, int]] = []
    on_circle = (deviation < 1e-4).triu(1)
    for i, j in on_circle.nonzero().tolist():
        paired = set(itertools.chain(*pairs))
        if not {i, j} & paired:
            pairs.append((i, j))
    return pairs


def _monomials(variables: int, first_control: int, degree: int) -> list[tuple[int, ...]]:
    """The variables of each monomial up to the degree, with one of those from `first_control` on at most."""
    terms = []
    for size in range(degree + 1):
        for term in itertools.combinations_with_replacement(range(variables), size):
            n_controls = sum(i >= first_control for i in term)
            if n_controls <= 1:
                terms.append(term)
    return terms


class Library:
    """All monomials of I variables, observations first, up to a degree, the constant first.

    `terms` are the variables that each of P columns multiplies. `controls` of the last variables are actions; degree 0
    is the largest that fits, and a ValueError refuses more than 500 terms; `affine`: no term holds two actions.
    """

    def __init__(
        self, variables: int, controls: int, degree: int, affine: bool, device: torch.device | str = "cpu"
    ) -> None:
        # The first variable of which a term may hold only one.
        first_control = variables
        if affine:
            first_control -= controls
        degrees = [3, 2, 1]
        max_terms = MAX_TERMS_BY_DEFAULT
        if degree:
            degrees = [degree]
            max_terms = MAX_TERMS
        # A fit solves systems of the library's size, so that the largest degree whose terms are few enough is taken.
        for self.degree in degrees:
            self.terms = _monomials(variables, first_control, self.degree)
            if len(self.terms) <= max_terms:
                break
        else:
            raise ValueError(
                f"polynomials of degree {self.degree} in {variables} numbers have {len(self.terms)} terms, and at most "
                f"{MAX_TERMS} can be fitted; give a lower sindy.degree, or model=ensemble"
            )
        # For every degree above 1: the column of the degree below, and the variable that it is multiplied by.
        self._last = []
        for size in range(2, self.degree + 1):
            lower_terms = [term for term in self.terms if len(term) == size - 1]
            left = []
            right = []
            for term in self.terms:
                if len(term) == size:
                    left.append(lower_terms.index(term[:-1]))
                    right.append(term[-1])
            self._last.append(torch.tensor([left, right], device=device))

    def __call__(self, variables: Tensor) -> Tensor:
        """Monomials (P, B) of variables (I, B)."""
        columns = [torch.ones_like(variables[:1]), variables]
        for left, right in self._last:
            columns.append(columns[-1][left] * variables[right])
        return torch.cat(columns)


def polynomial_text(coefficients: Sequence[float], terms: Sequence[tuple[int, ...]], names: Sequence[str]) -> str:
    """Monomials of named variables with coefficients other than 0.

    Example:
        >>> polynomial_text([1.0, 0.0, -0.25], [(), (0,), (0, 1)], ["x", "y"])
        '+1 -0.25 x y'
    """
    parts = []
    for coefficient, term in zip(coefficients, terms):
        if coefficient:
            factors = [names[i] for i in term]
            parts.append(" ".join([f"{coefficient:+.4g}", *factors]))
    return " ".join(parts)


def stlsq(gram: Tensor, cross: Tensor, threshold: float, alpha: float, keep: Tensor | None = None) -> Tensor:
    """Sequentially thresholded least squares of K bootstraps at once: (K, P, D), exactly 0 where removed.

    Args:
        gram, cross: float64 (K, P, P) and (K, P, D), Theta^T Theta and Theta^T Y over the rows' number.
        threshold, alpha: coefficients below it are removed, and the others fitted again; the ridge penalty.
        keep: bool (K, P), the columns each may use; None for all.
    """
    allowed = keep
    if allowed is None:
        shape = gram.shape[:2]
        allowed = torch.ones(shape, dtype=torch.bool, device=gram.device)
    solutions = []
    for target in cross.unbind(-1):
        mask = allowed
        # Each round but the last removes a column of some member.
        for _ in range(gram.shape[1] + 1):
            solution = _ridge(gram, target, mask, alpha)
            smaller_mask = mask & (solution.abs() >= threshold)
            if torch.equal(smaller_mask, mask):
                break
            mask = smaller_mask
        solutions.append(solution)
    return torch.stack(solutions, -1)


def _ridge(gram: Tensor, target: Tensor, mask: Tensor, alpha: float) -> Tensor:
    """(K, P): least squares over the columns in `mask`; the others become rows of the identity, so they solve to 0."""
    m = mask.to(gram)
    diagonal = torch.diag_embed(1 - m + alpha * m)
    system = gram * m[:, :, None] * m[:, None, :] + diagonal
    factor, failed = torch.linalg.cholesky_ex(system)
    allowed_target = (target * m)[..., None]
    solution = torch.cholesky_solve(allowed_target, factor)[..., 0]
    return torch.where(failed[:, None] > 0, torch.nan, solution)
