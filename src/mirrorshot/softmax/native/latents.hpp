// G(u) and its derivatives for one latent on the grid u_i = start + i * spacing, in the narrow and the broad form of
// quadrature.py. Values are absolute and not ratios: where G is negligible, so is every integrand that has it.
#pragma once

#include <cmath>

#include "vectors.hpp"

extern "C" {

// G and its derivatives at one variance: values[n * size + j] = G^(n)(left + j * spacing). See tables.py.
struct MirrorshotKnot {
  double var, left;
  int64_t size;
  const double *values;
};

// The nodes of quadrature.Rule, with the tables from Python.
struct MirrorshotRule {
  double spacing, narrow_std, n_std, wide_std;
  int64_t n_nodes, n_hermite;
  int64_t n_wide;               // nodes of points with a standard deviation above wide_std; 0: there are none
  const double *z, *w;          // Gauss-Hermite nodes and weights
  int64_t n_knots, order;       // 0 knots: all latents are narrow
  double first_log_var, log_step;
  const MirrorshotKnot *knots;
};
}

namespace {

const int kOrder = 12;  // of the sum over derivatives of a knot; ORDER in tables.py
const int kTerms = 10;  // of the power series of exp(-y) for y <= kSmall, to 3e-17
const double kSmall = 0.1;
const double kMaxOffset = 1e5;

// The nodes of one point, and working memory.
template <int W> struct Grid {
  const MirrorshotRule *rule;
  int64_t n_nodes, rows;  // nodes, and rows of W nodes
  double *decay, *rate;   // e^{-spacing i}, rows * W of them; one number for each Hermite node
};

// Position of a latent of the broad form in the tables: node i of the grid is node first + i of its knot, plus a shift.
struct Place {
  const MirrorshotKnot *knot;
  int64_t first;
  double coefficient[kOrder + 1];  // of exp(shift z + heat z^2 / 2)
};

// Index of the knot for a standard deviation; beyond the last one if the tables end below it.
inline int64_t find_knot(const MirrorshotRule &rule, double s) {
  const double k = (2 * std::log(s) - rule.first_log_var) / rule.log_step + 0.5;
  return k < 0 ? 0 : k < double(rule.n_knots) ? int64_t(k) : rule.n_knots;
}

inline Place find_place(const MirrorshotRule &rule, const MirrorshotKnot *knot, double offset, double s) {
  Place place = {knot, 0, {1.0}};
  place.first = int64_t((offset - place.knot->left) / rule.spacing + 0.5);
  if (place.first < 0) place.first = 0;  // rounding
  const double shift = offset - (place.knot->left + rule.spacing * double(place.first));
  const double heat = s * s - place.knot->var;
  place.coefficient[1] = shift;
  for (int n = 2; n <= kOrder; ++n)
    place.coefficient[n] = (shift * place.coefficient[n - 1] + heat * place.coefficient[n - 2]) * (1.0 / n);
  return place;
}

// R rows from the tables: out[k] = sum_n c_n G^(n + k), with each derivative read once.
template <int W, int Order, int R>
INLINE void expand_rows(const Place &place, int64_t t, Real<W> *const *out) {
  typedef Real<W> V;
  const double *from = place.knot->values + place.first + t * W, *c = place.coefficient;
  const int64_t size = place.knot->size;
  V sums[Order + 1][R] = {};
#pragma GCC unroll 16
  for (int n = 0; n <= kOrder + Order; ++n)
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      const V value = in_register(load_any<W>(from + n * size + i * W));
#pragma GCC unroll 4
      for (int k = 0; k <= Order; ++k)
        if (n >= k && n - k <= kOrder) sums[k][i] += c[n - k] * value;
    }
  for (int k = 0; k <= Order; ++k)
    for (int i = 0; i < R; ++i) out[k][t + i] = sums[k][i];
}

// Broad form: out[0] = G, out[k] = its k-th derivative; the closed form 1 - e^{s^2 / 2 - x} beyond the table.
template <int W, int Order>
INLINE void broad(const Grid<W> &grid, const Place &place, double offset, double s, Real<W> *const *out) {
  typedef Real<W> V;
  const int64_t within = (place.knot->size - place.first) / W;
  const int64_t n_table = within < 0 ? 0 : within < grid.rows ? within : grid.rows;
  int64_t t = 0;
  for (; t + 2 <= n_table; t += 2) expand_rows<W, Order, 2>(place, t, out);
  for (; t < n_table; ++t) expand_rows<W, Order, 1>(place, t, out);
  const double growth = exp_of_one(0.5 * s * s - offset);
  for (; t < grid.rows; ++t) {
    const V tail = growth * load_any<W>(grid.decay + t * W);
    out[0][t] = 1.0 - tail;
    out[1][t] = tail;
    if (Order == 3) out[2][t] = -tail, out[3][t] = tail;
  }
}

// Factors e_k = E[y^k exp(-y)], y = e^{f - u}, as derivatives of G.
template <class V, int Order> INLINE void store_derivatives(const V *e, V *const *out, int64_t t) {
  out[0][t] = e[0];
  out[1][t] = e[1];
  if (Order == 3) {
    out[2][t] = e[2] - e[1];
    out[3][t] = e[3] - 3.0 * e[2] + e[1];
  }
}

// Narrow form: exponentials on the left, a power series where all y are small.
template <int W, int Order> INLINE void narrow(const Grid<W> &grid, double offset, double s, Real<W> *const *out) {
  typedef Real<W> V;
  const MirrorshotRule &rule = *grid.rule;
  const int64_t n_hermite = rule.n_hermite;
  const double width = (s * rule.z[n_hermite - 1] - offset - std::log(kSmall)) / rule.spacing;  // nodes with y > kSmall
  const int64_t n_left = !(width > 0) ? 0 : width >= double(grid.rows * W) ? grid.rows : int64_t(width) / W + 1;
  for (int64_t k = 0; k < n_hermite; ++k) grid.rate[k] = exp_of_one(s * rule.z[k] - offset);
  for (int64_t t = 0; t < n_left && t < grid.rows; ++t) {
    const V decay = load_any<W>(grid.decay + t * W);
    V e[4] = {};
    for (int64_t k = 0; k < n_hermite; ++k) {
      const V y = lesser(V(grid.rate[k] * decay), every<W>(680.0));
      V term = rule.w[k] * exp_of<W>(-y);
      e[0] += term;
      for (int j = 1; j <= Order; ++j) e[j] += (term *= y);
    }
    store_derivatives<V, Order>(e, out, t);
  }
  if (n_left >= grid.rows) return;
  double power[kTerms + 3] = {}, series[Order + 1][kTerms];
  for (int64_t k = 0; k < n_hermite; ++k) {
    const double y = exp_of_one(s * rule.z[k] - offset - rule.spacing * double(n_left * W));
    double term = rule.w[k];
    for (int m = 0; m < kTerms + Order; ++m, term *= y) power[m] += term;
  }
  double factor = 1.0;
  for (int m = 0; m < kTerms; ++m, factor /= -m)
    for (int j = 0; j <= Order; ++j) series[j][m] = factor * power[m + j];
  for (int64_t t = n_left; t < grid.rows; ++t) {
    const V d = load_any<W>(grid.decay + (t - n_left) * W);
    V e[4] = {}, scale = every<W>(1.0);
    for (int j = 0; j <= Order; ++j, scale *= d) {
      V p = every<W>(series[j][kTerms - 1]);
      for (int m = kTerms - 2; m >= 0; --m) p = p * d + series[j][m];
      e[j] = p * scale;
    }
    store_derivatives<V, Order>(e, out, t);
  }
}

}  // namespace
