"""The learner's side of a rollout that actors collect: their parts, put side by side.

With `lag=0` the rollout is the present policy's. With `lag=1` it is that of the policy one update before, and is learnt
from as `Collector.catch_up` says.
"""

import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch

from agents.ppo.collector import Collector
from envs.transitions import Rollout, map_obs, put
from runners.cluster.actor import NUMBERS
from runners.cluster.server import EmbeddedRollout


class FleetCollector(Collector):
    """Rollouts of the environments of a `runners.cluster.fleet.Fleet`; its state is a local collector's, and more."""

    saved: ClassVar[dict[str, str]] = Collector.saved | {"others": "others"}

    def __init__(self, envs: Any, *settings: Any) -> None:
        self.kind_of_rollout = EmbeddedRollout if envs.servers else Rollout
        super().__init__(envs, *settings)
        self.others: list[dict[str, Any]] = []  # random numbers of the actors behind the first, whose are `rng`
        self.seconds |= {"waiting": 0.0}
        envs.seconds = self.seconds
        self._whole = envs.lag > 0 or not self.learner.deferred

    def _begin(self, obs: Any, infos: Any) -> None:
        super()._begin(obs, infos)
        if isinstance(self.rollout, EmbeddedRollout):
            self.rollout.show(infos["embedded"])

    def collect(self, on_step: Callable[[int], bool]) -> bool:
        fleet, rollout = self.envs, self.rollout
        fleet.settle(self)
        weights = {name: x.detach().cpu().numpy() for name, x in self.learner.net.state_dict().items()}
        fleet.request(weights, self._whole)
        if self.recurrent:
            shape = (rollout.length // self.sequence, *self.learner.hidden.shape)
            self.hidden = [*torch.zeros(shape, device=self.learner.device)]
        clock = time.perf_counter()
        states = [self._take(columns, part) for columns, part in fleet.gather()]
        self.seconds["waiting"] += time.perf_counter() - clock
        rollout.finals.sort(key=lambda final: final[0])
        rollout.final_modalities.sort(key=lambda final: final[1])
        states.sort(key=lambda state: state[0])
        self.rng.bit_generator.state, self.others = states[0][1], [state for _, state in states[1:]]
        if not self._shared:
            self.vector[:] = self.inputs.vector(rollout.obs, 2)
        for t in range(rollout.length):
            if not on_step(t):
                self._abandon(rollout.length)  # nothing is on its way to this process
                return False
        self._refuse()
        self.episodes.count(rollout.reward, rollout.valid, rollout.ended, rollout.success)
        return True

    def _take(self, columns: slice, part: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Write an actor's part into the rollout; returns its first column and what its random numbers came to."""
        rollout, begin = self.rollout, columns.start
        for name in ("action", "reward", "terminated", "truncated", "valid", "success"):
            getattr(rollout, name)[:, columns] = part[name]
        put(rollout.obs, (slice(1, None), columns), part["obs"])
        self.chosen[:, columns] = part["chosen"]
        for name, value in part["modalities"].items():
            if name not in rollout.modalities:
                rollout.modalities[name] = np.zeros((len(value) + 1, rollout.n, *value.shape[2:]), value.dtype)
            rollout.modalities[name][1:, columns] = value
        rollout.finals += [(t, where + begin, last) for t, where, last in part["finals"]]
        rollout.final_modalities += [(name, t, x + begin, last) for name, t, x, last in part["final_modalities"]]
        if isinstance(rollout, EmbeddedRollout):
            rollout.take(columns, part["embedded"], part["embedded_at"])
        for name in NUMBERS if self._whole else ():
            getattr(self, name)[:, columns] = part[name]
        if self.recurrent:
            self.starts[1:, columns] = part["starts"]
            self.learner.hidden[columns] = self.learner.tensor(part["hidden_after"])
            for hidden, value in zip(self.hidden, part["hidden"]):
                hidden[columns] = self.learner.tensor(value)
        for name, seconds in part["seconds"].items():
            self.seconds[name] += seconds * len(part["valid"][0]) / rollout.n  # the mean of the actors
        return begin, part["rng"]

    def evaluate(self) -> None:
        """What `Collector` computes, unless the actors did; of an earlier policy's rollout, what today's says of it."""
        if not self._whole:
            super().evaluate()
        elif self.envs.lag:
            self.catch_up(self.learner)

    def standing(self, columns: slice, number: int) -> dict[str, Any]:
        """What the actor of some columns, the first (0) or another, needs to continue from here."""
        rollout = self.rollout
        shown = {name: value[0, columns].copy() for name, value in rollout.modalities.items()}
        state = {
            "obs": map_obs(lambda x: x[0, columns].copy(), rollout.obs),
            "first_step": rollout.first_step[columns],
            "resetting": rollout.resetting[columns],
            "shown": shown,
        }
        rng: Any = self.rng.bit_generator.state
        if number:
            known = number <= len(self.others)
            made = np.random.default_rng([rng["state"]["state"], columns.start]).bit_generator.state
            rng = self.others[number - 1] if known else made
        hidden = self.learner.hidden[columns].cpu().numpy() if self.recurrent else None
        return {"rollout": state, "rng": rng, "starts": self.starts[0, columns], "hidden": hidden}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({"others": [], **state})  # a local run has none
