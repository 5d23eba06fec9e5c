"""What the paper reports, to stand beside what was measured here."""

from __future__ import annotations

import numpy as np

from goalward.stats import Interval


def _reported(estimate: float, low: float, high: float) -> Interval:
    """Returns an interquartile mean of normalised win rates with its 95 % interval."""
    return Interval(np.array(estimate), np.array(low), np.array(high))


# Table 2: suite -> method -> what it reached.
TABLE_2 = {
    "navix": {"cppo": _reported(0.995, 0.993, 0.996), "cdqn": _reported(0.702, 0.646, 0.749)},
    "jaxgcrl": {"cppo": _reported(0.806, 0.774, 0.832), "csac": _reported(0.916, 0.902, 0.930)},
    "smax": {"cppo": _reported(0.956, 0.951, 0.960), "icsac": _reported(0.840, 0.824, 0.859)},
    "connector": {"cppo": _reported(0.955, 0.950, 0.961), "icsac": _reported(0.909, 0.899, 0.918)},
    "jaxnav": {"cppo": _reported(0.692, 0.672, 0.705), "csac": _reported(0.626, 0.600, 0.653)},
}
