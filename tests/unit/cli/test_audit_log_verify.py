"""`gpuward audit-log verify`: all pages, and an exit code that scripts can rely on. The list keeps its options."""

import json

import pytest
from aiohttp import web

GONE = {"kind": "entries_removed", "message": "2 entries were removed: ids 4, 5", "ids": [4, 5]}
SEALED = {"protected": True, "since": "2026-01-01T00:00:00Z", "sealed_id": 40, "checked": 20}
PAGES = {None: {**SEALED, "findings": [GONE], "next": "more"}, "more": {**SEALED, "findings": [], "next": None}}


@pytest.fixture
def pages(api):
    pages = dict(PAGES)

    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/verify"):
            return web.json_response(pages[request.query.get("cursor")])
        return web.json_response({"items": [], "next": None})

    api.refuse = answer
    return pages


@pytest.mark.usefixtures("pages")
def test_removed_entries_on_any_page_end_it_with_1(gpuward):
    result = gpuward("audit-log", "verify")
    assert result.exit_code == 1
    assert "ids 4, 5" in result.stdout
    assert "40 entries checked" in result.stdout


def test_as_json_all_pages_are_one_object(gpuward, pages):
    pages[None] = {**SEALED, "findings": [], "next": "more"}
    result = gpuward("audit-log", "verify", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["checked"] == 40


def test_it_says_that_nothing_is_protected(gpuward, pages):
    pages[None] = {"protected": False, "reason": "no key is set", "checked": 0, "findings": [], "next": None}
    result = gpuward("audit-log", "verify")
    assert (result.exit_code, "not protected: no key is set" in result.stdout) == (0, True)


@pytest.mark.usefixtures("pages")
def test_without_a_verb_it_lists(gpuward, api):
    assert gpuward("audit-log", "--since", "24h").exit_code == 0
    assert [(path, query["after"]) for _, path, query, _ in api.asked] == [("/api/v1/audit-log", "24h")]
