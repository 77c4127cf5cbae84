"""A policy as an ONNX graph: observations in their own dtype in, actions in the environment's own range out."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from runners.export.policy import Policy

OPSET = 18
FILE = "policy.onnx"


def require() -> None:
    """Check that the packages which write and run the graph are installed.

    Raises:
        ImportError: naming the command that installs it.
    """
    from importlib.util import find_spec

    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        words = ", ".join(missing)
        raise ImportError(f"format=onnx needs {words}: pip install 'lodestar-rl[onnx]', or give format=safetensors")


def write(policy: Policy, path: Path) -> None:
    """Write the graph, the batch's size left open; weights inside."""
    import torch

    example = tuple(torch.from_numpy(np.zeros((2, *shape), dtype)) for shape, dtype in policy.inputs.values())
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    with _quiet():
        torch.onnx.export(
            policy,
            example,
            path,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(policy.inputs),
            output_names=["action"],
            dynamic_shapes=(tuple({0: batch} for _ in example),),
            external_data=False,
            verbose=False,
        )


def actions(path: Path, policy: Policy, obs: Any) -> np.ndarray:
    """What the graph does with a batch of observations, by onnxruntime."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    columns, _ = policy.columns(obs)
    return session.run(None, dict(zip(policy.inputs, columns)))[0]


@contextlib.contextmanager
def _quiet() -> Any:
    """The exporter logs, warns and prints."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
