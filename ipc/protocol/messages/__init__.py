"""Every request whose body is a map: its op, its fields with their rules, the right it needs. Promise: a client builds
its requests of these, a shard checks them by these, and the table in docs/protocol.md is made of these.

One module for each noun; all their names are found here. The hot ones (APPEND, the fixed part of FETCH, CREDIT, CLAIM,
ACK) are binary layouts in wire.py.
"""

from topicd.ipc.protocol.messages.backups import *
from topicd.ipc.protocol.messages.channels import *
from topicd.ipc.protocol.messages.commits import *
from topicd.ipc.protocol.messages.connection import *
from topicd.ipc.protocol.messages.consumers import *
from topicd.ipc.protocol.messages.declaring import *
from topicd.ipc.protocol.messages.queues import *
from topicd.ipc.protocol.messages.records import *
from topicd.ipc.protocol.messages.routers import *
from topicd.ipc.protocol.messages.schedules import *
from topicd.ipc.protocol.messages.tiers import *
from topicd.ipc.protocol.messages.topics import *
from topicd.ipc.protocol.messages.watching import *
