/**
 * How many of a set of answers will be right, with a 95 % interval. No drawing here.
 *
 * The probabilities of the classifier hold for images like the examples. How far those of the user are from that is unknown:
 * an overconfidence d in log odds, the same for all answers, so that an answer of probability p is right with logit(p) - d.
 * Before any check d has mean 0.7 and deviation 1.3: spread of the digits and characters in benchmarks/serve_expectation.py. Each image that the user
 * labels after the classifier has answered is a check, and changes the distribution of d by Bayes' rule.
 */

const PRIOR = { mean: 0.7, sd: 1.3 };
const STEPS = Array.from({ length: 61 }, (_, i) => -3 + 0.15 * i); // values of d
const NORMAL = [-1.91, -1.31, -0.97, -0.7, -0.46, -0.23, 0, 0.23, 0.46, 0.7, 0.97, 1.31, 1.91]; // 13 quantiles of equal weight

const logit = (p) => Math.log(p / (1 - p));
const clipped = (p) => Math.min(1 - 1e-6, Math.max(1e-6, p));
const shifted = (p, d) => 1 / (1 + Math.exp(d - logit(clipped(p))));

/** Weights of the values of d, after checks: `{ probability, right }` each. */
export function overconfidence(checks) {
  const logs = STEPS.map((d) => checks.reduce((sum, { probability, right }) => {
    const q = shifted(probability, d);
    return sum + Math.log(right ? q : 1 - q);
  }, -0.5 * ((d - PRIOR.mean) / PRIOR.sd) ** 2));
  const most = Math.max(...logs);
  const weights = logs.map((log) => Math.exp(log - most));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => weight / total);
}

/** Expected share of right answers among probabilities, and the interval that holds it in 95 of 100 cases. */
export function expectation(probabilities, checks) {
  if (probabilities.length === 0) return null;
  const weights = overconfidence(checks), n = probabilities.length;
  const values = [];
  let mean = 0;
  STEPS.forEach((d, i) => {
    if (weights[i] < 1e-5) return;
    let sum = 0, variance = 0;
    for (const p of probabilities) { const q = shifted(p, d); sum += q; variance += q * (1 - q); }
    mean += (weights[i] * sum) / n;
    for (const z of NORMAL) values.push([Math.min(1, Math.max(0, (sum + z * Math.sqrt(variance)) / n)), weights[i]]);
  });
  values.sort((a, b) => a[0] - b[0]);
  return { n, mean, low: quantile(values, 0.025), high: quantile(values, 0.975) };
}

function quantile(values, share) {
  const total = values.reduce((sum, [, weight]) => sum + weight, 0);
  let seen = 0;
  for (const [value, weight] of values) {
    seen += weight;
    if (seen >= share * total) return value;
  }
  return values.at(-1)[0];
}

/** The lowest threshold, in percent, above which at most `share` of the answers are expected to be wrong. */
export function thresholdFor(probabilities, checks, share) {
  const weights = overconfidence(checks);
  const sorted = [...probabilities].sort((a, b) => b - a);
  let n = 0, wrong = 0, lowest = 0.99;
  for (const p of sorted) {
    n += 1;
    wrong += STEPS.reduce((sum, d, i) => (weights[i] < 1e-5 ? sum : sum + weights[i] * (1 - shifted(p, d))), 0);
    if (wrong <= share * n) lowest = p;
  }
  return Math.min(99, Math.max(50, Math.ceil(100 * lowest)));
}
