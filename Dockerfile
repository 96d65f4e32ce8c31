# Larder in one image: `docker build -t larder .`
# TORCH_BACKEND is uv's name of a torch build: cpu (default, small), cu130, … for nodes with a GPU.
ARG PYTHON_VERSION=3.11
ARG NODE_VERSION=24

FROM node:${NODE_VERSION}-bookworm-slim AS web
WORKDIR /src/web
COPY web/.npmrc web/package.json web/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY web/ ./
RUN npm run build

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
ARG TORCH_BACKEND=cpu
ARG UV_VERSION=0.13.8
RUN pip install --no-cache-dir "uv==${UV_VERSION}" && python -m venv --without-pip /opt/larder
WORKDIR /src
# Dependencies first: this layer is kept until they change. Who runs Larder may not write here: without compiled modules
# each process would compile all of them anew, which is half of its start.
ENV UV_COMPILE_BYTECODE=1
COPY pyproject.toml constraints.txt ./
COPY dataplane/pyproject.toml dataplane/
RUN uv pip install --no-cache --python /opt/larder/bin/python --torch-backend "${TORCH_BACKEND}" \
    -c constraints.txt -r pyproject.toml --extra server --extra otel --extra s3
COPY README.md LICENSE ./
COPY app/ app/
COPY dataplane/ dataplane/
COPY docs/ docs/
COPY migrations/ migrations/
COPY --from=web /src/web/dist/ web/dist/
RUN uv pip install --no-cache --no-deps --no-sources --python /opt/larder/bin/python ./dataplane .

FROM python:${PYTHON_VERSION}-slim-bookworm
# Engines that attach through the socket must run as the same user: the pool is private to it.
RUN groupadd --gid 10001 larder \
    && useradd --uid 10001 --gid larder --home-dir /var/lib/larder --no-create-home --shell /usr/sbin/nologin larder \
    && install -d -o larder -g larder -m 0700 /var/lib/larder /run/larder
COPY --from=build /opt/larder /opt/larder
ENV PATH=/opt/larder/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    LARDER_STATE_DIR=/var/lib/larder \
    LARDER_ENGINE_SOCKET=/run/larder/engine.sock
WORKDIR /var/lib/larder
USER 10001:10001
EXPOSE 8470
# Not urllib: it would ask the proxy that Docker sets in each container. Any answer but 5xx will do: it is 401 if
# LARDER_APP__ANONYMOUS_HEALTH is false.
HEALTHCHECK --interval=10s --timeout=4s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client as h, os; c = h.HTTPConnection('127.0.0.1', int(os.environ.get('LARDER_HTTP_PORT', 8470)), timeout=3); c.request('GET', '/readyz'); exit(c.getresponse().status >= 500)"]
ENTRYPOINT ["larder"]
CMD ["up"]
