#!/usr/bin/env bash
# One run on several machines through DeepSpeed's launcher, without ssh: start it on each, with the machine's number
# (0 is the first) and the same overrides; the run folder holds the hostfile.
#   launchers/deepspeed_hostfile.sh 0 hw.machines=2 hw.rendezvous=10.0.0.1:29500 ...
# All logic is in sft_exp: this only finds the environment.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export SFT_EXP_MACHINE=$1
shift
set -- hw.launcher=deepspeed "$@"
"$root/.venv/bin/python" -m sft_exp launch-command "$@"
exec "$root/.venv/bin/python" -m sft_exp "$@"
