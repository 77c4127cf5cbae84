"""`local`: a language model in a file, asked without a server; `offline`: its mean with sentence embeddings.

llama.cpp (the package xllamacpp, the extra `llm`) runs the model in the process of the judge, on one thread: the other
cores are the trainer's. Any instruction model in a GGUF file will do. `lodestar fetch` brings a small one.

    z(c) = (z_local(c) + z_embedding(c)) / 2      `offline`; for the z of `one_token.py`

When it fails: a base model, which repeats the question and is refused; a model of a few hundred million weights knows
words and no games, so let `lodestar annotate audit=...` or your own labels say how far it can be trusted.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from lodestar.settings import setting
from rewards.llm.client import JudgeError, Reply
from rewards.llm.judges import prompts
from rewards.llm.judges.base import Answers, make_judge
from rewards.llm.judges.cores import claim_core, is_core_free, usable_cores
from rewards.llm.judges.gguf import read_model, small_model
from rewards.llm.judges.one_token import ONE_TOKEN, UNSURE, OneToken, ScoredJudge, anchors_of, yes_over_no
from rewards.llm.judges.served import gather_answers

PACKAGE = "xllamacpp"
# A conversation with its examples and a long caption fits.
MIN_CONTEXT_TOKENS = 1536


@dataclass(eq=False)
class LocalModel(ScoredJudge):
    """Asks a language model in this process for one token about each text."""

    goal: str = setting("", 'what is wanted; "" for what the family\'s file says')
    family: str = setting("", "the texts' environment family; its examples stand last before the question")
    model: str = setting("", "path of a GGUF file; the small model that `lodestar fetch` brings")
    context: int = setting(2048, "tokens that the model reads at once", low=MIN_CONTEXT_TOKENS)
    share: bool = setting(False, "whether it may run beside another model where each core has one already")
    unsure: float = setting(UNSURE, "no label of a caption so near to the median, in spreads", ">= 0")

    name = "local"
    slots = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if find_spec(PACKAGE) is None:
            raise ImportError(
                f"a language model in this process needs {PACKAGE}, which is not installed; "
                "pip install 'lodestar-rl[llm]'"
            )
        self.path = Path(self.model).expanduser() if self.model else small_model()
        if not self.path.is_file():
            fix = "bring the small model with: lodestar fetch; or give model=FILE.gguf"
            raise ValueError(f"judge local: there is no model at {str(self.path)!r}; {fix}")
        try:
            file = read_model(self.path)
        except ValueError as error:
            raise ValueError(f"judge local: model={str(self.path)!r} {error}") from None
        if not file.has_chat_template:
            raise ValueError(
                f"judge local: model={str(self.path)!r} has no chat template: it is a base model, which repeats a "
                "question and does not answer; take an Instruct model"
            )
        if file.context and file.context < self.context:
            raise ValueError(
                f"judge local: context={self.context} is more than the {file.context:,} tokens that "
                f"{self.path.name} can read; give at least {MIN_CONTEXT_TOKENS:,}, or another model"
            )
        background = prompts.background(self.family)
        self.wanted = self.goal.strip() or background.goal
        if not self.wanted:
            raise ValueError(f'judge local: nothing is known of family={self.family!r}; say what is good: goal="..."')
        self.one_token = OneToken(self.wanted, self.family)
        self.begin_scores(anchors_of(self.family))
        self._identity = f"local {file.digest[:12]} asked={self.one_token.digest(self.unsure)}"
        self._server: Any = None
        self._core: FileLock | None = None

    def scores(self, texts: Sequence[str]) -> Answers:
        try:
            self._load()
        except JudgeError as error:
            return Answers.failures(len(texts), str(error))
        return gather_answers(self._score, texts, 1)

    def reach(self) -> str:
        """Loads nothing."""
        if self.share or is_core_free():
            return ""
        return self._no_core()

    def notes(self) -> list[str]:
        return [f"labels are those of {self.path.name}, which runs beside training, asked for: {self.wanted}"]

    def close(self) -> None:
        self._server = None
        if self._core is not None:
            self._core.release()
            self._core = None

    def _score(self, text: str, reply: Reply) -> tuple[float, str]:
        if not prompts.clean(text):
            return np.nan, ""
        request = {"messages": self.one_token.messages(text), "temperature": 0, "cache_prompt": True, **ONE_TOKEN}
        try:
            completion = self._server.handle_chat_completions(request)
        except RuntimeError as error:
            raise JudgeError(f"{self.path.name} did not answer: {error}") from None
        if isinstance(completion, str):
            completion = json.loads(completion)
        if "choices" not in completion:
            raise JudgeError(f"{self.path.name} did not answer: {json.dumps(completion)[:200]}")
        [choice] = completion["choices"]
        listed = choice["logprobs"]["content"][0]["top_logprobs"]
        reply.tokens = completion["usage"]["total_tokens"]
        reply.text = str(listed[0]["token"])
        return yes_over_no([(str(one["token"]), float(one["logprob"])) for one in listed]), reply.text

    def _load(self) -> None:
        if self._server is not None:
            return
        self._core = claim_core()
        if self._core is None and not self.share:
            raise JudgeError(self._no_core())
        from xllamacpp import CommonParams, Server

        params = CommonParams()
        params.model.path = str(self.path)
        params.n_parallel = 1
        params.n_ctx = self.context
        params.cpuparams.n_threads = 1
        params.cpuparams_batch.n_threads = 1
        params.warmup = False
        params.verbosity = -1
        # It opens a port whether or not it is wanted: any free one, for who knows the key.
        params.port = 0
        params.api_keys = [os.urandom(16).hex()]
        try:
            self._server = Server(params)
        except (RuntimeError, ValueError) as error:
            raise JudgeError(f"{self.path} cannot be loaded ({error}); give another model") from None

    def _no_core(self) -> str:
        return (
            f"judge local: a language model already runs on each of the {len(usable_cores())} cores that this process "
            "may use, and a second one on a core halves both; wait for it, or give judge_options={share: true}"
        )


@dataclass(eq=False)
class OfflineJudge(ScoredJudge):
    """The mean of `local` and of `embedding` with the bare goal."""

    goal: str = setting("", 'what is wanted; "" for what the family\'s file says')
    family: str = setting("", "the texts' environment family")
    model: str = setting("", "as `local` takes it")
    share: bool = setting(False, "as `local` takes it")
    unsure: float = setting(UNSURE, "no label of a caption so near to the median, in spreads", ">= 0")

    name = "offline"
    slots = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.local_model: LocalModel = make_judge(
            "local", goal=self.goal, family=self.family, model=self.model, share=self.share
        )
        self.embedding = make_judge("embedding", goal=self.local_model.wanted)
        self._identity = f"offline {self.local_model.identity} {self.embedding.identity} unsure={self.unsure:g}"

    def scores(self, texts: Sequence[str]) -> Answers:
        return self.standardised_scores(texts)

    def standardised_scores(self, texts: Sequence[str]) -> Answers:
        answers = self.local_model.standardised_scores(texts)
        answers.value = (answers.value + self.embedding.standardised_scores(texts).value) / 2
        return answers

    def reach(self) -> str:
        return self.local_model.reach()

    def notes(self) -> list[str]:
        return [*self.local_model.notes(), "sentence embeddings have an equal say"]

    def close(self) -> None:
        self.local_model.close()
