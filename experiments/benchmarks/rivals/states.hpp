// A robot of Pinocchio and calls over many states of it: each state is copied in, its result is copied out.
#pragma once

#include "model.hpp"

struct Robot {
    pinocchio::Model model;
    pinocchio::Data data;
    Eigen::VectorXd q, v, x;
    explicit Robot(pinocchio::Model m) : model(std::move(m)), data(model), q(model.nq), v(model.nv), x(model.nv) {}
};

template <class Robot>
struct Work {
    Robot* robot;
    long n;
    const double *q, *v, *x;
    double* out;
};

template <class Robot, class Algorithm>
void over_states(const Work<Robot>& w, const Algorithm& algorithm) {
    Robot& r = *w.robot;
    const pinocchio::Model& m = r.model;
    for (long k = 0; k < w.n; ++k) {
        r.q = Eigen::VectorXd::Map(w.q + k * m.nq, m.nq);
        r.v = Eigen::VectorXd::Map(w.v + k * m.nv, m.nv);
        r.x = Eigen::VectorXd::Map(w.x + k * m.nv, m.nv);
        algorithm(r, k);
    }
}

template <class Robot>
void write(const Work<Robot>& w, long k, const Eigen::VectorXd& result) {
    Eigen::VectorXd::Map(w.out + k * result.size(), result.size()) = result;
}
