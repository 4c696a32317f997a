// Pinocchio's algorithms on casadi::SX, written as C: inverse (RNEA), forward_aba, forward_crba (CRBA, bias, Cholesky).
#include <pinocchio/autodiff/casadi.hpp>

#include "model.hpp"

#include <pinocchio/algorithm/aba.hpp>
#include <pinocchio/algorithm/cholesky.hpp>
#include <pinocchio/algorithm/crba.hpp>
#include <pinocchio/algorithm/rnea.hpp>

using namespace pinocchio;
using SX = ::casadi::SX;

extern "C" int generate(int n, const int* parent, const int* kind, const double* axis, const double* placement,
                        const double* inertia, const char* folder) {
    using Vector = Eigen::Matrix<SX, Eigen::Dynamic, 1>;
    const auto model = make_model(n, parent, kind, axis, placement, inertia).cast<SX>();
    const SX q = SX::sym("q", n), v = SX::sym("v", n), x = SX::sym("x", n);
    const auto taken = [n](const SX& s) {
        Vector r(n);
        for (int k = 0; k < n; ++k) r[k] = s(k);
        return r;
    };
    const auto given = [n](const Vector& r) {
        SX s(n, 1);
        for (int k = 0; k < n; ++k) s(k) = r[k];
        return s;
    };
    const Vector qs = taken(q), vs = taken(v), xs = taken(x);
    const auto write = [&](const char* name, const Vector& result) {
        ::casadi::Function f(name, {q, v, x}, {SX::densify(given(result))}, ::casadi::Dict{{"cse", true}});
        ::casadi::CodeGenerator file(std::string(name) + ".c", ::casadi::Dict{{"with_header", false}});
        file.add(f);
        file.generate(std::string(folder) + "/");
        return int(f.n_instructions());
    };
    DataTpl<SX> data(model);
    rnea(model, data, qs, vs, xs);
    int size = write("inverse", data.tau);
    aba(model, data, qs, vs, xs, Convention::LOCAL);
    size += write("forward_aba", data.ddq);
    DataTpl<SX> other(model);
    crba(model, other, qs, Convention::LOCAL);
    nonLinearEffects(model, other, qs, vs);
    cholesky::decompose(model, other);
    Vector rest = xs - other.nle;
    cholesky::solve(model, other, rest);
    size += write("forward_crba", rest);
    return size;
}
