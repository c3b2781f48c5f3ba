"""Rows C6, C8, C12, C13 and C28: a seeded part of all the ways in which a change of a channel can be interrupted.
All of them: `make channel-faults`."""

from __future__ import annotations

import pytest

from tests.faults.channel_sweep import SCENES, ChannelScene, pictures, run_scene

CASES = 14


@pytest.mark.fault("CHN-01", "CHN-02")
@pytest.mark.parametrize("scene", SCENES, ids=[scene.name for scene in SCENES])
def test_a_channel_is_whole_wherever_a_change_of_it_ends(scene: ChannelScene) -> None:
    assert run_scene(scene, CASES) == {}


def test_the_scenes_change_something() -> None:
    for scene in SCENES:
        before, after, calls = pictures(scene)
        assert before != after, scene.name
        assert calls, scene.name
