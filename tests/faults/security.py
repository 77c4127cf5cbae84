"""Inputs from strangers that try to run code, secrets that try to get out, and pages that try to be programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from runners.run import checkpoint
from runners.run.packages import HOME
from tests.faults import Fault, Found
from tests.faults.attacks import ATTACKS, HARMLESS, NAMES, READING, SECRET, VISITING, Attack
from tests.faults.child import TINY, Child, run, train, until, warm

CANARY = "sk-CANARY-0123456789abcdef"


def strangers(folder: Path, quick: bool) -> Found:
    """Every attack; none may execute its code, read what is not its own, hang, or get through without a sentence."""
    warm()
    good = folder / "good"
    run(lambda: train(run_dir=good, total_timesteps=64), folder / "out.txt")
    executed, hung, odd = 0, 0, []
    attacks = (*NAMES[::3], *READING[::8], *VISITING[::6]) if quick else ATTACKS
    for make in attacks:
        name = make.__name__.strip("_")
        attack = Attack(name, folder / name, good)
        module, arguments = make(attack)
        action = partial(_elsewhere if attack.elsewhere else _here, attack, module, arguments)
        with _environment(OPENAI_API_KEY=CANARY):
            code, printed = run(action, folder / "out.txt", 180)
        outside = attack.marker.exists() or any(folder.parent.glob("executed"))
        taken = [path for path in attack.folder.rglob("*") if _holds(path, SECRET) and path.name != "secret"]
        acted = outside or bool(taken) or SECRET in printed
        executed += acted
        hung += code is None
        if acted or code is None or "Traceback" in printed or (code == 0 and make not in HARMLESS):
            last = (printed.strip().splitlines() or ["nothing"])[-1]
            odd.append(f"{attack.name.replace('_', ' ')}: code {code}, {last[:150]}")
        shutil.rmtree(attack.folder)
    figures = {"malicious_executed": executed, "attacks": len(attacks)}
    figures |= {"untrusted_executed": executed, "untrusted_tried": len(attacks), "untrusted_hung": hung}
    told = "; ".join(odd) or "each refused in a sentence, or passed over"
    return Found(len(attacks), len(odd), figures, f"{executed} of {len(attacks)} executed; {told}")


def _here(attack: Attack, module: str, arguments: list[str]) -> int:
    """A command in this process, with the attack's folder first on the path, which is worse than it can be."""
    os.chdir(attack.folder)
    sys.path.insert(0, str(attack.folder))
    name = f"runners.{module}" + (".__main__" if module in ("sweep", "export", "annotate", "compare", "report") else "")
    return import_module(name).main(arguments)


def _elsewhere(attack: Attack, module: str, arguments: list[str]) -> int:
    """A command as it is typed, in the run's folder."""
    command = [sys.executable, "-m", f"runners.{module}", *arguments]
    env = {**os.environ, "PYTHONPATH": str(HOME)}
    return subprocess.run(command, cwd=attack.run, env=env, stdin=subprocess.DEVNULL).returncode


def _holds(path: Path, text: str) -> bool:
    return (
        path.is_file() and not path.is_symlink() and path.stat().st_size < 10**7 and text.encode() in path.read_bytes()
    )


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def leaks(folder: Path, quick: bool) -> Found:
    """Keys in the environment, on the command line, in an address and in an error, while every command runs."""
    warm()
    with _environment(OPENAI_API_KEY=CANARY, LODESTAR_TOKEN=CANARY, MY_PASSWORD=CANARY, LODESTAR_DEBUG="1"):
        outputs = {name: run(action, folder / f"{name}.txt") for name, action in _verbs(folder, quick).items()}
    found = [path for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    names = ", ".join(str(path.relative_to(folder)) for path in found[:5])
    codes = " ".join(f"{name} {code}" for name, (code, _) in outputs.items())
    expected = {"typed": 2, "address": 2, "error": 7, "train": 0, "evaluate": 0, "record": 0}
    wrong = [name for name, (code, _) in outputs.items() if code != expected.get(name, 0)]
    files = sum(path.is_file() for path in folder.rglob("*"))
    words = f"{len(found)} of {files} files hold the key{': ' + names if names else ''}; exit codes: {codes}"
    return Found(len(outputs), len(found) + len(wrong), {"secrets_leaked": len(found), "files": files}, words)


def _verbs(folder: Path, quick: bool) -> dict[str, Callable[[], int]]:
    """Name -> a command that could give the key away."""
    world = {"env": "MiniGrid-Empty-5x5-v0", "env.captions": "full", "reward": "oni", "agent.batch_size": 64}
    judge = {"reward.oni.judge": "openai", "total_timesteps": 128, "control": "none"}

    def options(url: str, **more: str) -> dict[str, Any]:
        named = "".join(f", {key}: {value}" for key, value in more.items())
        return {**world, **judge, "reward.oni.judge_options": f'{{url: "{url}", model: rules{named}}}'}

    def served() -> int:
        from tests.faults.faulty_server import FaultyServer

        with FaultyServer("minigrid") as server:
            return train(run_dir=folder / "run", **options(server.url("rules")))

    def failing() -> int:
        import rewards
        from rewards.base import Reward

        class Failing(Reward):
            """Gives the key away."""

            def score(self, batch: Any, memory: Any = None) -> Any:
                return np.zeros(batch.shape, np.float32)

            def update(self, batch: Any) -> dict[str, float]:
                raise RuntimeError(f"401 for Bearer {CANARY} at https://me:{CANARY}@example.com")

        Failing.__module__ = "rewards.failing"
        failing = Failing.update
        failing.__globals__["__name__"] = "rewards.failing"
        rewards.register("failing", Failing)
        return train(run_dir=folder / "error", reward="failing", total_timesteps=128)

    def command(module: str, *arguments: str) -> Callable[[], int]:
        return lambda: import_module(
            f"runners.{module}" + (".__main__" if module in ("annotate", "compare") else "")
        ).main(list(arguments))

    saved = f"run={folder / 'run'}"
    verbs: dict[str, Callable[[], int]] = {
        "typed": lambda: train(run_dir=folder / "typed", **options("http://127.0.0.1:9/v1", key=f'"{CANARY}"')),
        "address": lambda: train(run_dir=folder / "address", **options(f"http://me:{CANARY}@127.0.0.1:9/v1")),
        "error": failing,
    }
    if quick:
        return verbs
    tiny = [f"{key}={value}" for key, value in TINY.items()]
    return {
        **verbs,
        "train": served,
        "evaluate": command("evaluate", saved, "episodes=1"),
        "record": command("record", f"policy={folder / 'run'}", "steps=64", f"out={folder / 'recording.safetensors'}"),
        "watch": command("watch", saved, "episodes=1", "steps=20", f"out={folder / 'video.gif'}"),
        "explain": command("explain.__main__", saved, "episodes=2", "steps=20", f"out={folder / 'why'}"),
        "export": command("export.__main__", saved, "format=safetensors", f"out={folder / 'export'}"),
        "sweep": command("sweep.__main__", *tiny, "total_timesteps=64", "seed=0,1", f"root={folder / 'sweeps'}"),
        "report": command("report.__main__", str(folder)),
    }


def listens(folder: Path, quick: bool) -> Found:
    """The sockets of a run that is training, TensorBoard's files being written."""
    warm()
    with Child(lambda: train(run_dir=folder / "run", total_timesteps=1e7), folder / "out.txt") as child:
        until((folder / "run" / "checkpoints" / checkpoint.LATEST).exists)
        time.sleep(0.5)
        descriptors = Path(f"/proc/{child.pid}/fd")
        sockets = {os.readlink(path) for path in descriptors.iterdir() if os.path.islink(path)}
        tables = [Path(f"/proc/{child.pid}/net/{name}") for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    listening = sum(row[3] == "0A" and f"socket:[{row[9]}]" in sockets for row in rows)
    return Found(
        1, int(listening > 0), {"listening": listening}, f"{listening} sockets listen; TensorBoard is a line to copy"
    )


def page(folder: Path, quick: bool) -> Found:
    """A run whose environment, error, command and results are pieces of HTML, in a report."""
    warm()
    script = "<script>alert(1)</script>"
    run(lambda: train(run_dir=folder / "run", total_timesteps=64, eval_episodes=1), folder / "out.txt")
    place = folder / "run"
    config = (place / "config.yaml").read_text().replace("env: CartPole-v1", f"env: 'CartPole{script}-v1'")
    (place / "config.yaml").write_text(config)
    (place / "command.txt").write_text(f"python -m runners.train env={script}\n")
    status = json.loads((place / "status.json").read_text())
    (place / "status.json").write_text(json.dumps({**status, "error": f"<img src=x onerror=alert(1)>{script}"}))
    (place / "versions.json").write_text(json.dumps({f"torch{script}": script}))
    scores = json.loads((place / "result.json").read_text())
    (place / "result.json").write_text(json.dumps({**scores, f"control: {script}": scores["this run"]}))

    def action() -> int:
        return import_module("runners.report.__main__").main(
            [str(folder), f"title=A {script}", f"out={folder / 'page'}"]
        )

    code, _ = run(action, folder / "report.txt")
    html = (folder / "page" / "report.html").read_text() if (folder / "page" / "report.html").exists() else ""
    raw = html.count(script) + html.count("<img src=x")
    told = html.count("&lt;script&gt;")
    words = f"code {code}: {raw} tags as they were, {told} escaped, in {len(html):,} characters"
    return Found(1, int(code != 0 or raw > 0 or told == 0), {"tags": raw}, words)


FAULTS = [
    Fault(
        "strangers",
        "files that want to run code, or never to end",
        "Nothing is executed; each is refused in a sentence.",
        strangers,
    ),
    Fault("leaks", "keys in reach of every command", "No file and nothing printed holds one.", leaks),
    Fault("listens", "somebody else on the network", "A run opens no port.", listens),
    Fault("page", "HTML in a run's names and words", "The report shows it as text.", page),
]
