"""Imagined transitions, kept without a reward: a dream that is older than the reward is paid by the newer one."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from agents.dynamics.rollout import Imagined, Pay
from agents.networks.space_encoding import SpaceEncoding
from agents.replay.replay import Rows


class Dreams:
    """A ring of imagined transitions on the compute device.

    Args:
        capacity: transitions, 1 or more; newer ones take the place of older ones.
        encoding: the spaces.
        pay: what a transition is worth, see `agents.dynamics.reward_source`; asked when it is sampled.
        retain: how many fits of the model dreams outlive, 1 or more: see `refitted`.
        device: as torch writes it.
        seed: of what is sampled.

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(
        self, capacity: int, encoding: SpaceEncoding, pay: Pay, *, retain: int = 1, device: Any = "cpu", seed: int = 0
    ) -> None:
        if capacity < 1 or retain < 1:
            raise ValueError(f"dreams with capacity={capacity}, retain={retain} hold nothing; give 1 or more of each")
        self.capacity, self.pay, self.device = int(capacity), pay, torch.device(device)
        d, a = encoding.obs_size, encoding.action_size
        self._widths = [d, a, d, 1, 1, 1, 1]  # obs, action, next_obs, task, penalty, terminated, step
        self.table = torch.empty((self.capacity, sum(self._widths)), device=self.device)
        self.written = 0  # ever
        self._fits: deque[int] = deque(maxlen=retain)  # what was written when the model was fitted
        self._dropped = 0  # of what was written
        self._generator = torch.Generator(self.device).manual_seed(seed)

    def __len__(self) -> int:
        return min(self.capacity, self.written - self._dropped)

    def add(self, imagined: Imagined) -> None:
        """Keep the transitions that were really imagined; of more than `capacity`, the last."""
        numbers = (imagined.task, imagined.penalty, imagined.terminated, imagined.step)
        parts = [imagined.obs, imagined.action, imagined.next_obs, *(x.unsqueeze(-1).float() for x in numbers)]
        rows = torch.cat(parts, -1).detach()[imagined.alive][-self.capacity :]
        places = (self.written + torch.arange(len(rows), device=self.device)) % self.capacity
        self.table[places] = rows
        self.written += len(rows)

    def refitted(self) -> None:
        """The model has been fitted anew: forget what was imagined before the last `retain` fits."""
        self._fits.append(self.written)
        if len(self._fits) == self._fits.maxlen:
            self._dropped = self._fits[0]

    def clear(self) -> None:
        """Forget everything."""
        self._dropped = self.written
        self._fits.clear()

    def sample(self, batch_size: int, gamma: float) -> Rows:
        """Transitions drawn with replacement, paid now.

        Raises:
            ValueError: if there are none.
        """
        if not len(self):
            raise ValueError("nothing has been imagined yet; add rollouts before sampling from them")
        index = torch.randint(len(self), (batch_size,), generator=self._generator, device=self.device)
        index = index.add_(self.written - len(self)).remainder_(self.capacity)
        rows = self.table.index_select(0, index)
        obs, action, next_obs, *numbers = rows.split(self._widths, -1)
        task, penalty, terminated, step = (x.squeeze(-1) for x in numbers)
        step = step.long()
        with torch.no_grad():
            reward = self.pay(obs, action, next_obs, task, terminated > 0, step) - penalty
        return Rows(obs, action, reward, next_obs, gamma * (1 - terminated), step, index)

    def state_dict(self) -> dict[str, Any]:
        """Everything, the filled part only, as a view."""
        return {
            "table": self.table[: min(self.written, self.capacity)],
            "written": self.written,
            "fits": list(self._fits),
            "dropped": self._dropped,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned into one of the same capacity."""
        table: Tensor = torch.as_tensor(state["table"])
        self.table[: len(table)] = table.to(self.device)
        self.written, self._dropped = int(state["written"]), int(state["dropped"])
        self._fits = deque(map(int, state["fits"]), maxlen=self._fits.maxlen)
        self._generator.set_state(torch.as_tensor(state["generator"]).cpu())
