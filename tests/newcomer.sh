#!/usr/bin/env bash
# What a newcomer does, on a machine that has nothing of ours: clone, `make test`, `make train`. Called by `make newcomer`.
#
# Home, temporary folder and every cache are new and empty. Root becomes an unprivileged user for it where that can be
# done, as root may read and write what others may not.
#
#   PYTHON=  the interpreter; by default the oldest here that the metadata admits, the system's own among them
#   TESTS=   arguments for pytest; the whole suite by default
#   STEPS=   how long to train (2000)
#
# `tests/newcomer.sh --python` only prints which interpreter that is.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)

# What only newer ones know fails on the oldest; the one at hand is often a newer one.
oldest_python() {
  local candidate
  for candidate in /usr/bin/python3 python3.{11..19} python3; do
    "$candidate" - "$source/pyproject.toml" 2> /dev/null << 'END' || true
import ensurepip, os, re, sys, tomllib, venv
with open(sys.argv[1], "rb") as file:
    admitted = tomllib.load(file)["project"]["requires-python"]
lowest, too_high = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", admitted).groups())
if lowest <= sys.version_info.minor < too_high:
    print(sys.version.split()[0], os.path.realpath(sys.executable))
END
  done | sort --version-sort | head -1 | cut -d " " -f 2
}
python=${PYTHON:-$(oldest_python)}
if [ "${1:-}" = --python ]; then
  echo "$python"
  exit
fi
place=$(mktemp -d /tmp/newcomer.XXXXXX)  # short: Ray's sockets have room for 107 characters of path
trap 'rm -rf "$place"' EXIT
mkdir "$place"/{home,tmp,cache}
git -c safe.directory="*" clone --quiet --no-hardlinks "$source" "$place/lodestar"

python=$(command -v "$python")
python=$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')  # behind the shims of a home
as=()
if [ "$(id -u)" = 0 ]; then
  as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
  if "${as[@]}" "$python" -c "" 2> /dev/null; then
    chown -R 65534:65534 "$place"
  else
    as=()
    echo "newcomer: no other user can be had that may run $python; this goes on as root"
  fi
fi
# The way to the package registry is the machine's own; caches are not.
mapfile -t way < <(env | grep -iE '^(https?_proxy|no_proxy|all_proxy|ssl_cert_|requests_ca_|pip_|uv_)' || true)

run() {
  echo "newcomer: $*"
  (cd "$place/lodestar" && "${as[@]}" env --ignore-environment "${way[@]}" \
    PATH="$PATH" LANG=C.UTF-8 HOME="$place/home" TMPDIR="$place/tmp" XDG_CACHE_HOME="$place/cache" \
    UV_CACHE_DIR="$place/cache/uv" PIP_CACHE_DIR="$place/cache/pip" HF_HOME="$place/cache/hf" "$@")
}

run make test PYTHON="$python" ${TESTS:+TESTS="$TESTS"}
run make train PYTHON="$python" ARGS="total_timesteps=${STEPS:-2000}"
echo "newcomer: all of it works"
