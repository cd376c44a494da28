// Vectors of W doubles (GNU vector types; W = 1 is a plain double for other compilers), exp and the Mills ratio.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__GNUC__)
#define INLINE inline __attribute__((always_inline))
#define MIRRORSHOT_VECTORS 1
#else
#define INLINE inline
#endif

namespace {

template <int W> struct Pack;
template <> struct Pack<1> {
  typedef double real;
  typedef uint64_t bits;
};
#ifdef MIRRORSHOT_VECTORS
template <> struct Pack<2> {
  typedef double real __attribute__((vector_size(16), may_alias));
  typedef uint64_t bits __attribute__((vector_size(16)));
};
template <> struct Pack<4> {
  typedef double real __attribute__((vector_size(32), may_alias));
  typedef uint64_t bits __attribute__((vector_size(32)));
};
template <> struct Pack<8> {
  typedef double real __attribute__((vector_size(64), may_alias));
  typedef uint64_t bits __attribute__((vector_size(64)));
};
#endif

template <int W> using Real = typename Pack<W>::real;

template <class V> INLINE V lesser(V a, V b) { return a < b ? a : b; }
template <class V> INLINE V larger(V a, V b) { return a > b ? a : b; }  // `b` if one is NaN

template <int W> INLINE Real<W> every(double x) { return Real<W>{} + x; }

template <int W> INLINE Real<W> load_any(const double *from) {  // no alignment needed
  Real<W> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// Keep a value that is used twice in a register: GCC would read it twice, and such reads cross cache lines.
template <class V> INLINE V in_register(V v) {
#if defined(MIRRORSHOT_VECTORS) && defined(__x86_64__)
  __asm__("" : "+v"(v));
#endif
  return v;
}

template <int W> INLINE double sum(Real<W> v) {
  double lanes[W], total = 0;
  std::memcpy(lanes, &v, sizeof v);
  for (int i = 0; i < W; ++i) total += lanes[i];
  return total;
}

// exp(x) to 2e-16; zero below -708, exp(708) above.
template <int W> INLINE Real<W> exp_of(Real<W> x) {
  typedef Real<W> V;
  const double shift = 6755399441055744.0;  // 1.5 * 2^52: the sum holds the nearest integer in its last bits
  const V c = lesser(larger(x, every<W>(-708.0)), every<W>(708.0));
  V n = c * 1.4426950408889634 + shift;
  typename Pack<W>::bits bits;
  std::memcpy(&bits, &n, sizeof n);
  n = n - shift;
  const V r = (c - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  V p = every<W>(2.5110153646928931396e-8);
  p = p * r + 2.7632790542117181015e-7;
  p = p * r + 2.7557240604663895823e-6;
  p = p * r + 0.000024801485074105116705;
  p = p * r + 0.00019841269890340665299;
  p = p * r + 0.0013888888952696515657;
  p = p * r + 0.0083333333333194903177;
  p = p * r + 0.041666666666486661223;
  p = p * r + 0.16666666666666680948;
  p = p * r + 0.50000000000000185703;
  p = p * r + 1.0;
  p = p * r + 1.0;
  bits = (bits + 1023) << 52;
  V scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return x < every<W>(-708.0) ? V{} : V(p * scale);
}

INLINE double exp_of_one(double x) { return exp_of<1>(x); }

// Phi(-t) / exp(-t^2 / 2) for t >= 0, to 2e-14: (t + 5) times it is a polynomial of (t - 5) / (t + 5).
template <int W> INLINE Real<W> mills(Real<W> t) {
  typedef Real<W> V;
  const V inverse = 1.0 / (t + 5.0);
  const V y = (t - 5.0) * inverse;
  // four interleaved polynomials of y^4: their chains of operations overlap
  const V y2 = y * y, y4 = y2 * y2;
  V p0 = 3.726453325420201823e-7 * y4 + 0.000016641324003427510469;
  V p1 = 1.8573902232434927281e-8 * y4 + 3.9472536197670181469e-6;
  V p2 = -3.3620136395300911365e-8 * y4 - 2.7059662248510158988e-6;
  V p3 = -3.0091678470315757637e-7 * y4 - 0.000049742715700207249887;
  p0 = p0 * y4 - 0.00079787288220909958871;
  p1 = p1 * y4 + 0.00054489156021741134258;
  p2 = p2 * y4 - 0.000059360397414322911194;
  p3 = p3 * y4 - 0.002993375092550009101;
  p0 = p0 * y4 + 0.16502036614605160268;
  p1 = p1 * y4 - 0.069118638911981180893;
  p2 = p2 * y4 + 0.020795067230851449831;
  p3 = p3 * y4 - 0.3135331566597504984;
  p0 = p0 * y4 + 0.76919304975006295965;
  p1 = p1 * y4 - 0.66538250289024833345;
  p2 = p2 * y4 + 0.49530561597038084419;
  return ((p3 * y + p2) * y2 + (p1 * y + p0)) * inverse;
}

// The same to 3e-7, for terms that have a factor of at most 4e-8.
template <int W> INLINE Real<W> rough_mills(Real<W> t) {
  typedef Real<W> V;
  const V inverse = 1.0 / (t + 3.5);
  const V y = (t - 3.5) * inverse, y2 = y * y;
  V p0 = 0.00034024102311 * y2 - 0.00309416459309;
  V p1 = -0.000339373206984 * y2 + 0.0064059631362;
  p0 = p0 * y2 + 0.0173823074601;
  p1 = p1 * y2 - 0.116032391827;
  p0 = p0 * y2 + 0.315426861128;
  p1 = p1 * y2 - 0.565563180035;
  p0 = p0 * y2 + 0.744416075436;
  return (p1 * y + p0) * inverse;
}

}  // namespace
