"""Video reward models behind one interface: how much of a sentence's task the latest frames of an episode show.

    phi(s') = score of the newest window, in [0, 1]; 0 where an episode begins; the reward is phi(s') - phi(s)

Every `every` steps of an episode, and at its end, a window is scored: the first scored frame and the newest ones, or
frames that lie evenly between both (`frames`). What scores it (`judge`):

    token, progress, score                any model with images on a server, `rewards.llm.judges.windows`
    robometer, roboreward, topreward      a model of robotics on its server, as published, `rewards.llm.judges.robots`
    lerobot                               a model of LeRobot in a Python of its own, `rewards.llm.judges.lerobot`
    recorded                              a file of answers, or a progress file of LeRobot (`write_labels`)
    clip                                  the suite's own CLIP, (1 + cosine) / 2 of every frame, without any of these

Sources: Chen et al. 2026, "TOPReward", arXiv 2602.19313; Liang et al. 2026, "Robometer"; Lee et al. 2026, "RoboReward",
arXiv 2601.00675.
Differences: windows of a few frames instead of whole videos, each distinct one asked about once; asked beside training:
a replay keeps the windows' names, so that a transition has its reward as soon as both of its windows are scored, and 0
until then (`ask=at_once` waits, for agents without a replay); a difference by default, as hovering near a goal earns
most of a score that is given at every step.
When it fails: an agent without a replay learns from a window only if it is scored when it is met (`ask=at_once`, or
pictures that repeat); a model slower than the windows scores the newest; windows that waited when a run was killed are
asked about only when they are met again; one camera that does not show the goal.

Example:
    python -m runners.train env=Pendulum-v1 agent=sac reward=progress_model reward.progress_model.judge=token \
        'reward.progress_model.judge_options={model: qwen3-vl-8b, url: "http://localhost:8000/v1"}' \
        reward.progress_model.goal="the pendulum points straight up"
    python -m runners.train env=Pendulum-v1 agent=sac reward=lerobot:lerobot/Robometer-4B \
        reward.progress_model.python=lerobot/bin/python
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from envs.datasets.lerobot import read_progress
from envs.recording import episodes, load
from envs.transitions import Transitions
from envs.types import Memory
from lodestar.settings import setting
from rewards.base import JudgeUse, Scored, one_row
from rewards.llm.annotation.annotator import Annotator
from rewards.vision.base import Vision, VisionConfig, is_nonzero, unit_mean
from rewards.vision.encoder import are_blank
from rewards.vision.load import UNTRAINED

# Judges that were trained or measured on whole videos of robots.
PUBLISHED_JUDGES = ("robometer", "roboreward", "topreward", "lerobot")
PUBLISHED_PIXELS = 224
# The newest frames of windows are kept on the disk for the judge.
MAX_FRAMES_ON_DISK = 4096
MAX_WAITING_WINDOWS = 512
# The name of no window: an episode has begun.
NO_WINDOW = 0


@dataclass
class ProgressModelConfig(VisionConfig):
    """Settings of progress_model; model, weights, batch_size and precision are those of CLIP."""

    shape: str = "delta"
    judge: str = setting(
        "clip",
        "what scores: `clip`, offline; `token`, `progress` or `score`, a model on a server; `robometer`, `roboreward` "
        "or `topreward`, as published; `lerobot`, a folder or repository of LeRobot; `recorded`, answers in a file",
        choices=("clip", "token", "progress", "score", *PUBLISHED_JUDGES, "recorded"),
    )
    judge_options: dict[str, Any] = setting(
        {},
        'of a server: {model: qwen3-vl-8b, url: "http://localhost:8000/v1"} and more; of `recorded`: {path: FILE}, '
        "or LeRobot's progress: {path: progress.parquet, recording: FILE}",
    )
    lerobot: str = setting("", "the model of judge=lerobot: a folder or a repository, as in reward=lerobot:FOLDER")
    python: str = setting("python3", "of judge=lerobot: the Python of an environment with lerobot 0.6")
    every: int = setting(8, "steps of an episode between two windows", ">= 1")
    window: int = setting(8, "frames of one", "[1, 64]")
    frames: str | None = setting(
        None,
        "of a long episode: its first frame and the `newest`, or an `even` choice; null for even with published models",
        "newest | even",
    )
    size: int | None = setting(
        None,
        "height and width of the frames that a judge sees, pixels; null for 224 with published models, else 96",
        "[8, 1024]",
    )
    ask: str = setting("beside", "beside training, or at_once, before the reward is given", "beside | at_once")
    rate: float = setting(0.0, "windows asked about per 1,000 environment steps; 0 for no limit", ">= 0")
    budget: int = setting(0, "answers in total, 0 for no limit", ">= 0")
    cache: str = setting("", "*.sqlite of answers, shared by any number of runs")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lerobot:
            self.judge = "lerobot"
        if self.judge == "lerobot":
            place = {"path": os.path.expanduser(self.lerobot), "python": os.path.expanduser(self.python)}
            self.judge_options = {**place, **self.judge_options}
        published = self.judge in PUBLISHED_JUDGES
        if self.frames is None:
            self.frames = "even" if published else "newest"
        if self.size is None:
            self.size = PUBLISHED_PIXELS if published else 96
        self.refuse_if(
            self.frames == "even" and self.window < 2,
            f"{self.prefix}window={self.window} cannot hold the first frame and the newest; give at least 2",
        )


class ProgressModel(Vision):
    """phi of every frame by CLIP, and of another judge that of the newest window of frames."""

    Config = ProgressModelConfig
    config: ProgressModelConfig
    control = {"judge": "clip", "judge_options": {}, "weights": UNTRAINED}

    def __new__(cls, config: ProgressModelConfig, *spaces: Any, **given: Any) -> "ProgressModel":
        return super().__new__(cls if config.judge == "clip" else WindowProgress)

    def build(self) -> None:
        super().build()
        self.goal = unit_mean(self.meanings("goal"))

    def rate(self, seen: np.ndarray) -> np.ndarray:
        """(1 + cosine) / 2 of CLIP's embeddings, float32 (N,); 0 where a frame shows nothing."""
        score = (1 + seen @ self.goal) / 2
        return np.where(is_nonzero(seen), score, 0).astype(np.float32)


class WindowProgress(ProgressModel):
    """phi of the newest window; what is not scored yet is not ready."""

    recalls = "windows"

    def build(self) -> None:
        config = self.config
        self.frame_size = config.size
        self.is_even = config.frames == "even"
        # What stands for a frame is its name.
        self.embedding = f"frame of {config.name}"
        # Attributes are closed in order, and the judge reads the frames until it is closed.
        self.annotator: Annotator = None  # type: ignore[assignment]
        self.frames = Frames()
        self.scores = ScoredWindows()
        # Windows met since the last question: name -> the names of their frames.
        self.windows: dict[int, str] = {}
        remote = config.judge != "recorded"
        options = {**config.judge_options, "goal": config.goal}
        if remote:
            options["folder"] = self.frames.path
        elif "recording" in options:
            labels = Path(self.frames.path) / "labels.jsonl"
            self.write_labels(labels, options.get("path", ""), options.pop("recording"))
            options["path"] = str(labels)
        self.annotator = Annotator(
            config.judge,
            options,
            "windows",
            rate=config.rate if config.ask == "beside" else 0.0,
            budget=config.budget,
            queue=MAX_WAITING_WINDOWS,
            cache=config.cache,
            clock="wall" if remote or config.cache else "steps",
            seed=self.seed,
        )

    def write_labels(self, labels: Path, progress_file: str, recording: str) -> None:
        """Write the windows of a recording, with their progress in a file of LeRobot, as a file for `judge=recorded`.

        LeRobot's file (0.6, `compute_rabc_weights`: episode_index, frame_index, progress_sparse) names frames by their
        places in a data set, a judge names windows by their pictures: so it takes the recording of that data set. A
        window gets the progress of its newest frame; frames of another size than `size` are other pictures.
        """
        progress = read_progress(Path(progress_file))
        batch, _ = load(recording)
        rows_of = episodes(batch)
        if len(rows_of) != len(progress):
            raise ValueError(
                f"{recording} has {len(rows_of)} episodes and {progress_file} {len(progress)}; give the recording that "
                "was made of the same data set"
            )
        with labels.open("w") as file:
            for rows, values in zip(rows_of, progress.values()):
                count = rows.stop - rows.start
                # A frame is what is seen after an action; that after the last one is stored only in some episodes.
                if len(values) - count not in (0, 1):
                    raise ValueError(
                        f"an episode of {recording} has {count} steps and {len(values)} frames in {progress_file}; "
                        "give the recording that was made of the same data set"
                    )
                memory = self.initial_memory(1)
                for step in range(count):
                    row = batch[rows.start + step : rows.start + step + 1][:, None]
                    _, memory = self.recall(row, memory)
                    value = float(values[min(step + 1, len(values) - 1)])
                    for item in self.windows.values():
                        if np.isfinite(value):
                            file.write(json.dumps({"text": item, "value": value}) + "\n")
                    self.windows.clear()

    def initial_memory(self, n: int) -> Memory:
        # The names of a window's frames, oldest first and then zeros, and the name of the newest window.
        memory = {
            "seen": np.zeros((n, self.config.window), np.int64),
            "latest": np.full(n, NO_WINDOW, np.int64),
        }
        if self.is_even:
            # How many frames the episode has shown.
            memory["met"] = np.zeros(n, np.int64)
        return memory

    def embed(self, batch: Transitions) -> np.ndarray:
        """Names of frames, int64 (N, 1), 0 where one is in no window."""
        frames = batch.frame
        if frames is None or frames.dtype != np.uint8 or frames.ndim != 4:
            given = "none" if frames is None else f"{frames.dtype} of shape {frames.shape}"
            size = self.config.size
            raise ValueError(f"progress_model reads frames, uint8 (N, H, W, 3), not {given}; use frame_size={size}")
        every = self.config.every
        names = np.zeros((len(frames), 1), np.int64)
        rows = np.flatnonzero((batch.step % every == every - 1) | batch.ended)
        if len(rows):
            rows = rows[~are_blank(frames[rows])]
        for row in rows.tolist():
            names[row] = self.frames.keep(frames[row])
        return names

    def recall(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        """The newest window before each row and after it, int64 (T, N, 2), and the memory."""
        names = batch.extras.get(self.embedding)
        if names is None:
            names = self.embed(batch.flatten()).reshape(*batch.shape, 1)
        named = (names[..., 0] != 0) & batch.valid
        ended = batch.ended
        changed = {name: memory[name].copy() for name in self.initial_memory(0)}
        seen = changed["seen"]
        latest = changed["latest"]
        windows = np.empty((*batch.shape, 2), np.int64)
        # Most steps have no named frame and no end: two flags a step spare them the work.
        any_named = named.any(axis=1).tolist()
        any_ended = ended.any(axis=1).tolist()
        for t in range(len(windows)):
            windows[t, :, 0] = latest
            if any_named[t]:
                for i in np.flatnonzero(named[t]).tolist():
                    frames = seen[i][seen[i] != 0].tolist()
                    if self.is_even:
                        frames = thin_evenly(frames, int(changed["met"][i]), self.config.window)
                        changed["met"][i] += 1
                    elif len(frames) == self.config.window:
                        # A full window keeps its first frame and drops the second.
                        del frames[1:2]
                        frames = frames[: self.config.window - 1]
                    frames.append(int(names[t, i, 0]))
                    seen[i] = 0
                    seen[i, : len(frames)] = frames
                    latest[i] = self._register_window(frames)
            windows[t, :, 1] = latest
            if any_ended[t]:
                for values in changed.values():
                    values[ended[t]] = NO_WINDOW
        # There is no annotator yet while its file of labels is written.
        if self.config.ask == "at_once" and self.windows and self.annotator is not None:
            self._take_answers(wait=True)
        return windows, changed

    def scan(self, batch: Transitions, memory: Memory) -> tuple[np.ndarray, Memory]:
        windows = batch.extras.get(self.recalls)
        if windows is None:
            windows, memory = self.recall(batch, memory)
        values, _ = self.known_scores(windows[..., 1])
        return values, memory

    def score(self, batch: Transitions, memory: Memory = None) -> Any:
        extras = dict(batch.extras)
        if self.embedding not in extras and self.recalls not in extras:
            extras[self.embedding] = self.embed(batch)
        row = one_row(batch.replace(extras=extras))
        windows = row.extras.get(self.recalls)
        if windows is None:
            windows, memory = self.recall(row, memory)
        values, ready = self.known_scores(windows[0, :, 1])
        return Scored(values, ready), memory

    def score_both_states(self, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, ready = self.known_scores(kept)
        values[~ready.all(axis=-1)] = 0
        return values[..., 0], values[..., 1]

    def known_scores(self, names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of windows, float32, 0 where there is none yet; and whether there is, bool."""
        distinct, place = np.unique(names, return_inverse=True)
        scores = [self.scores.table.get(name, math.nan) for name in distinct.tolist()]
        values = np.array(scores, np.float32)[place].reshape(names.shape)
        ready = ~np.isnan(values)
        values[~ready] = 0
        return values, ready

    def update(self, batch: Transitions) -> dict[str, float]:
        rows = int(batch.valid.sum())
        if not rows:
            return {}
        self.scores.now += rows
        answers = self._take_answers()
        metrics = self.annotator.metrics()
        if answers:
            metrics["score"] = float(np.mean(answers))
        # Less the start of an episode, whose score is known to be 0.
        metrics["scored"] = len(self.scores.table) - 1.0
        return metrics

    def notes(self) -> list[str]:
        return self.annotator.notes()

    def judge_use(self) -> JudgeUse:
        return self.annotator.judge_use()

    def preflight(self) -> str:
        return self.annotator.preflight()

    def state_dict(self) -> dict[str, Any]:
        """Everything, but for the windows that wait: their frames end with this process."""
        state = super().state_dict()
        state["annotator"]["queue"]["waiting"] = []
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Earlier versions had no annotator with `ask=at_once`.
        super().load_state_dict({"annotator": self.annotator.state_dict(), **state})

    def _register_window(self, frames: Sequence[int]) -> int:
        """The name of a window of frames, which is to be scored if it is not yet."""
        item = " ".join(map(file_name, frames))
        name = name_of(item)
        if name not in self.scores.table:
            self.windows[name] = item
        return name

    def _take_answers(self, wait: bool = False) -> list[float]:
        """Ask about the windows that were met, keep the scores that came, and return them."""
        items = list(self.windows.values())
        self.windows.clear()
        self.annotator.offer(items, self.scores.now)
        if wait:
            self.annotator.wait(items)
        answers = {}
        for item, value in self.annotator.take(self.scores.now):
            if not math.isnan(value):
                answers[name_of(str(item))] = value
        self.scores.table.update(answers)
        return list(answers.values())


class ScoredWindows:
    """Window -> its score, and the environment steps that were seen."""

    def __init__(self) -> None:
        self.now = 0
        self.table: dict[int, float] = {NO_WINDOW: 0.0}

    def state_dict(self) -> dict[str, Any]:
        names = np.array(list(self.table), np.int64)
        values = np.array(list(self.table.values()), np.float32)
        return {"now": self.now, "names": names, "values": values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.now = int(state["now"])
        self.table = dict(zip(state["names"].tolist(), state["values"].tolist()))


class Frames:
    """The newest frames, by a name made of their bytes, in files that a judge in another process reads."""

    def __init__(self, capacity: int = MAX_FRAMES_ON_DISK) -> None:
        self.capacity = capacity
        self._folder = TemporaryDirectory(prefix="lodestar-frames-", ignore_cleanup_errors=True)
        self.path = self._folder.name
        # As an ordered set: the oldest name first.
        self._names: dict[int, None] = {}

    def keep(self, frame: np.ndarray) -> int:
        """The name of a frame, uint8 (H, W, 3), not 0; it is on the disk unless that is full."""
        name = _digest(str(frame.shape).encode() + frame.tobytes())
        if name not in self._names:
            self._names[name] = None
            with suppress(OSError):
                np.save(self._file(name), frame)
            if len(self._names) > self.capacity:
                oldest = next(iter(self._names))
                del self._names[oldest]
                self._file(oldest).unlink(missing_ok=True)
        return name

    def _file(self, name: int) -> Path:
        return Path(self.path) / f"{file_name(name)}.npy"

    def close(self) -> None:
        self._folder.cleanup()


def thin_evenly(frames: list[int], met: int, window: int) -> list[int]:
    """The frames that stay when one more comes after `met` of an episode: every k-th, k the least power of two.

    Before and after it a window holds the frames 0, k, 2k, ... and the newest, `window` of them at most.
    """
    if not frames:
        return []
    stride = _even_stride(met, window)
    numbers = [*range(0, met - 1, stride), met - 1]
    next_stride = _even_stride(met + 1, window)
    return [frame for frame, number in zip(frames, numbers) if number % next_stride == 0]


def _even_stride(count: int, window: int) -> int:
    """The least power of two at which every such frame before the last of `count`, and the last, fit in a window."""
    stride = 1
    while math.ceil((count - 1) / stride) + 1 > window:
        stride *= 2
    return stride


def file_name(name: int) -> str:
    """A frame's name in an item and on the disk: 16 hexadecimal digits."""
    return f"{name % 2**64:016x}"


def name_of(item: str) -> int:
    """The name of the window that an item describes."""
    return _digest(item.encode())


def _digest(data: bytes) -> int:
    """64 bits that name some bytes, equal in every process, never 0."""
    digest = hashlib.blake2b(data, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1
