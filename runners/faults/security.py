"""Inputs from strangers that try to run code, secrets that try to get out, and pages that try to be programs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from runners import checkpoint
from runners.faults import Fault, Found
from runners.faults.child import TINY, Child, run, train, until, warm

CANARY = "sk-CANARY-0123456789abcdef"
MARK = "import os; os.mkdir({marker!r})\n"


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


class Attack:
    """A run from somebody else, and the folder that shows that its code was executed.

    Args:
        name: what it tries.
        folder: empty, for this attack alone.
        good: a trained run, of which it gets a copy.
    """

    def __init__(self, name: str, folder: Path, good: Path) -> None:
        self.name, self.folder, self.marker = name, folder, folder / "executed"
        self.run = folder / "run"
        folder.mkdir()
        shutil.copytree(good, self.run, ignore=shutil.ignore_patterns(".lock"))
        (self.step,) = sorted((self.run / "checkpoints").glob("step_*"))[-1:]
        self.pickled = pickle.dumps(Payload(self.marker))
        self.code = MARK.format(marker=str(self.marker))
        self.tag = f"!!python/object/apply:os.mkdir [{json.dumps(str(self.marker))}]"

    def write(self, name: str, content: str | bytes) -> Path:
        """A file of the attack's folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def seal(self) -> None:
        """Give the doctored checkpoint a manifest that is right."""
        path = self.step / checkpoint.MANIFEST
        manifest = json.loads(path.read_text())
        del manifest["sha256"]
        names = (checkpoint.ARRAYS, checkpoint.STATE)
        manifest["files"] = {name: checkpoint._fingerprint(self.step / name) for name in names}
        path.write_text(json.dumps({**manifest, "sha256": checkpoint._digest(manifest)}))

    def config(self, old: str, new: str) -> None:
        """Change config.yaml."""
        path = self.run / "config.yaml"
        text = path.read_text()
        assert old in text, f"config.yaml has no {old!r} any more"
        path.write_text(text.replace(old, new, 1))


Command = tuple[str, list[str]]  # module of runners, its arguments


def _train(*arguments: str) -> Command:
    return "train", [*(f"{key}={value}" for key, value in TINY.items()), "total_timesteps=64", *arguments]


def _evaluate(attack: Attack) -> Command:
    return "evaluate", [f"run={attack.run}", "episodes=1", "video=false"]


def _sb3_zip(attack: Attack) -> Command:
    path = attack.folder / "model.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", json.dumps({"policy_class": {":type:": "x", ":serialized:": attack.pickled.hex()}}))
        file.writestr("policy.pth", attack.pickled)
    return "export", [f"run={path}", "env=CartPole-v1"]


def _pickled_policy(attack: Attack) -> Command:
    return "export", [f"run={attack.write('policy.safetensors', attack.pickled)}", "env=CartPole-v1"]


def _pickled_arrays(attack: Attack) -> Command:
    (attack.step / checkpoint.ARRAYS).write_bytes(attack.pickled)
    attack.seal()
    return _evaluate(attack)


def _strange_state(attack: Attack) -> Command:
    path = attack.step / checkpoint.STATE
    state = json.loads(path.read_text())
    state["tree"] = {"_": "object", "v": {"module": "os", "name": "mkdir", "arguments": [str(attack.marker)]}}
    path.write_text(json.dumps(state))
    attack.seal()
    return _evaluate(attack)


def _deep_state(attack: Attack) -> Command:
    (attack.step / checkpoint.STATE).write_text('{"step": 1, "tree": ' + "[" * 100_000 + "]" * 100_000 + "}")
    attack.seal()
    return _evaluate(attack)


def _latest_elsewhere(attack: Attack) -> Command:
    shutil.copytree(attack.step, attack.folder / "outside")
    (attack.folder / "outside" / checkpoint.ARRAYS).write_bytes(attack.pickled)
    (attack.run / "checkpoints" / checkpoint.LATEST).write_text("../../outside\n")
    return _evaluate(attack)


def _endless_link(attack: Attack) -> Command:
    (attack.step / checkpoint.ARRAYS).unlink()
    (attack.step / checkpoint.ARRAYS).symlink_to("/dev/zero")
    return _evaluate(attack)


def _tagged_config(attack: Attack) -> Command:
    attack.config("seed: 0", f"seed: {attack.tag}")
    return _evaluate(attack)


def _target_in_config(attack: Attack) -> Command:
    attack.config("task:\n", f"task:\n    _target_: os.mkdir\n    path: {attack.marker}\n")
    return _evaluate(attack)


def _class_in_config(attack: Attack) -> Command:
    attack.write("evil_rewards.py", attack.code)
    attack.config("  task:", "  'evil_rewards:Reward':")
    return _evaluate(attack)


def _module_beside(attack: Attack) -> Command:
    attack.write("run/evil_world.py", attack.code)
    attack.config("env: CartPole-v1", "env: run.evil_world:CartPole-v1")
    return _evaluate(attack)


def _module_recorded(attack: Attack) -> Command:
    _module_beside(attack)
    return "record", [f"policy={attack.run}", f"out={attack.folder / 'out.safetensors'}", "steps=10"]


def _module_watched(attack: Attack) -> Command:
    _module_beside(attack)
    return "watch", [f"run={attack.run}", f"out={attack.folder / 'film.gif'}", "episodes=1", "steps=5"]


def _module_exported(attack: Attack) -> Command:
    _module_beside(attack)
    return "export", [f"run={attack.run}", "format=safetensors"]


def _option_in_config(attack: Attack) -> Command:
    attack.write("run/evil_world.py", attack.code)
    attack.config(
        "env: CartPole-v1", "env: highway-fast-v0\nenv_options:\n  config: {other_vehicles_type: run.evil_world.Car}"
    )
    return _evaluate(attack)


def _target_typed(attack: Attack) -> Command:
    return _train("reward=rnd", "reward.rnd._target_=torch.hub.load", f"run_dir={attack.folder / 'new'}")


def _interpolated(attack: Attack) -> Command:
    return _train("reward=rnd", "reward.rnd.weight=${oc.env:HOME}", f"run_dir={attack.folder / 'new'}")


def _hydra_keys(attack: Attack) -> Command:
    return _train(f"hydra.run.dir={attack.marker}", "hydra/launcher=joblib")


def _module_as_agent(attack: Attack) -> Command:
    attack.write("evil_agent.py", attack.code)
    return _train("agent=evil_agent:Agent", f"run_dir={attack.folder / 'new'}")


def _path_upwards(attack: Attack) -> Command:
    return _train(f"run_dir={attack.folder}/run/../executed")


def _name_upwards(attack: Attack) -> Command:
    arguments = [f"{key}={value}" for key, value in TINY.items()]
    return "sweep", [
        *arguments,
        "total_timesteps=64",
        "seed=0,1",
        f"root={attack.folder}/a/b",
        "name=../../../executed",
    ]


def _tagged_preset(attack: Attack) -> Command:
    path = attack.write("preset.yaml", f"# evil\nseed: {attack.tag}\n")
    return _train(f"preset={path}", f"run_dir={attack.folder / 'new'}")


def _pickled_recording(attack: Attack) -> Command:
    path = attack.folder / "data.npz"
    np.savez(path, obs=np.array([Payload(attack.marker)], object))
    return "offline", [f"data={path}", "env=CartPole-v1", "steps=1", "episodes=1"]


def _recording_names_module(attack: Attack) -> Command:
    from envs.make import make
    from envs.recording import record, save

    env = make("CartPole-v1")
    attack.write("run/evil_world.py", attack.code)
    path = attack.folder / "data.safetensors"
    save(path, record(env, None, 60), {"env": "run.evil_world:CartPole-v1"})
    env.close()
    return "offline", [f"data={path}", "steps=1", "episodes=1", "arms=cloning"]


def _pickled_clip(attack: Attack) -> Command:
    path = attack.write("weights.pt", attack.pickled)
    return _train("reward=clip", f"reward.clip.weights={path}", f"run_dir={attack.folder / 'new'}", "control=none")


def _pickled_cache(attack: Attack) -> Command:
    path = attack.folder / "cache.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE labels (world TEXT, text TEXT, value BLOB)")
        file.execute("INSERT INTO labels VALUES ('x', 'y', ?)", (attack.pickled,))
    captioned = ["env=MiniGrid-Empty-5x5-v0", "env.captions=full", "reward=oni", "agent.batch_size=64", "control=none"]
    return _train(*captioned, f"reward.oni.cache={path}", f"run_dir={attack.folder / 'new'}")


def _written_factors(attack: Attack) -> Command:
    path = attack.write("factors.py", f'"""Factors."""\n{attack.code}\ndef evaluate(obs, action):\n    return [obs]\n')
    options = ["env=Pendulum-v1", "reward=lare", f"reward.lare.code={path}", "control=none"]
    return _train(*options, f"run_dir={attack.folder / 'new'}")


ATTACKS: tuple[Callable[[Attack], Command], ...] = (
    _sb3_zip, _pickled_policy, _pickled_arrays, _strange_state, _deep_state, _latest_elsewhere, _endless_link,
    _tagged_config, _target_in_config, _class_in_config, _module_beside, _module_recorded, _module_watched,
    _module_exported, _option_in_config, _target_typed, _interpolated, _hydra_keys, _module_as_agent, _path_upwards,
    _name_upwards, _tagged_preset, _pickled_recording, _recording_names_module, _pickled_clip, _pickled_cache,
    _written_factors,
)  # fmt: skip
HARMLESS = (_latest_elsewhere, _pickled_cache)  # what is false in them is passed over, and the command succeeds


def strangers(folder: Path, quick: bool) -> Found:
    """Every attack; none may execute its code, hang, or get through without a sentence."""
    warm()
    good = folder / "good"
    run(lambda: train(run_dir=good, total_timesteps=64), folder / "out.txt")
    executed, failed, odd = 0, 0, []
    attacks = ATTACKS[::3] if quick else ATTACKS
    for make in attacks:
        name = make.__name__.strip("_")
        attack = Attack(name, folder / name, good)
        module, arguments = make(attack)

        def action(attack: Attack = attack, module: str = module, arguments: list[str] = arguments) -> int:
            import sys

            os.chdir(attack.folder)
            sys.path.insert(0, str(attack.folder))  # as `python -m` does with the folder it is called in
            name = f"runners.{module}" + (".__main__" if module in ("sweep", "export") else "")
            return import_module(name).main(arguments)

        code, printed = run(action, folder / "out.txt", 120)
        outside = list(folder.parent.glob("executed"))
        executed += attack.marker.exists() or bool(outside)
        told = code == 0 if make in HARMLESS else code not in (0, None) and "Traceback" not in printed
        if not told or attack.marker.exists() or outside:
            failed += 1
            last = (printed.strip().splitlines() or ["nothing"])[-1]
            odd.append(f"{attack.name.replace('_', ' ')}: code {code}, {last[:150]}")
        shutil.rmtree(attack.folder)
    words = f"{executed} of {len(attacks)} executed; " + (
        "; ".join(odd) or "each refused in a sentence, or passed over"
    )
    return Found(len(attacks), failed, {"malicious_executed": executed, "attacks": len(attacks)}, words)


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
        from runners.bench.faulty_server import FaultyServer

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
        return lambda: import_module(f"runners.{module}").main(list(arguments))

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
        "watch": command("watch", saved, "episodes=1", "steps=20", f"out={folder / 'film.gif'}"),
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
    Fault("strangers", "files that want to run code", "Nothing is executed; each is refused in a sentence.", strangers),
    Fault("leaks", "keys in reach of every command", "No file and nothing printed holds one.", leaks),
    Fault("listens", "somebody else on the network", "A run opens no port.", listens),
    Fault("page", "HTML in a run's names and words", "The report shows it as text.", page),
]
