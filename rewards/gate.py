"""Gate: one reward counts only in episodes in which another has reached a threshold.

Scores of steps are farmed where they can be collected without ever finishing. A gate makes them worth nothing until the
outcome is there. With r_t the reward `of`, and R the sum over the episode of the reward `by`:

    end       nothing until the episode ends, then 1[R >= at] * sum_t r_t
    latched   r_t from the step on at which R has reached `at`
    renorm    nothing until the episode ends, then sum_t (r_t + R - 1), R clipped to [0, 1]: in a failure no step earns,
              in a success none costs; for r_t in [0, 1]

Sources: "Stabilizing Long-term Multi-turn Reinforcement Learning with Gated Rewards" (G-RA), 2025: end; "Hybrid Reward
Normalization for Process-supervised ..." (PPR, ReNorm), 2025: renorm. Differences: what an episode has earned is given
at its last step, which a discount below 1 makes smaller. `latched` is ours.
When it fails: R is never reached, so that nothing is ever earned; episodes so long that a reward at their end is far.

Example:
    python -m runners.train env=MiniGrid-DoorKey-5x5-v0 reward=[task,gate] reward.gate.of=count
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig, values_of

OWN = ("weight", "scale", "shape", "gamma", "credit")  # of a stream, so of the gate and not of what it holds


@dataclass
class PairConfig(RewardConfig):
    """Settings of a reward made of two others: for each of its `sides` a name, and `<side>_options`."""

    sides: ClassVar[tuple[str, str]]

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in self.sides:
            for key in OWN:
                if key in getattr(self, f"{side}_options"):
                    whose = f"which is the {self.name}'s: {self.prefix}{key}"
                    raise ValueError(f"{self.prefix}{side}_options has {key}, {whose}")


class Pair(Reward):
    """Base class: each side is an attribute of that name."""

    config: PairConfig

    def build(self) -> None:
        given, sides = vars(self.config), self.config.sides
        self.both = [self.make(given[side], given[f"{side}_options"], n) for n, side in enumerate(sides)]
        vars(self).update(zip(sides, self.both))
        self.requires = frozenset[str]().union(*(each.requires for each in self.both))

    def make(self, name: str, options: dict[str, Any], place: int) -> Reward:
        import rewards  # the table, which lists this file

        given, spaces = rewards.config_of(name, options), (self.observation_space, self.action_space)
        return rewards.get(name)(given, *spaces, seed=self.seed + 100 * place, device=self.device)

    def embed(self, batch: Transitions) -> np.ndarray:
        seeing = [each for each in self.both if each.embedding == self.embedding]
        return seeing[0].embed(batch) if seeing else super().embed(batch)

    def notes(self) -> list[str]:
        return [note for each in self.both for note in each.notes()]

    def preflight(self) -> str:
        return self.both[0].preflight() or self.both[1].preflight()


@dataclass
class GateConfig(PairConfig):
    """Settings of gate."""

    sides = ("of", "by")

    of: str = setting("count", "the reward that is gated, a name of the table or file:Class")
    of_options: dict[str, Any] = setting({}, "its options, as in {goal: the pole stands}")
    by: str = setting("task", "the reward whose sum over the episode opens the gate")
    by_options: dict[str, Any] = setting({}, "its options")
    at: float = setting(0.5, "the sum that opens it")
    mode: str = setting("end", "when the reward is given", choices=("end", "latched", "renorm"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if "gate" in (self.of, self.by) or self.of == self.by:
            raise ValueError(f"reward.gate.of={self.of} by={self.by}: a gate needs two other, different rewards")


class Gate(Pair):
    """Two rewards in one; the memory holds their sums over the running episode, its steps, and their own memories."""

    Config = GateConfig
    config: GateConfig
    relabelable = False

    def build(self) -> None:
        super().build()
        if seeing := [side for side in self.both if "frame" in side.requires]:
            if len({(side.embedding, side.frame_size) for side in seeing}) > 1:
                of, by = self.config.of, self.config.by
                raise ValueError(f"reward.gate.of={of} by={by} see frames with different models; give one")
            self.embedding, self.frame_size = seeing[0].embedding, seeing[0].frame_size
            self.keeps_frames = any(side.keeps_frames for side in seeing)

    def initial_memory(self, n: int) -> Memory:
        memory = {"sum": np.zeros(n), "outcome": np.zeros(n), "steps": np.zeros(n, np.int64)}
        for side, reward in zip(self.config.sides, self.both):
            memory.update({f"{side}.{key}": value for key, value in (reward.initial_memory(n) or {}).items()})
        return memory

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[np.ndarray, Memory]:
        """What the gate lets through at each row (N,), and the memory; rows that ended keep theirs, for the caller."""
        of, by, own = self._ask(batch, memory)
        passed, sums = self._let_through(of, by, batch.ended, memory)
        return passed, {**sums, **own}

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        """As `score`, along a rollout (T, N): each side scores it at once."""
        of, by, own = self._ask(batch, memory)
        passed = np.zeros(batch.shape, np.float32)
        sums = {key: memory[key] for key in ("sum", "outcome", "steps")}
        for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
            row, new = self._let_through(of[t], by[t], ended, sums)
            passed[t] = np.where(valid, row, 0)
            for key, value in new.items():
                sums[key] = np.where(ended, 0, np.where(valid, value, sums[key]))
        return passed, {**sums, **own}

    def _ask(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, np.ndarray, Memory]:
        """Scores of the batch's shape by `of` and `by`, and the memory of both."""
        scores, after = [], {}
        for side, reward in zip(self.config.sides, self.both):
            own = {key.partition(".")[2]: value for key, value in memory.items() if key.startswith(f"{side}.")}
            if own:
                given, own = (reward.scan if len(batch.shape) == 2 else reward.score)(batch, own)
            else:
                given = reward.score(batch.flatten())
            scores.append(values_of(given).reshape(batch.shape))
            after.update({f"{side}.{key}": value for key, value in own.items()})
        return *scores, after  # type: ignore[return-value]

    def _let_through(
        self, r: np.ndarray, by: np.ndarray, ended: np.ndarray, memory: Memory
    ) -> tuple[np.ndarray, Memory]:
        total, outcome, steps = memory["sum"] + r, memory["outcome"] + by, memory["steps"] + 1
        if self.config.mode == "renorm":
            passed = np.where(ended, total + steps * (np.clip(outcome, 0, 1) - 1), 0)
        else:
            passed = np.where(outcome >= self.config.at, r if self.config.mode == "latched" else total * ended, 0)
        return passed.astype(np.float32), {"sum": total, "outcome": outcome, "steps": steps}

    def update(self, batch: Transitions) -> dict[str, float]:
        sides = zip(self.config.sides, self.both)
        return {f"{side}_{key}": x for side, reward in sides for key, x in reward.update(batch).items()}
