"""Models that rewards use: CLIP's weights, shipped and cached, and the judge's server."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from runners.doctor import Finding

PUBLIC = (("ViT-B-32", "laion2b_s34b_b79k"), ("ViT-B-32", "openai"), ("ViT-bigG-14", "laion2b_s39b_b160k"))
PATIENCE_S = 3.0  # for a judge's answer


def shipped() -> Iterator[Finding]:
    """The models that come with the suite, against the fingerprints of their cards."""
    from rewards.vision.encoder import MODELS

    for model, folder in MODELS.items():
        name, weights = f"CLIP {model}", folder / "open_clip_model.safetensors"
        if not weights.is_file():
            fix = "work in a checkout, or give reward.clip.weights=local-dir:<folder>"
            yield Finding(name, "missing", f"there is no {weights}", fix, required=False)
            continue
        card = folder / "README.md"
        found = re.search(r"sha256\W+([0-9a-f]{64})", card.read_text()) if card.is_file() else None
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        size = f"{weights.stat().st_size / 1e6:.1f} MB"
        if found is not None and found[1] != digest:
            words = f"{size}, but not the file that its card describes ({digest[:12]}, not {found[1][:12]})"
            yield Finding(name, "missing", words, "git checkout -- assets", required=False)
        else:
            yield Finding.of(name, f"{size}, {'as its card says' if found else 'without a card'}", required=False)


def cached() -> Iterator[Finding]:
    """Whether public weights are on this machine; nothing is asked of the network."""
    from rewards.vision.encoder import _cached

    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    for model, tag in PUBLIC:
        if _cached(model, tag, Path("~/.cache/clip").expanduser()):
            yield Finding.of(f"CLIP {model}", f"{tag} is in the cache", required=False)
            continue
        then = "HF_HUB_OFFLINE forbids to download it" if offline else "its first use would download it"
        fix = "reward.clip.weights=<file>, or the shipped models, which need no download"
        words = f"optional; {tag} is not on this machine, and {then}"
        yield Finding(f"CLIP {model}", "missing", words, fix, required=False)


def judge(url: str, model: str) -> Iterator[Finding]:
    """One real question to a server, if one is named; its key is never printed."""
    key = "set" if os.environ.get("OPENAI_API_KEY") else "not set"
    if not url:
        words = f"not asked (OPENAI_API_KEY is {key}); judge=http://localhost:8000/v1 asks a server"
        yield Finding.of("judge", words, required=False)
        return
    from rewards.llm.client import Chat, Endpoint, JudgeError

    fix = "start the server, or see that the address ends with its version, as in http://localhost:8000/v1"
    try:
        model = model or _first_model(url)
        chat = Chat(Endpoint(model, url, connect=PATIENCE_S, timeout=PATIENCE_S, attempts=1, max_tokens=16))
        begin = time.perf_counter()
        chat.ask(["Answer with the single word yes."])
        chat.close()
    except (JudgeError, ValueError) as error:
        yield Finding("judge", "missing", f"{error} (OPENAI_API_KEY is {key})", fix, required=False)
        return
    words = f"{model} at {url} answered in {time.perf_counter() - begin:.2f} s (OPENAI_API_KEY is {key})"
    yield Finding.of("judge", words, required=False)


def _first_model(url: str) -> str:
    """The first model that a server names; its list is part of the same interface."""
    import httpx2

    key = os.environ.get("OPENAI_API_KEY", "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx2.get(f"{url.rstrip('/')}/models", headers=headers, timeout=PATIENCE_S)
        return str(answer.json()["data"][0]["id"])
    except httpx2.HTTPError as error:
        raise ValueError(f"{url} cannot be reached: {type(error).__name__}") from None
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{url} names no models (status {answer.status_code}); give model=") from None
