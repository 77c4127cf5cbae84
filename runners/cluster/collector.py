"""The learner's side of a rollout that actors collect: their parts, put side by side.

With `lag=0` the rollout is the present policy's. With `lag=1` it is that of the policy one update before, and is learnt
from as `Collector.catch_up` says.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from agents.ppo.agent import PPO
from agents.ppo.collector import Collector
from envs.transitions import Rollout, map_obs, put
from runners.cluster.actor import ACTING_FIELDS, ROLLOUT_FIELDS, State
from runners.cluster.server import EmbeddedRollout


class FleetCollector(Collector):
    """Rollouts of the environments of a `runners.cluster.fleet.Fleet`; its state is a local collector's, and more."""

    saved = Collector.saved | {"others": "others"}

    def __init__(self, agent: PPO) -> None:
        envs: Any = agent.envs
        self.kind_of_rollout = EmbeddedRollout if envs.servers else Rollout
        super().__init__(agent)
        # The random numbers of the actors behind the first; those of the first are `rng`.
        self.others: list[State] = []
        self.seconds["waiting"] = 0.0
        envs.seconds = self.seconds
        # Whether actors compute values and log-probabilities, too.
        self._actors_evaluate = envs.lag > 0 or not self.learner.deferred

    def _begin(self, obs: Any, infos: Any) -> None:
        super()._begin(obs, infos)
        if isinstance(self.rollout, EmbeddedRollout):
            self.rollout.show(infos["embedded"])

    def collect(self, on_step: Callable[[int], bool]) -> bool:
        fleet = self.envs
        rollout = self.rollout
        fleet.settle(self)
        weights = {name: weight.detach().cpu().numpy() for name, weight in self.learner.net.state_dict().items()}
        fleet.request(weights, self._actors_evaluate)
        if self.recurrent:
            shape = (rollout.length // self.sequence, *self.learner.hidden.shape)
            self.hidden = [*torch.zeros(shape, device=self.learner.device)]
        start = time.perf_counter()
        rng_states = {}
        for columns, part in fleet.gather():
            self._write_part(columns, part)
            rng_states[columns.start] = part["rng"]
        self.seconds["waiting"] += time.perf_counter() - start
        # Actors answer in any order; what is in lists is put into that of a local run.
        rollout.finals.sort(key=lambda final: final[0])
        rollout.final_modalities.sort(key=lambda final: final[1])
        self.rng.bit_generator.state, *self.others = (rng_states[column] for column in sorted(rng_states))
        if not self._shared:
            self.vector[:] = self.inputs.vector(rollout.obs, 2)
        for t in range(rollout.length):
            if not on_step(t):
                # At the last row nothing is on its way to this process.
                self._abandon(rollout.length)
                return False
        self._finish()
        return True

    def _write_part(self, columns: slice, part: State) -> None:
        """Write an actor's part into the rollout; row 0 of what is observed is there from the rollout before."""
        rollout = self.rollout
        begin = columns.start
        for name in ROLLOUT_FIELDS:
            getattr(rollout, name)[:, columns] = part[name]
        put(rollout.obs, (slice(1, None), columns), part["obs"])
        self.chosen[:, columns] = part["chosen"]
        for name, value in part["modalities"].items():
            if name not in rollout.modalities:
                rollout.modalities[name] = np.zeros((len(value) + 1, rollout.n, *value.shape[2:]), value.dtype)
            rollout.modalities[name][1:, columns] = value
        # An actor counts its environments from 0.
        for t, env, obs in part["finals"]:
            rollout.finals.append((t, env + begin, obs))
        for name, t, env, value in part["final_modalities"]:
            rollout.final_modalities.append((name, t, env + begin, value))
        if isinstance(rollout, EmbeddedRollout):
            rollout.take(columns, part["embedded"], part["embedded_at"])
        if self._actors_evaluate:
            for name in ACTING_FIELDS:
                getattr(self, name)[:, columns] = part[name]
        if self.recurrent:
            self.starts[1:, columns] = part["starts"]
            self.learner.hidden[columns] = self.learner.tensor(part["hidden_after"])
            for hidden, value in zip(self.hidden, part["hidden"]):
                hidden[columns] = self.learner.tensor(value)
        # The mean of the actors, each weighted by its environments.
        for name, seconds in part["seconds"].items():
            self.seconds[name] += seconds * len(part["valid"][0]) / rollout.n

    def evaluate(self) -> None:
        """What `Collector` computes, unless the actors did; of an earlier policy's rollout, what today's says of it."""
        if not self._actors_evaluate:
            super().evaluate()
        elif self.envs.lag:
            self.catch_up(self.learner)

    def actor_state(self, columns: slice, number: int) -> State:
        """What the actor of some columns, the first (0) or another, needs to continue from here."""
        rollout = self.rollout
        shown = {}
        for name, value in rollout.modalities.items():
            shown[name] = value[0, columns].copy()
        rollout_state = {
            "obs": map_obs(lambda rows: rows[0, columns].copy(), rollout.obs),
            "first_step": rollout.first_step[columns],
            "resetting": rollout.resetting[columns],
            "shown": shown,
        }
        rng = self.rng.bit_generator.state
        if number > len(self.others):
            # The saved run had fewer actors.
            seed = [rng["state"]["state"], columns.start]
            rng = np.random.default_rng(seed).bit_generator.state
        elif number:
            rng = self.others[number - 1]
        hidden = self.learner.hidden[columns].cpu().numpy() if self.recurrent else None
        return {"rollout": rollout_state, "rng": rng, "starts": self.starts[0, columns], "hidden": hidden}

    def load_state_dict(self, state: State) -> None:
        # A local run has no other actors.
        super().load_state_dict({"others": [], **state})
