"""Each code that a `record.Finding` may have, and what it warns of (docs/reference/warnings.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parabench.analysis.session import Session
from parabench.store.record import Finding
from parabench.store.results import Results

CODES: dict[str, str] = {
    "batch_unseen": "what the batches of a watched loop hold could not be counted",
    "broken": "cases that succeeded on the first side fail on another, so no mean includes them",
    "busy": "`doctor`: something else uses the cores",
    "carry_over": "a configuration's turn in a shared launch depends on the configuration before it",
    "clocks_moved": "a device's clock moved by more than its usual range during the timed steps of one launch",
    "ddp_disagrees": "DDP's own log and the instruments give different times for the same part of a step",
    "debug_environment": "an environment variable for debugging slowed the launches",
    "device_unreadable": "a reading of devices or of the host failed during timed steps, or all of them did",
    "data_bound": "the ranks of a case wait for their batches for much of a step",
    "drift": "the last third of a launch's timed steps differs from the first by more than undisturbed launches do",
    "ecc_errors": "a device's memory had errors",
    "energy": "the joules of two sides are from different sources",
    "fails_sometimes": "some launches of a case succeeded and others did not",
    "few_launches": "fewer than 3 launches of a case count, so their spread is hardly known",
    "foreign_process": "a process that is none of the benchmark's was on a device during timed steps",
    "governor": "`doctor`: the CPU frequency governor lets clocks move",
    "host_busy": "other processes used the host's CPU during timed steps",
    "instrument_off": "an instrument of `watch` failed and was switched off; the training went on",
    "instruments_slow": "an instrumented step takes so much longer than a timed one that it explains another step",
    "launch_bound": "the step of a case on CUDA lasts as long as its host needs to enqueue it",
    "limited_cores": "`doctor`: the process may use fewer cores than the machine has",
    "links_unknown": "some links between ranks could not be measured",
    "little_memory": "`doctor`: little memory is free",
    "loss_cost": "stale gradients, so not equivalent to single-device training; how stale, and the cost in loss",
    "measured_on_cpu": "no device was named, and no GPU could be used although torch or a driver is made for one",
    "memory": "peak memory is not of the same kind on two sides",
    "mfu_above_peak": "a case used more arithmetic than its devices have at their peak",
    "no_communication": "a case on several ranks was seen to communicate nothing in its instrumented steps",
    "no_device_memory": "devices cannot be read, so their memory or health is unknown",
    "no_exchange": "no gradient exchange: a no-communication baseline, not a way to train",
    "no_measured_step": "a watched loop took no more steps than its warm-up has",
    "no_memory_snapshot": "`--memory-snapshot` was asked for, which only CUDA has",
    "no_shared_memory": "`doctor`: /dev/shm cannot be written",
    "nodes_differ": "the nodes of a session are not alike",
    "noisy": "launches of one case differ by more than those of an undisturbed machine",
    "not_compiled": "torch.compile left a case to eager mode, as a whole or in part",
    "one_core": "`doctor`: the machine has one core",
    "one_machine": "two machines were compared by one session each",
    "other_arithmetic": "ranks multiplied float32 in another arithmetic than the case's precision says",
    "other_algorithm": "another algorithm ran than was asked for, which has no such operation",
    "other_optimizer": "another optimizer stepped within the steps of a watched loop",
    "oversubscribed": "more computing threads than cores",
    "pin_refused": "NCCL refused an algorithm that it was pinned to, so that case was not launched again",
    "poor_fit": "the cost model is far from what was measured",
    "power_capped": "a device was at its power limit during timed steps",
    "recording_clocks": "clocks of the hosts of recordings may differ, or do",
    "recording_hang": "calls or messages that some ranks did not enter, or that were not finished",
    "recording_left_out": "what of recordings could not be read, and why",
    "recording_mismatch": "ranks of a group called different collectives, or different sizes",
    "recording_profiled": "the steps of a recording were timed with a profiler in them",
    "recording_ranks": "of some ranks there is no recording",
    "shared_cpu": "`doctor`: ranks run on CPU cores, which other processes share",
    "shared_device": "several ranks ran on one device, through MPS or by turns: neither speed nor scaling can be read",
    "shared_gpu_nccl": "several ranks of NCCL ran on one GPU: that is for correctness, and says nothing of time",
    "slow_link": "one link is slower than others of its kind",
    "slow_node": "the ranks of one node compute slower than those of the others",
    "slow_node_links": "all links of a node are slower than those between other nodes",
    "slow_rank": "one rank computes its forward pass slower than the others in every launch",
    "slow_rank_links": "all links of a rank are slower than those of the other ranks of its node",
    "software": "two machines that were compared differ in software too",
    "statistic": "a launch's number is a median on one side and a 10th percentile on the other",
    "steps_sampled": "a watched loop took so many steps that a random sample of them is recorded",
    "straggler": "others wait for one rank for much of a step",
    "throttled": "a device throttled during timed steps",
    "unfinished": "a session that is compared was to go on",
    "unpaired": "two sides were measured one after the other",
    "unverified": "a case's training was not compared with one device's",
    "watched": "the training was a loop of the user's own",
    "weaker_verification": "a case was compared with one device at a weaker level than `exact`",
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


def finding_groups(
    results: Results, session: Session, computed: Iterable[Finding], labels: Mapping[str, str]
) -> list[FindingGroup]:
    """Stored and computed findings, those of one code together; equal ones once. `labels` are by case id."""
    stored = results.of([session.id]).finding
    found = [
        Finding(
            code=str(row["code"]),
            message=str(row["message"]),
            advice=str(row["advice"]),
            case_id=row["case_id"] if isinstance(row["case_id"], str) else None,
        )
        for row in stored.to_dict("records")
    ]
    every = dict.fromkeys([*found, *computed])
    groups: dict[tuple[str, str], list[str]] = {}
    for finding in every:
        label = labels.get(finding.case_id or "", "")
        said = finding.message if label in finding.message else f"{label}: {finding.message}"
        groups.setdefault((finding.code, finding.advice), []).append(said)
    return [FindingGroup(code, advice, tuple(messages)) for (code, advice), messages in groups.items()]
