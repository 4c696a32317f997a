// A Pinocchio model from plain arrays, so that no library object crosses into code built with other options.
#pragma once

#include <string>
#include <vector>

#include <pinocchio/multibody.hpp>

// Joint k: parent (-1: the base), kind (0 prismatic, 1 revolute, 2 free), axis (3), placement in the parent: rotation
// by rows (9) and translation (3); its body: mass, centre of mass (3), rotational inertia about it xx xy yy xz yz zz (6).
inline pinocchio::Model make_model(int n, const int* parent, const int* kind, const double* axis,
                                   const double* placement, const double* inertia) {
    using namespace pinocchio;
    Model model;
    for (int k = 0; k < n; ++k) {
        const Eigen::Vector3d s(axis + 3 * k);
        const double* p = placement + 12 * k;
        const double* b = inertia + 10 * k;
        const SE3 at(Eigen::Map<const Eigen::Matrix<double, 3, 3, Eigen::RowMajor>>(p), Eigen::Vector3d(p + 9));
        JointModel joint;
        if (kind[k] == 2) {
            joint = JointModelFreeFlyer();
        } else if (kind[k] == 1) {
            if (s == Eigen::Vector3d::UnitX()) joint = JointModelRX();
            else if (s == Eigen::Vector3d::UnitY()) joint = JointModelRY();
            else if (s == Eigen::Vector3d::UnitZ()) joint = JointModelRZ();
            else joint = JointModelRevoluteUnaligned(s);
        } else {
            if (s == Eigen::Vector3d::UnitX()) joint = JointModelPX();
            else if (s == Eigen::Vector3d::UnitY()) joint = JointModelPY();
            else if (s == Eigen::Vector3d::UnitZ()) joint = JointModelPZ();
            else joint = JointModelPrismaticUnaligned(s);
        }
        const auto index = model.addJoint(parent[k] + 1, joint, at, "joint" + std::to_string(k));
        const Symmetric3 about_com(b[4], b[5], b[6], b[7], b[8], b[9]);
        model.appendBodyToJoint(index, Inertia(b[0], Eigen::Vector3d(b + 1), about_com), SE3::Identity());
    }
    return model;
}
