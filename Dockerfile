# topicd in a container. Not built by the tests. The rings live in /dev/shm, which Docker makes 64 MiB small: run with
#   docker build -t topicd . && docker run --shm-size=1g -v topicd-data:/data -v topicd-run:/run/topicd topicd
# Clients in other containers mount the volume topicd-run and run as uid 10001; others use listen_tcp and a token.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels . && pip install --no-index --find-links /wheels topicd && topicctl version

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels topicd && rm -rf /wheels \
    && useradd --uid 10001 --no-create-home topicd && mkdir -p /data /run/topicd && chown topicd /data /run/topicd
USER topicd
ENV TOPICD_DATA_DIR=/data TOPICD_RUN_DIR=/run/topicd
VOLUME ["/data", "/run/topicd"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --start-period=60s CMD ["topicctl", "ping", "--timeout", "5"]
CMD ["topicd"]
