// Batches of points: memory, input and output of the integrals of points.hpp.
#pragma once

#include <cstdlib>

#include "points.hpp"

namespace {

enum Status { kDone = 0, kInvalid = 1, kNoMemory = 2, kTooWide = 3 };
const int64_t kLimit = int64_t(1) << 26;  // of any size, so that no product below overflows

// Arrays of float32 or float64.
struct Array {
  void *values;
  bool is_single;
  double get(int64_t i) const {
    return is_single ? double(static_cast<const float *>(values)[i]) : static_cast<const double *>(values)[i];
  }
  void set(int64_t i, double value) const {
    if (is_single)
      static_cast<float *>(values)[i] = float(value);
    else
      static_cast<double *>(values)[i] = value;
  }
};

struct Latents {
  Array mean, var;
  int64_t n_points, n_classes;
  Array prob, others[3];  // moments: curvature and log_sum; Hessian: mean_mean, mean_var, var_var
};

// Returns aligned pieces of one allocation; without memory it only counts.
struct Arena {
  char *memory;
  size_t used;
  template <class V> void take(V *&pointer, int64_t n) {
    pointer = reinterpret_cast<V *>(memory ? memory + used : nullptr);
    used += (size_t(n) * sizeof(V) + 63) / 64 * 64;
  }
};

template <int W, int Order> INLINE void lay_out(Arena &arena, Grid<W> &grid, Point<W> &point) {
  const MirrorshotRule &rule = *grid.rule;
  const int64_t C = point.n_classes, rows = (rule.n_nodes + W - 1) / W + 1;
  const int64_t wide = (rule.n_wide + W - 1) / W, most = rows > wide ? rows : wide;
  arena.take(grid.decay, rows * W);
  arena.take(grid.rate, rule.n_hermite);
  double **vectors[4] = {&point.mean, &point.std, &point.prob, &point.curvature};
  for (int i = 0; i < 4; ++i) arena.take(*vectors[i], C);
  arena.take(point.place, rule.n_knots > 0 ? C : 0);
  arena.take(point.log_cdf, C * rule.n_wide);
  arena.take(point.F, most);
  arena.take(point.total, most);
  for (int j = 0; j < 4; ++j) arena.take(point.latent[j], rows);
  for (int j = 0; j < 3; ++j) arena.take(point.ratio[j], j < Order ? C * most : 0);
  for (int j = 0; j < 3; ++j) arena.take(point.pairs[j], Order == 3 ? C * C : 0);
  for (int j = 0; j < 2; ++j) arena.take(point.weighted[j], Order == 3 ? C * most : 0);
}

// Shift the means of one point to a largest of zero. Returns false if a value is invalid.
template <int W> INLINE bool read_point(Point<W> &point, const Latents &latents, int64_t p, double *highest) {
  const int64_t C = point.n_classes;
  *highest = -HUGE_VAL;
  bool is_valid = true;
  for (int64_t c = 0; c < C; ++c) *highest = larger(*highest, latents.mean.get(p * C + c));
  for (int64_t c = 0; c < C; ++c) {
    const double var = latents.var.get(p * C + c);
    point.mean[c] = latents.mean.get(p * C + c) - *highest;
    point.std[c] = std::sqrt(var);
    is_valid = is_valid && point.mean[c] <= 0 && var >= 0 && point.std[c] <= 1e300;
  }
  return is_valid;
}

template <int W, int Order>
INLINE void write_point(const Point<W> &point, const Latents &latents, int64_t p, double highest) {
  const int64_t C = point.n_classes;
  for (int64_t c = 0; c < C; ++c) latents.prob.set(p * C + c, point.prob[c]);
  if (Order == 1) {
    for (int64_t c = 0; c < C; ++c) latents.others[0].set(p * C + c, point.curvature[c]);
    latents.others[1].set(p, point.log_sum + highest);
  } else {
    for (int j = 0; j < 3; ++j)
      for (int64_t i = 0; i < C * C; ++i) latents.others[j].set(p * C * C + i, point.pairs[j][i]);
  }
}

template <int W, int Order> INLINE void refuse_point(Point<W> &point) {
  const int64_t C = point.n_classes;
  for (int64_t c = 0; c < C; ++c) point.prob[c] = point.curvature[c] = NAN;
  for (int64_t i = 0; Order == 3 && i < C * C; ++i) point.pairs[0][i] = point.pairs[1][i] = point.pairs[2][i] = NAN;
  point.log_sum = NAN;
}

template <int W, int Order> INLINE int each_point(Point<W> &point, Grid<W> &grid, const Latents &latents) {
  const MirrorshotRule &rule = *grid.rule;
  const int64_t C = point.n_classes, rows = (rule.n_nodes + W - 1) / W + 1;
  for (int64_t i = 0; i < rows * W; ++i) grid.decay[i] = std::exp(-rule.spacing * double(i));
  point.tail = 1 / std::expm1(rule.spacing);
  for (int64_t p = 0; p < latents.n_points; ++p) {
    double highest, widest = 0;
    if (read_point<W>(point, latents, p, &highest)) {
      for (int64_t c = 0; c < C; ++c) widest = larger(widest, point.std[c]);
      const bool is_wide = rule.n_wide > 0 && widest > rule.wide_std;
      if (is_wide)
        wide_point<W, Order>(point, rule);
      else if (!fine_point<W, Order>(point, grid))
        return kTooWide;
      if (Order == 3) fill_pairs<W>(point, is_wide);
    } else {
      refuse_point<W, Order>(point);
    }
    write_point<W, Order>(point, latents, p, highest);
  }
  return kDone;
}

template <int W, int Order> INLINE int integrate(const Latents *latents, const MirrorshotRule *rule) {
  Grid<W> grid = {};
  Point<W> point = {};
  grid.rule = rule;
  point.n_classes = latents->n_classes;
  Arena count = {nullptr, 0};
  lay_out<W, Order>(count, grid, point);
  char *memory = static_cast<char *>(std::malloc(count.used + 63));
  if (!memory) return kNoMemory;
  Arena arena = {memory + (64 - reinterpret_cast<uintptr_t>(memory) % 64) % 64, 0};
  lay_out<W, Order>(arena, grid, point);
  const int status = each_point<W, Order>(point, grid, *latents);
  std::free(memory);
  return status;
}

}  // namespace
