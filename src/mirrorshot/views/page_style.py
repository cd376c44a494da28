"""Style sheet of the page, for desktops, phones, dark mode and print."""

CSS = """
:root {
  --paper: #ffffff; --ink: #1b1e24; --faint: #667080; --line: #e3e6eb; --wash: #f5f7fa;
  --accent: #0069a8; --best: #e3f1fa;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171c; --ink: #e8eaee; --faint: #98a2b3; --line: #2b313b; --wash: #1c2128;
    --accent: #6cb8ea; --best: #17354a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.6 ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  text-rendering: optimizeLegibility;
}
header, main, footer { max-width: 68rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 4rem; padding-bottom: 1rem; }
.over {
  margin: 0 0 .8rem; color: var(--accent); font-size: .8rem; font-weight: 650; letter-spacing: .12em;
  text-transform: uppercase;
}
h1, h2 { text-wrap: balance; }
h1 { margin: 0 0 1.2rem; font-size: clamp(2rem, 5vw, 3rem); line-height: 1.1; letter-spacing: -.025em; }
h2 { margin: 0 0 1rem; font-size: 1.55rem; line-height: 1.2; letter-spacing: -.015em; }
h3 { margin: 0 0 .7rem; font-size: .78rem; letter-spacing: .08em; text-transform: uppercase; color: var(--faint); }
p { margin: 0 0 1rem; }
.intro, .text { max-width: 42rem; }
.intro { font-size: 1.15rem; line-height: 1.55; }
nav ol {
  display: flex; flex-wrap: wrap; gap: .5rem; margin: 1.6rem 0 0; padding: 0; list-style: none; font-size: .92rem;
}
nav a {
  display: block; padding: .25rem .85rem; border: 1px solid var(--line); border-radius: 2rem; color: var(--ink);
  text-decoration: none;
}
nav a:hover { border-color: var(--accent); color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
section { padding: 2.6rem 0 1.2rem; border-top: 1px solid var(--line); margin-top: 2rem; }
.result {
  display: grid; grid-template-columns: minmax(0, 1fr) 15.5rem; gap: 2rem; align-items: start; margin: 1.6rem 0 2.2rem;
}
.result.wide { grid-template-columns: minmax(0, 1fr); }
.command {
  margin: 0 0 1rem; padding: .7rem .9rem; border-radius: .5rem; background: var(--wash); font-size: .85rem;
  line-height: 1.5; white-space: pre-wrap; overflow-wrap: anywhere; user-select: all;
}
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { width: 100%; border-collapse: collapse; font-size: .95rem; font-variant-numeric: tabular-nums; }
caption { padding: 0 0 .7rem; font-weight: 650; text-align: left; }
th, td { padding: .55rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child { padding-left: 0; text-align: left; }
th:last-child, td:last-child { padding-right: .3rem; }
thead th {
  border-bottom: 1.5px solid var(--ink); color: var(--faint); font-size: .84rem; font-weight: 600;
  vertical-align: bottom;
}
tbody th { font-weight: 600; }
tbody tr:hover { background: var(--wash); }
.best {
  position: relative; padding: .12rem .4rem; margin-right: -.4rem; border-radius: .3rem; background: var(--best);
  font-weight: 700;
}
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.note { margin: .8rem 0 0; color: var(--faint); font-size: .85rem; line-height: 1.5; max-width: 42rem; }
aside { padding: 1.1rem 1.2rem; border-radius: .6rem; background: var(--wash); font-size: .88rem; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .3rem 1rem; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
figure { margin: 1.6rem 0 2.2rem; }
.image .scroll { padding: 1.2rem; border: 1px solid var(--line); border-radius: .8rem; }
.image svg { display: block; width: 100%; height: auto; fill: var(--ink); }
figcaption { margin-top: .8rem; max-width: 42rem; color: var(--faint); font-size: .9rem; line-height: 1.5; }
.gallery {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: 1rem; margin: 1.4rem 0 2rem;
  padding: 0; list-style: none;
}
.gallery li { border: 1px solid var(--line); border-radius: .7rem; overflow: hidden; }
.gallery img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: #ffffff; }
.gallery div { padding: .6rem .75rem .7rem; }
.gallery p { margin: 0; font-size: .85rem; line-height: 1.4; overflow-wrap: anywhere; }
.gallery .file { margin-top: .25rem; color: var(--faint); font-size: .78rem; }
footer {
  margin-top: 2rem; padding-top: 1.2rem; padding-bottom: 3rem; border-top: 1px solid var(--line); color: var(--faint);
  font-size: .85rem;
}
@media (max-width: 56rem) {
  .result { grid-template-columns: minmax(0, 1fr); gap: 1rem; }
}
@media (max-width: 36rem) {
  body { font-size: 16px; }
  header { padding-top: 2.2rem; }
  header, main, footer { padding-left: 1.1rem; padding-right: 1.1rem; }
  .intro { font-size: 1.05rem; }
  .gallery { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .7rem; }
  .image .scroll { padding: .8rem; }
  th, td { padding-left: .5rem; padding-right: .5rem; }
  thead th { white-space: normal; }
  tbody th { position: sticky; left: 0; z-index: 1; min-width: 6.5rem; max-width: 9rem; background: var(--paper);
    white-space: normal; overflow-wrap: anywhere; }
}
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
@media print {
  body { font-size: 11pt; }
  nav { display: none; }
  .result, figure { break-inside: avoid; }
  section { border-top: 0; margin-top: 0; padding-top: 1rem; }
}
"""
