#!/usr/bin/env bash
# Tests each capture tool against the engine it is for, in a virtual environment below target/.
#
# usage: test.sh [--build-llama] [--old-transformers]
#   --build-llama       build llama-cpp-python if it is not there (about 6 minutes on 2 cores)
#   --old-transformers  also run against transformers 4.57.6, whose routers look different
#
# Prints PASS, FAIL or SKIPPED with the reason for each engine. Exit status 0 if nothing failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../../target}
mkdir -p "$target/tmp"
export TMPDIR=$(cd "$target/tmp" && pwd) PIP_CACHE_DIR=$(cd "$target" && pwd)/pip-cache PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 HF_HUB_OFFLINE=1

# torch as packed for Linux x86-64 is linked against 1.9 GB of GPU libraries; these three small
# ones are real, the rest are stand-ins (tests/stub_cuda.py). 556 MB come down in place of 3.0 GB.
torch_packages=(torch==2.15.0 nvidia-cuda-runtime==13.2.86 nvidia-cuda-cupti==13.2.86 nvidia-cufile==1.17.1.22)
old_transformers=4.57.6
need_kib=$((4 * 1024 * 1024))
install_limit_s=1200
# Without the vision part, which no trace needs, and for any x86-64 and not just this one.
llama_cmake="-DGGML_NATIVE=OFF -DMTMD_BUILD=OFF -DLLAVA_BUILD=OFF"

build_llama=no old=no
for option in "$@"; do
  case $option in
    --build-llama) build_llama=yes ;;
    --old-transformers) old=yes ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done

passed=0 failed=0 skipped=0
verdict() { # PASS|FAIL|SKIPPED, what
  printf '%s %s\n' "$1" "$2"
  case $1 in PASS) ((passed += 1)) ;; FAIL) ((failed += 1)) ;; *) ((skipped += 1)) ;; esac
}
summary() {
  printf 'capture: %d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  ((failed == 0))
  exit
}
last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1; }

mkdir -p "$target" && target=$(cd "$target" && pwd)
venv=$target/capture-venv python=$target/capture-venv/bin/python log=$target/capture.log

# NAME, MODULE, PYTHON [, PYTHONPATH]: one test module. A module that runs no test has
# failed: it was installed to run some.
run_tests() {
  local started=$SECONDS
  if (cd "$here/tests" && PYTHONPATH=${4:-} "$3" -m unittest "$2") >"$log" 2>&1 &&
    grep -qE '^Ran [1-9][0-9]* tests? ' "$log"; then
    verdict PASS "$1: $(grep -oE '^Ran [0-9]+ tests?' "$log" | cut -c5-) in $((SECONDS - started)) s"
  else
    cat "$log"
    verdict FAIL "$1"
  fi
}

# WHAT, PIP ARGUMENTS..: installs, or says why not and returns 1.
pip_install() {
  local what=$1
  shift
  timeout "$install_limit_s" "$venv/bin/pip" install -q "$@" >"$log" 2>&1 </dev/null && return
  local status=$?
  [[ $status == 124 ]] && echo "not installed within $install_limit_s s" >>"$log"
  # Versions that do not go together are our mistake; anything else, what the machine lacks.
  if grep -q ResolutionImpossible "$log"; then
    cat "$log"
    verdict FAIL "$what: pinned versions conflict"
  else
    verdict SKIPPED "$what: pip: $(last_line "$log")"
  fi
  return 1
}

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  verdict SKIPPED "both tools: no python3 of version 3.11 or newer"
  summary
fi
run_tests "what both tools share" test_format python3
[[ -x $python ]] || python3 -m venv "$venv" >"$log" 2>&1 || {
  verdict SKIPPED "both tools: no virtual environment: $(last_line "$log")"
  summary
}
pip_install "both tools" --only-binary :all: -r "$here/tests/requirements-test.txt" -c "$here/tests/constraints.txt" || summary

test_transformers() {
  local site free
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  free=$(df -Pk "$target" | awk 'NR == 2 { print $4 }')
  if [[ ! -d $site/torch ]] && ((free < need_kib)); then
    verdict SKIPPED "transformers: $((free / 1024)) MiB free, torch needs $((need_kib / 1024))"
    return
  fi
  if [[ $(uname -sm) == "Linux x86_64" ]]; then
    for tool in cc nm readelf; do
      command -v "$tool" >/dev/null && continue
      verdict SKIPPED "transformers: no $tool, to stand in for torch's GPU libraries"
      return
    done
    pip_install "transformers" --only-binary :all: --no-deps "${torch_packages[@]}" || return
    "$python" "$here/tests/stub_cuda.py" "$site" >"$log" 2>&1 || {
      cat "$log"
      verdict FAIL "transformers: stand-ins for torch's GPU libraries"
      return
    }
  else
    pip_install "transformers" --only-binary :all: "${torch_packages[0]}" || return
  fi
  local pinned=(-r "$here/tests/requirements-transformers-test.txt" -c "$here/tests/constraints.txt")
  pip_install "transformers" --only-binary :all: "${pinned[@]}" || return
  local version
  version=$("$python" -c 'import transformers; print(transformers.__version__)')
  run_tests "transformers $version" test_transformers "$python"
  [[ $old == yes ]] || return
  local folder=$target/capture-transformers-$old_transformers
  [[ -d $folder/transformers ]] ||
    pip_install "transformers $old_transformers" --only-binary :all: --target "$folder" \
      "transformers==$old_transformers" || return
  run_tests "transformers $old_transformers" test_transformers "$python" "$folder"
}

test_llama() {
  local wanted
  wanted=$(sed -n 's/^llama-cpp-python==//p' "$here/requirements-llamacpp.txt")
  if ! "$python" -c 'import llama_cpp' 2>/dev/null; then
    # A wheel that was built here before costs nothing.
    local built
    built=$("$venv/bin/pip" cache list llama_cpp_python 2>/dev/null | grep -cF -- "-$wanted-")
    if [[ $build_llama == no && $built == 0 ]]; then
      verdict SKIPPED "llama.cpp: llama-cpp-python $wanted is not installed; its package is source, --build-llama builds it (6 minutes on 2 cores)"
      return
    fi
    local started=$SECONDS
    CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) CMAKE_ARGS=$llama_cmake \
      pip_install "llama.cpp" -r "$here/requirements-llamacpp.txt" -c "$here/tests/constraints.txt" ||
      return
    echo "llama-cpp-python $wanted installed in $((SECONDS - started)) s"
  fi
  run_tests "llama-cpp-python $("$python" -c 'import llama_cpp; print(llama_cpp.__version__)')" test_llamacpp "$python"
}

test_transformers
test_llama
summary
