"""What a person does with the dashboard, in a real browser."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.browsing import VIEWS, Visit, visit
from tests.support.daemon import Daemon, wait_until
from tests.support.web import Web

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
LONGEST = "Z" + "._:-aB9" * 36 + "xy"  # 255, of every kind of sign that a name may have


def test_publish_and_see_it_appear(me: Visit, web: Web, topic: str) -> None:
    web.write(topic, "first")
    page = me.go(f"topics/{topic}/tail")
    page.wait_for_selector("text=waiting for the next record")
    wait_until(lambda: web.daemon.stats("gateway-00").get("tails"), "the tail")
    me.click("Publish")
    page.locator("dialog textarea").fill('{"order": 12345678901234567890}')
    page.locator("dialog input[name=tag]").fill("by-hand")
    me.click("Publish", "dialog")
    me.toast("stored as #2")
    me.shows("12345678901234567890", ".records")
    me.shows("by-hand", ".records")
    me.click("Pause")
    me.shows("paused")
    web.write(topic, "while nobody looks")
    me.click("Go on")
    web.write(topic, "seen again")
    page.goto(f"{me.base}/#/topics/{topic}")
    me.shows("seen again", ".records")
    assert web("GET", f"/v0/topics/{topic}").body["head_seq"] == 4


def test_browse_by_seq_time_tag_and_text(me: Visit, web: Web, topic: str) -> None:
    web("POST", f"/v0/topics/{topic}", {"records": [{"data": f"early {n}", "tag": "a"} for n in range(120)]})
    time.sleep(1.1)  # the field has whole seconds
    between = datetime.now(UTC).astimezone()  # as the browser has it
    web("POST", f"/v0/topics/{topic}", {"records": [{"data": "late", "tag": "b"}, {"data": "a needle", "tag": "b"}]})
    page = me.go(f"topics/{topic}")
    expect(page.locator(".record")).to_have_count(50)
    me.click("older")
    expect(page.locator(".record")).to_have_count(100)
    page.get_by_label("Where to begin").select_option("time")
    page.get_by_label("seq or time").fill(between.strftime("%Y-%m-%dT%H:%M:%S"))
    me.click("Look")
    expect(page.locator(".record")).to_have_count(2)
    page.get_by_label("Where to begin").select_option("seq")
    page.get_by_label("seq or time").fill("118")
    me.click("Look")
    expect(page.locator(".record").first).to_contain_text("early 117")
    page.get_by_label("Where to begin").select_option("newest")
    page.get_by_label("Tag", exact=True).fill("b")
    me.click("Look")
    expect(page.locator(".record")).to_have_count(2)
    page.get_by_label("Contains").fill("NEEDLE")
    me.click("Look")
    expect(page.locator(".record")).to_have_count(1)
    me.shows("looked at #1 to #122 (122 seqs, to the end)")


def test_a_changed_field_leaves_the_others_as_they_are(me: Visit, web: Web, topic: str) -> None:
    schema = {"type": "object"}
    web("PUT", f"/v0/topics/{topic}", {"ttl_ms": 3_600_000, "schema": schema})
    before = web("GET", f"/dashboard/topics/{topic}").body["config"]
    page = me.go(f"topics/{topic}/config")
    page.get_by_label("idempotency_window_ms").fill("60000")
    page.get_by_label("compact").select_option("last-per-tag")
    me.click("Save")
    me.toast("saved")
    assert page.get_by_label("schema").input_value() == '{"type":"object"}'
    page.get_by_label("cap_records").fill("10")
    me.click("Save")  # stored records may go: it asks for the name
    page.locator("dialog input").fill(topic)
    me.click("Save", "dialog")
    me.toast("saved")
    changed = {"idempotency_window_ms": 60_000, "compact": "last-per-tag", "cap_records": 10}
    assert web("GET", f"/dashboard/topics/{topic}").body["config"] == {**before, **changed}


def test_what_is_gone_is_a_gap_with_its_reason(me: Visit, web: Web, topic: str) -> None:
    web("PUT", f"/v0/topics/{topic}", {"cap_records": 5})
    web.write(topic, *range(8))
    web("POST", f"/v0/topics/{topic}", {"records": [{"data": "x", "tag": "gone"}, {"data": "y"}]})
    web("POST", f"/v0/topics/{topic}/delete", {"match": "gone"})
    page = me.go(f"topics/{topic}")
    me.shows("#9: deleted", ".records")
    page.get_by_label("Where to begin").select_option("seq")
    page.get_by_label("seq or time").fill("1")
    me.click("Look")
    me.shows("evicted: the topic's cap was reached", ".records")


def test_hostile_text_stays_text(me: Visit, web: Web) -> None:
    assert len(LONGEST) == 255
    record = {"data": HOSTILE, "tag": HOSTILE[:60], "node": "<b>node</b>", "meta": {"<i>": HOSTILE}}
    web("POST", f"/v0/topics/{LONGEST}", {"records": [record, {"data": {HOSTILE: [HOSTILE]}}]})
    with web.daemon.client() as client:
        client.open_consumer(LONGEST, "reader")
    for view in ("topics?prefix=Z", f"topics/{LONGEST}", f"topics/{LONGEST}/consumers", "consumers", "now"):
        page = me.go(view)
        if view.startswith(f"topics/{LONGEST}") and "consumers" not in view:
            expect(page.locator(".record")).to_have_count(2)
            for row in page.locator(".record summary").all():
                row.click()
            me.shows("onerror=", ".records")
        elif view != "now":
            me.shows(LONGEST)
        assert page.locator("main img, main b:has-text('node'), main i").count() == 0
        assert "owned" not in page.title()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_redrive_a_dead_letter(me: Visit, web: Web, topic: str) -> None:
    web("PUT", f"/v0/topics/{topic}", {"type": "queue", "max_deliveries": 1, "dead_letter": f"{topic}.dead"})
    web.write(topic, {"job": 1}, {"job": 2}, {"job": 3})
    web("POST", f"/v0/topics/{topic}/claim", {"node": "w", "max": 3})
    web("POST", f"/v0/topics/{topic}/nack", {"node": "w", "seqs": [1, 2, 3]})
    wait_until(lambda: len(web("POST", f"/dashboard/queues/{topic}/dead", {}).body["letters"]) == 3, "dead letters")
    page = me.go(f"queues/{topic}/dead")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.locator("tbody tr").nth(1).get_by_role("button", name="Redrive").click()
    me.toast("1 job back")
    expect(page.locator("tbody tr")).to_have_count(2)
    me.click("Redrive all")
    me.toast("2 jobs back")
    me.shows("no dead letters")
    assert web("GET", f"/v0/topics/{topic}").body["queue"]["ready"] == 3


def test_jobs_are_deleted_only_with_the_name(me: Visit, web: Web, topic: str) -> None:
    web("PUT", f"/v0/topics/{topic}", {"type": "queue"})
    web.write(topic, {"job": 1}, {"job": 2})
    page = me.go(f"queues/{topic}")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.locator("tbody tr").first.get_by_role("button", name="Delete").click()
    me.shows("deleted for good", "dialog")
    go = page.locator("dialog button[type=submit]")
    expect(go).to_be_disabled()
    me.type_name(topic[:-1])
    expect(go).to_be_disabled()
    me.type_name(topic)
    go.click()
    me.toast("1 job changed")
    expect(page.locator("tbody tr")).to_have_count(1)
    me.click("Pause")
    page.locator("dialog input[name=reason]").fill("lunch")
    me.click("Pause", "dialog")
    me.shows("lunch")
    me.click("Resume")
    me.toast("open again")


def test_move_a_consumer_with_a_preview(me: Visit, web: Web, topic: str) -> None:
    web.write(topic, *range(50))
    with web.daemon.client() as client:
        client.open_consumer(topic, "app")
        client.ack_consumer(topic, "app", 30)
    page = me.go(f"topics/{topic}/consumers")
    me.click("Move")
    page.locator("dialog input[name=at]").fill("10")
    me.shows("repeats 20 records", "dialog")
    page.get_by_label("Where to").select_option("by")
    page.locator("dialog input[name=at]").fill("15")
    me.shows("From #30 to #45: skips 15 records", "dialog")
    me.shows(f"topicctl consumer reset {topic} app 45", "dialog")
    me.click("Move it", "dialog")
    me.toast("app is at #45 now")
    me.shows("45")
    with web.daemon.client() as client:
        assert [one.acked_seq for one in client.consumers(topic)] == [45]


def test_a_shard_is_killed_and_comes_back_before_ones_eyes(me: Visit, daemon: Daemon) -> None:
    page = me.go("processes")
    row = page.locator("tbody tr", has_text="dlv-01").first
    expect(row).to_contain_text("serving")
    pid = row.locator("td").nth(2).inner_text()
    daemon.kill("dlv-01")
    expect(row.locator("td").nth(2)).not_to_have_text(pid)
    expect(row.locator("td").nth(4)).not_to_have_text("0")
    expect(row).to_contain_text("serving")
    page.goto(f"{me.base}/#/now")
    me.shows("dlv-01 was started anew")
    page.locator(".problem", has_text="dlv-01").first.click()
    me.shows("Rings between delivery and WAL shards")


def test_a_lost_connection_is_told_and_mended(opened: Browser, daemon: Daemon) -> None:
    with visit(opened, daemon) as me:
        page = me.go("now")
        me.shows("Processes")
        expect(page.locator("#link")).to_be_hidden()
        # The gateway dies, and the port answers nobody until it is back.
        daemon.kill("gateway-00")
        expect(page.locator("#link")).to_contain_text("no connection")
        expect(page.locator("#link")).to_be_hidden()
        before = page.locator("main .sub").first.inner_text()
        expect(page.locator("main .sub").first).not_to_have_text(before)  # seconds go on


def test_a_token_lives_in_the_page_only(opened: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    from topicd.tokens import digest_of

    root = tmp_path_factory.mktemp("t")
    scopes = '["read", "write", "delete", "admin", "consume"]'
    tokens = root / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "op"\nsha256 = "{digest_of("let-me-in").hex()}"\nscopes = {scopes}\n')
    environ = {"TOPICD_HTTP": "true", "TOPICD_HTTP_LISTEN": "127.0.0.1:0", "TOPICD_TOKENS_FILE": str(tokens)}
    with Daemon(root, env=environ, wal_shards=1, delivery_shards=1) as daemon, visit(opened, daemon) as me:
        Web(daemon, key="let-me-in").write("orders", 1)
        page = me.go("now")
        me.shows("Records per second")
        expect(page.locator("#access")).to_have_text("Read-only: give a token")
        page.goto(f"{me.base}/#/topics")
        me.shows("A token is needed")
        page.locator("#access").click()
        page.locator("dialog input").fill("let-me-in")
        me.click("Use it", "dialog")
        me.shows("orders")
        assert "let-me-in" not in page.url
        assert page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        page.get_by_role("link", name="orders").click()
        expect(page.get_by_role("button", name="Publish")).to_be_enabled()
        page.reload()
        me.shows("A token is needed")


def test_a_channel_its_members_its_messages_and_its_queue(me: Visit, web: Web) -> None:
    for name, user in (("hall", "ann"), ("hall", "bob"), ("errands", "ann"), ("closed", "ann")):
        web("POST", f"/v0/channels/{name}/join?as={user}")
        assert web("PUT", f"/v0/channels/{name}/config?as=ann", {"persist": True}).status == 200
    web("PUT", "/v0/channels/errands/type?as=ann", {"type": "fifo"})
    web("POST", "/v0/channels/errands/push?as=ann", {"data": "bread"})
    page = me.go("channels")
    page.get_by_label("Channels that begin with").fill("ha")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="hall").click()
    expect(page.locator("h1")).to_have_text("hall")
    me.shows("bob")
    me.click("Publish")
    page.locator("dialog input[name=data]").fill("good evening")
    expect(page.locator("dialog input[name=user]")).to_have_value("ann")
    me.click("Publish", "dialog")
    me.toast("sent as #1")
    me.shows("good evening")
    page = me.go("channels/errands")
    expect(page.locator("h1")).to_have_text("errands")
    me.shows("elements of a queue are seen by those who pop them")
    me.click("Push")
    page.locator("dialog input[name=data]").fill("milk")
    me.click("Push", "dialog")
    me.toast("sent as #2")
    expect(page.locator(".tile", has_text="Depth")).to_contain_text("2")
    assert web("POST", "/v0/channels/errands/pop?as=ann").body["data"] == "bread"


# ---- facts ----


def test_the_first_view_is_small_and_quick(me: Visit) -> None:
    sizes: list[int] = []
    me.page.on("requestfinished", lambda one: sizes.append(one.sizes()["responseBodySize"] if one.sizes() else 0))
    began = time.monotonic()
    page = me.go("now")
    page.wait_for_selector(".tile")
    took = time.monotonic() - began
    assert 5_000 < sum(sizes) < 200 * 1024
    assert took < 5.0  # 1 s on a machine that does nothing else
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    assert loaded < 1_000
    hosts = page.evaluate("performance.getEntriesByType('resource').map((one) => new URL(one.name).host)")
    assert set(hosts) == {me.base.removeprefix("http://")}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_serious_fault_or_needs_more_width(opened: Browser, daemon: Daemon, scheme: str) -> None:
    pages = (*VIEWS, "topics/orders", "topics/orders/config", "topics/orders/segments", "topics/orders/routers")
    pages += ("queues/thumbs", "queues/thumbs/dead", "queues/mails/cron", "channels/lobby", "chat/team?user=ann")
    with visit(opened, daemon, color_scheme=scheme) as me:
        for view in pages:
            page = me.go(view)
            expect(page.locator(".shell code").first).to_be_visible()
            page.wait_for_function("[...document.querySelectorAll('.tiles')].every((one) => one.childElementCount)")
            assert me.faults() == [], view
            page.set_viewport_size({"width": 380, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= 380, view
            page.set_viewport_size({"width": 1280, "height": 900})
        assert me.said == []


def test_everything_is_reached_with_the_keyboard(me: Visit) -> None:
    page = me.go("now")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.locator("h1")).to_have_text("Topics")
    search = page.get_by_label("Names that begin with")
    expect(search).to_be_visible()
    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.keyboard.type("orders.eu.p")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Tab")
    for _ in range(30):
        if page.evaluate("document.activeElement.textContent") == "orders.eu.paid":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("orders.eu.paid")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()


def test_a_policy_forbids_what_is_not_ours(me: Visit, web: Web) -> None:
    policy = web("GET", "/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert "style=" not in web("GET", "/").raw.decode() and "<script>" not in web("GET", "/").raw.decode()
