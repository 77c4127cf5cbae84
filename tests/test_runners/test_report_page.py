"""What the report writes: a page that stands alone, pictures, and tables; also of little, of nothing and of malice."""

import base64
import contextlib
import csv
import html.parser
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image
from test_report_read import WIDE, found_in, write

from runners.report import page, plots
from runners.report.__main__ import main
from runners.report.comparison import bands
from runners.report.numbers import Numbers


class Page(html.parser.HTMLParser):
    """Every tag and attribute of a page, and its text."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def made(folder, *arguments):
    assert main([str(folder), *arguments]) == 0
    return (folder / "report.html").read_text()


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are empty, in tests of the words beside them."""

    def save(figure, target, **options):
        content = b"<svg/>"
        if hasattr(target, "write"):
            target.write(content)
        else:
            Path(target).write_bytes(content)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def sweep(folder, seeds=5):
    for seed in range(seeds):
        write(folder / f"t{seed}", seed=seed, score=100.0 + seed)
        write(folder / f"r{seed}", reward=("task", "rnd"), seed=seed, score=103.0 + seed)
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The folder of a report of ten runs, one of them with a video, and what the command printed."""
    folder = sweep(tmp_path_factory.mktemp("report"))
    (folder / "t2" / "video.mp4").write_bytes(b"\0\0\0\x20ftypisom" + b"\0" * 100)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(page.time, "strftime", lambda form: "now")
        made(folder)
    return folder, printed.getvalue()


def test_the_page_the_picture_and_the_tables_say_the_same(report):
    folder, printed = report
    text = Page((folder / "report.html").read_text()).text
    assert printed == f"report:      {folder / 'report.html'}\n"
    found = {(row["figure"], row["arm"]): row for row in rows(folder / "report.csv")}
    final, apart = found["final", "task+rnd"], found["difference", "task+rnd"]
    assert (float(final["value"]), final["runs"]) == (105, "5")
    assert (apart["value"], apart["low"], apart["high"], apart["against"]) == ("3", "3", "3", "task")
    assert "105.0" in text and "+3.000 [3.000, 3.000]" in text
    assert "10 of 10 runs finished" in text and "normalised: better." in text
    said = text.index("What this shows")
    assert text.index("CartPole-v1: task+rnd is better than task, +3.000 [3.000, 3.000] task return.") - said < 60
    curve = [row for row in rows(folder / "curves.csv") if row["arm"] == "task"]
    assert len(curve) == 200 and (float(curve[0]["iqm"]), float(curve[-1]["iqm"])) == (51, 102)
    assert image.imread(folder / "report.png").shape[1] > 1000
    assert (folder / "report.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (folder / "report.svg").read_text()


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing(report):
    source = (report[0] / "report.html").read_text()
    seen = Page(source)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    addresses = [value for name, value in seen.attributes if name in ("src", "href", "poster", "action")]
    assert all(address.startswith(("#", "data:image/", "data:video/")) for address in addresses)
    assert "http:" not in source and "https:" not in source and "url(" not in source and "@import" not in source
    svgs = [base64.b64decode(a.split(",")[1]).decode() for a in addresses if a.startswith("data:image/svg")]
    assert len(svgs) == 3 and not any("<script" in svg or '<image xlink:href="http' in svg for svg in svgs)


EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>$\\frac{"


def test_the_command_of_the_sweep_and_its_job_log_are_listed(tmp_path, undrawn):
    write(tmp_path / "jobs" / "a")
    (tmp_path / "sweep.json").write_text(json.dumps({"command": "python -m runners.sweep env=CartPole-v1"}))
    event = {"job": "a", "state": "finished", "attempts": 3, "where": "box:7", "seconds": 3723.0}
    (tmp_path / "jobs.jsonl").write_text(json.dumps(event) + "\n")
    text = re.sub(r"\s+", " ", Page(made(tmp_path)).text)
    assert "python -m runners.sweep env=CartPole-v1" in text and "Training took 1:02:03 in all" in text
    assert "jobs/afinished01,00031:02:03–box:7" in text.replace(" ", "")


def test_text_from_files_is_escaped(tmp_path):
    write(tmp_path / "a", env=EVIL, reward=(EVIL, "task"), mission=EVIL)
    failed = write(tmp_path / "b", env=EVIL, reward=("task",), state="failed")
    (failed / "status.json").write_text(json.dumps({"state": "failed", "error": EVIL, "host": EVIL, "time": EVIL}))
    (failed / "versions.json").write_text(json.dumps({EVIL: EVIL}))
    (failed / "command.txt").write_text(EVIL)
    (failed / "result.json").write_text(json.dumps({EVIL: EVIL, "this run": EVIL}))
    (tmp_path / EVIL.replace("/", "")).mkdir()
    (tmp_path / EVIL.replace("/", "") / "config.yaml").write_text("{")
    seen = Page(made(tmp_path, f"title={EVIL}"))
    assert "script" not in seen.tags and not [name for name, _ in seen.attributes if name.startswith("on")]
    assert all(value.startswith("data:image/svg") for name, value in seen.attributes if name == "src")
    assert seen.text.count("<script>alert(1)</script>") > 8


def test_what_is_missing_and_what_is_thin_is_reported(tmp_path, undrawn):
    sweep(tmp_path, 2)
    write(tmp_path / "r9", reward=("task", "rnd"), seed=9, state="failed", curve=[(300, 9)])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.yaml").write_text("[")
    text = Page(made(tmp_path)).text
    assert "Missing, failed or unequal: 3" in text and "broken cannot be read" in text
    assert "r9 failed at step 300 of 1,000, exit code 4" in text and "CartPole-v1, task: no run with seed 9" in text
    assert "The evidence is thin: some cells have 2 seeds" in text and "4 of 5 runs finished (1 failed)" in text
    assert "CartPole-v1, task+rnd: its 3 runs have no step in common, so there is no band." in text


def test_a_run_that_stopped_early_is_reported(tmp_path, undrawn):
    write(tmp_path / "a", seed=0, curve=[(0, 0), (1000, 10)])
    write(tmp_path / "b", seed=1, curve=[(0, 0), (500, 10)], state="stopped")
    assert (
        "CartPole-v1, task: fewer than all 2 runs after 500 steps, 1 at the end."
        in Page(made(tmp_path, "points=11")).text
    )


def test_one_run_is_a_report_without_intervals(tmp_path, undrawn):
    write(tmp_path / "only")
    text = Page(made(tmp_path / "only")).text
    assert (
        "one run: no interval" in text and "some cells have 1 seed" in text and "One arm (task) on CartPole-v1" in text
    )
    assert [row["low"] for row in rows(tmp_path / "only" / "report.csv") if row["figure"] == "final"] == [""]


def test_a_run_that_only_has_its_configuration_is_a_report(tmp_path, undrawn):
    folder = write(tmp_path / "a")
    for part in ("metrics.csv", "result.json", "status.json"):
        (folder / part).unlink()
    text = Page(made(tmp_path)).text
    assert "a has no record of how it ended at step 0 of 1,000" in text and "some cells have no score" in text


def test_the_controls_of_a_video_stand_below_its_picture(tmp_path):
    from lodestar.video import write_mp4
    from runners.report.page import _player_ratio

    write_mp4(tmp_path / "video.mp4", [np.zeros((96, 160, 3), np.uint8)] * 2, 10)
    assert _player_ratio((tmp_path / "video.mp4").read_bytes()) == round(160 / (96 + 0.3 * 160), 4)
    assert _player_ratio(b"\0\0\0\x20ftypisom" + b"\0" * 100) == 1.0


def test_videos_are_those_of_the_median_run_within_the_budget(tmp_path, monkeypatch, undrawn):
    sweep(tmp_path, 3)
    video = b"\0\0\0\x20ftypisom" + b"\0" * 100
    for name in ("t0", "t1", "t2"):
        (tmp_path / name / "video.mp4").write_bytes(video)
    (tmp_path / "r1" / "video.mp4").write_bytes(b"<html>no video</html>")
    seen = Page(made(tmp_path))
    assert seen.tags.count("video") == 1 and "task, CartPole-v1, seed 1, task return 101.0" in seen.text
    assert "or the file is no video: task+rnd, CartPole-v1, seed 1" in seen.text
    monkeypatch.setattr(page, "MAX_VIDEO_BYTES", 10)
    assert "video" not in Page(made(tmp_path)).tags


def test_an_alarm_is_listed_with_its_steps(tmp_path, undrawn):
    write(tmp_path / "a", reward=("clip",))
    lines = ["step,rollout/ep_rew_mean,rollout/ep_learned_mean,reward/alarm", "10,5,1,0", "20,4,2,1", "30,3,9,1"]
    (tmp_path / "a" / "metrics.csv").write_text("\n".join(lines))
    text = re.sub(r"\s+", " ", Page(made(tmp_path)).text)
    assert "The hacking alarm was raised in 1 run:" in text and "CartPole-v1clip067%2030" in text.replace(" ", "")
    row = next(row for row in rows(tmp_path / "report.csv") if row["figure"] == "rank_correlation")
    assert float(row["value"]) == -1


def test_what_differs_and_what_is_shared_stands_apart(tmp_path, undrawn):
    write(tmp_path / "a", n_envs=2)
    write(tmp_path / "b", n_envs=4)
    source = made(tmp_path)
    assert '<td><code>n_envs</code></td><td class="v">2</td><td class="v">4</td>' in source
    assert '<td><code>agent.gamma</code></td><td class="v">0.99</td></tr>' in source


def test_a_task_without_a_curve_is_named(tmp_path, undrawn):
    write(tmp_path / "a")
    write(tmp_path / "b", env="Acrobot-v1", curve=[])
    text = re.sub(r"\s+", " ", Page(made(tmp_path)).text)
    assert "There is no curve of Acrobot-v1: no row of the logs has a task return." in text


def test_a_log_of_one_row_is_a_point_and_its_shares_hold_from_the_beginning(tmp_path):
    write(tmp_path / "a", reward=("task", "rnd"), curve=[(1000, 5.0)])
    log = "step,rollout/ep_rew_mean,reward/task_share,reward/rnd_share\n1000,5,0.75,0.25\n"
    (tmp_path / "a" / "metrics.csv").write_text(log)
    data = found_in(tmp_path / "a")
    figure, _ = plots.shares(data, 50)
    assert figure.axes[0].get_xlim() == (0.0, 1000.0)
    (axis,) = plots.learning(Numbers(data), bands(data, 50)).axes
    points = [line for line in axis.lines if line.get_marker() == "o"]
    assert [line.get_xydata().tolist() for line in points] == [[[1000.0, 5.0]]]


def test_published_curves_stand_beside_ours(tmp_path, undrawn):
    write(tmp_path / "runs")
    (tmp_path / "chart.csv").write_text(WIDE)
    assert main([str(tmp_path / "runs"), str(tmp_path / "chart.csv"), f"out={tmp_path / 'out'}", "label=,CleanRL"]) == 0
    text = Page((tmp_path / "out" / "report.html").read_text()).text
    assert "Beside them, published curves: published: CleanRL." in text
    assert main([str(tmp_path / "chart.csv"), f"out={tmp_path / 'theirs'}"]) == 0
    assert "no run of ours" in Page((tmp_path / "theirs" / "report.html").read_text()).text


def test_the_same_folders_give_the_same_page(report, monkeypatch):
    monkeypatch.setattr(page.time, "strftime", lambda form: "now")
    folder, _ = report
    assert (folder / "report.html").read_text() == made(folder)


def test_arguments_are_checked_before_work_begins(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "runs" / "a")
    runs = str(tmp_path / "runs")
    for arguments, words in {
        (): "",
        ("nowhere",): "nowhere does not exist; give a folder with runs below it, or a CSV",
        ("out=x",): "there is no PATH",
        (runs, "pints=3"): "key=pints is unknown; did you mean points?",
        (runs, "points=1"): "points=1 is out of range; give a number in [2, 10000]",
        (runs, "threshold=high"): "threshold=high is no task return",
        (runs, "label=a,b"): "label=a,b has 2 names; give one for each PATH: 1",
        (runs, "reference=tsk"): "reference=tsk is unknown; did you mean task?",
        (str(tmp_path / "empty"),): "has no run that can be read; give a folder with runs below it",
    }.items():
        assert main(list(arguments)) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "runs" / "report.html").exists()
    assert main.parse([runs, "threshold=A-v1:1,B-v1:-2"]).thresholds == {"A-v1": 1, "B-v1": -2}


def test_a_limit_is_listed_with_what_the_runs_reached(tmp_path, undrawn):
    for seed, cost in enumerate([0.02, 0.05, 0.11]):
        write(tmp_path / f"s{seed}", reward=("task", "signal"), seed=seed)
        path = tmp_path / f"s{seed}" / "result.json"
        scores = json.loads(path.read_text())
        scores["this run"]["metrics"] = {"signal cost a step": cost, "signal limit": 0.05, "speed": 3.0}
        path.write_text(json.dumps(scores))
    text = re.sub(r"\s+", "", Page(made(tmp_path)).text)
    assert "CartPole-v1task+signalsignal0.0500.0602of3" in text
