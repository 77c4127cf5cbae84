"""README and docs promise only what is there: tags, names, files, commands, numbers."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import agents
import rewards
from rewards.check import check_reward

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
ALL = "\n".join([README, *PAGES.values()])


def figures_of(text):
    """The figures that a page may print: it names their file in a comment."""
    name = re.search(r"<!-- figures: (\w+) -->", text)
    return json.loads((ROOT / "assets" / "results" / f"{name[1]}.json").read_text())["figures"] if name else {}


def test_readme_is_read_in_one_sitting():
    assert len(README.splitlines()) <= 220


def test_every_tag_of_the_glossary_is_explained():
    from runners.run.progress import TAGS

    for tag, meaning in TAGS.items():
        assert f"| `{tag}` | {meaning} |" in PAGES["runs"]


def test_only_rewards_and_agents_that_exist_are_named_in_the_tables():
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", README, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+", row)}
    assert named <= {*rewards.TABLE, *agents.TABLE} and len(named) > 40


def test_the_files_it_shows_exist():
    for path in re.findall(r"(?:assets|docs|envs|rewards|agents|runners|benchmarks|tests)/[\w/.-]+\.\w+", ALL):
        assert (ROOT / path).exists(), path


def test_the_commands_it_shows_exist():
    from benchmarks.__main__ import every

    for module in {*re.findall(r"python -m ([a-z_.]+)", ALL)}:
        assert find_spec(module), module
    for name in {*re.findall(r"python -m benchmarks ([\w-]+)", ALL)} - {"NAME", "list"}:
        assert name in every(), name


def test_the_numbers_are_those_of_the_results():
    rows = [
        (figures_of(text), row)
        for text in PAGES.values()
        for row in re.findall(r"`([\w-]+)` \| ([-\d.]+) (?=\|)", text)
    ]
    assert len(rows) > 100
    for figures, (key, printed) in rows:
        digits = len(printed.partition(".")[2])
        assert float(printed) == pytest.approx(figures[key], abs=0.51 * 10**-digits), key


def test_the_table_of_tasks_and_bonuses_is_that_of_the_results():
    page = PAGES["exploration"]
    figures = figures_of(page)
    head, _, *rows = re.search(r"^\| [\w ]+ \| `keycorridor`.*(?:\n\|.*)+", page, re.MULTILINE)[0].splitlines()
    tasks = re.findall(r"`(\w+)`", head)
    checked = 0
    for row in rows:
        arm, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        for task, cell in zip(tasks, cells, strict=True):
            if cell:
                value, _, steps = cell.rstrip("*").partition(", ")
                key = f"{task}_{arm.strip('`')}"
                assert float(value) == pytest.approx(figures[key], abs=0.51 * 10 ** -len(value.partition(".")[2])), key
                if steps:
                    known = f"{figures[key + '_steps'] / 1000:.0f}k" if key + "_steps" in figures else "–"
                    assert steps == known, key
                checked += 1
    assert checked > 80


def test_the_rewards_of_your_own_keep_the_contract(monkeypatch):
    section = README.partition("## Your own reward\n")[2].partition("\n## ")[0]
    module = ModuleType("novelty")
    monkeypatch.setitem(sys.modules, "novelty", module)
    for block in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        exec(block, vars(module))
    check_reward(module.Far)
    check_reward(module.Uncopied)
