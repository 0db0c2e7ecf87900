# Two commands do everything: `make demo` and `make test`. Both set up what they need first.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUBS ?= .
# Half of a test's time is waiting for other processes: three workers for each core, at most twelve.
WORKERS ?= $(shell n=$$((3 * $$(nproc))); echo $$((n > 12 ? 12 : n)))

.PHONY: help demo test test-image-python bench fuzz model faults soak dashboards lint lint-style lint-mypy lint-pyright format proto lock system-tools image image-test dist sbom clean screenshots openapi

help: ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check

# Installed again only when a lock file or the packaging changed.
$(VENV)/.runtime: requirements/runtime.txt requirements/build.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements/runtime.txt -r requirements/build.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

demo: $(VENV)/.runtime ## The whole system on a simulated kubelet; prints the page's address
	@$(BIN)/devicelens demo

test: $(VENV)/.dev system-tools ## All tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# BASE=python:3.13-slim has python3.13. TESTS: some of the tests. Without system-tools: `test` may install them now.
IMAGE_PYTHON ?= $(firstword $(subst -, ,$(subst :,,$(BASE))))
IMAGE_VENV = build/venv-$(notdir $(IMAGE_PYTHON))
test-image-python: ## The tests on the image's version of Python (IMAGE_PYTHON, TESTS)
	$(MAKE) PYTHON=$(IMAGE_PYTHON) VENV=$(IMAGE_VENV) $(IMAGE_VENV)/.dev
	$(IMAGE_VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

bench: $(VENV)/.dev ## What it costs, each figure beside its floor; key figures to docs/benchmarks.md, all to build/bench
	$(BIN)/python benchmarks/idle.py
	$(BIN)/python -m benchmarks.exporter
	$(BIN)/python -m benchmarks.scrapes
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.freshness
	$(BIN)/python -m benchmarks.device_plugin
	$(BIN)/python -m benchmarks.history

fuzz: $(VENV)/.dev ## A million mutated answers of a kubelet, through everything that reads them
	DEVICELENS_FUZZ=1000000 $(BIN)/python -m pytest -s --timeout 7200 tests/fuzz

model: $(VENV)/.dev ## Thousands of random steps, and every scrape compared with who held what
	DEVICELENS_MODEL_STEPS=3000 $(BIN)/python -m pytest -s --timeout 7200 tests/e2e/test_model.py

# Its tests wait more than others do.
faults: $(VENV)/.dev ## Everything that goes wrong, as often as it takes; written to docs/reliability.md
	rm -rf build/faults
	DEVICELENS_FAULTS=full DEVICELENS_ROWS=$(CURDIR)/build/faults \
	  $(BIN)/python -m pytest -n $$((3 * $$(nproc))) --dist worksteal tests/faults
	$(BIN)/python -m benchmarks.reliability build/faults

SOAK ?= 5m
soak: $(VENV)/.dev ## A node's day in SOAK (5m), and ten thousand refreshes; written to docs/reliability.md
	rm -rf build/soak
	DEVICELENS_SOAK=$(SOAK) DEVICELENS_ROWS=$(CURDIR)/build/soak $(BIN)/python -m pytest -s tests/soak
	$(BIN)/python benchmarks/idle.py --seconds 1 --starts 1 --refreshes 10000 --row build/soak/growth.json
	$(BIN)/python -m benchmarks.reliability build/soak

# Prometheus and Chromium for the tests that need them, where they can be had; elsewhere those tests
# skip and say so (under CI=true such a skip is a failure).
system-tools: | $(VENV)/.dev
	@missing=; command -v promtool >/dev/null && command -v prometheus >/dev/null || missing="prometheus"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	if [ -n "$$missing" ] && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "installing $$missing"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing; } \
	    >$(VENV)/apt.log 2>&1 || { tail -20 $(VENV)/apt.log; echo "could not install $$missing: the tests that need it will skip"; }; \
	fi

ADDRESSES = $(if $(RUNBOOKS),--runbooks '$(RUNBOOKS)') $(if $(GRAFANA),--grafana '$(GRAFANA)') $(if $(PAGE),--page '$(PAGE)')

screenshots: $(VENV)/.dev system-tools ## The pictures of the README and of docs/, made anew
	$(BIN)/python docs/screenshots.py

dashboards: $(VENV)/.dev ## Generate the dashboards and rules
	$(BIN)/python -m dashboards.generate $(ADDRESSES)

openapi: $(VENV)/.runtime ## Generate the OpenAPI document that exporters serve
	$(BIN)/python docs/make_openapi.py

lint: lint-style lint-mypy lint-pyright ## Style, types, layers (faster: make -j3 lint)

lint-style: $(VENV)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-cache

lint-mypy: $(VENV)/.dev
	$(BIN)/mypy

lint-pyright: $(VENV)/.dev
	$(BIN)/pyright --warnings

format: $(VENV)/.dev ## Put the code into its form
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

PROTOS := podresources/v1/api podresources/v1alpha1/api pods/v1alpha1/api core/v1/pod \
	deviceplugin/v1beta1/api pluginregistration/v1/api dra/v1/api drahealth/v1alpha1/api

proto: $(VENV)/.dev ## The stubs made anew from proto/ (into STUBS, here unless said otherwise)
	PATH="$(CURDIR)/$(BIN):$$PATH" python -m grpc_tools.protoc \
	  --python_out=$(STUBS) --grpc_python_out=$(STUBS) --mypy_out=quiet:$(STUBS) --mypy_grpc_out=quiet:$(STUBS) \
	  -I kubelet/pb=proto $(PROTOS:%=kubelet/pb/%.proto)
	@rm $(STUBS)/kubelet/pb/core/v1/pod_pb2_grpc.py $(STUBS)/kubelet/pb/core/v1/pod_pb2_grpc.pyi # a message alone

LOCK = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links

lock: ## The lock files made anew (needs uv)
	$(LOCK) $(UPGRADE) pyproject.toml -o requirements/runtime.txt
	$(LOCK) $(UPGRADE) --group build -o requirements/build.txt
	$(LOCK) $(UPGRADE) pyproject.toml --extra nvidia -c requirements/runtime.txt -o requirements/image.txt
	$(LOCK) $(UPGRADE) pyproject.toml --group dev -c requirements/runtime.txt -c requirements/build.txt -o requirements/dev.txt

VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' runtime/__init__.py)
# The time of the last commit stands for now, so that what is built twice is equal.
EPOCH = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),1577836800)
REVISION = $(shell git rev-parse HEAD 2>/dev/null)$(shell git diff --quiet HEAD 2>/dev/null || echo -dirty)
IMAGE ?= devicelens:$(VERSION)
BASE ?= python:3.13-slim
# podman and buildah leave the health check out of an image that is not of docker's format.
BUILDER ?= $(shell command -v docker >/dev/null && docker info >/dev/null 2>&1 && echo docker build \
	|| { command -v podman >/dev/null && echo podman build --format docker; } || echo buildah build --format docker)

image: ## The image, by docker, podman or buildah (IMAGE, BASE and BUILDER can be given)
	$(BUILDER) --build-arg BASE=$(BASE) --build-arg SOURCE_DATE_EPOCH=$(EPOCH) \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) -t $(IMAGE) .

image-test: $(VENV)/.dev ## The image built on a bare Debian and run as the manifests say (root, buildah, debootstrap)
	DEVICELENS_IMAGE=1 $(BIN)/python -m pytest -s tests/image

tag-test:
	@for tag in $$(git tag --points-at HEAD 'v*' 2>/dev/null); do \
	  test "$$tag" = "v$(VERSION)" || { echo "HEAD is tagged $$tag, and runtime/__init__.py says $(VERSION)"; exit 1; }; done

dist: $(VENV)/.runtime tag-test ## The wheel and the sdist, equal to the byte whenever they are built
	rm -rf dist
	SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/python -m hatchling build -d dist
	cd dist && sha256sum * | tee SHA256SUMS

sbom: $(VENV)/.dev ## What the image has in it, as CycloneDX: dist/devicelens-VERSION.cdx.json
	@mkdir -p dist
	SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/python -m deploy.make_sbom dist/devicelens-$(VERSION).cdx.json

clean: ## Everything that can be made again
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
