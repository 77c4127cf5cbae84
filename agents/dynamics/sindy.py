"""SINDy: dynamics as sparse polynomials, fitted by least squares in milliseconds.

The change of the observation is a linear combination of monomials of observation and action, x' = x + Theta(x, u) Xi.
Terms with small coefficients are removed one round after another; an ensemble of bootstraps gives the uncertainty of
the others.

Sources: Brunton, Proctor & Kutz 2016, PNAS 113(15) (sequentially thresholded least squares); Fasel et al. 2022,
"Ensemble-SINDy", Proc. R. Soc. A 478 (bagging of rows and of library terms); Zolman et al. 2024, "SINDy-RL", arXiv
2403.09110 (discrete time, control-affine libraries, the median of 20 members).

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
from dataclasses import dataclass

import torch
from torch import Tensor

from agents.dynamics import Predicted
from agents.dynamics.rollout import seeded_mlp
from agents.networks.actor_critic import SpaceEncoding
from agents.replay.replay import Replay
from lodestar.numerics.flat import Flat
from lodestar.settings import Settings, setting
from lodestar.state import Stateful

BLOCKS = 64  # of rows, which bootstraps draw from
REWARD_R2 = 0.99  # below it a network predicts the reward
STARTS, STEPS, STRAYED = 32, 50, 0.1  # `validate`: rollouts, their length, share of them that may leave the data
FEWEST, MOST_ROWS = 20, 20_000  # rows a fit begins with, and reads at most, drawn from all
MARGIN = 0.1  # how far outside the data predictions are clipped, in ranges of the data
HEAD_STEPS, HEAD_BATCH, HEAD_RATE = 1000, 256, 1e-3  # of the reward's network
COLUMNS, AFFORDABLE = 500, 150  # of a library: at most, and at most where the degree is not set


@dataclass
class SindyConfig(Settings):
    """Settings of `Sindy`; the source's value in brackets where it differs."""

    prefix = "sindy."

    members: int = setting(20, "bootstraps", low=1, high=1000)
    degree: int = setting(0, "of the polynomials; 0: the largest whose library has at most 150 terms", low=0, high=3)
    # Where zero means something, whiten=False gives sparser and truer equations; where zero lies far outside the data,
    # they cannot be told apart without it.
    whiten: bool = setting(True, "whether monomials are of observations minus their mean")
    threshold: float = setting(0.005, "smallest coefficient that is kept, see above [0.007 to 0.02, raw]", low=0)
    alpha: float = setting(1e-3, "ridge penalty, for terms of root mean square 1 [5e-5 to 0.5]", above=0)
    drop_terms: float = setting(0.0, "share of the library each member does without", low=0, below=1)


class Sindy(Stateful):
    """A `Dynamics` of sparse polynomials; a ValueError refuses images, and libraries that are too large."""

    saved = ("_state", "head", "_flat", "use_head", "failures", "circles", "_generator")

    def __init__(
        self, encoding: SpaceEncoding, config: SindyConfig | None = None, *, seed: int = 0, device: str = "cpu"
    ) -> None:
        if encoding.images or not encoding.obs_size:
            raise ValueError(f"SINDy cannot predict images, and {encoding.observation_space} has some; use world_model")
        self.config, self.device = config or SindyConfig(), torch.device(device)
        self.members, self.size = self.config.members, encoding.obs_size
        actions = encoding.action_size
        self.library = Library(self.size + actions, actions, self.config.degree, encoding.discrete, self.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        d, p = self.size, len(self.library.terms)
        self.head = seeded_mlp((2 * d + actions, 64, 64, 1), seed).to(self.device)
        self._flat = Flat.over(list(self.head.parameters()))
        self._state = {  # what a fit finds; rows of coefficients: changes, then the reward
            "coefficients": torch.zeros(self.members, d + 1, p),
            "middle": torch.zeros(d + 1, p),
            "mean": torch.zeros(d),
            "shift": torch.zeros(d),  # the mean, or 0
            "scale": torch.ones(d),
            "change": torch.ones(d),  # standard deviation of the changes
            "low": torch.full((d,), -torch.inf),
            "high": torch.full((d,), torch.inf),
            "reward_mean": torch.zeros(()),
            "reward_std": torch.ones(()),
        }
        self._state = {name: value.to(self.device) for name, value in self._state.items()}
        self.use_head, self.failures = False, 0
        self.circles: list[tuple[int, int]] = []  # pairs of obs that were a sine and a cosine in all data

    def step(self, obs: Tensor, action: Tensor, *, sample: bool = True, member_predictions: bool = False) -> Predicted:
        """One transition for each row; see `Dynamics`. Without `sample`, by the members' median."""
        known = self._state
        variables = self._variables(obs, action)
        if sample and self.members > 1:
            out = self._sampled(variables)
        else:
            out = (known["coefficients"][0] if self.members == 1 else known["middle"]) @ self.library(variables)
        next_obs = self._on_circles((obs + out[:-1].T).clamp(known["low"], known["high"]))
        reward = out[-1]
        if self.use_head:
            guess = self.head(self._head_inputs(obs, action, next_obs))[:, 0]
            reward = known["reward_mean"] + known["reward_std"] * guess
        means = None
        if member_predictions:
            changes = known["coefficients"][:, :-1] @ self.library(variables)  # (K, D, B)
            means = changes.transpose(1, 2) / known["change"]
        return Predicted(next_obs, reward, means=means)

    def fit(self, replay: Replay, steps: int | None = None) -> dict[str, float]:
        rows = [x.to(self.device, torch.float64) for x in replay.arrays()[:4]]
        order = torch.randperm(len(rows[0]), generator=self._generator, device=self.device)[:MOST_ROWS]
        if len(order) < FEWEST:
            return {}
        rows = [x[order] for x in rows]
        held = min(1000, len(order) // 10)
        fresh, known = [x[:held].float() for x in rows], [x[held:] for x in rows]
        before = self._state
        if all(bool(x.isfinite().all()) for x in rows):
            self._state = self._scaled(*rows)
            self.circles = _circles(rows[0])
            coefficients = self._coefficients(*known)
        else:
            coefficients = torch.full((1,), torch.nan)
        if not bool(coefficients.isfinite().all()):
            self._state, self.failures = before, self.failures + 1
            return {"model_failures": float(self.failures)}
        dropped = self._keep(coefficients, known[0].float(), known[1].float())
        self.use_head = False
        metrics = self._judged(*fresh)
        if metrics["reward_r2"] < REWARD_R2:
            self.use_head = True
            self._fit_head([x.float() for x in known], HEAD_STEPS if steps is None else min(steps, HEAD_STEPS))
            metrics = self._judged(*fresh)
        terms = float((coefficients[:, :-1] != 0).sum()) / (self.members * self.size)
        return {**metrics, "terms": terms, "members_dropped": float(dropped), "model_failures": float(self.failures)}

    def validate(self, obs: Tensor, action: Tensor) -> Tensor:
        """Share (K,) of each member's rollouts, from (B, D) by actions (T, B, A), that leave the data, or are NaN."""
        known, k = self._state, self.members
        low, high = known["low"], known["high"]
        around = (high - low).clamp(min=1e-6)
        state = obs.repeat(k, 1)
        strayed = torch.zeros(len(state), dtype=torch.bool, device=obs.device)
        for actions in action:
            variables = self._variables(state, actions.repeat(k, 1))
            state = self._on_circles(state + self._by_members(known["coefficients"], variables)[:-1].T)
            strayed |= ~((state >= low - around) & (state <= high + around)).all(-1)  # NaN compares as False
            state = torch.where(strayed[:, None], obs.repeat(k, 1), state)  # those are not continued
        return strayed.view(k, -1).float().mean(1)

    def equations(self, names: list[str] | None = None) -> list[str]:
        """Changes and reward as text, a line each: "x0 +0.05 x2"; `names` of the D observations, then A actions."""
        known, width = self._state, 1 + max(term[-1] for term in self.library.terms[1:])
        names = names or [f"x{i}" for i in range(self.size)]
        names = [*names, *(f"u{i}" for i in range(width - len(names)))]
        read = [f"({n}{-m:+.3g})" if m else n for n, m in zip(names, known["shift"].tolist())] + names[self.size :]
        scale = [*known["scale"].tolist(), *[1.0] * (width - self.size)]
        units = [math.prod(scale[i] for i in term) for term in self.library.terms]
        texts = ["".join(f" {read[i]}" for i in term) for term in self.library.terms]
        lines = []
        for row, coefficients in enumerate(known["middle"].tolist()):
            of, own = (f"{names[row]}' = ", [names[row]]) if row < self.size else ("reward = ", [])
            parts = [f"{c / unit:+.4g}{text}" for c, unit, text in zip(coefficients, units, texts) if c]
            lines.append(of + (" ".join([*own, *parts]) or "0"))
        return lines

    def _on_circles(self, obs: Tensor) -> Tensor:
        if not self.circles:
            return obs
        parts = list(obs.unbind(-1))
        for i, j in self.circles:
            radius = torch.hypot(parts[i], parts[j]).clamp(min=1e-3)
            parts[i], parts[j] = parts[i] / radius, parts[j] / radius
        return torch.stack(parts, -1)

    def _variables(self, obs: Tensor, action: Tensor) -> Tensor:
        """(D + A, B), what the library reads."""
        return torch.cat([(obs - self._state["shift"]) / self._state["scale"], action], -1).T

    def _sampled(self, variables: Tensor) -> Tensor:
        """Changes and reward (D + 1, B), each row by a random member; every member has an equal share of the rows."""
        count, k = variables.shape[1], self.members
        order = torch.randperm(count, generator=self._generator, device=self.device)
        padded = order[torch.arange(-(-count // k) * k, device=self.device) % count]  # the last members' may be spare
        member = torch.randperm(k, generator=self._generator, device=self.device)
        out = self._by_members(self._state["coefficients"][member], variables[:, padded])
        return out[:, order.argsort()]

    def _by_members(self, coefficients: Tensor, variables: Tensor) -> Tensor:
        """(K, Q, P) and (I, K * S) -> (Q, K * S): the first member reads the first S columns, and so on."""
        columns = self.library(variables).unflatten(1, (len(coefficients), -1)).transpose(0, 1)  # (K, P, S)
        return (coefficients @ columns).transpose(0, 1).flatten(1)

    def _head_inputs(self, obs: Tensor, action: Tensor, next_obs: Tensor) -> Tensor:
        here, there = ((x - self._state["mean"]) / self._state["scale"] for x in (obs, next_obs))
        return torch.cat([here, action, there], -1)

    def _scaled(self, obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor) -> dict[str, Tensor]:
        both = torch.cat([obs, next_obs])
        low, high = both.amin(0), both.amax(0)
        around = MARGIN * (high - low)
        found = {"mean": both.mean(0), "scale": _spread(both), "change": _spread(next_obs - obs)}
        found["shift"] = found["mean"] * self.config.whiten
        found |= {"low": low - around, "high": high + around, "reward_mean": task.mean(), "reward_std": _spread(task)}
        return self._state | {name: value.float() for name, value in found.items()}

    def _coefficients(self, obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor) -> Tensor:
        """Every bootstrap's, float64 (K, D + 1, P): from the library to changes and reward."""
        k, p, known = self.members, len(self.library.terms), self._state
        unit = torch.cat([known["change"], known["reward_std"][None]]).double()
        targets = torch.cat([next_obs - obs, task[:, None]], -1) / unit
        columns = self.library(self._variables(obs, action))
        size = columns.square().mean(1).sqrt()
        size = torch.where(size > 0, size, 1.0)
        columns = columns / size[:, None]
        blocks = torch.arange(len(obs), device=self.device).chunk(BLOCKS)
        drawn = torch.randint(len(blocks), (k, len(blocks)), generator=self._generator, device=self.device)
        times = torch.nn.functional.one_hot(drawn, len(blocks)).sum(1).to(columns)
        if k == 1:
            times.fill_(1.0)  # a single member: all rows once
        gram, cross = columns.new_zeros(k, p, p), columns.new_zeros(k, p, len(unit))
        for block, often in zip(blocks, times.T):
            mine = columns[:, block]
            gram += often[:, None, None] * (mine @ mine.T)
            cross += often[:, None, None] * (mine @ targets[block])
        rows = (times @ torch.tensor([float(len(b)) for b in blocks]).to(times))[:, None, None]
        keep = torch.rand(k, p, generator=self._generator, device=self.device) >= self.config.drop_terms
        found = stlsq(gram / rows, cross / rows, self.config.threshold, self.config.alpha, keep)
        return (found * unit / size[:, None]).transpose(1, 2)

    def _keep(self, coefficients: Tensor, obs: Tensor, action: Tensor) -> int:
        """Keep these, with stable members in place of those that diverge; returns how many were replaced."""
        self._state["coefficients"] = coefficients.float()
        starts = torch.randint(len(obs), (STARTS,), generator=self._generator, device=self.device)
        doing = torch.randint(len(obs), (STEPS, STARTS), generator=self._generator, device=self.device)
        share = self.validate(obs[starts], action[doing])
        stable = (share <= share.amin() + STRAYED).nonzero().flatten()
        places = stable[torch.arange(self.members, device=self.device) % len(stable)]
        kept = self._state["coefficients"][places]
        self._state |= {"coefficients": kept, "middle": kept.median(0).values}
        return self.members - len(stable)

    def _judged(self, obs: Tensor, action: Tensor, next_obs: Tensor, task: Tensor) -> dict[str, float]:
        """Error of the changes in their standard deviations (root mean square), and R2 of the reward, on these rows."""
        known = self._state
        with torch.no_grad():
            expected = self.step(obs, action, sample=False)
            error = ((expected.next_obs - next_obs) / known["change"]).square().mean().sqrt()
            missed = ((expected.reward - task) / known["reward_std"]).square().mean()
        return {"model_error": float(error), "reward_r2": 1 - float(missed)}

    def _fit_head(self, rows: list[Tensor], steps: int) -> None:
        known, inputs = self._state, self._head_inputs(*rows[:3])
        target = (rows[3] - known["reward_mean"]) / known["reward_std"]
        draws = torch.randint(len(target), (steps, HEAD_BATCH), generator=self._generator, device=self.device)
        for number, batch in enumerate(draws):
            gap = self.head(inputs[batch])[:, 0] - target[batch]
            self._flat.descend(gap.square().mean(), HEAD_RATE * (1 - number / steps), 10.0)


def _spread(values: Tensor) -> Tensor:
    """Standard deviation over rows, 1 where there is none."""
    std = values.std(0, correction=0)
    return torch.where(std > 1e-8 * (1 + values.abs().amax(0)), std, 1.0)


def _circles(obs: Tensor) -> list[tuple[int, int]]:
    """Pairs of columns of (B, D) that move and whose squares add to 1 in every row; each column in one at most."""
    rows = obs[:1000]
    moving = rows.std(0) > 1e-3
    squares = torch.where(moving, rows.square(), 2.0)
    on = (squares[:, :, None] + squares[:, None] - 1).abs().amax(0) < 1e-4
    found: list[tuple[int, int]] = []
    for i, j in on.triu(1).nonzero().tolist():
        if not {i, j} & set(itertools.chain(*found)):
            found.append((i, j))
    return found


class Library:
    """All monomials of I variables, observations first, up to a degree, the constant first.

    `terms` are the variables that each of P columns multiplies. `controls` of the last variables are actions; degree 0
    is the largest that fits, and a ValueError refuses more than 500 terms; `affine`: no term holds two actions.
    """

    def __init__(
        self, variables: int, controls: int, degree: int, affine: bool, device: torch.device | str = "cpu"
    ) -> None:
        first = variables - controls if affine else variables
        for self.degree in [degree] if degree else [3, 2, 1]:  # a fit solves systems of the library's size
            self.terms = [
                term
                for size in range(self.degree + 1)
                for term in itertools.combinations_with_replacement(range(variables), size)
                if sum(i >= first for i in term) <= 1
            ]
            if len(self.terms) <= (COLUMNS if degree else AFFORDABLE):
                break
        else:
            raise ValueError(
                f"polynomials of degree {self.degree} in {variables} numbers have {len(self.terms)} terms, and at most "
                f"{COLUMNS} can be fitted; give a lower sindy.degree, or model=ensemble"
            )
        self._last = []  # of every degree above 1: column of the degree below, and the variable it is multiplied by
        for size in range(2, self.degree + 1):
            below = {term: place for place, term in enumerate(t for t in self.terms if len(t) == size - 1)}
            here = [term for term in self.terms if len(term) == size]
            self._last.append(torch.tensor([[below[t[:-1]] for t in here], [t[-1] for t in here]], device=device))

    def __call__(self, variables: Tensor) -> Tensor:
        columns = [torch.ones_like(variables[:1]), variables]
        for left, right in self._last:
            columns.append(columns[-1][left] * variables[right])
        return torch.cat(columns)


def stlsq(gram: Tensor, cross: Tensor, threshold: float, alpha: float, keep: Tensor | None = None) -> Tensor:
    """Sequentially thresholded least squares of K bootstraps at once: (K, P, D), exactly 0 where removed.

    Args:
        gram, cross: float64 (K, P, P) and (K, P, D), Theta^T Theta and Theta^T Y over the rows' number.
        threshold, alpha: coefficients below it are removed, and the others fitted again; the ridge penalty.
        keep: bool (K, P), the columns each may use; None for all.
    """
    allowed = torch.ones(gram.shape[:2], dtype=torch.bool, device=gram.device) if keep is None else keep
    solutions = []
    for target in cross.unbind(-1):
        mask = allowed
        for _ in range(gram.shape[1] + 1):  # each round but the last removes a column of some member
            solution = _ridge(gram, target, mask, alpha)
            smaller = mask & (solution.abs() >= threshold)
            if torch.equal(smaller, mask):
                break
            mask = smaller
        solutions.append(solution)
    return torch.stack(solutions, -1)


def _ridge(gram: Tensor, target: Tensor, mask: Tensor, alpha: float) -> Tensor:
    """(K, P): least squares over the columns in `mask`; the others become rows of the identity, so they solve to 0."""
    m = mask.to(gram)
    system = gram * m[:, :, None] * m[:, None, :] + torch.diag_embed(1 - m + alpha * m)
    factor, failed = torch.linalg.cholesky_ex(system)
    solution = torch.cholesky_solve((target * m)[..., None], factor)[..., 0]
    return torch.where(failed[:, None] > 0, torch.nan, solution)
