"""Times the experts of a mixture's layer in PyTorch and Triton, in bf16 on one GPU, beside `silumin-bench-gpu --experts`.

    python3 torch_experts.py --experts 2048x768x128x8 --tokens 1,16,128,1024,8192 --json torch.json

There are two ways. `grouped` sorts the choices (`torch.sort`), gathers x, multiplies by gate and up in one grouped GEMM
(`torch._grouped_mm`, CUTLASS), applies silu(gate) * up in one Triton kernel, multiplies by down in a grouped GEMM, and sums by
`index_add_`. `triton` is what inference engines do: a Triton GEMM whose blocks of rows belong to one expert each and gather x as
they load it, once for gate and up and once for down, with the choices' weights in the second, and a sum over each token's rows.
Its tiles are the fastest of those in TILES for each layer and number of tokens, and its sorting is not counted.

A call is one CUDA graph. The time is the mean of many replays in succession; the median of nine turns is reported.
"""

import argparse
import json
import statistics
import time

import torch
import triton
import triton.language as tl

TURNS = 9


@triton.jit
def silu_mul(both, out, features, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < features
    gate = tl.load(both + row * 2 * features + column, mask=inside).to(tl.float32)
    up = tl.load(both + row * 2 * features + features + column, mask=inside).to(tl.float32)
    tl.store(out + row * features + column, (gate / (1.0 + tl.exp(-gate)) * up).to(tl.bfloat16), mask=inside)


# Columns and depth of a tile, warps, stages.
TILES = [
    (64, 64, 4, 4), (64, 128, 4, 4), (128, 64, 4, 3), (128, 64, 4, 4), (128, 64, 8, 4), (128, 128, 4, 3), (128, 128, 8, 3),
    (256, 64, 4, 3), (256, 64, 8, 3), (256, 64, 8, 4),
]
SHARED_MEMORY = 227 << 10


@triton.jit
def gather_gemm(a, b, c, weights, order, experts, valid, N, K, per_token, WEIGH: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c[choice] = a[choice // per_token] @ b[expert].T, times the choice's weight if WEIGH is set."""
    block, columns = tl.program_id(1), tl.program_id(0) * BN + tl.arange(0, BN)
    choice = tl.load(order + block * BM + tl.arange(0, BM))
    there = choice < valid
    expert = tl.load(experts + block)
    if expert < 0:
        return
    k = tl.arange(0, BK)
    left = a + (choice // per_token).to(tl.int64)[:, None] * K + k[None, :]
    right = b + expert.to(tl.int64) * N * K + (columns % N).to(tl.int64)[None, :] * K + k[:, None]
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K // BK):
        sums = tl.dot(tl.load(left, mask=there[:, None], other=0.0), tl.load(right), sums)
        left += BK
        right += BK
    if WEIGH:
        sums *= tl.load(weights + choice, mask=there, other=0.0)[:, None]
    inside = there[:, None] & (columns < N)[None, :]
    tl.store(c + choice.to(tl.int64)[:, None] * N + columns[None, :], sums.to(tl.bfloat16), mask=inside)


class Layer:
    """The calls for one number of tokens, as a graph."""

    def __init__(self, gate_up, down, tokens, top_k):
        experts, hidden, both = gate_up.shape
        self.experts, self.top_k, self.features = experts, top_k, both // 2
        self.gate_up, self.down = gate_up, down
        self.x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16)
        # Different experts for each token, all equally likely.
        self.chosen = torch.rand(tokens, experts, device="cuda").topk(top_k).indices.flatten().int()
        self.weights = torch.rand(tokens * top_k, device="cuda", dtype=torch.float32) + 0.5
        self.middle = torch.empty(tokens * top_k, self.features, device="cuda", dtype=torch.bfloat16)

    def capture(self, forward):
        """Makes the graph of a way."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.out = forward()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = forward()

    def blocks(self, rows):
        """The choices by expert, each expert's padded to whole blocks of rows, and each block's expert."""
        count, choices = self.experts, self.chosen.numel()
        sizes = torch.bincount(self.chosen, minlength=count)
        padded = (sizes + rows - 1) // rows * rows
        starts = torch.cumsum(padded, 0) - padded
        order = torch.full((int(padded.sum()),), choices, device="cuda", dtype=torch.int32)
        chosen, by_expert = torch.sort(self.chosen.long(), stable=True)
        rank = torch.arange(choices, device="cuda") - (torch.cumsum(sizes, 0) - sizes)[chosen]
        order[starts[chosen] + rank] = by_expert.int()
        return order, torch.repeat_interleave(torch.arange(count, device="cuda"), padded // rows).int()

    def gemms(self):
        """Launches of both GEMMs, the fastest of all tiles each."""
        choices, hidden = self.chosen.numel(), self.x.shape[1]
        self.both = torch.empty(choices, 2 * self.features, device="cuda", dtype=torch.bfloat16)
        self.rows = torch.empty(choices, hidden, device="cuda", dtype=torch.bfloat16)
        mean = choices / self.experts
        sizes = [rows for rows, least in ((16, 0), (32, 12), (64, 24), (128, 64)) if mean >= least][-2:]
        blocks = {rows: self.blocks(rows) for rows in sizes}
        found = []
        for a, b, c, per_token, weigh in (
            (self.x, self.gate_up, self.both, self.top_k, False), (self.middle, self.down, self.rows, 1, True),
        ):
            n, k, best = b.shape[2], b.shape[1], None
            for rows in sizes:
                order, experts = blocks[rows]
                for columns, depth, warps, stages in TILES:
                    if (rows + columns) * depth * 2 * stages > SHARED_MEMORY or rows * columns > 128 * 256:
                        continue
                    def launch(order=order, experts=experts, rows=rows, columns=columns, depth=depth, warps=warps, stages=stages,
                               a=a, b=b, c=c, n=n, k=k, per_token=per_token, weigh=weigh):
                        gather_gemm[(triton.cdiv(n, columns), experts.numel())](
                            a, b, c, self.weights, order, experts, choices, n, k, per_token, weigh,
                            rows, columns, depth, num_warps=warps, num_stages=stages)
                    us = 1e3 * triton.testing.do_bench(launch, warmup=2, rep=8)
                    if best is None or us < best[0]:
                        best = us, launch
            found.append(best[1])
        return found

    def triton_way(self):
        first, second = self.gemms()
        grid = (self.both.shape[0], triton.cdiv(self.features, 1024))

        def forward():
            first()
            silu_mul[grid](self.both, self.middle, self.features, BLOCK=1024)
            second()
            return self.rows.view(self.x.shape[0], self.top_k, -1).sum(1)

        return forward

    def grouped(self):
        chosen, order = torch.sort(self.chosen, stable=True)
        numbers = torch.arange(1, self.experts + 1, device="cuda", dtype=torch.int32)
        ends = torch.searchsorted(chosen, numbers, out_int32=True)
        tokens = order // self.top_k
        both = torch._grouped_mm(self.x[tokens], self.gate_up, offs=ends)
        grid = lambda meta: (both.shape[0], triton.cdiv(self.features, meta["BLOCK"]))
        silu_mul[grid](both, self.middle, self.features, BLOCK=1024)
        rows = torch._grouped_mm(self.middle, self.down, offs=ends)
        out = torch.zeros(self.x.shape, device="cuda", dtype=torch.float32)
        out.index_add_(0, tokens, rows.float() * self.weights[order, None])
        return out.to(torch.bfloat16)

    def time(self, calls):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            self.graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / calls

    def error(self, token):
        """Relative norm of the difference to f64 for one token."""
        at = slice(token * self.top_k, (token + 1) * self.top_k)
        x, sum = self.x[token].double(), 0
        for expert, weight in zip(self.chosen[at].tolist(), self.weights[at].tolist()):
            both = x @ self.gate_up[expert].double()
            gate, up = both[: self.features], both[self.features :]
            sum = sum + weight * ((torch.nn.functional.silu(gate) * up) @ self.down[expert].double())
        return float((self.out[token].double() - sum).norm() / sum.norm())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", required=True)
    parser.add_argument("--tokens", default="1,16,128,1024,8192")
    parser.add_argument("--json")
    flags = parser.parse_args()
    rows = []
    for text in flags.experts.split(","):
        hidden, features, experts, top_k = map(int, text.split("x"))
        random = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / shape[-2] ** 0.5
        # K-major, as checkpoints have weights.
        gate_up = random(experts, hidden, 2 * features).transpose(1, 2).contiguous().transpose(1, 2)
        down = random(experts, features, hidden).transpose(1, 2).contiguous().transpose(1, 2)
        for tokens in map(int, flags.tokens.split(",")):
            layer = Layer(gate_up, down, tokens, top_k)
            row = dict(hidden=hidden, features=features, experts=experts, top_k=top_k, tokens=tokens)
            for way, forward in (("grouped", layer.grouped), ("triton", layer.triton_way())):
                layer.capture(forward)
                layer.time(3)
                calls = max(3, min(2000, int(0.04 / layer.time(10))))
                row[f"{way}_us"] = 1e6 * statistics.median(layer.time(calls) for _ in range(TURNS))
                row[f"{way}_error"] = max(layer.error(0), layer.error(tokens - 1))
            row["us"] = min(row["grouped_us"], row["triton_us"])
            rows.append(row)
            print(f"{text} {tokens} tokens:", {key: round(value, 4) for key, value in row.items() if "_us" in key or "error" in key}, flush=True)
    if flags.json:
        with open(flags.json, "w") as file:
            json.dump(dict(torch=torch.__version__, device=torch.cuda.get_device_name(), rows=rows), file, indent=1)


if __name__ == "__main__":
    main()
