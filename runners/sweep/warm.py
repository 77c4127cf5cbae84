"""Imported once, by the process that all local jobs are forked from: what takes a run seconds to import is there then.

Nothing may start a thread, touch a GPU or draw a random number here, because every job inherits it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

MODULES = [
    *("torch", "stable_baselines3", "gymnasium", "hydra", "tensorboard.summary.writer.record_writer"),
    *("agents.ppo", "agents.sb3", "envs.make", "rewards.guided", "rewards.sb3"),
    *("runners.command", "runners.evaluate", "runners.saver", "runners.train"),
]

for _library in ("OMP", "MKL", "OPENBLAS"):  # one job a core; read when the library is loaded
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
with suppress(OSError):
    os.setsid()  # Ctrl-C and a hang-up are for the sweep, which tells its jobs
for _module in MODULES:
    import_module(_module)
