// Pinocchio's algorithms over many states, called through plain C.
#include "states.hpp"

#include <pinocchio/algorithm/aba-derivatives.hpp>
#include <pinocchio/algorithm/aba.hpp>
#include <pinocchio/algorithm/rnea-derivatives.hpp>
#include <pinocchio/algorithm/rnea.hpp>

using namespace pinocchio;

namespace {
// Three blocks a state, as they lie in memory: by rows, but for the inertia matrix.
template <class A, class B, class C>
void write(const Work<Robot>& w, long k, const A& by_q, const B& by_v, const C& by_x) {
    const int nv = w.robot->model.nv;
    double* out = w.out + 3 * k * nv * nv;
    A::Map(out, nv, nv) = by_q;
    B::Map(out + nv * nv, nv, nv) = by_v;
    C::Map(out + 2 * nv * nv, nv, nv) = by_x;
}
}  // namespace

extern "C" {

void* robot(int n, const int* parent, const int* kind, const double* axis, const double* placement,
            const double* inertia) {
    return new Robot(make_model(n, parent, kind, axis, placement, inertia));
}

void inverse(const Work<Robot>* w, void*) {
    over_states(*w, [w](Robot& r, long k) { write(*w, k, rnea(r.model, r.data, r.q, r.v, r.x)); });
}

void forward_local(const Work<Robot>* w, void*) {
    over_states(*w, [w](Robot& r, long k) { write(*w, k, aba(r.model, r.data, r.q, r.v, r.x, Convention::LOCAL)); });
}

void forward_world(const Work<Robot>* w, void*) {
    over_states(*w, [w](Robot& r, long k) { write(*w, k, aba(r.model, r.data, r.q, r.v, r.x, Convention::WORLD)); });
}

void inverse_derivatives(const Work<Robot>* w, void*) {
    over_states(*w, [w](Robot& r, long k) {
        computeRNEADerivatives(r.model, r.data, r.q, r.v, r.x);
        write(*w, k, r.data.dtau_dq, r.data.dtau_dv, r.data.M);
    });
}

void forward_derivatives(const Work<Robot>* w, void*) {
    over_states(*w, [w](Robot& r, long k) {
        computeABADerivatives(r.model, r.data, r.q, r.v, r.x);
        write(*w, k, r.data.ddq_dq, r.data.ddq_dv, r.data.Minv);
    });
}
}
