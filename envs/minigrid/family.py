"""MiniGrid and BabyAI: grid worlds with keys, doors and missions in words.

Observation, flat float32 in {0, 1}, for the default view of 7 x 7 cells:
    980  the view: each cell's object (11), colour (6) and state (3: open, closed, locked), one-hot
      4  the direction the agent faces, one-hot
     64  the mission's words, hashed; only where missions vary, or as the `mission` option says

so (984,) for DoorKey, whose mission is always the same, and (1048,) for KeyCorridor or BabyAI.

Options of the adapter: `mission` = "auto" (words where missions vary), "words" or "drop"; of what `info["text"]` says,
`captions` = "events" or "full", `chatter` and `varied` (false), as `envs.minigrid.captions` tells.

Success is a positive task return.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs

from envs import states
from envs.family import Family, Goal, entry
from envs.minigrid.captions import Speech, caption
from envs.minigrid.signals import sense, signals
from envs.observations import WORDS, hashed_words

PARTS = (11, 6, 3)  # objects, colours, states in MiniGrid's encoding


class GridObservation(gym.ObservationWrapper, RecordConstructorArgs):
    """MiniGrid's dict of image, direction and mission as one flat float32 vector; the module says which.

    Values that MiniGrid's own tables do not have count as their last entry. With chatter, each reset draws one more
    random number of the environment's, which names the episode.

    Attributes:
        speech: what captions are to say, and of what.
    """

    def __init__(
        self,
        env: gym.Env,
        mission: str = "auto",
        captions: str = "events",
        chatter: bool | int = False,
        varied: bool = False,
    ) -> None:
        if mission not in ("auto", "words", "drop"):
            raise ValueError(f'mission={mission!r} is unknown; give "auto", "words" or "drop"')
        self.speech = Speech(captions, chatter, varied)
        RecordConstructorArgs.__init__(self, mission=mission, captions=captions, chatter=chatter, varied=varied)
        super().__init__(env)
        space: Any = env.observation_space
        if not (isinstance(space, spaces.Dict) and {"image", "direction", "mission"} <= set(space.spaces)):
            raise TypeError(
                f"{env.spec.id if env.spec else env} returns {space}, not MiniGrid's image, direction and mission; "
                "make it with adapt=False"
            )
        image: Any = space["image"].shape
        cells = image[0] * image[1]
        self._words = mission == "words" or (mission == "auto" and varies(space["mission"]))
        self._view = cells * sum(PARTS)
        # Where the entry of each (cell, part) begins in the vector.
        begin = np.arange(cells)[:, None] * sum(PARTS) + np.concatenate([[0], np.cumsum(PARTS)[:-1]])
        self._begin = begin.reshape(image)
        self._last = np.array(PARTS) - 1
        self._length = self._view + 4 + (WORDS if self._words else 0)
        self.observation_space = spaces.Box(0.0, 1.0, (self._length,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        answer = super().reset(seed=seed, options=options)
        self.speech.action = -1
        if self.speech.chatter:
            self.speech.salt = int(self.unwrapped.np_random.integers(1 << 32))
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.speech.action = action
        return super().step(action)

    def observation(self, observation: Any) -> np.ndarray:
        self.speech.view = observation["image"]
        flat = np.zeros(self._length, dtype=np.float32)
        flat[self._begin + np.minimum(observation["image"], self._last)] = 1.0
        flat[self._view + int(observation["direction"])] = 1.0
        if self._words:
            flat[self._view + 4 :] = hashed_words(observation["mission"].encode())
        return flat


def varies(space: Any) -> bool:
    """Whether a mission space holds more than one sentence."""
    placeholders = getattr(space, "ordered_placeholders", None)
    if placeholders is None:
        # BabyAI's spaces have no placeholders: they hold whatever its grammar makes.
        return type(space).__name__ != "MissionSpace"
    return any(len(choices) > 1 for choices in placeholders)


def _at_goal(env: gym.Env) -> bool:
    inner: Any = env.unwrapped
    under = inner.grid.get(*inner.agent_pos)
    return under is not None and under.type == "goal"


def _door_is_open(env: gym.Env) -> bool:
    inner: Any = env.unwrapped
    return any(thing is not None and thing.type == "door" and thing.is_open for thing in inner.grid.grid)


_GOAL = Goal(
    "goal",
    "a red triangle on the green square",
    "a red triangle in a grid of rooms",
    _at_goal,
    "a red triangle far from the green square",
    degree=states.nearness_to_goal,
)
_DOOR = Goal("door", "the door is open", "a grid of rooms", _door_is_open, "the door is closed")
_WITH_GOAL = ("Empty", "DoorKey", "FourRooms", "MultiRoom", "Crossing", "LavaGap", "DistShift")
_WITH_DOOR = ("DoorKey", "MultiRoom", "Unlock", "KeyCorridor", "LockedRoom")


def _goals(spec: EnvSpec) -> list[Goal]:
    goals = []
    if any(word in spec.id for word in _WITH_GOAL):
        goals.append(_GOAL)
    if any(word in spec.id for word in _WITH_DOOR):
        goals.append(_DOOR)
    return goals


_AIMS = {  # by the beginning of the name; the first that fits
    "Empty": "reach the green goal square",
    "DoorKey": "get the key, open the door and reach the green goal square",
    "FourRooms": "go through the gaps between the rooms and reach the green goal square",
    "MultiRoom": "open the doors from room to room and reach the green goal square",
    "LavaCrossing": "find the way through the lava without touching it and reach the green goal square",
    "LavaGap": "go through the gap in the lava without touching it and reach the green goal square",
    "DistShift": "go round the lava without touching it and reach the green goal square",
    "SimpleCrossing": "find the openings in the walls and reach the green goal square",
    "Dynamic-Obstacles": "reach the green goal square without running into a ball",
    "KeyCorridor": "open doors to find the key, unlock the locked door with it and pick up the ball behind it",
    "ObstructedMaze-1Dl-": "get the key, unlock the locked door and pick up the blue ball behind it",
    "ObstructedMaze": "open boxes to find keys, move balls out of the way, unlock the doors and pick up the blue ball",
    "UnlockPickup": "get the key, unlock the door and pick up the box behind it",
    "BlockedUnlockPickup": "move the ball away from the door, get the key, unlock the door and pick up the box",
    "Unlock": "get the key and unlock the door",
    "LockedRoom": "get the key from its room, unlock the locked door and reach the green goal square",
    "RedBlueDoors": "open the red door, then the blue door",
    "Memory": "see which thing is in the first room, and go to the same thing at the end of the corridor",
    "PutNear": "pick up the thing that the mission names and put it down near the other one that it names",
    "Fetch": "pick up the thing that the mission names, and no other",
    "GoTo": "go to the thing or the door that the mission names",
}


def _aim(spec: EnvSpec) -> str:
    name = spec.name.partition("-")[2]
    return next((aim for begin, aim in _AIMS.items() if f"{name}-".startswith(begin)), "do what the mission says")


FAMILY = Family(
    name="minigrid",
    description="MiniGrid and BabyAI: grid worlds with keys, doors and missions in words",
    ids=(
        "MiniGrid-Empty-8x8-v0",
        "MiniGrid-DoorKey-5x5-v0",
        "MiniGrid-DoorKey-8x8-v0",
        "MiniGrid-DoorKey-16x16-v0",
        "MiniGrid-KeyCorridorS3R1-v0",
        "MiniGrid-KeyCorridorS3R2-v0",
        "MiniGrid-KeyCorridorS3R3-v0",
        "MiniGrid-MultiRoom-N2-S4-v0",
        "MiniGrid-MultiRoom-N4-S5-v0",
        "MiniGrid-MultiRoom-N6-v0",
        "MiniGrid-ObstructedMaze-1Dlh-v0",
        "MiniGrid-ObstructedMaze-2Dlh-v0",
        "MiniGrid-LavaCrossingS9N1-v0",
        "MiniGrid-FourRooms-v0",
        "MiniGrid-Unlock-v0",
        "MiniGrid-UnlockPickup-v0",
        "BabyAI-GoToRedBall-v0",
        "BabyAI-GoToObj-v0",
    ),
    knows=lambda spec: entry(spec).startswith("minigrid."),
    module="minigrid",
    adapt=GridObservation,
    options=frozenset({"mission", "captions", "chatter", "varied"}),
    caption=caption,
    goals=_goals,
    aim=_aim,
    signals=signals,
    sense=sense,
    scatter=states.scatter_grid,
    success=lambda env, episode_return, terminated, info: episode_return > 0,
)
