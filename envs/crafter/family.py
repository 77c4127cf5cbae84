"""Crafter: survive in a small open world, and get from bare hands to a diamond.

    lodestar/Crafter-v0   22 achievements; 1 for the first of each in an episode, 0.1 for each point of health

Source: Hafner 2021, arXiv 2109.06780; the package `crafter` is the game: `pip install "lodestar-rl[crafter]"`.

Observation, flat float32 in [0, 1], (1561,):
    9 * 9 * 19 = 1539   what is on the cells around the player, one-hot over `KINDS`
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

from envs.family import Family, Goal, Metrics, entry, simulator
from envs.types import EnvReset, EnvStep

KINDS = (
    *("outside", "water", "grass", "stone", "path", "sand", "tree", "lava", "coal", "iron", "diamond", "table"),
    *("furnace", "player", "cow", "zombie", "skeleton", "arrow", "plant"),
)
FACINGS = ((-1, 0), (1, 0), (0, -1), (0, 1))
ITEMS, MOST = 16, 9  # kinds of things in the inventory, and the largest number of each
VIEW, HALF = 9, 4  # cells along the view, and to each side of the player
FRAME = 288  # pixels along the picture that `render` gives
EVENTS = {  # achievement -> its words, in an order in which they can be reached
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
SIGNALS = (*EVENTS, "health", "food", "drink", "energy")


class Crafter(gym.Env):
    """The game of Crafter; see the module for observations and rewards. The world has 16 to 256 cells along a side."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, pixels: bool = False, area: int = 64, render_mode: str | None = None) -> None:
        if area not in range(16, 257):
            raise ValueError(f"area={area} is out of range; give 16 to 256 cells")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f'render_mode={render_mode!r} is unknown to Crafter; give "rgb_array" or None')
        self.render_mode, self.pixels = render_mode, pixels
        self.game = _game()(area=(area, area), length=None, seed=0)
        self.action_space = spaces.Discrete(len(self.game.action_names))
        self._map = np.zeros((area + 2 * HALF, area + 2 * HALF), np.uint8)  # beyond the world: outside
        self._begin = np.arange(VIEW * VIEW) * len(KINDS)
        self._cells = VIEW * VIEW * len(KINDS)
        flat = spaces.Box(0.0, 1.0, (self._cells + ITEMS + len(FACINGS) + 2,), np.float32)
        self.observation_space: spaces.Box = spaces.Box(0, 255, (64, 64, 3), np.uint8) if pixels else flat

    @property
    def player(self) -> Any:
        """The player, with `inventory`, `achievements` and `sleeping`."""
        return self.game._player

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        self.game._seed, self.game._episode = int(self.np_random.integers(2**31 - 1)), 0
        self.game.reset()
        return self._obs(), {"achievements": self.player.achievements.copy()}

    def step(self, action: Any) -> EnvStep:
        _, reward, _, info = self.game.step(int(action))
        terminated = self.player.health <= 0
        return self._obs(), float(reward), bool(terminated), False, {"achievements": info["achievements"]}

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        return None if self.render_mode is None else self._picture(FRAME)

    def _obs(self) -> np.ndarray:
        if self.pixels:
            return self._picture(64)
        player, flat = self.player, np.zeros(self.observation_space.shape, np.float32)
        self._map[HALF:-HALF, HALF:-HALF] = self.game._sem_view()
        x, y = player.pos
        flat[self._begin + self._map[x : x + VIEW, y : y + VIEW].ravel()] = 1.0
        rest = flat[self._cells :]
        rest[:ITEMS] = [number / MOST for number in player.inventory.values()]
        rest[ITEMS + FACINGS.index(tuple(player.facing))] = 1.0
        rest[-2:] = self.game._world.daylight, player.sleeping
        return flat

    def _picture(self, size: int) -> np.ndarray:
        """uint8 (size, size, 3); the noise of the night comes from a generator of its own."""
        world = self.game._world
        random, world.random = world.random, np.random.RandomState(self.game._step)
        try:
            return self.game.render((size, size))
        finally:
            world.random = random


@functools.cache
def _game() -> Any:
    """The package's environment, made deterministic, which renders only on request."""
    try:
        from crafter import Env
    except ImportError as error:
        raise ImportError(f'Crafter needs the package crafter ({error}); pip install "lodestar-rl[crafter]"') from None

    class Game(Env):
        def _balance_chunk(self, chunk: Any, objs: Any) -> None:
            numbers = self._world._obj_map
            super()._balance_chunk(chunk, sorted(objs, key=lambda one: numbers[tuple(one.pos)]))

        def _obs(self) -> None:
            return None

    return Game


def _caption(env: gym.Env, memory: dict[str, Any]) -> str:
    player = simulator(env).player
    before = dict(memory)
    memory.update(achievements=player.achievements.copy(), health=player.health, sleeping=player.sleeping)
    if not before:
        return ""
    events = [words for name, words in EVENTS.items() if player.achievements[name] > before["achievements"][name]]
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
    return np.array([counts[name] for name in SIGNALS], np.float32)


class Achievements(Metrics):
    """Counts episodes by the achievements unlocked in them."""

    def summary(self) -> dict[str, float]:
        """Mean achievements of an episode, and the paper's score: its equation 1, a geometric mean of shares in %."""
        share = 100 * np.mean(np.array(self.episodes)[:, : len(EVENTS)] > 0, axis=0)
        return {"achievements": float(share.sum() / 100), "Crafter score, %": float(np.expm1(np.log1p(share).mean()))}


FAMILY = Family(
    name="crafter",
    description="Crafter: survive in a small open world, 22 achievements from wood to diamond",
    ids=("lodestar/Crafter-v0",),
    knows=lambda spec: entry(spec) == "envs.crafter.family:Crafter",
    caption=_caption,
    goals=lambda spec: [_goal(name, words) for name, words in EVENTS.items()],
    aim=lambda spec: (
        "a player survives in a small open world and unlocks achievements: collect wood, stone, coal, iron and at last "
        "a diamond, make tools and swords on the way, drink, eat, sleep, and defeat zombies and skeletons"
    ),
    signals=lambda spec: SIGNALS,
    sense=_sense,
    metrics=lambda env: Achievements(),
)
