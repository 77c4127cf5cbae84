"""Self-imitation: finished episodes that went well are learned from again, for as long as they beat what is expected.

    after a rollout, `imitate_updates` times, on rows drawn in proportion to clip(gain, 0, 1)^0.6:
    L = mean over gain > 0 and surprise <= cap of   -clip(gain, 0, 1) log pi(a | s) - entropy_weight H
      + mean over gain > 0 of                       0.01 (V - R)^2 / 4 where R - 1 < V < R

    surprise    for each number of an action: -log p of a discrete one, z^2 / 2 of a Gaussian one

    imitate_baseline=value    gain = R - V(s); an episode enters if a goal was rewarded in it (SIL)
    imitate_baseline=median   gain = R(s_0) - the median of the last 512 episodes; it enters if that is above 0 (SPEAR)

Transitions are stored, not returns: a learned reward scores as many of them again as each rollout brings, in turn; what
remembers the episode keeps its score. R adds up goals alone: a bonus is not to be imitated.

Sources: Oh et al. 2018, "Self-Imitation Learning", arXiv 1806.05635, equations 1 to 3; "Learn the Ropes, Then Trust the
Wins" (SPEAR) 2025: the median, the age, the curriculum, here by schedules. Differences: the cap stops the gradient,
where theirs (100) stops none; the value's gradient is that of their code, half of the paper's; no importance weights
undo the priorities; gains are known of 4,096 random rows a rollout; a truncated episode goes on with the value of its
last state; Adam's moments are its own, so their loss weight of 0.1 is here a learning rate.
Fails when: the world is random, where luck is imitated; nothing is ever rewarded; everything is (take `median`).
"""

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import mask_outputs
from agents.ppo.extensions import credit_of, is_average
from agents.ppo.seams import Extra, ScoredRollout
from agents.ppo.update import TorchUpdate
from agents.replay.demonstrations import goals
from envs.transitions import Transitions, index_obs, join, map_obs
from lodestar.numerics.descent import Flat
from lodestar.numerics.returns import returns
from lodestar.settings import Schedule

if TYPE_CHECKING:
    from agents.ppo.agent import PPO

# Rows of the buffer, of those whose gain is asked after a rollout, and of an update.
BUFFER_ROWS = 50_000
COMPARED_ROWS = 4096
UPDATE_ROWS = 512
# A loss is divided by at least so many rows.
MIN_DIVISOR_ROWS = 64
# Episodes of the median.
MEDIAN_EPISODES = 512
# Rows are drawn in proportion to their gain to this power.
PRIORITY_EXPONENT = 0.6
# Of the values' loss, beside the policy's.
VALUE_LOSS_WEIGHT = 0.01


class Compared(NamedTuple):
    """Rows (B,) of the buffer as the policy and its values see them now."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    # By how much what came is better than the baseline; no gradient.
    gain: Tensor
    # Bool: of those with a gain, the ones whose action is not too rare for the policy.
    imitated: Tensor


class Imitation(Extra):
    """The buffer and its updates; a ValueError where no stream is a goal, or one is no sum of rewards."""

    saved = ("rows", "pending", "recent", "adam", "rng", "_turn")

    def __init__(self, agent: "PPO") -> None:
        scorer: Any = agent.scorer
        self.config = agent.config
        self.scorer = scorer
        self.names = goals(scorer)
        if any(credit_of(scorer.streams[name]) != "sum" for name in self.names):
            raise ValueError("agent.imitate compares sums of rewards; leave credit=min and soft_min out")
        if any(is_average(scorer.streams[name]) for name in self.names):
            raise ValueError("agent.imitate compares discounted returns of episodes; leave gamma=average out")
        streams = list(scorer.streams)
        self.columns = [streams.index(name) for name in self.names]
        self.gamma = agent.gamma[self.columns]
        # Of the learning rate over PPO's, and Adam with moments of its own.
        self.rate = Schedule(self.config.imitate)
        self.adam = Flat(agent.flat.value)
        self.adam.grad = agent.flat.grad
        # A tree of (M, ...), episodes one after the other, the oldest first.
        self.rows: Any = None
        # The same of the running episodes, of one environment after another, and its column.
        self.pending: Any = None
        # Returns of the last episodes.
        self.recent: deque[float] = deque(maxlen=MEDIAN_EPISODES)
        self.rng = np.random.default_rng([agent.seed, 4])
        # The row that is scored again next.
        self._turn = 0

    def after_update(self, agent: "PPO", scored: ScoredRollout) -> dict[str, float]:
        """Take in a rollout (T, N) of the agent, then learn from the buffer; returns tags of the log."""
        weights = self.scorer.weights(scored.timesteps)
        goal_weights = [float(weights[name]) for name in self.names]
        self.weights = np.array(goal_weights, np.float32)
        self._add_rollout(scored)
        count = 0 if self.rows is None else len(self.rows["age"])
        metrics = {"train/imitation_rows": float(count)}
        rate = agent.learner.learning_rate * float(self.rate(scored.timesteps))
        if not count or not rate:
            return metrics
        self._rescore(scored.transitions.terminated.size)
        return metrics | self._learn(agent.autograd, count, rate)

    def _learn(self, learner: TorchUpdate, count: int, rate: float) -> dict[str, float]:
        """Updates on rows drawn by their gain, of some of the buffer's `count` rows; tags."""
        some = self.rng.permutation(count)[:COMPARED_ROWS]
        _, self.rows["worth"] = self._score(self.rows)
        columns = {**self.rows, "batch": None, "raw": None}
        rows = index_obs(columns, some)
        with torch.no_grad():
            compared = self._compare(learner, rows)
        gain = compared.gain.cpu().numpy()
        priority = gain.clip(1e-6, 1).astype(np.float64) ** PRIORITY_EXPONENT
        probability = priority / priority.sum()
        losses = []
        for _ in range(self.config.imitate_updates):
            index = self.rng.choice(len(some), UPDATE_ROWS, p=probability)
            drawn = index_obs(rows, index)
            losses.append(self.step(learner, drawn, rate))
        imitated_share = compared.imitated.float().mean()
        return {
            "train/imitation_loss": float(torch.stack(losses).mean()),
            "train/imitated": float(imitated_share),
        }

    def _compare(self, learner: TorchUpdate, rows: Any) -> Compared:
        """What the policy and its values are at rows (B, ...), and which of them have something to teach."""
        net = learner.net
        inputs = learner.observation_tensors(rows["vector"], rows["pixels"])
        outputs, values = net(*inputs)
        outputs = mask_outputs(outputs, rows["mask"])
        action = learner.tensor(rows["action"])
        log_prob, entropy = net.actions.log_prob(outputs, net.log_std, action)
        value = values[:, self.columns] @ learner.tensor(self.weights)
        if self.config.imitate_baseline == "median":
            above_median = rows["episode"] - np.median(self.recent)
            gain = learner.tensor(above_median.astype(np.float32))
        else:
            gain = learner.tensor(rows["worth"]) - value.detach()
        surprise = net.actions.surprise(outputs, net.log_std, action)
        is_near = surprise <= self.config.imitate_cap
        return Compared(log_prob, entropy, value, gain, imitated=(gain > 0) & is_near)

    def step(self, learner: TorchUpdate, rows: Any, rate: float) -> Tensor:
        """One gradient step on rows (B, ...); returns the loss, ()."""
        compared = self._compare(learner, rows)
        gain = compared.gain
        imitated = compared.imitated
        gained = -gain.clamp(0, 1) * compared.log_prob
        policy = gained - learner.entropy_weight * compared.entropy
        n_imitated = imitated.sum().clamp(min=MIN_DIVISOR_ROWS)
        policy_loss = policy[imitated].sum() / n_imitated
        # The gradient of (V - R)^2 / 4 where R - 1 < V < R.
        error = compared.value.detach() - learner.tensor(rows["worth"])
        below = error.clamp(-1, 0)
        value = 0.5 * VALUE_LOSS_WEIGHT * compared.value * below
        n_with_gain = (gain > 0).sum().clamp(min=MIN_DIVISOR_ROWS)
        value_loss = value.sum() / n_with_gain
        loss = policy_loss + value_loss
        return self.adam.descend(loss, rate, self.config.max_grad_norm)

    def _add_rollout(self, scored: ScoredRollout) -> None:
        """Keep the rows of a rollout, and of the episodes that ended in it those that are to be imitated."""
        rows = self._continue_pending(self._rows_of(scored), scored.transitions)
        columns = rows["column"]
        # Up to an environment's last end all its episodes are finished.
        ends = np.flatnonzero(Transitions(**rows["batch"]).ended)
        last_end = np.full(scored.transitions.shape[1], -1)
        last_end[columns[ends]] = ends
        is_finished = np.arange(len(columns)) <= last_end[columns]
        self.pending = index_obs(rows, ~is_finished)

        buffers = []
        if self.rows is not None:
            self.rows["age"] += 1
            self.rows.pop("worth", None)
            buffers.append(self.rows)
        if is_finished.any():
            finished = index_obs(rows, is_finished)
            del finished["column"]
            buffers += self._select_episodes(finished)
        if buffers:
            rows = join(np.concatenate, buffers)
            max_age = self.config.imitate_max_age or np.inf
            newest = np.flatnonzero(rows["age"] < max_age)[-BUFFER_ROWS:]
            self.rows = index_obs(rows, newest)

    def _rows_of(self, scored: ScoredRollout) -> dict[str, Any]:
        """A rollout as rows (M, ...) of one environment after another, each with its `column`."""
        transitions = scored.transitions
        length, n = transitions.shape

        def on_host(x: Any) -> np.ndarray:
            host = torch.as_tensor(x).cpu().numpy()
            return host.reshape(length, n, *x.shape[1:])

        read = {
            "reward",
            "terminated",
            "truncated",
            "valid",
            "step",
            "extras",
            *self.scorer.requires,
        }
        out_of_time = (transitions.truncated & ~transitions.terminated)[..., None]
        tree: dict[str, Any] = {
            **{name: map_obs(on_host, getattr(scored.batch, name)) for name in ("vector", "pixels", "action", "mask")},
            "batch": {name: value if name in read else None for name, value in vars(transitions).items()},
            "raw": {name: scored.raw[name] for name in self.names},
            "tail": np.where(out_of_time, scored.collector.last_values[..., self.columns], np.float32(0)),
            "age": np.zeros((length, n), np.int64),
        }

        def by_environment(x: np.ndarray) -> np.ndarray:
            return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

        rows = map_obs(by_environment, tree)
        rows["column"] = np.repeat(np.arange(n), length)
        return rows

    def _continue_pending(self, rows: dict[str, Any], transitions: Transitions) -> dict[str, Any]:
        """The rows of a rollout behind those of the episodes that it goes on with."""
        if self.pending is None:
            return rows
        columns = self.pending["column"]
        last_step = np.full(transitions.shape[1], -2)
        # The newest row of a column is the last one written.
        last_step[columns] = self.pending["batch"]["step"]
        # An environment that was reset does not go on.
        goes_on = (transitions.step[0] == last_step + 1)[columns]
        pending = index_obs(self.pending, goes_on)
        rows = join(np.concatenate, [pending, rows])
        order = rows["column"].argsort(kind="stable")
        return index_obs(rows, order)

    def _select_episodes(self, rows: Any) -> list[Any]:
        """Of whole episodes (M, ...) those that are to be imitated, if any; one that was lost is not."""
        transitions = Transitions(**rows["batch"])
        episode = np.cumsum(transitions.ended) - transitions.ended
        lost_episodes = episode[transitions.ended & ~transitions.valid]
        is_whole = transitions.valid & ~np.isin(episode, lost_episodes)
        rows = index_obs(rows, is_whole)
        episode = episode[is_whole]
        if not len(episode):
            return []
        reward, worth = self._score(rows)
        _, first_row, place = np.unique(episode, return_index=True, return_inverse=True)
        self.recent.extend(worth[first_row].tolist())
        rows["episode"] = worth[first_row][place]
        if self.config.imitate_baseline == "median":
            is_good = rows["episode"] > np.median(self.recent)
        else:
            is_good = np.isin(episode, episode[reward > 0])
        if not is_good.any():
            return []
        return [index_obs(rows, is_good)]

    def _rescore(self, count: int) -> None:
        """Score `count` rows again, in turn, by the rewards as they are now; a stream with a memory keeps its score."""
        begin = self._turn
        if begin >= len(self.rows["age"]):
            begin = 0
        self._turn = begin + count
        some = slice(begin, self._turn)
        batch = Transitions(**index_obs(self.rows["batch"], some))
        for name in self.names:
            stream: Any = self.scorer.streams[name]
            # The stream of a scorer of one's own need not say whether it can.
            if getattr(stream, "relabelable", False) and not stream.has_memory:
                scores = stream.score(batch, None, again=True)[0]
                self.rows["raw"][name][some] = scores

    def _score(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rewards of the goals and returns, both weighted and summed, (M,)."""
        zeros = np.zeros(len(rows["age"]), np.float32)
        raw = dict.fromkeys(self.scorer.streams, zeros) | rows["raw"]
        scaled = self.scorer.scale_rewards(raw)
        rewards = [scaled[name] for name in self.names]
        reward = np.stack(rewards, -1)
        ends = rows["batch"]["terminated"] | rows["batch"]["truncated"]
        discounted = returns(reward, ends, rows["tail"], self.gamma)
        return reward @ self.weights, discounted @ self.weights
