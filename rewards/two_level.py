"""Two levels: a cheap reward of every transition, corrected by what a dear one said of a few.

    r(s') = b0 + b1 cheap(s') + delta(x),    delta a Gaussian process, near 0 where nothing like x was asked about

The dear source is asked about `budget` transitions in all, in each session about some of the newest, or those whose
answers would leave delta the least variance (`choose=informative`; no better in its study). x is the embedding that the
cheap reward reads, or else the next observation. b and delta are fitted together, by the likeliest of a few kernels.

Sources: Ryou, Wang, Karaman 2024, "Multi-Fidelity Reinforcement Learning for Time-Optimal Quadrotor Re-planning", arXiv
2403.08152; Kennedy, O'Hagan 2000, "Predicting the output from a complex computer code when fast approximations are
available": the model; Cohn 1996, "Neural network exploration using optimal experiment design": what to ask.
Differences: numbers of transitions, where the first classifies whole plans as feasible, on three levels, variationally.
When it fails: a cheap reward that says nothing of the dear one; x of hundreds of numbers, among which nothing is near;
a dear reward of what x does not hold. Training waits for answers, and the dear source learns nothing itself.

Example:
    python -m runners.train env=lodestar/PendulumUpright-v0 reward=two_level reward.two_level.cheap=clip \
        'reward.two_level.cheap_options={goal: the pendulum points straight up}'
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.base import Metrics, Reward, Scored, valid_rows, values_of
from rewards.exploration.learned import Layout, refuse_rows
from rewards.gate import Pair, PairConfig
from rewards.llm.judges.base import JUDGES, TextJudge, make_judge
from rewards.preference.segments import Segments
from rewards.vision.latent import EVERY_PIXEL

# A session chooses among so many of the newest transitions.
CANDIDATE_TRANSITIONS = 256
# Kernels are tried with these; noise is an answer's variance over delta's.
KERNEL_LENGTHS = (0.25, 0.5, 1.0, 2.0)
KERNEL_NOISES = (1e-3, 1e-2, 1e-1)


@dataclass
class TwoLevelConfig(PairConfig):
    """Settings of two_level."""

    sides = ("cheap", "dear")

    cheap: str = setting("effect", "the reward of every transition, a name of the table or file:Class")
    cheap_options: dict[str, Any] = setting({}, "its options, as in {goal: the pole stands}")
    dear: str = setting("task", "what is asked about few: such a reward, or a judge of captions (openai, rules)")
    dear_options: dict[str, Any] = setting({}, "its options")
    budget: int = setting(200, "transitions that it is asked about in all", "[1, 2000]")
    queries: int = setting(10, "of them in one session", ">= 1")
    every: int = setting(1000, "transitions from one session to the next, at most one in each update", ">= 1")
    choose: str = setting("random", "any, or what leaves least unknown", "random | informative")


class TwoLevel(Pair):
    """The cheap reward as it is before the first answer."""

    Config = TwoLevelConfig
    config: TwoLevelConfig
    role = "goal"
    cheap: Reward
    dear: Reward

    def build(self) -> None:
        super().build()
        config = self.config
        cheap = self.cheap
        dear = self.dear
        if cheap.initial_memory(1) is not None or dear.initial_memory(1) is not None:
            names = f"{config.prefix}cheap={config.cheap} dear={config.dear}"
            raise ValueError(f"{names}: one remembers the episode; take rewards that rate a transition by itself")
        self.embedding = cheap.embedding
        self.relabelable = cheap.relabelable
        self.frame_size = max(cheap.frame_size or 0, dear.frame_size or 0) or None
        self.keeps_frames = cheap.keeps_frames or ("frame" in dear.requires and dear.embedding != cheap.embedding)
        self.rng = np.random.default_rng(self.seed)
        # The transitions that have an answer.
        if self.embedding is None:
            self.layout = Layout(self.observation_space, (), config.name, channels=0, smallest_image=EVERY_PIXEL)
            self.requires |= {"next_obs"}
            self.asked = Segments(1, config.budget, cheap.requires)
        else:
            self.asked = Segments(1, config.budget, cheap.requires - {"frame"}, (self.embedding,))
        self.correction = Correction()

    def make(self, name: str, options: dict[str, Any], place: int) -> Reward:
        if place and name in JUDGES["texts"]:
            options = {"seed": self.seed, "device": self.device, **options}
            return Judged(make_judge(name, **options))
        return super().make(name, options, place)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        cheap = values_of(self.cheap.score(batch))
        if not len(self.asked):
            return cheap
        return self.correction.predict(self.states(batch), cheap)

    def states(self, batch: Transitions) -> np.ndarray:
        """What delta is a function of: float32 (N, D)."""
        if self.embedding is None:
            states = self.layout.flatten(batch.next_obs)
        elif self.embedding in batch.extras:
            states = batch.extras[self.embedding]
        else:
            states = self.embed(batch)
        refuse_rows(states, self.config.name)
        return np.asarray(states, np.float32)

    def update(self, batch: Transitions) -> Metrics:
        """The cheap reward learns; a session where one is due, whose `error` is that of the score before it."""
        flat = valid_rows(batch)
        config = self.config
        correction = self.correction
        if not len(flat.step):
            return {}
        metrics = {f"cheap_{key}": value for key, value in self.cheap.update(batch).items()}
        correction.seen += len(flat.step)
        if correction.seen >= correction.due:
            correction.due += config.every * ((correction.seen - correction.due) // config.every + 1)
            count = min(config.queries, config.budget - correction.given)
            if count:
                metrics |= self.session(flat, count)
            if len(self.asked):
                rows = self.asked.pick(np.arange(len(self.asked))).flatten()
                correction.fit(self.states(rows), values_of(self.cheap.score(rows)))
                metrics["rho"] = correction.trend[1]
        return {**metrics, "asked": correction.given}

    def session(self, flat: Transitions, count: int) -> Metrics:
        """Ask about `count` of the newest transitions (N,)."""
        correction = self.correction
        rows = flat[self.rng.permutation(len(flat.step))[:CANDIDATE_TRANSITIONS]]
        if self.config.choose == "informative":
            # Each choice takes the ones before it into account, so that no two ask the same.
            covariance = correction.covariance(self.states(rows))
            rows = rows[choose_informative(covariance, correction.noise, count)]
        rows = rows[:count]
        score = self.score(rows)
        answer = self.dear.score(rows)
        answered = answer.ready if isinstance(answer, Scored) else np.ones(len(rows.step), bool)
        correction.given += len(answered)
        if not answered.any():
            return {"failed": 1.0}
        dear = values_of(answer)[answered]
        slim_rows = self.asked.slim(rows)
        self.asked.pool.extend(slim_rows[row : row + 1] for row in np.flatnonzero(answered))
        correction.dear = np.append(correction.dear, dear)
        return {"failed": 1 - answered.mean(), "error": np.abs(score[answered] - dear).mean()}


class Correction(Stateful):
    """dear = b0 + b1 (cheap - its mean) + delta(x), in float64, and the answers that it is fitted to."""

    saved = ("x", "cheap", "dear", "root", "weights", "trend", "length", "noise", "seen", "due", "given")

    def __init__(self) -> None:
        self.x = self.root = np.zeros((0, 0))
        self.cheap = self.dear = self.weights = self.trend = np.zeros(0)
        self.length = 1.0
        self.noise = KERNEL_NOISES[0]
        # Transitions so far, their number at which the next session is due, and questions.
        self.seen = self.due = self.given = 0

    def fit(self, x: np.ndarray, cheap: np.ndarray) -> None:
        """To the answers about x (n, D), unless nothing has changed: generalised least squares for each kernel."""
        if np.array_equal(cheap, self.cheap):
            return
        self.x = x
        self.cheap = cheap
        n = len(x)
        # Two answers would fix a slope, however steep.
        centred = (cheap - cheap.mean()) * (n > 2)
        columns = np.stack([np.ones(n), centred, self.dear], axis=1)
        best = -math.inf
        for length, noise in itertools.product(KERNEL_LENGTHS, KERNEL_NOISES):
            root = cholesky(self.kernel(x, x, length) + noise * np.eye(n), lower=True)
            # Divided by the root, errors are independent and of one size, so that plain least squares fits them.
            white = solve_triangular(root, columns, lower=True)
            trend = np.linalg.lstsq(white[:, :2], white[:, 2], rcond=1e-9)[0]
            residual = white[:, 2] - white[:, :2] @ trend
            log_likelihood = -n / 2 * math.log(residual @ residual / n + 1e-12) - np.log(root.diagonal()).sum()
            if log_likelihood > best:
                best = log_likelihood
                self.length = length
                self.noise = noise
                self.root = root
                self.trend = trend
                self.weights = solve_triangular(root, residual, lower=True, trans=1)

    def predict(self, x: np.ndarray, cheap: np.ndarray) -> np.ndarray:
        """The value that the dear source is expected to give, float32 (N,)."""
        delta = self.kernel(x, self.x, self.length) @ self.weights
        return (self.trend[0] + self.trend[1] * (cheap - self.cheap.mean()) + delta).astype(np.float32)

    def covariance(self, x: np.ndarray) -> np.ndarray:
        """Of delta at x (M, D), given what was asked, in units of its variance: (M, M)."""
        prior = self.kernel(x, x, self.length)
        if not len(self.x):
            return prior
        explained = solve_triangular(self.root, self.kernel(self.x, x, self.length), lower=True)
        return prior - explained.T @ explained

    def kernel(self, one: np.ndarray, other: np.ndarray, length: float) -> np.ndarray:
        """exp(-d / (2 length^2)) of rows (N, D) and (M, D): (N, M); d is the mean square, in deviations of x."""
        reference = self.x if len(self.x) else other
        deviation = reference.std(axis=0, dtype=np.float64)
        scale = np.where(deviation > 1e-6, deviation, 1.0) * math.sqrt(reference.shape[1])
        one, other = ((rows - reference.mean(axis=0)) / scale for rows in (one, other))
        square = np.square(one).sum(axis=1)[:, None] + np.square(other).sum(axis=1) - 2 * (one @ other.T)
        return np.exp(np.minimum(square / (-2 * length**2), 0))


class Judged(Reward):
    """A judge of captions as a reward; it has no settings of its own."""

    requires = frozenset({"text"})

    def __init__(self, judge: TextJudge) -> None:
        self.judge = judge

    def notes(self) -> list[str]:
        return self.judge.notes()

    def preflight(self) -> str:
        return self.judge.reach()

    def score(self, batch: Transitions, memory: Memory = None) -> Scored:
        value = self.judge.label(np.asarray(batch.text).tolist()).value
        return Scored(value, ~np.isnan(value))


def choose_informative(covariance: np.ndarray, noise: float, count: int) -> np.ndarray:
    """Rows, one after the other, whose answers would take most variance off all: cov(i, j)^2 / (cov(i, i) + noise)."""
    chosen: list[int] = []
    for _ in range(min(count, len(covariance))):
        reduction = np.square(covariance).sum(axis=0) / (covariance.diagonal() + noise)
        reduction[chosen] = -1
        row = int(reduction.argmax())
        chosen.append(row)
        column = covariance[:, row]
        covariance = covariance - np.outer(column, column) / (column[row] + noise)
    return np.array(chosen)
