"""Puts numbers, figures and films into one page of HTML that needs nothing else: no network, no script, no other file.

Everything that comes from files is text to the template, which escapes it; pictures and films are checked by their
first bytes and embedded as data.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from runners.report import plots, words
from runners.report.curves import Band, alarm, label_steps
from runners.report.numbers import Numbers, Row
from runners.report.read import ELAPSED, Run
from runners.report.study import Study, configurations
from runners.report.words import NOTHING, interval, middle, number, signed

FILMS, FILM = 24_000_000, 4_000_000  # bytes of all films of a page, and of one
CONFIGS = 2_000_000  # characters of all configurations of a page
VIDEO, GIF = "video.mp4", "video.gif"


def write(path: Path, made: Study, found: Numbers, bands: dict[tuple[str, str], Band], title: str, points: int) -> None:
    """Write the page.

    Args:
        path: of the HTML file.
        made: the study.
        found: its numbers.
        bands: its learning curves.
        title: of the page.
        points: that a scatter or a stack of shares is drawn from.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    colours = {name: look.colour for name, look in plots.looks(made).items()}
    parts: dict[str, Any] = {"title": title, "made_by": f"lodestar-rl, {time.strftime('%Y-%m-%d %H:%M')}"}
    parts |= {"opening": words.opening(made), "problems": made.problems, "evidence": words.evidence(made, found)}
    parts |= {"score_words": _score_words(found), "methods": words.METHODS, "not_shown": words.NOT_SHOWN}
    parts |= {"table": [_block(made, found, task, colours) for task in made.tasks]}
    parts |= {"successes": bool(found.find("success")), "early": _early(bands), "units": words.units(found)}
    parts["units"] = parts["units"] if len([arm for arm in made.arms if not arm.published]) > 1 else []
    parts |= {"overall": [_overall(found, row, colours) for row in found.find("normalised")]}
    parts |= {"thresholds": _thresholds(made, found, colours), "alarms": _alarms(made)}
    parts |= _figures(made, found, bands, points) | _films(made, found) | _configurations(made) | _provenance(made)
    parts["contents"] = _contents(parts)
    path.write_text(template.render(parts), encoding="utf-8")


def _figures(made: Study, found: Numbers, bands: dict[tuple[str, str], Band], points: int) -> dict[str, Any]:
    with plots.style():
        shares, shares_left = plots.parts(made, points)
        truth, truth_left = plots.truth(made, found, points)
        drawn = {
            "learning": plots.learning(made, found, bands) if bands else None,
            "aggregate": plots.aggregate(made, found),
            "forest": plots.forest(made, found),
            "shares": shares,
            "truth": truth,
        }
        images: dict[str, Any] = {name: plots.svg(figure) if figure else "" for name, figure in drawn.items()}
    return images | {"shares_left": shares_left, "truth_left": truth_left}


def _contents(parts: dict[str, Any]) -> list[tuple[str, str]]:
    sections = [
        ("scores", "Scores", True),
        ("curves", "Learning curves", parts["learning"]),
        ("aggregate", "Normalised scores", parts["aggregate"] or parts["units"]),
        ("twin", "Against the twin", parts["forest"]),
        ("efficiency", "Sample efficiency", parts["thresholds"]),
        ("rewards", "What the rewards did", parts["shares"] or parts["truth"] or parts["alarms"]),
        ("films", "Films", parts["films"] or parts["films_left"]),
        ("configurations", "Configurations", parts["configs"]),
        ("provenance", "Provenance", True),
        ("methods", "How the numbers are made", True),
    ]
    return [(name, said) for name, said, there in sections if there]


def _score_words(found: Numbers) -> str:
    said = "Task return of the final evaluation, over seeds."
    if not all(found.evaluated.values()):
        said += " Where nothing was evaluated it is the last tenth of the training curves, and the task says so."
    return said


def _block(made: Study, found: Numbers, task: str, colours: dict[str, str]) -> dict[str, Any]:
    """The rows of a task in the main table."""
    rows = []
    for row in found.find("final", task=task):
        arm = made.arm(row.arm)
        apart = found.one("difference", task=task, arm=row.arm)
        success = found.one("success", task=task, arm=row.arm)
        unit = found.units[task]
        scale = not unit.why_not and np.isfinite(row.value) and not arm.published
        rows.append(
            {
                "arm": row.arm,
                "colour": colours[row.arm],
                "value": middle(row),
                "interval": interval(row),
                "seeds": f"{row.runs}" if row.runs == row.of else f"{row.runs} of {row.of}",
                "success": NOTHING if success is None else f"{success.value:.0%}",
                "normalised": number(float(unit(np.array(row.value))), 3) if scale else NOTHING,
                "difference": NOTHING if apart is None else signed(apart),
                "dim": arm.published,
            }
        )
    chance = found.one("random", task=task)
    if chance is not None and chance.runs:
        dim = {"arm": "random policy", "colour": "", "value": number(chance.value), "interval": "", "seeds": ""}
        rows.append({**dim, "success": "", "normalised": "0", "difference": "", "dim": True})
    return {"task": task, "rows": rows, "trained": not found.evaluated[task]}


def _overall(found: Numbers, row: Row, colours: dict[str, str]) -> dict[str, Any]:
    better = found.one("improvement", arm=row.arm)
    return {
        "arm": row.arm,
        "colour": colours[row.arm],
        "value": middle(row, 3),
        "interval": interval(row, 3),
        "runs": row.runs,
        "better": NOTHING if better is None else middle(better, 3),
        "better_interval": NOTHING if better is None else interval(better, 3),
    }


def _early(bands: dict[tuple[str, str], Band]) -> list[str]:
    """A sentence about each arm whose runs did not all go as far."""
    said = []
    for (task, arm), band in bands.items():
        there = band.steps[band.runs > 0]
        whole = band.steps[band.whole]
        if band.of > 1 and not len(whole):
            said.append(f"{task}, {arm}: its {band.of} runs have no step in common, so there is no band.")
        elif len(whole) and whole[-1] < there[-1]:
            left = int(band.runs[band.runs > 0][-1])
            said.append(
                f"{task}, {arm}: fewer than all {band.of} runs after {label_steps(whole[-1])} steps, {left} at the end."
            )
    return said


def _thresholds(made: Study, found: Numbers, colours: dict[str, str]) -> list[dict[str, Any]]:
    """A block a task: its thresholds, and for each arm the median steps to each and how many runs got there."""
    blocks = []
    for task in made.tasks:
        limits = found.limits.get(task, [])
        rows = [
            {"arm": arm.name, "colour": colours[arm.name], "cells": cells}
            for arm in made.arms
            if (cells := [_reach(row) for row in found.find("steps_to", task=task, arm=arm.name)])
        ]
        if rows:
            blocks.append({"task": task, "limits": [(said, number(limit)) for said, limit in limits], "rows": rows})
    return blocks


def _reach(row: Row) -> tuple[str, str, str]:
    span = f"{_steps(row.low)} to {_steps(row.high)}" if row.runs else NOTHING
    return _steps(row.value), span, f"{row.runs} of {row.of}"


def _steps(value: float) -> str:
    return f"{value:,.0f}" if np.isfinite(value) else "never"


def _alarms(made: Study) -> list[tuple[Any, ...]]:
    rows = []
    for task, arm, runs in made.cells():
        for run in runs:
            rang = alarm(run)
            if rang is not None:
                share, first, last = rang
                seed = NOTHING if run.seed is None else run.seed
                rows.append((task, arm.name, seed, f"{share:.0%}", f"{first:,.0f}", f"{last:,.0f}"))
    return rows


def _films(made: Study, found: Numbers) -> dict[str, Any]:
    """One film a cell, of the run in the middle, as long as the budget lasts."""
    films, left, spent = [], [], 0
    for task, arm, runs in made.cells():
        run = _middle(found.scores[task, arm.name], [run for run in runs if _film(run) is not None])
        if run is None:
            continue
        said = f"{arm.name}, {task}, seed {run.seed}"
        data = _bytes(_film(run))
        kind = "video/mp4" if data[4:8] == b"ftyp" else "image/gif" if data[:6] in (b"GIF87a", b"GIF89a") else ""
        if not kind or spent + len(data) > FILMS:
            left.append(said)
            continue
        spent += len(data)
        uri = f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
        score = found.scores[task, arm.name].get(run.seed)
        ending = "" if score is None else f", task return {number(score)}"
        films.append({"uri": uri, "words": said + ending, "video": kind == "video/mp4"})
    return {"films": films, "films_left": words.join(left, 30)}


def _film(run: Run) -> Path | None:
    places = [run.folder / name for name in (VIDEO, GIF)] if run.folder else []
    return next((path for path in places if path.is_file()), None)


def _bytes(path: Path | None) -> bytes:
    """A film's bytes; none if it is too large, or cannot be read."""
    try:
        return path.read_bytes() if path is not None and path.stat().st_size <= FILM else b""
    except OSError:
        return b""


def _middle(scores: dict[Any, float], runs: list[Run]) -> Run | None:
    """The run whose score is nearest the median of its cell."""
    if not runs:
        return None
    median = float(np.median(list(scores.values()))) if scores else 0.0
    return min(runs, key=lambda run: (abs(scores.get(run.seed, np.inf) - median), run.seed or 0))


def _configurations(made: Study) -> dict[str, Any]:
    found = configurations(made)
    arms = [arm.name for arm in made.arms if not arm.published]
    differing = [(key, [values.get(name, NOTHING) for name in arms]) for key, values in found.differing.items()]
    own = [(key, next(iter(values.values())), words.join(values)) for key, values in found.own.items()]
    texts, spent = [], 0
    for run in made.own:
        spent += len(run.text)
        texts.append((run.name, run.text if spent <= CONFIGS else "not shown, as the page would become too large"))
    shared = list(found.shared.items())
    return {"configs": texts, "config_arms": arms, "differing": differing, "own": own, "shared": shared}


def _provenance(made: Study) -> dict[str, Any]:
    own = made.own
    packages: dict[str, set[str]] = {}
    for run in own:
        for package, version in run.versions.items():
            packages.setdefault(package, set()).add(version)
    said = words.join((f"{name} {' and '.join(sorted(found))}" for name, found in packages.items()), 40)
    mixed = [name for name, found in packages.items() if len(found) > 1]
    hosts = sorted({str(run.status["host"]) for run in own if run.status.get("host")})
    times = sorted(str(run.status["time"]) for run in own if run.status.get("time"))
    sentences = [f"Made with {said}." if said else "No run says which versions it used."]
    sentences += [f"Not all runs used the same {words.join(mixed)}."] if mixed else []
    sentences += [f"Machines: {words.join(hosts)}."] if hosts else []
    sentences += [f"Runs ended between {times[0]} and {times[-1]}."] if times else []
    spent = [seconds for run in own if np.isfinite(seconds := _seconds(run))]
    sentences += [f"Training took {_clock(sum(spent))} in all, summed over runs."] if spent else []
    rows = [_account(run) for run in made.runs]
    commands = list(dict.fromkeys(made.commands + [line for run in own for line in run.commands[-1:]]))
    shown = commands[:3] + ([f"... and {len(commands) - 3} more"] if len(commands) > 3 else [])
    return {"versions": " ".join(sentences), "runs": rows, "commands": "\n".join(line[:2000] for line in shown)}


def _account(run: Run) -> tuple[Any, ...]:
    """A run's line in the list of all."""
    starts: Any = len(run.commands) or NOTHING
    where = str(run.status.get("host", NOTHING))
    if run.attempt is not None:
        starts, where = run.attempt.attempts or starts, run.attempt.where or where
    code = run.status.get("exit_code")
    step = f"{run.steps[-1]:,.0f}" if len(run.steps) else NOTHING
    clock = _clock(_seconds(run))
    ended = str(run.status.get("time", NOTHING))
    return run.name, run.state, NOTHING if code is None else str(code), step, starts, clock, ended, where


def _seconds(run: Run) -> float:
    """That a run took: what its sweep measured, or what its last start logged."""
    if run.attempt is not None and run.attempt.seconds:
        return float(run.attempt.seconds)
    _, elapsed = run.curve(ELAPSED)
    return float(elapsed[-1]) if len(elapsed) else float("nan")


def _clock(seconds: float) -> str:
    if not np.isfinite(seconds):
        return NOTHING
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def rows_of(found: Numbers) -> Iterable[list[Any]]:
    """The lines of report.csv, a header first."""
    yield ["figure", "task", "arm", "against", "value", "low", "high", "runs", "of"]
    for row in found.rows:
        ends = [_cell(value) for value in (row.value, row.low, row.high)]
        yield [row.figure, row.task, row.arm, row.against, *ends, row.runs, row.of]


def curve_rows(bands: dict[tuple[str, str], Band]) -> Iterable[list[Any]]:
    """The lines of curves.csv, a header first."""
    yield ["task", "arm", "step", "runs", "of", "iqm", "low", "high"]
    for (task, arm), band in bands.items():
        for i in np.flatnonzero(band.runs > 0):
            ends = [_cell(values[i]) for values in (band.value, band.low, band.high)]
            yield [task, arm, round(float(band.steps[i])), int(band.runs[i]), band.of, *ends]


def _cell(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.8g}"
