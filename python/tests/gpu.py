"""Multiplies tensors of torch on this machine's GPU, and compares with torch: values, streams, graphs, threads, errors, and time per call.

    python tests/gpu.py      # prints a line for each check, and times; exit status 1 if one fails

It takes a GPU with kernels (Hopper or Blackwell), torch, numpy and the wheel. Tensors of CuPy are tried if CuPy is installed.
"""

import statistics
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import silumin
import torch
from torch.nn.functional import silu

# The largest error of a result, as `error` counts it.
LIMIT = 0.01
failed = 0


def report(name, ok, text=""):
    global failed
    failed += not ok
    print(f"{'ok' if ok else 'WRONG':6} {name} {text}".rstrip(), flush=True)


def note(name, text):
    """Prints what is not judged."""
    print(f"{'':6} {name}: {text}", flush=True)


def operands(m, n, k, dtype=torch.bfloat16, seed=0, device="cuda"):
    generator = torch.Generator(device).manual_seed(seed)
    return tuple((torch.randn(rows, k, generator=generator, device=device) / k**0.25).to(dtype) for rows in (m, n, n))


def expected(a, b1, b2):
    a, b1, b2 = a.double(), b1.double(), b2.double()
    return silu(a @ b1.T) * (a @ b2.T)


def error(result, wanted):
    """The largest error, relative to an element and the root mean square of all."""
    wanted = wanted.double()
    return float(((result.double() - wanted).abs() / (wanted.abs() + wanted.square().mean().sqrt())).max())


def compare(name, result, wanted):
    found = error(result, wanted)
    report(name, found < LIMIT, f"error {found:.1e}")


def refused(name, kind, call):
    try:
        call()
    except kind as problem:
        report(f"refused: {name}", True, f"({problem})")
    else:
        report(f"refused: {name}", False, "was accepted")


class Foreign:
    """A tensor of another library than torch, as far as `dual_gemm` can see: it has DLPack's methods alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **arguments):
        return self.tensor.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def values():
    for m, n, k in [(1, 2048, 4096), (64, 4096, 7168), (300, 200, 1056), (512, 3072, 7168), (4096, 4096, 4096)]:
        for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
            a, b1, b2 = operands(m, n, k, dtype)
            result = silumin.dual_gemm(a, b1, b2)
            usual = torch.bfloat16 if dtype == torch.float8_e4m3fn else dtype
            fits = result.dtype == usual and result.device == a.device and result.shape == (m, n)
            report(f"a new tensor of {result.dtype}", fits)
            compare(f"dual_gemm {m} x {n} x {k} {dtype}", result, expected(a, b1, b2))
            compare(f"gemm {m} x {n} x {k} {dtype}", silumin.gemm(a, b1), a.double() @ b1.double().T)


def arguments():
    a, b1, b2 = operands(256, 1024, 2048)
    wanted = expected(a, b1, b2)
    out = torch.full((256, 1024), float("nan"), device="cuda", dtype=a.dtype)
    report("out is returned", silumin.dual_gemm(a, b1, b2, out=out) is out)
    compare("out is written", out, wanted)
    for dtype in (torch.float32, torch.float16, "bf16"):
        compare(f"out_dtype {dtype}", silumin.dual_gemm(a, b1, b2, out_dtype=dtype), wanted)
    compare("factors in another order", silumin.dual_gemm(a, b1, b2, "(A @ B2) * silu(A @ B1)"), wanted)
    bias, residual = torch.randn(1024, device="cuda"), torch.randn(256, 1024, device="cuda")
    out = residual.clone()
    silumin.gemm(a, b1, "alpha * (A @ B) + bias[n] + r[m, n]", out, scalars={"alpha": 0.5}, vectors={"bias": bias, "r": out})
    compare("a scalar, a vector, and a matrix in place", out, 0.5 * (a.double() @ b1.double().T) + bias + residual)
    linear = torch.nn.Linear(2048, 1024, bias=False, device="cuda", dtype=torch.bfloat16)
    compare("a weight of Linear", silumin.gemm(a, linear.weight), a.double() @ linear.weight.double().T)
    rows = operands(300, 1024, 2048)[0]
    compare("rows of a larger tensor", silumin.dual_gemm(rows[44:], b1, b2), expected(rows[44:], b1, b2))
    out = torch.zeros(256, 1024, device="cuda", dtype=a.dtype)
    silumin.dual_gemm(Foreign(a), Foreign(b1), Foreign(b2), out=Foreign(out))
    compare("tensors by DLPack", out, wanted)
    with torch.inference_mode(False), torch.no_grad():
        weight = torch.nn.Parameter(b1.clone())
        compare("a parameter under no_grad", silumin.dual_gemm(a, weight, b2), wanted)
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        silumin.dual_gemm(a, b1, b2)
        silumin.dual_gemm(Foreign(a), Foreign(b1), Foreign(b2), out=Foreign(out))
    torch.cuda.synchronize()
    report("no memory stays after 400 calls", torch.cuda.memory_allocated() == before)


def tensors_of_cupy():
    try:
        import cupy
    except ImportError:
        note("tensors of CuPy", "not tried, because CuPy is not installed")
        return
    a, b1, b2 = operands(256, 1024, 2048, torch.float16)
    torch.cuda.synchronize()
    given = [cupy.array(cupy.from_dlpack(tensor), copy=True) for tensor in (a, b1, b2)]
    out, stream = cupy.zeros((256, 1024), cupy.float16), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    silumin.dual_gemm(*given, out=out, stream=stream)
    stream.synchronize()
    compare("tensors of CuPy, on a stream of CuPy", torch.from_dlpack(out), expected(a, b1, b2))


def streams():
    a, b1, b2 = operands(256, 1024, 2048)
    wanted, side, late = expected(a, b1, b2), torch.cuda.Stream(), torch.zeros_like(a)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        silumin.dual_gemm(late, b1, b2)
    side.synchronize()
    # A copy that starts late makes `late`, on the side stream alone.
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(a)
        result = silumin.dual_gemm(late, b1, b2)
        report("a call returns before the stream is done", not side.query())
    side.synchronize()
    compare("the current stream orders the launch", result, wanted)
    late.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(a)
    result = silumin.dual_gemm(late, b1, b2, stream=side)
    side.synchronize()
    compare("stream= orders the launch", result, wanted)
    out = torch.zeros(256, 1024, device="cuda", dtype=a.dtype)
    late.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(a)
    silumin.dual_gemm(Foreign(late), Foreign(b1), Foreign(b2), out=Foreign(out), stream=side.cuda_stream)
    side.synchronize()
    compare("stream= orders tensors by DLPack", out, wanted)


def graphs():
    a, b1, b2 = operands(256, 1024, 2048)
    wanted, late = expected(a, b1, b2), torch.zeros_like(a)
    out = torch.zeros(256, 1024, device="cuda", dtype=a.dtype)
    silumin.dual_gemm(late, b1, b2, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        silumin.dual_gemm(late, b1, b2, out=out)
        fresh = silumin.dual_gemm(late, b1, b2)
    late.copy_(a)
    graph.replay()
    compare("a graph replays the launch", out, wanted)
    compare("a graph owns a new result", fresh, wanted)
    # A kernel with a workspace is launched once on the stream that is captured.
    side, split = torch.cuda.Stream(), {"schedule": "split_k(2)"}
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        silumin.dual_gemm(late, b1, b2, out=out, config=split)
    out.zero_()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph(), stream=side):
        silumin.dual_gemm(late, b1, b2, out=out, config=split)
    graph.replay()
    torch.cuda.synchronize()
    compare("a graph replays a kernel with a workspace", out, wanted)


def threads():
    def work(seed):
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            mine = operands(128, 512 + 64 * seed, 1024, seed=seed)
            wanted = expected(*mine)
            return max(error(silumin.dual_gemm(*mine), wanted) for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        worst = max(pool.map(work, range(4)))
    report("four threads", worst < LIMIT, f"error {worst:.1e}")


def errors():
    a, b1, b2 = operands(256, 1024, 2048)
    wrong = silumin.ArgumentError
    refused("a transposed weight", wrong, lambda: silumin.dual_gemm(a, b1.T.contiguous().T, b2))
    refused("another K", wrong, lambda: silumin.dual_gemm(a[:, :1024].contiguous(), b1, b2))
    refused("a tensor on the CPU", wrong, lambda: silumin.dual_gemm(a, b1.cpu(), b2))
    refused("elements of float32", wrong, lambda: silumin.dual_gemm(a.float(), b1, b2))
    refused("an address that TMA does not read", wrong, lambda: silumin.dual_gemm(a.flatten()[1 : 1 + 255 * 2048].view(255, 2048), b1, b2))
    refused("out in a", wrong, lambda: silumin.dual_gemm(a, b1, b2, out=a.flatten()[: 256 * 1024].view(256, 1024)))
    refused("three dimensions", wrong, lambda: silumin.dual_gemm(a.view(2, 128, 2048), b1, b2))
    refused("an unknown gate", silumin.ConfigError, lambda: silumin.dual_gemm(a, b1, b2, "swish"))
    refused("an unknown knob", silumin.ConfigError, lambda: silumin.dual_gemm(a, b1, b2, config={"stagez": 2}))
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.nn.Parameter(torch.zeros(1024, 2048, device="cuda", dtype=a.dtype))
        refused("a gradient", wrong, lambda: silumin.dual_gemm(a, weight, b2))
    compare("a call after errors", silumin.dual_gemm(a, b1, b2), expected(a, b1, b2))


def host_time(call, calls=100, repeats=20):
    """Microseconds that the host takes for a call, while the GPU works beside it."""
    taken = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(taken)


def gpu_time(call, calls=20, repeats=7):
    """Microseconds that the GPU takes for a call, in a graph of several."""
    graph, taken = torch.cuda.CUDAGraph(), []
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / calls * 1e3)
    return statistics.median(taken)


def times():
    a, b1, b2 = operands(16, 256, 256)
    silumin.clear_kernels()
    start = time.perf_counter()
    out = silumin.dual_gemm(a, b1, b2)
    torch.cuda.synchronize()
    note("a first call", f"{(time.perf_counter() - start) * 1e3:.0f} ms with its compilation, or the driver's cache")
    ours = host_time(lambda: silumin.dual_gemm(a, b1, b2, out=out))
    fresh = host_time(lambda: silumin.dual_gemm(a, b1, b2))
    theirs = host_time(lambda: silu(a @ b1.T) * (a @ b2.T))
    text = f"{ours:.1f} us of the host, {fresh:.1f} with a new result; four operations of torch {theirs:.1f}"
    note("a call of 16 x 256 x 256", text)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        for m in (1, 64, 512, 4096):
            a, b1, b2 = operands(m, 14336, 4096, dtype)
            out = torch.empty(m, 14336, device="cuda", dtype=torch.bfloat16)
            ours = gpu_time(lambda: silumin.dual_gemm(a, b1, b2, out=out))
            if dtype == torch.bfloat16:
                theirs = gpu_time(lambda: silu(a @ b1.T) * (a @ b2.T))
            elif m % 16 == 0:
                one = torch.ones((), device="cuda")
                product = lambda b: torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16)  # noqa: E731
                theirs = gpu_time(lambda: silu(product(b1)) * product(b2))
            else:
                theirs = None
            rate = 4 * m * 14336 * 4096 / ours * 1e-6
            beside = f"torch {theirs:.1f} us, torch / silumin {theirs / ours:.2f}" if theirs else "torch has no FP8 product with fewer than 16 rows"
            note(f"{m} x 14336 x 4096 {dtype}", f"{ours:.1f} us, {rate:.0f} TFLOP/s; {beside}")


@torch.inference_mode()
def main():
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "silumin", silumin.__version__)
    for check in (values, arguments, tensors_of_cupy, streams, graphs, threads, errors, times):
        try:
            check()
        except Exception:
            traceback.print_exc(file=sys.stdout)
            report(check.__name__, False, "ended early")
    print(f"{failed} failed")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("torch has no GPU here")
    main()
    sys.exit(failed > 0)
