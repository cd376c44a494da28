/** A reliability diagram of the examples, each predicted from the others. */

import { byId, differs, h, percent, plural, redraw, svg } from "./dom.js";

const SIZE = 220, LEFT = 54, TOP = 10, BOTTOM = 40;
const x = (share) => LEFT + SIZE * share;
const y = (share) => TOP + SIZE * (1 - share);

export function drawCalibration({ calibration }) {
  if (!differs(byId("diagram"), calibration)) return;
  byId("calibration").hidden = !calibration || calibration.n === 0;
  if (!calibration || calibration.n === 0) return;
  const { n, accuracy, confidence, ece } = calibration;
  redraw(byId("diagram"),
    h("p", {}, `Each of ${plural(n, "example")} predicted from the others: on average it is ${percent(confidence)} sure, and right in `,
      h("strong", {}, percent(accuracy)), "."),
    h("div", { class: "diagram" }, diagram(calibration), table(calibration)),
    h("p", { class: "hint" }, `The two differ by ${ece.toFixed(3)} on average (expected calibration error). `,
      n < 30 ? "With so few examples this is a rough estimate." : "Bars on the diagonal mean that the probabilities are right."));
}

function diagram({ bins, n }) {
  const found = bins.filter((bin) => bin.n > 0);
  const ticks = [0, 0.5, 1];
  return svg("svg", { viewBox: `0 0 ${SIZE + LEFT + 12} ${SIZE + TOP + BOTTOM}`, role: "img", "aria-label": summary(found) },
    ...[0, 0.25, 0.5, 0.75, 1].map((share) => svg("path", { class: "grid", d: `M${x(0)} ${y(share)}H${x(1)}` })),
    ...found.flatMap((bin) => column(bin, n)),
    svg("path", { class: "ideal", d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}` }),
    ...found.map((bin) => svg("circle", { class: "point", cx: x(bin.confidence), cy: y(bin.accuracy), r: 4 })),
    ...ticks.map((share) => text(x(share), y(0) + 16, String(share), "middle")),
    ...ticks.map((share) => text(x(0) - 8, y(share) + 4, String(share), "end")),
    text(x(0.5), y(0) + 34, "how sure it is", "middle"),
    svg("g", { transform: `rotate(-90 12 ${y(0.5)})` }, text(12, y(0.5) + 4, "how often it is right", "middle")));
}

/** How often it is right, and the gap to how sure it is; more examples make a stronger colour. */
function column({ low, high, n, confidence, accuracy }, total) {
  const width = x(high) - x(low) - 4;
  const strength = (0.35 + 0.65 * Math.sqrt(n / total)).toFixed(2);
  const [top, bottom] = [Math.max(confidence, accuracy), Math.min(confidence, accuracy)];
  return [
    svg("rect", { class: "right", x: x(low) + 2, y: y(accuracy), width, height: SIZE * accuracy, rx: 2, opacity: strength }),
    svg("rect", { class: "gap", x: x(low) + 2, y: y(top), width, height: SIZE * (top - bottom) }),
  ];
}

function text(left, top, content, anchor) {
  const found = svg("text", { x: left, y: top, "text-anchor": anchor });
  found.textContent = content;
  return found;
}

const summary = (bins) => "Reliability diagram. " + bins.map((bin) =>
  `Sure ${percent(bin.confidence)}, right ${percent(bin.accuracy)}, ${plural(bin.n, "example")}.`).join(" ");

function table({ bins }) {
  const rows = bins.filter((bin) => bin.n > 0).reverse();
  return h("table", {},
    h("thead", {}, h("tr", {}, ["sure", "right", "examples"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((bin) => h("tr", {}, h("td", {}, percent(bin.confidence)), h("td", {}, percent(bin.accuracy)),
      h("td", {}, String(bin.n))))));
}
