"""NetHack: the NetHack Learning Environment, seeded and truncated for real.

Observation, flat float32, (1386,) with the default crop of 9:
    9 * 9 * 16 = 1296   what stands on the cells around the agent, one-hot over `KINDS`; outside the map: dark
                   26   the status line: x / 79 and y / 21, the rest as sign(v) log(1 + |v|) / 10; all of NLE's 27
                        numbers but the turn counter, which would make every moment look new to a novelty bonus
                   64   the message's words, hashed

Options of the adapter: `crop` (odd, 3 to 21), `message` (False leaves the words out).

`info["text"]` is the game's message, "" when there is none. Actions are NLE's own (23 for NetHackScore).

What is repaired, with adapted observations or without:
    seeds     NLE ignores `reset(seed=)`; here the game's seeds are drawn from `np_random` at every reset, and what the
              game takes from the clock (moon phase, Friday 13th) comes from the seed too
    the cap   NLE ends an episode at 5000 steps as terminated; here any cap truncates
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs, seeding

from envs.family import Family, entry
from envs.words import WORDS, hashed_words

KINDS = (
    "dark",
    "wall",
    "open way",
    "closed door",
    "floor",
    "corridor",
    "stairs up",
    "stairs down",
    "furniture",
    "hazard",
    "monster",
    "pet",
    "food",
    "gold",
    "object",
    "boulder",
)
CAP = 5000  # NLE's own episode length
_NEVER = 2**31 - 1

# The map symbols of NetHack 3.6 in order: (first symbol after the run, kind of the run).
_SYMBOLS = (
    (1, "dark"),
    (12, "wall"),
    (15, "open way"),
    (17, "closed door"),
    (19, "wall"),  # iron bars, tree
    (21, "floor"),
    (23, "corridor"),
    (24, "stairs up"),
    (25, "stairs down"),
    (26, "stairs up"),  # ladders
    (27, "stairs down"),
    (32, "furniture"),
    (33, "hazard"),  # water
    (34, "floor"),  # ice
    (35, "hazard"),  # lava
    (37, "open way"),  # drawbridge, lowered
    (39, "closed door"),  # drawbridge, raised
    (40, "floor"),  # air
    (65, "hazard"),  # cloud, water, traps
)


class RealSeeds(gym.Wrapper, RecordConstructorArgs):
    """Seeds each game from `np_random`, and leaves the episode's length to Gymnasium's TimeLimit."""

    def __init__(self, env: gym.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        inner: Any = env.unwrapped
        if env.spec is not None and env.spec.name == "NetHackChallenge":
            raise ValueError("NetHackChallenge forbids seeds, so no run could be resumed; use NetHackScore-v0")
        inner._max_episode_steps = _NEVER

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        inner: Any = self.unwrapped
        if seed is not None:
            inner.np_random = seeding.np_random(seed)[0]
        core, disp = (int(s) for s in inner.np_random.integers(1, 2**31 - 1, size=2))
        inner.seed(core, disp, reseed=False)
        return self.env.reset(options=options)


class GameObservation(gym.ObservationWrapper, RecordConstructorArgs):
    """NLE's glyphs, status and message as one flat float32 vector; the module says which."""

    def __init__(self, env: gym.Env, crop: int = 9, message: bool = True) -> None:
        if crop not in range(3, 22, 2):
            raise ValueError(f"crop={crop} is out of range; give an odd number of cells from 3 to 21")
        RecordConstructorArgs.__init__(self, crop=crop, message=message)
        super().__init__(env)
        from nle import nethack

        self._crop, self._message = crop, message
        self._kind = glyph_kinds()
        self._status = np.delete(np.arange(nethack.NLE_BLSTATS_SIZE), nethack.NLE_BL_TIME)
        rows, columns = nethack.DUNGEON_SHAPE
        half = crop // 2
        self._map = np.zeros((rows + 2 * half, columns + 2 * half), dtype=np.int64)  # 0 is dark
        self._inside = (slice(half, half + rows), slice(half, half + columns))
        self._begin = np.arange(crop * crop) * len(KINDS)
        self._view = crop * crop * len(KINDS)
        self._length = self._view + nethack.NLE_BLSTATS_SIZE - 1 + (WORDS if message else 0)
        low, high = np.zeros(self._length, dtype=np.float32), np.ones(self._length, dtype=np.float32)
        status = slice(self._view + 2, self._view + nethack.NLE_BLSTATS_SIZE - 1)
        low[status], high[status] = -5.0, 5.0  # log(1 + 2**63) / 10 is 4.4
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        flat = np.zeros(self._length, dtype=np.float32)
        status = observation["blstats"]
        x, y = int(status[0]), int(status[1])
        self._map[self._inside] = self._kind[observation["glyphs"]]
        window = self._map[y : y + self._crop, x : x + self._crop]  # the map is padded by half a crop
        flat[self._begin + window.ravel()] = 1.0
        squashed = np.sign(status) * np.log1p(np.abs(status)) / 10.0
        squashed[:2] = x / 79.0, y / 21.0
        end = self._view + len(self._status)
        flat[self._view : end] = squashed[self._status]
        if self._message:
            flat[end:] = hashed_words(observation["message"].tobytes())
        return flat


@functools.cache
def glyph_kinds() -> np.ndarray:
    """Int64 (MAX_GLYPH + 1,): the index into KINDS of every glyph."""
    from nle import nethack

    kind = {name: number for number, name in enumerate(KINDS)}
    table = np.full(nethack.MAX_GLYPH + 1, kind["dark"])
    offsets = {
        nethack.GLYPH_MON_OFF: "monster",
        nethack.GLYPH_PET_OFF: "pet",
        nethack.GLYPH_INVIS_OFF: "monster",
        nethack.GLYPH_BODY_OFF: "food",
        nethack.GLYPH_RIDDEN_OFF: "monster",
        nethack.GLYPH_OBJ_OFF: "object",
        nethack.GLYPH_CMAP_OFF: "dark",
        nethack.GLYPH_EXPLODE_OFF: "hazard",
        nethack.GLYPH_SWALLOW_OFF: "monster",
        nethack.GLYPH_STATUE_OFF: "boulder",
    }
    for offset in sorted(offsets):
        table[offset:] = kind[offsets[offset]]
    table[nethack.MAX_GLYPH :] = kind["dark"]  # NO_GLYPH
    special = {nethack.COIN_CLASS: "gold", nethack.FOOD_CLASS: "food", nethack.ROCK_CLASS: "boulder"}
    for glyph in range(nethack.GLYPH_OBJ_OFF, nethack.GLYPH_CMAP_OFF):
        name = special.get(ord(nethack.objclass(nethack.glyph_to_obj(glyph)).oc_class))
        if name is not None:
            table[glyph] = kind[name]
    first = 0
    for last, name in _SYMBOLS:
        table[nethack.GLYPH_CMAP_OFF + first : nethack.GLYPH_CMAP_OFF + last] = kind[name]
        first = last
    return table


def _arguments(spec: EnvSpec, arguments: dict[str, Any], frame_size: int | None) -> dict[str, Any]:
    arguments = {"fix_moon_phase": True, "max_episode_steps": CAP, "render_mode": None, **arguments}
    if arguments["render_mode"] == "rgb_array":
        arguments["render_mode"] = "pixel"  # NLE's name for an array of tiles
    return arguments


def _caption(env: gym.Env, memory: dict[str, Any]) -> str:
    inner: Any = env.unwrapped
    message = bytes(inner.last_observation[inner._message_index])
    return message.split(b"\0", 1)[0].decode("latin-1").strip()


def _success(env: gym.Env, episode_return: float, terminated: bool, info: dict[str, Any]) -> bool | None:
    if env.spec is not None and env.spec.name in ("NetHackScore", "NetHack"):
        return None  # a score has no finish
    return getattr(info.get("end_status"), "name", "") == "TASK_SUCCESS"


FAMILY = Family(
    name="nethack",
    description="NetHack: the game, through the NetHack Learning Environment",
    ids=(
        "NetHackScore-v0",
        "NetHackStaircase-v0",
        "NetHackStaircasePet-v0",
        "NetHackOracle-v0",
        "NetHackGold-v0",
        "NetHackEat-v0",
        "NetHackScout-v0",
    ),
    knows=lambda spec: entry(spec).startswith("nle."),
    module="nle",
    arguments=_arguments,
    repair=RealSeeds,
    adapt=GameObservation,
    options=frozenset({"crop", "message"}),
    caption=_caption,
    success=_success,
)
