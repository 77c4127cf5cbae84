"""MiniGrid's captions: what just happened, like a game's message line, and two nuisances for studies.

    captions="events"   the mission at a reset; then "picked up the yellow key", "dropped ...", "opened the blue door",
                        "closed ...", "unlocked ...", "reached the goal", "fell into lava"; "" where nothing happened
    captions="full"     also "bumped into a wall", "the yellow door is locked", and "sees the green goal" where a thing
                        comes into view that was not in view before; of several, the first in the order of `SIGHTS`.
                        With an event in the same step: "opened the yellow door, sees the green goal"
    chatter             the action `done`, which changes nothing, prints "the screen shows picture 48213": ever new with
                        chatter=True, one of so many pictures with a number
    varied              every caption ends in " (417 moves left)", so that useful captions rarely repeat

Both nuisances are for studies of rewards that read captions, as the television of Burda et al. 2018 (arXiv 1808.04355)
is for pictures: with few clean captions any bonus for a new one solves the task. Events are read from what changed in
the grid; a picture's number follows from the episode's `salt` and the step, so a replayed episode has the same.
When it fails: a step has one event. Nuisances, bumps and sights need the adapter, which sees actions and views.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from envs.family import simulator, step_limit
from envs.types import Notes

# In the order of MiniGrid's codes.
MINIGRID_KINDS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
MINIGRID_COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
EVENT_WORDS = (
    "",
    "reached the goal",
    "fell into lava",
    "picked up {}",
    "dropped {}",
    "opened {}",
    "closed {}",
    "unlocked {}",
    "bumped into {}",
    "{} is locked",
)
(
    EVENT_NONE,
    EVENT_REACHED,
    EVENT_FELL,
    EVENT_PICKED,
    EVENT_DROPPED,
    EVENT_OPENED,
    EVENT_CLOSED,
    EVENT_UNLOCKED,
    EVENT_BUMPED,
    EVENT_LOCKED,
) = range(len(EVENT_WORDS))
# The events that only "full" captions tell.
MORE = (EVENT_BUMPED, EVENT_LOCKED)
# What a view is searched for, the most important first.
SIGHTS = ("goal", "key", "ball", "box", "door", "lava")
CAPTIONS = ("events", "full")
MAX_CHATTER_PICTURES = 10**7
chatters = "the screen shows picture {}".format
left = " ({} moves left)".format
# MiniGrid's numbers of these actions.
FORWARD, TOGGLE, DONE = 2, 5, 6


@dataclass
class Speech:
    """Which captions an environment has, and what the adapter has seen that the environment itself does not keep."""

    captions: str = "events"
    chatter: bool | int = False
    varied: bool = False
    # The last action, -1 at a reset.
    action: int = -1
    # What the agent sees, uint8 (w, h, 3).
    view: np.ndarray = field(default_factory=lambda: np.zeros((1, 1, 3), np.uint8))
    # Names the episode, in [0, 2^32); 0 without chatter.
    salt: int = 0

    def __post_init__(self) -> None:
        if self.captions not in CAPTIONS:
            raise ValueError(f'captions={self.captions!r} is unknown; give "events" or "full"')
        if not isinstance(self.varied, bool):
            raise ValueError(f"varied={self.varied!r} is neither true nor false; give one of them")
        if not isinstance(self.chatter, int) or not 0 <= self.chatter <= MAX_CHATTER_PICTURES:
            raise ValueError(
                f"chatter={self.chatter!r} is neither true, false nor a number of pictures; give one of them, at most "
                f"{MAX_CHATTER_PICTURES}"
            )

    @property
    def pictures(self) -> int:
        return MAX_CHATTER_PICTURES if self.chatter is True else int(self.chatter)


def object_name(kind: str, colour: str) -> str:
    """The name of an object."""
    return {"wall": "a wall", "lava": "lava"}.get(kind, f"the {colour} {kind}")


# Every thing as (kind, colour), at 6 * kind + colour in MiniGrid's codes.
THINGS = tuple(itertools.product(MINIGRID_KINDS, MINIGRID_COLOURS))
# Every sight, in the order of importance, and its place in it by its code.
SEEN = tuple(itertools.product(SIGHTS, MINIGRID_COLOURS))
RANK = {THINGS.index(thing): rank for rank, thing in enumerate(SEEN)}


def picture(salt: Any, step: Any, pictures: int) -> Any:
    """Numbers of the pictures shown at these steps (1 on) of these episodes, in [0, pictures)."""
    # Knuth's multiplicative hash (1973): the pictures of neighbouring steps lie far apart.
    return (salt + step * 2_654_435_761) % pictures


def caption(env: gym.Env, memory: Notes) -> str:
    """The caption of the state just reached; see `envs.family.Family.caption`."""
    inner = simulator(env)
    speech = env.get_wrapper_attr("speech") if env.has_wrapper_attr("speech") else Speech()
    before = dict(memory)
    memory.update(_situation(inner, speech))
    if before:
        text = _describe_change(inner, before, memory, speech)
    else:
        text = f"mission: {inner.mission}"
    if speech.varied and text:
        limit: Any = step_limit(env)
        text += left(limit - inner.step_count)
    return text


def _situation(inner: Any, speech: Speech) -> Notes:
    """What a caption compares with the step before."""
    ahead = inner.grid.get(*inner.front_pos)
    is_door = ahead is not None and ahead.type == "door"
    return {
        "place": tuple(inner.agent_pos),
        "facing": inner.agent_dir,
        "carrying": inner.carrying,
        "ahead": ahead,
        "door": (ahead.is_open, ahead.is_locked) if is_door else None,
        "seen": _ranks_in_view(speech.view) if speech.captions == "full" else frozenset(),
    }


def _ranks_in_view(view: np.ndarray) -> frozenset[int]:
    """The sights in a view, by their ranks; what the agent carries is one, so that putting it down brings none."""
    codes = (view[..., 0] * len(MINIGRID_COLOURS) + view[..., 1]).ravel().tolist()
    return frozenset(RANK[code] for code in set(codes) if code in RANK)


def _describe_change(inner: Any, before: Notes, now: Notes, speech: Speech) -> str:
    if speech.chatter and speech.action == DONE:
        event = chatters(picture(speech.salt, inner.step_count, speech.pictures))
    else:
        number, thing = _event(inner, before, now, speech)
        event = EVENT_WORDS[number]
        if thing is not None:
            event = event.format(object_name(thing.type, thing.color))
    new_ranks = now["seen"] - before["seen"]
    if not new_ranks:
        return event
    sight = "sees " + object_name(*SEEN[min(new_ranks)])
    return f"{event}, {sight}" if event else sight


def _event(inner: Any, before: Notes, now: Notes, speech: Speech) -> tuple[int, Any]:
    """The number of the event in `EVENT_WORDS`, and the thing it is about."""
    moved = before["place"] != now["place"]
    if moved:
        under = inner.grid.get(*inner.agent_pos)
        kind = under.type if under is not None else ""
        if kind == "goal":
            return EVENT_REACHED, None
        if kind == "lava":
            return EVENT_FELL, None
    if now["carrying"] is not before["carrying"]:
        if now["carrying"] is not None:
            return EVENT_PICKED, now["carrying"]
        return EVENT_DROPPED, before["carrying"]
    if moved or before["facing"] != now["facing"]:
        return EVENT_NONE, None
    # The agent stands as it stood: what changed ahead, it has toggled.
    ahead = before["ahead"]
    door = before["door"]
    if ahead is not None and ahead.type == "box" and now["ahead"] is not ahead:
        return EVENT_OPENED, ahead
    if door is not None and now["ahead"] is ahead and now["door"] != door:
        was_open, was_locked = door
        if was_open:
            return EVENT_CLOSED, ahead
        return (EVENT_UNLOCKED if was_locked else EVENT_OPENED), ahead
    if speech.captions == "full":
        if speech.action == FORWARD and now["ahead"] is not None:
            return EVENT_BUMPED, now["ahead"]
        if speech.action == TOGGLE and door == (False, True):
            return EVENT_LOCKED, ahead
    return EVENT_NONE, None
