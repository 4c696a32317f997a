"""
Figures 1 and 2 of the paper
============================

F. Nori's paper counts the operations of problems solved as one sparse system: forward dynamics of chains (Figure 1),
and inverse dynamics of chains on load cells at both ends (Figure 2). ``experiments/fig1.py`` and ``fig2.py`` count
them again, with the paper's counter and exactly; here their committed results are drawn, and
``experiments/results/findings.md`` says what was found: Figure 1 is reproduced, and what its counter leaves out
decides it.

Runs in ``docs/gallery`` of a clone of the repository.
"""

import csv
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt

results = Path("../../experiments/results").resolve()


def curve(rows, counter, algorithm):
    """(bodies, operations) of an algorithm by a counter, the median of states; all outputs where there is a choice."""
    chosen = [r for r in rows if r["counter"] == counter and r["algorithm"] == algorithm]
    totals = {}
    for r in [r for r in chosen if r["outputs"] == "all"] or chosen:
        totals.setdefault(int(r["bodies"]), []).append(sum(int(r[x]) for x in ("mul", "add", "div", "sqrt")))
    return zip(*((n, median(x)) for n, x in sorted(totals.items())), strict=True)


styles = {
    "LU, rows pivoted": ("#6E6E6E", "s", "LU with row pivoting"),
    "LU, permuted": ("#D55E00", "o", "LU with UMFPACK's permutations"),
    "matrix ABA": ("#009E73", "^", "articulated bodies, as matrices"),
    "ABA, formula": ("#000000", "", "articulated bodies, by formula"),
    "compile, q̈": ("#56B4E9", "*", "compiled by sysdyn, accelerations alone"),
    "compile": ("#56B4E9", "*", "compiled by sysdyn"),
}
figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained", sharex="row")
for line, name, title, most in zip(
    axes, ("fig1", "fig2"), ("Figure 1: chains", "Figure 2: load cells"), (31, 21), strict=True
):
    with open(results / f"{name}.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(row for row in file if not row.startswith("#")))
    for axis, counter in zip(line, ("published", "exact, end to end"), strict=True):
        for algorithm, (colour, marker, label) in styles.items():
            if any(r["counter"] == counter and r["algorithm"] == algorithm for r in rows):
                bodies, total = curve(rows, counter, algorithm)
                axis.plot(bodies, total, color=colour, marker=marker, ms=4, lw=1.2, label=label)
        axis.set(yscale="log", title=f"{title}, {'counter of the paper' if counter == 'published' else counter}")
        axis.set(xlabel="bodies", ylabel="operations for one state", xlim=(0, most))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
plt.show()
