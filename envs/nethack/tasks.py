"""Tasks of NetHack whose prompts are answered, and the rules of the game that array programs share.

Source: Klissarov et al. 2024, arXiv 2410.23022 (ONI), and Klissarov et al. 2023, arXiv 2310.00166 (Motif).

28 actions: NLE's 23 for tasks, then cast, quaff, pray, pick up and pay. The game's questions are answered so that one
action is enough: eating and drinking take the first thing offered, casting casts the first spell, picking up takes all,
paying pays; skills are enhanced as soon as they can be. Directions, attacks on peaceful monsters and prayers are the
agent's to confirm, as in NLE. All pages of a message are one message, up to 255 letters.

Differences from the source: messages of several pages are kept whole; picking up takes everything of a menu; a satiated
agent does not eat, as a random policy would die of it; a task that is won ends without leaving the game.
When it fails: a game asks for more than `MAX_ANSWERS` answers in a row; the next action continues from there.
"""

import functools
from typing import Any

import numpy as np
from nle import nethack
from nle.env.base import NLE, SKIP_EXCEPTIONS
from nle.env.tasks import TASK_ACTIONS, NetHackStaircase

from envs.nethack.view import STAT_CONDITION, STAT_DEPTH, STAT_HUNGER, STAT_SCORE, STAT_TIME, Games, neighbours
from envs.types import EnvStep

Command = nethack.Command
# Rewards float64 (N,), and bool (N,) whether the task is won.
Verdict = tuple[np.ndarray, np.ndarray]
ACTIONS = (*TASK_ACTIONS, Command.CAST, Command.QUAFF, Command.PRAY, Command.PICKUP, Command.PAY)
# The reward of what ends a task, and of a step that takes no time in the game.
WIN_REWARD = 50.0
FROZEN_STEP_REWARD = -0.01
MAX_ANSWERS = 100
# The columns of the status line that rewards compare with the step before.
STANDING = (STAT_SCORE, STAT_TIME, STAT_DEPTH)
_SPACE, _ESCAPE = ord(" "), 27
# The value of the status line's hunger.
_SATIATED = 0
# The commands whose questions get the first answer that is offered.
_TAKES_FIRST_OFFER = frozenset(map(int, (Command.EAT, Command.QUAFF, Command.PAY)))
_MENU_KEYS = {int(Command.CAST): b"a", int(Command.PICKUP): b",\r", int(Command.ENHANCE): b"a"}


def settle(games: Games, row: int) -> None:
    """What NLE does after a move until the game waits for the next one: clicks through pages, declines questions."""
    game = games.playing[row]
    # NLE's flags: [1] the game asks a question, [2] it reads a line, [3] it waits for a space.
    internal = games.internal[row]
    while not game.done():
        if internal[3]:
            game.step(_SPACE)
        elif internal[2]:
            game.step(_ESCAPE)
        else:
            if internal[1] and not _is_left_to_agent(games.text_of(row)):
                game.step(_ESCAPE)
            return


def _is_left_to_agent(text: bytes) -> bool:
    """Whether NLE leaves a question to the agent: directions, attacks on peaceful monsters, prayers."""
    return any(part in text for part in SKIP_EXCEPTIONS)


def answer(games: Games, row: int, key: int) -> None:
    """The same for our tasks: answers what `key` asks, and leaves all pages of the message in `games.message`."""
    pages: list[bytes] = []
    _answer_prompts(games, row, key, pages)
    can_enhance = any(b"more confident in your" in page for page in pages)
    if can_enhance and not games.playing[row].done():
        games.playing[row].step(int(Command.ENHANCE))
        _answer_prompts(games, row, int(Command.ENHANCE), pages)
    message = b"  ".join(pages)[:255]
    if message != games.text_of(row):
        games.message[row] = 0
        games.message[row, : len(message)] = np.frombuffer(message, np.uint8)


def _answer_prompts(games: Games, row: int, key: int, pages: list[bytes]) -> None:
    """Answer until the game waits for the next action; `pages` collects its messages."""
    game = games.playing[row]
    # NLE's flags, as in `settle`.
    internal = games.internal[row]
    menu_keys = iter(_MENU_KEYS.get(key, b""))
    for _ in range(MAX_ANSWERS):
        text = games.text_of(row)
        asks = bool(internal[1])
        if text and not asks and text not in pages[-1:]:
            pages.append(text)
        if game.done() or not internal[1:4].any():
            return
        if internal[3]:
            game.step(next(menu_keys, _SPACE))
        elif asks and key in _TAKES_FIRST_OFFER:
            # Offers stand in brackets at the end: "What do you want to eat? [cd or ?*]".
            first_offer = text[text.rfind(b"[") + 1 :][:1]
            is_full = key == Command.EAT and games.blstats[row, STAT_HUNGER] == _SATIATED
            game.step(first_offer[0] if first_offer.isalpha() and not is_full else _ESCAPE)
        elif asks and not internal[2] and _is_left_to_agent(text):
            pages.append(text)
            return
        else:
            game.step(_ESCAPE)


def score(games: Games, before: np.ndarray, penalty: float = FROZEN_STEP_REWARD) -> np.ndarray:
    """Rewards (N,) of `Score` and of NLE's NetHackScore, from `STANDING` before the step, int64 (N, 3)."""
    gain = (games.blstats[:, STAT_SCORE] - before[:, 0]) * games.normal()
    is_frozen = games.blstats[:, STAT_TIME] == before[:, 1]
    return gain + penalty * is_frozen


@functools.cache
def oracle_glyph() -> int:
    """The number by which the map shows the Oracle."""
    for glyph in range(nethack.GLYPH_MON_OFF, nethack.GLYPH_PET_OFF):
        if nethack.permonst(nethack.glyph_to_mon(glyph)).mname == "Oracle":
            return glyph
    raise LookupError("this NetHack has no Oracle")


class NetHackTask(NLE):
    """One game, played with `ACTIONS`; `judge` defines rewards and success."""

    # How a step ended.
    StepStatus: Any = NetHackStaircase.StepStatus

    def __init__(self, *args: Any, actions: Any = ACTIONS, **kwargs: Any) -> None:
        super().__init__(*args, actions=actions, **kwargs)
        self.games = Games([self], narrow=False)

    def judge(self, games: Games, before: np.ndarray) -> Verdict:
        """Rewards float64 (N,), and bool (N,) whether the task is won, after a step of N games; `before` as `score`."""
        raise NotImplementedError

    def step(self, action: Any) -> EnvStep:
        """One action and the answers it needs."""
        games = self.games
        game = games.playing[0]
        key = int(self.actions[int(action)])
        before = games.blstats[:, STANDING]
        game.step(key)
        answer(games, 0, key)
        self._steps += 1
        rewards, won = self.judge(games, before)
        status = self.StepStatus(int(game.done()))
        if won[0]:
            status = self.StepStatus.TASK_SUCCESSFUL
        truncated = self._steps >= self._max_episode_steps
        observation = self._get_observation(self.last_observation)
        info = self._get_information(status)
        return observation, float(rewards[0]), bool(status), truncated, info


class Score(NetHackTask):
    """NLE's score task with the actions of this module; a step that takes no time in the game costs `penalty_step`."""

    def __init__(self, *args: Any, penalty_step: float = FROZEN_STEP_REWARD, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.penalty_step = penalty_step

    def judge(self, games: Games, before: np.ndarray) -> Verdict:
        return score(games, before, self.penalty_step), np.zeros(len(before), bool)


class Oracle(NetHackTask):
    """50 and the end beside the Oracle; with `sober` only while the agent does not hallucinate, which is exploited."""

    def __init__(self, *args: Any, sober: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sober = sober

    def judge(self, games: Games, before: np.ndarray) -> Verdict:
        glyphs, on_map = neighbours(games, np.arange(len(before)), games.blstats, 3)
        is_oracle = (glyphs == oracle_glyph()) & (on_map == 1)
        won = is_oracle.any(1)
        if self.sober:
            # To an agent that hallucinates any monster may look like the Oracle.
            won &= (games.blstats[:, STAT_CONDITION] & nethack.BL_MASK_HALLU) == 0
        return WIN_REWARD * won, won


class Staircase(NetHackTask):
    """50 and the end for going down stairs to the depth `level`, at least 2."""

    def __init__(self, *args: Any, level: int = 3, **kwargs: Any) -> None:
        if level < 2:
            raise ValueError(f"level={level} cannot be reached by stairs down; give a depth of at least 2")
        super().__init__(*args, **kwargs)
        self.level = level

    def judge(self, games: Games, before: np.ndarray) -> Verdict:
        won = (games.blstats[:, STAT_DEPTH] == self.level) & (before[:, 2] != self.level)
        # A hole or a trap door leads down too, but only stairs are descended.
        for row in np.flatnonzero(won).tolist():
            won[row] = b"descend" in games.text_of(row)
        return WIN_REWARD * won, won
