// Pinocchio's forward dynamics under constraints over many states, called through plain C.
#include "states.hpp"

#include <pinocchio/algorithm/constrained-dynamics.hpp>
#include <pinocchio/algorithm/loop-constrained-aba.hpp>
#include <pinocchio/algorithm/pv.hpp>

using namespace pinocchio;

namespace {
// Constraints of one class, and what an algorithm keeps of a robot that they hold.
template <class Constraint>
struct Held {
    std::vector<Constraint> models;
    std::vector<typename Constraint::ConstraintData> datas;
    Data data;

    explicit Held(const Model& m) : data(m) {}

    template <class... Arguments>
    void add(const Arguments&... arguments) {
        models.emplace_back(arguments...);
        datas.emplace_back(models.back().createData());
    }
};

SE3 placed(const double* p) {
    return SE3(Eigen::Map<const Eigen::Matrix<double, 3, 3, Eigen::RowMajor>>(p), Eigen::Vector3d(p + 9));
}

struct Constrained : Robot {
    Held<RigidConstraintModel> rigid, loops;
    Held<FrameAnchorConstraintModel> frames, augmented_frames;
    Held<PointAnchorConstraintModel> points, augmented_points;
    // Of algorithms that need no regularisation, and of those that do.
    ProximalSettings once, again;

    Constrained(Model m, double mu, int steps)
        : Robot(std::move(m)), rigid(model), loops(model), frames(model), augmented_frames(model), points(model),
          augmented_points(model), once(0.0, 0.0, 1), again(0.0, mu, steps) {}
};

using Task = const Work<Constrained>*;

template <class Constraint>
void popov_vereshchagin(Task w, Held<Constraint> Constrained::*held) {
    over_states(*w, [w, held](Constrained& r, long k) {
        auto& h = r.*held;
        write(*w, k, pv(r.model, h.data, r.q, r.v, r.x, h.models, h.datas, r.once));
    });
}

template <class Constraint>
void constrained_aba(Task w, Held<Constraint> Constrained::*held) {
    over_states(*w, [w, held](Constrained& r, long k) {
        auto& h = r.*held;
        write(*w, k, constrainedABA(r.model, h.data, r.q, r.v, r.x, h.models, h.datas, r.again));
    });
}
}  // namespace

extern "C" {

// m constraints between frames of joints first and second (0: the world), fixed or of their points. mu, steps: of
// algorithms that regularise.
void* constrained(int n, const int* parent, const int* kind, const double* axis, const double* placement,
                  const double* inertia, int m, const int* first, const int* second, const double* at_first,
                  const double* at_second, const int* fixed, double mu, int steps) {
    auto* r = new Constrained(make_model(n, parent, kind, axis, placement, inertia), mu, steps);
    const Model& model = r->model;
    for (int k = 0; k < m; ++k) {
        const auto a = static_cast<JointIndex>(first[k]), b = static_cast<JointIndex>(second[k]);
        const SE3 at_a = placed(at_first + 12 * k), at_b = placed(at_second + 12 * k);
        for (auto* held : {&r->rigid, &r->loops})
            held->add(fixed[k] ? CONTACT_6D : CONTACT_3D, model, a, at_a, b, at_b, LOCAL);
        for (auto* held : {&r->frames, &r->augmented_frames}) held->add(model, a, at_a, b, at_b);
        for (auto* held : {&r->points, &r->augmented_points}) held->add(model, a, at_a, b, at_b);
    }
    initConstraintDynamics(model, r->rigid.data, r->rigid.models, r->rigid.datas);
    computeJointMinimalOrdering(model, r->loops.data, r->loops.models);
    for (auto* held : {&r->frames, &r->augmented_frames}) initPvSolver(model, held->data, held->models);
    for (auto* held : {&r->points, &r->augmented_points}) initPvSolver(model, held->data, held->models);
    return r;
}

void constraint_dynamics(Task w, void*) {
    over_states(*w, [w](Constrained& r, long k) {
        auto& h = r.rigid;
        write(*w, k, constraintDynamics(r.model, h.data, r.q, r.v, r.x, h.models, h.datas, r.once));
    });
}

void loop_aba(Task w, void*) {
    over_states(*w, [w](Constrained& r, long k) {
        auto& h = r.loops;
        write(*w, k, lcaba(r.model, h.data, r.q, r.v, r.x, h.models, h.datas, r.again));
    });
}

void pv_frames(Task w, void*) { popov_vereshchagin(w, &Constrained::frames); }
void pv_points(Task w, void*) { popov_vereshchagin(w, &Constrained::points); }
void aba_frames(Task w, void*) { constrained_aba(w, &Constrained::augmented_frames); }
void aba_points(Task w, void*) { constrained_aba(w, &Constrained::augmented_points); }
}
