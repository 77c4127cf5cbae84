"""Where the code of factors comes from: a file, or a language model that writes it and gets its errors back.

    read("pendulum"), read("mine.py")              code in a file
    describe("pendulum")                           what the numbers of an observation and an action mean
    Author("gpt-4o", url).write(question, verify)  code of a model

Source: Qu et al. 2025, "Latent Reward: LLM-Empowered Credit Assignment in Episodic Reinforcement Learning" (AAAI 2025,
arXiv 2412.11120): several candidates at temperature 1, one summary at 0.3, and a loop that runs the code and hands the
error back.
Differences: prompts are worded by us; the code is checked and sandboxed (`rewards.llm.sandbox`) where the source
runs it; it returns one array (B, k), not a list of columns; it is also verified to be finite, to give each row on its
own, and not to be constant, which the source does not check; every answer is kept in a file, so that the same
questions need no server a second time.
When it fails: code that runs is not code that helps. A description that leaves out or mistakes a number misleads.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.settings import setting
from rewards.llm.client import JudgeError, ModelJudge
from rewards.llm.judges.prompts import FOLDER
from rewards.llm.sandbox.process import Sandbox
from rewards.llm.sandbox.process import BUILTINS, LOOP, METHODS, NUMPY, SandboxError

SHIPPED = Path(__file__).with_name("factors")
PROMPTS = FOLDER / "factors.txt"
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def shipped() -> list[str]:
    """Names of the factors that come with the package, all written by hand."""
    return sorted(path.stem for path in SHIPPED.glob("*.py") if not path.stem.startswith("_"))


def read(code: str) -> str:
    """The source in a file, or in a shipped one called by its name; raises ValueError if there is no such file."""
    path = SHIPPED / f"{code}.py" if code in shipped() else Path(code)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"reward lare: code={code!r} cannot be read ({type(error).__name__}); give a file, or one of "
            f"{', '.join(shipped())}"
        ) from None


def describe(text: str) -> str:
    """A description as it stands, or that of a shipped task which is called by its name."""
    return ast.get_docstring(ast.parse(read(text))) or "" if text in shipped() else text


def prompts() -> dict[str, str]:
    """Section -> text of `prompts/factors.txt`; "version" is the first line."""
    first, *parts = re.split(r"^=== (\w+)\n", PROMPTS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"version": first.strip(), **{name: text.strip() for name, text in zip(parts[::2], parts[1::2])}}


def question(goal: str, described: str, obs_size: int, action_size: int) -> str:
    """What a model is asked for one task."""
    text = prompts()
    rules = text["rules"].format(
        numpy=", ".join(sorted(NUMPY)), methods=", ".join(sorted(METHODS)), builtins=", ".join(BUILTINS), loop=LOOP
    )
    return text["candidate"].format(
        goal=goal, describe=described, obs_size=obs_size, action_size=action_size, rules=rules
    )


def code_in(answer: str) -> str:
    """The last block of an answer that defines factors, or all of it; raises SandboxError if nothing does."""
    for block in [answer, *_FENCE.findall(answer)][::-1]:
        if re.search(r"^def factors\(", block, re.MULTILINE):
            return block.strip() + "\n"
    raise SandboxError("the answer has no block of code that defines factors(obs, action)")


def verified(source: str, batches: Sequence[tuple[np.ndarray, np.ndarray]], **limits: Any) -> Sandbox:
    """A sandbox, with some limits, for code that did well on batches of obs (B, obs size) and action (B, action size).

    Raises:
        SandboxError: if it is refused, fails, gives what is not finite, mixes rows, or never moves.
    """
    sandbox = Sandbox(source, batches[0][0].shape[1], batches[0][1].shape[1], **limits)
    try:
        moves = False
        for obs, action in batches:
            found = sandbox.run(obs, action)
            if sandbox.counts["not finite"]:
                raise SandboxError("factors gave values that are not finite; guard divisions, roots and logarithms")
            alone = np.concatenate([sandbox.run(obs[:1], action[:1]), sandbox.run(obs[1:], action[1:])])
            if not np.allclose(alone, found, 1e-3, 1e-4):
                raise SandboxError("a row of factors depends on other rows; compute each from its own row alone")
            moves = moves or bool((np.ptp(found, axis=0) > 0).any())
        if not moves:
            raise SandboxError("factors gave the same for all rows; compute them from obs and action")
    except SandboxError:
        sandbox.close()
        raise
    return sandbox


@dataclass(eq=False)
class Author(ModelJudge):
    """A language model that writes factors."""

    candidates: int = setting(5, "answers that are weighed against each other", low=1)
    repairs: int = setting(5, "times that code may be tried", low=1)
    timeout: float = 120.0
    max_tokens: int = 4096
    seed: int = setting(0, "of the candidates, which differ by it, and of the waits between attempts")

    name = "openai"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked = 0

    @property
    def identity(self) -> str:
        return f"code {prompts()['version']} {self.model}"

    def write(self, asked: str, verify: Callable[[str], Any]) -> Any:
        """What `verify` returns for the first code that it accepts; ValueError without a model, or one."""
        text, errors = prompts(), []
        try:
            answer = self._summary(asked, text["summary"])
            for _ in range(self.repairs):
                code = ""
                try:
                    code = code_in(answer)
                    return verify(code)
                except SandboxError as error:
                    errors.append(str(error))
                if len(errors) < self.repairs:
                    again = text["repair"].format(error=errors[-1], code=code or answer, question=asked)
                    answer = self._ask([(again, 0.3, len(errors))])[0]
        except JudgeError as error:
            raise ValueError(
                f"no factors without the model {self.model}: {error}; start the server, or give code=FILE"
            ) from None
        raise ValueError(
            f"{self.model} wrote no factors that run in {self.repairs} attempts, the last error was: {errors[-1]}; "
            "give code=FILE or another model"
        )

    def notes(self) -> list[str]:
        """Whose code it is."""
        kept = f", answers in {self.answers}" if self.answers else ""
        return [f"the factors' code was written by {self.model}, asked {self.asked} times in this run{kept}"]

    def _summary(self, asked: str, wording: str) -> str:
        drafts = self._ask([(asked, 1.0, i) for i in range(self.candidates)])
        if len(drafts) == 1:
            return drafts[0]
        listed = "\n\n".join(f"Answer {i + 1}:\n{draft}" for i, draft in enumerate(drafts))
        return self._ask([(wording.format(question=asked, answers=listed), 0.3, 0)])[0]

    def _ask(self, questions: Sequence[tuple[str, float, int]]) -> list[str]:
        """Answers to (text, temperature, number), at the same time, without what failed; raises if all did."""

        def ask(question: tuple[str, float, int]) -> str:
            self.asked += 1
            text, temperature, number = question
            answer: str = self.chat.ask([text], temperature=temperature, seed=self.seed + number)
            return answer

        keys = {
            json.dumps([temperature, self.seed + i, text]): (text, temperature, i) for text, temperature, i in questions
        }
        answers = self.ask_kept(keys, ask)
        found = [answers[key] for key in keys]
        usable = [answer for answer in found if isinstance(answer, str)]
        if not usable:
            raise next(answer for answer in found if isinstance(answer, JudgeError))
        return usable
