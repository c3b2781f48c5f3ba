"""The client library: a blocking and an asyncio face over one core that knows no sockets. Reference:
docs/client.md."""
