"""Compiles the kernels of this folder with TileLang and nvcc, and writes NAME.smXX.ptx and NAME.smXX.toml.

Needs the Python packages that README.md lists, and no GPU:

    python make.py [NAME...]

TileLang makes CUDA C++, which nvcc compiles against TileLang's headers. How a kernel is launched is read
from the host code that TileLang makes beside it.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tilelang
from tilelang import tvm

import kernels

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from launch import Buffer, launch_file, out, pointer, strip, tensor_map

SOURCES = Path(tilelang.__file__).parent
BYTES = {"float64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}
# By the driver's enums.
TYPES = ["u8", "u16", "u32", "i32", "u64", "i64", "f16", "f32", "f64", "bf16"]
SWIZZLES = ["none", "32b", "64b", "128b"]

BOTH = ("90", "100")
CASES = {
    "gemm": (kernels.gemm(256, 128, 256, 128, 128, 64), BOTH),
    "gemm_small": (kernels.gemm(64, 64, 96, 64, 32, 32, out="float32"), BOTH),
    "gemm_fp8": (kernels.gemm(128, 64, 256, 64, 64, 128, dtype="float8_e4m3fn", out="float32"), ("90",)),
    "gemm_bias_silu": (kernels.gemm_bias_silu(128, 128, 128, 64, 128, 64), BOTH),
    "gemm_tmem": (kernels.gemm_tmem(256, 128, 256, 128, 128, 64, stages=0), ("100",)),
    "gemm_tmem_specialised": (kernels.gemm_tmem(256, 128, 256, 128, 128, 64), ("100",)),
    "gemm_roles": (kernels.gemm_roles(256, 128, 320, 128, 128, 64, 3, False), ("100",)),
    "gemm_pair": (kernels.gemm_roles(512, 256, 320, 128, 256, 64, 3, True), ("100",)),
    "softmax": (kernels.softmax(32, 256, 8), BOTH),
    "rms_norm": (kernels.rms_norm(8, 1024), BOTH),
    "silu_mul": (kernels.silu_mul(1000, 256), BOTH),
    "column_sums": (kernels.column_sums(64, 64, 16), BOTH),
    "attention": (kernels.attention(128, 2, 64, 64, 64), ("90",)),
}
# Kernels whose warps stay alike.
UNIFORM = {"gemm_tmem"}
CLUSTERS = {"gemm_pair": (2, 1, 1)}
# Buffers that are added to, and those that the kernel only writes.
ADDED, WRITTEN = {"column_sums": {"out"}}, {"c", "out", "running"}


def calls(host):
    """Packed calls of the host code: the function, and its arguments as numbers and names."""
    stack = {}
    pattern = re.compile(r"\[(\d+)\]\.v_(?:int64|ptr)\) = \(*(?:int64_t\)|\(int64_t\))?\(?(-?\w+)\)*;|TVMFFIFunctionCall\((\w+)_packed, [^,]*, (\d+),")
    for at, value, function, count in pattern.findall(host):
        if function:
            yield function, [stack.get(i) for i in range(int(count))]
        else:
            stack[int(at)] = int(value) if re.fullmatch(r"-?\d+", value) else value


def build(name, kernel, chip):
    target = tvm.target.Target({"kind": "cuda", "arch": f"sm_{chip}a"})
    with target, tvm.transform.PassContext(config={"tl.disable_warp_specialized": name in UNIFORM}):
        lowered = tilelang.lower(kernel, target=target, enable_device_compile=False, enable_host_codegen=True)
    with tempfile.TemporaryDirectory() as folder:
        source, ptx = Path(folder) / "k.cu", Path(folder) / "k.ptx"
        source.write_text(lowered.kernel_source)
        includes = ["-I", str(SOURCES / "src"), "-I", str(SOURCES / "3rdparty/cutlass/include")]
        flags = ["-std=c++17", "-O3", "-w", "-DENABLE_BF16"]
        subprocess.run(["nvcc", "-ptx", f"-arch=sm_{chip}a", *flags, *includes, "-o", str(ptx), str(source)], check=True)
        text = strip(ptx.read_text())
    entry = re.search(r"\.entry (\w+)", text)[1]
    maps, launch = {}, None
    for function, args in calls(lowered.rt_mod.inspect_source()):
        if function == "__tvm_tensormap_create_tiled":
            rank = args[2]
            lists = [args[4 + i * rank : 4 + (i + 1) * rank] for i in range(4)]
            interleave, swizzle, _, fill = args[4 + 4 * rank :]
            assert interleave == 0 and fill == 0 and lists[3] == [1] * rank
            maps[args[0]] = tensor_map(args[3], TYPES[args[1]], lists[0], lists[2], strides=lists[1][1:], swizzle=SWIZZLES[swizzle])
        elif function == entry:
            launch = args
    attributes = next(f.attrs for f in lowered.device_mod.functions.values() if f.attrs["global_symbol"] == entry)
    extent = {k: int(v) for k, v in attributes["thread_extent"].items()}
    grid = [extent.get(f"blockIdx.{d}", 1) for d in "xyz"]
    block = [extent.get(f"threadIdx.{d}", 1) for d in "xyz"]
    smem = int(attributes["dyn_shared_memory_buf"]) if "dyn_shared_memory_buf" in attributes else 0
    count = len(re.findall(r"\.param [^,)]*", re.search(r"\.entry \w+\((.*?)\)", text, re.S)[1]))
    params = [maps.get(a, pointer(a)) for a in launch[:count]]
    buffers = {}
    for v, buffer in kernel.buffer_map.items():
        size = BYTES.get(str(buffer.dtype), 1)
        for d in buffer.shape:
            size *= int(d)
        if buffer.name in ADDED.get(name, ()):
            buffers[buffer.name] = Buffer(size, 0)
        else:
            buffers[buffer.name] = out(size) if buffer.name in WRITTEN else Buffer(size)
    stem = f"{name}.sm{chip}"
    (HERE / f"{stem}.ptx").write_text(text)
    (HERE / f"{stem}.toml").write_text(launch_file(f"{stem}.ptx", entry, grid, block, buffers, params, cluster=CLUSTERS.get(name, (1, 1, 1)), smem=smem))
    print(f"{stem}: {len(text)} bytes", flush=True)


if __name__ == "__main__":
    failed = []
    for name in sys.argv[1:] or CASES:
        for chip in CASES[name][1]:
            try:
                build(name, CASES[name][0], chip)
            except Exception as e:
                failed.append(f"{name}.sm{chip}: {type(e).__name__}: {str(e)[-400:]}")
                print("FAILED", failed[-1], flush=True)
    sys.exit(bool(failed))
