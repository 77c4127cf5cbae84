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
from rewards.llm.judges.one_token import ONE_TOKEN, TokenJudge, yes_over_no
from rewards.llm.judges.served import gather_answers

PACKAGE = "xllamacpp"
# A conversation with its examples and a long caption fits.
MIN_CONTEXT_TOKENS = 1536


@dataclass(eq=False)
class LocalModel(TokenJudge):
    """Asks a language model in this process for one token about each text."""

    model: str = setting("", "path of a GGUF file; the small model that `lodestar fetch` brings")
    context: int = setting(2048, "tokens that the model reads at once", low=MIN_CONTEXT_TOKENS)
    share: bool = setting(False, "whether it may run beside another model where each core has one already")

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
            raise ValueError(f"{self.prefix}there is no model at {str(self.path)!r}; {fix}")
        try:
            file = read_model(self.path)
        except ValueError as error:
            raise ValueError(f"{self.prefix}model={str(self.path)!r} {error}") from None
        if not file.has_chat_template:
            raise ValueError(
                f"{self.prefix}model={str(self.path)!r} has no chat template: it is a base model, which repeats a "
                "question and does not answer; take an Instruct model"
            )
        if file.context and file.context < self.context:
            raise ValueError(
                f"{self.prefix}context={self.context} is more than the {file.context:,} tokens that "
                f"{self.path.name} can read; give at least {MIN_CONTEXT_TOKENS:,}, or another model"
            )
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

    def _score(self, text: str, reply: Reply) -> float:
        if not prompts.clean(text):
            return np.nan
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
        return yes_over_no([(str(one["token"]), float(one["logprob"])) for one in listed])

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
            f"{self.prefix}a language model already runs on each of the {len(usable_cores())} cores that this process "
            "may use, and a second one on a core halves both; wait for it, or give judge_options={share: true}"
        )


@dataclass(eq=False)
class OfflineJudge(LocalModel):
    """The mean of `local` and of `embedding` with the bare goal."""

    name = "offline"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.embedding = make_judge("embedding", goal=self.wanted)
        self._identity = f"offline {self._identity} {self.embedding.identity} unsure={self.unsure:g}"

    def standardised_scores(self, texts: Sequence[str]) -> Answers:
        answers = super().standardised_scores(texts)
        answers.value = (answers.value + self.embedding.standardised_scores(texts).value) / 2
        return answers

    def notes(self) -> list[str]:
        return [*super().notes(), "sentence embeddings have an equal say"]
