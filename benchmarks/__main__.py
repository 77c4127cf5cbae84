"""Benchmarks and studies: what the README's numbers come from.

    python -m benchmarks NAME...              run them; an interrupted study continues where it stopped
    python -m benchmarks peers:CASE:CASE...   some cases of a measurement (peers, scale, repairs3, plain, public, audit)
    python -m benchmarks list                 what there is

Results go to assets/results/NAME.csv, one row a run, and to NAME.json; figures that belong together are collected in
foundation.json, ppo.json, exploration.json, vision.json, language.json, model_based.json, users.json,
users3.json, experiments.json, speed.json, scale.json, rewards2.json, agents2.json and models.json. A study whose
CSV has no column `commit` was recorded with 0.1.0.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks import study

FOLDER = Path(__file__).resolve().parents[1] / "assets" / "results"
CODE = {  # what is no grid of training runs: name -> where its function is, and the file that collects its figures
    "foundation": ("benchmarks.speed.foundation:run", "foundation"),
    "ppo": ("benchmarks.speed.ppo:run", "ppo"),
    "compiled": ("benchmarks.speed.ppo:compiled", "speed"),
    "peers": ("benchmarks.peers.peers:run", "speed"),
    "imitation": ("benchmarks.peers.imitation:run", "rewards2"),
    "trees-speed": ("benchmarks.peers.trees:run", "agents2"),
    "exploration-speed": ("benchmarks.speed.exploration:run", "exploration"),
    "pseudo_counts": ("benchmarks.checks.pseudo_counts:run", "exploration"),
    "highway-speed": ("benchmarks.speed.highway:run", "vision"),
    "vision-speed": ("benchmarks.speed.vision:run", "vision"),
    "shaping_grid": ("benchmarks.checks.shaping_grid:run", "vision"),
    "offline": ("benchmarks.checks.offline:run", "vision"),
    "offline_rewards": ("benchmarks.checks.offline_rewards:run", "shelf3"),
    "online_from_iql": ("benchmarks.checks.online_from_iql:run", "shelf3"),
    "offline_shelf": ("benchmarks.checks.offline_shelf:run", "agents2"),
    "fdvl_fresh": ("benchmarks.checks.offline_fresh:run_fdvl", "agents2"),
    "cpl_regret": ("benchmarks.checks.offline_fresh:run_cpl", "agents2"),
    "mbtl_gravity": ("benchmarks.checks.mbtl_gravity:run", "agents2"),
    "morec": ("benchmarks.checks.morec:run", "agents2"),
    "scan": ("benchmarks.checks.scan:run", "shelf3"),
    "ppo_twin": ("benchmarks.peers.ppo_twin:run", "published"),
    "bonus_contrast": ("benchmarks.checks.bonus_contrast:run", "published"),
    "published_table": ("benchmarks.checks.published_table:run", "published"),
    "average_reward": ("benchmarks.checks.average_reward:run", "shelf3"),
    "cluster_sac": ("benchmarks.scale.replay:run", "shelf3"),
    "in_context": ("benchmarks.checks.in_context:run", "shelf3"),
    "stitching": ("benchmarks.checks.stitching:run", "agents2"),
    "design": ("benchmarks.checks.design:run", "rewards2"),
    "exprd": ("benchmarks.checks.exprd:run", "rewards2"),
    "explors": ("benchmarks.checks.explors:run", "rewards2"),
    "hilp": ("benchmarks.checks.hilp:run", "rewards2"),
    "hilp_prompts": ("benchmarks.checks.hilp_prompts:run", "shelf3"),
    "bad_models": ("benchmarks.checks.bad_models:run", "models"),
    "bad-prompts": ("benchmarks.checks.bad_prompts:run", "vision"),
    "own_world": ("benchmarks.checks.own_world:run", "models"),
    "nethack-speed": ("benchmarks.speed.nethack:run", "language"),
    "language-speed": ("benchmarks.speed.language:run", "language"),
    "reward-cost": ("benchmarks.speed.reward_cost:run", "rewards2"),
    "progress_model-speed": ("benchmarks.speed.progress_model:run", "rewards2"),
    "judge-faults": ("tests.faults.judge_faults:run", "language"),
    "soak": ("tests.faults.soak:run", "repairs"),
    "outage": ("tests.faults.outage:run", "language"),
    "model_based": ("benchmarks.speed.model_based:run", "model_based"),
    "models": ("benchmarks.checks.models:run", "models"),
    "models_fresh": ("benchmarks.checks.models:run_fresh", "models"),
    "student": ("benchmarks.checks.student:run", "models"),
    "first_run": ("benchmarks.checks.first_run:run", "first_run"),
    "circle": ("benchmarks.checks.circle:run", "rewards2"),
    "resip": ("benchmarks.checks.resip:run", "agents2"),
    "resip_fresh": ("benchmarks.checks.fresh:run_resip", "agents2"),
    "recoil_fresh": ("benchmarks.checks.fresh:run_recoil", "agents2"),
    "debate": ("benchmarks.checks.debate:run", "rewards2"),
    "oracle": ("benchmarks.checks.oracle:run", "model_based"),
    "horizon": ("benchmarks.checks.horizon:run", "agents2"),
    "memorising": ("benchmarks.checks.memorising:run", "model_based"),
    "mutants": ("benchmarks.checks.mutants:run", "plain"),
    "repairs": ("benchmarks.checks.repairs:run", "repairs"),
    "repairs3": ("benchmarks.checks.repairs3:run", "repairs3"),
    "coverage": ("benchmarks.checks.coverage:run", "experiments"),
    "report-speed": ("benchmarks.speed.report:run", "experiments"),
    "watchdog": ("benchmarks.speed.watchdog:run", "experiments"),
    "sweep-overhead": ("benchmarks.speed.sweep:run", "experiments"),
    "night": ("tests.faults.night:run", "experiments"),
    "first-answers": ("benchmarks.speed.users:run", "users"),
    "agents": ("benchmarks.checks.agents:run", "agents"),
    "compare-verdicts": ("benchmarks.checks.compare_verdicts:run", "users"),
    "audit": ("benchmarks.checks.audit:run", "users3"),
    "balrog": ("benchmarks.checks.balrog:run", "users3"),
    "links": ("benchmarks.checks.links:run", "users3"),
    "lean": ("benchmarks.checks.lean:run", "users3"),
    "recipes": ("benchmarks.checks.recipes:run", "users3"),
    "silence": ("benchmarks.checks.silence:run", "users3"),
    "wheel": ("benchmarks.checks.wheel:run", "users"),
    "users": ("benchmarks.users:run", "users"),
    "features": ("benchmarks.features:run", "users3"),
    "public": ("benchmarks.checks.public:run", "models"),
    "rule": ("benchmarks.checks.rule:run", "effects"),
    "effects": ("benchmarks.effects:run", "effects"),
    "scale": ("benchmarks.scale:run", "scale"),
    "plain": ("benchmarks.plain:run", "plain"),
    "plain-tests": ("benchmarks.house:run_tests", "plain"),
}


def main(argv: list[str] | None = None, folder: Path = FOLDER) -> int:
    """Run the named benchmarks; returns the exit code."""
    from benchmarks import results
    from runners.run.config import UsageError, describe_unknown
    from runners.run.exits import Stopped

    names = sys.argv[1:] if argv is None else argv
    if not names or names[0] in ("-h", "--help", "list"):
        print(listing(folder) if names == ["list"] else f"{__doc__}\n{listing(folder)}")
        return 0 if names else 2
    asked = [name.split(":") for name in names]
    for name, *cases in asked:
        if name not in every() or (cases and name not in ("peers", "scale", "repairs3", "plain", "public", "audit")):
            print(describe_unknown("benchmark", ":".join([name, *cases]), every()), file=sys.stderr)
            return 2
    for name, *cases in asked:
        run, collected = of(name)
        try:
            figures = run(folder, cases) if cases else run(folder)
        except Stopped as stop:
            print("stopped: the runs have saved; the same command continues")
            return stop.code
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        for target in dict.fromkeys([name, collected]):
            results.write_figures(folder / f"{target}.json", f"python -m benchmarks {name}", figures)
        for key, value in figures.items():
            print(f"{key:<40}{value:10.3f}")
    return 0


def every() -> list[str]:
    """All names."""
    return [*CODE, *study.names()]


def of(name: str) -> tuple[Callable[..., dict[str, float]], str]:
    """What runs a benchmark, and the file that collects its figures."""
    if name not in CODE:
        found = study.Study.read(name)
        return partial(study.run, found), found.collected
    place, collected = CODE[name]
    module, _, function = place.partition(":")
    return getattr(import_module(module), function), collected


def listing(folder: Path) -> str:
    """A line for each: the claim of a study and which version recorded its results, or the first line of the file."""
    lines = ["studies, each a grid of training runs:"]
    for name in study.names():
        found = study.Study.read(name)
        lines.append(
            f"    {name:<22}{found.claim}" + (" (recorded with 0.1.0)" if _is_old(folder / f"{name}.csv") else "")
        )
    lines += ["", "measurements:"]
    for name, (place, _) in CODE.items():
        lines.append(f"    {name:<22}{_first_line(*place.split(':'))}")
    return "\n".join(lines)


def _is_old(path: Path) -> bool:
    return path.exists() and "commit" not in path.read_text().partition("\n")[0].split(",")


def _first_line(module: str, function: str) -> str:
    """Of a function's docstring where it says more than `run`, else of its file's; nothing is imported."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function != "run"]
    return (ast.get_docstring(made[0] if made else tree) or "").partition("\n")[0].rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
