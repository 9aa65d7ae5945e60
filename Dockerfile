# One image for controller, gateway, agents and the command line:
#   docker build -t gpuward .    docker run --rm gpuward --help
#
# BASE    deploy/release.py adds the digest that the tag has then, so that a release can be built again
# EXTRAS  `controller,agent` adds the embedded PostgreSQL; the image expects a server of yours

ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ARG EXTRAS=server,agent
WORKDIR /build
# pip fetches every package of the lock and checks its hash. The next step installs from these files alone, without a
# network: Gpuward and what it needs to run. The build backend, which the lock holds too, stays behind.
COPY locks/product.txt .
RUN pip download --no-cache-dir --no-deps --only-binary=:all: --require-hashes --requirement product.txt --dest locked
COPY pyproject.toml README.md LICENSE gpuward.py docker-compose.yml ./
COPY deploy deploy
COPY controller controller
COPY gateway gateway
COPY agent agent
COPY http1 http1
COPY schemas schemas
COPY cli cli
RUN python -m venv --without-pip /opt/gpuward \
    && pip --python /opt/gpuward/bin/python install --no-cache-dir --no-index --find-links locked ".[${EXTRAS}]"

FROM ${BASE}
RUN groupadd --gid 8420 gpuward \
    && useradd --uid 8420 --gid gpuward --home-dir /var/lib/gpuward --no-create-home gpuward \
    # A new volume takes owner and mode of the folder that it is mounted on.
    && install -d -o gpuward -g gpuward -m 0700 /var/lib/gpuward /run/gpuward
COPY --from=build /opt/gpuward /opt/gpuward
# The scripts and simulated hosts of docker-compose.yml.
COPY --from=build /build/deploy/compose /etc/gpuward
ENV PATH=/opt/gpuward/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GPUWARD_DATA_DIR=/var/lib/gpuward \
    GPUWARD_AGENT_DATA_DIR=/var/lib/gpuward/agent \
    GPUWARD_AGENT_CACHE_DIR=/var/lib/gpuward/models
USER gpuward
WORKDIR /var/lib/gpuward
ENTRYPOINT ["gpuward"]
