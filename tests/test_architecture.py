"""The house rules that no linter knows: who may import whom, how long a file may be, that everything has a test."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import agents
import rewards

ROOT = Path(__file__).resolve().parent.parent
OURS = {"envs", "rewards", "agents", "runners"}
NOT_IN_THE_WHEEL = {"benchmarks", "tests", "assets"}
ARROWS = {
    "envs": {"envs"},
    "rewards": {"rewards", "envs"},
    "agents": {"agents", "envs"},
    "runners": OURS,
}
FILES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]


def imports(path):
    """(line, module) of every import in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write the absolute name"
            yield node.lineno, node.module


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_follow_the_arrows_and_hydra_stays_in_runners(path):
    package = path.relative_to(ROOT).parts[0]
    for line, module in imports(path):
        top = module.split(".")[0]
        assert top not in OURS or top in ARROWS[package], f"{path}:{line} imports {module}; {package} may not"
        assert top not in NOT_IN_THE_WHEEL, f"{path}:{line} imports {module}, which the wheel does not hold"
        assert package == "runners" or top not in ("hydra", "omegaconf"), (
            f"{path}:{line} imports {module} outside runners"
        )


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_file_is_longer_than_600_lines(path):
    assert len(path.read_text().splitlines()) <= 600


def test_a_thing_lives_with_its_owner():
    homeless = {"utils", "util", "common", "core", "helpers", "misc"}
    assert [name for name in NAMES if homeless & set(Path(name).with_suffix("").parts)] == []


def own_names(path):
    """Names that a file gives: variables, arguments, fields, functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name


# Stable-Baselines3's own words are spoken where it is spoken to.
@pytest.mark.parametrize(
    "path",
    [p for p in FILES if "sb3" not in p.name and p.name != "transitions.py"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_an_episode_is_terminated_or_truncated_and_a_weight_is_no_coef(path):
    for line, name in own_names(path):
        assert name != "done", f"{path}:{line} says 'done'; say terminated or truncated"
        assert "coef" not in name.split("_"), f"{path}:{line} says {name!r}; `weight` multiplies, `scale` divides"


@pytest.mark.parametrize(
    ("package", "table"), [("rewards", rewards.TABLE), ("agents", agents.TABLE)], ids=["rewards", "agents"]
)
def test_everything_in_a_table_exists_and_has_a_test_file(package, table):
    for name, target in table.items():
        module, _, attribute = target.partition(":")
        path = ROOT / (module.replace(".", "/") + ".py")
        classes = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        assert attribute in classes, f"{name} -> {target}: {path} has no class {attribute}"
        assert list((ROOT / "tests" / f"test_{package}").glob(f"test_{path.stem}*.py")), f"{name} has no test file"


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
