"""PTX that tests run, written for them."""

from pathlib import Path

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"

# out[i] = in[i] * factor.
SCALE = (
    HEAD
    + """
.visible .entry scale(
    .param .u64 source,
    .param .u64 target,
    .param .f32 factor,
    .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [source];
    ld.param.u64 %rd2, [target];
    ld.param.f32 %f1, [factor];
    ld.param.u32 %r1, [count];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.u32 %r2, %r3, %r4, %r2;
    setp.ge.u32 %p, %r2, %r1;
    @%p ret;
    mul.wide.u32 %rd3, %r2, 4;
    add.u64 %rd1, %rd1, %rd3;
    add.u64 %rd2, %rd2, %rd3;
    ld.global.f32 %f2, [%rd1];
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%rd2], %f3;
    ret;
}
"""
)


def reverse(barrier: bool) -> str:
    """The example's kernel. Without the barrier, a warp reads words that the other may not have written."""
    text = (Path(__file__).parents[1] / "examples" / "reverse.ptx").read_text()
    return text.replace("BARRIER", "bar.sync 0;" if barrier else "")


# Copies a box of 16 x 8 words from (8, 4) of a tensor with TMA.
BOX = (
    HEAD
    + """
.visible .entry box(
    .param .align 64 .b8 map[128],
    .param .u64 target)
.reqntid 32
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<6>;
    .shared .align 128 .b8 words[512];
    .shared .align 8 .b64 full;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, words;
    mov.u32 %r3, full;
    mov.b64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 512;
    mov.u32 %r4, 8;
    mov.u32 %r5, 4;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1, {%r4, %r5}], [%r3];
READY:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
    @!%p2 bra WAIT;
    ld.param.u64 %rd2, [target];
    cvta.to.global.u64 %rd2, %rd2;
    mul.wide.u32 %rd3, %r1, 16;
    add.u64 %rd2, %rd2, %rd3;
    shl.b32 %r6, %r1, 4;
    add.u32 %r6, %r2, %r6;
    .reg .b32 %w<4>;
    ld.shared.v4.u32 {%w0, %w1, %w2, %w3}, [%r6];
    st.global.v4.u32 [%rd2], {%w0, %w1, %w2, %w3};
    ret;
}
"""
)

# Spins for ever.
SPIN = HEAD + "\n.visible .entry spin()\n{\nAGAIN:\n    bra AGAIN;\n}\n"

# A struct by value: a pointer at 0 and a word at 8. Writes the word.
BY_VALUE = (
    HEAD
    + """
.visible .entry by_value(.param .align 8 .b8 args[16])
.reqntid 1
{
    .reg .b32 %r1;
    .reg .b64 %rd1;
    ld.param.u64 %rd1, [args];
    ld.param.u32 %r1, [args+8];
    cvta.to.global.u64 %rd1, %rd1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
)


def line_of(ptx: str, text: str) -> int:
    """The number of the first line that has a text, from 1."""
    return next(i for i, line in enumerate(ptx.splitlines(), 1) if text in line)
