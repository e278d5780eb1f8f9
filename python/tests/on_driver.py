"""Launches on tensors of device kind CUDA, in a process that finds the driver that emulates. `test_launch.py` starts it.

Memory, streams and captures are the driver's. Tensors come by DLPack, and as objects that look like torch's.
"""

import ctypes
import gc
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import silumin

# The smallest problem whose sizes all differ.
M, N, K = 20, 32, 128
DTYPES = {"float16": (2, 16), "float32": (2, 32), "uint16": (4, 16), "uint8": (1, 8)}

driver = ctypes.CDLL("libcuda.so.1")
PyCapsule_New = ctypes.pythonapi.PyCapsule_New
PyCapsule_New.restype = ctypes.py_object
PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def checked(name, *args):
    code = getattr(driver, name)(*args)
    assert code == 0, f"{name}: {code}"


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Memory:
    """Memory of the GPU with an array's contents."""

    def __init__(self, array):
        self.array = np.ascontiguousarray(array)
        address = ctypes.c_uint64()
        checked("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.array.nbytes + 64))
        self.address = address.value
        self.write(self.array)

    def write(self, array):
        data = array.ctypes.data_as(ctypes.c_void_p)
        checked("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), data, ctypes.c_size_t(array.nbytes))

    def numpy(self):
        back = np.empty_like(self.array)
        checked("cuMemcpyDtoH_v2", back.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(self.address), ctypes.c_size_t(back.nbytes))
        return back


class Shared(Memory):
    """A tensor of a library that has nothing but DLPack."""

    versioned = True

    def __init__(self, array, offset=0, strides=None, flags=0, major=1, number=0):
        super().__init__(array)
        self.offset, self.strides, self.flags, self.major, self.number = offset, strides, flags, major, number
        self.streams, self.deleted, self.kept = [], 0, []

    def __dlpack_device__(self):
        return 2, self.number

    def __dlpack__(self, *, stream=None, max_version=None):
        if not self.versioned and max_version is not None:
            raise TypeError("no such argument: max_version")
        self.streams.append(stream)
        ndim = self.array.ndim
        shape = (ctypes.c_int64 * ndim)(*self.array.shape)
        strides = self.strides and (ctypes.c_int64 * ndim)(*self.strides)
        code, bits = DTYPES[self.array.dtype.name]
        tensor = Tensor(self.address, 2, self.number, ndim, code, bits, 1, shape, strides or None, self.offset)

        def delete(_):
            self.deleted += 1

        deleter = Deleter(delete)
        if self.versioned:
            managed = Versioned(self.major, 0, None, deleter, self.flags, tensor)
        else:
            managed = Unversioned(tensor, None, deleter)
        self.kept.append((shape, strides, deleter, managed))
        return PyCapsule_New(ctypes.addressof(managed), b"dltensor_versioned" if self.versioned else b"dltensor", None)


class Older(Shared):
    versioned = False


def drawn(*shape, dtype=np.float16, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def expected(a, b1, b2):
    d1, d2 = (a.astype(np.float64) @ b.astype(np.float64).T for b in (b1, b2))
    return d1 / (1 + np.exp(-d1)) * d2


ARRAYS = drawn(M, K), drawn(N, K, seed=4), drawn(N, K, seed=5)


def close(got, wanted, rtol=2e-3, atol=3e-2):
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=rtol, atol=atol)


def fails(words, call):
    try:
        call()
    except silumin.ArgumentError as error:
        for word in words:
            assert word in str(error), str(error)
    else:
        raise AssertionError(f"nothing was refused: {words}")


def refused(words, **change):
    given = dict(zip(("a", "b1", "b2"), (Shared(array) for array in ARRAYS)), out=Shared(np.zeros((M, N), np.float16)))
    given.update(change)
    fails(words, lambda: silumin.dual_gemm(**given))
    gc.collect()
    for tensor in given.values():
        if isinstance(tensor, Shared):
            assert tensor.deleted == len(tensor.streams), words


def tensors_of_any_library():
    for library in (Shared, Older):
        a, b1, b2 = (library(array) for array in ARRAYS)
        out = library(np.zeros((M, N), np.float32))
        for _ in range(5):
            assert silumin.dual_gemm(a, b1, b2, out=out) is out
        close(out.numpy(), expected(*ARRAYS))
        # Each was asked for the default stream, and given back.
        assert a.streams == [1] * 5 and [t.deleted for t in (a, b1, b2, out)] == [5] * 4
    bias, residual = drawn(N, dtype=np.float32), drawn(M, N, dtype=np.float32)
    out = Shared(residual)
    vectors = {"bias": Shared(bias), "r": out}
    a, b = Shared(ARRAYS[0]), Shared(ARRAYS[1])
    silumin.gemm(a, b, "alpha * (A @ B) + bias[n] + r[m, n]", out, scalars={"alpha": 0.5}, vectors=vectors)
    close(out.numpy(), 0.5 * (ARRAYS[0].astype(float) @ ARRAYS[1].astype(float).T) + bias + residual)


def streams_and_threads():
    handle = ctypes.c_void_p()
    checked("cuStreamCreate", ctypes.byref(handle), 1)

    class Numbered:
        ptr = handle.value

    class Protocol:
        def __cuda_stream__(self):
            return 0, handle.value

    a, b1, b2 = (Shared(array) for array in ARRAYS)
    out = Shared(np.zeros((M, N), np.float16))
    for stream in (handle.value, Numbered(), Protocol()):
        silumin.dual_gemm(a, b1, b2, out=out, stream=stream)
        assert a.streams[-1] == handle.value
    checked("cuStreamSynchronize", handle)
    close(out.numpy(), expected(*ARRAYS))
    refused(["stream: a str"], stream="main")
    refused(["stream: an int"], stream=-1)

    def work(seed):
        x = drawn(M, K, seed=seed)
        mine = Shared(np.zeros((M, N), np.float16))
        silumin.dual_gemm(Shared(x), b1, b2, out=mine)
        close(mine.numpy(), expected(x, *ARRAYS[1:]))

    in_threads(work, range(4))


def in_threads(work, items):
    """Does work for each item in a thread of its own. What one raises is raised here."""
    items = list(items)
    with ThreadPoolExecutor(len(items)) as pool:
        list(pool.map(work, items))


def one_kernel_for_four_threads():
    inner, loads = silumin._gemm._gpus[0], []

    class Counting:
        arch = inner.arch

        def borrow(self, *given):
            return inner.borrow(*given)

        def load(self, request):
            loads.append(request)
            return inner.load(request)

    silumin.clear_kernels()
    silumin._gemm._gpus[0] = Counting()
    a, b1, b2 = (Shared(array) for array in ARRAYS)
    start, outs = threading.Barrier(4, timeout=60), [Shared(np.zeros((M, N), np.float16)) for _ in range(4)]

    def work(out):
        start.wait()
        silumin.dual_gemm(a, b1, b2, out=out)

    in_threads(work, outs)
    silumin._gemm._gpus[0] = inner
    assert len(loads) == 1
    for out in outs:
        close(out.numpy(), expected(*ARRAYS))


def the_current_context_stays():
    def current():
        context = ctypes.c_void_p()
        checked("cuCtxGetCurrent", ctypes.byref(context))
        return context.value

    a, b1, b2 = (Shared(array) for array in ARRAYS)
    own, out = current(), Shared(np.zeros((M, N), np.float16))
    assert own is not None
    for context in (own, None):
        checked("cuCtxSetCurrent", ctypes.c_void_p(context))
        silumin.clear_kernels()
        silumin.dual_gemm(a, b1, b2, out=out)
        silumin.dual_gemm(a, b1, b2, out=out)
        assert current() == context
        silumin.clear_kernels()
        assert current() == context
    checked("cuCtxSetCurrent", ctypes.c_void_p(own))


def a_capture_takes_a_launch():
    stream, graph, instance = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    checked("cuStreamCreate", ctypes.byref(stream), 1)
    x = ARRAYS[0]
    a, b1, b2 = (Shared(array) for array in ARRAYS)
    out = Shared(np.zeros((M, N), np.float16))
    silumin.dual_gemm(a, b1, b2, out=out, stream=stream.value)
    checked("cuStreamBeginCapture_v2", stream, 2)
    silumin.dual_gemm(a, b1, b2, out=out, stream=stream.value)
    checked("cuStreamEndCapture", stream, ctypes.byref(graph))
    checked("cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, ctypes.c_uint64(0))
    other = drawn(M, K, seed=8)
    a.write(other)
    close(out.numpy(), expected(x, *ARRAYS[1:]))
    checked("cuGraphLaunch", instance, stream)
    close(out.numpy(), expected(other, *ARRAYS[1:]))


class Twice(Shared):
    """Hands out one capsule again and again."""

    capsule = None

    def __dlpack__(self, **given):
        self.capsule = self.capsule or super().__dlpack__(**given)
        return self.capsule


class Broken(Shared):
    """A library whose `__dlpack__` does something else."""

    def __init__(self, array, does):
        super().__init__(array)
        self.does = does

    def __dlpack__(self, **_):
        return self.does()


def _refuse():
    raise BufferError("in use")


def wrong_capsules():
    x = ARRAYS[0]
    again = Twice(ARRAYS[1])
    refused(["b2: the capsule", "was used before"], b1=again, b2=again)
    refused(["a: ", "that __dlpack__ does not hand out: in use"], a=Broken(x, _refuse))
    refused(["a: __dlpack__ returned a NoneType"], a=Broken(x, lambda: None))
    refused(["a: the capsule", "no capsule of DLPack"], a=Broken(x, lambda: PyCapsule_New(1, b"other", None)))


def wrong_tensors():
    x = ARRAYS[0]
    wide = np.zeros((M, 2 * K), np.float16)
    refused(["a: dimension 0", "stride 256", "128"], a=_view(wide, (M, K), (2 * K, 1)))
    refused(["b1: dimension", "stride 32", "leave their transposition out"], b1=_view(x, (N, K), (1, N)))
    refused(["a: the first element", "multiples of 16"], a=Shared(x, offset=2))
    refused(["a: the tensor is of DLPack 2.0", "max_version"], a=Shared(x, major=2))
    refused(["out: a tensor that must not be written"], out=Shared(np.zeros((M, N), np.float16), flags=1))
    refused(["a: elements of float32"], a=Shared(x.astype(np.float32)))
    refused(["b2: a tensor on GPU 1", "`a` is on GPU 0"], b2=Shared(x, number=1))
    refused(["out: it is left out"], out=None)
    refused(["b1: a tensor on the CPU", "b1.cuda()"], b1=x)
    refused(["device = 'cuda:1'", "GPU 0"], device="cuda:1")
    shared = Shared(x)
    refused(["out overlaps a"], a=shared, out=_part(shared, (M, N)))
    a, b = Shared(x), Shared(ARRAYS[1])
    out = Shared(np.zeros((M, N), np.float32))
    for text, vectors in [("vector of the gate is in f32", Shared(drawn(N))), (f"reads {N}", Shared(drawn(N + 1, dtype=np.float32)))]:
        try:
            silumin.gemm(a, b, "A @ B + bias[n]", out, vectors={"bias": vectors})
        except silumin.ArgumentError as error:
            assert "bias" in str(error) and text in str(error), str(error)
        else:
            raise AssertionError(text)
        gc.collect()
        assert vectors.deleted == len(vectors.streams) == 1
    try:
        silumin.gemm(*(Shared(array, number=7) for array in ARRAYS[:2]), out=Shared(np.zeros((M, N), np.float16), number=7))
    except silumin.DeviceError as error:
        assert "there is no GPU 7" in str(error), str(error)
    else:
        raise AssertionError("there is a GPU 7")


def _view(array, shape, strides):
    tensor = Shared(array, strides=strides)
    tensor.array = np.lib.stride_tricks.as_strided(tensor.array, shape)
    return tensor


def _part(other, shape):
    tensor = Shared(np.zeros(shape, np.float16))
    tensor.address = other.address
    return tensor


class Like:
    """A tensor that looks like torch's."""

    requires_grad, offset = False, 0

    def __init__(self, array, dtype, contiguous=True, kind="cuda"):
        self.memory, self.dtype, self.contiguous = Memory(array), f"torch.{dtype}", contiguous
        self.device, self.shape = types.SimpleNamespace(type=kind, index=0), array.shape

    def data_ptr(self):
        return self.memory.address + self.offset

    def element_size(self):
        return self.memory.array.itemsize

    def numel(self):
        return self.memory.array.size

    def is_contiguous(self):
        return self.contiguous

    def stride(self):
        return (1, self.shape[0])


def objects_like_torch():
    stream = ctypes.c_void_p()
    checked("cuStreamCreate", ctypes.byref(stream), 1)
    current = types.SimpleNamespace(cuda_stream=stream.value)
    made = []

    def empty(shape, dtype, device):
        made.append(Like(np.zeros(shape, np.float16), dtype))
        return made[-1]

    grad = [False]
    cuda = types.SimpleNamespace(is_initialized=lambda: True, current_stream=lambda _: current)
    sys.modules["torch"] = types.SimpleNamespace(cuda=cuda, empty=empty, float16="float16", is_grad_enabled=lambda: grad[0])
    try:
        a, b1, b2 = (Like(array, "float16") for array in ARRAYS)
        result = silumin.dual_gemm(a, b1, b2)
        assert result is made[0]
        close(result.memory.numpy(), expected(*ARRAYS))
        # The launch goes to the current stream: its capture takes it.
        graph, instance, other = ctypes.c_void_p(), ctypes.c_void_p(), drawn(M, K, seed=8)
        checked("cuStreamBeginCapture_v2", stream, 2)
        assert silumin.dual_gemm(a, b1, b2, out=result) is result
        checked("cuStreamEndCapture", stream, ctypes.byref(graph))
        checked("cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, ctypes.c_uint64(0))
        a.memory.write(other)
        close(result.memory.numpy(), expected(*ARRAYS))
        checked("cuGraphLaunch", instance, stream)
        close(result.memory.numpy(), expected(other, *ARRAYS[1:]))
        a.memory.write(ARRAYS[0])
        elsewhere = types.SimpleNamespace(cuda_stream=stream.value, device=types.SimpleNamespace(index=1))
        refused(["stream: a stream of GPU 1", "GPU 0"], a=a, stream=elsewhere)
        skewed = Like(ARRAYS[0], "float16")
        skewed.offset = 8
        refused(["a: the first element", "multiples of 16", "a.clone()"], a=skewed)
        refused(["b1: a tensor of shape", "not contiguous", "b1.contiguous()"], b1=Like(ARRAYS[1], "float16", contiguous=False))
        refused(["a: a tensor on mps"], a=Like(ARRAYS[0], "float16", kind="mps"))
        for call in (lambda: silumin.quantize(a), lambda: silumin.quantize(a, "e4m3")):
            fails(["values: a tensor on a GPU", "values.cpu()"], call)
        grad[0] = b1.requires_grad = True
        refused(["b1: a tensor that requires a gradient", "inference_mode"], b1=b1)
    finally:
        del sys.modules["torch"]


def quantised_operands():
    x, w = drawn(M, K, dtype=np.float32), drawn(N, K, dtype=np.float32, seed=9)
    (a, a_scales, a_scale), (b, b_scales, b_scale) = silumin.quantize(x), silumin.quantize(w)
    out = Shared(np.zeros((M, N), np.float32))
    scalars = {"alpha": a_scale * b_scale}
    gate = "alpha * (A @ B)"
    silumin.gemm(Shared(a), Shared(b), gate, out, a_scales=Shared(a_scales), b_scales=Shared(b_scales), scalars=scalars)
    on_host = silumin.gemm(a, b, gate, a_scales=a_scales, b_scales=b_scales, scalars=scalars, device="emulated:sm_100a")
    np.testing.assert_array_equal(out.numpy(), on_host)
    few = {"a_scales": Shared(a_scales[:16]), "b_scales": Shared(b_scales)}
    fails(["a_scales: 16 bytes", "1024"], lambda: silumin.gemm(Shared(a), Shared(b), gate, out, scalars=scalars, **few))


CASES = {
    "sm_90a": [
        tensors_of_any_library,
        streams_and_threads,
        one_kernel_for_four_threads,
        the_current_context_stays,
        a_capture_takes_a_launch,
        wrong_capsules,
        wrong_tensors,
        objects_like_torch,
    ],
    "sm_100a": [tensors_of_any_library, quantised_operands],
}

if __name__ == "__main__":
    for case in CASES[sys.argv[1]]:
        case()
        print("passed", case.__name__)
    print("all passed")
