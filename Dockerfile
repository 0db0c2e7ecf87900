# One image for both processes. The base is an argument, so that it can be built where no registry of
# images is reachable: any Linux with Python 3.11 or newer and its venv. A release names it by its digest
# (docs/release.md). What is installed is locked by version and hash.
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
COPY kubelet kubelet
COPY runtime runtime
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

FROM ${BASE} AS root
COPY --from=build /opt/devicelens /opt/devicelens
# Python's own modules, as far as both processes use them: python:3.13-slim has them uncompiled, and a read-only
# root would have them compiled anew at each start. As above, in a form that does not hang on times.
RUN export PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 \
 && /opt/devicelens/bin/python -c "import sys, devicelens, runtime.healthy, exporter.main, exporter.cli, plugin.main; \
    files = {getattr(module, '__file__', None) or '' for module in sys.modules.values()}; \
    print(*sorted(f for f in files if f.endswith('.py') and not f.startswith(sys.prefix)), sep='\n')" >/used \
 && /opt/devicelens/bin/python -m compileall -q -f -j 1 --invalidation-mode unchecked-hash -i /used \
 && rm /used
# Whoever gets into a container finds nothing to install or to build with, and no program that makes him root. What
# a scanner asks for the versions of Debian's packages, /var/lib/dpkg, stays.
RUN rm -rf /etc/apt /etc/dpkg /usr/lib/apt /usr/lib/dpkg /usr/share/python-wheels /var/cache/apt /var/lib/apt \
 && for place in /usr/local/bin /usr/bin /usr/sbin /bin /sbin; do \
      cd "$place" && rm -f apt apt-* debconf-apt-progress dpkg dpkg-* apk dnf* microdnf rpm rpm2* rpmkeys yum pip pip[0-9]* \
      || exit 1; done \
 && find / -xdev -depth \( -name 'libapt-*' -o -path '*/python3*' -type d \
      \( -name ensurepip -o -name pip -o -name 'pip-*' -o -name setuptools -o -name 'setuptools-*' \) \) \
      -exec rm -rf {} + \
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
 && for tool in apk apt-get dnf dpkg microdnf pip pip3 rpm yum as cc clang g++ gcc ld make; do \
      if command -v "$tool"; then echo "the base has $tool: take one without it" >&2; exit 1; fi; done

# Copied whole, what was taken away is not in a layer below either.
FROM scratch
COPY --from=root / /
# What it was built of: `make image` says both. The revision is shown by `devicelens --version` too.
ARG VERSION
ARG REVISION
ARG SOURCE=https://github.com/devicelens/devicelens
ARG BASE
LABEL org.opencontainers.image.title="devicelens" \
      org.opencontainers.image.description="Which pod holds which device, on every Kubernetes node" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.base.name="${BASE}"
ENV PATH=/opt/devicelens/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    DEVICELENS_REVISION=${REVISION}
# It needs nothing that the base has in its environment.
RUN ["devicelens", "--version"]
# Both processes reach sockets that belong to root; each manifest takes away every capability.
USER 0:0
EXPOSE 10190 10191
# Kubernetes has its own probes; this is for those who run it by docker or podman (of which the OCI format of
# images knows nothing: podman and buildah want --format docker).
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 CMD ["devicelens", "healthy"]
ENTRYPOINT ["devicelens"]
CMD ["exporter"]
