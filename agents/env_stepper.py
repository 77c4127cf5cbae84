"""Environments for agents that learn between single steps: actions as vectors in, transitions with true successors out.

steps = Steps(envs, seed)
steps.begin()                       resets once; afterwards the episodes go on where they stand
batch = steps.step(actions, codec)  one step of N environments
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from torch import Tensor

from agents.base import Episodes
from agents.networks.space_encoding import SpaceEncoding
from envs.transitions import Cursor, from_vector_step, modalities_of
from envs.types import Obs, OnNan, Transitions, map_obs, refuse


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
        episodes: returns, lengths and successes of the last 100.

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
        self.episodes = Episodes(self.n)

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
        ended = batch.ended
        success = self._success(ended, infos) if ended.any() else None
        self.episodes.count(batch.reward[None], batch.valid[None], ended[None], success)
        return batch

    def _success(self, ended: np.ndarray, infos: Any) -> np.ndarray | None:
        """Success of the episodes that ended, (1, N), NaN where nothing is reported; None for nowhere."""
        given = infos.get("final_info", {}) if self.mode == AutoresetMode.SAME_STEP else infos
        if "is_success" not in given:
            return None
        return np.where(given.get("_is_success", ended), np.asarray(given["is_success"], np.float64), np.nan)[None]

    def state_dict(self) -> dict[str, Any]:
        """Where the environments stand; their own states are theirs to save."""
        return {"obs": self.obs, "cursor": self.cursor.state_dict(), **self.episodes.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.obs = None if state["obs"] is None else map_obs(np.array, state["obs"])
        self.cursor.load_state_dict(state["cursor"])
        self.episodes.load_state_dict(state)
