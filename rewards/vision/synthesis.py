"""Danger from the frame, combined with the vehicle's own state: its speed, heading and steadiness.

A frame distinguishes danger from a clear road, but shows no speed, and rewards from frames alone teach cars to stand.
The picture only sets the speed to drive: the target speed on a clear road, none in danger.

Source: Huang, Sheng et al. 2024, "VLM-RL: A Unified Vision Language Models and Reinforcement Learning Framework for
Safe Autonomous Driving", arXiv 2412.15544, section 4.3 (hierarchical reward synthesis), and its published code.
Differences: the target speed is the road's own limit unless one is given; the speed's factor ends at 0, where the
source's is negative beyond twice the target; the penalty applies wherever the car has crashed or left the road, where
the source also ends episodes for speeding and for standing still; `semantics` also takes the rewards that the source
compares with, and `constant`, the control without any picture: most of the effect is that of the speed term alone.
When it fails: a contrast that does not follow danger makes the car brake and race at random; off a lane (a car park)
the offsets mean nothing; a change of lanes is unsteady for `history` steps, so give 0 where lanes must be changed. A
window of lane offsets is a memory of the episode: replay cannot compute it again and potentials cannot be built on it
(`history=0` leaves steadiness out, and both work).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from envs.driving.vehicle import Vehicle, read
from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import Reward, Scored, valid_rows
from rewards.vision.base import Vision
from rewards.vision.clip import Clip, ClipConfig
from rewards.vision.contrast import Contrast, ContrastConfig

# A speed limit below this, in m/s, is no limit, and would be divided by.
MIN_TARGET_SPEED = 0.1


@dataclass
class SynthesisConfig(ContrastConfig, ClipConfig):
    """Settings of `synthesis` beside those of its semantic part; VLM-RL's value in brackets."""

    semantics: str = setting(
        "contrast",
        "the frame's share of the target speed: `contrast`; `lord`, its negative half; `clip`, VLM-RM's reward, cut "
        "off at 0 and 1; `binary`, whether that is above `threshold`; `constant`, always all, the control [contrast]",
        "contrast | lord | clip | binary | constant",
    )
    bounded: bool = setting(True, "as in `contrast`, here by default")
    target_speed: float | None = setting(None, "on a clear road, m/s; null takes its limit [25 km/h = 6.94]", "> 0")
    max_offset: float = setting(3.0, "from the lane's centre, m, where the factor ends at 0 [2 or 3]", "> 0")
    max_angle: float = setting(math.pi / 2, "between heading and lane, rad, where it ends [90 degrees]", "> 0")
    max_deviation: float = setting(0.4, "deviation of the offset over `history`, m, where it ends [0.35]", "> 0")
    history: int = setting(30, "steps of offsets that steadiness is about; 0 leaves it out [30]", "[0, 10000]")
    penalty: float = setting(-10.0, "reward after a crash and off the road [-10]", "<= 0")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.semantics == "binary" and self.threshold is None:
            raise ValueError("reward.synthesis.semantics=binary needs reward.synthesis.threshold; VLM-SR has 0.32")


class Synthesis(Reward):
    """Speed as the picture advises, times keeping to the lane.

    R = max(0, 1 - |v - r v*| / v*) * max(0, 1 - |d| / d_max) * max(0, 1 - |angle| / a_max) * max(0, 1 - std(d) / s_max)
    with r in [0, 1] from the frame, v the speed, v* the target, d the offset from the lane's centre; after a crash and
    off the road the penalty instead.
    """

    Config = SynthesisConfig
    config: SynthesisConfig
    requires = frozenset({"frame", "signals"})
    role = "goal"
    control = {"semantics": "constant"}

    def build(self) -> None:
        config = self.config
        self.relabelable = not config.history
        self.semantic: Vision | None = None
        if config.semantics == "constant":
            self.requires = frozenset({"signals"})
            return
        # The reward that reads the frame, and its settings.
        kind = Contrast if config.semantics in ("contrast", "lord") else Clip
        settings = config
        if config.semantics == "lord":
            settings = replace(config, positive_weight=[0.0], negative_weight=[1.0])
        elif config.semantics == "clip":
            settings = replace(config, threshold=None)
        self.semantic = kind(settings, self.observation_space, self.action_space, seed=self.seed, device=self.device)
        self.frame_size = self.semantic.frame_size
        self.embedding = self.semantic.embedding

    def initial_memory(self, n: int) -> Memory:
        """The latest lane offsets, m, in a ring, and how many there have been."""
        if not self.config.history:
            return None
        return {"offset": np.zeros((n, self.config.history), np.float32), "count": np.zeros(n, np.int64)}

    def score(self, batch: Transitions, memory: Memory = None) -> Any:
        """Float32 (N,), or not ready where the contrast is not; with a history, beside the memory."""
        config = self.config
        if batch.signals is None:
            raise ValueError("synthesis reads a vehicle's signals; make a driving environment with signals=True")
        car = read(batch.signals)
        advised = self._advised_share(batch)
        share = advised.value if isinstance(advised, Scored) else advised
        target_speed = car.speed_limit if config.target_speed is None else config.target_speed
        target_speed = np.maximum(target_speed, MIN_TARGET_SPEED)
        reward = _fall_linearly(np.abs(car.speed - share * target_speed), target_speed)
        reward = reward * _fall_linearly(np.abs(car.lane_offset), config.max_offset)
        reward = reward * _fall_linearly(np.abs(car.heading), config.max_angle)
        if memory is not None:
            deviation, memory = _offset_deviation(memory, car.lane_offset)
            reward = reward * _fall_linearly(deviation, config.max_deviation)
        reward = np.where(_has_failed(car), config.penalty, reward).astype(np.float32)
        scored: np.ndarray | Scored = reward
        if isinstance(advised, Scored):
            scored = Scored(reward, advised.ready)
        return scored if memory is None else (scored, memory)

    def embed(self, batch: Transitions) -> np.ndarray:
        if self.semantic is None:
            return super().embed(batch)
        return self.semantic.embed(batch)

    def update(self, batch: Transitions) -> dict[str, float]:
        """The semantic part learns; `advised`, the mean share of the target speed; `failed`, of penalties."""
        flat = valid_rows(batch)
        if not flat.shape[0]:
            return {}
        metrics: dict[str, float] = {}
        if self.semantic is not None:
            metrics = self.semantic.update(flat)
        advised = self._advised_share(flat)
        if not isinstance(advised, Scored):
            metrics["advised"] = float(advised.mean())
        if flat.signals is not None:
            failed = _has_failed(read(flat.signals))
            metrics["failed"] = float(failed.mean())
        return metrics

    def notes(self) -> list[str]:
        if self.semantic is None:
            return ["semantics=constant reads no frame: the control that any claim about language needs"]
        return self.semantic.notes()

    def _advised_share(self, batch: Transitions) -> np.ndarray | Scored:
        """The share of the target speed that the frame advises, float32 (N,) in [0, 1]."""
        if self.semantic is None:
            return np.ones(batch.shape, np.float32)
        rated = self.semantic.score(batch)
        if isinstance(rated, Scored):
            return rated
        if self.config.semantics == "binary":
            # From -1 and +1 to 0 and 1.
            rated = (rated + 1) / 2
        return np.clip(rated, 0, 1)


def _fall_linearly(distance: np.ndarray, end: np.ndarray | float) -> np.ndarray:
    """1 at 0, falling in a straight line to 0 at `end`, and 0 beyond."""
    return np.maximum(1 - distance / end, 0)


def _has_failed(car: Vehicle) -> np.ndarray:
    return (car.crashed > 0.5) | (car.on_road < 0.5)


def _offset_deviation(memory: Memory, offset: np.ndarray) -> tuple[np.ndarray, Memory]:
    """Standard deviation (N,) of the latest offsets, this one (N,) included, and the memory that holds it."""
    # A ring (N, history) of which the first `held` places are filled.
    latest = memory["offset"].copy()
    history = latest.shape[1]
    latest[np.arange(len(offset)), memory["count"] % history] = offset
    count = memory["count"] + 1
    held = np.minimum(count, history)[:, None]
    filled = np.arange(history) < held
    mean = (latest * filled).sum(1, keepdims=True) / held
    squares = np.square(latest - mean) * filled
    variance = squares.sum(1) / held[:, 0]
    return np.sqrt(variance), {"offset": latest, "count": count}
