"""What Gluon spells in other ways from Triton 3.6 to 3.9, under one name each."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell, hopper
from triton.experimental.gluon.language.nvidia.blackwell import TensorMemoryLayout, mbarrier, tma

RENAMED = hasattr(tma, "async_load")
load = tma.async_load if RENAMED else tma.async_copy_global_to_shared
store = tma.async_store if RENAMED else tma.async_copy_shared_to_global
OLD = hasattr(blackwell, "get_tmem_reg_layout")
# Launch control, since 3.8.
clc = getattr(blackwell, "clc", None)


@gluon.constexpr_function
def split(cga, dim):
    """CTAs of the cluster that share dimension `dim`."""
    return 1 << sum(basis[dim] != 0 for basis in cga)


@gluon.constexpr_function
def accumulator(rows, columns, cga):
    """The layout of f32 sums, `rows` x `columns` for a CTA, as the halves of a pair if there is a cluster."""
    rows, columns, cga = (getattr(v, "value", v) for v in (rows, columns, cga))
    block = (min(128, rows // split(cga, 0)), columns)
    if not OLD:
        return TensorMemoryLayout(block, col_stride=1, cga_layout=[list(b) for b in cga], two_ctas=len(cga) > 0)
    return TensorMemoryLayout(block, col_stride=1, cta_split_num=(split(cga, 0), split(cga, 1)) if cga else None, two_ctas=len(cga) > 0)


@gluon.constexpr_function
def scale_layout(cga, columns):
    """The layout of scale factors: rows of A are shared in a pair, those of B are whole in both CTAs."""
    cga, columns = (getattr(v, "value", v) for v in (cga, columns))
    if not cga:
        return blackwell.TensorMemoryScalesLayout()
    return blackwell.TensorMemoryScalesLayout(cga_layout=[[0, 0] if columns else list(b) for b in cga])


if OLD:
    registers = blackwell.get_tmem_reg_layout

    @gluon.jit
    def read(sums, ROWS: gl.constexpr, COLUMNS: gl.constexpr, CGA: gl.constexpr):
        """The sums in registers."""
        layout: gl.constexpr = registers(gl.float32, (ROWS, COLUMNS), accumulator(ROWS, COLUMNS, CGA), gl.num_warps(), cga_layout=CGA)
        return sums.load(layout)

else:

    @gluon.jit
    def read(sums, ROWS: gl.constexpr, COLUMNS: gl.constexpr, CGA: gl.constexpr):
        """The sums in registers."""
        return sums.load(sums.get_reg_layout())


if hasattr(mbarrier, "sync_cluster_init"):

    @gluon.jit
    def settle():
        """All CTAs of the cluster see the mbarriers that were initialised."""
        mbarrier.fence_init_release_cluster()
        gl.barrier(cluster=True)

elif hasattr(mbarrier, "fence_init_release_cluster"):
    cluster = hopper.cluster

    @gluon.jit
    def settle():
        """All CTAs of the cluster see the mbarriers that were initialised."""
        mbarrier.fence_init_release_cluster()
        cluster.barrier(relaxed=True)

else:

    @gluon.jit
    def settle():
        """The compiler puts fence and barrier here."""


if hasattr(mbarrier, "allocate_mbarrier"):
    barriers = mbarrier.allocate_mbarrier
else:

    @gluon.jit
    def barriers(batch: gl.constexpr, two_ctas: gl.constexpr = False):
        """`batch` mbarriers."""
        return gl.allocate_shared_memory(gl.int64, [batch, 1], mbarrier.MBarrierLayout())
