"""The CSS of the page: light and dark, for phones and paper."""

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfc; --card: #ffffff; --ink: #1f2328; --soft: #5d666f; --line: #e3e5e8; --accent: #2b6f8a;
  --track: #e9edf0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181b; --card: #1c2024; --ink: #e4e7ea; --soft: #a0a9b1; --line: #30363c; --accent: #74bdd8;
    --track: #2b3137;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 68rem; padding: 3rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1, h2, h3, h4, p, dl, dd, figure, pre, ul { margin: 0; }
h1, h2, h3, h4, p, dt, dd, td, th, li, code, summary { overflow-wrap: anywhere; unicode-bidi: isolate; }
td { overflow-wrap: break-word; }
h1 { font-size: 2rem; font-weight: 650; line-height: 1.2; letter-spacing: -0.01em; }
h2 { font-size: 1.25rem; font-weight: 650; margin-bottom: 1rem; }
h3 { font-size: 1rem; font-weight: 650; }
h4 { font-size: 0.8125rem; font-weight: 500; color: var(--soft); margin: 1rem 0 0.375rem; }
section { margin-top: 3.5rem; }
section > * + * { margin-top: 1rem; }
a { color: var(--accent); text-decoration-thickness: 1px; text-underline-offset: 0.2em; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
code, pre, .hash {
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 0.875em;
}
small, .note, .form, .version { color: var(--soft); }
.note, .form, small { font-size: 0.875rem; }
.version { font-size: 1.125rem; margin-top: 0.25rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; margin-top: 1.5rem; font-size: 0.9375rem; }
.facts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: 1.25rem; margin-top: 2rem;
}
.facts dt { font-size: 0.8125rem; color: var(--soft); }
.facts dd { font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.pairs { display: grid; gap: 0.375rem; }
header .pairs { margin-top: 1.75rem; }
.pairs > div { display: grid; grid-template-columns: 8rem minmax(0, 1fr); gap: 1rem; }
.pairs dt { color: var(--soft); }
.figures { display: flex; flex-wrap: wrap; gap: 0.125rem 1.25rem; margin-top: 0.5rem; font-size: 0.875rem; }
.figures > div { display: flex; gap: 0.375rem; }
.figures dt { color: var(--soft); white-space: nowrap; }
.figures dd { font-variant-numeric: tabular-nums; }
.cards {
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr));
  gap: 1.25rem;
  align-items: start;
}
.card {
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 0.5rem;
  padding: 1.125rem 1.25rem;
  min-width: 0;
}
.card .note { margin-top: 0.75rem; }
.record > div { margin-top: 0.75rem; }
.record dt { font-size: 0.8125rem; color: var(--soft); }
.text { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 12rem; overflow-y: auto; }
img { display: block; max-width: 100%; height: auto; border-radius: 0.25rem; background: var(--track); }
img.pixels { image-rendering: pixelated; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg rect { fill: var(--accent); }
svg .track { fill: var(--track); }
.histogram { border-bottom: 1px solid var(--line); }
.share { width: 100%; min-width: 4rem; height: 0.5rem; margin-top: 0.5rem; }
.order { max-width: 32rem; background: var(--card); border: 1px solid var(--line); border-radius: 0.5rem; }
.order path { fill: none; stroke: var(--accent); stroke-width: 7; stroke-linecap: round; }
.ends { display: flex; justify-content: space-between; gap: 1rem; margin-top: 0.25rem; }
.ends { font-size: 0.8125rem; color: var(--soft); overflow-wrap: anywhere; }
.ends span:last-child { text-align: right; }
figure { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; }
figure svg { flex: 1 1 32rem; }
figcaption { flex: 1 1 14rem; font-size: 0.875rem; color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9375rem; }
caption {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap;
}
th, td {
  text-align: left;
  vertical-align: top;
  padding: 0.4375rem 1.25rem 0.4375rem 0;
  border-bottom: 1px solid var(--line);
}
th:last-child, td:last-child { padding-right: 0; }
thead th { font-size: 0.8125rem; font-weight: 500; color: var(--soft); white-space: nowrap; }
tbody th { font-weight: 500; min-width: 7.5rem; }
tbody tr:last-child > * { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.card table { font-size: 0.875rem; }
.card thead { display: none; }
.card th, .card td { padding: 0.1875rem 0.75rem 0.1875rem 0; border: 0; vertical-align: middle; }
.card tbody th { font-weight: 400; min-width: 2rem; }
.card td:last-child { padding-right: 0; }
.card td:nth-child(2) { width: 50%; }
.card .share { margin: 0; }
details { border-top: 1px solid var(--line); padding: 0.625rem 0; }
summary { cursor: pointer; }
details[open] summary { margin-bottom: 0.625rem; }
details ul { padding-left: 1.25rem; }
pre {
  overflow-x: auto;
  padding: 1rem;
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 0.5rem;
}
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--line); }
@media (max-width: 36rem) {
  body { padding: 1.75rem 1rem 3rem; }
  h1 { font-size: 1.625rem; }
  .pairs > div { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .pairs dt { font-size: 0.8125rem; }
}
@media print {
  :root {
    --paper: #ffffff; --card: #ffffff; --ink: #000000; --soft: #444444; --line: #bbbbbb; --accent: #2b6f8a;
    --track: #e5e5e5;
  }
  body {
  max-width: none; padding: 0; font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact;
}
  nav { display: none; }
  section { margin-top: 2rem; }
  .card, figure, tr { break-inside: avoid; }
  h2, h3, h4 { break-after: avoid; }
  .text { max-height: none; overflow: visible; }
  .wide { overflow: visible; }
}
"""
