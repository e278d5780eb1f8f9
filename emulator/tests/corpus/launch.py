"""Writing what the tests read: PTX without comments, and launch files. For the make.py of each folder."""

import re


def strip(text):
    """PTX without comments (they hold paths, dates and source lines) and empty lines."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"[ \t]*//.*$", "", text, flags=re.M)
    return re.sub(r"\n\s*\n+", "\n", text).lstrip()


class Buffer:
    """Device memory of `size` bytes; every byte is `fill`, or nothing has been written."""

    def __init__(self, size, fill=0x3C):
        self.size, self.fill = size, fill


def out(size):
    return Buffer(size, None)


def tensor_map(buffer, data_type, dims, box, strides=None, swizzle="none", offset=0, oob_fill="none", element_strides=None):
    """A tensor map parameter; dimensions and box innermost first, strides in bytes without the innermost."""
    text = f'tensor_map = {{ buffer = "{buffer}", data_type = "{data_type}", dims = {list(dims)}, box = {list(box)}, swizzle = "{swizzle}"'
    if strides is not None:
        text += f", strides = {list(strides)}"
    if element_strides is not None:
        text += f", element_strides = {list(element_strides)}"
    if oob_fill != "none":
        text += f', oob_fill = "{oob_fill}"'
    if offset:
        text += f", offset = {offset}"
    return text + " }"


def pointer(name):
    return f'pointer = "{name}"'


def launch_file(ptx, kernel, grid, block, buffers, params, cluster=(1, 1, 1), smem=0):
    """The text of a launch file. `params` are lines of TOML, one a parameter."""
    three = lambda d: list(d) + [1] * (3 - len(d))
    lines = [f'ptx = "{ptx}"', f'kernel = "{kernel}"', f"grid = {three(grid)}", f"block = {three(block)}", f"cluster = {three(cluster)}", f"dynamic_smem = {smem}"]
    for name, b in buffers.items():
        lines.append(f"[buffers.{name}]")
        if hasattr(b, "values"):
            lines.append(f"values = [{', '.join(b.values)}]")
            continue
        lines.append(f"bytes = {b.size}")
        if b.fill is not None:
            lines.append(f"fill = {b.fill}")
    for p in params:
        lines += ["[[params]]", p]
    return "\n".join(lines) + "\n"
