"""The search for reward code: an author proposes, the sandbox checks, the sweep trains, the task's return chooses.

    round n: ask -> check on transitions -> train each on its reward alone -> tell the author how it went
    at last: the best, and the task's own reward, on test seeds -> reward.py, design.json

What fails on the way costs a sentence and its candidate. A search that was killed continues: answers are kept in
rounds/, all of them in answers.txt, which judge=recorded repeats.
Source: Ma et al. 2023, "Eureka" (arXiv 2310.12931), algorithm 1 and its reward reflection. Differences: candidates are
checked before training; the winner is chosen on seeds of its own; the author is not asked to mend what failed, it reads
why. When it fails: a task whose return is the same for all candidates chooses none of them.
"""

import json
import os
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from envs.make import make
from envs.recording import record
from lodestar.files import make_folder, read_json, read_text
from rewards.design import authors
from rewards.design.code import FORM, Rows, layout_of, rows_of, tried
from rewards.language.lare import code_in, describe
from rewards.llm.judges.base import make_judge
from rewards.llm.sandbox.process import SandboxError
from runners.design.config import SEARCH_SEED, DesignConfig
from runners.offline import load
from runners.report.read import ALARM
from runners.report.statistics import aggregate, iqm
from runners.run.checkpoint import versions, write_atomically
from runners.run.config import UsageError
from runners.run.exits import Signals
from runners.run.progress import LEARNED_RETURN, TASK_RETURN, read_csv
from runners.sweep.config import begin
from runners.sweep.display import score
from runners.sweep.drive import drive
from runners.sweep.job import Job, JobLog, Launcher

MOMENTS = 10  # of a training that the author reads
TIMEOUT = 2.0  # seconds for the code on all transitions

Arms = dict[str, dict[str, str]]  # name -> what its runs are given


@dataclass
class Proposal:
    """One answer: its code, the names of its components, or why it was refused; and how its runs ended."""

    name: str  # r2c1: the second proposal of round 2
    code: str = ""
    names: list[str] = field(default_factory=list)
    error: str = ""
    returns: list[float] = field(default_factory=list)  # the task's, a run each

    @property
    def value(self) -> float:
        """What it is chosen by."""
        return float(iqm(self.returns)) if self.returns and not self.error else -np.inf


def search(config: DesignConfig) -> Proposal:
    """The whole search, top to bottom; returns the winner."""
    author = make_judge(config.judge, "rewards", **config.judge_options)
    size, batches = transitions(config)
    described = describe(config.describe)
    brief = authors.Brief(config.task, described, size, batches[0][1].shape[1])
    with Signals(), closing(JobLog(config.folder)) as log, closing(author):
        begin(config.folder, config.fixed())
        runs = config.rounds * config.candidates * config.seeds + (config.finalists + 1) * config.test_seeds
        print(f"at most {runs} runs of {int(config.train.total_timesteps):,} steps in {config.folder}", flush=True)
        with closing(config.launch()) as launcher:
            found: list[Proposal] = []
            base = train(config, log, launcher, {"task": {"reward": "task"}}, SEARCH_SEED, config.seeds)["task"]
            for number in range(1, config.rounds + 1):
                fresh = proposals(config, author, next_brief(config, brief, found, base, number), batches, number)
                named = {each.name: _reward(config, each) for each in fresh if not each.error}
                returns = train(config, log, launcher, named, SEARCH_SEED, config.seeds)
                for each in fresh:
                    each.returns = returns.get(each.name, [])
                    if not each.error and not each.returns:
                        each.error = f"its training failed: {log.entries[f'jobs/{each.name}/s{SEARCH_SEED}'].error}"
                    outcome = each.error or f"task return {each.value:.4g}  {' + '.join(each.names)}"
                    print(f"{each.name}: {outcome}", flush=True)
                found += fresh
            best = sorted((each for each in found if each.returns), key=lambda each: -each.value)[: config.finalists]
            if not best:
                why = found[-1].error if found else "the author gave none"
                raise RuntimeError(f"no reward function could be trained on; the last one: {why}")
            arms = {each.name: _reward(config, each) for each in best} | {"task": {"reward": "task"}}
            tests = train(config, log, launcher, arms, 0, config.test_seeds, "test")
    return judged(config, author.notes(), found, tests)


def _reward(config: DesignConfig, proposal: Proposal) -> dict[str, str]:
    """What a run is given to train on a proposal."""
    return {"reward": "code", "file": str(_path(config, proposal.name))}


def _path(config: DesignConfig, name: str) -> Path:
    return config.folder / "rounds" / f"{name}.py"


def transitions(config: DesignConfig) -> tuple[int, list[Rows]]:
    """How many numbers an observation has, and what code is checked on: two transitions, and all of them."""
    run = config.train
    with closing(make(run.env, max_episode_steps=run.max_episode_steps, **run.env_options)) as env:
        layout, actions = layout_of(env.observation_space), int(np.prod(env.action_space.shape or ()))
        if config.data:
            batch, _ = load(config.data)
        else:
            batch = record(env, None, config.frames)
    rows = rows_of(layout, batch)
    if (given := [part.shape[1] for part in rows]) != [2 * layout.size, actions]:
        raise UsageError(
            f"data={','.join(config.data)} has observations of {given[0] // 2} and actions of {given[1]} numbers, "
            f"{config.train.env} of {layout.size} and {actions}; record it there"
        )
    return layout.size, [(rows[0][:2], rows[1][:2]), rows]


def proposals(
    config: DesignConfig, author: authors.RewardAuthor, brief: authors.Brief, batches: list[Rows], number: int
) -> list[Proposal]:
    """The answers of a round with what the check says of each; kept ones come from its file."""
    path = config.folder / "rounds" / f"{number}.json"
    kept: dict[str, Any] = read_json(path)
    if not kept:
        answers = author.propose(brief, config.candidates, number)
        made = [_checked(answer, f"r{number}c{i}", brief, batches) for i, answer in enumerate(answers)]
        make_folder(path.parent)
        texts = [answer for answer in answers if isinstance(answer, str)]
        if not texts:  # a server that is back tomorrow is asked again
            return made
        for each in made:
            write_atomically(_path(config, each.name), each.code)
        kept = {"asked": brief.text, "answers": texts, "proposals": [asdict(each) for each in made]}
        write_atomically(path, json.dumps(kept, indent=1) + "\n")
        rounds = [read_json(path.with_name(f"{i}.json")).get("answers", []) for i in range(1, number + 1)]
        authors.record(config.folder / "answers.txt", rounds)
    return [Proposal(**each) for each in kept["proposals"]]


def _checked(answer: str | Exception, name: str, brief: authors.Brief, batches: list[Rows]) -> Proposal:
    """What can be known of an answer before any training."""
    proposal = Proposal(name)
    try:
        if not isinstance(answer, str):
            raise answer
        proposal.code = code_in(answer, FORM)
        proposal.names = list(tried(proposal.code, brief.obs_size, batches, timeout=TIMEOUT))
    except (SandboxError, RuntimeError) as error:
        proposal.error = f"refused: {error}"
    return proposal


def train(
    config: DesignConfig, log: JobLog, launcher: Launcher, arms: Arms, first: int, count: int, kind: str = "jobs"
) -> dict[str, list[float]]:
    """Run every arm with seeds `first`, ...; the task's returns of arms all of whose runs finished."""
    jobs: dict[str, list[Job]] = {
        name: [config.run(f"{kind}/{name}/s{seed}", seed, **given) for seed in range(first, first + count)]
        for name, given in arms.items()
    }
    drive([job for members in zip(*jobs.values()) for job in members], log, launcher, attempts=2)
    found = {name: [score(job.folder) for job in members if job.finished] for name, members in jobs.items()}
    return {name: [x for x in each if x is not None] for name, each in found.items() if len(each) == count}


def next_brief(
    config: DesignConfig, brief: authors.Brief, found: list[Proposal], base: list[float], number: int
) -> authors.Brief:
    """The brief of a round: how the best did so far, what became of the others, a comment."""
    comment = config.comment
    if os.path.isfile(comment):
        comment = read_text(Path(comment).resolve()).strip()
    comment = f"\nA person who watched says: {comment}\n" if comment else ""
    trained = [each for each in found if each.returns]
    if not trained:
        refused = "\n".join(f"An earlier answer was {each.error}" for each in found)
        return brief if not (refused or comment) else replace(brief, feedback=f"{refused}{comment}".strip())
    best = max(trained, key=lambda each: each.value)
    rows = read_csv(config.folder / f"jobs/{best.name}/s{SEARCH_SEED}" / "metrics.csv")
    raised = np.mean([float(row.get(ALARM) or 0) for row in rows]) if rows else 0.0
    others = [each for each in found if each is not best and each.name.startswith(f"r{number - 1}c")]
    return authors.with_feedback(
        brief,
        code=best.code.strip(),
        steps=f"{int(config.train.total_timesteps):,}",
        table=table(rows, best.names),
        alarm=f"The sum rose while the task's return fell in {raised:.0%} of the log's rows.\n" if raised else "",
        score=f"{best.value:.4g}",
        task=f"{iqm(base):.4g}" if base else "unknown",
        others="; ".join(each.error or f"task return {each.value:.4g}" for each in others) or "none",
        comment=comment,
    )


def table(rows: list[dict[str, str]], names: list[str]) -> str:
    """Components, their sum over an episode and the task's return at moments of a training, with their ranges."""
    tags = {name: f"code/{name}" for name in names}
    tags |= {"sum over an episode": LEARNED_RETURN, "task's return of an episode": TASK_RETURN}
    lines = []
    for name, tag in tags.items():
        values = [float(row[tag]) for row in rows if row.get(tag)]
        if values:
            shown = [values[i] for i in np.linspace(0, len(values) - 1, min(MOMENTS, len(values))).astype(int)]
            listed = ", ".join(f"{value:.3g}" for value in shown)
            lines.append(f"{name}: {listed}; least {min(values):.3g}, most {max(values):.3g}")
    return "\n".join(lines) or "nothing was logged"


def judged(config: DesignConfig, about: list[str], found: list[Proposal], tests: dict[str, list[float]]) -> Proposal:
    """Choose by the test seeds, print them, and write reward.py and design.json; returns the winner."""
    estimates = {name: aggregate([np.array(returns)]) for name, returns in tests.items() if returns}
    finalists = [each for each in found if each.name in estimates]
    if not finalists:
        raise RuntimeError("no finalist finished its test runs; the same command tries again")
    best = max(finalists, key=lambda each: float(estimates[each.name].value))
    lines = {name: f"{float(e.value):.4g}" for name, e in estimates.items()}
    if config.test_seeds > 1:
        lines = {name: f"{lines[name]}  [{e.low:.4g}, {e.high:.4g}]" for name, e in estimates.items()}
    command = config.command("runners.design")
    path = config.folder / "reward.py"
    head = f"# Task return {lines[best.name]} over {config.test_seeds} seeds; found by\n# {' '.join(command.split())}\n"
    write_atomically(path, head + best.code)
    scores = {name: dict(zip(("iqm", "low", "high"), map(float, e))) for name, e in estimates.items()}
    page = {
        **{"command": command, "author": about, "best": best.name, "versions": versions()},
        "proposals": [{**asdict(each), "code": str(_path(config, each.name))} for each in found],
        "test": {name: {**each, "runs": tests[name]} for name, each in scores.items()},
    }
    write_atomically(config.folder / "design.json", json.dumps(page, indent=1) + "\n")
    print(f"\n{'; '.join(about)}\ntask return on test seeds, IQM:")
    for name, line in lines.items():
        print(f"  {name:<10}{line}" + ("  the task's own reward" if name == "task" else ""))
    if "task" in estimates and float(estimates["task"].value) >= float(estimates[best.name].value):
        print("  no design did better than the task's own reward")
    print(f"\nuse it:  python -m runners.train env={config.train.env} reward=code reward.code.file={path}")
    return best
