"""Times PyTorch's gated MLP block in bf16 on one GPU and on several; `mlp_table.py` shows it beside ours.

    python3 torch_mlp.py --ranks 2 --mlp 4096x14336,8192x28672 --tokens 1,16,128,1024,8192 --json torch.json

The block is one cuBLAS GEMM for gate and up, one Triton kernel for silu(gate) * up, one cuBLAS GEMM for down with the
residual, and NCCL's all-reduce: gate and up divided by columns, down by rows. Calls on four copies of the weights are one
CUDA graph; a time is that of many replays in a row, the slowest rank counts, and the median of nine turns is reported.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import triton
import triton.language as tl

LAYERS = 4
TURNS = 9


@triton.jit
def silu_mul(gate_up, out, features, BLOCK: tl.constexpr):
    row, column = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < features
    base = gate_up + row.to(tl.int64) * 2 * features
    gate = tl.load(base + column, mask=inside).to(tl.float32)
    up = tl.load(base + features + column, mask=inside).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row.to(tl.int64) * features + column, value.to(tl.bfloat16), mask=inside)


class Block:
    """The calls of a rank for one number of tokens, as one graph."""

    def __init__(self, layers, tokens, hidden, rank, ranks):
        features = layers[0][1].shape[1]
        self.tokens, self.rank, self.ranks = tokens, rank, ranks
        self.x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
        self.residual = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
        self.both = torch.empty(tokens, 2 * features, device="cuda", dtype=torch.bfloat16)
        self.middle = torch.empty(tokens, features, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty(tokens, hidden, device="cuda", dtype=torch.bfloat16)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.forward(layers)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="relaxed"):
            self.forward(layers)

    def forward(self, layers):
        features = self.middle.shape[1]
        for gate_up, down in layers:
            torch.mm(self.x, gate_up.t(), out=self.both)
            silu_mul[(triton.cdiv(features, 1024), self.tokens)](self.both, self.middle, features, BLOCK=1024)
            if self.rank == 0:
                torch.addmm(self.residual, self.middle, down.t(), out=self.out)
            else:
                torch.mm(self.middle, down.t(), out=self.out)
            if self.ranks > 1:
                dist.all_reduce(self.out)

    def time(self, replays):
        torch.cuda.synchronize()
        if self.ranks > 1:
            dist.barrier()
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(replays):
            self.graph.replay()
        torch.cuda.synchronize()
        taken = time.perf_counter() - start
        if self.ranks > 1:
            slowest = torch.tensor([taken], device="cuda", dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            taken = slowest.item()
        return taken

    def median_us(self):
        once = self.time(2) / 2
        # All ranks have the same number, for the slowest's time counts.
        replays = max(2, min(500, int(20e-3 / once)))
        self.time(replays)
        return statistics.median(self.time(replays) for _ in range(TURNS)) * 1e6 / replays / LAYERS


def measure(rank, ranks, blocks, tokens, results):
    torch.cuda.set_device(rank)
    torch.manual_seed(7)
    if ranks > 1:
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29517", rank=rank, world_size=ranks)
    for hidden, features in blocks:
        own = features // ranks
        layers = [
            (
                torch.randn(2 * own, hidden, device="cuda", dtype=torch.bfloat16) / hidden**0.5,
                torch.randn(hidden, own, device="cuda", dtype=torch.bfloat16) / features**0.5,
            )
            for _ in range(LAYERS)
        ]
        for count in tokens:
            us = Block(layers, count, hidden, rank, ranks).median_us()
            if rank == 0:
                results.append((hidden, features, count, us))
    if ranks > 1:
        dist.barrier()
        torch.cuda.synchronize()
        dist.destroy_process_group()


def run(ranks, blocks, tokens):
    with mp.Manager() as manager:
        results = manager.list()
        mp.spawn(measure, args=(ranks, blocks, tokens, results), nprocs=ranks)
        return {(hidden, features, count): us for hidden, features, count, us in results}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mlp", default="4096x14336,8192x28672")
    parser.add_argument("--tokens", default="1,16,128,1024,8192")
    parser.add_argument("--json", help="file for the rows")
    flags = parser.parse_args()
    blocks = [tuple(int(size) for size in text.split("x")) for text in flags.mlp.split(",")]
    tokens = [int(text) for text in flags.tokens.split(",")]
    one = run(1, blocks, tokens)
    several = run(flags.ranks, blocks, tokens) if flags.ranks > 1 else {}
    rows = [
        {"hidden": key[0], "features": key[1], "tokens": key[2], "one_us": one[key], "all_us": several.get(key)}
        for key in one
    ]
    for row in rows:
        all_us = "" if row["all_us"] is None else f", {flags.ranks} GPUs {row['all_us']:.1f} us"
        print(f"{row['hidden']} x {row['features']}, {row['tokens']} tokens: {row['one_us']:.1f} us{all_us}")
    if flags.json:
        machine = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "triton": triton.__version__}
        machine["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        with open(flags.json, "w") as file:
            json.dump({"machine": machine, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
