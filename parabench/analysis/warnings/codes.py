"""The code of each warning with its meaning (docs/reference/warnings.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parabench.analysis.session import Session
from parabench.store.record import Finding
from parabench.store.results import Results

CODES: dict[str, str] = {
    "batch_unseen": "the samples in the batches of a watched loop could not be counted",
    "broken": "configurations that succeeded in the first session fail in another, so no mean includes them",
    "busy": "`doctor`: another process uses the cores",
    "carry_over": "a configuration's turn in a shared launch depends on the configuration before it",
    "clocks_moved": "a device's clock moved by more than its usual range during the measured steps of a launch",
    "ddp_disagrees": "DDP's log and the instruments report different times for the same part of a step",
    "debug_environment": "an environment variable for debugging slowed the launches",
    "device_unreadable": "some or all readings of devices or of the host failed during measured steps",
    "data_bound": "ranks wait for their batches for a large part of a step",
    "drift": "the last third of a launch's measured steps differs from the first by more than in undisturbed launches",
    "ecc_errors": "a device's memory had errors",
    "energy": "the joules of two variants are from different sources",
    "fails_sometimes": "some launches of a configuration succeeded and others failed",
    "few_launches": "fewer than 3 launches of a configuration count, so their spread is hardly known",
    "foreign_process": "another process used a device during measured steps",
    "governor": "`doctor`: the CPU frequency governor lets clocks move",
    "host_busy": "other processes used the host's CPU during measured steps",
    "instrument_off": "an instrument of `watch` failed and was switched off; the training continued",
    "instruments_slow": "instrumented steps are so much slower that their explanation is approximate",
    "launch_bound": "on CUDA, a step takes as long as its host needs to enqueue it",
    "limited_cores": "`doctor`: the process may use fewer cores than the machine has",
    "links_unknown": "some links between ranks could not be measured",
    "little_memory": "`doctor`: little memory is free",
    "loss_cost": "stale gradients, so not equivalent to single-device training; with staleness and loss cost",
    "measured_on_cpu": "no device was selected, and no GPU could be used although torch or a driver supports one",
    "memory": "the peak memory of two variants is not of the same kind",
    "mfu_above_peak": "a configuration used more FLOP/s than the peak of its devices",
    "model_uncalled": "the loop never called the model that it passed to `watch`",
    "no_communication": "no communication was observed in the instrumented steps of a configuration on several ranks",
    "no_device_memory": "devices cannot be read, so their memory or health is unknown",
    "no_exchange": "no gradient exchange: a no-communication baseline, not a way to train",
    "no_measured_step": "a watched loop ended within its warm-up",
    "no_memory_snapshot": "`--memory-snapshot` needs CUDA",
    "no_shared_memory": "`doctor`: /dev/shm cannot be written",
    "nodes_differ": "the nodes of a session are not alike",
    "noisy": "launches of a configuration differ by more than on an undisturbed machine",
    "not_compiled": "torch.compile ran a configuration in eager mode, as a whole or in part",
    "one_core": "`doctor`: the machine has one core",
    "one_machine": "two machines were compared by one session each",
    "other_arithmetic": "ranks multiplied float32 in a different arithmetic than the precision requires",
    "other_algorithm": "the selected algorithm has no such operation, so another one ran",
    "other_optimizer": "another optimizer stepped within the steps of a watched loop",
    "oversubscribed": "more computing threads than cores",
    "pin_refused": "NCCL refused a pinned algorithm, so the configuration was not launched again",
    "poor_fit": "the cost model does not fit the measured times",
    "power_capped": "a device was at its power limit during measured steps",
    "recording_clocks": "the clocks of the hosts of imported traces may differ, or do",
    "recording_hang": "some ranks did not enter or finish calls or messages",
    "recording_left_out": "parts of imported files could not be read, with the reasons",
    "recording_mismatch": "ranks of a group called different collectives, or different sizes",
    "recording_profiled": "a profiler was active in the steps of an imported trace",
    "recording_ranks": "the traces of some ranks are missing",
    "shared_cpu": "`doctor`: ranks run on CPU cores, which other processes share",
    "shared_device": "several ranks ran on one device (MPS or time slicing): speed and scaling are not meaningful",
    "slow_link": "a link is slower than others of its kind",
    "slow_node": "the ranks of a node compute slower than the ranks of the others",
    "slow_node_links": "all links of a node are slower than the links between other nodes",
    "slow_rank": "a rank computes its forward pass slower than the others in every launch",
    "slow_rank_links": "all links of a rank are slower than the links of the other ranks of its node",
    "software": "two machines that were compared also differ in software",
    "statistic": "the per-launch statistic is a median for one variant and a 10th percentile for the other",
    "steps_sampled": "the steps of a watched loop were sampled at random, because there were too many",
    "straggler": "others wait for one rank for a large part of a step",
    "throttled": "a device throttled during measured steps",
    "trial": "`check`: a mistake in a model, or a property that makes correct training runs differ",
    "unfinished": "a compared session is not finished",
    "unpaired": "two variants were measured one after the other",
    "unverified": "a configuration was not verified against one device",
    "watched": "the session is a watched training loop",
    "weaker_verification": "a configuration was verified at a weaker level than `exact`",
}


@dataclass(frozen=True)
class FindingGroup:
    """Findings of one code and advice: what each says, beginning with the label of its case."""

    code: str
    advice: str
    messages: tuple[str, ...]

    @property
    def about(self) -> str:
        """What findings of this code warn of; empty for a code that this version does not know, from a newer store."""
        return CODES.get(self.code, "")


def all_findings(results: Results, session: Session, computed: Iterable[Finding]) -> list[Finding]:
    """Return stored and computed findings, equal ones once."""
    rows = results.of([session.id]).finding.to_dict("records")
    stored = [
        Finding(row["code"], row["message"], row["advice"], row["case_id"] if isinstance(row["case_id"], str) else None)
        for row in rows
    ]
    return list(dict.fromkeys([*stored, *computed]))


def finding_groups(
    results: Results, session: Session, computed: Iterable[Finding], labels: Mapping[str, str]
) -> list[FindingGroup]:
    """Return stored and computed findings by code and advice. `labels` are by case id."""
    groups: dict[tuple[str, str], list[str]] = {}
    for finding in all_findings(results, session, computed):
        label = labels.get(finding.case_id or "", "")
        text = finding.message if label in finding.message else f"{label}: {finding.message}"
        groups.setdefault((finding.code, finding.advice), []).append(text)
    return [FindingGroup(code, advice, tuple(messages)) for (code, advice), messages in groups.items()]
