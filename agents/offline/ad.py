"""AD: a transformer imitates how an algorithm learned, task after task, and so learns a new task with frozen weights.

    token t    s_t, whether an episode begins with it, a_{t-1}, r_{t-1}       a_t is predicted from tokens 1 .. t

A history is a whole learning run on one task, in the order in which it was collected. Each task has another reward, so
a policy must find out from its context what is rewarded. The context spans episodes, both here and when it acts.
Sources: Laskin et al. 2022, "In-context Reinforcement Learning with Algorithm Distillation", arXiv 2210.14215;
Chen et al. 2025, "Filtering Learning Histories" (LHF), arXiv 2505.15143 (`agent.keep`). Differences: one token a step,
not three; LHF's improvement alone chooses histories, without its stability, and none is drawn more often than another.
When it fails: histories that do not improve, or are not in order; fewer tasks than tell the algorithm from its answers;
a task whose reward lies further back than `agent.context` steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agents.networks.sequence import Causal
from agents.offline.cloning import Cloning, CloningConfig, StretchLoss
from agents.offline.iql import NormalizedInputs
from envs.recording import episodes
from envs.transitions import Transitions
from envs.types import Obs
from lodestar.settings import setting

# (observations (B, ...), bool (B,): an episode begins, rewards of the last step (B,) or None) -> actions (B, ...).
Learner = Callable[[Obs, np.ndarray, np.ndarray | None], np.ndarray]


@dataclass
class ADConfig(CloningConfig):
    """Settings of `AD`; see `agents.offline.cloning` for those of continuous actions."""

    chunk: int = setting(1, "actions that are predicted together", "[1, 1]")
    context: int = setting(200, "steps that are seen, of several episodes", "[1, 10000]")
    every: int = setting(1, "of so many episodes of a history one is used, to learn faster than it", ">= 1")
    keep: float = setting(1.0, "share of histories used: where reward rose most from half to half", "(0, 1]")
    width: int = setting(64, "numbers of a token", ">= 1")
    layers: int = setting(2, "of the transformer", ">= 1")
    heads: int = setting(4, "of its attention, which share the width", ">= 1")
    batch_size: int = setting(32, "stretches of a history in a minibatch", ">= 1")
    net_arch: list[int] = setting([64], "continuous actions: units of the layers behind the transformer", ">= 1")


class AD(StretchLoss, Cloning):
    """Built and loaded as `IQL` is, from histories one after the other, whose number is `data.extras["task"]` (N,).

    To act it needs the reward of the last step, which a caller puts into the state that `predict` returned:
    `predict(obs, state | {"reward": reward}, episode_start)`. Only the state None forgets a task.
    """

    Config = ADConfig
    config: ADConfig
    # An algorithm that explores is imitated with its chance.
    mode = False

    def _networks(self) -> Any:
        head: Any = _Choice(self.config.width, self.own.action_size)
        if not self.own.discrete:
            head = self._make_head(self.config.width)
        return _Context(self.own.obs_size + self.own.action_size + 2, self.config, head)

    def _table(self, data: Transitions, signal: Any) -> Tensor:
        """The first row and the last of each stretch (M, 2), of a table of tokens and one of actions."""
        reward, data = self._select_valid(data, signal)
        if not reward.any():
            raise ValueError("every reward of the histories is 0, so that nothing tells tasks apart; record rewards")
        data = self._select_episodes(data.replace(reward=reward))
        action = self.own.encode(data.action)
        starts = _task_starts(data.extras["task"])
        ends = [*starts[1:], len(action)]
        # What came before a step; before a history's first there was nothing.
        before = np.concatenate([action, data.reward[:, None]], 1)
        before = np.roll(before, 1, 0)
        before[starts] = 0
        begins = data.step[:, None] == 0
        columns = np.concatenate([self.own.vector(data.obs), begins, before], 1, dtype=np.float32)
        tokens = torch.as_tensor(columns)
        self.net.fit(tokens)
        self._tokens = self.net.whiten(tokens.to(self.device))
        self._actions = self.tensor(action)
        stretches = []
        for start, end in zip(starts, ends):
            # A history that is shorter than the context is one stretch.
            last_first = max(end - self.config.context, start)
            firsts = np.arange(start, last_first + 1)
            last = np.full(len(firsts), end - 1)
            stretches.append(np.stack([firsts, last], 1))
        return self.tensor(np.concatenate(stretches))

    def _select_episodes(self, data: Transitions) -> Transitions:
        """Those of the histories that are kept, one of `every`; a ValueError if they are no histories."""
        task = data.extras.get("task")
        if task is None:
            raise ValueError('the data does not say which task a step is of; give each task a file, or extras["task"]')
        histories = _split_histories(data)
        gains = [_improvement(data.reward[history]) for history in histories]
        count = max(round(self.config.keep * len(histories)), 1)
        best = np.argsort(gains, kind="stable")[-count:]
        rows = []
        longest = 0
        for index in np.sort(best):
            start = histories[index].start
            # The rows of this history's episodes count from its own first one.
            for part in episodes(data[histories[index]])[:: self.config.every]:
                rows.append(np.arange(start + part.start, start + part.stop))
                longest = max(longest, part.stop - part.start)
        if self.config.context < longest:
            context = f"agent.context={self.config.context} is shorter than an episode of {longest} steps"
            raise ValueError(f"{context}, so that nothing is remembered; give several times as many")
        return data[np.concatenate(rows)]

    def _predict(self, obs: Obs, state: Any, starts: np.ndarray, deterministic: bool) -> tuple[np.ndarray, Any]:
        vector = self.own.vector(obs)
        count = len(vector)
        if state is None:
            before = np.zeros((count, self.own.action_size + 1), np.float32)
            window = np.zeros((count, 0, self.net.mean.shape[0]), np.float32)
            starts = np.ones(count, bool)
        elif "reward" not in state:
            raise ValueError('the reward of the last step is missing; give predict state | {"reward": reward}')
        else:
            reward = np.reshape(state["reward"], (count, 1))
            before = np.concatenate([state["action"], reward], 1)
            window = state["window"]
        token = np.concatenate([vector, starts[:, None], before], 1, dtype=np.float32)
        whitened = self.net.whiten(self.tensor(token))
        window = np.concatenate([window, whitened[:, None].cpu()], 1)
        # What lies further back than the context is forgotten.
        window = window[:, -self.config.context :]
        features = self.net(self.tensor(window))
        generator = None if deterministic else self._generator
        drawn = self.net.head.draw(features[:, -1], generator)
        action = self.own.decode(drawn.cpu().numpy())
        return action, {"window": window, "action": self.own.encode(action)}

    def learner(self) -> Learner:
        """A policy that begins to learn new tasks, one in each row of a batch, with these weights."""
        state: Any = None

        def act(obs: Obs, begins: np.ndarray, reward: np.ndarray | None) -> np.ndarray:
            nonlocal state
            if state is not None:
                state["reward"] = reward
            action, state = self.predict(obs, state, begins)
            return action

        return act


def _task_starts(task: np.ndarray) -> np.ndarray:
    """The first row of each history."""
    return np.flatnonzero(np.r_[True, task[1:] != task[:-1]])


def _split_histories(data: Transitions) -> list[slice]:
    """The rows of each history; a ValueError for histories that are not one after the other and in order."""
    task = data.extras["task"]
    starts = _task_starts(task)
    if len(starts) < 2:
        raise ValueError("histories of 1 task cannot show how tasks are told apart; give those of several")
    tasks = len(np.unique(task))
    if tasks < len(starts):
        raise ValueError(f"{tasks} tasks lie in {len(starts)} pieces; put each one's steps together")
    # A row either goes on with the episode of the row before, or begins one after an end.
    step = data.step[1:]
    ended = data.ended[:-1]
    goes_on = ~ended & (step == data.step[:-1] + 1)
    follows = goes_on | (ended & (step == 0))
    follows[starts[1:] - 1] = True
    broken = np.flatnonzero(~follows)
    if len(broken):
        row = broken[0] + 1
        raise ValueError(
            f"step {data.step[row]} follows step {data.step[row - 1]} in row {row} of task {task[row]}; "
            "give whole learning runs in the order in which they were collected"
        )
    ends = [*starts[1:], len(task)]
    return [slice(*rows) for rows in zip(starts, ends)]


def _improvement(reward: np.ndarray) -> float:
    """By how much the mean reward (T,) of the second half is above that of the first."""
    half = len(reward) // 2
    return float(reward[half:].mean() - reward[: max(half, 1)].mean())


class _Choice(nn.Module):
    """Logits of discrete actions, one-hot (B, A), from features (B, W)."""

    def __init__(self, width: int, actions: int) -> None:
        super().__init__()
        self.net = nn.Linear(width, actions)

    def loss(self, features: Tensor, action: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
        log_probs = torch.log_softmax(self.net(features), -1)
        return -(log_probs * action * counts).sum() / counts[:, 0].sum()

    def draw(self, features: Tensor, generator: torch.Generator | None) -> Tensor:
        """Numbers (B, A) whose largest is the action; without a generator the likeliest."""
        logits = self.net(features)
        if generator is None:
            return logits
        # With Gumbel noise, -log of an exponential variable, the largest is a sample.
        waiting = torch.empty_like(logits).exponential_(generator=generator)
        return logits - waiting.clamp_(min=1e-30).log_()


class _Context(NormalizedInputs):
    def __init__(self, inputs: int, config: ADConfig, head: nn.Module) -> None:
        super().__init__(inputs)
        self.head = head
        self.embed = nn.Linear(inputs, config.width)
        self.body = Causal(config.width, config.layers, config.heads, config.context)

    def forward(self, tokens: Tensor) -> Tensor:
        """Whitened tokens (B, T, D + A + 2) -> features (B, T, W)."""
        return self.body(self.embed(tokens))
