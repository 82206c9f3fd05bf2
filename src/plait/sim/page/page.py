"""Page: the charts, the figures and the inputs of a report as one HTML document.

Owns the document and its style sheet. It works offline, without scripts, by day and by night, on a telephone and in
print, and for readers of screens.
Invariant: nothing in it points outside of it; every text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from plait.sim.page.charts import Chart

BEGINNING = "<!doctype html><!-- plait sim -->"
"""By which a page of ours is known."""

_STYLE = """
:root{color-scheme:light dark;--ground:#fbfbfa;--panel:#fff;--ink:#1d2129;--soft:#5b6472;--rule:#dfe2e7;--c1:#2f6fb3;
--c2:#d98a1f;--c3:#4f9a73;--c4:#8a63b8;--bad:#c0392b}
@media(prefers-color-scheme:dark){:root{--ground:#15181d;--panel:#1d2127;--ink:#e8eaee;--soft:#a2abb8;--rule:#343a44;
--c1:#6aa9e9;--c2:#e8a94d;--c3:#4d8f6c;--c4:#b595e0;--bad:#ef7b6c}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:1.5rem;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:0 0 4px}
p{margin:0 0 8px;color:var(--soft)}p.evidence{color:var(--ink)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0;padding:0}
.figures div{background:var(--panel);border:1px solid var(--rule);border-radius:8px;padding:10px 12px}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
dd small{display:block;font-size:.85rem;line-height:1.3;color:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:16px}
figure,.panel{margin:0;background:var(--panel);border:1px solid var(--rule);border-radius:8px;padding:14px 16px}
svg{display:block;width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
svg .name{fill:var(--soft)}
.grid{stroke:var(--rule);fill:none}.axis{stroke:var(--soft);fill:none}.lane{fill:none;stroke:var(--rule)}
.target{stroke:var(--soft);stroke-dasharray:5 4;fill:none}.spread{stroke:var(--soft)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.c1{--colour:var(--c1)}.c2{--colour:var(--c2)}.c3{--colour:var(--c3)}.c4{--colour:var(--c4)}.bad{--colour:var(--bad)}
.line{stroke:var(--colour)}.area,.dot{fill:var(--colour)}
ul.key{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;margin:6px 0;padding:0;font-size:.9rem}
ul.key i{display:inline-block;width:14px;height:14px;margin-right:6px;vertical-align:-2px;border-radius:3px;
background:var(--colour,transparent)}
ul.key i.target{border-top:2px dashed var(--soft);height:5px;border-radius:0;vertical-align:2px}
summary{cursor:pointer;color:var(--soft);font-size:.9rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:4px 8px;border-bottom:1px solid var(--rule);font-weight:400}
th:first-child,td:first-child{text-align:left}thead th{color:var(--soft)}
.panel{margin-top:16px}.panel table{width:auto}.panel td:last-child{text-align:left;overflow-wrap:anywhere}
@media print{figure,.panel{break-inside:avoid}}
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number at the top of the page."""

    name: str
    value: str
    unit: str = ""


def page(
    title: str, evidence: str, figures: Sequence[Figure], charts: Sequence[Chart], facts: Sequence[tuple[str, str]]
) -> str:
    """The document. `facts`: what was simulated, name and value."""
    boxes = "".join(
        f"<div><dt>{escape(one.name)}</dt><dd>{escape(one.value)} <small>{escape(one.unit)}</small></dd></div>"
        for one in figures
    )
    return (
        f'{BEGINNING}<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="evidence">{escape(evidence)}</p><dl class="figures">{boxes}</dl>'
        f'<div class="charts">{"".join(_figure(chart) for chart in charts)}</div>'
        f'<section class="panel"><h2>What was simulated</h2><div class="scroll">{_table(("", ""), facts)}</div>'
        "</section></main></body></html>\n"
    )


def _figure(chart: Chart) -> str:
    key = "".join(f'<li><i class="{style}"></i>{escape(words)}</li>' for style, words in chart.key)
    return (
        f"<figure><h2>{escape(chart.title)}</h2><p>{escape(chart.note)}</p>{chart.picture}"
        f'<ul class="key" aria-label="key">{key}</ul><details><summary>The numbers</summary>'
        f'<div class="scroll">{_table(chart.heads, chart.rows)}</div></details></figure>'
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(one)}</td>" for one in row[1:])}</tr>'
        for row in rows
    )
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if any(heads) else ''}<tbody>{body}</tbody></table>"
