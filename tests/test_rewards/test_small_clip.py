"""The shipped CLIPs without open_clip: texts to the bit, images to 2e-6; and which folders are of that form."""

import json
import random
import shutil
import sys

import pytest
import torch

from rewards.vision import small_clip
from rewards.vision.load import MODELS

TEXTS = [
    "a pole standing upright",
    "The car’s DRIVING, at 30 km/h; fast_lane &amp; x² 東京",
    "",
    "zzzz qwx " * 40,
    "Ⅷ ½",
]


@pytest.fixture(scope="module")
def open_clip():
    """Imported late: every worker imports this file, and one runs it."""
    import open_clip

    return open_clip


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_and_tokens_are_those_of_open_clip(name, open_clip):
    folder = MODELS[name]
    theirs = open_clip.create_model(f"local-dir:{folder}", pretrained_text=False).eval()
    ours = small_clip.load(folder)
    tokenize = open_clip.get_tokenizer(f"local-dir:{folder}", bpe_path=str(folder / "bpe.txt.gz"))
    tokens = small_clip.Tokenizer(folder)(TEXTS)
    assert torch.equal(tokens, tokenize(TEXTS))
    size = ours.visual.image_size
    frames = torch.rand(16, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(ours.encode_text(tokens, normalize=True), theirs.encode_text(tokens, normalize=True))
        exact = theirs.encode_image(frames, normalize=True)
        for _ in range(2):
            torch.testing.assert_close(ours.encode_image(frames, normalize=True), exact, rtol=0, atol=2e-6)
            ours.fold()
    assert ours.visual.preprocess_cfg.items() <= theirs.visual.preprocess_cfg.items()


def test_untrained_weights_are_drawn_as_open_clip_draws_them(open_clip):
    folder = MODELS["lodestar"]
    torch.manual_seed(3)
    theirs = open_clip.create_model(f"local-dir:{folder}", pretrained_text=False, load_weights=False).state_dict()
    torch.manual_seed(3)
    ours = small_clip.load(folder, untrained=True).state_dict()
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[key], ours[key]) for key in theirs)


def test_plain_sentences_need_no_package_and_have_the_same_tokens(monkeypatch):
    regex = pytest.importorskip("regex")
    printable = [chr(code) for code in range(32, 127)]
    rng = random.Random(0)
    texts = ["".join(rng.choices(printable, k=40)) for _ in range(200)]
    tokenizer = small_clip.Tokenizer(MODELS["lodestar"])
    plain = [tokenizer.encode(text.replace("&", " ")) for text in [*texts, "the car\u2019s \u201cpole\u201d"]]
    monkeypatch.setattr(small_clip, "_PLAIN_TEXT", regex.compile("(?!)"))
    assert plain[:-1] == [tokenizer.encode(text.replace("&", " ")) for text in texts]
    assert plain[-1] == tokenizer.encode("the car\u2019s \u201cpole\u201d") == tokenizer.encode("the cars pole")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(ImportError, match=r"'東' has other characters .*pip install 'lodestar-rl\[models\]'"):
        tokenizer.encode("東")


@pytest.mark.parametrize(
    "change",
    [
        {"quick_gelu": True},
        {"vision_cfg": {"layers": 2, "width": 64, "patch_size": 8, "image_size": 64}},
        {"text_cfg": {}},
        {},
    ],
    ids=["another activation", "a ViT", "no tokenizer", "no weights"],
)
def test_a_folder_of_another_form_is_left_to_open_clip(tmp_path, change):
    folder = shutil.copytree(MODELS["lodestar"], tmp_path / "model")
    assert small_clip.is_small(folder)
    if not change:
        (folder / small_clip.WEIGHTS).unlink()
    config = small_clip.read_config(folder)
    config["model_cfg"] |= change
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    assert not small_clip.is_small(folder)
