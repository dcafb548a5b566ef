#!/usr/bin/env bash
# Builds llama.cpp for this CPU, as the package llama-cpp-python brings it, and what writes GGUF
# files, into a virtual environment: target/llama-venv. Minutes on idle cores.
#
# usage: build.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
capture=$here/../../crates/router-trace/capture
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target/tmp"
target=$(cd "$target" && pwd)
export TMPDIR=$target/tmp PIP_CACHE_DIR=$target/pip-cache PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

[[ -x $target/llama-venv/bin/python ]] || python3 -m venv "$target/llama-venv"
# A wheel that was built for any CPU (capture/test.sh) must not be taken for this one.
export CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) CMAKE_ARGS="-DGGML_NATIVE=ON -DMTMD_BUILD=OFF -DLLAVA_BUILD=OFF"
"$target/llama-venv/bin/pip" install --no-cache-dir -c "$capture/tests/constraints.txt" \
  -r "$capture/requirements-llamacpp.txt" -r "$here/requirements.txt"
"$target/llama-venv/bin/python" "$here/decode.py" --check
