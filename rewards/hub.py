"""Whether models of the Hugging Face Hub can be downloaded; its own client tries a dead network for a minute."""

import os
import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit
from urllib.request import getproxies


def why_no_download() -> str:
    """Why nothing can be downloaded, as part of a sentence; "" if it can."""
    url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE forbids to download it"
    if not can_connect(url):
        return f"{urlsplit(url).hostname} cannot be reached"
    return ""


def can_connect(url: str, patience: float = 1.5) -> bool:
    """Whether a connection opens within `patience` seconds; the look-up of the name counts too."""
    parts = urlsplit(getproxies().get("https") or url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connected = threading.Event()

    def connect() -> None:
        with suppress(OSError):
            socket.create_connection((parts.hostname or "", port), timeout=patience).close()
            connected.set()

    # A daemon thread, because a name server that does not answer has no timeout of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(patience)
    return connected.is_set()
