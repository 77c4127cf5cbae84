"""A reward model of LeRobot in a process of its own: a script that another Python runs, which imports nothing of ours.

    python lerobot_process.py '{"path": "FOLDER_OR_REPO", "image_key": "", "device": ""}'

It writes one JSON object a line: first {"ready": {"version": ..., "type": ...}} or {"refused": "one sentence"}, then an
answer to each line that it reads.

    {"frames": ["a.npy", "b.npy"], "task": "open the drawer"}      frames, uint8 (H, W, 3), the oldest first
    {"value": 0.7}  or  {"failed": "one sentence"}
"""

import json
import os
import sys
from importlib import metadata
from typing import Any, TextIO

# This folder is no place to import from: it has an `openai` of ours.
sys.path.pop(0)

# The versions whose reward models this knows, from the first to below the second.
VERSIONS = ((0, 6), (0, 7))
CLASSIFIER = "reward_classifier"


def main() -> None:
    """Load the model, and answer until standard input ends."""
    settings = json.loads(sys.argv[1])
    # Libraries print what they like: answers have a stream of their own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        version = check_version()
        model = Model(**settings)
    except Exception as error:
        write_message(answers, refused=one_line(error))
        return
    write_message(answers, ready={"version": version, "type": model.type})
    for line in sys.stdin:
        question = json.loads(line)
        try:
            write_message(answers, value=model.score(question["frames"], question["task"]))
        except Exception as error:
            write_message(answers, failed=one_line(error))


def check_version() -> str:
    """The version of LeRobot that this Python has; RuntimeError if it is another than those known here."""
    wanted = "pip install 'lerobot>=0.6,<0.7' into it, or give the python of an environment that has it"
    try:
        version = metadata.version("lerobot")
    except metadata.PackageNotFoundError:
        raise RuntimeError(f"{sys.executable} has no package lerobot; {wanted}") from None
    numbers = tuple(map(int, version.split(".")[:2]))
    first, end = VERSIONS
    if not first <= numbers < end:
        raise RuntimeError(f"{sys.executable} has lerobot {version}, and reward models of 0.6 are read; {wanted}")
    return version


class Model:
    """The model, its preprocessing, and which of its inputs gets the frames."""

    def __init__(self, path: str, image_key: str, device: str) -> None:
        import torch
        from lerobot.configs.rewards import RewardModelConfig
        from lerobot.rewards import make_reward_model

        self.torch = torch
        config = RewardModelConfig.from_pretrained(path)
        config.pretrained_path = path
        if device:
            config.device = device
        self.type = config.type
        self.key = image_key or choose_key(config)
        self.shape = getattr(config.input_features.get(self.key), "shape", None)
        self.model = make_reward_model(config)
        self.preprocess = load_preprocessing(config, path)

    def score(self, files: list[str], task: str) -> float:
        import numpy as np

        frames = list(map(np.load, files))
        if self.type == CLASSIFIER:
            # It reads one picture of the size that it was trained on.
            frames = [resize(frames[-1], self.shape)]
        # (T, H, W, C) bytes -> (T, C, H, W) in [0, 1].
        video = np.stack(frames).transpose(0, 3, 1, 2).astype(np.float32) / 255
        if self.type != CLASSIFIER:
            # A batch of one video.
            video = video[None]
        pictures = self.torch.from_numpy(np.ascontiguousarray(video))
        with self.torch.inference_mode():
            batch = self.preprocess({self.key: pictures, "task": [task]})
            return float(self.model.compute_reward(batch).flatten()[0])


def resize(frame: Any, shape: tuple[int, int, int] | None) -> Any:
    """A frame (H, W, 3) of the height and width of a shape (3, H, W); as it is without a shape."""
    if shape is None:
        return frame
    import numpy as np
    from PIL import Image

    _, height, width = shape
    return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR))


def choose_key(config: Any) -> str:
    """The one input that holds pictures; RuntimeError for none, or several."""
    key = getattr(config, "image_key", "")
    if key:
        return str(key)
    keys = [name for name in config.input_features if name.startswith("observation.image")]
    if len(keys) != 1:
        raise RuntimeError(
            f"{config.type} reads {len(keys)} pictures ({', '.join(keys)}), and there is one; give image_key"
        )
    return str(keys[0])


def load_preprocessing(config: Any, path: str) -> Any:
    """The pipeline that was saved beside the model, else the one that LeRobot makes for it."""
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.rewards import make_reward_pre_post_processors

    if os.path.isdir(path):
        saved = sorted(name for name in os.listdir(path) if name.endswith("preprocessor.json"))
        if saved:
            return PolicyProcessorPipeline.from_pretrained(path, config_filename=saved[0])
    preprocess, _ = make_reward_pre_post_processors(config)
    return preprocess


def write_message(answers: TextIO, **message: Any) -> None:
    """Write a message as one line of JSON."""
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def one_line(error: Exception) -> str:
    """An error as one sentence of at most 300 characters."""
    words = " ".join(str(error).split())
    if isinstance(error, RuntimeError) and words:
        return words[:300]
    return f"{type(error).__name__}: {words}"[:300]


if __name__ == "__main__":
    main()
