"""Mutants: which there are of a few lines, and that a line keeps its own whatever changes elsewhere."""

import pytest

from benchmarks.checks import mutants

SOURCE = '''LIMIT = 3


class Config:
    size: int = 4


def score(x, n=2):
    """At 3."""
    if x < LIMIT and n:
        x += 1
    if x > 9:
        raise ValueError(f"x={x + 1}")
    return max(x, -n)
'''


def test_the_mutants_of_a_function():
    changed = [f"{m.line}: {m.changed.strip()}" for m in mutants.mutants("a.py", SOURCE)]
    assert sorted(changed) == [
        "10: if not (x < LIMIT and n):",
        "10: if x < LIMIT or n:",
        "10: if x <= LIMIT and n:",
        "11: pass",
        "11: x += 2",
        "11: x -= 1",
        "12: if not (x > 9):",
        "12: if x > 10:",
        "12: if x >= 9:",
        "14: return max(x, n)",
        "14: return min(x, -n)",
        "8: def score(x, n=3):",
    ]


def test_a_line_keeps_its_mutant_when_others_change(tmp_path):
    for root, source in (("one", SOURCE), ("other", SOURCE.replace("LIMIT = 3", "LIMIT = 4\nMORE = 5"))):
        for package in mutants.PACKAGES:
            (tmp_path / root / package).mkdir(parents=True)
            (tmp_path / root / package / "a.py").write_text(source)
    one, other = (
        {(m.file, m.source): m.changed for m in mutants.sample(tmp_path / root, 3)} for root in ("one", "other")
    )
    assert one == other and len(one) == 5 * len(mutants.PACKAGES)


def test_a_test_that_also_fails_without_the_mutant_kills_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "SLOW", ())
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "a.py").write_text(SOURCE)
    (tmp_path / "test_a.py").write_text(
        "from agents.a import score\ndef test_two(): assert score(2) == 3\ndef test_bad(): assert False\n"
    )
    above, at_nine = (
        next(m for m in mutants.mutants("agents/a.py", SOURCE) if m.changed.strip() == text)
        for text in ("x += 2", "if x > 10:")
    )
    covering = {
        ("agents/a.py", line): [(f"test_a.py::test_{name}", 0.1) for name in ("bad", "two")] for line in (11, 12)
    }
    assert mutants.judge(above, covering, tmp_path) == (2, "killed", "test_a.py::test_two")
    assert mutants.judge(at_nine, covering, tmp_path)[:2] == (2, "survived")
    assert (tmp_path / "agents" / "a.py").read_text() == SOURCE


def test_a_line_that_another_process_runs_meets_the_tests_of_its_folder():
    covering = {
        ("agents/a.py", 1): [("one", 1.0)],
        ("agents/b.py", 1): [("one", 1.0), ("two", 15.0)],
        ("agents/b.py", 2): [("two", 15.0), ("slow", 10.0)],
        ("agents/far/c.py", 1): [("three", 1.0)],
    }
    assert mutants.tests_of(("agents/b.py", 9), covering) == ["two", "one"]
    assert mutants.tests_of(("agents/a.py", 9), covering) == ["one", "two"]
    assert mutants.tests_of(("agents/b.py", 2), covering) == ["two"]


@pytest.mark.nightly
def test_what_tests_run_is_measured_and_kept_until_they_change(tmp_path, monkeypatch):
    (tmp_path / "agents").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "agents" / "a.py").write_text(SOURCE)
    test, measured, real = tmp_path / "tests" / "test_a.py", [], mutants._measure
    monkeypatch.setattr(mutants, "_measure", lambda root, files: measured.append(files) or real(root, files))

    def covering(line):
        found = mutants.coverage(tmp_path, tmp_path / "kept").get(("agents/a.py", line), [])
        return [name for name, seconds in found if seconds >= 0]

    test.write_text(
        "from agents.a import score\ndef test_two(): assert score(2) == 3\ndef test_bad(): assert score(2) == 2\n"
    )
    assert covering(11) == ["tests/test_a.py::test_two"] and not covering(13)
    test.write_text("from agents.a import score\ndef test_four(): assert score(4) == 4\n")
    assert not covering(11) and covering(12) == ["tests/test_a.py::test_four"]
    assert measured == [["tests/test_a.py"]] * 2
    (tmp_path / "agents" / "a.py").write_text("# one line more\n" + SOURCE)
    assert covering(13) == ["tests/test_a.py::test_four"] and covering(13) and len(measured) == 3
