"""Where the released code departs from the paper or from correctness, each shown by a small experiment on the CPU.

Formulas of the released code are written down here from reading it; none of it is run or copied. Tasks are synthetic:
random class centres and noise of equal size in 64 dimensions, unit norm, cosine kernel, float64 unless said.
"""

from collections.abc import Callable
from typing import NamedTuple

from mirrorshot.reproduce import departures_baselines as others
from mirrorshot.reproduce import departures_inference as own
from mirrorshot.reproduce import departures_numerics as numerics
from mirrorshot.reproduce.sheets import Record, Sheet


class Departure(NamedTuple):
    """A place where the released code does something else.

    Attributes:
        paper: what the paper says, or what is right.
        released: what the released code does.
        measure: the experiment; returns what it found, by name, in the unit that the name says.
    """

    paper: str
    released: str
    measure: Callable[[], dict[str, float]]


DEPARTURES: dict[str, Departure] = {
    "shift of the sites": Departure("g_m - 2 g_v m", "g_m - 2 g_m g_v", own.fixed_point),
    "step size in training": Departure("rho = 1", "rho = 0.5, whatever is asked for", own.training_step_size),
    "steps at test": Departure("50", "30", own.test_steps),
    "start": Departure("the prior", "N(0, I)", own.start),
    "kernel of each class": Departure(
        "classes of a task have no order", "kernel parameters for every class slot", own.class_order
    ),
    "bound of CDKT": Departure("- C E[lambda]", "- E[lambda]", others.logistic_softmax_bound),
    "what the bound of CDKT prefers": Departure("- C E[lambda]", "- E[lambda]", others.collapse),
    "support of CDKT (PL)": Departure(
        "the labelled items", "the first rows of a class-major array", others.support_rows
    ),
    "quadrature of OVE": Departure("nodes times the standard deviation", "nodes times the variance", others.quadrature),
    "average over chains": Departure("of probabilities", "of their logarithms", others.averages),
    "inverse of K, float32": Departure("Sigma of a singular K exists", "inv(inv(K) + W)", numerics.inverse),
    "certain predictions, float32": Departure(
        "natural parameters of the sites", "mean and variance of the sites, and back", numerics.saturation
    ),
    "large latents, float32": Departure("softmax", "exp(f) / sum exp(f)", numerics.overflow),
    "a gradient that is NaN": Departure("-", "the step is left out, its gradient is kept", numerics.skipped_steps),
}
"""Departures by name."""


def measure_departures() -> Record:
    """Run all experiments."""
    return {
        "departures": {
            name: {"paper": departure.paper, "released": departure.released, "found": departure.measure()}
            for name, departure in DEPARTURES.items()
        }
    }


def departures_sheet(record: Record) -> Sheet:
    """What was found."""
    rows, records = [], []
    for name, about in record["departures"].items():
        for i, (what, value) in enumerate(about["found"].items()):
            rows.append(
                [*((name, about["paper"], about["released"]) if i == 0 else ("", "", "")), what, f"{value:.3g}"]
            )
            records.append({"departure": name, "paper": about["paper"], "released": about["released"],
                            "what": what, "value": value})  # fmt: skip
    columns = ("", "paper", "released code", "measured", "")
    return Sheet("Departures of the released code", columns, rows, records, [])
