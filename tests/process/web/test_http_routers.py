"""Section 10 of the HTTP contract: routers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.daemon import wait_until
from tests.support.web import Web


def path(name: str) -> str:
    return "/v0/routers/" + name.replace(">", "%3E")


def test_a_router_copies_what_comes_and_reads_wait_for_it(web: Web, topic: str) -> None:
    source, dest, name = f"{topic}.s", f"{topic}.d", f"{topic}.s->d"
    web.write(source, "before")
    made = web("PUT", path(name), {"source": source, "dest": dest, "filter": "a*", "unknown": 1})
    body = made.body
    assert made.status == 201 and body.pop("performance")["server_total_ms"] > 0
    assert body == {
        "router": name,
        "created": True,
        "source": source,
        "dest": dest,
        "preserve_node": True,
        "preserve_tag": True,
        "filter": ["tag", "Glob", "a*"],
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }
    again = web("PUT", path(name), {"source": source, "dest": dest, "preserve_tag": False})
    assert (again.status, again.body["created"], again.body["filter"]) == (200, False, None)
    web.write(source, 1, 2, 3, node="n")
    found = web("POST", f"/v0/topics/{dest}/diff").body
    assert [(one["data"], one["$node"]) for one in found["records"]] == [(1, "n"), (2, "n"), (3, "n")]
    told = web("GET", path(name)).body
    assert (told["forwarded_total"], "created" in told) == (3, False)
    gone = web("DELETE", path(name))
    assert (gone.status, gone.body["router"], gone.body["deleted"]) == (200, name, True)
    assert web("DELETE", path(name)).body["deleted"] is False
    assert web("GET", path(name)).code == "router_not_found"
    assert web("GET", f"/v0/topics/{dest}").body["count"] == 3


def test_lists_are_filtered_and_paged(web: Web, topic: str) -> None:
    names = [f"{topic}.{n}" for n in range(5)]
    for n, name in enumerate(names):
        web("PUT", path(name), {"source": f"{topic}.s{n % 2}", "dest": f"{topic}.d{n}"})
    found: list[Any] = []
    cursor = ""
    while True:
        page = web("GET", f"/v0/routers?prefix={topic}.&page_size=2{cursor}").body
        found += page["routers"]
        if "next_cursor" not in page:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert [one["router"] for one in found] == names
    assert set(found[0]) == {"router", "source", "dest", "guarantee", "forwarded_total"}
    some = web("GET", f"/v0/routers?source={topic}.s1").body["routers"]
    assert [one["router"] for one in some] == [names[1], names[3]]
    assert [one["router"] for one in web("GET", f"/v0/routers?dest={topic}.d4").body["routers"]] == [names[4]]
    assert web("GET", "/v0/routers?cursor=!!").code == "invalid_request"
    removed = web("DELETE", f"/v0/topics/{topic}.s0").body["routers_removed"]
    assert removed == [names[0], names[2], names[4]]


def test_what_does_not_go_together_is_refused_and_leaves_no_topic(web: Web, topic: str) -> None:
    a, b, c, new = (f"{topic}.{n}" for n in ("a", "b", "c", "new"))
    assert web("PUT", path(f"{topic}.1"), {"source": a, "dest": b}).status == 201
    fan_in = web("PUT", path(f"{topic}.2"), {"source": new, "dest": b})
    assert (fan_in.status, fan_in.code) == (409, "topic_exists_incompatible")
    assert fan_in.error["detail"].items() >= {"topic": b, "reason": "router_dest_fan_in"}.items()
    moved = web("PUT", path(f"{topic}.1"), {"source": a, "dest": new})
    assert (moved.status, moved.code) == (409, "topic_exists_incompatible")
    assert (
        moved.error["detail"].items()
        >= {
            "router": f"{topic}.1",
            "reason": "router_repoint_forbidden",
            "existing_source": a,
            "existing_dest": b,
        }.items()
    )
    absent = web("PUT", path(f"{topic}.3"), {"source": a, "dest": new, "create_dest": False})
    assert (absent.status, absent.code) == (404, "topic_not_found")
    assert web("GET", f"/v0/topics/{new}").status == 404
    assert web("PUT", path(f"{topic}.1b"), {"source": a, "dest": b}).status == 201
    assert web("PUT", path(f"{topic}.4"), {"source": b, "dest": c}).status == 201
    circle = web("PUT", path(f"{topic}.5"), {"source": c, "dest": a})
    assert (circle.status, circle.code, circle.error["detail"]["cycle"]) == (409, "router_cycle", [c, a, b, c])
    assert web("PUT", path(f"{topic}.5"), {"source": c, "dest": a, "allow_cycle": True}).status == 201


def test_what_this_face_has_no_names_for_stays_as_it_is(web: Web, topic: str) -> None:
    """Who makes sure again and again that a router is there does not turn a sample into everything."""
    routers = web.daemon.client().routers
    routers.create(topic, f"{topic}.a", f"{topic}.b", sample=100, set_tag="copy:{tag}")
    assert web("PUT", path(topic), {"source": f"{topic}.a", "dest": f"{topic}.b", "filter": "x"}).status == 200
    found = routers.get(topic)
    assert (found.sample, found.set_tag, found.filter) == (100, "copy:{tag}", ["tag", "Eq", "x"])
    stripped = {"source": f"{topic}.a", "dest": f"{topic}.b", "preserve_tag": False}
    assert web("PUT", path(topic), stripped).status == 400  # its copies are given tags
    assert routers.create(topic, f"{topic}.a", f"{topic}.b").router.sample == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"source": "a"},
        {"source": "a", "dest": "a"},
        {"source": "?", "dest": "b"},
        {"source": "a", "dest": "b", "guarantee": "perhaps"},
        {"source": "a", "dest": "b", "filter": ["tag", "Glob", "x"]},
        {"source": "a", "dest": "b", "filter": ["node", "Eq", "x"]},
    ],
)
def test_a_router_that_cannot_be(web: Web, topic: str, body: Any) -> None:
    answer = web("PUT", path(topic), body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert web("GET", path(topic)).status == 404


def test_bad_names_do_not_exist_or_cannot_be_made(web: Web) -> None:
    body = {"source": "a", "dest": "b"}
    assert web("PUT", "/v0/routers/%20", body).code == "invalid_request"
    assert web("GET", "/v0/routers/%20").code == "router_not_found"
    assert web("DELETE", "/v0/routers/%20").body["deleted"] is False


def test_copies_reach_streams(web: Web, topic: str) -> None:
    web("PUT", path(topic), {"source": f"{topic}.s", "dest": f"{topic}.d", "guarantee": "exactly_once"})
    with web.watch({f"{topic}.d": {}}) as events:
        assert events.next().name == "caught-up"
        web.write(f"{topic}.s", "x")
        stamp = events.next().data["records"][0]["meta"]["_topics_router"]
    assert (stamp["router"], stamp["source_topic"], stamp["source_seq"]) == (topic, f"{topic}.s", 1)
    wait_until(lambda: web("GET", path(topic)).body["forwarded_total"] == 1, "the copy to be counted")
