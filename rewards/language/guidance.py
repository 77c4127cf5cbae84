"""Guidance: from time to time a goal is named in a sentence, and the policy reads it beside its observation.

    guide(s) = W e(goal)                      e: embedding of a sentence, length 1; W: a fixed random projection
    c = cosine(e(goal), sum of e(caption))    over the captions since the goal was given: "comprehension"
    r(s') = c(s') - c(s)                      its rise; at most 1 in an episode for each goal

The guide is the method; the reward is a metric, of weight 0 by default.

Source: Zhang, Lu 2023, "AdaRefiner: Refining Decisions of Language Models with Adaptive Feedback" (RLAdapter), arXiv
2309.17176, section 3: a goal every 100 steps, its embedding beside the observation, comprehension as a cosine.
Differences:
  - one language model, asked in a prompt; the source refines its prompts by a second one, tuned on c;
  - asked beside training: until an answer comes the last goal stays, and the agent never waits;
  - a situation, the latest distinct captions of an episode, is asked about once; equal situations get equal goals, so a
    run can be replayed from the file of `answers` without a server;
  - `rules` need no model: Crafter's achievements in an order written by hand, the first one without a caption so far;
  - MiniLM embeds; c is the bare cosine, with captions, and 0 before the first one; the authors' code squashes it.
When it fails: without captions there is nothing to ask about. A sentence that repeats a frequent caption scores high.
The written goals cover one environment, Crafter. A slow model answers about situations that are long over; captions are
quoted, but may still talk a model into a strange goal.
"""

import functools
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.mappings import map_values
from lodestar.settings import setting
from rewards.base import JudgeUse, Reward, RewardConfig, merge_memory
from rewards.language.captioned import key
from rewards.llm.annotation.annotator import Annotator
from rewards.llm.judges.base import make_judge
from rewards.llm.store import read_rows

# How many distinct captions of an episode make its situation.
RECENT_CAPTIONS = 32
EMBEDDING_SIZE = 384
CAPTION_CACHE_SIZE = 1 << 14
MAX_WAITING_SITUATIONS = 64
QUESTION_THREADS = 4
# Seconds without a question after an outage of the server.
OUTAGE_PAUSE_S = 30.0
# Odd numbers, one a place: the hash of a situation is their sum with the keys.
HASH_FACTORS = np.random.default_rng(0x5EED).integers(0, 2**64, RECENT_CAPTIONS, dtype=np.uint64) | np.uint64(1)


def _read_crafter_goals() -> dict[str, str]:
    """An event in a caption -> the goal that leads there, in an order in which they can be reached."""
    text = Path(__file__).with_name("crafter_goals.txt").read_text(encoding="utf-8")
    goals = {}
    for line in text.splitlines():
        event, goal = line.split(": ")
        goals[event] = goal
    return goals


CRAFTER = _read_crafter_goals()


@dataclass
class GuidanceConfig(RewardConfig):
    """Settings of guidance."""

    weight: Any = setting(0.0, "of the rise of comprehension; 0 guides without a reward, as the source does")
    goals: str = setting(
        "rules",
        "where goals come from: `rules` (by hand, for Crafter), `openai` (a model on a server with OpenAI's chat "
        "completions), `recorded` (the file of `answers`), `none` (the control: no goal ever)",
        "rules | openai | recorded | none",
    )
    goal: str = setting("", "what counts in the whole task, for the model; by default the environment's own sentence")
    family: str = setting("", "the family of environments, such as `crafter`")
    every: int = setting(100, "steps of an episode between two goals", ">= 1")
    features: int = setting(
        32, "numbers that the policy gets of a goal; 384 is its whole embedding", low=1, high=EMBEDDING_SIZE
    )
    model: str = setting("", "`openai`: its name on the server")
    url: str = setting("http://localhost:8000/v1", "`openai`: the API's root")
    key: str = setting("OPENAI_API_KEY", "`openai`: the environment variable with the API key")
    answers: str = setting("", "*.sqlite of situations and goals; `openai` reads and extends it, `recorded` reads it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.goals == "openai" and not self.model:
            raise ValueError("reward.guidance.goals=openai needs model=, the name that the server knows it by")
        if self.goals == "recorded" and not Path(self.answers).is_file():
            raise ValueError(f"reward.guidance.answers={self.answers!r} is no file; give one of situations and goals")


class Guidance(Reward):
    """guide(s) = W e(goal); r(s') = c(s') - c(s), c the similarity of the captions since to the goal."""

    Config = GuidanceConfig
    config: GuidanceConfig
    requires = frozenset({"text"})
    # The goal depends on the episode, which a transition alone does not show.
    relabelable = False
    control: ClassVar[dict[str, Any] | None] = {"goals": "none"}

    def build(self) -> None:
        config = self.config
        if config.goals == "rules" and config.family not in ("", "crafter"):
            raise ValueError(f"reward.guidance.goals=rules are for Crafter, not for {config.family}; give goals=openai")
        self.guides = config.features
        self._projection = _make_projection(config.features)
        # The keys of the events that end each goal of `rules`, in order.
        events = list(CRAFTER) if config.goals == "rules" else []
        self._plan = np.array(list(map(key, events)), np.uint64)
        # Captions by their keys, and the memory of the environments that are learnt from.
        self._captions: dict[int, str] = {}
        self._memory: Memory = None
        # Goal 0 is none.
        goals = [""]
        if config.goals == "rules":
            goals += CRAFTER.values()
        self._set_goals(goals, {})
        if Path(config.answers).is_file():
            problem = "no answer; give `told`, a list, and `goal`, a text"
            self._learn(dict(read_rows(config.answers, _parse_answer, problem)))
        if config.goals == "recorded" and not len(self._keys):
            raise ValueError(f"reward.guidance.answers={config.answers!r} names no goal; give `told` and `goal` a line")
        self._annotator = self._make_annotator() if config.goals == "openai" else None

    def _make_annotator(self) -> Annotator:
        config = self.config
        options = {"model": config.model, "url": config.url, "key": config.key, "goal": config.goal}
        # Bad options are refused here, not in the annotator's process later.
        make_judge("openai", "goals", **options).close()
        return Annotator(
            "openai",
            options,
            "goals",
            cache=config.answers,
            queue=MAX_WAITING_SITUATIONS,
            concurrency=QUESTION_THREADS,
            probe=OUTAGE_PAUSE_S,
        )

    def initial_memory(self, n: int) -> Memory:
        recent = np.zeros((n, RECENT_CAPTIONS), np.uint64)
        asked = np.zeros(n, np.uint64)
        goal = self._choose_goals(recent, asked, np.zeros(n, np.int64))
        # goal: its number, 0 for none; recent: keys of the latest distinct captions, newest last; asked: the situation
        # that the goal was asked for; since: the sum of the captions' embeddings since the goal was given.
        return {
            "goal": goal,
            "recent": recent,
            "asked": asked,
            "since": np.zeros((n, EMBEDDING_SIZE), np.float32),
            "comprehension": np.zeros(n, np.float32),
        }

    def guide(self, memory: Memory) -> np.ndarray:
        """What the policy reads of its goal, float32 (N, features); zeros without one."""
        return self._guides[memory["goal"]]

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[np.ndarray, Memory]:
        assert batch.text is not None
        recent = memory["recent"]
        since = memory["since"]
        goal = memory["goal"]
        asked = memory["asked"]
        comprehension = memory["comprehension"]
        rows = np.flatnonzero(batch.text != "")
        if len(rows):
            recent = recent.copy()
            since = since.copy()
            events, embeddings = zip(*map(_read_caption, batch.text[rows]))
            since[rows] += np.stack(embeddings)
            # The first event of every row, then the second ones; rows with fewer events are filled up with 0.
            for keys in itertools.zip_longest(*events, fillvalue=0):
                recent[rows] = _move_to_end(recent[rows], np.array(keys, np.uint64))
            # The cosine c of the file's head: a goal's embedding has length 1, or 0 for no goal.
            length = np.sqrt(np.square(since).sum(axis=1))
            product = (self._meanings[goal] * since).sum(axis=1)
            comprehension = product / np.maximum(length, np.float32(1e-6))
        rise = comprehension - memory["comprehension"]
        is_due = (batch.step + 1) % self.config.every == 0
        if is_due.any():
            asked = np.where(is_due, _situation(recent), asked)
        next_goal = self._choose_goals(recent, asked, goal, is_due)
        changed = next_goal != goal
        if changed.any():
            since = np.where(changed[:, None], np.float32(0), since)
            comprehension = np.where(changed, np.float32(0), comprehension)
        after = {"goal": next_goal, "recent": recent, "asked": asked, "since": since, "comprehension": comprehension}
        return rise, after

    def _choose_goals(
        self, recent: np.ndarray, asked: np.ndarray, goal: np.ndarray, is_due: np.ndarray | bool = True
    ) -> np.ndarray:
        """The goal of each environment from now on, int64 (N,): the answer for its situation, else the last one."""
        if len(self._plan):
            # Whether each event of the plan is among the recent captions, bool (N, goals).
            met = (recent[:, :, None] == self._plan).any(axis=1)
            first_open = np.where(met.all(axis=1), 0, met.argmin(axis=1) + 1)
            reached = (goal > 0) & met[np.arange(len(goal)), goal - 1]
            return np.where(is_due | reached, first_open, goal)
        if not len(self._keys):
            return goal
        place = np.minimum(np.searchsorted(self._keys, asked), len(self._keys) - 1)
        has_answer = self._keys[place] == asked
        return np.where(has_answer, self._numbers[place], goal)

    def update(self, batch: Transitions) -> dict[str, float]:
        if self._annotator is not None:
            answers = self._annotator.take(0)
            self._learn({_situation_of(json.loads(str(events))): goal for events, goal in answers})
            # The situation without a caption is that of every beginning.
            if 0 not in self._keys:
                self._annotator.offer(["[]"], 0)
        if len(batch.shape) == 1:
            batch = batch[None]
        assert batch.text is not None
        n = batch.shape[1]
        initial = self.initial_memory(n)
        memory = self._memory
        if memory is None or len(memory["goal"]) != n:
            memory = initial
        comprehension = 0.0
        guided = 0.0
        for t in range(batch.shape[0]):
            valid = batch.valid[t]
            ended = batch.ended[t]
            rise, after = self.score(batch[t], memory)
            if self._annotator is not None:
                self._ask_about_new(self._annotator, batch.text[t], memory, after, valid)
            comprehension += float((memory["comprehension"] + rise)[valid].sum())
            guided += float((after["goal"] > 0)[valid].sum())
            memory = after if valid.all() else merge_memory(after, memory, ~valid)
            if ended.any():
                memory = merge_memory(memory, initial, ended)
        self._memory = memory
        rows = max(int(batch.valid.sum()), 1)
        metrics = {"comprehension": comprehension / rows, "guided": guided / rows}
        if self._annotator is not None:
            counts = self._annotator.metrics()
            metrics["goals"] = float(len(self._goals) - 1)
            metrics["waiting"] = counts["queued"]
            metrics["answered"] = counts["answered"] + counts["cached"]
            metrics["failed"] = counts["failed"]
        return metrics

    def notes(self) -> list[str]:
        source = {
            "rules": "goals follow a list written by hand for Crafter, no model names them",
            "openai": f"goals are those of {self.config.model} at {self.config.url}",
            "recorded": f"goals are read from {self.config.answers}, no model is asked",
            "none": "no goal is ever named: the control",
        }
        notes = [source[self.config.goals]]
        if self._annotator is None:
            return notes
        failed = self._annotator.metrics()["failed"]
        if failed:
            notes.append(f"{failed:,.0f} questions got no goal; the last error: {self._annotator.failure}")
        return notes + self._annotator.notes()

    def judge_use(self) -> JudgeUse | None:
        return None if self._annotator is None else self._annotator.judge_use()

    def preflight(self) -> str:
        if self._annotator is None or len(self._keys):
            return ""
        return self._annotator.preflight()

    def state_dict(self) -> dict[str, Any]:
        return {
            "goals": list(self._goals),
            "answers": {"keys": self._keys, "numbers": self._numbers},
            "captions": list(self._captions.values()),
            "memory": self._memory,
            "annotator": None if self._annotator is None else self._annotator.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        numbers = np.array(state["answers"]["numbers"], np.int64).tolist()
        situations = np.array(state["answers"]["keys"]).tolist()
        self._set_goals(list(state["goals"]), dict(zip(situations, numbers)))
        self._captions = {key(text): text for text in state["captions"]}
        self._memory = state["memory"]
        if self._memory is not None:
            self._memory = map_values(np.array, self._memory)
        if self._annotator is not None and state.get("annotator"):
            self._annotator.load_state_dict(state["annotator"])

    def _learn(self, answers: dict[int, str]) -> None:
        """Add answers, situation -> goal; a goal that is new gets the next number."""
        numbers = dict(zip(self._goals, itertools.count()))
        number_of = dict(zip(self._keys.tolist(), self._numbers.tolist()))
        for situation, goal in answers.items():
            number_of[situation] = numbers.setdefault(goal, len(numbers))
        self._set_goals(list(numbers), number_of)

    def _set_goals(self, goals: list[str], answers: dict[int, int]) -> None:
        """Goals by their numbers, and answers, situation -> number of a goal."""
        self._goals = goals
        self._meanings = np.stack(list(map(meaning, goals)))
        self._guides = self._meanings @ self._projection
        # Sorted, so that situations are found by bisection.
        situations = sorted(answers)
        self._keys = np.array(situations, np.uint64)
        self._numbers = np.array([answers[situation] for situation in situations], np.int64)

    def _ask_about_new(
        self, annotator: Annotator, texts: np.ndarray, before: Memory, after: Memory, valid: np.ndarray
    ) -> None:
        """Offer the situations of this step for which there is no answer yet."""
        if len(self._captions) > CAPTION_CACHE_SIZE:
            self._captions.clear()
        for text in set(texts[valid]):
            for event in text.split("; "):
                self._captions[key(event)] = event
        changed = after["asked"] != before["asked"]
        is_new = valid & changed & ~np.isin(after["asked"], self._keys)
        for row in np.flatnonzero(is_new):
            events = []
            for code in after["recent"][row].tolist():
                if code:
                    events.append(self._captions.get(code))
            # A cache that was cleared may lack one: such a situation cannot be put in words.
            if None not in events:
                annotator.offer([json.dumps(events)], 0)


def _make_projection(features: int) -> np.ndarray:
    """W of the file's head, float32 (EMBEDDING_SIZE, features): the same in every run, as it is part of the method."""
    if features == EMBEDDING_SIZE:
        return np.eye(EMBEDDING_SIZE, dtype=np.float32)
    rng = np.random.default_rng(0)
    return rng.normal(0, features**-0.5, (EMBEDDING_SIZE, features)).astype(np.float32)


@functools.lru_cache(CAPTION_CACHE_SIZE)
def _read_caption(text: str) -> tuple[tuple[int, ...], np.ndarray]:
    """Keys of a caption's events, and the sum of their embeddings, float32 (EMBEDDING_SIZE,)."""
    events = text.split("; ")
    embeddings = np.stack(list(map(meaning, events)))
    return tuple(map(key, events)), embeddings.sum(axis=0)


@functools.lru_cache(CAPTION_CACHE_SIZE)
def meaning(text: str) -> np.ndarray:
    """A sentence as a float32 vector (EMBEDDING_SIZE,) of length 1; zeros for ""."""
    from rewards.llm.judges.embedding import encode

    if not text:
        return np.zeros(EMBEDDING_SIZE, np.float32)
    return encode([text])[0]


def _move_to_end(recent: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Recent keys (N, RECENT_CAPTIONS), with `codes` (N,) moved or put to the end, the oldest dropped; 0 is ignored."""
    same = recent == codes[:, None]
    # The place that is dropped: that of the same key, or without one that of the oldest.
    dropped = np.where(same.any(axis=1), same.argmax(axis=1), 0)
    place = np.arange(RECENT_CAPTIONS - 1)
    others = np.take_along_axis(recent, place + (place >= dropped[:, None]), axis=1)
    moved = np.concatenate([others, codes[:, None]], axis=1)
    return np.where(codes[:, None] == 0, recent, moved)


def _situation(recent: np.ndarray) -> np.ndarray:
    """A number for each row of keys (N, RECENT_CAPTIONS), uint64 (N,); 0 without any."""
    return (recent * HASH_FACTORS).sum(axis=1, dtype=np.uint64)


def _parse_answer(row: Mapping[str, Any]) -> tuple[int, str]:
    """Situation and goal of a line {"told": [...], "goal": "..."}, or of a row that the annotator cached."""
    if "told" in row:
        events = row["told"]
        goal = row["goal"]
    else:
        events = json.loads(row["text"])
        goal = row["raw"]
    if not isinstance(goal, str) or not goal:
        raise ValueError("no goal")
    return _situation_of(events), goal


def _situation_of(events: Iterable[str]) -> int:
    """The number of the situation in which these events were the latest, the newest last."""
    keys = np.zeros((1, RECENT_CAPTIONS), np.uint64)
    for text in events:
        keys = _move_to_end(keys, np.array([key(str(text))], np.uint64))
    return int(_situation(keys)[0])
