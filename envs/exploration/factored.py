"""Environments whose parts change by separate rules, so that what was learnt in one episode holds in every other.

    lodestar/ProcMaze-v0     a new maze, start and goal in every episode: find the way
    lodestar/ButtonGrid-v0   three buttons in new places in every episode: light all of them

What they test: whether a model helps. The same few rules (a wall stops, a press turns a light) hold in more levels than
a run can visit; an agent that only replays has to learn the value of every combination.

Source: after the descriptions of ProcMaze and ButtonGrid in Young et al. 2023, arXiv 2211.02222. Differences: walls are
thin, between cells, and mazes are drawn uniformly from all spanning trees; a button is pressed by an action of its own;
only the end is rewarded, with 1.

Observations are planes of cells, row by row, float32 of 0 and 1, one plane after another.
"""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np

from envs.exploration.family import AGENT, FLOOR_RGB, TREASURE, WALL_RGB, CellWorld, at_least, enlarge
from envs.family import Family, aims_of, class_name, simulator
from envs.types import EnvStep, Notes

MOVE_LEFT, MOVE_RIGHT, MOVE_UP, MOVE_DOWN, PRESS_BUTTON = range(5)
# A button that is off, in pictures.
DARK = (170, 120, 110)


class ProcMaze(CellWorld):
    """A maze of size x size cells without loops, size at least 2; start and goal are two different cells.

    Reaching the goal is rewarded with 1, terminates and succeeds; every other reward is 0. An episode lasts 100 steps
    at most. Actions: 0 left, 1 right, 2 up, 3 down; a wall stops the agent.

    Observation, float32 (4 * size * size,): wall to the right of each cell, wall below it, the agent, the goal.
    """

    STATE = ("walls", "agent", "goal")

    def __init__(self, size: int = 5, render_mode: str | None = None) -> None:
        at_least(size=(size, 2))
        self._setup(render_mode, 4 * size * size, 4)
        self.size = size
        # Axes: to the right of a cell or below it; cell.
        self.walls = np.ones((2, size * size), bool)
        self.agent = 0
        self.goal = 0

    def _begin(self) -> None:
        self.walls = maze(self.size, self.np_random)
        self.agent, self.goal = self.np_random.choice(self.size**2, 2, replace=False).tolist()

    def step(self, action: Any) -> EnvStep:
        # A wall to the left or above belongs to the cell before; index -1 is a cell at the edge.
        back = (1, 0, self.size, 0)[action]
        if not self.walls[int(action >= MOVE_UP), self.agent - back]:
            self.agent += (-1, 1, -self.size, self.size)[action]
        arrived = self.agent == self.goal
        return self._obs(), float(arrived), arrived, False, {}

    def _picture(self) -> np.ndarray:
        n = self.size
        # Odd lines of the plan are cells, even ones the walls between them.
        plan = np.full((2 * n + 1, 2 * n + 1, 3), WALL_RGB, np.uint8)
        open_right, open_below = ~self.walls.reshape(2, n, n)
        plan[1::2, 1::2] = FLOOR_RGB
        plan[1::2, 2::2][open_right] = FLOOR_RGB
        plan[2::2, 1::2][open_below] = FLOOR_RGB
        for cell, colour in ((self.goal, TREASURE), (self.agent, AGENT)):
            y, x = divmod(cell, n)
            plan[2 * y + 1, 2 * x + 1] = colour
        return enlarge(plan)

    def _obs(self) -> np.ndarray:
        obs = np.zeros((4, self.size**2), np.float32)
        obs[:2] = self.walls
        obs[2, self.agent] = 1.0
        obs[3, self.goal] = 1.0
        return obs.ravel()


class ButtonGrid(CellWorld):
    """Buttons in different cells of a grid, all dark at first; a press turns the light of the button underfoot.

    The step after which every button is lit is rewarded with 1, terminates and succeeds; every other reward is 0. An
    episode lasts 100 steps at most. Actions: 0 left, 1 right, 2 up, 3 down, 4 press.

    Observation, float32 (3 * size * size,): the agent, the buttons, those that are lit.
    """

    STATE = ("agent", "buttons", "lit")

    def __init__(self, size: int = 5, buttons: int = 3, render_mode: str | None = None) -> None:
        at_least(size=(size, 2), buttons=(buttons, 1))
        if buttons >= size**2:
            raise ValueError(f"buttons={buttons} leave no cell to start from; give at most {size**2 - 1}")
        self._setup(render_mode, 3 * size * size, 5)
        self.size = size
        self.leads = next_cells(edges(size))
        self.agent = 0
        self.buttons = np.arange(1, buttons + 1)
        self.lit = np.zeros(buttons, bool)

    def _begin(self) -> None:
        cells = self.np_random.choice(self.size**2, len(self.buttons) + 1, replace=False)
        self.agent = int(cells[0])
        self.buttons = cells[1:]
        self.lit = np.zeros(len(self.buttons), bool)

    def step(self, action: Any) -> EnvStep:
        if action == PRESS_BUTTON:
            self.lit = self.lit ^ (self.buttons == self.agent)
        else:
            self.agent = int(self.leads[self.agent, action])
        finished = bool(self.lit.all())
        return self._obs(), float(finished), finished, False, {}

    def _picture(self) -> np.ndarray:
        plan = np.full((self.size**2, 3), FLOOR_RGB, np.uint8)
        plan[self.buttons] = np.where(self.lit[:, None], TREASURE, DARK)
        picture = enlarge(plan.reshape(self.size, self.size, 3))
        side = len(picture) // self.size
        row, column = divmod(self.agent, self.size)
        y = side * row + side // 4
        x = side * column + side // 4
        # The agent fills half of its cell, so that the button underfoot stays in sight.
        picture[y : y + side // 2, x : x + side // 2] = AGENT
        return picture

    def _obs(self) -> np.ndarray:
        obs = np.zeros((3, self.size**2), np.float32)
        obs[0, self.agent] = 1.0
        obs[1, self.buttons] = 1.0
        obs[2, self.buttons] = self.lit
        return obs.ravel()


def edges(size: int) -> np.ndarray:
    """Walls around a grid and nowhere in it, bool (2, size * size): to the right of each cell, below it."""
    walls = np.zeros((2, size, size), bool)
    walls[0, :, -1] = True
    walls[1, -1] = True
    return walls.reshape(2, -1)


def maze(size: int, rng: np.random.Generator) -> np.ndarray:
    """Walls of a maze, as `edges`, uniform among spanning trees, by a random walk (Aldous 1990, Broder 1989)."""
    walls = np.ones((2, size * size), bool)
    ways = next_cells(edges(size))
    # The walk goes on until it has been everywhere; the first step into a cell opens the wall.
    cell = 0
    visited = {0}
    while len(visited) < size * size:
        for action in rng.integers(4, size=16 * size * size).tolist():
            next_cell = int(ways[cell, action])
            if next_cell not in visited:
                visited.add(next_cell)
                walls[int(action >= MOVE_UP), min(cell, next_cell)] = False
            cell = next_cell
    return walls


def next_cells(walls: np.ndarray) -> np.ndarray:
    """(cell, action) -> cell, int64 (size * size, 4), for walls (2, size * size) that include the edges."""
    right, below = walls
    cells = np.arange(len(right))
    size = round(len(right) ** 0.5)
    # Index -1 wraps around to a cell at the edge, whose wall stops the agent as it should.
    blocked = np.stack([right[cells - 1], right, below[cells - size], below], 1)
    return np.where(blocked, cells[:, None], cells[:, None] + [-1, 1, -size, size])


def distances(ways: np.ndarray, ends: Any) -> np.ndarray:
    """Least number of steps from every state to one of `ends`, int64 (S,), -1 without a way; `ways` (S, A) lead on."""
    distance = np.full(len(ways), -1)
    distance[ends] = 0
    for step in itertools.count(1):
        leads_to_known = (distance[ways] >= 0).any(1)
        frontier = (distance < 0) & leads_to_known
        if not frontier.any():
            break
        distance[frontier] = step
    return distance


def _caption(env: gym.Env, memory: Notes) -> str:
    inner = simulator(env)
    row, column = divmod(inner.agent, inner.size)
    here = f"the agent is in row {row + 1}, column {column + 1} of {inner.size}"
    if isinstance(inner, ProcMaze):
        row, column = divmod(inner.goal, inner.size)
        return f"{here}; the goal is in row {row + 1}, column {column + 1}"
    return f"{here}; {int(inner.lit.sum())} of {len(inner.lit)} buttons are lit"


FACTORED_FAMILY = Family(
    name="factored",
    description="mazes and buttons in ever new places, where a model of the world should help",
    ids=("lodestar/ProcMaze-v0", "lodestar/ButtonGrid-v0"),
    entries=("envs.exploration.factored:",),
    caption=_caption,
    aim=aims_of("factored", class_name),
    success=lambda env, episode_return, terminated, info: terminated,
)
