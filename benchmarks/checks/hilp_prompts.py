"""Any reward as a prompt of one policy: does a plan over the recording earn what IQL earns that was trained for it?

    python -m benchmarks hilp_prompts

HILP learns phi and its policy from aimless recordings without rewards (`benchmarks.checks.hilp`, same settings), and is
then prompted by a reward (`runners.run.prompt`). Worlds: `rooms`, the two rooms of that check, 1 in the cell of the
last corner; `zigzag`, a corridor with six turns, 1 at its end and 0.3 at its beginning; `pendulum`, Pendulum-v1 with
its own reward, 150 random episodes. In mazes the mean reward of 100 steps from 200 starts counts, on the pendulum the
mean return of 20 episodes, both as shares between random actions (0) and IQL trained on the reward for as many
minibatches (1). Arms:

    prompt      the plan's prompt
    untrained   the same on a phi of one minibatch, and a policy learned on it
    shuffled    the plan for the same rewards, each moved to another transition
    direction   the source's prompt: the one z that fits the rewards best by least squares

Beside them, in the mazes, goals: the share of 20 goals that 20 starts each come within half a cell of in 100 steps,
with a plan (`goal`), and with the direction to the goal alone (`straight`).

Seeds 0 to 99 are for tuning: length of segments and number of regions were chosen on seed 50, in the two rooms and on
the pendulum (with actions that are repeated, which explore more). No policy was learned in `zigzag` before the first
run, but for a test of five minibatches. Pilots on seed 51:

    pendulum    prompt 0.33, untrained -0.05, shuffled -0.20, direction -0.35
    rooms       prompt 0.91, untrained 0.94, shuffled 0.04, direction -0.05; goals 1.00, straight 0.89

So the plan may do without a learned phi in small mazes, which has a verdict of its own (`hilp_learned_space`). Verdicts
stand in effects.yaml, written before the run on seeds 100 to 104. Estimate: 20 core-minutes.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from agents.offline.hilp import HILP, HILPConfig, on_sphere
from agents.offline.iql import IQL, IQLConfig
from benchmarks import results
from benchmarks.checks import hilp
from envs.recording import episodes, record
from envs.transitions import Transitions
from rewards.demonstrations.hilp import Hilbert, HilpConfig
from runners.evaluation.play import play, policy
from runners.run.prompt import set_prompt

SEEDS = range(100, 105)
ZIGZAG = (".......", "######.", ".......", ".######", ".......", "######.", ".......")
ZIGZAG_REWARDS = {(0, 0): 0.3, (6, 0): 1.0}
ROOMS_REWARDS = {(6, 6): 1.0}
PENDULUM = "Pendulum-v1"
PENDULUM_STEPS = 30_000
PENDULUM_EPISODES = 20
GOALS = 20
STARTS_A_GOAL = 20
ARMS = ("prompt", "untrained", "shuffled", "direction")
GOAL_ARMS = ("goal", "straight")
Spaces = tuple[gym.Space, gym.Space]


class Maze:
    """A point in a maze, as in `hilp`, with rewards (row, column) -> worth of being in a cell."""

    spaces: Spaces = hilp.SPACES

    def __init__(self, rows: tuple[str, ...], worth: dict[tuple[int, int], float]) -> None:
        self.free = np.array([[sign == "." for sign in row] for row in rows])
        self.worth = np.zeros(self.free.shape)
        for cell, value in worth.items():
            self.worth[cell] = value

    def reward(self, place: np.ndarray) -> np.ndarray:
        """Of places (M, 2) in cells, (M,)."""
        return self.worth[tuple(hilp.cell(place).T)]

    def data(self, seed: int) -> Transitions:
        batch = hilp.walks(np.random.default_rng(seed), self.free)
        # The place in cells that an observation shows, off by less than its rounding.
        place = (batch.next_obs + 1) / 2 * hilp.SIDE
        return batch.replace(reward=self.reward(place.clip(0, hilp.SIDE - 1e-4)).astype(np.float32))

    def earn(self, model: IQL | None, seed: int) -> float:
        """The mean reward of a step."""
        starts = hilp.anywhere(np.random.default_rng(1000 + seed), hilp.PAIRS, self.free)
        places = np.concatenate(self.walk(model, starts, seed))
        return float(self.reward(places).mean())

    def reach(self, model: IQL, goal: np.ndarray, seed: int) -> float:
        """The share of starts that come near a goal (2,), in cells."""
        starts = hilp.anywhere(np.random.default_rng(1000 + seed), STARTS_A_GOAL, self.free)
        places = np.stack(self.walk(model, starts, seed))
        distances = np.linalg.norm(places - goal, axis=2)
        return float((distances.min(axis=0) <= hilp.NEAR).mean())

    def walk(self, model: IQL | None, place: np.ndarray, seed: int) -> list[np.ndarray]:
        """Places (M, 2) after each step of a policy; of random actions without one."""
        rng = np.random.default_rng(2000 + seed)
        places = []
        for _ in range(hilp.TIME):
            action = rng.integers(4, size=len(place))
            if model is not None:
                action = model.predict(hilp.seen(place))[0]
            place = hilp.moved(place, action, rng, self.free)
            places.append(place)
        return places


class Pendulum:
    """Pendulum-v1 with its own reward."""

    def __init__(self) -> None:
        with closing(gym.make(PENDULUM)) as env:
            self.spaces: Spaces = (env.observation_space, env.action_space)

    def data(self, seed: int) -> Transitions:
        with closing(gym.make(PENDULUM)) as env:
            env.action_space.seed(seed)
            return record(env, None, PENDULUM_STEPS, seed)

    def earn(self, model: IQL | None, seed: int) -> float:
        """The mean return."""
        act = None if model is None else policy(model)
        return float(np.mean(play(PENDULUM, act, PENDULUM_EPISODES, seed=seed).returns))


WORLDS: dict[str, Maze | Pendulum] = {
    "rooms": Maze(hilp.ROOMS, ROOMS_REWARDS),
    "zigzag": Maze(ZIGZAG, ZIGZAG_REWARDS),
    "pendulum": Pendulum(),
}


def run(folder: Path) -> dict[str, float]:
    """Run what has no row; IQM over worlds and seeds, of the prompt in each world, too, and intervals."""
    path = folder / "hilp_prompts.csv"
    for seed in SEEDS:
        for world in WORLDS:
            if results.lacks_row(path, world=world, seed=seed):
                results.append_rows(path, [{"world": world, "seed": seed, **measure(world, seed)}])
    rows = results.read_rows(path)
    figures: dict[str, float] = {}
    for arm in ARMS:
        figures |= summarise(f"hilp_{arm}_return", rows, arm)
    for world in WORLDS:
        of_world = [row for row in rows if row["world"] == world]
        for arm in ("prompt", "untrained"):
            figures |= summarise(f"hilp_{arm}_{world}", of_world, arm)
    for arm in GOAL_ARMS:
        figures |= summarise(f"hilp_{arm}_reached", rows, arm)
    return figures


def summarise(key: str, rows: list[dict[str, Any]], column: str) -> dict[str, float]:
    """IQM and interval of a column where it is not empty."""
    return results.summary(key, [float(row[column]) for row in rows if row[column]])


def measure(name: str, seed: int, steps: int = hilp.STEPS) -> dict[str, Any]:
    """A row: shares of the arms, what random actions and IQL earn, and goals, empty where there are none."""
    torch.set_num_threads(1)
    world = WORLDS[name]
    data = world.data(seed)
    learned = learn(world, data, seed, steps, steps)
    earned = {"prompt": prompt(world, learned, data, seed)}
    untrained = learn(world, data, seed, steps, 1)
    earned["untrained"] = prompt(world, untrained, data, seed)
    shuffled_reward = np.random.default_rng(seed).permutation(data.reward)
    earned["shuffled"] = prompt(world, learned, data.replace(reward=shuffled_reward), seed)
    earned["direction"] = prompt_direction(world, learned, data, seed)
    iql = IQL(IQLConfig(**hilp.LEARN), *world.spaces, data, seed=seed)
    iql.learn(steps)
    ends = {"random": world.earn(None, seed), "iql": world.earn(iql, seed)}
    # From random actions, 0, to IQL, 1.
    span = ends["iql"] - ends["random"]
    row: dict[str, Any] = {}
    for arm, value in earned.items():
        row[arm] = round((value - ends["random"]) / span, 4)
    for end, value in ends.items():
        row[end] = round(value, 4)
    row |= dict.fromkeys(GOAL_ARMS, "")
    if isinstance(world, Maze):
        row |= reach_goals(world, learned, data, seed)
    return row


def learn(world: Maze | Pendulum, data: Transitions, seed: int, steps: int, phi_steps: int) -> HILP:
    """The policy of `hilp`, on a phi of so many minibatches."""
    config = HilpConfig(steps=phi_steps, follow=0.05)
    hilbert = Hilbert.from_episodes(data.obs, data.next_obs, episodes(data), config, seed, "cpu")
    model = HILP(HILPConfig(**hilp.LEARN | hilp.SKILLS), *world.spaces, data, hilbert.phi, seed=seed)
    model.learn(steps)
    return model


def prompt(world: Maze | Pendulum, model: HILP, data: Transitions, seed: int) -> float:
    """What the policy earns for the rewards of the data."""
    set_prompt(model, "task", {}, data, world.spaces)
    return world.earn(model, seed)


def prompt_direction(world: Maze | Pendulum, model: HILP, data: Transitions, seed: int) -> float:
    """What it earns in the one direction that fits the rewards best."""
    move = model.phi(data.next_obs) - model.phi(data.obs)
    centred = data.reward - data.reward.mean(dtype=np.float64)
    fitted = np.linalg.lstsq(move, centred, rcond=None)[0].astype(np.float32)
    z = on_sphere(torch.from_numpy(fitted)).numpy()
    model.prompt = lambda obs: np.broadcast_to(z, (len(obs), len(z)))
    return world.earn(model, seed)


def to_goal(model: HILP, goal: np.ndarray, obs: np.ndarray) -> np.ndarray:
    """The directions (M, d) from observations (M, 2) to a goal (1, d)."""
    return on_sphere(torch.from_numpy(goal - model.phi(obs))).numpy()


def reach_goals(world: Maze, model: HILP, data: Transitions, seed: int) -> dict[str, float]:
    """The share of goals reached with a plan, and without."""
    places = hilp.anywhere(np.random.default_rng(5000 + seed), GOALS, world.free)
    shares = np.zeros((GOALS, len(GOAL_ARMS)))
    for i, place in enumerate(places):
        goal = hilp.seen(place[None])
        set_prompt(model, "goal", {"place": goal[0].tolist()}, data, world.spaces)
        shares[i, 0] = world.reach(model, place, seed)
        model.prompt = partial(to_goal, model, model.phi(goal))
        shares[i, 1] = world.reach(model, place, seed)
    return dict(zip(GOAL_ARMS, shares.mean(0).round(4).tolist()))
