#!/usr/bin/env bash
# Builds one wheel, then installs and runs it on the oldest and the newest torch, and on other Pythons.
#
#   scripts/check_wheel.sh [ENVIRONMENT]
#
#   ENVIRONMENT   a virtual environment that holds the newest torch; its tim_ext is replaced by the wheel.
#                 Without it, one is made in a temporary directory and deleted at the end.
#   PYTHON        (environment variable) the interpreter for a new ENVIRONMENT; python3 unless told
#   PYTHONS       (environment variable) the further Pythons; "3.10 3.12 3.13" unless told. One that is not
#                 installed is named and passed over.
#
# The first of PYTHONS runs the oldest torch, which is downloaded whole. The others run the newest with the CUDA
# libraries of ENVIRONMENT, which are the same files for every Python and most of a download of gigabytes.
# Where `pip install .` has built the same sources before, build/ still has the objects and little is compiled.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -ra pythons <<<"${PYTHONS:-3.10 3.12 3.13}"
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

# borrow_torch TARGET OWNER: the torch of OWNER for another Python, with the CUDA libraries of OWNER if it has any.
borrow_torch() {
  if [ ! -d "$(packages_of "$2")/nvidia" ]; then
    "$1/bin/pip" install --quiet "torch==$(version_of "$2" torch)" numpy
    return
  fi
  "$2/bin/python" - <<'END' | xargs -d '\n' "$1/bin/pip" install --quiet numpy
import importlib.metadata, re
for need in importlib.metadata.requires("torch") or []:
    if "extra ==" not in need and not re.match("nvidia|cuda|triton", need):
        print(need)
END
  "$1/bin/pip" install --quiet --no-deps "torch==$(version_of "$2" torch)"
  ln -s "$(packages_of "$2")/nvidia" "$(packages_of "$1")/nvidia"
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
"$work/oldest/bin/pip" install --quiet "torch==$oldest_torch" numpy & # the network, while the compiler works
oldest_is_installed=$!
say "wheel"
"$newest/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/wheel" "$root"
wheel=$(echo "$work"/wheel/*.whl)
say "$(basename "$wheel")"

smoke_test "$newest"
"$newest/bin/tim-ext" info
wait "$oldest_is_installed"
smoke_test "$work/oldest"
rm -rf "$work/oldest"
for version in "${pythons[@]:1}"; do
  if ! python=$(find_python "$version"); then
    say "Python $version is not installed: passed over"
    continue
  fi
  "$python" -m venv "$work/$version"
  borrow_torch "$work/$version" "$newest"
  smoke_test "$work/$version"
  rm -rf "${work:?}/$version"
done
