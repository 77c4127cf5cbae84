"""What embeds frames for the learner's rewards (CLIP, latents), in processes and on devices of their own.

A `RewardServer` takes the frames of whole rollouts as they come from actors, and embeds all that wait in one pass:
while it is busy the next batch grows. The embeddings stand for the frames from then on (`Reward.embedding`), so no
frame ever reaches the learner, where the mix scores and learns as in a local run. A server keeps nothing: one that is
lost is replaced, and embeds the same frames.
"""

import asyncio
import os
from typing import Any

import numpy as np

import rewards
from envs.transitions import Rollout, Transitions
from runners.run.config import TrainConfig

ROWS = 4096  # of one pass, at most; more wait for the next

Frames = np.ndarray  # uint8 (M, H, W, 3)


def seeing(mix: Any) -> dict[str, Any]:
    """The rewards of a mix that read frames, by name."""
    return {name: s.reward for name, s in mix.streams.items() if {"frame", "obs_frame"} & s.requires}


def embed(mix: Any, frames: Frames) -> dict[str, np.ndarray]:
    """Embeddings (M, D) by their names, of all rewards that read frames."""
    count = len(frames)
    no = np.zeros(count, bool)
    batch = Transitions(None, None, np.zeros(count, np.float32), None, no, no, ~no, np.zeros(count, np.int64), frames)
    known = {reward.embedding: reward for reward in seeing(mix).values()}
    return {key: reward.embed(batch) for key, reward in known.items()}


class RewardServer:
    """Embeds what waits, in one pass; its calls run side by side, its passes do not."""

    def make(self, config: TrainConfig, code: list[str], spaces: tuple[Any, Any], device: str) -> int:
        """Make the rewards, `code` of them the user's "module:Class"; returns the process's number."""
        import torch
        from stable_baselines3.common.utils import set_random_seed

        from rewards.adapters.guided import make_mix

        for source in code:
            rewards.table.name_of(source)
        torch.set_num_threads(config.num_threads)
        set_random_seed(config.seed)
        self.mix = make_mix(config.reward, *spaces, gamma=config.agent.gamma, seed=config.seed, device=device)
        self.waiting: list[tuple[Frames, asyncio.Future[Any]]] = []
        self.busy = False
        self.passes = self.rows = 0
        return os.getpid()

    async def embed(self, frames: Frames) -> dict[str, np.ndarray]:
        """The embeddings of frames, which wait until the pass before is over."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((frames, future))
        if not self.busy:
            self.busy = True
            try:
                while self.waiting:
                    await self._pass()
            finally:
                self.busy = False
        return await future

    async def _pass(self) -> None:
        taken: list[tuple[Frames, asyncio.Future[Any]]] = []
        count = 0
        while self.waiting and (not taken or count + len(self.waiting[0][0]) <= ROWS):
            taken.append(self.waiting.pop(0))
            count += len(taken[-1][0])
        frames = np.concatenate([one for one, _ in taken]) if len(taken) > 1 else taken[0][0]
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, embed, self.mix, frames)
        except Exception as error:
            for _, future in taken:
                future.set_exception(error)
            return
        self.passes, self.rows, start = self.passes + 1, self.rows + count, 0
        for one, future in taken:
            end = start + len(one)
            future.set_result({key: value[start:end] for key, value in found.items()})
            start = end

    async def counts(self) -> tuple[int, int]:
        """Passes and rows so far."""
        return self.passes, self.rows


class EmbeddedRollout(Rollout):
    """A rollout that has embeddings where others have frames: by name, of the observation in the same row."""

    def __init__(self, length: int, envs: Any, modality_names: frozenset[str] = frozenset()) -> None:
        super().__init__(length, envs, modality_names - {"frame"})
        self.embedded: dict[str, np.ndarray] = {}  # (T + 1, N, D)
        self.final_embedded: list[tuple[int, np.ndarray, dict[str, np.ndarray]]] = []  # time, columns, (M, D) by name

    def take(self, columns: slice, found: dict[str, np.ndarray], finals: list[tuple[int, np.ndarray]]) -> None:
        """Rows of `frames_of` a part: its T rows, then the last observations of episodes, at (time, columns)."""
        n = columns.stop - columns.start
        count = self.length * n
        for key, value in found.items():
            self._room(key, value)[1:, columns] = value[:count].reshape(self.length, n, -1)
        for t, where in finals:
            rows = {key: value[count : count + len(where)] for key, value in found.items()}
            self.final_embedded.append((t, where + columns.start, rows))
            count += len(where)

    def show(self, found: dict[str, np.ndarray]) -> None:
        """The embeddings (N, D) of the observations to act on first."""
        for key, value in found.items():
            self._room(key, value)[0] = value

    def _room(self, key: str, value: np.ndarray) -> np.ndarray:
        if key not in self.embedded:
            self.embedded[key] = np.zeros((self.length + 1, self.n, value.shape[1]), value.dtype)
        return self.embedded[key]

    def transitions(self, requires: frozenset[str]) -> Transitions:
        extras: dict[str, np.ndarray] = {}
        for key, value in self.embedded.items():
            extras[key] = value[1:].copy()
            if "obs_frame" in requires:
                extras[f"obs_{key}"] = value[:-1]
        for t, columns, rows in self.final_embedded:
            for key, value in rows.items():
                extras[key][t, columns] = value
        return super().transitions(requires - {"frame", "obs_frame"}).replace(extras=extras)

    def roll(self) -> None:
        super().roll()
        for value in self.embedded.values():
            value[0] = value[-1]
        self.final_embedded.clear()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"embedded": {key: value[0].copy() for key, value in self.embedded.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.show(state["embedded"])


def frames_of(part: dict[str, Any]) -> tuple[Frames, list[tuple[int, np.ndarray]]]:
    """Take the frames out of an actor's part: (T * n + M, H, W, 3), and where the M last ones belong."""
    frames = part["modalities"].pop("frame")
    last = [one for one in part["final_modalities"] if one[0] == "frame"]
    part["final_modalities"] = [one for one in part["final_modalities"] if one[0] != "frame"]
    return np.concatenate([frames.reshape(-1, *frames.shape[2:]), *(one[3] for one in last)]), [x[1:3] for x in last]
