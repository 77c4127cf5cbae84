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
from lodestar.settings import setting
from rewards.base import JudgeUse, Reward, RewardConfig, merge_memory
from rewards.language.captioned import key
from rewards.llm.annotation.annotator import Annotator
from rewards.llm.judges.base import make_judge
from rewards.llm.store import read_rows

RECENT = 32  # distinct captions of an episode that make its situation
WIDTH = 384  # numbers of a sentence's embedding
CACHE = 1 << 14  # captions that are cached
_ODD = np.random.default_rng(0x5EED).integers(0, 2**64, RECENT, dtype=np.uint64) | np.uint64(1)
WAITING, THREADS, PAUSE = 64, 4, 30.0  # situations in the queue; questions at the same time; s after an outage
_LINES = Path(__file__).with_name("crafter_goals.txt").read_text(encoding="utf-8").splitlines()
# an event in a caption -> the goal that leads there, in an order in which they can be reached
CRAFTER = {event: goal for event, goal in (line.split(": ") for line in _LINES)}


@dataclass
class GuidanceConfig(RewardConfig):
    """Settings of guidance."""

    weight: Any = setting(0.0, "of the rise of comprehension; 0 guides without a reward, as the source does")
    goals: str = setting(
        "rules",
        "where goals come from: `rules` (by hand, for Crafter), `openai` (a model on a server with OpenAI's chat "
        "completions), `recorded` (the file of `answers`), `none` (the control: no goal ever)",
        choices=("rules", "openai", "recorded", "none"),
    )
    goal: str = setting("", "what counts in the whole task, for the model; by default the environment's own sentence")
    family: str = setting("", "the family of environments, such as `crafter`")
    every: int = setting(100, "steps of an episode between two goals", low=1)
    features: int = setting(32, "numbers that the policy gets of a goal; 384 is its whole embedding", low=1, high=WIDTH)
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
    relabelable = False  # the goal depends on the episode
    control: ClassVar[dict[str, Any] | None] = {"goals": "none"}

    def build(self) -> None:
        config = self.config
        if config.goals == "rules" and config.family not in ("", "crafter"):
            raise ValueError(f"reward.guidance.goals=rules are for Crafter, not for {config.family}; give goals=openai")
        self.guides, self.every = config.features, config.every
        # the projection is part of the method, so the same in every run
        drawn = np.random.default_rng(0).normal(0, config.features**-0.5, (WIDTH, config.features))
        self._projection = (np.eye(WIDTH) if config.features == WIDTH else drawn).astype(np.float32)
        self._plan = np.array([key(event) for event in CRAFTER] if config.goals == "rules" else [], np.uint64)
        self._captions: dict[int, str] = {}  # key -> caption
        self._memory: Memory = None  # of the environments that are learnt from
        self._set_goals(["", *(CRAFTER.values() if len(self._plan) else ())], {})
        if Path(config.answers).is_file():
            wrong = "no answer; give `told`, a list, and `goal`, a text"
            self._learn(dict(read_rows(config.answers, _answer, wrong)))
        if config.goals == "recorded" and not len(self._keys):
            raise ValueError(f"reward.guidance.answers={config.answers!r} names no goal; give `told` and `goal` a line")
        self._annotator: Annotator | None = None
        if config.goals == "openai":
            options = {"model": config.model, "url": config.url, "key": config.key, "goal": config.goal}
            make_judge("openai", "goals", **options).close()  # refuses options here, not in its process later
            limits: dict[str, Any] = {"queue": WAITING, "concurrency": THREADS, "probe": PAUSE}
            self._annotator = Annotator("openai", options, "goals", cache=config.answers, **limits)

    def initial_memory(self, n: int) -> Memory:
        recent, asked = np.zeros((n, RECENT), np.uint64), np.zeros(n, np.uint64)
        return {
            "goal": self._named(recent, asked, np.zeros(n, np.int64)),  # number of the goal, 0 for none
            "recent": recent,  # keys of the latest distinct captions, newest last
            "asked": asked,  # the situation that the goal was asked for
            "since": np.zeros((n, WIDTH), np.float32),  # sum of the captions since the goal was given
            "comprehension": np.zeros(n, np.float32),
        }

    def guide(self, memory: Memory) -> np.ndarray:
        """What the policy reads of its goal, float32 (N, features); zeros without one."""
        return self._guides[memory["goal"]]

    def score(self, batch: Transitions, memory: Memory = None) -> tuple[np.ndarray, Memory]:
        assert batch.text is not None
        recent, since, goal = memory["recent"], memory["since"], memory["goal"]
        asked, comprehension = memory["asked"], memory["comprehension"]
        rows = np.flatnonzero(batch.text != "")
        if len(rows):
            recent, since = recent.copy(), since.copy()
            parts = [_read(text) for text in batch.text[rows]]
            since[rows] += np.stack([meaning for _, meaning in parts])
            for codes in itertools.zip_longest(*(codes for codes, _ in parts), fillvalue=0):
                recent[rows] = _newest(recent[rows], np.array(codes, np.uint64))
            length = np.sqrt(np.square(since).sum(axis=1))  # the goal's is 1, or 0
            comprehension = (self._meanings[goal] * since).sum(axis=1) / np.maximum(length, np.float32(1e-6))
        rise = comprehension - memory["comprehension"]
        renewed = (batch.step + 1) % self.every == 0
        if renewed.any():
            asked = np.where(renewed, _situation(recent), asked)
        named = self._named(recent, asked, goal, renewed)
        fresh = named != goal
        if fresh.any():
            since = np.where(fresh[:, None], np.float32(0), since)
            comprehension = np.where(fresh, np.float32(0), comprehension)
        return rise, {"goal": named, "recent": recent, "asked": asked, "since": since, "comprehension": comprehension}

    def _named(
        self, recent: np.ndarray, asked: np.ndarray, goal: np.ndarray, renewed: np.ndarray | bool = True
    ) -> np.ndarray:
        """The goal of each environment from now on, int64 (N,): the answer for its situation, else the last one."""
        if len(self._plan):
            seen = (recent[:, :, None] == self._plan).any(axis=1)
            first = np.where(seen.all(axis=1), 0, seen.argmin(axis=1) + 1)
            reached = (goal > 0) & seen[np.arange(len(goal)), goal - 1]
            return np.where(renewed | reached, first, goal)
        if not len(self._keys):
            return goal
        place = np.minimum(np.searchsorted(self._keys, asked), len(self._keys) - 1)
        return np.where(self._keys[place] == asked, self._numbers[place], goal)

    def update(self, batch: Transitions) -> dict[str, float]:
        if self._annotator is not None:
            self._learn({_situation_of(json.loads(str(events))): goal for events, goal in self._annotator.take(0)})
            if 0 not in self._keys:
                self._annotator.offer(["[]"], 0)  # what to begin with
        batch = batch if len(batch.shape) == 2 else batch.map(lambda x: x[None])
        assert batch.text is not None
        n = batch.shape[1]
        fresh, reached, guided, rows = self.initial_memory(n), 0.0, 0.0, 0
        memory = fresh if self._memory is None or len(self._memory["goal"]) != n else self._memory
        for t in range(batch.shape[0]):
            valid, ended = batch.valid[t], batch.ended[t]
            rise, after = self.score(batch[t], memory)
            if self._annotator is not None:
                self._ask(self._annotator, batch.text[t], memory, after, valid)
            reached += float((memory["comprehension"] + rise)[valid].sum())
            guided += float((after["goal"] > 0)[valid].sum())
            rows += int(valid.sum())
            memory = after if valid.all() else merge_memory(after, memory, ~valid)
            memory = merge_memory(memory, fresh, ended) if ended.any() else memory
        self._memory = memory
        metrics = {"comprehension": reached / max(rows, 1), "guided": guided / max(rows, 1)}
        if self._annotator is not None:
            counts = self._annotator.metrics()
            metrics |= {"goals": float(len(self._goals) - 1), "waiting": counts["queued"]}
            metrics |= {"answered": counts["answered"] + counts["cached"], "failed": counts["failed"]}
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
        if failed := self._annotator.metrics()["failed"]:
            notes.append(f"{failed:,.0f} questions got no goal; the last error: {self._annotator.failure}")
        return notes + self._annotator.notes()

    def judge_use(self) -> JudgeUse | None:
        return None if self._annotator is None else self._annotator.judge_use()

    def preflight(self) -> str:
        return "" if self._annotator is None or len(self._keys) else self._annotator.preflight()

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
        self._set_goals(list(state["goals"]), dict(zip(np.array(state["answers"]["keys"]).tolist(), numbers)))
        self._captions = {key(text): text for text in state["captions"]}
        memory = state["memory"]
        self._memory = None if memory is None else {name: np.array(value) for name, value in memory.items()}
        if self._annotator is not None and state.get("annotator"):
            self._annotator.load_state_dict(state["annotator"])

    def _learn(self, answers: dict[int, str]) -> None:
        numbers = {goal: number for number, goal in enumerate(self._goals)}
        for goal in answers.values():
            numbers.setdefault(goal, len(numbers))
        known = dict(zip(self._keys.tolist(), self._numbers.tolist()))
        self._set_goals(list(numbers), known | {asked: numbers[goal] for asked, goal in answers.items()})

    def _set_goals(self, goals: list[str], answers: dict[int, int]) -> None:
        self._goals = goals  # number -> sentence; 0 is none
        self._meanings = np.stack([meaning(goal) for goal in goals])
        self._guides = self._meanings @ self._projection
        self._keys = np.array(sorted(answers), np.uint64)  # situations
        self._numbers = np.array([answers[asked] for asked in sorted(answers)], np.int64)

    def _ask(self, annotator: Annotator, texts: np.ndarray, before: Memory, after: Memory, valid: np.ndarray) -> None:
        if len(self._captions) > CACHE:
            self._captions.clear()
        self._captions.update((key(part), part) for text in set(texts[valid]) for part in text.split("; "))
        new = valid & (after["asked"] != before["asked"]) & ~np.isin(after["asked"], self._keys)
        for row in np.flatnonzero(new):
            codes = [code for code in after["recent"][row].tolist() if code]
            if all(code in self._captions for code in codes):
                annotator.offer([json.dumps([self._captions[code] for code in codes])], 0)


@functools.lru_cache(CACHE)
def _read(text: str) -> tuple[tuple[int, ...], np.ndarray]:
    """Keys of a caption's events, and the sum of their embeddings, float32 (WIDTH,)."""
    parts = text.split("; ")
    return tuple(map(key, parts)), np.stack([meaning(part) for part in parts]).sum(axis=0)


@functools.lru_cache(CACHE)
def meaning(text: str) -> np.ndarray:
    """A sentence as a float32 vector (WIDTH,) of length 1; zeros for ""."""
    from rewards.llm.judges.embedding import encode

    return encode([text])[0] if text else np.zeros(WIDTH, np.float32)


def _newest(recent: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Recent keys (N, RECENT), with `codes` (N,) moved or put to the end, the oldest dropped; 0 changes nothing."""
    same = recent == codes[:, None]
    gone = np.where(same.any(axis=1), same.argmax(axis=1), 0)  # without a match the oldest
    place = np.arange(RECENT - 1)
    kept = np.take_along_axis(recent, place + (place >= gone[:, None]), axis=1)
    return np.where(codes[:, None] == 0, recent, np.concatenate([kept, codes[:, None]], axis=1))


def _situation(recent: np.ndarray) -> np.ndarray:
    """A number for each row of keys (N, RECENT), uint64 (N,); 0 without any."""
    return (recent * _ODD).sum(axis=1, dtype=np.uint64)


def _answer(row: Mapping[str, Any]) -> tuple[int, str]:
    """Situation and goal of a line {"told": [...], "goal": "..."}, or of a row that was kept."""
    told, goal = (row["told"], row["goal"]) if "told" in row else (json.loads(row["text"]), row["raw"])
    if not isinstance(goal, str) or not goal:
        raise ValueError("no goal")
    return _situation_of(told), goal


def _situation_of(events: Iterable[str]) -> int:
    """The number of the situation in which these events were the latest, the newest last."""
    keys = np.zeros((1, RECENT), np.uint64)
    for text in events:
        keys = _newest(keys, np.array([key(str(text))], np.uint64))
    return int(_situation(keys)[0])
