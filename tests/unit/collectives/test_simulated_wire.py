"""The simulated wire itself: what would hang or race on a real wire is told, and logical time counts hops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from parabench.collectives.wire import Wire
from simulated import Simulation, SimulationError, rounds


def send(wire: Wire, tensor: Tensor, peer: int) -> None:
    wire.send(tensor, peer).wait()


def receive(wire: Wire, tensor: Tensor, peer: int) -> Tensor:
    wire.recv(tensor, peer).wait()
    return tensor


def test_messages_that_nobody_receives_or_waits_for_are_errors() -> None:
    with pytest.raises(SimulationError, match=r"rank 0 sends to rank 1 .*the other end never came"):
        Simulation(2).run(lambda wire: wire.send(torch.zeros(3), 1) if wire.rank == 0 else None)

    def impatient(wire: Wire) -> None:
        if wire.rank == 0:
            wire.send(torch.zeros(3), 1)
        else:
            receive(wire, torch.zeros(3), 0)

    with pytest.raises(SimulationError, match=r"rank 0 sends to rank 1 .*without having waited"):
        Simulation(2).run(impatient)


def test_a_race_on_a_sent_buffer_shows() -> None:
    def work(wire: Wire) -> Tensor:
        tensor = torch.ones(2)
        if wire.rank == 1:
            return receive(wire, tensor, 0)
        sending = wire.send(tensor, 1)
        tensor.zero_()  # before it has left
        sending.wait()
        return tensor

    assert Simulation(2).run(work).results[1].tolist() == [0, 0]


def test_a_race_on_a_posted_receive_shows() -> None:
    def work(wire: Wire) -> Tensor:
        tensor = torch.ones(2)
        if wire.rank == 0:
            send(wire, tensor, 1)
            return tensor
        receiving = wire.recv(tensor, 0)
        early = tensor + 0  # before it has come
        receiving.wait()
        return early

    assert Simulation(2).run(work).results[1].isnan().all()


def test_messages_of_a_pair_keep_their_order() -> None:
    def work(wire: Wire) -> list[float]:
        got = []
        if wire.rank > 0:
            got = [receive(wire, torch.zeros(1), wire.rank - 1).item() for _ in range(2)]
        if wire.rank < 2:
            for number in got or [5.0, 6.0]:
                send(wire, torch.tensor([number]), wire.rank + 1)
        return got

    record = Simulation(3).run(work)
    assert record.results == [[], [5, 6], [5, 6]]
    found = [(m.src, m.dst, float(m.data), at) for m, at in rounds(record, one_port=True).items() if m.data is not None]
    assert found == [(0, 1, 5, 1), (0, 1, 6, 2), (1, 2, 5, 3), (1, 2, 6, 4)]
