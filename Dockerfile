# One image for both processes. The base is an argument, so that it can be built where no registry of
# images is reachable: any Linux with Python 3.11 or newer and its venv. What is installed is locked by
# version and hash.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
# The same for everything that writes a time into a file.
ARG SOURCE_DATE_EPOCH=1577836800
ENV PYTHONHASHSEED=0 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
# pip and hatchling have an environment of their own: what is shipped has neither.
RUN python3 -m venv /opt/build \
 && python3 -m venv --without-pip /opt/devicelens
COPY requirements/image.txt requirements/build.txt requirements/
RUN /opt/build/bin/python -m pip install --no-cache-dir --require-hashes -r requirements/build.txt \
 && /opt/build/bin/python -m pip --python /opt/devicelens/bin/python install --no-cache-dir --no-compile \
    --only-binary :all: --require-hashes -r requirements/image.txt
COPY pyproject.toml README.md LICENSE devicelens.py devicelens_check.py ./
COPY daemon daemon
COPY exporter exporter
COPY plugin plugin
COPY simulator simulator
# The image runs the wheel, as anyone would who installs it. Its compiled modules are valid by their
# content's hash, whatever a registry or a builder does to the times of files, and are compiled one after
# another, so that two builds are equal to the byte.
RUN SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} /opt/build/bin/python -m hatchling build -t wheel -d /dist \
 && /opt/build/bin/python -m pip --python /opt/devicelens/bin/python install --no-cache-dir --no-compile \
    --no-deps --no-index /dist/*.whl \
 && /opt/devicelens/bin/python -m compileall -q -f -j 1 --invalidation-mode unchecked-hash /opt/devicelens/lib \
 && rm -r /opt/devicelens/include /opt/devicelens/bin/*ctivate* \
 && find /opt/devicelens -exec touch -h -d @${SOURCE_DATE_EPOCH} {} + \
 && /opt/devicelens/bin/devicelens --version
# A label that says another version than the program itself is refused.
ARG VERSION
RUN test -z "${VERSION}" || test "$(/opt/devicelens/bin/devicelens --version)" = "devicelens, version ${VERSION}"

FROM ${BASE}
COPY --from=build /opt/devicelens /opt/devicelens
# python:3.13-slim has Python's own modules uncompiled, and a read-only root would have them compiled anew
# at each start. Importing both processes once keeps what they use.
RUN ["/opt/devicelens/bin/python", "-c", "import devicelens, daemon.healthy, exporter.main, exporter.who, plugin.main"]
# What it was built of: `make image` says both. The revision is shown by `devicelens --version` too.
ARG VERSION
ARG REVISION
ARG SOURCE=https://github.com/devicelens/devicelens
LABEL org.opencontainers.image.title="devicelens" \
      org.opencontainers.image.description="Which pod holds which device, on every Kubernetes node" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
ENV PATH=/opt/devicelens/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    DEVICELENS_REVISION=${REVISION}
# Both processes reach sockets that belong to root; each manifest takes away every capability.
USER 0:0
EXPOSE 10190 10191
# Kubernetes has its own probes; this is for those who run it by docker or podman (of which the OCI format of
# images knows nothing: podman and buildah want --format docker).
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 CMD ["devicelens", "healthy"]
ENTRYPOINT ["devicelens"]
CMD ["exporter"]
