"""NetHack: the NetHack Learning Environment with working seeds and time limits; our tasks in it; captions.

Observations and the options `crop`, `message` and `leak` of the adapter: `envs.nethack.view`. Tasks of ours, with 28
actions: `envs.nethack.tasks`. NLE's own ids keep NLE's 23 actions and its rules. MiniHack's levels, with MiniHack
installed, are `minihack:MiniHack-Room-5x5-v0` and so on.

`info["text"]` is the game's message, "" when there is none; with the adapter's option `status=True` the status line
follows: "You kill the newt! [Dlvl 2, HP 12, XP 3, $ 45]". A sentence repeated in a row appears once, with "(x2)".
What players have written reads "(written)", as an agent that writes "You find the Oracle" could manipulate its judge;
so does what it types when the game asks for a line, and later any line of `WRITTEN` characters or more.

Signals are depth in levels below the surface, 1 at the start; the in-game score; experience level; gold; hit points. An
episode's metrics are the largest of each, so that dying takes nothing away.

What is repaired: the game's seeds are drawn from `np_random` at every reset, also what it takes from the clock;
adapted, a game writes only what is read, as NLE's `screen_descriptions` take random numbers from it; any cap truncates.
"""

import functools
import itertools
import re
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import seeding
from gymnasium.wrappers import TimeLimit

from envs.family import Family, Metrics, entry, simulator
from envs.nethack.view import DEPTH, GOLD, HP, LEVEL, SCORE, GameObservation
from envs.observations import Recorded
from envs.types import EnvReset

WRITTEN = 4  # characters
CAP = 5000  # NLE's own episode length
SIGNALS = ("depth", "score", "experience level", "gold", "hit points")
# What the game asks before it reads a line: `What do you want to write in the dust here?`, `Call a red gem:`, `#`.
_ASKED = re.compile(r"(# ?|.*?[?:](?: \[[^\]]*\])?) ?(.*)", re.DOTALL)
_NUMBERS = [DEPTH, SCORE, LEVEL, GOLD, HP]
_AIMS = {
    "Score": "Make the score grow: go down deeper, fight and kill monsters, gain experience levels and find gold.",
    "Oracle": "Find the Oracle and stand next to her: go down stairs to her level, between 5 and 9, and stay alive.",
    "Staircase": "Explore to find the stairs down and descend them to the next deeper level, alive.",
    "Gold": "Find and pick up as much gold as possible.",
    "Eat": "Find food and eat it, so as never to be hungry.",
    "Scout": "Explore: see as much of the dungeon as possible that has not been seen before.",
}


def _sense(env: gym.Env) -> np.ndarray:
    inner = simulator(env)
    return inner.last_observation[inner._blstats_index][_NUMBERS].astype(np.float32)


class Delving(Metrics):
    """The most that was reached in an episode, mean over episodes; and the deepest of all."""

    def summary(self) -> dict[str, float]:
        if not self.episodes:
            return {}
        best = np.stack(self.episodes)
        means = {name: float(best[:, number].mean()) for number, name in enumerate(SIGNALS[:4])}
        return {**means, "deepest of all": float(best[:, 0].max())}


class RealSeeds(Recorded):
    """Seeds each game from `np_random`, and leaves the episode's length to Gymnasium's TimeLimit."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        if env.spec is not None and env.spec.name == "NetHackChallenge":
            raise ValueError("NetHackChallenge forbids seeds, so no run could be resumed; use NetHackScore-v0")
        simulator(env)._max_episode_steps = 2**31 - 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        inner = simulator(self)
        if seed is not None:
            inner.np_random = seeding.np_random(seed)[0]
        draw_game(inner)
        return self.env.reset(options=options or None)  # NLE fails on options without its own keys


def draw_game(inner: Any) -> None:
    """Draw the seeds of the game that the next reset of an NLE environment begins."""
    core, disp = (int(s) for s in inner.np_random.integers(1, 2**31 - 1, size=2))
    inner.seed(core, disp, reseed=False)


@functools.lru_cache(maxsize=4096)
def caption(message: bytes) -> str:
    """A message of the game as a caption; see the module."""
    text = " ".join(message.decode("latin-1").split())
    text = re.sub(r'You read: ".*"', 'You read: "(written)"', text)
    text = re.sub(r"\b(called|named) [^.!?]*[^.!?\s]", r"\1 (written)", text)
    runs = [(part, len(list(run))) for part, run in itertools.groupby(re.split(r"(?<=[.!?]) ", text))]
    return " ".join(part if times == 1 else f"{part} (x{times})" for part, times in runs)


def with_status(text: str, numbers: np.ndarray) -> str:
    """A caption and the status line, from `blstats` (27,); only the caption once the game is over."""
    if not numbers[DEPTH]:
        return text
    line = f"[Dlvl {numbers[DEPTH]}, HP {numbers[HP]}, XP {numbers[LEVEL]}, $ {numbers[GOLD]}]"
    return f"{text} {line}" if text else line


def _repair(env: gym.Env) -> gym.Env:
    cap = simulator(env)._max_episode_steps
    env = RealSeeds(env)
    # MiniHack's registrations have no limit; each class has one of its own.
    return TimeLimit(env, cap) if env.spec is not None and env.spec.max_episode_steps is None else env


def _is_minihack(spec: EnvSpec) -> bool:
    return entry(spec).startswith("minihack.")


def _arguments(spec: EnvSpec, arguments: dict[str, Any], frame_size: int | None) -> dict[str, Any]:
    cap = {} if _is_minihack(spec) else {"max_episode_steps": CAP}
    mode = arguments.get("render_mode")
    mode = "pixel" if mode == "rgb_array" else mode  # NLE's name for an array of tiles
    return {"fix_moon_phase": True, **cap, **arguments, "render_mode": mode}


def _caption(env: gym.Env, memory: dict[str, Any]) -> str:
    inner = simulator(env)
    message = bytes(inner.last_observation[inner._message_index]).split(b"\0", 1)[0]
    text = _without_typed(message, bool(inner.last_observation[inner._internal_index][2]), memory)
    status = env.has_wrapper_attr("status") and env.get_wrapper_attr("status")
    return with_status(text, inner.last_observation[inner._blstats_index]) if status else text


def _without_typed(message: bytes, reads_line: bool, memory: dict[str, Any]) -> str:
    """The caption of a message without what the agent has typed in this episode; `reads_line`: it is typing now."""
    if reads_line:
        asked = _ASKED.fullmatch(message.decode("latin-1"))
        question, typed = asked.groups() if asked else (message.decode("latin-1"), "")
        memory["typing"] = " ".join(typed.split())
        return caption(question.encode("latin-1")) + (" (written)" if typed else "")
    if len(typed := memory.pop("typing", "")) >= WRITTEN:
        memory["typed"] = sorted({*memory.get("typed", ()), typed}, key=len, reverse=True)
    text = caption(message)
    for line in memory.get("typed", ()):
        text = re.sub(re.escape(line), "(written)", text, flags=re.IGNORECASE)
    return text


def _aim(spec: EnvSpec) -> str:
    if _is_minihack(spec):
        return "Do what the level asks: as a rule, reach the stairs down alive."
    return next((aim for name, aim in _AIMS.items() if spec.name.startswith(f"NetHack{name}")), _AIMS["Score"])


def _success(env: gym.Env, episode_return: float, terminated: bool, info: dict[str, Any]) -> bool | None:
    if env.spec is not None and env.spec.name in ("NetHackScore", "NetHack"):
        return None  # a score has no end
    return getattr(info.get("end_status"), "name", "").startswith("TASK_SUCCESS")


FAMILY = Family(
    name="nethack",
    description="NetHack: the game, through the NetHack Learning Environment",
    ids=(
        *(f"lodestar/NetHack{name}-v0" for name in ("Score", "Oracle", "OracleSober", "Staircase3", "Staircase4")),
        *(f"NetHack{name}-v0" for name in ("Score", "Staircase", "StaircasePet", "Oracle", "Gold", "Eat", "Scout")),
    ),
    knows=lambda spec: entry(spec).startswith(("nle.", "minihack.", "envs.nethack.tasks")),
    module="nle",
    extra="nethack",
    arguments=_arguments,
    repair=_repair,
    adapt=GameObservation,
    options=frozenset({"crop", "message", "leak", "status"}),
    caption=_caption,
    aim=_aim,
    signals=lambda spec: SIGNALS,
    sense=_sense,
    metrics=lambda env: Delving(),
    success=_success,
)
