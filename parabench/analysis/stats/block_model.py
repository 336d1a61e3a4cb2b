"""Names that moved to `stats.contrasts`."""

from parabench.analysis.stats.contrasts import COMMON_WEIGHT as COMMON_WEIGHT
from parabench.analysis.stats.contrasts import MOST_BLOCKS as MOST_BLOCKS
from parabench.analysis.stats.contrasts import ROUNDING as ROUNDING
from parabench.analysis.stats.contrasts import SHARP_ENOUGH as SHARP_ENOUGH
from parabench.analysis.stats.contrasts import TOO_WIDE as TOO_WIDE
from parabench.analysis.stats.contrasts import Effects as Effects
from parabench.analysis.stats.contrasts import fit as fit
from parabench.analysis.stats.contrasts import moderated as moderated
from parabench.analysis.stats.contrasts import turn_weights as turn_weights
