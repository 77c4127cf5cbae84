"""README and docs promise only what is there: tags, names, files, links, commands, numbers; what they show runs."""

import inspect
import json
import re
import shutil
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import agents
import rewards
from benchmarks.checks.links import check_links, pages
from benchmarks.results import read_rows
from rewards.check import check_reward
from tests import doc_blocks

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
FILES = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "guide").glob("*.md"))]
PAGES = {path.stem: path.read_text() for path in FILES}
ALL = "\n".join([README, *PAGES.values()])


def figures_of(text):
    """The figures that a page may print: it names their files in a comment."""
    names = re.search(r"<!-- figures: ([\w ]+) -->", text)
    files = [ROOT / "assets" / "results" / f"{name}.json" for name in (names[1].split() if names else ())]
    return {key: value for path in files for key, value in json.loads(path.read_text())["figures"].items()}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """README, docs and the pages that are generated, where the site has them."""
    folder = tmp_path_factory.mktemp("site")
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *FILES]:
        (folder / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.relative_to(ROOT))
    for part in ("assets", "docs/notebooks", "docs/pictures"):
        (folder / part).symlink_to(ROOT / part)
    spec = spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write(folder / "docs" / "reference")
    return folder, module


def test_every_link_of_a_clone_leads_somewhere_without_the_generated_pages():
    followed, broken = check_links(ROOT, pages(ROOT))
    assert broken == []
    assert followed > 80


def test_every_link_within_the_site_leads_somewhere(site):
    folder, _ = site
    followed, broken = check_links(folder, [*(folder / "docs").rglob("*.md")])
    assert broken == []
    assert followed > 150


def test_a_link_to_a_missing_page_or_heading_is_counted(tmp_path):
    (tmp_path / "a.md").write_text("# One\n[b](b.md) [c](#one) [d](a.md#two) [e](https://e.org)\n```\n[f](f.md)\n```\n")
    assert check_links(tmp_path, [tmp_path / "a.md"]) == (3, ["a.md -> b.md", "a.md -> a.md#two"])


def test_every_reward_agent_family_and_command_has_a_page_with_its_options(site):
    from envs.family import families
    from runners.cli.verbs import verbs

    folder = site[0] / "docs" / "reference"
    pages = {part: {path.stem for path in (folder / part).glob("*.md")} for part in ("rewards", "agents", "commands")}
    assert pages == {"rewards": {*rewards.TABLE}, "agents": {*agents.TABLE}, "commands": {*verbs(), "presets"}}
    assert len([*(folder / "environments").glob("*.md")]) == len(families())
    rnd = (folder / "rewards" / "rnd.md").read_text()
    assert "| `reward.rnd.learning_rate` | `0.0001` | Adam step size | above 0 (tuned over [1e-05,0.01,log]) |" in rnd


def test_a_docstring_is_shown_as_it_was_meant(site):
    text = """Two * stars_ and `code*`:\n\n    r = a**2\n\nDifferences:\n    one thing,\n    its end;\n    another."""
    assert site[1].prose(text).strip().splitlines() == [
        *(r"Two \* stars\_ and `code*`:", "", "    r = a**2", "", "", "**Differences.**"),
        *("", "- one thing,", "  its end;", "- another."),
    ]


def test_what_is_not_whole_of_the_features_says_why_and_the_rest_has_a_command(site):
    rows = read_rows(ROOT / "assets" / "results" / "features.csv")
    assert [int(row["number"]) for row in rows] == [*range(1, len(rows) + 1)] and len(rows) >= 80
    assert all(row["command"] if row["state"] == "whole" else row["why"] for row in rows)
    assert {row["state"] for row in rows} <= {"whole", "partly", "not"}
    page = (site[0] / "docs" / "reference" / "features.md").read_text()
    assert page.count("\n```bash\n") == sum(bool(row["command"]) for row in rows)


def test_notebooks_are_kept_without_what_they_printed():
    notebooks = [*(ROOT / "docs" / "notebooks").glob("*.ipynb")]
    assert len(notebooks) == 3
    for path in notebooks:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells), path.name


def test_pictures_of_families_are_small(site):
    from envs.family import families

    found = {path.stem: path.stat().st_size for path in (ROOT / "docs" / "pictures").glob("*.gif")}
    assert {*found} <= {site[1].slug(name) for name in families()} and max(found.values()) < 60_001


@pytest.mark.nightly
@pytest.mark.parametrize("page", [name for name, text in doc_blocks.pages().items() if doc_blocks.blocks(text)])
def test_every_block_of_a_page_runs(page):
    assert doc_blocks.run_page(page) == []


def test_commands_are_cut_short_and_otherwise_as_written(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "status.json").touch()
    text = "lodestar train env=A-v1 total_timesteps=1e5 \\\n  reward=rnd   # a bonus\n"
    assert doc_blocks.commands(text) == ["lodestar train env=A-v1 total_timesteps=1e5 reward=rnd"]
    words = doc_blocks.shortened(doc_blocks.commands(text)[0], tmp_path, "")[3:]
    assert words == ["train", "env=A-v1", "reward=rnd", *doc_blocks.SHORT["train"]]
    assert doc_blocks.shortened("python -m runners.watch run=runs/...", tmp_path, "")[3:5] == ["watch", "run=runs/a"]


@pytest.mark.nightly
def test_help_describes_every_public_method():
    from benchmarks.users import public_methods

    assert [name for name, method in public_methods() if not inspect.getdoc(method)] == []


def test_readme_is_read_in_one_sitting():
    assert len(README.splitlines()) <= 220


def test_only_rewards_and_agents_that_exist_are_named_in_the_tables():
    rows = re.findall(r"^\| ((?:`\w+`(?:\\\*)?(?:, )?)+) \|", README, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+", row)}
    assert named <= {*rewards.TABLE, *agents.TABLE} and len(named) > 35


def test_the_files_it_shows_exist():
    for path in re.findall(
        r"(?<!reference/)(?:assets|docs|envs|rewards|agents|runners|benchmarks|tests)/[\w/.-]+\.\w+", ALL
    ):
        assert (ROOT / path).exists(), path


def test_the_commands_it_shows_exist():
    from benchmarks.__main__ import every

    for module in {*re.findall(r"python -m ([a-z_.]+[a-z_])", ALL)}:
        assert find_spec(module), module
    for name in {*re.findall(r"python -m benchmarks ([\w-]+)", ALL)} - {"NAME", "list"}:
        assert name in every(), name


def test_the_numbers_are_those_of_the_results():
    rows = []
    for page, text in {"README": README, **PAGES}.items():
        if page == "faults":  # a program writes it
            continue
        figures = figures_of(text)
        rows += [(figures, row) for row in re.findall(r"`([\w-]+)` \| ([-\d.]+) (?=\|)", text)]
        # README keeps the keys out of sight: 1.00 <!-- key -->.
        rows += [(figures, (key, number)) for number, key in re.findall(r"([-\d.]+) <!-- (\w+) -->", text)]
    assert len(rows) > 100
    for figures, (key, printed) in rows:
        digits = len(printed.partition(".")[2])
        assert float(printed) == pytest.approx(figures[key], abs=0.51 * 10**-digits), key


def test_a_figure_in_a_sentence_is_that_of_the_results_on_every_page():
    known = {}
    for path in (ROOT / "assets" / "results").glob("*.json"):
        for key, value in json.loads(path.read_text())["figures"].items():
            known.setdefault(key, []).append(value)
    # As in 0.85 [0.72, 0.91] of the tries (`hilp_goal_success`), with or without the interval and the words.
    in_sentence = re.compile(r"(?<![\w.\[-])(-?\d*\.\d+)(?: \[[^\]]*\])?(?:\s[a-z\s]{1,30})?\s\(`(\w+)`[);]")
    pages = {"README": README, **PAGES}
    printed = [(page, *match) for page, text in pages.items() for match in in_sentence.findall(text)]
    wrong = []
    for page, number, key in printed:
        last_digit = 10 ** -len(number.partition(".")[2])
        if not any(float(number) == pytest.approx(value, abs=0.51 * last_digit) for value in known[key]):
            wrong.append((page, key, number, known[key]))
    assert wrong == [] and len(printed) > 50


def test_the_first_command_prints_the_same_table_on_every_page():
    from benchmarks.checks import first_run

    path = ROOT / "assets" / "results" / "first_run.json"
    figures = json.loads(path.read_text())["figures"]
    measured = [f"{figures[f'first_run_{column}']:.2f}" for column in first_run.COLUMNS]
    tables = {page: re.findall(r"^ +task return +(.*)$", text, re.MULTILINE) for page, text in PAGES.items()}
    tables["README"] = re.findall(r"^ +task return +(.*)$", README, re.MULTILINE)
    assert tables["README"] and tables["start"]
    for page, rows in tables.items():
        for row in rows:
            assert row.split() == measured, page


def test_the_verdicts_are_counted_as_the_results_count_them():
    from benchmarks.effects import counts_sentence

    figures = json.loads((ROOT / "assets" / "results" / "effects.json").read_text())["figures"]
    assert counts_sentence(figures) in README
    assert figures["rows"] == sum(figures[kind] for kind in ("shown", "not_shown", "contradicted", "not_run"))


def test_readme_names_every_reward_and_agent_and_where_it_installs():
    named = {*re.findall(r"`(\w+)`", README)}
    assert {*rewards.TABLE, *agents.TABLE} <= named
    assert "agent.net=trees" in README
    for page in (README, PAGES["start"]):
        assert "Linux with Python 3.11 to 3.13" in page and "macOS was not tried" in page


def test_the_licence_stands_in_no_list_and_a_change_is_in_one_release():
    for page, text in PAGES.items():
        assert "MIT licence" not in text.rpartition("\n- ")[0], page
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    bullets = [bullet for release in releases for bullet in {*re.findall(r"^- .*(?:\n  .*)*", release, re.MULTILINE)}]
    assert [bullet for bullet in {*bullets} if bullets.count(bullet) > 1] == []


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
    section += PAGES["own_reward"].partition("## That learns\n")[2]
    module = ModuleType("novelty")
    monkeypatch.setitem(sys.modules, "novelty", module)
    for block in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        exec(block, vars(module))
    check_reward(module.Far)
    check_reward(module.Uncopied)


def test_the_citation_names_the_newest_release_and_the_container_holds_every_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version, date = re.search(r"^## ([\d.]+) \((.+)\)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).groups()
    assert (citation["cff-version"], citation["version"], citation["date-released"]) == ("1.2.0", version, date)
    assert {"message", "title", "authors", "license", "repository-code"} <= set(citation)
    lines = (ROOT / "Containerfile").read_text().splitlines()
    assert {f"COPY {name} {name}" for name in ("agents", "envs", "rewards", "runners")} <= set(lines)
    assert lines.index("USER lodestar") < lines.index("RUN lodestar doctor") < lines.index('ENTRYPOINT ["lodestar"]')
