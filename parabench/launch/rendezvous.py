"""torch elastic's rendezvous for nodes that have already agreed who they are: it only hands over what they know."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from parabench.launch.context import LaunchContext

BACKEND = "parabench"


class AgreedRendezvous(RendezvousHandler):
    """The rendezvous of one launch. Nothing listens for it: its store is the session's, or on one node in memory."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        self._team: LaunchContext = parameters.config["team"]

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        team, meeting = self._team, self._team.meeting
        where = RendezvousStoreInfo(meeting.address, meeting.port) if meeting else RendezvousStoreInfo("127.0.0.1", 0)
        return RendezvousInfo(team.agents_store(), team.node, team.nodes, where)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def register() -> None:
    """Make it known to torch elastic; to do so again changes nothing."""
    rendezvous_handler_registry.register(BACKEND, AgreedRendezvous)
