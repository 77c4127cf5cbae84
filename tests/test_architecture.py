"""The house rules that no linter knows: who may import whom, how long a file may be, that everything has a test."""

import ast
import functools
import re
import subprocess
import sys
import tokenize

import pytest

import agents
import rewards
from benchmarks import plain
from benchmarks.house import PACKAGES, ROOT, circles, folder_circles, imports, nodes, parse

# A part may import itself and what stands behind it here; the longest prefix of a module's name decides.
ARROWS = {
    "lodestar": {"lodestar"},
    "envs": {"envs", "lodestar"},
    "rewards": {"rewards", "envs", "lodestar"},
    "agents": {"agents", "envs", "lodestar"},
    "runners": {*PACKAGES},
}
# The front door reaches everything when it is called, and no part of the product goes through it.
FRONT_DOOR = {"lodestar", "lodestar.__main__"}
# Parts that others may not enter: the key is imported only by itself and by these.
ENTERED_BY = {
    "runners": {"runners", "lodestar"},
    "agents.ppo": {"runners", "agents.ppo"},
    "agents.dyna": {"runners", "agents.dyna"},
    "agents.world_model": {"runners", "agents.world_model"},
    "rewards.adapters": {"lodestar", "runners", "rewards.adapters", "rewards.check", "agents.sb3"},
}
NOT_IN_THE_WHEEL = {"benchmarks", "tests", "assets"}
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def source(path):
    return path.read_text()


def within(name, parts):
    return any(name == part or name.startswith(part + ".") for part in parts)


def test_imports_follow_the_arrows():
    wrong = []
    for path in FILES:
        name = module(path)
        allowed = set(PACKAGES) if name in FRONT_DOOR else ARROWS[name.split(".")[0]]
        for line, target in imports(path):
            top = target.split(".")[0]
            if target == "lodestar" and name not in FRONT_DOOR:
                wrong.append(f"{path}:{line} goes through the front door; import the module itself")
            if top in NOT_IN_THE_WHEEL or (top in ARROWS and top not in allowed):
                wrong.append(f"{path}:{line} imports {target}")
            for part, users in ENTERED_BY.items():
                if within(target, [part]) and not within(name, users):
                    wrong.append(f"{path}:{line} imports {target}, which only {', '.join(sorted(users))} may")
    assert wrong == []


def test_the_command_lines_parser_stays_in_runners():
    for path in FILES:
        for line, target in imports(path):
            assert path.is_relative_to(ROOT / "runners") or target.split(".")[0] not in ("hydra", "omegaconf"), (
                f"{path}:{line} imports {target} outside runners"
            )


def test_no_file_and_no_folder_imports_in_a_circle():
    assert circles() == [] and folder_circles() == []


def test_a_capital_name_has_one_meaning():
    files_of = plain.constants(FILES)
    assert {name: files for name, files in files_of.items() if len(files) > 2} == {}


def test_no_import_is_relative():
    assert [str(path) for path in FILES if re.search(r"^\s*from \.", source(path), re.MULTILINE)] == []


@functools.cache
def count_tokens(path):
    """Python's tokens, without comments, docstrings and layout; a formatter changes nothing about them."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
    docstrings = {
        node.body[0].lineno
        for node in nodes(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None
    }
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    counted = [token for token in tokens if token.type not in layout]
    return sum(token.type != tokenize.STRING or token.start[0] not in docstrings for token in counted)


def may_have_tokens(path):
    """A number that is never below `count_tokens`, and is there at once: words and signs, comments among them."""
    # Two tokens share a match only where a number touches a word, which the formatter forbids. The end is a token, too.
    return len(re.findall(r"\w+|[^\w\s]", source(path))) + 1


def test_a_file_has_at_most_6000_tokens_and_a_folder_20_files():
    large = [path for path in FILES if may_have_tokens(path) > 6000]
    assert {str(path): n for path in large if (n := count_tokens(path)) > 6000} == {}
    assert all(may_have_tokens(path) >= count_tokens(path) for path in large)
    folders = {path.parent for path in FILES}
    assert {str(folder): n for folder in folders if (n := len([*folder.glob("*.py")])) > 20 + 1} == {}


def test_a_thing_lives_with_its_owner():
    homeless = {"utils", "util", "common", "core", "helpers", "misc"}
    assert [str(path) for path in FILES if homeless & {*path.relative_to(ROOT).with_suffix("").parts}] == []


def test_one_class_name_has_one_meaning():
    owners: dict[str, list[str]] = {}
    for path in FILES:
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(module(path))
    assert {name: files for name, files in owners.items() if len(files) > 1} == {}


def own_names(path):
    """Names that a file gives: variables, arguments, fields, functions."""
    for node in nodes(path):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def test_an_episode_is_terminated_or_truncated_and_a_weight_is_no_coef():
    for path in FILES:
        if "sb3" in str(path.relative_to(ROOT)) or path.name == "steps.py":  # where SB3's words are spoken
            continue
        for line, name in own_names(path):
            assert name != "done", f"{path}:{line} says 'done'; say terminated or truncated"
            assert "coef" not in name.split("_"), f"{path}:{line} says {name!r}; `weight` multiplies, `scale` divides"


@pytest.mark.parametrize(
    ("package", "table"), [("rewards", rewards.TABLE), ("agents", agents.TABLE)], ids=["rewards", "agents"]
)
def test_everything_in_a_table_exists_and_has_a_test_file(package, table):
    tests = {path.stem for path in (ROOT / "tests" / f"test_{package}").rglob("test_*.py")}
    for name, target in table.items():
        place, _, attribute = target.partition(":")
        path = ROOT / (place.replace(".", "/") + ".py")
        classes = [node.name for node in parse(path).body if isinstance(node, ast.ClassDef)]
        assert attribute in classes, f"{name} -> {target}: {path} has no class {attribute}"
        stem = path.parent.name if path.stem == "agent" else path.stem
        assert any(test.startswith(f"test_{stem}") for test in tests), f"{name} has no test file"


def test_a_reward_is_named_as_its_file():
    assert {target.partition(":")[0].rpartition(".")[2] for target in rewards.TABLE.values()} == set(rewards.TABLE)


def test_tables_are_read_without_torch():
    heavy = ("torch", "stable_baselines3", "open_clip", "matplotlib", "minigrid", "nle", "highway_env", "hydra")
    script = (
        "import sys, envs, envs.make, envs.transitions, rewards, rewards.base, agents\n"
        "agents.names(), rewards.names()\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert answer.stdout.strip() == "[]", answer.stdout + answer.stderr
