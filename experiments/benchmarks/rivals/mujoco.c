// MuJoCo's inverse and forward dynamics over many states: the parts of its pipeline that they need, and no others.
#include <mujoco/mujoco.h>
#include <string.h>

struct robot {
    mjModel* model;
    mjData* data;
};

struct work {
    struct robot* robot;
    long n;
    const double *q, *v, *x;
    double* out;
};

static void positions(const mjModel* m, mjData* d, const struct work* w, long k) {
    memcpy(d->qpos, w->q + k * m->nq, m->nq * sizeof(double));
    memcpy(d->qvel, w->v + k * m->nv, m->nv * sizeof(double));
    mj_kinematics(m, d);
    mj_comPos(m, d);
}

void inverse(struct work* w, void* unused) {
    (void)unused;
    const mjModel* m = w->robot->model;
    mjData* d = w->robot->data;
    for (long k = 0; k < w->n; ++k) {
        positions(m, d, w, k);
        memcpy(d->qacc, w->x + k * m->nv, m->nv * sizeof(double));
        mj_comVel(m, d);
        mj_rne(m, d, 1, w->out + k * m->nv);
    }
}

void forward(struct work* w, void* unused) {
    (void)unused;
    const mjModel* m = w->robot->model;
    mjData* d = w->robot->data;
    for (long k = 0; k < w->n; ++k) {
        positions(m, d, w, k);
        mj_makeM(m, d);
        mj_factorM(m, d);
        mj_comVel(m, d);
        mj_rne(m, d, 0, d->qfrc_bias);
        for (int i = 0; i < m->nv; ++i) d->qfrc_smooth[i] = w->x[k * m->nv + i] - d->qfrc_bias[i];
        mj_solveM(m, d, w->out + k * m->nv, d->qfrc_smooth, 1);
    }
}
