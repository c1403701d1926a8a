#!/usr/bin/env bash
# Sets the project up in .venv with what training needs, migrates a plain training script, and trains the result alone
# and in two processes. STEPS says for how many steps.
set -euo pipefail
export EXTRA=runtime
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

example=fixtures/runnable/flat_convnet
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export STEPS="${STEPS:-5}"
# The demo is to look the same everywhere, and two processes cannot share one GPU.
export CUDA_VISIBLE_DEVICES=
# Torch says so where it is alone, and nothing here needs it.
export PYTHONWARNINGS="ignore:Failed to initialize NumPy"

title() { printf '\n== %s\n' "$*"; }

title "amp-migrate $example/train.py --opt-level O1 --ddp"
amp-migrate "$example/train.py" --opt-level O1 --ddp

title "the same, written to a temporary folder"
cp -R "$example/." "$work"
amp-migrate "$example/train.py" --opt-level O1 --ddp -o "$work"

cd "$work"
title "python train.py"
python train.py

title "torchrun --standalone --nproc-per-node 2 train.py"
python -m torch.distributed.run --standalone --nproc-per-node 2 train.py
