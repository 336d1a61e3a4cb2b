"""The section of what it ran on, and how its links are wired."""

from __future__ import annotations

from parabench.analysis import words
from parabench.analysis.instruments.machine_facts import gpu_rows, link_rows, machine_pairs
from parabench.analysis.session import Session
from parabench.pages.section import Section, Table


def machine_section(session: Session) -> Section:
    """What a session of any kind ran on."""
    environment = session.environment
    alike, devices, unread = gpu_rows(environment)
    head, links, legend = link_rows(environment)
    found = []
    if devices:
        found.append(Table("Devices", alike, devices, texts=len(alike), closed=False))
    if len(links) > 1:
        found.append(Table("How the devices are linked", head, links, texts=len(head), closed=False))
    said = []
    if devices:
        said.append("Clocks, links and modes are those of the moment when the session began.")
    if unread:
        said.append(f"Unknown: {words.listed(unread)}.")
    if len(links) > 1:
        said.append(f"Between two devices lies, written as nvidia-smi topo -m writes it: {'; '.join(legend)}.")
    return Section("machine", "Machine", " ".join(said), [], "", tuple(found), pairs=tuple(machine_pairs(environment)))
