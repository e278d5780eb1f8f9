"""Gated dual GEMMs and GEMMs on tensors of torch and others; emulate any PTX kernel without a GPU, find its races, predict its time."""

from ._errors import ArgumentError, ConfigError, DeviceError, Error, InternalError, LaunchError, PredictionError, PtxError
from ._gemm import clear_kernels, dual_gemm, gemm
from ._kernel import Kernel, Knob, Tensor, emit, knobs
from ._launch import Buffer, Launch, Output, Pointer, Struct, TensorMap
from ._quantize import blocked_scales, quantize
from ._run import Entry, Finding, Parameter, Prediction, Problem, Report, Stats, check, emulate, emulate_file, entries, predict
from ._triton import TritonReport, triton, triton_launch

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Buffer",
    "ConfigError",
    "DeviceError",
    "Entry",
    "Error",
    "Finding",
    "InternalError",
    "Kernel",
    "Knob",
    "Launch",
    "LaunchError",
    "Output",
    "Parameter",
    "Pointer",
    "Prediction",
    "PredictionError",
    "Problem",
    "PtxError",
    "Report",
    "Stats",
    "Struct",
    "Tensor",
    "TensorMap",
    "TritonReport",
    "blocked_scales",
    "check",
    "clear_kernels",
    "dual_gemm",
    "emit",
    "emulate",
    "emulate_file",
    "entries",
    "gemm",
    "knobs",
    "predict",
    "quantize",
    "triton",
    "triton_launch",
]
