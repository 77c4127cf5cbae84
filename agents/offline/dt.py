"""DT: a return-conditioned policy (`agents.offline.rcsl`) with a memory, the last K steps, read by a transformer.

    tokens   R_1 s_1 a_1 ... R_K s_K a_K     the action a_t is predicted from s_t and all that comes before it

Source: Chen et al. 2021, "Decision Transformer: Reinforcement Learning via Sequence Modeling", arXiv 2106.01345.
Differences: the action is drawn from a mixture of Gaussians (`agent.head`), not a mean; positions count from the first
token that is seen, not from the episode's first step; no dropout, no warm-up.
When it fails: as `rcsl` does; a memory of recorded episodes also remembers how those went on that began alike.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agents.networks.sequence import Causal
from agents.offline.cloning import StretchLoss, last_rows
from agents.offline.iql import NormalizedInputs
from agents.offline.rcsl import RCSL, RCSLConfig
from envs.transitions import Transitions
from lodestar.settings import setting


@dataclass
class DTConfig(RCSLConfig):
    """Settings of `DT`; see `RCSL` for the others; the source's value in brackets where it differs."""

    chunk: int = setting(1, "actions that are predicted together", "[1, 1]")
    context: int = setting(20, "steps that are seen, K, of one episode", "[1, 1000]")
    width: int = setting(64, "numbers of a token [128]", ">= 1")
    layers: int = setting(3, "of the transformer", ">= 1")
    heads: int = setting(2, "of its attention, which share the width [1]", ">= 1")
    batch_size: int = setting(64, "stretches of K steps in a minibatch", ">= 1")
    net_arch: list[int] = setting([64], "units of the hidden layers behind the transformer [none]", ">= 1")


class DT(StretchLoss, RCSL):
    """Built and loaded as `RCSL` is; its state between calls is each row's last K steps."""

    Config = DTConfig

    def _make_head(self, inputs: int) -> Any:
        head = super()._make_head(self.config.width)
        return _Sequence(self.own.obs_size, self.own.action_size, self.config, head)

    def _condition(self, data: Transitions) -> Tensor:
        """The row of each step and the last one of its episode (M, 2), of a table of all steps."""
        table = super()._condition(data)
        last = last_rows(data)
        longest = int(np.bincount(last).max())
        context = self.config.context
        if context > longest:
            raise ValueError(f"agent.context={context} is longer than all episodes; give at most {longest}")
        # Without the column that says which actions count.
        self._tokens = table[:, : -self.own.action_size]
        self._actions = self._tokens[:, -self.own.action_size :]
        rows = np.stack([np.arange(len(last)), last], 1)
        return self.tensor(rows)

    def _act(self, inputs: np.ndarray, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        count, width = inputs.shape
        rows = np.arange(count)
        size = self.own.action_size
        context = self.config.context
        if state is None:
            window = np.zeros((count, context, width + size), np.float32)
            at = np.zeros(count, int)
        else:
            # What lies behind `at` is not read.
            window = np.array(state["window"], np.float32)
            at = np.where(starts, 0, state["count"])
        full = at == context
        window[full] = np.roll(window[full], -1, 1)
        at[full] = context - 1
        vector = self.tensor(inputs)
        window[rows, at, :-size] = self.net.whiten(vector).cpu()
        steps = self.tensor(window)
        features = self.net(steps)[rows, at]
        generator = None if deterministic else self._generator
        drawn = self.net.head.draw(features, generator)
        action = self.own.decode(drawn.cpu().numpy())
        window[rows, at, -size:] = self.own.encode(action)
        return action, {"window": window, "count": at + 1}


class _Sequence(NormalizedInputs):
    def __init__(self, obs_size: int, action_size: int, config: DTConfig, head: nn.Module) -> None:
        super().__init__(obs_size + 1)
        self.sizes = (obs_size, 1, action_size)
        self.head = head
        # In the order of the tokens: return-to-go, observation, action.
        token_sizes = (1, obs_size, action_size)
        self.embed = nn.ModuleList(nn.Linear(size, config.width) for size in token_sizes)
        self.body = Causal(config.width, config.layers, config.heads, 3 * config.context)

    def forward(self, steps: Tensor) -> Tensor:
        """Whitened obs, return-to-go and action, side by side (B, K, D + 1 + A) -> features of the obs (B, K, W)."""
        obs, to_go, action = steps.split(self.sizes, -1)
        parts = (to_go, obs, action)
        tokens = [embed(x) for embed, x in zip(self.embed, parts)]
        sequence = torch.stack(tokens, 2).flatten(1, 2)
        return self.body(sequence)[:, 1::3]
