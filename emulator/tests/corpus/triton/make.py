"""Compiles the kernels of this folder with Triton, and writes NAME.smXX.ptx and NAME.smXX.toml.

Needs Python packages triton (3.9.0 made the stored files) and no GPU:

    python make.py [NAME...]

An earlier version compiles what EARLIER names, for sm_100a, into a folder with its number.

Every case of CASES becomes one kernel for each of its targets, and a launch file. Buffers of the
launch files hold a constant, so that they run alone; the tests fill them with numbers.
"""

import os
import re
import sys
from pathlib import Path

os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import elementwise
import matmul
import reductions

HERE = Path(__file__).parent
BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8e4nv": 1, "fp8e5": 1, "i8": 1, "u8": 1, "i16": 2, "i32": 4, "i64": 8}
TMA_TYPES = {"fp64": "f64", "fp32": "f32", "fp16": "f16", "bf16": "bf16", "i32": "i32"}
SWIZZLES = ["none", "32b", "64b", "128b"]
# Index in the IR's element types to the driver's names.
FLAGS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}
VERSION = ".".join(triton.__version__.split(".")[:2])
LATEST = "3.9"
# What earlier versions compile.
EARLIER = {
    "3.6": "mm_f16 tma_f16 tma_e4m3 tma_transposed tma_device tma_reduce persistent tma_bn256 mxfp4_tma row_gather softmax "
           "mm_tf32 mxfp8 nvfp4 mxfp8_tma nvfp4_tma attention attention_128".split(),
    "3.7": "tma_f16 tma_transposed persistent persistent_ws mxfp8_tma nvfp4_tma row_gather softmax".split(),
    "3.8": "mm_s8 tma_f16 tma_e4m3 tma_device persistent persistent_ws nvfp4 mxfp4_tma nvfp4_tma row_gather".split(),
}


class Buffer:
    """A pointer argument: element type, count, initial byte (None: nothing has been written)."""

    def __init__(self, ty, count, fill=0x3C, aligned=True):
        self.ty, self.count, self.fill, self.aligned = ty, count, fill, aligned


class Desc(Buffer):
    """A tensor descriptor over a buffer: its shape and block, outermost first."""

    def __init__(self, ty, shape, block, fill=0x3C):
        count = 1
        for s in shape:
            count *= s
        super().__init__(ty, count, fill)
        self.shape, self.block = shape, block


def out(ty, count):
    return Buffer(ty, count, None)


def case(name, fn, grid, args, targets=(90, 100), **options):
    return dict(name=name, fn=fn, grid=grid, args=args, targets=targets, options=options)


def mm(name, ty, m, n, k, block, trans_b=False, precision="tf32", acc=None, outty="fp32", **options):
    """A product with pointers."""
    bm, bn, bk = block
    return case(
        name, matmul.pointers, (-(-m // bm), -(-n // bn)),
        dict(a=Buffer(ty, m * k), b=Buffer(ty, k * n), c=out(outty, m * n), M=m, N=n, K=k, BM=bm, BN=bn, BK=bk,
             TRANS_B=trans_b, PRECISION=precision, ACC=acc or triton.language.float32), **options)


def tma(name, fn, ty, m, n, k, block, grid=None, outty=None, extra=None, fill=None, **options):
    """A product A B^T with tensor descriptors of the host."""
    bm, bn, bk = block
    outty = outty or ty
    return case(
        name, fn, grid or (-(-m // bm), -(-n // bn)),
        dict(a=Desc(ty, [m, k], [bm, bk]), b=Desc(ty, [n, k], [bn, bk]), c=Desc(outty, [m, n], [bm, bn], fill), M=m, N=n, K=k,
             BM=bm, BN=bn, BK=bk, **(extra or {})), **options)


def scaled(name, fa, fb, block, scale, m=128, n=128, k=256, tile=(128, 128, 128), **options):
    """A product with block scales by pointers."""
    pack = lambda f: 2 if f == "e2m1" else 1
    ty = lambda f: {"e2m1": "u8", "e4m3": "fp8e4nv", "e5m2": "fp8e5"}[f]
    return case(
        name, matmul.scaled, (m // tile[0], n // tile[1]),
        dict(a=Buffer(ty(fa), m * k // pack(fa)), sa=Buffer(scale, m * k // block), b=Buffer(ty(fb), n * k // pack(fb)),
             sb=Buffer(scale, n * k // block), c=out("fp32", m * n), M=m, N=n, K=k, BM=tile[0], BN=tile[1], BK=tile[2],
             FORMAT_A=fa, FORMAT_B=fb, BLOCK=block), **options)


def blocked(name, fmt, ty, block, scale, m=128, n=128, k=512, tile=(128, 128, 256), **options):
    """A product with block scales by tensor descriptors."""
    pack = 2 if fmt == "e2m1" else 1
    bm, bn, bk = tile
    kb = bk // block // 4
    return case(
        name, matmul.blocked_scales, (m // bm, n // bn),
        dict(a=Desc(ty, [m, k // pack], [bm, bk // pack]), sa=Desc(scale, [1, m // 128, k // block // 4, 2, 256], [1, bm // 128, kb, 2, 256]),
             b=Desc(ty, [n, k // pack], [bn, bk // pack]), sb=Desc(scale, [1, n // 128, k // block // 4, 2, 256], [1, bn // 128, kb, 2, 256]),
             c=Desc("fp32", [m, n], [bm, bn], None), M=m, N=n, K=k, BM=bm, BN=bn, BK=bk, FORMAT=fmt, BLOCK=block), targets=(100,), **options)


CASES = [
    case("add", elementwise.add, (4,), dict(x=Buffer("fp32", 1000), y=Buffer("fp32", 1000), out=out("fp32", 1000), n=1000, BLOCK=256)),
    case("add_bf16", elementwise.add, (2,), dict(x=Buffer("bf16", 2048), y=Buffer("bf16", 2048), out=out("bf16", 2048), n=2048, BLOCK=1024)),
    case("gelu", elementwise.gelu, (2,), dict(x=Buffer("fp16", 1000), out_erf=out("fp32", 1000), out_tanh=out("fp16", 1000), n=1000, BLOCK=512)),
    case("functions", elementwise.functions, (1,), dict(x=Buffer("fp32", 128), out=out("fp32", 24 * 128), n=128, BLOCK=128), targets=(100,)),
    case("doubles", elementwise.doubles, (1,), dict(x=Buffer("fp64", 128), out=out("fp64", 8 * 128), n=128, BLOCK=128), targets=(90,)),
    case("integers", elementwise.integers, (1,), dict(x=Buffer("i32", 256), y=Buffer("i32", 256), out=out("i32", 24 * 256), n=256, BLOCK=256)),
    case("conversions", elementwise.conversions, (1,), dict(x=Buffer("fp32", 512), out=out("fp32", 16 * 512), n=512, BLOCK=512)),
    case("halves", elementwise.halves, (2,), dict(x=Buffer("fp16", 2048), y=Buffer("fp16", 2048), out=out("fp16", 2048), n=2048, BLOCK=1024)),
    case("bfloats", elementwise.halves, (2,), dict(x=Buffer("bf16", 2048), y=Buffer("bf16", 2048), out=out("bf16", 2048), n=2048, BLOCK=1024)),
    case("gather", elementwise.gather, (3,), dict(index=Buffer("i32", 600), source=Buffer("fp32", 4096), out=out("fp32", 600), scattered=Buffer("fp32", 2048, 0), n=600, stride=4, BLOCK=256)),
    case("collatz", elementwise.collatz, (2,), dict(x=Buffer("i32", 512, 0), out=out("i32", 512), n=512, BLOCK=256), targets=(100,)),
    case("dropout", elementwise.dropout, (2,), dict(x=Buffer("fp32", 1024), out=out("fp32", 1024), n=1024, seed=77, BLOCK=512), targets=(100,)),
    case("calls", elementwise.calls, (16,), dict(x=Buffer("i32", 16), out=out("i32", 16), count=9)),
    case("softmax", reductions.softmax, (4,), dict(x=Buffer("fp32", 4 * 781), out=out("fp32", 4 * 781), columns=781, BLOCK=1024)),
    case("layernorm", reductions.layernorm, (4,), dict(x=Buffer("fp16", 4 * 1500), weight=Buffer("fp32", 1500), bias=Buffer("fp32", 1500), out=out("fp16", 4 * 1500), mean=out("fp32", 4), columns=1500, eps=1e-5, BLOCK=512)),
    case("argmax", reductions.argmax, (1,), dict(x=Buffer("fp32", 32 * 128), values=out("fp32", 32), indices=out("i32", 32), low=out("i32", 128), ROWS=32, COLUMNS=128)),
    case("scans", reductions.scans, (1,), dict(x=Buffer("fp32", 16 * 128), sums=out("fp32", 16 * 128), recurrence=out("fp32", 16 * 128), backwards=out("fp32", 16 * 128), ROWS=16, COLUMNS=128)),
    case("sort", reductions.sort, (1,), dict(x=Buffer("fp32", 4 * 64), up=out("fp32", 4 * 64), down=out("fp32", 4 * 64), ROWS=4, COLUMNS=64), targets=(100,)),
    case("histogram", reductions.histogram, (3,), dict(x=Buffer("i32", 1400, 0), out=Buffer("i32", 64, 0), n=1400, BLOCK=512, BINS=64)),
    case("atomics", reductions.atomics, (4,), dict(x=Buffer("i32", 512, 1), bins=Buffer("i32", 16, 0), sums=Buffer("fp32", 16, 0), halves=Buffer("fp16", 32, 0), extremes=Buffer("i32", 2, 0), masks=Buffer("i32", 16 + 512, 0), old=out("i32", 512), BLOCK=128)),
    case("lock", reductions.lock, (4,), dict(x=Buffer("fp32", 1024), out=Buffer("fp32", 256, 0), mutex=Buffer("i32", 1, 0), BLOCK=256)),
    case("shapes", reductions.shapes, (1,), dict(x=Buffer("fp32", 32 * 64), transposed=out("fp32", 32 * 64), joined=out("fp32", 64 * 64), picked=out("fp32", 32 * 64), ROWS=32, COLUMNS=64)),
    # Products.
    mm("mm_f16", "fp16", 200, 136, 96, (128, 64, 32)),
    mm("mm_bf16", "bf16", 128, 128, 128, (64, 128, 64), outty="bf16"),
    mm("mm_f16_small", "fp16", 32, 32, 64, (16, 16, 32), num_warps=1),
    mm("mm_tf32", "fp32", 128, 64, 64, (64, 64, 32)),
    mm("mm_ieee", "fp32", 32, 32, 32, (32, 32, 16), precision="ieee", targets=(90,)),
    mm("mm_tf32x3", "fp32", 64, 64, 32, (64, 64, 32), precision="tf32x3", targets=(100,)),
    mm("mm_e4m3", "fp8e4nv", 128, 128, 256, (128, 128, 128), trans_b=True, targets=(90,)),
    mm("mm_e5m2", "fp8e5", 128, 64, 128, (128, 64, 64), trans_b=True),
    mm("mm_e4m3_small", "fp8e4nv", 32, 32, 64, (32, 32, 64), trans_b=True, num_warps=2),
    mm("mm_s8", "i8", 128, 128, 128, (64, 64, 64), trans_b=True, acc=triton.language.int32, outty="i32"),
    mm("mm_f16_f16", "fp16", 128, 64, 64, (64, 64, 64), acc=triton.language.float16, outty="fp16"),
    mm("mm_f64", "fp64", 32, 32, 32, (32, 32, 16), acc=triton.language.float64, outty="fp64", targets=(90,)),
    mm("mm_8warps", "fp16", 256, 128, 64, (256, 128, 64), num_warps=8, targets=(90,)),
    tma("tma_f16", matmul.descriptors, "fp16", 256, 128, 256, (128, 128, 64)),
    tma("tma_edge", matmul.descriptors, "bf16", 200, 72, 104, (128, 64, 32), outty="fp32"),
    tma("tma_e4m3", matmul.descriptors, "fp8e4nv", 128, 128, 256, (128, 128, 128), outty="fp16"),
    tma("tma_f32", matmul.descriptors, "fp32", 128, 64, 64, (128, 64, 32)),
    case("tma_transposed", matmul.transposed, (2, 2), dict(a=Desc("fp16", [128, 256], [64, 128]), b=Desc("fp16", [128, 128], [64, 64]), c=Desc("fp16", [256, 128], [128, 64], None), M=256, N=128, K=128, BM=128, BN=64, BK=64)),
    case("tma_transposed_f32", matmul.transposed, (1, 1), dict(a=Desc("fp32", [64, 128], [32, 128]), b=Desc("fp32", [64, 64], [32, 64]), c=Desc("fp32", [128, 64], [128, 64], None), M=128, N=64, K=64, BM=128, BN=64, BK=32)),
    case("tma_device", matmul.device_descriptors, (2, 2), dict(a=Buffer("fp16", 256 * 128), b=Buffer("fp16", 128 * 128), c=out("fp16", 256 * 128), M=256, N=128, K=128, BM=128, BN=64, BK=64)),
    tma("tma_reduce", matmul.reduce_add, "fp16", 128, 64, 128, (64, 64, 64), grid=(2, 1, 2), outty="fp32", fill=0),
    tma("persistent", matmul.persistent, "fp16", 256, 256, 128, (128, 128, 64), grid=(3,), extra=dict(PROGRAMS=3, WARP_SPECIALIZE=False, FLATTEN=True), targets=(100,)),
    tma("persistent_ws", matmul.persistent, "fp16", 256, 256, 192, (128, 128, 64), grid=(3,), extra=dict(PROGRAMS=3, WARP_SPECIALIZE=True, FLATTEN=False), targets=(100,)),
    tma("persistent_cluster", matmul.persistent, "fp16", 512, 256, 192, (256, 128, 64), grid=(2,), extra=dict(PROGRAMS=2, WARP_SPECIALIZE=True, FLATTEN=False), targets=(100,), num_ctas=2),
    tma("specialised", matmul.specialised, "fp16", 128, 128, 320, (128, 128, 64), targets=(100,)),
    tma("specialised_64", matmul.specialised, "fp16", 128, 128, 320, (64, 128, 64), targets=(90,)),
    tma("tma_cluster", matmul.descriptors, "fp16", 256, 256, 128, (256, 128, 64), num_ctas=2),
    tma("tma_bn256", matmul.descriptors, "fp16", 128, 256, 128, (128, 256, 64), num_warps=8, targets=(100,)),
    scaled("mxfp8", "e4m3", "e4m3", 32, "u8", targets=(100,)),
    scaled("mxfp8_upcast", "e4m3", "e5m2", 32, "u8", m=64, n=32, k=128, tile=(64, 32, 64), targets=(90,)),
    scaled("mxfp4", "e2m1", "e2m1", 32, "u8", targets=(100,)),
    scaled("mxfp4_upcast", "e2m1", "e2m1", 32, "u8", m=64, n=32, k=128, tile=(64, 32, 64), targets=(90,)),
    scaled("nvfp4", "e2m1", "e2m1", 16, "fp8e4nv", targets=(100,)),
    scaled("mxfp8_fp4", "e4m3", "e2m1", 32, "u8", targets=(100,)),
    blocked("mxfp8_tma", "e4m3", "fp8e4nv", 32, "u8", tile=(128, 128, 128)),
    blocked("mxfp4_tma", "e2m1", "u8", 32, "u8"),
    blocked("nvfp4_tma", "e2m1", "u8", 16, "fp8e4nv", m=256, tile=(128, 128, 256)),
    case("attention", matmul.attention, (2,), dict(q=Buffer("fp16", 128 * 64), k=Buffer("fp16", 128 * 64), v=Buffer("fp16", 128 * 64), out=out("fp16", 128 * 64), scale=0.18, L=128, BM=64, BN=32, HEAD=64, WARP_SPECIALIZE=False)),
    case("attention_128", matmul.attention, (1,), dict(q=Buffer("bf16", 128 * 64), k=Buffer("bf16", 256 * 64), v=Buffer("bf16", 256 * 64), out=out("bf16", 128 * 64), scale=0.18, L=256, BM=128, BN=64, HEAD=64, WARP_SPECIALIZE=True), targets=(100,)),
    case("row_gather", matmul.row_gather, (1,), dict(a=Buffer("fp16", 64 * 64), index=Buffer("i32", 16, 0), out=Buffer("fp16", 64 * 64, 0), COLUMNS=64, ROWS=16, TOTAL=64), targets=(100,)),
]


def signature(args):
    """Types, constants and alignment hints of a case's arguments."""
    types, constants, attributes = {}, {}, {}
    for at, (name, v) in enumerate(args.items()):
        if isinstance(v, Desc):
            types[name] = f"tensordesc<{v.ty}[{','.join(map(str, v.block))}]>"
        elif isinstance(v, Buffer):
            types[name] = f"*{v.ty}"
            attributes[(at,)] = [["tt.divisibility", 16]]
        elif name.isupper() and not (len(name) == 1 and isinstance(v, int)):
            types[name] = "constexpr"
            constants[name] = v
        elif isinstance(v, float):
            types[name] = "fp32"
        else:
            types[name] = "i64" if name == "stride" else "i32"
            if v % 16 == 0:
                attributes[(at,)] = [["tt.divisibility", 16]]
    return types, constants, attributes


def tensor_map(name, d, meta):
    """The tensor map that Triton's launcher makes."""
    block = list(meta["block_size"])
    if d.ty in ("fp8e4nv", "fp8e5", "u8", "i8"):
        ty = "16u4_align16b" if meta["fp4_padded"] else "u8"
    else:
        ty = TMA_TYPES[d.ty]
    shape = list(d.shape)
    if meta["fp4_padded"]:
        shape[-1] *= 2
    strides, step = [], BYTES[d.ty]
    for s in reversed(d.shape[1:]):
        step *= s
        strides.append(step)
    return (f'tensor_map = {{ buffer = "{name}", data_type = "{ty}", dims = {shape[::-1]}, strides = {strides}, '
            f'box = {block[::-1]}, element_strides = {[1] * len(shape)}, interleave = "none", '
            f'swizzle = "{SWIZZLES[meta["swizzle"]]}", l2_promotion = "128b", oob_fill = "none" }}')


def launch_file(c, arch, entry, meta):
    """The launch file of a compiled case."""
    grid = list(c["grid"]) + [1] * (3 - len(c["grid"]))
    ctas = meta.num_ctas
    lines = [f'ptx = "{c["name"]}.sm{arch}.ptx"', f'kernel = "{entry}"', f"grid = [{grid[0] * ctas}, {grid[1]}, {grid[2]}]",
             f"block = [{32 * meta.num_warps}, 1, 1]", f"cluster = [{ctas}, 1, 1]", f"dynamic_smem = {meta.shared}"]
    params, descs = [], iter(meta.tensordesc_meta or [])
    for name, v in c["args"].items():
        if isinstance(v, Buffer):
            lines += [f"[buffers.{name}]", f"bytes = {v.count * BYTES[v.ty]}"]
            if v.fill is not None:
                lines.append(f"fill = {v.fill}")
        if isinstance(v, Desc):
            params.append(tensor_map(name, v, next(descs)))
            strides, step = [], 1
            for s in reversed(v.shape):
                strides.append(step)
                step *= s
            params += [f"i32 = {s}" for s in v.shape] + [f"i64 = {s}" for s in reversed(strides)]
        elif isinstance(v, Buffer):
            params.append(f'pointer = "{name}"')
        elif name in signature(c["args"])[1]:
            continue
        elif isinstance(v, float):
            params.append(f"f32 = {v}")
        else:
            params.append(f"{'i64' if name == 'stride' else 'i32'} = {v}")
    for kind, size in (("scratch", meta.global_scratch_size), ("profile", meta.profile_scratch_size)):
        if size:
            lines += [f"[buffers.{kind}]", f"bytes = {size * grid[0] * grid[1] * grid[2] * ctas}"]
            params.append(f'pointer = "{kind}"')
        else:
            params.append("null = true")
    for p in params:
        lines += ["[[params]]", p]
    return "\n".join(lines) + "\n"


def build(c, arch):
    types, constants, attributes = signature(c["args"])
    source = ASTSource(c["fn"], signature=types, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=c["options"])
    text = re.sub(r"^\s*//.*\n", "", compiled.asm["ptx"], flags=re.M)
    text = re.sub(r"[ \t]*// .*$", "", text, flags=re.M)
    text = re.sub(r"\n\s*\n+", "\n", text)
    entry = re.search(r"\.entry (\w+)", text)[1]
    stem = f"{c['name']}.sm{arch}"
    folder = HERE if VERSION == LATEST else HERE / VERSION
    folder.mkdir(exist_ok=True)
    (folder / f"{stem}.ptx").write_text(text)
    (folder / f"{stem}.toml").write_text(launch_file(c, arch, entry, compiled.metadata))
    return len(text)


def main():
    wanted = sys.argv[1:]
    total, failed = 0, []
    for c in CASES:
        if wanted and c["name"] not in wanted or VERSION != LATEST and c["name"] not in EARLIER[VERSION]:
            continue
        for arch in c["targets"] if VERSION == LATEST else (100,):
            try:
                size = build(c, arch)
                total += size
                print(f"{c['name']}.sm{arch}: {size} bytes", flush=True)
            except Exception as e:
                failed.append(f"{c['name']}.sm{arch}: {type(e).__name__}: {str(e).strip()[-400:]}")
                print("FAILED", failed[-1], flush=True)
    print(f"{total} bytes in all, {len(failed)} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
