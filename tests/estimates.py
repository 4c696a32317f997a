"""Random estimation problems, and their solution by dense matrices."""

from __future__ import annotations

import decimal
from decimal import Decimal

import numpy as np

import sysdyn as sd
from sysdyn.measurements.noise import noise_of
from sysdyn.model.quantities import QUANTITIES

# Programs with passes alone: "auto" makes those without them, too, and takes the cheaper one.
FAST = {"backend": "python", "level": "fast", "formulation": "elimination"}


def dense(problem, q, qd, y, covariances=None, active=None, repeated=0):
    """(d, C, residuals, whitened sum of squares) at one state: whitened least squares by SVD in E's null space.

    repeated: number of exact equations that follow from others.
    """
    covariances, active = covariances or {}, active or {}
    system = sd.assemble(problem).plain
    inputs = {"q": q, "qd": qd, **{f"y:{name}": x for name, x in y.items() if name not in QUANTITIES}}
    inputs |= {name: x for name, x in y.items() if name in QUANTITIES}
    entries, b = system.values(inputs)
    A, b = system.matrix(entries[0]).toarray(), b[0]
    noisy = sorted(system.noise_by_row)
    exact = [r for r in range(len(A)) if r not in system.noise_by_row]
    blocks: dict[str, list[int]] = {}
    for r in noisy:
        noise, k = system.noise_by_row[r]
        if np.all(active.get(noise.name, True)) or np.broadcast_to(active[noise.name], noise.size)[k]:
            blocks.setdefault(noise.name, []).append(r)
    whitened, rhs, parts = [], [], {}
    for m in problem.noisy:
        if m.name not in blocks:
            continue
        noise = noise_of(m, problem.model)
        S = covariances.get(m.name, noise.matrix(noise.declared))
        rows = sorted(blocks[m.name], key=lambda r: system.noise_by_row[r][1])
        places = [system.noise_by_row[r][1] for r in rows]
        parts[m.name] = rows, S[np.ix_(places, places)]
        L = np.linalg.cholesky(parts[m.name][1])
        whitened.append(np.linalg.solve(L, A[rows]))
        rhs.append(np.linalg.solve(L, b[rows]))
    E, e = A[exact], b[exact]
    scale = np.abs(E).max(axis=1)
    E, e = E / scale[:, None], e / scale
    U, s, Vt = np.linalg.svd(E)
    rank = len(E) - repeated
    assert rank == 0 or s[rank - 1] > 1e-11 * s[0] > 1e3 * s[rank:].max(initial=0.0)
    d0, N = -Vt[:rank].T @ ((U[:, :rank].T @ e) / s[:rank]), Vt[rank:].T
    W, w = np.vstack(whitened), np.concatenate(rhs)
    W2, w2 = W @ N, W @ d0 + w
    u, sv, vt = np.linalg.svd(W2, full_matrices=False)
    d = d0 - N @ (vt.T @ ((u.T @ w2) / sv))
    G = N @ vt.T / sv
    return {
        "d": d, "C": G @ G.T, "chi2": float(np.sum((W @ d + w) ** 2)), "condition": sv[0] / sv[-1],
        "parts": parts, "A": A, "b": b, "N": N, "redundancy": len(w) - N.shape[1],
    }  # fmt: skip


def dense_inverse(K: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
    """(K⁻¹, log |det K|, −K⁻¹ b) by Gauss-Jordan elimination with row pivoting in 80 digits."""
    n = len(K)
    with decimal.localcontext(prec=80):
        A = np.array(
            [[Decimal(x) for x in row] for row in np.hstack([K, np.eye(n), b[:, None]]).tolist()], dtype=object
        )
        log_det = Decimal(0)
        for k in range(n):
            p = k + int(np.argmax(np.abs(A[k:, k])))
            A[[k, p]] = A[[p, k]]
            log_det += abs(A[k, k]).ln()
            used = np.flatnonzero(A[k] != 0)
            A[k, used] = A[k, used] / A[k, k]
            rows = np.flatnonzero(A[:, k] != 0)
            rows = rows[rows != k]
            A[np.ix_(rows, used)] -= np.outer(A[rows, k], A[k, used])
    return A[:, n:-1].astype(float), float(log_det), -A[:, -1].astype(float)


def matrix(problem: sd.Problem, q, qd, noise: dict, active: dict, y: dict):
    """The augmented system, its matrix and its right-hand side."""
    system = sd.assemble(problem)
    inputs = {"q": q, "qd": qd, **{f"active:{name}": on.astype(float) for name, on in active.items()}}
    inputs |= {f"y:{name}": x for name, x in y.items()}
    for m in problem.noisy:
        found = noise_of(m, problem.model)
        inputs[found.group] = found.numbers(noise[m.name])
    entries, b = system.values(inputs)
    return system, system.matrix(entries[0]).toarray(), b[0]


def multiplied(problem: sd.Problem, decades: float, rng) -> dict:
    """Declared noise with the variances of each measurement times a factor out of so many decades."""
    result = {}
    for m in problem.noisy:
        factor = 10.0 ** (0.5 * rng.uniform(-decades / 2, decades / 2))
        result[m.name] = np.asarray(m.noise) * factor ** (2 if np.ndim(m.noise) == 2 else 1)
    return result


def random_problem(seed: int) -> tuple[sd.Problem, dict]:
    """(a random problem that is well posed, its active switches)."""
    rng = np.random.default_rng(seed)
    model = sd.random_tree(int(rng.integers(1, 4)), seed=seed)
    std = lambda: float(10 ** rng.uniform(-2, 0.5))  # noqa: E731

    def noise(n: int):
        kind = rng.integers(3)
        if kind == 0:
            return std()
        if kind == 1:
            return np.array([std() for _ in range(n)])
        B = rng.standard_normal((n, n))
        return (B @ B.T / n + np.eye(n)) * std() ** 2

    pick = lambda names: str(rng.choice(list(names)))  # noqa: E731
    measurements: list = [sd.JointAcceleration("all", name="acc", noise=noise(model.nv))]
    measurements.append(
        sd.ExternalWrench("all")
        if rng.random() < 0.5
        else sd.Prior(sd.ExternalWrench("all", noise=noise(6 * model.nb)), name="fx prior")
    )
    if rng.random() < 0.7:
        measurements.append(sd.JointTorque("all", name="torque", noise=noise(model.nv)))
    if rng.random() < 0.7:
        measurements.append(sd.Accelerometer(pick(model.body_names), name="imu", noise=noise(3)))
    if rng.random() < 0.5:
        body = pick(model.body_names)
        measurements.append(sd.AngularAccelerometer(body, name="angular", reference="world", noise=noise(3)))
    if rng.random() < 0.5:
        measurements.append(sd.ForceTorqueSensor(pick(model.joint_names), name="ft", noise=noise(6)))
    if rng.random() < 0.3:
        measurements.append(sd.CentreOfMassAcceleration(name="com", noise=noise(3)))
    if rng.random() < 0.3:
        measurements.append(sd.Prior(sd.BodyAcceleration(pick(model.body_names), noise=noise(6)), name="a prior"))
    if rng.random() < 0.3:
        chosen = ["a", "f", "tau"] if rng.random() < 0.5 else [str(rng.choice(["a", "f", "tau"]))]
        measurements.append(sd.ModelNoise(chosen, noise=std(), name="motion"))
    active = {}
    if rng.random() < 0.4:
        of = sd.NetWrench(pick(model.body_names), noise=noise(6))
        measurements.append(sd.Switchable(of, name="switched"))
        active = {"switched": rng.random(6) < 0.5}
    return sd.Problem(model, measurements), active


def small(**options):
    model = sd.chain(3, seed=1)
    covariance = np.array([[0.05, 0.01, 0.0], [0.01, 0.08, 0.02], [0.0, 0.02, 0.06]])
    return sd.Problem(model, [
        sd.ExternalWrench("all"),
        sd.JointTorque("all", noise=0.3, name="torque"),
        sd.JointAcceleration("all", noise=0.2, name="acc"),
        sd.ForceTorqueSensor(model.joint_names[0], noise=0.1, name="ft"),
        sd.Switchable(sd.Accelerometer(model.body_names[-1], noise=covariance), name="imu"),
    ])  # fmt: skip
