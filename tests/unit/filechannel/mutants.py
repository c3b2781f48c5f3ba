"""The file channel's safeguards, taken away one at a time by tests/mutants.py: (name, file, old, new)."""

from __future__ import annotations

HERE = "topicd/filechannel"
MUTANTS = [
    (
        "filechannel: sends are not synced",
        f"{HERE}/writer.py",
        "            try:\n                active.file.sync_data()\n            except",
        "            try:\n                pass\n            except",
    ),
    (
        "filechannel: a new segment's name is not durable",
        f"{HERE}/active.py",
        "            file.sync()\n            fs.sync_dir(directory)\n",
        "            file.sync()\n",
    ),
    (
        "filechannel: a sealed segment is not synced",
        f"{HERE}/writer.py",
        "                if self._settings.is_synced:\n                    active.file.sync_data()\n",
        "",
    ),
    (
        "filechannel: after a failed sync the bytes are believed",
        f"{HERE}/repair.py",
        "            file.pwrite([data], position)\n",
        "",
    ),
    (
        "filechannel: offsets are not synced before segments go",
        f"{HERE}/collector.py",
        "                self._sync_positions()\n",
        "",
    ),
    (
        "filechannel: segments go in any order",
        f"{HERE}/collector.py",
        "        self._place.fs.sync_dir(directory)\n        self.sealed",
        "        self.sealed",
    ),
    (
        "filechannel: who comes while segments go is not asked",
        f"{HERE}/collector.py",
        "            floor = self.floor()\n            if floor is None or floor < segment.end:\n",
        "            if False:\n",
    ),
    (
        "filechannel: a receiver that cannot say where it is holds nothing",
        f"{HERE}/collector.py",
        "return min(known) if known and len(known) == len(positions) else None",
        "return min(known) if known else None",
    ),
    (
        "filechannel: the packed name is not durable before the plain one goes",
        f"{HERE}/collector.py",
        "            fs.sync_dir(directory)\n            fs.unlink",
        "            fs.unlink",
    ),
    (
        "filechannel: the plain file goes before the packed one is there",
        f"{HERE}/collector.py",
        "            # The packed name first, durably: at every moment one of the two is there.\n",
        "            fs.unlink(segment_path(directory, segment.segment_id), missing_ok=True)\n",
    ),
    (
        "filechannel: dropping leaves no word",
        f"{HERE}/collector.py",
        "            self._note_dropped(oldest.end)\n",
        "",
    ),
    (
        "filechannel: one slot for an offset",
        f"{HERE}/offsets.py",
        "SLOTS_AT[generation & 1]\n",
        "SLOTS_AT[0]\n",
    ),
    (
        "filechannel: damage with messages behind it is cut",
        f"{HERE}/survey.py",
        "        behind = next_good(view, at, size)\n        if behind >= size:\n",
        "        behind = size\n        if behind >= size:\n",
    ),
    (
        "filechannel: a hole that was never written is damage",
        f"{HERE}/survey.py",
        "        elif last.synced and _never_written(view, at, _behind_zeros(view, behind, size)):\n",
        "        elif False:\n",
    ),
    (
        "filechannel: a hole ends where the next message begins",
        f"{HERE}/survey.py",
        "_never_written(view, at, _behind_zeros(view, behind, size))",
        "_never_written(view, at, behind)",
    ),
    (
        "filechannel: the page of another boot is believed",
        f"{HERE}/page.py",
        "return memory[:8] == _MAGIC and memory[8 : 8 + _IDENTITY.size] == _identity(fd)",
        "return memory[:8] == _MAGIC",
    ),
    (
        "filechannel: a cut-off write stays behind the end",
        f"{HERE}/survey.py",
        "        if believed:\n            return good, False\n",
        "",
    ),
    (
        "filechannel: receivers see what is not synced",
        f"{HERE}/writer.py",
        '        if self._mode != "fsync":\n            self._place.page.publish(end + size)\n',
        "        self._place.page.publish(end + size)\n",
    ),
    (
        "filechannel: closing wakes nobody",
        f"{HERE}/receiver.py",
        "        self.wake()\n        self._on_close",
        "        self._on_close",
    ),
    (
        "filechannel: a sealed segment keeps the room behind its end",
        f"{HERE}/ahead.py",
        "                active.file.truncate(active.position(self._written()))\n",
        "                pass\n",
    ),
    (
        "filechannel: receivers believe the size of the segment that is written",
        f"{HERE}/reading.py",
        "self._known_end = min(self._segment.end(), published, self._sealed_end)",
        "self._known_end = self._segment.end()",
    ),
    (
        "filechannel: a channel reserves beyond its bound",
        f"{HERE}/ahead.py",
        "end = min(begin + self._window_bytes, self._limit) // grain * grain",
        "end = (begin + self._window_bytes) // grain * grain",
    ),
    (
        "filechannel: room behind the last message hides that it is damaged",
        f"{HERE}/survey.py",
        "            behind = max(written, _its_end(view, at, size))\n",
        "            behind = size\n",
    ),
    (
        "filechannel: a message of zeros at the end is taken for room",
        f"{HERE}/survey.py",
        "        behind = next_good(view, at, size)\n",
        "        behind = next_good(view, at, written)\n",
    ),
    (
        "filechannel: who closes second returns before everything is closed",
        f"{HERE}/channel.py",
        "        with self._lock:\n            self._closed = True\n            receivers",
        "        if self._closed:\n            return\n"
        "        with self._lock:\n            self._closed = True\n            receivers",
    ),
    (
        "filechannel: the name of a receiver whose closing was cut off is never free",
        f"{HERE}/receiver.py",
        "            if self._gone:\n                return\n",
        "            if self._closed:\n                return\n",
    ),
    (
        "filechannel: a message that cannot be decoded takes those before it along",
        f"{HERE}/receiver.py",
        "                if found:\n                    break\n",
        "",
    ),
    (
        "filechannel: a page is mapped that a full disk has no block for",
        f"{HERE}/page.py",
        "            os.posix_fallocate(self._fd, 0, PAGE_BYTES)\n",
        "",
    ),
    (
        "filechannel: bytes added to a sealed segment hide messages",
        f"{HERE}/reading.py",
        "            if behind >= self.offset:\n",
        "            if False:\n",
    ),
]
