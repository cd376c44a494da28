// G(u) and its derivatives for one latent on the grid u_i = start + i * spacing, in the narrow and the broad form of
// quadrature.py. Values are absolute and not ratios: where G is negligible, so is every integrand that has it.
//
// Order of the nodes ("striped"): lane l of row t is node l * rows + t. The next node is the next row, so the
// convolution with the Gumbel weights reads whole aligned vectors.
#pragma once

#include <cmath>

#include "vectors.hpp"

extern "C" {

// The nodes of quadrature.Rule, with the tables that Python made.
struct MirrorshotRule {
  double spacing, narrow_std, n_std, gamma_right;
  int64_t n_nodes, n_hermite, n_taps, has_broad;
  int64_t n_wide;  // nodes of points with a standard deviation above wide_std; 0: there are none
  double wide_std;
  const double *z, *w;  // Gauss-Hermite nodes and weights
  const double *taps;   // Gumbel weights from the last node to the first
};
}

namespace {

const int kTerms = 10;       // of the power series of exp(-y) for y <= kSmall, to 3e-17
const double kSmall = 0.1;
const int kReseed = 16;  // rows after which the recurrence of the bell curve starts anew
const double kLeftmost = -30, kRightmost = 22;  // where such a start may lie; the curve is negligible 8 further in
const double kMaxOffset = 1e5;

// The nodes of one point, tables of them, and working memory.
template <int W> struct Grid {
  typedef Real<W> V;
  const MirrorshotRule *rule;
  int64_t n_nodes, rows, last;  // nodes, rows of W nodes, and the place of the last node
  int64_t blocks, tap_rows;     // rows and their number that the convolution reads
  double *decay, *rate;     // e^{-spacing i} in plain order, rows * W of them; one number for each Hermite node
  V *striped_decay, *real;  // the same striped; one for nodes and zero for padding
  V *line;                  // 4 arrays in plain order
  V *seed, *raw[2], *shifted[4];
  V *conv[4];
};

// Add to out[f][t] the sum over k of taps[k] * in[f][t + k], for R rows of two functions.
template <int W, int R>
INLINE void convolve_rows(const double *taps, int64_t n, const Real<W> *f, const Real<W> *g, Real<W> *f_out,
                          Real<W> *g_out) {
  Real<W> a[R], b[R];
  for (int t = 0; t < R; ++t) a[t] = b[t] = Real<W>{};
  for (int64_t k = 0; k < n; ++k) {
    const double w = taps[k];
#pragma GCC unroll 8
    for (int t = 0; t < R; ++t) {
      a[t] += w * f[k + t];
      b[t] += w * g[k + t];
    }
  }
  for (int t = 0; t < R; ++t) {
    f_out[t] = a[t];
    g_out[t] = b[t];
  }
}

template <int W> INLINE void convolve(const Grid<W> &grid, const Real<W> *f, const Real<W> *g, Real<W> *a, Real<W> *b) {
  const double *taps = grid.rule->taps;
  const int64_t n = grid.rule->n_taps;
  int64_t t = 0;
  while (t < grid.rows) {  // parts of nearly equal size, at most 8 or 4 rows that fit into the registers
    const int64_t most = W == 8 ? 8 : 4, left = grid.rows - t, parts = (left + most - 1) / most;
    const int64_t size = (left + parts - 1) / parts;
    switch (size) {
      case 8: convolve_rows<W, W == 8 ? 8 : 4>(taps, n, f + t, g + t, a + t, b + t); break;
      case 7: convolve_rows<W, W == 8 ? 7 : 4>(taps, n, f + t, g + t, a + t, b + t); break;
      case 6: convolve_rows<W, W == 8 ? 6 : 4>(taps, n, f + t, g + t, a + t, b + t); break;
      case 5: convolve_rows<W, W == 8 ? 5 : 4>(taps, n, f + t, g + t, a + t, b + t); break;
      case 4: convolve_rows<W, 4>(taps, n, f + t, g + t, a + t, b + t); break;
      case 3: convolve_rows<W, 3>(taps, n, f + t, g + t, a + t, b + t); break;
      case 2: convolve_rows<W, 2>(taps, n, f + t, g + t, a + t, b + t); break;
      default: convolve_rows<W, 1>(taps, n, f + t, g + t, a + t, b + t); break;
    }
    t += size;
  }
}

// Normal CDF and bell curve at (x_0 - gamma_right + spacing i) / s, as rows that continue beyond the grid.
// From row to row the bell curve is multiplied by a ratio, and the ratio by e^{-step^2}.
template <int W> INLINE void normal_and_bell(const Grid<W> &grid, double first, double step) {
  typedef Real<W> V;
  const int64_t rows = grid.rows, blocks = grid.blocks;
  const double shrink = exp_of_one(-step * step);
  for (int64_t from = 0; from < rows; from += kReseed) {
    const int64_t to = from + kReseed < rows ? from + kReseed : rows;
    for (int64_t b = 0; b < blocks; ++b) {
      double lanes[W];
      for (int l = 0; l < W; ++l) lanes[l] = first + step * double((b * W + l) * rows + from);
      const V start = lesser(larger(load_any<W>(lanes), every<W>(kLeftmost)), every<W>(kRightmost));
      grid.seed[3 * b] = start;
      grid.seed[3 * b + 1] = exp_of<W>(-0.5 * (start * start));
      grid.seed[3 * b + 2] = exp_of<W>(-step * (start + 0.5 * step));
    }
    for (int64_t b = 0; b < blocks; ++b) {
      V a = grid.seed[3 * b], bell = grid.seed[3 * b + 1], ratio = grid.seed[3 * b + 2];
      for (int64_t t = from; t < to; ++t) {
        const V small = bell * mills<W>(larger(a, V(-a)));
        grid.raw[0][t * blocks + b] = a > V{} ? V(1.0 - small) : small;
        grid.raw[1][t * blocks + b] = bell;
        a += step;
        bell *= ratio;
        ratio *= shrink;
      }
    }
  }
  for (int f = 0; f < 2; ++f) {
    V *to = grid.shifted[f], *end = to + grid.tap_rows;
    for (int64_t column = 0; to < end; ++column) {
      const double *from = reinterpret_cast<const double *>(grid.raw[f]) + column;
      for (int64_t t = 0; t < rows && to < end; ++t, from += blocks * W) *to++ = load_any<W>(from);
    }
  }
}

// Broad form, striped: out[0] = G, out[k] = its k-th derivative.
template <int W, int Order> INLINE void broad(const Grid<W> &grid, double offset, double s, Real<W> *const *out) {
  typedef Real<W> V;
  const MirrorshotRule &rule = *grid.rule;
  const int64_t rows = grid.rows;
  const double first = (offset - rule.gamma_right) / s, step = rule.spacing / s;
  const double last_weight = exp_of_one(-rule.gamma_right), height = 0.3989422804014327 / s;
  const double growth = exp_of_one(0.5 * s * s - offset);
  if (first > 12.0) {  // all of the bell curve lies to the left: only the closed-form tail is left
    for (int64_t t = 0; t < rows; ++t) {
      const V tail = growth * grid.striped_decay[t];
      out[0][t] = 1.0 - tail;
      out[1][t] = tail;
      if (Order == 3) out[2][t] = -tail, out[3][t] = tail;
    }
    return;
  }
  normal_and_bell<W>(grid, first, step);
  convolve<W>(grid, grid.shifted[0], grid.shifted[1], grid.conv[0], grid.conv[1]);
  double lanes[W];
  for (int l = 0; l < W; ++l) lanes[l] = first + step * double(l * rows);
  const V start = load_any<W>(lanes);
  if (Order == 3) {
    for (int64_t row = 0; row < grid.tap_rows; ++row) {
      const V a = start + step * double(row), slope = a * grid.shifted[1][row];
      grid.shifted[2][row] = slope;
      grid.shifted[3][row] = a * slope;
    }
    convolve<W>(grid, grid.shifted[2], grid.shifted[3], grid.conv[2], grid.conv[3]);
  }
  for (int64_t t = 0; t < rows; ++t) {
    const V end = start + step * double(t), z = end - s, bell = grid.shifted[1][t];
    // e^{s^2/2 - x} Phi(z), where e^{s^2/2 - x} e^{-z^2/2} = last_weight e^{-end^2/2}
    const V part = last_weight * bell * rough_mills<W>(larger(z, V(-z)));
    const V tail = z > V{} ? V(growth * grid.striped_decay[t] - part) : part;
    const V density = height * grid.conv[1][t];
    out[0][t] = grid.conv[0][t] + larger(V(last_weight * grid.shifted[0][t] - tail), V{});
    out[1][t] = density + tail;
    if (Order == 3) {
      const V bell_end = last_weight * height * bell;
      out[2][t] = (-height / s) * grid.conv[2][t] - tail + bell_end;
      out[3][t] = (height * grid.conv[3][t] - density) / (s * s) + tail - bell_end - end / s * bell_end;
    }
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

// Narrow form in plain order: exponentials on the left, a power series where all y are small.
template <int W, int Order> INLINE void narrow_line(const Grid<W> &grid, double offset, double s, Real<W> *const *out) {
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

template <int W, int Order> INLINE void narrow(const Grid<W> &grid, double offset, double s, Real<W> *const *out) {
  if (!grid.rule->has_broad) return narrow_line<W, Order>(grid, offset, s, out);
  Real<W> *lines[4];
  for (int j = 0; j <= Order; ++j) lines[j] = grid.line + j * grid.rows;
  narrow_line<W, Order>(grid, offset, s, lines);
  for (int j = 0; j <= Order; ++j) {
    const double *from = reinterpret_cast<const double *>(lines[j]);
    double *to = reinterpret_cast<double *>(out[j]);
    for (int64_t t = 0; t < grid.rows; ++t)
      for (int l = 0; l < W; ++l) to[t * W + l] = from[l * grid.rows + t];
  }
}

}  // namespace
