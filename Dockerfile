# One image for both processes. The base is an argument, so that it can be built where no registry of
# images is reachable. Everything installed is locked by version and hash.
ARG BASE=python:3.13-slim

FROM ${BASE} AS build
WORKDIR /src
RUN python3 -m venv /opt/devicelens
COPY requirements/runtime.txt requirements/build.txt requirements/
RUN /opt/devicelens/bin/python -m pip install --no-cache-dir --no-compile --require-hashes -r requirements/runtime.txt \
 && python3 -m venv /opt/build \
 && /opt/build/bin/python -m pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE devicelens.py ./
COPY daemon daemon
COPY exporter exporter
COPY plugin plugin
COPY simulator simulator
# The image runs the wheel, as anyone would who installs it.
RUN /opt/build/bin/python -m hatchling build -t wheel -d /dist \
 && /opt/devicelens/bin/python -m pip install --no-cache-dir --no-deps --no-index /dist/*.whl \
 && /opt/devicelens/bin/python -m pip uninstall --yes --quiet pip \
 && /opt/devicelens/bin/python -m compileall -q -j 0 /opt/devicelens/lib \
 && /opt/devicelens/bin/devicelens --version

FROM ${BASE}
LABEL org.opencontainers.image.title="devicelens" \
      org.opencontainers.image.description="Which pod holds which device, on every Kubernetes node" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/devicelens /opt/devicelens
ENV PATH=/opt/devicelens/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# Both processes reach sockets that belong to root; each manifest takes away every capability.
USER 0:0
EXPOSE 10190 10191
ENTRYPOINT ["devicelens"]
CMD ["exporter"]
