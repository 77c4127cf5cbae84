"""What the doctor finds out about a judge's server, by the questions that a run asks."""

import json

import pytest
from model_server import Handler, ModelServer, completes, hangs, says, status

from runners.doctor.judge import _first_model, judge

LOADING = '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'


def think(text, images):
    if images:
        return '{"score": 5}'
    if "JSON schema" in text:
        return json.dumps(
            {"reason": "so", "label": "helpful" if "yellow key" in text.rpartition("Message")[2] else "neutral"}
        )
    return {" Yes": -0.1, "No": -2.0}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-CANARY")
    models = [(200, '{"data": [{"id": "tiny"}]}')]
    monkeypatch.setattr(Handler, "do_GET", lambda handler: handler.send(*models[0]), raising=False)
    with ModelServer(think) as running:
        running.models = models
        yield running


def test_a_server_that_can_do_everything_is_asked_what_runs_ask(server):
    captions, tokens, pictures = judge(server.url, "")
    assert [found.state for found in (captions, tokens, pictures)] == ["ok"] * 3
    assert captions.found.startswith(f"tiny at {server.url} labelled a caption in")
    assert "(1, 0); it took the JSON schema, and took the request not to think first" in captions.found
    assert tokens.found == "log-probabilities of 2 tokens (' Yes', 'No' ...)"
    assert pictures.found.startswith("two pictures graded in") and "(1; 1 is right)" in pictures.found
    assert "CANARY" not in str((captions, tokens, pictures))

    (headers, label), _, (_, token), (_, grade) = server.seen
    assert headers["Authorization"] == "Bearer sk-CANARY"
    assert label["max_tokens"] == 256 and "picked up the yellow key" in label["messages"][0]["content"]
    assert label["response_format"]["json_schema"]["schema"]["required"] == ["reason", "label"]
    assert (token["max_tokens"], token["top_logprobs"]) == (1, 20)
    kinds = [part["type"] for part in grade["messages"][0]["content"]]
    assert kinds == ["text", "image_url", "image_url", "text", "text"] and grade["max_tokens"] == 512


def test_what_a_server_lacks_is_named_one_by_one(server):
    refusal = status(500, '{"error": {"message": "image input is not supported - hint: provide the mmproj"}}')
    server.refused = ("response_format", "reasoning_effort", "chat_template_kwargs")
    server.think = lambda text, images: think(text, images) if "JSON" in text else "yes"
    server.plan = [None, None, None, refusal]  # after what it refuses
    captions, tokens, pictures = judge(server.url, "tiny")
    assert "refused the JSON schema, so answers are checked here only, and refused the request not" in captions.found
    assert (tokens.state, tokens.found) == (
        "optional",
        "an answer came without log-probabilities, so captions are labelled by JSON",
    )
    assert pictures.state == "optional" and "tiny at" in pictures.found and "takes no images" in pictures.found
    assert "vision model" in pictures.fix and not pictures.required


@pytest.mark.parametrize(
    ("plan", "words", "fix"),
    [
        (status(503, LOADING), "is still loading its model", "wait until the model is loaded, and ask again"),
        (
            completes({"content": "", "reasoning_content": "Let me see."}, "length"),
            "tiny thought and did not answer: what it wrote stands in 'reasoning_content', where max_tokens ended",
            "take an Instruct model, or switch thinking off where the server is started",
        ),
        (completes({"content": ""}, "length"), "no answer when max_tokens ended", "take an Instruct model"),
        (says("helpful"), "no JSON in the answer fits", "a larger model, or a server that takes a JSON schema"),
        (
            status(400, '{"error": {"message": "request (900 tokens) exceeds the available context size (512)"}}'),
            "exceeds the available context size",
            "a larger context: llama.cpp divides -c by -np",
        ),
        (status(404, "no such page"), "answered 404", "start the server, or see that the address ends"),
    ],
)
def test_a_judge_that_would_fail_in_a_run_fails_here_with_its_fix(server, plan, words, fix):
    server.plan = [plan] * 9
    (found,) = judge(server.url, "tiny")
    assert found.state == "warning" and not found.required
    assert words in found.found and found.fix.startswith(fix)


def test_a_slow_server_is_told_from_an_absent_one(server, monkeypatch):
    monkeypatch.setattr("runners.doctor.judge.TextModel", lambda *given, **more: _hasty(*given, **more))
    server.plan = [hangs(5)]
    (slow,) = judge(server.url, "tiny")
    assert "did not answer in time (0.2 s)" in slow.found and "timeout: 120" in slow.fix
    (gone,) = judge("http://127.0.0.1:9/v1", "")
    assert gone.found == "http://127.0.0.1:9/v1 cannot be reached: ConnectError (OPENAI_API_KEY is set)"
    assert gone.state == "warning" and gone.fix.startswith("start the server")
    (unasked,) = judge("", "")
    assert unasked.state == "ok" and "OPENAI_API_KEY is set" in unasked.found


def _hasty(*given, **more):
    from rewards.llm.judges.openai import TextModel

    return TextModel(*given, **more, timeout=0.2)


def test_a_list_of_models_that_is_not_there_yet_is_named(server):
    server.models[0] = (503, LOADING)
    (found,) = judge(server.url, "")
    assert found.found.startswith(f"{server.url} is still loading its model (status 503)") and "wait until" in found.fix
    server.models[0] = (404, "{}")
    with pytest.raises(ValueError, match=r"names no models \(status 404\); give model="):
        _first_model(server.url)
