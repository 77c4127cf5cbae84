"""Other libraries beside ours: a table that can be trusted, ratios of neighbours, and a skipped peer is no error."""

import ast
import json
import subprocess
import sys

import pytest

from benchmarks import results
from benchmarks.peers import peers as bench_peers
from benchmarks.peers.peers import PEERS, SCRIPTS, Peer

SCRIPTS_OF_PEERS = sorted({script for peer in PEERS for script in (peer.script, peer.ours)})


def test_peers_have_names_of_their_own_and_bounded_versions():
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    for requirement in (requirement for peer in PEERS for requirement in peer.requirements):
        assert "<" in requirement or "==" in requirement, requirement


@pytest.mark.parametrize("script", SCRIPTS_OF_PEERS)
def test_a_script_has_what_the_driver_asks_for_and_stays_small(script):
    text = (SCRIPTS / f"{script}.py").read_text()
    names = set()
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        names |= {target.id for target in targets} | ({node.name} if isinstance(node, ast.FunctionDef) else set())
    assert {"DISTRIBUTION", "train"} <= names
    assert len(text.splitlines()) <= 60


@pytest.mark.nightly
def test_our_scripts_learn_as_many_frames_as_they_say():
    row = json.loads(bench_peers.call([sys.executable, str(SCRIPTS / "drive.py"), "ours_rnd", "2"],
                                      {"PYTHONPATH": str(bench_peers.ROOT)}))  # fmt: skip
    assert row["frames"] == 2 * 8 * 256 and row["cpu_seconds"] > 0


def fake_uv(folder, lines):
    """A folder for PATH whose `uv` does what the lines of shell say."""
    folder.mkdir()
    path = folder / "uv"
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["echo 'error: no version of nothing==9' >&2", "echo hint: none >&2", "exit 1"], "no version of nothing==9"),
        (None, "uv"),
    ],
    ids=["not installable", "no uv"],
)
def test_a_peer_whose_environment_cannot_be_made_is_skipped_with_a_sentence(
    lines, reason, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", fake_uv(tmp_path / "bin", lines) if lines else str(tmp_path))
    peer = Peer("nothing", ("nothing==9",), "nothing_ppo")
    assert bench_peers.run(tmp_path, [peer], tmp_path / "peers") == {}
    said = capsys.readouterr().err
    assert said.startswith("nothing is skipped: ")
    assert reason in said
    assert not (tmp_path / "peers.csv").exists()


def test_an_environment_is_made_once_and_again_when_it_needs_other_versions(tmp_path, monkeypatch):
    lines = [f"echo $@ >> {tmp_path}/calls", f"/bin/mkdir -p {tmp_path}/peers/some/bin"]
    monkeypatch.setenv("PATH", fake_uv(tmp_path / "bin", lines))
    calls = []
    for requirements in (("some==1",), ("some==1",), ("some==1", "numpy<2")):
        assert bench_peers.environment(tmp_path / "peers", requirements).parent.parent.name == "some"
        calls.append(len((tmp_path / "calls").read_text().splitlines()))
    assert calls == [2, 2, 4]  # one to make it, one to install


def test_a_figure_is_the_median_of_the_ratios_of_neighbours_and_a_peer_that_fails_has_none(
    tmp_path, monkeypatch, capsys
):
    seconds = {"ours_ppo": [1, 1, 1, 2], "slow_ppo": [2, 8, 3]}  # ours runs in vain once, beside the bad one

    def call(command, settings=None):
        script = command[2]
        if script == "bad_ppo":
            raise RuntimeError("ImportError: no")
        taken = seconds[script].pop(0)
        return json.dumps({"version": "1", "frames": 12, "cpu_seconds": taken, "wall_seconds": taken}) + "\n"

    monkeypatch.setattr(bench_peers, "call", call)
    peers = [Peer("slow", ("slow==1",), "slow_ppo"), Peer("bad", ("bad==1",), "bad_ppo")]
    for peer in peers:
        (tmp_path / "peers" / peer.name).mkdir(parents=True)
        (tmp_path / "peers" / peer.name / "installed.txt").write_text(peer.requirements[0])
    figures = bench_peers.run(tmp_path, peers, tmp_path / "peers")
    assert figures == {"peer_slow": 2.0}  # of 2/1, 8/1, 3/2; the medians' ratio would be 3
    assert "bad is skipped: ImportError: no\n" in capsys.readouterr().err
    rows = results.read_rows(tmp_path / "peers.csv")
    assert [row["peer"] for row in rows] == ["ours_ppo", "slow"] * 3
    assert [row["frames_per_cpu_second"] for row in rows if row["peer"] == "slow"] == ["6.0", "1.5", "4.0"]


def test_ours_that_does_not_run_is_an_error_and_no_skipped_peer(tmp_path, monkeypatch):
    def call(command, settings=None):
        raise RuntimeError("TypeError: ours")

    monkeypatch.setattr(bench_peers, "call", call)
    monkeypatch.setattr(bench_peers, "environment", lambda home, requirements: home)
    with pytest.raises(RuntimeError, match="TypeError: ours"):
        bench_peers.run(tmp_path, [Peer("some", ("some==1",), "some_ppo")], tmp_path)


FAKE = """
DISTRIBUTION = "numpy"
def train(rollouts, laps):
    for _ in range(rollouts + {more}):
        for _ in range({minibatches}):
            laps.minibatch({rows})
        laps()
"""


def drive(folder, **shape):
    (folder / "fake.py").write_text(FAKE.format(**{"more": 0, "minibatches": 320, "rows": 64, **shape}))
    command = [sys.executable, str(SCRIPTS / "drive.py"), "fake", "2"]
    return subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(folder)}, timeout=60)


@pytest.mark.parametrize("more", [0, 1], ids=["as asked", "one update more than asked"])
def test_the_driver_counts_the_frames_between_the_first_update_and_the_last(more, tmp_path):
    row = json.loads(drive(tmp_path, more=more).stdout)
    assert row["frames"] == 2 * 8 * 256
    assert row["cpu_seconds"] >= 0


@pytest.mark.parametrize("shape", [{"rows": 128}, {"minibatches": 32}, {"more": -1}], ids=str)
def test_the_driver_refuses_fewer_larger_or_missing_minibatches(shape, tmp_path):
    answer = drive(tmp_path, **shape)
    assert answer.returncode == 1
    assert "AssertionError" in answer.stderr
    assert answer.stdout == ""
