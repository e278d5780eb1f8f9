"""The same dual GEMM in Triton, compiled to PTX: what the audit of machine code compares with.

    python triton_dual_gemm.py

writes triton_dual_gemm.ptx (one program a tile, Triton's own software pipeline) and triton_dual_gemm_ws.ptx
(Triton's automatic warp specialisation). It needs the Python package triton (3.9.0 made the stored files) and no GPU.

C = silu(A @ B1^T) * (A @ B2^T): e2m1 operands, packed two a byte; an e4m3 scale factor for every 16 of K, in blocks
of 128 rows by 4, as tcgen05.cp takes them; f16 out. All operands come by TMA, and a tile of A feeds both products.
"""

import os
import re
from pathlib import Path

os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

BM, BN, BK = 128, 128, 256
STAGES = 3


@triton.jit
def scales(blocks, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """From 512-byte blocks, as loaded, to rows and columns."""
    blocks = blocks.reshape(ROWS // 128, COLUMNS // 4, 32, 4, 4)
    return blocks.trans(0, 3, 2, 1, 4).reshape(ROWS, COLUMNS)


@triton.jit
def dual_gemm(a, sfa, b1, sfb1, b2, sfb2, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WS: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1)
    gate = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(0, K // BK, warp_specialize=WS):
        at = step * (BK // 2)
        block = step * (BK // 64)
        ta = a.load([row * BM, at])
        t1 = b1.load([column * BN, at])
        t2 = b2.load([column * BN, at])
        fa = scales(sfa.load([0, row * (BM // 128), block, 0, 0]), BM, BK // 16)
        f1 = scales(sfb1.load([0, column * (BN // 128), block, 0, 0]), BN, BK // 16)
        f2 = scales(sfb2.load([0, column * (BN // 128), block, 0, 0]), BN, BK // 16)
        gate = tl.dot_scaled(ta, fa, "e2m1", t1.T, f1, "e2m1", gate)
        up = tl.dot_scaled(ta, fa, "e2m1", t2.T, f2, "e2m1", up)
    c.store([row * BM, column * BN], (gate / (1.0 + tl.exp(-gate)) * up).to(tl.float16))


def compile(warp_specialised):
    codes = f"tensordesc<u8[{{rows}},{BK // 2}]>"
    factors = f"tensordesc<fp8e4nv[1,{{blocks}},{BK // 64},2,256]>"
    types = dict(
        a=codes.format(rows=BM), sfa=factors.format(blocks=BM // 128), b1=codes.format(rows=BN), sfb1=factors.format(blocks=BN // 128),
        b2=codes.format(rows=BN), sfb2=factors.format(blocks=BN // 128), c=f"tensordesc<fp16[{BM},{BN}]>", K="i32",
        BM="constexpr", BN="constexpr", BK="constexpr", WS="constexpr")
    constants = dict(BM=BM, BN=BN, BK=BK, WS=warp_specialised)
    source = ASTSource(dual_gemm, signature=types, constexprs=constants, attrs={(7,): [["tt.divisibility", 16]]})
    compiled = triton.compile(source, target=GPUTarget("cuda", 100, 32), options=dict(num_warps=4, num_stages=STAGES))
    text = re.sub(r"^\s*//.*\n", "", compiled.asm["ptx"], flags=re.M)
    text = re.sub(r"[ \t]*// .*$", "", text, flags=re.M)
    return re.sub(r"\n\s*\n+", "\n", text), compiled.metadata


def main():
    for name, warp_specialised in [("triton_dual_gemm", False), ("triton_dual_gemm_ws", True)]:
        text, meta = compile(warp_specialised)
        head = (f"// Triton {triton.__version__}, tile {BM} x {BN} x {BK}, {STAGES} stages asked for, "
                f"{'automatic warp specialisation, ' if warp_specialised else ''}"
                f"{meta.shared} bytes of dynamic shared memory, {meta.tmem_size} columns of tensor memory\n")
        Path(__file__).with_name(f"{name}.ptx").write_text(head + text)
        print(head, len(text), "bytes")


if __name__ == "__main__":
    main()
