# How we work on NodeDevices: `make` alone lists what there is.
#
# Every target installs what it needs first, says so, and runs on a fresh Debian or Ubuntu machine with Python >= 3.11.
# Nothing is installed outside .tools/, .venv/ and the build cache, except Debian packages for the test cluster (root).

SHELL       := /bin/bash -eu -o pipefail
.DEFAULT_GOAL := help
PYTHON      ?= python3
TOOLS       := .tools
VENV        := .venv
UV          := $(TOOLS)/bin/uv
RUN         := $(VENV)/bin
REGISTRY    ?=
WORKERS     ?= 5
PORT        ?= 8000
# Of test-all; and which tests: pytest's -m.
PARTS       := test e2e slow examples chaos soak
PART        ?= $(PARTS)
MARK        ?= not long
V           ?=
HARDWARE_PYTHON ?= 3.12
SOURCES     := cli crds plugin operator tests benchmarks

# Compiled once, and not among the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(TOOLS)/bytecode
# In the build cache, so that a new clone of the same files has nothing to check again.
export MYPY_CACHE_DIR ?= $(or $(NODEDEVICES_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nodedevices)/mypy
# Bold on a terminal only, and not with NO_COLOR (no-color.org).
say = @if [ -t 1 ] && [ -z "$${NO_COLOR:-}" ]; then printf '\033[1m==> %s\033[0m\n' "$(1)"; else printf '==> %s\n' "$(1)"; fi
define may_write
@for place in . $(TOOLS) $(VENV); do \
  [ ! -e $$place ] || [ -w $$place ] || { echo "$$(realpath $$place) cannot be written by $$(id -un): it belongs to $$(stat -c %U $$place) (after sudo make?). Run make as $$(stat -c %U $$place), or give it back: sudo chown -R $$(id -un) $$(realpath $$place)"; exit 1; }; \
done
endef

.PHONY: help
help: ## Show this table
	@bold= plain=; if [ -t 1 ] && [ -z "$${NO_COLOR:-}" ]; then bold='\033[1m' plain='\033[0m'; fi; \
	awk -v bold="$$bold" -v plain="$$plain" 'BEGIN {FS = ":.*## "} /^[a-z][a-z0-9-]*:.*## / {printf "  %smake %-15s%s %s\n", bold, $$1, plain, $$2}' $(MAKEFILE_LIST)

# --- tools -----------------------------------------------------------------------------------------------------------
$(UV):
	$(may_write)
	$(call say,uv: installing it from PyPI into $(TOOLS))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "NodeDevices needs Python >= 3.11; $(PYTHON) is $$($(PYTHON) -V). Set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(TOOLS) || { echo "python3 -m venv failed: on Debian, apt-get install python3-venv"; exit 1; }
	@$(TOOLS)/bin/pip install --quiet uv || { echo "uv could not be installed from PyPI: is there a network?"; exit 1; }

$(VENV)/.stamp: requirements/dev.lock pyproject.toml | $(UV)
	$(may_write)
	$(call say,python packages: from requirements/dev.lock into $(VENV))
	@[ -x $(RUN)/python ] || $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV)
	@$(UV) pip sync --quiet --python $(RUN)/python --require-hashes requirements/dev.lock
	@$(UV) pip install --quiet --python $(RUN)/python --no-deps --editable .
	@touch $@

.PHONY: venv
venv: $(VENV)/.stamp ## Install the Python tools and packages (hash-locked)

.PHONY: lock
lock: | $(UV) ## Refresh requirements/*.lock from pyproject.toml
	$(call say,requirements: resolving)
	@$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --extra agent --extra cli --extra operator --group dev -o requirements/dev.lock pyproject.toml $(LOCK_FLAGS)
	@$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --extra agent    -o requirements/agent.lock    pyproject.toml --constraint requirements/dev.lock $(LOCK_FLAGS)
	@$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --group build -o requirements/build.lock $(LOCK_FLAGS)
	@$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --group go -o requirements/go.lock $(LOCK_FLAGS)
	@$(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --extra operator -o requirements/operator.lock pyproject.toml --constraint requirements/dev.lock $(LOCK_FLAGS)

# --- checks ----------------------------------------------------------------------------------------------------------
.PHONY: lint
lint: $(VENV)/.stamp ## ruff, mypy --strict, import-linter
	$(call say,lint)
	@$(RUN)/ruff check $(SOURCES)
	@$(RUN)/ruff format --check $(SOURCES)
	@$(RUN)/mypy
	@$(RUN)/lint-imports --no-cache

.PHONY: format
format: $(VENV)/.stamp ## Let ruff format and fix what it can
	@$(RUN)/ruff format $(SOURCES)
	@$(RUN)/ruff check --fix $(SOURCES)

# With tables that are taken from code.
PAGES := docs/flags.md docs/metrics.md docs/reliability.md docs/catalogue.md

.PHONY: gen
gen: $(VENV)/.stamp ## Write generated files: CRDs, their reference pages, tables of flags, metrics and scenarios, the probe line's schema, protobuf modules, PrometheusRule, dashboards, the Helm chart's templates, schema and README
	$(call say,gen)
	@PYTHONPATH=tests $(RUN)/python -m crdgen.generate --reference docs/reference crds $(PAGES)
	@$(RUN)/python -m nodedevices_plugin.kubelet.api.generate
	@manifests/components/prometheus/generate
	@PYTHONPATH=tests $(RUN)/python -m dashboards
	@PYTHONPATH=tests $(RUN)/python -m helmchart

.PHONY: gen-check
gen-check: $(VENV)/.stamp ## Fail when a generated file differs from its source
	$(call say,gen-check)
	@PYTHONPATH=tests $(RUN)/python -m crdgen.generate --check --reference docs/reference crds $(PAGES)
	@$(RUN)/python -m nodedevices_plugin.kubelet.api.generate --check
	@manifests/components/prometheus/generate --check
	@PYTHONPATH=tests $(RUN)/python -m dashboards --check
	@PYTHONPATH=tests $(RUN)/python -m helmchart --check

include tests/cluster/cluster.mk

.PHONY: test
test: $(VENV)/.stamp ## What CI runs: lint, gen-check and the tests, but for those that take minutes
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint gen-check collect
	@$(MAKE) --no-print-directory cluster-tools
	$(call say,tests)
	@$(MAKE) --no-print-directory --jobs=2 --keep-going tests-that-wait tests-that-compute

# Each worker of pytest reads all tests of its run, which takes longer the more there are. So the pure ones, two of three,
# have a run of their own, which takes what time the others leave, and its share once they have ended; it shows only how
# it ended.
.PHONY: tests-that-wait tests-that-compute
tests-that-wait:
	@rc=0; $(RUN)/python -m pytest --ignore=tests/unit -m "not long" -n $(WORKERS) --dist loadscope --no-loadscope-reorder --durations=25 || rc=$$?; \
	  { read -r pid < $(TOOLS)/unit.pid && renice -n 0 -p $$pid $$(cat /proc/$$pid/task/*/children); } > /dev/null 2>&1 || true; exit $$rc
tests-that-compute:
	@rc=0; sh -c 'echo $$$$ > $(TOOLS)/unit.pid; exec nice -n 10 $(RUN)/python -m pytest tests/unit -m "not long" -n 2 --dist loadscope --no-loadscope-reorder' \
	  > $(TOOLS)/unit.log 2>&1 || rc=$$?; rm -f $(TOOLS)/unit.pid; \
	  if [ $$rc = 0 ]; then tail -1 $(TOOLS)/unit.log; else cat $(TOOLS)/unit.log; exit $$rc; fi

.PHONY: test-all
test-all: $(VENV)/.stamp ## Everything, or a PART of it: test, e2e, slow, examples, chaos, soak
	@unknown="$(filter-out $(PARTS),$(PART))"; [ -z "$$unknown" ] || { echo "PART=$$unknown: there is $(PARTS)"; exit 1; }
	@failed=""; took=""; for part in $(PART); do \
	  began=$$(date +%s); $(MAKE) --no-print-directory part-$$part || failed="$$failed $$part"; \
	  took="$$took, $$part $$(( ($$(date +%s) - began + 30) / 60 )) min"; \
	done; \
	if [ -n "$$failed" ]; then echo "test-all: failed:$$failed ($${took#, })"; exit 1; fi; \
	echo "test-all: passed ($${took#, })"

.PHONY: part-test part-e2e part-slow part-examples part-chaos part-soak
part-test: test
part-e2e: MARK = long
part-e2e: e2e
part-slow: $(VENV)/.stamp cluster-tools
	$(call say,tests: builds and walks that take minutes)
	@$(RUN)/python -m pytest -m "long and not e2e" -n 2 --dist loadscope --durations=10
part-examples: $(VENV)/.stamp
	$(call say,tests: every example of each property)
	@FUZZ_EXAMPLES=full $(RUN)/python -m pytest tests/unit tests/programs tests/agent -m hypothesis -n 2 --durations=10
	@FUZZ_EXAMPLES=full $(RUN)/python -m pytest tests/conformance/kubelet tests/integration/test_operator_crashes.py tests/integration/test_resource_slices.py
part-chaos: SECONDS = 300
part-chaos: chaos
part-soak: HOURS = 0.1
part-soak: soak

# Once, before each worker of pytest would do it: compiling the tests takes longer than reading them.
.PHONY: collect
collect: $(VENV)/.stamp
	@[ ! $(TOOLS)/collected -nt $(VENV)/.stamp ] || [ -n "$$(find $(SOURCES) -name '*.py' -newer $(TOOLS)/collected -print -quit)" ] || exit 0; \
	found=$$($(RUN)/python -m pytest --ignore=tests/unit --collect-only --quiet) || { tail -40 <<< "$$found"; exit 1; }; touch $(TOOLS)/collected

.PHONY: unit
unit: $(VENV)/.stamp ## Only the tests that need neither root nor a cluster
	@$(RUN)/python -m pytest tests/unit tests/programs tests/agent

.PHONY: fuzz
fuzz: $(VENV)/.stamp ## Draw inputs at random for SECONDS (600); SEED, TESTS
	@PYTHONPATH=tests $(RUN)/python -m fuzz

.PHONY: mutants
mutants: $(VENV)/.stamp ## Do the tests notice N (60) random changes of the pure modules; SEED, MODULES, TESTS
	@PYTHONPATH=tests $(RUN)/python -m mutants

.PHONY: size
size: $(VENV)/.stamp ## Files, lines and statements of product and tests, and words of the pages
	@PYTHONPATH=tests $(RUN)/python -m support.size

.PHONY: bench
bench: $(VENV)/.stamp ## Measure beside the targets of the design
	@$(RUN)/python -m benchmarks

.PHONY: bench-scale
bench-scale: NODES = 5000
bench-scale: $(VENV)/.stamp cluster-tools ## The operator beside NODES=5000 nodes with 8 holders each, and three times as many: half an hour
	@$(RUN)/python -m benchmarks operator --nodes $(NODES)

# --- real hardware ---------------------------------------------------------------------------------------------------
.PHONY: hardware
hardware: $(VENV)/.stamp ## Run on this machine's NVIDIA GPUs, in four minutes: docs/hardware.md (ARGUMENTS of its run.py)
	@PYTHONPATH=tests $(RUN)/python -m hardware run -- $(ARGUMENTS)

.PHONY: hardware-bundle
hardware-bundle: $(VENV)/.stamp ## The same as a folder for a machine without a network (HARDWARE_PYTHON=3.12)
	@PYTHONPATH=tests $(RUN)/python -m hardware bundle --python $(HARDWARE_PYTHON) --machine x86_64

# --- documentation ---------------------------------------------------------------------------------------------------
# Pages and whatever they link to stay at their paths, so that links lead there in the site, too.
build/pages: FORCE
	@rm -rf build/pages build/site && mkdir -p build/pages
	@git ls-files -z | grep -zvxFf <(git ls-files --deleted) | xargs -0 cp --parents --target-directory build/pages
	@cp docs/site.toml build/zensical.toml

.PHONY: site FORCE
site: $(VENV)/.stamp build/pages ## Build the documentation site into build/site; a link that leads nowhere is an error
	$(call say,site)
	@$(RUN)/zensical build --strict --config-file build/zensical.toml

.PHONY: site-serve
site-serve: $(VENV)/.stamp build/pages ## The same, and show it on 127.0.0.1 (PORT=8000)
	@$(RUN)/zensical serve --config-file build/zensical.toml --dev-addr 127.0.0.1:$(PORT)

# --- release ---------------------------------------------------------------------------------------------------------
.PHONY: release
release: $(VENV)/.stamp ## The files of a release of the last commit, in dist/release: docs/releases.md
	$(call say,release)
	@git diff --quiet HEAD || echo "what is not committed is not in the release"
	@tests/releasing/release "$(CURDIR)/$(RUN)/python" dist/release

.PHONY: version
version: $(VENV)/.stamp ## Write the version V=0.2.0 to wherever it stands
	@PYTHONPATH=tests $(RUN)/python -m releasing.versions "$(V)"

# --- kubectl nodedevices ---------------------------------------------------------------------------------------------
.PHONY: krew
krew: $(VENV)/.stamp ## kubectl nodedevices as a single file, krew's archive and its manifest, into dist/krew
	$(call say,krew)
	@PYTHONPATH=tests $(RUN)/python -m krew

.PHONY: clean
clean: ## Remove what make put into this folder (the build cache stays; make cluster-down ends a cluster)
	@rm -rf $(TOOLS) $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
