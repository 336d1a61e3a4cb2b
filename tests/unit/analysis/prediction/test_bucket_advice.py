"""What `predict --buckets` says: a list of buckets is advised only where it is expected to gain more than predictions
of lists have been off by."""

from __future__ import annotations

from dataclasses import replace

from fake_base import of_ranks
from parabench.analysis.prediction.buckets import Buckets
from parabench.analysis.prediction.choose import BucketList
from parabench.analysis.prediction.predict import Prediction
from parabench.analysis.text.format import percent
from parabench.analysis.text.prediction import bucket_lines
from parabench.store.record import MIB

CASE = of_ranks(2, nodes=2)
BUCKETS = Buckets((MIB // 2, 2 * MIB, 4 * MIB), 0.5)
LIST = "0.5+2+4"


def said(listed_s: float, single_mib: float | None = 4.0) -> list[str]:
    """What is said of a list by which a step takes so long, where it takes a second by the best single cap."""
    caps = ((BUCKETS.caps_mib, listed_s), (single_mib, 1.0))
    listed, single = (
        Prediction(case=replace(CASE, bucket_mib=cap), step_s=took, low_s=0.9 * took, high_s=1.1 * took)
        for cap, took in caps
    )
    return list(bucket_lines(BucketList(BUCKETS, listed, single)))


def test_a_list_that_gains_next_to_nothing_is_not_named() -> None:
    lines = said(1 / 1.009)
    assert len(lines) == 2
    assert lines[0].startswith("The best single cap, ")
    assert lines[0].endswith(f"No list of buckets was found that gives more than {percent(0.009)} over it.")
    assert lines[1] == "  model = DistributedDataParallel(model, bucket_cap_mb=4)"


def test_a_list_that_is_worse_gains_nothing() -> None:
    assert said(1.02)[0].endswith(f"gives more than {percent(0.0)} over it.")


def test_a_list_that_gains_less_than_predictions_were_off_by_is_to_be_measured_first() -> None:
    lines = said(1 / 1.03)
    assert "No list" not in lines[0]
    assert lines[1] == "  model = DistributedDataParallel(model, bucket_cap_mb=4)"
    assert lines[2].startswith(f"A list of 3 buckets is expected to be {percent(0.03)} faster: ")
    assert f"off by ({percent(0.05)}), so measure it" in lines[2]
    assert lines[3] == (
        f"Measure it: parabench run bucket_size --set algorithm={CASE.algorithm} --set bucket_mib=4,{LIST}"
    )


def test_a_list_that_gains_more_is_advised_with_the_line_of_code() -> None:
    lines = said(1 / 1.05 - 1e-9)
    assert lines[0].startswith("3 buckets in the order of reduction: ")
    assert f"The list is expected to be {percent(0.05)} faster:" in lines[1]
    assert lines[2] == "  model = DistributedDataParallel(model, bucket_cap_mb_list=[0.5, 2.0, 4.0])"
    assert lines[3].startswith("Measure it: ")


def test_pytorchs_own_caps_are_no_argument() -> None:
    lines = said(1 / 1.03, single_mib=None)
    assert lines[1] == "  model = DistributedDataParallel(model)"
    assert lines[3].endswith(f"--set bucket_mib=default,{LIST}")
