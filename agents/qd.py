"""Quality-diversity: many small policies that end their episodes in different places, without gradients.

    novelty    mean distance from where an episode ended to the `nearest` other ends; the most novel of parents and
               mutated children live on, some children enter an archive
    serene     that, and in turns of `chunk` episodes emitters: around an individual that was rewarded, the best six of
               parents and children live on, until nothing better comes
    cma_me     pyribs' emitter and archive (extra `qd`);    random: weights drawn again and again

Beside the search stands a map, the best individual of each cell in which an episode has ended. The best of all acts.

Sources: Lehman & Stanley 2011, "Abandoning Objectives"; Paolo et al. 2021, arXiv 2102.03140 (SERENE); Paolo et al.
2020, arXiv 1909.05508 (TAXONS: descriptor=autoencoder; with serene it is STAX); Fontaine et al. 2020, arXiv 1912.02400.
Differences from SERENE: an emitter needs no bootstrap, and mutates by a third of `sigma`. Its gain is that of its
individuals' mean return over one generation, where the source compares its last three generations with its first three.
The emitter of the highest gain plays next, where the source draws one from the Pareto front of gain and novelty. There
is no archive of rewarded individuals: the map holds the best of each cell. Of all: the autoencoder's error does not
select; the first environment plays the best again, whose return is the mean of its episodes.
Fails when: policies are large (hundreds of weights); where an episode ends says nothing; serene: returns stay below 0.
"""

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agents.base import BaseAgent, OnStep, Steps
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.stacked import Stacked
from envs.transitions import map_obs
from envs.types import Obs
from lodestar.settings import Settings, setting

LIMIT, FAR = 5.0, 10.0  # of a weight; where the map ends along an entry without bounds
BEST, EMITTERS, PATIENCE = 6, 100, 10  # individuals of an emitter; emitters that wait; generations without a gain
ARCHIVED, REFIT = 5, 30  # children a generation; generations between two fits of the autoencoder
People = dict[str, np.ndarray]  # genome (M, G), seen (M, S), place (M, 2), fitness (M,)


@dataclass
class QDConfig(Settings):
    """Settings of `QD`; SERENE's value in brackets where it differs. n_envs individuals are tried at once."""

    prefix = "agent."
    search: str = setting("serene", "how individuals are found", choices=("serene", "novelty", "cma_me", "random"))
    descriptor: str = setting(
        "final_obs",
        "what novelty compares: the last observation, its learned code, or with a reward on frames its CLIP embedding",
        choices=("final_obs", "autoencoder", "embedding"),
    )
    code: int = setting(4, "numbers of the autoencoder's code [TAXONS 10]", low=1)
    axes: list[int] = setting([0, 1], "two entries of the last observation that the map shows", low=0)
    cells: int = setting(20, "of the map, along each", low=2, high=200)
    net_arch: list[int] = setting([8], "units of a policy's hidden layers", low=1)
    population: int = setting(100, "that novelty selects", low=2)
    nearest: int = setting(15, "others that novelty looks at", low=1)
    sigma: float = setting(0.5, "of mutations, and cma_me's first [0.05]", above=0, high=LIMIT, tune=(0.05, 2.0, "log"))
    chunk: int = setting(1000, "episodes of serene before it turns from exploring to emitters, and back", low=1)
    gamma: float = setting(1.0, "discount of an episode's return", above=0, high=1)


class QD(BaseAgent):
    """Quality-diversity over small policies; `map`: the best individual of each cell, `fitness` -inf if it has none."""

    Config: ClassVar[type[QDConfig]] = QDConfig
    n_envs: ClassVar[int] = 50
    saved: ClassVar[dict[str, str]] = BaseAgent.saved | {
        **{name: name for name in ("map", "people", "archive", "emitters", "playing", "children", "generation")},
        **{"coder": "coder", "steps": "steps", "seed": "steps.seed"},
    }
    config: QDConfig

    def _set_up(self) -> None:
        config, n, seed, space = self.config, self.envs.num_envs, self.seed, self.observation_space
        self.encoding = SpaceEncoding(space, self.action_space)
        size, cells = self.encoding.obs_size, config.cells**2
        if len(config.axes) != 2 or max(config.axes) >= size:
            raise ValueError(f"agent.axes={config.axes} are not two of the observation's {size} entries, from 0 on")
        if config.descriptor == "embedding" and "frame" not in self.scorer.requires:
            raise ValueError("agent.descriptor=embedding needs a reward that reads frames; give reward=clip")
        self.policy = Stacked(1, size, config.net_arch, self.encoding.action_size, activation="tanh", seed=seed)
        self.policy.requires_grad_(False)
        self.genes = sum(weight.numel() for weight in self.policy.weights())
        box: Any = gym.spaces.flatten_space(space)
        self.bounds = np.clip([box.low, box.high], -FAR, FAR)[:, config.axes]  # (2, 2), lowest and highest
        self.rng = np.random.default_rng([seed, 4])
        self.steps = Steps(self.envs, seed, self.scorer)
        self.episodes = self.steps.episodes
        empty = {"genome": np.zeros((cells, self.genes), np.float32), "place": np.zeros((cells, 2), np.float32)}
        self.map: People = {**empty, "fitness": np.full(cells, -np.inf), "episodes": np.zeros(cells)}
        self.people, self.archive = People(), People()
        self.emitters: list[dict[str, Any]] = []
        self.playing, self.generation = -1, 0  # playing: the emitter whose children are played
        self.coder: list[np.ndarray] = []  # of the autoencoder: mean and deviation, weights and biases of two layers
        self.children = self._mutated(np.zeros((1, self.genes)), 1.0)
        self.again = min(n - 1, 1)  # individuals that are the best of before
        self.scheduler: Any = None
        if config.search == "cma_me" and find_spec("ribs") is None:
            raise ValueError("agent.search=cma_me needs pyribs; pip install 'lodestar-rl[qd]'")

    @classmethod
    def check(cls, observation_space: gym.Space, action_space: gym.Space) -> None:
        if SpaceEncoding(observation_space, action_space).images:
            raise ValueError(f"QD's small policies cannot read images, and {observation_space} has some; use agent=ppo")

    def collect(self, on_step: OnStep) -> bool:
        if self.config.search == "cma_me" and self.scheduler is None:
            self._schedule()
        weights = self._weights(self.children)
        played = self.whole_episodes(lambda: self._outputs(self.steps.obs, weights)[:, 0], 1, on_step)
        self._played: Any = played
        return played is not None

    def _weights(self, genomes: np.ndarray) -> list[Tensor]:
        """The layers of policies (M, G)."""
        layers = self.policy.weights()
        parts = torch.from_numpy(genomes).split([layer.numel() for layer in layers], -1)
        return [part.reshape(-1, *layer.shape[1:]) for part, layer in zip(parts, layers)]

    def _outputs(self, obs: Obs, weights: list[Tensor] | None = None) -> Tensor:
        """What policies answer, an observation each: (M, 1, A); the best to all observations: (1, B, A)."""
        x = torch.as_tensor(self.encoding.vector(obs))
        out = self.policy(x if weights is None else x[:, None], weights)
        return out if self.encoding.discrete else torch.tanh(out)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        return self.encoding.decode(self._outputs(obs)[0].numpy()), None

    def update(self) -> dict[str, Any]:
        config, scorer, batch = self.config, self.scorer, self.scorer.embed(self._played)
        raw, _ = scorer.score(batch, scorer.initial_memory(self.steps.n))
        weights = scorer.weights(self.num_timesteps)
        reward = sum(part * weights[name] for name, part in scorer.scaled(raw).items())
        fitness = np.where(batch.valid, reward * config.gamma**batch.step, 0).sum(0, dtype=np.float64)
        last = (batch.valid * np.arange(len(batch.valid))[:, None]).argmax(0), np.arange(self.steps.n)
        seen = end = self.encoding.vector(map_obs(lambda x: x[last], batch.next_obs))
        if config.descriptor == "embedding":
            seen = next(x for key, x in batch.extras.items() if not key.startswith("obs_"))[last]
        new = {"genome": self.children, "seen": seen, "place": end[:, config.axes], "fitness": fitness}
        entered = self._enter(new)
        self.generation += 1
        self.children = getattr(self, f"_{config.search}")(new, entered)
        best = self.map["fitness"].argmax()
        self.children[: self.again] = self.map["genome"][best]
        for weight, better in zip(self.policy.weights(), self._weights(self.map["genome"][[best]])):
            weight.copy_(better)
        self._n_updates += 1
        found = {"coverage": np.isfinite(self.map["fitness"]).mean(), "best": self.map["fitness"][best]}
        self.record({f"train/{name}": float(x) for name, x in {**found, "emitters": len(self.emitters)}.items()})
        self.record(scorer.update(batch, raw, self.num_timesteps))
        return {"batch": batch, "raw": raw}

    def _enter(self, new: People) -> np.ndarray:
        """Those (m,) that enter the map, as a cell's first or better; from the second generation on, 0 is its best."""
        cells, grid, again = self.config.cells, self.map, self.again if self.generation else 0
        places = (new["place"] - self.bounds[0]) / np.maximum(self.bounds[1] - self.bounds[0], 1e-8) * cells
        cell = np.clip(places, 0, cells - 1).astype(int) @ [cells, 1]
        if again:
            best = grid["fitness"].argmax()
            grid["episodes"][best] += 1
            grid["fitness"][best] += (new["fitness"][0] - grid["fitness"][best]) / grid["episodes"][best]
        order = again + np.argsort(new["fitness"][again:], kind="stable")
        order = order[new["fitness"][order] > grid["fitness"][cell[order]]]
        for key in ("genome", "place", "fitness"):
            grid[key][cell[order]] = new[key][order]  # of several in a cell the last one stays, the best
        grid["episodes"][cell[order]] = 1
        return order

    def _mutated(self, parents: np.ndarray, sigma: float) -> np.ndarray:
        """Children of some of these (M, G), one an environment."""
        chosen = parents[self.rng.integers(len(parents), size=self.steps.n)]
        return np.clip(chosen + sigma * self.rng.normal(size=chosen.shape), -LIMIT, LIMIT).astype(np.float32)

    def _random(self, new: People, entered: np.ndarray) -> np.ndarray:
        return self._mutated(np.zeros((1, self.genes)), 1.0)

    def _novelty(self, new: People, entered: np.ndarray) -> np.ndarray:
        pool = joined(self.people, new)
        codes = np.asarray(joined(pool, self.archive)["seen"], np.float64)
        if self.config.descriptor == "autoencoder":
            if (self.generation - 1) % REFIT == 0:
                self.coder = encoder(codes, self.config.code, self.seed)
            codes = encoded(codes, self.coder)
        worth = novelty(codes[: len(pool["seen"])], codes, self.config.nearest)
        self.people = rows(pool, np.argsort(-worth, kind="stable")[: self.config.population])
        self.archive = joined(self.archive, rows(new, self.rng.permutation(self.steps.n)[:ARCHIVED]))
        return self._mutated(self.people["genome"], self.config.sigma)

    def _serene(self, new: People, entered: np.ndarray) -> np.ndarray:
        if self.playing < 0:
            children = self._novelty(new, entered)
            found = entered[new["fitness"][entered] > 0]
            self.emitters += [{**rows(new, [i]), "gain": math.inf, "waited": 0} for i in found]
            del self.emitters[:-EMITTERS]
        else:
            emitter, children = self.emitters.pop(self.playing), self._mutated(self.people["genome"], self.config.sigma)
            pool = joined({key: emitter[key] for key in new}, rows(new, slice(self.again, None)))
            kept = rows(pool, np.argsort(-pool["fitness"], kind="stable")[:BEST])
            gain = float(kept["fitness"].mean() - emitter["fitness"].mean())
            if gain > 0 or emitter["waited"] < PATIENCE:
                self.emitters.append({**kept, "gain": gain, "waited": 0 if gain > 0 else emitter["waited"] + 1})
        exploits = self.generation * self.steps.n // self.config.chunk % 2 and self.emitters
        self.playing = int(np.argmax([emitter["gain"] for emitter in self.emitters])) if exploits else -1
        return self._mutated(self.emitters[self.playing]["genome"], self.config.sigma / 3) if exploits else children

    def _cma_me(self, new: People, entered: np.ndarray) -> np.ndarray:
        self.scheduler.tell(*(new[key][self.again :] for key in ("fitness", "place")))
        return np.concatenate([self.children[: self.again], self.scheduler.ask()]).astype(np.float32)

    def _schedule(self) -> None:
        """Pyribs' search around what the map holds; the next children are its."""
        from ribs.archives import GridArchive
        from ribs.emitters import EvolutionStrategyEmitter
        from ribs.schedulers import Scheduler

        there, ranges = np.isfinite(self.map["fitness"]), [*zip(*self.bounds.tolist())]
        archive = GridArchive(solution_dim=self.genes, dims=[self.config.cells] * 2, ranges=ranges, seed=self.seed)
        if there.any():
            archive.add(*(self.map[key][there] for key in ("genome", "fitness", "place")))
        count, seed = self.steps.n - self.again, self.seed + 1
        settings: dict[str, Any] = {"sigma0": self.config.sigma, "batch_size": count, "seed": seed}
        self.scheduler = Scheduler(archive, [EvolutionStrategyEmitter(archive, x0=np.zeros(self.genes), **settings)])
        self.children[self.again :] = self.scheduler.ask()


def novelty(codes: np.ndarray, everything: np.ndarray, nearest: int) -> np.ndarray:
    """Mean distance of (M, S) to the nearest of (L, S), themselves among these, which do not count: (M,).

    Example:
        >>> codes = np.array([[0.0], [1], [3]])
        >>> novelty(codes, codes, 2).tolist()
        [2.0, 1.5, 2.5]
    """
    squares = np.square(codes).sum(1)[:, None] + np.square(everything).sum(1) - 2 * codes @ everything.T
    return np.sort(np.sqrt(np.maximum(squares, 0)))[:, 1 : nearest + 1].mean(1)


def encoder(x: np.ndarray, code: int, seed: int) -> list[np.ndarray]:
    """What `encoded` takes: half of an autoencoder with 32 units before and after the code, fitted to (M, D)."""
    from sklearn.neural_network import MLPRegressor

    mean, std = x.mean(0), np.maximum(x.std(0), 1e-6)
    z = (x - mean) / std
    net = MLPRegressor(
        hidden_layer_sizes=(32, code, 32), activation="tanh", solver="lbfgs", max_iter=200, random_state=seed
    ).fit(z, z)
    return [mean, std, *net.coefs_[:2], *net.intercepts_[:2]]


def encoded(x: np.ndarray, coder: list[np.ndarray]) -> np.ndarray:
    """Codes (M, code) in [-1, 1] of (M, D)."""
    mean, std, first, second, shift, other = coder
    return np.tanh(np.tanh((x - mean) / std @ first + shift) @ second + other)


def joined(some: People, more: People) -> People:
    """Both, one after the other."""
    return {key: np.concatenate([some[key], more[key]]) for key in more} if some and more else some or more


def rows(people: People, which: Any) -> People:
    """Some of them."""
    return {key: value[which] for key, value in people.items()}
