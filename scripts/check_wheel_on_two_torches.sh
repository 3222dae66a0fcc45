#!/usr/bin/env bash
# Builds one wheel with the newest torch, then installs and runs it with an older torch and with the newest.
#
#   scripts/check_wheel_on_two_torches.sh [ENVIRONMENT]
#
#   ENVIRONMENT   a virtual environment that holds the newest torch; its tim_ext is replaced by the wheel.
#                 Without it, one is made in a temporary directory and deleted at the end.
#   OLDER_TORCH   (environment variable) the older version; 2.13.0 unless told
#   PYTHON        (environment variable) the interpreter for new environments; python3 unless told
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3}
older_torch=${OLDER_TORCH:-2.13.0}

if [[ $# -ge 1 ]]; then
  newest=$(cd "$1" && pwd)
else
  newest=$work/newest
  "$python" -m venv "$newest"
  "$newest/bin/pip" install --quiet torch numpy
fi
older=$work/older
"$python" -m venv "$older"
"$older/bin/pip" install --quiet "torch==$older_torch" numpy

# One GPU architecture: that all of them compile, the ordinary build shows.
export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-8.0}
"$newest/bin/pip" wheel --quiet --no-deps --wheel-dir "$work/wheel" "$root"
wheel=$(echo "$work"/wheel/*.whl)
echo "wheel: $(basename "$wheel")"

cd "$work" # away from the source tree, which Python would import first
for environment in "$older" "$newest"; do
  "$environment/bin/pip" install --quiet --no-deps --force-reinstall "$wheel"
  "$environment/bin/python" "$root/scripts/smoke_test.py"
  "$environment/bin/tim-ext" info
done
