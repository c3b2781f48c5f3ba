"""Do the tests notice a missing sync? Takes each one away, in a copy of the source, and runs the storage
tests.

    python -m tests.unit.storage.mutants [part of a name]

Every mutant must be killed. The list is also the answer to "why is this call here?".
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant("small files: bytes not synced before the rename", "topicd/disk/fs.py", "            file.sync()\n", ""),
    Mutant(
        "small files: name not synced",
        "topicd/disk/fs.py",
        "path, parts), path)\n    fs.sync_dir(path.parent)",
        "path, parts), path)",
    ),
    Mutant(
        "checkpoint: data not synced",
        "shards/storage/segment/jobs.py",
        "    return [_data(work, sync=True), *named, _index(work)]",
        "    return [_data(work, sync=False), *named, _index(work)]",
    ),
    Mutant(
        "checkpoint: many files not synced",
        "shards/storage/segment/jobs.py",
        "    _for_each_root(works, fs.sync_filesystem)\n    synced",
        "    synced",
    ),
    Mutant(
        "checkpoint: topic's name not synced",
        "shards/storage/segment/jobs.py",
        "        _for_each_root(new, fs.sync_dir)",
        "        pass",
    ),
    Mutant(
        "checkpoint: topic's name not synced when few of many have one",
        "shards/storage/segment/jobs.py",
        "    if len(_unfinished(topics, 0)) <= SINGLE_SYNCS:",
        "    if len(topics) <= SINGLE_SYNCS:",
    ),
    Mutant(
        "checkpoint: segment's name not synced",
        "shards/storage/segment/jobs.py",
        "[_data(work, sync=True), *named, _index(work)]",
        "[_data(work, sync=True), _index(work)]",
    ),
    Mutant(
        "checkpoint: index before the sync",
        "shards/storage/segment/jobs.py",
        "[_data(work, sync=True), *named, _index(work)]",
        "[_index(work), _data(work, sync=True), *named]",
    ),
    Mutant(
        "checkpoint: index of many before the sync",
        "shards/storage/segment/jobs.py",
        "[[_data(work, sync=False)] for work in works]",
        "[[_data(work, sync=False), _index(work)] for work in works]",
    ),
    Mutant(
        "checkpoint: successors do not wait",
        "shards/storage/segment/jobs.py",
        "        _store_many(fs, [topic[turn] for topic in left])\n        turn += 1",
        "        _store_many(fs, [work for topic in left for work in topic])\n        turn = 1_000_000",
    ),
    Mutant(
        "checkpoint: successors of a failure go on",
        "shards/storage/segment/jobs.py",
        "len(topic) > turn and topic[before].result.error is None]",
        "len(topic) > turn]",
    ),
    Mutant(
        "checkpoint: successors of a failure are begun",
        "shards/storage/segment/jobs.py",
        "    _store_few(fs, [topic[turn:] for topic in left])",
        "    for topic in left:\n        for work in topic[turn:]:\n            _store_few(fs, [[work]])",
    ),
    Mutant(
        "checkpoint: leftovers of a failure stay",
        "topicd/disk/steps.py",
        "            file.truncate(step.offset + length)",
        "            pass",
    ),
    Mutant(
        "checkpoint: a hole where bytes were stored",
        "topicd/disk/steps.py",
        "        if size < step.offset:",
        "        if False:",
    ),
    Mutant(
        "seals of a checkpoint: index not synced",
        "shards/storage/segment/jobs.py",
        "    return [index, table] if sync else [table]",
        "    return [table]",
    ),
    Mutant(
        "seals of a checkpoint: bytes not synced before the rename",
        "shards/storage/segment/jobs.py",
        "True, 0, seals.parts, sync)",
        "True, 0, seals.parts, False)",
    ),
    Mutant(
        "seals of a checkpoint: many not synced",
        "shards/storage/segment/jobs.py",
        "        _for_each_root(list(made), fs.sync_filesystem)",
        "        pass",
    ),
    Mutant(
        "seals of a checkpoint: names not synced",
        "shards/storage/segment/jobs.py",
        "    _sync_names(fs, [work for work in whole if work.result.ok])\n",
        "",
    ),
    Mutant(
        "seal: index not synced",
        "shards/storage/segment/seal.py",
        "        _sync_index(fs, topic_dir, first_seq)",
        "        pass",
    ),
    Mutant(
        "marks: bytes not synced",
        "shards/storage/segment/deletions.py",
        "        file.sync_data()\n    finally:\n        file.close()\n\n\ndef write",
        "        pass\n    finally:\n        file.close()\n\n\ndef write",
    ),
    Mutant(
        "marks: name not synced",
        "shards/storage/segment/deletions.py",
        "                fs.sync_dir(topic_dir)",
        "                pass",
    ),
    Mutant(
        "marks: torn tail not cut",
        "shards/storage/segment/deletions.py",
        "            file.truncate(marks.end)",
        "            pass",
    ),
    Mutant(
        "marks: dropped though they say more",
        "shards/storage/segment/deletions.py",
        "                return False",
        "                pass",
    ),
    Mutant(
        "rewrite: copies' names not synced",
        "shards/storage/segment/rewrite.py",
        "        fs.sync_dir(topic_dir)\n    except OSError:",
        "    except OSError:",
    ),
    Mutant(
        "rewrite: decision not synced",
        "shards/storage/segment/rewrite.py",
        "        fs.sync_dir(topic_dir)\n        for path in decided:",
        "        for path in decided:",
    ),
    Mutant(
        "rewrite: swap not synced before the marks go",
        "shards/storage/segment/rewrite.py",
        "            fs.rename(tmp_path(path), path)\n        fs.sync_dir(topic_dir)",
        "            fs.rename(tmp_path(path), path)",
    ),
    Mutant(
        "rewrite: decided swap not finished at load",
        "shards/storage/segment/load.py",
        "            finish_rewrite(self._fs, self._dir, first)",
        "            pass",
    ),
    Mutant(
        "drop: steps not synced", "shards/storage/segment/drop.py", "        fs.sync_dir(topic_dir)", "        pass"
    ),
    Mutant(
        "drop: marks before data",
        "shards/storage/segment/drop.py",
        "((TAGS, IDX), (DATA, PACKED), (DEL,))",
        "((TAGS, IDX), (DEL,), (DATA, PACKED))",
    ),
    Mutant(
        "drop: data before the seal",
        "shards/storage/segment/drop.py",
        "((TAGS, IDX), (DATA, PACKED), (DEL,))",
        "((DATA, PACKED), (TAGS, IDX), (DEL,))",
    ),
    Mutant(
        "delete: rename not synced",
        "shards/storage/topic_dir.py",
        "        fs.sync_dir(topics_dir)\n\n\ndef finish",
        "        pass\n\n\ndef finish",
    ),
    Mutant(
        "delete: removal not synced",
        "shards/storage/topic_dir.py",
        "    if done:\n        fs.sync_dir(topics_dir)",
        "    if done:\n        pass",
    ),
    Mutant(
        "plain: frames of another topic",
        "shards/storage/segment/plain.py",
        "    if run.type != APPEND or run.topic_id != topic_id or run.first_seq != first:\n        return None\n",
        "",
    ),
    Mutant(
        "plain: the index is not compared",
        "shards/storage/segment/plain.py",
        "    if core.index_entries(frames, 0, size, 0) != index[1]:\n        return None\n",
        "",
    ),
    Mutant(
        "plain: torn frames pass",
        "shards/storage/segment/plain.py",
        "    if scan.end != size or len(scan.runs) != 1:\n",
        "    if not scan.runs:\n",
    ),
    Mutant(
        "plain: sizes are not the seal's",
        "shards/storage/segment/plain.py",
        "    if index[0] != seal.count * ENTRY_BYTES or data[0] != seal.data_bytes:\n        return None\n",
        "",
    ),
    Mutant(
        "plain: segments that do not follow each other",
        "shards/storage/segment/plain.py",
        " or (segments and first != due):",
        ":",
    ),
    Mutant(
        "seal: a missing index breaks the start",
        "shards/storage/segment/seal.py",
        "file(IDX), write=True, create=True)",
        "file(IDX), write=True)",
    ),
    Mutant(
        "snapshot: old ones go first",
        "shards/storage/snapshot.py",
        "        self._write(number, body, topics)\n",
        "        self._prune({number, self._newest_good} if number < 3 else {number})\n"
        "        self._write(number, body, topics)\n",
    ),
    Mutant(
        "snapshot: directory's name not synced",
        "shards/storage/snapshot.py",
        "            self._fs.sync_dir(self._directory.parent)\n",
        "",
    ),
    Mutant(
        "snapshot: its parent's name not synced",
        "shards/storage/snapshot.py",
        "            self._fs.sync_dir(self._directory.parent.parent)\n",
        "",
    ),
    Mutant(
        "load: found records not synced",
        "shards/storage/segment/active.py",
        "                file.sync_data()\n        finally:",
        "                pass\n        finally:",
    ),
    Mutant(
        "load: found names not synced",
        "shards/storage/segment/active.py",
        "            self._fs.sync_dir(self._dir)\n",
        "",
    ),
    Mutant(
        "load: found topic's name not synced",
        "shards/storage/segment/active.py",
        "            self._fs.sync_dir(self._dir.parent)\n",
        "",
    ),
    Mutant(
        "load: cut not synced",
        "shards/storage/segment/active.py",
        "        file.sync_data()\n        report.torn_bytes",
        "        report.torn_bytes",
    ),
    Mutant(
        "load: last index entry trusted",
        "shards/storage/segment/active.py",
        "        trusted = max(believed - 1, 0)",
        "        trusted = believed",
    ),
    Mutant(
        "load: index believed without tiling",
        "shards/storage/segment/active.py",
        "        claimed = tiled_entries(index)",
        "        claimed = entry_count(index)",
    ),
    Mutant(
        "load: valid frames thrown away with the tail",
        "shards/storage/segment/active.py",
        "        if found.tail.behind or claimed_last >= first_lost or unread or found.index_problem:",
        "        if False:",
    ),
    Mutant(
        "recovery: no search behind a bad frame",
        "shards/storage/segment/reindex.py",
        "        following = next_frame(view, scan.end + 1, topic_id)",
        "        following = None",
    ),
    Mutant(
        "reader: index believed without its checksum",
        "shards/storage/segment/reader.py",
        "        if not stored.bad and (seal is None or core.xxh3_64(index) == seal.index_xxh3):",
        "        if True:",
    ),
    Mutant("move: copy not synced", "shards/storage/segment/relocate.py", "            file.sync()\n", ""),
    Mutant(
        "move: name of the copy not synced",
        "shards/storage/segment/relocate.py",
        "    fs.rename(tmp, target)\n    fs.sync_dir(target.parent)\n",
        "    fs.rename(tmp, target)\n",
    ),
    Mutant(
        "move: damaged frames go, too",
        "shards/storage/segment/relocate.py",
        "scan.problem or scan.end != len(view) or strange",
        "strange",
    ),
    Mutant(
        "move: to a directory without the mark",
        "shards/storage/segment/relocate.py",
        "        move.cold.check(fs)\n",
        "",
    ),
    Mutant(
        "move: back, and its pointer outlives the file",
        "shards/storage/segment/relocate.py",
        "    fs.unlink(place.file(COLD), missing_ok=True)\n",
        "",
    ),
    Mutant(
        "load: a copy that is not whole counts",
        "shards/storage/segment/load.py",
        "        if seal is None or size == seal.data_bytes:",
        "        if True:",
    ),
    Mutant(
        "load: a dropped segment is served",
        "shards/storage/segment/load.py",
        "        if pointer.dropped:",
        "        if False:",
    ),
    Mutant(
        "packed: a block is believed unseen",
        "shards/storage/segment/packed.py",
        " or core.xxh3_64(plain) != block.xxh3",
        "",
    ),
    Mutant(
        "rewrite: half a copy is taken for a rewrite",
        "shards/storage/segment/rewrite.py",
        "        return fs.exists(path) and fs",
        "        return not fs.exists(path) or fs",
    ),
]


def killer(mutant: Mutant) -> str | None:
    """The first test that fails with the mutant; None if it survives."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", "var", "build", "*.egg-info")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
        target = copy / mutant.file
        source = target.read_text()
        if source.count(mutant.old) != 1:
            raise SystemExit(f"{mutant.name}: {source.count(mutant.old)} places match in {mutant.file}")
        target.write_text(source.replace(mutant.old, mutant.new))
        tests = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/unit/storage",
            "tests/unit/disk",
        ]
        done = subprocess.run(tests, cwd=copy, capture_output=True, check=False, text=True)
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0] if failed else "the tests did not run"


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    survivors = 0
    for mutant in MUTANTS:
        if wanted in mutant.name:
            by = killer(mutant)
            survivors += by is None
            print(
                f"SURVIVED  {mutant.name}" if by is None else f"killed    {mutant.name}\n            {by}", flush=True
            )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
