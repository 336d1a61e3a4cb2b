"""The table of metrics with their units, the parts of a step, and the parts of memory."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """The SI unit and the meaning of a metric."""

    unit: str
    meaning: str


METRICS: dict[str, Metric] = {
    "step_s": Metric("s", "one training step: data, forward, backward, optimizer"),
    "data_s": Metric("s", "waiting for the step's batch"),
    "forward_s": Metric("s", "forward pass and loss"),
    "backward_s": Metric("s", "backward pass, with the communication that it waits for"),
    "forward_backward_s": Metric("s", "forward and backward, if they alternate: micro-batches, accumulation"),
    "optimizer_s": Metric("s", "optimizer step and clearing of gradients"),
    "other_s": Metric("s", "the rest: a watched loop after its optimizer, or unnamed parts of a trace"),
    "device_lag_s": Metric("s", "maximum time that the CUDA device was behind its host at the marks of a step"),
    "device_clock_error_s": Metric("s", "maximum error of a timestamp of the CUDA device on the host's clock"),
    "device_clock_drift": Metric("1", "drift of the CUDA device's clock against the host's, per second"),
    "loss": Metric("1", "mean loss of this rank's part of the batch; for next tokens, in nats"),
    "grad_norm": Metric("1", "L2 norm of the whole gradient, at the first step"),
    "stage_busy_share": Metric("1", "share of a pipeline's forward and backward that the rank's stages compute"),
    "staleness_mean": Metric("1", "mean number of updates by other ranks since a gradient's parameters were read"),
    "staleness_max": Metric("1", "maximum of the same"),
    "parameter_bytes": Metric("B", "parameters of the rank at most, counted from tensors"),
    "gradient_bytes": Metric("B", "gradients of the rank after backward, counted from tensors"),
    "optimizer_bytes": Metric("B", "optimizer state of the rank, counted from tensors"),
    "peak_rss_bytes": Metric("B", "peak resident set of the rank's process"),
    "peak_allocated_bytes": Metric("B", "peak memory in torch's CUDA tensors"),
    "peak_reserved_bytes": Metric("B", "peak memory that torch's CUDA allocator held"),
    "used_bytes": Metric("B", "memory in use on the device, or by a rank on it, as NVML reports it"),
    "foreign_processes": Metric("1", "processes on the device, except the launch's ranks and monitors"),
    "foreign_bytes": Metric("B", "memory in use on the device by such processes"),
    "mps_servers": Metric("1", "servers of CUDA's Multi-Process Service on the device"),
    "gpu_utilization": Metric("1", "share of recent time when a kernel ran, as NVML reports it"),
    "memory_utilization": Metric("1", "share of recent time when device memory was read or written"),
    "power_w": Metric("W", "power draw of the device"),
    "energy_j": Metric("J", "energy of the device since its driver was loaded: a counter"),
    "temperature_c": Metric("degC", "temperature of the GPU"),
    "sm_clock_hz": Metric("Hz", "clock of the multiprocessors"),
    "memory_clock_hz": Metric("Hz", "clock of the device's memory"),
    "clock_event_reasons": Metric("1", "why the clocks are not higher: a bit mask, as in nvml.h"),
    "pcie_tx_bytes_per_s": Metric("B/s", "sent over PCIe since the previous reading"),
    "pcie_rx_bytes_per_s": Metric("B/s", "received over PCIe since the previous reading"),
    "nvlink_tx_bytes_per_s": Metric("B/s", "data sent over all NVLinks since the previous reading"),
    "nvlink_rx_bytes_per_s": Metric("B/s", "data received over all NVLinks since the previous reading"),
    "ecc_corrected": Metric("1", "memory errors corrected since the driver was loaded: a counter"),
    "ecc_uncorrected": Metric("1", "memory errors not corrected since the driver was loaded: a counter"),
    "rss_bytes": Metric("B", "resident set of the rank's process"),
    "other_cpu_share": Metric("1", "share of the host's CPU time that other processes used since the last reading"),
}

# The parts of an instrumented step whose memory is read, and their content.
MEMORY_PARTS = {
    "begin": "when a step begins: parameters and optimizer state",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "forward_backward": "in forward and backward, if they alternate",
    "optimizer": "in the optimizer's step",
}
# {metric of one part: its meaning}. On the CPU, torch's allocator keeps no count, so only the resident set is read.
MEMORY_READINGS = {
    "allocated_bytes": "peak memory in torch's CUDA tensors",
    "reserved_bytes": "peak memory that torch's CUDA allocator held",
    "unused_bytes": "held by torch's CUDA allocator and in no tensor, at the end",
    "inactive_split_bytes": "the part of it in split blocks, which cannot be returned to the device, at the end",
    "rss_bytes": "resident set of the rank's process, at the end",
}
METRICS |= {
    f"{part}_{reading}": Metric("B", f"{meaning}, {when}")
    for part, when in MEMORY_PARTS.items()
    for reading, meaning in MEMORY_READINGS.items()
}

# A step consists of these parts, with forward and backward either separate or alternating.
STEP_PARTS = {
    "data_s": "data",
    "forward_s": "forward",
    "backward_s": "backward",
    "forward_backward_s": "forward and backward",
    "optimizer_s": "optimizer",
    "other_s": "after the optimizer",
}

# The model states of a rank.
STATE_PARTS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
