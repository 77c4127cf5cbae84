"""CleanRL's ppo.py, from the checkout in LODESTAR_CLEANRL; its defaults but for our sizes and coefficients.

The file is a program, run as it is; TensorBoard, which it writes to after each update, is a stand-in that ends the lap.
"""

from __future__ import annotations

import os
import runpy
import sys
from types import SimpleNamespace
from typing import Any

DISTRIBUTION = ("torch", "gymnasium")


def train(settings: dict[str, Any], laps: Any) -> None:
    """See `drive`."""
    import torch

    torch.set_num_threads(1)
    linear = torch.nn.Linear

    def watched(inputs: int, outputs: int) -> Any:
        layer = linear(inputs, outputs)
        if outputs == 1:  # the critic's last one
            laps.watch(layer)
        return layer

    class Writer:
        def __init__(self, folder: str) -> None:
            """Nothing is written."""

        def add_text(self, name: str, text: str) -> None:
            """Nor this."""

        def add_scalar(self, name: str, value: float, step: int) -> None:
            if name == "charts/SPS":
                laps()

    torch.nn.Linear = watched  # type: ignore[assignment, misc]
    sys.modules["torch.utils.tensorboard"] = SimpleNamespace(SummaryWriter=Writer)  # type: ignore[assignment]
    frames, n = settings["frames"], settings["envs"]
    options = {"env-id": settings["task"], "num-envs": n, "num-steps": frames // n, "update-epochs": 10}
    options |= {"num-minibatches": frames // settings["minibatch"], "learning-rate": 3e-4, "ent-coef": 0.0}
    options |= {"total-timesteps": 10**9}
    sys.argv = ["ppo.py", "--no-cuda", "--no-anneal-lr", "--no-clip-vloss"]
    sys.argv += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    laps.begin()
    runpy.run_path(os.path.join(os.environ["LODESTAR_CLEANRL"], "cleanrl", "ppo.py"), run_name="__main__")
