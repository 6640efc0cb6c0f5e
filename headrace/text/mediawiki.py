"""A MediaWiki XML export (pages-articles) in, pages of wikitext out; and wikitext in, plain paragraphs out.

    <page><title>…<ns>0<text>'''東京'''は[[日本]]の{{ruby|都|と}}。 -> Page -> strip_wikitext -> 東京は日本の都。

Reading is one streaming pass of the XML parser. Stripping is linear in the page, whatever is left unclosed in it: it is
the expensive part, and dumps hold every kind of broken markup.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.parsers import expat

from headrace.errors import InputError
from headrace.text.files import open_bytes


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    namespace: int
    is_redirect: bool
    wikitext: str
    line_number: int


def iter_pages(path: str | Path) -> Iterator[Page]:
    """Every page, of which the last revision counts. Damaged XML raises an InputError naming file and line."""
    collector = _PageCollector()
    with open_bytes(path) as reader:
        for chunk in reader.chunks():
            yield from collector.feed(chunk, reader.path)
        yield from collector.feed(b"", reader.path, final=True)


class _PageCollector:
    """Holds the page under way and those finished within one chunk; expat calls the handlers from feed()."""

    KEPT = frozenset(("title", "ns", "text"))

    def __init__(self):
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.buffer_size = 1 << 16
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._pages: list[Page] = []
        self._fields: dict[str, str] = {}
        self._pieces: list[str] = []
        self._line_number = 0

    def feed(self, chunk: bytes, path: Path, final: bool = False) -> list[Page]:
        try:
            self._parser.Parse(chunk, final)
        except expat.ExpatError as error:
            reason = expat.ErrorString(error.code)
            raise InputError(
                f"{path}:{error.lineno}: the MediaWiki XML breaks off or is damaged ({reason}); download it again."
            ) from error
        pages, self._pages = self._pages, []
        return pages

    def _start(self, name: str, attributes: dict[str, str]):
        if name == "page":
            self._fields, self._line_number = {}, self._parser.CurrentLineNumber
        elif name == "redirect":
            self._fields["redirect"] = ""
        elif name in self.KEPT:
            self._pieces = []
            self._parser.CharacterDataHandler = self._pieces.append

    def _end(self, name: str):
        if name in self.KEPT:
            self._parser.CharacterDataHandler = None
            self._fields[name] = "".join(self._pieces)
        elif name == "page":
            fields = self._fields
            namespace = fields.get("ns", "0").strip()
            self._pages.append(
                Page(
                    fields.get("title", ""),
                    int(namespace) if namespace.lstrip("-").isdigit() else 0,
                    "redirect" in fields,
                    fields.get("text", ""),
                    self._line_number,
                )
            )


_DISAMBIGUATION = re.compile(
    r"\{\{\s*(?:aimai|disambig|disambiguation|dab|hndis|geodis|[^{}|\n]{0,12}曖昧さ回避)\s*(?:\||\}\})", re.IGNORECASE
)


def is_disambiguation(wikitext: str) -> bool:
    return _DISAMBIGUATION.search(wikitext) is not None


# Elements whose content is no prose. Their tags are found in one pass; see _drop_elements.
_DROPPED = (
    "ref|math|chem|ce|gallery|timeline|source|syntaxhighlight|score|hiero|imagemap|templatestyles|references|graph|mapframe|"
    "maplink|inputbox|table|style|script|includeonly|categorytree|pre"
)
_ELEMENT = re.compile(rf"<(/?)({_DROPPED})(?![a-z])[^<>]*+>", re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)  # an unclosed one runs to the end, as in MediaWiki
_NOWIKI = re.compile(r"<nowiki>([^<>\[\]{}|']*+)</nowiki>|<nowiki>[^<]*+</nowiki>|</?nowiki\s*/?>", re.IGNORECASE)
_BRACKETS = re.compile(r"\{\{|\}\}|\[\[|\]\]|^[ \t:]*+\{\||^[ \t]*+\|\}(?!\})", re.MULTILINE)
# Possessive, and never across another "[": a failed attempt costs no more than the way to the next one.
_EXTERNAL_LINK = re.compile(r"\[(?:https?:|ftp:|mailto:)?//[^\s\[\]<>]*+(?:[ \t]++([^\[\]\n]*+))?\]")
_ADDRESS = re.compile(r"(?<![A-Za-z])(?:https?|ftp)://[^\s\[\]<>\"{}|、。（）「」]++")
_QUOTES = re.compile(r"''++")
_BREAK = re.compile(r"<(?:br|hr|p|/p|/?div|/?li|/?blockquote)(?![a-z])[^<>]*+>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*+>")
_SWITCH = re.compile(r"__[A-Z]{3,20}__|__[ぁ-んァ-ヶ一-龠ー]{2,12}__")
_SPACES = re.compile(r"[ \t\u00a0]{2,}+|[\t\u00a0]")
# What a dropped template or ref leaves behind: （、英: ） and the like are kept, wholly empty pairs are not.
_EMPTY_PARENTHESES = re.compile(r"[（(][\s、，,;；:：・]*+[）)]")
_PARENTHESIS_START = re.compile(r"([（(])[\s、，,;；]++")

_HIDDEN_NAMESPACES = frozenset(
    ("file", "image", "category", "media", "template", "special")
    + ("ファイル", "画像", "カテゴリ", "メディア", "テンプレート", "特別")
)
_INTERLANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,8})*+:")
# Templates that hold prose, and which argument is it.
_PROSE_TEMPLATES = {
    **dict.fromkeys(
        ("ruby", "ルビ", "読み仮名", "読み仮名 ruby不使用", "仮リンク", "ill", "ill2", "nihongo", "nihongo2"), 1
    ),
    **dict.fromkeys(
        ("nowrap", "nobold", "small", "large", "補助漢字フォント", "jis2004フォント", "cjkv", "vertical"), 1
    ),
    **dict.fromkeys(("lang", "transl", "fontsize", "color", "colored"), 2),
}
_DEEPEST_LINK = 16
"""Links inside links (captions of pictures) join their text again at each level; bounded, so the cost stays linear."""


def strip_wikitext(text: str) -> str:
    """The article's prose, a paragraph or list item a line; no headings, tables, templates, notes or pictures."""
    if "<!--" in text:
        text = _COMMENT.sub("", text)
    if "<" in text:
        text = _NOWIKI.sub(lambda match: match[1] or "", text)
        text = _drop_elements(text)
    text = _resolve_brackets(text)
    if "//" in text:
        text = _EXTERNAL_LINK.sub(lambda match: match[1] or "", text)
        text = _ADDRESS.sub("", text)
    text = _QUOTES.sub("", text)
    if "<" in text:
        text = _TAG.sub("", _BREAK.sub("\n", text))
    if "__" in text:
        text = _SWITCH.sub("", text)
    if "&" in text:
        text = html.unescape(text)
    text = _SPACES.sub(" ", text)
    text = _PARENTHESIS_START.sub(r"\1", _EMPTY_PARENTHESES.sub("", text))
    return "\n".join(paragraph for line in text.split("\n") if (paragraph := _paragraph(line)))


def _paragraph(line: str) -> str:
    line = line.strip()
    if not line or line[0] == "|" or line.startswith(("{|", "!!", "----")):  # rows of a table that was never closed
        return ""
    if line[0] == "=" and line[-1] == "=":
        return ""
    if line[0] in "*#:;":
        line = line.lstrip("*#:; \t")
    return line


def _drop_elements(text: str) -> str:
    """Without <ref>…</ref> and the like. One that is never closed loses its tag only: the article goes on after it."""
    tags = list(_ELEMENT.finditer(text))
    if not tags:
        return text
    num_closing: dict[str, int] = {}
    for tag in tags:
        if tag[1]:
            num_closing[tag[2].lower()] = num_closing.get(tag[2].lower(), 0) + 1
    kept, start, inside = [], 0, ""
    for tag in tags:
        name = tag[2].lower()
        if tag[1]:
            num_closing[name] -= 1
        if inside:
            if tag[1] and name == inside:
                inside, start = "", tag.end()
            continue
        kept.append(text[start : tag.start()])
        start = tag.end()
        if not tag[1] and not tag[0].endswith("/>") and num_closing.get(name, 0):
            inside = name
    kept.append(text[start:])
    return "".join(kept)


def _resolve_brackets(text: str) -> str:
    """One pass with a stack over {{ }}, {| |} and [[ ]]. An opened one remembers how many pieces were kept before it;
    closing a template or table forgets those since, closing a link replaces them. One that is never closed loses only
    its brackets."""
    kept: list[str] = []
    stack: list[tuple[str, int]] = []
    num_open = {"{{": 0, "{|": 0, "[[": 0}
    start = 0
    for bracket in _BRACKETS.finditer(text):
        if start < bracket.start():
            kept.append(text[start : bracket.start()])
        start = bracket.end()
        mark = bracket[0][-2:]
        if mark in num_open:
            stack.append((mark, len(kept)))
            num_open[mark] += 1
            continue
        opening = _OPENING[mark]
        if not num_open[opening] or (mark == "]]" and stack[-1][0] != "[["):
            continue
        while True:  # what was opened inside and not closed is plain text
            kind, num_kept = stack.pop()
            num_open[kind] -= 1
            if kind == opening:
                break
        if mark == "]]":
            replacement = _link_text(kept, num_kept, num_open["[["])
        elif mark == "}}":
            replacement = _template_text(kept, num_kept, len(stack))
        else:
            replacement = ""
        del kept[num_kept:]
        if replacement:
            kept.append(replacement)
    kept.append(text[start:])
    return "".join(kept)


_OPENING = {"}}": "{{", "|}": "{|", "]]": "[["}


def _link_text(kept: list[str], num_kept: int, depth: int) -> str:
    if depth >= _DEEPEST_LINK or len(kept) == num_kept:
        return ""
    target = kept[num_kept]
    shows_target = target.startswith(":")
    target = target.lstrip(": ")
    name, colon, _ = target.partition(":")
    if colon and not shows_target:
        name = name.strip().lower()
        if name in _HIDDEN_NAMESPACES or ("|" not in target and _INTERLANGUAGE.match(target)):
            return ""
    content = target + "".join(kept[num_kept + 1 :])
    target, bar, shown = content.partition("|")
    if bar and not shown.strip():  # [[東京 (曲)|]] shows 東京
        return re.sub(r"[ 　]*[（(][^（）()]*[）)]\s*$", "", target)
    return shown if bar else target


def _template_text(kept: list[str], num_kept: int, depth: int) -> str:
    if depth >= _DEEPEST_LINK or len(kept) == num_kept:
        return ""
    argument = _PROSE_TEMPLATES.get(kept[num_kept].partition("|")[0].strip().lower().replace("_", " "))
    if argument is None:
        return ""
    arguments = "".join(kept[num_kept:]).split("|")
    return arguments[argument].strip() if len(arguments) > argument and "=" not in arguments[argument] else ""
