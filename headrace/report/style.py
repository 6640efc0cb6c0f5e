"""How the report looks: light or dark as the reader's system is, readable on paper and on a phone."""

CSS = """
:root { --page: #f6f7f9; --card: #fff; --text: #14181f; --muted: #5d6776; --line: #e3e7ed; --accent: #2563eb; --soft:
  #e8effd; --good: #0d8a6f; --good-soft: #dcf3ec; --warn: #fff4de; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1216; --card: #181c22; --text: #e8ebf0; --muted: #98a2b1;
  --line: #2a3039; --accent: #6ea8ff; --soft: #1f2c47; --good: #4fd1b0; --good-soft: #173a33; --warn: #3a2f17; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); line-height: 1.55; font: 15px/1.55 system-ui,
  -apple-system, "Segoe UI", "Hiragino Sans", "Yu Gothic UI", "Noto Sans CJK JP", "Noto Sans JP", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 36px 24px 64px; }
h1 { font-size: 30px; margin: 0; letter-spacing: -0.02em; }
h2 { font-size: 20px; margin: 0 0 4px; letter-spacing: -0.01em; }
h3 { font-size: 14px; margin: 20px 0 6px; }
p { margin: 0 0 12px; color: var(--muted); max-width: 76ch; }
header p { margin: 2px 0 0; }
.notice { background: var(--warn); color: var(--text); padding: 10px 14px; border-radius: 8px; margin-top: 14px;
  max-width: none; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 24px 26px; margin-top:
  20px; }
section.cards { background: none; border: 0; padding: 0; display: grid; gap: 14px; margin-top: 24px;
  grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 16px 18px; }
.card h3 { margin: 0; font-weight: 500; color: var(--muted); font-size: 13px; }
.card strong { display: block; font-size: 30px; line-height: 1.25; letter-spacing: -0.02em; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.card.main strong { color: var(--accent); }
.card p { font-size: 12.5px; line-height: 1.4; margin: 4px 0 0; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 0 40px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 28px 32px; }
figure { margin: 0; display: flex; flex-direction: column; }
figure h3 { margin: 0; }
figure p { font-size: 12.5px; margin: 0 0 4px; }
figure .chart { margin-top: auto; }
dl { margin: 0; }
dl div { display: flex; justify-content: space-between; gap: 16px; padding: 5px 0; border-bottom: 1px solid
  var(--line); }
dl div:last-child { border: 0; }
dt { color: var(--muted); white-space: nowrap; }
dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 500; color: var(--muted); font-size: 12.5px; vertical-align: bottom; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); }
tr:last-child td { border: 0; }
.numbers td { font-variant-numeric: tabular-nums; }
.numbers th:not(:first-child), .numbers td:not(:first-child) { text-align: right; }
.numbers th:last-child, .numbers td:last-child { padding-right: 0; }
.samples td { vertical-align: middle; padding: 9px 16px 9px 0; }
.samples td:first-child { font-size: 16px; min-width: 260px; }
.blank { display: inline-block; min-width: 2.2em; text-align: center; background: var(--soft); color: var(--accent);
  border-radius: 5px; padding: 0 6px; margin: 0 3px; min-height: 1.5em; vertical-align: bottom; font-weight: 600; }
.guesses { display: flex; gap: 8px; }
.guess { position: relative; flex: 0 0 92px; background: var(--page); border-radius: 7px; padding: 3px 8px 6px;
  overflow: hidden; display: flex; justify-content: space-between; align-items: baseline; gap: 6px; }
.guess b { font-weight: 600; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.guess i { font-style: normal; font-size: 11.5px; color: var(--muted); font-variant-numeric: tabular-nums; }
.guess s { position: absolute; left: 0; bottom: 0; height: 3px; background: var(--accent); }
.guess.right { background: var(--good-soft); }
.guess.right b { color: var(--good); }
.guess.right s { background: var(--good); }
.beside td { white-space: nowrap; }
td small { display: block; font-size: 11.5px; line-height: 1.3; color: var(--muted); }
.wait { background: var(--series-1); } .compute { background: var(--series-0); } .update { background: var(--series-2); }
.spent, .spent span { display: flex; } .spent { flex-direction: column; gap: 2px; min-width: 150px; }
.spent i { display: block; height: 8px; } .spent i.update { height: 4px; } .spent i:last-child { border-radius: 0 2px 2px 0; }
ul { margin: 0; padding-left: 20px; }
li { margin: 2px 0; overflow-wrap: anywhere; }
code, pre { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Noto Sans Mono CJK JP", monospace; }
code { background: var(--page); padding: 1px 5px; border-radius: 4px; overflow-wrap: anywhere; color: var(--text); }
details { margin-top: 10px; }
summary { cursor: pointer; font-weight: 500; }
pre { overflow-x: auto; background: var(--page); padding: 14px; border-radius: 8px; }
@media print { body { background: #fff; } section, figure { break-inside: avoid; } }
"""
