"""Pages read as a browser would."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"img", "meta", "br"}


class Page(HTMLParser):
    """Checks that tags are closed in order and that no link leaves the page; collects what is in it."""

    def __init__(self, html):
        super().__init__()
        self.open, self.texts, self.images, self.rows = [], [], [], []
        self.titles, self.ids, self.links = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []
        assert {f"#{name}" for name in self.ids} == set(self.links)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        assert tag not in ("script", "link", "iframe")
        if tag == "img":
            self.images.append(attributes["src"])
        for name, found in (("title", self.titles), ("id", self.ids), ("href", self.links)):
            if name in attributes:
                found.append(attributes[name])
        if tag == "tr":
            self.rows.append([])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)
