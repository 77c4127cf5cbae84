"""What a language model's server can do, the file in which its answers are kept, and an agent that writes itself.

A server that goes away for a minute in the middle of a run is `python -m benchmarks outage`.
"""

from __future__ import annotations

import re
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from tests.faults import Fault, Found
from tests.faults.child import Child
from tests.model_server import Flood, ModelServer, breaks_off, drips, drips_headers, hangs, status

JUDGE = "rules 0123456789abcdef"


def misbehaving(folder: Path, quick: bool) -> Found:
    """Forty ways to answer badly, and captions that give orders; see `tests.faults.judge_faults`."""
    from tests.faults.judge_faults import run

    found = run(folder)
    failed = found["mislabels"] + found["injection_flips"] + found["leaked_keys"]
    trials = int(found["faults"] + found["injections"])
    words = f"{found['mislabels']:.0f} wrong labels from {found['faults']:.0f} faults of a server, "
    words += f"{found['injection_flips']:.0f} of {found['injections']:.0f} injections changed a label"
    return Found(trials, int(failed), {key: float(value) for key, value in found.items()}, words)


def torn(folder: Path, quick: bool) -> Found:
    """The head of the file of answers is overwritten."""
    from rewards.llm.store import AnswerStore, Label

    path = folder / "answers.sqlite"
    said: list[str] = []
    with closing(AnswerStore(path)) as cache:
        cache.put(JUDGE, [Label("a door", 1.0)])
    path.write_bytes(bytes(100) + path.read_bytes()[100:])
    with closing(AnswerStore(path, say=said.append)) as cache:
        cache.put(JUDGE, [Label("a wall", 0.0)])
        known = cache.get(JUDGE, ["a door", "a wall"])
    aside = [other.name for other in folder.iterdir() if ".bad" in other.name]
    kept = known == {"a wall": 0.0} and len(said) == 1 and len(aside) == 1
    return Found(1, int(not kept), {}, f"put aside as {', '.join(aside)}; a new one took what came next")


def writers(folder: Path, quick: bool) -> Found:
    """Four processes write into one file of answers at once."""
    from rewards.llm.store import AnswerStore, Label

    rows, size = (500 if quick else 5000), 50
    path = folder / "answers.sqlite"

    def write(number: int) -> int:
        said: list[str] = []
        with closing(AnswerStore(path, wait=60, say=said.append)) as cache:
            for start in range(0, rows, size):
                cache.put(JUDGE, [Label(f"{number} {i}", 1.0) for i in range(start, start + size)])
        return len(said)

    with ExitStack() as stack:
        children = [stack.enter_context(Child(lambda n=n: write(n), folder / f"{n}.txt")) for n in range(4)]  # type: ignore[misc]
        codes = [child.wait(300) for child in children]
    with closing(AnswerStore(path)) as cache, closing(sqlite3.connect(path)) as connection:
        there = len(cache)
        sound = connection.execute("PRAGMA integrity_check").fetchone()[0]
    failed = 4 * rows - there + sum(code != 0 for code in codes) + (sound != "ok")
    return Found(4 * rows, failed, {}, f"{there:,} of {4 * rows:,} rows there, exit codes {codes}, integrity {sound}")


LABEL = '{"reason": "", "label": "helpful"}'
NOBODY = "http://127.0.0.1:9/v1"
WRITTEN = "You kill the newt!"  # what the rulebook of NetHack calls helpful


def _annotator(url: str, **options: Any) -> Any:
    from rewards.llm.annotation.annotator import Annotator

    asked = {"model": "tiny", "url": url, "goal": "good ones", "timeout": 5.0, "backoff": 0.01}
    return Annotator("openai", {**asked, **options.pop("asked", {})}, **{"probe": 0.5, **options})


def _collect(annotator: Any, count: int, seconds: float = 60.0) -> list[str]:
    """The first texts that get an answer, or as many as there are after so many seconds."""
    got: list[str] = []
    end = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < end:
        got += [text for text, _ in annotator.take(0)]
        time.sleep(0.01)
    return got


def slowed(folder: Path, quick: bool) -> Found:
    """The server asks for two seconds of patience, once for each of some texts."""
    asked, texts = 2.0, [f"text {i}" for i in range(2 if quick else 10)]
    came: list[float] = []

    def think(text: str, images: list[Any]) -> str:
        came.append(time.monotonic())
        return LABEL

    def refuse(handler: Any) -> None:
        came.append(time.monotonic())
        status(429, "slow down", Retry_After=f"{asked:g}")(handler)

    waits: list[float] = []
    with ModelServer(think) as server, closing(_annotator(server.url, concurrency=1)) as annotator:
        annotator.offer(["the first starts the process"], 0)
        got = _collect(annotator, 1)
        for text in texts:
            server.plan = [refuse]
            annotator.offer([text], 0)
            got += _collect(annotator, 1)
            waits.append(came[-1] - came[-2])
        questions = len(server.seen)
    wrong = sum(not 0.8 * asked <= wait <= 1.2 * asked for wait in waits)
    twice = abs(questions - 2 * len(texts) - 1) + (sorted(got[1:]) != sorted(texts))
    words = f"waited {min(waits):.2f} to {max(waits):.2f} s of the {asked:g} asked for, no text was asked twice"
    return Found(len(texts), wrong + twice, {"wait_s": max(waits)}, words)


def burst(folder: Path, quick: bool) -> Found:
    """Every answer is an error, or is cut off, for a while; an environment is stepped meanwhile."""
    import gymnasium as gym

    failed, slowest, shares = 0, 0.0, []
    faults = [status(500), breaks_off]
    for fault in faults:
        with ModelServer(lambda text, images: LABEL) as server, closing(_annotator(server.url)) as annotator:
            server.plan = [fault] * 100_000
            texts, envs = [f"text {i}" for i in range(40)], gym.make_vec("CartPole-v1", 16, "sync")
            annotator.offer(texts, 0)
            envs.reset(seed=0)
            busy, end, began = 0.0, time.monotonic() + (2 if quick else 30), time.thread_time()
            while time.monotonic() < end or not annotator.metrics()["breaker"]:
                for _ in range(64):
                    envs.step(envs.action_space.sample())
                before = time.thread_time()
                annotator.offer(texts, 0)
                failed += len(annotator.take(0))  # there are no labels to be had
                busy += time.thread_time() - before
            shares.append(busy / (time.thread_time() - began))
            server.plan.clear()
            back = time.monotonic()
            failed += sorted(_collect(annotator, len(texts))) != sorted(texts)
            slowest = max(slowest, time.monotonic() - back)
    failed += (slowest > 60) + (max(shares) > 0.05)
    words = f"{max(shares):.1%} of the training thread went to asking; all labels came {slowest:.1f} s after the outage"
    return Found(len(faults), failed, {"share": max(shares), "recovered_s": slowest}, words)


def hanging(folder: Path, quick: bool) -> Found:
    """No answer, a dripping one, dripping headers: a hundred questions of each."""
    from rewards.llm.judges.base import make_judge

    count, limit = (32 if quick else 100), 0.25
    slowest, left, answered = 0.0, 0, 0
    with ModelServer(lambda text, images: LABEL) as server:
        judge = make_judge(
            "openai", model="m", url=server.url, goal="g", timeout=limit, attempts=1, concurrency=16, key=""
        )
        judge.label(["the first starts a thread"])
        before = _threads()
        for plan in (hangs(5), drips(5), drips_headers(5)):
            server.plan = [plan] * count
            began = time.monotonic()
            answered += int((~judge.label([f"text {i}" for i in range(count)]).failed).sum())
            slowest = max(slowest, (time.monotonic() - began) / (count / 16))
        judge.close()
        end = time.monotonic() + 5  # the last ones of a pool need a moment to end
        while (left := len(_threads() - before)) and time.monotonic() < end:
            time.sleep(0.05)
    failed = left + answered + (slowest > 2.0)
    words = f"{left} threads are left of {3 * count} questions; each was given up after {slowest:.2f} s of {limit:g}"
    return Found(3 * count, failed, {"slowest_s": slowest}, words)


def _threads() -> set[threading.Thread]:
    """Those of this process but the server's."""
    return {thread for thread in threading.enumerate() if "process_request" not in thread.name}


def flooded(folder: Path, quick: bool) -> Found:
    """An answer of 100 MB."""
    from rewards.llm.judges.base import make_judge

    trials, floods = (2 if quick else 10), []
    with ModelServer(lambda text, images: LABEL) as server:
        judge = make_judge("openai", model="m", url=server.url, goal="g", attempts=1)
        judge.label(["the first starts a thread"])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(trials):
            floods.append(Flood())
            server.plan = [floods[-1]]
            judge.label([f"text {number}"])
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        judge.close()
    most = max(flood.sent for flood in floods) / 2**20
    failed = int(grown > 50) + sum(flood.sent >= 100 * 2**20 for flood in floods)
    return Found(trials, failed, {"mib": grown}, f"memory grew by {grown:.1f} MiB; at most {most:.1f} MiB were taken")


def absent(folder: Path, quick: bool) -> Found:
    """Nobody listens where the judge should be, when runs begin."""
    from rewards.language.oni import ONI, ONIConfig

    failed, slowest = 0, 0.0
    options = f'{{url: "{NOBODY}", model: m}}'
    command = [sys.executable, "-m", "runners.train", "env=MiniGrid-Empty-5x5-v0", "reward=oni"]
    command += ["reward.oni.judge=openai", f"reward.oni.judge_options={options}", "env.captions=full", "agent=ppo"]
    command += ["total_timesteps=2000", "control=none", "video=false", "eval_episodes=0", "n_envs=2"]
    endings: dict[str, Callable[[int, str, str], bool]] = {
        "stop": lambda code, out, err: (
            code != 0 and err.startswith("error: ") and err.count("\n") == 1 and "start the server" in err
        ),
        "rules": lambda code, out, err: code == 0 and "labels of this run are those of rules" in out,
        "wait": lambda code, out, err: code == 0 and "the run waits for it" in out,
    }
    chosen = list(endings)[:2] if quick else list(endings)
    for ending in chosen:
        run = [*command, f"reward.oni.absent={ending}", f"run_dir={folder / ending}"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=300)
        failed += not endings[ending](done.returncode, done.stdout, done.stderr)
        failed += ending == "stop" and (folder / ending / "status.json").exists()
    import gymnasium as gym

    space = gym.spaces.Discrete(2)
    for _ in range(3):
        config = ONIConfig(judge="openai", judge_options={"url": NOBODY, "model": "m"}, goal="g")
        began = time.monotonic()
        failed += not ONI(config, space, space).preflight()
        slowest = max(slowest, time.monotonic() - began)
    failed += slowest > 3
    words = f"noticed within {slowest:.2f} s; refused with a sentence, or trained as the setting says"
    return Found(len(chosen) + 3, failed, {"noticed_s": slowest}, words)


def written(folder: Path, quick: bool) -> Found:
    """In a real game the agent engraves a message that its judge would like, reads it, and gives its pet a name."""
    from nle import nethack

    from envs.make import make
    from rewards.llm.judges.base import make_judge

    judge, told = make_judge("rules", family="nethack"), []
    seeds = 2 if quick else 10
    for seed in range(1, seeds + 1):
        env = make(
            "NetHackScore-v0",
            text=True,
            actions=tuple(nethack.ACTIONS),
            allow_all_yn_questions=True,
            allow_all_modes=True,
        )
        actions = [int(action) for action in env.unwrapped.actions]  # type: ignore[attr-defined]
        env.reset(seed=seed)
        for key in f"E-   {WRITTEN}\r:: Cmm,{WRITTEN}\r" + "hjklyubn" * 4 + f"E-   {WRITTEN}\r:: ":
            _, _, terminated, truncated, info = env.step(actions.index(ord(key)))
            told.append(info["text"])
            if terminated or truncated:
                break
        env.close()
    assert judge.label([WRITTEN]).value[0] == 1
    echoes = [text for text in told if WRITTEN[:6].lower() in text.lower()]
    liked = [text for text, value in zip(told, judge.label(told).value) if value and "written" in text]
    marked = sum("(written)" in text for text in told)
    failed = len(echoes) + len(liked) + (marked < 20 * seeds)
    words = f"{marked} messages held what the agent wrote, {len(liked)} were called helpful, {len(echoes)} repeated it"
    return Found(len(told), failed, {}, words)


def removed(folder: Path, quick: bool) -> Found:
    """The file of answers is deleted while a run uses it, alone or with its log, and again."""
    from rewards.llm.store import AnswerStore

    path, trials, texts = folder / "labels.sqlite", (2 if quick else 20), []
    with (
        ModelServer(lambda text, images: LABEL) as server,
        closing(_annotator(server.url, cache=str(path))) as annotator,
    ):
        for trial in range(trials):
            new = [f"text {trial} {i}" for i in range(5)]
            annotator.offer(new, 0)
            texts += _collect(annotator, 5)
            for file in [path] if trial % 2 else list(folder.glob("labels.sqlite*")):
                file.unlink(missing_ok=True)
        said = [event for event in annotator.events if re.search("was removed or replaced", event)]
        identity = annotator.state_dict()["identity"]
    with closing(AnswerStore(path)) as store:
        kept = store.get(identity, texts)
    failed = 5 * trials - len(kept) + (len(said) < trials - 1)
    return Found(trials, failed, {}, f"{len(kept)} of {5 * trials} labels are in the file, {len(said)} warnings")


def shared(folder: Path, quick: bool) -> Found:
    """A file of answers that somebody else has written to: numbers out of range, words and bytes for numbers."""
    from rewards.llm.store import AnswerStore, Label

    path, failed = folder / "answers.sqlite", 0
    values: tuple[Any, ...] = (1e9, -1.0, float("inf"), float("-inf"), 1.0000001, "helpful", "1e9", b"\x00", b"1")
    with closing(AnswerStore(path)) as store:
        store.put(JUDGE, [Label(f"text {number}", 1.0) for number in range(len(values))])
    with closing(sqlite3.connect(path)) as connection, connection:
        for number, value in enumerate(values):
            connection.execute("UPDATE labels SET value = ? WHERE text = ?", (value, f"text {number}"))
    with closing(AnswerStore(path)) as store:
        for text in (f"text {number}" for number in range(len(values))):
            failed += store.get(JUDGE, [text]) != {}
            store.put(JUDGE, [Label(text, 0.0)])
            failed += store.get(JUDGE, [text]) != {text: 0.0}
    return Found(
        len(values), failed, {}, f"{failed} of {len(values)} came back as a label; the next answer took its place"
    )


FAULTS = [
    Fault("shared-answers", "rows that are no labels", "None is one; the next answer replaces it.", shared),
    Fault("torn-answers", "the file of answers is damaged", "It is put aside, and the run goes on.", torn),
    Fault("four-writers", "four writers, one file of answers", "No row is lost, no lock is an error.", writers),
    Fault("slow-down", "429 with Retry-After", "Waited for as asked, within 20 %; no text twice.", slowed),
    Fault("server-errors", "500s and cut answers for a while", "Training loses < 5 %; labels within 60 s.", burst),
    Fault("server-hangs", "a server hangs, or drips", "Each is given up in time, no thread is left.", hanging),
    Fault("flood", "an answer of 100 MB", "Memory grows by less than 50 MiB.", flooded),
    Fault("server-absent", "no server when a run begins", "Noticed in 3 s: stop, rules or wait, as set.", absent),
    Fault("agent-writes", "the agent engraves and names", "What it wrote is in no caption, not helpful.", written),
    Fault("answers-removed", "the file of answers is deleted", "It is written anew, no label is lost.", removed),
    Fault("judge-misbehaves", "a judge's server answers badly", "No label is wrong, no key is repeated.", misbehaving),
]
