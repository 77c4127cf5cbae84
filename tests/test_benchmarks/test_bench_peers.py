"""Other libraries beside ours: a table that can be trusted, ratios of neighbours, and a skipped peer is no error."""

import ast
import contextlib
import json
import subprocess
import sys

import pytest

from benchmarks import __main__ as bench
from benchmarks import results
from benchmarks.peers import peers
from benchmarks.peers.cases import CASES
from benchmarks.peers.peers import SCRIPTS, Case, Process, Variant, over
from runners.run.config import UsageError

VARIANTS = {(name, key): variant for name, case in CASES.items() for key, variant in case.variants.items()}
AIMS = """
cartpole8_over_purejaxrl cartpole64_over_purejaxrl cartpole_over_sb3_mb64 cartpole_over_sb3_mb512 halfcheetah_over_sb3
halfcheetah_over_sbx minigrid_over_sb3 minigrid_batched_over_sb3 sac_over_sbx_utd1 sac_over_sbx_utd10 sac_over_sbx_utd20
dqn_over_sb3 rnd_equal_over_rllte icm_equal_over_rllte streams8_share clip_frames_ratio bound_share_cartpole
bound_share_halfcheetah bound_share_minigrid
"""


def test_every_aim_has_a_figure_and_versions_are_bounded():
    assert {key for case in CASES.values() for key in case.figures} >= set(AIMS.split())
    for requirement in {need for variant in VARIANTS.values() for need in variant.needs}:
        assert "<" in requirement or "==" in requirement, requirement


def test_variants_of_a_case_learn_from_minibatches_of_the_same_size_on_the_same_task():
    for name, case in CASES.items():
        for key in ("task", "minibatch", "envs", "net"):
            assert len({str(variant.settings.get(key)) for variant in case.variants.values()}) <= 1, (name, key)
        per_frame = {variant.settings["updates"] / variant.settings["frames"] for variant in case.variants.values()}
        assert len(per_frame) <= 1, name


@pytest.mark.parametrize("script", sorted({variant.script for variant in VARIANTS.values()}))
def test_a_script_has_what_the_driver_asks_for_and_stays_small(script):
    text = (SCRIPTS / f"{script}.py").read_text()
    names = set()
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        names |= {target.id for target in targets} | ({node.name} if isinstance(node, ast.FunctionDef) else set())
    assert {"DISTRIBUTION", "train"} <= names
    assert len(text.splitlines()) <= 90


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["cartpole8", "dqn", "bound_halfcheetah"])
def test_our_scripts_learn_as_they_say(name):
    for variant in (variant for key, variant in CASES[name].variants.items() if not variant.needs):
        with Process(variant) as process:
            assert process.read()["cpu_seconds"] > 0 and process.ask(1)["cpu_seconds"] > 0


def fake_uv(folder, lines):
    """A folder for PATH whose `uv` does what the lines of shell say."""
    folder.mkdir()
    path = folder / "uv"
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("lines", "checkout", "reason"),
    [
        (
            ["echo 'error: no version of nothing==9' >&2", "echo hint: none >&2", "exit 1"],
            "",
            "no version of nothing==9",
        ),
        (None, "", "uv"),
        (None, "NOWHERE=example.org/a/b", "git clone https://example.org/a/b, and set NOWHERE to the folder"),
    ],
    ids=["not installable", "no uv", "no checkout"],
)
def test_a_peer_that_cannot_be_set_up_is_skipped_with_a_sentence(
    lines, checkout, reason, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", fake_uv(tmp_path / "bin", lines) if lines else str(tmp_path))
    theirs = Variant("nothing_ppo", {"frames": 1}, ("nothing==9",), checkout)
    table = {"one": Case({"nothing": theirs}, {"ratio": over("nothing", "nothing")})}
    assert peers.run(tmp_path, [], tmp_path / "peers", table) == {}
    said = capsys.readouterr().err
    assert said.startswith("nothing is skipped: ") and reason in said
    assert not (tmp_path / "peers.csv").exists()


def test_an_environment_is_made_once_and_again_when_it_needs_other_versions(tmp_path, monkeypatch):
    lines = [f"echo $@ >> {tmp_path}/calls", f"/bin/mkdir -p {tmp_path}/peers/some/bin"]
    monkeypatch.setenv("PATH", fake_uv(tmp_path / "bin", lines))
    calls = []
    for requirements in (("some==1",), ("some==1",), ("some==1", "numpy<2")):
        assert peers.environment(tmp_path / "peers", requirements).parent.parent.name == "some"
        calls.append(len((tmp_path / "calls").read_text().splitlines()))
    assert calls == [2, 2, 4]  # one to make it, one to install


class Fake(contextlib.AbstractContextManager):
    """A process whose laps take as long as its settings say: the first, the one that calibrates, then the rounds."""

    row, calibrate, versions = Process.row, Process.calibrate, "some 1"

    def __init__(self, about, home):
        if "error" in about.settings:
            raise RuntimeError(about.settings["error"])
        self.settings, self.laps, self.seconds = about.settings, 1, iter(about.settings["seconds"])

    def __exit__(self, *_):
        pass

    def read(self):
        return {"cpu_seconds": next(self.seconds), "wall_seconds": 0.0}

    def ask(self, laps):
        return {**self.read(), "laps": laps}


@pytest.fixture
def faked(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "Process", Fake)
    monkeypatch.setattr(peers, "commit", lambda: "abc")

    def run(variants, figure, **options):
        table = {"case": Case(variants, {"figure": figure}, rounds=3, **options)}
        return peers.run(tmp_path, [], tmp_path, table)

    return run


def timed(*seconds, needs=()):
    return Variant("x", {"frames": 12, "seconds": [9, 1.5, *seconds]}, needs)


def test_a_figure_is_the_median_of_the_rounds_ratios_to_the_best_of_theirs(faked, tmp_path, capsys):
    variants = {"ours": timed(1, 1, 1), "a": timed(2, 8, 3, needs=("a",)), "b": timed(4, 6, 9, needs=("b",))}
    assert faked(variants, over("ours", "a", "b")) == {"figure": 3.0}  # of 2, 6, 3
    rows = results.read_rows(tmp_path / "peers.csv")
    assert [row["variant"] for row in rows] == ["ours", "a", "b"] * 4
    assert [row["frames_per_cpu_second"] for row in rows if row["variant"] == "a"] == ["1.3", "6.0", "1.5", "4.0"]
    assert {(row["versions"], row["commit"]) for row in rows} == {("some 1", "abc")}
    assert "case 0 ours 9.00 CPU-s" in capsys.readouterr().out  # what went before is printed


def test_a_peer_that_fails_has_no_figure_and_ours_that_fails_is_an_error(faked, capsys):
    bad = Variant("x", {"error": "ImportError: no"}, ("bad",))
    with pytest.raises(RuntimeError, match="TypeError: ours"):
        faked({"ours": Variant("x", {"error": "TypeError: ours"})}, over("ours", "ours"))
    assert faked({"ours": timed(1, 1, 1), "bad": bad}, over("ours", "bad")) == {}
    assert "bad is skipped: ImportError: no\n" in capsys.readouterr().err


def test_a_case_with_all_its_rounds_at_this_commit_is_not_measured_again(faked, tmp_path, monkeypatch):
    variants = {"ours": timed(1, 1, 1), "a": timed(2, 2, 2)}
    assert faked(variants, over("ours", "a")) == {"figure": 2.0}
    broken = {"ours": Variant("x", {"error": "again"})}
    assert faked(broken, over("ours", "a")) == {"figure": 2.0}
    path, rows = tmp_path / "peers.csv", results.read_rows(tmp_path / "peers.csv")
    path.unlink()
    results.append_rows(path, [*rows[:5], {**rows[0], "case": "make_train", "wall_seconds": 55.5}])
    assert faked(variants, over("a", "ours")) == {"figure": 0.5, "make_train_s": 55.5}  # it was interrupted
    monkeypatch.setattr(peers, "commit", lambda: "def")
    with pytest.raises(RuntimeError, match="again"):
        faked(broken, over("ours", "a"))


def test_cases_are_named_behind_the_measurement(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(peers, "run", lambda folder, cases: asked.append(cases) or {"a_over_b": 2.0})
    assert bench.main(["peers:dqn:streams"], tmp_path) == 0 and asked == [["dqn", "streams"]]
    assert json.loads((tmp_path / "speed.json").read_text())["command"] == "python -m benchmarks peers"
    assert bench.main(["ppo:dqn"], tmp_path) == 2
    monkeypatch.undo()
    with pytest.raises(UsageError, match="case=dqm is unknown; did you mean dqn"):
        peers.run(tmp_path, ["dqm"])


FAKE = """
DISTRIBUTION = ("numpy",)
def train(settings, laps):
    laps.begin()
    for _ in range(3):
        for _ in range({minibatches}):
            laps.minibatch({rows})
        with laps.aside():
            sum(range(10**6))
        laps()
"""


def drive(folder, asked, **shape):
    (folder / "fake.py").write_text(FAKE.format(**{"minibatches": 4, "rows": 64, **shape}))
    settings = json.dumps({"frames": 8, "minibatch": 64, "updates": 4})
    command = [sys.executable, str(SCRIPTS / "drive.py"), "fake", settings]
    environment = {"PYTHONPATH": str(folder)}
    return subprocess.run(command, input=asked, capture_output=True, text=True, env=environment, timeout=60)


def test_the_driver_answers_after_the_first_lap_and_after_as_many_as_it_is_asked_for(tmp_path):
    answer = drive(tmp_path, "2\n")
    versions, *laps = map(json.loads, answer.stdout.splitlines())
    assert answer.returncode == 0 and "numpy" in versions["versions"] and len(laps) == 2
    assert all(lap["cpu_seconds"] < 0.005 for lap in laps)  # what is aside is not measured
    assert drive(tmp_path, "2\n1\n").returncode == 1  # it stops by itself


@pytest.mark.parametrize("shape", [{"rows": 128}, {"minibatches": 3}], ids=str)
def test_the_driver_refuses_fewer_or_larger_minibatches(shape, tmp_path):
    answer = drive(tmp_path, "", **shape)
    assert answer.returncode == 1 and "AssertionError" in answer.stderr and len(answer.stdout.splitlines()) == 1
