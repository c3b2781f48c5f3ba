# topicd: `make run` starts the daemon on ./var, `make test` proves that it works. Both set everything up first.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: compare run test java quick unit lint fmt docs bench bench-deps faults crash corrupt flips crash-filechannel crash-queues crash-routers restarts mutants fuzz scale clean setup

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.compiles
BUILT  := $(VENV)/.built
CODE   := topicd ipc shards cli tests benchmarks docs

ROUNDS ?= 100
SEED   ?=
COUNT  ?= 100000
TOPICS ?= 100000
ONLY   ?=
PEERS  ?=
QUICK  ?=

COMPILED := $(BIN)/python -c "import sys, topicd.compiled as c; sys.exit(bool(c.why_not_used))"

# Everything that tests, checks and benchmarks need; `run` takes only the first part of it.
setup: $(BUILT) $(STAMP)

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# What running needs: the packages, the native core, the hot modules as they are.
$(RUNS): pyproject.toml setup.py requirements.lock $(wildcard topicd/_native/*.c topicd/_native/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "topicd needs Python 3.11 or newer; set PYTHON=…" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.lock
	TOPICD_COMPILED=later $(PIP) --no-build-isolation --no-deps -e . --config-settings editable_mode=compat
	@$(BIN)/python -m compileall -q -j 2 topicd ipc shards cli
	@touch $@

$(TOOLS): $(RUNS) requirements-build.lock
	$(PIP) -r requirements-build.lock
	@touch $@

$(STAMP): $(TOOLS) requirements-dev.lock
	$(PIP) -r requirements-dev.lock
	@touch $@

# Machine code of the hot modules (topicd/compiled.py); they also run without it, slower. Bytecode of all: where Python may
# not write it (PYTHONDONTWRITEBYTECODE), every start of every process would translate its sources anew. One at a time.
$(BUILT): $(TOOLS) Makefile $(shell find topicd ipc shards cli -name '*.py')
	@flock $(VENV)/.compiling $(SHELL) -c '$(COMPILED) || { echo "compiling"; $(BIN)/python setup.py --quiet build_ext --inplace; }'
	@$(BIN)/python -m compileall -q -j 2 topicd ipc shards cli
	@touch $@

# It starts at once. What is not compiled is compiled beside it, with what the processors have left, and used from the next start on.
run: $(RUNS)
	@$(COMPILED) || { echo "compiling the hot modules beside it, for the next start: $(VENV)/compiling.log"; \
		flock -n $(VENV)/.compiling true && env -u MAKEFLAGS -u MAKELEVEL nice -n 19 $(MAKE) $(BUILT) >$(VENV)/compiling.log 2>&1 </dev/null & }
	@$(BIN)/python -m compileall -q topicd ipc shards cli
	@TOPICD_HTTP=$${TOPICD_HTTP:-true} exec $(BIN)/topicd

# Two files of tests at a time: most of them wait for processes and disks. In three parts, so that no process of pytest holds what all of them held.
TOGETHER := $(BIN)/python -m pytest -n 2 --dist loadfile
test: setup java chromium
	$(TOGETHER) tests/unit tests/faults tests/contract tests/model tests/corrupt tests/crash tests/scale tests/support
	$(TOGETHER) tests/process tests/docs
	$(TOGETHER) tests/spark
	$(BIN)/python -m pytest tests/browser

# Spark runs on Java: Debian's, where there is none and it may be installed. Tests say what they could not do without; in CI they fail.
java:
	@command -v java >/dev/null || test -x "$$JAVA_HOME/bin/java" || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null || { echo "no Java, and this user may not install it: Spark tests cannot run" >&2; exit 0; }; \
		  echo "installing Java for the Spark tests"; export DEBIAN_FRONTEND=noninteractive; \
		  apt-get install -y -qq default-jre-headless >/dev/null || { apt-get update -qq && apt-get install -y -qq default-jre-headless >/dev/null; } || \
		  echo "Java could not be installed: Spark tests cannot run" >&2; }

# The dashboard is tried in Debian's Chromium, which is installed where it may be. Without it its tests fail and say so.
.PHONY: chromium screenshots
chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null || { echo "no Chromium, and this user may not install it: apt-get install chromium" >&2; exit 0; }; \
		  echo "installing Chromium for the tests of the dashboard"; export DEBIAN_FRONTEND=noninteractive; \
		  apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null || \
		  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
		  echo "Chromium could not be installed: apt-get install chromium" >&2; }

# Every view of the dashboard, light and dark, into docs/images.
screenshots: setup chromium
	$(BIN)/python -m tests.browser.screenshots

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

ifeq ($(ONLY),tier)
bench: setup
	$(BIN)/python -m benchmarks.tier $(if $(QUICK),--quick)
else
bench: setup
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(PEERS),--peers $(PEERS)) \
		--json var/bench/results.json --charts var/bench/charts
endif

.PHONY: bench-backup
# A backup of SIZE beside a writer: seconds, room, how long appends wait; DIR=… on another filesystem is copied to.
bench-backup: setup
	$(BIN)/python -m benchmarks.backup --size $(if $(SIZE),$(SIZE),1GiB) $(if $(DIR),--dir $(DIR))

# This checkout and another one (BASE=…, set up) round by round: what a change costs.
compare: setup
	$(BIN)/python -m benchmarks.compare $(BASE) --rounds $(if $(filter 100,$(ROUNDS)),5,$(ROUNDS)) $(if $(ONLY),--only $(ONLY))

# NATS is built from its current release where there is Go; Debian's is older and cannot sync each write.
NATS ?= v2.15.2
bench-deps:
	apt-get install -y redis-server beanstalkd postgresql strace
	if command -v go >/dev/null; then GOBIN=$(CURDIR)/$(BIN) go install github.com/nats-io/nats-server/v2@$(NATS); \
	else apt-get install -y nats-server; fi

# Every filesystem call of every mutating operation, crashed and failed.
faults: setup
	$(BIN)/python -m tests.faults --full $(if $(SEED),--seed $(SEED))

.PHONY: router-faults
# Every call while routers copy, and while a destination becomes a logged one, crashed and failed.
router-faults: setup
	$(BIN)/python -m tests.faults.router_sweep

.PHONY: backup-faults
# Every call of a backup and of a restore: killed, power lost, failed.
backup-faults: setup
	$(BIN)/python -m tests.faults.backups $(if $(EVERY),--every $(EVERY)) $(if $(SHARE),--share $(SHARE))

.PHONY: compaction-faults
# Every call of compaction: power lost, killed, failed.
compaction-faults: setup
	$(BIN)/python -m tests.faults.compaction $(if $(EVERY),--every $(EVERY)) $(if $(SHARE),--share $(SHARE))

.PHONY: tier-faults
# Every call while segments move between the fast disk, packed files and the cold directory: power lost, killed, failed.
tier-faults: setup
	$(BIN)/python -m tests.faults.tiering $(if $(EVERY),--every $(EVERY)) $(if $(SHARE),--share $(SHARE))

.PHONY: crash-backups
# Backups in the middle of a storm of kills, each moment of it restored.
crash-backups: setup
	$(BIN)/python -m tests.crash.backups --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

.PHONY: channel-faults channel-storm
# Every call of every change of a channel, crashed and failed.
channel-faults: setup
	$(BIN)/python -m tests.faults.channel_sweep

# Joins, leaves, publishes, pushes and pops on 200 channels while shards and the whole daemon are killed.
channel-storm: setup
	$(BIN)/python -m tests.crash.channels --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# A real daemon, random SIGKILL, an oracle of what was acknowledged.
crash: setup
	$(BIN)/python -m tests.crash --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# Workers on a queue while processes die: nothing lost, nothing twice, nothing back.
crash-queues: setup
	$(BIN)/python -m tests.crash.queues --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# Random damage to a data directory; start, fsck and repair against an oracle.
corrupt: setup
	$(BIN)/python -m tests.corrupt --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# One bit of every byte of every file of a data directory; two shares side by side.
flips: setup
	$(BIN)/python -m tests.corrupt.flips --share 0/2 & other=$$!; \
	$(BIN)/python -m tests.corrupt.flips --share 1/2; one=$$?; wait $$other && exit $$one

# The file channel: every call crashed and failed, races in full length, writers and readers killed.
crash-filechannel: setup
	TOPICD_SWEEP=full $(BIN)/python -m pytest tests/unit/filechannel
	$(BIN)/python -m tests.crash.filechannel --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.crash.spool --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# Any process killed while routers copy; every destination compared with its source.
crash-routers: setup
	$(BIN)/python -m tests.crash.routers --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

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

.PHONY: fuzz-http storm-http
# Hostile requests at the HTTP face, while a healthy client is measured.
fuzz-http: setup
	$(BIN)/python -m tests.process.web.fuzz --count $(COUNT) $(if $(SEED),--seed $(SEED))

# The gateway and shards killed while streams, sockets and writers of HTTP go on.
storm-http: setup
	$(BIN)/python -m tests.crash.http --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf $(VENV) build dist *.egg-info var .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Two chat stores with clocks minutes apart: random operations, broken comparisons, kills; both must end up equal.
.PHONY: chat-storm
chat-storm: setup
	$(BIN)/python -m tests.crash.chat --rounds $(if $(filter 100,$(ROUNDS)),200,$(ROUNDS)) $(if $(SEED),--seed $(SEED))
