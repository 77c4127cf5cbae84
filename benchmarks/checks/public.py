"""What public models see of our worlds: how well a goal's sentence tells its states from others, without any training.

    python -m benchmarks public                        ViT-B-32, ViT-B-16-SigLIP2 and MobileCLIP2-S0: needs a network
    python -m benchmarks public:lodestar:my/folder     names of open_clip with their first tag, or folders with a model

For each model and goal, frames of scattered states and of a random policy (`runners.compare.sample`): the AUROC of the
sentence, and that of a sentence without meaning. Five worlds, and poses of two robots. If $LODESTAR_VLM_URL names a
server with chat completions ($LODESTAR_VLM_MODEL its model), it is asked about some frames of each goal, by the judge
`token`. A model that cannot be had is left out, with the reason.

public.csv has a row for each model and goal, public.md is the same as a page. `public_models` counts the models with
public weights that were run: a folder and the models that ship are none.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results

# Name in open_clip -> tag of its weights.
PUBLIC_MODELS = {"ViT-B-32": "laion2b_s34b_b79k", "ViT-B-16-SigLIP2": "webli", "MobileCLIP2-S0": "dfndr2b"}
RATED_WORLDS = (
    "lodestar/CartPoleUpright-v0",
    "lodestar/MountainCarGoal-v0",
    "lodestar/PendulumUpright-v0",
    "Acrobot-v1",
    "MiniGrid-Empty-8x8-v0",
    "HalfCheetah-v5",
    "Humanoid-v5",
)
FRAMES_A_WORLD = 300
FRAME_PIXELS = 224
PUBLIC_SEED = 17
PASS_FRAMES = 32
NO_MEANING = "qwv zzxk blorp"
# Frames of a goal that a server is asked about, half of them at the goal.
ASKED_FRAMES = 20
PAGE_HEAD = (
    "| model | environment | goal | sentence | frames | at the goal | AUROC | without meaning | frames a second |"
)


@dataclass
class SeenGoal:
    """Frames of a world, a goal's sentence, and where it is met."""

    env: str
    name: str
    prompt: str
    # Uint8 (N, H, W, 3).
    frames: np.ndarray
    # Bool (N,).
    met: np.ndarray


def run(
    folder: Path, models: Sequence[str] = (), worlds: Sequence[str] = RATED_WORLDS, frames: int = FRAMES_A_WORLD
) -> dict[str, float]:
    """Rate every goal with every model that can be had; writes the table and the page, returns the figures."""
    seen = [goal for env in worlds for goal in look(env, frames)]
    rows: list[dict[str, Any]] = []
    figures = {"public_models": 0.0}
    for name in models or PUBLIC_MODELS:
        try:
            model_rows = rate(name, seen)
        except (FileNotFoundError, ValueError, ImportError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
            continue
        rows += model_rows
        figures["public_models"] += name in PUBLIC_MODELS
        figures[f"public_auroc_{Path(name).name}"] = mean_auroc(model_rows)
    url = os.environ.get("LODESTAR_VLM_URL", "")
    if url:
        model_rows = ask(url, os.environ.get("LODESTAR_VLM_MODEL", "Qwen/Qwen3-VL-8B-Instruct"), seen)
        rows += model_rows
        figures["public_auroc_vlm"] = mean_auroc(model_rows)
    path = folder / "public.csv"
    path.unlink(missing_ok=True)
    if rows:
        results.append_rows(path, rows)
    (folder / "public.md").write_text(page(rows))
    return {name: value for name, value in figures.items() if np.isfinite(value)}


def look(env: str, frames: int) -> list[SeenGoal]:
    """Frames of an environment with each of its goals; a goal that none of them or all of them meet is left out."""
    from envs.make import goals
    from runners.compare.sample import SampleSpec, load_or_take

    sample = load_or_take(SampleSpec(env, frames=frames, seed=PUBLIC_SEED, frame_size=FRAME_PIXELS))
    counted = sample.counted & ~sample.blank
    pictures: Any = sample.batch.frame
    seen = []
    for index, goal in enumerate(goals(env)):
        met = sample.truth[counted, index]
        if 0 < met.sum() < len(met):
            seen.append(SeenGoal(env, goal.name, goal.prompt, pictures[counted], met))
        else:
            print(f"{env}: {met.sum()} of {len(met)} frames meet {goal.name!r}, so it is left out", file=sys.stderr)
    return seen


def rate(name: str, seen: Sequence[SeenGoal]) -> list[dict[str, Any]]:
    """A row for each goal; raises as `ClipEncoder` for a model that cannot be had."""
    from rewards.vision.encoder import ClipEncoder

    encoder = ClipEncoder(*source_of(name))
    rows = []
    for goal in seen:
        begin = time.perf_counter()
        embeddings = encoder.embed(goal.frames, PASS_FRAMES).astype(np.float32)
        seconds = time.perf_counter() - begin
        similarity = embeddings @ encoder.text([goal.prompt, NO_MEANING]).T
        rows.append(row_of(name, goal, similarity[:, 0], similarity[:, 1], goal.met, seconds))
    return rows


def source_of(name: str) -> tuple[str, str]:
    """The model and its weights, as `ClipEncoder` takes them, of a name or a folder."""
    from rewards.vision.load import LOCAL, MODELS

    if name in MODELS:
        return name, ""
    if Path(name).is_dir():
        return f"{LOCAL}{name}", ""
    if name in PUBLIC_MODELS:
        return name, PUBLIC_MODELS[name]
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(name)
    if not tags:
        raise ValueError(
            f"{name!r} is no folder and no model of open_clip with weights; open_clip.list_pretrained() has"
        )
    return name, tags[0]


def ask(url: str, model: str, seen: Sequence[SeenGoal]) -> list[dict[str, Any]]:
    """A row for each goal by a server's probability of yes."""
    from rewards.llm.judges.windows import TokenShare

    rows = []
    rng = np.random.default_rng(PUBLIC_SEED)
    for goal in seen:
        half = ASKED_FRAMES // 2
        chosen = []
        for place in (np.flatnonzero(goal.met), np.flatnonzero(~goal.met)):
            chosen += rng.choice(place, min(half, len(place)), replace=False).tolist()
        with tempfile.TemporaryDirectory() as frames:
            for number in chosen:
                np.save(Path(frames) / f"{number}.npy", goal.frames[number])
            with closing(TokenShare(model, url, goal=goal.prompt, folder=frames)) as judge:
                begin = time.perf_counter()
                answers = judge.label([str(number) for number in chosen])
                seconds = time.perf_counter() - begin
        if answers.failed.any():
            print(
                f"{model}: {answers.failed.sum()} of {len(chosen)} without an answer: {answers.failure}",
                file=sys.stderr,
            )
        answered = ~answers.failed
        met = goal.met[chosen][answered]
        values = answers.value[answered]
        rows.append(row_of(model, goal, values, np.zeros(len(values)), met, seconds))
    return rows


def row_of(
    name: str, goal: SeenGoal, score: np.ndarray, control: np.ndarray, met: np.ndarray, seconds: float
) -> dict[str, Any]:
    """A row of the table."""
    from rewards.compare import auroc

    return {
        "model": name,
        "env": goal.env,
        "goal": goal.name,
        "sentence": goal.prompt,
        "frames": len(met),
        "at_goal": int(met.sum()),
        "auroc": round(auroc(score, met), 3),
        "no_meaning_auroc": round(auroc(control, met), 3),
        "frames_per_s": round(len(met) / max(seconds, 1e-9), 1),
    }


def mean_auroc(rows: Sequence[dict[str, Any]]) -> float:
    """The mean over goals; NaN where nothing was rated."""
    values = [row["auroc"] for row in rows if np.isfinite(row["auroc"])]
    return float(np.mean(values)) if values else float("nan")


def page(rows: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown, with the machine and the day."""
    head = [
        "# Public models on our worlds",
        "",
        f"`python -m benchmarks public`, {datetime.date.today().isoformat()}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores. AUROC 0.5 is chance.",
        "",
        PAGE_HEAD,
        "|" + "---|" * (PAGE_HEAD.count("|") - 1),
    ]
    lines = ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join([*head, *lines]) + "\n"
