"""The verdict of an audit: lines for a terminal, and one page of HTML that needs no other file."""

import math
from pathlib import Path

from runners.audit.verdict import ALARM, SOUND, UNKNOWN, Verdict, judge
from runners.report import html
from runners.run.curve import curve

STATE_COLOURS = {SOUND: "#3d8b5f", ALARM: "#b5483f", UNKNOWN: "#7b828c"}


def finish(folder: Path) -> Verdict:
    """Judge a folder, write its page and print both."""
    verdict = judge(folder)
    print("\n".join(lines(verdict)))
    if verdict.rows:
        print(f"page: {write(verdict)}")
    return verdict


def lines(verdict: Verdict) -> list[str]:
    """What the terminal shows."""
    text = [f"verdict: {verdict.state}: {'; '.join(verdict.reasons)}"]
    for name, value in facts(verdict):
        text.append(f"  {name:<44}{value}")
    for row in stream_rows(verdict):
        text.append(f"  stream {row[0]}: {row[1]} of the reward, {row[2]} at first, correlation with the task {row[3]}")
    return text


def facts(verdict: Verdict) -> list[tuple[str, str]]:
    """Names and texts of the numbers behind the verdict."""
    rows = [
        ("task return, untrained policy", str(verdict.untrained or "-")),
        ("task return, trained policy", str(verdict.trained or "-")),
    ]
    if verdict.control is not None:
        rows.append((f"task return, {verdict.control_name}", str(verdict.control)))
    rows += [
        ("learned return, first and last rows", f"{verdict.learned_first:.4g}, {verdict.learned_last:.4g}"),
        ("correlation of both returns over rows", _number(verdict.correlation)),
        ("rows with the alarm", f"{len(verdict.alarm_steps)} of {verdict.rows}"),
        ("environment steps", f"{verdict.last_step:,}"),
    ]
    return rows


def stream_rows(verdict: Verdict) -> list[tuple[str, str, str, str]]:
    """A stream's name, its share at the end and at first, and its correlation with the task's reward."""
    rows = []
    for stream in verdict.streams:
        shares = (_percent(stream.last_share), _percent(stream.first_share))
        rows.append((stream.name, *shares, _number(stream.correlation)))
    return rows


def write(verdict: Verdict) -> Path:
    """Write the page."""
    name = verdict.folder.resolve().name
    picture = verdict.folder / "curve.png"
    # A run's own picture has its control, too.
    if not (picture.exists() and (verdict.folder / "config.yaml").exists()):
        levels = {}
        if verdict.untrained is not None:
            levels["untrained"] = {"task_return": verdict.untrained.mean}
        picture = curve(verdict.folder, name, scores=levels)
    values = {
        "title": f"Audit of {name}",
        "verdict": verdict,
        "colour": STATE_COLOURS[verdict.state],
        "facts": facts(verdict),
        "streams": stream_rows(verdict),
        "picture": html.data_uri(picture.read_bytes(), "image/png"),
    }
    return html.write(verdict.folder / "audit.html", "audit/audit.html", values)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"
