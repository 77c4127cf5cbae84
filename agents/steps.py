"""Environments for agents that learn between single steps: actions as vectors in, transitions with true successors out.

steps = Steps(envs, seed)
steps.begin()                       resets once; afterwards the episodes go on where they stand
batch = steps.step(actions, codec)  one step of N environments
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from torch import Tensor

from agents.codec import Codec
from envs.transitions import Cursor, from_vector_step, shown_by
from envs.types import Obs, Transitions, map_obs

WINDOW = 100  # episodes that mean returns look back on


class Steps:
    """Where N environments stand, and the account of their episodes.

    Args:
        envs: a `gymnasium.vector.VectorEnv` that resets by itself.
        seed: of the first reset.

    Attributes:
        obs: (N, ...) what to act on next, copied.
        step_index: int64 (N,), its step within the episode.
        began: bool (N,), whether it begins an episode: where an agent with a memory empties it.
        episodes: return and length {"r", "l"} of the last 100; successes: 0 or 1, where somebody says so.

    Raises:
        ValueError: for environments that leave resets to their caller, or keep their arrays on a GPU.
    """

    def __init__(self, envs: Any, seed: int) -> None:
        self.mode = envs.metadata.get("autoreset_mode")
        if self.mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(
                f'{envs} declares metadata["autoreset_mode"]={self.mode!r}; it must reset its environments itself, in '
                "SAME_STEP mode (or NEXT_STEP, which spends a step on it)"
            )
        if getattr(getattr(envs, "arrays", None), "is_torch", False):
            raise ValueError(f"{envs} keeps its arrays in torch, which this agent does not read; use agent=ppo")
        self.envs, self.seed, self.n = envs, seed, envs.num_envs
        self.obs: Obs = None
        self.cursor = Cursor(self.n)
        self.running = np.zeros((2, self.n))  # return and length of the running episodes
        self.episodes: deque[dict[str, float]] = deque(maxlen=WINDOW)
        self.successes: deque[float] = deque(maxlen=WINDOW)

    @property
    def step_index(self) -> np.ndarray:
        return self.cursor.step

    @property
    def began(self) -> np.ndarray:
        return self.cursor.step == 0

    def begin(self) -> bool:
        """Reset the environments the first time; whether that was done."""
        if self.obs is not None:
            return False
        obs, infos = self.envs.reset(seed=self.seed)
        self.obs = map_obs(np.array, obs)
        self.cursor.begin(shown_by(infos))
        return True

    def step(self, actions: Tensor, codec: Codec) -> Transitions:
        """One step with actions (N, A), as `codec` encodes them.

        Raises:
            FloatingPointError: if an environment gives a number that is none.
        """
        taken = codec.decode(actions.detach().cpu().numpy())
        obs, rewards, terminations, truncations, infos = self.envs.step(taken)
        before, self.obs = self.obs, map_obs(np.array, obs)
        step = (self.obs, np.array(terminations, bool), np.array(truncations, bool), infos)
        batch = from_vector_step(self.cursor, self.mode, before, taken, np.array(rewards, np.float32), *step)
        self._refuse_nonsense(batch, codec)
        self._count(batch, infos)
        return batch

    def _refuse_nonsense(self, batch: Transitions, codec: Codec) -> None:
        for name, value in (("reward", batch.reward), ("observation", codec.vector(batch.next_obs))):
            if math.isfinite(float(value.sum())) or np.isfinite(value).all():
                continue
            row = int(np.argwhere(~np.isfinite(value))[0][0])
            bad = value[row][~np.isfinite(value[row])].flat[0]
            raise FloatingPointError(
                f"environment {row} gave the {name} {bad} at step {batch.step[row]} of its episode (stream task); "
                "nothing has been learnt from it"
            )

    def _count(self, batch: Transitions, infos: Any) -> None:
        self.running += np.where(batch.valid, (batch.reward, np.ones(self.n)), 0.0)
        ended = batch.ended
        if not ended.any():
            return
        said = infos.get("final_info", {}) if self.mode == AutoresetMode.SAME_STEP else infos
        success = said.get("is_success")
        known = said.get("_is_success", ended) if success is not None else np.zeros(self.n, bool)
        for row in map(int, np.flatnonzero(ended & batch.valid)):  # a lost one does not count
            self.episodes.append({"r": float(self.running[0, row]), "l": int(self.running[1, row])})
            if known[row]:
                self.successes.append(float(success[row]))
        self.running[:, ended] = 0

    def state_dict(self) -> dict[str, Any]:
        """Where the environments stand; their own states are theirs to save."""
        return {
            "obs": self.obs,
            "cursor": self.cursor.state_dict(),
            "running": self.running.copy(),
            "episodes": list(self.episodes),
            "successes": list(self.successes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.obs = None if state["obs"] is None else map_obs(np.array, state["obs"])
        self.cursor.load_state_dict(state["cursor"])
        self.running = np.array(state["running"])
        for window, saved in ((self.episodes, state["episodes"]), (self.successes, state["successes"])):
            window.clear()
            window.extend(saved)
