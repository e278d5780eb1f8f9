"""Compares tile sizes by predicted time, with kernels in the form that Triton returns.

With Triton installed, `compiled` is what `triton.compile` or `kernel.warmup` returns: nothing else changes. It compiles for a chip that is
not there: triton.compile(ASTSource(...), target=GPUTarget("cuda", 90, 32)).
"""

from types import SimpleNamespace

import numpy as np
import silumin


def compiled(tile):
    """out = x * factor, `tile` elements a program: 128 threads with tile / 128 elements each."""
    steps = "\n".join(
        f"""
    add.u32 %r5, %r4, {128 * step};
    setp.lt.u32 %p, %r5, %r1;
    mul.wide.u32 %rd3, %r5, 4;
    add.u64 %rd4, %rd1, %rd3;
    add.u64 %rd5, %rd2, %rd3;
    @%p ld.global.f32 %f{2 + step}, [%rd4];
    @%p mul.f32 %f{2 + step}, %f{2 + step}, %f1;
    @%p st.global.f32 [%rd5], %f{2 + step};"""
        for step in range(tile // 128)
    )
    ptx = f"""\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 out, .param .f32 factor, .param .u32 n, .param .u64 scratch)
.reqntid 128
{{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .f32 %f<{2 + tile // 128}>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [out];
    ld.param.f32 %f1, [factor];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r2, {tile}, %r3;{steps}
    ret;
}}
"""
    return SimpleNamespace(asm={"ptx": ptx}, metadata=SimpleNamespace(name="scale", num_warps=4, shared=0))


n = 1 << 18
x, out = np.ones(n, np.float32), np.zeros(n, np.float32)
for tile in (128, 256, 512, 1024):
    result = silumin.triton(compiled(tile), -(-n // tile), [x, out, 3.0, n], chip="h200", tracking="off", issue="table")
    assert result.ok and (out == 3).all(), result
    time = result.prediction
    print(f"tile {tile:5}: predicted {time.us:6.2f} us ({time.low:.2f} to {time.high:.2f}), bound by {time.bound_by}")
    out[:] = 0
