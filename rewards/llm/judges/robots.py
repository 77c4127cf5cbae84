"""Three reward models of robotics behind their servers, asked as they were published: what a few frames show of a task.

    robometer    the progress, or the success, of the last frame: heads of Robometer-4B behind its own `eval_server`
    roboreward   (n - 1) / 4 for the grade n of 1 to 5 in its answer "ANSWER: n" to its published rubric
    topreward    1 - log P("True") / `floor`, cut off at 0: what follows "The answer is:" of its published sentence

The prompts stand word for word, with their sources and licences, in `prompts/robots.txt`. A video goes to the server as
one part of a message, in the form that vLLM reads; with `video=false` the frames go as pictures, to any server.

Sources: Liang et al. 2026, "Robometer", arXiv 2603.02115, `robometer/evals/eval_server.py`; Lee et al. 2026,
"RoboReward", arXiv 2601.00675, its model card; Chen et al. 2026, "TOPReward", arXiv 2602.19313, its `QwenClient`.
Differences: TOPReward scales log-probabilities by the extremes of a whole episode, which are not known while it runs,
so `floor` is the scale here; its answer is the first of a model's turn, its option `add_chat_template`, unless
`chat_template=false`. Where RoboReward's own readers take any digit, or 1, an answer without "ANSWER: n" is none here.
When it fails: no real model was asked here, only servers of our own that speak the same protocols; a server without
log-probabilities, or a model that thinks first (topreward); frames that look unlike the videos of robots they know.
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.render import resize
from lodestar.settings import setting
from rewards.llm.client import JudgeError, Reply, video_part
from rewards.llm.judges.one_token import ONE_TOKEN
from rewards.llm.judges.prompts import sections
from rewards.llm.judges.windows import WindowModel

# Height and width of TOPReward's frames, as its ports have them; its own constant is 244.
TOPREWARD_PIXELS = 224
ROBOREWARD_ANSWER = re.compile(r"ANSWER:\s*([1-5])(?!\d)")
TRUE = "True"


class PublishedModel(WindowModel):
    """What the three share: their published prompts."""

    wordings = "robots"


@dataclass(eq=False)
class Robometer(PublishedModel):
    """Heads for the progress and the success of each frame."""

    model: str = setting("robometer/Robometer-4B", "what its server was started with; the server is not told")
    url: str = setting("http://localhost:8000", "where its eval_server.py listens")
    output: str = setting(
        "progress", "of the last frame: progress, or the probability of success", "progress | success"
    )

    name = "robometer"

    @property
    def variant(self) -> str:
        return self.output

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        data = self.chat.post("evaluate_batch_npy", **robometer_request(np.stack(frames), self.goal))
        reply.text = data.decode("utf-8", "replace")
        outputs = f"outputs_{self.output}"
        field = "progress_pred" if self.output == "progress" else "success_probs"
        try:
            of_frames = json.loads(data)[outputs][field][0]
            value = float(of_frames[-1])
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise JudgeError(
                f"{self.url} answered without {outputs}.{field}: {reply.text[:200]!r}; give the address of Robometer's "
                "eval_server.py"
            ) from None
        if not np.isfinite(value):
            raise JudgeError(f"{self.url} answered {value} for {outputs}.{field}")
        return float(np.clip(value, 0, 1))


def robometer_request(frames: np.ndarray, task: str) -> dict[str, Mapping[str, Any]]:
    """The form of /evaluate_batch_npy with one sample: frames, uint8 (T, H, W, 3), as a *.npy beside its JSON."""
    key = "sample_0_trajectory_frames"
    file = io.BytesIO()
    np.save(file, frames)
    trajectory = {
        "frames": {"__numpy_file__": key},
        "frames_shape": list(frames.shape),
        "task": task,
        "id": "0",
        "metadata": {"subsequence_length": len(frames)},
        "video_embeddings": None,
    }
    sample = json.dumps({"sample_type": "progress", "trajectory": trajectory})
    return {
        "data": {"sample_0": sample, "use_frame_steps": "false"},
        "files": {key: (f"{key}.npy", file.getvalue(), "application/octet-stream")},
    }


@dataclass(eq=False)
class RoboReward(PublishedModel):
    """A vision-language model that was trained to grade videos by a rubric."""

    model: str = setting("teetone/RoboReward-8B", "its name on the server")
    video: bool = setting(True, "whether frames are sent as one video, as vLLM reads it, or as pictures")
    max_tokens: int = 128

    name = "roboreward"

    @property
    def variant(self) -> str:
        return "video" if self.video else "pictures"

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        question = sections("robots")["roboreward"].format(task=self.goal)
        text = self.chat.ask([*frame_parts(frames, self.video), question], None, reply)
        answer = ROBOREWARD_ANSWER.search(text)
        if answer is None:
            raise JudgeError(f"{self.model} answered {text[:200]!r}, without its ANSWER: n, n from 1 to 5")
        return (int(answer[1]) - 1) / 4


@dataclass(eq=False)
class TopReward(PublishedModel):
    """The log-probability that any video model gives to "True"."""

    model: str = setting("Qwen/Qwen3-VL-8B-Instruct", "its name on the server")
    video: bool = setting(True, "whether frames are sent as one video, as vLLM reads it, or as pictures")
    chat_template: bool = setting(
        True, "whether \"True\" begins the model's turn; false lets it end the user's, the source's default: vLLM alone"
    )
    floor: float = setting(-10.0, "the log-probability, in nats, whose score is 0; that of 0 scores 1", "<= -0.1")

    name = "topreward"

    @property
    def variant(self) -> str:
        kind = "video" if self.video else "pictures"
        return f"{kind} template={self.chat_template} floor={self.floor:g}"

    def value(self, frames: list[np.ndarray], reply: Reply) -> float:
        frames = list(map(_resize_to_topreward, frames))
        question = sections("robots")["topreward"].format(task=self.goal)
        options = dict(ONE_TOKEN)
        if not self.chat_template:
            options |= {"add_generation_prompt": False, "continue_final_message": True}
        self.chat.ask([*frame_parts(frames, self.video), question], None, reply, **options)
        if not reply.candidates:
            raise JudgeError(f"{self.model} gave no log-probabilities; take a server with them, such as vLLM")
        return scale_log_probability(log_probability_of_true(reply.candidates), self.floor)


def log_probability_of_true(candidates: Sequence[tuple[str, float]]) -> float:
    """That of the word "True"; where the server does not list it, that of the least that it lists, which is above."""
    of_true = [value for token, value in candidates if token.strip() == TRUE]
    if of_true:
        return max(of_true)
    return min(value for _, value in candidates)


def scale_log_probability(value: float, floor: float) -> float:
    """0 at `floor` and below, 1 at a log-probability of 0, linear between."""
    return float(np.clip(1 - value / floor, 0, 1))


def frame_parts(frames: list[np.ndarray], video: bool) -> list[Any]:
    """The parts of a message that show frames: one video, or pictures."""
    if not video:
        return list(frames)
    # A video has two frames at least.
    if len(frames) == 1:
        frames = frames * 2
    return [video_part(frames)]


def _resize_to_topreward(frame: np.ndarray) -> np.ndarray:
    """A frame of TOPREWARD_PIXELS, whatever its proportions; a smaller one is enlarged."""
    from PIL import Image

    if min(frame.shape[:2]) >= TOPREWARD_PIXELS:
        return resize(frame, TOPREWARD_PIXELS)
    picture = Image.fromarray(np.ascontiguousarray(frame))
    return np.array(picture.resize((TOPREWARD_PIXELS, TOPREWARD_PIXELS)))
