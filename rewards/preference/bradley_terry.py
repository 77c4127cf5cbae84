"""A reward learned from comparisons: a judge labels which of two segments is better, an ensemble fits a reward to that.

Sources: Christiano et al. 2017, "Deep Reinforcement Learning from Human Preferences", arXiv 1706.03741, section 2.2.3
(the model of Bradley and Terry with errors, the ensemble, queries where it disagrees); Lee, Smith, Abbeel 2021,
"PEBBLE", arXiv 2106.05091 (old transitions are relabelled after each fit); Wang et al. 2024, "RL-VLM-F", arXiv
2402.03681 (a model as the judge, unsure pairs dropped, training until 97 % are right); Yan et al. 2024, "Reward-Robust
RLHF in LLMs", arXiv 2409.15360 (`floor`); Nath et al. 2024, "Learning Goal-Conditioned Representations for Language
Reward Models", arXiv 2407.13887 (`goals`); Rashidinejad, Tian 2024, "Sail into the Headwind", arXiv 2412.09544
(POWER-DL: `dynamic`).
Differences:
  - `relabel=false` freezes rewards when they are stored, for comparison; `of=frame` reads CLIP embeddings, where
    RL-VLM-F trains a convolutional network on the images;
  - segments are drawn from recent behaviour only, without a phase of unsupervised exploration before the first fit;
  - inputs are whitened by the segments that were compared; passes also end when labels held out get no better;
  - `of=history` gives each member a recurrent network over the episode so far, taught on segments as if they were
    episodes (`rewards.preference.history`); a replay keeps its rewards (costs: `python -m benchmarks reward-cost`);
  - `goals` contrasts a step of the better segment with a later one of it, against later ones of the worse segments of
    the minibatch; the source samples tokens of answers;
  - `pairs=branches` compares two continuations of one state, for judges that should not compare two situations; a pair
    is asked about once, and states that look alike count as one;
  - `dynamic` moves a session's targets towards the members' mean after each pass; the next begins with the labels.
When it fails: episodes that end early, whose length says what a segment cannot; a judge whose answers depend on more
than a segment shows, or go in circles (`self_play`); behaviour so uniform that all pairs are equal.
"""

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid, normalize

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.exploration.disagreement import StackedHeads
from rewards.preference.answers import PICTURE_NUMBERS
from rewards.preference.history import StackedGRU
from rewards.preference.judges import make_segment_judge
from rewards.preference.segments import Segments
from rewards.preference.sessions import (
    MIN_HELD_OUT,
    ComparedPairs,
    LabelledPairs,
    Sessions,
    SessionsConfig,
    passes_since_best,
)
from rewards.preference.trees import StackedTrees
from rewards.vision.encoder import ClipEncoder, shared_encoder

CLIP_BATCH_FRAMES = 256
# The temperature of the contrast of `goals`, in cosines.
CONTRAST_TEMPERATURE = 0.1


@dataclass
class BradleyTerryConfig(SessionsConfig):
    """Settings of bradley_terry; PEBBLE's and RL-VLM-F's value in brackets where it differs."""

    judge: str = setting("scripted", "scripted, heron, clip, human, recorded or vlm")
    judge_options: dict[str, Any] = setting({}, "its options, as in {mistakes: 0.1}; `cached: FILE` keeps its answers")
    of: str = setting(
        "transition",
        "`transition` reads the action and the next observation, `history` all of them so far, `frame` the frame",
        "transition | history | frame",
    )
    model: str = setting("lodestar", "whose embedding `of=frame` reads, as in `reward.clip.model`")
    weights: str = setting("", "as `reward.clip.weights`")
    draw: str = setting(
        "uniform", "of ten times as many those that members disagree about, or any", "uniform | disagreement"
    )
    pairs: str = setting(
        "any",
        "which segments are compared: any two, or branches, which begin two episodes in one state (starts=branches)",
        "any | branches",
    )
    mistakes: float = setting(0.1, "share of the labels that the model takes for coin flips, [0]", "[0, 1)")
    members: int = setting(3, "networks, K [3]", ">= 1")
    net: str = setting("mlp", "mlp, or boosted trees, which say what they ask about", "mlp | trees")
    floor: float = setting(1.0, "r = floor * mean + (1 - floor) * least of the members", "[0, 1]")
    enough: float = setting(0.97, "share of its labels that ends a session once members are right", "[0, 1]")
    patience: int = setting(10, "passes without progress on the labels held out, after which a session ends", ">= 1")
    relabel: bool = setting(True, "whether old transitions are relabelled after each fit; never with of=history")
    goals: float = setting(0.0, "weight of a contrast: states that lead to what follows in the better segment", ">= 0")
    dynamic: float = setting(0.0, "share of the way that targets move to the model's in a pass", "[0, 1)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draw == "disagreement" and self.members < 2:
            raise ValueError(f"{self.prefix}draw=disagreement needs members of 2 or more; one always agrees")
        if self.net == "trees" and (self.of == "history" or self.goals):
            what = "of=history" if self.of == "history" else f"goals={self.goals}"
            raise ValueError(f"{self.prefix}net=trees has no states that {what} could read; take net=mlp")
        if self.goals and self.length < 2:
            raise ValueError(f"{self.prefix}goals={self.goals} contrasts two steps of a segment; give length=2 or more")


class BradleyTerry(Sessions):
    """r(s', a) = mean over K of tanh(f_k(s', a)), where P(2 > 1) = (1 - mistakes) sigmoid(R_2 - R_1) + mistakes / 2.

    With a `floor`, less where the members disagree. R is the sum of r_k over a segment. Members see the labels in
    orders of their own; the reward is 0 before the first fit, and always in [-1, 1].
    """

    Config = BradleyTerryConfig

    def build(self) -> None:
        config = self.config
        space = self.observation_space
        # The judge's seed differs from the one that the pairs are drawn with.
        options = {"seed": self.seed + 500, "device": self.device, **config.judge_options}
        judge = self.judge = make_segment_judge(config.judge, **options)
        self.encoder: ClipEncoder | None = None
        if config.of == "frame":
            self.encoder = shared_encoder(self)
            self.requires = judge.requires | {"frame"}
            self.embedding = self.encoder.name
            self.frame_size = judge.frame_size or self.encoder.size
            # The layout that `super().build` makes is one of embeddings.
            self.observation_space = gym.spaces.Box(-1, 1, (self.encoder.width,), np.float32)
        else:
            self.requires = judge.requires | {"next_obs", "action"}
            self.embedding = judge.embedding
            self.frame_size = judge.frame_size
        self.keeps_frames = "frame" in judge.requires and judge.embedding != self.embedding
        self.relabelable = config.relabel and config.of != "history"
        super().build()
        self.observation_space = space
        if self.layout.images:
            raise ValueError(f"reward {config.name} cannot read the images of {space}; take of=frame")
        inputs = self.layout.size
        if self.encoder is None:
            inputs += self.actions.size
        self.ensemble = self.networks(inputs).to(self.device)
        self.train_on(self.ensemble)
        extras = (self.embedding,) if self.embedding else ()
        self.segments = Segments(config.length, config.pool, self.requires, extras)
        self.labelled = LabelledPairs(config.seed_steps)

    def networks(self, inputs: int) -> StackedHeads | StackedGRU | StackedTrees:
        """The members, which read `inputs` numbers of a step."""
        config = self.config
        if config.of == "history":
            return StackedGRU(config.members, inputs, config.hidden, self.generator)
        if config.net == "trees":
            return StackedTrees(config.members, inputs)
        return StackedHeads([self.head(inputs, config.hidden, config.features, 1) for _ in range(config.members)])

    def initial_memory(self, n: int) -> Memory:
        config = self.config
        if config.of != "history":
            return None
        return {"states": np.zeros((n, config.members, config.hidden), np.float32)}

    def score(self, batch: Transitions, memory: Memory = None) -> Any:
        """Float32 (N,) in [-1, 1]; 0 before the first fit. With a memory, that and what is remembered then."""
        if memory is not None:
            scores, after = self.scan(batch[None], memory)
            return scores[0], after
        if not self.labelled.fits:
            return np.zeros(batch.shape, np.float32)
        rows, actions = self.raw_inputs(batch)
        reward = self.in_pieces(self.mean, self.whiten(rows), self.tensor(actions))
        return reward.cpu().numpy()

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        assert isinstance(self.ensemble, StackedGRU)
        x = self.inputs_of(*self.raw_inputs(batch.flatten()))
        valid = self.tensor(np.array(batch.valid))
        ended = self.tensor(np.array(batch.ended))
        # (N, K, hidden) -> (K, N, hidden)
        h = self.tensor(memory["states"]).transpose(0, 1)
        states = []
        with torch.no_grad():
            gates = self.ensemble.gates(x).unflatten(1, batch.shape)
            for t in range(batch.shape[0]):
                h = torch.where(valid[t, :, None], self.ensemble.step(gates[:, t], h), h)
                states.append(h)
                h = h * ~ended[t, :, None]
            member_rewards = torch.tanh(self.ensemble.head(torch.stack(states, dim=1)))
            score = self.blend(member_rewards).cpu().numpy()
        if not self.labelled.fits:
            score = np.zeros(batch.shape, np.float32)
        return score, {"states": h.transpose(0, 1).contiguous().cpu().numpy()}

    def embed(self, batch: Transitions) -> np.ndarray:
        """Embeddings of `batch.frame`, float16 (N, D): those that `of=frame` reads, or the judge's own."""
        if self.encoder is None:
            return self.judge.embed(batch)
        return self.encoder.embed(batch.frame, CLIP_BATCH_FRAMES, "bradley_terry with of=frame")

    def session(self, most: int) -> dict[str, float]:
        pairs, metrics = self.draw_labelled_pairs(most)
        return metrics if pairs is None else metrics | self.learn_from(*pairs)

    def draw_labelled_pairs(self, most: int) -> tuple[ComparedPairs | None, dict[str, float]]:
        """Draw pairs and ask the judge: those it is sure about, or None without any; and metrics."""
        one, two = self.draw(min(self.config.queries, most))
        if not len(one):
            self.failure = (
                f"none of {len(self.segments)} segments begins in the state that another begins in, which "
                f"{self.config.prefix}pairs=branches compares; give starts=branches, or a smaller "
                f"{self.config.prefix}length"
            )
            return None, {"failed": 1.0}
        self.labelled.asked += len(one)
        asked = self.ask(self.judge, self.segments.pick(one), self.segments.pick(two), most)
        if asked is None:
            return None, {"failed": 1.0}
        if self.config.pairs == "branches":
            self.segments.drop(np.concatenate([one, two]))
        first, second, label = asked
        # A person answers later, so that there may be no labels yet, which is no failure.
        if not len(label):
            return None, {}
        answered = np.flatnonzero(~np.isnan(label))
        metrics = {"failed": float(not len(answered)), "dropped": 1 - len(answered) / len(label)}
        if not len(answered):
            return None, metrics
        return ComparedPairs(first[:, answered], second[:, answered], label[answered]), metrics

    def draw(self, queries: int) -> tuple[np.ndarray, np.ndarray]:
        """As any session draws them; with `disagreement`, those the members disagree about, of ten times as many."""
        by_disagreement = self.config.draw == "disagreement" and self.labelled.fits > 0
        one, two = self.draw_any(10 * queries if by_disagreement else queries)
        if not by_disagreement or not len(one):
            return one, two
        x = self.inputs_of(*self.read_pairs(self.segments.pick(one), self.segments.pick(two)))
        with torch.no_grad():
            chance = torch.sigmoid(self._logits(x)).cpu().numpy()
        most_disputed = np.argsort(-chance.std(axis=0), kind="stable")[:queries]
        return one[most_disputed], two[most_disputed]

    def draw_any(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """As any session draws them; with `branches`, as many as there are, the earlier one first or second."""
        if self.config.pairs == "any":
            return super().draw(count)
        # (2, pairs).
        places = np.stack(self.segments.branches())
        chosen = self.rng.permutation(places.shape[1])[:count]
        places = places[:, chosen]
        is_swapped = self.rng.random(len(chosen)) < 0.5
        first, second = np.where(is_swapped, places[::-1], places)
        return first, second

    def learn_from(self, first: Transitions, second: Transitions, label: np.ndarray) -> dict[str, float]:
        """Take in pairs of segments (L, B), each with the chance (B,) that the second is better, and fit.

        Metrics: agreement (share of the decided pairs that the task's return decides alike), ties (share), and those of
        `fit_labels` where there was something to learn.
        """
        rows, actions = self.read_pairs(first, second)
        if self.config.normalize_obs == "running":
            self.statistics.update(rows.reshape(-1, rows.shape[-1]))
        held_out = self.rng.random(len(label)) < self.config.held_out
        self.labelled.add(rows, actions, label, held_out)
        return_gap = np.sum(second.reward - first.reward, axis=0)
        decided = label != 0.5
        metrics = {"ties": 1 - float(decided.mean())}
        if decided.any():
            metrics["agreement"] = float(((label > 0.5) == (return_gap > 0))[decided].mean())
        if self.is_undecided():
            return metrics | {"failed": 1.0}
        self.failure = ""
        return metrics | self.fit_labels()

    def fit_labels(self) -> dict[str, float]:
        """Passes over all labels until enough are right, those held out get no better, or `epochs` are over."""
        config = self.config
        pairs = self.labelled
        x = self.inputs_of(pairs.rows, pairs.actions)
        y = self.tensor(pairs.label)
        targets = y.clone()
        learnt, held_out = pairs.split()
        held_out_losses: list[float] = []
        passes = 0
        accuracy = 0.0
        loss = 0.0
        # An accuracy of NaN, where all labels are ties, ends it, too.
        while (
            passes < config.epochs and accuracy < config.enough and passes_since_best(held_out_losses) < config.patience
        ):
            accuracy, loss = self._one_pass(x, y, targets, learnt)
            passes += 1
            if config.dynamic:
                with torch.no_grad():
                    chance = self._chance(self._logits(x[learnt])).mean(dim=0)
                    targets[learnt] += config.dynamic * (chance - targets[learnt])
            if len(held_out) >= MIN_HELD_OUT:
                held_out_losses.append(self._held_out(x[held_out], y[held_out])[1])
        pairs.fits += 1
        metrics = {"loss": loss, "train_accuracy": accuracy, "passes": float(passes)}
        if (pairs.label[held_out] != 0.5).any():
            metrics["accuracy"] = self._held_out(x[held_out], y[held_out])[0]
        metrics["spread"] = float(self.predictions(x).detach().std(dim=0, correction=0).mean())
        return metrics

    def _one_pass(self, x: Tensor, y: Tensor, targets: Tensor, learnt: np.ndarray) -> tuple[float, float]:
        """Every member once through the labels, in its own order; share of right answers, and loss of a member."""
        config = self.config
        shape = (config.members, len(learnt))
        count = math.ceil(config.update_proportion * len(learnt))
        if isinstance(self.ensemble, StackedTrees):
            # One tree a pass, each fitted to a bootstrap of the labels.
            order = self.rng.choice(learnt, shape)
            batch_size = count
        else:
            order = self.rng.permuted(np.broadcast_to(learnt, shape), axis=1)
            batch_size = config.batch_size
        results = []
        for start in range(0, count, batch_size):
            index = self.tensor(order[:, start : min(start + batch_size, count)])
            logits = self._logits(x[index])
            losses = self._loss(logits, targets[index])
            # The members' losses are summed, so that none learns more slowly for being one of many.
            total = losses.mean(dim=1).sum()
            if config.goals:
                total = total + config.goals * self._contrast(x[index], y[index])
            if isinstance(self.ensemble, StackedTrees):
                self.ensemble.grow(total, count)
            else:
                self.descend(total)
            results.append(torch.stack([_is_right(logits, y[index]), losses.detach()]).flatten(1))
        is_right, loss = torch.cat(results, dim=1)
        return float(is_right.nanmean()), float(loss.mean())

    def _held_out(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """How often all members together are right about labels that none of them learnt from, and their mean loss."""
        with torch.no_grad():
            logits = self._logits(x)
            accuracy = _is_right(logits.mean(dim=0), y).nanmean()
            return float(accuracy), float(self._loss(logits, y).mean())

    def _logits(self, x: Tensor) -> Tensor:
        """R_2 - R_1 of pairs (B, 2, L, inputs), or of other pairs for each member (K, B, 2, L, inputs): (K, B)."""
        rewards = self.step_rewards(x.flatten(-4, -3))
        sums = rewards.unflatten(1, x.shape[-4:-2]).sum(dim=-1)
        return sums[..., 1] - sums[..., 0]

    def _loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of labels under (1 - mistakes) sigmoid(logits) + mistakes / 2, element by element."""
        if self.config.mistakes == 0:
            return -y * logsigmoid(logits) - (1 - y) * logsigmoid(-logits)
        second = self._chance(logits)
        return -y * torch.log(second) - (1 - y) * torch.log(1 - second)

    def _chance(self, logits: Tensor) -> Tensor:
        """P(2 > 1) of the class's docstring."""
        mistakes = self.config.mistakes
        return (1 - mistakes) * torch.sigmoid(logits) + mistakes / 2

    def _contrast(self, x: Tensor, y: Tensor) -> Tensor:
        """`contrast` of pairs (K, B, 2, L, inputs), summed over the members: a step and one that comes later."""
        now = int(self.rng.integers(x.shape[-2] - 1))
        later = int(self.rng.integers(now + 1, x.shape[-2]))
        states = self.represent(x.flatten(1, 2)).unflatten(1, (y.shape[1], 2))
        second_is_better = (y > 0.5)[..., None, None, None]
        worse, better = torch.where(second_is_better, states, states.flip(2)).unbind(2)
        decided = (y != 0.5).float()
        losses = contrast(better[:, :, now], better[:, :, later], worse[:, :, later])
        return (losses * decided).sum() / decided.sum().clamp(min=1) * len(y)

    def represent(self, x: Tensor) -> Tensor:
        """What the members make of each step of other sequences for each (K, B, L, inputs): (K, B, L, features)."""
        if isinstance(self.ensemble, StackedGRU):
            return self.ensemble.states(x)
        assert isinstance(self.ensemble, StackedHeads)
        return self.ensemble(x.flatten(1, 2), levels=-1).unflatten(1, x.shape[1:3])

    def members(self, *inputs: Tensor) -> Tensor:
        """r_k of rows (N, inputs), or of other rows for each member (K, N, inputs): (K, N), in [-1, 1]."""
        return torch.tanh(self.ensemble(torch.cat(inputs, dim=-1)).squeeze(-1))

    def step_rewards(self, x: Tensor) -> Tensor:
        """r_k of every step of sequences (B, L, inputs), or of others for each member (K, B, L, inputs): (K, B, L)."""
        if isinstance(self.ensemble, StackedGRU):
            return torch.tanh(self.ensemble(x))
        return self.members(x.flatten(-3, -2)).unflatten(1, x.shape[-3:-1])

    def predictions(self, x: Tensor) -> Tensor:
        """What the members may differ about in pairs (B, 2, L, inputs): numbers (K, ...)."""
        return self.step_rewards(x.flatten(0, 1))

    def mean(self, *inputs: Tensor) -> Tensor:
        """The reward of rows (N, inputs): (N,)."""
        return self.blend(self.members(*inputs))

    def blend(self, each: Tensor) -> Tensor:
        """One number of the members' (K, ...)."""
        mean = each.mean(dim=0)
        floor = self.config.floor
        if floor == 1:
            return mean
        return floor * mean + (1 - floor) * each.amin(dim=0)

    def read(self, segments: Transitions) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of the members for segments (L, B): rows (B, L, size) to be whitened, and actions (B, L, A)."""
        parts = self.raw_inputs(segments.flatten())
        rows, actions = (part.reshape(*segments.shape, part.shape[1]).swapaxes(0, 1) for part in parts)
        return rows, actions

    def read_pairs(self, first: Transitions, second: Transitions) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of the members for pairs of segments (L, B): rows (B, 2, L, size) and actions (B, 2, L, A)."""
        rows, actions = zip(self.read(first), self.read(second))
        return np.stack(rows, axis=1), np.stack(actions, axis=1)

    def inputs_of(self, rows: np.ndarray, actions: np.ndarray) -> Tensor:
        """Rows, whitened, and actions as one tensor (..., inputs)."""
        return torch.cat([self.whiten(rows), self.tensor(actions)], dim=-1)

    def raw_inputs(self, batch: Transitions) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of the members for flat transitions: rows (N, size) to be whitened, and actions (N, A)."""
        if self.encoder is None:
            return self.rows(batch.next_obs), self.actions(batch.action).cpu().numpy()
        embedded = batch.extras.get(self.encoder.name)
        if embedded is None:
            embedded = self.embed(batch)
        return np.asarray(embedded, np.float32), np.zeros((len(embedded), 0), np.float32)

    def preflight(self) -> str:
        return self.judge.reach()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        # Pictures are in no checkpoint, and without them there is nothing to show.
        if self.embedding == PICTURE_NUMBERS:
            self.segments.pool.clear()

    def notes(self) -> list[str]:
        return self.judge.notes() + super().notes()


def _is_right(logits: Tensor, y: Tensor) -> Tensor:
    """1 where the sign of a logit is the label's, 0 where not, NaN where the label is a tie."""
    is_right = ((logits > 0) == (y > 0.5)).float()
    return torch.where(y == 0.5, torch.nan, is_right)


def contrast(ones: Tensor, later: Tensor, others: Tensor) -> Tensor:
    """InfoNCE of directions (K, B, D): -log of e^(one . later) / (that + sum over the batch of e^(one . other)), (K,
    B).
    """
    ones = normalize(ones, dim=-1)
    later = normalize(later, dim=-1)
    others = normalize(others, dim=-1)
    near = (ones * later).sum(dim=-1, keepdim=True)
    far = ones @ others.transpose(-1, -2)
    return -log_softmax(torch.cat([near, far], dim=-1) / CONTRAST_TEMPERATURE, dim=-1)[..., 0]
