"""The client against a real server on this machine, well-behaved and not."""

import asyncio
import datetime
import email.utils
import json
import random
import re
import socket
import time

import numpy as np
import pytest
from model_server import Flood, ModelServer, breaks_off, completes, drips, drips_headers, hangs, says, status

from rewards.llm.client import Breaker, Chat, Endpoint, JudgeError, Reply, _seconds, decode, fits

YES = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"], "additionalProperties": False}
WHITE, BLACK = np.full((6, 8, 3), 255, np.uint8), np.zeros((6, 8, 3), np.uint8)


def brightness(text, images):
    if "JSON" in text:
        return json.dumps({"yes": bool(images[0].mean() > 127)})
    return f"{len(images)} images, the first {images[0].shape[0]} high, its mean {images[0].mean():.0f}: {text}"


@pytest.fixture
def server():
    with ModelServer(brightness) as running:
        yield running


def chat(server, **options):
    return Chat(Endpoint("tiny", server.url, **{"backoff": 0.001, "timeout": 5.0, **options}))


def test_text_and_images_arrive_in_order_and_the_answer_comes_back(server):
    assert chat(server).ask(["How bright?", WHITE, BLACK]) == "2 images, the first 6 high, its mean 255: How bright?"
    body = server.seen[0][1]
    assert body["model"] == "tiny" and body["temperature"] == 0
    assert [part["type"] for part in body["messages"][0]["content"]] == ["text", "image_url", "image_url"]


def test_an_answer_with_a_schema_is_decoded(server):
    assert chat(server).ask(["Bright?", WHITE], YES) == {"yes": True}
    assert chat(server).ask(["Bright?", BLACK], YES) == {"yes": False}
    form = server.seen[0][1]["response_format"]
    assert form["type"] == "json_schema" and form["json_schema"]["schema"] == YES


def forms(server):
    """Of each request so far, the optional entries that it held: schema, effort, template."""
    names = {"response_format": "s", "reasoning_effort": "e", "chat_template_kwargs": "t"}
    return ["".join(letter for name, letter in names.items() if name in body) for _, body in server.seen]


@pytest.mark.parametrize(
    ("refused", "tried"),
    [
        ((), ["set"]),
        (("chat_template_kwargs",), ["set", "se"]),
        (("reasoning_effort",), ["set", "st"]),
        (("response_format",), ["set", "et"]),
        (("reasoning_effort", "response_format"), ["set", "st", "t"]),
        (("reasoning_effort", "chat_template_kwargs", "response_format"), ["set", "st", "s", ""]),
    ],
)
def test_what_a_server_names_in_a_refusal_is_left_out_from_then_on(server, refused, tried):
    server.refused = refused
    asking = chat(server)
    assert asking.ask(["Bright?", WHITE], YES) == {"yes": True}
    assert forms(server) == tried
    assert asking.ask(["Bright?", WHITE], YES) == {"yes": True}
    assert forms(server) == [*tried, tried[-1]]


@pytest.mark.parametrize("refusals", range(4))
def test_a_server_that_names_nothing_in_a_refusal_is_asked_in_plainer_forms(server, refusals):
    server.plan = [status(400, "no such thing")] * refusals
    asking = chat(server)
    assert asking.ask(["Bright?", WHITE], YES) == {"yes": True}
    assert asking.ask(["Bright?", WHITE], YES) == {"yes": True}
    tried = ["set", "s", "et", ""][: refusals + 1]
    assert forms(server) == [*tried, tried[-1]]


@pytest.mark.parametrize("number", [400, 422])
def test_a_question_that_is_refused_in_any_form_tells_nothing_about_the_forms(server, number):
    server.plan = [status(number, "image too small")] * 4
    asking = chat(server)
    with pytest.raises(JudgeError, match=rf"answered {number}: 'image too small'"):
        asking.ask(["Bright?", WHITE], YES)
    assert len(server.seen) == 4
    asking.ask(["Bright?", WHITE], YES)
    assert forms(server)[-1] == "set"
    server.plan = [status(number, "question too long")]  # once the form is known, this is the question's own fault
    with pytest.raises(JudgeError, match="question too long"):
        asking.ask(["Bright?", WHITE], YES)
    assert len(server.seen) == 6


def test_models_are_asked_not_to_think_unless_the_user_says_otherwise(server):
    chat(server).ask(["How bright?", WHITE])
    assert server.seen[0][1]["reasoning_effort"] == "none"
    assert server.seen[0][1]["chat_template_kwargs"] == {"enable_thinking": False}
    chat(server, body={"reasoning_effort": "high", "chat_template_kwargs": None}).ask(["How bright?", WHITE])
    assert server.seen[1][1]["reasoning_effort"] == "high" and "chat_template_kwargs" not in server.seen[1][1]


@pytest.mark.parametrize(
    ("message", "finish_reason", "words"),
    [
        (
            {"content": "", "reasoning": "Hmm."},
            "stop",
            "tiny thought and did not answer: .* stands in 'reasoning', and",
        ),
        (
            {"content": None, "reasoning_content": "Hmm."},
            "length",
            "thought and did not answer: .*'reasoning_content', where max_tokens ended, .* take an Instruct model",
        ),
        (
            {"content": "<think>Hmm, yes"},
            "length",
            "thought and did not answer: .* stands in 'content', where max_tokens",
        ),
        ({"content": ""}, "length", r"no answer when max_tokens ended \(finish_reason=length\); raise max_tokens"),
    ],
)
def test_a_model_that_thinks_and_does_not_answer_is_named(server, message, finish_reason, words):
    server.plan = [completes(message, finish_reason)]
    with pytest.raises(JudgeError, match=words):
        chat(server).ask(["Bright?", WHITE], YES)
    assert len(server.seen) == 1


def test_what_a_model_thought_is_no_part_of_its_answer(server):
    server.plan = [
        completes({"content": '<think>{"yes": false}? No.</think>\n\n{"yes": true}'}),
        completes({"content": '{"yes": true}', "reasoning": '{"yes": false}? No.'}),
        completes({"content": "the tag </think> is part of this answer"}),
    ]
    reply = Reply()
    assert chat(server).ask(["Bright?"], YES, reply) == {"yes": True} and reply.text == '{"yes": true}'
    assert chat(server).ask(["Bright?"], YES) == {"yes": True}
    assert chat(server).ask(["Bright?"]) == "the tag </think> is part of this answer"


@pytest.mark.parametrize(
    "plan",
    [
        completes({"content": '{"yes": true}'}, error={"code": 502, "message": "upstream died"}),
        status(200, '{"error": {"message": "upstream died"}}'),
        completes({"content": '{"yes": true}'}, "error", provider="upstream died"),
        status(200, '{"choices": [{"error": "upstream died", "message": {"content": "{\\"yes\\": true}"}}]}'),
    ],
)
def test_an_answer_beside_an_error_is_none(server, plan):
    server.plan = [plan]
    with pytest.raises(JudgeError, match=r"answered with an error in place of a completion: .*upstream died"):
        chat(server).ask(["Bright?", WHITE], YES)


REFUSALS = {  # as llama.cpp, vLLM and Ollama word it
    500: '{"error": {"code": 500, "message": "image input is not supported - hint: provide the mmproj"}}',
    400: '{"message": "At most 0 image(s) may be provided: tiny is not a multimodal model"}',
    501: '{"error": "this model does not support images"}',
}


@pytest.mark.parametrize("number", REFUSALS)
def test_a_model_without_images_is_named_and_not_asked_again(server, number):
    server.plan = [status(number, REFUSALS[number])] * 9
    with pytest.raises(JudgeError, match=rf"^tiny at .* takes no images \({number}: .*take a model that reads them$"):
        chat(server).ask(["Bright?", WHITE], YES)
    assert len(server.seen) == 1
    with pytest.raises(JudgeError, match=rf"answered {number}: "):  # there was no image, so it means something else
        chat(server, attempts=1).ask(["Bright?"])


def test_a_server_that_loads_its_model_is_named_and_waited_for(server):
    loading = status(503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
    server.plan = [loading, loading]
    assert "255" in chat(server).ask(["How bright?", WHITE])
    server.plan = [loading] * 4
    with pytest.raises(JudgeError, match=r"is still loading its model \(503: .*\); wait until it answers$"):
        chat(server).ask(["How bright?", WHITE])


def test_an_answer_that_does_not_fit_the_schema_is_an_error(server):
    server.plan = [says('{"yes": "perhaps"}')]
    with pytest.raises(JudgeError, match=r"no JSON in the answer fits .*perhaps"):
        chat(server).ask(["Bright?", WHITE], YES)
    assert len(server.seen) == 1


@pytest.mark.parametrize("number", [408, 429, 500, 503])
def test_a_busy_server_is_asked_again(server, number):
    server.plan = [status(number), status(number)]
    assert "255" in chat(server).ask(["How bright?", WHITE])
    assert len(server.seen) == 3


@pytest.mark.parametrize("number", [301, 401, 403, 404])
def test_what_will_not_change_is_not_asked_again(server, number):
    server.plan = [status(number, "no", Location="http://127.0.0.1:1/")]
    with pytest.raises(JudgeError, match=rf"answered {number}: 'no'"):
        chat(server).ask(["How bright?", WHITE])
    assert len(server.seen) == 1


def test_it_gives_up_after_the_last_attempt(server):
    server.plan = [status(500)] * 9
    with pytest.raises(JudgeError, match=r"answered 500: 'busy'"):
        chat(server, attempts=3).ask(["How bright?", WHITE])
    assert len(server.seen) == 3


def test_a_broken_answer_is_asked_for_again(server):
    server.plan = [breaks_off]
    assert "255" in chat(server).ask(["How bright?", WHITE])


@pytest.mark.parametrize("plan", [hangs, drips, drips_headers])
def test_an_attempt_ends_in_time(server, plan):
    server.plan = [plan(3.0)]
    begin = time.monotonic()
    with pytest.raises(JudgeError, match=r"did not answer in time \(0.2 s\)"):
        chat(server, timeout=0.2, attempts=1).ask(["How bright?", WHITE])
    assert time.monotonic() - begin < 1.5


def test_a_server_is_there_when_it_listens_however_slow_or_cross_it_is(server, monkeypatch):
    monkeypatch.setattr("rewards.llm.client.LOOK", 0.4)
    assert chat(server).reach() == ""  # it answers 501
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert Chat(Endpoint("tiny", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")).reach() == ""
    monkeypatch.setattr("rewards.llm.client.LOOK", 20.0)
    absent = Chat(Endpoint("tiny", "http://127.0.0.1:9/v1")).reach()
    assert "http://127.0.0.1:9/v1 cannot be reached: ConnectError" in absent and "start the server" in absent


def test_an_absent_server_is_one_sentence(server):
    with pytest.raises(JudgeError, match=r"http://127.0.0.1:9/v1 cannot be reached: ConnectError"):
        Chat(Endpoint("tiny", "http://127.0.0.1:9/v1", backoff=0.001, attempts=2)).ask(["Hello"])


def test_a_flood_is_not_read_to_its_end(server):
    flood = Flood()
    server.plan = [flood]
    with pytest.raises(JudgeError, match=r"answered with more than 100,000 bytes"):
        chat(server, max_bytes=100_000).ask(["How bright?", WHITE])
    assert flood.sent < 20 * 2**20  # what the sockets between us hold


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("<!doctype html><title>Welcome</title>", r"answered with a web page \('<!doctype html>"),
        ('{"choices": []}', r"something that is no chat completion: '\{\"choices\": \[\]\}'"),
        ('{"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}', r"something that is no chat"),
        ('{"choices": [{"mess', r"something that is no chat completion"),
        ("[" * 200_000, r"something that is no chat completion"),
        ('{"choices": [{"message": {"content": null}}]}', r"tiny answered nothing \(None\)"),
    ],
)
def test_what_is_no_completion_is_refused_at_once(server, answer, words):
    server.plan = [status(200, answer)]
    with pytest.raises(JudgeError, match=words):
        chat(server).ask(["How bright?", WHITE])
    assert len(server.seen) == 1


def test_the_key_comes_from_the_environment_and_is_never_shown(server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret-123\n")
    server.plan = [None, lambda handler: handler.send(401, "wrong key " + handler.headers["Authorization"])]
    asking = chat(server, key="MY_KEY")
    asking.ask(["How bright?", WHITE])
    assert server.seen[0][0]["Authorization"] == "Bearer sk-secret-123"
    with pytest.raises(JudgeError, match=r"answered 401: 'wrong key Bearer \*\*\*'"):
        asking.ask(["How bright?", WHITE])
    assert "secret" not in repr([vars(asking), vars(asking.endpoint)])
    monkeypatch.setenv("MY_KEY", "sk-se\ncret")
    with pytest.raises(JudgeError, match=r"^the environment variable MY_KEY holds characters that no API key has"):
        asking.ask(["How bright?", WHITE])
    monkeypatch.delenv("MY_KEY")
    asking.ask(["How bright?", WHITE])
    assert "Authorization" not in server.seen[-1][0]


def test_a_server_that_repeats_the_key_does_not_get_it_into_answers_or_errors(server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret-123")
    reply = Reply()
    server.plan = [says("your key is sk-secret-123"), says(["sk-secret-123"]), status(401, "x" * 192 + "sk-secret-123")]
    asking = chat(server, key="MY_KEY")
    assert asking.ask(["?"], reply=reply) == reply.text == "your key is ***"
    for words in (r"tiny answered nothing \(list\)$", r"answered 401: 'x{192}\*\*\*'$"):  # also where the quote cuts it
        with pytest.raises(JudgeError, match=words):
            asking.ask(["?"], reply=reply)


def test_not_even_a_part_of_the_key_stands_in_an_error(server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-canary-0123456789wxyz")
    refusals = {
        "Incorrect API key provided: sk-cana*********wxyz.": "Incorrect API key provided: ***************.",
        "key 0123456789 of sk-canary-0123456789wxyz": "key *** of ***",
        "the key ends in xyz": "the key ends in xyz",
    }
    for said, shown in refusals.items():
        server.plan = [status(401, said)]
        with pytest.raises(JudgeError, match=rf"answered 401: '{re.escape(shown)}'$"):
            chat(server, key="MY_KEY").ask(["?"])

    def header(handler):  # what the HTTP library quotes when it does not understand it
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nsk-canary-0123456789wxyz\r\n\r\n")

    server.plan = [header]
    with pytest.raises(JudgeError, match=r"broke off: RemoteProtocolError: .*\*\*\*"):
        chat(server, key="MY_KEY", attempts=1).ask(["?"])


def test_words_and_tokens_are_reported_also_where_the_answer_does_not_fit(server):
    def costs(content, usage):
        message = {"choices": [{"message": {"content": content}}], "usage": usage}
        return lambda handler: handler.send(200, json.dumps(message))

    server.plan = [status(500), costs("yes and no", {"total_tokens": 41}), costs('{"yes": true}', {"total_tokens": 7})]
    absurd = ("many", -5, 10**30, int("9" * 400), float("inf"), [7])
    server.plan += [costs("a", None), costs("b", {}), *(costs("c", {"total_tokens": many}) for many in absurd)]
    reply = Reply()
    with pytest.raises(JudgeError, match=r"no JSON in the answer fits"):
        chat(server).ask(["?"], YES, reply)
    assert reply == Reply("yes and no", 41)
    assert chat(server).ask(["?"], YES, reply) == {"yes": True}
    assert reply == Reply('{"yes": true}', 48)
    for _ in range(2 + len(absurd)):
        chat(server).ask(["?"], reply=reply)
    assert reply == Reply("c", 48)


def test_a_question_without_pictures_is_one_plain_string_which_every_server_takes(server):
    server.think = lambda text, images: '{"yes": true}'
    assert chat(server).ask(["Bright?", "Really?"], YES) == {"yes": True}
    content = server.seen[0][1]["messages"][0]["content"]
    assert content.startswith("Bright?\nReally?\nAnswer with JSON only, in the form of this JSON schema: {")


def test_waits_double_with_full_jitter_and_the_servers_wish_counts_up_to_a_limit(server, monkeypatch):
    waits = []
    monkeypatch.setattr("rewards.llm.client.time.sleep", waits.append)
    server.plan = [status(500), status(500), status(429, Retry_After="7"), status(429, Retry_After="3600")]
    chat(server, backoff=1.0, longest=20.0, attempts=9, seed=1).ask(["How bright?", WHITE])
    drawn = random.Random(1)
    assert waits == [drawn.uniform(0, 1), drawn.uniform(0, 2), 7.0, 20.0]
    again = []
    monkeypatch.setattr("rewards.llm.client.time.sleep", again.append)
    server.plan = [status(500), status(500)]
    chat(server, backoff=1.0, seed=1).ask(["How bright?", WHITE])
    assert again == waits[:2]


def test_retry_after_is_a_number_of_seconds_or_a_date():
    assert _seconds("12") == 12.0
    assert _seconds("-3") == _seconds("") == _seconds("soon") == 0.0
    assert _seconds("Mon, 22 Nov 99999999999999999999 17:00:00 GMT") == 0.0
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=60)
    assert 55 < _seconds(email.utils.format_datetime(moment, usegmt=True)) <= 60


@pytest.mark.parametrize(
    "text",
    ['{"yes": true}', 'I think {this}: ```json\n{"yes": true}\n```', '{"no": false} no, rather {"yes": true}.'],
)
def test_the_one_json_that_fits_counts(text):
    assert decode(text, YES) == {"yes": True}


@pytest.mark.parametrize("text", ['{"yes": false} no, rather {"yes": true}.', '{"yes": true}' * 3])
def test_an_answer_that_contradicts_or_repeats_itself_is_none(text):
    with pytest.raises(JudgeError, match=r"[23] answers at once fit"):
        decode(text, YES)
    with pytest.raises(JudgeError, match=r"no JSON in the answer fits"):
        decode('{"yes": false, "yes": true}', YES)


@pytest.mark.parametrize("text", ["yes", '{"yes": 1}', '{"no": true}', '{"yes": tr', '{"a":' * 5000, ""])
def test_a_text_without_fitting_json_is_an_error(text):
    with pytest.raises(JudgeError, match=r"no JSON in the answer fits"):
        decode(text, YES)


def test_a_value_fits_its_schema_or_does_not():
    one = {"type": "integer", "enum": [0, 1, -1]}
    assert [fits(value, one) for value in (0, 1, -1)] == [True] * 3
    assert [fits(value, one) for value in (2, True, 1.0, "1", None)] == [False] * 5
    assert fits(0.5, {"type": "number", "minimum": 0, "maximum": 1})
    share = {"type": "number", "minimum": 0, "maximum": 1}
    assert [fits(value, share) for value in (-0.1, 0, 1, 1.5)] == [False, True, True, False]
    assert fits(["a", "b"], {"type": "array", "items": {"type": "string"}})
    assert not fits(["a", 1], {"type": "array", "items": {"type": "string"}})


def test_the_body_and_the_address_are_those_that_were_given_without_what_is_none():
    endpoint = Endpoint("tiny", "http://a/v1/", body={"temperature": None, "top_p": 0.5}, max_tokens=7)
    assert endpoint.url == "http://a/v1" and endpoint.options == {"max_tokens": 7, "top_p": 0.5}


def test_a_closed_client_holds_no_connection(server):
    asking = chat(server)
    asking.ask(["?", WHITE])
    asking.close()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), asking._loop).result()
    assert asking._client.is_closed


def test_options_out_of_range_are_refused():
    for options, words in [
        ({"model": ""}, r"model is empty"),
        ({"url": "localhost:8000"}, r"url='localhost:8000' is no web address"),
        ({"url": "http://a:port/"}, r"is no web address"),
        ({"url": "http://me:secret@a/v1"}, r"url holds a login"),
        ({"timeout": 0}, r"timeout=0 is out of range"),
        ({"attempts": 0}, r"attempts=0 is out of range"),
    ]:
        with pytest.raises(ValueError, match=words):
            Endpoint(**{"model": "tiny", **options})


def test_five_failures_in_a_row_open_it_and_a_success_begins_the_count_again():
    breaker = Breaker(pause=30.0)
    assert [breaker.note_failure(0.0) for _ in range(4)] == [False] * 4
    assert breaker.note_success(1.0) is False and breaker.room(1.0) is None
    assert [breaker.note_failure(2.0) for _ in range(5)] == [False] * 4 + [True]
    assert breaker.open and breaker.room(2.0) == 0


def test_one_probe_goes_after_the_wait_and_its_failure_begins_the_wait_again():
    breaker = Breaker(pause=30.0)
    for _ in range(5):
        breaker.note_failure(0.0)
    assert breaker.room(29.9) == 0 and breaker.room(30.0) == 1
    breaker.note_question()
    assert breaker.room(31.0) == 0, "one probe at a time"
    assert breaker.note_failure(35.0) is False
    assert breaker.room(64.9) == 0 and breaker.room(65.0) == 1
    breaker.note_question()
    assert breaker.note_success(66.0) is True and breaker.room(66.0) is None


def test_what_was_on_its_way_when_it_opened_does_not_prolong_the_wait():
    breaker = Breaker(pause=30.0)
    for _ in range(5):
        breaker.note_failure(0.0)
    breaker.note_failure(20.0)
    assert breaker.room(30.0) == 1


def test_more_than_half_of_the_last_thirty_seconds_open_it():
    breaker = Breaker()
    for second in range(20):
        breaker.note_success(second)
        assert not breaker.note_failure(second), "one of two is not more than half"
    assert breaker.note_failure(20.0), "21 of 41 are"
    assert breaker.streak == 2


def test_a_share_of_few_answers_means_nothing_and_old_ones_are_forgotten():
    breaker = Breaker()
    for second in (0.0, 1.0, 31.5):
        breaker.note_success(second)
        assert [breaker.note_failure(second) for _ in range(3)] == [False] * 3
    assert len(breaker._recent) == 4, "those of the first two seconds are gone"
