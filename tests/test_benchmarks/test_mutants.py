"""Mutants: which there are of a few lines, and that a line keeps its own whatever changes elsewhere."""

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
    assert one == other and len(one) == 15
