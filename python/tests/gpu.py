"""Multiplies tensors of torch on this machine's GPU, and compares with torch: values, streams, graphs, threads, and time per call.

    python tests/gpu.py      # prints a line for each check; exit status 1 if one fails

It takes a GPU with kernels (Hopper or Blackwell), torch, numpy and the wheel.
"""

import sys
import threading
import time

import numpy as np
import torch

import silumin

failed = 0


def report(name, ok, text=""):
    global failed
    failed += not ok
    print(f"{'ok' if ok else 'WRONG':6} {name} {text}", flush=True)


def operands(m, n, k, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    make = lambda rows: torch.randn(rows, k, generator=generator, device="cuda") / k**0.25
    return tuple(make(rows).to(dtype) for rows in (m, n, n))


def expected(a, b1, b2):
    a, b1, b2 = a.double(), b1.double(), b2.double()
    return torch.nn.functional.silu(a @ b1.T) * (a @ b2.T)


def error(result, wanted):
    return float((result.double() - wanted).abs().max() / wanted.abs().max())


class Foreign:
    """A tensor of another library than torch, as far as `dual_gemm` can see: it has DLPack's methods alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **arguments):
        return self.tensor.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def refused(name, kind, call):
    try:
        call()
    except kind as problem:
        report(name, True, f"({problem})")
    else:
        report(name, False, "was accepted")


@torch.inference_mode()
def main():
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for m, n, k in [(1, 2048, 4096), (64, 4096, 7168), (300, 200, 1056), (512, 3072, 7168), (4096, 4096, 4096)]:
        for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
            a, b1, b2 = operands(m, n, k, dtype)
            found = error(silumin.dual_gemm(a, b1, b2), expected(a, b1, b2))
            report(f"dual_gemm {m} x {n} x {k} {dtype}", found < 0.01, f"error {found:.1e}")
    a, b1, b2 = operands(256, 1024, 2048)
    wanted = expected(a, b1, b2)
    found = error(silumin.gemm(a, b1), a.double() @ b1.double().T)
    report("gemm", found < 0.01, f"error {found:.1e}")
    out = torch.full((256, 1024), float("nan"), device="cuda", dtype=a.dtype)
    same = silumin.dual_gemm(a, b1, b2, out=out)
    report("out is returned and written", same is out and error(out, wanted) < 0.01)
    out.fill_(0)
    silumin.dual_gemm(Foreign(a), Foreign(b1), Foreign(b2), out=Foreign(out))
    torch.cuda.synchronize()
    report("tensors by DLPack", error(out, wanted) < 0.01)

    # On the current stream: a is written by a kernel that takes a while, on that stream alone.
    side, late = torch.cuda.Stream(), torch.zeros_like(a)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(a)
        result = silumin.dual_gemm(late, b1, b2)
    side.synchronize()
    report("a side stream orders the launch", error(result, wanted) < 0.01)
    late.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late.copy_(a)
    result = silumin.dual_gemm(late, b1, b2, stream=side)
    side.synchronize()
    report("stream= orders the launch", error(result, wanted) < 0.01)

    graph = torch.cuda.CUDAGraph()
    out = torch.empty_like(out)
    late.zero_()
    with torch.cuda.graph(graph):
        silumin.dual_gemm(late, b1, b2, out=out)
    late.copy_(a)
    graph.replay()
    torch.cuda.synchronize()
    report("a graph replays the launch", error(out, wanted) < 0.01)

    faults = []
    def work(seed):
        try:
            mine = operands(128, 512 + 64 * seed, 1024, seed=seed)
            for _ in range(20):
                if error(silumin.dual_gemm(*mine), expected(*mine)) >= 0.01:
                    faults.append(seed)
        except Exception as problem:  # A thread's error is the check's.
            faults.append(problem)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    report("four threads", not faults, str(faults[:1] or ""))

    refused("a transposed weight", silumin.ArgumentError, lambda: silumin.dual_gemm(a, b1.T.contiguous().T, b2))
    refused("another K", silumin.ArgumentError, lambda: silumin.dual_gemm(a[:, :1024].contiguous(), b1, b2))
    refused("a tensor on the CPU", silumin.ArgumentError, lambda: silumin.dual_gemm(a, b1.cpu(), b2))

    # Time of a call in the host, and of the kernel beside torch.
    a, b1, b2 = operands(16, 256, 256)
    out = torch.empty(16, 256, device="cuda", dtype=a.dtype)
    def per_call(call, times=2000):
        for _ in range(100):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / times * 1e6
    ours = per_call(lambda: silumin.dual_gemm(a, b1, b2, out=out))
    theirs = per_call(lambda: torch.nn.functional.silu(a @ b1.T) * (a @ b2.T))
    report("a small call", ours < 200, f"{ours:.1f} us with its host time; four operations of torch {theirs:.1f} us")
    for m in (64, 512, 4096):
        a, b1, b2 = operands(m, 14336, 4096)
        out = torch.empty(m, 14336, device="cuda", dtype=a.dtype)
        ours = per_call(lambda: silumin.dual_gemm(a, b1, b2, out=out), 100)
        theirs = per_call(lambda: torch.nn.functional.silu(a @ b1.T) * (a @ b2.T), 100)
        report(f"{m} x 14336 x 4096 bf16", True, f"{ours:.1f} us, torch {theirs:.1f} us, {ours / theirs:.2f}")
    print(f"{failed} failed")


main()
sys.exit(failed > 0)
