"""NetHack: the NetHack Learning Environment with working seeds and time limits; our tasks in it; captions.

Observations and the options `crop`, `message` and `leak` of the adapter: `envs.nethack.view`. Tasks of ours, with 28
actions: `envs.nethack.tasks`. NLE's own ids keep NLE's 23 actions and its rules. MiniHack's levels, with MiniHack
installed, are `minihack:MiniHack-Room-5x5-v0` and so on.

`info["text"]` is the game's message, "" when there is none; with the adapter's option `status=True` the status line
follows: "You kill the newt! [Dlvl 2, HP 12, XP 3, $ 45]". A sentence repeated in a row appears once, with "(x2)".
What players have written reads "(written)", as an agent that writes "You find the Oracle" could manipulate its judge;
so does what it types when the game asks for a line, and later any line of `MIN_TYPED_LINE_CHARS` characters or more.

Signals are depth in levels below the surface, 1 at the start; the in-game score; experience level; gold; hit points. An
episode's metrics are the largest of each, so that dying takes nothing away.

What is repaired: the game's seeds are drawn from `np_random` at every reset, also what it takes from the clock;
adapted, a game writes only what is read, as NLE's `screen_descriptions` take random numbers from it; any cap truncates.
"""

import functools
import itertools
import re
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import seeding
from gymnasium.wrappers import TimeLimit

from envs.family import Family, Metrics, aims_of, entry, simulator
from envs.nethack.progression import progression
from envs.nethack.view import STAT_DEPTH, STAT_GOLD, STAT_HP, STAT_LEVEL, STAT_SCORE, GameObservation
from envs.observations import Recorded
from envs.types import EnvReset, Info, Notes, Options

# Shorter lines are also words of the game itself, so later messages keep them, in characters.
MIN_TYPED_LINE_CHARS = 4
# NLE's own episode length.
MAX_GAME_STEPS = 5000
NETHACK_SIGNALS = ("depth", "score", "experience level", "gold", "hit points")
# What the game asks before it reads a line: `What do you want to write in the dust here?`, `Call a red gem:`, `#`.
_QUESTION = re.compile(r"(# ?|.*?[?:](?: \[[^\]]*\])?) ?(.*)", re.DOTALL)
# The places of `NETHACK_SIGNALS` in the status line.
_SIGNAL_COLUMNS = [STAT_DEPTH, STAT_SCORE, STAT_LEVEL, STAT_GOLD, STAT_HP]


def _sense(env: gym.Env) -> np.ndarray:
    inner = simulator(env)
    return inner.last_observation[inner._blstats_index][_SIGNAL_COLUMNS].astype(np.float32)


class Delving(Metrics):
    """The most that was reached in an episode, mean over episodes; and the deepest of all."""

    def summary(self) -> dict[str, float]:
        if not self.episodes:
            return {}
        best = np.stack(self.episodes)
        # Hit points start high, so that their maximum says nothing about progress.
        means = {name: float(best[:, k].mean()) for k, name in enumerate(NETHACK_SIGNALS[:4])}
        means["BALROG progression, %"] = 100 * float(progression(best[:, 0], best[:, 2]).mean())
        means["deepest of all"] = float(best[:, 0].max())
        return means


class RealSeeds(Recorded):
    """Seeds each game from `np_random`, and leaves the episode's length to Gymnasium's TimeLimit."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        inner = simulator(env)
        if inner.spec.name == "NetHackChallenge":
            raise ValueError("NetHackChallenge forbids seeds, so no run could be resumed; use NetHackScore-v0")
        # NLE terminates at its limit; Gymnasium's TimeLimit truncates instead.
        inner._max_episode_steps = 2**31 - 1

    def reset(self, *, seed: int | None = None, options: Options | None = None) -> EnvReset:
        inner = simulator(self)
        if seed is not None:
            inner.np_random = seeding.np_random(seed)[0]
        draw_game(inner)
        # NLE fails on options without its own keys, so empty ones become None.
        return self.env.reset(options=options or None)


def draw_game(inner: Any) -> None:
    """Draw the seeds of the game that the next reset of an NLE environment begins."""
    core, disp = inner.np_random.integers(1, 2**31 - 1, size=2).tolist()
    inner.seed(core, disp, reseed=False)


@functools.lru_cache(maxsize=4096)
def caption(message: bytes) -> str:
    """A message of the game as a caption; see the module."""
    text = " ".join(message.decode("latin-1").split())
    # Engravings and names given to things are words of players, who could address a judge.
    text = re.sub(r'You read: ".*"', 'You read: "(written)"', text)
    text = re.sub(r"\b(called|named) [^.!?]*[^.!?\s]", r"\1 (written)", text)
    sentences = []
    for sentence, repeats in itertools.groupby(re.split(r"(?<=[.!?]) ", text)):
        times = len(list(repeats))
        sentences.append(sentence if times == 1 else f"{sentence} (x{times})")
    return " ".join(sentences)


def with_status(text: str, numbers: np.ndarray) -> str:
    """A caption and the status line, from `blstats` (27,); only the caption once the game is over."""
    if not numbers[STAT_DEPTH]:
        return text
    line = f"[Dlvl {numbers[STAT_DEPTH]}, HP {numbers[STAT_HP]}, XP {numbers[STAT_LEVEL]}, $ {numbers[STAT_GOLD]}]"
    return f"{text} {line}" if text else line


def _add_seeds_and_limit(env: gym.Env) -> gym.Env:
    max_steps = simulator(env)._max_episode_steps
    env = RealSeeds(env)
    # MiniHack's registrations have no limit; each class has one of its own.
    if env.spec is not None and env.spec.max_episode_steps is None:
        return TimeLimit(env, max_steps)
    return env


def provide_pkg_resources() -> None:
    """Give MiniHack the one function that it takes from pkg_resources, which setuptools lacks from version 81 on."""
    if "pkg_resources" in sys.modules or find_spec("pkg_resources") is not None:
        return

    def resource_filename(package: str, path: str) -> str:
        spec = find_spec(package)
        return str(Path(str(spec and spec.origin)).parent / path)

    module: Any = types.ModuleType("pkg_resources")
    module.resource_filename = resource_filename
    # What pytest asks of it where it is imported.
    module.fixup_namespace_packages = lambda path: None
    sys.modules["pkg_resources"] = module


def _is_minihack(spec: EnvSpec) -> bool:
    return entry(spec).startswith("minihack.")


def _arguments(spec: EnvSpec, arguments: Options, frame_size: int | None) -> Options:
    # The phase of the moon comes from the clock and changes the agent's luck.
    defaults: Options = {"fix_moon_phase": True}
    if not _is_minihack(spec):
        defaults["max_episode_steps"] = MAX_GAME_STEPS
    mode = arguments.get("render_mode")
    # NLE's name for an array of tiles is "pixel".
    return {**defaults, **arguments, "render_mode": "pixel" if mode == "rgb_array" else mode}


def _caption(env: gym.Env, memory: Notes) -> str:
    inner = simulator(env)
    message = bytes(inner.last_observation[inner._message_index]).split(b"\0", 1)[0]
    reads_line = bool(inner.last_observation[inner._internal_index][2])
    text = _hide_typed_words(message, reads_line, memory)
    if env.has_wrapper_attr("status") and env.get_wrapper_attr("status"):
        return with_status(text, inner.last_observation[inner._blstats_index])
    return text


def _hide_typed_words(message: bytes, reads_line: bool, memory: Notes) -> str:
    """The caption of a message without what the agent has typed in this episode; `reads_line`: it is typing now."""
    if reads_line:
        prompt = message.decode("latin-1")
        match = _QUESTION.fullmatch(prompt)
        question, typed = match.groups() if match else (prompt, "")
        memory["typing"] = " ".join(typed.split())
        text = caption(question.encode("latin-1"))
        return f"{text} (written)" if typed else text
    typed_lines = memory.get("typed", [])
    line = memory.pop("typing", "")
    if len(line) >= MIN_TYPED_LINE_CHARS:
        # The longest first: a line may contain another one.
        typed_lines = sorted({*typed_lines, line}, key=len, reverse=True)
        memory["typed"] = typed_lines
    text = caption(message)
    for line in typed_lines:
        text = re.sub(re.escape(line), "(written)", text, flags=re.IGNORECASE)
    return text


def _success(env: gym.Env, episode_return: float, terminated: bool, info: Info) -> bool | None:
    # A score has no value from which on it is a success.
    if simulator(env).spec.name in ("NetHackScore", "NetHack"):
        return None
    return getattr(info.get("end_status"), "name", "").startswith("TASK_SUCCESS")


_OUR_TASKS = ("Score", "Oracle", "OracleSober", "Staircase3", "Staircase4")
_NLE_TASKS = ("Score", "Staircase", "StaircasePet", "Oracle", "Gold", "Eat", "Scout")

NETHACK_FAMILY = Family(
    name="nethack",
    description="NetHack: the game, through the NetHack Learning Environment",
    ids=(
        *(f"lodestar/NetHack{name}-v0" for name in _OUR_TASKS),
        *(f"NetHack{name}-v0" for name in _NLE_TASKS),
    ),
    entries=("nle.", "minihack.", "envs.nethack.tasks"),
    module="nle",
    extra="nethack",
    arguments=_arguments,
    repair=_add_seeds_and_limit,
    adapt=GameObservation,
    options=frozenset({"crop", "message", "leak", "status"}),
    caption=_caption,
    aim=aims_of("nethack", lambda spec: "MiniHack" if _is_minihack(spec) else spec.name),
    signals=lambda spec: NETHACK_SIGNALS,
    sense=_sense,
    metrics=lambda env: Delving(),
    success=_success,
)
