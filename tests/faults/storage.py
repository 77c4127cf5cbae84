"""Disks that fill up, files that are cut or changed, and processes that die while they write."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lodestar.state import pack
from runners.run import checkpoint
from tests.faults import Fault, Found
from tests.faults.child import Child, full_disk, own_disks, run, sentence, small_disk, train, until, warm

FILES = (checkpoint.ARRAYS_FILE, checkpoint.STATE_FILE, checkpoint.MANIFEST)
SIZE = 500_000  # numbers in the arrays of a checkpoint, 2 MB, as in a policy for pixels


def state(value: float, size: int = 64) -> dict[str, Any]:
    """A state whose every number is `value`."""
    return {"x": np.full(size, value, np.float32), "value": value}


def loaded(folder: Path) -> tuple[Any, int, list[str]]:
    """Newest whole checkpoint, its step (-1: none), and what was said about broken ones."""
    said: list[str] = []
    try:
        found = checkpoint.load(folder, said.append, tidy=True)
    except checkpoint.CheckpointError as error:
        said.append(str(error))
        found = None
    return (*(found or (None, -1)), said)


def status(folder: Path) -> dict[str, Any]:
    """status.json of a run; empty if it has none."""
    from runners.run.folder import read_status

    return read_status(folder) or {}


@contextmanager
def wrapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Put `make(original)` in the place of a function."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def signal_in_save(folder: Path, quick: bool) -> Found:
    """SIGTERM to a run at one of the flushes of a checkpoint, so in the middle of a save."""
    warm()
    rng = np.random.default_rng(0)
    trials, failed, saved = 3 if quick else 100, 0, 0
    for trial in range(trials):
        at, place = int(rng.integers(5, 40)), folder / str(trial)

        def action(at: int = at, place: Path = place) -> int:
            calls = 0

            def killing(sync: Any) -> Any:
                def counted(path: Path) -> None:
                    nonlocal calls
                    calls += checkpoint.STATE_FILE in os.listdir(path.parent if path.is_file() else path)
                    if calls == at:
                        os.kill(os.getpid(), signal.SIGTERM)
                    sync(path)

                return counted

            with wrapped(checkpoint, "_sync", killing):
                return train(run_dir=place, total_timesteps=1e6)

        code, _ = run(action, folder / "out.txt")
        _, step, said = loaded(place / "checkpoints")
        saved += step > 0
        failed += code != 143 or step <= 0 or bool(said) or bool(list((place / "checkpoints").glob("tmp-*")))
    return Found(
        trials, failed, {"saved": saved}, f"{saved} of {trials} runs ended with code 143 and a whole checkpoint"
    )


def kill_in_save(folder: Path, quick: bool) -> Found:
    """`kill -9` at a random moment of a loop that does nothing but save; the next one goes on from what is left."""
    rng = np.random.default_rng(1)
    trials, lost, inside, last, slowest = 10 if quick else 200, 0, 0, -1, 0.0
    place, ready = folder / "checkpoints", folder / "ready"

    def loop() -> int:
        step = max(loaded(place)[1], 0)
        ready.touch()
        while True:
            step += 1
            checkpoint.save(place, state(step, SIZE), step)

    for _ in range(trials):
        ready.unlink(missing_ok=True)
        with Child(loop, folder / "out.txt") as child:
            until(ready.exists)
            time.sleep(0.25 * rng.random())
            os.kill(child.pid, signal.SIGKILL)
            child.wait(10)
        inside += any(place.glob("tmp-*"))
        began = time.monotonic()
        found, step, said = loaded(place)
        slowest = max(slowest, time.monotonic() - began)
        whole = step < 0 or bool((found["x"] == step).all())  # -1: killed before the very first was written
        lost += bool(said) or step < last or not whole or any(place.glob("tmp-*"))
        last = step
    words = f"{inside} of {trials} kills left a half-written folder, {last} saves done, {lost} checkpoints lost"
    return Found(trials, int(lost), {"kills_lost": lost, "inside": inside, "load_s": slowest}, words)


def flush_order(folder: Path, quick: bool) -> Found:
    """The order of the calls that decide what a power cut leaves."""
    calls: list[str] = []

    def note(word: str) -> bool:
        calls.append(word)
        return True

    def sync(original: Any) -> Any:
        return lambda fd: note(Path(os.readlink(f"/proc/self/fd/{fd}")).name) and original(fd)

    def move(original: Any) -> Any:
        return lambda a, b: note(f"> {Path(b).name}") and original(a, b)

    with wrapped(os, "fsync", sync), wrapped(os, "rename", move), wrapped(os, "replace", move):
        path = checkpoint.save(folder / "checkpoints", state(1), 1)
        first, calls = calls, []
        checkpoint.write_atomically(folder / "config.yaml", "a: 1\n")
    temporary = f"tmp-{os.getpid()}-1"
    latest = [f"{checkpoint.LATEST}.tmp-{os.getpid()}", f"> {checkpoint.LATEST}", "checkpoints"]
    wanted = [*FILES, temporary, f"> {path.name}", "checkpoints", *latest]
    text = [f"config.yaml.tmp-{os.getpid()}.yaml", "> config.yaml", folder.name]
    failed = (first != wanted) + (calls != text)
    return Found(2, failed, {}, f"a checkpoint: {' '.join(first)}; a text: {' '.join(calls)}")


SHUT_DOWN, NOTHING_MORE = 0x8004587D, struct.pack("I", 2)  # EXT4_IOC_SHUTDOWN; its journal stays as it is, too


def power_cut(folder: Path, quick: bool) -> Found:
    """A file system that writes nothing more from one moment to the next, while checkpoints are saved on it.

    Every `save` that returned is noted in a file elsewhere. Then the disk is mounted again, as after a power cut: what
    was not flushed is gone.
    """
    trials, image, place, returned = 3 if quick else 50, folder / "image", folder / "disk", folder / "returned"
    rng = np.random.default_rng(4)
    place.mkdir()

    def loop() -> int:
        step = max(loaded(place / "checkpoints")[1], 0)
        while True:
            step += 1
            checkpoint.save(place / "checkpoints", state(step, SIZE), step)
            returned.write_text(str(step))

    def cuts() -> int:
        if not own_disks():
            return 9
        subprocess.run(["truncate", "-s", "64M", image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        lost = unfinished = last = 0
        for _ in range(trials):
            if subprocess.run(["mount", "-o", "loop", image, place]).returncode:
                return 9
            with Child(loop, folder / "loop.txt") as child:
                until(lambda: returned.exists() and int(returned.read_text() or 0) > last)  # noqa: B023
                time.sleep(0.2 * rng.random())
                opened = os.open(place, os.O_RDONLY)
                fcntl.ioctl(opened, SHUT_DOWN, NOTHING_MORE)
                os.close(opened)
                child.wait(20)  # its next save fails
            last = int(returned.read_text())
            subprocess.run(["umount", place], check=True)
            subprocess.run(["mount", "-o", "loop", image, place], check=True)
            unfinished += any((place / "checkpoints").glob("tmp-*"))
            found, step, said = loaded(place / "checkpoints")
            lost += step < last or bool(said) or not (found["x"] == step).all()
            last = max(step, last)
            subprocess.run(["umount", place], check=True)
        print(f"SEEN {lost} {unfinished} {last}")
        return 0

    code, printed = run(cuts, folder / "cuts.txt", 900)
    if code == 9:
        return Found(0, 0, {}, "nobody may mount a disk here")
    lost, unfinished, saves = (int(number) for number in printed.rpartition("SEEN ")[2].split())
    words = f"{trials} cuts in {saves} saves left {unfinished} half-written folders; {lost} checkpoints were lost"
    return Found(trials, lost, {"lost": lost, "saves": saves}, words)


def torn_records(folder: Path, quick: bool) -> Found:
    """What a run keeps beside its checkpoints is torn, emptied, made of random bytes, or gone; the command again."""
    from tests.faults.resume import difference

    warm()
    noise = np.random.default_rng(5).bytes(5000)
    texts = (b"", b'{"state": "runn', b"[1, 2]", b'{"state": [], "key": 3}', noise, None)
    spoilt = [(name, text) for name in ("status.json", "metrics.csv", "config.yaml") for text in texts]
    whole, wrong = folder / "whole", []
    options = {"total_timesteps": 512, "reward": "rnd"}
    run(lambda: train(run_dir=whole, **options), folder / "out.txt")
    tried = spoilt[::5] if quick else spoilt
    for number, (name, text) in enumerate(tried):
        place = folder / str(number)
        shutil.copytree(whole, place)
        (newest,) = (place / "checkpoints").glob("*512")
        shutil.rmtree(newest)
        (place / "checkpoints" / checkpoint.LATEST).write_text("step_000000000448\n")
        (place / "status.json").write_text(json.dumps({**status(whole), "state": "stopped"}))
        (place / name).unlink() if text is None else (place / name).write_bytes(text)
        code, printed = run(lambda place=place: train(run_dir=place, **options), folder / "out.txt")  # type: ignore[misc]
        gap, where = difference(whole, place, rows=name != "metrics.csv")
        if code or gap or "continues at step 448" not in printed or status(place).get("state") != "finished":
            wrong.append(f"{name} of {text[:12] if text else text!r}: code {code}, {where} differs by {gap:g}")
    words = "; ".join(wrong) or "each run went on from its checkpoint to the same weights"
    return Found(len(tried), len(wrong), {}, words)


def cut(folder: Path, quick: bool) -> Found:
    """Each file of the newest checkpoint shortened by one byte, by 30 and by 99 percent, and emptied."""
    trials = failed = 0
    for name in FILES:
        for kept in (1 - 1e-9, 0.7, 0.01, 0.0):
            place = folder / f"{name}-{kept:.2f}"
            checkpoint.save(place, state(1), 1)
            file = checkpoint.save(place, state(2), 2) / name
            data = file.read_bytes()
            file.write_bytes(data[: int(len(data) * kept)])
            found, step, said = loaded(place)
            trials += 1
            failed += not (step == 1 and found["value"] == 1 and len(said) == 1 and file.parent.name in said[0])
    return Found(trials, failed, {}, f"{trials - failed} of {trials} cuts were named, and the checkpoint before loaded")


def flipped(folder: Path, quick: bool) -> Found:
    """One bit of a checkpoint, at random."""
    path = checkpoint.save(folder, state(1, 1000), 1)
    rng = np.random.default_rng(2)
    trials, failed = 200, 0
    for _ in range(trials):
        file = path / FILES[rng.integers(3)]
        good = file.read_bytes()
        bad = bytearray(good)
        bad[rng.integers(len(bad))] ^= 1 << int(rng.integers(8))
        file.write_bytes(bad)
        try:
            checkpoint.read(path)
            failed += 1
        except checkpoint.CheckpointError:
            pass
        file.write_bytes(good)
    failed += checkpoint.read(path)[1] != 1
    return Found(trials, failed, {}, f"{trials - failed} of {trials} single bits were noticed")


def other_format(folder: Path, quick: bool) -> Found:
    """A checkpoint whose manifest names a format from the past or the future, its own checksum being right."""
    warm()
    failed, said = 0, ""
    place = folder / "run"
    run(lambda: train(run_dir=place, total_timesteps=128), folder / "out.txt")
    (place / "status.json").write_text(json.dumps({**status(place), "state": "stopped"}))
    (newest,) = (place / "checkpoints").glob("*128")
    manifest = json.loads((newest / checkpoint.MANIFEST).read_text())
    formats = (0, 1, 99)
    for number in formats:
        changed = {key: value for key, value in manifest.items() if key != "sha256"} | {"format": number}
        changed["sha256"] = checkpoint.digest(changed)
        (newest / checkpoint.MANIFEST).write_text(json.dumps(changed))
        code, printed = run(lambda: train(run_dir=place, total_timesteps=128), folder / "out.txt")
        said = next((line for line in printed.splitlines() if line.startswith("error: ")), "")
        failed += not (
            code == 2
            and sentence(printed)
            and f"has format {number}, this version reads format {checkpoint.CHECKPOINT_FORMAT}" in said
        )
    return Found(len(formats), failed, {}, f"code 2: {said.removeprefix('error: ').replace(str(folder), '')}")


def full_in_save(folder: Path, quick: bool) -> Found:
    """A disk that has room for two checkpoints, and a limit on the size of files that comes after the first."""
    warm()
    disks = []
    for kind in ("small disk", "size limit"):
        place = folder / kind.replace(" ", "-")

        def action(kind: str = kind, place: Path = place) -> int:
            """Train into the full disk, then say which checkpoint is there (a private disk ends with this process)."""
            if kind == "size limit":

                def limited(save: Any) -> Any:
                    def limiting(*arguments: Any, **options: Any) -> Any:
                        if loaded(place / "checkpoints")[1] < 0:
                            return save(*arguments, **options)
                        with full_disk(50_000):
                            return save(*arguments, **options)

                    return limiting

                with wrapped(checkpoint, "save", limited):
                    code = train(run_dir=place, total_timesteps=640)
            else:
                from runners.run.folder import RunFolder

                def begun(begin: Any) -> Any:
                    def mounting(self: Any, *arguments: Any) -> None:
                        begin(self, *arguments)
                        if not small_disk(self.checkpoints, 400_000):
                            print("NOT PERMITTED")

                    return mounting

                with wrapped(RunFolder, "begin", begun):
                    code = train(run_dir=place, total_timesteps=640)
            found, step, said = loaded(place / "checkpoints")
            finite = found is not None and all(np.isfinite(a).all() for a in pack(found)[1].values())
            print(f"LOADED {step if finite and not said else -1}")
            return code

        code, printed = run(action, folder / f"{place.name}.txt")
        step = int(printed.rpartition("LOADED ")[2].split()[0]) if "LOADED " in printed else -1
        kept = step > 0 and printed.count("no checkpoint at step") == 2  # the first, and the last
        kept &= status(place).get("step") == 640 and "training continues" in printed and "Traceback" not in printed
        if "NOT PERMITTED" not in printed:
            disks.append((kind, code == 5 and kept, step, code))
    failed = sum(not kept for _, kept, _, _ in disks)
    words = "; ".join(f"{kind}: checkpoint {step} whole, trained to 640, code {code}" for kind, _, step, code in disks)
    return Found(len(disks), failed, {}, words)


def full_in_logs(folder: Path, quick: bool) -> Found:
    """Every write of the CSV, of TensorBoard's file, of the curve and of the film meets a full disk."""
    import runners.run.curve
    import runners.run.progress
    import runners.run.video

    warm()
    scores = {"run_dir": folder / "plain", "total_timesteps": 320, "eval_episodes": 1}
    options = {**scores, "video": "true", "reward": "rnd"}
    run(lambda: train(**options), folder / "plain.txt")

    def full(original: Any) -> Any:
        def limited(*arguments: Any, **keywords: Any) -> Any:
            with full_disk(0):
                return original(*arguments, **keywords)

        return limited

    def action() -> int:
        logs = (runners.run.progress.CSVLog, "write"), (runners.run.progress.TensorBoardLog, "write")
        for owner, name in (*logs, (runners.run.video, "record_video"), (runners.run.curve, "curve")):
            setattr(owner, name, full(getattr(owner, name)))
        return train(**{**options, "run_dir": folder / "full"})

    code, printed = run(action, folder / "full.txt")
    arrays = [pack(loaded(folder / name / "checkpoints")[0])[1] for name in ("plain", "full")]
    largest = max(
        (float(np.abs(a.astype(np.float64) - arrays[1][key]).max(initial=0.0)) for key, a in arrays[0].items()),
        default=float("inf"),
    )
    warned = [
        printed.count(f"{name} is switched off for the rest of this run") for name in ("metrics.csv", "tensorboard")
    ]
    lost = [f"{name}:" in printed and f"{name + ':':<13}none (" in printed for name in ("curve", "video")]
    seen = (code == 0, largest == 0 and arrays[0].keys() == arrays[1].keys(), warned == [1, 1], all(lost))
    words = f"code {code}, one warning each, largest difference of {len(arrays[0])} arrays {largest:g}"
    return Found(len(seen), seen.count(False), {"max_diff": largest}, words)


def unwritable(folder: Path, quick: bool) -> Found:
    """A run's folder below one that is read-only, on a path through a file, and on a disk that is full."""
    warm()
    folder.chmod(0o755)
    (folder / "closed").mkdir(mode=0o555)
    (folder / "file").touch()
    codes, seconds, failed = [], [], 0
    cases = [("root", "closed", 5), ("run_dir", "closed/run", 5), ("root", "file", 2), ("root", "full", 5)]
    for key, name, wanted in cases if os.geteuid() == 0 else cases[:-1]:  # only root may make a disk

        def action(key: str = key, name: str = name) -> int:
            if name == "full":
                assert small_disk(folder / name, 8192), "no disk of its own is permitted to this process"
                (folder / name / "filling").write_bytes(bytes(8192))
            return timed(**{key: folder / name})

        code, printed = run(action, Path(f"{folder}.txt"), drop=name.startswith("closed"))
        codes.append(code)
        seconds.append(taken(printed))
        failed += code != wanted or not sentence(printed) or "run: " in printed or seconds[-1] > 2
    words = f"codes {codes}, one sentence each before training, after {max(seconds):.2f} s of computing at most"
    return Found(len(codes), failed, {"cpu_s": max(seconds)}, words)


def timed(**options: Any) -> int:
    """`train`, printing the seconds that this process computed; a busy machine does not make them more."""
    began = time.process_time()
    code = train(**options)
    print(f"SECONDS {time.process_time() - began}")
    return code


def taken(printed: str) -> float:
    """What `timed` printed."""
    return float(printed.rpartition("SECONDS ")[2].split()[0]) if "SECONDS " in printed else float("inf")


def two_runs(folder: Path, quick: bool) -> Found:
    """A second run on the folder that a first one works in."""
    warm()
    place = folder / "run"
    with Child(lambda: train(run_dir=place, total_timesteps=1e7), folder / "first.txt") as first:
        until((place / "checkpoints" / checkpoint.LATEST).exists)
        code, printed = run(lambda: timed(run_dir=place, total_timesteps=1e7), folder / "second.txt")
        alive = first.alive
        os.kill(first.pid, signal.SIGTERM)
        ended = first.wait(60)
    seconds = taken(printed)
    named = f"is in use by process {first.pid}" in printed and sentence(printed)
    words = f"code {code} after {seconds:.2f} s of computing, naming the first one's pid; that one goes on"
    kept = code == 8 and named and alive and ended == 143 and seconds <= 1
    return Found(1, int(not kept), {"cpu_s": seconds}, words)


FAULTS = [
    Fault("signal-in-save", "SIGTERM inside a save", "Code 143 and a whole checkpoint, 100 of 100.", signal_in_save),
    Fault("killed-in-save", "kill -9 during a save", "No checkpoint is lost in 200 kills.", kill_in_save),
    Fault("power-cut", "a power cut", "Every checkpoint whose save returned is whole, 50 of 50.", power_cut),
    Fault(
        "flush-order",
        "the order of writes, on which a power cut depends",
        "Files are flushed before the rename, the folder after it.",
        flush_order,
        real=False,
    ),
    Fault(
        "torn-records",
        "status, log or configuration of a run are torn, empty, of another form, random bytes or gone",
        "The same command goes on from the newest checkpoint; no weight differs.",
        torn_records,
    ),
    Fault("cut-file", "a truncated checkpoint", "It is named, and the one before is used, always.", cut),
    Fault("flipped-bit", "one changed bit", "200 of 200 are noticed.", flipped),
    Fault("other-format", "a checkpoint of another format", "One sentence, code 2.", other_format),
    Fault(
        "full-in-save",
        "a full disk in a save",
        "Earlier checkpoints stay whole, training continues to its end, code 5.",
        full_in_save,
    ),
    Fault(
        "full-in-logs",
        "a full disk in CSV, TensorBoard, film",
        "One warning each; what is learned does not change.",
        full_in_logs,
        real=False,
    ),
    Fault("unwritable", "a folder that cannot be written", "One sentence within 2 s, before training.", unwritable),
    Fault("two-runs", "two runs, one folder", "The second is refused at once with the first one's pid.", two_runs),
]
