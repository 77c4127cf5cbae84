"""Bad models and goals: is each named in one sentence before training begins? Every case is a command that must fail.

A case counts as named if the command ends with exit code 2, prints one line that says what is wrong, and has trained
nothing. Files are made here, but for the picture model without words, which timm makes without its weights.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from benchmarks import results
from rewards.llm.judges.cores import claim_core
from tests.test_rewards.test_gguf_model import write_model
from tests.test_rewards.test_lerobot import write_model as write_lerobot_model
from tests.test_rewards.test_lerobot import write_python

KEYS = "env=MiniGrid-DoorKey-5x5-v0"
POLE = "env=CartPole-v1"
QUIET = ["total_timesteps=64", "video=false", "control=none", "eval_episodes=1"]
NO_WORDS = "tf_efficientnet_lite0"


class Case(NamedTuple):
    """A command, and words of the sentence that it must end with."""

    name: str
    argv: list[str]
    words: str
    # Whether each core has a model already.
    crowded: bool = False


def run(folder: Path) -> dict[str, float]:
    """Try every case; writes a row for each with the sentence."""
    rows = []
    with tempfile.TemporaryDirectory() as made:
        for case in make_cases(Path(made)):
            rows.append(try_case(case, Path(made) / "run"))
            print(rows[-1], flush=True)
    path = folder / "bad_models.csv"
    path.unlink(missing_ok=True)
    results.append_rows(path, rows)
    return {"bad_models_tried": float(len(rows)), "bad_models_named": float(sum(row["named"] for row in rows))}


def make_cases(folder: Path) -> list[Case]:
    """All cases; their files are written to the folder."""
    return [*language_cases(folder), *picture_cases(folder), *robot_cases(folder)]


def language_cases(folder: Path) -> list[Case]:
    """Language models in files."""

    def local(path: Path, **options: Any) -> list[str]:
        given = ", ".join(f"{key}: {value}" for key, value in {"model": path, **options}.items())
        return [KEYS, "reward=oni", "reward.oni.judge=local", f"reward.oni.judge_options={{{given}}}"]

    good = write_model(folder / "good.gguf")
    cut = folder / "cut.gguf"
    cut.write_bytes(good.read_bytes()[:-40])
    page = folder / "page.gguf"
    page.write_text("<html>")
    base = write_model(folder / "base.gguf", template=False)
    short = write_model(folder / "short.gguf", context=512)
    return [
        Case("truncated GGUF", local(cut), "is cut off"),
        Case("no GGUF", local(page), "is no GGUF file"),
        Case("no file", local(folder / "none.gguf"), "there is no model at"),
        Case("no chat template", local(base), "has no chat template"),
        Case("a model of a short context", local(short), "is more than the 512 tokens"),
        Case("a context too short", local(good, context=100), "give a number at least 1536"),
        Case("two models on one core", local(good), "already runs on each", crowded=True),
    ]


def picture_cases(folder: Path) -> list[Case]:
    """Goals as pictures, and encoders without words."""

    def goal(path: Path) -> list[str]:
        return [POLE, "reward=clip", f"reward.clip.goal={path}"]

    drawing = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    broken = folder / "broken.png"
    broken.write_bytes(b"PNG")
    grey = folder / "grey.png"
    Image.fromarray(drawing[..., 0]).save(grey)
    alpha = folder / "alpha.png"
    Image.fromarray(np.dstack([drawing, drawing[..., 0]])).save(alpha)
    plain = folder / "plain.png"
    Image.fromarray(np.full((64, 64, 3), 7, np.uint8)).save(plain)
    empty = folder / "empty"
    empty.mkdir()
    no_words = [POLE, "reward=clip", f"reward.clip.model=timm:{NO_WORDS}", "reward.clip.goal=a pole that stands"]
    return [
        Case("a picture that cannot be read", goal(broken), "cannot be read as a picture"),
        Case("a grey picture", goal(grey), "not RGB"),
        Case("a transparent picture", goal(alpha), "not RGB"),
        Case("a picture of one colour", goal(plain), "single colour"),
        Case("a missing picture", goal(folder / "missing.png"), "does not exist"),
        Case("a folder without pictures", goal(empty), "has no picture in it"),
        Case("an encoder without words, a sentence", no_words, "words"),
    ]


def robot_cases(folder: Path) -> list[Case]:
    """Models of LeRobot."""

    def lerobot(model: str, python: str) -> list[str]:
        judge = f"reward.progress_model.judge_options={{path: {model}, python: {python}, goal: stand}}"
        return [POLE, "reward=progress_model", "reward.progress_model.judge=lerobot", judge, "trust=true"]

    model = write_lerobot_model(folder / "lerobot")
    places = {}
    for name, version in (("old", "0.4.4"), ("none", ""), ("new", "0.6.1")):
        (folder / name).mkdir()
        places[name] = write_python(folder / name, version)
    return [
        Case("LeRobot of another version", lerobot(model, places["old"]), "has lerobot 0.4.4"),
        Case("a Python without LeRobot", lerobot(model, places["none"]), "lerobot"),
        Case("a folder without a model of LeRobot", lerobot(str(folder / "empty"), places["new"]), "config.json"),
    ]


def try_case(case: Case, run_folder: Path) -> dict[str, Any]:
    """Run the command; a row of the table."""
    from runners.train import main

    said = io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(redirect_stderr(said))
        stack.enter_context(redirect_stdout(io.StringIO()))
        while case.crowded:
            lock = claim_core()
            if lock is None:
                break
            stack.callback(lock.release)
        try:
            code = main([*case.argv, *QUIET, f"run_dir={run_folder}"])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    lines = [line for line in said.getvalue().splitlines() if line.strip()]
    sentence = lines[-1] if lines else ""
    # The folder of this Python says nothing about the sentence.
    sentence = sentence.replace(sys.prefix, ".venv")
    began = (run_folder / "metrics.csv").exists()
    shutil.rmtree(run_folder, ignore_errors=True)
    named = code == 2 and len(lines) == 1 and case.words in sentence and not began
    return {"case": case.name, "named": int(named), "code": code, "lines": len(lines), "sentence": sentence}
