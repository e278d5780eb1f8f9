"""Emulate any PTX kernel without a GPU, find its races, predict its time; and emit gated dual GEMMs."""

from ._errors import ArgumentError, ConfigError, Error, InternalError, LaunchError, PredictionError, PtxError
from ._kernel import Kernel, Knob, Tensor, emit, knobs
from ._launch import Buffer, Launch, Output, Pointer, Struct, TensorMap
from ._run import Entry, Finding, Parameter, Prediction, Problem, Report, Stats, check, emulate, emulate_file, entries, predict
from ._triton import TritonReport, triton, triton_launch

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Buffer",
    "ConfigError",
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
    "check",
    "emit",
    "emulate",
    "emulate_file",
    "entries",
    "knobs",
    "predict",
    "triton",
    "triton_launch",
]
