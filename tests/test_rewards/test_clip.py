import json
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from rollouts import blank

import rewards
from envs.steps import Cursor, from_gym_step
from rewards import hub
from rewards.vision import load as load_module
from rewards.vision.clip import Clip, ClipConfig, goal_reward
from rewards.vision.encoder import ClipEncoder, are_blank, model_for, shared_encoder
from rewards.vision.load import MODELS, SHIPPED_WEIGHTS

UP = "pole vertically upright on top of the cart"
SIZE = 64


def build(**options):
    return Clip(ClipConfig(**{"goal": UP, **options}), None, None)


def batch_of(frames, extras=None):
    n = len(frames) if frames is not None else len(next(iter(extras.values())))
    return blank(n, frame=frames, extras=extras or {})


@pytest.fixture(scope="module")
def poses():
    """CartPole drawn by its own renderer, the pole turned clockwise from upright by these angles."""
    import gymnasium as gym

    from envs.classic.family import pose
    from envs.render import frame

    env = gym.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=0)
    frames = []
    for degrees in (0, 30, 90, 180):
        pose(env, position=0.3, angle=np.deg2rad(degrees))
        frames.append(frame(env, SIZE))
    env.close()
    return np.stack(frames)


def by_the_matrix(s, g, b, alpha):
    """The source's own form, with the k x k projection matrix."""
    d = (g - b)[:, None]
    p = alpha * (d @ d.T) / (d.T @ d) + (1 - alpha) * np.eye(len(g))
    return 1 - 0.5 * np.square((s - g) @ p).sum(1)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_the_closed_form_equals_the_projection_matrix(alpha):
    rng = np.random.default_rng(0)
    s, g, b = (
        x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (rng.normal(size=(7, 16)), *rng.normal(size=(2, 16)))
    )
    assert goal_reward(s, g, b, alpha) == pytest.approx(by_the_matrix(s, g, b, alpha), abs=1e-6)


def test_the_closed_form_in_numbers_one_can_check_by_hand():
    # g - b lies along (1, -1) / sqrt 2; for s = b it is all there is, for s = (-1, 0): s - g = (-2, 0), u^2 = 2, q = 4
    g, b = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    s = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert goal_reward(s, g, b, 0.0).tolist() == pytest.approx([1, 0, -1])  # the cosine
    assert goal_reward(s, g, b, 0.5).tolist() == pytest.approx([1, 0, 1 - (2 + 0.25 * 2) / 2])
    assert goal_reward(s, g, b, 1.0).tolist() == pytest.approx([1, 0, 0])  # only the line counts


def test_the_reward_is_one_at_the_goal_and_the_cosine_of_both_sentences_at_the_baseline():
    reward = build(baseline="pole and cart", alpha=0.5)
    goal, baseline = reward.encoder.text([UP, "pole and cart"])
    seen = np.stack([goal, baseline])  # at the baseline s - g lies along the line, whatever alpha: 1 - |b - g|^2 / 2
    assert reward.rate(seen) == pytest.approx([1, goal @ baseline], abs=1e-5)


def test_verbatim_prompts_rank_official_frames(poses):
    upright, tilted, level, hanging = build().score(batch_of(poses))
    assert upright > tilted + 0.05 > level + 0.1 and level > hanging
    assert build(goal="the pole is hanging down").score(batch_of(poses)).argmax() == 3


@pytest.mark.parametrize(
    ("sentence", "best"),
    [("the stick is vertical", 0), ("pole upright", 0), ("pole not upright", 3), ("the pole is not hanging down", 0)],
)
def test_a_held_out_synonym_and_a_denial_do_not_reverse_the_reward(poses, sentence, best):
    score = build(goal=sentence).score(batch_of(poses))
    assert score[best] > score[3 - best] + 0.1


@pytest.mark.parametrize("sentence", ["qwv zzxk blorp", "a humanoid robot kneeling", "stock prices rose sharply"])
def test_a_sentence_without_meaning_gives_about_the_same_everywhere(poses, sentence):
    nonsense, sense = build(goal=sentence).score(batch_of(poses)), build().score(batch_of(poses))
    assert np.ptp(nonsense) < 0.25 * np.ptp(sense)


def test_the_untrained_control_cannot_tell_the_poses_apart(poses):
    control = build(**Clip.control).score(batch_of(poses))
    assert np.ptp(control) < 0.1 * np.ptp(build().score(batch_of(poses)))


def test_an_embedding_scores_like_its_frame_and_another_sentence_needs_no_frame(poses, monkeypatch):
    first, second = build(), build(goal="the pole is hanging down", baseline="pole", alpha=0.5)
    kept = first.embed(batch_of(poses))
    assert kept.dtype == np.float16 and kept.shape == (4, 64)
    expected = [r.score(batch_of(poses)) for r in (first, second)]
    monkeypatch.setattr(ClipEncoder, "image", lambda *_: pytest.fail("the frames were looked at again"))
    for reward, scores in zip((first, second), expected):
        again = reward.score(batch_of(None, {"clip": kept}))
        assert again.dtype == np.float32 and again.tolist() == scores.tolist()


def test_several_sentences_are_averaged_to_length_one():
    reward, parts = (
        build(goal="pole upright | the rod is straight up"),
        build().encoder.text(["pole upright", "the rod is straight up"]),
    )
    mean = parts.mean(0)
    assert reward.goal == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)


def test_rows_do_not_depend_on_the_size_of_the_passes(poses):
    many = np.concatenate([poses] * 5)
    assert build(batch_size=3).score(batch_of(many)) == pytest.approx(build().score(batch_of(many)), abs=1e-3)


def test_passes_side_by_side_give_the_bits_of_one_after_the_other(poses):
    encoder, many = build().encoder, np.concatenate([poses] * 5)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = encoder.image(many, 8)
        torch.set_num_threads(2)
        np.testing.assert_array_equal(encoder.image(many, 8), expected)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_frames_of_another_size_are_resized(poses):
    large = poses.repeat(2, axis=1).repeat(2, axis=2)
    assert build().score(batch_of(large)) == pytest.approx(build().score(batch_of(poses)), abs=0.05)


def test_no_frames_give_no_rewards_and_no_error(poses):
    assert build().score(batch_of(poses[:0])).shape == (0,)


def test_the_model_stays_out_of_checkpoints():
    assert build().state_dict() == {}


def test_the_registry_knows_it_as_a_goal_with_a_control():
    assert rewards.get("clip") is Clip and Clip.role == "goal" and Clip.requires == {"frame"}


def test_notes_say_what_supervised_the_model_and_warn_of_unknown_prompts():
    known = build(goal="the pole is upright").notes()
    assert len(known) == 1 and "in-domain" in known[0] and "simulator state" in known[0]
    strange = build(goal="a wombat yodelling").notes()[1]
    assert "'a wombat yodelling' is not like what this model was taught" in strange and "wombat, yodelling" in strange
    assert build(**Clip.control).notes() == ["untrained weights, a control whose reward means nothing"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"goal": ""}, "reward.clip.goal is empty"),
        ({"goal": " | "}, "reward.clip.goal is empty"),
        ({"goal": "up " * 200}, "reward.clip.goal has 600 characters, the limit is 500"),
        ({"goal": "a b " * 60}, "tokens longer than lodestar reads"),
        ({"alpha": 0.5}, "reward.clip.alpha=0.5 needs baseline"),
        ({"alpha": 0.5, "baseline": UP}, "goal and baseline mean the same"),
        ({"batch_size": 0}, "reward.clip.batch_size=0"),
        ({"goal": "pole\x07 up"}, r"reward.clip.goal has the control character '\\x07' at place 4"),
        ({"goal": "pole\nup"}, r"reward.clip.goal has the control character '\\n' at place 4"),
        ({"goal": "pole \u202eup"}, r"reward.clip.goal has the control character '\\u202e' at place 5"),
        ({"goal": "la barre est à la verticale"}, "reward.clip.goal has 'à' in 'la barre est à la verticale', and"),
        ({"goal": "杆子直立"}, "lodestar was taught English in plain letters; translate it"),
        ({"alpha": 0.5, "baseline": "Wagen über Schiene"}, "reward.clip.baseline has 'ü'"),
        ({"model": "ViT-B-23", "weights": "untrained"}, "no CLIP called 'ViT-B-23'; did you mean 'ViT-B-32'"),
        ({"model": "ViT-B-32"}, "reward.clip.model='ViT-B-32' needs reward.clip.weights"),
        ({"weights": "openai"}, "reward.clip.weights='openai' is no file, and lodestar has only those that ship"),
    ],
)
def test_bad_settings_are_refused_with_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        build(**options)
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_clips_are_refused_with_one_sentence(tmp_path):
    import torch
    from safetensors.torch import save_file

    wrong = tmp_path / "policy.safetensors"
    save_file({"mlp.weight": torch.zeros(2, 2)}, str(wrong))
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"not weights at all")
    for path in (wrong, broken):
        with pytest.raises(ValueError, match=f"{path.name} does not hold the weights of a CLIP") as caught:
            build(weights=str(path))
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    with pytest.raises(FileNotFoundError, match=r"'nowhere.pt' does not exist"):
        build(model="ViT-B-32", weights="nowhere.pt")
    with pytest.raises(FileNotFoundError, match="it has no open_clip_config"):
        build(weights=f"local-dir:{tmp_path}")


def test_a_folder_elsewhere_loads_by_the_same_path(tmp_path, poses):
    copy = tmp_path / "mine"
    shutil.copytree(SHIPPED_WEIGHTS, copy)
    for weights in (str(copy), f"local-dir:{copy}", str(copy / "open_clip_model.safetensors")):
        assert build(weights=weights).score(batch_of(poses)) == pytest.approx(build().score(batch_of(poses)), abs=1e-5)


def test_a_folder_with_other_weights_is_named(tmp_path):
    shutil.copytree(SHIPPED_WEIGHTS, tmp_path / "mine")
    (tmp_path / "mine" / "open_clip_model.safetensors").write_bytes(b"not weights at all")
    with pytest.raises(ValueError, match=f"^{tmp_path}/mine does not hold the weights of a CLIP of the kind"):
        build(weights=f"local-dir:{tmp_path / 'mine'}")


def test_a_model_absent_from_an_installation_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(MODELS, "lodestar-96", tmp_path)
    with pytest.raises(FileNotFoundError, match="the model lodestar-96, which ships with Lodestar, is not in"):
        build(model="lodestar-96")


def test_the_model_is_the_one_that_was_taught_the_environment(monkeypatch, tmp_path):
    monkeypatch.delitem(MODELS, "lodestar-96")
    for name, worlds in (("one", ["MiniGrid-*", "highway*"]), ("two", ["Acrobot-v?"])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "open_clip_config.json").write_text("{}")
        (tmp_path / name / "phrases.json").write_text(json.dumps({"worlds": worlds}))
        monkeypatch.setitem(MODELS, name, tmp_path / name)
    assert model_for("MiniGrid-Empty-5x5-v0") == "one" and model_for("highway_env:highway-fast-v0") == "one"
    assert model_for("Acrobot-v1") == "two"
    assert model_for("CartPole-v1") == model_for("FrozenLake-v1") == "lodestar"


def test_rewards_that_look_through_the_same_model_share_it():
    first, second, other = build(), build(goal="the pole is hanging down"), build(precision="bf16")
    assert first.encoder is second.encoder is shared_encoder(first)
    assert other.encoder is not first.encoder and first.embedding == "clip" != other.embedding
    controls = [Clip(ClipConfig(goal=UP, **Clip.control), None, None, seed=seed) for seed in (0, 1)]
    assert controls[0].embedding != controls[1].embedding  # untrained, and each in a way of its own


def test_a_threshold_gives_one_above_and_minus_one_below(poses):
    plain = build().score(batch_of(poses))
    middle = float(np.sort(plain)[2])
    assert build(threshold=middle).score(batch_of(poses)).tolist() == [1 if r > middle else -1 for r in plain.tolist()]
    assert build(threshold=middle).score(batch_of(poses)).dtype == np.float32


def test_frames_of_one_colour_are_known_pay_nothing_and_are_counted(poses):
    black, red = np.zeros_like(poses[0]), np.full_like(poses[0], (255, 0, 0))
    dot = black.copy()
    dot[31, 17, 2] = 1
    frames = np.stack([poses[0], black, red, dot])
    assert are_blank(frames).tolist() == [False, True, True, False]
    reward = build()
    batch = batch_of(None, {"clip": reward.embed(batch_of(frames))})
    assert reward.score(batch)[1:3].tolist() == [0, 0] and 0 not in reward.score(batch)[[0, 3]]
    assert reward.update(batch) == {"blank": 0.5}
    assert reward.update(batch.replace(valid=np.zeros(4, bool))) == {}
    valid = np.array([True, False, True, True])
    assert reward.update(batch.replace(valid=valid))["blank"] == pytest.approx(1 / 3)


def test_an_update_that_saw_only_blank_frames_is_refused_with_one_sentence():
    reward = build()
    batch = batch_of(None, {"clip": reward.embed(batch_of(np.zeros((5, SIZE, SIZE, 3), np.uint8)))})
    with pytest.raises(ValueError, match="all 5 frames since the last update have a single colour") as caught:
        reward.update(batch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        (np.zeros((2, 64, 64, 3), np.float32), r"frames are float32 of shape \(2, 64, 64, 3\), CLIP reads uint8"),
        (np.zeros((2, 3, 64, 64), np.uint8), r"frames are uint8 of shape \(2, 3, 64, 64\)"),
        (np.zeros((64, 64, 3), np.uint8), r"frames are uint8 of shape \(64, 64, 3\)"),
        (np.zeros((2, 0, 64, 3), np.uint8), r"frames are uint8 of shape \(2, 0, 64, 3\)"),
    ],
)
def test_what_is_no_frame_is_refused_with_one_sentence(frames, sentence):
    with pytest.raises(ValueError, match=sentence):
        build().embed(batch_of(frames))


def test_a_batch_without_frames_says_how_to_get_them():
    batch = batch_of(np.zeros((1, 8, 8, 3), np.uint8)).replace(frame=None)
    with pytest.raises(ValueError, match="clip reads frames, and there are none; make it with"):
        build().score(batch)


@pytest.mark.parametrize("offline", [True, False])
def test_missing_weights_without_a_network_are_one_sentence_within_three_seconds(offline):
    """In a fresh process: nothing is cached, and the hub's address leads nowhere."""
    code = (
        "import time; from rewards.vision.encoder import ClipEncoder; t = time.time()\n"
        "try: ClipEncoder('ViT-B-32', 'laion2b_s34b_b79k')\n"
        "except FileNotFoundError as e: print(round(time.time() - t, 1), e)"
    )
    places = {"HF_HOME": "/nonexistent", "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
    places |= {"HF_HUB_OFFLINE": "1"} if offline else {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", code], env=places, capture_output=True, text=True, timeout=60)
    seconds, _, sentence = done.stdout.strip().partition(" ")
    assert float(seconds) < 3, done
    assert "the weights 'laion2b_s34b_b79k' of 'ViT-B-32' are neither a file nor in the cache" in sentence
    assert ("HF_HUB_OFFLINE" in sentence) == offline and "reward.clip.model=lodestar" in sentence


def test_a_name_server_that_hangs_does_not_hold_us(monkeypatch):
    import socket

    def hang(*args, **kwargs):
        time.sleep(3)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", hang)
    start = time.time()
    assert not hub.can_connect("https://huggingface.co")
    assert time.time() - start < 2.5


def test_the_hub_is_looked_for_at_its_own_port_or_at_that_of_the_proxy(monkeypatch):
    import socket

    asked, proxies = [], {}
    monkeypatch.setattr(hub, "getproxies", lambda: proxies)
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        assert hub.can_connect(f"http://127.0.0.1:{here[1]}")
        monkeypatch.setattr(socket, "create_connection", lambda place, timeout: asked.append(place) or server.dup())
        for url in ("https://hub", "http://hub", "https://hub:99/x"):
            assert hub.can_connect(url)
        proxies["https"] = "http://proxy:3128"
        assert hub.can_connect("https://hub")
    assert asked == [("hub", 443), ("hub", 80), ("hub", 99), ("proxy", 3128)]


def test_weights_are_in_the_cache_of_the_hub_or_of_addresses(monkeypatch, tmp_path):
    import huggingface_hub
    import open_clip

    known, there = {}, {("a/b", "open_clip_pytorch_model.bin"): "path", ("a/b", "c.bin"): object()}
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda model, tag: known if model == "ViT-B-32" else {})
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *place: there.get(place))
    (tmp_path / "d.pt").touch()

    def cached(model="ViT-B/32", **given):
        known.clear()
        known.update(given)
        return load_module._is_cached(model, "tag", tmp_path)

    assert cached(hf_hub="a/b/") and not cached(hf_hub="a/b/c.bin") and not cached(hf_hub="a/x/")
    assert cached(url="https://x/y/d.pt") and not cached(url="https://x/y/e.pt") and not cached(hf_hub="")
    assert not cached("another", url="https://x/y/d.pt")


def test_only_a_folder_with_phrases_says_what_a_model_was_taught(tmp_path):
    assert load_module.read_training(None) is None and load_module.read_training(tmp_path) is None
    (tmp_path / "phrases.json").write_text('{"near": 0.5}')
    assert load_module.read_training(tmp_path) == {"near": 0.5}


def test_a_bare_file_gets_the_preprocessing_of_its_kind():
    """open_clip assumes OpenAI's mean for any bare file, which is wrong for SigLIP."""
    assert load_module._published_preprocessing("ViT-B-16-SigLIP", __file__)["mean"] == [0.5, 0.5, 0.5]


def test_a_transition_of_a_real_environment_is_rewarded():
    from envs.make import make

    env = make("CartPole-v1", frame_size=SIZE)
    obs, _ = env.reset(seed=0)
    next_obs, reward, terminated, truncated, info = env.step(0)
    transition = from_gym_step(Cursor(1), obs, 0, reward, next_obs, terminated, truncated, info)
    assert build().score(transition)[0] > 0.3
    env.close()


@pytest.mark.learn
def test_a_public_architecture_loads_from_a_file_like_the_small_one(tmp_path, poses):
    import open_clip
    import torch

    torch.manual_seed(3)
    model = open_clip.create_model("ViT-B-32")
    path = tmp_path / "vit.pt"
    torch.save(model.state_dict(), path)
    reward = build(model="ViT-B-32", weights=str(path), baseline="pole and cart", alpha=0.5)
    assert reward.frame_size == 224 and reward.notes() == []
    frames = poses.repeat(4, axis=1).repeat(4, axis=2)[:, :224, :224]
    expected = model.eval().encode_image(
        torch.from_numpy((frames / 255.0 - model.visual.image_mean) / model.visual.image_std)
        .float()
        .permute(0, 3, 1, 2),
        normalize=True,
    )
    assert reward.embed(batch_of(frames)) == pytest.approx(expected.detach().numpy(), abs=2e-3)
    with pytest.raises(ValueError, match="does not hold the weights of a CLIP of the kind 'ViT-B-16'"):
        build(model="ViT-B-16", weights=str(path))


def test_where_memory_runs_out_fewer_frames_are_read_at_once_from_then_on(monkeypatch):
    encoder = build().encoder
    frames = np.random.default_rng(0).integers(0, 255, (8, SIZE, SIZE, 3), np.uint8)
    expected = encoder.image(frames, 8)
    seen, forward = [], encoder.model.encode_image

    def small(x, **options):
        seen.append(len(x))
        if len(x) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(x, **options)

    monkeypatch.setattr(encoder.model, "encode_image", small)
    monkeypatch.setattr(encoder, "_max_frames", 8)
    with pytest.warns(UserWarning, match="no memory for 8 frames at once; from now on 4"):
        np.testing.assert_allclose(encoder.image(frames, 8), expected, atol=1e-3)
    assert seen == [8, 4, 2, 2, 2, 2]
    encoder.image(frames[:2], 8)
    assert seen[6:] == [2]
