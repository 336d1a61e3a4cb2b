"""The error message of a rank, and the recognition of out-of-memory errors."""

import os
from pathlib import Path

import pytest
import torch

from guard import GUARD_S
from parabench.launch.processes import run_processes
from parabench.launch.rank import in_a_line, is_out_of_memory

UNUSED = (
    "Expected to have finished reduction. This error indicates that your module has parameters that were not used in "
    "producing loss. "
)


def caused(message: str, cause: BaseException) -> RuntimeError:
    error = RuntimeError(message)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("too long\nand more"), "ValueError: too long"),
        (KeyError(), "KeyError"),
        (
            caused("ring broke: ValueError: no wire", ValueError("no wire")),
            "RuntimeError: ring broke: ValueError: no wire",
        ),
        (caused("\n   [Stage 1] failed to run forward:\n", ValueError("a bomb")), "ValueError: a bomb"),
        (RuntimeError("\n  only this\n"), "RuntimeError: only this"),
        (
            RuntimeError(f"{UNUSED}You can enable unused parameter detection by passing find_unused_parameters=True"),
            "RuntimeError: Expected to have finished reduction: the loss does not depend on every parameter; use "
            "--set find_unused_parameters=on",
        ),
        (
            RuntimeError(f"{UNUSED}Parameters which did not receive grad for rank 0: bias"),
            "RuntimeError: Expected to have finished reduction: a parameter affects the output but not the loss; "
            "return a dict or a tuple, not a dataclass, or let the loss depend on every output of module",
        ),
        (
            RuntimeError("setStorage: sizes [64, 32], strides [1, 64] are out of bounds for storage of size 0"),
            "RuntimeError: setStorage: sizes [64, 32], strides [1, 64] are out of bounds for storage of size 0: a "
            "parameter is needed after FSDP freed it, as by a second backward (gradient penalty); use --set "
            "strategy=ddp",
        ),
    ],
)
def test_error_is_one_line(error: BaseException, said: str) -> None:
    assert in_a_line(error) == said


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    torch.distributed.DistBackendError(
        "NCCL error in: ProcessGroupNCCL.cpp:3699, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL "
        "version 2.28.9\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of "
        "memory'"
    ),
    torch.distributed.DistBackendError("Last error:\nCuda failure 'out of memory'"),
    RuntimeError(
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1131, please report '
        "a bug to PyTorch. "
    ),
    RuntimeError("HIP error: out of memory"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: f"{type(error).__name__} {str(error)[:40]}")
def test_every_out_of_memory_message_is_recognized(error: BaseException) -> None:
    assert is_out_of_memory(error)
    assert is_out_of_memory(caused("[Stage 1] failed to run forward", error))
    later = ValueError("while cleaning up")
    later.__context__ = error
    assert is_out_of_memory(later)


def test_other_errors_do_not_count_as_out_of_memory() -> None:
    for error in (
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError('handle INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1300'),
        torch.distributed.DistBackendError("Cuda failure 1 'invalid argument'"),
        ValueError("the user's file is called 'CUDA out of memory.txt'"),
    ):
        assert not is_out_of_memory(error)
    hidden = ValueError("something else")
    hidden.__context__, hidden.__suppress_context__ = MemoryError(), True
    assert not is_out_of_memory(hidden)


def test_torch_asks_for_devices_through_nvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """torch elastic asks before every launch. Without the variable, it would create a context on each device."""
    asked = []
    monkeypatch.setattr(
        torch.cuda, "is_available", lambda: bool(asked.append(os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")))
    )
    assert run_processes(os.getpid, (), size=1, deadline_s=GUARD_S, logs=tmp_path).ok
    assert set(asked) == {"1"}
