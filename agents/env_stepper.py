"""Environments for agents that learn between single steps: actions as vectors in, transitions with true successors out.

steps = Steps(envs, seed)
steps.begin()                       resets once; afterwards the episodes go on where they stand
batch = steps.step(actions, codec)  one step of N environments
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from torch import Tensor

from agents.networks.space_encoding import SpaceEncoding
from envs.finite import OnNan, refuse
from envs.transitions import Cursor, from_vector_step, modalities_of
from envs.types import Obs, Transitions, map_obs

WINDOW = 100  # episodes that mean returns look back on


class Steps:
    """Where N environments stand, and the account of their episodes.

    Args:
        envs: a `gymnasium.vector.VectorEnv` that resets by itself.
        seed: of the first reset.
        scorer: what pays; it says what becomes of rewards that are no numbers.

    Attributes:
        obs: (N, ...) what to act on next, copied.
        step_index: int64 (N,), its step within the episode.
        began: bool (N,), whether it begins an episode: where an agent with a memory empties it.
        episodes: return and length {"r", "l"} of the last 100; successes: 0 or 1, where somebody says so.

    Raises:
        ValueError: for environments that leave resets to their caller, or keep their arrays on a GPU.
    """

    def __init__(self, envs: Any, seed: int, scorer: Any = None) -> None:
        self.mode = envs.metadata.get("autoreset_mode")
        if self.mode not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(
                f'{envs} declares metadata["autoreset_mode"]={self.mode!r}; it must reset its environments itself, in '
                "SAME_STEP mode (or NEXT_STEP, which spends a step on it)"
            )
        if getattr(getattr(envs, "arrays", None), "is_torch", False):
            raise ValueError(f"{envs} keeps its arrays in torch, which this agent does not read; use agent=ppo")
        self.envs, self.seed, self.n = envs, seed, envs.num_envs
        self.on_nan = getattr(scorer, "on_nan", None) or OnNan()
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
        self.cursor.begin(modalities_of(infos))
        return True

    def step(self, actions: Tensor, encoding: SpaceEncoding) -> Transitions:
        """One step with actions (N, A), as `encoding` encodes them.

        Raises:
            FloatingPointError: if an environment gives a number that is none, or the policy an action.
        """
        taken = encoding.decode(actions.detach().cpu().numpy())
        refuse({"action": taken}, self.cursor.step, {"obs": self.obs, "action": taken})
        obs, rewards, terminations, truncations, infos = self.envs.step(taken)
        before, self.obs = self.obs, map_obs(np.array, obs)
        step = (self.obs, np.array(terminations, bool), np.array(truncations, bool), infos)
        batch = from_vector_step(
            self.cursor, self.mode, before, taken, self.on_nan(np.array(rewards, np.float32)), *step
        )
        kept = {name: getattr(batch, name) for name in ("obs", "action", "reward", "next_obs")}
        refuse({"reward": batch.reward, "observation": batch.next_obs}, batch.step, kept)
        self._count(batch, infos)
        return batch

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
