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
from rewards.base import Metrics, Reward, RewardConfig, Walk, values_of

# Options of a stream belong to the gate and not to what it holds.
STREAM_OPTIONS = ("weight", "scale", "shape", "gamma", "credit")


@dataclass
class PairConfig(RewardConfig):
    """Settings of a reward made of two others: for each of its `sides` a name, and `<side>_options`."""

    sides: ClassVar[tuple[str, str]]

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in self.sides:
            for key in STREAM_OPTIONS:
                if key in getattr(self, f"{side}_options"):
                    owner = f"which is the {self.name}'s: {self.prefix}{key}"
                    raise ValueError(f"{self.prefix}{side}_options has {key}, {owner}")


class Pair(Reward):
    """Base class: each side is an attribute of that name."""

    config: PairConfig

    def build(self) -> None:
        options = vars(self.config)
        self.both: list[Reward] = []
        for place, side in enumerate(self.config.sides):
            reward = self.make(options[side], options[f"{side}_options"], place)
            self.both.append(reward)
            setattr(self, side, reward)
        # Drivers hand over what either side reads.
        self.requires = self.both[0].requires | self.both[1].requires

    def make(self, name: str, options: dict[str, Any], place: int) -> Reward:
        # The table of rewards lists this file.
        import rewards

        config = rewards.config_of(name, options)
        seed = self.seed + 100 * place
        return rewards.get(name)(config, self.observation_space, self.action_space, seed=seed, device=self.device)

    def embed(self, batch: Transitions) -> np.ndarray:
        for reward in self.both:
            if reward.embedding == self.embedding:
                return reward.embed(batch)
        return super().embed(batch)

    def notes(self) -> list[str]:
        return self.both[0].notes() + self.both[1].notes()

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
    mode: str = setting("end", "when the reward is given", "end | latched | renorm")

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
        models = set()
        # One frame or embedding serves both sides, so that they have to agree on it.
        for reward in self.both:
            if "frame" in reward.requires:
                models.add((reward.embedding, reward.frame_size))
                self.embedding = reward.embedding
                self.frame_size = reward.frame_size
                self.keeps_frames |= reward.keeps_frames
        if len(models) > 1:
            of = self.config.of
            raise ValueError(f"reward.gate.of={of} by={self.config.by} see frames with different models; give one")

    def initial_memory(self, n: int) -> Memory:
        memory = {"sum": np.zeros(n), "outcome": np.zeros(n), "steps": np.zeros(n, np.int64)}
        for side, reward in zip(self.config.sides, self.both):
            memory |= _with_prefix(side, reward.initial_memory(n) or {})
        return memory

    def score(self, batch: Transitions, memory: Memory = None) -> Walk:
        passed, memory = self.scan(batch[None], memory)
        return passed[0], memory

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        """What the gate lets through at each row of a rollout (T, N), and the memory after it."""
        config = self.config
        scores = []
        after: dict[str, np.ndarray] = {}
        for side, reward in zip(config.sides, self.both):
            prefix = f"{side}."
            side_memory = {key.removeprefix(prefix): memory[key] for key in memory if key.startswith(prefix)}
            # A side without a memory rates flat rows.
            if side_memory:
                scored, side_memory = reward.scan(batch, side_memory)
            else:
                scored = reward.score(batch.flatten())
            scores.append(values_of(scored).reshape(batch.shape))
            after |= _with_prefix(side, side_memory)
        passed = np.zeros(batch.shape, np.float32)
        total = memory["sum"]
        outcome = memory["outcome"]
        steps = memory["steps"]
        for t, (of, by, valid, ended) in enumerate(zip(*scores, batch.valid, batch.ended)):
            # What the episode has earned by now, by either side, where the row is a transition.
            total = total + np.where(valid, of, 0)
            outcome = outcome + np.where(valid, by, 0)
            steps = steps + valid
            is_open = outcome >= config.at
            if config.mode == "renorm":
                row = np.where(ended, total + steps * (np.clip(outcome, 0, 1) - 1), 0)
            elif config.mode == "latched":
                row = np.where(is_open, of, 0)
            else:
                row = np.where(is_open, total * ended, 0)
            passed[t] = np.where(valid, row, 0)
            total, outcome, steps = (np.where(ended, 0, x) for x in (total, outcome, steps))
        return passed, {"sum": total, "outcome": outcome, "steps": steps} | after

    def update(self, batch: Transitions) -> Metrics:
        metrics: Metrics = {}
        for side, reward in zip(self.config.sides, self.both):
            for key, value in reward.update(batch).items():
                metrics[f"{side}_{key}"] = value
        return metrics


def _with_prefix(side: str, memory: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The memory of a side as part of the gate's."""
    return {f"{side}.{key}": value for key, value in memory.items()}
