"""Code: the reward is a short function, written by a person or a language model and run without trusting it.

    def reward(obs, action, next_obs):           arrays (B, D), (B, A), (B, D): B steps, one a row
        height = np.sin(3 * next_obs[:, 0])
        return {"height": height, "speed": 10 * next_obs[:, 1] ** 2}

A fourth argument, signals (B, K), are numbers of the simulator after the step, where the environment has some.
Its components are arrays (B,); their sum is the reward, and the mean of each is logged under its name (code/height).
`runners.design` asks for such code, tries it, and writes the best into a file.
Sources: Ma et al. 2023, "Eureka: Human-Level Reward Design via Coding Large Language Models" (arXiv 2310.12931); Xie et
al. 2023, "Text2Reward: Reward Shaping with Language Models for Reinforcement Learning" (arXiv 2309.11489).
Differences: the code reads observations, not the simulator's variables; it is NumPy over a batch in a sandbox
(`rewards.llm.sandbox.process`), where the sources call `exec` where they train.
When it fails: observations lack what the task is about; the sum can be farmed (`rewards.gate`, `shape=potential`); code
that fails in the middle of a run is 0 from then on, and a note says so.

Example:
    python -m runners.train env=MountainCar-v0 reward=code reward.code.file=my_reward.py
"""

import ast
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.transitions import Transitions
from envs.types import Memory
from lodestar.files import read_text, why_unread
from lodestar.settings import setting
from rewards.base import Reward, RewardConfig
from rewards.exploration.learned import IMAGE, Layout, refuse_rows
from rewards.language.lare import action_numbers, verify_code
from rewards.llm.sandbox.process import Sandbox, SandboxError, check, parse_code, refuse_unreadable

FORM = "reward(obs, action, next_obs)"
SIGNALS_FORM = "reward(obs, action, next_obs, signals)"
MAX_COMPONENTS = 12
COMPONENT_NAME = re.compile(r"[a-z]\w{0,39}", re.ASCII)
# The components of at most so many rows of an update are logged.
MAX_LOGGED_ROWS = 512
# obs beside next_obs (B, 2 D), and action (B, A) or, for code that reads signals, action beside signals (B, A + K).
Rows = tuple[np.ndarray, np.ndarray]
# Names of the components, the code as the sandbox takes it, and whether it reads signals.
Translated = tuple[tuple[str, ...], str, bool]


@dataclass
class CodeConfig(RewardConfig):
    """Settings of code."""

    file: str = setting("", "with reward(obs, action, next_obs); `runners.design` writes one")
    timeout: float = setting(5.0, "seconds for one batch, after which its code is stopped", "> 0")
    keys: list[str] = setting([], "entries of a Dict observation that it reads, in their names' order; [] for all")


class Programmed(Reward):
    """Base class of rewards that a function in a file computes, whose code runs in a sandbox."""

    # What the file defines, and how an error says so.
    function: str
    expected: str
    # How many observations it reads side by side, and how many numbers of an action.
    observations = 1
    action_size = 0

    def build(self) -> None:
        config = self.config
        self.layout = layout_of(self.observation_space, config.keys)
        try:
            source = read_text(Path(config.file).resolve(), errors="strict")
        except (OSError, UnicodeDecodeError) as error:
            reason = why_unread(config.file, error)
            raise ValueError(
                f"{config.prefix}file={config.file!r} {reason}; give a file with {self.expected}"
            ) from None
        self.program: Sandbox | None = None
        with self._refusals_named():
            self.names, self.source, self.reads_signals = self.translate(source)
            check(self.source)
        # How many signals there are is known when the first batch comes.
        if self.reads_signals:
            self.requires = self.requires | {"signals"}
        else:
            self.start()

    def translate(self, source: str) -> Translated:
        """As `component_program`."""
        raise NotImplementedError

    def start(self, n_signals: int = 0) -> Sandbox:
        """The process that runs the code, started where it does not run yet."""
        if self.program is None:
            obs_size = self.observations * self.layout.size
            with self._refusals_named():
                self.program = Sandbox(self.source, obs_size, self.action_size + n_signals, timeout=self.config.timeout)
        return self.program

    @contextmanager
    def _refusals_named(self) -> Iterator[None]:
        """What the sandbox refuses is a ValueError that names the file."""
        try:
            yield
        except SandboxError as error:
            reason = reword(error, self.function)
            raise ValueError(f"{self.config.prefix}file={self.config.file!r} was refused: {reason}") from None


class Code(Programmed):
    """r(s, a, s') = the sum of the components that the code returns."""

    Config = CodeConfig
    requires = frozenset({"obs", "action", "next_obs"})
    role = "goal"
    function = "reward"
    expected = f"{FORM}, as `python -m runners.design` writes it"
    observations = 2

    def build(self) -> None:
        self.action_size = int(np.prod(self.action_space.shape or ()))
        super().build()

    def translate(self, source: str) -> Translated:
        return translate(source, self.layout.size, self.action_size)

    def score(self, batch: Transitions, memory: Memory = None) -> np.ndarray:
        return self.components(batch).sum(axis=1)

    def components(self, batch: Transitions) -> np.ndarray:
        """What each part of the sum gave, float32 (N, k), in the order of `names`."""
        states, actions = rows_of(self.layout, batch, signals=self.reads_signals)
        return self.start(actions.shape[1] - self.action_size)(states, actions)

    def update(self, batch: Transitions) -> dict[str, float]:
        flat = batch.flatten()
        rows = np.flatnonzero(flat.valid)
        if not len(rows):
            return {}
        rows = rows[:: math.ceil(len(rows) / MAX_LOGGED_ROWS)]
        means = self.components(flat[rows]).mean(axis=0)
        return dict(zip(self.names, map(float, means)))

    def notes(self) -> list[str]:
        components = " + ".join(self.names)
        notes = self.program.notes() if self.program else []
        reworded = [reword(note, self.function) for note in notes]
        return [f"the reward is the code in {self.config.file}: {components}", *reworded]


def layout_of(space: Any, keys: Sequence[str] = ()) -> Layout:
    """How code reads observations of a space as D numbers; a ValueError for images and what has no numbers."""
    layout = Layout(space, keys, "code", channels=0, smallest_image=IMAGE)
    if layout.images:
        raise ValueError(f"reward code reads numbers, not the images of {space}; choose keys without")
    return layout


def rows_of(layout: Layout, batch: Transitions, signals: bool = False) -> Rows:
    """Flat transitions as code reads them, float32, with the signals beside the action where they are wanted."""
    states = list(map(layout.flatten, (batch.obs, batch.next_obs)))
    for rows in states:
        refuse_rows(rows, "code")
    action = action_numbers(batch.action)
    if signals:
        if batch.signals is None:
            raise ValueError(f"the code reads signals, and this environment has none; write {FORM}")
        action = np.concatenate([action, np.asarray(batch.signals, np.float32)], axis=1)
    return np.concatenate(states, axis=1), action


@refuse_unreadable()
def translate(source: str, size: int, n_actions: int = 1) -> Translated:
    """Names of the components, the code as the sandbox takes it, and whether it reads signals.

    Observations have `size` numbers, actions `n_actions`. Nothing is run. A SandboxError if the code defines no
    reward(obs, action, next_obs), or with signals, that ends with a dict.
    """
    plain_call = f"reward(obs[:, :{size}], action, obs[:, {size}:])"
    signals_call = f"reward(obs[:, :{size}], action[:, :{n_actions}], obs[:, {size}:], action[:, {n_actions}:])"
    return component_program(source, "reward", (FORM, SIGNALS_FORM), (plain_call, signals_call))


def component_program(source: str, function: str, forms: Sequence[str], calls: Sequence[str]) -> Translated:
    """The keys of the dict that a function ends with, a program that stacks its values, and whether it reads signals.

    forms are the signatures that it may have, without and with signals, which is its last argument; calls say how each
    is called with the sandbox's `obs` and `action`. A SandboxError for anything else.
    """
    tree = parse_code(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in (function, "factors")]
    lengths = [form.count(",") + 1 for form in forms]
    if [node.name for node in functions] != [function] or len(functions[0].args.args) not in lengths:
        raise SandboxError(f"the code must define one function {' or '.join(forms)}, and no factors")
    form = lengths.index(len(functions[0].args.args))
    last = functions[0].body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Dict):
        raise SandboxError(
            f'{function} must end with its components, as in return {{"height": height, "speed": speed}}'
        )
    names = [getattr(key, "value", None) for key in last.value.keys]
    well_formed = all(isinstance(name, str) and COMPONENT_NAME.fullmatch(name) for name in names)
    if not well_formed or not 0 < len({*names}) == len(names) <= MAX_COMPONENTS:
        raise SandboxError(f"components have 1 to {MAX_COMPONENTS} different names of small letters, digits and _")
    # The sandbox takes a function `factors` that returns one array: the dict becomes a list, which is stacked.
    last.value = ast.List(last.value.values, ast.Load())
    program = (
        f"{ast.unparse(ast.fix_missing_locations(tree))}\n\ndef factors(obs, action):\n"
        f"    parts = {calls[form]}\n"
        f"    return np.stack([np.broadcast_to(np.ravel(parts[i]), len(obs)) for i in range({len(names)})], axis=1)\n"
    )
    return tuple(map(str, names)), program, form == 1


def try_code(
    source: str, size: int, batches: Sequence[Rows], *, n_actions: int | None = None, **limits: Any
) -> tuple[str, ...]:
    """Names of the components of code that does well on batches of transitions.

    What stands behind the first `n_actions` columns of an action are signals; None for none.

    A SandboxError, a sentence for its author, if it fails, takes too long, mixes rows, or gives every row the same sum.
    """
    columns = batches[0][1].shape[1]
    if n_actions is None:
        n_actions = columns
    names, program, reads_signals = translate(source, size, n_actions)
    if reads_signals and columns == n_actions:
        raise SandboxError(f"there are no signals; write {FORM}")
    if not reads_signals:
        batches = [(states, actions[:, :n_actions]) for states, actions in batches]
    try:
        sandbox = verify_code(program, batches, **limits)
        try:
            parts = sandbox.run(*batches[-1])
        finally:
            sandbox.close()
    except SandboxError as error:
        raise SandboxError(reword(error, "reward")) from None
    if np.ptp(parts.sum(axis=1)) <= 1e-5 * np.abs(parts).max():
        raise SandboxError("the sum of the components is the same in all transitions")
    return names


def reword(sentence: object, function: str) -> str:
    """A sentence of the sandbox, in whose words the code is that of factors."""
    return re.sub(r"\bfactors\b", function, str(sentence))
