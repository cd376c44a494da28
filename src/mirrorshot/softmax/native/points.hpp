// Integrals over the grid of one point, as in integrals.py: FineGrid, WideGrid and _pairs.
#pragma once

#include "latents.hpp"

namespace {

const double kEulerGamma = 0.5772156649015329;
const double kTiny = 2.2250738585072014e-308;

// Memory for one point. Arrays of (C, size) are contiguous; `size` counts vectors of W nodes.
template <int W> struct Point {
  typedef Real<W> V;
  int64_t n_classes, size;
  double *mean, *std, *log_cdf;  // shifted means, (C,); standard deviations; (C, nodes) for wide points
  double *prob, *curvature;      // (C,)
  double *pairs[3];              // (C, C): mean_mean, mean_var, var_var
  double log_sum, tail;
  V *F, *total;                  // spacing * F; the sum of r over classes
  V *ratio[3], *weighted[2];     // r, q, t; F r, F q: (C, size)
  V *latent[4];                  // G and its derivatives of one latent
  Place *place;                  // (C,); only of latents of the broad form
};

inline double at_most_bernoulli(double curvature, double prob) {
  const double most = prob * (prob < 1 ? 1 - prob : 0);
  return curvature < most ? curvature : most;
}

inline bool is_broad(const MirrorshotRule &rule, double s) { return rule.n_knots > 0 && s > rule.narrow_std; }

inline double offset_of(double start, double mean) { return start - mean < kMaxOffset ? start - mean : kMaxOffset; }

// Bound of G at x for a narrow latent. With Phi(-t) <= exp(-t^2 / 2) / 2,
// G(x) <= sum_k P(edge_k < Gumbel < edge_{k+1}) Phi((x - edge_k) / s).
inline double narrow_bound(double x, double s) {
  const int n = 5;
  const double edges[n] = {-4.0, -2.0, -1.0, 0.0, 1.5}, mass[n] = {6.2e-4, 6.54e-2, 0.302, 0.4322, 0.2};
  double G = 1e-22;
  for (int k = 0; k < n; ++k) {
    const double a = (x - edges[k]) / (s + 1e-3);
    G += mass[k] * (a < 0 ? 0.5 * exp_of_one(-0.5 * a * a) : 1.0);
  }
  return G < 1 ? G : 1.0;
}

// Whether F < 1e-20 at a node, up to the distance of two nodes and of two knots, which changes log F by a few percent.
template <int W> INLINE bool is_negligible(const Point<W> &point, const MirrorshotRule &rule, double start, int64_t i) {
  double F = 1;
  for (int64_t c = 0; c < point.n_classes && F > 1e-20; ++c) {
    if (!is_broad(rule, point.std[c])) {
      F *= narrow_bound(start + rule.spacing * double(i) - point.mean[c], point.std[c]);
      continue;
    }
    const Place &place = point.place[c];
    if (place.first + i + 1 < place.knot->size) F *= std::fabs(place.knot->values[place.first + i + 1]);
  }
  return F <= 1e-20;
}

// Number of nodes to skip at the left end, by bisection.
template <int W> INLINE int64_t skip_left(const Point<W> &point, const MirrorshotRule &rule, double start) {
  int64_t low = 0, high = rule.n_nodes - 2;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (is_negligible<W>(point, rule, start, middle))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Nodes up to which F r and 1 - F are no geometric series A e^{-u} to 1e-14.
template <int W> INLINE int64_t end_right(const Point<W> &point, const MirrorshotRule &rule, double start) {
  double highest = -HUGE_VAL;
  for (int64_t c = 0; c < point.n_classes; ++c)
    highest = larger(highest, point.mean[c] + point.std[c] * point.std[c]);
  const double n = (highest + std::log(double(point.n_classes)) + 16.0 - start) / rule.spacing + 2;
  return n < double(rule.n_nodes) ? int64_t(n) : rule.n_nodes;
}

template <int W, int Order> INLINE void fill_ratios(Point<W> &point, const Grid<W> &grid, double start) {
  typedef Real<W> V;
  const int64_t n = point.size = grid.rows;
  for (int64_t t = 0; t < n; ++t) point.F[t] = every<W>(1.0), point.total[t] = V{};
  for (int64_t c = 0; c < point.n_classes; ++c) {
    const double offset = offset_of(start, point.mean[c]), s = point.std[c];
    if (is_broad(*grid.rule, s))
      broad<W, Order>(grid, point.place[c], offset, s, point.latent);
    else
      narrow<W, Order>(grid, offset, s, point.latent);
    for (int64_t t = 0; t < n; ++t) {
      const V G = larger(point.latent[0][t], every<W>(1e-290)), inverse = 1.0 / G;
      const V r = point.latent[1][t] * inverse;
      point.F[t] *= G;
      point.total[t] += r;
      point.ratio[0][c * n + t] = r;
      if (Order == 3)
        for (int j = 1; j < 3; ++j) point.ratio[j][c * n + t] = point.latent[j + 1][t] * inverse;
    }
  }
}

// E[p] and E[p (1 - p)] from F and r; `tail` is the factor of the last node, in `last`.
template <int W> INLINE void sum_moments(Point<W> &point, int64_t last) {
  typedef Real<W> V;
  const int64_t n = point.size;
  const double end = point.tail * reinterpret_cast<const double *>(point.F)[last];
  for (int64_t c = 0; c < point.n_classes; ++c) {
    const V *r = point.ratio[0] + c * n;
    V prob{}, curvature{};
    for (int64_t t = 0; t < n; ++t) {
      const V mass = point.F[t] * r[t];
      prob += mass;
      curvature += mass * larger(V(point.total[t] - r[t]), V{});
    }
    point.prob[c] = sum<W>(prob) + end * reinterpret_cast<const double *>(r)[last];
    point.curvature[c] = at_most_bernoulli(sum<W>(curvature), point.prob[c]);
  }
}

// Write a value to the padding of the last row.
template <int W> INLINE void fill_padding(Point<W> &point, const Grid<W> &grid, double value) {
  double *F = reinterpret_cast<double *>(point.F);
  for (int64_t i = grid.n_nodes; i < grid.rows * W; ++i) F[i] = value;
}

// Returns false if a latent is wider than the tables.
template <int W, int Order> INLINE bool fine_point(Point<W> &point, Grid<W> &grid) {
  typedef Real<W> V;
  const MirrorshotRule &rule = *grid.rule;
  double start = -HUGE_VAL;
  for (int64_t c = 0; c < point.n_classes; ++c) start = larger(start, point.mean[c] - rule.n_std * point.std[c]);
  start -= 3.0;  // U_LEFT
  for (int64_t c = 0; c < point.n_classes; ++c)
    if (is_broad(rule, point.std[c])) {
      const int64_t knot = find_knot(rule, point.std[c]);
      if (knot >= rule.n_knots) return false;
      point.place[c] = find_place(rule, rule.knots + knot, offset_of(start, point.mean[c]), point.std[c]);
    }
  const int64_t skipped = skip_left<W>(point, rule, start), end = end_right<W>(point, rule, start);
  start += rule.spacing * double(skipped);
  for (int64_t c = 0; c < point.n_classes; ++c)
    if (is_broad(rule, point.std[c])) point.place[c].first += skipped;
  grid.n_nodes = end > skipped + 1 ? end - skipped : 2;
  grid.rows = (grid.n_nodes + W - 1) / W;
  fill_ratios<W, Order>(point, grid, start);
  fill_padding<W>(point, grid, 1.0);
  V survival{};
  for (int64_t t = 0; t < grid.rows; ++t) survival += 1.0 - point.F[t];
  const double *F = reinterpret_cast<const double *>(point.F);
  const double above = 0.5 + (sum<W>(survival) - (1 - F[0])) + point.tail * (1 - F[grid.n_nodes - 1]);
  point.log_sum = start + rule.spacing * above - kEulerGamma;
  fill_padding<W>(point, grid, 0.0);
  for (int64_t t = 0; t < grid.rows; ++t) point.F[t] *= rule.spacing;
  sum_moments<W>(point, grid.n_nodes - 1);
  return true;
}

// Moments of a wide point from log G (C, nodes): each cell's share of dF is split by the growth of log G.
template <int W> INLINE void share_moments(Point<W> &point, const double *F, double low, double h, int64_t n) {
  double total_prob = 0, area = 0;
  for (int64_t c = 0; c < point.n_classes; ++c) point.prob[c] = point.curvature[c] = 0;
  for (int64_t i = 0; i + 1 < n; ++i) {
    const double dF = F[i + 1] - F[i];
    area += h * (1 - 0.5 * (F[i + 1] + F[i]));
    double total = 0;
    for (int64_t c = 0; c < point.n_classes; ++c)
      total += larger(point.log_cdf[c * n + i + 1] - point.log_cdf[c * n + i], 0.0);
    const double inverse = 1 / larger(total, kTiny), rate = lesser(total / h, 1.0);
    for (int64_t c = 0; c < point.n_classes; ++c) {
      const double growth = larger(point.log_cdf[c * n + i + 1] - point.log_cdf[c * n + i], 0.0);
      const double share = growth * inverse;
      point.prob[c] += dF * share;
      point.curvature[c] += dF * share * (1 - share) * rate;
    }
  }
  for (int64_t c = 0; c < point.n_classes; ++c) total_prob += point.prob[c];
  for (int64_t c = 0; c < point.n_classes; ++c) {
    point.prob[c] /= total_prob;
    point.curvature[c] = at_most_bernoulli(point.curvature[c], point.prob[c]);
  }
  point.log_sum = low + area - kEulerGamma;
}

// log of the normal CDF, and bell curve over CDF.
inline double log_ndtr(double a, double *bell_over_cdf) {
  if (a <= 0) {
    const double m = mills<1>(-a);
    *bell_over_cdf = 1 / m;
    return std::log(m) - 0.5 * a * a;
  }
  const double bell = exp_of_one(-0.5 * a * a), upper = bell * mills<1>(a);
  *bell_over_cdf = bell / (1 - upper);
  return std::log1p(-upper);
}

template <int W, int Order> INLINE void wide_point(Point<W> &point, const MirrorshotRule &rule) {
  const int64_t n = rule.n_wide, padded = (n + W - 1) / W * W;
  point.size = padded / W;
  double low = -HUGE_VAL, high = -HUGE_VAL;
  const double gumbel_var = 1.6449340668482264;  // pi^2 / 6
  for (int64_t c = 0; c < point.n_classes; ++c) {
    const double sigma = std::sqrt(point.std[c] * point.std[c] + gumbel_var), centre = point.mean[c] + kEulerGamma;
    low = larger(low, centre - rule.n_std * sigma);
    high = larger(high, centre + rule.n_std * sigma);
  }
  double *F = reinterpret_cast<double *>(point.F), *R = reinterpret_cast<double *>(point.total);
  for (int64_t i = 0; i < padded; ++i) F[i] = R[i] = 0;
  for (int64_t c = 0; c < point.n_classes; ++c) {
    const double sigma = std::sqrt(point.std[c] * point.std[c] + gumbel_var);
    for (int64_t i = 0; i < padded; ++i) {
      const double u = low + (high - low) * (double(i) / double(n - 1));
      const double a = lesser((u - point.mean[c] - kEulerGamma) / sigma, 1e10);
      double first, value = log_ndtr(a, &first);
      first *= 0.3989422804014327 / sigma;
      if (i < n) point.log_cdf[c * n + i] = value;
      F[i] += value;
      R[i] += first;
      if (Order == 3) {
        const double values[3] = {first, -a / sigma * first, (a * a - 1) / (sigma * sigma) * first};
        for (int j = 0; j < 3; ++j) reinterpret_cast<double *>(point.ratio[j])[c * padded + i] = values[j];
      }
    }
  }
  for (int64_t i = 0; i < padded; ++i) F[i] = i < n ? std::exp(F[i]) : 0;
  const double h = (high - low) / double(n - 1);
  share_moments<W>(point, F, low, h, n);
  for (int64_t i = 0; i < padded; ++i) F[i] *= h;
}

// out[c, j] = scale * sum over nodes of x[c] y[j], for all pairs or for those below the diagonal and their mirror.
template <int W>
INLINE void products(const Point<W> &point, const Real<W> *x, const Real<W> *y, double scale, bool symmetric,
                     double *out) {
  typedef Real<W> V;
  const int64_t C = point.n_classes, n = point.size;
  for (int64_t c = 0; c < C; c += 2) {
    const V *xs[2] = {x + c * n, x + (c + 1 < C ? c + 1 : c) * n};
    for (int64_t j = 0; j < (symmetric ? c + 2 : C) && j < C; j += 4) {
      const V *ys[4];
      for (int b = 0; b < 4; ++b) ys[b] = y + (j + b < C ? j + b : C - 1) * n;
      V sums[2][4] = {};
      for (int64_t t = 0; t < n; ++t)
        for (int a = 0; a < 2; ++a)
          for (int b = 0; b < 4; ++b) sums[a][b] += xs[a][t] * ys[b][t];
      for (int a = 0; a < 2 && c + a < C; ++a)
        for (int b = 0; b < 4 && j + b < C; ++b) {
          const double value = scale * sum<W>(sums[a][b]);
          out[(c + a) * C + j + b] = value;
          if (symmetric) out[(j + b) * C + c + a] = value;
        }
    }
  }
}

template <int W> INLINE void fill_pairs(Point<W> &point, bool is_wide) {
  typedef Real<W> V;
  const int64_t C = point.n_classes, n = point.size;
  for (int64_t c = 0; c < C; ++c)
    for (int64_t t = 0; t < n; ++t)
      for (int j = 0; j < 2; ++j) point.weighted[j][c * n + t] = point.F[t] * point.ratio[j][c * n + t];
  products<W>(point, point.weighted[0], point.ratio[0], -1.0, true, point.pairs[0]);
  products<W>(point, point.weighted[0], point.ratio[1], 0.5, false, point.pairs[1]);
  products<W>(point, point.weighted[1], point.ratio[1], -0.5, true, point.pairs[2]);
  for (int64_t c = 0; c < C; ++c) {
    V own{};
    for (int64_t t = 0; t < n; ++t)
      own += larger(V(point.total[t] - point.ratio[0][c * n + t]), V{}) * point.ratio[2][c * n + t] * point.F[t];
    point.pairs[2][c * C + c] = 0.5 * sum<W>(own);
    for (int j = 0; j < 2; ++j) {
      double others = 0;
      for (int64_t i = 0; i < C; ++i)
        if (i != c) others += point.pairs[j][i * C + c];
      point.pairs[j][c * C + c] = -others;
    }
    if (is_wide) point.pairs[0][c * C + c] = point.curvature[c];
  }
}

}  // namespace
