"""A server on this machine that speaks as much of the Hugging Face Hub's language as pushing and pulling a run take."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = re.compile(r"/api/models/([\w.-]+/[\w.-]+)(?:/(\w+)/(\w+))?")
FILE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/(\w+)/(.+)")


class Hub(BaseHTTPRequestHandler):
    """Repositories in memory: name -> path -> bytes; weights travel as LFS, only with a token."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body=b"", status=200, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self):
        self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    def sha(self, repo):
        files = self.server.repos[repo]
        return hashlib.sha1(
            repr(sorted((k, hashlib.sha256(v).hexdigest()) for k, v in files.items())).encode()
        ).hexdigest()

    def do_GET(self):
        path = self.path.partition("?")[0]
        if found := FILE.fullmatch(path):
            repo, _, name = found.groups()
            data = self.server.repos[repo][name]
            self.server.fetched.append(name)
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            return self.answer(data, ETag=etag, X_Repo_Commit=self.sha(repo))
        repo, what, revision = MODEL.fullmatch(path).groups()
        if repo not in self.server.repos:
            return self.missing()
        files = self.server.repos[repo]
        if what == "tree":
            listed = [
                {"type": "file", "path": k, "size": len(v), "oid": hashlib.sha1(v).hexdigest()}
                for k, v in files.items()
            ]
            return self.answer(listed)
        if revision not in (None, "main", self.sha(repo)):
            return self.answer({"error": "Revision not found"}, 404, X_Error_Code="RevisionNotFound")
        return self.answer({"id": repo, "sha": self.sha(repo), "siblings": [{"rfilename": name} for name in files]})

    do_HEAD = do_GET

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_PUT(self):
        self.server.objects[self.path.rpartition("/")[2]] = self.body()
        self.answer(ETag='"stored"')

    def do_POST(self):
        path, body = self.path.partition("?")[0], self.body()
        if self.server.broken:
            return self.answer({"error": "all is down"}, self.server.broken)
        if path == "/api/validate-yaml":
            self.server.cards.append(json.loads(body)["content"])
            return self.answer({})
        if self.headers.get("Authorization") != "Bearer letmein":
            return self.answer({"error": "Invalid username or password."}, 401)
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            self.server.repos.setdefault(repo, {})
            return self.answer({"url": f"{self.server.address}/{repo}", "name": repo, "id": repo})
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            made = [{**o, "actions": {"upload": {"href": f"{self.server.address}/lfs/{o['oid']}"}}} for o in objects]
            return self.answer({"transfer": "basic", "objects": made})
        repo, what, _ = MODEL.fullmatch(path).groups()
        if repo not in self.server.repos:
            return self.missing()
        if what == "preupload":
            modes = {True: "lfs", False: "regular"}
            files = [
                {"path": f["path"], "uploadMode": modes[f["path"].endswith(".safetensors")], "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.server.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.repos[repo][value["path"]] = self.server.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                self.server.repos[repo].pop(value["path"])
        sha = self.sha(repo)
        return self.answer(
            {"success": True, "commitOid": sha, "commitUrl": f"{self.server.address}/{repo}/commit/{sha}"}
        )


@contextmanager
def hub():
    """The server while it runs, with `address`, `repos`, `fetched` and `cards`; a status in `broken` fails writes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.repos, server.objects, server.fetched, server.cards, server.broken = {}, {}, [], [], 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
