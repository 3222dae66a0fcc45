#!/usr/bin/env bash
# Builds one wheel, then installs and runs it on the oldest and the newest torch, those between, and other Pythons.
#
#   scripts/check_wheel.sh [ENVIRONMENT]
#
#   ENVIRONMENT   a virtual environment that holds the newest torch; its tim_ext is replaced by the wheel.
#                 Without it, one is made in a temporary directory and deleted at the end.
#   PYTHON        (environment variable) the interpreter for a new ENVIRONMENT; python3 unless told
#   PYTHONS       (environment variable) the further Pythons; "3.10 3.12 3.13" unless told. One that is not
#                 installed is named and passed over, and the next one gets its torch.
#   TORCHES       (environment variable) the torches between; "2.11 2.12" unless told
#
# The first of PYTHONS runs the oldest torch, which is downloaded whole: its CUDA is another one. The others run the
# newest, and the TORCHES in turn, with the CUDA libraries of ENVIRONMENT: those are the same files for every Python,
# work with a torch of the same CUDA series, and are most of a download of gigabytes. What this cannot show is that
# a torch works with the libraries it was released with, but only the operators of the CPU are run here.
# Where `pip install .` has built the same sources before, build/ still has the objects and little is compiled.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra pythons <<<"${PYTHONS:-3.10 3.12 3.13}"
read -ra torches <<<"${TORCHES-2.11 2.12}"
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH # the wheel is tested, not a source tree
say() { echo "--- $1 (${SECONDS} s)"; }

# find_python 3.12: its interpreter, from PATH or from pyenv. A shim of pyenv may be there and not run.
find_python() {
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$candidate" -c '' 2>/dev/null; then echo "$candidate" && return; fi
  done
  return 1
}

version_of() { "$1/bin/python" -c "import importlib.metadata as m; print(m.version('$2').partition('+')[0])"; }
packages_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# borrow_torch TARGET OWNER VERSION: that torch, with the CUDA libraries of OWNER if it has any and they fit. A
# library that OWNER does without is added; where the torch does not start then, all of its own are downloaded.
borrow_torch() {
  local libraries
  libraries=$(packages_of "$1")
  if [ -d "$(packages_of "$2")/nvidia" ]; then
    "$1/bin/pip" install --quiet --no-deps "torch==$3"
    "$1/bin/python" - <<'END' | xargs -d '\n' "$1/bin/pip" install --quiet --no-warn-conflicts numpy
import importlib.metadata, re
for need in importlib.metadata.requires("torch") or []:
    if "extra ==" not in need and not re.match("nvidia|cuda|triton", need):
        print(need)
END
    [ -d "$libraries/nvidia" ] || cp -rs "$(packages_of "$2")/nvidia" "$libraries/nvidia"
    ldd "$libraries/torch/lib/libtorch_cuda.so" | sed -nE 's/^\s*lib([a-z]+)\.so.*not found$/nvidia-\1/p' |
      xargs -r "$1/bin/pip" install --quiet --no-deps || true
    if "$1/bin/python" -c 'import torch' 2>/dev/null; then return; fi
    say "torch $3 does not start with the CUDA libraries of $2: its own are downloaded"
    rm -rf "$libraries/nvidia"
  fi
  "$1/bin/pip" install --quiet --force-reinstall "torch==$3" numpy
}

smoke_test() {
  "$1/bin/pip" install --quiet --no-deps --force-reinstall "$wheel"
  (cd "$work" && "$1/bin/python" "$root/scripts/smoke_test.py") # not in the source tree: Python would import that
  say "$("$1/bin/python" -V), torch $(version_of "$1" torch): passed"
}

if [[ $# -ge 1 ]]; then
  newest=$(cd "$1" && pwd)
else
  newest=$work/newest
  "${PYTHON:-python3}" -m venv "$newest"
  "$newest/bin/pip" install --quiet torch numpy
fi

if ! python=$(find_python "${pythons[0]}"); then
  say "Python ${pythons[0]} is not installed: the oldest torch runs on $("$newest/bin/python" -V) instead"
  python=$newest/bin/python
fi
oldest_torch=$("$python" -c "import runpy; print(*runpy.run_path('$root/tim_ext/version.py')['OLDEST_TORCH'], 0, sep='.')")
"$python" -m venv "$work/oldest"

# prepare NAME PYTHON: an environment with the newest torch, in the background, while the compiler works.
declare -A prepared
prepare() {
  ("$2" -m venv "$work/$1" && borrow_torch "$work/$1" "$newest" "$(version_of "$newest" torch)") &
  prepared[$1]=$!
}
"$work/oldest/bin/pip" install --quiet "torch==$oldest_torch" numpy &
prepared[oldest]=$!
others=()
for version in "${pythons[@]:1}"; do
  if python=$(find_python "$version"); then
    prepare "$version" "$python" && others+=("$version")
  else
    say "Python $version is not installed: passed over"
  fi
done

say "wheel"
"$newest/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/wheel" "$root"
wheel=$(echo "$work"/wheel/*.whl)
say "$(basename "$wheel")"

smoke_test "$newest"
"$newest/bin/tim-ext" info
for version in "${others[@]}" oldest; do
  wait "${prepared[$version]}"
  smoke_test "$work/$version"
  if [ "$version" != oldest ] && [ ${#torches[@]} -gt 0 ]; then
    borrow_torch "$work/$version" "$newest" "${torches[0]}.*"
    smoke_test "$work/$version"
    torches=("${torches[@]:1}")
  fi
  rm -rf "${work:?}/$version"
done
# more torches than Pythons: the Python of ENVIRONMENT has the rest
for version in "${torches[@]}"; do
  "$newest/bin/python" -m venv "$work/$version"
  borrow_torch "$work/$version" "$newest" "$version.*"
  smoke_test "$work/$version"
  rm -rf "${work:?}/$version"
done
