# A bookie in a container: small, without root, asked for its health.
#
#   docker build --tag bookie .
#   docker run --rm -v b1:/var/lib/bookie bookie cluster init -m local:///var/lib/bookie/metadata
#   docker run --name b1 -v b1:/var/lib/bookie -e BOOKIE_BOOKIE__ID=b1 \
#     -e BOOKIE_SECURITY__ALLOW_PLAINTEXT=true bookie
#
# Every setting is a variable BOOKIE_SECTION__KEY; a file mounted over /etc/bookie/bookie.toml works
# as well. Inside the container the bookie listens on every address, so it needs certificates
# (BOOKIE_SECURITY__CERTIFICATE_FILE, …), or BOOKIE_SECURITY__ALLOW_PLAINTEXT=true on a network that
# you trust: docs/security.md. With BOOKIE_LISTEN__FRAMES_PORT=3182 clients that reach this port too
# append faster.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS build
WORKDIR /src
RUN python -m venv /opt/bookie
COPY requirements/build.txt requirements/core.txt requirements/
RUN /opt/bookie/bin/pip install --no-cache-dir -r requirements/build.txt -r requirements/core.txt
COPY pyproject.toml README.md LICENSE ./
COPY bookie bookie
RUN /opt/bookie/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/bookie/bin/pip uninstall --yes setuptools pip

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="bookie" \
      org.opencontainers.image.description="A storage node for replicated logs." \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/bookie /opt/bookie
COPY conf/bookie.toml /etc/bookie/bookie.toml
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/bookie \
      /var/lib/bookie/journal /var/lib/bookie/ledgers /var/lib/bookie/metadata
ENV PATH=/opt/bookie/bin:$PATH \
    BOOKIE_LISTEN__HOST=0.0.0.0 \
    BOOKIE_HTTP__HOST=0.0.0.0 \
    BOOKIE_HTTP__PORT=8000
USER 10001:10001
WORKDIR /var/lib/bookie
# One volume; the journal wants a faster device, mount another one on /var/lib/bookie/journal. Were
# the directories below declared as well, each would be a nameless volume of its own, lost with the
# container, even with a volume mounted here.
VOLUME ["/var/lib/bookie"]
EXPOSE 3181 3182 8000
# Starting may replay a journal; a bookie that still replays counts as healthy once it answers.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 \
  CMD ["python", "-c", "import os, ssl, urllib.request as r\nu = '://127.0.0.1:' + os.environ['BOOKIE_HTTP__PORT'] + '/healthz'\ntry:\n  r.urlopen('http' + u, timeout=2)\nexcept OSError:\n  r.urlopen('https' + u, timeout=2, context=ssl._create_unverified_context())"]
ENTRYPOINT ["bookie"]
CMD ["serve", "--config", "/etc/bookie/bookie.toml"]
