"""A whole update as one launch on a GPU, which otherwise waits for Python between hundreds of small kernels.

    step = captured(learner.update, device=device, generators=[learner.generator])
    step(rows)      what learner.update(rows) does and returns

The first calls run as they are; then the kernels of one call are recorded as a CUDA graph, and every later call copies
its inputs into the graph's memory and replays it. Weights are those of the plain function up to rounding. Unlike
torch.compile(mode="reduce-overhead") it starts at once, and records calls that change weights in place.

When it fails: a function that looks at values (`item`, `if tensor`), or allocates outside; numbers such as a learning
rate are those of the call that was recorded. A function that cannot be recorded is called plainly from then on.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3  # plain calls before the recording, in which libraries allocate what they need

Update = Callable[[Any], Any]  # a named tuple (or tuple) of tensors in, a dict of tensors out


def captured(
    function: Update, *, device: str | torch.device, mode: str = "auto", generators: Iterable[torch.Generator] = ()
) -> Update:
    """`function`, drawing from `generators`, replayed as a CUDA graph on a GPU if `mode` is "auto"; itself if not."""
    if mode == "off" or torch.device(device).type != "cuda":
        return function
    return Captured(function, generators)


class Captured:
    """A function on a GPU that is recorded at its fourth call; see the file."""

    def __init__(self, function: Update, generators: Iterable[torch.Generator] = ()) -> None:
        self.function, self.generators = function, list(generators)
        self.reason: str | None = None  # why it is called plainly; None while it is not
        self._calls = 0
        self._graph: Any = None
        self._inputs: Any = None  # memory that the graph reads
        self._outputs: dict[str, Tensor] = {}  # memory that it writes

    def __call__(self, inputs: Any) -> dict[str, Tensor]:
        if self.reason is None and self._calls < WARM_UP:
            self._calls += 1
            return self._warm(inputs)
        if self.reason is None and self._graph is None:
            self._record(inputs)
        if self.reason or any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(self._inputs, inputs)):
            return self.function(inputs)
        for mine, value in zip(self._inputs, inputs):
            mine.copy_(value)
        self._graph.replay()
        return {name: value.clone() for name, value in self._outputs.items()}

    def _warm(self, inputs: Any) -> dict[str, Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs = self.function(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _record(self, inputs: Any) -> None:
        copies = [x.clone() for x in inputs]
        self._inputs = type(inputs)(*copies) if hasattr(inputs, "_fields") else tuple(copies)
        graph, states = torch.cuda.CUDAGraph(), [g.get_state() for g in self.generators]
        try:
            for generator in self.generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph):  # records, executes nothing
                self._outputs = self.function(self._inputs)
            self._graph = graph
        except RuntimeError as error:
            torch.cuda.synchronize()
            for generator, state in zip(self.generators, states):
                generator.set_state(state)
            self.reason = str(error).splitlines()[0]
            warnings.warn(
                f"the update could not be recorded as a CUDA graph and is called plainly, some times slower "
                f"({self.reason}); give compile=off to say so",
                RuntimeWarning,
                stacklevel=3,
            )
