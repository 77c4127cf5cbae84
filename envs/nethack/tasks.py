"""Tasks of NetHack whose prompts are answered, and the rules of the game that array programs share.

Source: Klissarov et al. 2024, arXiv 2410.23022 (ONI), and Klissarov et al. 2023, arXiv 2310.00166 (Motif).

28 actions: NLE's 23 for tasks, then cast, quaff, pray, pick up and pay. The game's questions are answered so that one
action is enough: eating and drinking take the first thing offered, casting casts the first spell, picking up takes all,
paying pays; skills are enhanced as soon as they can be. Directions, attacks on peaceful monsters and prayers are the
agent's to confirm, as in NLE. All pages of a message are one message, up to 255 letters.

Differences from the source: messages of several pages are kept whole; picking up takes everything of a menu; a satiated
agent does not eat, as a random policy would die of it; a task that is won ends without leaving the game.
When it fails: a game asks for more than `LIMIT` answers in a row; the next action continues from there.
"""

import enum
import functools
from typing import Any

import numpy as np

try:
    from nle import nethack
except ImportError as error:
    raise ImportError(f"NetHack needs the package nle ({error}); pip install 'lodestar-rl[nethack]'") from None
from nle.env.base import NLE, SKIP_EXCEPTIONS
from nle.env.tasks import TASK_ACTIONS

from envs.nethack.view import CONDITION, DEPTH, HUNGER, SCORE, TIME, Games, neighbours
from envs.types import EnvStep

Command = nethack.Command
ACTIONS = (*TASK_ACTIONS, Command.CAST, Command.QUAFF, Command.PRAY, Command.PICKUP, Command.PAY)
REWARD = 50.0  # for what ends a task
FROZEN = -0.01  # of a step that takes no time in the game
LIMIT = 100  # answers to one action
STANDING = (SCORE, TIME, DEPTH)  # what rewards compare with the step before
_SPACE, _ESCAPE = ord(" "), 27
_SATIATED = 0  # of the status line's hunger
_FIRST = frozenset(map(int, (Command.EAT, Command.QUAFF, Command.PAY)))  # whose questions get the first answer
_IN_MENU = {int(Command.CAST): b"a", int(Command.PICKUP): b",\r", int(Command.ENHANCE): b"a"}


def settle(games: Games, row: int) -> None:
    """What NLE does after a move until the game waits for the next one: clicks through pages, declines questions."""
    game, internal = games.playing[row], games.internal[row]
    while not game.done():
        if internal[3]:
            game.step(_SPACE)
        elif internal[2]:
            game.step(_ESCAPE)
        else:
            if internal[1] and not any(part in games.text_of(row) for part in SKIP_EXCEPTIONS):
                game.step(_ESCAPE)
            return


def answer(games: Games, row: int, key: int) -> None:
    """The same for our tasks: answers what `key` asks, and leaves all pages of the message in `games.message`."""
    pages: list[bytes] = []
    _click(games, row, key, pages)
    if any(b"more confident in your" in page for page in pages) and not games.playing[row].done():
        games.playing[row].step(int(Command.ENHANCE))
        _click(games, row, int(Command.ENHANCE), pages)
    whole = b"  ".join(pages)[:255]
    if whole != games.text_of(row):
        games.message[row] = 0
        games.message[row, : len(whole)] = np.frombuffer(whole, np.uint8)


def _click(games: Games, row: int, key: int, pages: list[bytes]) -> None:
    game, internal = games.playing[row], games.internal[row]
    choices = iter(_IN_MENU.get(key, b""))
    for _ in range(LIMIT):
        text = games.text_of(row)
        asked = bool(internal[1])
        if text and not asked and text not in pages[-1:]:
            pages.append(text)
        if game.done() or not internal[1:4].any():
            return
        if internal[3]:
            game.step(next(choices, _SPACE))
        elif asked and key in _FIRST:
            first = text[text.rfind(b"[") + 1 :][:1]
            full = key == Command.EAT and games.blstats[row, HUNGER] == _SATIATED
            game.step(first[0] if first.isalpha() and not full else _ESCAPE)
        elif asked and not internal[2] and any(part in text for part in SKIP_EXCEPTIONS):
            pages.append(text)
            return
        else:
            game.step(_ESCAPE)


def score(games: Games, before: np.ndarray, penalty: float = FROZEN) -> np.ndarray:
    """Rewards (N,) of `Score` and of NLE's NetHackScore, from `STANDING` before the step, int64 (N, 3)."""
    gained = (games.blstats[:, SCORE] - before[:, 0]) * games.normal()
    return gained + penalty * (games.blstats[:, TIME] == before[:, 1])


@functools.cache
def oracle_glyph() -> int:
    """The number by which the map shows the Oracle."""
    monsters = range(nethack.GLYPH_MON_OFF, nethack.GLYPH_PET_OFF)
    return next(one for one in monsters if nethack.permonst(nethack.glyph_to_mon(one)).mname == "Oracle")


class NetHackTask(NLE):
    """One game, played with `ACTIONS`; `judge` defines rewards and success."""

    class StepStatus(enum.IntEnum):
        """How a step ended; the names are NLE's."""

        ABORTED = -1
        RUNNING = 0
        DEATH = 1
        TASK_SUCCESSFUL = 2

    def __init__(self, *args: Any, actions: Any = ACTIONS, **kwargs: Any) -> None:
        super().__init__(*args, actions=actions, **kwargs)
        self.games = Games([self], narrow=False)

    def judge(self, games: Games, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rewards float64 (N,), and bool (N,) whether the task is won, after a step of N games; `before` as `score`."""
        raise NotImplementedError

    def step(self, action: Any) -> EnvStep:
        """One action and the answers it needs."""
        games, key = self.games, int(self.actions[int(action)])
        before = games.blstats[:, STANDING]
        game = games.playing[0]
        game.step(key)
        answer(games, 0, key)
        self._steps += 1
        rewards, won = self.judge(games, before)
        status = self.StepStatus.TASK_SUCCESSFUL if won[0] else self.StepStatus(int(game.done()))
        truncated = self._steps >= self._max_episode_steps
        observation = self._get_observation(self.last_observation)
        return observation, float(rewards[0]), bool(status), truncated, self._get_information(status)


class Score(NetHackTask):
    """NLE's score task with the actions of this module; a step that takes no time in the game costs `penalty_step`."""

    def __init__(self, *args: Any, penalty_step: float = FROZEN, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.penalty_step = penalty_step

    def judge(self, games: Games, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return score(games, before, self.penalty_step), np.zeros(len(before), bool)


class Oracle(NetHackTask):
    """50 and the end beside the Oracle; with `sober` only while the agent does not hallucinate, which is exploited."""

    def __init__(self, *args: Any, sober: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sober = sober

    def judge(self, games: Games, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        glyphs, inside = neighbours(games, np.arange(len(before)), games.blstats, 3)
        won = ((glyphs == oracle_glyph()) & (inside == 1)).any(1)
        if self.sober:
            won &= (games.blstats[:, CONDITION] & nethack.BL_MASK_HALLU) == 0
        return REWARD * won, won


class Staircase(NetHackTask):
    """50 and the end for going down stairs to the depth `level`, at least 2."""

    def __init__(self, *args: Any, level: int = 3, **kwargs: Any) -> None:
        if level < 2:
            raise ValueError(f"level={level} cannot be reached by stairs down; give a depth of at least 2")
        super().__init__(*args, **kwargs)
        self.level = level

    def judge(self, games: Games, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        won = (games.blstats[:, DEPTH] == self.level) & (before[:, 2] != self.level)
        for row in np.flatnonzero(won).tolist():  # a hole or a trap door leads down too
            won[row] = b"descend" in games.text_of(row)
        return REWARD * won, won
