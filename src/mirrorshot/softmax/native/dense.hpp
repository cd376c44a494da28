// Dense algebra, row by row, for matrices so small that a call of LAPACK takes longer than its computation.
#pragma once

#include <cmath>

#include "vectors.hpp"

namespace {

template <int W> INLINE double dot(const double *x, const double *y, int64_t n) {
  Real<W> sums{};
  int64_t i = 0;
  for (; i + W <= n; i += W) sums += load_any<W>(x + i) * load_any<W>(y + i);
  double total = sum<W>(sums);
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}

INLINE void add_scaled(double *out, double a, const double *x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += a * x[i];
}

// out += sum_k a[k] x[k], four rows at a time: each reads and writes `out` once.
INLINE void add_rows(double *__restrict out, const double *a, int64_t a_step, const double *x, int64_t x_step, int64_t n_rows,
                     int64_t n) {
  int64_t k = 0;
  for (; k + 4 <= n_rows; k += 4) {
    const double *row = x + k * x_step, *b = a + k * a_step;
    const double a0 = b[0], a1 = b[a_step], a2 = b[2 * a_step], a3 = b[3 * a_step];
    for (int64_t i = 0; i < n; ++i)
      out[i] += a0 * row[i] + a1 * row[i + x_step] + a2 * row[i + 2 * x_step] + a3 * row[i + 3 * x_step];
  }
  for (; k < n_rows; ++k) add_scaled(out, a[k * a_step], x + k * x_step, n);
}

// Upper factor of a positive definite matrix of which only the upper half is read: A = U^T U, in place.
INLINE bool factorise(double *A, int64_t n) {
  for (int64_t k = 0; k < n; ++k) {
    double *row = A + k * n;
    if (!(row[k] > 0)) return false;
    const double inverse = 1 / std::sqrt(row[k]);
    for (int64_t j = k; j < n; ++j) row[j] *= inverse;
    for (int64_t i = k + 1; i < n; ++i) add_scaled(A + i * n + i, -row[i], row + i, n - i);
  }
  return true;
}

// x <- (U^T U)^-1 x.
template <int W> INLINE void solve(const double *U, int64_t n, double *x) {
  for (int64_t k = 0; k < n; ++k) {
    x[k] /= U[k * n + k];
    add_scaled(x + k + 1, -x[k], U + k * n + k + 1, n - k - 1);
  }
  for (int64_t k = n - 1; k >= 0; --k)
    x[k] = (x[k] - dot<W>(U + k * n + k + 1, x + k + 1, n - k - 1)) / U[k * n + k];
}

// Z <- U^-T Z for Z of n rows and m columns.
INLINE void whiten(const double *U, int64_t n, double *Z, int64_t m) {
  for (int64_t i = 0; i < n; ++i) {
    double *row = Z + i * m;
    for (int64_t j = 0; j < m; ++j) row[j] = -row[j];
    add_rows(row, U + i, n, Z, m, i, m);
    const double inverse = -1 / U[i * n + i];
    for (int64_t j = 0; j < m; ++j) row[j] *= inverse;
  }
}

}  // namespace
