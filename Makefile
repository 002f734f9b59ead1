# Every verb of this repository; `make help` lists them. PYTHON names the interpreter to build on.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help proto proto-check

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

proto: ## generate bookie/_pb from proto/
	$(BIN)/python proto/generate.py

proto-check: ## fail if bookie/_pb is not what proto/ says
	$(BIN)/python proto/generate.py --check
