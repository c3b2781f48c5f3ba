# topicd: `make run` starts the daemon on ./var, `make test` proves that it works. Both set everything up first.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: compare run test quick unit lint fmt docs bench bench-deps faults crash corrupt crash-filechannel restarts mutants fuzz scale clean setup

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BUILT  := $(VENV)/.built
CODE   := topicd ipc shards cli tests benchmarks docs

ROUNDS ?= 100
SEED   ?=
COUNT  ?= 100000
TOPICS ?= 100000
ONLY   ?=
PEERS  ?=
QUICK  ?=

setup: $(STAMP) $(BUILT)

$(STAMP): pyproject.toml setup.py requirements.lock $(wildcard topicd/_native/*.c topicd/_native/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "topicd needs Python 3.11 or newer; set PYTHON=…" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e . --config-settings editable_mode=compat
	@touch $@

# Machine code of the hot modules (topicd/compiled.py); they also run without it, slower. Bytecode of all: where Python may
# not write it (PYTHONDONTWRITEBYTECODE), every start of every process would translate its sources anew.
$(BUILT): $(STAMP) Makefile $(shell find topicd ipc shards cli -name '*.py')
	@$(BIN)/python -c 'import sys, topicd.compiled as c; sys.exit(bool(c.why_not_used))' || \
		{ echo "compiling"; $(BIN)/python setup.py --quiet build_ext --inplace; }
	@$(BIN)/python -m compileall -q topicd ipc shards cli
	@touch $@

run: setup
	@exec $(BIN)/topicd

test: setup
	$(BIN)/python -m pytest

# Under a minute: what to run before each commit.
quick: setup lint
	$(BIN)/python -m pytest tests/unit tests/contract -m "not slow" -x
	$(BIN)/python -m pytest tests/process/test_smoke.py -x

unit: setup
	$(BIN)/python -m pytest tests/unit tests/contract

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p topicd
	$(BIN)/mypy benchmarks

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup
	$(BIN)/python -m docs.generate

bench: setup
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(PEERS),--peers $(PEERS)) \
		--json var/bench/results.json --charts var/bench/charts

# This checkout and another one (BASE=…, set up) round by round: what a change costs.
compare: setup
	$(BIN)/python -m benchmarks.compare $(BASE) --rounds $(if $(filter 100,$(ROUNDS)),5,$(ROUNDS)) $(if $(ONLY),--only $(ONLY))

bench-deps:
	apt-get install -y redis-server nats-server strace

# Every filesystem call of every mutating operation, crashed and failed.
faults: setup
	$(BIN)/python -m tests.faults --full $(if $(SEED),--seed $(SEED))

# A real daemon, random SIGKILL, an oracle of what was acknowledged.
crash: setup
	$(BIN)/python -m tests.crash --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# Random damage to a data directory; start, fsck and repair against an oracle.
corrupt: setup
	$(BIN)/python -m tests.corrupt --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# The file channel: every call crashed and failed, races in full length, writers and readers killed.
crash-filechannel: setup
	TOPICD_SWEEP=full $(BIN)/python -m pytest tests/unit/filechannel
	$(BIN)/python -m tests.crash.filechannel --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.crash.spool --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# A producer and a consumer in their own processes, a daemon that is restarted under them.
restarts: setup
	$(BIN)/python -m tests.crash.restarts --restarts 20 $(if $(SEED),--seed $(SEED))

# A hundred thousand topics in one shard: created, written, restarted, killed.
scale: setup
	$(BIN)/python -m tests.scale --topics $(TOPICS)

# Removes one safeguard at a time and checks that a test notices.
mutants: setup
	$(BIN)/python -m tests.mutants

fuzz: setup
	$(BIN)/python -m tests.process.fuzz --count $(COUNT) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf $(VENV) build dist *.egg-info var .mypy_cache .ruff_cache .pytest_cache .hypothesis
