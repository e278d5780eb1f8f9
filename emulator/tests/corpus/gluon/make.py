"""Compiles the kernels of this folder with Triton's Gluon, and writes VERSION/NAME.sm100.ptx and .toml.

Needs the Python package triton of one of the versions that README.md lists, and no GPU:

    python make.py [NAME...]
"""

import os
import re
import sys
from pathlib import Path

os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

import kernels

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from launch import Buffer, launch_file, out, pointer, strip, tensor_map

VERSION = ".".join(triton.__version__.split(".")[:2])
SIZES = {"fp16": (2, gl.float16), "fp32": (4, gl.float32), "u8": (1, gl.uint8), "fp8e4nv": (1, gl.float8e4nv)}
TYPES = {"fp16": "f16", "fp32": "f32", "u8": "u8", "fp8e4nv": "u8"}
SWIZZLES = {0: "none", 32: "32b", 64: "64b", 128: "128b"}


class Desc:
    """A tensor descriptor: element type, shape and block, outermost first, and how CTAs share the block."""

    def __init__(self, ty, shape, block, cga=(), written=False):
        self.ty, self.shape, self.block, self.written = ty, shape, block, written
        cga = [list(b) for b in cga]
        # Scale factors, of rank 5, are copied to tensor memory as they lie.
        flat = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=5, cga_layout=cga) if len(block) == 5 else None
        self.layout = flat or gl.NVMMASharedLayout.get_default_for(block, SIZES[ty][1], cga_layout=cga)

    @property
    def size(self):
        size = SIZES[self.ty][0]
        for s in self.shape:
            size *= s
        return size

    def parameters(self, name, box):
        """The map, then shape and strides."""
        strides, step = [], 1
        for s in reversed(self.shape):
            strides.append(step)
            step *= s
        size = SIZES[self.ty][0]
        text = tensor_map(name, TYPES[self.ty], self.shape[::-1], box[::-1], strides=[s * size for s in strides[1:]], swizzle=SWIZZLES[self.layout.swizzle_byte_width])
        return [text] + [f"i32 = {s}" for s in self.shape] + [f"i64 = {s}" for s in strides[::-1]]


def product(fn, m, n, k, block, cga=(), stages=0, free=1, multicast=False, grid=None, versions=("3.6", "3.7", "3.8", "3.9"), **constants):
    """C = A B^T. `cga`: bits of a CTA's rank, by rows of C; the first is the pair."""
    bm, bn, bk = block
    # The pair shares the rows of both operands; what is above shares A's, and takes B's whole.
    cga_b = [(1, 0)] + [(0, 0)] * (len(cga) - 1) if cga else ()
    args = dict(a=Desc("fp16", [m, k], [bm, bk], cga), b=Desc("fp16", [n, k], [bn, bk], cga_b), c=Desc("fp16", [m, n], [bm, bn], cga, True), K=k, BM=bm, BN=bn, BK=bk,
                CGA=tuple(tuple(b) for b in cga))
    if stages:
        ctas = 1 << len(cga)
        size = (bm // ctas + bn // min(ctas, 2)) * bk * 2
        args |= dict(STAGES=stages, BYTES=size)
    if fn is kernels.partitions:
        args |= dict(FREE=free, MULTICAST=multicast)
    return dict(fn=fn, grid=grid or (m // bm, n // bn), args=args | constants, ctas=1 << len(cga), versions=versions)


def scaled(m, n, k, block, fmt, size, scale, cga=(), versions=("3.6", "3.7", "3.8", "3.9")):
    """C = A B^T with block scales in the order that tcgen05.cp takes."""
    bm, bn, bk = block
    pack = 2 if fmt == "e2m1" else 1
    ty = "u8" if fmt == "e2m1" else "fp8e4nv"
    count = bk // size
    five = lambda rows: [1, rows // 128, k // size // 4, 2, 256]
    piece = lambda rows: [1, rows // 128, count // 4, 2, 256]
    halves = [(0, 1, 0, 0, 0)] if cga else ()
    whole = [(0, 0, 0, 0, 0)] if cga else ()
    cga_b = [(1, 0)] if cga else ()
    ctas = 1 << len(cga)
    size_b = count * bn
    args = dict(a=Desc(ty, [m, k // pack], [bm, bk // pack], cga), sa=Desc(scale, five(m), piece(bm), halves), b=Desc(ty, [n, k // pack], [bn, bk // pack], cga_b),
                sb=Desc(scale, five(n), piece(bn), whole), c=Desc("fp32", [m, n], [bm, bn], cga, True), K=k, BM=bm, BN=bn, BK=bk, CGA=tuple(tuple(b) for b in cga),
                FORMAT=fmt, BLOCK=size, BYTES=(bm + bn) * bk // pack // ctas + count * bm // ctas + size_b, PAIR=bool(cga))
    names = dict(sa="sfa", sb="sfb")
    return dict(fn=kernels.scaled, grid=(m // bm, n // bn), args=args, names=names, ctas=ctas, versions=versions)


class Pointer:
    """A buffer of f32."""

    def __init__(self, count, written=False):
        self.size, self.written = count * 4, written


SINCE_37, SINCE_38 = ("3.7", "3.8", "3.9"), ("3.8", "3.9")
CASES = {
    "one": product(kernels.one, 256, 128, 256, (128, 128, 64)),
    "partitions": product(kernels.partitions, 256, 128, 320, (128, 128, 64), stages=3),
    "pair": product(kernels.partitions, 512, 128, 320, (256, 128, 64), cga=[(1, 0)], stages=3, versions=SINCE_37),
    "pairs_multicast": product(kernels.partitions, 512, 128, 320, (512, 128, 64), cga=[(1, 0), (2, 0)], stages=3, free=2, multicast=True, versions=SINCE_37),
    "pair_alike": product(kernels.pair_alike, 512, 128, 256, (256, 128, 64), cga=[(1, 0)], versions=SINCE_37, BYTES=(128 + 64) * 64 * 2),
    "stream": product(kernels.stream, 384, 256, 128, (128, 128, 64), grid=(2,), stages=3, N=256, TILES=6),
    "stream_pair": product(kernels.stream, 768, 256, 128, (256, 128, 64), cga=[(1, 0)], grid=(2,), stages=3, N=256, TILES=6, versions=SINCE_38),
    "tensor_memory_a": product(kernels.tensor_memory_a, 256, 128, 128, (128, 128, 64)),
    "stolen": product(kernels.stolen, 384, 256, 128, (128, 128, 64), grid=(6,), N=256, versions=SINCE_38),
    "nvfp4": scaled(256, 128, 512, (128, 128, 256), "e2m1", 16, "fp8e4nv"),
    "mxfp8": scaled(128, 256, 256, (128, 128, 128), "e4m3", 32, "u8"),
    "nvfp4_pair": scaled(512, 128, 512, (256, 128, 256), "e2m1", 16, "fp8e4nv", cga=[(1, 0)], versions=SINCE_38),
    "softmax": dict(fn=kernels.softmax, grid=(3,), ctas=4, versions=SINCE_38, args=dict(x=Pointer(3 * 2048), y=Pointer(3 * 2048, True), COLUMNS=2048,
                    LAYOUT=gl.BlockedLayout([4], [32], [4], [0], cga_layout=[[1], [2]]))),
}


def build(name):
    case = CASES[name]
    types, constants = {}, {}
    names = case.get("names", {})
    for key, v in case["args"].items():
        key = names.get(key, key)
        if isinstance(v, Pointer):
            types[key] = "*fp32"
        elif isinstance(v, Desc):
            types[key] = f"tensordesc<{v.ty}[{','.join(map(str, v.block))}],{v.layout!r}>"
        elif key.isupper():
            types[key], constants[key] = "constexpr", v
        else:
            types[key] = "i32"
    source = GluonASTSource(case["fn"], types, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 100, 32), options=dict(num_warps=case.get("warps", 4), num_ctas=case["ctas"]))
    text, meta = strip(compiled.asm["ptx"]), compiled.metadata
    entry = re.search(r"\.entry (\w+)", text)[1]
    grid = list(case["grid"]) + [1] * (3 - len(case["grid"]))
    ctas = meta.num_ctas
    buffers, params, metas = {}, [], iter(meta.tensordesc_meta or [])
    for key, v in case["args"].items():
        if isinstance(v, Desc):
            buffers[key] = out(v.size) if v.written else Buffer(v.size)
            params += v.parameters(key, list(next(metas)["block_size"]))
        elif isinstance(v, Pointer):
            buffers[key] = out(v.size) if v.written else Buffer(v.size)
            params.append(pointer(key))
        elif key not in constants:
            params.append(f"i32 = {v}")
    for kind, size in (("scratch", meta.global_scratch_size), ("profile", meta.profile_scratch_size)):
        if size:
            buffers[kind] = out(size * grid[0] * grid[1] * grid[2] * ctas)
        params.append(pointer(kind) if size else "null = true")
    folder = HERE / VERSION
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.sm100.ptx").write_text(text)
    launch = launch_file(f"{name}.sm100.ptx", entry, (grid[0] * ctas, *grid[1:]), (32 * meta.num_warps,), buffers, params, cluster=(ctas, 1, 1), smem=meta.shared)
    (folder / f"{name}.sm100.toml").write_text(launch)
    print(f"{VERSION}/{name}: {len(text)} bytes", flush=True)


if __name__ == "__main__":
    failed = []
    for name in sys.argv[1:] or CASES:
        if VERSION not in CASES[name]["versions"]:
            continue
        try:
            build(name)
        except Exception as e:
            failed.append(name)
            print(f"FAILED {name}: {type(e).__name__}: {str(e).strip()[-600:]}", flush=True)
    sys.exit(bool(failed))
