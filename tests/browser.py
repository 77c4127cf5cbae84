"""Chromium without a window, driven through its DevTools protocol over a pipe: no driver and no package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
KEYS = {" ": "Space"}  # the codes of keys that are not their names


class Browser:
    """One process; `open` makes tabs."""

    def __init__(self, profile: Path) -> None:
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        pipes = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(["bash", "-c", pipes, *command], pass_fds=(theirs_in, theirs_out), **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self._count, self._rest = 0, b""

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """One command; events that come before its reply are passed over."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                read = os.read(self._read, 1 << 16)
                assert read, "the browser is gone"
                self._rest += read
            told, _, self._rest = self._rest.partition(b"\0")
            reply = json.loads(told)
            if reply.get("id") == self._count:
                assert "error" not in reply, reply
                return reply["result"]

    def open(self, address: str) -> Tab:
        return Tab(self, address)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)


class Tab:
    """A page in the browser."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", url=address)["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 20.0) -> Any:
        """Wait until an expression holds, also of a page that is not there yet."""
        tried = f"(() => {{ try {{ return {expression} }} catch {{ return false }} }})()"
        end = time.monotonic() + seconds
        while not (found := self.value(tried)):
            assert time.monotonic() < end, f"{expression} does not hold; the page: {self.text()}"
            time.sleep(0.05)
        return found

    def text(self) -> str:
        return self.value("document.body.innerText")

    def press(self, key: str) -> None:
        """A key, down and up."""
        self.call("Page.bringToFront")
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=KEYS.get(key, key))

    def picture(self, path: Path, width: int = 1200, height: int = 800, dark: bool = False) -> None:
        """A screenshot."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
