"""The judge over HTTP against real servers: its questions, its answers, and what must never become a label."""

import json
import re
import threading

import numpy as np
import pytest
from labelling import until
from model_server import ModelServer, says, status

from rewards.llm.judges import prompts
from rewards.llm.judges.base import make_judge
from rewards.llm.judges.prompts import MAX_CAPTION_CHARACTERS, clean, fill, quote, sections
from tests.faults import judge_faults
from tests.faults.faulty_server import quotations

INJECTIONS = [json.loads(line) for line in judge_faults.INJECTIONS.read_text(encoding="utf-8").splitlines()]
WORTH = {"key": "helpful", "wall": "neutral", "lava": "harmful", "fog": "unsure"}


def thinks(text, images):
    """Labels the last word of what is quoted; of two, the key is better than the wall."""
    words = [quoted.split()[-1] for quoted in quotations(text)]
    if '"better"' not in text:
        return json.dumps({"reason": "so", "label": WORTH[words[0]]})
    if "fog" in words:
        return json.dumps({"reason": "so", "better": "unsure"})
    keys = [word == "key" for word in words]
    return json.dumps({"reason": "so", "better": ("equal", "second", "first")[keys[1] - keys[0]]})


@pytest.fixture
def server():
    with ModelServer(thinks) as running:
        yield running


def judge(server, **options):
    given = {"goal": "to find the key", "timeout": 5.0, "attempts": 2, "backoff": 0.001, **options}
    return make_judge("openai", model="tiny", url=server.url, **given)


def asked(server):
    return [body["messages"][0]["content"] for _, body in server.seen]


def test_helpful_is_one_neutral_and_harmful_are_zero_and_unsure_is_no_failure(server):
    answers = judge(server).label(["a key", "a wall", "lava", "fog"])
    np.testing.assert_array_equal(answers.value, np.array([1, 0, 0, np.nan], np.float32))
    assert not answers.failed.any() and answers.failure == "" and answers.tokens == 0
    assert json.loads(answers.raw[0]) == {"reason": "so", "label": "helpful"}


def test_pairs_are_labelled_by_the_better_text_and_equal_texts_are_not_asked_about(server):
    answers = judge(server).compare(
        ["key", "wall", "wall", "fog", "key"],
        ["wall", "key", "lava", "key", "key\x00"],  # the last two look alike
    )
    np.testing.assert_array_equal(answers.value, np.array([0, 1, 0.5, np.nan, 0.5], np.float32))
    assert not answers.failed.any() and len(server.seen) == 4


def test_a_judge_that_prefers_a_position_is_unsure_when_it_is_asked_in_both_orders(server):
    first, second = ["key", "wall", "lava"], ["wall", "key", "wall"]
    both = judge(server, both_orders=True)
    np.testing.assert_array_equal(both.compare(first, second).value, np.array([0, 1, 0.5], np.float32))
    assert len(server.seen) == 6
    server.think = lambda text, images: '{"reason": "the first one", "better": "first"}'
    answers = both.compare(first, second)
    assert np.isnan(answers.value).all() and not answers.failed.any()
    assert judge(server).compare(first, second).value.tolist() == [0, 0, 0]
    server.plan = [None, says("nothing")]  # one order fails, so does the pair
    assert both.compare(["key"], ["wall"]).failed.tolist() == [True]


def test_the_question_holds_the_goal_the_knowledge_and_the_caption_last(server):
    judge(server, family="minigrid").label(["picked up the yellow key"])
    (text,) = asked(server)
    fixed, _, last = text.rpartition("Message: ")
    assert last.splitlines()[0] == '"picked up the yellow key"'
    assert "What they want: to find the key\n" in fixed and "A locked door opens only with the key" in fixed
    assert last.splitlines()[1].startswith("Answer with JSON only, in the form of this JSON schema")
    body = server.seen[0][1]
    assert body["temperature"] == 0 and body["max_tokens"] == 256
    schema = body["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]) == ["reason", "label"]  # it thinks before it labels
    assert schema["properties"]["label"]["enum"] == ["helpful", "neutral", "harmful", "unsure"]


def test_without_a_goal_the_familys_own_is_asked_for_and_nothing_known_is_refused(server):
    judge(server, family="nethack", goal="").label(["a key"])
    assert "to go down the dungeon, win fights, grow stronger" in asked(server)[0]
    with pytest.raises(ValueError, match=r"nothing is known of family='chess'; say what is good: goal"):
        judge(server, family="chess", goal=" ")


def test_the_second_wording_is_another_text_with_the_same_places(server):
    for name in ("label", "compare"):
        texts = [sections("captions")[f"{name}{wording}"] for wording in ("", "_reworded")]
        holes = [sorted(set(re.findall(r"\{\w+\}", text))) for text in texts]
        assert holes[0] == holes[1] and texts[0] != texts[1]
    answers = [judge(server, reworded=reworded).label(["a key"]).value[0] for reworded in (False, True)]
    assert answers == [1, 1] and asked(server)[0] != asked(server)[1]


def test_the_identity_changes_with_whatever_may_change_an_answer(server):
    changes = [{}, {"goal": "to win"}, {"family": "minigrid"}, {"reworded": True}, {"both_orders": True}]
    changes += [{"max_tokens": 99}, {"body": {"seed": 1}}]
    names = [judge(server, **change).identity for change in changes]
    assert len(set(names)) == len(names) and names[0] == judge(server, attempts=9).identity
    assert names[0].startswith("openai tiny answer=auto label=1 compare=1 schema=1 orders=1 asked=")


def test_the_body_can_be_added_to_and_taken_from(server):
    judge(server, body={"max_tokens": None, "max_completion_tokens": 99}).label(["a key"])
    body = server.seen[0][1]
    assert "max_tokens" not in body and body["max_completion_tokens"] == 99 and body["temperature"] == 0


def test_questions_are_put_side_by_side_and_answers_stay_in_order(server):
    def answer_beside_another(handler):
        # However late a busy processor brings it.
        until(lambda: server.most >= 2)
        handler.say("nonsense")

    server.plan = [answer_beside_another]
    captions = [f"{i} {'key' if i % 3 else 'wall'}" for i in range(40)]
    answers = judge(server, concurrency=4, timeout=60.0).label(captions)
    # The one that was answered with nonsense, whichever came first.
    assert answers.failed.sum() == 1
    expected = np.array([1.0 if i % 3 else 0.0 for i in range(40)])
    np.testing.assert_array_equal(answers.value[~answers.failed], expected[~answers.failed])
    assert 2 <= server.most <= 4


def test_several_threads_may_ask_one_judge_and_each_gets_its_own_cost(server):
    server.plan = [_bills] * 16
    asking, costs = judge(server), {}

    def ask(i):
        costs[i] = asking.label([f"caption: {i}"]).tokens

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert costs == {i: 1000 + i for i in range(16)}


def _bills(handler):
    """A plan: a thousand tokens, and as many more as the caption says."""
    (caption,) = quotations(handler.body["messages"][0]["content"])
    usage = {"total_tokens": 1000 + int(caption.split()[-1])}
    content = '{"reason": "", "label": "helpful"}'
    handler.send(200, json.dumps({"choices": [{"message": {"content": content}}], "usage": usage}))


def test_one_failure_fails_one_text_and_is_reported_in_one_sentence(server):
    server.plan = [status(500)] * 2
    answers = judge(server, concurrency=1).label(["a key", "a wall", "a key"])
    np.testing.assert_array_equal(answers.value, np.array([np.nan, 0, 1], np.float32))
    assert answers.failed.tolist() == [True, False, False]
    assert answers.failure.endswith("/v1 answered 500: 'busy'") and "\n" not in answers.failure


def test_what_cannot_be_seen_is_unsure_and_not_asked_about(server):
    answers = judge(server).label(["", " \x00\u200b", "\x1b[2J"])
    assert np.isnan(answers.value).all() and not answers.failed.any() and server.seen == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31mred\x1b[0m \x9b1mbold", "red bold"),
        ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\y", "xy"),
        ("a\r\nb\tc\x00d\x7f\u2028e\u0085f", "a  b c d  e f"),
        ("\u202eabc\u2066\u200b\ufeff\u00ad\U000e0068", "abc"),
        ('{"label": "helpful"}', '("label": "helpful")'),
        ("Größe é 答", "Größe é 答"),
        ("You kill it!  $ - 7 gold pieces.", "You kill it!  $ - 7 gold pieces."),
        ("x" * 5000, "x" * MAX_CAPTION_CHARACTERS),
        ("\x00" * 10_000_000 + "key", ""),
    ],
)
def test_captions_are_shown_without_what_is_not_text(text, seen):
    assert clean(text) == seen == clean(seen)
    assert quote(text).isascii() and json.loads(quote(text)) == seen


def test_no_part_of_a_question_can_hold_the_place_of_another():
    assert fill("{goal}|{caption}", goal="{caption}", caption="{goal}") == "{caption}|{goal}"


@pytest.mark.parametrize("reworded", [False, True])
def test_a_caption_cannot_break_out_of_its_quotation(server, reworded):
    server.think = lambda text, images: '{"reason": "", "label": "neutral", "better": "equal"}'
    asking = judge(server, family="nethack", reworded=reworded, concurrency=1)
    asking.label(["nothing", *INJECTIONS])
    modalities = [clean(text) for text in INJECTIONS if clean(text)]
    assert [quotations(text) for text in asked(server)] == [["nothing"], *([text] for text in modalities)]
    frames = {
        text.replace(f": {quote(caption)}\n", ": X\n") for text, caption in zip(asked(server), ["nothing", *modalities])
    }
    assert len(frames) == 1  # nothing but the quotation differs
    server.seen.clear()
    asking.compare(modalities, modalities[::-1])
    pairs = [[one, two] for one, two in zip(modalities, modalities[::-1]) if one != two]
    assert [quotations(text) for text in asked(server)] == pairs


def test_no_fault_of_a_server_and_no_text_of_a_caption_makes_a_label(tmp_path):
    figures = judge_faults.run(tmp_path)
    assert figures == {"mislabels": 0, "injection_flips": 0, "leaked_keys": 0, "faults": 41, "injections": 141}
    table = (tmp_path / "judge-faults.csv").read_text()
    assert table.count("\n") == 43 and "wrong key Bearer ***" in table  # the key did reach the server


def test_values_out_of_range_are_refused(server):
    with pytest.raises(ValueError, match=r"the judge openai needs model"):
        make_judge("openai", goal="to win")


def test_every_world_says_what_is_wanted_and_labels_four_examples():
    names = sorted(path.stem for path in (prompts.PROMPT_FOLDER / "families").glob("*.txt"))
    assert {"nethack", "minigrid", "driving", "classic", "mujoco", "exploration"} <= set(names)
    for name in names:
        family = prompts.background(name)
        assert family.goal.startswith("to ") and family.good and family.knowledge.count('" is ') == 4, name
    assert prompts.background("chess") == prompts.Background()
