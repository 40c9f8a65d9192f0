"""The HTML page of a report: its style, and a policy that lets it load nothing."""

from __future__ import annotations

from html import escape

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#59636e;--rule:#d9dee3;
--card:#f6f8fa;--c0:#0969da;--c1:#bc4c00;--c2:#1a7f37;--c3:#a33c8b;--error:#b42318;
--warning:#8a5a00;--note:#0969da}
@media(prefers-color-scheme:dark){:root{--paper:#0f1318;--ink:#e6eaef;--soft:#9aa5b1;
--rule:#323a44;--card:#181e25;--c0:#58a6ff;--c1:#f0883e;--c2:#3fb950;--c3:#db85c6;
--error:#ff7b72;--warning:#e3b341;--note:#58a6ff}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.25rem 0}
h2{font-size:1.2rem;margin:2rem 0 .25rem;border-top:1px solid var(--rule);padding-top:1rem}
h3{font-size:1rem;margin:1.25rem 0 .5rem}
p{margin:.25rem 0 .75rem;max-width:44rem}
.soft{color:var(--soft)}
nav ul,.legend,.figures{list-style:none;margin:.5rem 0;padding:0;display:flex;flex-wrap:wrap;
gap:.4rem .9rem}
nav a{display:inline-block;padding:.35rem 0}
a{color:var(--c0)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem}
.figures li{background:var(--card);border:1px solid var(--rule);border-radius:.5rem;
padding:.6rem .75rem}
.figures b{display:block;font-size:1.35rem;line-height:1.2}
.figures .error b{color:var(--error)}.figures .warning b{color:var(--warning)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(20rem,100%),1fr));gap:1rem}
figure{margin:.5rem 0;max-width:30rem}
figcaption{font-weight:600;margin-bottom:.25rem}
svg{width:100%;height:auto;display:block;font:12px system-ui,sans-serif}
svg text{fill:var(--ink)}svg .axis{fill:var(--soft);font-size:11px}svg .value{font-weight:600}
svg .bar{fill:var(--c0)}svg .track{fill:var(--card);stroke:none}
svg line.track,svg .grid{stroke:var(--rule);stroke-width:1}
svg .span{stroke:var(--soft);stroke-width:3}
svg polyline{fill:none;stroke-width:2;stroke-linejoin:round}
svg .s0{stroke:var(--c0)}svg .s1{stroke:var(--c1)}svg .s2{stroke:var(--c2)}
svg .s3{stroke:var(--c3)}svg .point{fill:var(--paper);stroke-width:3}
svg .dot0{fill:var(--c2)}svg .dot1{fill:var(--c0)}svg .dot2{fill:var(--c1)}
.legend{font-size:.85rem;color:var(--soft)}
.key{display:inline-block;width:.8rem;height:.8rem;border-radius:50%;margin-right:.35rem}
.key.s0,.key.dot1{background:var(--c0)}.key.s1,.key.dot2{background:var(--c1)}
.key.s2,.key.dot0{background:var(--c2)}.key.s3{background:var(--c3)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:600;padding:.5rem 0 .25rem}
th,td{text-align:left;vertical-align:top;padding:.35rem 1rem .35rem 0;
border-bottom:1px solid var(--rule)}
th{color:var(--soft);font-weight:600;white-space:nowrap}
td{overflow-wrap:break-word;max-width:24rem}
summary{color:var(--soft);cursor:pointer}
code{overflow-wrap:anywhere}
.n{text-align:right;white-space:nowrap}.t{white-space:nowrap}
.tag{font-weight:600}.tag.error{color:var(--error)}.tag.warning{color:var(--warning)}
.tag.note{color:var(--note)}
code,pre{font:.85em ui-monospace,Menlo,Consolas,monospace}
@media(max-width:40rem){
table,tbody,tr,td,caption{display:block}thead{display:none}
tr{border:1px solid var(--rule);border-radius:.5rem;padding:.4rem .7rem;margin:.5rem 0;
background:var(--card)}
td,td.n{border:0;padding:.15rem 0;display:flex;gap:.75rem;justify-content:space-between;
text-align:right;white-space:normal;max-width:none;overflow-wrap:anywhere}
td::before{content:attr(data-name);color:var(--soft);flex:0 0 38%;text-align:left}
td:empty{display:none}}
@media print{nav{display:none}figure,tr{break-inside:avoid}}
"""


def page(title: str, body: str) -> str:
    """Put the body of a report into one whole HTML file that needs no other."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>\n{body}\n</body></html>\n"
    )
