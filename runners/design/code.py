"""The search for reward code: an author proposes, the sandbox checks, the sweep trains, the task's return chooses.

    round n: ask -> check on transitions -> train each on its reward alone -> tell the author how it went
    at last: the best, and the task's own reward, on test seeds -> reward.py, design.json

What fails on the way costs a sentence and its candidate. A search that was killed continues: answers are kept in
rounds/, all of them in answers.txt, which judge=recorded repeats.
Source: Ma et al. 2023, "Eureka" (arXiv 2310.12931), algorithm 1 and its reward reflection. Differences: candidates are
checked before training; the winner is chosen on seeds of its own; the author is not asked to mend what failed, it reads
why. When it fails: a task whose return is the same for all candidates chooses none of them.
"""

import functools
import itertools
import os
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from envs.family import family_of
from envs.make import make, spec_of
from envs.recording import record
from lodestar.files import make_folder, read_json, read_text
from rewards.design import authors
from rewards.design.code import FORM, Rows, layout_of, rows_of, try_code
from rewards.language.lare import code_in, describe
from rewards.llm.judges.base import make_judge
from rewards.llm.sandbox.process import SandboxError
from runners.design.config import SEARCH_SEED, DesignConfig
from runners.design.context import describe_environment
from runners.offline import load
from runners.report.read import ALARM
from runners.report.statistics import aggregate, iqm
from runners.run.checkpoint import versions, write_atomically, write_json
from runners.run.config import TextValues, UsageError
from runners.run.exits import Signals
from runners.run.progress import LEARNED_RETURN, TASK_RETURN, read_csv
from runners.sweep.config import begin
from runners.sweep.display import scores
from runners.sweep.drive import drive
from runners.sweep.job import JobLog, Launcher

# Moments of a training that the author reads.
MAX_MOMENTS = 10
# Seconds for the code on all transitions.
CHECK_TIMEOUT_S = 2.0
TASK_ARM = {"reward": "task"}

# Name of an arm -> what its runs are given.
Arms = dict[str, TextValues]


@dataclass
class Proposal:
    """One answer: its code, the names of its components, or why it was refused; and how its runs ended."""

    # r2c1 is the second proposal of round 2.
    name: str
    code: str = ""
    names: list[str] = field(default_factory=list)
    error: str = ""
    # The task's return of each run.
    returns: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """What it is chosen by."""
        if self.error or not self.returns:
            return -np.inf
        return float(iqm(self.returns))


def search(config: DesignConfig) -> Proposal:
    """The whole search, top to bottom; returns the winner."""
    author = make_judge(config.judge, "rewards", **config.judge_options)
    brief, batches = begin_brief(config)
    proposals: list[Proposal] = []
    with Signals(), closing(JobLog(config.folder)) as log, closing(author):
        begin(config.folder, config.fixed_settings())
        runs = config.rounds * config.candidates * config.seeds + (config.finalists + 1) * config.test_seeds
        print(f"at most {runs} runs of {int(config.train.total_timesteps):,} steps in {config.folder}", flush=True)
        with closing(config.launch()) as launcher:
            train = functools.partial(train_arms, config, log, launcher)
            task_returns = train({"task": TASK_ARM}, SEARCH_SEED, config.seeds)["task"]
            for number in range(1, config.rounds + 1):
                question = next_brief(config, brief, proposals, task_returns, number)
                fresh = propose(config, author, question, batches, number)
                returns = train(reward_arms(config, fresh), SEARCH_SEED, config.seeds)
                for proposal in fresh:
                    proposal.returns = returns.get(proposal.name, [])
                    if not proposal.error and not proposal.returns:
                        failure = log.entries[f"jobs/{proposal.name}/s{SEARCH_SEED}"]
                        proposal.error = f"its training failed: {failure.error}"
                    components = " + ".join(proposal.names)
                    outcome = proposal.error or f"task return {proposal.value:.4g}  {components}"
                    print(f"{proposal.name}: {outcome}", flush=True)
                proposals += fresh
            finalists = [proposal for proposal in proposals if proposal.returns]
            if not finalists:
                why = "the author gave none"
                if proposals:
                    why = proposals[-1].error
                raise RuntimeError(f"no reward function could be trained on; the last one: {why}")
            finalists.sort(key=lambda proposal: -proposal.value)
            arms = reward_arms(config, finalists[: config.finalists])
            tests = train({**arms, "task": TASK_ARM}, 0, config.test_seeds, "test")
    return choose_winner(config, author.notes(), proposals, tests)


def reward_arms(config: DesignConfig, proposals: list[Proposal]) -> Arms:
    """What runs are given to train on each of the proposals that passed."""
    arms = {}
    for proposal in proposals:
        if not proposal.error:
            arms[proposal.name] = {"reward": "code", "file": str(_code_path(config, proposal))}
    return arms


def _code_path(config: DesignConfig, proposal: Proposal) -> Path:
    return config.folder / "rounds" / f"{proposal.name}.py"


def begin_brief(config: DesignConfig) -> tuple[authors.Brief, list[Rows]]:
    """What an author is told of the task, and what code is checked on: two transitions, and all of them."""
    run = config.train
    with_signals = bool(family_of(spec_of(run.env)).signals(spec_of(run.env)))
    options = {"max_episode_steps": run.max_episode_steps, "signals": with_signals, **run.env_options}
    with closing(make(run.env, **options)) as env:
        layout = layout_of(env.observation_space)
        description = describe(config.describe)
        if config.describe == "auto":
            description = describe_environment(env)
        action_size = int(np.prod(env.action_space.shape or ()))
        if config.data:
            batch, _ = load(config.data)
        else:
            batch = record(env, None, config.frames)
    # Rows hold obs and next_obs side by side.
    both_obs, actions = rows_of(layout, batch)
    _, behind = rows_of(layout, batch, signals=batch.signals is not None)
    if both_obs.shape[1] != 2 * layout.size or actions.shape[1] != action_size:
        raise UsageError(
            f"data={','.join(config.data)} has observations of {both_obs.shape[1] // 2} and actions of "
            f"{actions.shape[1]} numbers, {run.env} of {layout.size} and {action_size}; record it there"
        )
    brief = authors.Brief(config.task, description, layout.size, action_size, behind.shape[1] - action_size)
    return brief, [(both_obs[:2], behind[:2]), (both_obs, behind)]


def propose(
    config: DesignConfig, author: authors.RewardAuthor, brief: authors.Brief, batches: list[Rows], number: int
) -> list[Proposal]:
    """The answers of a round with what the check says of each; kept ones come from its file."""
    path = config.folder / "rounds" / f"{number}.json"
    saved = read_json(path)
    if saved:
        return [Proposal(**fields) for fields in saved["proposals"]]
    proposals = []
    texts = []
    for index, answer in enumerate(author.propose(brief, config.candidates, number)):
        proposals.append(check_answer(answer, f"r{number}c{index}", brief, batches))
        if isinstance(answer, str):
            texts.append(answer)
    make_folder(path.parent)
    # Nothing is written of a round without an answer: a server that is back tomorrow is asked again.
    if texts:
        for proposal in proposals:
            write_atomically(_code_path(config, proposal), proposal.code)
        page = {"asked": brief.text, "answers": texts, "proposals": list(map(asdict, proposals))}
        write_json(path, page)
        rounds = [read_json(path.with_name(f"{i}.json")).get("answers", []) for i in range(1, number + 1)]
        authors.record(config.folder / "answers.txt", rounds)
    return proposals


def check_answer(answer: str | Exception, name: str, brief: authors.Brief, batches: list[Rows]) -> Proposal:
    """What can be known of an answer before any training."""
    proposal = Proposal(name)
    try:
        if isinstance(answer, Exception):
            raise answer
        proposal.code = code_in(answer, FORM)
        proposal.names = list(
            try_code(proposal.code, brief.obs_size, batches, n_actions=brief.action_size, timeout=CHECK_TIMEOUT_S)
        )
    except (SandboxError, RuntimeError) as error:
        proposal.error = f"refused: {error}"
    return proposal


def train_arms(
    config: DesignConfig, log: JobLog, launcher: Launcher, arms: Arms, first: int, count: int, kind: str = "jobs"
) -> dict[str, list[float]]:
    """Run every arm with seeds `first`, ...; the task's returns of arms all of whose runs finished."""
    seeds = range(first, first + count)
    jobs = {}
    for name, options in arms.items():
        jobs[name] = [config.run(f"{kind}/{name}/s{seed}", seed, **options) for seed in seeds]
    # The first seed of every arm comes before the second of any.
    drive(itertools.chain(*zip(*jobs.values())), log, launcher, attempts=2)
    returns = {}
    for name, runs in jobs.items():
        if all(job.is_finished for job in runs):
            returns[name] = scores(job.folder for job in runs)
    return returns


def next_brief(
    config: DesignConfig, brief: authors.Brief, proposals: list[Proposal], task_returns: list[float], number: int
) -> authors.Brief:
    """The brief of a round: how the best did so far, what became of the others, a comment."""
    comment = config.comment
    if os.path.isfile(comment):
        comment = read_text(Path(comment).resolve()).strip()
    if comment:
        comment = f"\nA person who watched says: {comment}\n"
    trained = [proposal for proposal in proposals if proposal.returns]
    if not trained:
        refusals = "\n".join(f"An earlier answer was {proposal.error}" for proposal in proposals)
        return replace(brief, feedback=f"{refusals}{comment}".strip())
    best = max(trained, key=lambda proposal: proposal.value)
    rows = read_csv(config.folder / f"jobs/{best.name}/s{SEARCH_SEED}" / "metrics.csv")
    alarms = [float(row.get(ALARM) or 0) for row in rows]
    alarm = ""
    if any(alarms):
        alarm = f"The sum rose while the task's return fell in {np.mean(alarms):.0%} of the log's rows.\n"
    others = []
    for other in proposals:
        if other.name.startswith(f"r{number - 1}c") and other is not best:
            others.append(other.error or f"task return {other.value:.4g}")
    return authors.with_feedback(
        brief,
        code=best.code.strip(),
        steps=f"{int(config.train.total_timesteps):,}",
        table=table(rows, best.names),
        alarm=alarm,
        score=f"{best.value:.4g}",
        task=f"{iqm(task_returns):.4g}" if task_returns else "unknown",
        others="; ".join(others) or "none",
        comment=comment,
    )


def table(rows: list[TextValues], names: list[str]) -> str:
    """Components, their sum over an episode and the task's return at moments of a training, with their ranges."""
    titles = {f"code/{name}": name for name in names}
    titles |= {LEARNED_RETURN: "sum over an episode", TASK_RETURN: "task's return of an episode"}
    lines = []
    for tag, name in titles.items():
        values = [float(row[tag]) for row in rows if row.get(tag)]
        if values:
            moments = np.linspace(0, len(values) - 1, min(MAX_MOMENTS, len(values))).astype(int)
            history = ", ".join(f"{values[i]:.3g}" for i in moments)
            lines.append(f"{name}: {history}; least {min(values):.3g}, most {max(values):.3g}")
    return "\n".join(lines) or "nothing was logged"


def choose_winner(
    config: DesignConfig, about: list[str], proposals: list[Proposal], tests: dict[str, list[float]]
) -> Proposal:
    """Choose by the test seeds, print them, and write reward.py and design.json; returns the winner."""
    estimates = {}
    for name, returns in tests.items():
        if returns:
            estimates[name] = aggregate([np.array(returns)])
    finalists = [proposal for proposal in proposals if proposal.name in estimates]
    if not finalists:
        raise RuntimeError("no finalist finished its test runs; the same command tries again")
    best = max(finalists, key=lambda proposal: estimates[proposal.name].value)
    lines = {}
    test = {}
    for name, (value, low, high) in estimates.items():
        lines[name] = f"{float(value):.4g}"
        if config.test_seeds > 1:
            lines[name] += f"  [{low:.4g}, {high:.4g}]"
        test[name] = {"iqm": float(value), "low": float(low), "high": float(high), "runs": tests[name]}
    command = config.command("runners.design")
    path = config.folder / "reward.py"
    head = f"# Task return {lines[best.name]} over {config.test_seeds} seeds; found by\n# {' '.join(command.split())}\n"
    write_atomically(path, head + best.code)
    page = {
        "command": command,
        "author": about,
        "best": best.name,
        "versions": versions(),
        "proposals": [{**asdict(proposal), "code": str(_code_path(config, proposal))} for proposal in proposals],
        "test": test,
    }
    write_json(config.folder / "design.json", page)
    print(f"\n{'; '.join(about)}\ntask return on test seeds, IQM:")
    for name, line in lines.items():
        remark = "  the task's own reward" if name == "task" else ""
        print(f"  {name:<10}{line}{remark}")
    if "task" in estimates and estimates["task"].value >= estimates[best.name].value:
        print("  no design did better than the task's own reward")
    print(f"\nuse it:  python -m runners.train env={config.train.env} reward=code reward.code.file={path}")
    return best
