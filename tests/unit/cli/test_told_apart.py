"""Errors that are told apart: an older controller, an odd server, an option at a wrong place."""

import pytest
from aiohttp import web

from support.standins.api import refusal


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (("apply", "-f", "-"), "kind: Deployment\nname: a\nengine: simulated\n"),
        (("rollout", "history", "a", "--diff", "1", "2"), None),
        (("ps", "-w"), None),
        (("run", "hf:a/b"), ""),
    ],
)
@pytest.mark.parametrize(
    ("status", "message"),
    [(404, "unknown path; /openapi.json lists all paths"), (405, "method GET is not allowed here")],
)
def test_an_older_controller_is_named_where_it_lacks_a_route(gpuward, api, words, stdin, status, message):
    async def lacks(_request):
        return refusal(status, "not_found" if status == 404 else "method_not_allowed", message)

    api.refuse = lacks
    done = gpuward(*words, stdin=stdin)
    assert done.exit_code == 1
    assert "this controller is older than this gpuward; upgrade the controller" in done.stderr


@pytest.mark.parametrize(
    "message",
    [
        "the gateway serves no such path below /v1; /openapi.json lists all paths",
        "this is an agent of Gpuward, which has no such path; ask the controller",
    ],
)
def test_a_gateway_or_an_agent_is_not_taken_for_an_older_controller(gpuward, api, message):
    async def lacks(_request):
        return refusal(404, "not_found", message)

    api.refuse = lacks
    done = gpuward("get", "deployments")
    assert done.exit_code == 1
    assert "older" not in done.stderr
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize("items", [None, {}, "x"])
def test_a_list_that_is_none_is_an_error(gpuward, api, items):
    async def odd(_request):
        return web.json_response({"items": items})

    api.refuse = odd
    done = gpuward("get", "deployments")
    assert (done.exit_code, "not a Gpuward controller" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("ps", "--context", "mine"), "gpuward --context NAME ps"),
        (("ps", "--context=mine"), "gpuward --context NAME ps"),
        (("rollout", "history", "a", "--url", "x"), "gpuward --url URL rollout history"),
        (("get", "deployments", "--api-key", "gpw_secret"), "gpuward --api-key KEY get"),
    ],
)
def test_a_global_option_after_the_verb_is_told_its_place(gpuward, words, fix):
    done = gpuward(*words)
    assert done.exit_code == 2
    assert f"write it before the verb: {fix}" in " ".join(done.stderr.split())
    assert "gpw_secret" not in done.output
