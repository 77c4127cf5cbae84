"""Stages: a task in steps, each said as a condition; the reward is how far an episode has come.

    def stages(next_obs, signals):                 arrays (B, D) and (B, S): B steps, one a row
        has_key = signals[:, 3] == 5
        near_goal = 1 - abs(next_obs[:, 0] - 0.9)
        return {"key": has_key, "goal": near_goal}

Each value is the progress of one stage, in [0, 1] and cut to it; 1 or True ends the stage. With K stages, of which an
episode has ended the first k, in their order, and p the progress of stage k + 1,

    phi = the largest (k + p) / K since the episode began

and the reward is its increase, phi(s') - phi(s) (`shape=delta`). phi is a maximum, so that an episode earns at most 1,
leaving a stage again costs nothing, and returning to it earns nothing. `shape=potential` takes back (1 - gamma) phi in
every step that follows: it changes no optimal policy, and teaches nothing before the task's own reward is met.
`signals` may be left out of the function. A person or a language model writes the file, which is NumPy in a sandbox
(`rewards.llm.sandbox.process`).

Source: the stages of "RoboHorizon: An LLM-Assisted Multi-View World Model for Long-Horizon Robotic Manipulation"
(arXiv 2501.06605); potentials by Ng, Harada and Russell 1999, theorem 1.
Differences: what a stage earns is bounded, where the source adds a dense reward a stage; no multi-view model.
When it fails: the order is wrong or a stage is never reached, so that the later ones count nothing (a warning says
which); a condition that random play never meets needs a progress, or a bonus beside it.

Example:
    python -m runners.train env=MiniGrid-DoorKey-8x8-v0 reward=stages reward.stages.file=stages.py
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import merge_memory
from rewards.design.code import CodeConfig, Programmed, Translated, component_program
from rewards.exploration.learned import refuse_rows

STAGE_FORMS = ("stages(next_obs)", "stages(next_obs, signals)")
STAGE_CALLS = ("stages(obs)", "stages(obs, action)")
# After so many transitions a stage that no episode has ended is worth a warning.
TRANSITIONS_BEFORE_WARNING = 100_000


@dataclass
class StagesConfig(CodeConfig):
    """Settings of stages."""

    file: str = setting("", "with stages(next_obs) or stages(next_obs, signals)")
    shape: str = setting(
        "delta", "how the score becomes a reward", "none | potential | delta | clip | sigmoid | par | par_step"
    )


class StageReward(Programmed):
    """phi(s') = the largest (k + p) / K of the episode so far; the memory holds k and phi, each (N,)."""

    Config = StagesConfig
    config: StagesConfig
    relabelable = False
    starts_at = 0.0
    function = "stages"
    expected = " or ".join(STAGE_FORMS)

    def translate(self, source: str) -> Translated:
        return component_program(source, self.function, STAGE_FORMS, STAGE_CALLS)

    def build(self) -> None:
        super().build()
        # Transitions seen, and those of them after which each stage had been ended.
        self.seen = 0
        self.ended = np.zeros(len(self.names), np.int64)
        self.warned = False

    def initial_memory(self, n: int) -> Memory:
        return {"stage": np.zeros(n, np.int64), "phi": np.zeros(n, np.float32)}

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[np.ndarray, Memory]:
        if memory is None:
            memory = self.initial_memory(len(batch.reward))
        after = self._advance(self.progress(batch), memory)
        return after["phi"].copy(), after

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        # One call of the sandbox for the rollout, where `score` would need one a step.
        progress = self.progress(batch.flatten()).reshape(*batch.shape, len(self.names))
        n_envs = batch.shape[1]
        start = self.initial_memory(n_envs)
        phi = np.empty(batch.shape, np.float32)
        for t in range(len(phi)):
            after = self._advance(progress[t], memory)
            phi[t] = after["phi"]
            after = merge_memory(after, memory, ~batch.valid[t])
            memory = merge_memory(after, start, batch.ended[t])
        return phi, memory

    def progress(self, batch: Transitions) -> np.ndarray:
        """The progress of every stage, float32 (N, K) in [0, 1], for a flat batch."""
        next_obs = self.layout.flatten(batch.next_obs)
        refuse_rows(next_obs, "stages")
        signals = np.zeros((len(next_obs), 0), np.float32)
        if self.reads_signals:
            if batch.signals is None:
                raise ValueError(
                    f"{self.config.file} reads signals, and this environment has none; make it with signals=True, "
                    f"or write {STAGE_FORMS[0]}"
                )
            signals = np.asarray(batch.signals, np.float32)
        sandbox = self.start(signals.shape[1])
        return np.clip(sandbox(next_obs, signals), 0, 1)

    def _advance(self, progress: np.ndarray, memory: Memory) -> dict[str, np.ndarray]:
        """The memory after one step of N environments, of whose stages the progress is (N, K)."""
        assert memory is not None
        rows = np.arange(len(progress))
        n_stages = len(self.names)
        stage = memory["stage"].copy()
        # One step may end several stages. Behind the last there is one without any progress.
        progress = np.concatenate([progress, np.zeros((len(progress), 1), np.float32)], axis=1)
        for _ in range(n_stages):
            stage += progress[rows, stage] >= 1
        phi = (stage + progress[rows, stage]) / n_stages
        return {"stage": stage, "phi": np.maximum(memory["phi"], phi.astype(np.float32))}

    def update(self, batch: Transitions) -> dict[str, float]:
        """The share of transitions at which each stage's own condition holds; a warning for one that never does."""
        flat = batch.flatten()
        flat = flat[np.flatnonzero(flat.valid)]
        if not len(flat.reward):
            return {}
        holds = self.progress(flat) >= 1
        self.seen += len(holds)
        self.ended += holds.sum(axis=0)
        if self.seen >= TRANSITIONS_BEFORE_WARNING and not self.warned:
            self._warn()
        return dict(zip(self.names, map(float, holds.mean(axis=0))))

    def _warn(self) -> None:
        self.warned = True
        never = [name for name, count in zip(self.names, self.ended) if not count]
        if never:
            warnings.warn(
                f"after {self.seen} transitions no episode has ended stage {never[0]!r} of {self.config.file}, so the "
                "stages behind it count nothing; give it a progress between 0 and 1, or a bonus beside reward=stages",
                RuntimeWarning,
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        state = {"names": list(self.names), "program": self.source}
        return {**state, "seen": self.seen, "ended": self.ended.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the saved stages, also where the file has changed; a ValueError for another number of them."""
        names = tuple(map(str, state["names"]))
        if len(names) != len(self.names):
            raise ValueError(
                f"the saved state has the stages {', '.join(names)}, {self.config.file} has {', '.join(self.names)}; "
                "give the file that it was trained with"
            )
        if state["program"] != self.source:
            self.close()
            self.program = None
        self.names = names
        self.source = str(state["program"])
        self.seen = int(state["seen"])
        self.ended = np.array(state["ended"], np.int64)

    def notes(self) -> list[str]:
        return [f"the stages are those of {self.config.file}: {', then '.join(self.names)}"]
