// Rounds of gp/alternating.py for a small task: the same steps in the same order, without NumPy's calls, which take
// ten times as long as their arithmetic. The result is a start; Python's first round proves it or continues.
#pragma once

#include "batch.hpp"
#include "dense.hpp"

extern "C" {

// gp.weight_space.Task, with the constants of gp.alternating.
struct MirrorshotTask {
  int64_t n_points, n_features, n_classes;
  const double *phi, *labels, *weight;  // (N, R), (N, C), (N,)
  const double *prior_mean;             // (N, C) or null
  double max_std, arrived, accepted, near, cg_tolerance, shortest;
  int64_t max_rounds, inner_steps, cg_steps, scalings;
  int64_t has_shift;  // whether `u` is Phi^T b on input; the weights follow when the prior is conditioned
};
}

namespace {

const int kMemory = 3;  // rounds that Anderson acceleration remembers, the last one included

// Expectations at given marginals, weighted as in gp.visits.Expectations; (N, C).
struct Expected {
  double *prob, *curvature;
  double log_likelihood;
};

struct Rounds {
  const MirrorshotTask *task;
  const MirrorshotRule *rule;
  int64_t n_rounds, n_remembered;
  double *u, *w;                              // (C, R), (N, C)
  double *phi_t, *squares, *chol, *whitened;  // (R, N); (N, N): K * K; (C, R, R); (R, N)
  double *mean, *var, *cavity, *seen;         // (N, C), like those in the next lines
  double *coupling, *own, *shifted, *new_mean;
  double *log_sum, *scratch;                                   // (N,)
  double *residual, *step, *rest, *direction, *image, *new_u;  // (C, R)
  Expected now, then;
  double *ends[kMemory], *changes[kMemory];  // C R + N C: ends of the last rounds, and their changes
  double *differences[kMemory - 1];
};

inline void lay_out(Arena &arena, Rounds &all) {
  const int64_t N = all.task->n_points, R = all.task->n_features, C = all.task->n_classes;
  arena.take(all.phi_t, R * N);
  arena.take(all.squares, N * N);
  arena.take(all.chol, C * R * R);
  arena.take(all.whitened, R * N);
  double **points[] = {&all.mean,     &all.var,        &all.cavity,    &all.seen,      &all.coupling, &all.own,
                       &all.shifted,  &all.new_mean,   &all.now.prob,  &all.then.prob, &all.now.curvature,
                       &all.then.curvature};
  for (double **array : points) arena.take(*array, N * C);
  double **weights[] = {&all.residual, &all.step, &all.rest, &all.direction, &all.image, &all.new_u};
  for (double **array : weights) arena.take(*array, C * R);
  arena.take(all.log_sum, N);
  arena.take(all.scratch, N);
  for (int k = 0; k < kMemory; ++k) arena.take(all.ends[k], C * (R + N));
  for (int k = 0; k < kMemory; ++k) arena.take(all.changes[k], C * (R + N));
  for (int k = 0; k + 1 < kMemory; ++k) arena.take(all.differences[k], C * (R + N));
}

// The transposed features, and the squares of the covariances for the error.
inline void prepare(Rounds &all) {
  const int64_t N = all.task->n_points, R = all.task->n_features;
  const double *phi = all.task->phi;
  for (int64_t n = 0; n < N; ++n)
    for (int64_t i = 0; i < R; ++i) all.phi_t[i * N + n] = phi[n * R + i];
  for (int64_t n = 0; n < N; ++n) {
    double *row = all.squares + n * N;
    for (int64_t m = 0; m < N; ++m) row[m] = 0;
    add_rows(row, phi + n * R, 1, all.phi_t, N, R, N);
    for (int64_t m = 0; m < N; ++m) row[m] *= row[m];
  }
}

typedef int (*Core)(const Latents *, const MirrorshotRule *);  // of the instruction set in use

INLINE int expect(Rounds &all, Core core, const double *mean, Expected &out) {
  const MirrorshotTask &task = *all.task;
  const int64_t N = task.n_points, C = task.n_classes;
  for (int64_t i = 0; i < N * C; ++i) all.seen[i] = mean[i] + (task.prior_mean ? task.prior_mean[i] : 0.0);
  const Array arrays[] = {{all.seen, false}, {all.var, false}, {out.prob, false}, {out.curvature, false}, {all.log_sum, false}};
  const Latents latents = {arrays[0], arrays[1], N, C, arrays[2], {arrays[3], arrays[4], {}}};
  const int status = core(&latents, all.rule);
  out.log_likelihood = 0;
  for (int64_t n = 0; n < N; ++n) {
    double value = -all.log_sum[n];
    for (int64_t c = 0; c < C; ++c) {
      value += task.labels[n * C + c] * all.seen[n * C + c];
      out.prob[n * C + c] *= task.weight[n];
      out.curvature[n * C + c] *= task.weight[n];
    }
    out.log_likelihood += task.weight[n] * value;
  }
  return status;
}

// Factors of I + Phi^T W Phi for every class, and the variances.
template <int W> INLINE bool condition(Rounds &all) {
  const int64_t N = all.task->n_points, R = all.task->n_features, C = all.task->n_classes;
  const double *phi = all.task->phi;
  for (int64_t c = 0; c < C; ++c) {
    double *A = all.chol + c * R * R;
    for (int64_t i = 0; i < R; ++i) {
      double *row = A + i * R;
      for (int64_t j = i; j < R; ++j) row[j] = i == j;
      for (int64_t n = 0; n < N; ++n) all.scratch[n] = all.w[n * C + c] * phi[n * R + i];
      add_rows(row + i, all.scratch, 1, phi + i, R, N, R - i);
    }
    if (!factorise(A, R)) return false;
    std::memcpy(all.whitened, all.phi_t, size_t(R * N) * sizeof(double));
    whiten(A, R, all.whitened, N);
    for (int64_t n = 0; n < N; ++n) all.scratch[n] = 0;
    for (int64_t i = 0; i < R; ++i)
      for (int64_t n = 0; n < N; ++n) all.scratch[n] += all.whitened[i * N + n] * all.whitened[i * N + n];
    for (int64_t n = 0; n < N; ++n) all.var[n * C + c] = all.scratch[n];
  }
  return true;
}

// out (N, C) = Phi x^T for x (C, R).
template <int W> INLINE void to_points(const Rounds &all, const double *x, double *out) {
  const int64_t N = all.task->n_points, R = all.task->n_features, C = all.task->n_classes;
  for (int64_t n = 0; n < N; ++n)
    for (int64_t c = 0; c < C; ++c) out[n * C + c] = dot<W>(all.task->phi + n * R, x + c * R, R);
}

// residual (C, R) = (a y - a E[p])^T Phi - u.
INLINE void set_residual(Rounds &all, const Expected &at) {
  const MirrorshotTask &task = *all.task;
  const int64_t N = task.n_points, R = task.n_features, C = task.n_classes;
  for (int64_t c = 0; c < C; ++c) {
    for (int64_t n = 0; n < N; ++n) all.scratch[n] = task.weight[n] * task.labels[n * C + c] - at.prob[n * C + c];
    double *row = all.residual + c * R;
    for (int64_t i = 0; i < R; ++i) row[i] = -all.u[c * R + i];
    add_rows(row, all.scratch, 1, task.phi, R, N, R);
  }
}

// The error of gp.visits.Found.
template <int W> INLINE double error_of(Rounds &all) {
  const int64_t N = all.task->n_points, R = all.task->n_features, C = all.task->n_classes;
  double total = dot<W>(all.residual, all.residual, C * R), largest = 0;
  for (int64_t c = 0; c < C; ++c) {
    for (int64_t n = 0; n < N; ++n) all.scratch[n] = all.w[n * C + c] - all.now.curvature[n * C + c];
    for (int64_t n = 0; n < N; ++n) {
      largest = larger(largest, std::fabs(all.scratch[n]));
      total += all.scratch[n] * dot<W>(all.squares + n * N, all.scratch, N);
    }
  }
  return all.task->max_std * larger(std::sqrt(total), all.task->max_std * largest);
}

// gp.visits.coupling: s with s_c (sum_j s_j - s_c) = a E[p_c (1 - p_c)]; and own = a E[p (1 - p)] + s s.
INLINE void set_coupling(Rounds &all, const Expected &at) {
  const int64_t N = all.task->n_points, C = all.task->n_classes;
  for (int64_t n = 0; n < N; ++n) {
    double *s = all.coupling + n * C, total = 0;
    const double *curvature = at.curvature + n * C;
    for (int64_t c = 0; c < C; ++c) total += s[c] = larger(at.prob[n * C + c], kTiny);
    for (int64_t k = 0; k < all.task->scalings; ++k) {
      double next = 0;
      for (int64_t c = 0; c < C; ++c) next += s[c] = std::sqrt(s[c] * curvature[c] / larger(total - s[c], kTiny));
      total = next;
    }
    for (int64_t c = 0; c < C; ++c) all.own[n * C + c] = curvature[c] + s[c] * s[c];
  }
}

// out <- A_c^-1 x_c for every class.
template <int W> INLINE void precondition(const Rounds &all, const double *x, double *out) {
  const int64_t R = all.task->n_features, C = all.task->n_classes;
  std::memcpy(out, x, size_t(C * R) * sizeof(double));
  for (int64_t c = 0; c < C; ++c) solve<W>(all.chol + c * R * R, R, out + c * R);
}

// gp.visits.newton_step: conjugate gradients for (I + Phi^T J Phi) step = residual.
template <int W> INLINE void newton_step(Rounds &all, const Expected &at) {
  const MirrorshotTask &task = *all.task;
  const int64_t N = task.n_points, R = task.n_features, C = task.n_classes;
  set_coupling(all, at);
  double *z = all.new_u;
  std::memcpy(all.rest, all.residual, size_t(C * R) * sizeof(double));
  precondition<W>(all, all.rest, all.direction);
  for (int64_t i = 0; i < C * R; ++i) all.step[i] = 0;
  double size = dot<W>(all.rest, all.direction, C * R);
  const double enough = task.cg_tolerance * task.cg_tolerance * size;
  for (int64_t k = 0; k < task.cg_steps; ++k) {
    to_points<W>(all, all.direction, all.shifted);
    for (int64_t n = 0; n < N; ++n) {
      double *q = all.shifted + n * C;
      const double *s = all.coupling + n * C, shared = dot<W>(s, q, C);
      for (int64_t c = 0; c < C; ++c) q[c] = all.own[n * C + c] * q[c] - s[c] * shared;
    }
    std::memcpy(all.image, all.direction, size_t(C * R) * sizeof(double));
    for (int64_t c = 0; c < C; ++c) add_rows(all.image + c * R, all.shifted + c, C, task.phi, R, N, R);
    const double bend = dot<W>(all.direction, all.image, C * R);
    if (bend == 0) break;  // the residual or its square is zero
    const double rate = size / bend;
    add_scaled(all.step, rate, all.direction, C * R);
    add_scaled(all.rest, -rate, all.image, C * R);
    precondition<W>(all, all.rest, z);
    const double before = size;
    size = dot<W>(all.rest, z, C * R);
    if (!(size > enough)) break;
    for (int64_t i = 0; i < C * R; ++i) all.direction[i] = z[i] + size / before * all.direction[i];
  }
}

// One step of `_climb` along `step`, shortened until the bound rises; `now` is its end.
template <int W> INLINE int line_search(Rounds &all, Core core) {
  const MirrorshotTask &task = *all.task;
  const int64_t CR = task.n_classes * task.n_features, NC = task.n_points * task.n_classes;
  to_points<W>(all, all.step, all.shifted);
  const double slope = dot<W>(all.residual, all.step, CR);
  const double height = all.now.log_likelihood - 0.5 * dot<W>(all.u, all.u, CR);
  for (double length = 1;; length *= 0.5) {
    for (int64_t i = 0; i < CR; ++i) all.new_u[i] = all.u[i] + length * all.step[i];
    for (int64_t i = 0; i < NC; ++i) all.new_mean[i] = all.mean[i] + length * all.shifted[i];
    const int status = expect(all, core, all.new_mean, all.then);
    if (status != 0) return status;
    const double gain = all.then.log_likelihood - 0.5 * dot<W>(all.new_u, all.new_u, CR) - height;
    if (gain >= 1e-4 * length * slope - 1e-10 * std::fabs(height) || length < task.shortest) break;
  }
  std::memcpy(all.u, all.new_u, size_t(CR) * sizeof(double));
  std::memcpy(all.mean, all.new_mean, size_t(NC) * sizeof(double));
  const Expected spare = all.now;
  all.now = all.then;
  all.then = spare;
  return 0;
}

// `_climb`: Newton steps on the means, with variances that follow their own site; `u` and `w` are its end.
template <int W> INLINE int climb(Rounds &all, Core core) {
  const int64_t NC = all.task->n_points * all.task->n_classes;
  for (int64_t i = 0; i < NC; ++i) all.cavity[i] = all.var[i] / larger(1 - all.w[i] * all.var[i], 1e-12);
  for (int64_t step = 0; step < all.task->inner_steps; ++step) {
    newton_step<W>(all, all.now);
    int status = line_search<W>(all, core);
    if (status == 0 && step + 1 < all.task->inner_steps) {
      for (int64_t i = 0; i < NC; ++i) all.var[i] = all.cavity[i] / (1 + all.now.curvature[i] * all.cavity[i]);
      status = expect(all, core, all.mean, all.now);
      set_residual(all, all.now);
    }
    if (status != 0) return status;
  }
  std::memcpy(all.w, all.now.curvature, size_t(NC) * sizeof(double));
  return 0;
}

// Write u and w one after the other.
INLINE void copy_state(const Rounds &all, double *out) {
  const int64_t CR = all.task->n_classes * all.task->n_features, NC = all.task->n_points * all.task->n_classes;
  std::memcpy(out, all.u, size_t(CR) * sizeof(double));
  std::memcpy(out + CR, all.w, size_t(NC) * sizeof(double));
}

INLINE void rotate(double **rows) {
  double *oldest = rows[kMemory - 1];
  for (int k = kMemory - 1; k > 0; --k) rows[k] = rows[k - 1];
  rows[0] = oldest;
}

// Store the end of a round, and its change from the beginning, which changes[0] holds.
INLINE void remember(Rounds &all) {
  const int64_t CR = all.task->n_classes * all.task->n_features, NC = all.task->n_points * all.task->n_classes;
  const double scale = all.task->max_std * all.task->max_std;
  copy_state(all, all.ends[0]);
  for (int64_t i = 0; i < CR + NC; ++i)
    all.changes[0][i] = (all.ends[0][i] - all.changes[0][i]) * (i < CR ? 1.0 : scale);
  if (all.n_remembered < kMemory) ++all.n_remembered;
}

// `_extrapolated`: Anderson acceleration over the last rounds, by the normal equations of at most two unknowns.
template <int W> INLINE void extrapolate(Rounds &all) {
  const int64_t CR = all.task->n_classes * all.task->n_features, size = CR + all.task->n_points * all.task->n_classes;
  const int64_t n = all.n_remembered - 1;
  if (n < 1) return;
  double **f = all.differences, G[3] = {}, g[2] = {}, share[2] = {};
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = 0; i < size; ++i) f[k][i] = all.changes[0][i] - all.changes[k + 1][i];
    g[k] = dot<W>(f[k], all.changes[0], size);
    G[k] = dot<W>(f[k], f[k], size);
  }
  if (n == 2) G[2] = dot<W>(f[0], f[1], size);
  const double det = n == 2 ? G[0] * G[1] - G[2] * G[2] : 0;
  if (det > 1e-12 * G[0] * G[1]) {
    share[0] = (G[1] * g[0] - G[2] * g[1]) / det;
    share[1] = (G[0] * g[1] - G[2] * g[0]) / det;
  } else if (G[0] > 0) {
    share[0] = g[0] / G[0];
  }
  for (int64_t i = 0; i < size; ++i) {
    double value = all.ends[0][i];
    for (int64_t k = 0; k < n; ++k) value -= share[k] * (all.ends[0][i] - all.ends[k + 1][i]);
    f[0][i] = value;
  }
  for (int64_t i = CR; i < size; ++i)
    if (!(f[0][i] >= 0)) return;
  std::memcpy(all.u, f[0], size_t(CR) * sizeof(double));
  std::memcpy(all.w, f[0] + CR, size_t(size - CR) * sizeof(double));
}

// `alternate` without the proof.
template <int W> INLINE int alternate(Rounds &all, Core core) {
  const MirrorshotTask &task = *all.task;
  const int64_t CR = task.n_classes * task.n_features;
  double before = HUGE_VAL;
  for (; all.n_rounds < task.max_rounds; ++all.n_rounds) {
    if (!condition<W>(all)) return kDone;
    if (task.has_shift && all.n_rounds == 0) {
      precondition<W>(all, all.u, all.new_u);
      std::memcpy(all.u, all.new_u, size_t(CR) * sizeof(double));
    }
    to_points<W>(all, all.u, all.mean);
    int status = expect(all, core, all.mean, all.now);
    if (status != kDone) return status;
    set_residual(all, all.now);
    const double error = error_of<W>(all);
    if (!(error > task.arrived) || (error <= task.accepted && error > 0.25 * before)) return kDone;
    before = error;
    rotate(all.ends);
    rotate(all.changes);
    copy_state(all, all.changes[0]);
    status = climb<W>(all, core);
    if (status != kDone) return status;
    remember(all);
    if (error < task.near) extrapolate<W>(all);
  }
  return kDone;
}

}  // namespace
