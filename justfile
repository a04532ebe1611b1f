# Everything that CI runs: format, lint, types, import contracts, generated files fresh, tests
check: lint fresh test

# Format, lint, types and import contracts
lint:
    ruff format --check .
    ruff check .
    mypy
    lint-imports

# Generated files are what their generators make now
fresh:
    python protos/generate.py --check
    python docs/generate_states.py --check
    python docs/generate_config.py --check
    python docs/generate_errors.py --check

# All tests; `just test tests/core -k slot` runs some
test *args:
    pytest {{args}}

# Generate the protobuf code and the descriptor set from protos/
protos:
    python protos/generate.py

# Generate the state diagrams and the configuration reference
docs:
    python docs/generate_states.py
    python docs/generate_config.py
    python docs/generate_errors.py

# Throughput and latency beside the peers, interleaved in one run; writes docs/benchmarks.md
bench *args:
    python -m tests.bench {{args}}

# Exact versions of everything, for CI
lock:
    uv pip compile pyproject.toml executor/pyproject.toml --universal --all-extras --group dev --no-emit-index-url --no-annotate --no-emit-package blockx-worker --no-emit-package blockx-executor --no-header --quiet --output-file requirements.lock
