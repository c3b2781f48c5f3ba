from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.unit.storage.segment_kit import TOPICS, Topic


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(directories=[TOPICS])


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def real(tmp_path: Path) -> Topic:
    """A topic on the real disk."""
    return Topic(topics_dir=tmp_path / "topics")


@pytest.fixture
def three(disk: FakeDisk, topic: Topic) -> Topic:
    """1..20 and 21..40 sealed, 41..60 active."""
    topic.append(disk, 20, seal=True)
    topic.append(disk, 20, seal=True)
    topic.append(disk, 20)
    return topic
