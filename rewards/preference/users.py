"""Users: people who want different things are each inferred from a few answers, and rewarded for their own.

One reward for all is the average of those who disagree, which fits none of them. Here the answers of a user give a
vector z, and the reward is of states and z; the policy reads z beside its observation, so that one policy serves all.

    q(z | answers) = N(m, s^2)    from the mean of f(better, worse, how sure) over a user's answers
    P(second over first) = sigmoid(sum g(s2, z) - sum g(s1, z))
    loss = cross-entropy + kl_weight * KL(q || N(0, 1))
    r(s', z) = mean over M reference states s* of sigmoid(g(s', z) - g(s*, z))

The last line keeps scale: g is known up to a monotone map for every z, the share of states that a state beats is not.

`infer` finds the z of somebody new from N answers, without learning on. Each question is the pair of the pool whose
answer says most about z, given the answers so far: I(answer; z) = H(mean_z P) - mean_z H(P), z drawn from q.

Source: Poddar et al. 2024, "Personalizing RLHF with Variational Preference Learning" (VPL), arXiv 2408.10075.
Differences:
  - answers, the better segment first, pass one network and their mean another, so that neither number nor order
    matters; the source reads N of them side by side;
  - z is inferred from some answers and judged by others; the source reconstructs those that it read;
  - the classifier of the source's scale, D(s, s*, z), is a difference, so that references are looked at once;
  - questions to somebody new are chosen one after the other, where the source chooses a set of them before any answer;
    questions while learning are drawn at random;
  - KL has the 1/2 of its definition, which the authors' code lacks; the loss is a mean, so kl_weight is smaller;
  - the reward is learned while the policy is, and z moves with it; the source learns offline.
When it fails: users whose answers do not tell them apart; a user without answers, who is served with z = 0. While
answers come it costs PPO on CartPole most of its frames a second. `user=all` needs flat observations and environments
from `ld.wrap` or `runners.train`, where z stands beside them (`rewards.adapters.guided`).

Example:
    python -m runners.train env=lodestar/PointMaze-v0 reward=users reward.users.user=all
    python -m runners.evaluate run=runs/... new_user=scripted new_user.mistakes=1.0 answers=4
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import JudgeUse
from rewards.llm.judges.base import SegmentJudge
from rewards.preference.judges import RecordedPreferences, make_segment_judge
from rewards.preference.segments import Segments
from rewards.preference.sessions import MIN_HELD_OUT, LabelledPairs, Sessions, SessionsConfig, passes_since_best

# Two synthetic users, the second of whom wants the opposite of the task.
TWO_USERS = {"for": {"judge": "scripted"}, "against": {"judge": "scripted", "mistakes": 1.0}}
ALL_USERS = "all"
# A session ends after so many passes without progress on the answers held out, or once it is right about this share
# of the answers that it learns from.
MAX_PASSES_WITHOUT_PROGRESS = 10
ENOUGH_ACCURACY = 0.97
# Pairs that a question to somebody new is chosen from, and draws of z that estimate what its answer would say.
CANDIDATE_PAIRS = 200
BELIEF_DRAWS = 64


@dataclass
class UsersConfig(SessionsConfig):
    """Settings of users; the source's value in brackets where it differs."""

    users: dict[str, Any] = setting(
        TWO_USERS, "name -> judge and options, as in {ann: {judge: recorded, path: ann.jsonl}}"
    )
    user: str = setting("", "whose reward it is; empty for the first; all: episode by episode the next one's")
    latent: int = setting(8, "numbers in z, D [8 to 32]; 0 is one reward for all users, the control", ">= 0")
    answers: int = setting(4, "answers that z is inferred from while learning, N [4 to 16]", ">= 1")
    kl_weight: float = setting(0.01, "of the KL of a z, beside the mean cross-entropy of an answer", ">= 0")
    references: int = setting(64, "states that a state is compared with, M", ">= 1")
    budget: int = setting(500, "answers in total, of all users together", ">= 1")
    queries: int = setting(20, "pairs in one session; each user is asked about all of them", ">= 1")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.users:
            raise ValueError(f"{self.prefix}users={{}} names none; give judges by name, as {{ann: {{judge: human}}}}")
        if self.user not in ("", ALL_USERS, *self.users):
            names = ", ".join(self.users)
            raise ValueError(f"{self.prefix}user={self.user} is unknown; give one of {names}, or {ALL_USERS}")


class UserAnswers(LabelledPairs):
    """Answers with the number of the user, and of the pair; z (U, D) of users, references (M, size) to compare with."""

    columns = ("rows", "label", "held", "user", "pair")
    saved = (*columns, "seen", "due", "asked", "fits", "z", "references", "judges")

    def __init__(self, due: int, judges: dict[str, SegmentJudge], latent: int) -> None:
        super().__init__(due)
        # Both are (n,); the pair is -1 where the answer is about another than the one asked about.
        self.user = self.pair = np.zeros(0, np.int64)
        self.z = np.zeros((len(judges), latent), np.float32)
        self.references = np.zeros((1, 1), np.float32)
        self.judges = judges


class Users(Sessions):
    """r(s', z) in [0, 1]: the share of reference states that s' is better than for the user with z; 0 before a fit."""

    Config = UsersConfig
    labelled: UserAnswers
    # The z (1, D) of the only user, while one alone is served.
    served: np.ndarray | None = None
    control = {"latent": 0}

    def build(self) -> None:
        config = self.config
        space = self.observation_space
        # How many numbers of z the policy reads beside its observation.
        self.guides = config.latent if config.user == ALL_USERS else 0
        judges = {}
        for place, (name, options) in enumerate(config.users.items()):
            judges[name] = self.judge_of(name, options, place)
        self.requires = frozenset({"next_obs"}).union(*(judge.requires for judge in judges.values()))
        if self.guides:
            # The layout that `super().build` makes is one of observations without z.
            size = max(int(np.prod(space.shape or (0,))) - self.guides, 1)
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        super().build()
        self.observation_space = space
        if self.layout.images:
            raise ValueError(f"reward users cannot read the images of {space}; give observations as numbers")
        hidden = config.hidden
        size = self.layout.size
        latent = config.latent
        self.reads = self.head(2 * config.length * size + 1, hidden, hidden, config.features)
        self.infers = self.head(config.features, hidden, 2 * latent)
        self.rates = self.head(size + latent, hidden, hidden, 1)
        self.train_on(self.reads, self.infers, self.rates)
        self.segments = Segments(config.length, config.pool, self.requires)
        self.labelled = UserAnswers(config.seed_steps, judges, latent)

    def judge_of(self, name: str, given: dict[str, Any], place: int) -> SegmentJudge:
        """The judge that a user's options name; `place` seeds its faults."""
        options: dict[str, Any] = {"judge": "scripted", "seed": self.seed + 500 + place, "device": self.device, **given}
        kind = options.pop("judge")
        if kind == "human":
            options = {"answers": f"preferences/{name}.jsonl", "show": "obs", **options}
        judge = make_segment_judge(kind, **options)
        prefix = f"{self.config.prefix}users"
        if isinstance(judge, RecordedPreferences) and judge.judge is None and not judge.labels:
            raise ValueError(f"{prefix}: {name} has no answers in {judge.path}; leave the file out")
        if judge.embedding or "frame" in judge.requires:
            raise ValueError(f"{prefix}: the judge of {name} reads frames; give show=obs, or another")
        return judge

    def guide(self, episode: np.ndarray) -> np.ndarray:
        """The z that the policy reads in the episodes of these numbers (N,): float32 (N, D), user after user."""
        table = self.labelled.z if self.served is None else self.served
        return table[episode % len(table)]

    @contextmanager
    def serving(self, z: np.ndarray) -> Iterator[None]:
        """Within it every episode serves the user of this z (D,)."""
        self.served = z[None]
        try:
            yield
        finally:
            self.served = None

    def infer(self, judge: SegmentJudge, count: int, informative: bool = True) -> tuple[np.ndarray, int]:
        """The z (D,) of somebody new, from at most `count` answers about pairs of the pool; and how many there were."""
        first, second = map(self.segments.pick, self.draw(CANDIDATE_PAIRS))
        pairs = self.whiten(self.pair_rows(first, second))
        unasked = np.arange(CANDIDATE_PAIRS)
        rows: list[np.ndarray] = []
        labels: list[float] = []
        while len(unasked) and len(labels) < count:
            worth = self.rng.random(len(unasked))
            if informative:
                worth = self.information(pairs[unasked], *self.belief(rows, labels))
            place = unasked[worth.argmax()]
            unasked = unasked[unasked != place]
            asked = self.ask(judge, first[:, [place]], second[:, [place]], 1)
            if asked is None or not len(asked.label):
                break
            if not np.isnan(asked.label[0]):
                rows.append(self.pair_rows(asked.first, asked.second)[0])
                labels.append(float(asked.label[0]))
        mean, _ = self.belief(rows, labels)
        return mean[0].cpu().numpy(), len(labels)

    def belief(self, rows: list[np.ndarray], labels: list[float]) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of z, (1, D) each, given answers: pairs (2, L, size) and labels; N(0, 1) before any."""
        if not rows:
            zeros = torch.zeros(1, self.config.latent, device=self.device)
            return zeros, zeros
        x = self.whiten(np.stack(rows))
        y = torch.tensor(labels, device=self.device)
        with torch.no_grad():
            return self.posterior(x, y, np.arange(len(labels))[None])

    def information(self, x: Tensor, mean: Tensor, log_var: Tensor) -> np.ndarray:
        """What the answer to each whitened pair (B, 2, L, size) says about z, in nats: (B,)."""
        noise = self.tensor(self.rng.standard_normal((BELIEF_DRAWS, mean.shape[1]), np.float32))
        drawn = mean + noise * torch.exp(log_var / 2)
        with torch.no_grad():
            chances = [torch.sigmoid(self.logits(x, z.expand(len(x), -1))) for z in drawn]
        chance = torch.stack(chances)
        return (entropy(chance.mean(dim=0)) - entropy(chance).mean(dim=0)).cpu().numpy()

    def pair_rows(self, first: Transitions, second: Transitions) -> np.ndarray:
        """Segments (L, B) as rows without the z beside them: (B, 2, L, size)."""
        sides = [self.own_rows(side.flatten().next_obs).reshape(*side.shape, -1) for side in (first, second)]
        return np.stack(sides).transpose(2, 0, 1, 3)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        if not self.labelled.fits:
            return np.zeros(batch.shape, np.float32)
        if self.guides:
            z = np.asarray(batch.next_obs, np.float32)[:, -self.guides :]
        else:
            names = [*self.config.users]
            place = names.index(self.config.user) if self.config.user in names else 0
            z = np.tile(self.labelled.z[place], (len(batch.step), 1))
        state = self.whiten(self.own_rows(batch.next_obs))
        return self.in_pieces(self.share, state, self.tensor(z)).cpu().numpy()

    def own_rows(self, obs: Any) -> np.ndarray:
        """Observations (N, ...) without the z beside them, as rows (N, size)."""
        return self.rows(obs[:, : -self.guides] if self.guides else obs)

    def share(self, state: Tensor, z: Tensor) -> Tensor:
        """r of whitened states (N, size) for z (N, D): (N,)."""
        # References are rated once for each different z; with latent=0 all of them are the same.
        if z.shape[1]:
            different_z, index = torch.unique(z, dim=0, return_inverse=True)
        else:
            different_z = z[:1]
            index = torch.zeros(len(z), dtype=torch.long, device=z.device)
        references = self.whiten(self.labelled.references).expand(len(different_z), -1, -1)
        reference_rates = self.rate(references, different_z[:, None])
        return torch.sigmoid(self.rate(state, z)[:, None] - reference_rates[index]).mean(dim=1)

    def rate(self, state: Tensor, z: Tensor) -> Tensor:
        """g of whitened states (..., size) and z that fits them: (...)."""
        beside = z.expand(*state.shape[:-1], z.shape[-1])
        return self.rates(torch.cat([state, beside], dim=-1)).squeeze(-1)

    def judge_use(self) -> JudgeUse | None:
        """Each pair is a question to every user."""
        return self._use_of(self.labelled.asked * len(self.labelled.judges))

    def session(self, most: int) -> dict[str, float]:
        config = self.config
        answers = self.labelled
        queries = min(config.queries, most // len(answers.judges))
        if not queries:
            return {}
        first, second = map(self.segments.pick, self.draw(queries))
        numbers = answers.asked + np.arange(queries)
        held_out = self.rng.random(queries) < config.held_out
        answers.asked += queries
        new_answers = 0
        self.failure = ""
        for user, judge in enumerate(answers.judges.values()):
            asked = self.ask(judge, first, second, queries)
            if asked is None or np.isnan(asked.label).all():
                continue
            label = asked.label
            given = np.flatnonzero(~np.isnan(label))
            rows = self.pair_rows(asked.first, asked.second)[given]
            if config.normalize_obs == "running":
                self.statistics.update(rows.reshape(-1, rows.shape[-1]))
            if asked.first is first:
                pairs = numbers
                held = held_out
            else:
                # Answers to earlier questions, which other users were not asked now.
                pairs = np.full(len(label), -1)
                held = self.rng.random(len(label)) < config.held_out
            answers.add(rows, label[given], held[given], np.full(len(given), user), pairs[given])
            new_answers += len(given)
        if not new_answers or self.is_undecided():
            return {"failed": 1.0}
        return self.fit_answers()

    def fit_answers(self) -> dict[str, float]:
        """Passes over all answers until `epochs` are over, the learnt right or the held out no better; then all z."""
        config = self.config
        answers = self.labelled
        x = self.whiten(answers.rows)
        y = self.tensor(answers.label)
        learnt, held_out = answers.split()
        held_out_losses: list[float] = []
        metrics = {"loss": 0.0, "kl": 0.0}
        for _ in range(config.epochs):
            accuracy, metrics = self._one_pass(x, y, learnt)
            if len(held_out) >= MIN_HELD_OUT:
                logits = torch.from_numpy(self.predict(x, y, held_out, learnt))
                held_out_losses.append(float(cross_entropy(logits, y[held_out].cpu())))
            if passes_since_best(held_out_losses) >= MAX_PASSES_WITHOUT_PROGRESS or accuracy >= ENOUGH_ACCURACY:
                break
        answers.fits += 1
        states = answers.rows.reshape(-1, answers.rows.shape[-1])
        answers.references = states[self.rng.integers(len(states), size=config.references)]
        with torch.no_grad():
            for user in np.unique(answers.user):
                mean, _ = self.posterior(x, y, np.flatnonzero(answers.user == user)[None])
                answers.z[user] = mean[0].cpu().numpy()
        return metrics | self.accuracy(x, y, held_out, learnt)

    def _one_pass(self, x: Tensor, y: Tensor, learnt: np.ndarray) -> tuple[float, dict[str, float]]:
        """Once through the answers learnt from: the share of them that was right, and mean losses."""
        config = self.config
        is_right = []
        losses = []
        minibatches = math.ceil(len(learnt) / config.batch_size)
        for rows in np.array_split(self.rng.permutation(learnt), minibatches):
            mean, log_var = self.posterior(x, y, self.examples(rows, learnt))
            noise = self.tensor(self.rng.standard_normal(mean.shape, np.float32))
            logits = self.logits(x[rows], mean + noise * torch.exp(log_var / 2))
            decided = y[rows] != 0.5
            is_right.append(((logits > 0) == (y[rows] > 0.5))[decided])
            loss = cross_entropy(logits, y[rows])
            kl = divergence(mean, log_var).mean()
            self.descend(loss + config.kl_weight * kl)
            losses.append(torch.stack([loss, kl]).detach())
        mean_loss, mean_kl = torch.stack(losses).mean(dim=0).tolist()
        return float(torch.cat(is_right).float().mean()), {"loss": mean_loss, "kl": mean_kl}

    def accuracy(self, x: Tensor, y: Tensor, held_out: np.ndarray, learnt: np.ndarray) -> dict[str, float]:
        """How often answers held out are predicted, from N others of the same user; and where users disagree."""
        answers = self.labelled
        rows = held_out[answers.label[held_out] != 0.5]
        if not len(rows):
            return {}
        second_is_better = answers.label[rows] > 0.5
        pair = answers.pair[rows]
        is_right = (self.predict(x, y, rows, learnt) > 0) == second_is_better
        disputed = np.intersect1d(pair[second_is_better], pair[~second_is_better])
        in_dispute = np.isin(pair, disputed[disputed >= 0])
        metrics = {"accuracy": float(is_right.mean()), "disagreeing": float(in_dispute.mean())}
        if in_dispute.any():
            metrics["accuracy_disagreeing"] = float(is_right[in_dispute].mean())
        return metrics

    def predict(self, x: Tensor, y: Tensor, rows: np.ndarray, learnt: np.ndarray) -> np.ndarray:
        """Logits of answers (B,), each from N answers of its user among those `learnt`."""
        with torch.no_grad():
            mean, _ = self.posterior(x, y, self.examples(rows, learnt))
            return self.logits(x[rows], mean).cpu().numpy()

    def examples(self, rows: np.ndarray, learnt: np.ndarray) -> np.ndarray:
        """For each of B answers the places of N others of its user, drawn among those `learnt`: (B, N)."""
        users = self.labelled.user
        drawn = np.empty((len(rows), self.config.answers), np.int64)
        for user in np.unique(users[rows]):
            is_users = users[rows] == user
            answers = learnt[users[learnt] == user]
            drawn[is_users] = self._draw_others(rows[is_users], answers if len(answers) else learnt)
        return drawn

    def _draw_others(self, judged: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Of `answers`, places in ascending order, N for each judged one, itself left out: (B, N).

        Who gave one answer only is inferred from that one.
        """
        place = np.searchsorted(answers, judged)
        is_among = answers[np.minimum(place, len(answers) - 1)] == judged
        is_among &= len(answers) > 1
        choices = (len(answers) - is_among)[:, None]
        drawn = self.rng.integers(choices, size=(len(judged), self.config.answers))
        # The places from the judged answer's own on move up by one, so that it is never drawn.
        drawn += is_among[:, None] & (drawn >= place[:, None])
        return answers[drawn]

    def posterior(self, x: Tensor, y: Tensor, places: np.ndarray) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of z, (B, D) each, given the answers (n, 2, L, size), (n,) at `places` (B, N)."""
        index = self.tensor(places)
        pairs = x[index]
        # From -1, the first is better, to 1, the second is; the better one is put first.
        preference = 2 * y[index] - 1
        better_first = torch.where(preference[..., None, None, None] > 0, pairs.flip(2), pairs)
        inputs = torch.cat([better_first.flatten(2), preference.abs()[..., None]], dim=-1)
        mean, log_var = self.infers(self.reads(inputs).mean(dim=1)).chunk(2, dim=-1)
        return mean, log_var

    def logits(self, x: Tensor, z: Tensor) -> Tensor:
        """Logits that the second of whitened pairs (B, 2, L, size) is better for z (B, D): (B,)."""
        sums = self.rate(x, z[:, None, None]).sum(dim=-1)
        return sums[:, 1] - sums[:, 0]

    def preflight(self) -> str:
        for judge in self.labelled.judges.values():
            reason = judge.reach()
            if reason:
                return reason
        return ""

    def close(self) -> None:
        for judge in self.labelled.judges.values():
            judge.close()

    def notes(self) -> list[str]:
        notes = []
        for name, judge in self.labelled.judges.items():
            notes += [f"{name}: {note}" for note in judge.notes()]
        silent = [name for place, name in enumerate(self.config.users) if place not in self.labelled.user]
        if silent and self.labelled.fits:
            notes.append(f"no answers yet of {', '.join(silent)}, for whom z is 0")
        return notes + super().notes()


def entropy(chance: Tensor) -> Tensor:
    """Of answers that are 1 with this chance, in nats.

    Example:
        >>> entropy(torch.tensor([0.5, 1.0])).tolist()
        [0.6931471824645996, 0.0]
    """
    return torch.special.entr(chance) + torch.special.entr(1 - chance)


def divergence(mean: Tensor, log_var: Tensor) -> Tensor:
    """KL(N(mean, e^log_var) || N(0, 1)) of (..., D), summed over D, in nats."""
    return 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(dim=-1)
