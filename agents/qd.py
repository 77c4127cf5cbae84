"""Quality-diversity: many small policies that end their episodes in different places, without gradients.

    novelty    mean distance from where an episode ended to the `nearest` other ends; the most novel of parents and
               mutated children live on, some children enter an archive
    serene     that, and in turns of `chunk` episodes emitters: around an individual that was rewarded, the best six of
               parents and children live on, until nothing better comes. Whatever is better than all that its emitter
               had joins the rewarded ones, to which novelty is a distance, too
    cma_me     pyribs' emitter and archive (extra `qd`);    random: weights drawn again and again

Beside the search stands a map, the best individual of each cell in which an episode has ended. The best of all acts.

Sources: Lehman & Stanley 2011, "Abandoning Objectives"; Paolo et al. 2021, arXiv 2102.03140 (SERENE); Paolo et al.
2020, arXiv 1909.05508 (TAXONS: descriptor=autoencoder, or frame for images; with serene it is STAX); Fontaine et al.
2020, arXiv 1912.02400.
Differences from SERENE: an emitter needs no bootstrap, so that its gain is infinite until it has played, and mutates by
a third of `sigma`. Its gain is that of its individuals' mean return over one generation, where the source compares its
last three generations with its first three. Of all: the autoencoder's error does not select; the first environment
plays the best again, whose return is the mean of its episodes.
Fails when: policies are large (hundreds of weights); where an episode ends says nothing; serene: returns stay below 0.
"""

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agents.base import BaseAgent, EpisodicAgent, OnStep, Steps
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.stacked import Stacked
from envs.render import resize
from envs.transitions import Transitions, index_obs
from envs.types import Obs, StateDict
from lodestar.mappings import take_rows
from lodestar.settings import Settings, setting

# Weights of a policy stay in [-MAX_WEIGHT, MAX_WEIGHT].
MAX_WEIGHT = 5.0
# Where the map ends along an entry of the observation that has no bounds.
MAX_MAP_COORDINATE = 10.0
# Individuals of an emitter, emitters that wait, and generations that one may go without a gain.
EMITTER_SIZE = 6
MAX_EMITTERS = 100
EMITTER_PATIENCE = 10
# Children of a generation that enter the archive, and generations between two fits of the autoencoder.
ARCHIVED_CHILDREN = 5
REFIT_GENERATIONS = 30
# Pixels to a side of the last frame, in grey, that descriptor=frame learns a code of.
FRAME_SIDE = 16
# Attributes of `QD` that are saved as they are.
SEARCH_STATE = ("map", "people", "archive", "rewarded", "emitters", "playing", "children", "generation", "coder")
# Arrays by name: genome (M, G), seen (M, S), place (M, 2), fitness (M,).
People = dict[str, np.ndarray]


@dataclass
class QDConfig(Settings):
    """Settings of `QD`; SERENE's value in brackets where it differs. n_envs individuals are tried at once."""

    prefix = "agent."
    search: str = setting("serene", "how individuals are found", "serene | novelty | cma_me | random")
    descriptor: str = setting(
        "final_obs",
        "what novelty compares: the last observation, or its learned code; with a reward on frames the learned code of "
        "the last frame, or its CLIP embedding",
        "final_obs | autoencoder | frame | embedding",
    )
    code: int = setting(4, "numbers of the autoencoder's code [TAXONS 10]", ">= 1")
    axes: list[int] = setting([0, 1], "two entries of the last observation that the map shows", ">= 0")
    cells: int = setting(20, "of the map, along each", "[2, 200]")
    net_arch: list[int] = setting([8], "units of a policy's hidden layers", ">= 1")
    population: int = setting(100, "that novelty selects", ">= 2")
    nearest: int = setting(15, "others that novelty looks at", ">= 1")
    sigma: float = setting(
        0.5, "of mutations, and cma_me's first [0.05]", above=0, high=MAX_WEIGHT, tune=(0.05, 2.0, "log")
    )
    chunk: int = setting(1000, "episodes of serene before it turns from exploring to emitters, and back", ">= 1")
    gamma: float = setting(1.0, "discount of an episode's return", "(0, 1]")


class QD(EpisodicAgent):
    """Quality-diversity over small policies; `map`: the best individual of each cell, `fitness` -inf if it has none."""

    Config = QDConfig
    n_envs = 50
    saved = BaseAgent.saved | {
        **{name: name for name in SEARCH_STATE},
        "steps": "steps",
        "seed": "steps.seed",
    }
    config: QDConfig

    def _set_up(self) -> None:
        config = self.config
        self.encoding = SpaceEncoding(self.observation_space, self.action_space)
        obs_size = self.encoding.obs_size
        self._refuse_settings(obs_size)
        outputs = self.encoding.action_size
        self.policy = Stacked(1, obs_size, config.net_arch, outputs, activation="tanh", seed=self.seed)
        self.policy.requires_grad_(False)
        self.layer_sizes = [layer.numel() for layer in self.policy.weights()]
        self.genes = sum(self.layer_sizes)
        box: Any = gym.spaces.flatten_space(self.observation_space)
        bounds = np.clip([box.low, box.high], -MAX_MAP_COORDINATE, MAX_MAP_COORDINATE)
        # (2, 2): the lowest and the highest value along each axis of the map.
        self.bounds = bounds[:, config.axes]
        self.rng = np.random.default_rng([self.seed, 4])
        self.steps = Steps(self.envs, self.seed, self.scorer)
        self.episodes = self.steps.episodes
        cells = config.cells**2
        self.map: People = {
            "genome": np.zeros((cells, self.genes), np.float32),
            "place": np.zeros((cells, 2), np.float32),
            "fitness": np.full(cells, -np.inf),
            "episodes": np.zeros(cells),
        }
        self.people = People()
        self.archive = People()
        self.rewarded = People()
        self.emitters: list[dict[str, Any]] = []
        # The emitter whose children are played, -1 for none.
        self.playing = -1
        self.generation = 0
        # The autoencoder's: mean and deviation of its inputs, weights and biases of two layers.
        self.coder: list[np.ndarray] = []
        self.children = self._mutate(np.zeros((1, self.genes)), 1.0)
        # How many of the children are the best individual so far, played once more.
        self.replays = min(self.steps.n - 1, 1)
        self.scheduler: Any = None

    def _refuse_settings(self, obs_size: int) -> None:
        axes = self.config.axes
        if len(axes) != 2 or max(axes) >= obs_size:
            raise ValueError(f"agent.axes={axes} are not two of the observation's {obs_size} entries, from 0 on")
        descriptor = self.config.descriptor
        if descriptor in ("embedding", "frame") and "frame" not in self.scorer.requires:
            raise ValueError(f"agent.descriptor={descriptor} needs a reward that reads frames; give reward=clip")
        if self.config.search == "cma_me" and find_spec("ribs") is None:
            raise ValueError("agent.search=cma_me needs pyribs; pip install 'lodestar-rl[qd]'")

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        if SpaceEncoding(observation_space, action_space).images:
            raise ValueError(f"QD's small policies cannot read images, and {observation_space} has some; use agent=ppo")

    def collect(self, on_step: OnStep) -> bool:
        # Pyribs' state is not saved: its search begins from the map, also after a resume.
        if self.config.search == "cma_me" and self.scheduler is None:
            self._start_pyribs()
        weights = self._layers(self.children)

        def act() -> Tensor:
            return self._outputs(self.steps.obs, weights)[:, 0]

        return self.play_episodes(act, 1, on_step)

    def _layers(self, genomes: np.ndarray) -> list[Tensor]:
        """Weights and biases of the policies with these genomes (M, G)."""
        parts = torch.from_numpy(genomes).split(self.layer_sizes, -1)
        return [part.reshape(-1, *layer.shape[1:]) for part, layer in zip(parts, self.policy.weights())]

    def _outputs(self, obs: Obs, weights: list[Tensor] | None = None) -> Tensor:
        """Outputs of M policies for an observation each, (M, 1, A); of the best for all of them, (1, B, A)."""
        x = torch.as_tensor(self.encoding.vector(obs))
        if weights is not None:
            x = x[:, None]
        outputs = self.policy(x, weights)
        if self.encoding.discrete:
            return outputs
        return torch.tanh(outputs)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        outputs = self._outputs(obs)[0]
        return self.encoding.decode(outputs.numpy()), None

    def learn_from(self, batch: Transitions, reward: np.ndarray) -> dict[str, float]:
        individuals = self._read_individuals(batch, reward)
        entered = self._enter(individuals)
        self.generation += 1
        # One method a choice of `search`: _novelty, _serene, _cma_me, _random.
        search = getattr(self, f"_{self.config.search}")
        self.children = search(individuals, entered)
        fitness = self.map["fitness"]
        best = fitness.argmax()
        genome = self.map["genome"][[best]]
        self.children[: self.replays] = genome
        for weight, best_weight in zip(self.policy.weights(), self._layers(genome)):
            weight.copy_(best_weight)
        self._n_updates += 1
        return {
            "train/coverage": float(np.isfinite(fitness).mean()),
            "train/best": float(fitness[best]),
            "train/emitters": float(len(self.emitters)),
        }

    def set_state(self, state: StateDict) -> None:
        # Until 0.4.0 nothing was kept of how an emitter began.
        state = {"rewarded": {}, **state}
        for emitter in state["emitters"]:
            emitter.setdefault("ancestor", emitter["seen"][:1])
        super().set_state(state)

    def _read_individuals(self, batch: Transitions, reward: np.ndarray) -> People:
        """The children that were played, with their returns and where their episodes ended."""
        discount = self.config.gamma**batch.step
        discounted = np.where(batch.valid, reward * discount, 0)
        times = np.arange(len(batch.valid))[:, None]
        last_times = (batch.valid * times).argmax(0)
        last = (last_times, np.arange(self.steps.n))
        last_obs = index_obs(batch.next_obs, last)
        end = self.encoding.vector(last_obs)
        seen = end
        if self.config.descriptor == "embedding":
            key = next(key for key in batch.extras if not key.startswith("obs_"))
            seen = batch.extras[key][last]
        if self.config.descriptor == "frame":
            seen = shrink_frames(self._played.frame[last])
        return {
            "genome": self.children,
            "seen": seen,
            "place": end[:, self.config.axes],
            "fitness": discounted.sum(0, dtype=np.float64),
        }

    def _enter(self, new: People) -> np.ndarray:
        """Those (m,) that enter the map, as a cell's first or better; from the second generation on, 0 is its best."""
        cells = self.config.cells
        fitness = new["fitness"]
        best_fitness = self.map["fitness"]
        episodes = self.map["episodes"]
        low, high = self.bounds
        extent = np.maximum(high - low, 1e-8)
        coordinates = (new["place"] - low) / extent * cells
        coordinates = np.clip(coordinates, 0, cells - 1)
        cell = coordinates.astype(int) @ [cells, 1]
        replays = 0
        if self.generation:
            replays = self.replays
        if replays:
            # The fitness of what is played again becomes the mean of its episodes.
            best = best_fitness.argmax()
            episodes[best] += 1
            best_fitness[best] += (fitness[0] - best_fitness[best]) / episodes[best]
        # In ascending order: of several in a cell the last one stays, which is the best.
        order = replays + np.argsort(fitness[replays:], kind="stable")
        is_better = fitness[order] > best_fitness[cell[order]]
        entered = order[is_better]
        entered_cells = cell[entered]
        for key in ("genome", "place", "fitness"):
            self.map[key][entered_cells] = new[key][entered]
        episodes[entered_cells] = 1
        return entered

    def _mutate(self, parents: np.ndarray, sigma: float) -> np.ndarray:
        """Children of randomly chosen parents (M, G), one an environment."""
        places = self.rng.integers(len(parents), size=self.steps.n)
        chosen = parents[places]
        noise = self.rng.normal(size=chosen.shape)
        mutated = np.clip(chosen + sigma * noise, -MAX_WEIGHT, MAX_WEIGHT)
        return mutated.astype(np.float32)

    def _random(self, new: People, entered: np.ndarray) -> np.ndarray:
        return self._mutate(np.zeros((1, self.genes)), 1.0)

    def _novelty(self, new: People, entered: np.ndarray) -> np.ndarray:
        pool = join(self.people, new)
        everyone = join(join(pool, self.archive), self.rewarded)
        has_coder = self.config.descriptor in ("autoencoder", "frame")
        generations = self.generation - 1
        if has_coder and generations % REFIT_GENERATIONS == 0:
            seen = np.asarray(everyone["seen"], np.float64)
            self.coder = fit_encoder(seen, self.config.code, self.seed)
        codes = self._codes(everyone)
        pool_codes = codes[: len(pool["seen"])]
        novelties = novelty(pool_codes, codes, self.config.nearest)
        order = np.argsort(-novelties, kind="stable")
        self.people = take_rows(pool, order[: self.config.population])
        order = self.rng.permutation(self.steps.n)
        archived = take_rows(new, order[:ARCHIVED_CHILDREN])
        self.archive = join(self.archive, archived)
        return self._mutate(self.people["genome"], self.config.sigma)

    def _codes(self, people: People) -> np.ndarray:
        """What novelty compares of individuals, float64 (M, S)."""
        seen = np.asarray(people["seen"], np.float64)
        return encode(seen, self.coder) if self.coder else seen

    def _serene(self, new: People, entered: np.ndarray) -> np.ndarray:
        if self.playing < 0:
            children = self._novelty(new, entered)
            # Whatever was rewarded where the map had nothing as good becomes an emitter.
            is_rewarded = new["fitness"][entered] > 0
            for index in entered[is_rewarded]:
                individual = take_rows(new, [index])
                ancestor = individual["seen"]
                self.emitters.append({**individual, "ancestor": ancestor, "gain": math.inf, "waited": 0})
                self.rewarded = join(self.rewarded, individual)
            del self.emitters[:-MAX_EMITTERS]
        else:
            children = self._mutate(self.people["genome"], self.config.sigma)
            self.playing = self._advance_emitter(new)
        # Chunks of search and of emitters take turns.
        chunk = self.generation * self.steps.n // self.config.chunk
        if chunk % 2 == 0 or not self.emitters:
            self.playing = -1
            return children
        if self.playing < 0:
            self.playing = self._choose_emitter()
        parents = self.emitters[self.playing]["genome"]
        return self._mutate(parents, self.config.sigma / 3)

    def _choose_emitter(self) -> int:
        """One of the front of gain and of the novelty of what an emitter began with, at random."""
        everyone = join(join(self.people, self.archive), self.rewarded)
        gains = [emitter["gain"] for emitter in self.emitters]
        ancestors = [emitter["ancestor"] for emitter in self.emitters]
        codes = self._codes({"seen": np.concatenate(ancestors)})
        novelties = novelty(codes, self._codes(everyone), self.config.nearest)
        front = pareto_front(np.stack([novelties, gains], 1))
        return int(self.rng.choice(front))

    def _advance_emitter(self, new: People) -> int:
        """Keep the best of the playing emitter's individuals and their children, unless it has not gained for long.

        Returns its new place, -1 where it is given up.
        """
        emitter = self.emitters.pop(self.playing)
        parents = {key: emitter[key] for key in new}
        children = take_rows(new, slice(self.replays, None))
        is_record = children["fitness"] > parents["fitness"].max()
        records = take_rows(children, is_record)
        self.rewarded = join(self.rewarded, records)
        pool = join(parents, children)
        order = np.argsort(-pool["fitness"], kind="stable")
        best = take_rows(pool, order[:EMITTER_SIZE])
        old_fitness = emitter["fitness"].mean()
        gain = float(best["fitness"].mean() - old_fitness)
        waited = emitter["waited"] + 1
        if gain > 0:
            waited = 0
        if waited > EMITTER_PATIENCE:
            return -1
        self.emitters.append({**best, "ancestor": emitter["ancestor"], "gain": gain, "waited": waited})
        return len(self.emitters) - 1

    def _cma_me(self, new: People, entered: np.ndarray) -> np.ndarray:
        children = take_rows(new, slice(self.replays, None))
        self.scheduler.tell(children["fitness"], children["place"])
        best = self.children[: self.replays]
        asked = self.scheduler.ask()
        return np.concatenate([best, asked]).astype(np.float32)

    def _start_pyribs(self) -> None:
        """Begin pyribs' search around what the map holds, and ask it for the next children."""
        from ribs.archives import GridArchive
        from ribs.emitters import EvolutionStrategyEmitter
        from ribs.schedulers import Scheduler

        dims = [self.config.cells] * 2
        ranges = self.bounds.T.tolist()
        archive = GridArchive(solution_dim=self.genes, dims=dims, ranges=ranges, seed=self.seed)
        occupied = take_rows(self.map, np.isfinite(self.map["fitness"]))
        if len(occupied["fitness"]):
            archive.add(occupied["genome"], occupied["fitness"], occupied["place"])
        n_children = self.steps.n - self.replays
        emitter = EvolutionStrategyEmitter(
            archive,
            x0=np.zeros(self.genes),
            sigma0=self.config.sigma,
            batch_size=n_children,
            seed=self.seed + 1,
        )
        self.scheduler = Scheduler(archive, [emitter])
        self.children[self.replays :] = self.scheduler.ask()


def novelty(codes: np.ndarray, everything: np.ndarray, nearest: int) -> np.ndarray:
    """Mean distance of (M, S) to the nearest of (L, S), themselves among these, which do not count: (M,).

    Example:
        >>> codes = np.array([[0.0], [1], [3]])
        >>> novelty(codes, codes, 2).tolist()
        [2.0, 1.5, 2.5]
    """
    # |a - b|^2 = |a|^2 + |b|^2 - 2 ab, which rounding can make negative.
    code_squares = np.square(codes).sum(1)[:, None]
    squares = code_squares + np.square(everything).sum(1)
    squares = squares - 2 * codes @ everything.T
    squares = np.maximum(squares, 0)
    distances = np.sort(np.sqrt(squares))
    return distances[:, 1 : nearest + 1].mean(1)


def pareto_front(values: np.ndarray) -> np.ndarray:
    """The rows of (M, K) than which no other is better in one number and as good in all others.

    Example:
        >>> pareto_front(np.array([[1, 5], [2, 3], [2, 4], [0, 5]])).tolist()
        [0, 2]
    """
    others = values[None]
    own = values[:, None]
    is_as_good = np.all(others >= own, axis=-1)
    is_better = np.any(others > own, axis=-1)
    is_dominated = np.any(is_as_good & is_better, axis=1)
    return np.flatnonzero(~is_dominated)


def shrink_frames(frames: np.ndarray) -> np.ndarray:
    """Grey pixels in [0, 1], float32 (M, FRAME_SIDE^2), of uint8 (M, H, W, 3)."""
    small = np.stack([resize(frame, FRAME_SIDE) for frame in frames])
    grey = small.mean(-1, dtype=np.float32)
    return grey.reshape(len(frames), -1) / 255


def fit_encoder(x: np.ndarray, code: int, seed: int) -> list[np.ndarray]:
    """The `coder` of `encode`: half of an autoencoder with 32 units before and after the code, fitted to (M, D)."""
    from sklearn.neural_network import MLPRegressor

    mean = x.mean(0)
    std = np.maximum(x.std(0), 1e-6)
    z = (x - mean) / std
    units = (32, code, 32)
    net = MLPRegressor(hidden_layer_sizes=units, activation="tanh", solver="lbfgs", max_iter=200, random_state=seed)
    net.fit(z, z)
    return [mean, std, *net.coefs_[:2], *net.intercepts_[:2]]


def encode(x: np.ndarray, coder: list[np.ndarray]) -> np.ndarray:
    """Codes (M, code) in [-1, 1] of (M, D)."""
    mean, std, hidden_weight, code_weight, hidden_bias, code_bias = coder
    whitened = (x - mean) / std
    hidden = np.tanh(whitened @ hidden_weight + hidden_bias)
    return np.tanh(hidden @ code_weight + code_bias)


def join(first: People, second: People) -> People:
    """The individuals of both, in this order; either may be empty."""
    if not first or not second:
        return first or second
    return {key: np.concatenate([first[key], second[key]]) for key in second}
