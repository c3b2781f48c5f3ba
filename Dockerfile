# topicd in a container. Nobody has built it where these sources are tested: there is no container engine. What it says is
# compared with what an installation needs (tests/unit/test_container.py).
#
#   docker build -t topicd .
#   docker run --shm-size=1g --stop-timeout 60 -v topicd-data:/data -v topicd-run:/run/topicd topicd
#
# The rings between the processes are in /dev/shm, of which Docker gives 64 MiB: hence --shm-size. Clients in other containers
# mount the volume topicd-run and run as uid 10001. HTTP and the dashboard, with tokens from `topicctl token create`:
#
#   docker run … -e TOPICD_HTTP=true -e TOPICD_HTTP_LISTEN=0.0.0.0:4000 -e TOPICD_TOKENS_FILE=/data/tokens.toml -p 127.0.0.1:4000:4000 topicd
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels .
# An image that would run interpreted, several times slower, is not made.
RUN pip install --no-cache-dir --no-index --find-links /wheels topicd && topicctl version && topicctl version | grep -q "native core, compiled modules"

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels topicd && rm -rf /wheels
RUN useradd --uid 10001 --no-create-home topicd && mkdir -p /data /run/topicd && chown topicd: /data /run/topicd
USER topicd
WORKDIR /data
ENV TOPICD_DATA_DIR=/data TOPICD_RUN_DIR=/run/topicd
VOLUME ["/data", "/run/topicd"]
EXPOSE 4000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s CMD ["topicctl", "ping", "--timeout", "5"]
CMD ["topicd"]
