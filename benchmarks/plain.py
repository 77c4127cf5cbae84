"""How plainly the product reads: tokens a statement, folded forms, names, circles, files on a learning loop, speed.

    python -m benchmarks plain          counts, and the speed of training beside release 0.4.0
    python -m benchmarks plain:counts   the counts alone
    python -m benchmarks plain-tests    seconds of `make test`, on a quiet machine and beside eight busy processes

Statements are counted rather than lines, so that a formatter changes no figure. The other libraries that these figures
were first compared with have 11.0 to 11.8 tokens a statement.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks import house

# Names of functions that end like a participle and are none.
NO_PARTICIPLES = {"seed", "reseed", "feed", "embed", "need", "speed", "bed", "shed", "proceed", "exceed", "succeed"}
IRREGULAR_PARTICIPLES = {
    *("given", "known", "taken", "drawn", "shown", "written", "spoken", "chosen", "kept", "told", "found", "made"),
    *("left", "sent", "held", "met", "said", "seen", "meant", "learnt", "spent", "built"),
}
# Python's tokens that are layout: they cost no reading.
LAYOUT = {
    *(tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER),
}
NESTING = (
    *(ast.Call, ast.Subscript, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.JoinedStr),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Dict, ast.List, ast.Tuple, ast.Set),
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEEP_NESTING = 7
PPO_CORE = ("agent", "update", "collector", "config")


def run(folder: Path, parts: Sequence[str] = ("counts", "speed")) -> dict[str, float]:
    """All figures of the code, and the ratios of speed; a row for every pair of runs goes to plain.csv."""
    from benchmarks.speed import loop_files

    figures: dict[str, float] = {**measure(), **loop_files.measure()}
    if "speed" in parts:
        figures |= house.speed(folder / "plain.csv")
    return figures


def measure() -> dict[str, float]:
    """Counts over all five packages."""
    paths = source_files()
    figures = density(paths)
    figures["constants_in_3_files"] = sum(len(files) >= 3 for files in constants(paths).values())
    figures["participles"] = len(participles(paths))
    figures["folder_circles"] = len(house.folder_circles())
    core = [house.ROOT / "agents" / "ppo" / f"{name}.py" for name in PPO_CORE]
    figures["ppo_core_tokens"] = density(core)["tokens"]
    return figures


def source_files() -> list[Path]:
    """Every Python file of the product."""
    return [path for package in house.PACKAGES for path in sorted((house.ROOT / package).rglob("*.py"))]


def density(paths: list[Path]) -> dict[str, float]:
    """Tokens, tokens a statement, and what stands per 100 statements: folded forms, deep nesting, comments."""
    counts: Counter[str] = Counter()
    for path in paths:
        source = path.read_text()
        tree = ast.parse(source)
        counts.update(_count_nodes(tree))
        counts.update(_count_tokens(source, _docstring_lines(tree)))
    statements = counts["statements"]
    figures: dict[str, float] = {"tokens": counts["tokens"], "tokens_a_statement": counts["tokens"] / statements}
    for name in ("tuple", "ternary", "comprehension", "deep", "own_comments"):
        figures[f"{name}_100"] = 100 * counts[name] / statements
    return figures


def constants(paths: list[Path]) -> dict[str, set[Path]]:
    """Capital name -> the files that define it at their top level."""
    files: dict[str, set[Path]] = defaultdict(set)
    for path in paths:
        for statement in house.parse(path).body:
            if not isinstance(statement, ast.Assign):
                continue
            for target in ast.walk(ast.Tuple(statement.targets)):
                if isinstance(target, ast.Name) and target.id.isupper() and len(target.id) > 1:
                    files[target.id].add(path)
    return files


def participles(paths: list[Path]) -> list[str]:
    """Functions whose whole name is a participle, which says neither what is done nor what is returned."""
    found = []
    for path in paths:
        for node in house.nodes(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            name = node.name.strip("_")
            if (re.fullmatch("[a-z]+ed", name) and name not in NO_PARTICIPLES) or name in IRREGULAR_PARTICIPLES:
                found.append(f"{path.relative_to(house.ROOT)}:{node.lineno} {node.name}")
    return found


def _count_nodes(tree: ast.Module) -> Counter[str]:
    counts: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            counts["ternary"] += 1
        elif isinstance(node, COMPREHENSIONS):
            counts["comprehension"] += 1
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            counts["tuple"] += any(isinstance(target, ast.Tuple) for target in node.targets)
        if not isinstance(node, ast.stmt):
            continue
        # A string on its own is a docstring.
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            counts["statements"] += 1
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
            counts["deep"] += max(map(_nesting, parts), default=0) >= DEEP_NESTING
    return counts


def _nesting(node: ast.AST) -> int:
    """How deep calls, subscripts, operators, conditionals and collections stand inside each other."""
    inside = max(map(_nesting, ast.iter_child_nodes(node)), default=0)
    return inside + isinstance(node, NESTING)


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines |= {*range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)}
    return lines


def _count_tokens(source: str, docstrings: set[int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            counts["own_comments"] += token.line.strip().startswith("#")
        elif token.type not in LAYOUT and token.start[0] not in docstrings:
            counts["tokens"] += 1
    return counts
