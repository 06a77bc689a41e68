# What you can do here, on a machine with Python >= 3.11 and make:
#   make demo               install, then the whole story in 20 seconds
#   make test               ruff, mypy and every test         SEED=random draws new cases, ARGS="-k ledger" chooses tests
#   make soak KILLS=100     fault tests with full counts
#   make check              ruff and mypy only
#   make setup              install again, as after libvirt's headers have come
#   make bench              every benchmark                   ARGS=--json for an object a line
#   make bench-large        the leak audit of 10,000,000 records: a quarter of an hour
#   make wheel              build, install the wheel in a clean environment, run it

SHELL    := /bin/bash
VENV     := .venv
PY       := $(VENV)/bin/python
PIP      := $(PY) -m pip install --quiet --disable-pip-version-check --only-binary=:all:
KILLS    ?= 100
SEED     ?=
ARGS     ?=
NEWEST   := 3.14
SEED_ARG  = $(if $(SEED),--hypothesis-seed=$(SEED))
PACKAGES := schemas projections streams producers
# Benchmarks and examples are checked as soon as there are some; mypy refuses an empty folder.
SCRIPTS  := $(if $(wildcard benchmarks/*.py),benchmarks) $(if $(wildcard examples/*.py),examples)

.PHONY: demo test soak check bench bench-large wheel setup clean

demo: $(VENV)/.runtime
	@$(VENV)/bin/claimlog demo

test: check
	@$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(SEED_ARG) $(ARGS)

soak: $(VENV)/.dev
	@CLAIMLOG_SOAK=1 CLAIMLOG_KILLS=$(KILLS) $(PY) -m pytest tests/faults tests/properties/test_engine_on_load.py tests/properties/test_no_false_alarms.py tests/properties/test_any_record.py tests/integration/test_kafka_partitions.py -s --timeout=0 $(SEED_ARG) $(ARGS)

check: $(VENV)/.dev
	@$(PY) -m ruff check --quiet .
# And beside it as the newest Python's library has its types: what is an error there ends its users' `make test`.
	@$(PY) -m mypy --python-version $(NEWEST) $(PACKAGES) tests $(SCRIPTS) & newest=$$!; \
	$(PY) -m mypy $(PACKAGES) tests $(SCRIPTS); own=$$?; wait $$newest && exit $$own

bench: $(VENV)/.dev
	@for file in benchmarks/bench_*.py; do $(PY) -m benchmarks.$$(basename $$file .py) $(ARGS) || exit 1; done

bench-large: $(VENV)/.dev
	@$(PY) -m benchmarks.bench_leak_audit --records 10000000 $(ARGS)

wheel: $(VENV)/.dev
	@rm -rf dist build/wheel-check
	@$(PY) -m build --outdir dist .
	@$(PY) -m venv build/wheel-check
	@build/wheel-check/bin/python -m pip install --quiet --disable-pip-version-check --only-binary=:all: dist/claimlog-*.whl
	@check=$$PWD/build/wheel-check/bin; cd / && $$check/claimlog --version && $$check/python -c 'from importlib.metadata import packages_distributions as owners; \
	wrong = {name: owners().get(name) for name in "$(PACKAGES)".split() if owners().get(name) != ["claimlog"]}; \
	assert not wrong, f"these packages must come from claimlog alone: {wrong}"; print("the wheel owns its four packages")'

# Always anew: headers may have come since the last time.
setup: $(PY)
	@rm -f $(VENV)/.dev && $(MAKE) --no-print-directory $(VENV)/.dev

# Tries each candidate by running it: a shim on the PATH may stand for a Python that is not installed.
$(PY):
	@for python in python3.14 python3.13 python3.12 python3.11 python3; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        $$python -m venv $(VENV) && exit 0; \
	        rm -rf $(VENV); echo "$$python cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
	    fi; \
	done; echo "claimlog needs Python 3.11 or newer; none of python3.14, python3.13, python3.12, python3.11, python3 on the PATH is" >&2; exit 1

$(VENV)/.runtime: pyproject.toml | $(PY)
	@echo "installing claimlog into $(VENV) ..." >&2
	@$(PIP) --editable . && touch $@

# The libvirt extra is compiled, so it is installed where its headers are; without them its tests are skipped with the reason (and fail if CI=true).
$(VENV)/.dev: pyproject.toml | $(PY)
	@echo "installing claimlog and its development tools into $(VENV) ..." >&2
	@extras=dev; if pkg-config --exists libvirt 2>/dev/null; then extras=dev,libvirt; fi; $(PIP) --no-binary=libvirt-python --editable ".[$$extras]"
	@touch $(VENV)/.runtime $@

clean:
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-data
