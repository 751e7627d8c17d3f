#!/usr/bin/env bash
# One run on this machine, from any folder. All logic is in sft_exp: this only finds the environment.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
exec "$root/.venv/bin/python" -m sft_exp "$@"
