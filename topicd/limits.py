"""Every limit of the contract, once. Sizes are bytes, counts are records, unless the name says so."""

from __future__ import annotations

import re

KIB = 1024
MIB = 1024 * KIB

TOPIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
TOPIC_NAME_MAX = 255
TOPIC_NAME_RULE = "1 to 255 of A-Z a-z 0-9 . _ : -, starting with a letter or digit"
INTERNAL = "topicd."  # names that begin so are topicd's own
CHATS = f"{INTERNAL}chat."  # logs of chat stores
CHAT_KEEPER = "topicd-chat"  # what the process that writes them calls itself
STAGES = f"{INTERNAL}stage."  # what writers have staged
COMMITS = f"{INTERNAL}commits."  # what was decided about it
CHANNELS = f"{INTERNAL}channel."  # the logs of channels: behind it the hash of the handler, a dot, a name of its own
ROUTERS = f"{INTERNAL}routers"  # the definitions of all routers, each a record
ROUTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")
ROUTER_NAME_RULE = "1 to 255 of A-Z a-z 0-9 . _ : > -, starting with a letter or digit"
HOPS_MAX = 8  # so often a record is copied on from topic to topic
ROUTED_RECORDS = 1_024  # that a router copies at once
TEMPLATE_MAX = 256  # characters of a template for tags or nodes
STAGE_KEY_DIGITS = 24  # behind either: hex digits that stand for a query

MAX_DATA_AND_META = 1 * MIB
MAX_TAG = 256
MAX_NODE = 128
MAX_META = 16 * KIB
MAX_META_KEYS = 64
MAX_STAMP = 2 * KIB  # that a router may add to the meta of a copy
MAX_BATCH_RECORDS = 10_000
MAX_BATCH_BYTES = 64 * MIB

FRAME_HEADER = 38
FRAME_CHECKSUM = 8
FRAME_OVERHEAD = FRAME_HEADER + FRAME_CHECKSUM
MAX_FRAME = FRAME_OVERHEAD + MAX_NODE + MAX_TAG + 2 + MAX_DATA_AND_META + MAX_STAMP
MAX_SEQ = 2**63 - 1
MAX_U64 = 2**64 - 1

# A message on the client socket holds one batch and a little beside it.
MAX_MESSAGE = MAX_BATCH_BYTES + MAX_BATCH_RECORDS * FRAME_OVERHEAD + 64 * KIB
# Everything but a batch is small.
MAX_CONTROL_MESSAGE = 1 * MIB

# What one copy between topics may hold: a shard does it at one go.
MAX_COPY_BYTES = 16 * MIB  # with framing
MAX_COPY_RANGES = 256

FETCH_RECORDS_DEFAULT = 256
FETCH_RECORDS_MAX = 100_000
FETCH_BYTES_DEFAULT = 1 * MIB
FETCH_BYTES_MAX = 8 * MIB
LONG_POLL_MS_MAX = 30_000
LIST_PAGE_DEFAULT = 100
LIST_PAGE_MAX = 1_000

SUBSCRIPTION_TOPICS_MAX = 256
SEGMENTS_MAX = 64  # handed out as descriptors in one answer
PATTERN_MAX = 255  # characters: as long as a topic name
COMMIT_HOLD_MS_MAX = 3_600_000  # room for a commit is held so long at most
LASTING = 0xFFFF << 48  # producer ids from here on are remembered until they are released
ROUTED = 0xFFFD << 48  # from here to SCATTERED: the producer that the router with the id in the lower bits writes as
SCATTERED = 0xFFFE << 48  # from here to LASTING: the producer that jobs of the topic in the lower bits write as
IDEMPOTENCY_KEY_MAX = 256
SCHEMA_MAX = 64 * KIB  # characters of a topic's schema
SCHEMA_WRITE_MAX = 4 * MIB  # data of one write that is checked against one

CLAIM_MAX = 1_000  # jobs of one claim, one acknowledgement, one worker
LEASE_MS_MIN = 100
LEASE_MS_MAX = 86_400_000
DELAY_MS_MAX = 86_400_000  # of a nack
READY_MS_MAX = 366 * 86_400_000  # of a job at publish: how far ahead
REASON_MAX = 1_024  # bytes
PRIORITY_MAX = 9
PRIORITY_DEFAULT = 4
UNIQUE_MAX = 256
GROUP_MAX = 128

HANDLER_MAX = 255  # bytes of a channel's name
USER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
USER_NAME_RULE = "1 to 64 of A-Z a-z 0-9 . _ @ -"
CHANNEL_PAYLOAD_MAX = 1_000 * KIB  # with the rest of its request it is no more than a control message may be
CHANNEL_MEMBERS_MAX = 100_000
CHANNEL_ACL_MAX = 1_000  # names in one list
CHANNEL_HISTORY_MAX = 100  # messages of one answer
CHANNEL_FLUSH_MS_MAX = 60_000

BACKUP_LEASE_MS = 15_000  # a backup that is not heard of for so long is over
BACKUP_LEASE_MS_MAX = 60_000
WAL_FILE_MAX = 4096 * MIB  # as wal_file_bytes
SEGMENT_RECORDS_MAX = 10_000_000  # as segment_max_records; a batch may go beyond it
SMALL_FILE_MAX = 64 * MIB
