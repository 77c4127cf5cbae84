"""How many small faults in agents, envs and rewards do the fast tests notice? 200 seeded mutations of functions.

    python -m benchmarks mutants                those of the seed that tests were written for
    MUTANTS_SEED=7 python -m benchmarks mutants those of another, MUTANTS_COUNT= of them

A mutant is one change of one line: a comparison, an operator, a number, a name with an opposite, a negated condition, a
statement left out. The lines are drawn evenly; a line that stays as it is keeps its mutant whatever changes elsewhere.
Each mutant meets the tests that run its line, those that run the fewest others first, for 20 s of a processor; it is
killed if one fails or hangs that passes without it. Defaults of configurations, messages and `__repr__` are left alone.
mutants.csv has a row each and is continued; survivors are asked again, but not with MUTANTS_KNOWN=1. `EQUIVALENT` lists
the mutants that change nothing observable: they are not counted.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import results

if TYPE_CHECKING:
    from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agents", "envs", "lodestar", "rewards")
SEED, COUNT, SECONDS, TESTS = 18, 200, 20.0, 150
LIMIT = 240.0  # seconds of the clock, for tests that took SECONDS of a processor
HANGS = 99  # no exit code of pytest
SLOW = (
    "torch",
    "gymnasium",
    "stable_baselines3",
    "sb3_contrib",
    "open_clip",
    "scipy.stats",
    "pandas",
    "minigrid",
)  # to import
HEADER = ("seed", "file", "function", "line", "before", "after", "tests", "verdict", "by")
EQUIVALENT: dict[tuple[str, str, str], str] = {  # (file, before, after) of a line -> why it makes no difference
    (
        "rewards/language/captioned.py",
        "return reward.astype(np.float32, copy=False), known.reshape(batch.shape), memory",
        "return reward.astype(np.float32, copy=True), known.reshape(batch.shape), memory",
    ): "the product is an array of its own already",
    (
        "agents/off_policy/sac.py",
        "seed=seed + 1,",
        "seed=seed - 1,",
    ): "another seed of the first weights",
    (
        "agents/dynamics/sindy.py",
        "return torch.where(std > 1e-8 * (1 + values.abs().amax(0)), std, 1.0)",
        "return torch.where(std > 1e-8 * (2 + values.abs().amax(0)), std, 1.0)",
    ): "another threshold within rounding",
    (
        "rewards/language/teacher.py",
        "rng = np.random.default_rng([self.seed, int(level.key, 16)])",
        "rng = np.random.default_rng([self.seed, int(level.key, 17)])",
    ): "another seed of the mistakes",
    ("agents/sqirl.py", "return len(self.tables[0])", "return len(self.tables[1])"): "all tables have as many rows",
    (
        "agents/world_model/td3.py",
        "return F.one_hot(values.argmax(-1), self.action_size).to(values.dtype)",
        "return F.one_hot(values.argmax(1), self.action_size).to(values.dtype)",
    ): "values are (B, A), whose last axis is the second",
    (
        "agents/dynamics/sindy.py",
        "return torch.cat([here, action, there], -1)",
        "return torch.cat([here, action, there], 1)",
    ): "they are (B, D), whose last axis is the second",
    (
        "agents/dynamics/sindy.py",
        "system = gram * m[:, :, None] * m[:, None, :] + torch.diag_embed(1 - m + alpha * m)",
        "system = gram * m[:, :, None] * m[:, None, :] + torch.diag_embed(1 - m + alpha / m)",
    ): "m is 0 or 1, and the row of a column left out solves to 0 with 1 and with infinity on the diagonal",
    (
        "rewards/exploration/hindsight.py",
        "self.rows = torch.zeros(capacity, size)",
        "self.rows = torch.ones(capacity, size)",
    ): "only rows that were filled are read",
    (
        "rewards/adapters/sb3.py",
        "self.steps = np.zeros(shape, np.int64)",
        "self.steps = np.ones(shape, np.int64)",
    ): "a row is written before it is read",
    (
        "rewards/adapters/sb3.py",
        "targets = torch.as_tensor(returns.reshape(-1, 1), dtype=torch.float32, device=features.device)",
        "targets = torch.as_tensor(returns.reshape(-2, 1), dtype=torch.float32, device=features.device)",
    ): "NumPy takes any negative number for the unknown size",
    (
        "rewards/adapters/sb3.py",
        "self.rng = np.random.default_rng(0)",
        "self.rng = np.random.default_rng(1)",
    ): "another order of the minibatches",
    (
        "rewards/__init__.py",
        "near = difflib.get_close_matches(str(name), names(), n=1)",
        "near = difflib.get_close_matches(str(name), names(), n=2)",
    ): "only the nearest is read",
    (
        "envs/batched/highway/env.py",
        "near &= np.abs(sideways) <= sideways_reach + 1e-6",
        "pass",
    ): "it only spares work: what is left out does not touch",
    (
        "envs/vector/workers.py",
        "self._generations = [0] * self.processes",
        "self._generations = [1] * self.processes",
    ): "another seed of the first episode after a loss",
    (
        "rewards/language/subgoals.py",
        '"index": np.zeros(n, np.int64),',
        '"index": np.ones(n, np.int64),',
    ): "the plan is zeros until `begin` writes it and the index together, so every row of it is no subgoal",
    (
        "agents/dynamics/rollout.py",
        "elif self._grad:",
        "elif not (self._grad):",
    ): "values stacked at the end or written in place are the same, and so are their gradients; it costs memory",
    (
        "rewards/llm/judges/base.py",
        "value = np.where(np.isnan(one) | np.isnan(two), np.nan, (1 + np.sign(two - one)) / 2)",
        "value = np.where(np.isnan(one) & np.isnan(two), np.nan, (1 + np.sign(two - one)) / 2)",
    ): "the difference to NaN is NaN already",
    (
        "rewards/language/teacher.py",
        "queue = deque([(level.x, level.y)] if 0 <= level.x < width and 0 <= level.y < height else [])",
        "queue = deque([(level.x, level.y)] if 0 <= level.x < width or 0 <= level.y < height else [])",
    ): "the loop drops a cell outside the grid",
    (
        "agents/ppo/agent.py",
        "self.last_values = np.zeros((length, n, streams), np.float32)",
        "self.last_values = np.ones((length, n, streams), np.float32)",
    ): "an entry is read where an episode was truncated, and there it was written",
    (
        "rewards/exploration/memories.py",
        "begins = np.zeros_like(ended)",
        "begins = np.ones_like(ended)",
    ): "all but the first row are written, and before the first row there was no write to count from",
    (
        "agents/offline/plan.py",
        "rows = np.random.default_rng(0).choice(count, min(count, REGIONS), replace=False)",
        "rows = np.random.default_rng(1).choice(count, min(count, REGIONS), replace=False)",
    ): "another sample of the regions",
    (
        "agents/networks/actor_critic.py",
        "return torch.stack([part.argmax(-1) for part in logits], -1)",
        "return torch.stack([part.argmax(1) for part in logits], -1)",
    ): "logits are (B, choices), whose last axis is the second",
    (
        "rewards/exploration/compiled/kernel.py",
        "if at < 0:",
        "if at < 1:",
    ): "no layer's answers begin at row 0, where the columns are",
    (
        "agents/off_policy/kernel.py",
        "backward(actor[0], actor[1], zero, policy, flat_x, scratch, wide, size, np.int64(-1))",
        "backward(actor[0], actor[1], zero, policy, flat_x, scratch, wide, size, np.int64(1))",
    ): "the slope in the inputs is computed, too, and not read",
    (
        "envs/crafter/family.py",
        "self.game = _make_game()(area=(area, area), length=None, seed=0)",
        "self.game = _make_game()(area=(area, area), length=None, seed=1)",
    ): "every reset gives the game a seed before it plays",
    (
        "rewards/preference/human.py",
        "numbers = [np.asarray(part, float).reshape(*segments.shape, -1) for part in parts]",
        "numbers = [np.asarray(part, float).reshape(*segments.shape, -2) for part in parts]",
    ): "NumPy takes any negative number for the unknown size",
    (
        "envs/driving/family.py",
        "if lane.length > 1000:",
        "if lane.length >= 1000:",
    ): "no lane has that length",
    (
        "agents/ppo/seams.py",
        'if target_kl and np.mean([metrics["approx_kl"] for metrics in measured]) > target_kl:',
        'if target_kl and np.mean([metrics["approx_kl"] for metrics in measured]) >= target_kl:',
    ): "a measured divergence is not equal to its target to the last digit",
    (
        "envs/batched/mujoco.py",
        "contact = world._contact_cost_weight * xp.square(forces).sum(-1)",
        "contact = world._contact_cost_weight * xp.square(forces).sum(1)",
    ): "forces are (N, D), whose last axis is the second",
    (
        "rewards/demonstrations/success.py",
        "return (logits >= self.bar).astype(np.float32)",
        "return (logits > self.bar).astype(np.float32)",
    ): "log-odds are not equal to the bar to the last digit",
    (
        "rewards/design/table.py",
        "self.scale = np.where(deviation > 1e-6, deviation, 1.0)",
        "self.scale = np.where(deviation >= 1e-6, deviation, 1.0)",
    ): "another threshold within rounding",
}
OPERATORS: dict[type, tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
PAIRS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("argmin", "argmax"),
    ("amin", "amax"),
    ("any", "all"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("mean", "sum"),
    ("mean", "median"),
    ("exp", "expm1"),
    ("log", "log1p"),
    ("sin", "cos"),
    ("floor", "ceil"),
)
NAMES = {**{a: b for a, b in reversed(PAIRS)}, **{b: a for a, b in PAIRS}}
LEFT_ALONE = (ast.Raise, ast.Assert, ast.JoinedStr, ast.AnnAssign)


Row = dict[str, Any]
Covering = dict[tuple[str, int], list[tuple[str, float]]]  # (file, line) -> tests that run it, and their seconds


@dataclass(frozen=True)
class Mutant:
    """Bytes `begin` to `end` of a line become `text`."""

    file: str
    function: str
    line: int
    source: str  # the line
    begin: int
    end: int
    text: str

    @property
    def changed(self) -> str:
        """The line afterwards."""
        raw = self.source.encode()
        return (raw[: self.begin] + self.text.encode() + raw[self.end :]).decode()


def run(folder: Path) -> dict[str, float]:
    """Share of the mutants that are killed, of all and by package."""
    seed, path = int(os.environ.get("MUTANTS_SEED", SEED)), folder / "mutants.csv"
    rows = {(row["seed"], _key(row)): row for row in results.read_rows(path)}
    drawn = sample(ROOT, seed)[: int(os.environ.get("MUTANTS_COUNT", COUNT))]
    again = not os.environ.get("MUTANTS_KNOWN")
    asked = {_key(row): row for row in rows.values() if row["verdict"] == "killed" or not again}
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), scratch], check=True)
        covering: Covering = {}
        for number, mutant in enumerate(drawn):
            row = _row(seed, mutant)
            because = EQUIVALENT.get((row["file"], row["before"], row["after"]))
            if because:
                row |= {"verdict": "equivalent", "by": because}
            elif _key(row) in asked:
                row |= {key: asked[_key(row)][key] for key in ("tests", "verdict", "by")}
            else:
                covering = covering or coverage(Path(scratch))
                row |= zip(("tests", "verdict", "by"), judge(mutant, covering, Path(scratch)))
                results.append_rows(path, [row])
            rows[str(seed), _key(row)] = row
            print(f"{number + 1:>4}  {row['verdict']:<9} {mutant.file}:{mutant.line}  {row['after']}", flush=True)
    now = {_key(_row(seed, mutant)) for mutant in drawn}
    path.unlink(missing_ok=True)
    results.append_rows(path, [row for (of, key), row in rows.items() if of != str(seed) or key in now])
    return shares([row for (of, key), row in rows.items() if of == str(seed) and key in now], seed)


def shares(rows: list[Row], seed: int) -> dict[str, float]:
    """Killed of all that are not equivalent."""
    suffix = "" if seed == SEED else "_fresh"
    counted = [row for row in rows if row["verdict"] != "equivalent"]
    figures = {f"mutants_killed_share{suffix}": _killed(counted), f"mutants_tried{suffix}": float(len(counted))}
    for package in PACKAGES:
        mine = [row for row in counted if row["file"].startswith(f"{package}/")]
        figures[f"mutants_killed_share_{package}{suffix}"] = _killed(mine)
    return figures


def _killed(rows: list[Row]) -> float:
    return sum(row["verdict"] == "killed" for row in rows) / max(len(rows), 1)


def _key(row: Row) -> str:
    return " ".join((row["file"], row["function"], row["before"], row["after"]))


def _row(seed: int, mutant: Mutant) -> Row:
    values = (seed, mutant.file, mutant.function, mutant.line, mutant.source.strip(), mutant.changed.strip(), 0, "", "")
    return dict(zip(HEADER, values))


def sample(root: Path, seed: int) -> list[Mutant]:
    """One mutant of each of COUNT lines; which ones depends on the seed and on the lines themselves alone."""
    lines: dict[tuple, list[Mutant]] = defaultdict(list)
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            seen: dict[tuple, int] = defaultdict(int)
            numbers: dict[int, tuple] = {}
            for mutant in mutants(file.relative_to(root).as_posix(), file.read_text()):
                if mutant.line not in numbers:
                    name = (mutant.file, mutant.function, mutant.source.strip())
                    seen[name] += 1
                    numbers[mutant.line] = (*name, seen[name])
                lines[numbers[mutant.line]].append(mutant)

    def rank(*words: object) -> str:
        return hashlib.sha256(repr((seed, *words)).encode()).hexdigest()

    chosen = sorted(lines, key=lambda name: rank(*name))[:COUNT]
    ordered = (sorted(lines[name], key=lambda m: rank(m.changed.strip())) for name in chosen)
    return [next(m for m in each if _parses(root, m)) for each in ordered]


def _parses(root: Path, mutant: Mutant) -> bool:
    text = (root / mutant.file).read_text().splitlines()
    text[mutant.line - 1] = mutant.changed
    try:
        return bool(ast.parse("\n".join(text)))
    except SyntaxError:
        return False


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every mutant of the functions of a file."""
    text = source.splitlines()

    def at(function: str, line: int, begin: int, end: int, new: str) -> Iterator[Mutant]:
        yield Mutant(file, function, line, text[line - 1], begin, end, new)

    def operator(function: str, before: ast.expr, after: ast.expr, kind: ast.AST) -> Iterator[Mutant]:
        if before.end_lineno == after.lineno and type(kind) in OPERATORS:
            old, new = OPERATORS[type(kind)]
            assert before.end_lineno is not None and before.end_col_offset is not None
            between = text[after.lineno - 1].encode()[before.end_col_offset : after.col_offset].decode()
            if old in between:
                begin = before.end_col_offset + between.index(old)
                yield from at(function, after.lineno, begin, begin + len(old), new)

    def visit(node: ast.AST, function: str) -> Iterator[Mutant]:
        if isinstance(node, LEFT_ALONE) or function.endswith("__repr__"):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{function}.{node.name}".lstrip(".")
            inside = [*node.args.defaults] if isinstance(node, ast.FunctionDef) else []
            for child in [*inside, *node.body]:
                if isinstance(node, ast.FunctionDef) or isinstance(child, ast.FunctionDef):
                    yield from visit(child, name)
            return
        one_line = getattr(node, "lineno", 0) == getattr(node, "end_lineno", -1)
        if isinstance(node, ast.Compare):
            for before, after, kind in zip([node.left, *node.comparators], node.comparators, node.ops):
                yield from operator(function, before, after, kind)
        elif isinstance(node, ast.BinOp):
            yield from operator(function, node.left, node.right, node.op)
        elif isinstance(node, ast.BoolOp):
            for before, after in zip(node.values, node.values[1:]):
                yield from operator(function, before, after, node.op)
        elif isinstance(node, ast.UnaryOp) and one_line:
            yield from at(function, node.lineno, node.col_offset, node.operand.col_offset, "")
        elif isinstance(node, ast.Constant) and one_line and isinstance(node.value, bool | int | float):
            value = node.value
            if isinstance(value, bool) or abs(value) > 1e-5 or value == 0:
                new = str(not value) if isinstance(value, bool) else repr(value + 1)
                assert node.end_col_offset is not None
                yield from at(function, node.lineno, node.col_offset, node.end_col_offset, new)
        elif isinstance(node, ast.Attribute) and one_line and node.attr in NAMES:
            assert node.end_col_offset is not None
            begin = node.end_col_offset - len(node.attr)
            yield from at(function, node.lineno, begin, node.end_col_offset, NAMES[node.attr])
        elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
            yield from at(function, node.lineno, node.col_offset, node.col_offset + len(node.id), NAMES[node.id])
        elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
            old, new = (f"{sign}=" for sign in OPERATORS[type(node.op)])
            rest = text[node.lineno - 1].encode()
            if old.encode() in rest:
                begin = rest.index(old.encode(), node.target.end_col_offset or 0)
                yield from at(function, node.lineno, begin, begin + len(old), new)
        if one_line and _can_go(node) and not function.endswith("__init__"):
            assert isinstance(node, ast.stmt) and node.end_col_offset is not None
            yield from at(function, node.lineno, node.col_offset, node.end_col_offset, "pass")
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "detach"
            and one_line
        ):
            assert node.end_col_offset is not None and node.func.value.end_col_offset is not None
            yield from at(function, node.lineno, node.func.value.end_col_offset, node.end_col_offset, "")
        if isinstance(node, ast.If) and node.test.lineno == node.test.end_lineno and not _only_types(node):
            raw = text[node.test.lineno - 1].encode()
            test = raw[node.test.col_offset : node.test.end_col_offset].decode()
            assert node.test.end_col_offset is not None
            yield from at(function, node.test.lineno, node.test.col_offset, node.test.end_col_offset, f"not ({test})")
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.arguments):
                yield from visit(child, function)

    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from visit(node, "")


def _can_go(node: ast.AST) -> bool:
    """Statements whose effect can be left out: calls, additions, assignments to parts and attributes."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    targets = node.targets if isinstance(node, ast.Assign) else []
    return isinstance(node, ast.AugAssign) or any(isinstance(x, ast.Subscript | ast.Attribute) for x in targets)


def _only_types(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.dump(node.test)


def coverage(root: Path, kept: Path = ROOT / "build" / "mutants") -> Covering:
    """Which tests run each line, those that run the fewest lines first.

    Test files that changed since the last call, or ran a file that did, are measured, all of them the first time: for
    ten minutes. Lines that have moved would give a mutant tests that do not run it.
    """
    from coverage import CoverageData

    kept.mkdir(parents=True, exist_ok=True)
    listing, data = kept / "tests.json", CoverageData(str(kept / "coverage"))
    known = json.loads(listing.read_text()) if listing.exists() else {}
    files = sorted(path.relative_to(root).as_posix() for path in root.glob("tests/**/test_*.py"))
    sources = [path.relative_to(root).as_posix() for package in PACKAGES for path in (root / package).rglob("*.py")]
    now = {file: hashlib.sha256((root / file).read_bytes()).hexdigest() for file in [*files, *sources]}
    held = {file: {file: known[file]["is"], **known[file].get("ran", {})} for file in files if file in known}
    changed = [file for file in files if any(now.get(name) != was for name, was in held.get(file, {"": ""}).items())]
    data.read()
    if changed:
        seconds = _measure(root, changed)
        new = CoverageData(str(root / ".coverage"))
        new.read()
        data.update(new)
        ran: dict[str, dict[str, str]] = defaultdict(dict)
        for name in new.measured_files() & now.keys():
            for contexts in new.contexts_by_lineno(name).values():
                for context in contexts:
                    ran[context.partition("::")[0]][name] = now[name]
        for file in changed:
            mine = {test: spent for test, spent in seconds.items() if test.startswith(f"{file}::")}
            known[file] = {"is": now[file], "ran": ran[file], "seconds": mine}
        listing.write_text(json.dumps({file: known[file] for file in files}))
    return _by_line(data, {test: spent for file in files for test, spent in known[file]["seconds"].items()})


def _measure(root: Path, files: list[str]) -> dict[str, float]:
    """Run test files; the seconds of each test that passes, of a processor rather than of the clock."""
    (root / "build").mkdir(exist_ok=True)
    (root / "build" / "coveragerc").write_text("[run]\nrelative_files = true\n")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--cov-context=test", "--cov-report="]
    command += ["--cov-config=build/coveragerc", "--junitxml=build/times.xml", "-p", "no:cacheprovider"]
    command += [*(f"--cov={package}" for package in PACKAGES), *files]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=root, env=_environment(root), capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the tests cannot be run: {done.stdout[-1000:]}")
    seconds = {}
    for case in ElementTree.parse(root / "build" / "times.xml").iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        if case.find("failure") is None and case.find("error") is None:
            seconds[name] = float(case.get("time", 0))
        else:
            print(f"{name} fails without a mutant too, and is left out", flush=True)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    busy = min(spent / max(sum(seconds.values()), 1e-9), 1.0)  # less than 1 where other programs run, too
    return {name: busy * clock for name, clock in seconds.items()}


def _by_line(data: CoverageData, seconds: dict[str, float]) -> Covering:
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    width: dict[str, int] = defaultdict(int)
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            found[file, line] = {context.partition("|")[0] for context in contexts} & seconds.keys()
            for test in found[file, line]:
                width[test] += 1
    return {
        place: [(test, seconds[test]) for test in sorted(tests, key=lambda test: width[test])]
        for place, tests in found.items()
    }


def tests_of(place: tuple[str, int], covering: Covering) -> list[str]:
    """Those that run the line; if another process or an import runs it, those that run most of its file and folder."""
    found = covering.get(place, [])
    if not found:
        ran: dict[tuple[str, float], list[int]] = defaultdict(lambda: [0, 0])
        for (file, _), tests in covering.items():
            if Path(file).parent == Path(place[0]).parent:
                for test in tests:
                    ran[test][0] += file == place[0]
                    ran[test][1] += 1
        found = sorted(ran, key=lambda test: ran[test], reverse=True)
    chosen: list[str] = []
    total = 0.0
    for name, seconds in found:
        if len(chosen) < TESTS and total + seconds <= SECONDS:
            chosen.append(name)
            total += seconds
    return chosen


def judge(mutant: Mutant, covering: Covering, root: Path) -> tuple[int, str, str]:
    """How many tests it met, the verdict, and the test that killed it."""
    tests = tests_of((mutant.file, mutant.line), covering)
    count = len(tests)
    path = root / mutant.file
    source = path.read_text()
    text = source.splitlines(keepends=True)
    text[mutant.line - 1] = mutant.changed + "\n"
    while tests:
        try:
            path.write_text("".join(text))
            code, by = _meet(tests, root, LIMIT)
        finally:
            path.write_text(source)
        if code == 0:
            return count, "survived", ""
        named = by in tests
        # What also fails, or is as slow, without the mutant says nothing.
        if _passes((by,) if named else tuple(tests), root):
            return count, "killed", by
        tests = [test for test in tests if test != by] if named else []
    return count, "survived", "no test that passes without it" if count else "no test runs this line"


@functools.cache
def _passes(tests: tuple[str, ...], root: Path) -> bool:
    """Whether they pass without a mutant, in a third of the time that they have with one."""
    return _meet(tests, root, LIMIT / 3)[0] == 0


def _meet(tests: Sequence[str], root: Path, limit: float) -> tuple[int, str]:
    """The exit code of the tests and the first that failed, or why none did."""
    with tempfile.NamedTemporaryFile("w+") as out:
        code = _server(root).ask([limit, out.name, "-x", "-p", "no:cacheprovider", "-p", "pytest_timeout", *tests])
        lines = [line.split(" - ")[0] for line in out if line.startswith(("FAILED ", "ERROR "))]
    if code == HANGS:
        return code, "it hangs"
    return code, lines[0].partition(" ")[2].strip() if lines else f"exit code {code}"


class _Server:
    """A process that has imported what takes long, none of which is mutated, and forks for each call of pytest."""

    CODE = f"""if True:
        import json, os, signal, sys, time
        from contextlib import suppress
        import pytest
        for name in sys.argv[1:]:
            with suppress(ImportError):
                __import__(name)
        assert not {set(PACKAGES)!r} & set(sys.modules)
        for line in sys.stdin:
            limit, out, *arguments = json.loads(line)
            child = os.fork()
            if not child:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(os.open(out, os.O_WRONLY), 1)
                os.dup2(1, 2)
                os._exit(pytest.main(arguments))
            end, found = time.monotonic() + limit, (0, 0)
            while found == (0, 0) and time.monotonic() < end:
                time.sleep(0.02)
                found = os.waitpid(child, os.WNOHANG)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            if found == (0, 0):
                os.waitpid(child, 0)
            print({HANGS} if found == (0, 0) else os.waitstatus_to_exitcode(found[1]), flush=True)
    """

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-c", self.CODE, *SLOW]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = {**_environment(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self.process = subprocess.Popen(command, cwd=root, env=environment, **pipes)

    def ask(self, line: list[Any]) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


_server = functools.cache(_Server)


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
