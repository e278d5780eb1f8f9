#!/usr/bin/env python3
"""Times kernels of ours and of others in turns, in one process with PyTorch: what separate runs differ by hits all alike.

    silumin-bench-gpu --shapes ... --emit kernels --json ours.json        # launch files, and which is the fastest
    beside.py ours.json [--others torch,triton,quack] [--configs peers.json] [--shapes a,b] [--rounds 21] [--warm 1] [--json OUT]

The kernel of ours for a shape is the fastest right row of OURS that has the format and a launch file. Every contender runs over the
same rotating sets of operands, in a CUDA graph of about 2 ms; a round replays each graph once, each round starting with another one.
The output has the medians, and the median and the 10th and 90th percentile of our time over theirs, formed round by round.

  torch    cuBLAS: two GEMMs, silu and multiplication; and one GEMM over [B1; B2] with one elementwise kernel behind it
  triton   a fused kernel, the best of a few tiles
  quack    QuACK's gated GEMM (weights interleaved row by row); its configurations are tried all, which takes minutes, unless
           --configs names a file of the peers' script, whose best one for the shape is then taken
  quack-w4 QuACK's GEMM of bf16 by NVFP4 weights, with one elementwise kernel behind it
  fp8      cuBLAS: one GEMM of e4m3 over [B1; B2] with one elementwise kernel behind it (--format e4m3)
  blocks   e4m3 with f32 scale factors of 1 x 128 elements of A and 128 x 128 of B (--format e4m3_blocks): cuBLAS, one GEMM over
           [B1; B2] with one elementwise kernel behind it; DeepGEMM, where it is installed, the same; Triton, the same, and a fused
           kernel, each the best of a few tiles

With --format e4m3_blocks all contenders get the same quantised operands, and errors are against a product of these. With --format
nvfp4w or nvfp4w_repacked both get the same NVFP4 weights, quantised from bf16. Most of either's error comes from that quantisation.

A chip under load lowers its clock, within a tenth of a second or so: contenders take turns for --warm seconds before those rounds.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import launch  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

try:
    import deep_gemm
except ImportError:
    deep_gemm = None

SET_BYTES = 200e6
GRAPH_MS = 2.0
TILES = [  # M, N, K, warps, stages
    (128, 128, 64, 8, 3),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 5),
    (64, 32, 128, 4, 5),
    (128, 32, 128, 4, 4),
]


@triton.jit
def gate_kernel(x, y, out, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    gate = tl.load(x + row * stride + column, mask=inside).to(tl.float32)
    up = tl.load(y + row * stride + column, mask=inside).to(tl.float32)
    tl.store(out + row * n + column, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=inside)


@triton.jit
def fused_kernel(
    a, b1, b2, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, CTAS: tl.constexpr
):
    rows, columns = tl.cdiv(m, M), tl.cdiv(n, N)
    for tile in tl.range(tl.program_id(0), rows * columns, CTAS):
        first = tile // (GROUP * columns) * GROUP
        group = min(rows - first, GROUP)
        row = first + tile % (GROUP * columns) % group
        column = tile % (GROUP * columns) // group
        gate = tl.zeros((M, N), tl.float32)
        up = tl.zeros((M, N), tl.float32)
        for step in range(0, k, K):
            left = a.load([row * M, step])
            gate = tl.dot(left, b1.load([column * N, step]).T, gate)
            up = tl.dot(left, b2.load([column * N, step]).T, up)
        c.store([row * M, column * N], (gate * tl.sigmoid(gate) * up).to(tl.bfloat16))


@triton.jit
def scaled_kernel(
    a, b1, b2, sa, sb1, sb2, c, m, n, k, M: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, DUAL: tl.constexpr
):
    rows, columns = tl.cdiv(m, M), tl.cdiv(n, N)
    tile = tl.program_id(0)
    first = tile // (GROUP * columns) * GROUP
    group = min(rows - first, GROUP)
    row = first + tile % (GROUP * columns) % group
    column = tile % (GROUP * columns) // group
    blocks = k // 128
    gate = tl.zeros((M, N), tl.float32)
    up = tl.zeros((M, N), tl.float32)
    inside = row * M + tl.arange(0, M)
    left_scales = sa + inside * blocks
    right_scales = (column * N // 128) * blocks
    for step in range(0, blocks):
        left = a.load([row * M, step * 128])
        scale = tl.load(left_scales + step, mask=inside < m, other=0.0)[:, None]
        gate += tl.dot(left, b1.load([column * N, step * 128]).T) * (scale * tl.load(sb1 + right_scales + step))
        if DUAL:
            up += tl.dot(left, b2.load([column * N, step * 128]).T) * (scale * tl.load(sb2 + right_scales + step))
    if DUAL:
        gate = gate * tl.sigmoid(gate) * up
    c.store([row * M, column * N], gate.to(tl.bfloat16))


def rotations(bytes_of_one):
    """Sets of operands that are more than L2 holds."""
    return max(2, min(16, int(SET_BYTES / bytes_of_one) + 1))


def draw(m, n, k, dtype):
    """Sets of operands: A, B1 above B2, C."""
    # What is of a size with 1 / sqrt(K) would be subnormal in e4m3, and a scale factor of the weights' is its own.
    size = k**0.5 if dtype == torch.bfloat16 else 1.0
    sets = []
    for _ in range(rotations((m * k + 2 * n * k) * dtype.itemsize)):
        a = torch.randn(m, k, device="cuda").to(dtype)
        w = (torch.randn(2 * n, k, device="cuda") / size).to(dtype)
        sets.append((a, w, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)))
    return sets


class Graph:
    """Calls over all sets, as often as take about GRAPH_MS, as a graph."""

    def __init__(self, calls, milliseconds=GRAPH_MS):
        self.events = torch.cuda.Event(True), torch.cuda.Event(True)
        for call in calls:
            call()
        # How long a round takes is asked of a graph, too: one by one, calls take as long as the host needs for them. Graphs of
        # different lengths would share their starts, of some 6 us each, among different numbers of calls.
        self.capture(calls, 1)
        once = max(min(self.between(self.graph.replay) for _ in range(3)), 1e-3)
        self.capture(calls, max(1, int(milliseconds / once)))

    def capture(self, calls, rounds):
        self.count = rounds * len(calls)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            for _ in range(rounds):
                for call in calls:
                    call()
        for _ in range(3):
            self.graph.replay()
        torch.cuda.synchronize()

    def between(self, work):
        start, end = self.events
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    def time(self):
        """Microseconds of a call."""
        return self.between(self.graph.replay) * 1e3 / self.count


def quick(calls):
    """A short look, to choose between configurations."""
    graph = Graph(calls, 1.0)
    return statistics.median(graph.time() for _ in range(5))


def best_of(configurations, calls_of):
    """The calls of the fastest configuration, and the configuration; those that fail do not count."""
    timed, failure = [], None
    for configuration in configurations:
        try:
            calls = calls_of(configuration)
            timed.append((quick(calls), len(timed), calls, configuration))
        except Exception as error:  # a configuration that the compiler or the chip refuses
            failure = error
    if not timed:
        raise RuntimeError(f"no configuration runs; the last one: {failure!r}"[:300])
    return min(timed)[2:]


def contenders(names, sets, n, recorded, narrow):
    """(name, calls, configuration) of what others offer."""
    ways = {"torch": cublas, "triton": fused, "quack": quack, "fp8": cublas_fp8, "blocks": blocks_of_others}
    ways["quack-w4"] = lambda *_: quack_w4(sets, n, narrow)
    for name in names:
        try:
            yield from ways[name](sets, n, recorded)
        except Exception as error:  # what is not installed or does not run is told, and not timed
            print(f"   {name}: {error!r}"[:300])


def cublas(sets, n, _recorded):
    def two(a, w, c):
        torch.mul(F.silu(a @ w[:n].T), a @ w[n:].T, out=c)

    def one(a, w, c):
        both = a @ w.T
        gate_kernel[(a.shape[0], triton.cdiv(n, 1024))](both, both[:, n:], c, n, 2 * n, 1024)

    yield "cublas 2 gemms + silu + mul", [lambda s=s: two(*s) for s in sets], ""
    yield "cublas 1 gemm + silu_mul kernel", [lambda s=s: one(*s) for s in sets], ""


def cublas_fp8(sets, n, _recorded):
    scale = torch.ones((), device="cuda")

    def one(a, w, c):
        both = torch._scaled_mm(a, w.T, scale, scale, out_dtype=torch.bfloat16)
        gate_kernel[(a.shape[0], triton.cdiv(n, 1024))](both, both[:, n:], c, n, 2 * n, 1024)

    yield "cublas fp8 1 gemm + silu_mul kernel", [lambda s=s: one(*s) for s in sets], ""


def fused(sets, n, _recorded):
    sms = torch.cuda.get_device_properties(0).multi_processor_count

    def calls_of(tile):
        rows, columns, depth, warps, stages = tile

        def call(a, w, c):
            m, k = a.shape
            grid = min(sms, triton.cdiv(m, rows) * triton.cdiv(n, columns))
            maps = [
                TensorDescriptor.from_tensor(tensor, box)
                for tensor, box in ((a, [rows, depth]), (w[:n], [columns, depth]), (w[n:], [columns, depth]), (c, [rows, columns]))
            ]
            fused_kernel[(grid,)](*maps, m, n, k, rows, columns, depth, 8, grid, num_warps=warps, num_stages=stages)

        return [lambda s=s: call(*s) for s in sets]

    calls, tile = best_of(TILES, calls_of)
    yield "triton fused", calls, str(tile)


def quack(sets, n, recorded):
    from quack.gemm_config import get_all_configs

    try:  # before 0.4
        from quack.gemm_interface import gemm_gated_tuned

        def gated(a, w, c, configuration):
            gemm_gated_tuned.fn(a, w.T, None, c, activation="swiglu", config=configuration)

    except ImportError:
        from quack.gemm_interface import gemm_act

        def gated(a, w, c, configuration):
            gemm_act(a, w.T, activation="swiglu", store_preact=False, postact_out=c, tuned=False, config=configuration)

    def said(c):
        return f"{c.tile_m}x{c.tile_n} pingpong={c.pingpong} cluster={c.cluster_m}x{c.cluster_n}"

    all_of_them = [c for c in get_all_configs("gated") if c.device_capacity == 9]
    known = recorded.get("quack gated swiglu", {}).get("cfg", "")
    chosen = [c for c in all_of_them if known.startswith(said(c))] if known else []
    # Rows of the gate and of the other product by turns.
    mixed = [(a, torch.stack([w[:n], w[n:]], 1).reshape(2 * n, -1).contiguous(), c) for a, w, c in sets]
    calls, configuration = best_of(chosen or all_of_them, lambda x: [lambda s=s: gated(*s, x) for s in mixed])
    yield "quack gated swiglu", calls, said(configuration)


FP4_VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def to_nvfp4(w):
    """NVFP4 of a matrix, as checkpoints have it: two codes a byte, the first in its lower half, and e4m3 scale factors of 16 elements."""
    blocks = w.float().view(w.shape[0], -1, 16)
    scales = (blocks.abs().amax(-1) / 6).clamp(min=2**-9).to(torch.float8_e4m3fn)
    scaled = blocks / scales.float()[..., None]
    values = torch.tensor(FP4_VALUES, device=w.device)
    codes = torch.bucketize(scaled.abs(), (values[1:] + values[:-1]) / 2).byte() | (scaled < 0).byte() << 3
    codes = codes.view(w.shape)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales


def blocked(scales):
    """Scale factors in blocks of 128 rows and 4 columns, rows r, r + 32, r + 64 and r + 96 side by side."""
    rows, columns = scales.shape
    padded = F.pad(scales.view(torch.uint8), (0, -columns % 4, 0, -rows % 128))
    return padded.view(-1, 4, 32, padded.shape[1] // 4, 4).permute(0, 3, 2, 1, 4).contiguous().view(-1)


def repacked(codes):
    """Permutes the bits of NVFP4 codes for the format nvfp4_repacked. `OperandFormat::repacks` has a table of the bits."""
    first, second = (codes.reshape(-1, 8).view(torch.int32).long() & 0xFFFFFFFF).unbind(-1)
    words = []
    for half in (0, 16):
        both = first >> half & 0xFFFF | (second >> half & 0xFFFF) << 16
        low, middle, high, last = (both >> shift & 0x000F000F for shift in (0, 4, 8, 12))
        last = last >> 16 | (last & 0xFFFF) << 16
        word = (low & 0x00080008) << 12 | (low & 0x00070007) << 6
        word |= (middle & 0x00080008) << 9 | (middle & 0x00070007) << 3
        word |= (high & 0x00080008) << 6 | high & 0x00070007
        word |= (last & 0x00080008) << 10 | (last & 0x00060006) << 9 | (last & 0x00010001) << 14
        words.append(word)
    return (words[0] | words[1] << 32).view(torch.uint8).view(codes.shape)


def narrow_weights(sets, n):
    """NVFP4 weights of each of a rotation's sets: codes and scale factors."""
    k = sets[0][0].shape[1]
    quantised = [[torch.cat(parts) for parts in zip(*map(to_nvfp4, w.split(2048)))] for _, w, _ in sets]
    count = rotations(n * k * 9 // 8)
    return [[part.clone() for part in quantised[index % len(sets)]] for index in range(count)]


def quack_w4(sets, n, narrow):
    from quack.gemm_w4 import gemm_w4a16, prepare_w4_weight

    m = sets[0][0].shape[0]
    operands = []
    for index, (codes, scales) in enumerate(narrow):
        a, _, c = sets[index % len(sets)]
        both = torch.empty(m, 2 * n, device="cuda", dtype=torch.bfloat16)
        operands.append((a, *prepare_w4_weight(codes, scales, "nvfp4"), both, c))

    def call(a, weight, scales, both, c):
        gemm_w4a16(a, weight, scales, out=both, wformat="nvfp4")
        gate_kernel[(m, triton.cdiv(n, 1024))](both, both[:, n:], c, n, 2 * n, 1024)

    yield "quack w4a16 nvfp4 + silu_mul kernel", [lambda s=s: call(*s) for s in operands], ""


def ours_w4(row, sets, n, narrow):
    """Ours with NVFP4 weights. The format nvfp4w_repacked repacks them before timing; QuACK prepares its weights then, too."""
    kernel = launch.Kernel(row["file"])
    buffers = kernel.buffers()
    bound = []
    for index, (codes, scales) in enumerate(narrow):
        a, _, c = sets[index % len(sets)]
        codes = repacked(codes) if row["format"] == "nvfp4w_repacked" else codes
        weights = {"b1": codes[:n], "b2": codes[n:], "sfb1": blocked(scales[:n]), "sfb2": blocked(scales[n:])}
        for name, tensor in weights.items():
            if tensor.numel() != buffers[name]["bytes"]:
                raise ValueError(f"{name} has {tensor.numel()} bytes, the launch file says {buffers[name]['bytes']}")
        addresses = {name: tensor.data_ptr() for name, tensor in weights.items()}
        bound.append((kernel.bind(a=a.data_ptr(), c=c.data_ptr(), **addresses), weights))
    return [lambda b=b: b[0].launch(torch.cuda.current_stream().cuda_stream) for b in bound]


def draw_blocks(m, n, k):
    """Sets of operands: A and its scale factors, B1 above B2 and theirs, C."""

    def quantised(x, rows):
        height, width = x.shape[0] // rows, k // 128
        blocks = x.view(height, rows, width, 128)
        scales = blocks.abs().amax((1, 3)).clamp(min=1e-12) / 448
        codes = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        return codes.view(x.shape), scales

    sets = []
    for _ in range(rotations(m * k + 2 * n * k)):
        a = quantised(torch.randn(m, k, device="cuda"), 1)
        w = quantised(torch.randn(2 * n, k, device="cuda") / k**0.5, 128)
        sets.append((*a, *w, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)))
    return sets


def decoded_blocks(codes, scales):
    rows = codes.shape[0] // scales.shape[0]
    return codes.double() * scales.double().repeat_interleave(rows, 0).repeat_interleave(128, 1)


def ours_blocks(row, sets, n):
    kernel = launch.Kernel(row["file"])
    bound = [
        kernel.bind(
            a=a.data_ptr(), b1=w.data_ptr(), b2=w[n:].data_ptr(), c=c.data_ptr(),
            sfa=sa.data_ptr(), sfb1=sw.data_ptr(), sfb2=sw[n // 128 :].data_ptr(),
        )
        for a, sa, w, sw, c in sets
    ]  # fmt: skip
    return [lambda b=b: b.launch(torch.cuda.current_stream().cuda_stream) for b in bound]


def blocks_of_others(sets, n, _recorded):
    """Contenders of the format e4m3_blocks."""
    for name, contenders in (("cublas", cublas_blocks), ("deepgemm", deepgemm_blocks if deep_gemm else None)):
        try:
            if contenders:
                yield from contenders(sets, n)
        except Exception as error:
            print(f"   {name}: {error!r}"[:300])
    yield from triton_blocks(sets, n)


def deepgemm_blocks(sets, n):
    # Scale factors of A in the layout that the kernel reads; in an engine the quantising kernel writes it.
    aligned = [deep_gemm.get_mn_major_tma_aligned_tensor(sa) for _, sa, *_ in sets]
    both = torch.empty(sets[0][0].shape[0], 2 * n, device="cuda", dtype=torch.bfloat16)

    def one(a, scales, w, weight_scales, c):
        deep_gemm.fp8_gemm_nt((a, scales), (w, weight_scales), both, disable_ue8m0_cast=True)
        gate_kernel[(a.shape[0], triton.cdiv(n, 1024))](both, both[:, n:], c, n, 2 * n, 1024)

    calls = [lambda s=s, scales=scales: one(s[0], scales, *s[2:]) for s, scales in zip(sets, aligned)]
    calls[0]()
    yield "deepgemm 1 gemm + silu_mul kernel", calls, deep_gemm.__version__


def cublas_blocks(sets, n):
    # Scale factors of A column by column, and of B with the columns of a block row padded to four.
    by_columns = [sa.t().contiguous().t() for _, sa, *_ in sets]
    padded = [F.pad(sw, (0, -sw.shape[1] % 4))[:, : sw.shape[1]] for *_, sw, _ in sets]

    def one(a, w, c, scales, weight_scales):
        both = torch._scaled_mm(a, w.T, scales, weight_scales.T, out_dtype=torch.bfloat16)
        gate_kernel[(a.shape[0], triton.cdiv(n, 1024))](both, both[:, n:], c, n, 2 * n, 1024)

    calls = [
        lambda s=s, left=left, right=right: one(s[0], s[2], s[4], left, right)
        for s, left, right in zip(sets, by_columns, padded)
    ]
    calls[0]()
    yield "cublas 1 gemm + silu_mul kernel", calls, ""


def triton_blocks(sets, n):
    m = sets[0][0].shape[0]

    def calls_of(tile, dual):
        rows, columns, warps, stages = tile
        width = n if dual else 2 * n
        temporary = torch.empty(m, 2 * n, device="cuda", dtype=torch.bfloat16)

        def call(a, sa, w, sw, c):
            out = c if dual else temporary
            boxes = ((a, [rows, 128]), (w[:width], [columns, 128]), (w[n:], [columns, 128]), (out, [rows, columns]))
            a_map, b1, b2, c_map = [TensorDescriptor.from_tensor(tensor, box) for tensor, box in boxes]
            grid = triton.cdiv(m, rows) * triton.cdiv(width, columns)
            scaled_kernel[(grid,)](
                a_map, b1, b2, sa, sw, sw[n // 128 :], c_map, m, width, a.shape[1], rows, columns, 8, dual,
                num_warps=warps, num_stages=stages,
            )  # fmt: skip
            if not dual:
                gate_kernel[(m, triton.cdiv(n, 1024))](temporary, temporary[:, n:], c, n, 2 * n, 1024)

        return [lambda s=s: call(*s) for s in sets]

    tiles = [(64, 64, 4, 4), (64, 128, 4, 3), (64, 128, 4, 4), (128, 64, 8, 4), (128, 64, 4, 4), (128, 128, 8, 3), (128, 128, 8, 4)]
    tiles += [(64, 32, 4, 5), (16, 128, 4, 4), (16, 64, 4, 5), (32, 128, 4, 4)]
    for dual, name in ((True, "triton fused"), (False, "triton 1 gemm + silu_mul kernel")):
        calls, tile = best_of(tiles, lambda tile: calls_of(tile, dual))
        yield name, calls, str(tile)


def ours(row, sets, n):
    kernel = launch.Kernel(row["file"])
    bound = [
        kernel.bind(a=a.data_ptr(), b1=w.data_ptr(), b2=w[n:].data_ptr(), c=c.data_ptr()) for a, w, c in sets
    ]
    return [lambda b=b: b.launch(torch.cuda.current_stream().cuda_stream) for b in bound]


def error_of(calls, c, want):
    """Relative Frobenius error of the first set's C."""
    if want is None:
        return None
    c.fill_(float("nan"))
    calls[0]()
    torch.cuda.synchronize()
    return ((c.double() - want).norm() / want.norm()).item()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def compare(row, names, recorded, rounds, warm):
    """A shape: medians and ratios of all contenders."""
    m, n, k = row["m"], row["n"], row["k"]
    blocks = row["format"] == "e4m3_blocks"
    narrow_type = torch.float8_e4m3fn if row["format"] == "e4m3" else torch.bfloat16
    sets = draw_blocks(m, n, k) if blocks else draw(m, n, k, narrow_type)
    c, want = sets[0][-1], None
    if m * n * k < 3e11:
        if blocks:
            a, sa, w, sw, _ = sets[0]
            exact, weights = decoded_blocks(a, sa), decoded_blocks(w, sw)
        else:
            exact, weights = [tensor.float().double() for tensor in sets[0][:2]]
        want = F.silu(exact @ weights[:n].T) * (exact @ weights[n:].T)
    weights_are_narrow = row["format"] in ("nvfp4w", "nvfp4w_repacked")
    narrow = narrow_weights(sets, n) if weights_are_narrow or "quack-w4" in names else None
    if weights_are_narrow:
        mine = ours_w4(row, sets, n, narrow)
    else:
        mine = (ours_blocks if blocks else ours)(row, sets, n)
    field = [("ours", mine, row["knobs"] or "auto"), *contenders(names, sets, n, recorded, narrow)]
    graphs, results = [], {}
    for name, calls, configuration in field:
        results[name] = {"cfg": configuration, "err": error_of(calls, c, want)}
        graphs.append(Graph(calls))
    times = [[] for _ in graphs]
    until = time.monotonic() + warm
    while time.monotonic() < until:
        for graph in graphs:
            graph.time()
    for turn in range(rounds):
        for step in range(len(graphs)):
            place = (turn + step) % len(graphs)
            times[place].append(graphs[place].time())
    for (name, _, _), mine in zip(field, times):
        ratios = [first / other for first, other in zip(times[0], mine)]
        results[name].update(
            us=statistics.median(mine),
            tflops=4 * m * n * k / statistics.median(mine) / 1e6,
            ratio=statistics.median(ratios),
            ratio_spread=[percentile(ratios, 0.1), percentile(ratios, 0.9)],
        )
    return {"M": m, "N": n, "K": k, "rows": results}


def fastest(rows, only, format_name):
    """Our best row of each shape."""
    best = {}
    for row in rows:
        if row["status"] == "ok" and row.get("file") and row["format"] == format_name and row["us"]:
            if (only is None or row["shape"] in only) and row["us"] < best.get(row["shape"], row | {"us": 1e30})["us"]:
                best[row["shape"]] = row
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours")
    parser.add_argument("--others", default="torch,triton,quack")
    parser.add_argument("--format", default="bf16", choices=["bf16", "e4m3", "e4m3_blocks", "nvfp4w", "nvfp4w_repacked"])
    parser.add_argument("--configs", help="a file of the peers' script: the configurations that were best there")
    parser.add_argument("--shapes", help="only these, with commas")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--warm", type=float, default=1.0, help="seconds of turns before those that count")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--json")
    flags = parser.parse_args()
    torch.manual_seed(flags.seed if flags.seed is not None else torch.seed() % 2**31)
    torch.zeros(1, device="cuda")
    recorded = json.loads(pathlib.Path(flags.configs).read_text()) if flags.configs else {}
    rows = json.loads(pathlib.Path(flags.ours).read_text())["rows"]
    results = {}
    for shape, row in fastest(rows, flags.shapes and flags.shapes.split(","), flags.format).items():
        known = recorded.get(shape, {}).get("rows", {})
        result = results[shape] = compare(row, flags.others.split(","), known, flags.rounds, flags.warm)
        print(f"{shape}: {result['M']} x {result['N']} x {result['K']}")
        for name, one in result["rows"].items():
            error = "-" if one["err"] is None else f"{one['err']:.2e}"
            low, high = one["ratio_spread"]
            print(
                f"   {name:34s} {one['us']:9.2f} us {one['tflops']:7.1f} TFLOP/s  ours/this {one['ratio']:.3f}"
                f" ({low:.3f} to {high:.3f})  err {error}  {one['cfg']}",
                flush=True,
            )
        if flags.json:
            pathlib.Path(flags.json).write_text(json.dumps(results, indent=1))
    worst = [
        max(one["ratio"] for name, one in result["rows"].items() if name != "ours")
        for result in results.values()
        if len(result["rows"]) > 1
    ]
    if worst:
        mean = statistics.geometric_mean(worst)
        print(f"ours over the best of the others, geometric mean of {len(worst)}: {mean:.3f}")
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
