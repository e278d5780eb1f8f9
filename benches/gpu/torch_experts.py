"""Times the experts of a mixture's layer in PyTorch, in bf16 on one GPU, beside `silumin-bench-gpu --experts`.

    python3 torch_experts.py --experts 2048x768x128x8 --tokens 1,16,128,1024,8192 --json torch.json

A call sorts the choices (`torch.sort`), gathers x, multiplies by gate and up in one grouped GEMM (`torch._grouped_mm`, CUTLASS),
applies silu(gate) * up in one Triton kernel, multiplies by down in a grouped GEMM, and sums by `index_add_`. It is one CUDA graph;
a time is that of many replays in a row, and the median of nine turns is reported.
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
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.out = self.forward()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.forward()

    def forward(self):
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
            layer.time(3)
            calls = max(3, min(2000, int(0.04 / layer.time(10))))
            us = 1e6 * statistics.median(layer.time(calls) for _ in range(TURNS))
            error = max(layer.error(0), layer.error(tokens - 1))
            rows.append(dict(hidden=hidden, features=features, experts=experts, top_k=top_k, tokens=tokens, us=us, error=error))
            print(f"{text} {tokens} tokens: {us:.1f} us, error {error:.1e}", flush=True)
    if flags.json:
        with open(flags.json, "w") as file:
            json.dump(dict(torch=torch.__version__, device=torch.cuda.get_device_name(), rows=rows), file, indent=1)


if __name__ == "__main__":
    main()
