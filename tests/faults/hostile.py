"""Files and environments of others that are wrong in every way: each command ends with a sentence, or works.

A case is a name and a function that spoils a copy of a good run, or writes a file, and returns the victim's command.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runners.run import checkpoint
from tests.faults import Fault, Found
from tests.faults.child import TINY, full_disk, run, train, warm

WRONG: tuple[Any, ...] = (None, True, -1, float("inf"), 10**30, "text", [1], {"a": 1})
ESCAPE = "\x1b]0;owned\x07\x1b[31m"  # a terminal's title, and red
STATE_LEAVES = 12  # values of a checkpoint's state that are replaced
SLOW = 60.0  # seconds after which a command hangs

Command = tuple[str, list[str]]  # a module of runners, its arguments


class Case(NamedTuple):
    """What is wrong, and what the victim types; `prepare` gets a folder of its own with a copy of a good run."""

    name: str
    prepare: Callable[[Path], Command]
    full: bool = False  # whether the disk is full meanwhile


def evaluate(folder: Path) -> Command:
    """The command that reads a run."""
    return "evaluate", [f"run={folder / 'run'}", "episodes=1", "video=false"]


def tiny(*arguments: str) -> list[str]:
    """A short training run."""
    return [*(f"{key}={value}" for key, value in TINY.items()), "total_timesteps=64", "control=none", *arguments]


# A run's configuration, status and results ---------------------------------------------------------------------------


def leaves(values: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every value, of mappings too."""
    for key, value in values.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from leaves(value, (*before, key))


def replaced_value(values: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy with another value at a path."""
    key, *rest = path
    inner = replaced_value(values[key], tuple(rest), value) if rest else value
    return {**values, key: inner}


def spoil_config(path: tuple[str, ...], value: Any, folder: Path) -> Command:
    """A wrong value in config.yaml."""
    import yaml

    file = folder / "run" / "config.yaml"
    values = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(replaced_value(values, path, value)))
    return evaluate(folder)


def spoil_json(name: str, key: str, value: Any, command: str, folder: Path) -> Command:
    """A wrong value in status.json or result.json, which another command reads."""
    file = folder / "run" / name
    values = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**values, key: value}))
    if command == "report":
        return "report", [str(folder / "run"), f"out={folder / 'page'}"]
    return "train", tiny(f"run_dir={folder / 'run'}")


def config_cases(good: Path) -> Iterator[Case]:
    """Every value of config.yaml, replaced by values of other types."""
    import yaml

    values = yaml.safe_load((good / "config.yaml").read_text())
    for path in leaves(values):
        for value in WRONG:
            name = f"config {'.'.join(path)}={value!r}"
            yield Case(name, partial(spoil_config, path, value))


def json_cases() -> Iterator[Case]:
    """Values of the other files of a run."""
    for value in WRONG:
        for key in ("state", "key", "step", "total", "exit_code", "error"):
            yield Case(f"status {key}={value!r}", partial(spoil_json, "status.json", key, value, "train"))
        for command in ("report",):
            yield Case(f"result={value!r}", partial(spoil_json, "result.json", "this run", value, command))


# Checkpoints ---------------------------------------------------------------------------------------------------------


def seal(step: Path) -> None:
    """A manifest that is right, for a checkpoint that was changed."""
    path = step / checkpoint.MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    names = (checkpoint.ARRAYS_FILE, checkpoint.STATE_FILE)
    manifest["files"] = {name: checkpoint._fingerprint(step / name) for name in names}
    path.write_text(json.dumps({**manifest, "sha256": checkpoint.digest(manifest)}))


def spoil_state(path: tuple[str, ...], value: Any, folder: Path) -> Command:
    """A wrong value in the state of a checkpoint whose manifest fits."""
    (step,) = (folder / "run" / "checkpoints").glob("step_*")
    file = step / checkpoint.STATE_FILE
    file.write_text(json.dumps(replaced_value(json.loads(file.read_text()), path, value)))
    seal(step)
    return evaluate(folder)


def spoil_arrays(folder: Path) -> Command:
    """Weights of other sizes, in a checkpoint whose manifest fits."""
    from safetensors.numpy import load_file, save_file

    (step,) = (folder / "run" / "checkpoints").glob("step_*")
    arrays = load_file(step / checkpoint.ARRAYS_FILE)
    save_file({name: value.ravel()[:1] for name, value in arrays.items()}, step / checkpoint.ARRAYS_FILE)
    seal(step)
    return evaluate(folder)


def state_cases(good: Path) -> Iterator[Case]:
    """Checkpoints that are whole, and of something else."""
    (step,) = (good / "checkpoints").glob("step_*")
    state = json.loads((step / checkpoint.STATE_FILE).read_text())
    for path in itertools.islice(leaves(state), STATE_LEAVES):
        for value in WRONG:
            yield Case(f"state {'.'.join(path)}={value!r}", partial(spoil_state, path, value))
    yield Case("arrays of other sizes", spoil_arrays)


# Policies from files -------------------------------------------------------------------------------------------------


def sb3_model(folder: Path) -> Path:
    """A model of Stable-Baselines3's."""
    from stable_baselines3 import PPO

    path = folder / "model.zip"
    PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8]}, n_steps=8, batch_size=8).save(path)
    return path


def spoil_zip(member: str, content: bytes, folder: Path) -> Command:
    """A model of Stable-Baselines3's, of whose files one is another."""
    path = sb3_model(folder)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, kept in members.items():
            if name != member or content:
                file.writestr(name, content if name == member else kept)
    return recorded(folder, path)


def spoil_data(key: str, value: Any, folder: Path) -> Command:
    """A model of Stable-Baselines3's whose description has another value."""
    path = sb3_model(folder)
    with zipfile.ZipFile(path) as file:
        data = json.loads(file.read("data"))
    return spoil_zip("data", json.dumps({**data, key: value}).encode(), folder)


def recorded(folder: Path, policy: str | Path) -> Command:
    """The command that lets a policy act."""
    return "record", [f"policy={policy}", "env=CartPole-v1", "steps=5", f"out={folder / 'data.safetensors'}"]


def bomb_inside(folder: Path) -> Command:
    """Weights whose own zip file unfolds to gigabytes."""
    inside = io.BytesIO()
    with zipfile.ZipFile(inside, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"\0" * 200_000_000)
    return spoil_zip("policy.pth", inside.getvalue(), folder)


def torn_file(path: Path, fraction: float) -> None:
    """Keep the beginning of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])


def torn_zip(fraction: float, folder: Path) -> Command:
    """A model of Stable-Baselines3's, cut off."""
    path = sb3_model(folder)
    torn_file(path, fraction)
    return recorded(folder, path)


def offline_file(folder: Path, **metadata: str | None) -> Path:
    """A policy of runners.offline, with other metadata."""
    from gymnasium import spaces
    from safetensors import safe_open
    from safetensors.numpy import save_file

    from agents.offline.iql import IQL, IQLConfig
    from envs.make import make
    from envs.recording import record

    path = folder / "policy.safetensors"
    env = make("CartPole-v1")
    assert isinstance(env.action_space, spaces.Discrete)
    model = IQL(IQLConfig(net_arch=[8]), env.observation_space, env.action_space, record(env, None, 30))
    model.save(str(path))
    with safe_open(path, "np") as file:
        about = {**(file.metadata() or {}), **metadata}
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
    save_file(arrays, path, {name: value for name, value in about.items() if value is not None})
    return path


def spoil_offline(metadata: dict[str, str | None], fraction: float, folder: Path) -> Command:
    """A policy of runners.offline, with other metadata, or cut off."""
    path = offline_file(folder, **metadata)
    if fraction < 1:
        torn_file(path, fraction)
    return recorded(folder, path)


def policy_cases() -> Iterator[Case]:
    """Files that policy= names, and texts that name none."""
    for member in ("data", "policy.pth"):
        for content in (b"", b"{}", b"[1]", b"null", b"\x80\x05.", b"[" * 100_000, b"\0" * 50_000_000):
            yield Case(f"zip {member}={content[:5]!r}", partial(spoil_zip, member, content))
    for key in ("policy_class", "policy_kwargs"):
        for value in (*WRONG, {"__module__": 1}, {"net_arch": [10**9]}, {"net_arch": "x"}, {"activation_fn": "x"}):
            yield Case(f"zip {key}={value!r}", partial(spoil_data, key, value))
    yield Case("zip in a zip", bomb_inside)
    for fraction in (0.0, 0.3, 0.9):
        yield Case(f"zip, {fraction:.0%} of it", partial(torn_zip, fraction))
        yield Case(f"policy file, {fraction:.0%} of it", partial(spoil_offline, {}, fraction))
    for text in ("", "null", "[]", "{", '{"net_arch": "x"}', '{"net_arch": [1000000000]}', "[" * 100_000):
        yield Case(f"policy file, config {text[:20]}", partial(spoil_offline, {"config": text}, 1))
    for key in ("config", "agent", "state"):
        yield Case(f"policy file without {key}", partial(spoil_offline, {key: None}, 1))
    for text in ("./evil:act", "evil:", ":act", "..:act", "a b:c", "/etc/passwd", "/dev/zero", "evil.zip", "\x1b[31m"):
        yield Case(f"policy={text!r}", partial(recorded, policy=text))


# Snapshots, presets, recordings --------------------------------------------------------------------------------------


def spoil_snapshots(data: bytes, rows: int, folder: Path) -> Command:
    """States to begin in, which are none, or unfold to gigabytes."""
    from safetensors.numpy import save_file

    path = folder / "states.safetensors"
    arrays: dict[str, np.ndarray] = {"states": np.frombuffer(data, np.uint8)}
    arrays["observations"] = np.zeros((rows, 4), np.float32)
    save_file(arrays, path)
    return "train", tiny(f"starts={path}", f"run_dir={folder / 'new'}")


def small_packed(text: bytes, repeats: int) -> bytes:
    """Text many times over, compressed."""
    packer = zlib.compressobj()
    return b"".join([*(packer.compress(text) for _ in range(repeats)), packer.flush()])


def snapshot_cases() -> Iterator[Case]:
    """Files that starts= names."""
    for text in (b"", b"null", b"[]", b"[{}]", b"{}", b'[{"env": 1}]', b"[" * 100_000, b'["x"]', b"\xff"):
        yield Case(f"snapshots {text[:10]!r}", partial(spoil_snapshots, zlib.compress(text), 1))
    fits = b'[{"env": "CartPoleEnv", "wrappers": {}, "variables": {"x": 1}, "things": []}]'
    yield Case("snapshots of nothing", partial(spoil_snapshots, zlib.compress(fits), 1))
    yield Case("snapshots that do not unfold", partial(spoil_snapshots, b"no zlib", 1))
    yield Case("snapshots of gigabytes", partial(spoil_snapshots, small_packed(b"[]," * 1_000_000, 600), 1))


# Disks, environments -------------------------------------------------------------------------------------------------

WORLD = """
import gymnasium, numpy as np
class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, ({size},), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {{"render_modes": []}}
    def __init__(self, render_mode=None): pass
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros({size}, np.float32), {{}}
    def step(self, action):
        {step}
        return np.zeros({size}, np.float32), 0.0, False, False, {{}}
    def close(self):
        {close}
gymnasium.register("{name}-v0", World, max_episode_steps=10)
"""


def in_world(name: str, size: int, step: str, close: str, folder: Path) -> Command:
    """Training in an environment of somebody else's."""
    module = f"world_{name}"
    (folder / f"{module}.py").write_text(WORLD.format(name=name, size=size, step=step, close=close))
    return "train", [*tiny(f"run_dir={folder / 'new'}")[1:], f"env={module}:{name}-v0", "eval_episodes=1"]


def record_to(folder: Path) -> Command:
    """A recording."""
    return "record", ["env=CartPole-v1", "steps=2000", f"out={folder / 'full.safetensors'}"]


def states_to(folder: Path) -> Command:
    """A recording with states."""
    module, arguments = record_to(folder)
    return module, [*arguments, f"snapshots={folder / 'states.safetensors'}"]


def learn_to(folder: Path) -> Command:
    """A policy, learned from a recording."""
    from envs.make import make
    from envs.recording import record, save

    save(folder / "data.safetensors", record(make("CartPole-v1"), None, 60), {"env": "CartPole-v1"})
    data = [f"data={folder / 'data.safetensors'}", "steps=1", "episodes=1", "arms=cloning", "algo=cloning"]
    return "offline", [*data, f"out={folder / 'policy.safetensors'}"]


def world_cases() -> Iterator[Case]:
    """Environments that raise, or say too much; full disks."""
    raises, said = 'raise RuntimeError("the door")', f'raise RuntimeError("{ESCAPE!r}"[1:-1])'
    yield Case("close raises", partial(in_world, "Closing", 3, "pass", raises))
    yield Case("close exits", partial(in_world, "Leaving", 3, "pass", "raise SystemExit(0)"))
    yield Case("observations of size 0", partial(in_world, "Empty", 0, "pass", "pass"))
    yield Case("step raises", partial(in_world, "Failing", 3, raises, "pass"))
    yield Case("step raises escape sequences", partial(in_world, "Loud", 3, said, "pass"))
    yield Case("record out= on a full disk", record_to, full=True)
    yield Case("record snapshots= on a full disk", states_to, full=True)
    yield Case("offline out= on a full disk", learn_to, full=True)


def cases(good: Path) -> list[Case]:
    """Every case."""
    return [
        *config_cases(good),
        *json_cases(),
        *state_cases(good),
        *policy_cases(),
        *snapshot_cases(),
        *world_cases(),
    ]


def _typed(case: Case, command: Command, folder: Path) -> int:
    import sys

    from tests.faults.links import PACKAGES

    os.chdir(folder)
    sys.path.insert(0, str(folder))
    module, arguments = command
    main = import_module(f"runners.{module}" + (".__main__" if module in PACKAGES else "")).main
    if case.full:
        with full_disk(100):
            return main(arguments)
    return main(arguments)


def fault_of(case: Case, good: Path, folder: Path) -> str:
    """What is wrong with how a command ended; empty if it ended as promised."""
    shutil.copytree(good, folder / "run", ignore=shutil.ignore_patterns(".lock"))
    command = case.prepare(folder)
    code, printed = run(partial(_typed, case, command, folder), folder / "out.txt", SLOW)
    last = (printed.strip().splitlines() or ["nothing"])[-1][:160]
    if code is None:
        return f"hangs, {last}"
    if code < 0 or "Traceback (most recent call last)" in printed:
        return f"code {code}, {last}"
    if "\x1b" in printed or "\x07" in printed:
        return f"escape sequences, {last!r}"
    return ""


def hostile(folder: Path, quick: bool, only: str = "") -> Found:
    """Every case, in quick mode every fortieth; none may end in a traceback, hang, or reach the terminal."""
    warm()
    good = folder / "good"
    run(lambda: train(run_dir=good, total_timesteps=64, eval_episodes=1), folder / "out.txt")
    tried = [case for case in cases(good) if only in case.name]
    tried = tried[::40] if quick else tried
    wrong = []
    for number, case in enumerate(tried):
        place = folder / f"case{number}"
        place.mkdir()
        if words := fault_of(case, good, place):
            wrong.append(f"{case.name}: {words}")
        shutil.rmtree(place)
    figures: dict[str, float] = {"hostile_tracebacks": len(wrong), "hostile_tried": len(tried)}
    told = "; ".join(wrong) or "each ended in a sentence, or worked"
    return Found(len(tried), len(wrong), figures, f"{len(wrong)} of {len(tried)} did not; {told}" if wrong else told)


FAULTS = [
    Fault(
        "hostile",
        "wrong values in every file of a run, broken policies and states, full disks, environments that raise",
        "Each command ends with one sentence, without a traceback, or works.",
        hostile,
    )
]
