"""A world in which the observation decides the action, so that every way of running it visits the same transitions.

Episodes last three to seven steps; those with an even number terminate, the others run out of time. Frames, texts and
signals say where the world stands, so a reward that is handed the wrong one notices.
"""

from __future__ import annotations

import functools
import json
import tempfile

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envs.recording import episodes, record, save

FRAME = 64


class ScriptedWorld(gym.Env):
    observation_space = spaces.Box(-2, 100, (4,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, index: int = 0, frame_size: int = FRAME) -> None:
        self.index, self.frame_size, self.episode, self.k = index, frame_size, -1, 0

    def _look(self):
        obs, info = moment(self.index, self.episode, self.k, self.frame_size)
        return obs.copy(), {**info, "frame": info["frame"].copy(), "signals": info["signals"].copy()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.k = self.episode + 1, 0
        return self._look()

    def step(self, action):
        assert action == script(np.array([[self.k, self.episode, self.index, 0]]))[0]
        self.k += 1
        last = self.k >= 3 + (7 * self.episode + self.index) % 5
        obs, info = self._look()
        terminated = bool(last and self.episode % 2 == 0)
        return obs, float(np.cos(self.k * action)), terminated, bool(last and not terminated), info


@functools.cache
def moment(index: int, episode: int, k: int, frame_size: int):
    """What a world shows at a step: tests visit the same ones by every way of running a reward."""
    obs = np.array([k, episode, index, np.sin(k + episode)], np.float32)
    rng = np.random.default_rng([index, episode + 1, k])
    small = rng.integers(0, 255, (8, 8, 3), np.uint8)
    frame = np.kron(small, np.ones((frame_size // 8, frame_size // 8, 1), np.uint8))
    text = f"world {index}, episode {episode}, step {k}"
    speed, offset, heading = 20 + 10 * obs[3], rng.normal(), rng.normal() / 2
    car = (speed, offset, heading, 1, k == 5, k / 7, 50, 0.5, 30)  # as in envs.driving.vehicle
    return obs, {"frame": frame, "text": text, "signals": np.array(car, np.float32)}


def script(obs: np.ndarray) -> np.ndarray:
    """The action for each observation (N, 4)."""
    obs = np.asarray(obs)
    return ((3 * obs[:, 0] + obs[:, 1] + obs[:, 2]) % 3).astype(np.int64)


@functools.cache
def demonstrations() -> str:
    """A recording of four episodes, with frames, in a folder that lives as long as the tests."""
    file = f"{_FOLDER.name}/demonstrations.safetensors"
    batch = record(ScriptedWorld(), lambda obs, begins: script(obs), steps=24, seed=0)
    save(file, batch[: episodes(batch)[4].start], {"env": "ScriptedWorld-v0"})
    return file


@functools.cache
def labels() -> str:
    """A file of labels: the third step of every episode is worth reaching."""
    file = f"{_FOLDER.name}/labels.jsonl"
    texts = [(f"world {i}, episode {episode}, step {k}", k) for i in range(3) for episode in range(8) for k in range(8)]
    with open(file, "w") as lines:
        lines.writelines(json.dumps({"text": text, "value": float(k == 3)}) + "\n" for text, k in texts)
    return file


@functools.cache
def coded() -> str:
    """A file with reward code of one component, for observations of any size."""
    file = f"{_FOLDER.name}/reward.py"
    with open(file, "w") as lines:
        lines.write('def reward(obs, action, next_obs):\n    return {"first": next_obs[:, 0] + action[:, 0]}\n')
    return file


@functools.cache
def staged() -> str:
    """A file with two stages, for observations of any size."""
    file = f"{_FOLDER.name}/stages.py"
    with open(file, "w") as lines:
        lines.write('def stages(next_obs):\n    return {"half": next_obs[:, 0] > 2, "rest": next_obs[:, 0] / 4}\n')
    return file


@functools.cache
def tabled(size: int = 4, actions: int = 3) -> str:
    """A file with a reward of two states for each action, for observations of so many numbers."""
    file = f"{_FOLDER.name}/table-{size}-{actions}.json"
    with open(file, "w") as lines:
        rewards = [[float(action) for action in range(actions)], [-1.0] * actions]
        json.dump({"states": [[0.0] * size, [3.0] * size], "rewards": rewards}, lines)
    return file


# Principles of the captions of ScriptedWorld.
JUDGED = "2: A third step. | step 3; Begun. | episode 1"
_FOLDER = tempfile.TemporaryDirectory()
gym.register("ScriptedWorld-v0", entry_point=ScriptedWorld)
