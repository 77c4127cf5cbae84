"""Images of observations, each stored once: what follows a row is the row after it, or a final image kept aside."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class Images:
    """uint8 images of a ring of T time rows x N environments.

    Args:
        shapes: key -> (C, H, W); none for observations without images.
        length: T.
        n_envs: N.
        device: where they lie.
        follows: whether `after` will be asked, so that finals are kept.
    """

    def __init__(
        self, shapes: dict[str, tuple[int, ...]], length: int, n_envs: int, device: Any, follows: bool
    ) -> None:
        self.length, self.n_envs, self.follows = length, n_envs, follows
        self.size = length * n_envs
        self.table = {k: torch.empty((self.size, *s), dtype=torch.uint8, device=device) for k, s in shapes.items()}
        self.finals = {key: table[:0].clone() for key, table in self.table.items()}
        self.slot = np.full(self.size if follows else 0, -1, np.int64)  # row -> its place in `finals`, or -1
        self._free: list[int] = []

    def write(self, pos: int, now: dict[str, np.ndarray], after: dict[str, np.ndarray], begins: np.ndarray) -> None:
        """One time row: images of obs and of next_obs, (N, C, H, W).

        Args:
            pos: where.
            now: of obs.
            after: of next_obs; it stands in the next time row until that is written.
            begins: bool (N,), where `now` begins an episode, so that what stands at `pos` was the final image before.
        """
        if not self.table:
            return
        if self.follows:
            self._release((pos + 1) % self.length)
            if begins.any():
                self._keep(pos, np.flatnonzero(begins))
            self._put((pos + 1) % self.length, after)
        self._put(pos, now)

    def at(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """The images of rows (B,)."""
        return {key: table[index].cpu().numpy() for key, table in self.table.items()}

    def after(self, index: np.ndarray) -> dict[str, np.ndarray]:
        """The images that followed rows (B,)."""
        images = self.at((index + self.n_envs) % self.size)
        slots = self.slot[index]
        final = slots >= 0
        if final.any():
            for key, image in images.items():
                image[final] = self.finals[key][slots[final]].cpu().numpy()
        return images

    def state_dict(self, filled: int) -> dict[str, Any]:
        """The images of the first `filled` time rows, and of the one after them."""
        rows = min(filled + 1, self.length) * self.n_envs
        tables = {key: table[:rows] for key, table in self.table.items()}
        return {"table": tables, "finals": self.finals, "slot": self.slot.copy(), "free": list(self._free)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for key, table in self.table.items():
            saved = torch.as_tensor(state["table"][key])
            table[: len(saved)] = saved.to(table.device)
            self.finals[key] = torch.as_tensor(state["finals"][key]).to(table.device).clone()
        self.slot, self._free = np.array(state["slot"]), [int(x) for x in state["free"]]

    def _put(self, pos: int, images: dict[str, np.ndarray]) -> None:
        for key, image in images.items():
            self.table[key][pos * self.n_envs : (pos + 1) * self.n_envs] = torch.from_numpy(np.ascontiguousarray(image))

    def _release(self, pos: int) -> None:
        here = self.slot[pos * self.n_envs : (pos + 1) * self.n_envs]
        self._free += here[here >= 0].tolist()
        here[:] = -1

    def _keep(self, pos: int, columns: np.ndarray) -> None:
        """What stands at `pos` ended the episodes of the rows before."""
        while len(self._free) < len(columns):
            count = next(iter(self.finals.values())).shape[0]
            more = max(count, 16)
            self.finals = {key: torch.cat([x, x.new_zeros((more, *x.shape[1:]))]) for key, x in self.finals.items()}
            self._free += range(count, count + more)
        slots = np.array([self._free.pop() for _ in columns])
        ended: Tensor = torch.from_numpy(pos * self.n_envs + columns)
        for key, table in self.table.items():
            self.finals[key][torch.from_numpy(slots)] = table[ended]
        self.slot[(pos - 1) % self.length * self.n_envs + columns] = slots
