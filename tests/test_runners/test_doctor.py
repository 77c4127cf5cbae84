import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lodestar.packages import distribution, read_requirements
from runners.doctor import Finding, ask, checks
from runners.doctor.__main__ import DoctorConfig, all_checks, choose, main

FAULTY = """
import ctypes, time
from runners.doctor import Finding
def fine(word): yield Finding("fine", "ok", word)
def raises(): raise RuntimeError("the disk is\\n gone")
def crashes():
    print("a library that talks")
    yield Finding("before", "ok", "this was found")
    ctypes.string_at(0)
def hangs():
    yield Finding("before", "ok", "this was found")
    time.sleep(1e9)
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "faulty_checks.py").write_text(FAULTY)
    (tmp_path / "crashing.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_a_check_is_handed_its_arguments_and_gives_its_lines(faulty: Path) -> None:
    assert ask("x", "faulty_checks:fine", "é, 'quoted'") == [Finding("fine", "ok", "é, 'quoted'")]


def test_a_check_that_raises_is_one_line(faulty: Path) -> None:
    found = ask("x", "faulty_checks:raises", fix="buy another")
    assert found == [Finding("x", "missing", "RuntimeError: the disk is gone", "buy another")]


def test_what_training_does_without_is_never_called_missing(faulty: Path) -> None:
    for check in ("raises", "crashes"):
        assert ask("x", f"faulty_checks:{check}", required=False)[-1].state == "warning"


def test_a_check_that_crashes_is_a_line_after_what_it_found(faulty: Path) -> None:
    before, crash = ask("x", "faulty_checks:crashes", fix="mend it")
    assert before == Finding("before", "ok", "this was found")
    assert crash.state == "missing" and crash.fix == "mend it" and crash.required
    assert crash.found.startswith("its process died (SIGSEGV)") and "ctypes" in crash.found


def test_a_check_that_hangs_is_killed_at_its_limit(faulty: Path) -> None:
    begin = time.monotonic()
    found = ask("x", "faulty_checks:hangs", timeout=4)
    assert found[-1] == Finding("x", "missing", "did not answer within 4 s")
    assert 4 <= time.monotonic() - begin < 60


def test_a_package_that_kills_the_process_is_named_and_the_rest_go_on(faulty: Path) -> None:
    found = checks.imports(["filelock>=3", "crashing>=1", "no-such-package<2", "rich>=99"], 60)
    assert [(f.name, f.state) for f in found] == [
        ("filelock", "ok"),
        ("crashing", "missing"),
        ("no-such-package", "missing"),
        ("rich", "warning"),
    ]
    assert "SIGSEGV" in found[1].found and found[1].fix == "pip install 'crashing>=1'"
    assert found[2].found.startswith("ModuleNotFoundError: No module named 'no_such_package'")
    assert found[3].found.endswith("but >=99 is asked for")


def test_a_requirement_of_another_platform_is_not_missed() -> None:
    (found,) = checks.requirement_findings("no-such-package>=1; sys_platform == 'beos'")
    assert found == Finding("no-such-package", "ok", 'not needed here (sys_platform == "beos")')


def test_a_missing_package_is_named_with_its_fix_and_the_exit_code_says_so(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'minigrid': raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "runners.doctor", "only=minigrid,cores"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 3
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("missing  minigrid")]
    assert "No module named 'minigrid'" in line
    assert "see the line of its package" in result.stdout
    assert result.stdout.endswith("not ready: minigrid\n") and "ok       cores" in result.stdout


def test_every_requirement_and_extra_of_the_project_is_looked_at() -> None:
    core, extras = read_requirements()
    names = [distribution(line) for line in core]
    assert {"gymnasium", "torch", "hydra-core", "tensorboard"} <= set(names)
    assert set(extras) >= {"cluster", "onnx", "minihack"}
    assert [distribution(line) for line in extras["cluster"]] == ["ray", "submitit"]
    assert {"[cluster]", "imports", "robots drawn", "judge"} <= set(all_checks(DoctorConfig()))


def test_an_extra_says_what_it_lacks() -> None:
    (there,) = checks.extra("x", ["filelock>=3"])
    (lacking,) = checks.extra("x", ["filelock>=3", "no-such-package"])
    assert (there.state == "ok" and there.found.startswith("filelock 3")) or there.found.startswith("filelock 4")
    assert lacking == Finding(
        "[x]", "optional", "without no-such-package", "pip install 'lodestar-rl[x]'", required=False
    )
    (world,) = checks.extra("x", ["no-such-package"], "CartPole-v1", False)
    assert world == lacking._replace(name="x")
    (world,) = checks.extra("x", ["filelock>=3"], "CartPole-v1", False)
    assert world.state == "ok" and world.found.startswith("CartPole-v1 made in")


def test_json_holds_every_line_and_nothing_is_left_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["json=true", "only=disk", f"root={tmp_path / 'runs'}"]) == 0
    told = json.loads(capsys.readouterr().out)
    names = [finding["name"] for finding in told["findings"]]
    assert told["ready"] is True and names[:2] == ["disk", "checkpoint"]
    assert told["findings"][1]["found"].endswith("and read back equal")
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_written_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["only=disk", "root=/proc/runs"]) == 3
    out = capsys.readouterr().out
    assert "missing  disk" in out and "root=<a folder that you may write to>" in out


def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for argument, sentence in (
        ("jduge=x", "error: key=jduge is unknown; did you mean judge?"),
        ("only=dsik", "error: only=dsik is unknown; did you mean disk?"),
        ("timeout=0", "error: timeout=0.0 is out of range; give a number above 0"),
        ("timeout=soon", "error: timeout=soon is not a number"),
        ("json=1", "error: json=1 is not true or false; did you mean json=true?"),
    ):
        assert main([argument]) == 2
        assert capsys.readouterr().err.strip() == sentence
    assert main(["--help"]) == 0 and "python -m runners.doctor" in capsys.readouterr().out
    assert list(choose({"a": list, "b": list}, [])) == ["a", "b"]


def test_two_frames_go_through_the_encoder_and_back() -> None:
    (found,) = checks.video()
    assert found.state == "ok" and found.found.endswith("read back")


def test_a_world_is_stepped_and_drawn() -> None:
    (found,) = checks.environment("classic control", "CartPole-v1", None)
    assert found.state == "ok" and found.found.endswith("with a frame of 64 x 64")
