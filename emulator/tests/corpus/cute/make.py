"""Compiles the kernels of this folder with the CuTe DSL, and writes NAME.smXX.ptx and NAME.smXX.toml.

Needs the Python package that README.md names, and no GPU:

    python make.py [NAME...]

The DSL compiles for one chip a process, so that this script starts itself again for each case.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from launch import Buffer, launch_file, out, pointer, strip, tensor_map


def product(m, n, k, tile, stages, threads, first, ctas=0):
    """Constructor's arguments, and the launch. `first` is the tiled MMA, whose bytes only sizes matter of. With `ctas` the tile is a pair's."""
    if ctas:
        (_, n_pair, k_pair), pieces = tile, ctas // 2
        maps = [tensor_map("a", "f16", (k, m), (64, 128), swizzle="128b"), tensor_map("b", "f16", (k, n), (64, n_pair // 2 // pieces), swizzle="128b")]
        smem = 1024 + stages * (128 + n_pair // 2) * k_pair * 2
        return (m, n, k, tile, stages, ctas), dict(
            grid=(m // 128, n // n_pair), block=(threads,), cluster=(ctas, 1, 1), smem=smem, buffers=dict(a=Buffer(m * k * 2), b=Buffer(n * k * 2), c=out(m * n * 2)),
            params=[f'hex = "{"00" * first}"', *maps, pointer("c")])
    maps = [tensor_map("a", "f16", (k, m), (64, tile[0]), swizzle="128b"), tensor_map("b", "f16", (k, n), (64, tile[1]), swizzle="128b")]
    return (m, n, k, tile, stages), dict(
        grid=(m // tile[0], n // tile[1]), block=(threads,), smem=1024 + stages * (tile[0] + tile[1]) * tile[2] * 2,
        buffers=dict(a=Buffer(m * k * 2), b=Buffer(n * k * 2), c=out(m * n * 2)), params=[f'hex = "{"00" * first}"', *maps, pointer("c")])


def rows(m, n, size, grid, block, smem=0):
    return (m, n), dict(grid=grid, block=block, smem=smem, buffers=dict(x=Buffer(m * n * size), out=out(m * n * size)), params=[pointer("x"), pointer("out")])


BOTH = ("90", "100")
# Module, class, types of the pointers and scalars, chips, arguments and launch.
CASES = {
    "axpy": ("elementwise", "Axpy", "fff1", BOTH, ((1000,), dict(
        grid=(8,), block=(128,), buffers=dict(x=Buffer(4000), y=Buffer(4000), out=out(4000)), params=[pointer("x"), pointer("y"), pointer("out"), "f32 = 1.75"]))),
    "gelu_vectors": ("elementwise", "GeluVectors", "hh", BOTH, rows(16, 512, 2, (8,), (128,))),
    "softmax": ("elementwise", "Softmax", "ff", BOTH, rows(4, 500, 4, (4,), (128,), 64)),
    "transpose": ("elementwise", "Transpose", "ff", BOTH, rows(64, 96, 4, (3, 2), (32, 8), 32 * 33 * 4)),
    "wgmma": ("products", "Hopper", "hhh", ("90",), product(128, 128, 256, (64, 64, 64), 3, 160, 1)),
    "tcgen05": ("products", "Blackwell", "hhh", ("100",), product(256, 128, 256, (128, 128, 64), 3, 192, 32)),
    "pair": ("products", "BlackwellPairs", "hhh", ("100",), product(512, 128, 320, (256, 128, 64), 3, 192, 64, ctas=2)),
    "pairs_multicast": ("products", "BlackwellPairs", "hhh", ("100",), product(512, 128, 320, (256, 128, 64), 3, 192, 64, ctas=4)),
}


def build(name, chip):
    import importlib

    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_ptr
    from cutlass.cute.typing import AddressSpace

    module, kind, types, _, (arguments, launch) = CASES[name]
    kernel = getattr(importlib.import_module(module), kind)(*arguments)
    of = lambda t: make_ptr(t, 16, AddressSpace.gmem, assumed_align=16)
    values = [{"f": of(cutlass.Float32), "h": of(cutlass.Float16), "1": cutlass.Float32(1.75)}[t] for t in types]
    text = strip(cute.compile(kernel, *values).__ptx__)
    # Names hold the types of all arguments.
    text = text.replace(re.search(r"\.entry (\w+)", text)[1], name)
    stem = f"{name}.sm{chip}"
    (HERE / f"{stem}.ptx").write_text(text)
    (HERE / f"{stem}.toml").write_text(launch_file(f"{stem}.ptx", name, **launch))
    print(f"{stem}: {len(text)} bytes", flush=True)


if __name__ == "__main__":
    if "CUTE_DSL_ARCH" in os.environ:
        build(sys.argv[1], os.environ["CUTE_DSL_ARCH"][3:-1])
        sys.exit()
    for name in sys.argv[1:] or CASES:
        for chip in CASES[name][3]:
            environment = os.environ | {"CUTE_DSL_ARCH": f"sm_{chip}a", "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": "/tmp"}
            subprocess.run([sys.executable, __file__, name], env=environment, check=True)
