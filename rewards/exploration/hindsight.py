"""Curiosity in hindsight: a bonus for what remains unexplained once chance is known.

A generator sees the outcome and encodes as a vector z which chance it was; a reconstructor predicts the outcome
from state, action and z. A critic keeps z independent of state and action, so z can hold chance alone: what could have
been learnt stays surprising, what could not does not.
Source: Jarrett, Tallec, Altche, Mesnard, Munos, Valko 2023, arXiv 2211.10515, section 3 and equations 7 to 12, with one
step ahead and in the space of observations, for vectors. `byol_hindsight` is the latent, recurrent form.
Differences: the critic is a product u(x, a) . v(z), so that one matrix product compares every pair; its negatives are
the minibatch's while it learns, and a bank of the newest z when it scores; the generator's noise is 0 when it scores: a
transition has one score; the critic takes `critic_steps` steps before each of the generator's; the bonus is on the
scale of its first transitions (`freeze`): a deviation that shrinks with it would amplify what is left of the noise;
linear skip connections (`skip`) lead from the outcome to z and from z to the prediction. With the hidden layers alone z
does not come to hold noise of many bits within a run, and a small z has no room for it: the agent stays with the noise.
On `temper`: smaller values reward z for carrying more (study noisy_rooms). Errors are summed over the observation, so
a long one needs a larger value, or they drown the critic, whose term is at most the logarithm of the minibatch.
Fails when: chance follows from the action and looks like an outcome (a slot machine); when new outcomes look like old
ones and z copies them before the critic has noticed (not one-hot cells, which cannot be copied before they were seen);
observations with images, which are seen as random features only.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lodestar.numerics.descent import Flat
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.exploration.forward import Forward, ForwardConfig


@dataclass
class HindsightConfig(ForwardConfig):
    """Settings of curiosity in hindsight; in brackets the paper's (freeze, skip) or those of a public re-implementation
    in a latent space of 512 numbers.
    """

    learning_rate: float = 3e-3
    freeze: int = setting(20_000, "transitions after which the scale stands still; 0 never freezes [0]")
    chance: int = setting(128, "size of z, each entry in [-1, 1] [256]", ">= 1")
    noise: int = setting(8, "size of the generator's own noise [256]", ">= 1")
    temper: float = setting(
        10.0,
        "lambda, which divides the reconstruction, a sum over the observation [1]",
        "> 0",
        tune=(0.1, 100.0, "log"),
    )
    skip: bool = setting(
        True,
        "linear connections past the hidden layers, from the outcome to z and from z to the prediction [false]",
        tune=(False, True, "choice"),
    )
    invariance: float = setting(1.0, "weight of the critic's term in loss and reward", ">= 0", tune=(0.0, 2.0))
    critic_steps: int = setting(4, "steps of the critic for each of the generator", ">= 1")
    bank: int = setting(256, "z's kept as negatives of the score", ">= 1")


class Hindsight(Forward):
    """r = |f(x, a, z) - x'|**2 / lambda + log(e**g(x, a, z) / mean over a bank of e**g(x, a, z_k)), z of (x, a, x')."""

    Config = HindsightConfig

    def build_networks(self) -> None:
        config = self.config
        hidden = config.hidden
        given = self.width + self.actions.size  # size of an observation's code beside an action
        generator_inputs = given + self.width + config.noise
        self.generator_net = self.head(generator_inputs, hidden, hidden, config.chance, gain=0.1)
        self.reconstructor = self.head(given + config.chance, hidden, hidden, self.width, gain=0.1)
        if config.skip:
            self.outcome_to_z = self.head(self.width, config.chance, gain=1.0)
            self.z_to_outcome = self.head(config.chance, self.width, gain=1.0)
        left = self.head(given, hidden, hidden)
        right = self.head(config.chance, hidden, hidden)
        self.critic = torch.nn.ModuleList([left, right])
        self.train_on(*self.trained_networks())
        self.critic_optimizer = Flat.of_parameters(list(self.critic.parameters()), epsilon=1e-8)
        self.negatives = Bank(config.bank, config.chance)

    def trained_networks(self) -> list[torch.nn.Module]:
        """What the reward's optimiser moves; the critic has its own."""
        networks: list[torch.nn.Module] = [self.generator_net, self.reconstructor]
        if self.config.skip:
            networks += [self.outcome_to_z, self.z_to_outcome]
        return networks

    def error(self, x: Tensor, action: Tensor, after: Tensor) -> Tensor:
        given = torch.cat([x, action], dim=1)
        z = self.chance(given, after, None)
        reward = self.reconstruction(given, z, after) / self.config.temper
        weight = self.config.invariance
        bank = self.negatives.kept_rows(x.device)
        if weight == 0 or bank is None:
            return reward
        return reward + weight * self.information(given, z, bank)

    def chance(self, given: Tensor, after: Tensor, noise: np.ndarray | None) -> Tensor:
        """z (N, chance) of what happened; without noise, its middle."""
        if noise is None:
            epsilon = given.new_zeros(len(given), self.config.noise)
        else:
            epsilon = torch.from_numpy(noise).to(given.device)
        inputs = torch.cat([given, after, epsilon], dim=1)
        before_tanh = self.generator_net(inputs)
        if self.config.skip:
            before_tanh = before_tanh + self.outcome_to_z(after)
        return torch.tanh(before_tanh)

    def predict_outcome(self, given: Tensor, z: Tensor) -> Tensor:
        """The outcome (N, width) that follows once chance is known."""
        prediction = self.reconstructor(torch.cat([given, z], dim=1))
        if self.config.skip:
            prediction = prediction + self.z_to_outcome(z)
        return prediction

    def reconstruction(self, given: Tensor, z: Tensor, after: Tensor) -> Tensor:
        """Squared error of the outcome once chance is known (N,)."""
        return (self.predict_outcome(given, z) - after).square().sum(dim=1)

    def information(self, given: Tensor, z: Tensor, others: Tensor) -> Tensor:
        """log(e**g(x, a, z) / mean of e**g(x, a, z_k)), over z itself and the z_k of `others` (K, chance): (N,), nats;
        the critic raises it, the generator lowers it.
        """
        # g(x, a, z) = u(x, a) . v(z), divided by the root of their size.
        scale = 1 / math.sqrt(self.config.hidden)
        u = self.critic[0](given) * scale
        v = self.critic[1](z)
        own = (u * v).sum(dim=1, keepdim=True)
        others_v = self.critic[1](others)
        pairs = torch.cat([own, u @ others_v.T], dim=1)
        return own.squeeze(1) - torch.logsumexp(pairs, dim=1) + math.log(pairs.shape[1])

    def loss(self, *columns: Tensor) -> dict[str, Tensor]:
        config = self.config
        x, action, after = columns
        given = torch.cat([x, action], dim=1)
        noise = self.rng.standard_normal((len(x), config.noise), dtype=np.float32)
        z = self.chance(given, after, noise)
        self.negatives.add(z.detach())
        reconstruction = self.reconstruction(given, z, after).mean() / config.temper
        if not config.invariance:
            return {"reconstruction_loss": reconstruction}
        for _ in range(config.critic_steps):
            information = self.batch_information(given, z.detach())
            self.critic_optimizer.descend(-information, config.learning_rate)
        # The gradient of this term reaches the critic too, which clears its own before each step.
        information = self.batch_information(given, z)
        return {"reconstruction_loss": reconstruction, "information": config.invariance * information}

    def batch_information(self, given: Tensor, z: Tensor) -> Tensor:
        """The mean of `information` over a minibatch whose other rows are the negatives."""
        scale = 1 / math.sqrt(self.config.hidden)
        u = self.critic[0](given) * scale
        pairs = u @ self.critic[1](z).T
        information = pairs.diagonal() - torch.logsumexp(pairs, dim=1)
        return information.mean() + math.log(len(z))


class Bank(Stateful):
    """The newest z's, for a score that does not depend on its batch."""

    saved = ("rows", "filled")

    def __init__(self, capacity: int, size: int) -> None:
        self.rows = torch.zeros(capacity, size)
        self.filled = 0

    def add(self, z: Tensor) -> None:
        """Take in a minibatch (B, size)."""
        capacity = len(self.rows)
        newest = z[-capacity:].cpu()
        self.rows = torch.cat([newest, self.rows])[:capacity]
        self.filled = min(self.filled + len(newest), capacity)

    def kept_rows(self, device: torch.device) -> Tensor | None:
        """The rows kept, (K, size); None before the first."""
        return self.rows[: self.filled].to(device) if self.filled else None
