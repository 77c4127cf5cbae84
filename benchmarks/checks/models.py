"""Real language models as judges: hand-labelled captions, one token against JSON, a run with labels.

A run on DoorKey waits for each label, so that the count of them does not depend on how busy the machine is.
The model is SmolLM2-135M-Instruct, as `lodestar fetch` brings it. `hand_labels.csv` holds captions of three worlds with
labels by one labeller, by which the layout of the question was chosen; `fresh_labels.csv` holds others, read twice.
Captions that stand among the examples of the question are left out. AUROC is the share of pairs of a good and another
caption that a score puts in the right order; with about 25 of each kind it is known to .1.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import results
from rewards.llm.judges import prompts
from rewards.llm.judges.base import make_judge
from rewards.llm.judges.gguf import small_model
from runners.run.config import UsageError
from tests.llama_server import LlamaServer

LABELS = Path(__file__).parent / "hand_labels.csv"
FRESH_LABELS = LABELS.with_name("fresh_labels.csv")
WORLDS = ("minigrid", "nethack", "crafter")
# Patience with a server on a busy core.
SERVER = {"model": "smollm2", "timeout": 300.0, "attempts": 60, "backoff": 0.5, "longest": 2.0, "concurrency": 1}
TRAIN = ["env=MiniGrid-DoorKey-8x8-v0", "reward=oni", "reward.oni.judge=local", "total_timesteps=20000"]
TRAIN += ["reward.oni.ask=at_once", "video=false", "control=none", "seed=0", "eval_episodes=1"]


class Labelled(NamedTuple):
    """Captions of a world and whether each is progress."""

    captions: list[str]
    helpful: np.ndarray


class Scores(NamedTuple):
    """Of captions: what the model and the embedding say, and the CPU-seconds of the model."""

    token: np.ndarray
    goal: np.ndarray
    seconds: float


def run(folder: Path) -> dict[str, float]:
    """All figures; writes the scores of every caption."""
    if not small_model().is_file():
        raise UsageError(f"there is no model at {small_model()}; bring it with: lodestar fetch")
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    seconds = 0.0
    count = 0
    for world in WORLDS:
        labelled = read_labels(world)
        scores = score_captions(world, labelled.captions)
        seconds += scores.seconds
        count += len(labelled.captions)
        figures[f"token_auroc_{world}"] = auroc(scores.token, labelled.helpful)
        figures[f"embedding_goal_auroc_{world}"] = auroc(scores.goal, labelled.helpful)
        rows += rows_of(world, labelled, scores)
    figures["token_captions_cpu_s"] = count / seconds
    figures["json_auroc_minigrid"] = json_auroc(read_labels("minigrid"), "minigrid")
    figures["json_fresh_auroc_minigrid"] = json_auroc(read_labels("minigrid", FRESH_LABELS), "minigrid")
    figures["local_labels"] = local_labels()
    write_rows(folder / "models.csv", rows)
    return figures


def run_fresh(folder: Path) -> dict[str, float]:
    """One token on hand-labelled captions by which no question was chosen; and how far two readings of them agree."""
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for world in WORLDS:
        labelled = read_labels(world, FRESH_LABELS)
        scores = score_captions(world, labelled.captions)
        figures[f"token_fresh_auroc_{world}"] = auroc(scores.token, labelled.helpful)
        figures[f"embedding_goal_fresh_auroc_{world}"] = auroc(scores.goal, labelled.helpful)
        figures[f"fresh_captions_{world}"] = float(len(labelled.captions))
        figures[f"fresh_labels_kappa_{world}"] = kappa(
            labelled.helpful, read_labels(world, FRESH_LABELS, "second").helpful
        )
        rows += rows_of(world, labelled, scores)
    write_rows(folder / "models_fresh.csv", rows)
    return figures


def score_captions(world: str, captions: list[str]) -> Scores:
    """What the model and the embedding of the bare goal say of each caption."""
    with closing(make_judge("local", family=world, share=True)) as judge:
        # The first caption waits for the model and for the examples.
        judge.label(captions[:1])
        begin = time.process_time()
        token = judge.scores(captions).value
        seconds = time.process_time() - begin
    goal = make_judge("embedding", goal=prompts.background(world).goal).scores(captions).value
    return Scores(token, goal, seconds)


def rows_of(world: str, labelled: Labelled, scores: Scores) -> list[dict[str, Any]]:
    """A row for each caption."""
    rows = []
    for caption, helpful, token, goal in zip(*labelled, scores.token, scores.goal):
        row = {"world": world, "caption": caption, "helpful": int(helpful)}
        rows.append({**row, "token": round(float(token), 4), "embedding_goal": round(float(goal), 4)})
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """In place of what stands there."""
    path.unlink(missing_ok=True)
    results.append_rows(path, rows)


def read_labels(world: str, path: Path = LABELS, column: str = "label") -> Labelled:
    """The hand-labelled captions of a world, without the examples of the question."""
    examples = {caption for caption, _ in prompts.background(world).examples}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    rows = [row for row in rows if row["world"] == world and row["caption"] not in examples]
    helpful = np.array([row[column] == "1" for row in rows])
    return Labelled([row["caption"] for row in rows], helpful)


def kappa(first: np.ndarray, second: np.ndarray) -> float:
    """Cohen's kappa of two readings: the agreement beyond that of chance."""
    agreement = np.mean(first == second)
    both_good = first.mean() * second.mean()
    by_chance = both_good + (1 - first.mean()) * (1 - second.mean())
    return float((agreement - by_chance) / (1 - by_chance))


def auroc(scores: np.ndarray, helpful: np.ndarray) -> float:
    """Share of pairs in the right order, ties by half."""
    good = scores[helpful][:, None]
    other = scores[~helpful][None]
    return float(np.mean((good > other) + 0.5 * (good == other)))


def json_auroc(labelled: Labelled, world: str) -> float:
    """The same model asked for a reason and a word; no usable answer and an unsure one count as in the middle."""
    with LlamaServer(small_model()) as server:
        judge = make_judge("openai", url=server.url, family=world, answer="json", **SERVER)
        with closing(judge):
            values = judge.label(labelled.captions).value
    return auroc(np.nan_to_num(values, nan=0.5), labelled.helpful)


def local_labels() -> int:
    """Labels that a run with `judge=local` had at its end."""
    from runners.train import main

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        if main([*TRAIN, f"run_dir={path}"]):
            raise UsageError("the run with judge=local failed")
        uses = json.loads((path / "result.json").read_text())["this run"]["judges"]
    print(uses, file=sys.stderr)
    return int(uses["oni"]["labels"])
