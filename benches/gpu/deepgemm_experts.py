"""Times DeepGEMM's grouped GEMMs for the experts of a mixture's layer on one GPU, beside `silumin-bench-gpu --experts`.

    python3 deepgemm_experts.py --experts 2048x768x128x8 --tokens 1,16,128,1024,8192 --json deepgemm.json

It needs the package `deep_gemm` and PyTorch. A row has the time of the layer's two GEMMs alone: gate and up in one, then down. Rows
are sorted, gathered, padded and quantised before; the gate, the choices' weights and the sum over each token's experts are left out.
FP8 has a scale factor for 128 elements of a row of activations, and for 128 x 128 elements of weights.

DeepGEMM has two layouts. `contiguous` pads each expert's rows to whole tiles, one after the other. `masked` gives every expert the same
room and says how many rows it has. The faster one counts. A call is one CUDA graph. The time is the mean of many replays in succession;
the median of nine turns is reported.
"""

import argparse
import json
import math
import statistics
import time

import deep_gemm
import torch

TURNS = 9
FORMATS = ["bf16", "fp8"]


def experts_of(tokens, experts, top_k):
    """How many rows each expert has. A token takes different experts, all equally likely."""
    chosen = torch.rand(tokens, experts, device="cuda").topk(top_k).indices.flatten()
    return torch.bincount(chosen, minlength=experts).tolist()


class Weights:
    """The weights of one GEMM, [experts, N, K], in a format."""

    def __init__(self, experts, n, k, fp8):
        self.fp8, self.n, self.k = fp8, n, k
        self.plain = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16) / k**0.5
        if fp8:
            pairs = [deep_gemm.per_block_cast_to_fp8(matrix, use_ue8m0=False) for matrix in self.plain]
            self.b = torch.stack([values for values, _ in pairs]), torch.stack([scales for _, scales in pairs])
        else:
            self.b = self.plain

    def rows(self, count):
        """Normal activations, [count, K], in bf16 and in the format."""
        x = torch.randn(count, self.k, device="cuda", dtype=torch.bfloat16)
        if not self.fp8:
            return x, x
        return x, deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False)


def contiguous(weights, sizes):
    """A call of a GEMM in the contiguous layout, and its relative error in the first expert that has rows."""
    whole = deep_gemm.get_mk_alignment_for_contiguous_layout()
    padded = [(size + whole - 1) // whole * whole for size in sizes]
    x, a = weights.rows(sum(padded))
    layout = torch.full((sum(padded),), -1, device="cuda", dtype=torch.int32)
    start, starts = 0, []
    for expert, (size, room) in enumerate(zip(sizes, padded)):
        layout[start : start + size] = expert
        starts.append(start)
        start += room
    d = torch.empty(sum(padded), weights.n, device="cuda", dtype=torch.bfloat16)
    if weights.fp8:
        a = a[0], deep_gemm.get_mn_major_tma_aligned_tensor(a[1])
    gemm = deep_gemm.m_grouped_fp8_gemm_nt_contiguous if weights.fp8 else deep_gemm.m_grouped_bf16_gemm_nt_contiguous

    def error():
        expert = next(number for number, size in enumerate(sizes) if size)
        at = slice(starts[expert], starts[expert] + sizes[expert])
        return relative(d[at], x[at], weights.plain[expert])

    return lambda: gemm(a, weights.b, d, layout), error


def masked(weights, sizes):
    """A call of a GEMM in the masked layout, and its relative error in the first expert that has rows."""
    count, room = len(sizes), (max(sizes) + 127) // 128 * 128
    x, a = weights.rows(count * room)
    x = x.view(count, room, -1)
    if weights.fp8:
        values, scales = a
        a = values.view(count, room, -1), deep_gemm.get_mn_major_tma_aligned_tensor(scales.view(count, room, -1))
    else:
        a = a.view(count, room, -1)
    d = torch.empty(count, room, weights.n, device="cuda", dtype=torch.bfloat16)
    rows = torch.tensor(sizes, device="cuda", dtype=torch.int32)
    expected = max(1, math.ceil(sum(sizes) / count))
    gemm = deep_gemm.m_grouped_fp8_gemm_nt_masked if weights.fp8 else deep_gemm.m_grouped_bf16_gemm_nt_masked

    def error():
        expert = next(number for number, size in enumerate(sizes) if size)
        return relative(d[expert, : sizes[expert]], x[expert, : sizes[expert]], weights.plain[expert])

    return lambda: gemm(a, weights.b, d, rows, expected), error


def relative(d, x, b):
    right = x.double() @ b.double().T
    return float((d.double() - right).norm() / right.norm())


def graph_of(forward):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            forward()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    return graph


def time_of(graph, calls):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def measure(layers, tokens, formats):
    """The rows, one after the other."""
    for text in layers:
        hidden, features, experts, top_k = map(int, text.split("x"))
        for name in formats:
            both = Weights(experts, 2 * features, hidden, name == "fp8")
            down = Weights(experts, hidden, features, name == "fp8")
            for count in tokens:
                torch.manual_seed(count)
                sizes = experts_of(count, experts, top_k)
                row = dict(hidden=hidden, features=features, experts=experts, top_k=top_k, tokens=count, format=name)
                row["chosen"] = sum(size > 0 for size in sizes)
                for layout in (contiguous, masked):
                    try:
                        (first, one), (second, other) = layout(both, sizes), layout(down, sizes)
                        graph = graph_of(lambda: (first(), second()))
                        time_of(graph, 3)
                        calls = max(3, min(2000, int(0.04 / time_of(graph, 10))))
                        us = 1e6 * statistics.median(time_of(graph, calls) for _ in range(TURNS))
                        row[layout.__name__] = dict(us=us, error=max(one(), other()))
                    except (RuntimeError, AssertionError) as error:
                        said = str(error).strip().splitlines() or [type(error).__name__]
                        row[layout.__name__] = dict(refused=said[-1][:200])
                times = [row[way]["us"] for way in ("contiguous", "masked") if "us" in row[way]]
                row["us"] = min(times) if times else None
                print(text, name, count, "tokens:", row["us"], row["contiguous"], row["masked"], flush=True)
                yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", required=True)
    parser.add_argument("--tokens", default="1,16,128,1024,8192")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--json")
    flags = parser.parse_args()
    document = dict(deep_gemm=deep_gemm.__version__, torch=torch.__version__, device=torch.cuda.get_device_name(), rows=[])
    for row in measure(flags.experts.split(","), list(map(int, flags.tokens.split(","))), flags.formats.split(",")):
        document["rows"].append(row)
        if flags.json:
            with open(flags.json, "w") as file:
                json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
