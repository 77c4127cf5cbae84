"""The README promises only what is there: tags, names, files, numbers."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import agents
import rewards
from rewards.check import check_reward

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
FIGURES = {
    "### Fast PPO": "ppo",
    "## Agents that dream": "model_based",
    "## Exploration": "exploration",
    "## Sentences": "vision",
    "## Language": "language",
    "## Experiments": "experiments",
    "### A bad night": "experiments",
    "### The page": "experiments",
    "### What goes wrong": "experiments",
    "### Its cost": "experiments",
    "## Numbers": "foundation",
}  # heading -> results


def test_every_tag_of_the_glossary_is_explained():
    from runners.run.log import TAGS

    for tag, meaning in TAGS.items():
        assert f"| `{tag}` | {meaning} |" in README


def test_the_rewards_and_agents_it_names_exist():
    named = re.findall(r"\breward=\[?([a-z]\w*)", README)
    own = re.findall(r'`(\w+) = "\w+:\w+"`', README)  # of the section about rewards of one's own
    assert named and set(named) <= {*rewards.TABLE, *own}
    agents_named = re.findall(r"\bagent=([a-z]\w*)", README)
    assert agents_named and set(agents_named) <= set(agents.TABLE)


def test_the_files_it_shows_exist():
    for path in re.findall(r"(?:assets|envs|rewards|agents|runners|tests)/[\w/.-]+\.\w+", README):
        assert (ROOT / path).exists(), path


def test_the_numbers_are_those_of_the_results():
    rows = [(file, row) for file, text in figured() for row in re.findall(r"`([\w-]+)` \| ([-\d.]+) (?=\|)", text)]
    assert len(rows) >= 12
    for file, (key, modalities) in rows:
        digits = len(modalities.partition(".")[2])
        assert float(modalities) == pytest.approx(file[key], abs=0.51 * 10**-digits), key


def test_the_table_of_tasks_and_bonuses_is_that_of_the_results():
    figures = json.loads((ROOT / "assets" / "results" / "exploration.json").read_text())["figures"]
    section = README.partition("## Exploration")[2].partition("\n## ")[0]
    head, _, *rows = re.search(r"^\| paid by \| `keycorridor`.*(?:\n\|.*)+", section, re.MULTILINE)[0].splitlines()
    tasks = re.findall(r"`(\w+)`", head)
    modalities = 0
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
                modalities += 1
    assert modalities > 80


def figured():
    """The figures that the text between two headings may print, and the text; different files share some keys."""
    figures = {}
    for section in re.split(r"^(?=##)", README, flags=re.MULTILINE):
        heading = section.partition("\n")[0]
        path = ROOT / "assets" / "results" / f"{FIGURES.get(heading)}.json"
        if path.exists():
            figures = json.loads(path.read_text())["figures"]
        elif not heading.startswith("###"):  # a section below the one with figures prints some of them
            figures = {}
        yield figures, section


def test_the_rewards_of_your_own_keep_the_contract(monkeypatch):
    section = README.partition("## Your own reward\n")[2].partition("\n## ")[0]
    module = ModuleType("novelty")
    monkeypatch.setitem(sys.modules, "novelty", module)
    for block in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        exec(block, vars(module))
    check_reward(module.Far)
    check_reward(module.Uncopied)
