"""IQL: a policy from recorded transitions alone, without evaluating actions that are not in the data.

A value V(s) is fitted to an upper expectile of Q(s, a) over the recorded actions, Q to r + gamma V(s'), and the policy
imitates the recorded actions, each as strongly as its advantage Q - V is large; with beta=0 each the same (cloning).

Sources: Kostrikov, Nair & Levine 2021, arXiv 2110.06169, equations 5 (expectile), 6 (Q) and 7 (policy). Other losses of
V: Garg et al. 2023, "Extreme Q-Learning", arXiv 2301.02328 (`gumbel`); Sikchi et al. 2023, "Dual RL" (f-DVL), arXiv
2302.08560 (`chi_square`, and `quantile`, its total variation).
Differences from them: one step of Adam for the three losses, without decay; observations are whitened, and rewards
divided by their deviation; discrete actions, with one value each; squares for Q, where f-DVL's code has Huber's loss;
chi_square is straight below 0, the exact conjugate; the code's is flat on [-4, 0] and rises again below that.

When it fails: data that never comes near what is wanted; `gumbel` without a clip, whose exponential diverges;
a reward at every step in data where episodes end at different times, if the learned reward's zero is arbitrary.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agents.networks.actor_critic import CLIP, Inputs, SpaceEncoding
from agents.networks.policy_layers import CriticKind, DenseLayer, PolicyLayers
from agents.predictor import Predictor
from envs.transitions import Transitions
from envs.types import Obs, Options, StateDict
from lodestar.mappings import map_values
from lodestar.numerics.descent import Flat, draw_integers
from lodestar.settings import Settings, setting

# Minibatches drawn at once, since a call for each would cost more than the numbers.
MINIBATCHES_A_DRAW = 256
# Places of the networks in the stack.
Q = slice(0, 2)
V = slice(2, 3)
PI = slice(3, 4)
# The source's limits of the policy's log deviation.
MIN_IQL_LOG_STD = -5.0
MAX_IQL_LOG_STD = 2.0


@dataclass
class IQLConfig(Settings):
    """Settings of `IQL`; the source's value in brackets where it differs."""

    prefix = "agent."
    learning_rate: float = setting(3e-4, "of Adam", "(0, 1]")
    gamma: float = setting(0.99, "discount", "(0, 1]")
    value_loss: str = setting("expectile", "of V", "expectile | gumbel | chi_square | quantile")
    expectile: float = setting(0.7, "tau: 0.5 is the recorded policy, near 1 its best actions", "(0, 1)")
    level: float = setting(0.8, "lambda: V is the (2 lambda - 1) / lambda quantile of Q", "(0.5, 1)")
    temperature: float = setting(1.0, "of gumbel: the smaller, the nearer to the best action [1 to 10]", "> 0")
    gumbel_clip: float | None = setting(7.0, "gumbel: what Q - V over the temperature is cut at; null: none", "> 0")
    beta: float = setting(
        3.0, "how much more a better action is imitated; 0 is behaviour cloning", ">= 0", tune=(0.3, 30.0, "log")
    )
    max_weight: float = setting(100.0, "what exp(beta * advantage) is cut at", "> 0")
    tau: float = setting(0.005, "share of the new Q in its target after each step", "(0, 1]")
    batch_size: int = setting(256, "transitions a step", ">= 1")
    net_arch: list[int] = setting([64, 64], "units of the hidden layers of each network [256, 256]", ">= 1")
    squash: bool = setting(True, "whether a tanh bounds the means of actions, as in SAC; PPO has none")
    normalize_reward: bool = setting(True, "whether rewards are divided by their standard deviation over the data")


def expectile_loss(gap: Tensor, expectile: float) -> Tensor:
    """Equation 5: |expectile - 1(gap < 0)| gap^2, elementwise; `gap` is what the value is below its target."""
    return torch.where(gap < 0, 1 - expectile, expectile) * gap.square()


def gumbel_loss(gap: Tensor, temperature: float, clip: float | None) -> Tensor:
    """XQL's e^z - z - 1 of z = min(gap / temperature, clip), elementwise; times e^-max(z), so that it is finite."""
    z = gap / temperature
    if clip is not None:
        z = z.clamp(max=clip)
    largest = z.detach().amax().clamp(min=-1)
    return torch.exp(z - largest) - (z + 1) * torch.exp(-largest)


def chi_square_loss(gap: Tensor, level: float) -> Tensor:
    """f-DVL's level (x + x^2 / 4) - (1 - level) gap, elementwise; x is the gap where it is above 0, else 0."""
    above = gap.clamp(min=0)
    return level * (above + above.square() / 4) - (1 - level) * gap


def quantile_loss(gap: Tensor, level: float) -> Tensor:
    """The same without the square."""
    return level * gap.clamp(min=0) - (1 - level) * gap


def imitation_weights(advantage: Tensor, beta: float, most: float) -> Tensor:
    """Equation 7's exp(beta * advantage), at most `most`."""
    return torch.exp(beta * advantage).clamp(max=most)


def refuse_spaces(name: str, observation_space: gym.Space, action_space: gym.Space) -> None:
    """A ValueError for images, and for actions that are neither Discrete nor a Box with finite bounds."""
    if Inputs(observation_space).images:
        raise ValueError(f"{name} cannot read images, and {observation_space} has some; record embeddings, states")
    is_box = isinstance(action_space, spaces.Box) and action_space.is_bounded()
    if not isinstance(action_space, spaces.Discrete) and not is_box:
        raise ValueError(f"{name} cannot choose actions from {action_space}; give Discrete or a bounded Box")


# Weights (K, in, out) and biases (K, 1, out) of the layers of K networks.
Layers = list[tuple[Tensor, Tensor]]


class IQL(Predictor):
    """Learns from transitions and a signal about each, which is its reward; a ValueError refuses what it cannot use.

    `data` is a flat batch (N,), whose rows that are not valid are left out; None for a policy that only acts. `signal`,
    float32 (N,), is what each is worth; None for the task's reward. Actions are Discrete, or a Box with finite bounds.
    """

    Config: ClassVar[type[Any]] = IQLConfig
    learns_from = "rewards"
    # Whether Q estimates discounted rewards, so that other critics can begin with it.
    has_values = True
    mode = True

    def __init__(
        self,
        config: Any,
        observation_space: gym.Space,
        action_space: gym.Space,
        data: Transitions | None = None,
        signal: Any = None,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        refuse_spaces(type(self).__name__, observation_space, action_space)
        self.discrete = isinstance(action_space, spaces.Discrete)
        self.config = config
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = torch.device(device)
        self.seed = seed
        # `own` encodes the environment's observations, `encoding` what the networks read.
        self.own = SpaceEncoding(observation_space, action_space)
        self.encoding = self.own
        if self._extra_size():
            size = self.own.obs_size + self._extra_size()
            network_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
            self.encoding = SpaceEncoding(network_space, action_space)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        # torch draws initial weights from its global generator.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.net = self._networks().to(self.device)
        self.policy = self.net
        self._flat = self._flatten()
        self._target = self._copy_target()
        # What a file holds beside weights and configuration.
        self.kept: StateDict = {}
        self._rows: Tensor | None = None
        if data is not None:
            self._rows = self._table(data, signal)

    def _flatten(self) -> Flat:
        """All parameters that are learned as one vector, with a fresh optimiser."""
        learned = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        return Flat.of_parameters(learned)

    def extra_state(self) -> StateDict:
        return self.kept

    def keep(self, kept: StateDict) -> None:
        """Take over what `beside` gave a file."""
        self.kept = kept

    def learn(self, steps: int, begin: int = 0, total: int = 0) -> dict[str, float]:
        """Take `steps` minibatches; returns losses and means of the last one. A FloatingPointError if they diverge.

        They come after `begin` others, of `total` in all, by default the only ones: what a schedule goes by.
        """
        if self._rows is None:
            raise ValueError(f"this {type(self).__name__} was loaded to act and has no data; build one with data")
        metrics: dict[str, Tensor] = {}
        for step in range(steps):
            place = step % MINIBATCHES_A_DRAW
            if place == 0:
                draws = self._draw(min(MINIBATCHES_A_DRAW, steps - step))
            metrics = self._step(self._rows[draws[place]])
        self._refuse_diverged()
        return map_values(float, metrics)

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        net = self.net
        vector = self.tensor(self.encoding.vector(obs))
        vector = net.whiten(vector)
        # The policy's place in the stack has inputs for an action, which it does not read.
        unused = vector.new_zeros(len(vector), self.encoding.action_size)
        outputs = net(vector, unused, PI)[0]
        chosen = self._choose(net.policy(outputs), deterministic)
        return self.encoding.decode(chosen.cpu().numpy()), None

    def policy_layers(self) -> PolicyLayers:
        net = self.net
        if self._extra_size():
            # It acts for a goal, or for a return, which no other policy reads.
            return super().policy_layers()
        layers = [DenseLayer(weight[0], bias[0, 0]) for weight, bias in net.layers(PI)]
        # The policy does not read the action, whose inputs stand behind those of the observation.
        first = layers[0].weight[: self.encoding.obs_size]
        layers[0] = DenseLayer(first, layers[0].bias)
        log_std = None
        if not net.discrete:
            log_std = net.deviation_log()
        return PolicyLayers(
            self.encoding,
            layers,
            "relu",
            net.mean,
            net.std,
            squashed=net.squash,
            log_std=log_std,
            critics=self._critics(),
            critic_kind=CriticKind("relu"),
        )

    def _critics(self) -> list[Tensor]:
        """Weights and biases of both Q, in the rewards' own units; none where Q is no discounted reward."""
        if not self.has_values:
            return []
        unit: float | None = 1.0
        if self.config.normalize_reward:
            unit = self.kept.get("reward_deviation")
        # Files of before these were kept do not know the unit of their Q.
        if unit is None:
            return []
        critics = [tensor for layer in self.net.layers(Q) for tensor in layer]
        for place in (-2, -1):
            outputs = critics[place] * unit
            # Without choices the value is the first output of as many as an action has numbers.
            critics[place] = outputs if self.discrete else outputs[..., :1]
        return critics

    @classmethod
    def load(
        cls,
        path: str,
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> Self:
        def build(config: Options) -> Any:
            return cls(cls.Config(**config), observation_space, action_space, seed=seed, device=device)

        model, kept = cls._from_file(path, build, "these spaces")
        model.keep(kept)
        model._target = model._copy_target()
        return model

    def _draw(self, steps: int) -> Tensor:
        """Rows of the table for so many minibatches, (steps, batch_size)."""
        assert self._rows is not None
        return draw_integers(self._generator, len(self._rows), steps, self.config.batch_size)

    def _refuse_diverged(self) -> None:
        if not self._flat.value.isfinite().all():
            rate = self.config.learning_rate
            raise FloatingPointError(f"{type(self).__name__} diverged; lower agent.learning_rate={rate}")

    def _step(self, rows: Tensor) -> dict[str, Tensor]:
        """One minibatch: equations 5, 6 and 7, each with the networks of the step before."""
        config = self.config
        net = self.net
        width = self.encoding.obs_size
        sizes = [width, width, self.encoding.action_size, 1, 1]
        obs, next_obs, action, signal, continues = rows.split(sizes, -1)
        inputs = net.inputs(obs, action)
        with torch.no_grad():
            target = net.q(run(self._target, inputs[Q]), action).amin(0)
            next_value = net(next_obs, action, V)[0, :, :1]
        outputs = run(net.layers(), inputs)
        value = outputs[2, :, :1]
        policy_outputs = outputs[3]
        advantage = target - value
        weight = imitation_weights(advantage.detach(), config.beta, config.max_weight)
        value_loss = self._value_loss(advantage)
        q = net.q(outputs[Q], action)
        q_loss = self._q_loss(q, signal, continues, next_value, obs, policy_outputs)
        log_prob = net.log_prob(net.policy(policy_outputs), action)
        policy_loss = -(weight * log_prob).mean()
        self._flat.descend(value_loss + q_loss + policy_loss, config.learning_rate)
        self._move_target()
        return {
            "value_loss": value_loss.detach(),
            "q_loss": q_loss.detach(),
            "policy_loss": policy_loss.detach(),
            "advantage": advantage.detach().mean(),
            "value": value.detach().mean(),
        }

    @torch.no_grad()
    def _move_target(self) -> None:
        for target_layer, layer in zip(self._target, self.net.layers(Q)):
            for old, new in zip(target_layer, layer):
                old.lerp_(new, self.config.tau)

    def _value_loss(self, gap: Tensor) -> Tensor:
        """Of what V is below the target of Q, (B, 1)."""
        config = self.config
        if config.value_loss == "expectile":
            return expectile_loss(gap, config.expectile).mean()
        if config.value_loss == "gumbel":
            return gumbel_loss(gap, config.temperature, config.gumbel_clip).mean()
        if config.value_loss == "chi_square":
            return chi_square_loss(gap, config.level).mean()
        return quantile_loss(gap, config.level).mean()

    def _q_loss(
        self,
        q: Tensor,
        signal: Tensor,
        continues: Tensor,
        next_value: Tensor,
        obs: Tensor,
        policy: Tensor,
    ) -> Tensor:
        """Of the values (2, B, 1) of recorded actions, from that of what followed (B, 1); equation 6, of both."""
        target = signal + self.config.gamma * continues * next_value
        return (q - target).square().mean((1, 2)).sum()

    def _extra_size(self) -> int:
        """Numbers behind an observation that the networks read, too."""
        return 0

    def _networks(self) -> Any:
        return _Networks(self.encoding, self.config.net_arch, self.config.squash)

    def _copy_target(self) -> Layers:
        layers = self.net.layers(Q)
        return [(weight.detach().clone(), bias.detach().clone()) for weight, bias in layers]

    def _table(self, data: Transitions, signal: Any) -> Tensor:
        """All that a step reads of a transition, side by side: obs, next_obs, action, signal, whether it continues."""
        signal, data = self._select_valid(data, signal)
        signal = self._scale_signal(signal)
        obs = torch.tensor(self.encoding.vector(data.obs))
        next_obs = torch.tensor(self.encoding.vector(data.next_obs))
        self.net.fit(torch.cat([obs, next_obs]), correction=1)
        numbers = np.stack([signal, ~data.terminated], -1)
        action = self.encoding.encode(data.action)
        columns = [
            self.net.whiten(obs.to(self.device)),
            self.net.whiten(next_obs.to(self.device)),
            torch.tensor(action, device=self.device),
            torch.tensor(numbers, dtype=torch.float32, device=self.device),
        ]
        return torch.cat(columns, -1)

    def _select_valid(self, data: Transitions, signal: Any) -> tuple[np.ndarray, Transitions]:
        """The signals (N,) of valid transitions, and these transitions; a ValueError if they do not fit or are none."""
        if signal is None:
            signal = data.reward
        signal = np.asarray(signal, np.float32)
        what = self.learns_from
        if signal.shape != data.shape or len(data.shape) != 1:
            raise ValueError(f"{what} of shape {signal.shape} for data of shape {data.shape}; give one for each row")
        wrong = np.sum(~np.isfinite(signal))
        if wrong:
            raise ValueError(f"{wrong} {what} are not finite; every transition needs a number")
        valid = data.valid
        if not valid.any():
            raise ValueError("the data has no valid transition; give a recording")
        return signal[valid], data[valid]

    def _scale_signal(self, signal: np.ndarray) -> np.ndarray:
        """The signals (N,) of valid transitions as the networks learn them."""
        deviation = float(signal.std())
        if not self.config.normalize_reward or deviation == 0:
            return signal
        self.kept["reward_deviation"] = deviation
        return signal / deviation

    def _choose(self, outputs: Tensor, deterministic: bool) -> Tensor:
        """Actions in [-1, 1], or numbers whose largest is the action, (B, A), from what the policy gives."""
        if deterministic:
            return outputs
        if self.discrete:
            # With Gumbel noise, -log of an exponential variable, the largest is a sample.
            waiting = torch.empty_like(outputs).exponential_(generator=self._generator)
            return outputs - waiting.clamp_(min=1e-30).log_()
        noise = torch.empty_like(outputs).normal_(generator=self._generator)
        return outputs + self.net.deviation_log().exp() * noise


class NormalizedInputs(nn.Module):
    """A network that knows the mean and deviation (D,) of what it reads."""

    mean: Tensor
    std: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))

    def fit(self, rows: Tensor, correction: int = 0) -> None:
        """Learn the moments of rows (N, D)."""
        self.mean.copy_(rows.mean(0))
        self.std.copy_(rows.std(0, correction=correction).clamp(min=1e-3))

    def whiten(self, vector: Tensor) -> Tensor:
        return ((vector - self.mean) / self.std).clamp(-CLIP, CLIP)


class _Networks(NormalizedInputs):
    """Two Q(s, a), V(s) and a policy, side by side as one stack of four, since small networks cost by the call.

    The policy gives logits, or the mean, in [-1, 1] with `squash`, of a Gaussian with one deviation for all states.
    """

    reads: Tensor

    def __init__(self, encoding: SpaceEncoding, net_arch: list[int], squash: bool) -> None:
        width = encoding.obs_size
        actions = encoding.action_size
        super().__init__(width)
        self.discrete = encoding.discrete
        self.squash = squash and not encoding.discrete
        # Discrete actions choose among Q's outputs, others are among its inputs.
        first = width if self.discrete else width + actions
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for inputs, outputs in itertools.pairwise([first, *net_arch, actions]):
            weight = torch.empty(4, inputs, outputs).uniform_(-1, 1)
            bias = torch.empty(4, 1, outputs).uniform_(-1, 1)
            self.weights.append(nn.Parameter(weight / math.sqrt(inputs)))
            self.biases.append(nn.Parameter(bias / math.sqrt(inputs)))
        self.log_std = nn.Parameter(torch.zeros(actions), requires_grad=not self.discrete)
        # V and the policy do not read the action.
        reads = torch.ones(4, 1, first)
        reads[2:, :, width:] = 0
        self.register_buffer("reads", reads, persistent=False)

    def layers(self, nets: slice = slice(None)) -> Layers:
        """Of some of the networks, as views."""
        return [(weight[nets], bias[nets]) for weight, bias in zip(self.weights, self.biases)]

    def inputs(self, obs: Tensor, action: Tensor, nets: slice = slice(None)) -> Tensor:
        """(K, B, in)."""
        if not self.discrete:
            obs = torch.cat([obs, action], -1)
        return obs * self.reads[nets]

    def forward(self, obs: Tensor, action: Tensor, nets: slice = slice(None)) -> Tensor:
        """(K, B, out)."""
        return run(self.layers(nets), self.inputs(obs, action, nets))

    def q(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Q of recorded actions, (K, B, 1), from outputs (K, B, A)."""
        if self.discrete:
            return (outputs * action).sum(-1, keepdim=True)
        return outputs[..., :1]

    def policy(self, outputs: Tensor) -> Tensor:
        return torch.tanh(outputs) if self.squash else outputs

    def deviation_log(self) -> Tensor:
        """The logarithm of the Gaussian's deviation, (A,)."""
        return self.log_std.clamp(MIN_IQL_LOG_STD, MAX_IQL_LOG_STD)

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        """Log-probability of recorded actions, up to a constant; (B, 1)."""
        if self.discrete:
            log_probs = torch.log_softmax(policy, -1)
            return (log_probs * action).sum(-1, keepdim=True)
        log_std = self.deviation_log()
        scaled = (action - policy) * torch.exp(-log_std)
        return -(0.5 * scaled.square() + log_std).sum(-1, keepdim=True)


def run(layers: Layers, x: Tensor) -> Tensor:
    """(K, B, in) through K networks -> (K, B, out)."""
    for weight, bias in layers[:-1]:
        x = torch.baddbmm(bias, x, weight).relu_()
    weight, bias = layers[-1]
    return torch.baddbmm(bias, x, weight)
