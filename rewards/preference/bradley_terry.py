"""A reward learned from comparisons: a judge labels which of two segments is better, an ensemble fits a reward to that.

Sources: Christiano et al. 2017, "Deep Reinforcement Learning from Human Preferences", arXiv 1706.03741, section 2.2.3
(the model of Bradley and Terry with errors, the ensemble, queries where it disagrees); Lee, Smith, Abbeel 2021,
"PEBBLE", arXiv 2106.05091 (old transitions are relabelled after each fit); Wang et al. 2024, "RL-VLM-F", arXiv
2402.03681 (a model as the judge, unsure pairs dropped, training until 97 % are right); Yan et al. 2024, "Reward-Robust
RLHF in LLMs", arXiv 2409.15360 (`floor`).
Differences:
  - relabelling is what a replay buffer that computes rewards when it is sampled does anyway; `relabel=false` freezes
    them when they are stored, for comparison;
  - `of=frame` reads CLIP embeddings, where RL-VLM-F trains a convolutional network on the images;
  - segments are drawn from recent behaviour only; there is no phase of unsupervised exploration before the first fit;
  - inputs are whitened by the statistics of the segments that the judge compared;
  - passes also end when labels held out get no better.
When it fails: episodes that end early, whose length says what a segment cannot; a judge whose answers depend on more
than a segment shows; behaviour so uniform that all pairs are equal. Segments of one step are single states.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch.nn.functional import logsigmoid

from envs.settings import setting
from envs.state import Stateful
from envs.transitions import Transitions, concatenate, stack
from envs.types import Memory
from rewards.exploration.disagreement import StackedHeads
from rewards.exploration.learned import Learned, LearnedConfig
from rewards.preference.answers import PICTURE
from rewards.preference.judges import make_segment_judge
from rewards.vision.encoder import ClipEncoder, shared

FRAMES = 256  # a pass through CLIP
FEW = 10  # labels held out; fewer say nothing about when to stop
# what a segment always holds
PARTS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "valid", "step")


@dataclass
class BradleyTerryConfig(LearnedConfig):
    """Settings of bradley_terry; PEBBLE's and RL-VLM-F's value in brackets where it differs."""

    scale: str = "none"
    gamma: float | None = None
    judge: str = setting("scripted", "scripted, heron, clip, human, recorded or vlm")
    judge_options: dict[str, Any] = setting({}, "its options, as in {mistakes: 0.1}; `cached: FILE` keeps its answers")
    of: str = setting(
        "transition",
        "`transition` reads the action and the next observation, `frame` the CLIP embedding of the frame",
        choices=("transition", "frame"),
    )
    model: str = setting("lodestar", "whose embedding `of=frame` reads, as in `reward.clip.model`")
    weights: str = setting("", "as `reward.clip.weights`")
    length: int = setting(25, "steps of a segment, L [50; 1 for frames]", low=1)
    pool: int = setting(
        400,
        "newest segments that pairs are drawn from; frames of so many are kept where the judge reads them",
        low=2,
    )
    seed_steps: int = setting(1000, "transitions before the first queries", low=0)
    every: int = setting(
        1000,
        "transitions from one session of queries to the next; a session waits for the driver's next update, and there "
        "is at most one in each",
        low=1,
    )
    queries: int = setting(20, "pairs that are labelled in one session", low=1)
    budget: int = setting(1000, "labels in total", low=1)
    draw: str = setting(
        "uniform",
        "`uniform`, or `disagreement`: the pairs that the members disagree about most, among ten times as many",
        choices=("uniform", "disagreement"),
    )
    mistakes: float = setting(0.1, "share of the labels that the model takes for coin flips, [0]", low=0, below=1)
    members: int = setting(3, "networks, K [3]", low=1)
    floor: float = setting(
        1.0, "r = floor * mean + (1 - floor) * least of the members: less is earned where they disagree", low=0, high=1
    )
    epochs: int = setting(50, "most passes over the labels in one session")
    enough: float = setting(
        0.97, "a session ends when the members are right about this share of the labels they learn from", low=0, high=1
    )
    held_out: float = setting(0.1, "share of the labels that are kept to judge the reward by", low=0, below=1)
    patience: int = setting(10, "passes without progress on the labels held out, after which a session ends", low=1)
    batch_size: int = setting(32, "pairs in a minibatch [128]")
    max_grad_norm: float = 10.0
    relabel: bool = setting(True, "whether old transitions are relabelled after each fit")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draw == "disagreement" and self.members < 2:
            raise ValueError("reward.bradley_terry.draw=disagreement needs members of 2 or more; one always agrees")


class BradleyTerry(Learned):
    """r(s', a) = mean over K of tanh(f_k(s', a)), where P(2 > 1) = (1 - mistakes) sigmoid(R_2 - R_1) + mistakes / 2.

    With a `floor`, less where the members disagree. R is the sum of r_k over a segment. Members see the labels in
    orders of their own; the reward is 0 before the first fit, and always in [-1, 1].
    """

    Config = BradleyTerryConfig
    role = "goal"

    def build(self) -> None:
        config, space, device = self.config, self.observation_space, self.device
        own = {"seed": self.seed + 500, "device": device}  # not the numbers that the pairs are drawn with
        self.judge = make_segment_judge(config.judge, **{**own, **config.judge_options})
        self.encoder: ClipEncoder | None = None
        if config.of == "frame":
            self.encoder = shared(config.model, config.weights, seed=self.seed, device=device)
            self.observation_space = gym.spaces.Box(-1, 1, (self.encoder.width,), np.float32)  # what `build` lays out
        self.requires = self.judge.requires | ({"frame"} if self.encoder else {"next_obs", "action"})
        self.embedding = self.encoder.name if self.encoder else self.judge.embedding
        self.keeps_frames = "frame" in self.judge.requires and self.judge.embedding != self.embedding
        self.frame_size = self.judge.frame_size or (self.encoder.size if self.encoder else None)
        self.relabelable = config.relabel
        super().build()
        self.observation_space = space
        if self.layout.images:
            raise ValueError(f"reward bradley_terry cannot read the images of {space}; take of=frame")
        inputs = self.layout.size + (0 if self.encoder else self.actions.size)
        members = [self.head(inputs, config.hidden, config.features, 1) for _ in range(config.members)]
        self.ensemble = StackedHeads(members).to(device)
        self.train_on(self.ensemble)
        kept = self.requires & {"frame", "obs_frame", "text", "obs_text", "signals", "obs_signals"}
        self.segments = Segments(config.length, config.pool, kept, (self.embedding,) if self.embedding else ())
        self.labelled = _LabelledPairs(config.seed_steps)
        self.failure = ""

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        """Float32 (N,) in [-1, 1]; 0 before the first fit."""
        if not self.labelled.fits:
            return np.zeros(batch.shape, np.float32)
        rows, actions = self.seen(batch)
        return self.in_pieces(self.mean, self.whiten(rows), torch.from_numpy(actions).to(self.device)).cpu().numpy()

    def embed(self, batch: Transitions) -> np.ndarray:
        """Embeddings of `batch.frame`, float16 (N, D): those that `of=frame` reads, or the judge's own."""
        if self.encoder is None:
            return self.judge.embed(batch)
        return self.encoder.embed(batch.frame, FRAMES, "bradley_terry with of=frame")

    def update(self, batch: Transitions) -> dict[str, float]:
        """Collect segments, and ask and learn when due."""
        fresh = int(np.sum(batch.valid))
        if not fresh:
            return {}
        self.segments.add(batch)
        self.labelled.seen += fresh
        metrics: dict[str, float] = {}
        config, pairs = self.config, self.labelled
        if pairs.seen >= pairs.due and len(pairs) < config.budget and len(self.segments) > 1:
            pairs.due += config.every * ((pairs.seen - pairs.due) // config.every + 1)
            metrics = self.session(config.budget - len(pairs))
        return {**metrics, "labels": float(len(pairs))}

    def session(self, most: int) -> dict[str, float]:
        """Ask the judge about pairs of segments, learn from `most` answers at most; a failing judge changes nothing.

        A judge that answers later gives the answers to earlier questions, often none.
        """
        queries = min(self.config.queries, most)
        first, second = map(self.segments.pick, self.draw(queries))
        self.labelled.asked += queries
        try:
            first, second, given = self.judge.ask(first, second, most)
            label, queries = np.asarray(given, np.float32), first.shape[1]
            if label.shape != (queries,) or (label < 0).any() or (label > 1).any():
                raise ValueError(f"it answered {label} to {queries} pairs; give one number in [0, 1], or NaN, for each")
        except Exception as error:  # a judge may be anything, and training does not depend on its health
            self.failure = f"the judge {self.judge.name} failed and was left out of a session: {error}"
            return {"failed": 1.0}
        if not queries:
            return {}
        answered = np.flatnonzero(~np.isnan(label))
        metrics = {"failed": float(not len(answered)), "dropped": 1 - len(answered) / queries}
        if not len(answered):
            self.failure = f"the judge {self.judge.name} answered none of {queries} pairs"
            return metrics
        return metrics | self.learn_from(first[:, answered], second[:, answered], label[answered])

    def draw(self, queries: int) -> tuple[np.ndarray, np.ndarray]:
        """Places in the pool of the first and the second segment of each pair, never the same one."""
        count = len(self.segments)
        chosen = self.config.draw == "disagreement" and self.labelled.fits > 0
        drawn = 10 * queries if chosen else queries
        one = self.rng.integers(count, size=drawn)
        two = (one + 1 + self.rng.integers(count - 1, size=drawn)) % count
        if chosen:
            sums = self.sums(self.segments.pick(np.arange(count)))
            chance = 1 / (1 + np.exp(sums[:, one] - sums[:, two]))
            best = np.argsort(-chance.std(axis=0), kind="stable")[:queries]
            one, two = one[best], two[best]
        return one, two

    def sums(self, segments: Transitions) -> np.ndarray:
        """Each member's return of segments (L, B): float32 (K, B)."""
        rows, actions = self.seen(segments.flatten())
        with torch.no_grad():
            each = self.members(self.whiten(rows), torch.from_numpy(actions).to(self.device))
        return each.unflatten(1, segments.shape).sum(dim=1).cpu().numpy()

    def learn_from(self, first: Transitions, second: Transitions, label: np.ndarray) -> dict[str, float]:
        """Take in pairs of segments (L, B), each with the chance (B,) that the second is better, and fit.

        Metrics: agreement (share of the decided pairs that the task's return decides alike), ties (share), and those of
        `fit_labels` where there was something to learn.
        """
        sides = [self.seen(side.flatten()) for side in (first, second)]
        rows, actions = (
            np.stack([part.reshape(*first.shape, part.shape[1]) for part in parts]).transpose(2, 0, 1, 3)
            for parts in zip(*sides)
        )
        if self.config.normalize_obs == "running":
            self.statistics.update(rows.reshape(-1, rows.shape[-1]))
        self.labelled.add(rows, actions, label, self.rng.random(len(label)) < self.config.held_out)
        gap = np.sum(second.reward - first.reward, axis=0)
        decided = label != 0.5
        metrics = {"ties": 1 - float(decided.mean())}
        if decided.any():
            metrics["agreement"] = float(((label > 0.5) == (gap > 0))[decided].mean())
        known = self.labelled.label
        if not ((known > 0.5).any() and (known < 0.5).any()):
            which = "that both are equal" if (known == 0.5).all() else "for the same side"
            self.failure = (
                f"all {len(known)} labels so far are {which}, which carries nothing about a reward; check the judge"
            )
            return metrics | {"failed": 1.0}
        self.failure = ""
        return metrics | self.fit_labels()

    def fit_labels(self) -> dict[str, float]:
        """Passes over all labels until enough are right, those held out get no better, or `epochs` are over."""
        config, pairs = self.config, self.labelled
        x = torch.cat([self.whiten(pairs.rows), torch.from_numpy(pairs.actions).to(self.device)], dim=-1)
        y = torch.from_numpy(pairs.label).to(self.device)
        learnt, kept = np.flatnonzero(~pairs.held), np.flatnonzero(pairs.held)
        if len(learnt) == 0:
            learnt = kept
        best, waited, passes, right, loss = math.inf, 0, 0, 0.0, 0.0
        while passes < config.epochs and right < config.enough and waited < config.patience:
            right, loss = self._one_pass(x, y, learnt)
            passes += 1
            if len(kept) >= FEW:
                error = self._held_out(x[kept], y[kept])[1]
                best, waited = (error, 0) if error < best else (best, waited + 1)
        pairs.fits += 1
        metrics = {"loss": loss, "train_accuracy": right, "passes": float(passes)}
        if (pairs.label[kept] != 0.5).any():
            metrics["accuracy"] = self._held_out(x[kept], y[kept])[0]
        return metrics | {"spread": float(self.members(x.flatten(0, 2)).detach().std(dim=0, correction=0).mean())}

    def _one_pass(self, x: torch.Tensor, y: torch.Tensor, learnt: np.ndarray) -> tuple[float, float]:
        """Every member once through the labels, in its own order; share of right answers, and loss of a member."""
        config = self.config
        order = self.rng.permuted(np.tile(learnt, (config.members, 1)), axis=1)
        share = math.ceil(config.update_proportion * order.shape[1])
        results = []
        for i in range(0, share, config.batch_size):
            index = torch.from_numpy(order[:, i : min(i + config.batch_size, share)]).to(self.device)
            logits = self._logits(x[index])
            losses = self._loss(logits, y[index])
            self.descend(losses.mean(dim=1).sum())
            results.append(torch.stack([_right(logits, y[index]), losses.detach()]).flatten(1))
        right, loss = torch.cat(results, dim=1)
        return float(right.nanmean()), float(loss.mean())

    def _held_out(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
        """How often all members together are right about labels that none of them learnt from, and their mean loss."""
        with torch.no_grad():
            logits = self._logits(x)
            return float(_right(logits.mean(dim=0), y).nanmean()), float(self._loss(logits, y).mean())

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        """R_2 - R_1 of pairs (B, 2, L, inputs), or of other pairs for each member (K, B, 2, L, inputs): (K, B)."""
        sums = self.members(x.flatten(-4, -2)).unflatten(1, x.shape[-4:-1]).sum(dim=-1)
        return sums[..., 1] - sums[..., 0]

    def _loss(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of labels under (1 - mistakes) sigmoid(logits) + mistakes / 2, element by element."""
        eps = self.config.mistakes
        if eps == 0:
            return -y * logsigmoid(logits) - (1 - y) * logsigmoid(-logits)
        second = (1 - eps) * torch.sigmoid(logits) + eps / 2
        return -y * torch.log(second) - (1 - y) * torch.log(1 - second)

    def members(self, *inputs: torch.Tensor) -> torch.Tensor:
        """r_k of rows (N, inputs), or of other rows for each member (K, N, inputs): (K, N), in [-1, 1]."""
        return torch.tanh(self.ensemble(torch.cat(inputs, dim=-1)).squeeze(-1))

    def mean(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The reward of rows (N, inputs): (N,)."""
        each, floor = self.members(*inputs), self.config.floor
        mean = each.mean(dim=0)
        return mean if floor == 1 else floor * mean + (1 - floor) * each.amin(dim=0)

    def seen(self, batch: Transitions) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of the members for flat transitions: rows (N, size) to be whitened, and actions (N, A)."""
        if self.encoder is None:
            return self.rows(batch.next_obs), self.actions(batch.action).cpu().numpy()
        found = batch.extras.get(self.encoder.name)
        embedded = self.embed(batch) if found is None else found
        return np.asarray(embedded, np.float32), np.zeros((len(embedded), 0), np.float32)

    def preflight(self) -> str:
        return self.judge.reach()

    def close(self) -> None:
        self.judge.close()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.embedding == PICTURE:  # pictures are in no checkpoint, and without them there is nothing to show
            self.segments.pool.clear()

    def notes(self) -> list[str]:
        return [*self.judge.notes(), *([self.failure] if self.failure else [])]


def _right(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """1 where the sign of a logit is the label's, 0 where not, NaN where the label is a tie."""
    right = ((logits > 0) == (y > 0.5)).float()
    return torch.where(y == 0.5, torch.nan, right)


class _LabelledPairs(Stateful):
    """Labelled pairs as the members read them, and counts."""

    saved = ("rows", "actions", "label", "held", "seen", "due", "asked", "fits")

    def __init__(self, due: int) -> None:
        self.rows = self.actions = np.zeros((0, 2, 1, 1), np.float32)  # (n, 2, L, ...), rows not whitened
        self.label = np.zeros(0, np.float32)  # (n,), the chance that the second is better
        self.held = np.zeros(0, bool)  # (n,), kept to judge by
        # transitions; of them when the next session is; pairs; sessions that were learnt from
        self.seen, self.due, self.asked, self.fits = 0, due, 0, 0

    def __len__(self) -> int:
        return len(self.label)

    def add(self, *columns: np.ndarray) -> None:
        for name, new in zip(("rows", "actions", "label", "held"), columns):
            setattr(self, name, np.concatenate([getattr(self, name), new]) if len(self) else new)


def cut(batch: Transitions, usable: np.ndarray, length: int) -> tuple[Transitions, np.ndarray]:
    """Cut the usable rows of a rollout (T, N) into segments of `length` steps, side by side and one after the other:
    segments (L, M), in the order of their last steps; and bool (T, N), the rows that the next rollout may complete.
    """
    t = np.arange(len(usable))[:, None]
    follows = np.zeros_like(usable)
    follows[1:] = usable[1:] & usable[:-1] & ~batch.ended[:-1] & (batch.step[1:] == batch.step[:-1] + 1)
    place = (t - np.maximum.accumulate(np.where(usable & ~follows, t, 0), axis=0)) % length  # within its segment
    last, env = np.nonzero(usable & (place == length - 1))
    rows = last - np.arange(length - 1, -1, -1)[:, None]
    continues = usable[-1] & ~batch.ended[-1] & (place[-1] < length - 1)
    left = t >= len(usable) - np.where(continues, place[-1] + 1, 0)
    return batch[rows, env[None]], left


class Segments:
    """The newest `capacity` segments of `length` steps, and the rows that may become one.

    A segment is consecutive valid steps of one episode; what is left of an episode that is too short is dropped.
    Beside observations, actions and rewards `modality_names` (frames, texts, signals) and `extras` are kept.
    """

    def __init__(
        self, length: int, capacity: int, modality_names: frozenset[str] = frozenset(), extras: tuple[str, ...] = ()
    ):
        self.length, self.modality_names, self.extras = length, modality_names, extras
        self.pool: deque[Transitions] = deque(maxlen=capacity)  # each (L,)
        self.tail: Transitions | None = None  # (M,) rows of unfinished segments, in time order
        self.left = np.zeros((0, 0), bool)  # (<L, N), where those rows were

    def __len__(self) -> int:
        return len(self.pool)

    def add(self, batch: Transitions) -> None:
        """Take in fresh transitions: (T, N) in time order, or (T,) of one environment."""
        batch = self.slim(batch)
        if len(batch.shape) == 1:
            batch = batch.map(lambda x: x[:, None])
        usable = np.asarray(batch.valid, bool)
        if self.tail is not None and self.left.shape[1] == batch.shape[1]:
            tail, left = self.tail, self.left
            batch = concatenate([tail.map(lambda x: _scatter(x, left)), batch])
            usable = np.concatenate([left, usable])
        segments, left = cut(batch, usable, self.length)
        self.pool.extend(segments[:, m] for m in range(segments.shape[1]))
        self.left = left[-self.length + 1 :] if self.length > 1 else left[:0]
        self.tail = batch[len(left) - len(self.left) :][self.left] if self.left.any() else None

    def slim(self, batch: Transitions) -> Transitions:
        """The batch without the fields that are never read."""
        absent = {
            name: None for name in vars(batch) if name not in (*PARTS, "extras") and name not in self.modality_names
        }
        extras = {key: value for key, value in batch.extras.items() if key in self.extras}
        return batch.replace(extras=extras, **absent)

    def pick(self, rows: np.ndarray) -> Transitions:
        """Segments (L, B) by their places (B,) in the pool."""
        return stack([self.pool[row] for row in rows]).map(lambda x: x.swapaxes(0, 1))

    def state_dict(self) -> dict[str, Any]:
        """What it has gathered, as `load_state_dict` takes it."""
        whole = stack(list(self.pool)) if self.pool else None
        return {"pool": whole and vars(whole), "tail": self.tail and vars(self.tail), "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        whole, tail = (part and Transitions(**part) for part in (state["pool"], state["tail"]))
        self.pool.clear()
        self.pool.extend(whole[m] for m in range(whole.shape[0] if whole else 0))
        self.tail, self.left = tail, np.array(state["left"], bool)


def _scatter(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rows (M, ...) -> (T, N, ...) with the rows where `places` (T, N) is True and nothing elsewhere."""
    spread = np.zeros((*places.shape, *rows.shape[1:]), rows.dtype)
    spread[places] = rows
    return spread
