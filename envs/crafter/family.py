"""Crafter: survive in a small open world, and get from bare hands to a diamond.

    lodestar/Crafter-v0   22 achievements; 1 for the first of each in an episode, 0.1 for each point of health

Source: Hafner 2021, arXiv 2109.06780; the package `crafter` is the game: `pip install "lodestar-rl[crafter]"`.

Observation, flat float32 in [0, 1], (1561,):
    9 * 9 * 19 = 1539   what is on the cells around the player, one-hot over `CRAFTER_KINDS`
                   16   the inventory, health first, each divided by its largest number, 9
                    4   where the player looks: left, right, up, down
                    2   daylight; whether the player sleeps
or with `pixels=True` the paper's picture, uint8 (64, 64, 3). Actions are Crafter's own 17.

Differences from the package: a seed means the same game in every process (the package draws creatures from sets,
ordered by memory addresses); the limit of 10,000 steps truncates; rendering does not change the state; the flat view is
two rows higher than the picture. `info["achievements"]` counts what was achieved in this episode; `info["text"]` is
what just happened ("collected wood"), "" when nothing did.

When it fails: the flat view does not distinguish a ripe plant from a young one. A new world takes two seconds to grow,
with numba a tenth; `area=32` is four times as fast. `envs.snapshots` does not support Crafter; the `Journal` does.
"""

import functools
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.exploration.family import CellWorld
from envs.family import Family, Goal, Metrics, aims_of, simulator
from envs.types import EnvStep, Info, Notes

CRAFTER_KINDS = (
    "outside",
    "water",
    "grass",
    "stone",
    "path",
    "sand",
    "tree",
    "lava",
    "coal",
    "iron",
    "diamond",
    "table",
    "furnace",
    "player",
    "cow",
    "zombie",
    "skeleton",
    "arrow",
    "plant",
)
FACINGS = ((-1, 0), (1, 0), (0, -1), (0, 1))
# Kinds of things in the inventory, and the largest number of each.
N_ITEMS = 16
MAX_ITEM_COUNT = 9
# Cells along the view, and to each side of the player.
VIEW_CELLS = 9
HALF_VIEW_CELLS = 4
# Pixels along the picture that `render` gives.
RENDER_PIXELS = 288
# Achievement -> its words, in an order in which they can be reached.
ACHIEVEMENT_WORDS = {
    "collect_wood": "collected wood",
    "collect_sapling": "collected a sapling",
    "collect_drink": "drank water",
    "eat_cow": "ate a cow",
    "wake_up": "woke up",
    "place_plant": "placed a plant",
    "place_table": "placed a table",
    "make_wood_pickaxe": "made a wood pickaxe",
    "make_wood_sword": "made a wood sword",
    "collect_stone": "collected stone",
    "place_stone": "placed a stone",
    "defeat_zombie": "defeated a zombie",
    "make_stone_pickaxe": "made a stone pickaxe",
    "make_stone_sword": "made a stone sword",
    "collect_coal": "collected coal",
    "place_furnace": "placed a furnace",
    "defeat_skeleton": "defeated a skeleton",
    "collect_iron": "collected iron",
    "eat_plant": "ate a plant",
    "make_iron_pickaxe": "made an iron pickaxe",
    "make_iron_sword": "made an iron sword",
    "collect_diamond": "collected a diamond",
}
CRAFTER_SIGNALS = (*ACHIEVEMENT_WORDS, "health", "food", "drink", "energy")


class Crafter(CellWorld):
    """The game of Crafter; see the module for observations and rewards. The world has 16 to 256 cells along a side."""

    def __init__(self, pixels: bool = False, area: int = 64, render_mode: str | None = None) -> None:
        if area not in range(16, 257):
            raise ValueError(f"area={area} is out of range; give 16 to 256 cells")
        self.pixels = pixels
        self.game = _make_game()(area=(area, area), length=None, seed=0)
        # The border, beyond the world, stays 0: outside.
        side = area + 2 * HALF_VIEW_CELLS
        self._map = np.zeros((side, side), np.uint8)
        n_cells = VIEW_CELLS * VIEW_CELLS
        # Where the first kind of each cell stands in an observation.
        self._first_kind = np.arange(n_cells) * len(CRAFTER_KINDS)
        self._cells_end = n_cells * len(CRAFTER_KINDS)
        self._setup(render_mode, self._cells_end + N_ITEMS + len(FACINGS) + 2, len(self.game.action_names))
        if pixels:
            self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)

    @property
    def player(self) -> Any:
        """The player, with `inventory`, `achievements` and `sleeping`."""
        return self.game._player

    def _begin(self) -> None:
        # The game mixes its seed with the number of the episode, which is always the first here.
        self.game._seed = int(self.np_random.integers(2**31 - 1))
        self.game._episode = 0
        self.game.reset()

    def _info(self) -> Info:
        return {"achievements": self.player.achievements.copy()}

    def step(self, action: Any) -> EnvStep:
        _, reward, _, game_info = self.game.step(int(action))
        terminated = bool(self.player.health <= 0)
        info = {"achievements": game_info["achievements"]}
        return self._obs(), float(reward), terminated, False, info

    def _obs(self) -> np.ndarray:
        if self.pixels:
            return self._picture(64)
        player = self.player
        flat = np.zeros(self.observation_space.shape, np.float32)
        half = HALF_VIEW_CELLS
        self._map[half:-half, half:-half] = self.game._sem_view()
        x, y = player.pos
        flat[self._first_kind + self._map[x : x + VIEW_CELLS, y : y + VIEW_CELLS].ravel()] = 1.0
        # After the cells: inventory, facing, daylight, sleep.
        status = flat[self._cells_end :]
        status[:N_ITEMS] = [count / MAX_ITEM_COUNT for count in player.inventory.values()]
        status[N_ITEMS + FACINGS.index(tuple(player.facing))] = 1.0
        status[-2] = self.game._world.daylight
        status[-1] = player.sleeping
        return flat

    def _picture(self, size: int = RENDER_PIXELS) -> np.ndarray:
        """uint8 (size, size, 3); the noise of the night comes from a generator of its own."""
        world = self.game._world
        game_random = world.random
        world.random = np.random.RandomState(self.game._step)
        try:
            return self.game.render((size, size))
        finally:
            world.random = game_random


@functools.cache
def _make_game() -> Any:
    """The package's environment, made deterministic, which renders only on request."""
    from crafter import Env

    class Game(Env):
        def _balance_chunk(self, chunk: Any, objs: Any) -> None:
            # `objs` is a set, in the order of memory addresses; the map numbers objects as they were added.
            numbers = self._world._obj_map
            objs = sorted(objs, key=lambda creature: numbers[tuple(creature.pos)])
            super()._balance_chunk(chunk, objs)

        def _obs(self) -> None:
            return None

    return Game


def _caption(env: gym.Env, memory: Notes) -> str:
    player = simulator(env).player
    before = dict(memory)
    memory.update(achievements=player.achievements.copy(), health=player.health, sleeping=player.sleeping)
    if not before:
        return ""
    counts = player.achievements
    events = []
    for name, words in ACHIEVEMENT_WORDS.items():
        if counts[name] > before["achievements"][name]:
            events.append(words)
    if player.health < before["health"]:
        events.append("was hurt" if player.health > 0 else "died")
    if player.sleeping and not before["sleeping"]:
        events.append("fell asleep")
    return "; ".join(events)


def _goal(name: str, words: str) -> Goal:
    def achieved(env: gym.Env) -> bool:
        return simulator(env).player.achievements[name] > 0

    return Goal(name, f"the player {words}", "a player in a small open world", achieved)


def _sense(env: gym.Env) -> np.ndarray:
    player = simulator(env).player
    counts = {**player.achievements, **player.inventory}
    return np.array([counts[name] for name in CRAFTER_SIGNALS], np.float32)


class Achievements(Metrics):
    """Counts episodes by the achievements unlocked in them."""

    def summary(self) -> dict[str, float]:
        """Mean achievements of an episode, and the paper's score: its equation 1, a geometric mean of shares in %."""
        counts = np.array(self.episodes)[:, : len(ACHIEVEMENT_WORDS)]
        percent = 100 * np.mean(counts > 0, axis=0)
        return {
            "achievements": float(percent.sum() / 100),
            "Crafter score, %": float(np.expm1(np.log1p(percent).mean())),
        }


CRAFTER_FAMILY = Family(
    name="crafter",
    extra="crafter",
    description="Crafter: survive in a small open world, 22 achievements from wood to diamond",
    ids=("lodestar/Crafter-v0",),
    entries=("envs.crafter.family:Crafter",),
    caption=_caption,
    goals=lambda spec: [_goal(name, words) for name, words in ACHIEVEMENT_WORDS.items()],
    aim=aims_of("crafter"),
    signals=lambda spec: CRAFTER_SIGNALS,
    sense=_sense,
    metrics=lambda env: Achievements(),
)
