// Softmax expectations under independent Gaussians, and inference for small tasks with them: the C interface that
// native/__init__.py and gp/native_rounds.py call.
//
// The formulas are those of integrals.py and quadrature.py, in float64 throughout. There is no state: every call
// allocates its memory, so calls from several threads and after a fork are independent.

#include "rounds.hpp"

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

bool is_valid(const Latents &latents, const MirrorshotRule *rule) {
  const int64_t P = latents.n_points, C = latents.n_classes;
  if (!rule || P < 0 || C < 1 || P > kLimit || C > kLimit >> 13 || !(rule->spacing > 0)) return false;
  const int64_t sizes[2] = {rule->n_nodes, rule->n_hermite};
  for (int i = 0; i < 2; ++i)
    if (sizes[i] < 1 || sizes[i] > kLimit >> 10) return false;
  if (rule->order != kOrder || rule->n_knots < 0 || rule->n_knots > kLimit >> 10) return false;
  return rule->n_wide != 1 && rule->n_wide >= 0 && rule->n_wide <= kLimit >> 10;
}

// One copy of the code for each instruction set, chosen when called.
#define RUN(NAME, WIDTH, TARGET)                                                                \
  template <int Order> TARGET int NAME(const Latents *latents, const MirrorshotRule *rule) {    \
    return integrate<WIDTH, Order>(latents, rule);                                              \
  }

#if defined(MIRRORSHOT_WIDTH)
RUN(run_plain, MIRRORSHOT_WIDTH, )
#elif defined(MIRRORSHOT_VECTORS)
RUN(run_plain, 2, )
#else
RUN(run_plain, 1, )
#endif
#if defined(MIRRORSHOT_VECTORS) && defined(__x86_64__) && !defined(MIRRORSHOT_WIDTH)
#define MIRRORSHOT_X86 1
RUN(run_avx512, 8, __attribute__((target("avx512f,avx512dq,avx2,fma"))))
RUN(run_avx2, 4, __attribute__((target("avx2,fma"))))
#endif

template <int Order> int run(const Latents &latents, const MirrorshotRule *rule) {
  if (!is_valid(latents, rule)) return kInvalid;
#ifdef MIRRORSHOT_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return run_avx512<Order>(&latents, rule);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return run_avx2<Order>(&latents, rule);
#endif
  return run_plain<Order>(&latents, rule);
}

#define ROUNDS(NAME, WIDTH, TARGET, CORE) \
  TARGET int NAME(Rounds &all) { return alternate<WIDTH>(all, CORE); }

#if defined(MIRRORSHOT_WIDTH)
ROUNDS(rounds_plain, MIRRORSHOT_WIDTH, , run_plain<1>)
#elif defined(MIRRORSHOT_VECTORS)
ROUNDS(rounds_plain, 2, , run_plain<1>)
#else
ROUNDS(rounds_plain, 1, , run_plain<1>)
#endif
#ifdef MIRRORSHOT_X86
ROUNDS(rounds_avx512, 8, __attribute__((target("avx512f,avx512dq,avx2,fma"))), run_avx512<1>)
ROUNDS(rounds_avx2, 4, __attribute__((target("avx2,fma"))), run_avx2<1>)
#endif

int run_rounds(Rounds &all) {
#ifdef MIRRORSHOT_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return rounds_avx512(all);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return rounds_avx2(all);
#endif
  return rounds_plain(all);
}

bool is_valid(const MirrorshotTask &task, const MirrorshotRule *rule) {
  const int64_t sizes[3] = {task.n_points, task.n_features, task.n_classes};
  for (int i = 0; i < 3; ++i)
    if (sizes[i] < 1 || sizes[i] > kLimit >> 14) return false;
  const Latents latents = {{}, {}, task.n_points, task.n_classes, {}, {}};
  return is_valid(latents, rule);
}

}  // namespace

EXPORT int mirrorshot_abi_version() { return 3; }

EXPORT int mirrorshot_moments(int is_single, void *mean, void *var, int64_t n_points, int64_t n_classes,
                              const MirrorshotRule *rule, void *prob, void *curvature, void *log_sum) {
  const bool s = is_single != 0;
  const Latents latents = {{mean, s}, {var, s}, n_points, n_classes, {prob, s}, {{curvature, s}, {log_sum, s}, {}}};
  return run<1>(latents, rule);
}

EXPORT int mirrorshot_hessian(int is_single, void *mean, void *var, int64_t n_points, int64_t n_classes,
                              const MirrorshotRule *rule, void *prob, void *mean_mean, void *mean_var, void *var_var) {
  const bool s = is_single != 0;
  const Latents latents = {{mean, s}, {var, s}, n_points, n_classes, {prob, s}, {{mean_mean, s}, {mean_var, s}, {var_var, s}}};
  return run<3>(latents, rule);
}

// Improve weights u (C, R) and precisions w (N, C) of a task, in place; write the number of rounds.
EXPORT int mirrorshot_rounds(const MirrorshotTask *task, const MirrorshotRule *rule, double *u, double *w,
                             int64_t *n_rounds) {
  if (!task || !is_valid(*task, rule)) return kInvalid;
  Rounds all = {};
  all.task = task;
  all.rule = rule;
  all.u = u;
  all.w = w;
  Arena count = {nullptr, 0};
  lay_out(count, all);
  char *memory = static_cast<char *>(std::malloc(count.used));
  if (!memory) return kNoMemory;
  Arena arena = {memory, 0};
  lay_out(arena, all);
  prepare(all);
  const int status = run_rounds(all);
  std::free(memory);
  *n_rounds = all.n_rounds;
  return status;
}
