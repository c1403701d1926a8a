# The tools without torch, which read code and never run it:
#   docker build -t amp-migrate .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" amp-migrate train.py --ddp
#   docker run --rm -v "$PWD:/work" --entrypoint amp-lint amp-migrate .
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY migrate migrate
COPY rules rules
COPY runtime runtime
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[report]"

FROM python:3.12-slim
# git says which files hold uncommitted changes; the mounted folder belongs to another user.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*'
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "amp-migrate[report]"
ENV XDG_CACHE_HOME=/tmp/cache XDG_STATE_HOME=/tmp/state
WORKDIR /work
ENTRYPOINT ["amp-migrate"]
