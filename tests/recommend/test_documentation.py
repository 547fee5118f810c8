"""Every rule has a section in the documentation, and the links of findings lead there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightning_perf.recommend.findings import finding
from tests.recommend.cases import evidence_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
RULE = re.compile(r'"((?:data|h2d|host|sync|gpu|mem|comm|trace)\.[a-z0-9_]+)"')
RULES = sorted(
    {rule for path in (ROOT / "lightning_perf/recommend").glob("*.py") for rule in RULE.findall(path.read_text())}
)


def anchors() -> set[str]:
    """Anchors of the page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", PAGE, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_a_section(rule):
    link = finding(evidence_of({"forward": 1}), rule, "", saves=None, because=[], action="").link
    assert link.rsplit("#", 1)[1] in anchors()


def test_links_within_the_page():
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors()
