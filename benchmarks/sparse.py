"""Sparse worlds for the studies `rlpd` and `imitation`, the demonstrations of the first, and the control of the second.

env=benchmarks.sparse:Slot-v0 agent.demos=benchmarks/studies/slot.safetensors
env=benchmarks.sparse:Treasure-v0 agent=benchmarks.sparse:Shuffled agent.imitate=1
python -m benchmarks.sparse         writes the demonstrations and the snapshots of the study `snapshots` again
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from agents.ppo.agent import PPO
from agents.ppo.plugins.imitate import Imitation
from envs.types import EnvReset, EnvStep

STUDIES = Path(__file__).parent / "studies"
DEMOS = STUDIES / "slot.safetensors"
WIDE, DEEP, SPEED = 0.02, 0.2, 0.1  # half the slot's width, its depth, and how far a step moves at most
STEPS = 50
GRID = [
    "#########",
    "#S.a.#..#",
    "#....#..#",
    "#....#..#",
    "#.a..D..#",
    "#....#..#",
    "#....#..#",
    "#K...#.T#",
    "#########",
]
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))


class Slot(gym.Env):
    """Put the tip of a peg to the bottom of a slot, which lies elsewhere in each episode: 1 there, and the end.

    Observation, float32 (4,): the tip's place, how high above the plate, where the slot is, and how far to its side.
    Actions: where to move, [-1, 1]^2 times 0.1. Touching the plate beside the slot is the end; its walls hold the tip.
    """

    observation_space = gym.spaces.Box(-2.0, 2.0, (4,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        self.slot = self.np_random.uniform(-0.8, 0.8)
        self.tip = np.array([self.np_random.uniform(-0.8, 0.8), 0.8])
        return self._obs(), {}

    def step(self, action: Any) -> EnvStep:
        x, y = np.clip(self.tip + SPEED * np.clip(action, -1, 1), [-1, -DEEP], 1)
        if self.tip[1] < 0:
            x = np.clip(x, self.slot - WIDE, self.slot + WIDE)
        failed = bool(y < 0 and abs(x - self.slot) > WIDE)
        self.tip = np.array([x, y])
        deep = bool(y <= -DEEP and not failed)
        return self._obs(), float(deep), deep or failed, False, {"is_success": deep}

    def _obs(self) -> np.ndarray:
        return np.array([*self.tip, self.slot, self.tip[0] - self.slot], np.float32)


class Treasure(gym.Env):
    """Take the key (0.1), open the door (0.2), reach the treasure (1), which is the end. Two apples of 0.1 lie nearer.

    Observation, float32 (22,): row and column, one-hot; which of key, apples are taken, and the door open.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (22,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvReset:
        super().reset(seed=seed)
        self.place, self.left = (1, 1), {(7, 1): 0.1, (1, 3): 0.1, (4, 2): 0.1, (4, 5): 0.2, (7, 7): 1.0}
        return self._obs(), {}

    def step(self, action: Any) -> EnvStep:
        row, column = (a + b for a, b in zip(self.place, MOVES[int(action)]))
        what = GRID[row][column]
        if what != "#" and (what != "D" or (7, 1) not in self.left):
            self.place = row, column
        found = self.left.pop(self.place, 0.0)
        done = (7, 7) not in self.left
        return self._obs(), found, done, False, {"is_success": done}

    def _obs(self) -> np.ndarray:
        obs = np.zeros(22, np.float32)
        obs[[self.place[0], 9 + self.place[1]]] = 1
        obs[18:] = [place not in self.left for place in ((7, 1), (1, 3), (4, 2), (4, 5))]
        return obs


gym.register("Slot-v0", "benchmarks.sparse:Slot", max_episode_steps=STEPS)
gym.register("Treasure-v0", "benchmarks.sparse:Treasure", max_episode_steps=100)


class ShuffledImitation(Imitation):
    """Self-imitation with the returns of its rows dealt out at random."""

    def _score(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        reward, worth = super()._score(rows)
        return reward, self.rng.permutation(worth)


class Shuffled(PPO):
    """PPO with `ShuffledImitation`: the control."""

    def _set_up(self) -> None:
        super()._set_up()
        if self.config.imitate:
            shuffled = ShuffledImitation(self)
            self.extensions.imitation = shuffled
            self.extras = [shuffled]


def demonstrate() -> None:
    """Twenty scripted demonstrations, of which every second one aims beside the slot."""
    from envs.make import make
    from envs.recording import record, save

    rng, aim = np.random.default_rng(0), 0.0

    def act(obs: np.ndarray, begins: np.ndarray) -> np.ndarray:
        nonlocal aim
        x, y, slot, _ = obs[0]
        if begins[0]:
            aim = 0.0 if aim else float(rng.choice([-1, 1]) * rng.uniform(0.15, 0.4))
        away = slot + aim - x
        down = -1.0 if abs(away) < 0.8 * WIDE or y > 0.3 else 0.0
        noisy = np.array([[away / SPEED, down]]) + rng.normal(0, 0.3 if y > 0.3 else 0.1, (1, 2))
        return np.clip(noisy, -1, 1).astype(np.float32)

    batch = record(make("benchmarks.sparse:Slot-v0"), act, steps=5_000, seed=0)
    last = np.flatnonzero(batch.ended)[19] + 1
    save(DEMOS, batch[:last], {"env": "benchmarks.sparse:Slot-v0"})
    print(f"{last} transitions, {int(batch.reward[:last].sum())} of 20 succeed")


def teach() -> None:
    """Snapshots of five swing-ups by energy, of 200 steps, and of five episodes of random torques."""
    from envs.make import make
    from envs.snapshots.s3rl import record as snapshots

    def swing(obs: np.ndarray) -> np.ndarray:
        cosine, sine, speed = map(float, obs)
        energy = speed**2 / 6 + 5 * cosine  # kinetic and potential; 5 J upright and still
        near = cosine > 0.9
        return np.array([-20 * sine - 2 * speed if near else 2 * np.sign(speed) * (5 - energy)], np.float32).clip(-2, 2)

    env = make("lodestar/PendulumSparse-v0", seed=0)
    env.action_space.seed(0)
    for name, policy in (("taught", swing), ("untaught", lambda _: env.action_space.sample())):
        kept = snapshots(env, policy, episodes=5, seed=0)
        kept.save(STUDIES / f"{name}.safetensors")
        up = kept.observations[:, 0] > 0.95
        print(f"{name}: {len(up)} snapshots, {up.mean():.2f} of them up, in {len(kept.clusters(6))} clusters", end=": ")
        print(*(f"{len(rows)}, {up[rows].mean():.2f} up" for rows in kept.clusters(6)), sep="; ")


if __name__ == "__main__":
    demonstrate()
    teach()
