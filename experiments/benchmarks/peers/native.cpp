// Pinocchio's RNEA and ABA over many states, called through plain C.
#include "model.hpp"

#include <pinocchio/algorithm/aba.hpp>
#include <pinocchio/algorithm/rnea.hpp>

using namespace pinocchio;

namespace {
struct Robot {
    Model model;
    Data data;
    Eigen::VectorXd q, v, x;
    explicit Robot(Model m) : model(std::move(m)), data(model), q(model.nq), v(model.nv), x(model.nv) {}
    void take(long k, const double* qs, const double* vs, const double* xs) {
        q = Eigen::VectorXd::Map(qs + k * model.nq, model.nq);
        v = Eigen::VectorXd::Map(vs + k * model.nv, model.nv);
        x = Eigen::VectorXd::Map(xs + k * model.nv, model.nv);
    }
};
}  // namespace

extern "C" {

void* robot(int n, const int* parent, const int* revolute, const double* axis, const double* placement,
            const double* inertia) {
    return new Robot(make_model(n, parent, revolute, axis, placement, inertia));
}

void inverse(void* handle, long n, const double* q, const double* v, const double* qdd, double* tau) {
    Robot& r = *static_cast<Robot*>(handle);
    for (long k = 0; k < n; ++k) {
        r.take(k, q, v, qdd);
        rnea(r.model, r.data, r.q, r.v, r.x);
        Eigen::VectorXd::Map(tau + k * r.model.nv, r.model.nv) = r.data.tau;
    }
}

void forward_local(void* handle, long n, const double* q, const double* v, const double* tau, double* qdd) {
    Robot& r = *static_cast<Robot*>(handle);
    for (long k = 0; k < n; ++k) {
        r.take(k, q, v, tau);
        aba(r.model, r.data, r.q, r.v, r.x, Convention::LOCAL);
        Eigen::VectorXd::Map(qdd + k * r.model.nv, r.model.nv) = r.data.ddq;
    }
}

void forward_world(void* handle, long n, const double* q, const double* v, const double* tau, double* qdd) {
    Robot& r = *static_cast<Robot*>(handle);
    for (long k = 0; k < n; ++k) {
        r.take(k, q, v, tau);
        aba(r.model, r.data, r.q, r.v, r.x, Convention::WORLD);
        Eigen::VectorXd::Map(qdd + k * r.model.nv, r.model.nv) = r.data.ddq;
    }
}
}
