"""The driver of `ab` names the variant whose process was killed."""

import pytest

from parabench.ab.remote import VariantProcess
from parabench.ab.variant import read_variant
from parabench.errors import UsageError


def test_killed_variant_is_reported_by_role() -> None:
    variant = VariantProcess(read_variant("b", "OMP_NUM_THREADS=2"), lambda name, progress: None)
    variant.process.kill()
    with pytest.raises(UsageError, match=r"the candidate \(OMP_NUM_THREADS=2\) ended by SIGKILL"):
        variant.identify()
    variant.wait()
