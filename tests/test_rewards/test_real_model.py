"""The judges against a real language model behind llama.cpp's own server. It is too small to judge well: what is
tested is everything around its answers.
"""

import functools
import json
import os
import time

import numpy as np
import pytest
from llama_server import LlamaServer, bring_weights

from rewards.llm.client import Chat, Endpoint, JudgeError, Reply
from rewards.llm.judges.base import make_judge
from rewards.llm.judges.openai import TextModel
from runners.doctor.judge import judge as doctor
from runners.train import main

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

MODEL = "smollm2"
PATIENT = {"timeout": 120.0, "attempts": 2, "backoff": 0.1}
COLOUR = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
    "required": ["colour"],
}
DOOR = ["env=MiniGrid-DoorKey-5x5-v0", "env.captions=full", "reward=oni", "n_envs=2", "agent.n_steps=64"]
DOOR += ["control=none", "video=false", "num_threads=1", "eval_episodes=1", "eval_steps=50"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    pytest.importorskip("xllamacpp")
    try:
        return bring_weights(tmp_path_factory.mktemp("model"))
    except OSError as error:
        pytest.skip(f"no real model here: {error}")


@pytest.fixture(scope="module")
def server(weights):
    with LlamaServer(weights) as running:
        chat = Chat(Endpoint(MODEL, running.url, timeout=60.0, attempts=60, backoff=0.5, longest=1.0))
        chat.ask(["Hello"], max_tokens=1)
        chat.close()
        yield running


@pytest.fixture
def chat(server):
    made = Chat(Endpoint(MODEL, server.url, **PATIENT))
    yield made
    made.close()


def test_a_server_that_loads_its_model_is_named_until_it_answers(weights):
    with LlamaServer(weights) as starting:
        chat = Chat(Endpoint(MODEL, starting.url, timeout=60.0, attempts=1))
        said, until = [], time.monotonic() + 120
        while time.monotonic() < until:
            try:
                chat.ask(["Hello"], max_tokens=1)
                break
            except JudgeError as error:
                said.append(str(error))
                time.sleep(0.005)
        chat.close()
    kinds = {"cannot be reached": "absent", "is still loading its model (503: ": "loading"}
    found = [kind for words in said for part, kind in kinds.items() if part in words]
    assert len(found) == len(said) and "loading" in found
    assert found == sorted(found), "absent, then loading, then an answer"


def test_a_schema_is_kept_and_the_request_not_to_think_is_taken(chat):
    reply = Reply()
    assert chat.ask(["What colour is grass?"], COLOUR, reply)["colour"] in ("red", "green")
    assert chat.takes == {"reasoning_effort": True, "chat_template_kwargs": True, "response_format": True}
    assert reply.tokens > 20


def test_log_probabilities_of_the_first_token_are_read(chat):
    reply = Reply()
    chat.ask(["Is grass green? Answer yes or no."], None, reply, logprobs=True, top_logprobs=20, max_tokens=1)
    values = [value for _, value in reply.candidates]
    assert len(values) == 20 and values == sorted(values, reverse=True)
    assert 0.2 < np.exp(values).sum() <= 1.0001


def test_a_question_beyond_the_context_fails_at_once_and_says_so(chat):
    begin = time.monotonic()
    with pytest.raises(JudgeError, match=r"answered 400: .*exceeds the available context size"):
        chat.ask(["a long story " * 2000])
    assert time.monotonic() - begin < 30
    assert chat.ask(["Hello"], max_tokens=1)


def test_an_answer_that_max_tokens_cut_is_no_label(chat):
    with pytest.raises(JudgeError, match="no JSON in the answer fits"):
        chat.ask(["What colour is grass?"], COLOUR, max_tokens=3)


def test_an_image_to_a_model_of_texts_is_a_final_error(chat):
    begin = time.monotonic()
    with pytest.raises(JudgeError, match=rf"^{MODEL} at .* takes no images \(500: .*mmproj"):
        chat.ask(["What is this?", np.zeros((8, 8, 3), np.uint8)])
    assert time.monotonic() - begin < 10


def test_the_judge_labels_captions_in_its_own_words(server):
    options = {"family": "minigrid", "concurrency": 1, "answer": "json", **PATIENT}
    judge = make_judge("openai", model=MODEL, url=server.url, **options)
    answers = judge.label(["picked up the yellow key", "bumped into a wall"])
    judge.close()
    assert not answers.failed.any() and answers.tokens > 500
    for value, words in zip(answers.value, answers.raw):
        label = json.loads(words)["label"]
        expected = {"helpful": 1.0, "neutral": 0.0, "harmful": 0.0, "unsure": np.nan}[label]
        np.testing.assert_equal(float(value), expected)


def test_a_server_and_the_model_in_this_process_score_captions_alike(server, weights):
    captions = ["picked up the red key", "opened the blue door", "bumped into the grey door", "sees lava"]
    served = make_judge("openai", model=MODEL, url=server.url, family="minigrid", concurrency=1, **PATIENT)
    local = make_judge("local", model=str(weights), family="minigrid")
    labels = served.label(captions)
    scores = [judge.scores(captions).value for judge in (served, local)]
    # The server evaluates a prompt in other pieces, which changes the last digits of 4-bit weights' products.
    np.testing.assert_allclose(scores[0], scores[1], atol=0.15)
    np.testing.assert_array_equal(np.argsort(scores[0]), np.argsort(scores[1]))
    assert not labels.failed.any() and labels.tokens > 500 and served._asks_token
    first, second = captions[0], captions[np.argmin(scores[1])]
    in_order = local.compare([first], [second]).value
    swapped = local.compare([second], [first]).value
    np.testing.assert_array_equal(in_order, 1 - swapped)
    served.close()
    local.close()


@pytest.mark.parametrize("ask", ["beside", "at_once"])
def test_a_run_is_judged_by_the_model_in_a_file(weights, tmp_path, capsys, ask):
    if ask == "beside" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("beside training the model needs a core of its own")
    oni = ["reward.oni.judge=local", f"reward.oni.judge_options={{model: {weights}, share: true}}"]
    # Training makes thousands of steps a second, and the model takes some seconds to load.
    steps = {"beside": 100_000, "at_once": 20_000}[ask]
    settings = [*DOOR, *oni, f"reward.oni.ask={ask}", f"total_timesteps={steps}"]
    assert main([*settings, f"run_dir={tmp_path / 'run'}"]) == 0
    use = json.loads((tmp_path / "run" / "result.json").read_text())["this run"]["judges"]["oni"]
    assert use["answered"] > 5 and use["labels"] > 2 and use["failure"] == ""
    assert (use["late"] > 0) == (ask == "beside")
    assert f"oni: {use['answered']:,} of {use['asked']:,} questions were answered" in capsys.readouterr().out


def test_the_doctor_reports_each_question(server, monkeypatch):
    # Its own 20 s are enough on an idle core, and not beside other tests.
    monkeypatch.setattr("runners.doctor.judge.TextModel", functools.partial(TextModel, timeout=120.0))
    captions, tokens, pictures = doctor(server.url, "")
    assert captions.state == "ok" and "took the JSON schema" in captions.found
    assert tokens.found.startswith("log-probabilities of 20 tokens")
    assert pictures.state == "optional" and "takes no images" in pictures.found


@pytest.mark.parametrize(("timeout", "steps"), [(120.0, 30_000), (0.01, 8_000)])
def test_a_run_says_what_it_had_of_the_model(server, tmp_path, capsys, timeout, steps):
    options = f'{{model: {MODEL}, url: "{server.url}", concurrency: 1, attempts: 1, timeout: {timeout}}}'
    oni = ["reward.oni.judge=openai", f"reward.oni.judge_options={options}", f"total_timesteps={steps}"]
    transcript = tmp_path / "labels.jsonl"
    assert main([*DOOR, *oni, f"reward.oni.transcript={transcript}", f"run_dir={tmp_path / 'run'}"]) == 0
    use = json.loads((tmp_path / "run" / "result.json").read_text())["this run"]["judges"]["oni"]
    printed = capsys.readouterr().out
    lines = transcript.read_text().splitlines()
    if timeout < 1:
        assert (use["answered"], use["labels"], use["rewarded"], lines) == (0, 0, 0.0, [])
        assert "this run*" in printed and "did not answer in time (0.01 s)" in printed
    else:
        assert use["asked"] >= use["answered"] > 0 and use["captions_labelled"] > 0
        assert 0 < len(lines) <= use["answered"]
    assert f"oni: {use['answered']:,} of {use['asked']:,} questions were answered" in printed
