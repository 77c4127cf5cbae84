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

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

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
from rewards.preference.sessions import LabelledPairs, Sessions, SessionsConfig

# two synthetic ones, the second against the task
TWO = {"for": {"judge": "scripted"}, "against": {"judge": "scripted", "mistakes": 1.0}}
ALL = "all"
PATIENCE = 10  # passes without progress on the answers held out
FEW = 10  # of those; fewer say nothing about when to stop
CANDIDATES = 200  # pairs that a question to somebody new is chosen from
DRAWS = 64  # of z, to estimate what a question's answer says about it
ENOUGH = 0.97  # share of the answers it learns from that it is right about, after which a session ends


@dataclass
class UsersConfig(SessionsConfig):
    """Settings of users; the source's value in brackets where it differs."""

    users: dict[str, Any] = setting(TWO, "name -> judge and options, as in {ann: {judge: recorded, path: ann.jsonl}}")
    user: str = setting("", "whose reward it is; empty for the first; all: episode by episode the next one's")
    latent: int = setting(8, "numbers in z, D [8 to 32]; 0 is one reward for all users, the control", low=0)
    answers: int = setting(4, "answers that z is inferred from while learning, N [4 to 16]", low=1)
    kl_weight: float = setting(0.01, "of the KL of a z, beside the mean cross-entropy of an answer", low=0)
    references: int = setting(64, "states that a state is compared with, M", low=1)
    budget: int = setting(500, "answers in total, of all users together", low=1)
    queries: int = setting(20, "pairs in one session; each user is asked about all of them", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.users:
            raise ValueError(f"{self.prefix}users={{}} names none; give judges by name, as {{ann: {{judge: human}}}}")
        if self.user not in ("", ALL, *self.users):
            raise ValueError(f"{self.prefix}user={self.user} is unknown; give one of {', '.join(self.users)}, or {ALL}")


class UserAnswers(LabelledPairs):
    """Answers with the number of the user, and of the pair; z (U, D) of users, references (M, size) to compare with."""

    columns = ("rows", "label", "held", "user", "pair")
    saved = (*columns, "seen", "due", "asked", "fits", "z", "references", "judges")

    def __init__(self, due: int, judges: dict[str, SegmentJudge], latent: int) -> None:
        super().__init__(due)
        self.user = self.pair = np.zeros(0, np.int64)  # (n,); pair -1 where it was not the one asked about
        self.z, self.references = np.zeros((len(judges), latent), np.float32), np.zeros((1, 1), np.float32)
        self.judges = judges


class Users(Sessions):
    """r(s', z) in [0, 1]: the share of reference states that s' is better than for the user with z; 0 before a fit."""

    Config = UsersConfig
    labelled: UserAnswers
    served: np.ndarray | None = None  # z (1, D) of the only user, while one alone is served
    control: ClassVar[dict[str, Any] | None] = {"latent": 0}

    def build(self) -> None:
        config, space = self.config, self.observation_space
        self.guides = config.latent if config.user == ALL else 0  # numbers that the policy reads
        judges = {name: self.judge_of(name, given, place) for place, (name, given) in enumerate(config.users.items())}
        self.requires = frozenset({"next_obs"}).union(*(judge.requires for judge in judges.values()))
        if self.guides:  # z comes with the observations
            size = max(int(np.prod(space.shape or (0,))) - self.guides, 1)
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        super().build()
        self.observation_space = space
        if self.layout.images:
            raise ValueError(f"reward users cannot read the images of {space}; give observations as numbers")
        hidden, size, latent = config.hidden, self.layout.size, config.latent
        self.reads = self.head(2 * config.length * size + 1, hidden, hidden, config.features)
        self.infers = self.head(config.features, hidden, 2 * latent)
        self.rates = self.head(size + latent, hidden, hidden, 1)
        self.train_on(self.reads, self.infers, self.rates)
        self.segments = Segments(config.length, config.pool, self.requires & {"text", "signals"})
        self.labelled = UserAnswers(config.seed_steps, judges, latent)

    def judge_of(self, name: str, given: dict[str, Any], place: int) -> SegmentJudge:
        """The judge that a user's options name; `place` seeds its faults."""
        options = dict(given)
        kind = options.pop("judge", "scripted")
        if kind == "human":
            options = {"answers": f"preferences/{name}.jsonl", "show": "obs", **options}
        made = make_segment_judge(kind, **{"seed": self.seed + 500 + place, "device": self.device, **options})
        if isinstance(made, RecordedPreferences) and made.judge is None and not made.labels:
            raise ValueError(f"{self.config.prefix}users: {name} has no answers in {made.path}; leave the file out")
        if made.embedding or "frame" in made.requires:
            raise ValueError(f"{self.config.prefix}users: the judge of {name} reads frames; give show=obs, or another")
        return made

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
        first, second = map(self.segments.pick, self.draw(CANDIDATES))
        pairs = self.whiten(self.pair_rows(first, second))
        left = np.arange(CANDIDATES)
        rows, labels = list[np.ndarray](), list[float]()
        while len(left) and len(labels) < count:
            worth = self.rng.random(len(left))
            if informative:
                worth = self.information(pairs[left], *self.belief(rows, labels))
            place = left[worth.argmax()]
            left = left[left != place]
            asked = self.ask(judge, first[:, [place]], second[:, [place]], 1)
            if asked is None or not len(asked[2]):
                break
            one, two, label = asked
            if not np.isnan(label[0]):
                rows.append(self.pair_rows(one, two)[0])
                labels.append(float(label[0]))
        return self.belief(rows, labels)[0][0].cpu().numpy(), len(labels)

    def belief(self, rows: list[np.ndarray], labels: list[float]) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of z, (1, D) each, given answers: pairs (2, L, size) and labels; N(0, 1) before any."""
        if not rows:
            nothing = torch.zeros(1, self.config.latent, device=self.device)
            return nothing, nothing
        x, y = self.whiten(np.stack(rows)), torch.tensor(labels, device=self.device)
        with torch.no_grad():
            return self.posterior(x, y, np.arange(len(labels))[None])

    def information(self, x: Tensor, mean: Tensor, log_var: Tensor) -> np.ndarray:
        """What the answer to each whitened pair (B, 2, L, size) says about z, in nats: (B,)."""
        noise = torch.from_numpy(self.rng.standard_normal((DRAWS, mean.shape[1]), np.float32)).to(self.device)
        drawn = mean + noise * torch.exp(log_var / 2)
        with torch.no_grad():
            chance = torch.stack([torch.sigmoid(self.logits(x, z.expand(len(x), -1))) for z in drawn])
        return (entropy(chance.mean(dim=0)) - entropy(chance).mean(dim=0)).cpu().numpy()

    def pair_rows(self, first: Transitions, second: Transitions) -> np.ndarray:
        """Segments (L, B) as rows without the z beside them: (B, 2, L, size)."""
        sides = [self.own_rows(side.flatten().next_obs).reshape(*side.shape, -1) for side in (first, second)]
        return np.stack(sides).transpose(2, 0, 1, 3)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        if not self.labelled.fits:
            return np.zeros(batch.shape, np.float32)
        names, chosen = [*self.config.users], self.config.user
        z = np.tile(self.labelled.z[names.index(chosen) if chosen in names else 0], (len(batch.step), 1))
        if self.guides:
            z = np.asarray(batch.next_obs, np.float32)[:, -self.guides :]
        state = self.whiten(self.own_rows(batch.next_obs))
        return self.in_pieces(self.share, state, torch.from_numpy(z).to(self.device)).cpu().numpy()

    def own_rows(self, obs: Any) -> np.ndarray:
        """Observations (N, ...) without the z beside them, as rows (N, size)."""
        return self.rows(obs[:, : -self.guides] if self.guides else obs)

    def share(self, state: Tensor, z: Tensor) -> Tensor:
        """r of whitened states (N, size) for z (N, D): (N,)."""
        kinds, which = z[:1], torch.zeros(len(z), dtype=torch.long, device=z.device)
        if z.shape[1]:
            kinds, which = torch.unique(z, dim=0, return_inverse=True)
        known = self.whiten(self.labelled.references).expand(len(kinds), -1, -1)
        theirs = self.rate(known, kinds[:, None])
        return torch.sigmoid(self.rate(state, z)[:, None] - theirs[which]).mean(dim=1)

    def rate(self, state: Tensor, z: Tensor) -> Tensor:
        """g of whitened states (..., size) and z that fits them: (...)."""
        beside = z.expand(*state.shape[:-1], z.shape[-1])
        return self.rates(torch.cat([state, beside], dim=-1)).squeeze(-1)

    def judge_use(self) -> JudgeUse | None:
        """Each pair is a question to every user."""
        return self._use_of(self.labelled.asked * len(self.labelled.judges))

    def session(self, most: int) -> dict[str, float]:
        answers, config = self.labelled, self.config
        queries = min(config.queries, most // len(answers.judges))
        if not queries:
            return {}
        first, second = map(self.segments.pick, self.draw(queries))
        number, held = answers.asked + np.arange(queries), self.rng.random(queries) < config.held_out
        answers.asked += queries
        taken, self.failure = 0, ""
        for user, judge in enumerate(answers.judges.values()):
            asked = self.ask(judge, first, second, queries)
            if asked is None or np.isnan(asked[2]).all():
                continue
            one, two, label = asked
            given = np.flatnonzero(~np.isnan(label))
            same = one is first  # not an answer to an earlier question
            rows = self.pair_rows(one, two)[given]
            if config.normalize_obs == "running":
                self.statistics.update(rows.reshape(-1, rows.shape[-1]))
            kept = held if same else self.rng.random(len(label)) < config.held_out
            pair = number if same else np.full(len(label), -1)
            answers.add(rows, label[given], kept[given], np.full(len(given), user), pair[given])
            taken += len(given)
        return {"failed": 1.0} if not taken or self.undecided() else self.fit_answers()

    def fit_answers(self) -> dict[str, float]:
        """Passes over all answers until `epochs` are over, the learnt right or the held out no better; then all z."""
        config, answers = self.config, self.labelled
        x, y = self.whiten(answers.rows), torch.from_numpy(answers.label).to(self.device)
        learnt, kept = np.flatnonzero(~answers.held), np.flatnonzero(answers.held)
        learnt = learnt if len(learnt) else kept
        best, waited, losses = np.inf, 0, [torch.zeros(2)]
        for _ in range(config.epochs):
            losses, right = [], []
            for rows in np.array_split(self.rng.permutation(learnt), -(-len(learnt) // config.batch_size)):
                mean, log_var = self.posterior(x, y, self.examples(rows, learnt))
                noise = torch.from_numpy(self.rng.standard_normal(mean.shape, np.float32)).to(self.device)
                logits = self.logits(x[rows], mean + noise * torch.exp(log_var / 2))
                right.append(((logits > 0) == (y[rows] > 0.5))[y[rows] != 0.5])
                loss = cross_entropy(logits, y[rows])
                kl = divergence(mean, log_var).mean()
                self.descend(loss + config.kl_weight * kl)
                losses.append(torch.stack([loss, kl]).detach())
            if len(kept) >= FEW:
                error = float(cross_entropy(torch.from_numpy(self.predict(x, y, kept, learnt)), y[kept].cpu()))
                best, waited = (error, 0) if error < best else (best, waited + 1)
            if waited >= PATIENCE or float(torch.cat(right).float().mean()) >= ENOUGH:
                break
        answers.fits += 1
        states = answers.rows.reshape(-1, answers.rows.shape[-1])
        answers.references = states[self.rng.integers(len(states), size=config.references)]
        with torch.no_grad():
            for user in np.unique(answers.user):
                answers.z[user] = self.posterior(x, y, np.flatnonzero(answers.user == user)[None])[0][0].cpu().numpy()
        loss, kl = torch.stack(losses).mean(dim=0).tolist()
        return {"loss": loss, "kl": kl, **self.accuracy(x, y, kept, learnt)}

    def accuracy(self, x: Tensor, y: Tensor, kept: np.ndarray, learnt: np.ndarray) -> dict[str, float]:
        """How often answers held out are predicted, from N others of the same user; and where users disagree."""
        answers = self.labelled
        kept = kept[answers.label[kept] != 0.5]
        if not len(kept):
            return {}
        second, pair = answers.label[kept] > 0.5, answers.pair[kept]
        right = (self.predict(x, y, kept, learnt) > 0) == second
        both = np.intersect1d(pair[second], pair[~second])
        differ = np.isin(pair, both[both >= 0])
        found = {"accuracy": float(right.mean()), "disagreeing": float(differ.mean())}
        return found | ({"accuracy_disagreeing": float(right[differ].mean())} if differ.any() else {})

    def predict(self, x: Tensor, y: Tensor, rows: np.ndarray, learnt: np.ndarray) -> np.ndarray:
        """Logits of answers (B,), each from N answers of its user among those `learnt`."""
        with torch.no_grad():
            return self.logits(x[rows], self.posterior(x, y, self.examples(rows, learnt))[0]).cpu().numpy()

    def examples(self, rows: np.ndarray, learnt: np.ndarray) -> np.ndarray:
        """For each of B answers the places of N others of its user, drawn among those `learnt`: (B, N)."""
        users = self.labelled.user
        drawn = np.empty((len(rows), self.config.answers), np.int64)
        for user in np.unique(users[rows]):
            judged = users[rows] == user
            own = learnt[users[learnt] == user]
            drawn[judged] = self._others(rows[judged], own if len(own) else learnt)
        return drawn

    def _others(self, judged: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Of `answers`, places in ascending order, N for each judged one, itself left out: (B, N).

        Who gave one answer only is inferred from that one.
        """
        place = np.searchsorted(answers, judged)
        among = answers[np.minimum(place, len(answers) - 1)] == judged
        among &= len(answers) > 1
        choices = (len(answers) - among)[:, None]
        drawn = self.rng.integers(choices, size=(len(judged), self.config.answers))
        # The places from the judged answer's own on move up by one, so that it is never drawn.
        drawn += among[:, None] & (drawn >= place[:, None])
        return answers[drawn]

    def posterior(self, x: Tensor, y: Tensor, places: np.ndarray) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of z, (B, D) each, given the answers (n, 2, L, size), (n,) at `places` (B, N)."""
        index = torch.from_numpy(places).to(self.device)
        pairs, sure = x[index], 2 * y[index] - 1
        better = torch.where(sure[..., None, None, None] > 0, pairs.flip(2), pairs)
        seen = torch.cat([better.flatten(2), sure.abs()[..., None]], dim=-1)
        mean, log_var = self.infers(self.reads(seen).mean(dim=1)).chunk(2, dim=-1)
        return mean, log_var

    def logits(self, x: Tensor, z: Tensor) -> Tensor:
        """Logits that the second of whitened pairs (B, 2, L, size) is better for z (B, D): (B,)."""
        sums = self.rate(x, z[:, None, None]).sum(dim=-1)
        return sums[:, 1] - sums[:, 0]

    def preflight(self) -> str:
        return next(filter(None, (judge.reach() for judge in self.labelled.judges.values())), "")

    def close(self) -> None:
        for judge in self.labelled.judges.values():
            judge.close()

    def notes(self) -> list[str]:
        notes = [f"{name}: {note}" for name, judge in self.labelled.judges.items() for note in judge.notes()]
        silent = [name for place, name in enumerate(self.config.users) if place not in self.labelled.user]
        waiting = [f"no answers yet of {', '.join(silent)}, for whom z is 0"] if silent and self.labelled.fits else []
        return [*notes, *waiting, *([self.failure] if self.failure else [])]


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
