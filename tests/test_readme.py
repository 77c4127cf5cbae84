"""The README promises only what is there: tags, names, files, numbers."""

import json
import re
from pathlib import Path

import pytest

import agents
import rewards

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_every_tag_of_the_glossary_is_explained():
    from runners.log import TAGS

    for tag, meaning in TAGS.items():
        assert f"| `{tag}` | {meaning} |" in README


def test_every_reward_and_agent_is_named():
    for name in rewards.TABLE:
        assert f"| `{name}` |" in README
    for name in agents.TABLE:
        assert f"`{name}`" in README


def test_the_files_it_shows_exist():
    for path in re.findall(r"(?:assets|envs|rewards|agents|runners|tests)/[\w/.-]+\.\w+", README):
        assert (ROOT / path).exists(), path


def test_the_numbers_are_those_of_the_results():
    files = [ROOT / f"assets/results/{name}.json" for name in ("foundation", "ppo")]
    figures = {key: value for file in files for key, value in json.loads(file.read_text())["figures"].items()}
    rows = re.findall(r"`(\w+)` \| ([-\d.]+) (?=\|)", README)
    assert len(rows) >= 12
    for key, shown in rows:
        digits = len(shown.partition(".")[2])
        assert float(shown) == pytest.approx(figures[key], abs=0.51 * 10**-digits), key
