"""The simulated wire reports messages that would hang or race on a real wire."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from parabench.collectives.wire import Wire
from simulated import Simulation, SimulationError


def send(wire: Wire, tensor: Tensor, peer: int) -> None:
    wire.send(tensor, peer).wait()


def receive(wire: Wire, tensor: Tensor, peer: int) -> Tensor:
    wire.recv(tensor, peer).wait()
    return tensor


def test_simulation_raises_for_lost_messages() -> None:
    with pytest.raises(SimulationError, match=r"rank 0 sends to rank 1 .*the other end never came"):
        Simulation(2).run(lambda wire: wire.send(torch.zeros(3), 1) if wire.rank == 0 else None)

    def impatient(wire: Wire) -> None:
        if wire.rank == 0:
            wire.send(torch.zeros(3), 1)
        else:
            receive(wire, torch.zeros(3), 0)

    with pytest.raises(SimulationError, match=r"rank 0 sends to rank 1 .*without having waited"):
        Simulation(2).run(impatient)


def test_simulation_detects_a_race_on_a_sent_buffer() -> None:
    def work(wire: Wire) -> Tensor:
        tensor = torch.ones(2)
        if wire.rank == 1:
            return receive(wire, tensor, 0)
        sending = wire.send(tensor, 1)
        tensor.zero_()  # before it has left
        sending.wait()
        return tensor

    assert Simulation(2).run(work).results[1].tolist() == [0, 0]
