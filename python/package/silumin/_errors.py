"""Exceptions of the package. All of them are `silumin.Error`."""

from __future__ import annotations


class Error(Exception):
    """What silumin raises. The text names the thing, its limit and a way out."""


class ConfigError(Error, ValueError):
    """A kernel that cannot be made: a knob, a format, a gate or a shape is not legal."""


class PtxError(Error, ValueError):
    """PTX that is malformed, or that the emulator does not support. The text has every line."""


class LaunchError(Error, ValueError):
    """A launch that a device would refuse, or arguments that are not the kernel's parameters."""


class ArgumentError(Error, ValueError):
    """An argument of a function of this package."""


class DeviceError(Error, RuntimeError):
    """A GPU that is missing, has no kernels, or has failed."""


class PredictionError(Error, RuntimeError):
    """A launch whose time cannot be predicted."""


class InternalError(Error, RuntimeError):
    """A mistake in silumin itself."""
