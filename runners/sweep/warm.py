"""Imported once, by the process that all local jobs are forked from, which saves each the seconds it takes.

Nothing may start a thread, touch a GPU or draw a random number here, because every job inherits it.
"""

import os
from contextlib import suppress
from importlib import import_module

WARM_MODULES = [
    "torch._dynamo",
    "torch.fx.experimental.symbolic_shapes",
    "hydra",
    "scipy.special",
    "matplotlib.backends.backend_agg",
    "imageio_ffmpeg",
    "agents.ppo.agent",
    "rewards.adapters.guided",
    "rewards.adapters.sb3",
    "rewards.vision.encoder",
    "runners.run.curve",
    "runners.run.video",
    "runners.run.progress",
    "runners.train",
]

# One job a core: the libraries read this when they are loaded.
for _library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
# Ctrl-C and a hang-up are for the sweep, which stops its jobs.
with suppress(OSError):
    os.setsid()
for _module in WARM_MODULES:
    # The job that needs a missing package reports it.
    with suppress(ImportError):
        import_module(_module)
