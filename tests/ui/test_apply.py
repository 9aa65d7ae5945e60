"""The page Apply: problems at their lines, the diff, the picker that chooses nothing that is not ready (D29 to D34)."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from support.browser.dashboard import Seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
ONE = "kind: Deployment\nname: one\nengine: simulated\nresources:\n  gpus: 1\n  gpu_memory: 20GiB\n"
FOLLOWS_MS = 8000.0


async def write(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Manifest").fill(text)


def apply_button(page: Page) -> Locator:
    return page.get_by_role("button", name="Apply", exact=True)


@pytest_asyncio.fixture(loop_scope="module")
async def clean(cluster_a: Cluster) -> AsyncIterator[Cluster]:
    """Cluster A; deployments are gone afterwards."""
    yield cluster_a
    for one in (await cluster_a.get("/deployments"))["items"]:
        await cluster_a.delete(one["name"])
        await cluster_a.gone(one["name"])


def gpu(picker: Locator, worker: str, index: int) -> Locator:
    return picker.get_by_role("region", name=worker, exact=True).get_by_role("checkbox").nth(index)


async def test_problems_stand_at_their_lines(admin: Seat) -> None:
    page = await admin.live("/ui/apply")
    await write(page, "kind: Deployment\nname: x\nengine: vlm\nreplica: 2\n")
    problems = page.locator("#problems")
    await expect(problems).to_contain_text("did you mean 'replicas'?")
    await expect(problems).to_contain_text("Line 4")
    await expect(problems).to_contain_text("Line 3")
    await expect(page.locator(".gutter .wrong")).to_have_count(2)
    await expect(apply_button(page)).to_be_disabled()
    await write(page, "a: [\n")
    await expect(problems).to_contain_text("Line")
    await expect(apply_button(page)).to_be_disabled()
    admin.complaints.clear()  # the browser tells of the answers 400


async def test_apply_follows_a_plan_of_exactly_this_text(admin: Seat, clean: Cluster) -> None:
    page = await admin.live("/ui/apply")
    await write(page, ONE)
    await expect(page.locator("[data-part=plan]")).to_contain_text("one: create")
    await expect(page.locator("[data-part=plan]")).to_contain_text(re.compile(r"w\d GPU \d"))
    await apply_button(page).click()
    await page.wait_for_url("**/ui/deployments/one")
    await clean.running("one")


async def test_the_diff_says_what_is_replaced(admin: Seat, clean: Cluster) -> None:
    await clean.apply("one", engine="simulated", replicas=2, resources={"gpus": 1, "gpu_memory": "20GiB"})
    await clean.running("one")
    page = await admin.live("/ui/apply")
    await write(page, ONE.replace("20GiB", "24GiB") + "replicas: 2\npriority: 200\n")
    plan = page.locator("[data-part=plan]")
    await expect(plan.get_by_role("row", name=re.compile("priority"))).to_contain_text("in place")
    memory = plan.get_by_role("row", name=re.compile(r"resources\.gpu_memory"))
    await expect(memory).to_contain_text("20GiB")
    await expect(memory).to_contain_text("24GiB")
    await expect(memory).to_contain_text("replaces 2 instances")
    # Another one changes it in between: nothing is overwritten.
    await clean.apply("one", engine="simulated", replicas=1, resources={"gpus": 1, "gpu_memory": "20GiB"})
    await page.route("**/api/v1/plan", lambda route: route.abort())
    await apply_button(page).click()
    await expect(page.get_by_role("alert")).to_contain_text("nothing was applied, since deployment 'one'")
    assert (await clean.get("/deployments/one"))["spec"]["priority"] == 100
    admin.complaints.clear()  # the browser tells of 412 and of the requests that were cut


async def test_a_plan_names_the_instances_that_it_preempts(admin: Seat, clean: Cluster) -> None:
    whole = {"gpus": 4, "exclusive": True}
    await clean.apply("low", engine="simulated", replicas=3, priority=10, resources=whole)
    await clean.running("low")
    page = await admin.live("/ui/apply")
    urgent = "kind: Deployment\nname: urgent\nengine: simulated\npriority: 900\npreempt: true\n"
    await write(page, urgent + "resources:\n  gpus: 4\n  exclusive: true\n")
    low = "|".join(re.escape(one["name"]) for one in await clean.instances("low"))
    row = page.locator("[data-part=plan]").get_by_role("row", name=re.compile("urgent#0"))
    await expect(row).to_contain_text(re.compile(low))
    assert len(await clean.instances("low")) == 3, "a plan changes nothing"


async def test_what_is_not_ready_cannot_be_chosen(admin: Seat, clean: Cluster) -> None:
    await clean.post("/workers/w3/cordon")
    try:
        await clean.apply(
            "held", engine="simulated", resources={"gpus": 1, "exclusive": True}, placement={"gpus": ["w1:3"]}
        )
        await clean.running("held")
        page = await admin.live("/ui/apply")
        await write(page, ONE)
        picker = page.locator("[data-part=picker]")
        for worker, index, why in (("w3", 0, "cordoned"), ("w3", 3, "cordoned"), ("w1", 3, "")):
            one = gpu(picker, worker, index)
            await expect(one).to_have_attribute("aria-disabled", "true")
            await expect(one).to_contain_text(why)
            await one.click(force=True)
            await one.focus()
            for key in ("Space", "Enter"):
                await page.keyboard.press(key)
            await page.keyboard.type(worker)
            await gpu(picker, "w1", 0).drag_to(one, force=True)
            await expect(one).to_have_attribute("aria-checked", "false")
        await picker.get_by_role("button", name="Select all").click()
        await expect(picker.locator("[aria-checked=true]")).to_have_count(7)
        assert not await picker.locator("[aria-disabled=true][aria-checked=true]").count()
        await picker.get_by_role("button", name="Use any fitting GPU").click()
        await expect(picker.locator("[aria-checked=true]")).to_have_count(0)
    finally:
        await clean.post("/workers/w3/uncordon")


async def test_a_chosen_gpu_whose_worker_goes_stays_and_holds_the_apply(admin: Seat, clean: Cluster) -> None:
    page = await admin.live("/ui/apply")
    await write(page, ONE)
    picker = page.locator("[data-part=picker]")
    chosen = gpu(picker, "w2", 0)
    await chosen.click()
    await expect(chosen).to_have_attribute("aria-checked", "true")
    await expect(apply_button(page)).to_be_enabled()
    clean.kill("w2")
    await clean.until(lambda: clean.worker_is("w2", "unreachable"), "w2 is unreachable", 20)
    await expect(chosen).to_contain_text("no longer ready", timeout=FOLLOWS_MS)
    await expect(chosen).to_have_attribute("aria-checked", "true")
    await expect(apply_button(page)).to_be_disabled()
    await expect(page.get_by_role("alert")).to_contain_text("w2 GPU 0 is no longer ready")
    by_hand = {"gpus": ["w2:0"], "all_of": True}
    await clean.apply("gap", engine="simulated", resources={"gpus": 1}, placement=by_hand)
    await clean.until(lambda: clean.phase_is("gap", "pending"), "gap is pending", 10)
    await clean.start_agent("w2", gpus=4, memory="80GiB", host={"labels": {"zone": "a"}})
    await expect(apply_button(page)).to_be_enabled(timeout=FOLLOWS_MS)
    await expect(chosen).to_have_attribute("aria-checked", "true")
