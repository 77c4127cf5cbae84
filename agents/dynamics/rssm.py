"""RSSM: a memory that is certain beside a latent that is not; the cell of Dreamer.

The memory h is a GRU over latents and actions. From h alone the cell expects what comes (the prior); from h and the
observation it knows what came (the posterior); the gap between both is what the model did not foresee.

    h_t = GRU(h_{t-1}, z_{t-1}, a_{t-1})      prior: z_t ~ p(. | h_t)      posterior: z_t ~ q(. | h_t, embed_t)

Source: Hafner et al. 2019 (arXiv 1811.04551); Hafner et al. 2023, "Mastering diverse domains through world models",
arXiv 2301.04104, equation 3.

Differences from the source:
  - a plain GRU with LayerNorm, as in DreamerV2, not one in blocks; one hidden layer in front of each distribution;
  - sizes for a CPU: memory 128, 16 categoricals of 8 classes;
  - at an episode's start h is zero, not the GRU's answer to zeros.

When it fails: what must be remembered for hundreds of steps; the loop over time makes long sequences slow (`ssm`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.dynamics.cells import Categoricals, Cell, State, mlp
from agents.networks.actor_critic import linear


class RSSM(Cell):
    """Memory "h" (..., memory) and latent "z" (..., groups * classes).

    Args:
        embed_size: E.
        action_size: A.
        memory: units of the GRU.
        groups: categoricals of the latent.
        classes: of each.
        hidden: units of the hidden layers.
        generator: draws the latents; None for one on the CPU, seeded with 0.

    Raises:
        ValueError: for a latent without a choice.
    """

    def __init__(
        self,
        embed_size: int,
        action_size: int,
        *,
        memory: int = 128,
        groups: int = 16,
        classes: int = 8,
        hidden: int = 128,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        self.latent = Categoricals(groups, classes)
        self.sizes = {"h": memory, "z": self.latent.size}
        self.size = memory + self.latent.size
        self.hidden = hidden
        self.from_latent = linear(self.latent.size, hidden, 1.0)
        self.from_action = nn.Linear(action_size, hidden, bias=False)
        self.norm = nn.Sequential(nn.LayerNorm(hidden, eps=1e-3), nn.SiLU())
        self.from_memory = linear(memory, hidden + 3 * memory, 1.0)  # for the posterior, for the gates
        self.gates = nn.Linear(hidden, 3 * memory, bias=False)
        self.gates_norm = nn.LayerNorm(3 * memory, eps=1e-3)
        self.prior = mlp(memory, hidden, self.latent.size)
        self.from_embed = nn.Linear(embed_size, hidden, bias=False)
        self.seen = nn.Sequential(nn.LayerNorm(hidden, eps=1e-3), nn.SiLU(), linear(hidden, self.latent.size, 1.0))

    def observe(
        self, embed: Tensor, action: Tensor, first: Tensor, state: State | None = None, *, sample: bool = True
    ) -> tuple[State, dict[str, Any]]:
        length, batch = first.shape
        h = self._begin(first[0], state)["h"]
        continues = (~first)[..., None].to(embed.dtype)
        uniforms = self.latent.uniforms(self.generator, length, batch) if sample else [None] * length
        # What does not wait for the loop. `unbind`, since the gradient of an index is as long as the sequence.
        seen, pushed = self.from_embed(embed).unbind(), self.from_action(action[:-1]).unbind()
        memories: list[Tensor] = []
        latents: list[Tensor] = []
        posteriors: list[Tensor] = []
        for t in range(length):
            memories.append(h)
            known, gates = self.from_memory(h).split([self.hidden, 3 * h.shape[-1]], -1)
            posteriors.append(self.latent.probabilities(self.seen(known + seen[t])))
            latents.append(self.latent.sample(posteriors[t], uniforms[t]))
            if t + 1 < length:
                h = self._remember(h, gates, latents[t], pushed[t]) * continues[t + 1]
        states = {"h": torch.stack(memories), "z": torch.stack(latents)}
        prior = self.latent.probabilities(self.prior(states["h"]))
        return states, {"posterior": torch.stack(posteriors), "prior": prior}

    def step(self, state: State, action: Tensor, *, sample: bool = True) -> State:
        weight, bias = self.from_memory.weight[self.hidden :], self.from_memory.bias[self.hidden :]
        h = self._remember(state["h"], F.linear(state["h"], weight, bias), state["z"], self.from_action(action))
        uniforms = self.latent.uniforms(self.generator, len(h)) if sample else None
        return {"h": h, "z": self.latent.sample(self.latent.probabilities(self.prior(h)), uniforms)}

    def kl(self, stats: dict[str, Any]) -> tuple[Tensor, Tensor]:
        return self.latent.kl(stats["posterior"], stats["prior"])

    def _remember(self, h: Tensor, gates: Tensor, z: Tensor, pushed: Tensor) -> Tensor:
        """The GRU; `gates` is the memory's part of them, `pushed` the action's part of the input."""
        gates = self.gates_norm(gates + self.gates(self.norm(self.from_latent(z) + pushed)))
        reset, candidate, update = gates.chunk(3, -1)
        candidate = torch.tanh(torch.sigmoid(reset) * candidate)
        return torch.lerp(h, candidate, torch.sigmoid(update - 1))  # -1: it begins by keeping
