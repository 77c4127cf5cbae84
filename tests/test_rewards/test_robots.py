"""Reward models of robotics, behind servers of ours that speak their published protocols and refuse all else."""

import base64
import io
import json
import math
import threading
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from gymnasium import spaces
from model_server import ModelServer, says
from PIL import Image
from rollouts import blank

from rewards.llm.judges.base import make_judge
from rewards.llm.judges.robots import scale_log_probability
from rewards.vision.progress_model import ProgressModel, ProgressModelConfig, thin_evenly

GOAL = "put the {red} cube into the bowl"
SPACES = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)
# What robometer/data/dataset_types.py declares of a trajectory.
TRAJECTORY_FIELDS = {
    *("frames", "frames_shape", "embeddings_path", "video_embeddings", "text_embedding", "id", "task", "lang_vector"),
    *("data_source", "quality_label", "is_robot", "target_progress", "partial_success", "success_label"),
    *("predict_last_frame_mask", "metadata", "data_gen_strategy"),
}
ROBOREWARD_RUBRIC = """Given the task, assign a discrete progress score reward (1,2,3,4,5) for the robot in the video \
in the format: ANSWER: <score>
Rubric for end-of-episode progress (judge only the final state without time limits):
1 - No Success: Final state shows no goal-relevant change for the command.
2 - Minimal Progress: Final state shows a small but insufficient change toward the goal.
3 - Partial Completion: The final state shows good progress toward the goal but violates more than one requirement or \
a major requirement.
4 - Near Completion: Final state is correct in region and intent but misses a single minor requirement.
5 - Perfect Completion: Final state satisfies all requirements.

Task: put the {red} cube into the bowl"""
TOPREWARD_SENTENCE = (
    "The above video shows a robot manipulation trajectory that completes the following task: put the {red} cube into "
    "the bowl Decide whether the above statement is True or not. The answer is:"
)


class RobometerHandler(BaseHTTPRequestHandler):
    """`/evaluate_batch_npy` as robometer/evals/eval_server.py reads it: progress is brightness, success its square."""

    def log_message(self, *args):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, answer = 404, {"detail": "Not Found"}
        if self.path == "/evaluate_batch_npy":
            try:
                status, answer = 200, self.evaluate(body)
                if self.server.answers:
                    answer = self.server.answers.pop()
            except (KeyError, ValueError, AssertionError) as error:
                status, answer = 422, {"detail": repr(error)}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def evaluate(self, body):
        arrays, fields = {}, {}
        message = BytesParser().parsebytes(
            b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body
        )
        for part in message.get_payload():
            name = part.get_param("name", header="content-disposition")
            if part.get_filename():
                assert part.get_filename().endswith(".npy")
                arrays[name] = np.load(io.BytesIO(part.get_payload(decode=True)))
            else:
                fields[name] = json.loads(part.get_payload(decode=True))
        assert fields.pop("use_frame_steps") is False
        progress, success = [], []
        for i in range(len(fields)):
            sample = fields[f"sample_{i}"]
            assert set(sample) == {"sample_type", "trajectory"} and sample["sample_type"] == "progress"
            trajectory = sample["trajectory"]
            assert set(trajectory) <= TRAJECTORY_FIELDS
            frames = arrays[trajectory["frames"]["__numpy_file__"]]
            assert frames.dtype == np.uint8 and list(frames.shape) == trajectory["frames_shape"]
            self.server.tasks.append(trajectory["task"])
            level = frames.reshape(len(frames), -1).mean(1) / 255
            progress.append(level.tolist())
            success.append((level**2).tolist())
        return {
            "outputs_preference": None,
            "outputs_progress": {"progress_pred": progress},
            "outputs_success": {"success_probs": success},
        }


@pytest.fixture(scope="module")
def robometer():
    server = ThreadingHTTPServer(("127.0.0.1", 0), RobometerHandler)
    server.tasks, server.answers = [], []
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def see_video(body):
    """The frames and the text of a message: one video of JPEGs, as vLLM reads it, before the text."""
    [message] = body["messages"]
    video, text = message["content"]
    assert video["type"] == "video_url" and text["type"] == "text"
    kind, _, data = video["video_url"]["url"].partition(",")
    assert kind == "data:video/jpeg;base64"
    frames = [np.asarray(Image.open(io.BytesIO(base64.b64decode(jpeg)))) for jpeg in data.split(",")]
    return frames, text["text"]


class PublishedServer(ModelServer):
    """Refuses a prompt that is not the published one; grades and log-probabilities follow the last frame."""

    def __init__(self):
        super().__init__(self.answer)

    def answer(self, text, images):
        frames, text = see_video(self.seen[-1][1])
        level = frames[-1].mean() / 255
        if text == ROBOREWARD_RUBRIC:
            return f"The cube is there.\nANSWER: {1 + round(4 * level)}"
        assert text == TOPREWARD_SENTENCE, text
        return {"True": math.log(level), "False": math.log(1 - level), "true": -3.0}


@pytest.fixture
def published():
    with PublishedServer() as server:
        yield server


def save_frames(folder, *levels, side=32):
    for level in levels:
        np.save(folder / f"{level}.npy", np.full((side, side, 3), level, np.uint8))


def ask(name, folder, item, url, **options):
    judge = make_judge(name, "windows", goal=GOAL, folder=str(folder), url=url, attempts=1, timeout=5.0, **options)
    answers = judge.label([item])
    judge.close()
    return float(answers.value[0]), answers.failure


def test_robometer_is_the_last_frame_of_its_own_heads(robometer, tmp_path):
    save_frames(tmp_path, 51, 204)
    url = f"http://127.0.0.1:{robometer.server_address[1]}"
    assert ask("robometer", tmp_path, "51 204", url) == (pytest.approx(0.8), "")
    assert ask("robometer", tmp_path, "204 51", url, output="success") == (pytest.approx(0.04), "")
    assert robometer.tasks == [GOAL, GOAL]
    value, failure = ask("robometer", tmp_path, "51", f"{url}/v1")
    assert np.isnan(value) and "answered 404" in failure

    robometer.answers.append({"outputs_progress": None})
    value, failure = ask("robometer", tmp_path, "51", url)
    assert np.isnan(value) and "answered without outputs_progress.progress_pred" in failure


def test_roboreward_is_asked_in_its_words_and_answers_a_grade(published, tmp_path):
    save_frames(tmp_path, 51, 191)
    assert ask("roboreward", tmp_path, "51 191", published.url) == (0.75, "")
    assert published.seen[-1][1]["model"] == "teetone/RoboReward-8B"
    assert ask("roboreward", tmp_path, "51", published.url) == (0.25, "")
    published.plan.append(says("I would say 4 of 5"))
    value, failure = ask("roboreward", tmp_path, "51", published.url)
    assert np.isnan(value) and "without its ANSWER: n, n from 1 to 5" in failure


def test_topreward_is_the_log_probability_of_true_after_its_sentence(published, tmp_path):
    save_frames(tmp_path, 51, 128)
    value, failure = ask("topreward", tmp_path, "51 128", published.url)
    assert failure == "" and value == pytest.approx(1 + math.log(128 / 255) / 10, abs=1e-3)
    body = published.seen[-1][1]
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 20, 1)
    frames, _ = see_video(body)
    assert [frame.shape for frame in frames] == [(224, 224, 3)] * 2
    assert "continue_final_message" not in body
    ask("topreward", tmp_path, "128", published.url, chat_template=False)
    body = published.seen[-1][1]
    assert body["continue_final_message"] is True and body["add_generation_prompt"] is False


def test_a_word_that_is_not_listed_is_less_likely_than_the_least_that_is(published, tmp_path):
    save_frames(tmp_path, 51)
    published.plan.append(says({"Yes": -0.1, "No": -4.0}))
    assert ask("topreward", tmp_path, "51", published.url)[0] == pytest.approx(0.6)
    published.plan.append(says("True"))
    assert "no log-probabilities" in ask("topreward", tmp_path, "51", published.url)[1]
    assert [scale_log_probability(value, -5.0) for value in (0, -1, -5, -9)] == [1, 0.8, 0, 0]


def test_windows_of_published_models_lie_evenly_and_have_their_size(robometer):
    url = f"http://127.0.0.1:{robometer.server_address[1]}"
    options = {"url": url, "attempts": 1}
    config = ProgressModelConfig(judge="robometer", judge_options=options, goal=GOAL, ask="at_once", every=1, window=4)
    assert (config.size, config.frames) == (224, "even")
    reward = ProgressModel(config, *SPACES)
    levels = np.arange(10, 130, 10, dtype=np.uint8)
    frame = np.broadcast_to(levels[:, None, None, None, None], (12, 1, 8, 8, 3)).copy()
    frame[:, :, 0, 0] = 255
    batch = blank(12, 1, frame=frame, step=np.arange(12)[:, None])
    scores, memory = reward.scan(batch, reward.initial_memory(1))
    expected = (63 * levels.astype(float) + 255) / 64 / 255
    np.testing.assert_allclose(scores[:, 0], expected, atol=1e-6)
    names = [reward.frames.keep(frame[t, 0]) for t in (0, 4, 8, 11)]
    assert memory["seen"][0].tolist() == names
    reward.close()


def test_an_even_window_holds_every_kth_frame_and_the_newest():
    frames = []
    for number in range(60):
        frames = [*thin_evenly(frames, number, 5), number]
        steps = set(np.diff(frames[:-1]))
        assert len(frames) <= 5 and frames[0] == 0 and len(steps) <= 1
    assert frames == [0, 16, 32, 48, 59]
    with pytest.raises(ValueError, match="window=1 cannot hold the first frame and the newest"):
        ProgressModelConfig(judge="topreward", window=1)
