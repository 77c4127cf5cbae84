"""Writes docs/reference: pages for rewards, agents, families of environments, commands, trained agents and results.

They say what the docstrings and field tables say, which `python -m runners.list` and `--help` print, too. Sphinx calls
`write` before it reads any page; nothing of it is committed.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
import sys
from collections import Counter
from dataclasses import MISSING
from importlib import import_module
from pathlib import Path
from typing import Any

from gymnasium.envs.registration import registry

import agents
import rewards
from benchmarks.effects import VERDICTS, Effect, effects, figure_text
from benchmarks.results import read_rows
from envs.family import families
from lodestar.settings import settings_of
from runners.cli import presets, verbs
from runners.cli.command import OPTIONS, REST, argument_text
from runners.cli.compose import HIDDEN
from runners.cli.declared import key_of
from runners.list import environment, summary
from runners.report import scores
from runners.run.config import TrainConfig

RESULTS = Path(__file__).resolve().parents[1] / "assets" / "results"
CARDS = sorted((RESULTS.parent / "agents").glob("*/README.md"))
LABEL = re.compile(r"^((?:Sources?|Differences[\w ]*|When it fails|Fails when|Raises)[^.:]{0,40}):\s*")
PICTURES = Path(__file__).parent / "pictures"  # by docs/pictures.py
EMPTY = '""'
SPECIAL = re.compile(r"([\\*_<>\[\]|$#~^])")


def write(folder: Path) -> None:
    """Write every page into an emptied `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    made = {
        "rewards": ("Rewards", {name: reward_page(name) for name in rewards.TABLE}),
        "agents": ("Agents", {name: agent_page(name) for name in agents.TABLE}),
        "environments": ("Families of environments", {slug(name): family_page(name) for name in families()}),
        "commands": ("Commands and keys", {verb: command_page(verb, place) for verb, place in verbs.verbs().items()}),
        "trained": (
            "Trained agents",
            {path.parent.name: trained_page(path) for path in CARDS},
        ),
        "results": ("Results", {path.stem: results_page(path) for path in sorted(RESULTS.glob("*.json"))}),
    }
    made["commands"][1]["presets"] = presets_page()
    folder.mkdir(parents=True)
    (folder / "features.md").write_text(features_page())
    (folder / "effects.md").write_text(effects_page())
    (folder / "benchmark.md").write_text(benchmark_page())
    for part, (title, pages) in made.items():
        (folder / part).mkdir(parents=True)
        for name, (_, text) in pages.items():
            (folder / part / f"{name}.md").write_text(text)
        lines = [f"| [{name}]({part}/{name}.md) | {prose(line).strip()} |" for name, (line, _) in pages.items()]
        tree = "\n".join(["```{toctree}", ":hidden:", "", *(f"{part}/{name}" for name in pages), "```"])
        (folder / f"{part}.md").write_text("\n".join([f"# {title}", "", "| | |", "|---|---|", *lines, "", tree, ""]))
    names = list(made["trained"][1])
    (folder / "trained.md").write_text(trained_index(names))


def slug(name: str) -> str:
    """A family's name as a file's."""
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def reward_page(name: str) -> tuple[str, str]:
    """Its line in the list, and the page: the file's docstring, the class's formula, what it reads, its options."""
    cls = rewards.get(name)
    line = summary(rewards.TABLE[name])
    facts = [
        f"`reward={name}` "
        + ("is added to the task's reward." if cls.role == "bonus" else "replaces the task's reward."),
        f"It reads {', '.join(f'`{field}`' for field in sorted(cls.requires)) or 'nothing'} of a transition.",
        f"Its file is `{rewards.TABLE[name].partition(':')[0].replace('.', '/')}.py`.",
    ]
    parts = [prose(inspect.getdoc(sys.modules[cls.__module__])), prose(inspect.getdoc(cls)), " ".join(facts)]
    return line, page(name, [*parts, "## Options", options(cls.Config, f"reward.{name}.")])


def agent_page(name: str) -> tuple[str, str]:
    """The same of an agent; Stable-Baselines3's share a file."""
    cls = agents.get(name)
    shared = agents.TABLE[name].startswith("agents.sb3")
    texts = [inspect.getdoc(cls) or "", inspect.getdoc(sys.modules[cls.__module__]) or ""][:: 1 if shared else -1]
    table = options(cls.Config, "agent.")
    chosen = [
        f"- `agent.preset={preset}`: "
        + (", ".join(f"`{key}={argument_text(value)}`" for key, value in values.items()) or "the defaults")
        for preset, values in getattr(cls.Config, "presets", {}).items()
    ]
    ways = ["## Presets", "What each sets, where you set nothing:", "\n".join(chosen)] if chosen else []
    return summary(agents.TABLE[name], shared), page(name, [*map(prose, texts), "## Options", table, *ways])


def family_page(name: str) -> tuple[str, str]:
    """Its ids with their goals in words, and the options of the first."""
    family = families()[name]
    rows = []
    for env_id in family.ids:
        goals = family.goals(registry[env_id]) if env_id in registry else []
        rows.append(f"| `{env_id}` | " + "; ".join(f'{goal.name}: "{goal.prompt}"' for goal in goals) + " |")
    parts = [prose(family.description[:1].upper() + family.description[1:] + ".")]
    if (PICTURES / f"{slug(name)}.gif").exists():
        parts.append(f"![Random play](../../pictures/{slug(name)}.gif)")
    if rows:
        parts.append("\n".join(["| id | goals in words |", "|---|---|", *rows]))
    first = next((env_id for env_id in family.ids if env_id in registry), None)
    if first:
        text = environment(first)
        parts += [f"## Options of {first}", "The others': `python -m runners.list ID`.", f"```text\n{text}\n```"]
    return family.description, page(name, parts)


def command_page(verb: str, module: str) -> tuple[str, str]:
    """What `--help` prints, its keys as a table."""
    command = import_module(module).main
    if verb == "train":
        config, hidden, doc = TrainConfig, HIDDEN, inspect.getdoc(import_module(module))
    else:
        config, hidden, doc = command.config, (), command.doc
    doc = (doc or "").strip()
    parts = [prose(doc)] + (["## Keys", options(config, "", hidden)] if config else [])
    return doc.splitlines()[0].rstrip("."), page(verb, parts)


def presets_page() -> tuple[str, str]:
    """Every preset: its line, where it applies by itself, what it sets."""
    parts = ["`preset=NAME`. One that names where it applies is taken there by itself; `preset=none` takes none."]
    for name, found in presets.all_presets().items():
        where, sets = assigned(found["applies"]), assigned(found["values"])
        text = [prose(found["about"]).rstrip(".") + "."]
        text += [f"By itself for {where}."] if where else []
        text += [f"It sets {sets}."] if sets else []
        for kind, key in (("envs", "env"), ("agents", "agent"), ("rewards", "reward")):
            for of, values in found[kind].items():
                text.append(f"With `{key}={of}`: {assigned(values)}.")
        parts += [f"## {name}", " ".join(text)]
    return "named settings, and where they apply by themselves", page("Presets", parts)


def trained_page(path: Path) -> tuple[str, str]:
    """The card of a trained agent, with a line about it."""
    scores = json.loads((path.parent / "result.json").read_text())
    card, ours = path.read_text(), scores["this run"]
    low, high = ours["task_return_interval"]
    words = card.partition("\n")[0].removeprefix("# ")
    # A mean can lie outside the interval of an IQM: each stands beside its own kind.
    line = f"{words}: task return, IQM {ours['task_return_iqm']:.2f} ({low:.2f} to {high:.2f})"
    clip = f"![Its play](../../pictures/trained/{path.parent.name}.gif)"
    title, _, rest = card.partition("\n")
    return f"{line}; a random policy's {scores['random']['task_return_iqm']:.2f}", f"{title}\n\n{clip}\n{rest}"


def trained_index(names: list[str]) -> str:
    """A card of each trained agent: its play, what it was trained on, how well it does, and the command."""
    cards = []
    for name in names:
        path = RESULTS.parent / "agents" / name
        scores = json.loads((path / "result.json").read_text())
        title = (path / "README.md").read_text().partition("\n")[0].removeprefix("# ")
        trained, random = (scores[policy]["task_return_iqm"] for policy in ("this run", "random"))
        lines = [
            "::::{container} example",
            f"**[{name}](trained/{name}.md)**",
            f"![Its play](../pictures/trained/{name}.gif)",
            f"{prose(title).strip()}. Task return {trained:,.1f}, random play {random:,.1f} (IQM).",
            f"```shell\nlodestar watch run=assets/agents/{name}\n```",
            "::::",
        ]
        cards.append("\n\n".join(lines))
    about = "A clone holds them in `assets/agents`. `ld.load` and `lodestar evaluate run=` take their folders, too."
    grid = [":::::::{container} showcase", *cards, ":::::::"]
    tree = "\n".join(["```{toctree}", ":hidden:", "", *(f"trained/{name}" for name in names), "```"])
    return page("Trained agents", [about, *grid, tree])


def results_page(path: Path) -> tuple[str, str]:
    """The figures of a file with the commands, the date and the versions that made them."""
    found = json.loads(path.read_text())
    commands = "\n".join(found["command"].replace("runners.bench", "benchmarks").split("; "))
    versions = ", ".join(f"{name} {number}" for name, number in found.get("versions", {}).items())
    rows = "\n".join(f"| `{key}` | {value:,g} |" for key, value in found["figures"].items())
    parts = [
        f"`assets/results/{path.name}`, recorded on {found['date']} on {found.get('machine', 'another machine')} by",
        f"```shell\n{commands}\n```",
        f"with {versions}." + (" One row a run is in the CSV beside it." if path.with_suffix(".csv").exists() else ""),
        f"| figure | value |\n|---|---|\n{rows}",
    ]
    return f"{len(found['figures'])} figures, {found['date']}", page(path.stem, parts)


def benchmark_page() -> str:
    """Our agents' returns beside published ones."""
    rows = ["| " + " | ".join(row) + " |" for row in (scores.HEADER, *scores.table())]
    rows.insert(1, "|---" * len(scores.HEADER) + "|")
    about = (
        "`lodestar list --scores` prints this table. A row with `-` has not run yet (`python -m benchmarks published`)."
    )
    protocol = [f"- {line}" for line in scores.PROTOCOL]
    return "\n".join(["# Beside published returns", "", about, "", *protocol, "", *rows, ""])


def effects_page() -> str:
    """Every system's claim, figures and verdict, a section for each verdict."""
    found = list(effects())
    rates = json.loads((RESULTS / "effects.json").read_text())["figures"]
    parts = [
        "What each system claims, and what was measured. The conditions of a verdict are written down before the first "
        "run. Values are interquartile means over seeds unless the study says otherwise, with intervals of 95 %. "
        "`python -m benchmarks NAME` runs a row again. Hours are those of one core.",
        "Two arms are compared by the interval of their difference. In a simulation with five or ten seeds this rule "
        f"calls {100 * rates['rule_false_positive']:.1f} % of the pairs without a difference different in one given "
        f"direction, and finds a difference of two deviations in {100 * rates['rule_power']:.0f} % of the cases with "
        "five seeds (`python -m benchmarks rule`). Fewer than five seeds show nothing. Where the rule was changed "
        "after the data were seen, the row counts as not shown until fresh seeds have been run.",
    ]
    for verdict in VERDICTS:
        rows = [effect for effect in found if effect.verdict.partition(" (")[0] == verdict]
        parts += [f"## {verdict.capitalize()}: {len(rows)} of {len(found)}", effects_table(rows)]
    return page("Effects", parts)


def effects_table(rows: list[Effect]) -> str:
    """A row for each system: its claim with what is behind it, and its figures."""
    lines = ["| claim | figures | seeds | hours |", "|---|---|---|---|"]
    for effect in rows:
        figures = []
        for key, value in effect.figures.items():
            figures.append(f"`{key}` {figure_text(value)}{effect.interval(key)}")
        about = [f"System: {effect.system}."]
        if effect.cause:
            about.append(f"Why: {effect.cause.strip()}")
        if effect.verdict.startswith("not shown (post hoc"):
            about.append(f"Post hoc: {effect.post_hoc.strip()}.")
        if effect.cost:
            about.append(f"It would cost: {effect.cost}.")
        else:
            about.append(f"Command: `python -m benchmarks {effect.name}`.")
        hours = f"{effect.hours:.1f}" if effect.hours else ""
        words = f"{effect.claim[:1].upper()}{effect.claim[1:]}."
        claim = "<br>".join([f"**{prose(words).strip()}**", *(prose(text).strip() for text in about)])
        lines.append(f"| {claim} | {'<br>'.join(figures)} | {effect.seeds or ''} | {hours} |")
    return "\n".join(lines)


def features_page() -> str:
    """What users of such libraries expect, whether it is there, and the command that shows it."""
    rows = read_rows(RESULTS / "features.csv")
    found = json.loads((RESULTS / "features.json").read_text())
    count = Counter(row["state"] for row in rows)
    version = found["versions"]["lodestar-rl"]
    current = sum(row["version"] == version for row in rows)
    commands = sum(bool(row["command"]) for row in rows)
    parts = [
        f"What users of such libraries expect, {len(rows)} features: {count['whole']} whole, "
        f"{count['partly']} in part, {count['not']} missing. The states are a judgement of ours. "
        "`python -m benchmarks features` runs each command, in this order and in one folder. Of "
        f"{commands} commands {current} ran with version {version}, the last of them on {found['date']}. "
        "`$LODESTAR_CLONE` is a clone of the repository.",
        "## What is not whole",
        "| | feature | state | why |\n|---|---|---|---|",
    ]
    parts[-1] += "".join(
        f"\n| {row['number']} | {prose(row['feature']).strip()} | {row['state']} | {prose(row['why']).strip()} |"
        for row in rows
        if row["state"] != "whole"
    )
    parts.append("## All of them")
    for row in rows:
        ran = f" (ran with {row['version']})" if row["version"] else ""
        parts.append(f"{row['number']}. {prose(row['feature']).strip()}: **{row['state']}**{ran}")
        if row["command"]:
            parts.append(f"```bash\n{row['command']}\n```")
    return page("Features", parts)


def options(config: type, prefix: str, hidden: Any = ()) -> str:
    """A table of a Config's fields."""
    needed = {f.name for f in dataclasses.fields(config) if f.default is MISSING and f.default_factory is MISSING}
    rows = ["| key | default | what it is | range |", "|---|---|---|---|"]
    for name, default, declared in settings_of(config):
        if name in hidden:
            continue
        key = f"{name.removesuffix(OPTIONS)}.<name>" if name.endswith(OPTIONS) else key_of(name)
        default = declared.otherwise if default is None else default
        shown = (
            ""
            if name in needed or isinstance(default, dict) or name == REST
            else f"`{argument_text(default) or EMPTY}`"
        )
        tried = f" (tuned over {argument_text(list(declared.tune))})" if declared.tune else ""
        left = "..." if name == REST else f"`{prefix}{key}`"
        cells = [left, shown, prose(declared.help), declared.range + tried]
        rows.append("| " + " | ".join(re.sub(r"(?<!\\)[|]", r"\|", cell.strip()) for cell in cells) + " |")
    return "\n".join(rows)


def assigned(values: dict[str, Any] | None) -> str:
    """Keys with their values, as on a command line."""
    return ", ".join(f"`{key}={argument_text(value)}`" for key, value in (values or {}).items())


def page(title: str, parts: list[str]) -> str:
    """A heading and paragraphs."""
    return "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts if part)]) + "\n"


def prose(text: str | None) -> str:
    """A docstring as Markdown: what is indented after an empty line is code, labels are bold, the rest is escaped."""
    lines: list[str] = [""]
    code = listed = False  # within a block of code; below a label that stands alone, where items are indented
    for line in (text or "").splitlines():
        words = line.strip()
        indented = line.startswith("    ") and not listed
        code = indented and (code or not lines[-1]) if words else code
        if label := LABEL.match(line):
            listed = label.end() == len(line)
            rest = line[label.end() :]
            lines += ["", f"**{label[1]}.** {_escaped(rest[:1].upper() + rest[1:])}".rstrip(), *([""] * listed)]
        elif code and words:
            lines.append(line)
        elif words.startswith("- ") or (listed and line.startswith("  ") and lines[-1][-1:] in ("", ";")):
            lines += [""] * bool(lines[-1] and lines[-1][:2] not in ("- ", "  ")) + [
                "- " + _escaped(words.removeprefix("- "))
            ]
        else:
            below = line.startswith("  ") and lines[-1].startswith(("- ", "  "))
            listed = listed and (below or not words)
            lines.append("  " * below + _escaped(words))
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Markdown's signs as themselves, but in what stands between backticks."""
    return "".join(part if i % 2 else SPECIAL.sub(r"\\\1", part) for i, part in enumerate(re.split(r"(`[^`]*`)", text)))


def as_rst(app: Any, what: str, name: str, obj: Any, config: Any, lines: list[str]) -> None:
    """Sphinx's event: a docstring's stars, bars and last underscores are meant as they stand."""
    for i, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        if not line.lstrip().startswith((">>>", "...", ":", "..")):
            lines[i] = "".join(p if j % 2 else re.sub(r"([*|]|_(?=\W|$))", r"\\\1", p) for j, p in enumerate(parts))


if __name__ == "__main__":
    write(Path(__file__).parent / "reference")
