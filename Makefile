# Every verb of this repository; `make help` lists them.
#
#   make run     a cluster of three bookies on this machine, nothing else needed
#   make test    everything that PyPI alone can run
#
# PYTHON names the interpreter to build .venv on; without it the first python3.11 or newer is taken.
# The environment is built once and again only when a file under requirements/ changes.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV ?= .venv
DATA ?= ./data
DOCKER ?= docker
# Where it is, `make release` builds the image as well; `make release PODMAN=` leaves the image out.
PODMAN ?= $(shell command -v podman)
TEST_PROCESSES ?= 3
BIN := $(VENV)/bin
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Decides the order of tests and what they draw by chance. `make soak` draws one anew, and prints it.
TEST_SEED ?= 20261127
PYTEST = $(BIN)/python -m pytest --randomly-seed=$(TEST_SEED)
SOAK = $(BIN)/python -m pytest --hypothesis-profile=soak
# Tests start hundreds of processes; without bytecode on disk each of them compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE
SHARED = -n $(TEST_PROCESSES) --dist loadgroup --max-worker-restart=0

.PHONY: help setup docs-setup spark-setup run demo spark-demo docker test-core model zookeeper test test-day java \
	test-night test-system test-installed test-image test-kafka sim walk fault spark interop soak soak-system bench lint types imports docs \
	check format audit news sbom release proto proto-check lock clean

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

# ---- the environment ------------------------------------------------------------------------------

$(VENV)/.made:
	@set -e; python="$(PYTHON)"; \
	for candidate in python3.11 python3.12 python3.13 python3.14 python3; do \
	  [ -n "$$python" ] && break; \
	  "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    && python="$$candidate"; \
	done; \
	[ -n "$$python" ] || { echo "bookie needs Python 3.11 or newer: apt-get install python3" >&2; exit 1; }; \
	PYTHON="$$python" requirements/debian.sh run; \
	echo "making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv --clear $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.made requirements/core.txt requirements/build.txt pyproject.toml
	@echo "installing bookie into $(VENV)"
	@$(PIP) install -r requirements/build.txt -r requirements/core.txt
	@# In this mode Spark finds our package by looking at the path.
	@$(PIP) install --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.core requirements/test.txt
	@echo "installing what the tests need"
	@$(PIP) install -r requirements/core.txt -r requirements/test.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.test requirements/dev.txt
	@echo "installing what the checks need"
	@$(PIP) install -r requirements/core.txt -r requirements/test.txt -r requirements/dev.txt
	@touch $@

$(VENV)/.spark: $(VENV)/.core requirements/spark.txt
	@echo "installing Spark, 0.5 GB"
	@$(PIP) install -r requirements/core.txt -r requirements/test.txt -r requirements/spark.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.dev requirements/docs.txt
	@echo "installing what the site of documents needs"
	@$(PIP) install -r requirements/core.txt -r requirements/test.txt -r requirements/dev.txt -r requirements/docs.txt
	@touch $@

setup: $(VENV)/.dev ## make .venv with everything that tests and checks need, but Spark

docs-setup: $(VENV)/.docs ## add what `make docs` needs

spark-setup: $(VENV)/.spark zookeeper ## add Spark and the jars of ZooKeeper that tests start

# ---- use it ---------------------------------------------------------------------------------------

run: $(VENV)/.core ## three bookies on this machine, data in ./data; Ctrl-C stops them
	@exec $(BIN)/bookie local --bookies 3 --data $(DATA)

demo: $(VENV)/.core ## kill bookies in the middle of a stream; every byte comes back
	@exec $(BIN)/bookie demo

spark-demo: $(VENV)/.spark ## rows into a log, a stream that is killed, files, an audit and a repair; 2 min
	@$(BIN)/python examples/spark/pipeline.py

docker: ## build the container image bookie; DOCKER=podman and BASE_IMAGE=… do as well
	$(DOCKER) build $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) --tag bookie .

# ---- test it --------------------------------------------------------------------------------------

test-core: $(VENV)/.test ## unit, property and conformance tests, without Java and Spark; 4 to 8 min on two cores
	$(PYTEST) tests/unit tests/property tests/conformance -m "core and not nightly" $(SHARED) --durations=10

model: $(VENV)/.test ## random schedules of the protocol and of the engine against models, and mutants; 1 min
	$(PYTEST) tests/property tests/explorer -m model $(SHARED)

zookeeper: $(VENV)/.test ## the jars of ZooKeeper that tests start; 456 MB without Spark, once
	@$(BIN)/python -m tests.servers.fetch_zookeeper

test: java test-core test-day test-night ## every test that needs nothing but PyPI and Java; about an hour on two cores

test-day: java $(VENV)/.dev $(VENV)/.spark zookeeper ## the tests of every change that `make test-core` leaves out
	$(PYTEST) --ignore=tests/system --ignore=tests/kafka -m "not core and not nightly" $(SHARED) --durations=25

test-night: java $(VENV)/.dev $(VENV)/.spark zookeeper ## the tests that wait for the night
	$(PYTEST) --ignore=tests/system --ignore=tests/kafka -m nightly $(SHARED) --durations=25

java: ## see that there is a Java; as root on Debian, install it
	@requirements/debian.sh test

test-system: $(VENV)/.test ## as root on Debian: devices that fail, power cuts, full disks; 2 min
	@requirements/debian.sh system
	$(PYTEST) tests/system $(SHARED) --durations=10

test-installed: java $(VENV)/.dev ## the wheel in fresh environments, the guides and runbooks typed there; 6 min
	$(PYTEST) tests/installed

test-kafka: $(VENV)/.dev $(VENV)/.spark ## a topic of a real Kafka broker becomes a log; Maven fetches the broker; 2 min
	@requirements/debian.sh kafka
	$(PYTEST) tests/kafka

test-image: ## as root on Debian: build the image with podman and run a bookie in it; 4 min
	@requirements/debian.sh image
	tests/image/check.sh

sim: $(VENV)/.test ## one engine, and whole clusters, on simulated machines; SEED=7 shows the story of one cluster, LOG_SEED=7 of logs
ifdef LOG_SEED
	$(BIN)/python -m tests.cluster_sim.log_script $(LOG_SEED) -v
else ifdef SEED
	$(BIN)/python -m tests.cluster_sim.cluster_script $(SEED) -v
else
	$(PYTEST) tests/sim tests/cluster_sim
endif

walk: $(VENV)/.test ## the files and functions that an append, a read, a takeover and a session enter, in order
	@$(BIN)/python -m tests.walks

fault: $(VENV)/.test ## real processes, killed and stopped
	$(PYTEST) tests/fault

spark: java $(VENV)/.test $(VENV)/.spark zookeeper ## source, sink and jobs on a real Spark
	$(PYTEST) tests/spark

interop: java $(VENV)/.test zookeeper ## real servers of metadata, killed, stopped and cut off
	$(PYTEST) tests/interop

soak: $(VENV)/.test ## the same tests with their long counts; takes an hour or more
	$(SOAK) tests/unit tests/property tests/conformance tests/sim \
	  tests/cluster_sim tests/explorer tests/fuzz tests/matrix tests/fault tests/histories tests/ledger_history tests/log_history

soak-system: $(VENV)/.test ## as root: six hundred power cuts; takes half an hour
	$(SOAK) tests/system

bench: $(VENV)/.test ## one bookie beside this machine's ceilings; prints, asserts nothing; 20 minutes, 25 GB
	$(BIN)/python -m tests.bench.bench_bookie
	$(BIN)/python -m tests.bench.bench_writes
	$(BIN)/python -m tests.bench.bench_boot
	$(BIN)/python -m tests.bench.bench_reads
	$(BIN)/python -m tests.bench.bench_mixed
	$(BIN)/python -m tests.bench.bench_space
	$(BIN)/python -m tests.bench.bench_reclaim
	$(BIN)/python -m tests.bench.bench_metadata
	$(BIN)/python -m tests.bench.bench_ledgers
	$(BIN)/python -m tests.bench.bench_settings
	$(BIN)/python -m tests.bench.bench_logs
	$(BIN)/python -m tests.bench.bench_sync
	$(BIN)/python -m tests.bench.bench_tls
	$(BIN)/python -m tests.bench.bench_repair
	$(BIN)/python -m tests.bench.bench_audit entries
	$(BIN)/python -m tests.bench.bench_audit ledgers

# ---- check it -------------------------------------------------------------------------------------

lint: $(VENV)/.dev ## formatting and ruff's rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev $(VENV)/.spark ## mypy --strict over the package, the examples and the tests
	$(BIN)/mypy

imports: $(VENV)/.dev ## the floors: who may import whom
	$(BIN)/lint-imports --no-logo --no-cache

docs: $(VENV)/.docs ## the documents and the API reference as a site in build/site; strict, without network
	$(BIN)/python -m mkdocs build --strict --quiet

check: lint types imports proto-check docs test ## everything a change must pass

format: $(VENV)/.dev ## format, and fix what can be fixed safely
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

audit: $(VENV)/.dev ## advisories about what is pinned; needs the internet, or ADVISORIES=URL of an OSV mirror
	@$(BIN)/python requirements/audit.py $(ADVISORIES)

# ---- release it -----------------------------------------------------------------------------------

news: $(VENV)/.dev ## the draft of the next version's section of CHANGELOG.md, from changes/
	@$(BIN)/python -m towncrier build --draft --version $(VERSION)

sbom: $(VENV)/.dev ## the bill of materials in dist/: everything that is pinned, with versions, licences and hashes
	@$(BIN)/python requirements/sbom.py dist/bookie-$(VERSION).cdx.json

release: $(VENV)/.dev ## wheel, sdist, bill of materials, draft of the news and checksums in dist/; the image where podman is
	rm -rf dist
	$(BIN)/python -c "from setuptools.build_meta import build_sdist; build_sdist('dist')" >/dev/null
	@# From the sdist, so that the sdist is proven to be complete.
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist dist/bookie-$(VERSION).tar.gz
	$(BIN)/python requirements/sbom.py dist/bookie-$(VERSION).cdx.json dist/bookie-$(VERSION)-py3-none-any.whl
	@# The fragments of this version, or its section once they have moved there.
	{ if compgen -G 'changes/*.*.md' >/dev/null; then \
	    $(BIN)/python -m towncrier build --draft --version $(VERSION) || exit; fi; \
	  awk '/^## / { found = $$2 == "$(VERSION)," } found' CHANGELOG.md; } >dist/news.md
	cd dist && sha256sum -- * >SHA256SUMS
	$(if $(PODMAN),$(MAKE) --no-print-directory docker DOCKER=$(PODMAN))
	$(if $(PODMAN),$(PODMAN) tag bookie bookie:$(VERSION),@echo "no podman, so no image")
	@ls -l dist

# ---- generate -------------------------------------------------------------------------------------

proto: $(VENV)/.dev ## generate bookie/_pb from proto/
	$(BIN)/python proto/generate.py

proto-check: $(VENV)/.dev ## fail if bookie/_pb is not what proto/ says
	$(BIN)/python proto/generate.py --check

lock: $(VENV)/.docs $(VENV)/.spark ## pin under requirements/ what .venv holds
	$(BIN)/python requirements/lock.py

clean: ## remove what was built; the data of `make run` stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
