"""Success, learned from examples: a classifier tells states of the goal from others, and what it takes for one earns 1.

    r(s') = 1[sigmoid(f(s')) >= at]        `value=logit`: f(s') itself, between -20 and 20
    f(s') = linear(relu(LayerNorm(dropout(linear(s')))))        on observations, or on CLIP's embeddings of frames

Offline f is fitted once, to goals and others alike often. With `online=true` it goes on learning while the agent does,
goals against all that the agent meets as well (VICE), so that what it was fooled by stops earning; mixing rows and
labels, labels short of 0 and 1, and a penalty on steep slopes keep it from being sure.
Sources: Luo, Hu, Xu, Tan, Berg, Sharma, Schaal, Finn, Gupta, Levine 2024, "SERL", arXiv 2401.16013, and its code; Fu,
Singh, Ghosh, Yang, Levine 2018, "Variational Inverse Control with Events", arXiv 1805.11686.
Differences: CLIP's embedding, or the observation as it is, in place of a pretrained ResNet; `consecutive` successes in
a row are asked for before one counts; slopes of one row in four are penalised towards 0, weight 0.1, not towards 1 with
weight 10; every fifth episode of the recordings is kept to judge by. VICE's best answer in a state that the agent
visits as often as the goals show it is 1/2: once the policy is good, threshold with at=0.5 flickers; lower `at`, or
take value=logit.
Fails when: the states that an agent can reach are unlike all others that were recorded (offline, it is taken in by
them); goal and way look alike; `ends=true` with a classifier that errs ends episodes early.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from envs.recording import episodes
from envs.transitions import Transitions
from envs.types import Memory
from lodestar.numerics.descent import Flat
from lodestar.settings import setting
from rewards.base import Metrics, Walk, valid_rows
from rewards.exploration.learned import dense_layers, narrow_linear, used_columns
from rewards.vision.latent import Latent, LatentConfig, Whitened

# Logits are clipped here, as values.
MAX_SUCCESS_LOGIT = 20.0
# One episode of so many is held out to judge by.
EPISODES_A_HELD_OUT = 5
# Online, labels stay so far from 0 and 1 together.
LABEL_SMOOTHING = 0.1
# Online, the weight of the penalty of squared slopes, for which one row of so many is asked.
SLOPE_WEIGHT = 0.1
ROWS_A_SLOPE_PENALTY = 4
# Online, so many minibatches of transitions come for one that is learnt from; VICE's code takes two of 128 each 1,000.
BATCHES_A_STEP = 4
# The extra that stands for the memory.
SUCCESSES_BEFORE = "successes before"


@dataclass
class SuccessConfig(LatentConfig):
    """Settings of `success`; SERL's values where it says any."""

    shape: str = "none"
    goals: str = setting("", "a recording that shows the goal")
    which: str = setting("ends", "its goals: the last states of those that terminated, or all", "ends | all")
    others: str = setting("", "a recording of what is not the goal; empty takes the states that `which` leaves over")
    online: bool = setting(False, "whether it goes on learning, against what the agent meets (VICE)")
    value: str = setting("threshold", "what a state is worth: 0 or 1, or the logit", "threshold | logit")
    at: float = setting(0.5, "chance from which on a state is a success", "(0, 1)")
    consecutive: int = setting(1, "successes in a row before one counts", ">= 1")
    ends: bool = setting(False, "whether a success ends an episode; in one process, step by step, which costs time")
    steps: int = setting(500, "minibatches that it is fitted with before training", ">= 0")
    batch_size: int = setting(128, "rows of each kind in one", ">= 1")
    hidden: int = setting(256, "units", ">= 1")
    dropout: float = setting(0.1, "share of the units dropped in training", "[0, 1)")
    learning_rate: float = setting(3e-4, "of Adam", "(0, 1]")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_if(
            self.value == "logit" and (self.ends or self.consecutive > 1),
            "reward.success.value=logit has no successes to count (consecutive={consecutive}, ends={ends}); take "
            "value=threshold",
        )


class Success(Latent):
    """1 where the classifier, and `consecutive` - 1 states before, say success."""

    Config = SuccessConfig
    config: SuccessConfig
    role = "goal"

    def build(self) -> None:
        super().build()
        config = self.config
        self.recalls = SUCCESSES_BEFORE if config.consecutive > 1 else ""  # type: ignore[misc]
        self.bar = math.log(config.at / (1 - config.at))
        self.rng = np.random.default_rng(self.seed)
        self._read_recordings()
        self.classifier = Classifier(self.size, config.hidden, torch.Generator().manual_seed(self.seed))
        self.classifier.to(self.device).measure(np.concatenate([self.goals[0], self.others[0]]))
        self.optimizer = Flat.of_parameters(list(self.classifier.parameters()), epsilon=1e-8)
        if len(self.others[0]):
            self.learn(self.others[0], config.steps)

    def initial_memory(self, n: int) -> Memory:
        return {"run": np.zeros(n, np.float32)} if self.recalls else None

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray | Walk:
        if self.recalls:
            raw, after = self.scan(batch[None], memory)
            return raw[0], after
        logits = self.logits(batch)
        if self.config.value == "logit":
            return logits.clip(-MAX_SUCCESS_LOGIT, MAX_SUCCESS_LOGIT)
        return (logits >= self.bar).astype(np.float32)

    def scan(self, batch: Transitions, memory: Memory) -> Walk:
        success = self.logits(batch) >= self.bar
        if SUCCESSES_BEFORE in batch.extras:
            before = batch.extras[SUCCESSES_BEFORE]
        else:
            before, memory = self._count_before(success, batch, memory)
        return (success & (before + 1 >= self.config.consecutive)).astype(np.float32), memory

    def recall(self, batch: Transitions, memory: Memory) -> Walk:
        return self._count_before(self.logits(batch) >= self.bar, batch, memory)

    def logits(self, batch: Transitions) -> np.ndarray:
        """Log-odds of success, float32 of the batch's shape."""
        return self.classifier.ask(self.states(batch))

    def update(self, batch: Transitions) -> Metrics:
        """What of its successes the task did not reward (`unrewarded`); online it learns, and judges what it kept."""
        flat = valid_rows(batch)
        if not len(flat.step):
            return {}
        states = self.states(flat)
        metrics = {}
        if self.config.online:
            steps = math.ceil(len(states) / (BATCHES_A_STEP * self.config.batch_size))
            metrics = {"loss": self.learn(np.concatenate([states, self.others[0]]), steps), **self.errors()}
        success = self.classifier.ask(states) >= self.bar
        metrics["successes"] = success.mean()
        if success.any():
            metrics["unrewarded"] = (flat.reward[success] <= 0).mean()
        return metrics

    def learn(self, others: np.ndarray, steps: int) -> float:
        """Minibatches of goals and of `others` (M, D); the mean loss."""
        config = self.config
        classifier = self.classifier
        kinds = (self.goals[0], others)
        used = used_columns(classifier.mean.cpu().numpy(), *kinds)
        labels = torch.cat([torch.ones(config.batch_size), torch.zeros(config.batch_size)]).to(self.device)
        n = len(labels)
        losses: list[Tensor] = []
        for _ in range(steps):
            rows = [states[self.rng.integers(len(states), size=config.batch_size)] for states in kinds]
            x = classifier.whiten(np.concatenate(rows), used)
            y = labels
            if config.online:
                x, y = self._mix_rows(x, y)
            kept_units = self.rng.random((n, config.hidden), np.float32) >= config.dropout
            dropout = torch.from_numpy(kept_units / np.float32(1 - config.dropout)).to(self.device)
            units = narrow_linear(classifier.first[0], x, used)
            loss = binary_cross_entropy_with_logits(classifier(units, dropout), y)
            if config.online:
                loss = loss + SLOPE_WEIGHT * self._squared_slope(units, dropout)
            losses.append(loss.detach())
            self.optimizer.grad.zero_()
            loss.backward()
            # A minibatch whose gradient is not finite is left out.
            if math.isfinite(self.optimizer.clip(math.inf)):
                self.optimizer.adam(config.learning_rate)
        return sum(torch.stack(losses).tolist()) / steps if losses else 0.0

    def _mix_rows(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Each row mixed with another, in shares from Beta(1, 1), and labels between, short of 0 and 1."""
        n = len(y)
        share = torch.from_numpy(self.rng.random((n, 1), np.float32)).to(self.device)
        mate = self.rng.permutation(n)
        y = y.lerp(y[mate], share[:, 0])
        return x.lerp(x[mate], share), y * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / 2

    def _squared_slope(self, units: Tensor, dropout: Tensor) -> Tensor:
        """The logit's mean squared slope along the states, of some rows; `units` is what `first` makes of them."""
        some_units = units[::ROWS_A_SLOPE_PENALTY]
        logits = self.classifier(some_units, dropout[::ROWS_A_SLOPE_PENALTY])
        (slope,) = torch.autograd.grad(logits.sum(), some_units, create_graph=True)
        weight = self.classifier.first[0].get_parameter("weight")
        return (slope @ weight).square().sum(1).mean()

    def errors(self) -> Metrics:
        """Shares of the rows kept to judge by that it gets wrong, of each kind of which there are some."""
        shares = {}
        for name, rows, wrong in (("false_negative", self.goals[1], False), ("false_positive", self.others[1], True)):
            if len(rows):
                success = self.classifier.ask(rows) >= self.bar
                shares[name] = (success == wrong).mean()
        return shares

    def notes(self) -> list[str]:
        errors = ", ".join(f"{name.replace('_', ' ')}s {share:.1%}" for name, share in self.errors().items())
        rows = f"{len(self.goals[1])} goals and {len(self.others[1])} others"
        return [f"of {rows} that were kept to judge by: {errors or 'nothing is known'}"]

    def _count_before(self, success: np.ndarray, batch: Transitions, memory: Memory) -> Walk:
        """Successes in a row before each row of a rollout (T, N), float32; and the memory after."""
        run = memory["run"]
        before = np.empty(batch.shape, np.float32)
        for t, (valid, ended) in enumerate(zip(batch.valid, batch.ended)):
            before[t] = run
            run = np.where(ended, np.float32(0), np.where(valid, (run + 1) * success[t], run))
        return before, {"run": run}

    def _read_recordings(self) -> None:
        """Set `goals` and `others`, states (M, D), each as rows to learn from and rows to judge by."""
        config = self.config
        prefix = config.prefix
        batch, states, held_out = self._states("goals")
        is_goal = batch.terminated if config.which == "ends" else np.ones(len(states), bool)
        if not is_goal[~held_out].any():
            raise ValueError(
                f"{prefix}goals={config.goals} has no episode that terminated; take {prefix}which=all if all of it "
                "shows the goal, or record episodes that reach it"
            )
        self.goals = (states[is_goal & ~held_out], states[is_goal & held_out])
        if config.others:
            _, states, held_out = self._states("others")
            self.others = (states[~held_out], states[held_out])
        else:
            self.others = (states[~is_goal & ~held_out], states[~is_goal & held_out])
        if not len(self.others[0]) and not config.online:
            raise ValueError(
                f"{prefix}others is empty, and {prefix}goals={config.goals} shows nothing but goals; name a recording "
                f"of something else, or learn from what the agent meets: {prefix}online=true"
            )

    def _states(self, option: str) -> tuple[Transitions, np.ndarray, np.ndarray]:
        """A recording, what its actions led to (N, D), and bool (N,): the rows of every fifth episode."""
        batch = self.load_recording(option)
        held_out = np.zeros(len(batch.step), bool)
        for rows in episodes(batch)[EPISODES_A_HELD_OUT - 1 :: EPISODES_A_HELD_OUT]:
            held_out[rows] = True
        return batch, self.states(batch), held_out


class Classifier(Whitened):
    """Whitened states -> log-odds of success."""

    def __init__(self, size: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__(size)
        self.first = dense_layers(size, (hidden,), generator)
        self.norm = nn.LayerNorm(hidden)
        self.last = dense_layers(hidden, (1,), generator)

    def forward(self, units: Tensor, dropout: Tensor | None = None) -> Tensor:
        """Log-odds (M,) of what `first` makes of whitened states, (M, hidden); `dropout` multiplies it."""
        if dropout is not None:
            units = units * dropout
        return self.last(torch.relu(self.norm(units))).squeeze(1)

    def ask(self, states: np.ndarray) -> np.ndarray:
        """Log-odds, float32 of the leading shape of states (..., D)."""
        rows = states.reshape(-1, states.shape[-1])
        used = used_columns(self.mean.cpu().numpy(), rows)
        with torch.no_grad():
            units = narrow_linear(self.first[0], self.whiten(rows, used), used)
            return self(units).cpu().numpy().reshape(states.shape[:-1])
