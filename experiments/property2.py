"""Property 2: the articulated-body algorithm is W^L D W^R, lower triangular in the order (34), (35).

Compared with the ABA at one random state of each robot: what is left above the diagonal, the accelerations, and what
comes out where the paper is followed to the letter: (35) as printed, and b not multiplied by W^L.
"""

import numpy as np
import scipy.sparse
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from nori.harness import main, read_csv, write_csv
from nori.matrix_aba import matrix_aba

import sysdyn as sd
from sysdyn.app.matrix_plot import save_pictures
from sysdyn.measurements.variables import LAYOUTS

TITLE = "the articulated-body algorithm as a triangular matrix"
CLAIM = (
    "there are W^L, W^R and permutations (34), (35) for which W^L D W^R of forward dynamics is lower triangular, and "
    "W^L D W^R d + b = 0 is the ABA (Property 2)."
)
# Each kind of tree is made of a number of bodies.
TREES = {
    "chain": lambda n: sd.chain(n, seed=n),
    "the paper's tree": lambda n: sd.auto_tree(n, 1.5, 1.5, 0.9),
    "random tree, all joint types": lambda n: sd.random_tree(n, seed=n),
}
# Each kind of tree has a colour and a marker.
STYLES = {
    "chain": {"color": "#0072B2", "marker": "o"},
    "the paper's tree": {"color": "#D55E00", "marker": "s", "markerfacecolor": "none"},
    "random tree, all joint types": {"color": "#000000", "marker": "x"},
}
# An entry below this fraction of the terms whose sum it is has cancelled.
ROUNDING = 1e-12
# A relative error below this is none.
RIGHT = 1e-6
# The picture shows a robot of this many bodies.
SHOWN = 5


def compute(folder, quick):
    sizes = (1, 2, 3, 6, 12) if quick else (*range(1, 31), 40, 60, 80, 100)
    rows = [
        compare(name, tree(n), n, layout) for n in sizes for name, tree in TREES.items() for layout in LAYOUTS
    ]  # fmt: skip
    write_csv(folder / "property2.csv", rows)
    write_csv(folder / "property2_matrix.csv", matrix(sd.auto_tree(SHOWN, 1.5, 1.5, 0.9)))


def compare(name, model, n, layout):
    """The triangle against the ABA, for torques of a random motion under random external wrenches."""
    system = sd.assemble(sd.forward_dynamics(model), layout)
    q, qd, qdd = model.random_state(seed=n)
    fx = np.einsum("ijk,ik->ij", model.inertias, np.random.default_rng(n).standard_normal((model.nb, 6)))
    tau = sd.rnea(model, q, qd, qdd, fx)
    D, b, W = system.D(q), system.b(q, qd, tau=tau, fx=fx), matrix_aba(system, q)
    row, col, size = entries(W, D)
    above = np.argsort(W.col_perm)[col] > np.argsort(W.row_perm)[row]
    above_printed = np.argsort(W.col_perm)[col] > np.argsort(printed_rows(system))[row]
    d = W.solve(D, b)
    lower = scipy.sparse.tril(W.triangle(D), format="csr")
    printed = np.empty(len(b))
    printed[W.col_perm] = scipy.sparse.linalg.spsolve_triangular(lower, -b[W.row_perm])
    aba, columns, forces = sd.aba(model, q, qd, tau, fx), *map(system.layout.quantity_columns, ("qdd", "f"))
    return {
        "tree": name, "bodies": n, "layout": layout, "unknowns": len(b),
        "above_diagonal": size[above].max(initial=0.0), "qdd_error": error(d[columns], aba),
        "aba_error": error(aba, qdd),
        "above_as_printed": int(np.sum(size[above_printed] > ROUNDING)),
        "qdd_error_as_printed": error(printed[columns], aba),
        "f_error_as_printed": error(scipy.sparse.linalg.spsolve(W.right.tocsc(), d)[forces], d[forces]),
    }  # fmt: skip


def entries(W, D):
    """(row, column, size) of the entries of W^L D W^R, relative to the greatest term that its row is the sum of."""
    product = (W.W_L @ D @ W.right).tocoo()
    W1, W2, W3, W4 = map(abs, W.left)
    terms = (W4 @ W3 @ W2 @ W1 @ abs(D) @ abs(W.right)).max(axis=1).toarray().ravel()
    return product.row, product.col, np.abs(product.data) / terms[product.row]


def printed_rows(system):
    """Eq. (35) as printed: c(τ_n) … c(τ_1) beside the external wrenches, and at the end rows "(15 q̈_i)".

    There is no such row; the ones of the known torques are left for it.
    """
    places = {}
    for r, block in enumerate(system.row_blocks):
        if block[0] == "y":
            (column,) = system.assembly.rows[r]
            quantity, body = system.col_blocks[column]
            block = (f"known {quantity}", body)
        places.setdefault(block, []).append(r)
    n = system.model.nb
    order = [block for i in range(n) for block in (("known fx", i), ("tau", n - 1 - i))]
    order += [(x, i) for x in ("fB", "f") for i in reversed(range(n))]
    order += [(x, i) for x in ("a", "known tau") for i in range(n)]
    return [r for block in order for r in places.get(block, ())]


def error(x, reference):
    return float(np.abs(x - reference).max(initial=0.0) / max(np.abs(reference).max(initial=0.0), 1e-300))


def matrix(model):
    """Where D and W^L D W^R have entries, in the order (34), (35), and how large they are."""
    system = sd.assemble(sd.forward_dynamics(model))
    q = model.random_state(seed=1)[0]
    W, D = matrix_aba(system, q), system.D(q)
    to_row, to_col = np.argsort(W.row_perm), np.argsort(W.col_perm)
    plain = D.tocoo()
    parts = {"D": (plain.row, plain.col, np.ones(plain.nnz)), "W_L D W_R": entries(W, D)}
    return [
        {"matrix": name, "row": to_row[r], "column": to_col[c], "size": x}
        for name, part in parts.items() for r, c, x in zip(*part, strict=True)
    ]  # fmt: skip


def plot(folder):
    rows, matrices = read_csv(folder / "property2.csv"), read_csv(folder / "property2_matrix.csv")
    figure = Figure(figsize=(13.2, 4.9), layout="constrained")
    FigureCanvasAgg(figure)
    *pictures, ax = figure.subplots(1, 3)
    titles = {"D": "$D$ of forward dynamics", "W_L D W_R": "$W^L D\\, W^R$"}
    n = 1 + max(e["row"] for e in matrices)
    kinds = (
        ("entry", lambda e: e["size"] > ROUNDING and e["column"] <= e["row"], {"marker": "s", "color": "#0072B2"}),
        ("above the diagonal", lambda e: e["size"] > ROUNDING and e["column"] > e["row"],
         {"marker": "x", "color": "#D55E00"}),
        ("cancelled but for rounding", lambda e: e["size"] <= ROUNDING,
         {"marker": "o", "color": "#888888", "markerfacecolor": "none", "markeredgewidth": 0.5}),
    )  # fmt: skip
    for picture, (name, title) in zip(pictures, titles.items(), strict=True):
        for label, chosen, style in kinds:
            part = [e for e in matrices if e["matrix"] == name and chosen(e)]
            picture.plot([e["column"] for e in part], [e["row"] for e in part], linestyle="", markersize=2.6,
                         label=label, **style)  # fmt: skip
        picture.plot((-0.5, n - 0.5), (-0.5, n - 0.5), color="#444444", linewidth=0.5, zorder=0)
        picture.set(xlim=(-3, n + 2), ylim=(n + 2, -3), aspect="equal", title=f"{title}, order (34), (35)",
                    xlabel="unknown", ylabel="equation")  # fmt: skip
    figure.legend(
        *pictures[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, fontsize=9
    )
    for name, style in STYLES.items():
        chosen = [r for r in rows if r["tree"] == name and r["layout"] == LAYOUTS[0]]
        ax.plot([r["bodies"] for r in chosen], [max(r["qdd_error"], 1e-17) for r in chosen], label=name,
                linestyle="", markersize=4.5, **style)  # fmt: skip
    ax.set(
        yscale="log", xlabel="bodies", ylabel="greatest relative difference", title="$\\ddot{q}$: substitution and ABA"
    )
    ax.grid(color="#DDDDDD", linewidth=0.5)
    ax.legend(fontsize=8)
    save_pictures(figure, folder / "property2")


def findings(folder):
    rows = read_csv(folder / "property2.csv")
    robots = ", ".join(dict.fromkeys(r["tree"] for r in rows))
    larger = [r for r in rows if r["bodies"] > 1 and not r["tree"].startswith("random")]
    left = max(r["above_diagonal"] for r in rows)
    apart = max(rows, key=lambda r: r["qdd_error"])

    def between(key, cases, form=".2g"):
        values = [r[key] for r in cases]
        return f"{min(values):{form}} to {max(values):{form}}"

    def needed(key):
        return "has to" if max(r[key] for r in larger) > RIGHT else "need not"

    lost = ""
    if apart["qdd_error"] > 10.0 * apart["aba_error"]:
        lost = ": the products lose digits that the recursion keeps"
    return (
        f"Property 2 {'holds' if left <= ROUNDING else 'does not hold'}: in {len(rows)} cases "
        f"({between('bodies', rows, 'd')} bodies; {robots}; both layouts) what is left above the diagonal is at most "
        f"{left:.1e} of the terms of its row. The accelerations differ from the ABA's by {apart['qdd_error']:.1e} at "
        f"most ({apart['tree']}, {apart['bodies']} bodies; there the ABA itself is {apart['aba_error']:.1e} away from "
        f"the motion that the torques belong to{lost}), in the median by "
        f"{np.median([r['qdd_error'] for r in rows]):.1e}. The signs of W^R and W1 … W4, derived from (3), are the "
        "paper's, (29) … (33). To the letter of the paper:\n\n"
        f"1. b {needed('qdd_error_as_printed')} be multiplied by W^L, too. Left out as printed, q̈ is wrong by "
        f"{between('qdd_error_as_printed', larger)} times its size (chains and trees of two bodies or more).\n"
        f"2. What is solved for {needed('f_error_as_printed')} be d', with d = W^R d'. Taken for d as printed, it has "
        f"p^A_i for f_i: wrong by {between('f_error_as_printed', larger)} times its size.\n"
        "3. (35) as printed exchanges the rows c(τ_i) with those of the known torques, counts them backwards, and ends "
        "with rows (15 q̈_i) that do not exist. With the known torques in their place it leaves "
        f"{between('above_as_printed', rows, 'd')} entries above the diagonal.\n"
        "4. W4 needs one block for each child, and with the net force as an unknown W^R has I_i in (fB_i, a_i)."
    )


if __name__ == "__main__":
    main(__file__)
