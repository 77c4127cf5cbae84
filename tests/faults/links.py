"""Runs from elsewhere that hold links where commands write: what a link leads to must stay as it is.

A case is a command, the name of the link in the run's folder, and what the link leads to: a file, a folder, or a place
in a folder of the victim's where nothing is yet.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tests.faults import Fault, Found
from tests.faults.child import TINY, run, train, warm

SECRET = "what only the victim may write"
PACKAGES = ("explain", "export", "report", "compare", "sweep")  # commands that are folders

# Command -> the names of files that it writes into a run's folder, and of folders.
FILES = {
    "explain": ("explain.json", "explain.html"),
    "report": ("report.html", "report.csv", "curves.csv", "report.png", "report.svg", "report.pdf"),
    "export": ("export/policy.safetensors", "export/policy.json", "export/README.md", "export/config.yaml",
               "export/status.json"),
    "watch": ("watch.mp4",),
    "evaluate": ("video.mp4",),
    "compare": ("card.html",),
    "record": ("data.safetensors", "data.safetensors.partial"),
    "train": (".lock", "status.json", "metrics.csv", "command.txt", "result.json", "curve.png", "video.mp4",
              "checkpoints/LATEST"),
}  # fmt: skip
FOLDERS = {
    "explain": ("why",),
    "report": ("page",),
    "export": ("export", "export/checkpoints"),
    "train": ("checkpoints", "best", "tensorboard", "videos", "control", "crashes"),
}
COMPARED = ("env=CartPole-v1", "reward=rnd", "rows=64")
QUICK = (
    ("explain", "explain.json", "file"),
    ("report", "report.png", "nothing"),
    ("export", "export", "folder"),
    ("train", "videos", "folder"),
)


class Case(NamedTuple):
    """A command, the link that waits for it, and what that leads to: a "file", a "folder", or "nothing" yet."""

    command: str
    name: str
    leads_to: str


def cases() -> Iterator[Case]:
    """Every case."""
    for command, names in FILES.items():
        for name in names:
            yield from (Case(command, name, leads_to) for leads_to in ("file", "nothing"))
    for command, names in FOLDERS.items():
        for name in names:
            yield from (Case(command, name, leads_to) for leads_to in ("folder", "nothing"))


def arguments(case: Case, run_folder: Path) -> list[str]:
    """The command line of a victim who trusts nothing in the folder, but works in it."""
    tiny = [f"{key}={value}" for key, value in TINY.items()]
    more = ["total_timesteps=128", "eval_every=64", "video_every=64", "eval_episodes=1", "eval_steps=20", "video=true"]
    page = [f"out={run_folder / case.name}"] if case.name in ("why", "page") else []
    return {
        "explain": [f"run={run_folder}", "episodes=2", "steps=5", *page],
        "report": [str(run_folder), *page],
        "export": [f"run={run_folder}", "format=safetensors"],
        "watch": [f"run={run_folder}", "episodes=1", "steps=5"],
        "evaluate": [f"run={run_folder}", "episodes=1"],
        "compare": [*COMPARED, f"root={run_folder}/new", f"page={run_folder}/card.html"],
        "record": [f"policy={run_folder}", "steps=10", f"out={run_folder}/data.safetensors"],
        "train": [*tiny, *more, f"run_dir={run_folder}"],
    }[case.command]


def set_trap(case: Case, run_folder: Path, victim: Path) -> None:
    """Put the link into the run's folder, and what it leads to into the victim's."""
    target = victim / "target"
    if case.leads_to == "file":
        target.write_text(SECRET)
    if case.leads_to == "folder":
        target.mkdir()
    link = run_folder / case.name
    link.parent.mkdir(exist_ok=True)
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def seen(folder: Path) -> dict[str, bytes]:
    """Every path below a folder with its content, none of a folder."""
    return {str(path): b"" if path.is_dir() else path.read_bytes() for path in sorted(folder.rglob("*"))}


def trial(case: Case, good: Path, folder: Path) -> tuple[bool, str]:
    """Whether a command wrote through the link, and what was wrong with its words, if anything."""
    run_folder, victim = folder / "run", folder / "victim"
    shutil.copytree(good, run_folder, ignore=shutil.ignore_patterns(".lock"))
    victim.mkdir()
    set_trap(case, run_folder, victim)
    before = seen(victim)
    module = f"runners.{case.command}" + (".__main__" if case.command in PACKAGES else "")
    code, printed = run(partial(_typed, module, arguments(case, run_folder), folder), folder / "out.txt", 180)
    words = ""
    if code is None or "Traceback" in printed:
        last = (printed.strip().splitlines() or ["nothing"])[-1]
        words = f"code {code}, {last[:150]}"
    return seen(victim) != before, words


def _typed(module: str, given: list[str], folder: Path) -> int:
    os.chdir(folder)
    return import_module(module).main(given)


def links(folder: Path, quick: bool) -> Found:
    """Every case; none may write through its link, or end without a sentence."""
    warm()
    good = folder / "good"
    run(lambda: train(run_dir=good, total_timesteps=64), folder / "out.txt")
    tried = [Case(*each) for each in QUICK] if quick else [*cases()]
    written, wrong = [], []
    for number, case in enumerate(tried):
        place = folder / f"case{number}"
        place.mkdir()
        wrote, words = trial(case, good, place)
        label = f"{case.command} {case.name} to {case.leads_to}"
        if wrote:
            written.append(label)
        if wrote or words:
            wrong.append(f"{label}: {words or 'written'}")
        shutil.rmtree(place)
    figures: dict[str, float] = {"links_written": len(written), "links_tried": len(tried)}
    told = "; ".join(wrong) or "each link was replaced, or refused in a sentence"
    return Found(len(tried), len(wrong), figures, f"{len(written)} of {len(tried)} were written through; {told}")


FAULTS = [
    Fault(
        "links",
        "a run's folder holds links where commands write",
        "What they lead to stays as it is.",
        links,
    )
]
