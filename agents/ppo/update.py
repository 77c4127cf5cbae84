"""The update of PPO by torch's autograd, for every network and device.

`StreamGradients` takes the policy gradient of every stream on part of a rollout: it is logged, and extensions decide
by it.

    L = -min(ratio A, clip(ratio) A) + value_weight sum_k (V_k - R_k)^2 - entropy_weight H

Source: Schulman et al. 2017, arXiv 1707.06347, equations 7 and 9. Difference: the values' errors are
added over streams. `agents.ppo.numpy_update` is the same several times faster, for small networks.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import cosines, mask_outputs, stream_gradients
from agents.ppo.seams import Batch, Learner, ScoredRollout, Targets
from envs.transitions import index_obs, map_obs
from lodestar.numerics.compiled import warn_once

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

# Rows that gradients are taken on: where they are only logged, and where something is decided by them.
LOGGED_GRADIENT_ROWS = 256
DECIDING_GRADIENT_ROWS = 1024
# What gradients that are only logged may cost of an update's time.
MAX_COST_SHARE = 0.025


class TorchUpdate(Learner):
    """Acts, evaluates and learns with torch; on the CPU it takes and gives NumPy arrays."""

    def tensor(self, x: Any) -> Tensor:
        return torch.as_tensor(x, device=self.device)

    def observation_tensors(self, vector: Any, pixels: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        return self.tensor(vector), map_obs(self.tensor, pixels)

    def start(self, n: int) -> None:
        """Empty the memory of a recurrent policy in N environments."""
        assert self.net.gru is not None
        shape = (n, self.net.gru.hidden_size)
        self.hidden = torch.zeros(shape, device=self.device)

    @torch.no_grad()
    def choose(
        self,
        vector: Any,
        pixels: Any,
        noise: Any,
        mask: Any = None,
        group: slice = slice(None),
        starts: Any = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions (B, choices), values (B, K), log-probabilities (B,) of some environments.

        Where an episode `starts`, bool (B,), a recurrent policy's memory is emptied.
        """
        net = self.net
        inputs = self.observation_tensors(vector, pixels)
        features = net.features(*inputs)
        if net.gru is not None:
            memory = self.hidden[group]
            empty = self.tensor(starts)[None]
            unrolled, self.hidden[group] = net.unroll(features[None], memory, empty)
            features = unrolled[0]
        outputs, values = net.heads(features)
        outputs = mask_outputs(outputs, mask)
        action = self.actions.sample(outputs, net.log_std, self.tensor(noise))
        log_prob, _ = self.actions.log_prob(outputs, net.log_std, action)
        return action, values, log_prob

    def act(self, vector: Any, pixels: Any, noise: np.ndarray, mask: Any = None, *memory: Any) -> tuple[Any, ...]:
        """As `choose`, on the host."""
        chosen = self.choose(vector, pixels, noise, mask, *memory)
        return tuple(x.cpu().numpy() for x in chosen)

    @torch.no_grad()
    def values(self, vector: Any, pixels: Any, hidden: Tensor | None = None) -> np.ndarray:
        """Values (B, K) of observations; a recurrent policy looks at them from `hidden` (B, units)."""
        inputs = self.observation_tensors(vector, pixels)
        features = self.net.features(*inputs)
        if self.net.gru is not None:
            assert hidden is not None
            starts = torch.zeros(1, len(features), dtype=torch.bool, device=self.device)
            unrolled, _ = self.net.unroll(features[None], hidden, starts)
            features = unrolled[0]
        _, values = self.net.heads(features)
        return values.cpu().numpy()

    @torch.no_grad()
    def evaluate(self, vector: Any, pixels: Any, action: Any, mask: Any = None) -> tuple[np.ndarray, np.ndarray]:
        inputs = self.observation_tensors(vector, pixels)
        outputs, values = self.net(*inputs)
        host_values = values.cpu().numpy()
        if action is None:
            return host_values, np.empty(0, np.float32)
        outputs = mask_outputs(outputs[: len(action)], mask)
        chosen = self.tensor(action)
        log_prob, _ = self.actions.log_prob(outputs, self.net.log_std, chosen)
        return host_values, log_prob.cpu().numpy()

    def begin_update(self, batch: Batch) -> Batch:
        if self.config.path == "numba":
            networks = "fully connected networks without memory or images, on the CPU"
            warn_once("PPO's update", f"torch, as agent.path=numba is for {networks}")
        return batch

    def update(self, batch: Batch, rows: Any, measure: bool = False) -> dict[str, float]:
        config = self.config
        self.flat.grad.zero_()
        outputs, values, action, targets = self._forward(batch, rows)
        log_prob, entropy = self.actions.log_prob(outputs, self.net.log_std, action)

        # Normalise the advantage over the minibatch.
        advantage = targets.advantage - targets.advantage.mean()
        deviation = advantage.norm() / max(len(advantage) - 1, 1) ** 0.5
        advantage /= deviation + 1e-8

        log_ratio = log_prob - targets.log_prob
        ratio = torch.exp(log_ratio)
        surrogate = self.surrogate(advantage, ratio, log_prob)
        value_loss = (values - targets.returns).square().sum(-1).mean()
        entropy_bonus = self.entropy_weight * entropy.mean()
        loss = config.value_weight * value_loss - surrogate.mean() - entropy_bonus
        loss.backward()

        metrics: dict[str, float] = {}
        if measure:
            metrics["policy_loss"] = -float(surrogate.detach().mean())
            metrics["value_loss"] = float(value_loss.detach())
            metrics["entropy"] = float(entropy.detach().mean())
            change = ratio.detach() - 1
            is_clipped = change.abs() > self.clip_range
            metrics["approx_kl"] = float((change - log_ratio.detach()).mean())
            metrics["clip_fraction"] = float(is_clipped.float().mean())
        self._descend()
        return metrics

    def surrogate(self, advantage: Tensor, ratio: Tensor, log_prob: Tensor) -> Tensor:
        """What each row (B,) adds to the policy's objective, equation 7."""
        clipped_ratio = ratio.clamp(1 - self.clip_range, 1 + self.clip_range)
        return torch.minimum(advantage * ratio, advantage * clipped_ratio)

    def _descend(self) -> None:
        self.flat.step(self.learning_rate, self.config.max_grad_norm)

    def log_prob_and_advantages(self, batch: Batch, rows: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities (B,), functions of the weights; those when acting; advantages (B, K) by today's values.

        Of some rows, for a recurrent policy of sequences.
        """
        outputs, values, action, targets = self._forward(batch, rows)
        log_prob, _ = self.actions.log_prob(outputs, self.net.log_std, action)
        advantage = targets.returns - values.detach()
        return log_prob, targets.log_prob, advantage - advantage.mean(0)

    def _forward(self, batch: Batch, rows: Any) -> "_Forward":
        """Of rows (B,), for a recurrent policy of sequences."""
        if self.net.gru is not None:
            return self._forward_sequences(batch, rows)
        index = rows
        if not isinstance(rows, slice):
            index = self.tensor(rows)
        outputs, values = self._outputs(batch, index)
        if batch.mask is not None:
            mask = self.tensor(batch.mask)[index]
            outputs = mask_outputs(outputs, mask)
        action = self.tensor(batch.action)[index]
        targets = self.tensor(batch.targets.rows)[index]
        return _Forward(outputs, values, action, Targets(targets))

    def _outputs(self, batch: Batch, index: Any) -> tuple[Tensor, Tensor]:
        vector, pixels = self.observation_tensors(batch.vector, batch.pixels)
        return self.net(vector[index], index_obs(pixels, index))

    def _forward_sequences(self, batch: Batch, columns: Any) -> "_Forward":
        def rows_of(x: Any) -> Tensor:
            """Of (T, M, ...) the sequences `columns`, one row after another, (T * B, ...)."""
            return self.tensor(x[:, columns]).flatten(0, 1)

        length = batch.starts.shape[0]
        images = map_obs(rows_of, batch.pixels)
        features = self.net.features(rows_of(batch.vector), images)
        starts = self.tensor(batch.starts[:, columns])
        hidden = batch.hidden[self.tensor(columns)]
        features = features.view(length, len(columns), -1)
        unrolled, _ = self.net.unroll(features, hidden, starts)
        outputs, values = self.net.heads(unrolled.flatten(0, 1))
        if batch.mask is not None:
            outputs = mask_outputs(outputs, rows_of(batch.mask))
        # Rows that only reset an environment teach nothing.
        rows = torch.nonzero(rows_of(batch.valid)).flatten()
        action = rows_of(batch.action)[rows]
        targets = rows_of(batch.targets.rows)[rows]
        return _Forward(outputs[rows], values[rows], action, Targets(targets))


class _Forward(NamedTuple):
    """What the network gives for rows of a batch, and what they have to learn."""

    # Of the policy, (B, outputs), and (B, K).
    outputs: Tensor
    values: Tensor
    # (B, choices).
    action: Tensor
    targets: Targets


class StreamGradients:
    """Takes the gradients of K > 1 streams: every rollout where something is decided by them, else now and then."""

    def __init__(self, agent: "PPO", decide: bool) -> None:
        config = agent.config
        self.learner = agent.autograd
        self.streams = list(agent.streams)
        # From one rollout whose gradients are taken to the next.
        self.every = 1
        self.rows = DECIDING_GRADIENT_ROWS
        if not decide:
            self.rows = LOGGED_GRADIENT_ROWS
            # In minibatches: a rollout's, and what the gradients cost, 8 for the first call of autograd.
            minibatches = config.n_epochs * agent.envs.num_envs * config.n_steps / config.batch_size
            passes = (1 + 2 * len(self.streams)) / 3
            cost = 8 + passes * self.rows / config.batch_size
            self.every = math.ceil(cost / (MAX_COST_SHARE * minibatches))
        if config.gru:
            # Of a recurrent policy sequences.
            self.rows = max(self.rows // config.sequence, 1)

    def measure(self, scored: ScoredRollout, batch: Batch) -> dict[str, float]:
        """Write the gradients into the rollout; returns tags `stream/<name>/cosine`."""
        rng = np.random.default_rng(scored.timesteps)
        scored.gradient_rows = rng.permutation(scored.rows)[: self.rows]
        log_prob, _, advantage = self.learner.log_prob_and_advantages(batch, scored.gradient_rows)
        seen = {name: advantage[:, column] for column, name in enumerate(self.streams) if scored.seen[column]}
        scored.gradients = stream_gradients(log_prob, seen, self.learner.net.policy_parameters())
        mean_weights = scored.weights.mean((0, 1)).tolist()
        return alignment(scored.gradients, dict(zip(self.streams, mean_weights)))


def alignment(gradients: Mapping[str, Tensor], weights: Mapping[str, float]) -> dict[str, float]:
    """Tags `stream/<name>/cosine` of the streams' gradients (P,) with the task's, or with the weighted sum's."""
    vectors = dict(gradients)
    reference = "task"
    if "task" not in weights and gradients:
        # No stream has this name.
        reference = ""
        weighted = [weights[name] * gradient for name, gradient in gradients.items()]
        vectors[reference] = torch.stack(weighted).sum(0)
    tags = {f"stream/{name}/cosine": math.nan for name in weights if name != "task"}
    if reference in vectors:
        table = cosines(vectors)
        tags |= {f"stream/{name}/cosine": table[name][reference] for name in gradients if name != "task"}
    return tags
