"""The look of report.html, light and dark; figures keep their white ground."""

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1a1a1a; --soft: #595959; --rule: #d0d0d0; --tint: #f5f5f5;
  --mark: #0072B2; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ground: #16181b; --ink: #e8e8e8; --soft: #a9adb2; --rule: #3a3e43; --tint: #202428; --mark: #56B4E9; }
  figure img { background: #fff; border-radius: 4px; padding: .5rem; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: .1rem 0 .5rem; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 1rem; padding-bottom: .3rem; border-bottom: 2px solid var(--ink); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p, dd, li { max-width: 46rem; }
.kind { margin: 0; color: var(--soft); }
.facts { color: var(--soft); margin-top: 0; }
.note { border-left: 4px solid #D55E00; background: var(--tint); padding: .5rem .8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.results { width: 100%; font-size: .92rem; }
.results th, .results td { padding: .38rem .6rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
.results thead th { border-bottom: 2px solid var(--ink); white-space: normal; vertical-align: bottom; line-height: 1.25; }
.results th[scope=row] { text-align: left; font-weight: 600; }
.results td.reason { text-align: left; white-space: normal; color: var(--soft); }
.results td.best { font-weight: 700; color: var(--mark); }
.pairs { font-size: .9rem; }
.pairs th, .pairs td { text-align: left; vertical-align: top; padding: .18rem 1.2rem .18rem 0;
  border-bottom: 1px solid var(--rule); overflow-wrap: anywhere; }
.pairs th { font-weight: 500; color: var(--soft); white-space: nowrap; }
dl { margin: 1rem 0; display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; }
dt { font-weight: 600; }
dd { margin: 0; }
.terms { font-size: .88rem; color: var(--soft); }
.parameters { color: var(--soft); font-size: .9em; }
.parameters::before { content: "("; }
.parameters::after { content: ")"; }
figure { margin: 0 0 2.6rem; }
figure img { display: block; width: 100%; max-width: 50rem; height: auto; }
figcaption { margin-top: .5rem; font-size: .92rem; max-width: 50rem; color: var(--soft); }
pre { background: var(--tint); border: 1px solid var(--rule); padding: .8rem 1rem; overflow-x: auto;
  font-size: .82rem; line-height: 1.45; }
code { font-size: .92em; }
@media (max-width: 40rem) {
  main { padding: 1rem .9rem 3rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .6rem; }
}
@media print {
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  figure, .results { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .results { font-size: 8pt; }
  .results th, .results td { padding: .25rem .3rem; }
  .wide { overflow: visible; }
  pre { white-space: pre-wrap; font-size: 7.5pt; }
}
"""
