"""One kernel or one probe of a bring-up pack on the GPU, for the process that `bring_up.py` starts for it."""

import ctypes
import json
import math
import pathlib
import statistics
import struct
import time

import run

# CUdevice_attribute of the CUDA driver API.
ATTRIBUTES = {"clock_khz": 13, "sms": 16, "memory_clock_khz": 36, "memory_bus_bits": 37, "l2_bytes": 38, "ecc": 32}
MAJOR, MINOR, SHARED_OPTIN = 75, 76, 97
PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
NON_BLOCKING = 1
GUARD = 4096  # bytes behind an output that nobody may write
ROOM = 1 << 30  # bytes for outputs of launches back to back
ELEMENTS = {"f16": ("e", 2), "f32": ("f", 4), "bf16": (None, 2)}


class Gpu:
    """The first device, a context and a stream of its own."""

    def __init__(self):
        self.driver = run.Driver()
        self.driver("cuInit", 0)
        self.device, context = ctypes.c_int(), ctypes.c_void_p()
        self.driver("cuDeviceGet", ctypes.byref(self.device), 0)
        self.driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.driver("cuCtxSetCurrent", context)
        self.stream = ctypes.c_void_p()
        self.driver("cuStreamCreate", ctypes.byref(self.stream), NON_BLOCKING)

    def alloc(self, size):
        pointer = ctypes.c_uint64()
        self.driver("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(16, size)))
        return pointer.value

    def upload(self, pointer, data):
        self.driver("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def download(self, pointer, size):
        data = ctypes.create_string_buffer(max(1, size))
        self.driver("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        return data.raw[:size]

    def copy(self, to, pointer, size):
        self.driver("cuMemcpyDtoD_v2", ctypes.c_uint64(to), ctypes.c_uint64(pointer), ctypes.c_size_t(size))

    def sync(self):
        self.driver("cuCtxSynchronize")

    def event(self):
        event = ctypes.c_void_p()
        self.driver("cuEventCreate", ctypes.byref(event), 0)
        return event

    def record(self, event):
        self.driver("cuEventRecord", event, self.stream)

    def milliseconds(self, start, end):
        out = ctypes.c_float()
        self.driver("cuEventElapsedTime", ctypes.byref(out), start, end)
        return out.value

    def attribute(self, number):
        out = ctypes.c_int()
        self.driver("cuDeviceGetAttribute", ctypes.byref(out), number, self.device)
        return out.value


class Kernel:
    """An entry of a module."""

    def __init__(self, gpu, module, name):
        self.gpu, self.function = gpu, ctypes.c_void_p()
        gpu.driver("cuModuleGetFunction", ctypes.byref(self.function), module, name.encode())

    def prepare(self, spec, params):
        """A launch that can be repeated: everything that the driver reads stays alive with it."""
        shared = spec.get("dynamic_smem", 0)
        if shared:
            self.gpu.driver("cuFuncSetAttribute", self.function, run.ATTRIBUTE_DYNAMIC_SMEM, ctypes.c_int(shared))
        three = lambda key: (list(spec.get(key, [1])) + [1, 1])[:3]
        cluster = three("cluster")
        size = cluster[0] * cluster[1] * cluster[2]
        if size > 8:
            self.gpu.driver("cuFuncSetAttribute", self.function, run.ATTRIBUTE_NON_PORTABLE_CLUSTER, ctypes.c_int(1))
        attributes, count = (run.LaunchAttribute * 2)(), 0
        if size > 1:
            attributes[count].id = run.LAUNCH_ATTRIBUTE_CLUSTER
            attributes[count].value[0:3] = cluster
            count += 1
        if spec.get("programmatic"):
            attributes[count].id = PROGRAMMATIC
            attributes[count].value[0] = 1
            count += 1
        held = [run.aligned(len(p)) for p in params]
        for (memory, _), data in zip(held, params):
            memory[:] = data
        pointers = (ctypes.c_void_p * max(1, len(held)))(*[ctypes.addressof(m) for m, _ in held])
        config = run.LaunchConfig()
        config.grid[:], config.block[:] = three("grid"), three("block")
        config.shared, config.stream = shared, self.gpu.stream
        config.attributes, config.count = attributes, count
        return (self.function, config, pointers, held, attributes)

    def go(self, prepared):
        self.gpu.driver("cuLaunchKernelEx", ctypes.byref(prepared[1]), prepared[0], prepared[2], None)


def contents(pack, table):
    """What a buffer holds beforehand."""
    if "file" in table:
        return (pack / table["file"]).read_bytes()
    return bytes([table.get("fill", 0)]) * table["bytes"]


def padded(data):
    """Data with a guard behind it, a multiple of 256 bytes in all."""
    size = -(-len(data) // 256) * 256 + GUARD
    return data + b"\xA5" * (size - len(data))


class Comparison:
    """Compares buffers on the GPU (check.ptx)."""

    def __init__(self, gpu, pack):
        self.gpu = gpu
        self.module = run.load_as_it_is(gpu.driver, (pack / "check.ptx").read_bytes())
        self.kernel = Kernel(gpu, self.module, "compare")

    def all(self, pairs):
        """Words that differ, and the first of them, for each (got, want, bytes)."""
        counts = self.gpu.alloc(16 * len(pairs))
        self.gpu.upload(counts, struct.pack("<QQ", 0, 2**64 - 1) * len(pairs))
        self.gpu.sync()
        held = []
        for index, (got, want, size) in enumerate(pairs):
            words = size // 4
            params = [struct.pack("<Q", v) for v in (got, want, words, counts + 16 * index)]
            ctas = min(64, -(-words // 1024))
            held.append(self.kernel.prepare({"grid": [ctas], "block": [256]}, params))
            self.kernel.go(held[-1])
        self.gpu.sync()
        found = struct.unpack(f"<{2 * len(pairs)}Q", self.gpu.download(counts, 16 * len(pairs)))
        self.gpu.driver("cuMemFree_v2", ctypes.c_uint64(counts))
        return list(zip(found[::2], found[1::2]))


def words_of(data, element):
    """Numbers of a buffer whose elements are floating-point, else None."""
    if element == "bf16":
        shorts = struct.unpack(f"<{len(data) // 2}H", data[: len(data) // 2 * 2])
        return struct.unpack(f"<{len(shorts)}f", b"".join(struct.pack("<I", s << 16) for s in shorts))
    form, size = ELEMENTS.get(element, (None, 0))
    return struct.unpack(f"<{len(data) // size}{form}", data[: len(data) // size * size]) if form else None


def judge(got, want, before, element):
    """What is wrong with an output, in words: how much of it, and what it looks like. None if nothing is."""
    if got == want:
        return None
    bad = [i for i in range(0, len(want), 2) if got[i : i + 2] != want[i : i + 2]]
    untouched = sum(got[i : i + 2] == before[i : i + 2] for i in bad)
    text = f"{len(bad)} of {(len(want) + 1) // 2} halfwords differ, the first at byte {bad[0]}, the last at {bad[-1]}"
    if untouched == len(bad):
        return text + "; nothing was written there"
    if untouched:
        text += f"; {untouched} of them were not written"
    numbers, wanted = words_of(got, element), words_of(want, element)
    if numbers:
        pairs = [(g, w) for g, w in zip(numbers, wanted) if g != w and not (g != g and w != w)]
        # Beside the largest numbers of the tensor those near zero count little.
        floor = 1e-3 * max((abs(w) for w in wanted if math.isfinite(w)), default=0.0) or 1e-30
        finite = [abs(g - w) / max(abs(w), floor) for g, w in pairs if math.isfinite(g) and math.isfinite(w)]
        if len(finite) < len(pairs):
            text += f"; {len(pairs) - len(finite)} are no finite numbers where they should be, or the other way round"
        if finite:
            text += f"; largest relative difference {max(finite):.3g}"
            small = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 1e-5}[element]
            if len(finite) == len(pairs) and max(finite) < small:
                text += ": this looks like another rounding of sums, not like a misplaced operand"
    return text


def launch(pack, path, launches, image):
    """Runs a case `launches` times back to back; returns what the report says of it."""
    spec = json.loads(path.read_text())
    gpu = Gpu()
    started = time.perf_counter()
    text = pathlib.Path(image).read_bytes() if image else (pack / spec["ptx"]).read_bytes()
    module = load(gpu, text)
    loading = time.perf_counter() - started
    comparison = Comparison(gpu, pack)
    shared, outputs, wants = {}, {}, {}
    for name, table in spec["buffers"].items():
        data = contents(pack, table)
        if table["role"] == "output":
            data = padded(data)
            outputs[name] = gpu.alloc(len(data)), data
        else:
            shared[name] = gpu.alloc(len(data))
            pointer = shared[name]
            gpu.upload(pointer, data)
            continue
        gpu.upload(outputs[name][0], data)
        want = (pack / table["expected"]).read_bytes()
        want += data[len(want) :]
        wants[name] = gpu.alloc(len(want)), want
        gpu.upload(wants[name][0], want)
    gpu.sync()
    size = sum(len(data) for _, data in outputs.values())
    slots = max(1, min(launches, 64, ROOM // max(1, size)))
    places, prepared = [], []
    kernels = {}
    for _ in range(slots):
        place = {name: gpu.alloc(len(data)) for name, (_, data) in outputs.items()}
        addresses = {**shared, **place}
        sequence = []
        for one in spec["launches"]:
            params = [run.value(gpu.driver, p, addresses) for p in one.get("params", [])]
            kernel = kernels.setdefault(one["kernel"], Kernel(gpu, module, one["kernel"]))
            sequence.append((kernel, kernel.prepare(one, params)))
        places.append(place)
        prepared.append(sequence)
    events = gpu.event(), gpu.event()
    done, milliseconds, wrong = 0, [], None
    while done < launches and not wrong:
        count = min(slots, launches - done)
        for place in places[:count]:
            for name, (initial, data) in outputs.items():
                gpu.copy(place[name], initial, len(data))
        gpu.sync()
        print(f"PROGRESS {done}", flush=True)
        gpu.record(events[0])
        for sequence in prepared[:count]:
            for kernel, one in sequence:
                kernel.go(one)
        gpu.record(events[1])
        gpu.sync()
        milliseconds.append(gpu.milliseconds(*events) / count)
        pairs = [(n, p) for p in range(count) for n in outputs]
        found = comparison.all([(places[p][n], wants[n][0], len(outputs[n][1])) for n, p in pairs])
        for (name, place), (differ, _) in zip(pairs, found):
            if differ and not wrong:
                wrong = name, place, done + place + 1
        done += count
    texts = []
    # What the host sees decides, whatever the comparison on the GPU says.
    for name, (_, want) in wants.items():
        place = places[wrong[1] if wrong else 0][name]
        text = judge(gpu.download(place, len(want)), want, outputs[name][1], spec["buffers"][name].get("element"))
        if text:
            texts.append(f"{name}{f' of launch {wrong[2]}' if wrong else ''}: {text}")
    if wrong and not texts:
        texts.append(f"{wrong[0]}: the comparison on the GPU finds a difference that the host does not see")
    for name, table in spec["buffers"].items():
        if table["role"] == "workspace" and "expected" in table:
            want = (pack / table["expected"]).read_bytes()
            if gpu.download(shared[name], len(want)) != want:
                texts.append(f"{name} of the workspace does not return to what it was")
    return {
        "result": "wrong" if texts else "ok",
        "text": "; ".join(texts),
        "launches": done,
        "compared": done,
        "load_s": round(loading, 3),
        "us_per_launch": round(1000 * statistics.median(milliseconds), 3),
    }


def load(gpu, image):
    """A module of text or of machine code."""
    if image[:4] != b"\x7fELF":
        return run.load(gpu.driver, image)
    module = ctypes.c_void_p()
    gpu.driver("cuModuleLoadDataEx", ctypes.byref(module), image, 0, None, None)
    return module


def probe(pack, path, repeats):
    """Runs a probe; returns its numbers, a list for each run."""
    spec = json.loads(path.read_text())
    gpu = Gpu()
    module = load(gpu, (pack / spec["ptx"]).read_bytes())
    addresses = {}
    for name, table in spec["buffers"].items():
        addresses[name] = gpu.alloc(table["bytes"])
        # Gigabytes that are only read stay as they are.
        if "fill" in table:
            gpu.upload(addresses[name], contents(pack, table))
    gpu.sync()
    kernels, sequence = {}, []
    for one in spec["launches"]:
        params = [run.value(gpu.driver, p, addresses) for p in one.get("params", [])]
        kernel = kernels.setdefault(one["kernel"], Kernel(gpu, module, one["kernel"]))
        sequence.append((kernel, kernel.prepare(one, params)))
    size, rows = spec["buffers"]["out"]["bytes"], []
    # The first run warms caches and clocks.
    for _ in range(repeats + 1):
        # Some probes keep the largest time of several CTAs.
        gpu.upload(addresses["out"], bytes(size))
        gpu.sync()
        for kernel, one in sequence:
            kernel.go(one)
        gpu.sync()
        rows.append(list(struct.unpack(f"<{size // 8}Q", gpu.download(addresses["out"], size))))
    return {"result": "ok", "rows": rows[1:]}


def check(pack):
    """Whether memory, the driver's compiler and the comparison on the GPU work: equal buffers are equal, one flipped bit is seen."""
    gpu = Gpu()
    comparison = Comparison(gpu, pack)
    data = bytes(range(256)) * 64
    flipped = bytearray(data)
    flipped[4 * 1234] ^= 1
    pointers = [gpu.alloc(len(data)) for _ in range(2)]
    gpu.upload(pointers[0], data)
    gpu.upload(pointers[1], bytes(flipped))
    gpu.sync()
    found = comparison.all([(pointers[0], pointers[0], len(data)), (pointers[0], pointers[1], len(data))])
    if gpu.download(pointers[0], len(data)) != data:
        raise run.Failure("memory does not hold what was copied there")
    if found != [(0, 2**64 - 1), (1, 1234)]:
        raise run.Failure(f"the comparison on the GPU found {found}, should be no difference, then one at word 1234")
    return {"result": "ok"}


def identify():
    """What the driver says of the GPU."""
    gpu = Gpu()
    name, version, memory = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_size_t()
    gpu.driver("cuDeviceGetName", name, 256, gpu.device)
    gpu.driver("cuDriverGetVersion", ctypes.byref(version))
    gpu.driver("cuDeviceTotalMem_v2", ctypes.byref(memory), gpu.device)
    out = {"name": name.value.decode(errors="replace"), "memory_bytes": memory.value}
    out["cuda"] = f"{version.value // 1000}.{version.value % 1000 // 10}"
    out["capability"] = [gpu.attribute(MAJOR), gpu.attribute(MINOR)]
    out["smem_per_cta_bytes"] = gpu.attribute(SHARED_OPTIN)
    out.update({key: gpu.attribute(number) for key, number in ATTRIBUTES.items()})
    # The emulated driver names its device so, and a real one never does.
    out["emulated"] = out["name"].startswith("emulated ")
    return {"result": "ok", "gpu": out}
