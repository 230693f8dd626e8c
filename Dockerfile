# CPU image with the whole road but the exporters.
#   docker build -t opsmith . && docker run --rm opsmith demo /tmp/demo
#   docker run --rm -v "$PWD/models:/models" opsmith inspect /models/bert/dynamo
# With the exporters: docker build --build-arg EXTRAS=toolchain,studio,export -t opsmith .
FROM python:3.11-slim
ARG EXTRAS=toolchain,studio
WORKDIR /src
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src ./src
COPY packages ./packages
RUN pip install --no-cache-dir ".[$EXTRAS]" ./packages/opsmith-starter && rm -rf /src/build && useradd --create-home smith
USER smith
WORKDIR /home/smith
ENTRYPOINT ["opsmith"]
CMD ["--help"]
