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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from agents.networks.actor_critic import masked
from agents.ppo.config import PPOConfig
from agents.replay.demonstrations import goals, returns
from envs.transitions import Transitions, join, map_obs
from lodestar.numerics.flat import Flat
from lodestar.settings import Schedule
from lodestar.state import Stateful

KEPT, COMPARED, ROWS = 50_000, 4096, 512  # rows: of the buffer, of those whose gain is asked, of an update
LEAST = 64  # rows that a loss is divided by
RECENT = 512  # episodes of the median
PRIORITY, VALUE = 0.6, 0.01  # exponent; weight in the loss


class Compared(NamedTuple):
    """Rows (B,) of the buffer as the policy and its values see them now."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    gain: Tensor  # by how much what came is better than the baseline; no gradient
    imitated: Tensor  # bool: of those with a gain, the ones whose action is not too rare for the policy


class Imitation(Stateful):
    """The buffer and its updates; a ValueError where no stream is a goal, or one is no sum of rewards."""

    saved = ("rows", "pending", "recent", "adam", "rng", "_turn")

    def __init__(self, config: PPOConfig, scorer: Any, flat: Flat, gamma: np.ndarray, seed: int) -> None:
        self.config, self.scorer, self.names, streams = config, scorer, goals(scorer), list(scorer.streams)
        if any(getattr(scorer.streams[name], "credit", "sum") != "sum" for name in self.names):
            raise ValueError("agent.imitate compares sums of rewards; leave credit=min and soft_min out")
        self.columns = [streams.index(name) for name in self.names]
        self.gamma, self.weight, self.adam = gamma[self.columns], Schedule(config.imitate), Flat(flat.value)
        self.rows: Any = None  # a tree of (M, ...), episodes one after the other, the oldest first
        self.pending: Any = None  # the same of the running episodes, of one environment after another, and its column
        self.recent: deque[float] = deque(maxlen=RECENT)  # returns of the last episodes
        self.rng = np.random.default_rng([seed, 4])
        self._turn = 0

    def __call__(
        self, agent: Any, collector: Any, timesteps: int, batch: Transitions, raw: dict[str, Any]
    ) -> dict[str, float]:
        """Take in a rollout (T, N) of the agent, then learn from what is kept; returns tags of the log."""
        learner, every = agent.autograd, self.scorer.weights(timesteps)
        self.weights = np.array([float(every[name]) for name in self.names], np.float32)
        self._take(collector, batch, raw)
        count = 0 if self.rows is None else len(self.rows["age"])
        metrics = {"train/imitation_rows": float(count)}
        rate = agent.learner.learning_rate * float(self.weight(timesteps))
        if not count or not rate:
            return metrics
        self._rescore(batch.terminated.size)
        some = self.rng.permutation(count)[:COMPARED]
        self.rows["worth"] = self._score(self.rows)[1]
        rows = map_obs(lambda x: x[some], {**self.rows, "batch": None, "raw": None})
        with torch.no_grad():
            compared = self._compare(learner, rows)
        gain = compared.gain.cpu().numpy()
        priority = gain.clip(1e-6, 1).astype(np.float64) ** PRIORITY
        losses = []
        for _ in range(self.config.imitate_updates):
            index = self.rng.choice(len(some), ROWS, p=priority / priority.sum())
            losses.append(self.step(learner, map_obs(lambda x: x[index], rows), rate))  # noqa: B023
        metrics["train/imitation_loss"] = float(torch.stack(losses).mean())
        metrics["train/imitated"] = float(compared.imitated.float().mean())
        return metrics

    def _compare(self, learner: Any, rows: Any) -> "Compared":
        """What the policy and its values are at rows (B, ...), and which of them have something to teach."""
        net = learner.net
        outputs, values = net(*learner._rows(rows["vector"], rows["pixels"]))
        outputs = masked(outputs, rows["mask"])
        action = learner.tensor(rows["action"])
        log_prob, entropy = net.actions.log_prob(outputs, net.log_std, action)
        value = values[:, self.columns] @ learner.tensor(self.weights)
        if self.config.imitate_baseline == "median":
            gain = learner.tensor((rows["episode"] - np.median(self.recent)).astype(np.float32))
        else:
            gain = learner.tensor(rows["worth"]) - value.detach()
        near = net.actions.surprise(outputs, net.log_std, action) <= self.config.imitate_cap
        return Compared(log_prob, entropy, value, gain, imitated=(gain > 0) & near)

    def step(self, learner: Any, rows: Any, rate: float) -> Tensor:
        """One gradient step on rows (B, ...); returns the loss, ()."""
        compared = self._compare(learner, rows)
        gain, value, imitated = compared.gain, compared.value, compared.imitated
        policy = -gain.clamp(0, 1) * compared.log_prob - self.config.entropy_weight * compared.entropy
        below = (value.detach() - learner.tensor(rows["worth"])).clamp(-1, 0)
        policy_loss = policy[imitated].sum() / imitated.sum().clamp(min=LEAST)
        value_loss = (0.5 * VALUE * value * below).sum() / (gain > 0).sum().clamp(min=LEAST)
        loss = policy_loss + value_loss
        learner.flat.grad.zero_()
        loss.backward()
        self.adam.grad.copy_(learner.flat.grad)
        self.adam.step(rate, self.config.max_grad_norm)
        return loss.detach()

    def _take(self, collector: Any, batch: Transitions, raw: dict[str, Any]) -> None:
        """Keep the rows of a rollout, and of the episodes that ended in it those that are to be imitated."""
        flat = collector.batch(np.zeros((*batch.shape, 0), np.float32))

        def host(x: Any) -> np.ndarray:
            return torch.as_tensor(x).cpu().numpy().reshape(*batch.shape, *x.shape[1:])

        read = {"reward", "terminated", "truncated", "valid", "step", "extras", *self.scorer.requires}
        late = (batch.truncated & ~batch.terminated)[..., None]
        tree: dict[str, Any] = {
            **{name: map_obs(host, getattr(flat, name)) for name in ("vector", "pixels", "action", "mask")},
            "batch": {name: value if name in read else None for name, value in vars(batch).items()},
            "raw": {name: raw[name] for name in self.names},
            "tail": np.where(late, collector.last_values[..., self.columns], np.float32(0)),
            "age": np.zeros(batch.shape, np.int64),
        }
        rows = map_obs(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), tree)  # of one environment after another
        rows["column"] = np.repeat(np.arange(batch.shape[1]), batch.shape[0])
        if self.pending is not None:
            known, step = self.pending["column"], self.pending["batch"]["step"]
            last = np.full(batch.shape[1], -2)
            last[known] = step  # the newest is the last one written
            goes_on = (batch.step[0] == last + 1)[known]  # or its environment was reset
            rows = join(np.concatenate, [map_obs(lambda x: x[goes_on], self.pending), rows])
            order = rows["column"].argsort(kind="stable")
            rows = map_obs(lambda x: x[order], rows)
        ends = np.flatnonzero(Transitions(**rows["batch"]).ended)
        last = np.full(batch.shape[1], -1)
        last[rows["column"][ends]] = ends
        whole = np.arange(len(rows["column"])) <= last[rows["column"]]
        self.pending = map_obs(lambda x: x[~whole], rows)
        finished = map_obs(lambda x: x[whole], rows)
        del finished["column"]
        kept = []
        if self.rows is not None:
            self.rows["age"] += 1
            self.rows.pop("worth", None)
            kept.append(self.rows)
        kept += self._chosen(finished) if whole.any() else []
        if kept:
            rows = join(np.concatenate, kept)
            young = np.flatnonzero(rows["age"] < (self.config.imitate_max_age or np.inf))[-KEPT:]
            self.rows = map_obs(lambda x: x[young], rows)

    def _chosen(self, rows: Any) -> list[Any]:
        """Of whole episodes (M, ...) those that are to be imitated, if any; one that was lost is not."""
        flags = Transitions(**rows["batch"])
        number = np.cumsum(flags.ended) - flags.ended
        whole = flags.valid & ~np.isin(number, number[flags.ended & ~flags.valid])
        rows, number = map_obs(lambda x: x[whole], rows), number[whole]
        if not len(number):
            return []
        reward, worth = self._score(rows)
        _, first, place = np.unique(number, return_index=True, return_inverse=True)
        self.recent.extend(worth[first].tolist())
        rows["episode"] = worth[first][place]
        median = self.config.imitate_baseline == "median"
        good = rows["episode"] > np.median(self.recent) if median else np.isin(number, number[reward > 0])
        return [map_obs(lambda x: x[good], rows)] if good.any() else []

    def _rescore(self, count: int) -> None:
        """Score `count` rows again, in turn, by the rewards as they are now; a stream with a memory keeps its score."""
        begin = self._turn if self._turn < len(self.rows["age"]) else 0
        some, self._turn = slice(begin, begin + count), begin + count
        batch = Transitions(**map_obs(lambda x: x[some], self.rows["batch"]))
        for name in self.names:
            stream: Any = self.scorer.streams[name]
            if getattr(stream, "relabelable", False) and not stream.has_memory:
                self.rows["raw"][name][some] = stream.score(batch, None, again=True)[0]

    def _score(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rewards of the goals and returns, both weighted and summed, (M,)."""
        others = dict.fromkeys(self.scorer.streams, np.zeros(len(rows["age"]), np.float32))
        scaled = self.scorer.scaled(others | rows["raw"])
        reward = np.stack([scaled[name] for name in self.names], -1)
        ends = rows["batch"]["terminated"] | rows["batch"]["truncated"]
        return reward @ self.weights, returns(reward, ends, rows["tail"], self.gamma) @ self.weights
