"""Actor-critic in imagination: both learn from the latent model's rollouts alone (Dreamer).

From replayed states the model imagines `horizon` steps with the policy's actions; the policy ascends the lambda-returns
there (REINFORCE, the critic as baseline), the critic regresses them. Rewards and ends are the model's heads, so that
any learned reward is imagined as it is now.

    R_t = r_t + gamma c_t ((1 - lambda) v_{t+1} + lambda R_{t+1})        R_H = v_H
    actor  = -w_t (log pi(a_t) (R_t - v_t) / max(1, S) + eta H)          S: from the 5th to the 95th percentile of R
    critic = w_t (two-hot(R_t) + two-hot(slow v_t))                      w_t = prod_{k<t} gamma c_k

Source: Hafner et al. 2023, arXiv 2301.04104, equations 4 to 7; the value on replayed steps is that of its second
version. Differences: reward and end are read from (features_t, a_t), so that an episode's last step needs no
observation after it; imagination begins from a part of the replayed states; Adam and a clipped gradient.
When it fails: the model has not seen the reward yet, or imagines states that do not exist.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agents.dynamics.cells import State, mlp
from agents.networks.actor_critic import SpaceEncoding
from agents.networks.heads import TwoHot
from agents.replay.replay import Sequences
from agents.world_model.config import WorldModelConfig
from agents.world_model.model import LatentModel, Losses, Replayed, value_net, weighted_mean
from lodestar.numerics.descent import Flat

# Share of a discrete policy that is uniform, so that no action dies out.
UNIFORM_SHARE = 0.01
# The smallest and the largest deviation of a continuous policy.
STD = (0.1, 1.0)
# Share of a minibatch's percentiles in the running ones of `ReturnRange`.
PERCENTILE_RATE = 0.01


def lambda_returns(reward: Tensor, discount: Tensor, value: Tensor, lambda_: float) -> Tensor:
    """Returns (H, B) from reward (H, B), discount (H, B) = gamma * probability to continue, and values (H + 1, B)."""
    returns = [value[-1]]
    base = reward + (1 - lambda_) * discount * value[1:]
    for t in reversed(range(len(reward))):
        returns.append(base[t] + lambda_ * discount[t] * returns[-1])
    # From the first step to the last one that has a reward.
    return torch.stack(returns[:0:-1])


def one_hot_argmax(scores: Tensor) -> Tensor:
    """1 at the largest score (..., A) and 0 elsewhere."""
    best = F.one_hot(scores.argmax(-1), scores.shape[-1])
    return best.to(scores.dtype)


class ReturnRange(nn.Module):
    """Divisor of returns: the range from their 5th to their 95th percentile, smoothed, at least 1."""

    low: Tensor
    high: Tensor
    known: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("low", "high", "known"):
            self.register_buffer(name, torch.zeros(()))

    def forward(self) -> Tensor:
        return (self.high - self.low).clamp(min=1.0)

    def update(self, returns: Tensor) -> None:
        quantiles = torch.quantile(returns.flatten(), returns.new_tensor([0.05, 0.95]))
        speed = torch.where(self.known > 0, PERCENTILE_RATE, 1.0)
        self.low.lerp_(quantiles[0], speed)
        self.high.lerp_(quantiles[1], speed)
        self.known.fill_(1.0)


# Log-probabilities (..., A) and None; or mean and standard deviation, (..., A) each.
Distribution = tuple[Tensor, Tensor | None]


class LatentPolicy(nn.Module):
    """A distribution over actions (A): one-hot with a uniform share, or a Gaussian with its mean in [-1, 1]."""

    def __init__(self, inputs: int, action_size: int, discrete: bool, hidden: int) -> None:
        super().__init__()
        self.action_size = action_size
        self.discrete = discrete
        # Logits of the actions, or their means and what deviations are a sigmoid of.
        outputs = action_size if discrete else 2 * action_size
        self.net = mlp(inputs, hidden, outputs, 0.01, layers=2)

    def forward(self, features: Tensor) -> Distribution:
        out = self.net(features)
        if self.discrete:
            learned = (1 - UNIFORM_SHARE) * torch.softmax(out, -1)
            return (learned + UNIFORM_SHARE / self.action_size).log(), None
        mean, std = out.chunk(2, -1)
        smallest, largest = STD
        return torch.tanh(mean), smallest + (largest - smallest) * torch.sigmoid(std)

    def sample(self, distribution: Distribution, generator: torch.Generator) -> Tensor:
        """A random action (..., A): one-hot, or numbers that may leave [-1, 1], differentiable."""
        out, std = distribution
        if std is not None:
            return out + std * torch.empty_like(out).normal_(generator=generator)
        # Gumbel noise, minus the logarithm of exponential numbers: its largest sum with the logits is a sample.
        noise = torch.empty_like(out).exponential_(generator=generator).clamp_(min=1e-20)
        return one_hot_argmax(out - noise.log_())

    def mode(self, distribution: Distribution) -> Tensor:
        out, std = distribution
        return out if std is not None else one_hot_argmax(out)

    def log_prob(self, distribution: Distribution, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of an action and the entropy, both (...,)."""
        out, std = distribution
        if std is None:
            entropy = -(out.exp() * out).sum(-1)
            return (out * action).sum(-1), entropy
        constant = 0.5 * math.log(2 * math.pi)
        log_std = std.log()
        scaled = (action - out) / std
        log_prob = (-0.5 * scaled.square() - log_std - constant).sum(-1)
        return log_prob, (log_std + 0.5 + constant).sum(-1)


def descend(flats: dict[str, Flat], config: WorldModelConfig, loss: Tensor, *names: str) -> None:
    """A gradient step of these networks; the reward head's rate is the model's."""
    for name in names:
        flats[name].grad.zero_()
    loss.backward()
    for name in names:
        network = "model" if name == "reward" else name
        rate: float = getattr(config, f"{network}_learning_rate")
        flats[name].step(rate, config.max_grad_norm)


def survival(discount: Tensor) -> Tensor:
    """w_t (H, B), the probability that the episode lasts until step t, discounted."""
    first = torch.ones_like(discount[:1])
    return torch.cat([first, discount[:-1]]).cumprod(0)


class Behaviour(nn.Module):
    """Base of what learns to act in a latent model with features (F)."""

    # Whether the value's loss shapes the latent, so that it is part of the model's.
    joint = False
    # Updates so far, counted by a behaviour that learns in bursts.
    updates = 0
    # Name -> the attribute with a network that is trained as a vector, or follows one that is.
    networks: ClassVar[dict[str, str]]

    def __init__(
        self, config: WorldModelConfig, encoding: SpaceEncoding, features: int, generator: torch.Generator, seed: int
    ) -> None:
        super().__init__()
        self.config = config
        self.generator = generator
        self.action_size = encoding.action_size
        self.discrete = encoding.discrete
        self._build(encoding, features, seed)

    def _build(self, encoding: SpaceEncoding, features: int, seed: int) -> None:
        raise NotImplementedError

    def flats(self) -> dict[str, Flat]:
        """Parameters of the networks as vectors by name, once on their device."""
        self._flats: dict[str, Flat] = {}
        for name, attribute in self.networks.items():
            parameters = getattr(self, attribute).parameters()
            self._flats[name] = Flat.of_parameters(list(parameters))
        return self._flats

    def descend(self, loss: Tensor, *names: str) -> None:
        descend(self._flats, self.config, loss, *names)

    def initial(self, n: int) -> State:
        """Memory of acting beside the latent, parts (N, ...): none."""
        return {}


class ImagActorCritic(Behaviour):
    """The actor, the critic, and the imagined rollouts that both learn from."""

    networks = {"actor": "policy", "critic": "critic", "slow": "slow"}

    def _build(self, encoding: SpaceEncoding, features: int, seed: int) -> None:
        self.policy = LatentPolicy(features, self.action_size, self.discrete, self.config.hidden)
        self.head = TwoHot(low=-10.0, high=10.0)
        self.critic = value_net(features, self.config.hidden, self.head.outputs)
        self.slow = value_net(features, self.config.hidden, self.head.outputs)
        self.slow.load_state_dict(self.critic.state_dict())
        self.scale = ReturnRange()

    def act(self, world: LatentModel, state: State, memory: State, deterministic: bool = False) -> tuple[Tensor, State]:
        distribution = self.policy(world.cell.features(state))
        if deterministic:
            return self.policy.mode(distribution), memory
        return self.policy.sample(distribution, self.generator), memory

    def value(self, features: Tensor) -> Tensor:
        """(..., F) -> (...,)."""
        return self.head.value(self.critic(features))

    def update(self, world: LatentModel, sequences: Sequences, replayed: Replayed) -> Losses:
        """Imagine from some of the replayed states, and take a gradient step; metrics."""
        config = self.config
        starts = self._starts(replayed)
        state = {}
        for name, part in replayed.states.items():
            rows = part.flatten(0, 1)
            state[name] = rows[starts]
        features, action, reward, discount = self.imagine(world, state)
        with torch.no_grad():
            value = self.value(features)
            returns = lambda_returns(reward, discount, value, config.lambda_)
            self.scale.update(returns)
            weight = survival(discount)
            advantage = (returns - value[:-1]) / self.scale()
        distribution = self.policy(features[:-1])
        log_prob, entropy = self.policy.log_prob(distribution, action)
        gain = log_prob * advantage + config.entropy_weight * entropy
        actor = -(weight * gain).mean()
        value_loss = self._value_loss(features[:-1], returns)
        critic = (weight * value_loss).mean()
        loss = actor + critic
        if config.replay_value:
            loss = loss + config.replay_value * self._replay_loss(replayed)
        self.descend(loss, "actor", "critic")
        slow = self._flats["slow"].value
        slow.lerp_(self._flats["critic"].value, config.tau)
        return {
            "actor_loss": actor,
            "critic_loss": critic,
            "entropy": entropy.mean(),
            "imagined": reward.mean(),
            "return": returns.mean(),
            "return_scale": self.scale(),
            "value": value.mean(),
        }

    @torch.no_grad()
    def seek(self, world: LatentModel, state: State) -> Tensor:
        """Of `plan_candidates` actions of the policy the one (B, A) that leads to reward and to what is unknown."""
        assert world.uncertainty is not None
        count = self.config.plan_candidates
        rows = {name: torch.cat([part] * count) for name, part in state.items()}
        features, action, reward, discount = self._roll_out(world, rows, self.config.plan_horizon)
        bounded = self._bound_action(action)
        optimistic = world.uncertainty.optimistic_rewards(reward, features[:-1], bounded)
        weight = survival(discount)
        score = (weight * optimistic).sum(0).view(count, -1)
        best = score.argmax(0)
        first_actions = action[0].view(count, len(best), -1)
        return first_actions[best, torch.arange(len(best), device=best.device)]

    @torch.no_grad()
    def imagine(self, world: LatentModel, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`horizon` imagined steps: features (H + 1, B, F), actions (H, B, A), rewards and discounts (H, B)."""
        features, action, reward, discount = self._roll_out(world, state, self.config.horizon)
        now = features[:-1]
        bounded = self._bound_action(action)
        if world.uncertainty is not None:
            reward = world.uncertainty.penalize(reward, now, bounded)
        if self.config.empowerment_reward and world.empowerment is not None:
            # log q(a | s, s') - log pi(a | s), whose mean is a lower bound of the empowerment.
            log_prob, _ = self.policy.log_prob(self.policy(now), action)
            nats = world.empowerment.log_prob(now, features[1:], bounded)
            reward = reward + self.config.empowerment_reward * (nats - log_prob)
        return features, action, reward, discount

    def _roll_out(self, world: LatentModel, state: State, horizon: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What `imagine` returns, with the model's own rewards."""
        cell = world.cell
        features = [cell.features(state)]
        actions = []
        for _ in range(horizon):
            action = self.policy.sample(self.policy(features[-1]), self.generator)
            state = cell.step(state, self._bound_action(action))
            features.append(cell.features(state))
            actions.append(action)
        all_features = torch.stack(features)
        now = all_features[:-1]
        action = torch.stack(actions)
        bounded = self._bound_action(action)
        reward = world.reward(now, bounded)
        discount = self.config.gamma * world.continues(now, bounded)
        return all_features, action, reward, discount

    def _bound_action(self, action: Tensor) -> Tensor:
        """The action (..., A) that the model is given: the Gaussian's numbers may leave [-1, 1]."""
        return action if self.discrete else action.clamp(-1, 1)

    def _starts(self, replayed: Replayed) -> Tensor:
        """Rows to begin from, drawn among those that are valid."""
        valid = replayed.valid.flatten().float()
        count = self.config.imagine_starts
        if count == 0 or count >= len(valid):
            return torch.nonzero(valid).flatten()
        return torch.multinomial(valid, count, replacement=True, generator=self.generator)

    def _value_loss(self, features: Tensor, returns: Tensor) -> Tensor:
        out = self.critic(features)
        with torch.no_grad():
            slow = self.head.value(self.slow(features))
        return self.head.loss(out, returns) + self.head.loss(out, slow)

    def _replay_loss(self, replayed: Replayed) -> Tensor:
        """Loss of the value on real rewards, some of which the model has not learned to imagine."""
        features = replayed.features
        terminated = replayed.terminated[:-1]
        valid = replayed.valid[:-1]
        with torch.no_grad():
            value = self.head.value(self.slow(features))
            discount = self.config.gamma * (1 - terminated)
            # A row's return is known where its successor is in the sequence, or its episode ended with it.
            linked = valid & ~replayed.first[1:]
            known = linked | ((terminated > 0) & valid)
            reward = replayed.reward[:-1]
            returns = _replay_returns(reward, discount, value, known, self.config.lambda_)
        return weighted_mean(self._value_loss(features[:-1], returns), known)


def _replay_returns(reward: Tensor, discount: Tensor, value: Tensor, known: Tensor, lambda_: float) -> Tensor:
    """As `lambda_returns`, but a row whose successor is unknown has the critic's value."""
    returns = [value[-1]]
    for t in reversed(range(len(reward))):
        next_return = torch.lerp(value[t + 1], returns[-1], lambda_)
        bootstrapped = reward[t] + discount[t] * next_return
        returns.append(torch.where(known[t], bootstrapped, value[t]))
    # From the first step to the last one that has a reward.
    return torch.stack(returns[:0:-1])
