"""A reward on recorded episodes that succeeded, got part of the way, or failed: what robotics prints of reward models.

    alignment         Spearman's correlation of the score with time, the mean over successful episodes
    ranking           Kendall's tau of the last score and the outcome: success over partial over failed
    confusion         the mean last score of each task's successful episodes under each task's sentence
    false positives   the share of failed episodes whose score reaches the threshold at some step; of partial ones, too

Sources: Liang et al. 2026, "Robometer", arXiv 2603.02115 (alignment, policy ranking, confusion of instructions); Ma et
al. 2024, "Vision Language Models are In-Context Value Learners", arXiv 2411.04549 (value order correlation).
Differences: pairs with equal outcomes do not count in the ranking, equal scores count 0 (`rewards.compare.kendall`).
When it fails: few episodes; outcomes are those of the files, which nobody checks.
"""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

import rewards
from envs.recording import episodes, load
from envs.transitions import Transitions
from rewards.base import RewardConfig
from rewards.compare import kendall, spearman
from rewards.mix.mix import Stream
from runners.compare.candidate import GAMMA, bare_config
from runners.run.config import UsageError, Values

# From the worst to the best.
OUTCOMES = ("failed", "partial", "success")
# Steps of an episode whose order means something.
MIN_ALIGNED_STEPS = 3
# Instruction -> outcome -> recording. The instruction "" is the reward's own goal.
Files = dict[str, dict[str, str]]


@dataclass
class ScoredEpisode:
    """One episode of a recording, as a reward with one instruction saw it."""

    # The task that it is an episode of, and the instruction that the reward was given.
    task: str
    instruction: str
    outcome: str
    # Float64 (T,).
    scores: np.ndarray


def read_files(given: Mapping[str, Any]) -> Files:
    """The files by instruction and outcome; a UsageError for anything else."""
    nested = any(isinstance(value, Mapping) for value in given.values())
    by_task = given if nested else {"": given}
    files: Files = {}
    for instruction, by_outcome in by_task.items():
        example = "recordings={success: good.safetensors, failed: bad.safetensors}"
        if not isinstance(by_outcome, Mapping) or not by_outcome:
            raise UsageError(f"recordings: {instruction!r} names {by_outcome!r} and no outcomes; write {example}")
        for outcome, file in by_outcome.items():
            if outcome not in OUTCOMES:
                known = ", ".join(reversed(OUTCOMES))
                raise UsageError(f"recordings: {outcome!r} is no outcome; take {known}, as in {example}")
            if not isinstance(file, str):
                raise UsageError(f"recordings: {outcome} is {file!r}; give the name of a file, as in {example}")
        files[str(instruction)] = dict(by_outcome)
    return files


def score_recordings(name: str, config: RewardConfig, spaces: tuple[Any, Any], files: Files) -> list[ScoredEpisode]:
    """Every episode of the files under every instruction."""
    batches = {}
    for by_outcome in files.values():
        for file in by_outcome.values():
            try:
                batches[file], _ = load(file)
            except (ValueError, FileNotFoundError) as error:
                raise UsageError(f"recordings: {error}") from None
    scored = []
    for instruction in files:
        changes = {}
        if instruction:
            if not hasattr(config, "goal"):
                raise UsageError(f"recordings name instructions, and reward={name} reads none; give outcomes alone")
            changes["goal"] = instruction
        reward = rewards.get(name)(bare_config(config, **changes), *spaces, seed=0, device="cpu")
        stream = Stream(name, reward, gamma=GAMMA)
        with closing(stream.reward):
            for task, by_outcome in files.items():
                for outcome, file in by_outcome.items():
                    all_scores = _score_episodes(stream, batches[file], file)
                    scored += [ScoredEpisode(task, instruction, outcome, scores) for scores in all_scores]
    return scored


def _score_episodes(stream: Stream, batch: Transitions, file: str) -> list[np.ndarray]:
    """The raw scores (T,) of each episode."""
    reward = stream.reward
    if "frame" in reward.requires and batch.frame is None:
        raise UsageError(f"recordings: {file} has no frames; record it with frames=96 (lodestar record)")
    values = []
    for rows in episodes(batch):
        # A judge's frames are kept for a while only, so an episode is scored before the next one is shown.
        rollout = _embed(stream, batch[rows])[:, None]
        raw, _ = stream.score(rollout, reward.initial_memory(1))
        values.append(raw[:, 0].astype(np.float64))
    return values


def _embed(stream: Stream, batch: Transitions) -> Transitions:
    """Frames exchanged for what stands for them, if anything does."""
    name = stream.reward.embedding
    if name is None:
        return batch
    extras = {**batch.extras, name: stream.reward.embed(batch)}
    if batch.obs_frame is not None:
        extras[f"obs_{name}"] = stream.reward.embed(batch.replace(frame=batch.obs_frame))
    return batch.replace(frame=None, obs_frame=None, extras=extras)


def measure(scored: list[ScoredEpisode], threshold: float) -> Values:
    """The four numbers; NaN, or no table, where the files do not show what one needs."""
    own = [episode for episode in scored if episode.task == episode.instruction]
    alignments = []
    # Task -> last score and outcome of each episode: scores of different tasks are not compared.
    ends = defaultdict(list)
    for episode in own:
        scores = episode.scores
        if episode.outcome == "success" and len(scores) >= MIN_ALIGNED_STEPS:
            alignments.append(spearman(scores, np.arange(len(scores))))
        ends[episode.task].append((scores[-1], OUTCOMES.index(episode.outcome)))
    rankings = []
    for of_task in ends.values():
        ranking = kendall(*map(np.array, zip(*of_task)))
        if np.isfinite(ranking):
            rankings.append(ranking)
    report: Values = {
        "alignment": _mean(alignments),
        "ranking": _mean(rankings),
        "threshold": threshold,
    }
    for outcome in OUTCOMES:
        reached = [episode.scores.max() >= threshold for episode in own if episode.outcome == outcome]
        report[f"reached_{outcome}"] = _mean(reached)
        report[f"episodes_{outcome}"] = len(reached)
    tasks, table = _confusion(scored)
    told_apart = float("nan")
    if len(tasks) > 1:
        told_apart = float((table.argmax(1) == np.arange(len(tasks))).mean())
    return report | {"tasks": tasks, "confusion": table.tolist(), "told_apart": told_apart}


def _confusion(scored: list[ScoredEpisode]) -> tuple[list[str], np.ndarray]:
    """The tasks with successful episodes, and the mean last score (task, instruction) of those."""
    successes = [episode for episode in scored if episode.outcome == "success"]
    tasks = list(dict.fromkeys(episode.task for episode in successes))
    table = np.full((len(tasks), len(tasks)), np.nan)
    for row, task in enumerate(tasks):
        for column, instruction in enumerate(tasks):
            cell = (task, instruction)
            last = [each.scores[-1] for each in successes if (each.task, each.instruction) == cell]
            table[row, column] = _mean(last)
    return tasks, table


def _mean(values: list[Any]) -> float:
    return float(np.mean(values)) if values else float("nan")


def lines(name: str, report: Values) -> list[str]:
    """What is printed."""
    counts = [f"{report[f'episodes_{outcome}']} {outcome}" for outcome in reversed(OUTCOMES)]
    rows = [
        ("episodes", ", ".join(counts)),
        ("alignment with time", f"{_number(report['alignment'])} (successful episodes)"),
        ("ranking by outcome", f"{_number(report['ranking'])} (Kendall: 1 is success over partial over failed)"),
        (
            f"reach {report['threshold']:g}",
            f"{_number(report['reached_failed'])} of failed (false positives), {_number(report['reached_partial'])} of "
            f"partial, {_number(report['reached_success'])} of successful episodes",
        ),
    ]
    if len(report["tasks"]) > 1:
        rows.append(("tasks told apart", f"{_number(report['told_apart'])} (own sentence scores highest)"))
    text = [name, *(f"  {label:<22}{value}" for label, value in rows)]
    if len(report["tasks"]) > 1:
        text.append(
            "  last score of successful episodes: a row for each task, a column for each sentence in this order"
        )
        for task, scores in zip(report["tasks"], report["confusion"]):
            text.append("    " + "".join(f"{score:8.3f}" for score in scores) + f"   {task}")
    return text


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2f}"
