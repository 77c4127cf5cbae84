"""LaRe: the return of an episode is redistributed over its steps, by way of a few factors that code computes.

A language model or a person who knows the task writes down what counts in a step as code, phi. A network psi learns
from whole episodes the value of the factors: its sum over an episode is to be the episode's return.
Sources: Qu et al. 2025, "Latent Reward: LLM-Empowered Credit Assignment in Episodic Reinforcement Learning" (AAAI 2025,
arXiv 2412.11120), factors and their decoder; Ren et al. 2022, "Learning Long-Term Reward Redistribution via Randomized
Return Decomposition" (arXiv 2111.13485), the loss with its bias corrected, RRD-L(RD): a few steps stand for an episode.
Without code this is plain return decomposition, phi(s, a) = (s, a): the control for what the factors add.

    form=implicit    r(s, a) = beta (log pi(a|s) - log pi_0(a|s)), psi the outputs of a policy pi, pi_0 that of psi = 0
    success=0.5      episodes succeed or fail, return > 0.5: sigmoid(sum of r) is fitted by cross-entropy

An implicit reward only compares actions of one state, so it cannot credit a state for being reached, and returns are
fitted less their mean. Evenly drawn actions earn at most 0 on average, so where episodes can end early an agent may
learn to end them (CartPole did). Source: Yuan et al. 2024, "Free Process Rewards without Process Labels", arXiv
2412.01981; pi_0 is a language model there, and draws evenly here (a Box: a normal around 0, of actions scaled to [-1,
1]).
Differences:
  - without code psi reads (s, a), where published code of both adds s - s';
  - code runs in a sandbox (`rewards.llm.sandbox.process`) and is verified, on rows made up from the spaces, to be
    finite, to give each row on its own and not to be constant, which the source does not check;
  - a model is asked as in the source (several candidates at temperature 1, one summary at 0.3, its errors handed back),
    in our wording, and every answer is kept in a file;
  - factors are whitened, psi starts at 0, and the reward is 0 until the first whole episode has been learnt from, by
    `steps` gradient steps at each update, which cost PPO on CartPole three quarters of its frames a second;
  - `per=episode` fits sums. The source fits means: an error of a return counts 1 / T^2, and short episodes rule;
  - an episode joined in its middle, longer than 20,000 steps or without an end is not learnt from.
When it fails: returns that differ by chance more than by what was done, or measure an episode's length alone; few
episodes; factors that miss what counts, which psi cannot make up for; a description that mistakes a number.
"""

import ast
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.files import file_stems, read_text
from lodestar.mappings import take_rows
from lodestar.settings import setting
from lodestar.state import Stateful
from rewards.base import RunningMeanStd, valid_rows
from rewards.check import random_rollout
from rewards.exploration.learned import Learned, LearnedConfig
from rewards.llm.client import JudgeError
from rewards.llm.judges.base import make_judge
from rewards.llm.judges.prompts import sections
from rewards.llm.judges.served import ModelJudge
from rewards.llm.sandbox.process import BUILTINS, LOOP, METHODS, NUMPY, Sandbox, SandboxError

MAX_EPISODE_STEPS = 20_000
# A factor whose standard deviation is below this is constant.
MIN_FACTOR_STD = 1e-6
# Observations made up from an unbounded space are clipped to this.
MAX_TRIAL_OBS = 1e3
FACTOR_FOLDER = Path(__file__).with_name("factors")
# Rows (T, D), actions (T, A) and total, its return.
Episode = dict[str, Any]
_CODE_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


@dataclass
class LaReConfig(LearnedConfig):
    """Settings of lare; `features`, `epochs`, `update_proportion` and `channels` are not used."""

    scale: str = "none"
    gamma: float | None = None
    code: str = setting("", "file with factors(obs, action), or pendulum, cartpole, mountain_car_continuous (by hand)")
    judge: str = setting("", "`openai` asks a language model for code; without both, factors are obs and action")
    judge_options: dict[str, Any] = setting({}, "model, url, key, candidates, repairs, ... of `Author`")
    goal: str = setting("", "what the task is, for the model: a sentence or more")
    describe: str = setting("", "what each number of obs and action is, for the model; or the name of a shipped task")
    answers: str = setting("", "*.sqlite that keeps the model's answers; the same questions need no server again")
    timeout: float = setting(5.0, "seconds for the factors of one batch, after which its code is stopped", "> 0")
    form: str = setting("network", "psi is a step's reward, or a policy", "network | implicit")
    beta: float = setting(1.0, "implicit: reward for one nat", "> 0", tune=(0.05, 5.0, "log"))
    success: float | None = setting(None, "fit whether returns are above it; null fits returns", "finite")
    per: str = setting("step", "what is fitted: a step's mean reward, or the sum", "step | episode")
    subset: int = setting(64, "K, steps that stand for their episode in one gradient step", ">= 2")
    episodes: int = setting(200, "newest whole episodes that are learnt from", ">= 1")
    steps: int = setting(50, "gradient steps at each update", ">= 1")
    layers: int = setting(3, "hidden layers of psi", ">= 1")
    hidden: int = setting(256, "their width")
    learning_rate: float = 0.0003
    max_grad_norm: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.code and self.judge:
            raise ValueError(f"reward.lare.code={self.code!r} and judge={self.judge!r} both give factors; give one")
        if self.form == "implicit" and (self.code or self.judge):
            raise ValueError("reward.lare.form=implicit reads obs and action themselves; leave code and judge out")
        if self.judge and not (self.goal.strip() and self.describe.strip()):
            needs = "goal (what the task is) and describe (what each number of an observation and an action means)"
            raise ValueError(f"reward.lare.judge={self.judge!r} needs {needs}")


class LaRe(Learned):
    """r(s, a) = psi(phi(s, a)), where the sum of r over an episode is its return."""

    Config = LaReConfig
    requires = frozenset({"obs", "action", "reward"})
    role = "goal"

    def build(self) -> None:
        super().build()
        config = self.config
        if self.layout.images:
            space = self.observation_space
            raise ValueError(f"reward lare reads numbers, not the images of {space}; choose keys without")
        self.author: Author | None = None
        self.phi = self._make_factors() if config.code or config.judge else None
        inputs = self.layout.size
        outputs = 1
        if self.phi is not None:
            inputs = self.phi.width
            self.statistics = RunningMeanStd((inputs,))
        elif config.form == "implicit":
            # A policy: from an observation to the parameters of its distribution.
            outputs = self.actions.size
        else:
            inputs += self.actions.size
        hidden = [config.hidden] * config.layers
        self.psi = self.head(inputs, *hidden, outputs, gain=0.01)
        self.train_on(self.psi)
        self.episodes = WholeEpisodes(config.episodes)

    def _make_factors(self) -> Sandbox:
        """Phi in a sandbox, from the given code or written by the judge; verified on made-up transitions."""
        config = self.config
        rollout = random_rollout(self.observation_space, self.action_space, steps=16, seed=self.seed).flatten()
        obs = np.clip(self.rows(rollout.obs), -MAX_TRIAL_OBS, MAX_TRIAL_OBS)
        action = action_numbers(rollout.action)
        # Two sizes, because code may mix up the axes of one.
        batches = [(obs[:2], action[:2]), (obs, action)]

        def verify(source: str) -> Sandbox:
            return verify_code(source, batches, timeout=config.timeout)

        if config.code:
            try:
                return verify(read(config.code))
            except SandboxError as error:
                raise ValueError(f"reward lare: the code in {config.code!r} was refused: {error}") from None
        options = {"answers": config.answers, **config.judge_options}
        author: Author = make_judge(config.judge, "code", **options)
        self.author = author
        text = question(config.goal, describe(config.describe), obs.shape[1], action.shape[1])
        sandbox: Sandbox = author.write(text, verify)
        return sandbox

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        if not self.episodes.learnt:
            return np.zeros(batch.shape, np.float32)
        rows, actions = self.raw_inputs(batch)
        reward = self.in_pieces(self.decode, *self.input_tensors(rows, actions))
        return reward.cpu().numpy()

    def update(self, batch: Transitions) -> dict[str, float]:
        # A flat batch is that of one environment, in time order.
        if len(batch.shape) == 1:
            batch = batch[:, None]
        envs = batch.shape[1]
        column = np.broadcast_to(np.arange(envs), batch.shape)[np.asarray(batch.valid, bool)]
        flat = valid_rows(batch)
        if not len(column):
            return {}
        rows, actions = self.raw_inputs(flat)
        if self.phi is not None or self.config.normalize_obs == "running":
            self.statistics.update(rows)
        ended = self.episodes.add(
            envs,
            column=column,
            rows=rows,
            actions=actions,
            reward=np.asarray(flat.reward, np.float64),
            step=flat.step,
            ended=flat.ended,
        )
        # The error is that on episodes which psi has not been fitted to yet.
        metrics = self._test_error(ended)
        metrics |= self._fit()
        metrics["episodes"] = float(len(self.episodes))
        return metrics

    def raw_inputs(self, batch: Transitions) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of psi for flat transitions: rows (N, size) to be whitened, and actions (N, A), A = 0 with phi."""
        rows = self.rows(batch.obs)
        actions = self.actions(batch.action).cpu().numpy()
        if self.phi is None:
            return rows, actions
        return self.phi(rows, action_numbers(batch.action)), actions[:, :0]

    def input_tensors(self, rows: np.ndarray, actions: np.ndarray) -> tuple[Tensor, Tensor]:
        return self.whiten(rows), self.tensor(actions)

    def decode(self, x: Tensor, action: Tensor) -> Tensor:
        """The reward of rows (N, size) and (N, A): (N,)."""
        if self.config.form == "implicit":
            return self.config.beta * log_ratio(self.psi(x), action, self.actions.blocks)
        return self.psi(torch.cat([x, action], dim=1)).squeeze(-1)

    def _test_error(self, episodes: list[Episode]) -> dict[str, float]:
        """Mean distance between sums and returns of episodes that have not been learnt from yet."""
        if not (episodes and self.episodes.learnt):
            return {}
        sums = []
        with torch.no_grad():
            for episode in episodes:
                reward = self.decode(*self.input_tensors(episode["rows"], episode["actions"]))
                sums.append(float(reward.double().sum()))
        targets = self._targets(episodes)
        if self.config.success is not None:
            is_right = (np.array(sums) > 0) == (targets > 0)
            return {"accuracy": float(np.mean(is_right))}
        return {"error": float(np.mean(np.abs(sums - targets)))}

    def _targets(self, episodes: Iterable[Episode]) -> np.ndarray:
        """What the sums of episodes are fitted to, float32 (B,)."""
        returns = _episode_totals(episodes)
        if self.config.success is not None:
            return (returns > self.config.success).astype(np.float32)
        mean_return = 0.0
        if self.config.form == "implicit":
            mean_return = float(_episode_totals(self.episodes.kept).mean())
        return (returns - mean_return).astype(np.float32)

    def _fit(self) -> dict[str, float]:
        config = self.config
        episodes = self.episodes.kept
        if not episodes:
            return {}
        lengths = np.array([len(episode["rows"]) for episode in episodes])
        targets = self._targets(episodes)
        # Failures alone would blame every step.
        if config.success is not None and np.ptp(targets) == 0:
            return {}
        # All episodes end to end; each begins at its start.
        rows = np.concatenate([episode["rows"] for episode in episodes])
        actions = np.concatenate([episode["actions"] for episode in episodes])
        x, action = self.input_tensors(rows, actions)
        starts = np.cumsum(lengths) - lengths
        typical = float(lengths.mean()) if config.per == "episode" else None
        batch_size = max(1, config.batch_size // config.subset)
        losses = []
        for _ in range(config.steps):
            picked = self.rng.integers(len(episodes), size=batch_size)
            length = lengths[picked]
            place = draw(self.rng, length, config.subset)
            # Places beyond an episode's end read row 0, and count nothing.
            inside = place < length[:, None]
            row = np.where(inside, place + starts[picked][:, None], 0)
            index = self.tensor(row.ravel())
            guess = self.decode(x.index_select(0, index), action.index_select(0, index)).view(place.shape)
            facts = [self.tensor(values).float() for values in (inside, length, targets[picked])]
            if config.success is None:
                loss = decomposition_loss(guess, *facts, typical=typical)
            else:
                loss = success_loss(guess, *facts)
            self.descend(loss.mean())
            losses.append(loss.detach().mean())
        self.episodes.learnt += 1
        return {"loss": float(torch.stack(losses).mean())}

    def notes(self) -> list[str]:
        lines = self.author.notes() if self.author else []
        if self.episodes.dropped:
            dropped = self.episodes.dropped
            lines.append(f"{dropped} episodes were longer than {MAX_EPISODE_STEPS:,} steps and were left out")
        if self.phi is None:
            return ["no code for factors: plain return decomposition of obs and action", *lines]
        if self.config.code:
            by_hand = " (written by hand)" if self.config.code in shipped_names() else ""
            lines.append(f"factors are those of {self.config.code}{by_hand}")
        lines += self.phi.notes()
        constant = np.flatnonzero(self.statistics.std < MIN_FACTOR_STD).tolist()
        if self.statistics.count > 1 and constant:
            lines.append(f"factors {constant} were the same in all {self.statistics.count:,} steps so far")
        return lines


def _episode_totals(episodes: Iterable[Episode]) -> np.ndarray:
    return np.array([episode["total"] for episode in episodes])


def draw(rng: np.random.Generator, length: np.ndarray, subset: int) -> np.ndarray:
    """K places in each of B episodes: int (B, min(K, longest)); those at or beyond an episode's length are none."""
    longest = int(length.max())
    # The K smallest of uniform numbers are a draw without replacement; 2 is behind all of them.
    numbers = rng.random((len(length), longest))
    numbers[np.arange(longest) >= length[:, None]] = 2.0
    count = min(subset, longest)
    places = np.argpartition(numbers, count - 1, axis=1)
    return places[:, :count]


def decomposition_loss(
    guess: Tensor,
    inside: Tensor,
    length: Tensor,
    total: Tensor,
    *,
    typical: float | None = None,
) -> Tensor:
    """(mean over K of r - R / T)^2 - var_K(r) (1 - K / T) / K, (B,): on average over subsets, that of all steps.

    `guess` (B, K) is r of the steps drawn; `inside` (B, K) is 1 where there is such a step, at least one in each row,
    else 0; `length` (B,) is T and `total` (B,) R; `typical` multiplies by (T / typical)^2.
    """
    count = inside.sum(dim=1)
    mean = (guess * inside).sum(dim=1) / count
    squares = (guess - mean[:, None]).square() * inside
    var = squares.sum(dim=1) / (count - 1).clamp(min=1)
    loss = (mean - total / length).square() - var * (1 - count / length) / count
    if typical is None:
        return loss
    return loss * (length / typical).square()


def success_loss(guess: Tensor, inside: Tensor, length: Tensor, success: Tensor) -> Tensor:
    """Cross-entropy of sigmoid(T times the mean over K of r) and success, (B,); arguments as `decomposition_loss`."""
    mean = (guess * inside).sum(dim=1) / inside.sum(dim=1)
    total = mean * length
    return binary_cross_entropy_with_logits(total, success, reduction="none")


def log_ratio(out: Tensor, action: Tensor, blocks: Sequence[int]) -> Tensor:
    """log pi(a|s) - log pi_0(a|s), (N,), pi_0 being pi where `out` (N, A) is 0: softmax of each block of one-hot
    actions (N, A), or normal around `out`.
    """
    if not blocks:
        return (out * action - out.square() / 2).sum(dim=1)
    # pi_0 is even: log pi_0 is minus the logarithm of the number of actions in a block.
    parts = [part.log_softmax(dim=1) + math.log(part.shape[1]) for part in out.split(list(blocks), dim=1)]
    ratios = torch.cat(parts, dim=1)
    return (ratios * action).sum(dim=1)


class WholeEpisodes(Stateful):
    """The newest whole episodes, and the beginnings of those that have not ended."""

    saved = ("kept", "begun", "learnt", "dropped", "envs")

    def __init__(self, capacity: int) -> None:
        self.kept: deque[Episode] = deque(maxlen=capacity)
        # How often they were learnt from, how many were too long, and the environments of the last call.
        self.learnt = 0
        self.dropped = 0
        self.envs = 0
        # As the columns of `add`, environment by environment.
        self.begun: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, envs: int, **columns: np.ndarray) -> list[Episode]:
        """Take in steps of so many environments in time order; returns the episodes that ended, each seen whole.

        Columns are: column (M,), the environment; rows (M, D); actions (M, A); reward (M,), the task's; step (M,),
        within its episode; ended (M,), whether it was its last.
        """
        if self.begun and self.envs == envs:
            columns = {name: np.concatenate([self.begun[name], new]) for name, new in columns.items()}
        self.envs = envs
        order = np.argsort(columns["column"], kind="stable")
        columns = take_rows(columns, order)
        env = columns["column"]
        step = columns["step"]
        ended = columns["ended"]
        # A piece is a run of steps that follow each other in one episode of one environment.
        begins = np.ones(len(env), bool)
        begins[1:] = (env[1:] != env[:-1]) | ended[:-1] | (step[1:] != step[:-1] + 1)
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(env)) - 1
        from_start = step[first] == 0
        fits = last - first < MAX_EPISODE_STEPS
        complete = from_start & ended[last]
        self.dropped += int((complete & ~fits).sum())
        episodes: list[Episode] = []
        for a, b in zip(first[complete & fits], last[complete & fits] + 1):
            episode: Episode = {}
            for name in ("rows", "actions"):
                episode[name] = columns[name][a:b].copy()
            episode["total"] = float(columns["reward"][a:b].sum())
            episodes.append(episode)
        self.kept.extend(episodes)
        # The last piece of an environment goes on with the next call, if it has not ended.
        is_latest = np.append(env[first[1:]] != env[first[:-1]], True)
        is_running = from_start & ~ended[last] & is_latest & fits
        running_steps = np.repeat(is_running, last - first + 1)
        self.begun = take_rows(columns, running_steps)
        return episodes


def action_numbers(action: np.ndarray) -> np.ndarray:
    """Actions as code reads them: float32 (N, A), in the environment's own numbers."""
    action = np.asarray(action)
    # The size is no -1, which has no meaning where there are no rows.
    return action.reshape(len(action), math.prod(action.shape[1:])).astype(np.float32)


def shipped_names() -> list[str]:
    """Names of the factors that come with the package, all written by hand."""
    return file_stems(FACTOR_FOLDER, "[!_]*.py")


def read(code: str) -> str:
    """The source in a file, or in a shipped one called by its name; raises ValueError if there is no such file."""
    path = FACTOR_FOLDER / f"{code}.py" if code in shipped_names() else Path(code)
    try:
        return read_text(path.resolve(), errors="strict")
    except (OSError, UnicodeDecodeError) as error:
        known = f"give a file, or one of {', '.join(shipped_names())}"
        raise ValueError(f"reward lare: code={code!r} cannot be read ({type(error).__name__}); {known}") from None


def describe(text: str) -> str:
    """A description as it stands, or that of a shipped task which is called by its name."""
    if text not in shipped_names():
        return text
    return ast.get_docstring(ast.parse(read(text))) or ""


def question(goal: str, description: str, obs_size: int, action_size: int) -> str:
    """What a model is asked for one task."""
    return sections("factors")["candidate"].format(
        goal=goal,
        describe=description,
        obs_size=obs_size,
        action_size=action_size,
        rules=rules(),
    )


def rules() -> str:
    """What code may use, for its author."""
    return sections("factors")["rules"].format(
        numpy=", ".join(sorted(NUMPY)),
        methods=", ".join(sorted(METHODS)),
        builtins=", ".join(BUILTINS),
        loop=LOOP,
    )


def code_in(answer: str, function: str = "factors(obs, action)") -> str:
    """The last block of an answer that defines a function, or all of it; raises SandboxError if nothing does."""
    name, _, _ = function.partition("(")
    definition = re.compile(rf"^def {name}\(", re.MULTILINE)
    for block in reversed([answer, *_CODE_BLOCK.findall(answer)]):
        if definition.search(block):
            return block.strip() + "\n"
    raise SandboxError(f"the answer has no block of code that defines {function}")


def verify_code(source: str, batches: Sequence[tuple[np.ndarray, np.ndarray]], **limits: Any) -> Sandbox:
    """A sandbox, with some limits, for code that did well on batches of obs (B, obs size) and action (B, action size).

    SandboxError if it is refused, fails, gives what is not finite, mixes rows, or never moves.
    """
    first_obs, first_action = batches[0]
    sandbox = Sandbox(source, first_obs.shape[1], first_action.shape[1], **limits)
    varies = False
    try:
        for obs, action in batches:
            values = sandbox.run(obs, action)
            if sandbox.counts["not finite"]:
                raise SandboxError("factors gave values that are not finite; guard divisions, roots and logarithms")
            # The same rows in two batches have to give the same.
            first_row = sandbox.run(obs[:1], action[:1])
            other_rows = sandbox.run(obs[1:], action[1:])
            if not np.allclose(np.concatenate([first_row, other_rows]), values, 1e-3, 1e-4):
                raise SandboxError("a row of factors depends on other rows; compute each from its own row alone")
            if (np.ptp(values, axis=0) > 0).any():
                varies = True
        if not varies:
            raise SandboxError("factors gave the same for all rows; compute them from obs and action")
    except SandboxError:
        sandbox.close()
        raise
    return sandbox


@dataclass(eq=False)
class CodeModel(ModelJudge):
    """A language model that writes code; every answer is kept."""

    timeout: float = 120.0
    max_tokens: int = 4096
    seed: int = setting(0, "of the candidates, which differ by it, and of the waits between attempts")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked = 0

    def ask(self, text: str, temperature: float, numbers: Iterable[int]) -> list[str | JudgeError]:
        """Answers to a text, one a number, at the same time; or why there is none."""

        def ask_model(seed: int) -> str:
            self.asked += 1
            return str(self.chat.ask([text], temperature=temperature, seed=seed))

        # What an answer depends on is the key that it is kept by.
        seeds = {}
        for number in numbers:
            seed = self.seed + number
            seeds[json.dumps([temperature, seed, text])] = seed
        stored, answered = self.ask_kept(seeds, ask_model, str)
        answers: dict[str, str | JudgeError] = {**stored, **answered}
        return [answers[key] for key in seeds]


@dataclass(eq=False)
class Author(CodeModel):
    """A language model that writes factors."""

    candidates: int = setting(5, "answers that are weighed against each other", ">= 1")
    repairs: int = setting(5, "times that code may be tried", ">= 1")

    @property
    def identity(self) -> str:
        return f"code version {sections('factors')['version']} {self.model}"

    def write(self, asked: str, verify: Callable[[str], Any]) -> Any:
        """What `verify` returns for the first code that it accepts; ValueError without a model, or one."""
        prompts = sections("factors")
        errors: list[str] = []
        try:
            answer = self._summarise_drafts(asked)
            for _ in range(self.repairs):
                code = ""
                try:
                    code = code_in(answer)
                    return verify(code)
                except SandboxError as error:
                    errors.append(str(error))
                if len(errors) < self.repairs:
                    repair = prompts["repair"].format(error=errors[-1], code=code or answer, question=asked)
                    answer = self._ask_for_answers(repair, 0.3, [len(errors)])[0]
        except JudgeError as error:
            raise ValueError(f"no factors without the model {self.model}: {error}; start it, or give code=") from None
        raise ValueError(f"{self.model} wrote no factors that run in {self.repairs} attempts, the last: {errors[-1]}")

    def _summarise_drafts(self, asked: str) -> str:
        """Several candidates at temperature 1, made into one answer by the model itself."""
        drafts = self._ask_for_answers(asked, 1.0, range(self.candidates))
        if len(drafts) == 1:
            return drafts[0]
        answers = "\n\n".join(f"Answer {i}:\n{draft}" for i, draft in enumerate(drafts, 1))
        summary = sections("factors")["summary"].format(question=asked, answers=answers)
        return self._ask_for_answers(summary, 0.3, [0])[0]

    def notes(self) -> list[str]:
        where = f", answers in {self.answers}" if self.answers else ""
        return [f"the factors' code was written by {self.model}, asked {self.asked} times in this run{where}"]

    def _ask_for_answers(self, text: str, temperature: float, numbers: Iterable[int]) -> list[str]:
        answers = self.ask(text, temperature, numbers)
        usable = [answer for answer in answers if isinstance(answer, str)]
        if not usable:
            # No answer is usable, so that each is the reason why there is none.
            raise next(answer for answer in answers if isinstance(answer, JudgeError))
        return usable
