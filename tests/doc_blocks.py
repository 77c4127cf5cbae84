"""The blocks of README and guides: commands and Python that a reader copies, run with their budgets cut.

    python -m tests.doc_blocks README guide/start       some pages

A page runs in a folder of its own, top to bottom: commands as processes, Python in one process, and a block whose first
line is a comment with a file's name is written to that file.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Recipes for libraries that are not installed beside ours have another name.
FENCED = re.compile(r"^```(shell|python)(?: sb3_\w+| cleanrl)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^    .+\n)+", re.MULTILINE)
COMMAND = re.compile(r"(lodestar|python -m (runners\.)?)\s*\b")
# Not run, and why: tests must not change what is installed, download, take hours, or wait for a person's answers.
LEFT_OUT = re.compile(
    r"pip install|make \w+|weights=openai|python -m (tests|benchmarks)\b|^(vllm|ollama|llama-server) "
    r"|judge=human|judge=local|lodestar fetch|path: preferences/|comparisons=pairs|path: ann.jsonl"
)
SHORT = {
    "train": ["total_timesteps=64", "eval_episodes=1", "video=false", "control=none"],
    "compare": ["frames=100"],
    "evaluate": ["episodes=1", "video=false"],
    "explain": ["episodes=2", "steps=20"],
    "watch": ["episodes=1", "steps=20"],
    "record": ["steps=200"],
    "offline": ["steps=20", "queries=10", "episodes=1"],
    "tune": ["trials=1", "seeds=1", "test_seeds=1"],
    "transfer": ["budget=2"],
    "clip": ["frames=200", "steps=1", "text_steps=1"],
}
SHORT["sweep"] = [*SHORT["train"], "seed=0"]
SHORT["tune"] += SHORT["train"]
SHORT["transfer"] += SHORT["train"]
SHORT["design"] = ["rounds=1", "candidates=2", "finalists=1", "test_seeds=1", *SHORT["train"]]
# What a page's program takes for granted.
BEFORE = {
    "exploration": "from stable_baselines3 import SAC\npolicy = lambda obs: [0.0]\n",
    "README": "import agents, envs.make, lodestar as ld\nfrom stable_baselines3 import DQN, PPO\n"
    "from stable_baselines3.common.buffers import ReplayBuffer\n"
    "from stable_baselines3.common.vec_env import DummyVecEnv\n"
    "from rewards.adapters.sb3 import RewardCallback, relabelling\n"
    "venv = DummyVecEnv([lambda: envs.make.make('CartPole-v1')])\n"
    "mix = ld.make_reward(['task', 'rnd'], envs.make.make('CartPole-v1'))\n",
}


@dataclass(frozen=True)
class Block:
    """One of a page."""

    line: int
    kind: str  # shell or python
    text: str

    @property
    def runs(self) -> bool:
        """Whether it is run: not what is left out."""
        return self.kind == "python" or not all(LEFT_OUT.search(line) for line in commands(self.text))


def pages() -> dict[str, str]:
    """Name -> text of README and every page that is written by hand."""
    written = sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs" / "guide").glob("*.md"))
    found = {path.relative_to(ROOT / "docs").with_suffix("").as_posix(): path.read_text() for path in written}
    return found | {"README": (ROOT / "README.md").read_text()}


def blocks(text: str) -> list[Block]:
    """The blocks of a page, in its order: fenced ones, and indented ones that begin with a command of ours."""
    found = [(match.start(), match[1], match[2]) for match in FENCED.finditer(text)]
    plain = re.sub(r"^```.*?^```", lambda match: re.sub(r"[^\n]", "#", match[0]), text, flags=re.MULTILINE | re.DOTALL)
    for match in INDENTED.finditer(plain):
        code = textwrap.dedent(match[0])
        if COMMAND.match(code) or code.startswith("make "):
            found.append((match.start(), "shell", code))
    return [Block(text.count("\n", 0, at) + 1, kind, code) for at, kind, code in sorted(found)]


def commands(text: str) -> list[str]:
    """The command lines of a block, without what it says beside them."""
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [line for line in (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in lines) if line]


def shortened(line: str, folder: Path, server: str) -> list[str]:
    """A command line as a process with a small budget: `...` is what stands there, a judge's server is our `server`."""
    line = line.replace("{model: qwen3-4b-instruct}", '{model: qwen3-4b-instruct, url: "http://localhost:8000/v1"}')
    line = line.replace(
        "judge.model=qwen3-4b-instruct", "judge.model=qwen3-4b-instruct judge.url=http://localhost:8000/v1"
    )
    words = shlex.split(COMMAND.sub("", line, count=1).replace("http://localhost:8000/v1", server))
    verb, rest = words[0], words[1:]
    for i, word in enumerate(rest):
        key, _, value = word.rpartition("=")
        stem = value.removesuffix("...").strip("/") or "runs"
        if value.endswith("...") and not key:
            rest[i] = stem
        elif value.endswith("..."):
            newest = max((folder / stem).rglob("status.json"), key=lambda path: path.stat().st_mtime)
            rest[i] = f"{key}={newest.parent.relative_to(folder)}"
    cut = {word.partition("=")[0]: word for word in SHORT.get(verb, [])}
    rest = [word for word in rest if word.partition("=")[0] not in cut]
    return [sys.executable, "-m", "lodestar", verb, *rest, *cut.values()]


def run(page: str, folder: Path, server: str) -> list[str]:
    """Run a page's blocks in an empty folder; returns a line for each that failed."""
    failed, program = [], BEFORE.get(page, "")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OPENAI_API_KEY": "none"}

    def call(block: Block, what: str, words: list[str]) -> None:
        words = ["timeout", "600", *words]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            failed.append(f"{page}, line {block.line}: {what}: code {done.returncode}: {done.stderr.strip()[-400:]}")

    for block in blocks(pages()[page]):
        named = re.match(r"# (\w+\.py)", block.text)
        if block.kind == "python" and named:
            with (folder / named[1]).open("a") as file:
                file.write(block.text)
            call(block, named[1], [sys.executable, named[1]])
        elif block.kind == "python":  # and what stands before it on the page
            program += re.sub(r"(\.learn\(\s*|total_timesteps=)[\d_]+", r"\g<1>64", block.text)
            (folder / "program.txt").write_text(program)
            call(block, "Python", [sys.executable, "program.txt"])
        else:
            for line in commands(block.text):
                if not LEFT_OUT.search(line):
                    call(block, line, shortened(line, folder, server))
    return failed


def run_page(page: str) -> list[str]:
    """Run a page in a temporary folder beside a server of ours."""
    sys.path.insert(0, str(ROOT / "tests"))
    from model_server import ModelServer

    def think(text: str, images: list[object]) -> str:
        if "reward(obs, action, next_obs)" in text:
            return 'def reward(obs, action, next_obs):\n    return {"first": next_obs[:, 0]}\n'
        return f'{{"reason": "it says so", "label": "{("helpful", "neutral")[len(text) % 2]}"}}'

    with tempfile.TemporaryDirectory() as folder, ModelServer(think) as server:
        return run(page, Path(folder), server.url)


if __name__ == "__main__":
    names = sys.argv[1:] or [*pages()]
    lines = [line for name in names for line in run_page(name)]
    print("\n".join(lines) or f"{sum(block.runs for name in names for block in blocks(pages()[name]))} blocks run")
    sys.exit(bool(lines))
