"""Time as a distance: states are embedded so that how far apart they are is how many steps lie between them.

    V(s, g) = -||phi(s) - phi(g)||, learned from a recording of anything: r = -1 a step until s is g, and no actions
    value=distance    -||phi(s') - phi(g)||, as a potential: a step towards the goal in time, not in space
    value=direction   <phi(s') - phi(s), z>, z = (phi(g) - phi(s)) / ||phi(g) - phi(s)||

Two heads phi_i are fitted as IQL fits a value: the target heads say how much better the recorded step was than V, the
better steps count `expectile` / (1 - `expectile`) times as much, and each head follows its own target. Goals are later
states of the same episode, or any. The goal is a prompt: another one needs no further learning.
Source: Park, Kreiman, Levine 2024, "Foundation Policies with Hilbert Representations" (HILP), arXiv 2402.15567,
equations 5 and 8.
Differences: it is learned before training and stays; ReLU instead of GELU and LayerNorm; equal observations are the
same state; its policy for every z is `agents.offline.hilp`.
Fails when: ways have one direction (V is symmetric), or cannot be laid out in a flat space; in a world of chance a high
expectile takes luck for skill.
"""

import copy
import hashlib
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from torch import Tensor, nn

from envs.recording import episodes
from envs.transitions import Transitions
from envs.types import Memory
from lodestar.numerics.descent import Flat
from lodestar.settings import setting
from rewards.exploration.learned import dense_layers
from rewards.vision.latent import MIN_DEVIATION, Latent, LatentConfig, Whitened

# The share of the goals that are later states of the same episode.
LATER = 0.625
# So many states of the recording, and pairs with these, are compared with recorded steps.
SOURCE_STATES = 32
COMPARED_PAIRS = 1000


@dataclass
class HilpConfig(LatentConfig):
    """Settings of `hilp`; the source's value in brackets where it differs."""

    data: str = setting("", "a recording of how states follow one another, good or bad")
    row: int = setting(-1, "of `data`: the transition whose outcome is the goal; -1 is the last", "finite")
    place: list[float] = setting([], "the goal as an observation (of=obs) instead")
    value: str = setting("distance", "what a step is worth; see above", "distance | direction")
    features: int = setting(16, "numbers in phi, d [32]", ">= 1")
    hidden: int = setting(128, "units of each of two layers [512, three]", ">= 1")
    steps: int = setting(5000, "minibatches that phi is learned from [1,000,000]", ">= 1")
    batch_size: int = setting(256, "transitions in one [1024]", ">= 1")
    learning_rate: float = setting(1e-3, "of Adam [3e-4]", "(0, 1]")
    discount: float = setting(0.99, "of V", "(0, 1)")
    expectile: float = setting(0.95, "how much more better steps count", "(0, 1)")
    follow: float = setting(0.005, "share of the heads in their targets after each step", "(0, 1]")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_if(
            self.value == "direction" and self.shape not in ("none", "clip"),
            "reward.hilp.shape={shape} of value=direction would be a difference of differences; take shape=none",
        )


class Hilp(Latent):
    """How near the goal is, in steps."""

    Config = HilpConfig
    config: HilpConfig
    role = "goal"

    def build(self) -> None:
        super().build()
        config = self.config
        batch = self.load_recording("data")
        self.by_direction = config.value == "direction"
        if self.by_direction:
            self.requires |= {"obs" if config.of == "obs" else "obs_frame"}
        before = self.states(batch.at_obs())
        after = self.states(batch)
        self.hilbert = Hilbert.from_episodes(before, after, episodes(batch), config, self.seed, self.device)
        self.quality = compare_with_steps(self.hilbert, before, after, config.discount, self.seed)
        self.place = self._goal(after)
        self.goal = self.hilbert.phi(self.place)[0]

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        after = self.hilbert.phi(self.states(batch))
        if not self.by_direction:
            return -np.linalg.norm(after - self.goal, axis=1)
        before = self.hilbert.phi(self.states(batch.at_obs()))
        z = self.goal - before
        return ((after - before) * z).sum(1) / np.maximum(np.linalg.norm(z, axis=1), np.float32(MIN_DEVIATION))

    def load_state_dict(self, state: dict[str, object]) -> None:
        super().load_state_dict(state)
        self.goal = self.hilbert.phi(self.place)[0]

    def notes(self) -> list[str]:
        quality = self.quality
        return [
            f"recorded states that the fewest recorded steps put {quality.steps:.2f} apart are {quality.distance:.2f} "
            f"apart, off by {quality.gap:.2f} (means, steps discounted by {self.config.discount:g}; less is right "
            "where no recorded way is the shortest, near 0 means more reward.hilp.steps)"
        ]

    def _goal(self, after: np.ndarray) -> np.ndarray:
        """The goal's state, (1, D)."""
        config = self.config
        place = config.place
        prefix = config.prefix
        if place:
            if self.encoder is not None or len(place) != self.size:
                numbers = f"{len(place)} numbers; give {self.size} with of=obs"
                raise ValueError(f"{prefix}place has {numbers}, or {prefix}row")
            return np.array([place], np.float32)
        if not -len(after) <= config.row < len(after):
            raise ValueError(f"{prefix}row={config.row} is not among the {len(after)} rows of {config.data}")
        return after[config.row][None]


class Hilbert(Whitened):
    """Two embeddings of whitened states; the first one is phi."""

    def __init__(self, size: int, features: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__(size)
        self.heads = nn.ModuleList(dense_layers(size, (hidden, hidden, features), generator) for _ in range(2))

    @classmethod
    def from_episodes(
        cls, before: np.ndarray, after: np.ndarray, episodes: list[slice], config: HilpConfig, seed: int, device: str
    ) -> Self:
        """A network fitted to states (N, D) and their successors; `episodes` are the rows of each."""
        ends = np.zeros(len(before), np.int64)
        for episode in episodes:
            ends[episode] = episode.stop - 1
        generator = torch.Generator().manual_seed(seed)
        hilbert = cls(before.shape[1], config.features, config.hidden, generator).to(device)
        rng = np.random.default_rng(seed)
        hilbert.measure(after)
        x = hilbert.whiten(before)
        y = hilbert.whiten(after)
        size = config.batch_size
        gamma = config.discount
        target = copy.deepcopy(hilbert).requires_grad_(False)
        target_weights = Flat.of_parameters(list(target.parameters()), epsilon=1e-8)
        weights = Flat.of_parameters(list(hilbert.parameters()), epsilon=1e-8)
        for _ in range(config.steps):
            rows = rng.integers(len(x), size=size)
            later_rows = np.minimum(rows + rng.geometric(1 - gamma, size) - 1, ends[rows])
            goal_rows = np.where(rng.random(size) < LATER, later_rows, rng.integers(len(x), size=size))
            state = x[rows]
            next_state = y[rows]
            goal_state = y[goal_rows]
            states = torch.cat([state, next_state, goal_state])
            with torch.no_grad():
                here, there, goal = target(states).split(size, 1)
                # A state that is its goal costs no step and has no way ahead.
                is_on_way = ((state - goal_state).abs().amax(1) > MIN_DEVIATION).float()
                target_value = -(there - goal).norm(dim=2) * gamma * is_on_way - is_on_way
                # Steps that led further than V expected count `expectile`, the others 1 - `expectile`.
                is_better = target_value.amin(0) + (here - goal).norm(dim=2).mean(0) >= 0
                importance = torch.where(is_better, config.expectile, 1 - config.expectile)
            here, _, goal = hilbert(states).split(size, 1)
            # The value is minus the distance; MIN_DEVIATION keeps its gradient finite at 0.
            error = target_value + ((here - goal).square().sum(2) + MIN_DEVIATION).sqrt()
            loss = (importance * error.square()).sum(0).mean()
            weights.descend(loss, config.learning_rate)
            target_weights.value.lerp_(weights.value, config.follow)
        return hilbert

    def forward(self, x: Tensor) -> Tensor:
        """Both embeddings (2, M, d) of whitened states (M, D)."""
        return torch.stack([head(x) for head in self.heads])

    def phi(self, states: np.ndarray) -> np.ndarray:
        """Embeddings, float32 (M, d), of states (M, D)."""
        with torch.no_grad():
            return self.heads[0](self.whiten(states)).cpu().numpy()


class DistanceQuality(NamedTuple):
    """Means over pairs of recorded states: what phi says, the fewest recorded steps, and how far the two are apart."""

    distance: float
    steps: float
    gap: float


def compare_with_steps(
    hilbert: Hilbert, before: np.ndarray, after: np.ndarray, discount: float, seed: int
) -> DistanceQuality:
    """Distances beside the fewest recorded steps, which are the true ones where every step was recorded.

    The last losses say nothing about this: they compare V with one step ahead of itself, so they are least while all
    distances are still near 0.
    """
    rng = np.random.default_rng(seed)
    states, start, end = recorded_graph(before, after)
    count = len(states)
    sources = rng.choice(count, min(count, SOURCE_STATES), replace=False)
    edges = csr_array((np.ones(len(start)), (start, end)), shape=(count, count))
    # Shape (S, M), infinite where no recorded way leads.
    steps = dijkstra(edges, indices=sources, unweighted=True)
    pairs = np.argwhere(np.isfinite(steps) & (steps > 0))
    if not len(pairs):
        return DistanceQuality(0.0, 0.0, 0.0)
    pairs = pairs[rng.choice(len(pairs), min(len(pairs), COMPARED_PAIRS), replace=False)]
    source, aim = pairs.T
    discounted = (1 - discount ** steps[source, aim]) / (1 - discount)
    distance = np.linalg.norm(hilbert.phi(states[sources[source]]) - hilbert.phi(states[aim]), axis=1)
    gap = np.abs(distance - discounted)
    return DistanceQuality(float(distance.mean()), float(discounted.mean()), float(gap.mean()))


def recorded_graph(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different states (M, D) of transitions (N, D), and the number of each one's state before and after, (N,)."""
    # Adding 0 makes -0 and 0 the same state.
    rows = np.concatenate([before, after]) + np.float32(0)
    number_of: dict[bytes, int] = {}
    numbers = np.empty(len(rows), int)
    for i, row in enumerate(rows):
        # 16 bytes stand for a row, as embeddings of frames are long.
        fingerprint = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        numbers[i] = number_of.setdefault(fingerprint, len(number_of))
    _, first = np.unique(numbers, return_index=True)
    return rows[first], numbers[: len(before)], numbers[len(before) :]
