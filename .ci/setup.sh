#!/usr/bin/env bash
# Makes .venv: pinned packages, the distribution name that the vllm command asks for, this project in editable form.
# Where pip would choose a CUDA build of torch, set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: Python 3.11 or newer is needed; set PYTHON=/path/to/python" >&2; exit 1; }
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=(.venv/bin/python -m pip --disable-pip-version-check -q)
"${pip[@]}" install --no-deps -r .ci/requirements.txt 2> >(grep -v 'is ignored: it is neither a file nor a directory' >&2)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp .ci/vllm-dist/pyproject.toml "$copy"
"${pip[@]}" install --no-deps --no-build-isolation "$copy"
"${pip[@]}" install --no-deps --no-build-isolation -e .
.venv/bin/python -c 'import torch; assert torch.version.cuda is None, "setup: torch is a CUDA build; see .ci/setup.sh"'
