"""The callback that keeps a run: checkpoints, signals, log rows and the live line.

State is taken and given back at one kind of moment only, between two rollouts, where the current observation is known
and the last update is complete. That is why a run that was killed and started again ends with the same weights.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

from agents.sb3.state import get_state, set_state
from envs.types import NotFinite, is_finite
from envs.vector.watchdog import WorkerError
from rewards.mix.mix import Mix
from runners.run import checkpoint
from runners.run.exits import Signals, Stopped
from runners.run.log import Live, scalars

SLOW_ROLLOUT_S = 1.0  # a rollout that takes longer may be cut short by a signal
RETRY_S = 600.0  # after a save failed


class Saver(BaseCallback):
    """Put it first in the list of callbacks, so that the others begin the rollout with what was restored."""

    def __init__(
        self,
        folder: Path,
        mix: Mix,
        driver: Any,
        signals: Signals,
        live: Live,
        *,
        every: int,
        log_every: int,
        state: dict[str, Any] | None = None,
        on_save: Callable[[int], None] = lambda step: None,
    ) -> None:
        super().__init__()
        self.folder, self.mix, self.driver = folder, mix, driver
        self.signals, self.live = signals, live
        self.every, self.log_every = every, log_every
        self.storage_error: str | None = None  # of the last save, None once one succeeded again
        self.on_save = on_save
        self.waiting = state  # to be restored at the first rollout
        self.due = False  # save at the next rollout's start, whenever the last time was
        self._saved = self._logged = 0
        self._failed_at = -RETRY_S
        self._finishing = False
        self._started = time.monotonic_ns()
        self._began = float("-inf")  # how long a rollout takes is not yet known: hold the first one
        self._held: tuple[Any, int] | None = None  # packed state of the running rollout's start
        self._parent = int(os.environ.get("LODESTAR_PARENT", "0"))  # the run that this one is the control of

    def _init_callback(self) -> None:
        workers: Any = self.training_env.unwrapped
        if hasattr(workers, "say"):
            workers.say = self._replaced

    def capture(self) -> dict[str, Any]:
        """Everything the run needs to continue from here; valid between two rollouts."""
        venv: Any = self.training_env
        return {
            "agent": get_state(self.model),
            "mix": self.mix.state_dict(),
            "driver": self.driver.state_dict() if hasattr(self.driver, "state_dict") else None,
            "envs": venv.snapshot() if hasattr(venv, "snapshot") else venv.env_method("snapshot"),
            "random": random_state(),
            "log": {"rows": self._logged, "pending": scalars(self.logger.name_to_value)},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `capture`. Random generators come last, because the rest may draw from them."""
        set_state(self.model, state["agent"])
        self.mix.load_state_dict(state["mix"])
        if state["driver"] is not None:
            self.driver.load_state_dict(state["driver"])
        venv: Any = self.training_env
        if hasattr(venv, "restore"):
            venv.restore(state["envs"])
        else:
            for index, snapshot in enumerate(state["envs"]):
                venv.env_method("restore", snapshot, indices=index)
        self._logged = state["log"]["rows"]
        for tag, value in state["log"]["pending"].items():
            self.logger.record(tag, value)
        set_random_state(state["random"])

    def recall(self, model: Any) -> None:
        """Where no step is left to train: what the report is made from, without the environments' states."""
        state, self.waiting = self.waiting, None
        if state is not None:
            set_state(model, state["agent"])
            self.mix.load_state_dict(state["mix"])
            set_random_state(state["random"])

    def _on_rollout_start(self) -> None:
        if self.waiting is not None:
            self.restore(self.waiting)
            self.waiting = None
            self._saved = self.num_timesteps = self.model.num_timesteps
        step = self.num_timesteps = self.model.num_timesteps
        if step - self._logged >= self.log_every:
            self.dump()
        self._orphaned()
        if self.signals.received is not None:
            self.save()
            raise Stopped(self.signals.received)
        if self.due or (self.every and step - self._saved >= self.every):
            self.save()
            self.due = False
        now = time.monotonic()
        self._held = (checkpoint.pack(self.capture()), step) if now - self._began > SLOW_ROLLOUT_S else None
        self._began = now

    def _on_step(self) -> bool:
        self.live.update(self.num_timesteps, self.task_return)
        if self.signals.received is not None and self._held is not None:
            self.rescue()
            raise Stopped(self.signals.received)
        return True

    def _replaced(self, sentence: str) -> None:
        """A worker was replaced: log it, count it, and save soon, in case that happens too often."""
        workers: Any = self.training_env.unwrapped
        self.live.say(sentence)
        self.logger.record("env/restarts", workers.restarts)
        self.due = True

    @contextmanager
    def rescuing(self) -> Iterator[None]:
        """Where training runs: if the environments are lost for good, what is held of the run is saved first."""
        try:
            yield
        except WorkerError:
            self.rescue()
            raise

    def rescue(self) -> None:
        """Write the state at the start of the running rollout, if it is held and newer than the last checkpoint."""
        if self._held is not None:
            (tree, arrays), step = self._held
            if step > self._saved:
                self._write(checkpoint.unpack(tree, arrays), step)

    def _orphaned(self) -> None:
        """The control run ends when the run it belongs to is gone."""
        if self._parent and os.getppid() != self._parent:
            raise Stopped(signal.SIGTERM)

    def dump(self) -> None:
        """Write a row of the log."""
        self._logged = self.model.num_timesteps
        if hasattr(self.model, "start_time"):  # Stable-Baselines3 reads a clock that may be set meanwhile
            self.model.start_time = time.time_ns() - (time.monotonic_ns() - self._started)
        self.model.dump_logs()  # type: ignore[attr-defined]

    def save(self) -> None:
        """Write a checkpoint; a full disk is one sentence, not the end of training."""
        step = self.model.num_timesteps
        if step == self._saved:
            return
        self._write(self.capture(), step)

    def _write(self, state: dict[str, Any], step: int) -> None:
        if not self._all_finite(state["agent"]["modules"], step):
            return
        if time.monotonic() - self._failed_at < RETRY_S and self.signals.received is None:
            return
        try:
            checkpoint.save(self.folder, state, step)
        except OSError as error:
            self._failed_at = time.monotonic()
            self.storage_error = str(error)
            self.live.say(
                f"no checkpoint at step {step:,} ({error}); the earlier ones are intact and training continues"
            )
            return
        self._saved, self.storage_error = step, None
        self.on_save(step)

    def _all_finite(self, modules: dict[str, Any], step: int) -> bool:
        """Whether every weight of the agent is finite: others are not saved, the earlier checkpoints stay.

        Raises:
            NotFinite: if one is not, of an agent that does not restore finite weights by itself, or at the end.
        """
        bad = next((path for path, value in _weights(modules) if not is_finite(value)), None)
        if bad is None:
            return True
        if getattr(self.model, "recovers", False) and not self._finishing:
            return False
        raise NotFinite(
            f"the weights {bad} became NaN or infinite by step {step:,}: training diverged; they are not saved, the "
            "last checkpoint is finite; lower agent.learning_rate or scale the reward (reward.<name>.scale=return)"
        )

    def finish(self) -> None:
        """The last row and the last checkpoint, after `learn` returned."""
        if self._logged != self.model.num_timesteps:
            self.dump()
        self.live.update(self.model.num_timesteps, self.task_return, force=True)
        self._failed_at = -RETRY_S
        self._finishing = True
        self.save()

    def task_return(self) -> float | None:
        """Mean task return of the last episodes."""
        window = self.model.ep_info_buffer
        return float(np.mean([episode["r"] for episode in window])) if window else None


def random_state() -> dict[str, Any]:
    """The global generators of Python, NumPy and torch."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (SB3 draws from it)
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """The inverse of `random_state`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def _weights(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in tree.items():
        where = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping):
            yield from _weights(value, where)
        elif isinstance(value, torch.Tensor):
            yield where, value
