"""What of `agents.world_model.agent` learns: a world, a behaviour in it, and the order in which both move.

learner = WorldLearner(config, codec, seed=0, device=device)
learner.update(replay)       a minibatch: the world learns from it, then the behaviour
learner.refit(replay)        the reward's head alone: the reward has changed
learner.finite()             whether no weight and no loss is NaN or infinite
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from agents.dynamics.cells import State
from agents.networks.actor_critic import Flat
from agents.networks.space_encoding import SpaceEncoding
from agents.replay.replay import Replay, Sequences
from agents.world_model.imag_ac import ImagActorCritic, Replayed
from agents.world_model.model import LatentModel
from agents.world_model.mpc import LatentMPC
from agents.world_model.td3 import LatentTD3


class Observed(NamedTuple):
    """What was seen and done, time first; without rewards."""

    vector: Tensor  # (T, N, D)
    pixels: dict[str, Tensor]  # key -> uint8 (T, N, C, H, W)
    action: Tensor  # (T, N, A)
    first: Tensor  # bool (T, N)
    valid: Tensor  # bool (T, N)


class WorldLearner(nn.Module):
    """A `LatentModel` and a behaviour: `ImagActorCritic`, `LatentMPC` or `LatentTD3`.

    Args:
        config: a `WorldModelConfig`.
        encoding: of the spaces.
        seed: of the weights and of all that is drawn.
        device: where they lie.

    Attributes:
        generator: draws latents and actions.
        flats: parameters as vectors, by name.
        sums, counts: metrics added up where they are computed, to be read when they are logged.
        length: steps of the sequences that are drawn; longest: those that must be there.

    Raises:
        ValueError: for a behaviour that cannot choose such actions.
    """

    def __init__(self, config: Any, encoding: SpaceEncoding, *, seed: int, device: torch.device) -> None:
        super().__init__()
        self.config = config
        self.generator = torch.Generator(device).manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.world = LatentModel(encoding, config, self.generator)
            self.behaviour: Any = self._behaviour(encoding, seed)
        self.to(device)
        self.flats: dict[str, Flat] = {**self.world.flats(), **self.behaviour.flats()}
        self.length = config.batch_length + config.unroll
        self.longest = max(self.length, config.n_step + 1)
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def _behaviour(self, encoding: SpaceEncoding, seed: int) -> Any:
        config, features, discrete = self.config, self.world.cell.size, encoding.discrete
        if config.behaviour == "imag_ac":
            return ImagActorCritic(config, features, encoding.action_size, discrete, self.generator)
        if config.behaviour == "td3":
            return LatentTD3(config, features, encoding.action_size, discrete, self.generator, seed)
        if discrete:
            raise ValueError(
                f'agent.behaviour="mppi" plans with numbers and cannot choose from {encoding.action_space}; give '
                "agent.preset=mrq or agent.preset=r2dreamer"
            )
        return LatentMPC(config, encoding, features, self.generator, seed)

    def initial(self, n: int) -> State:
        """What N environments remember before their episodes: parts (N, ...)."""
        with torch.no_grad():
            return {**self.world.cell.initial(n), **self.behaviour.initial(n)}

    @torch.no_grad()
    def think(
        self, vector: Tensor, pixels: dict[str, Tensor], first: Tensor, state: State, deterministic: bool = False
    ) -> tuple[Tensor, State]:
        """Take in observations, choose, and expect what comes of it.

        Args:
            vector: (N, D), the numbers.
            pixels: (N, C, H, W), the images.
            first: bool (N,), where an episode begins.
            state: parts (N, ...), from the step before.
            deterministic: the likeliest of everything.

        Returns:
            Actions (N, A) in [-1, 1] or one-hot, and the next state.
        """
        cell = self.world.cell
        embed = self.world.encoder(vector, pixels)[None]
        unread = embed.new_zeros(1, len(first), self.world.encoding.action_size)
        expected = {name: state[name] for name in cell.sizes}
        states, _ = cell.observe(embed, unread, first[None], expected, sample=not deterministic)
        now = {name: part[0] for name, part in states.items()}
        memory = {}
        for name, empty in self.behaviour.initial(len(first)).items():
            memory[name] = torch.where(first.view(-1, *[1] * (empty.dim() - 1)), empty, state[name])
        action, memory = self.behaviour.act(self.world, now, memory, deterministic)
        action = action.clamp(-1, 1)
        expected = cell.step(now, action, sample=False) if "h" in now else now
        return action, {**expected, **memory}

    # ------------------------------------------------------------------ learning

    def update(self, replay: Replay) -> None:
        """What the world and the behaviour learn from a minibatch."""
        config, behaviour, size = self.config, self.behaviour, self.config.batch_size
        replayed = None
        if config.behaviour == "td3":
            fits = behaviour.model_updates()
            if fits:
                behaviour.begin_burst(self.world, replay.sequences(size, self.length).reward)
            for _ in range(fits):
                self._fit(replay.sequences(size, self.length))
            sequences = replay.sequences(size, config.n_step + 1)
        else:
            sequences = replay.sequences(size, self.length)
            replayed = self._fit(sequences)
            if config.sampling == "dfs":
                sequences = replay.sequences(size, self.length, imagine=True)
                replayed = self.world.replayed(sequences)
        self._note(behaviour.update(self.world, sequences, replayed))
        if config.sampling == "lap":
            replay.sampler.set_priority(*behaviour.errors)

    def _fit(self, sequences: Sequences) -> Replayed:
        """A gradient step of the world."""
        config, joint = self.config, self.behaviour.joint
        moved = ["model", "reward", *(["critic"] if joint else [])]
        for name in moved:
            self.flats[name].grad.zero_()
        loss, replayed = self.world.loss(sequences, self.behaviour.value_loss if joint else None)
        loss.backward()
        for name in moved:
            rate = config.critic_learning_rate if name == "critic" else config.model_learning_rate
            self.flats[name].step(rate, config.max_grad_norm)
        self._note({f"{name}_loss": value for name, value in self.world.metrics.items()})
        return replayed

    def refit(self, replay: Replay) -> None:
        """Gradient steps of the reward head alone, `config.refit` of them."""
        flat, config = self.flats["reward"], self.config
        for _ in range(config.refit):
            replayed = self.world.replayed(replay.sequences(config.batch_size, self.length))
            loss = self.world.reward_loss(replayed.features, replayed.action, replayed.reward)[replayed.valid].mean()
            flat.grad.zero_()
            loss.backward()
            flat.step(config.model_learning_rate, config.max_grad_norm)

    @torch.no_grad()
    def head_error(self, seen: Observed, reward: Tensor) -> float:
        """How far the reward head is off, root mean square.

        Args:
            seen: stretches of time (T, N).
            reward: what is paid now for their newest valid steps in time order, (B,).
        """
        states, _ = self.world.cell.observe(self.world.encoder(seen.vector, seen.pixels), seen.action, seen.first)
        said = self.world.reward(self.world.cell.features(states), seen.action)[seen.valid][-len(reward) :]
        return float((said - reward).square().mean().sqrt())

    # ------------------------------------------------------------------ the account

    def _note(self, metrics: dict[str, Tensor]) -> None:
        for name, value in metrics.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.counts[name] = self.counts.get(name, 0) + 1

    def metrics(self) -> dict[str, float]:
        """Means since the last time."""
        means = {name: float(total) / self.counts[name] for name, total in self.sums.items()}
        self.sums.clear()
        self.counts.clear()
        return means

    def finite(self) -> bool:
        """Whether weights and metrics hold neither NaN nor infinity."""
        numbers = [*(flat.value.sum() for flat in self.flats.values()), *self.sums.values()]
        return bool(torch.isfinite(torch.stack(numbers)).all())
