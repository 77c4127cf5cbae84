"""The world of `agents.world_model.agent`: an encoder, a cell that remembers and imagines, heads for reward and end.

    loss, replayed = world.loss(sequences)        what the model has to learn of them, and what they became in it
    world.cell.step(state, action)                a moment on, imagined
    world.reward(features, action)                what it pays, as the reward is now
    world.goes_on(features, action)               the chance that the episode does

A cell with a memory is trained on what it knew at each moment (`_remembered`), a cell without one on what it foresees
from each sequence's first moment (`_foreseen`). What shapes the latent beside reward and end is a list of switches; see
`agents.world_model.config` for the published combinations and their sources, `agents.world_model.representation` for the losses.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.dynamics.cells import Cell, State, layer
from agents.dynamics.rssm import RSSM
from agents.dynamics.simnorm import SimNorm
from agents.dynamics.ssm import SSM
from agents.networks.actor_critic import Flat, linear
from agents.networks.heads import TwoHot
from agents.networks.space_encoding import SpaceEncoding
from agents.replay.replay import Sequences
from agents.world_model.behaviour import Replayed, value_net
from agents.world_model.encoders import Decoder, Encoder
from agents.world_model.representation import Empowerment, KLBudget, barlow, consistency, divergence, infonce

DECAY = {"mppi": 0.5, "td3": 1.0, "imag_ac": 1.0}  # weight of each further unrolled step
NEAR = 256  # rows that InfoNCE tells apart


class World(nn.Module):
    """See the file.

    Args:
        encoding: of the spaces.
        config: a `WorldModelConfig`.
        generator: draws latents, on the weights' device.

    Attributes:
        slow: an encoder and a cell that follow in steps, `catch_up` (behaviour td3); else None.
        metrics: detached losses of the last `loss`.
    """

    def __init__(self, encoding: SpaceEncoding, config: Any, generator: torch.Generator) -> None:
        super().__init__()
        self.encoding, self.config = encoding, config
        self.encoder = Encoder(encoding, config.embed, (config.hidden,), config.net)
        self.cell = _cell(encoding, config, generator)
        both = self.cell.size + encoding.action_size
        self.head = TwoHot(low=-10.0, high=10.0)
        self.reward_net = value_net(both, config.hidden, self.head.outputs)
        self.end_net = nn.Sequential(layer(both, config.hidden), linear(config.hidden, 1, 0.01))
        self.decoder = Decoder(encoding, self._decoded, (config.hidden,)) if config.recon else None
        self.project = nn.Linear(self.cell.size, config.embed) if config.barlow or config.infonce else None
        self.empowerment = None
        if config.empowerment:
            self.empowerment = Empowerment(self.cell.size, encoding.action_size, encoding.discrete, config.hidden)
        self.budget = KLBudget(config.kl_budget, config.dual_lr, config.kl_balance) if config.kl == "repo" else None
        self.slow = None
        if config.behaviour == "td3":
            self.slow = nn.ModuleDict({"encoder": copy.deepcopy(self.encoder), "cell": copy.deepcopy(self.cell)})
        self.metrics: dict[str, Tensor] = {}

    @property
    def _decoded(self) -> int:
        """Numbers the decoder reads: a cell that recurs linearly must say what it sees in its latent alone (Drama)."""
        return self.cell.sizes["z"] if self.config.cell == "ssm" else self.cell.size

    def flats(self) -> dict[str, Flat]:
        """Parameters as vectors by name, once they are on their device: the reward's head learns alone at times."""
        reward = list(self.reward_net.parameters())
        apart = {id(p) for p in [*reward, *(self.slow.parameters() if self.slow is not None else [])]}
        rest = [p for p in self.parameters() if id(p) not in apart]
        return {"model": Flat.over(rest), "reward": Flat.over(reward)}

    @torch.no_grad()
    def catch_up(self) -> None:
        """The slow encoder and cell become what the fast ones are."""
        assert self.slow is not None
        for name, fast in (("encoder", self.encoder), ("cell", self.cell)):
            for old, new in zip(self.slow[name].parameters(), fast.parameters()):
                old.copy_(new)

    def encode(self, vector: Tensor, pixels: dict[str, Tensor], slow: bool = False) -> State:
        """What a cell without memory makes of observations (B, D): a state (B, ...)."""
        nets: Any = {"encoder": self.encoder, "cell": self.cell}
        if slow and self.slow is not None:
            nets = self.slow
        embed = nets["encoder"](vector, pixels)[None]
        nothing = embed.new_zeros(1, embed.shape[1], self.encoding.action_size)
        states, _ = nets["cell"].observe(embed, nothing, nothing[..., 0] > 0)
        return {name: part[0] for name, part in states.items()}

    def reward(self, features: Tensor, action: Tensor) -> Tensor:
        """(..., F), (..., A) -> (...,)."""
        return self.head.value(self.reward_net(torch.cat([features, action], -1)))

    def continues(self, features: Tensor, action: Tensor) -> Tensor:
        """(..., F), (..., A) -> (...,), in [0, 1]."""
        return torch.sigmoid(self.end_net(torch.cat([features, action], -1)).squeeze(-1))

    @torch.no_grad()
    def replayed(self, seq: Sequences) -> Replayed:
        """What sequences are in the model, nothing learnt."""
        states, _ = self.cell.observe(self.encoder(seq.vector, seq.pixels), seq.action, seq.first)
        return self._replayed(seq, states)

    def reward_loss(self, features: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        """(..., F), (..., A), (...,) -> (...,)."""
        return self.head.loss(self.reward_net(torch.cat([features, action], -1)), reward)

    def loss(self, seq: Sequences, joint: Any = None) -> tuple[Tensor, Replayed]:
        """What is to be minimised, and the minibatch as it is in the model.

        Args:
            seq: sequences (L, B).
            joint: of a behaviour whose loss shapes the latent: called with the sequences, the latents foreseen
                (K + 1, B, Z), those encoded (detached) and which steps count (K, B); returns a loss.
        """
        # Without a memory only the first moment is looked at with gradients; the others are targets.
        shaped = _cut(seq, 0, 1) if self.config.unroll else seq
        embed = self.encoder(shaped.vector, shaped.pixels)
        states, stats = self.cell.observe(embed, shaped.action, shaped.first)
        losses = self._represented(shaped, states, embed)
        if self.config.unroll:
            foreseen, states = self._foreseen(seq, states["z"], joint)
            losses |= foreseen
        else:
            losses |= self._remembered(seq, states, stats)
        self.metrics = {name: x.detach() for name, x in losses.items()}
        return torch.stack(list(losses.values())).sum(), self._replayed(seq, states)

    def _replayed(self, seq: Sequences, states: State) -> Replayed:
        states = {name: part.detach() for name, part in states.items()}
        paid = (seq.action, seq.reward, seq.terminated, seq.first, seq.valid)
        return Replayed(states, self.cell.features(states), *paid)

    def _remembered(self, seq: Sequences, states: State, stats: dict[str, Any]) -> dict[str, Tensor]:
        """Reward and end at every moment, and how far expectation and observation lie apart."""
        weight = seq.valid.to(seq.reward.dtype)
        losses = self._heads(self.cell.features(states), seq.action, seq.reward, seq.terminated, weight)
        both = self.cell.kl(stats)
        if both is None or self.config.kl == "none":
            return losses
        dyn, rep = both
        if self.budget is not None:
            losses["kl"] = self.budget(_mean(dyn, weight), _mean(rep, weight))
            return losses
        config = self.config
        losses["kl"] = _mean(divergence(dyn, rep, config.kl_dyn, config.kl_rep, config.free_nats), weight)
        return losses

    def _foreseen(self, seq: Sequences, z: Tensor, joint: Any) -> tuple[dict[str, Tensor], State]:
        """From each first moment, z (1, B, Z), the latents, rewards and ends that the actions led to."""
        steps, later = self.config.unroll, _cut(seq, 1, None)
        with torch.no_grad():
            flat = {key: image.flatten(0, 1) for key, image in later.pixels.items()}
            ahead_seen = self.encode(later.vector.flatten(0, 1), flat, slow=True)["z"]
            encoded = torch.cat([z, ahead_seen.view(-1, *z.shape[1:])])
        ahead = torch.cat([z, self.cell.unroll({"z": z[0]}, seq.action[:steps])["z"]])
        linked = seq.valid[:steps] & ~seq.first[1 : steps + 1]  # the next observation follows this one
        lives = torch.cat([seq.valid[:1], linked[:-1] & seq.valid[1:steps]]).cumprod(0)
        decay = DECAY[self.config.behaviour] ** torch.arange(steps, device=z.device, dtype=z.dtype)
        weight = lives * decay[:, None]
        paid = (seq.action[:steps], seq.reward[:steps], seq.terminated[:steps])
        losses = self._heads(ahead[:-1], *paid, weight)
        gap = consistency(ahead[1:], encoded[1 : steps + 1])
        losses["consistency"] = self.config.consistency * _mean(gap, weight * linked)
        if joint is not None and self.config.value_weight:
            losses["value"] = self.config.value_weight * joint(seq, ahead, encoded, weight, linked)
        return losses, {"z": encoded}

    def _heads(self, features: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, weight: Tensor) -> Any:
        both = torch.cat([features, action], -1)
        paid = self.head.loss(self.reward_net(both), reward)
        ends = F.binary_cross_entropy_with_logits(self.end_net(both).squeeze(-1), 1 - terminated, reduction="none")
        return {
            "reward": self.config.reward_weight * _mean(paid, weight),
            "continue": self.config.continue_weight * _mean(ends, weight),
        }

    def _represented(self, seq: Sequences, states: State, embed: Tensor) -> dict[str, Tensor]:
        """What else shapes the latent."""
        config, losses = self.config, {}
        valid = torch.nonzero(seq.valid.flatten()).flatten()
        features = self.cell.features(states)
        if self.decoder is not None:
            read = states["z"] if config.cell == "ssm" else features
            gap = self.decoder.loss(read, seq.vector, seq.pixels)
            losses["recon"] = config.recon * _mean(gap, seq.valid.to(gap.dtype))
        if self.project is not None:
            said, seen = self.project(features).flatten(0, 1)[valid], embed.flatten(0, 1)[valid]
            if config.barlow:
                losses["barlow"] = config.barlow * barlow(said, seen)
            if config.infonce:
                losses["infonce"] = config.infonce * infonce(said[:NEAR], seen[:NEAR])
        if self.empowerment is not None:
            linked = (seq.valid[:-1] & ~seq.first[1:]).to(features.dtype)
            known = self.empowerment.log_prob(features[:-1], features[1:], seq.action[:-1])
            losses["empowerment"] = -config.empowerment * _mean(known, linked)
        return losses


def _cut(seq: Sequences, begin: int, end: int | None) -> Sequences:
    """Some steps of sequences."""
    pixels = {key: image[begin:end] for key, image in seq.pixels.items()}
    return seq._replace(pixels=pixels, **{k: getattr(seq, k)[begin:end] for k in seq._fields if k != "pixels"})


def _mean(value: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean."""
    return (value * weight).sum() / weight.sum().clamp(min=1e-6)


def _cell(encoding: SpaceEncoding, config: Any, generator: torch.Generator) -> Cell:
    sizes: dict[str, Any] = {"hidden": config.hidden, "generator": generator}
    if config.cell == "simnorm":
        return SimNorm(config.embed, encoding.action_size, latent=config.latent, **sizes)
    sizes |= {"memory": config.latent, "groups": config.groups, "classes": config.classes}
    return (RSSM if config.cell == "rssm" else SSM)(config.embed, encoding.action_size, **sizes)
