"""Each snippet of docs/clients.md, as it is printed, with the real package."""

from collections import Counter
from pathlib import Path

import pytest

from clients.snippets import PAGE, output_of, under_headings
from support.pages import Fence
from support.processes.cluster import Cluster
from support.processes.served_models import counters

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "The quick brown fox jumps over the lazy dog"  # with which each answer of the engine begins
SNIPPETS = under_headings("python", "js")
PATHS = {"Anthropic, Python": "/v1/messages"}


@pytest.mark.parametrize(("heading", "snippet"), SNIPPETS.items(), ids=SNIPPETS)
async def test_a_snippet_prints_the_answer_of_the_model(
    heading: str, snippet: Fence, cluster: Cluster, key: str, tmp_path: Path
) -> None:
    path = PATHS.get(heading, "/v1/chat/completions")
    before = await served(cluster, path)
    printed = await output_of(snippet, tmp_path, cluster.url, key)
    assert printed.startswith(TEXT)
    assert await served(cluster, path) == before + 1, "the engine of the deployment answered"


async def served(cluster: Cluster, path: str) -> int:
    """Requests that the engines of `chat` have answered at this path."""
    return sum((Counter(one["by_path"]) for one in await counters(cluster, "chat")), Counter[str]())[path]


async def test_a_snippet_fails_without_a_valid_key(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"AuthenticationError: Error code: 401\b"):
        await output_of(SNIPPETS["OpenAI, Python"], tmp_path, cluster.url, "gpw_wrong")


async def test_every_package_has_a_snippet() -> None:
    wanted = {"openai", "anthropic", "litellm", "langchain_openai", "ai", "@ai-sdk/openai-compatible"}
    text = "".join(snippet.text for snippet in SNIPPETS.values())
    named = {name for name in wanted if f"from {name} import" in text or f'from "{name}"' in text}
    assert named == wanted, PAGE
