# The image of every claimlog process. Which process it is, compose.yaml or your own orchestrator says: the entry point is `claimlog`.
FROM python:3.11.13-slim-bookworm AS build
WORKDIR /src
# Only what the wheel is made of, so that a change of tests or docs builds nothing anew.
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY projections projections
COPY streams streams
COPY producers producers
COPY deploy/constraints.txt deploy/constraints.txt
RUN python -m venv /opt/claimlog
RUN /opt/claimlog/bin/pip install --no-cache-dir --only-binary=:all: --constraint deploy/constraints.txt .

FROM python:3.11.13-slim-bookworm
# Tables, worker ids and what Faust keeps: the one place that is written to.
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/claimlog --create-home --shell /usr/sbin/nologin claimlog
COPY --from=build /opt/claimlog /opt/claimlog
# The four packages have plain names; a folder of the working directory must not stand before them.
ENV PATH=/opt/claimlog/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/claimlog
VOLUME /var/lib/claimlog
ENTRYPOINT ["claimlog"]
CMD ["--help"]
