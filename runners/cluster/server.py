"""What embeds frames for the learner's rewards (CLIP, latents), in processes and on devices of their own.

A `RewardServer` takes the frames of whole rollouts as they come from actors, and embeds all that wait in one pass:
while it is busy the next batch grows. The embeddings stand for the frames from then on (`Reward.embedding`), so no
frame ever reaches the learner, where the mix scores and learns as in a local run. A server keeps nothing: one that is
lost is replaced, and embeds the same frames.
"""

import asyncio
import os
from operator import itemgetter
from typing import Any

import numpy as np

import rewards
from envs.transitions import Rollout, Transitions
from envs.types import StateDict
from lodestar.mappings import take_rows
from runners.run.config import TrainConfig

# Frames of one pass, unless a single call brings more; the others wait for the next.
MAX_PASS_ROWS = 4096

# uint8 (M, H, W, 3)
Frames = np.ndarray
# Name -> (M, D)
Embeddings = dict[str, np.ndarray]


def frame_rewards(mix: Any) -> StateDict:
    """The rewards of a mix that read frames, by name."""
    fields = {"frame", "obs_frame"}
    return {name: stream.reward for name, stream in mix.streams.items() if fields & stream.requires}


def embed(mix: Any, frames: Frames) -> Embeddings:
    """Embeddings (M, D) by their names, of all rewards that read frames."""
    count = len(frames)
    never = np.zeros(count, bool)
    zeros = np.zeros(count, np.float32)
    # Only the frames of these transitions are read.
    batch = Transitions(None, None, zeros, None, never, never, ~never, np.zeros(count, np.int64), frames)
    # Rewards with the same model share an embedding.
    by_embedding = {reward.embedding: reward for reward in frame_rewards(mix).values()}
    return {name: reward.embed(batch) for name, reward in by_embedding.items()}


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
        return os.getpid()

    async def embed(self, frames: Frames) -> Embeddings:
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
        calls = [self.waiting.pop(0)]
        count = len(calls[0][0])
        while self.waiting and count + len(self.waiting[0][0]) <= MAX_PASS_ROWS:
            calls.append(self.waiting.pop(0))
            count += len(calls[-1][0])
        frames, *others = map(itemgetter(0), calls)
        if others:
            frames = np.concatenate([frames, *others])
        try:
            embeddings = await asyncio.get_running_loop().run_in_executor(None, embed, self.mix, frames)
        except Exception as error:
            for _, future in calls:
                future.set_exception(error)
            return
        start = 0
        for part, future in calls:
            rows = slice(start, start + len(part))
            future.set_result(take_rows(embeddings, rows))
            start = rows.stop


class EmbeddedRollout(Rollout):
    """A rollout that has embeddings where others have frames: by name, of the observation in the same row."""

    def __init__(self, length: int, envs: Any, modality_names: frozenset[str] = frozenset()) -> None:
        super().__init__(length, envs, modality_names - {"frame"})
        # (T + 1, N, D) by name.
        self.embedded: Embeddings = {}
        # Of the last observations of episodes: time, columns, (M, D) by name.
        self.final_embedded: list[tuple[int, np.ndarray, Embeddings]] = []

    def take(self, columns: slice, embeddings: Embeddings, finals: list[tuple[int, np.ndarray]]) -> None:
        """Rows of `frames_of` a part: its T rows, then the last observations of episodes, at (time, columns)."""
        n = columns.stop - columns.start
        count = self.length * n
        for name, value in embeddings.items():
            self._array_for(name, value)[1:, columns] = value[:count].reshape(self.length, n, -1)
        for t, envs in finals:
            rows = slice(count, count + len(envs))
            values = take_rows(embeddings, rows)
            self.final_embedded.append((t, envs + columns.start, values))
            count = rows.stop

    def show(self, embeddings: Embeddings) -> None:
        """The embeddings (N, D) of the observations to act on first."""
        for name, value in embeddings.items():
            self._array_for(name, value)[0] = value

    def _array_for(self, name: str, value: np.ndarray) -> np.ndarray:
        if name not in self.embedded:
            self.embedded[name] = np.zeros((self.length + 1, self.n, value.shape[1]), value.dtype)
        return self.embedded[name]

    def transitions(self, requires: frozenset[str]) -> Transitions:
        extras = {}
        for name, value in self.embedded.items():
            extras[name] = value[1:].copy()
            if "obs_frame" in requires:
                extras[f"obs_{name}"] = value[:-1]
        # Where an episode ended, row t + 1 is the next one's first observation.
        for t, columns, values in self.final_embedded:
            for name, value in values.items():
                extras[name][t, columns] = value
        return super().transitions(requires - {"frame", "obs_frame"}).replace(extras=extras)

    def roll(self) -> None:
        super().roll()
        for value in self.embedded.values():
            value[0] = value[-1]
        self.final_embedded.clear()

    def state_dict(self) -> StateDict:
        embedded = {name: value[0].copy() for name, value in self.embedded.items()}
        return super().state_dict() | {"embedded": embedded}

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.show(state["embedded"])


def frames_of(part: StateDict) -> tuple[Frames, list[tuple[int, np.ndarray]]]:
    """Take the frames out of an actor's part: (T * n + M, H, W, 3), and where the M last ones belong."""
    frames = part["modalities"].pop("frame")
    arrays = [frames.reshape(-1, *frames.shape[2:])]
    places = []
    other_finals = []
    for name, t, envs, value in part["final_modalities"]:
        if name == "frame":
            arrays.append(value)
            places.append((t, envs))
        else:
            other_finals.append((name, t, envs, value))
    part["final_modalities"] = other_finals
    return np.concatenate(arrays), places
