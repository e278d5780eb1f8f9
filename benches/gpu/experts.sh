#!/usr/bin/env bash
# The experts of a mixture's layer on this machine's GPU beside PyTorch's: times both, checks ours, writes two JSON files and a table.
#
#     experts.sh OUT        # e.g. `experts.sh evidence/experts/h200`: writes OUT_ours.json, OUT_torch.json and OUT.md
#
# It needs PyTorch (with `torch._grouped_mm`) and Triton for CUDA. SILUMIN_GPU names the program `gpu` where there is no cargo.
# LAYERS, TOKENS and FORMATS replace the usual lists.
set -euo pipefail
[ $# = 1 ] || { echo "usage: experts.sh OUT" >&2; exit 2; }
out=$1
here=$(cd "$(dirname "$0")" && pwd)
# Widths of Qwen3-30B-A3B, Mixtral 8x7B and, with a quarter of its experts, DeepSeek-V3.
layers=${LAYERS:-2048x768x128x8,4096x14336x8x2,7168x2048x64x8}
tokens=${TOKENS:-1,16,64,128,512,1024,4096,8192} formats=${FORMATS:-bf16,nvfp4w,e4m3}

if [ -z "${SILUMIN_GPU:-}" ]; then
  (cd "$here/../.." && cargo build --release --locked -p silumin-bench-gpu)
  SILUMIN_GPU=$here/../../target/release/silumin-bench-gpu
fi
"$SILUMIN_GPU" --experts "$layers" --format "$formats" --tokens "$tokens" --forwards 200 --json "${out}_ours.json"
python3 "$here/torch_experts.py" --experts "$layers" --tokens "$tokens" --json "${out}_torch.json"
python3 "$here/mlp_table.py" "${out}_ours.json" "${out}_torch.json" | tee "$out.md"
