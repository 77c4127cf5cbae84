"""Did the reward lead to the task? A verdict from the files that an audit or `lodestar train` left in a folder.

Three things are compared. The untrained policy's task return, the trained policy's, and what the agent learned from.

    fell      the learned return rose while the task's fell (`runners.run.progress.diverging_rows`), and it did not
              come back
    stayed    the task's return is no higher than the untrained policy's, yet the agent got more of what it learned
              from, or most of its reward came from other streams
    idle      a control, the same reward without what it knows, reached four fifths of the gain or more
    sound     the task's return rose above the untrained policy's, and did not fall for good
    unknown   too few rows or episodes, no learned return, or nothing rose

Returns differ where their means lie three times their common standard error apart. The task's return is needed: what
an agent learned from rises in sound runs and in hacked ones alike.
"""

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lodestar.files import read_json
from runners.run.config import TextValues, UsageError
from runners.run.progress import LEARNED_RETURN, TASK_RETURN, diverging_rows, read_csv

SOUND = "sound"
ALARM = "alarm"
UNKNOWN = "not known"
# By the states above; other codes stand in runners.run.exits.
EXIT_CODES = {SOUND: 0, ALARM: 1, UNKNOWN: 9}
MIN_JUDGED_ROWS = 10
MIN_JUDGED_EPISODES = 5
# Where the first update came early, so many first episodes stand for the untrained policy.
UNTRAINED_EPISODES = 10
# The share of episodes and rows, at the end, that stands for the trained policy; at most so many episodes.
FINAL_SHARE = 0.2
MAX_FINAL_EPISODES = 100
STANDARD_ERRORS = 3.0
# Of all that the task's return has ever moved: what must be missing at the end for a loss that did not come back.
LOST_SHARE = 0.2
# Of the reward: from here on the agent lives on other streams than the task.
DOMINANT_SHARE = 0.5
# Where the learned return moves with the task's so closely, its rise is the task's.
SAME_CORRELATION = 0.5


class ReturnLevel(NamedTuple):
    """The mean return of some episodes, its standard error, and how many there are."""

    mean: float
    error: float
    episodes: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} (standard error {self.error:.2g}, {self.episodes} episodes)"


@dataclass
class StreamSummary:
    """A stream's share of the reward in the first and in the last rows, and its correlation with the task's reward."""

    name: str
    first_share: float
    last_share: float
    correlation: float


@dataclass
class Verdict:
    """What came out, why, and the numbers behind it; NaN where there is none."""

    folder: Path
    state: str
    reasons: list[str]
    rows: int
    last_step: int
    untrained: ReturnLevel | None
    trained: ReturnLevel | None
    learned_first: float = math.nan
    learned_last: float = math.nan
    correlation: float = math.nan
    alarm_steps: list[int] = field(default_factory=list)
    streams: list[StreamSummary] = field(default_factory=list)
    control: ReturnLevel | None = None
    control_name: str = ""


def judge(folder: Path) -> Verdict:
    """The verdict on a folder; a UsageError if it holds no log."""
    log = folder / "metrics.csv"
    if not log.exists():
        raise UsageError(f"{folder} holds no metrics.csv; give the folder of a lodestar.Audit or of a run")
    rows = []
    steps = []
    returns = []
    for row in read_csv(log):
        if row.get(TASK_RETURN) and row.get(LEARNED_RETURN):
            rows.append(row)
            steps.append(int(row["step"]))
            returns.append((float(row[TASK_RETURN]), float(row[LEARNED_RETURN])))
    task, learned = np.reshape(returns, (-1, 2)).T
    untrained, trained = _levels(folder, task)
    last_step = steps[-1] if steps else 0
    verdict = Verdict(folder, UNKNOWN, [], len(rows), last_step, untrained, trained)
    verdict.streams = _summarize_streams(rows)
    _add_control(verdict)
    if len(rows) < MIN_JUDGED_ROWS:
        verdict.reasons.append(
            f"{MIN_JUDGED_ROWS} rows with both returns are needed, there are {len(rows)}: train longer, or log more "
            "often (every=)"
        )
        return verdict
    last = _count_final(len(rows))
    verdict.learned_first = float(learned[:last].mean())
    verdict.learned_last = float(learned[-last:].mean())
    if task.std() > 0 and learned.std() > 0:
        verdict.correlation = float(np.corrcoef(task, learned)[0, 1])
    alarmed = diverging_rows(task, learned)
    verdict.alarm_steps = np.array(steps)[alarmed].tolist()
    _decide(verdict, task, learned, alarmed)
    return verdict


def _decide(verdict: Verdict, task: np.ndarray, learned: np.ndarray, alarmed: np.ndarray) -> None:
    """Fill in the state and the reasons."""
    reasons = verdict.reasons
    untrained = verdict.untrained
    trained = verdict.trained
    if np.allclose(task, learned):
        reasons.append("the agent learned from the task's own reward, so there is nothing to compare")
        return
    if untrained is None or trained is None:
        reasons.append(f"{MIN_JUDGED_EPISODES} episodes before and after training are needed")
        return
    span = float(np.ptp(task))
    best_before = float(task[: np.argmax(alarmed) + 1].max()) if alarmed.any() else -math.inf
    fell = alarmed.any() and best_before - trained.mean > LOST_SHARE * span
    if fell and _differs(ReturnLevel(best_before, trained.error, trained.episodes), trained):
        verdict.state = ALARM
        reasons.append(
            f"the learned return rose while the task's fell, from step {verdict.alarm_steps[0]:,}: from "
            f"{best_before:.4g} to {trained.mean:.4g} at the end"
        )
    rose = verdict.learned_last - verdict.learned_first > _noise(learned)
    share = _other_share(verdict.streams)
    if not _differs(trained, untrained):
        followed = rose and verdict.correlation > SAME_CORRELATION
        rose = rose and not followed
        has_got_more = rose or share > DOMINANT_SHARE
        if has_got_more:
            verdict.state = ALARM
        reasons.append(f"the task's return is {trained}, no higher than the untrained policy's {untrained}")
        if rose:
            change = f"from {verdict.learned_first:.4g} to {verdict.learned_last:.4g}"
            reasons.append(f"the learned return rose all the same, {change}")
        if share > DOMINANT_SHARE:
            reasons.append(f"{share:.0%} of the reward came from other streams than the task")
        if followed and not has_got_more:
            reasons.append("the learned return rose and fell with it: nothing is shown")
        elif not has_got_more:
            reasons.append("the learned return did not rise either: nothing is shown")
        return
    if verdict.state == ALARM:
        return
    verdict.state = SOUND
    reasons.append(f"the task's return is {trained}, above the untrained policy's {untrained}")
    if alarmed.any():
        reasons.append(
            f"from step {verdict.alarm_steps[0]:,} to {verdict.alarm_steps[-1]:,} the learned return rose while the "
            "task's fell; it came back"
        )
    missing = LOST_SHARE * (trained.mean - untrained.mean)
    if verdict.control is not None and trained.mean - verdict.control.mean < missing:
        verdict.state = ALARM
        reasons.append(f"yet {verdict.control_name} returned {verdict.control}: what the reward says was not needed")


def _differs(high: ReturnLevel, low: ReturnLevel) -> bool:
    """Whether the first is above the second by more than chance."""
    return high.mean - low.mean > STANDARD_ERRORS * math.hypot(high.error, low.error)


def _noise(values: np.ndarray) -> float:
    """How much a mean of a few rows moves without a trend: from differences of neighbours, which a trend hardly has."""
    scatter = float(np.diff(values).std()) / math.sqrt(2)
    return max(STANDARD_ERRORS * scatter, LOST_SHARE * float(np.ptp(values)))


def _count_final(count: int) -> int:
    return max(round(FINAL_SHARE * count), 1)


def _level(returns: np.ndarray) -> ReturnLevel | None:
    if len(returns) < MIN_JUDGED_EPISODES:
        return None
    return ReturnLevel(float(returns.mean()), float(returns.std(ddof=1)) / math.sqrt(len(returns)), len(returns))


def _levels(folder: Path, task: np.ndarray) -> tuple[ReturnLevel | None, ReturnLevel | None]:
    """The task's return before and after training: of episodes, of closing evaluations, or of the log's rows."""
    if (folder / "episodes.csv").exists():
        episodes = read_csv(folder / "episodes.csv")
        returns = np.array([float(episode["task"]) for episode in episodes])
        before = sum(episode["updated"] == "0" for episode in episodes)
        final = min(max(_count_final(len(returns)), MIN_JUDGED_EPISODES), MAX_FINAL_EPISODES)
        return _level(returns[: max(before, UNTRAINED_EPISODES)]), _level(returns[-final:])
    result = read_json(folder / "result.json")
    if "random" in result and "this run" in result:
        return _closing_level(result["random"]), _closing_level(result["this run"])
    # Rows stand for episodes where a run was not evaluated.
    return _level(task[:MIN_JUDGED_EPISODES]), _level(task[-max(_count_final(len(task)), MIN_JUDGED_EPISODES) :])


def _closing_level(scores: dict[str, Any]) -> ReturnLevel | None:
    return _level(np.array(scores.get("returns", []), np.float64))


def _add_control(verdict: Verdict) -> None:
    """The same reward without what it knows, such as an untrained model, where `lodestar train` ran it beside."""
    for name, scores in read_json(verdict.folder / "result.json").items():
        if name.startswith("control: ") and isinstance(scores, dict):
            verdict.control = _closing_level(scores)
            verdict.control_name = f"the {name}"


def _summarize_streams(rows: list[TextValues]) -> list[StreamSummary]:
    tags = dict.fromkeys(itertools.chain(*rows))
    last = _count_final(len(rows))
    summaries = []
    for tag in tags:
        name = tag.removeprefix("reward/").removesuffix("_share")
        if tag != f"reward/{name}_share":
            continue
        first_share = _mean_of(rows[:last], tag)
        last_share = _mean_of(rows[-last:], tag)
        summaries.append(StreamSummary(name, first_share, last_share, _mean_of(rows[-last:], f"reward/{name}_corr")))
    return summaries


def _mean_of(rows: list[TextValues], tag: str) -> float:
    values = [float(row[tag]) for row in rows if row.get(tag)]
    return float(np.mean(values)) if values else math.nan


def _other_share(streams: list[StreamSummary]) -> float:
    """The share of all streams but the task, at the end; 0 where the task is no stream of the reward."""
    for stream in streams:
        if stream.name == "task":
            return 1.0 - stream.last_share
    return 0.0
