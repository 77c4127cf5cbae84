"""What of PPO can be exchanged, and the rows that go from one part to the next.

    Learner      acts, and moves the weights                        autograd, compiled, boosted trees, Clip-Cov
    Estimator    rewards -> advantages (T, N, K)                    discounted sums, the least reward
    Combiner     advantages of K streams -> those of one policy     by weights, by their gradients
    Extra        what else is learnt from a rollout                 self-imitation, learned weights
    Penalty      a stream beside those of the reward                divergence from a reference policy
    RolloutSchedule   when to collect and when to learn             one after the other, overlapped

An extension imports the core, and not the other way round: `agents.ppo.extensions` maps settings to these classes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from torch import Tensor

from agents.networks.actor_critic import Actions, ActorCritic
from agents.ppo.config import PPOConfig
from envs.transitions import Transitions
from envs.types import Array
from lodestar.numerics.descent import Flat
from lodestar.settings import Schedule
from lodestar.state import Stateful

if TYPE_CHECKING:
    from agents.ppo.agent import PPO
    from agents.ppo.collector import Collector

# So many minibatches of the last epoch have their losses logged.
LOGGED_MINIBATCHES = 8
# Batches of fewer numbers stay in the cache: then all rows are shuffled at once, which is cheaper.
SHUFFLED_BATCH_NUMBERS = 2**18


@dataclass
class Targets:
    """What each row is learnt from, in one array, so that one gather takes a minibatch's; the names are views."""

    # float32 (..., 2 + K)
    rows: Any

    @classmethod
    def stack(cls, log_prob: np.ndarray, advantage: np.ndarray, returns: np.ndarray) -> Self:
        """From log-probabilities and advantages (T, N) and returns (T, N, K)."""
        columns = [log_prob[..., None], advantage[..., None], returns]
        return cls(np.concatenate(columns, -1, dtype=np.float32, casting="same_kind"))

    @property
    def log_prob(self) -> Any:
        """Of the action when it was chosen, (...)."""
        return self.rows[..., 0]

    @property
    def advantage(self) -> Any:
        """What the policy follows, (...)."""
        return self.rows[..., 1]

    @property
    def returns(self) -> Any:
        """What the K values learn, (..., K)."""
        return self.rows[..., 2:]

    def __getitem__(self, index: Any) -> "Targets":
        return Targets(self.rows[index])


@dataclass
class Batch:
    """A rollout as rows to learn from: M = T * N, or for a recurrent policy (T, M) sequences with their states."""

    # float32 (M, D), not normalised.
    vector: Any
    # uint8 (M, C, H, W).
    pixels: dict[str, Any]
    # (M, choices): int64, or float32 for a Gaussian.
    action: Any
    # (M, 2 + K).
    targets: Targets
    # bool (T, M), recurrent only: which rows are transitions.
    valid: Any = None
    # bool (T, M), recurrent only: an episode begins here.
    starts: Any = None
    # float32 (M, units), recurrent only: before the first row.
    hidden: Any = None
    # bool (M, outputs), the actions that were allowed; None where all were.
    mask: Any = None

    def reorder(self, order: np.ndarray) -> "Batch":
        """These rows of a batch without images and sequences, in this order, copied."""
        mask = None if self.mask is None else self.mask[order]
        action = self.action[order]
        return Batch(self.vector[order], {}, action, self.targets[order], mask=mask)


class Learner(ABC):
    """Acts, evaluates and learns with the weights of a network, which are those of `flat`, too."""

    # Whether `act` gives actions alone, and leaves values and log-probabilities to `evaluate`.
    deferred = False
    # (N, units) of a recurrent policy.
    hidden: Any = None

    def __init__(self, net: ActorCritic, flat: Flat, config: PPOConfig) -> None:
        self.net = net
        self.flat = flat
        self.config = config
        self.actions: Actions = net.actions
        self.device = flat.value.device
        self.follow(0, 1)

    def follow(self, timesteps: int, total_timesteps: int) -> None:
        """Take what the schedules of the settings say after so many environment steps."""

        def scheduled_value(name: str) -> float:
            setting = getattr(self.config, name)
            if isinstance(setting, int | float):
                return float(setting)
            return float(Schedule(setting, self.config.prefix + name, total_timesteps)(timesteps))

        self.learning_rate = scheduled_value("learning_rate")
        if self.config.anneal:
            self.learning_rate *= max(1 - timesteps / total_timesteps, 0.0)
        self.clip_range = scheduled_value("clip_range")
        self.entropy_weight = scheduled_value("entropy_weight")
        if self.config.actor_from and timesteps <= self.config.actor_from:
            # Advantages are zero so far, and more entropy would move the policy all the same.
            self.entropy_weight = 0.0

    @abstractmethod
    def act(self, vector: Any, pixels: Any, noise: np.ndarray, mask: Any = None, *memory: Any) -> Any:
        """Actions (B, choices); unless `deferred` a tuple of these, values (B, K) and log-probabilities (B,)."""

    @abstractmethod
    def evaluate(self, vector: Any, pixels: Any, action: Any, mask: Any = None) -> tuple[Array, Array]:
        """Values (M, K) of observations, and log-probabilities of the first len(action) rows."""

    @abstractmethod
    def update(self, batch: Batch, rows: Any, measure: bool = False) -> dict[str, float]:
        """One gradient step on the rows (B,) of a batch; with `measure`, also what it looked like before it."""

    def begin_rollout(self) -> None:  # noqa: B027
        """Until the next call weights stay as they are."""

    def begin_update(self, batch: Batch) -> Batch:
        """What `update` gets until `end_update`."""
        return batch

    def end_update(self) -> None:  # noqa: B027
        """Put back what `begin_update` set aside."""

    def run_epochs(
        self, batch: Batch, orders: list[np.ndarray], rows_a_batch: int, learned_rows: int
    ) -> list[dict[str, float]]:
        """Learn from the rows (or sequences) of a batch, in each of these orders; metrics of some last minibatches.

        `learned_rows` is how many rows were learnt from before, counted once an epoch.
        """
        batch = self.begin_update(batch)
        target_kl = self.config.target_kl
        # With a target each epoch is a call of its own, as every one is measured.
        calls = [[order] for order in orders] if target_kl else [orders]
        for epochs in calls:
            measured = self._run_minibatches(batch, epochs, rows_a_batch, learned_rows)
            if target_kl and np.mean([metrics["approx_kl"] for metrics in measured]) > target_kl:
                break
        self.end_update()
        return measured

    def _run_minibatches(
        self, batch: Batch, orders: list[np.ndarray], rows_a_batch: int, learned_rows: int
    ) -> list[dict[str, float]]:
        is_small = math.prod(batch.vector.shape) < SHUFFLED_BATCH_NUMBERS
        shuffle_all = is_small and not batch.pixels and not self.config.gru
        minibatches_between = max(len(orders[0]) // rows_a_batch // LOGGED_MINIBATCHES, 1)
        measured: list[dict[str, float]] = []
        for epoch, order in enumerate(orders):
            shuffled = batch.reorder(order) if shuffle_all else batch
            for begin in range(0, len(order), rows_a_batch):
                minibatch: Any = order[begin : begin + rows_a_batch]
                if shuffle_all:
                    minibatch = slice(begin, begin + len(minibatch))
                is_logged = begin // rows_a_batch % minibatches_between == 0
                measure = is_logged and epoch == len(orders) - 1
                metrics = self.update(shuffled, minibatch, measure)
                if measure:
                    measured.append(metrics)
        return measured


@dataclass
class ScoredRollout:
    """A rollout (T, N) that the reward has scored, and what comes of it on the way to the policy's update."""

    collector: "Collector"
    # Environment steps at its end.
    timesteps: int
    transitions: Transitions
    # Raw scores by stream, (T, N).
    raw: dict[str, Array]
    # (T, 1): environment steps before each row.
    row_timesteps: Array
    # (T, N, K): what the streams' values predict, and how much each advantage counts.
    rewards: Array
    weights: Array
    # Bool (K,): the streams that have been other than zero.
    seen: Array
    # (T, N, K), once they are estimated.
    advantages: Any = None
    # The rows to learn from, and which of them are transitions; for a recurrent policy all sequences.
    batch: Any = None
    rows: Any = None
    # Stream -> its policy gradient (P,) before the update, on some of the rows; none where nobody looked.
    gradients: dict[str, Tensor] = field(default_factory=dict)
    gradient_rows: Any = None


class GAEInputs(NamedTuple):
    """What advantages are estimated from: rewards, values, the ends of episodes, and discounts of K streams."""

    # (T, N, K).
    rewards: np.ndarray
    # (T + 1, N, K), row T after the rollout.
    values: np.ndarray
    # (T, N, K), of a truncated episode's true last observation.
    last_values: np.ndarray
    # Bool (T, N).
    terminated: np.ndarray
    truncated: np.ndarray
    # Bool (T, N): which rows are transitions. One that is not but is truncated has lost an episode.
    valid: np.ndarray
    # (K,).
    gamma: np.ndarray
    gae_lambda: float
    # Bool (K,): the streams that end with their episodes.
    episodic: np.ndarray

    def select_streams(self, columns: list[int]) -> Self:
        """The same of some streams."""
        return self._replace(
            rewards=self.rewards[..., columns],
            values=self.values[..., columns],
            last_values=self.last_values[..., columns],
            gamma=self.gamma[columns],
            episodic=self.episodic[columns],
        )


# Gives advantages (T, N, K); `advantages` is the default.
Estimator = Callable[[GAEInputs], Array]


def advantages(inputs: GAEInputs) -> np.ndarray:
    """Generalised advantage estimates (T, N, K) of every stream; returns are advantages + values[:-1].

        delta_t = r_t + gamma * V(s_{t+1}) - V(s_t)         A_t = delta_t + gamma * lambda * A_{t+1}

    An episodic stream ends with its episode: after a termination V is 0, where time ran out V is that of the true last
    observation. One that is not continues into the next episode: dying must not look expensive to curiosity.

    A row that is not `valid` has advantage 0 and is passed over; if it is truncated, an episode was lost there: the row
    before is bootstrapped with its next observation.
    """
    length, n, streams = inputs.rewards.shape
    terminated = inputs.terminated
    truncated = inputs.truncated
    valid = inputs.valid
    all_valid = valid.all()
    lost = truncated & ~valid
    next_values = inputs.values[1:]
    if not all_valid:
        # What follows a row that only resets is what follows its successor.
        next_values = next_values.copy()
        for t in reversed(range(length - 1)):
            counts = (valid | lost)[t + 1][:, None]
            next_values[t] = np.where(counts, next_values[t], next_values[t + 1])

    ended = (terminated | truncated) & valid
    stops = ended[..., None] & inputs.episodic
    out_of_time = (truncated & ~terminated)[..., None]
    end_values = np.where(out_of_time, inputs.last_values, np.float32(0))
    next_values = np.where(stops, end_values, next_values)
    delta = inputs.rewards + inputs.gamma * next_values - inputs.values[:-1]
    decay = np.where(stops, 0.0, inputs.gamma * inputs.gae_lambda)
    decay = decay.astype(np.float32)
    if not all_valid:
        # A row that is no transition hands on what follows it, but not across a lost episode.
        delta[~valid] = 0.0
        decay[~valid] = 1.0
        decay[:-1][lost[1:]] = 0.0

    # The sum backwards in time, of all environments and streams at once.
    decay = decay.reshape(length, n * streams)
    sums = delta.astype(np.float32).reshape(length, n * streams)
    discounted = np.empty(n * streams, np.float32)
    for t in range(length - 2, -1, -1):
        np.multiply(decay[t], sums[t + 1], out=discounted)
        np.add(sums[t], discounted, out=sums[t])
    result = sums.reshape(length, n, streams)
    if all_valid:
        return result
    return np.where(valid[..., None], result, np.float32(0))


class Combiner(Stateful):
    """What several streams mean for one policy; this one adds them up by their weights."""

    # Whether it reads the streams' gradients.
    needs_gradients = False

    def __init__(self) -> None:
        # Tags of the last rollout.
        self.metrics: dict[str, float] = {}

    def combine(self, scored: ScoredRollout) -> Array:
        """The advantage (T, N) that the policy follows, A = sum_k weight_k A_k, of streams that have been seen."""
        seen = scored.seen.astype(np.float32)
        return np.einsum("tnk,tnk,k->tn", scored.advantages, scored.weights, seen)


class Extra(Stateful, ABC):
    """What else is learnt from a rollout, after the policy's update."""

    # Whether it reads the streams' gradients.
    needs_gradients = False

    @abstractmethod
    def after_update(self, agent: "PPO", scored: ScoredRollout) -> dict[str, float]:
        """Learn from a rollout; returns metrics by tag."""


class Penalty(Stateful, ABC):
    """A stream that the agent adds to those of its reward."""

    # What its advantage counts.
    weight: float

    @staticmethod
    @abstractmethod
    def stream(config: PPOConfig) -> Any:
        """Discount and end of its return: an object with `gamma` and `episodic`."""

    @abstractmethod
    def reward(self, agent: "PPO", collector: "Collector", valid: Array) -> Array:
        """Its reward of a rollout, float32 (T, N), 0 where a row is not `valid`."""


class RolloutSchedule(Stateful):
    """When a rollout is collected, and when it is learnt from: here one after the other."""

    def network_to_train(self, policy: ActorCritic) -> ActorCritic:
        """The network whose weights move: the one that acts."""
        return policy

    def set_up(self, agent: "PPO") -> None:
        """Once, when the agent has its collector."""

    def finish(self, agent: "PPO") -> None:
        """Learn from what has been collected, as episodes begin anew."""

    def collect(self, agent: "PPO", after_row: Callable[[int], bool]) -> bool:
        """Fill the collector's rollout; False if `after_row` stopped it."""
        is_whole = agent.collector.collect(after_row)
        if is_whole:
            agent.collector.evaluate()
        return is_whole

    def learn(self, agent: "PPO") -> dict[str, Any]:
        """Learn from a rollout; returns what callbacks see of it."""
        return agent.learn_from(agent.collector, agent.num_timesteps)

    def end_rollout(self, agent: "PPO") -> None:
        """Let the rewards learn, and make room for the next rollout."""
        agent.record(agent.teach(agent.collector))
        agent.collector.roll()
