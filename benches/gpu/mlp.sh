#!/usr/bin/env bash
# The MLP block on this machine's GPUs beside PyTorch's: times both, checks ours, writes two JSON files and a table.
#
#     mlp.sh RANKS OUT        # e.g. `mlp.sh 2 evidence/mlp/h100_x2`: writes OUT_ours.json, OUT_torch.json and OUT.md
#
# It needs PyTorch and Triton for CUDA, and for two ranks and more NCCL: PyTorch's own, unless SILUMIN_NCCL names another.
# SILUMIN_GPU names the program `gpu` where there is no cargo. BLOCKS, TOKENS and FORMATS replace the usual lists.
set -euo pipefail
[ $# = 2 ] || { echo "usage: mlp.sh RANKS OUT" >&2; exit 2; }
ranks=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
blocks=${BLOCKS:-4096x14336,8192x28672} tokens=${TOKENS:-1,16,64,128,512,1024,4096,8192} formats=${FORMATS:-bf16,nvfp4w}

if [ -z "${SILUMIN_GPU:-}" ]; then
  (cd "$here/../.." && cargo build --release --locked -p silumin-bench-gpu)
  SILUMIN_GPU=$here/../../target/release/silumin-bench-gpu
fi
if [ "$ranks" -gt 1 ] && [ -z "${SILUMIN_NCCL:-}" ]; then
  SILUMIN_NCCL=$(python3 -c 'import nvidia.nccl as nccl; print(nccl.__path__[0] + "/lib/libnccl.so.2")')
  export SILUMIN_NCCL
fi
# Both programs sum without multicast through NVLink switches, which few machines lend.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
"$SILUMIN_GPU" --mlp "$blocks" --ranks "$ranks" --format "$formats" --tokens "$tokens" --json "${out}_ours.json"
python3 "$here/torch_mlp.py" --mlp "$blocks" --ranks "$ranks" --tokens "$tokens" --json "${out}_torch.json"
python3 "$here/mlp_table.py" "${out}_ours.json" "${out}_torch.json" | tee "$out.md"
